//! A storm over three hosts: their daemons, runners and database die, a replica takes over, hosts are paused
//! and cut off, while jobs run and their rows are read on every host.
//!
//! Each host reaches the database through a relay of its own. When the storm is over, each job was started
//! once, every host has the same rows, no row that was shown is missing, and no commit was made under an
//! earlier term.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_engine::{CommandReply, DaemonCommand};
use heeler_model::{JobId, JobStatus};
use heeler_server::DaemonClient;
use heeler_store::{DaemonFile, StateDir};
use heeler_testkit::{NetworkState, PostgresCluster, PostgresRelay, ProofSettings, WAIT_MAX};
use rustix::process::{Pid, Signal};

use crate::daemon_kills::{Herd, Life};
use crate::daemon_lives::wanted;
use crate::hosts::{cluster, leader, ran, wait_for_leader};
use crate::processes::signal_if;
use crate::trigger::wait_for;

/// Faults in CI: less than four minutes.
const FAULTS_IN_CI: u64 = 200;

/// Faults after which the storm pauses, and everything is checked.
const FAULTS_PER_STORM: u64 = 40;

/// Storms over one fleet.
const STORMS_PER_FLEET: u64 = 10;

/// Longest time between two faults. A leader that dies is replaced within about 3 seconds, so some faults
/// hit a fleet that recovers from the one before.
const REST_MAX: Duration = Duration::from_millis(800);

/// Callers without an answer at which no more jobs are asked for.
const UNANSWERED_MAX: usize = 12;

/// Time between two looks at the rows of all hosts.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

const HOSTS: [&str; 3] = ["alpha", "beta", "gamma"];

/// An agent of the host that leads, one of any host and one of a certain host.
const AGENTS: [(&str, &str); 3] =
    [("lead", ""), ("any", "host: {labels: []},"), ("named", "host: beta,")];

/// Each run leaves a line on its host.
const SCRIPT: &str = "[{run: 'echo $HEELER_RUN >> ran'}, {say: One.}, {sleep: 200ms}, {say: Two.}, \
                      {sleep: 400ms}, {say: Three.}]";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    DaemonKilled,
    LeaderKilled,
    DaemonStopped,
    RunnerKilled,
    HostPaused,
    HostCutOff,
    HostStalled,
    ServerKilled,
    /// The server dies, and its synchronous replica takes its place.
    ServerFailedOver,
    /// A host is healed before the storm is over.
    HostHealed,
}

impl Fault {
    const ALL: [Fault; 10] = [
        Fault::DaemonKilled,
        Fault::LeaderKilled,
        Fault::DaemonStopped,
        Fault::RunnerKilled,
        Fault::HostPaused,
        Fault::HostCutOff,
        Fault::HostStalled,
        Fault::ServerKilled,
        Fault::ServerFailedOver,
        Fault::HostHealed,
    ];
}

struct StormHost {
    name: &'static str,
    herd: Herd,
    relay: PostgresRelay,
    life: Life,
}

impl StormHost {
    fn start(cluster: &PostgresCluster, name: &'static str) -> StormHost {
        let relay = PostgresRelay::start(cluster);
        let agents = AGENTS.map(|(agent, place)| {
            format!(
                "  - {{name: {agent}, runtime: scripted, {place} \
                 instances: {{max_concurrent: 20}}, script: {SCRIPT}}}\n"
            )
        });
        let (url, agents) = (relay.url("fleet"), agents.concat());
        let herd = Herd::of(&format!("store: {url}\nweb: {{enabled: false}}\nagents:\n{agents}"));
        let (life, _) = herd.begin(&["--host", name]);
        StormHost { name, herd, relay, life }
    }

    fn signal(&mut self, signal: Signal) {
        if !self.life.has_ended() {
            signal_if(Pid::from_child(&self.life.child), signal, || true);
        }
    }

    /// Connects the host, and lets its daemon continue. Starts one if it has died.
    fn heal(&mut self) {
        self.relay.set(NetworkState::Connected);
        self.signal(Signal::CONT);
        if self.life.has_ended() {
            self.life = self.herd.start(&[]);
        }
    }

    /// Heals the host until its daemon can be talked to.
    fn wait_until_up(&mut self, seed: u64) {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            self.heal();
            if self.herd.connect(&mut self.life).is_some() {
                return;
            }
            let errors = || self.herd.errors();
            assert!(Instant::now() < deadline, "{} is down (seed {seed}): {}", self.name, errors());
        }
    }
}

