//! A storm of kills: daemons, runners, agents, hooks and their commands die while jobs with hooks run,
//! and while the jobs of one session follow each other.
//!
//! Every process may be hit, and the test waits only for the next victim between two kills. At the
//! end only jobs have failed of which a process was killed, every hook is done, and the session
//! remembers every turn that came to its end.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use camino::Utf8PathBuf;
use heeler_engine::fault::FaultPoint;
use heeler_engine::{CommandReply, DaemonCommand, StopMode};
use heeler_model::{Job, JobId, JobRequest, JobStatus, RunId};
use heeler_server::{DaemonClient, DaemonClientError};
use heeler_store::{RunRecord, StoreReader};
use heeler_testkit::ProofSettings;
use rustix::process::{Pid, Signal};

use crate::daemon_kills::{Herd, Life, Runner, all_jobs};
use crate::processes::signal_if;
use crate::rig::rows;
use crate::trigger::wait_for;

/// Kills in CI: four of each kind.
const KILLS_IN_CI: u64 = 4 * VictimKind::ALL.len() as u64;

/// A kill takes most of a second: more of them would take hours.
const KILLS_MAX: u64 = 1_000;

/// Kills in the life of one fleet.
const KILLS_PER_FLEET: u64 = 60;

/// Unfinished jobs at which no more are asked for.
const UNFINISHED_MAX: usize = 8;

/// Kills of one hook. After five attempts a hook is given up, as promised.
const KILLS_PER_HOOK_MAX: u32 = 2;

/// Longest time between two kills, beyond the wait for the next victim.
const REST_MAX: Duration = Duration::from_millis(120);

/// Part of the daemons that die by themselves, at a point between two writes.
const ARMED_ONE_IN: u8 = 3;

/// Process to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum VictimKind {
    Daemon,
    Runner,
    Agent,
    HookRunner,
    HookCommand,
}

impl VictimKind {
    const ALL: [VictimKind; 5] = [
        VictimKind::Daemon,
        VictimKind::Runner,
        VictimKind::Agent,
        VictimKind::HookRunner,
        VictimKind::HookCommand,
    ];
}

/// A fleet in the storm.
struct StormFleet {
    herd: Herd,
    life: Life,
    client: Option<DaemonClient>,
    reader: StoreReader,
    told: Vec<JobId>,
    asked: usize,
    /// Runs of which a process was killed.
    hit_runs: HashSet<String>,
    /// How often a process of each hook was killed, by the hook's folder.
    hit_hooks: HashMap<Utf8PathBuf, u32>,
    deaths: BTreeMap<VictimKind, u64>,
}

impl StormFleet {
    fn new() -> StormFleet {
        // A runner that dies before it has passed the context on leaves a command without input.
        let told = r#"context=$(cat); test -n "$context" && echo "$context" >> hooked"#;
        let hook = format!("{{type: shell, command: 'sleep 0.05; {told}; sleep 0.05'}}");
        let herd = Herd::of(&format!(
            "agents:
  - {{name: hooked, runtime: scripted, instances: {{max_concurrent: 3}}, hooks: {{after_run: [{hook}]}},
     script: [{{run: 'sleep 0.05; echo $HEELER_RUN >> ran'}}, {{sleep: 50ms}}, {{say: Done.}}]}}
  - {{name: keeper, runtime: scripted, session: {{mode: persistent}},
     script: [{{run: 'echo \"$HEELER_RUN $SCRIPT_REMEMBERED\" >> memory'}}, {{sleep: 50ms}}, {{say: Done.}}]}}
"
        ));
        let (life, client) = herd.begin(&[]);
        let reader = herd.reader();
        StormFleet {
            herd,
            life,
            client: Some(client),
            reader,
            told: Vec::new(),
            asked: 0,
            hit_runs: HashSet::new(),
            hit_hooks: HashMap::new(),
            deaths: BTreeMap::new(),
        }
    }

