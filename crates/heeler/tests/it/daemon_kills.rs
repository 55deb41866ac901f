//! kill -9 of the daemon, and what the next one makes of it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_engine::fault::FaultPoint;
use heeler_engine::{CommandReply, DaemonCommand, ScheduleChange, StopMode};
use heeler_model::run::RunEnd;
use heeler_model::{JobId, JobRequest, JobStatus, RunId};
use heeler_server::{DaemonClient, DaemonClientError};
use heeler_store::DaemonFile;
use heeler_store::{
    JobFilter, OccurrenceRecord, RunRecord, ScheduledWorkId, StateDir, StoreReader,
};
use heeler_testkit::{ProofSettings, WAIT_MAX};
use rustix::fs::{CWD, FileType, Mode};
use rustix::process::{Pid, Signal};
use serde_json::Value as Json;
use tempfile::NamedTempFile;

use crate::fleet::Fleet;
use crate::processes::signal_if;
use crate::rig::rows;
use crate::trigger::{rest_after_look, wait_for};

/// A round takes seconds: more of them would take hours.
const ROUNDS_MAX: u64 = 1_000;

/// How many runs are live while daemons die.
const LIVE_RUNS: usize = 30;

/// How many where each point has one round: still more than one daemon starts in its life, so that some
/// are launched, some are live and some are queued when it dies.
const LIVE_RUNS_IN_CI: usize = 14;

/// How many jobs come and go meanwhile, with hooks.
const SHORT_RUNS: usize = 6;

/// What each job of those costs, in millionths of a dollar.
const COST_MICROS: i64 = 10_000;

/// A fleet under whose runs daemons die.
pub(crate) struct Herd {
    pub(crate) fleet: Fleet,
    /// What its daemons and agents are given.
    pub(crate) env: Vec<(&'static str, String)>,
    /// What runs wait at.
    gate: File,
    /// Standard error of its daemons.
    errors: NamedTempFile,
}

/// One daemon, from its start to its death.
pub(crate) struct Life {
    pub(crate) child: Child,
    is_dead: bool,
}

/// The process of a run.
#[derive(Debug, PartialEq)]
pub(crate) struct Runner {
    pub(crate) pid: i32,
    pub(crate) folder: Utf8PathBuf,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Life {
    /// Kills it, as by kill -9, unless it is dead already.
    pub(crate) fn kill(&mut self) {
        if !self.is_dead {
            drop(self.child.kill());
            self.ended();
        }
    }

    /// Waits for its end; says whether it was killed.
    pub(crate) fn ended(&mut self) -> bool {
        self.is_dead = true;
        self.child.wait().unwrap().signal() == Some(Signal::KILL.as_raw())
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.is_dead = self.is_dead || self.child.try_wait().unwrap().is_some();
        self.is_dead
    }
}

impl Herd {
    /// A fleet of workers that wait at a gate, short jobs with hooks, and two schedules.
    fn new(live_runs: usize) -> Herd {
        let done = "{run: 'echo $HEELER_RUN >> ran'}, {cost: 0.01}, {say: Done.}";
        let hook = r#"{type: shell, command: 'echo "$(cat)" >> hooked'}"#;
        let every = "interval: 1s, prompt: Tick.";
        Herd::of(&format!(
            "agents:
  - {{name: worker, runtime: scripted, instances: {{max_concurrent: {live_runs}}},
     script: [{{run: 'read line < gate'}}, {done}]}}
  - {{name: short, runtime: scripted, instances: {{max_concurrent: 3}}, script: [{done}],
     hooks: {{after_run: [{hook}]}}}}
  - {{name: ticker, runtime: scripted, script: [{done}],
     schedules: {{all: {{{every}, missed: run_all, overlap: queue}}}}}}
  - {{name: skipper, runtime: scripted, script: [{{sleep: 1100ms}}, {done}],
     schedules: {{some: {{{every}, missed: skip, overlap: skip}}}}}}
"
        ))
    }

    pub(crate) fn of(config: &str) -> Herd {
        let fleet = Fleet::empty();
        fleet.write("heeler.yaml", config);
        let path = fleet.file("gate");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        // Opened for both, so that nobody waits for the other end.
        let gate = File::options().read(true).write(true).open(path).unwrap();
        Herd { fleet, env: Vec::new(), gate, errors: NamedTempFile::new().unwrap() }
    }

    /// Lets all runs go on that wait, and those that come.
    pub(crate) fn open_gate(&mut self) {
        self.let_through(1000);
    }

    /// Lets so many runs go on.
    pub(crate) fn let_through(&mut self, runs: usize) {
        self.gate.write_all(&vec![b'\n'; runs]).unwrap();
    }