/// Rows that were shown on any host, by job.
#[derive(Default)]
struct ShownRows {
    longest: BTreeMap<String, Vec<u8>>,
    contradictions: Vec<String>,
}

impl ShownRows {
    fn note(&mut self, host: &str, job: String, rows: Vec<u8>) {
        let longest = self.longest.entry(job.clone()).or_default();
        let (short, long) =
            if rows.len() < longest.len() { (&rows, &*longest) } else { (&*longest, &rows) };
        if !long.starts_with(short) {
            self.contradictions.push(format!("{host} has other rows of {job}"));
        }
        if rows.len() > longest.len() {
            *longest = rows;
        }
    }
}

/// Reads the rows of all hosts until it is dropped.
struct RowReader {
    shown: Arc<Mutex<ShownRows>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RowReader {
    fn start(hosts: &[StormHost]) -> RowReader {
        let folders: Vec<(&str, Utf8PathBuf)> =
            hosts.iter().map(|host| (host.name, host.herd.dir().jobs())).collect();
        let (shown, is_over) = (Arc::<Mutex<ShownRows>>::default(), Arc::<AtomicBool>::default());
        let (noted, over) = (Arc::clone(&shown), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                for (host, folder) in &folders {
                    for (job, rows) in transcripts(folder) {
                        noted.lock().unwrap().note(host, job, rows);
                    }
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
        });
        RowReader { shown, is_over, thread: Some(thread) }
    }
}

impl Drop for RowReader {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// Returns the whole lines of the transcripts of a host's jobs, as readers show them.
fn transcripts(folder: &Utf8PathBuf) -> BTreeMap<String, Vec<u8>> {
    let entries = folder.read_dir_utf8().unwrap().flatten();
    let read = |entry: camino::Utf8DirEntry| {
        let job = entry.file_name().strip_suffix(".jsonl")?.to_owned();
        let mut rows = std::fs::read(entry.path()).ok()?;
        rows.truncate(rows.iter().rposition(|byte| *byte == b'\n')? + 1);
        Some((job, rows))
    };
    entries.filter_map(read).collect()
}

struct StormFleet {
    cluster: PostgresCluster,
    hosts: Vec<StormHost>,
    reader: RowReader,
    /// Callers that have no answer yet.
    callers: Vec<JoinHandle<JobId>>,
    told: Vec<JobId>,
    asked: usize,
    /// Runs of which the runner was killed.
    hit_runs: BTreeSet<String>,
    faults: BTreeMap<Fault, u64>,
}

impl StormFleet {
    fn new() -> StormFleet {
        let cluster = cluster();
        let hosts: Vec<StormHost> =
            HOSTS.into_iter().map(|name| StormHost::start(&cluster, name)).collect();
        wait_for_leader(&hosts[0].herd, "alpha");
        // Each commit is noted with its term, in the order of the commits.
        cluster.query(
            "fleet",
            "CREATE TABLE storm_commits (number BIGSERIAL, term BIGINT, commits BIGINT); \
             CREATE FUNCTION note_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             INSERT INTO storm_commits (term, commits) VALUES (NEW.term, NEW.commits); \
             RETURN NULL; END $$; \
             CREATE TRIGGER note_commit AFTER UPDATE ON store_writer FOR EACH ROW \
             WHEN (OLD.commits <> NEW.commits) EXECUTE FUNCTION note_commit()",
        );
        StormFleet {
            reader: RowReader::start(&hosts),
            cluster,
            hosts,
            callers: Vec::new(),
            told: Vec::new(),
            asked: 0,
            hit_runs: BTreeSet::new(),
            faults: BTreeMap::new(),
        }
    }

    /// Asks a host for a job, until it answers.
    fn ask(&mut self, random: &mut fastrand::Rng) {
        let answered: Vec<_> = self.callers.extract_if(.., |it| it.is_finished()).collect();
        self.told.extend(answered.into_iter().map(|caller| caller.join().unwrap()));
        if self.callers.len() >= UNANSWERED_MAX {
            return;
        }
        self.asked += 1;
        let dir = self.hosts[random.usize(..HOSTS.len())].herd.dir();
        let (agent, _) = AGENTS[random.usize(..AGENTS.len())];
        let key = format!("storm-{}", self.asked);
        self.callers.push(std::thread::spawn(move || ask_until_told(&dir, agent, &key)));
    }