    /// Starts a daemon if the last one is dead, and asks for a job if few are left.
    fn go_on(&mut self, random: &mut fastrand::Rng) {
        if self.life.has_ended() {
            self.client = None;
            let points = FaultPoint::AT_WORK;
            let point = points[random.usize(..points.len())];
            // A late runner waits until somebody lets it go, which is another test.
            let is_armed = random.u8(..ARMED_ONE_IN) == 0 && point != FaultPoint::RunnerLate;
            let fault = format!("{}:{}", point.name(), random.u32(1..12));
            let args = ["--fault", &fault];
            self.life = self.herd.start(if is_armed { &args[..] } else { &[] });
        }
        if self.client.is_none() {
            self.client = self.herd.connect(&mut self.life);
        }
        let unfinished = all_jobs(&self.reader).iter().filter(|it| !it.status.is_final()).count();
        if unfinished < UNFINISHED_MAX {
            self.ask(if random.u8(..3) == 0 { "keeper" } else { "hooked" });
        }
    }

    fn ask(&mut self, agent: &str) {
        let Some(client) = &mut self.client else { return };
        self.asked += 1;
        let prompt = Some(format!("prompt-{}", self.asked));
        let wanted = JobRequest { prompt, ..JobRequest::new(agent.parse().unwrap()) };
        match client.send_command(&DaemonCommand::Trigger(Box::new(wanted)), None) {
            Ok(CommandReply::Job { job, .. }) => self.told.push(job),
            Ok(other) => panic!("{other:?}"),
            // It may have done it; nobody was told.
            Err(DaemonClientError::Io { .. } | DaemonClientError::NoDaemon { .. }) => {
                self.client = None;
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    /// Kills one process of a kind, as soon as there is one.
    fn kill(&mut self, kind: VictimKind, random: &mut fastrand::Rng) {
        wait_for("a victim", || {
            self.go_on(random);
            self.try_kill(kind, random).then_some(())
        });
        *self.deaths.entry(kind).or_default() += 1;
    }

    fn try_kill(&mut self, kind: VictimKind, random: &mut fastrand::Rng) -> bool {
        let is_of_hook = match kind {
            VictimKind::Daemon => {
                self.life.kill();
                return true;
            }
            VictimKind::Runner | VictimKind::Agent => false,
            VictimKind::HookRunner | VictimKind::HookCommand => true,
        };
        let mut runners = self.herd.runners();
        runners.retain(|runner| match self.hook_of(runner) {
            Some(hook) => {
                is_of_hook && self.hit_hooks.get(&hook).is_none_or(|&n| n < KILLS_PER_HOOK_MAX)
            }
            None => !is_of_hook,
        });
        if runners.is_empty() {
            return false;
        }
        let runner = runners.swap_remove(random.usize(..runners.len()));
        let is_killed = match kind {
            VictimKind::Agent | VictimKind::HookCommand => {
                let children = children_of(runner.pid);
                let is_child = |pid: i32| parent_of(pid) == Some(runner.pid);
                children.iter().any(|&pid| kill_if(pid, || is_child(pid)))
            }
            _ => kill_if(runner.pid, || self.herd.runners().contains(&runner)),
        };
        if is_killed {
            match self.hook_of(&runner) {
                Some(hook) => *self.hit_hooks.entry(hook).or_default() += 1,
                None => drop(self.hit_runs.insert(runner.folder.file_name().unwrap().to_owned())),
            }
        }
        is_killed
    }

    /// Returns the folder of the hook that a runner executes.
    fn hook_of(&self, runner: &Runner) -> Option<Utf8PathBuf> {
        let hooks = self.herd.dir().hooks();
        let below = runner.folder.strip_prefix(&hooks).ok()?;
        Some(hooks.join(below.components().next()?))
    }

    /// Lets everything come to its end, and checks it.
    fn end(mut self) -> BTreeMap<VictimKind, u64> {
        // The last daemon may be armed.
        self.life.kill();
        let (mut life, mut client) = self.herd.begin(&[]);
        wait_for("the end of all jobs and hooks", || {
            let all_ended = all_jobs(&self.reader).iter().all(|job| job.status.is_final());
            (all_ended && self.reader.pending_effects(1).unwrap().is_empty()).then_some(())
        });
        client.send_command(&DaemonCommand::Stop(StopMode::Wait { timeout: None }), None).unwrap();
        assert!(!life.ended(), "it ended by itself");
        self.check();
        self.herd.wait_for_the_end_of_all();
        self.deaths
    }

    fn check(&self) {
        let jobs = self.herd.jobs();
        let known: HashSet<&JobId> = jobs.iter().map(|job| &job.id).collect();
        assert!(self.told.iter().all(|told| known.contains(told)), "a job was told and is gone");
        let jobs: Vec<Job> =
            jobs.iter().map(|job| self.reader.job(&job.id).unwrap().unwrap()).collect();
        let mut completed: Vec<(Job, RunRecord)> = Vec::new();
        for job in jobs {
            let runs = self.reader.runs_of_job(&job.head.id).unwrap();
            assert!(runs.iter().all(|run| run.committed), "{runs:#?}");
            let was_hit = runs.iter().any(|run| self.hit_runs.contains(&run.id.to_string()));
            match job.head.status {
                JobStatus::Completed => completed.push((job, runs.last().unwrap().clone())),
                _ => assert!(was_hit, "nobody killed a process of {job:#?}"),
            }
        }
        let known = self.herd.jobs();
        self.herd.check_hooks(known.iter().filter(|job| job.agent == "hooked").map(|job| &job.id));
        for job in &known {
            let rows = rows(&self.herd.dir().job_transcript(&job.id));
            let ids: HashSet<&str> = rows.iter().filter_map(|row| row["uuid"].as_str()).collect();
            assert_eq!(ids.len(), rows.len(), "a row of {} is there twice", job.id);
        }
        let (kept, hooked): (Vec<_>, Vec<_>) =
            completed.iter().partition(|(job, _)| job.head.agent == "keeper");
        let ran = self.text("ran");
        let mut runs: Vec<&str> = ran.lines().collect();
        runs.sort_unstable();
        let once: BTreeSet<&str> = runs.iter().copied().collect();
        assert_eq!(once.len(), runs.len(), "a run did its work twice");
        for (job, run) in hooked {
            assert!(once.contains(run.id.to_string().as_str()), "{} did nothing", job.head.id);
        }
        self.check_memory(&kept);
        assert_eq!(self.reader.queue().unwrap(), []);
        assert_eq!(self.reader.uncommitted_runs().unwrap(), []);
    }

    /// Checks that each turn of the session knew every turn that had come to its end before.
    fn check_memory(&self, kept: &[&(Job, RunRecord)]) {
        let text = self.text("memory");
        let known: HashMap<RunId, &str> = text
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(run, remembered)| (run.parse().unwrap(), remembered))
            .collect();
        for (job, run) in kept {
            let remembered: Vec<&str> = known[&run.id].split(" | ").collect();
            let once: HashSet<&str> = remembered.iter().copied().collect();
            assert_eq!(once.len(), remembered.len(), "{remembered:?}");
            let earlier = kept.iter().filter(|(_, before)| before.created_at < run.created_at);
            for (before, _) in earlier {
                let prompt = before.prompt.as_deref().unwrap();
                assert!(once.contains(prompt), "{} forgot {prompt}: {once:?}", job.head.id);
            }
        }
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.herd.fleet.file(name)).unwrap_or_default()
    }
}

/// Kills a process of which `is_it` says that it is the one.
fn kill_if(pid: i32, is_it: impl FnOnce() -> bool) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| signal_if(pid, Signal::KILL, is_it))
}

fn children_of(parent: i32) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| parent_of(pid) == Some(parent)).collect()
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

#[test]
fn proof_a_storm_of_kills_fails_only_what_it_hit() {
    let proof = ProofSettings::new(KILLS_IN_CI);
    let kills = proof.rounds.min(KILLS_MAX);
    let mut fleet: Option<StormFleet> = None;
    for number in 0..kills {
        let random = &mut proof.random(number);
        let kind = VictimKind::ALL[usize::try_from(number).unwrap() % VictimKind::ALL.len()];
        println!("kill {number}, {kind:?}, HEELER_PROOF_SEED={}", proof.seed);
        let storm = fleet.get_or_insert_with(StormFleet::new);
        storm.kill(kind, random);
        std::thread::sleep(REST_MAX.mul_f64(random.f64()));
        if (number + 1) % KILLS_PER_FLEET == 0 || number + 1 == kills {
            let storm = fleet.take().expect("it was made above");
            println!("{} jobs, deaths {:?}", storm.told.len(), storm.end());
        }
    }
}