    pub(crate) fn dir(&self) -> StateDir {
        StateDir::open(&self.fleet.state_dir()).unwrap()
    }

    pub(crate) fn reader(&self) -> StoreReader {
        StoreReader::open(&self.dir()).unwrap()
    }

    /// Starts a daemon.
    pub(crate) fn start(&self, args: &[&str]) -> Life {
        let mut command = self.command("start");
        // All daemons write at one position, so their lines follow each other.
        let errors = self.errors.as_file().try_clone().unwrap();
        let child = command.args(args).stdout(Stdio::null()).stderr(errors).spawn();
        Life { child: child.unwrap(), is_dead: false }
    }

    /// Returns the standard error of its daemons, for the message of a test that fails.
    pub(crate) fn errors(&self) -> String {
        std::fs::read_to_string(self.errors.path()).unwrap()
    }

    /// Starts a daemon that lives, and connects to it.
    #[track_caller]
    pub(crate) fn begin(&self, args: &[&str]) -> (Life, DaemonClient) {
        let mut life = self.start(args);
        let client = self.connect(&mut life).expect("nothing ends it");
        (life, client)
    }

    /// A command of the program, by the fleet's environment.
    pub(crate) fn command(&self, name: &str) -> std::process::Command {
        let mut command = self.fleet.command(&[name]);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Waits until a daemon can be talked to; `None` if it has died before.
    pub(crate) fn connect(&self, life: &mut Life) -> Option<DaemonClient> {
        wait_for("a daemon", || {
            let has_ended = life.has_ended();
            let file = StateDir::open(&self.fleet.state_dir()).ok();
            let file = file.and_then(|dir| DaemonFile::read(&dir).ok().flatten());
            let own = file.filter(|file| file.pid == life.child.id());
            let state_dir = self.fleet.state_dir();
            match own.map(|file| DaemonClient::connect(&file.socket, &state_dir)) {
                Some(Ok(client)) => Some(Some(client)),
                _ => has_ended.then_some(None),
            }
        })
    }

    pub(crate) fn jobs(&self) -> Vec<heeler_model::JobHead> {
        all_jobs(&self.reader())
    }

    fn runs(&self) -> Vec<(JobId, Vec<RunRecord>)> {
        let reader = self.reader();
        let runs = |job: heeler_model::JobHead| {
            let runs = reader.runs_of_job(&job.id).unwrap();
            (job.id, runs)
        };
        self.jobs().into_iter().map(runs).collect()
    }

    /// Waits until every run of an earlier daemon is at work or has ended by the record, or until
    /// this daemon is dead too.
    #[track_caller]
    fn wait_until_true(&self, left: &[RunId], life: &mut Life) {
        let (dir, reader) = (self.dir(), self.reader());
        wait_for("the truth about every run that was left", || {
            let is_true = |run: &RunId| {
                let row = reader.run(*run).unwrap().unwrap();
                row.committed || heeler_store::is_run_alive(&dir.run(*run))
            };
            (life.has_ended() || left.iter().all(is_true)).then_some(())
        });
    }

    fn uncommitted(&self) -> Vec<RunId> {
        self.reader().uncommitted_runs().unwrap().iter().map(|run| run.id).collect()
    }

    /// Lists the runners that are stopped.
    fn stopped_runners(&self) -> Vec<Runner> {
        let is_stopped = |runner: &Runner| {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", runner.pid));
            stat.is_ok_and(|stat| stat.contains(") T "))
        };
        self.runners().into_iter().filter(is_stopped).collect()
    }

    fn let_go(&self, runner: &Runner) {
        let is_it = || self.runners().contains(runner);
        let was_there = signal_if(Pid::from_raw(runner.pid).unwrap(), Signal::CONT, is_it);
        assert!(was_there, "nobody ends it");
    }

    /// Lists the runners of this fleet's runs and hooks.
    pub(crate) fn runners(&self) -> Vec<Runner> {
        let (runs, hooks) = (self.dir().runs(), self.dir().hooks());
        let runner = |pid: i32| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
            let mut arguments = line.split('\0').skip(1);
            let is_runner = arguments.next() == Some("runner");
            let folder = Utf8PathBuf::from(arguments.next()?);
            let is_own = folder.parent() == Some(&runs) || folder.starts_with(&hooks);
            (is_runner && is_own).then_some(Runner { pid, folder })
        };
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter_map(runner).collect()
    }