    fn inflict(&mut self, fault: Fault, random: &mut fastrand::Rng) {
        *self.faults.entry(fault).or_default() += 1;
        let any = random.usize(..HOSTS.len());
        match fault {
            Fault::DaemonKilled => self.hosts[any].life.kill(),
            Fault::LeaderKilled => {
                // As the server says; another host may lead by now.
                let sql = "SELECT name FROM hosts JOIN store_writer USING (holder)";
                let name = self.cluster.query("fleet", sql);
                let led = self.hosts.iter().position(|host| host.name == name.trim());
                self.hosts[led.unwrap_or(any)].life.kill();
            }
            Fault::DaemonStopped => self.hosts[any].signal(Signal::TERM),
            Fault::RunnerKilled => {
                let runners = self.hosts[any].herd.runners();
                if let Some(runner) = random.choice(&runners) {
                    let is_it = || self.hosts[any].herd.runners().contains(runner);
                    self.hit_runs.insert(runner.folder.file_name().unwrap().to_owned());
                    signal_if(Pid::from_raw(runner.pid).unwrap(), Signal::KILL, is_it);
                }
            }
            Fault::HostPaused => self.hosts[any].signal(Signal::STOP),
            Fault::HostCutOff => self.hosts[any].relay.set(NetworkState::Cut),
            Fault::HostStalled => self.hosts[any].relay.set(NetworkState::Stalled),
            Fault::ServerKilled => {
                self.cluster.kill();
                std::thread::sleep(REST_MAX.mul_f64(random.f64()));
                self.cluster.start_server();
            }
            Fault::ServerFailedOver => self.fail_over(random),
            Fault::HostHealed => self.hosts[any].heal(),
        }
    }

    /// Replaces the server by a replica that has each commit of which anybody heard.
    fn fail_over(&mut self, random: &mut fastrand::Rng) {
        let replica = self.cluster.start_replica();
        self.cluster.replicate_synchronously();
        std::thread::sleep(REST_MAX.mul_f64(random.f64()));
        // The processes of a killed server end one after the other. Nobody hears of what a dying one shows.
        self.hosts.iter().for_each(|host| host.relay.retarget(None));
        self.cluster.kill();
        replica.promote();
        self.cluster = replica;
        self.hosts.iter().for_each(|host| host.relay.retarget(Some(&self.cluster)));
    }

    /// Heals all hosts, waits for the end of all jobs, and checks them.
    fn settle_and_check(&mut self, seed: u64) {
        self.hosts.iter_mut().for_each(|host| host.wait_until_up(seed));
        wait_for("a leader", || leader(&self.hosts[0].herd));
        // A daemon that is told to stop still answers for a moment; only a new one answers all callers and
        // settles its runs.
        wait_for("all answers", || {
            self.hosts.iter_mut().for_each(StormHost::heal);
            self.callers.iter().all(JoinHandle::is_finished).then_some(())
        });
        self.told.extend(self.callers.drain(..).map(|caller| caller.join().unwrap()));
        wait_for("the end of all jobs", || {
            self.hosts.iter_mut().for_each(StormHost::heal);
            let jobs = self.hosts[0].herd.jobs();
            jobs.iter().all(|job| job.status.is_final()).then_some(())
        });
        self.check_starts(seed);
        self.check_rows(seed);
        self.check_commits(seed);
        wait_for("the end of all runners", || {
            self.hosts.iter().all(|host| host.herd.runners().is_empty()).then_some(())
        });
    }

    /// Checks that each job is on record with one run that was started.
    fn check_starts(&self, seed: u64) {
        let reader = self.hosts[0].herd.reader();
        let started: Vec<String> = self.hosts.iter().flat_map(|host| ran(&host.herd)).collect();
        let once: BTreeSet<&String> = started.iter().collect();
        assert_eq!(once.len(), started.len(), "a run was started twice (seed {seed})");
        let jobs = self.hosts[0].herd.jobs();
        let known: BTreeSet<&JobId> = jobs.iter().map(|job| &job.id).collect();
        for job in &self.told {
            assert!(known.contains(job), "{job} was told and is gone (seed {seed})");
        }
        assert_eq!(jobs.len(), self.asked, "each caller got one job (seed {seed})");
        for job in &jobs {
            let runs = reader.runs_of_job(&job.id).unwrap();
            let runs: Vec<String> = runs.iter().map(|run| run.id.to_string()).collect();
            let starts = runs.iter().filter(|run| once.contains(run)).count();
            let is_hit = runs.iter().any(|run| self.hit_runs.contains(run));
            let whole = || reader.job(&job.id).unwrap().unwrap();
            let is_right = (starts == 1 && job.status == JobStatus::Completed) || is_hit;
            assert!(is_right, "{starts} starts of {runs:?} (seed {seed}): {:#?}", whole());
            assert!(starts <= 1 || is_hit, "a job was started twice (seed {seed}): {:#?}", whole());
        }
    }