    /// Processes of this fleet, whoever started them.
    pub(crate) fn processes(&self) -> Vec<String> {
        let path = self.fleet.path().to_str().unwrap().to_owned();
        let runs = self.runs().into_iter().flat_map(|(_, runs)| runs);
        let markers: HashSet<String> = runs.map(|run| format!("HEELER_RUN={}", run.id)).collect();
        let is_of_fleet = |pid: &String| {
            let read =
                |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let environ = read("environ");
            let mut environ = environ.split(|&byte| byte == 0).map(String::from_utf8_lossy);
            String::from_utf8_lossy(&read("cmdline")).contains(&path)
                || environ.any(|variable| markers.contains(&*variable))
        };
        let names = std::fs::read_dir("/proc").unwrap().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.parse::<u32>().is_ok()).filter(is_of_fleet).collect()
    }
}

pub(crate) fn all_jobs(reader: &StoreReader) -> Vec<heeler_model::JobHead> {
    reader.jobs(&JobFilter::default(), None, usize::MAX).unwrap()
}

/// What clients want of a fleet, and what they were told.
struct Clients {
    /// Agents whose jobs are still to be asked for.
    wanted: Vec<&'static str>,
    told: Vec<JobId>,
}

impl Clients {
    fn new(live_runs: usize) -> Clients {
        let shorts = ["short"; SHORT_RUNS / 2];
        let workers = vec!["worker"; live_runs - 1];
        // The last is asked for first.
        let wanted = [&["worker"][..], &shorts, &workers, &shorts].concat();
        Clients { wanted, told: Vec::new() }
    }