    /// Checks that all hosts have the same rows, among them all that were shown.
    fn check_rows(&self, seed: u64) {
        let folders: Vec<Utf8PathBuf> =
            self.hosts.iter().map(|host| host.herd.dir().jobs()).collect();
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            let all: Vec<_> = folders.iter().map(transcripts).collect();
            if all.iter().all(|rows| *rows == all[0]) {
                break;
            }
            let differs = |job: &&String| all.iter().any(|rows| rows.get(*job) != all[0].get(*job));
            let jobs: BTreeSet<&String> = all.iter().flat_map(BTreeMap::keys).collect();
            let jobs: Vec<&String> = jobs.into_iter().filter(differs).collect();
            assert!(Instant::now() < deadline, "hosts differ in {jobs:?} (seed {seed})");
            std::thread::sleep(LOOK_INTERVAL);
        }
        let rows = transcripts(&folders[0]);
        let shown = self.reader.shown.lock().unwrap();
        assert!(shown.contradictions.is_empty(), "{:#?} (seed {seed})", shown.contradictions);
        for (job, shown) in &shown.longest {
            let kept = rows.get(job).is_some_and(|rows| rows.starts_with(shown));
            assert!(kept, "rows of {job} were shown and are gone (seed {seed})");
        }
    }

    /// Checks that no commit followed one of a later term.
    fn check_commits(&self, seed: u64) {
        let count = |sql: &str| -> u64 { self.cluster.query("fleet", sql).trim().parse().unwrap() };
        let stale = "SELECT COUNT(*) FROM (SELECT term < LAG(term) OVER seen \
            OR commits <= LAG(commits) OVER seen AS is_stale FROM storm_commits \
            WINDOW seen AS (ORDER BY number)) AS noted WHERE is_stale";
        assert_eq!(count(stale), 0, "stale commits (seed {seed})");
        assert!(count("SELECT COUNT(*) FROM storm_commits") > 0);
    }
}

/// Asks a host for a job under one key until it answers.
fn ask_until_told(dir: &StateDir, agent: &str, key: &str) -> JobId {
    let command = DaemonCommand::Trigger(Box::new(wanted(agent)));
    loop {
        let file = DaemonFile::read(dir).ok().flatten();
        let client = file.and_then(|file| DaemonClient::connect(&file.socket, dir.root()).ok());
        let answer =
            client.and_then(|mut client| client.send_command_once(&command, Some(key), None).ok());
        match answer {
            Some(CommandReply::Job { job, .. }) => return job,
            Some(other) => panic!("{other:?}"),
            // The host is dead, cut off, or changes its role.
            None => std::thread::sleep(LOOK_INTERVAL),
        }
    }
}

#[test]
fn proof_a_storm_over_hosts_starts_each_job_once_and_loses_no_row() {
    let proof = ProofSettings::new(FAULTS_IN_CI);
    let begun = Instant::now();
    let (mut faults, mut jobs, mut done) = (BTreeMap::<Fault, u64>::new(), 0, 0);
    while done < proof.rounds {
        let mut fleet = StormFleet::new();
        for _ in 0..STORMS_PER_FLEET {
            if done == proof.rounds {
                break;
            }
            for _ in 0..FAULTS_PER_STORM.min(proof.rounds - done) {
                let mut random = proof.random(done);
                fleet.ask(&mut random);
                std::thread::sleep(REST_MAX.mul_f64(random.f64()));
                // Otherwise most faults would hit hosts that are down.
                if random.bool() {
                    fleet.hosts[random.usize(..HOSTS.len())].heal();
                }
                let fault = Fault::ALL[random.usize(..Fault::ALL.len())];
                fleet.inflict(fault, &mut random);
                done += 1;
            }
            fleet.settle_and_check(proof.seed);
        }
        jobs += fleet.asked;
        for (fault, count) in std::mem::take(&mut fleet.faults) {
            *faults.entry(fault).or_default() += count;
        }
    }
    let seconds = begun.elapsed().as_secs();
    eprintln!("{done} faults {faults:?}, {jobs} jobs, {seconds} s, seed {}", proof.seed);
}