    /// Asks for jobs until so many are left to be asked for, or the daemon dies.
    fn ask(&mut self, client: &mut DaemonClient, left: usize) {
        while self.wanted.len() > left {
            let wanted = Box::new(JobRequest::new(self.wanted.last().unwrap().parse().unwrap()));
            match client.send_command(&DaemonCommand::Trigger(wanted), None) {
                Ok(CommandReply::Job { job, .. }) => self.told.push(job),
                Ok(other) => panic!("{other:?}"),
                // It may have done it; nobody was told.
                Err(DaemonClientError::Io { .. } | DaemonClientError::NoDaemon { .. }) => return,
                Err(error) => panic!("{error:?}"),
            }
            self.wanted.pop();
        }
    }
}

/// Sleeps for a random moment, or until the daemon is dead.
fn rest(life: &mut Life, most: Duration, random: &mut fastrand::Rng) {
    let until = Instant::now() + most.mul_f64(random.f64());
    while Instant::now() < until && !life.has_ended() {
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// What happened in a round.
struct Outcome {
    /// Whether the daemon died at the point.
    died: bool,
    /// How many runners came later than the next daemon.
    late: usize,
    /// From the start of the next daemon to the truth about every run that was left.
    until_true: Duration,
}

/// One fleet whose daemon dies at a random instant, then at a point.
fn round(point: FaultPoint, nth: u32, live_runs: usize, random: &mut fastrand::Rng) -> Outcome {
    let mut herd = Herd::new(live_runs);
    let mut clients = Clients::new(live_runs);
    let all = clients.wanted.len();

    let mut first = herd.start(&[]);
    if let Some(mut client) = herd.connect(&mut first) {
        clients.ask(&mut client, random.usize(1 + SHORT_RUNS..all / 2));
        rest(&mut first, Duration::from_millis(600), random);
    }
    first.kill();

    let left = herd.uncommitted();
    let mut second = herd.start(&["--fault", &format!("{}:{nth}", point.name())]);
    if let Some(mut client) = herd.connect(&mut second) {
        clients.ask(&mut client, 1);
        if random.bool() {
            herd.wait_until_true(&left, &mut second);
        }
        if random.u8(0..4) == 0 {
            herd.open_gate();
        }
        // Whoever is to die of the first time does; others may.
        match nth {
            1 => wait_for(point.name(), || second.has_ended().then_some(())),
            _ => rest(&mut second, Duration::from_secs(1), random),
        }
    }
    let died = second.has_ended() && second.ended();
    second.kill();

    let left = herd.uncommitted();
    let late = match nth == 1 && point == FaultPoint::RunnerLate {
        // It was told to stop just before the daemon died. Of several that start at once another may
        // have been the nth.
        true => wait_for("a stopped runner", || {
            Some(herd.stopped_runners()).filter(|stopped| !stopped.is_empty())
        }),
        false => herd.stopped_runners(),
    };
    let started = Instant::now();
    let mut last = herd.start(&[]);
    let mut client = herd.connect(&mut last).expect("nothing ends this one");
    herd.wait_until_true(&left, &mut last);
    let until_true = started.elapsed();
    late.iter().for_each(|runner| herd.let_go(runner));
    clients.ask(&mut client, 0);
    herd.open_gate();
    herd.finish(&mut client, last);
    herd.check(&clients);
    Outcome { died, late: late.len(), until_true }
}

impl Herd {
    /// Waits until nothing is left to do, and stops the daemon.
    #[track_caller]
    fn finish(&self, client: &mut DaemonClient, mut life: Life) {
        for (agent, schedule) in [("ticker", "all"), ("skipper", "some")] {
            let off = DaemonCommand::Schedule {
                agent: agent.to_owned(),
                schedule: schedule.to_owned(),
                change: ScheduleChange::Disable,
                by: "the test".to_owned(),
            };
            client.send_command(&off, None).unwrap();
        }
        let reader = self.reader();
        wait_for("the end of all jobs and hooks", || {
            let all_ended = all_jobs(&reader).iter().all(|job| job.status.is_final());
            (all_ended && reader.pending_effects(1).unwrap().is_empty()).then_some(())
        });
        client.send_command(&DaemonCommand::Stop(StopMode::Wait { timeout: None }), None).unwrap();
        assert!(!life.ended(), "it ended by itself");
    }

    /// Checks that everything is on record once.
    #[track_caller]
    fn check(&self, clients: &Clients) {
        let reader = self.reader();
        let jobs = self.jobs();
        let known: HashSet<&JobId> = jobs.iter().map(|job| &job.id).collect();
        for told in &clients.told {
            assert!(known.contains(told), "{told} was told and is gone");
        }
        assert_eq!(clients.told.iter().collect::<HashSet<_>>().len(), clients.told.len());
        let mut finished: Vec<String> = Vec::new();
        for job in &jobs {
            let whole = reader.job(&job.id).unwrap().unwrap();
            assert_eq!(job.status, JobStatus::Completed, "{whole:#?}");
            let runs = reader.runs_of_job(&job.id).unwrap();
            assert!(runs.iter().all(|run| run.committed), "{runs:#?}");
            let results = runs.iter().map(|run| reader.run_result(run.id).unwrap().unwrap());
            let results: Vec<_> = results.collect();
            let ends: Vec<RunEnd> = results.iter().map(|result| result.end).collect();
            let (last, before) = ends.split_last().expect("it ran");
            assert_eq!(*last, RunEnd::Finished, "{ends:?}");
            assert!(before.iter().all(|end| *end == RunEnd::NeverStarted), "{ends:?}");
            finished.push(runs.last().unwrap().id.to_string());
            let rows = rows(&self.dir().job_transcript(&job.id));
            let ids: HashSet<&str> = rows.iter().filter_map(|row| row["uuid"].as_str()).collect();
            assert_eq!(ids.len(), rows.len(), "a row of {} is there twice", job.id);
        }
        finished.sort();
        let ran = self.fleet.read("ran");
        let mut ran: Vec<&str> = ran.lines().collect();
        ran.sort_unstable();
        assert_eq!(ran, finished, "each job was done once, by the run that is on record");
        self.check_money(jobs.len());
        self.check_schedule("ticker", "all");
        self.check_schedule("skipper", "some");
        self.check_hooks(jobs.iter().filter(|job| job.agent == "short").map(|job| &job.id));
        assert_eq!(reader.queue().unwrap(), []);
        assert_eq!(reader.uncommitted_runs().unwrap(), []);
        self.wait_for_the_end_of_all();
    }

    #[track_caller]
    pub(crate) fn wait_for_the_end_of_all(&self) {
        let until = Instant::now() + WAIT_MAX;
        loop {
            let begun = Instant::now();
            if self.processes().is_empty() {
                break;
            }
            // One whose stop took effect only after those that came late were listed.
            self.stopped_runners().iter().for_each(|runner| self.let_go(runner));
            assert!(Instant::now() < until, "left behind: {:#?}", self.described());
            rest_after_look(begun.elapsed());
        }
    }

    /// What is to be known of processes of this fleet: state, parent, command line, whose it is.
    fn described(&self) -> Vec<String> {
        let describe = |pid: String| {
            let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}"));
            let text = |name: &str| {
                let bytes = read(name).unwrap_or_default();
                String::from_utf8_lossy(&bytes).replace('\0', " ")
            };
            let environ = text("environ");
            let run = environ.split(' ').find(|word| word.starts_with("HEELER_RUN="));
            let run = run.unwrap_or_default();
            format!("{} {} {} {run}", text("stat"), text("cmdline"), text("wchan"))
        };
        self.processes().into_iter().map(describe).collect()
    }

    fn check_money(&self, jobs: usize) {
        let spent: i64 = self.reader().total_spend_by_agent().unwrap().iter().map(|it| it.1).sum();
        assert_eq!(spent, COST_MICROS * i64::try_from(jobs).unwrap());
        assert_eq!(self.reader().reservations().unwrap(), []);
    }

    /// Every second since a schedule's first start has a job of its own, or is skipped.
    #[track_caller]
    pub(crate) fn check_schedule(&self, agent: &str, schedule: &str) {
        let reader = self.reader();
        let occurrences = reader.occurrences(agent, schedule, None, usize::MAX).unwrap();
        let own = self.jobs().into_iter().filter(|job| job.agent == agent);
        let own: BTreeSet<JobId> = own.map(|job| job.id).collect();
        let job_of = |it: &OccurrenceRecord| match &it.work {
            ScheduledWorkId::Job(job) => job.clone(),
            ScheduledWorkId::WorkflowRun(run) => panic!("{run} is no job"),
        };
        let started: BTreeSet<JobId> = occurrences.iter().map(job_of).collect();
        assert_eq!(started, own, "a job of {schedule} without a due time, or the other way round");
        assert_eq!(started.len(), occurrences.len(), "a due time has two jobs");
        let mut due: Vec<i64> = occurrences.iter().map(|it| it.due.as_millisecond()).collect();
        for row in reader.skips(agent, schedule, None, usize::MAX).unwrap() {
            let (first, count) = (row.skip.first.as_millisecond(), row.skip.count);
            due.extend((0..i64::try_from(count).unwrap()).map(|n| first + 1000 * n));
            assert_eq!(due.last(), Some(&row.skip.last.as_millisecond()));
        }
        due.sort_unstable();
        let (first, len) = (due[0], i64::try_from(due.len()).unwrap());
        let grid: Vec<i64> = (0..len).map(|n| first + 1000 * n).collect();
        assert_eq!(due, grid, "a due time of {schedule} is not on record, or twice");
    }

    #[track_caller]
    pub(crate) fn check_hooks<'j>(&self, jobs: impl Iterator<Item = &'j JobId>) {
        let told = std::fs::read_to_string(self.fleet.file("hooked")).unwrap_or_default();
        let mut events: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for line in told.lines() {
            let context: Json = serde_json::from_str(line).unwrap();
            let text = |value: &Json| value.as_str().unwrap().to_owned();
            let of_job = events.entry(text(&context["job"]["id"])).or_default();
            of_job.insert(text(&context["eventId"]));
        }
        for job in jobs {
            let events = events.remove(job.as_str()).unwrap_or_default();
            assert_eq!(events.len(), 1, "a hook of {job} was not done, or for two events");
        }
        assert!(events.is_empty(), "{events:?}");
    }
}

#[test]
fn proof_kill_9_of_the_daemon_at_every_point_and_at_random_loses_and_doubles_nothing() {
    let points = FaultPoint::AT_WORK;
    // In CI the daemon dies at each point once.
    let proof = ProofSettings::new(points.len() as u64);
    let is_long = proof.rounds > points.len() as u64;
    let live_runs = if is_long { LIVE_RUNS } else { LIVE_RUNS_IN_CI };
    let mut deaths: BTreeMap<&str, u64> = BTreeMap::new();
    let mut until_trues = Vec::new();
    for number in 0..proof.rounds.clamp(points.len() as u64, ROUNDS_MAX) {
        let random = &mut proof.random(number);
        let point = points[usize::try_from(number).unwrap() % points.len()];
        // The first time each point is certain to be reached.
        let is_certain = number < points.len() as u64 || random.bool();
        let nth = if is_certain { 1 } else { random.u32(1..20) };
        println!("round {number}, {point:?}:{nth}, HEELER_PROOF_SEED={}", proof.seed);
        let Outcome { died, late, until_true } = round(point, nth, live_runs, random);
        until_trues.push(until_true);
        assert!(died || nth > 1, "{point:?} was never reached");
        // The daemon may have been killed after it stopped a runner, before it died of that itself.
        assert!(late == 0 || point == FaultPoint::RunnerLate, "{late} runners came late");
        *deaths.entry(point.name()).or_default() += u64::from(died);
    }
    println!("deaths at points: {deaths:?}");
    until_trues.sort_unstable();
    let at = |share: usize| until_trues[(until_trues.len() - 1) * share / 100];
    let (half, most, worst) = (at(50), at(99), at(100));
    println!("from the next start to the truth: p50 {half:?}, p99 {most:?}, worst {worst:?}");
}
