//! kill -9 of runners and their agents, and what settling makes of it.

use std::collections::HashSet;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_config::RuntimeType;
use heeler_model::run::{
    AgentLaunchSpec, ErrorClass, PROTOCOL, QuestionPolicy, RunAuthority, RunEnd, RunLimits,
    RunResult, RunSpec, RunStartRecord, RuntimeLaunchSpec, SETTLE_EXIT_BUSY, SETTLE_EXIT_UNUSABLE,
    SessionPlan, SessionStart,
};
use heeler_model::{AgentSessionId, JobId, RunId, TriggerType};
use heeler_testkit::{ProofSettings, WAIT_MAX};
use heeler_transcript::{
    FollowStart, FollowStopper, FollowUpdate, LockFile, TranscriptEntry, TranscriptFollower,
    TranscriptScanner,
};
use jiff::Timestamp;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde_json::{Value as Json, json};

use crate::processes;

/// A scene takes so many rounds before a new one is set up.
const ROUNDS_PER_SCENE: u64 = 20;

/// Two scenes: each of the four ways to kill is missed once in 25,000 runs, and about 13
/// settlings are killed.
const ROUNDS_IN_CI: u64 = 2 * ROUNDS_PER_SCENE;

/// Folders for runs that share a session.
struct Scene {
    _temp: tempfile::TempDir,
    root: Utf8PathBuf,
}

/// One run of a scripted agent, under way or ended.
struct Run {
    spec: RunSpec,
    dir: Utf8PathBuf,
    runner: Child,
}

impl Drop for Scene {
    fn drop(&mut self) {
        processes::remove_groups(self.root.join("state/runs").as_std_path());
    }
}

impl Scene {
    fn new() -> Scene {
        Scene::below("")
    }

    fn below(folder: &str) -> Scene {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::try_from(temp.path().canonicalize().unwrap()).unwrap().join(folder);
        for folder in ["work", "state/jobs", "state/runs", "home"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        Scene { _temp: temp, root }
    }

    fn start(&self, session: SessionStart, steps: &[Json]) -> Run {
        let job = JobId::mint(Timestamp::now(), fastrand::u64(..));
        let spec = RunSpec {
            protocol: PROTOCOL,
            run: RunId::mint(Timestamp::now(), std::array::from_fn(|_| fastrand::u8(..))),
            attempt: 1,
            agent: "player".parse().unwrap(),
            trigger: TriggerType::Manual,
            runtime: RuntimeType::Scripted,
            working_directory: self.root.join("work"),
            job_log: self.root.join(format!("state/jobs/{job}.jsonl")),
            job,
            projects: self.root.join("state/agent-sessions/projects"),
            output_file: None,
            home: self.root.join("home"),
            // Not below the root: a socket's path is short.
            sockets: Utf8PathBuf::try_from(self._temp.path().to_owned()).unwrap().join("sockets"),
            session: SessionPlan::new(session, "the test says so"),
            limits: RunLimits { grace_ms: Some(100), ..RunLimits::default() },
            attendance: QuestionPolicy::Nobody,
            sync_each_row: false,
            workspaces: None,
            keep_output: false,
            keep_agent: None,
        };
        let dir = self.root.join(format!("state/runs/{}", spec.run));
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("spec.json"), serde_json::to_vec(&spec).unwrap()).unwrap();
        let runner = start_runner(&dir, steps);
        Run { spec, dir, runner }
    }

    /// Runs to the end.
    #[track_caller]
    fn run(&self, session: SessionStart, steps: &[Json]) -> RunResult {
        let mut run = self.start(session, steps);
        run.runner.wait().unwrap();
        run.result()
    }
}

fn start_runner(dir: &Utf8PathBuf, steps: &[Json]) -> Child {
    let path = std::env::var("PATH").unwrap();
    let brief = AgentLaunchSpec {
        protocol: PROTOCOL,
        prompt: "go on".to_owned(),
        env: [("PATH".to_owned(), path)].into(),
        secrets: Vec::new(),
        shared_secrets: Vec::new(),
        work: RuntimeLaunchSpec::Script { steps: steps.to_vec() },
        send_files_to: None,
        authority: RunAuthority::default(),
        may_start_jobs: false,
        sandbox: None,
    };
    let mut runner = heeler().args(["runner", dir.as_str()]).stdin(Stdio::piped()).spawn().unwrap();
    // A runner that was refused may be gone already.
    drop(runner.stdin.take().unwrap().write_all(&serde_json::to_vec(&brief).unwrap()));
    runner
}

fn heeler() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heeler"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn new_session() -> AgentSessionId {
    uuid::Uuid::new_v4().to_string().parse().unwrap()
}

fn fresh() -> SessionStart {
    SessionStart::Fresh { id: new_session() }
}

/// Waits until there is something.
#[track_caller]
fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < WAIT_MAX, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Run {
    fn started(&self) -> Option<RunStartRecord> {
        serde_json::from_slice(&std::fs::read(self.dir.join("started.json")).ok()?).ok()
    }

    #[track_caller]
    fn result(&self) -> RunResult {
        serde_json::from_slice(&std::fs::read(self.dir.join("result.json")).unwrap()).unwrap()
    }

    /// Waits until a row of the job holds a text.
    #[track_caller]
    fn says(&self, text: &str) {
        let holds =
            || std::fs::read_to_string(&self.spec.job_log).ok()?.contains(text).then_some(());
        wait(text, holds);
    }

    fn runner_pid(&self) -> Pid {
        Pid::from_child(&self.runner)
    }

    /// Returns the agent once it executes its program. Until then a child of the runner may be a
    /// process that only makes a copy of itself in the control group, and whose end ends nothing.
    fn agent_pid(&self) -> Option<Pid> {
        let pid = self.runner_pid();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        let is_agent = |child: &&str| {
            let line = std::fs::read_to_string(format!("/proc/{child}/cmdline"));
            line.is_ok_and(|line| line.split('\0').nth(1) == Some("play"))
        };
        Pid::from_raw(children.split_whitespace().find(is_agent)?.parse().ok()?)
    }

    /// Returns the agent, held so that its number cannot become another's.
    fn agent(&self) -> Option<OwnedFd> {
        let pid = self.agent_pid()?;
        let held = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // If it is the runner's child still, then it was when it was held.
        (self.agent_pid() == Some(pid)).then_some(held)
    }

    fn settling(&self) -> Command {
        let mut settle = heeler();
        settle.args(["runner", "--settle", self.dir.as_str()]).env("HEELER_HOME", &self.spec.home);
        settle
    }

    fn settle(&self) -> Output {
        self.settling().output().unwrap()
    }

    fn session_lock(&self) -> Utf8PathBuf {
        self.spec.home.join("locks").join(self.spec.session.start.id().as_str())
    }

    /// Returns the run's processes that carry its marker.
    fn processes(&self) -> Vec<String> {
        let marker = format!("HEELER_RUN={}", self.spec.run);
        let has_marker = |pid: &String| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ.split(|&byte| byte == 0).any(|variable| variable == marker.as_bytes())
        };
        let names = std::fs::read_dir("/proc").unwrap().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.parse::<u32>().is_ok()).filter(has_marker).collect()
    }
}

/// Kills a child that was not waited for, and so keeps its number.
fn kill(pid: Pid) {
    // It may have ended by itself.
    let _sent = kill_process(pid, Signal::KILL);
}

fn kill_held(process: &OwnedFd) {
    let _sent = pidfd_send_signal(process, Signal::KILL);
}

fn rows(path: &Utf8PathBuf) -> Vec<Json> {
    if !path.exists() {
        return Vec::new();
    }
    let entries = TranscriptScanner::open(path).unwrap().map(|entry| match entry.unwrap() {
        TranscriptEntry::Record(record) => serde_json::from_str(&record.text).unwrap(),
        TranscriptEntry::Fault(fault) => panic!("{path}: {fault:?}"),
    });
    entries.collect()
}

/// Somebody who watches the job's rows as they come.
struct Watcher {
    stopper: FollowStopper,
    thread: JoinHandle<Vec<Json>>,
}

impl Watcher {
    fn of(path: &Utf8PathBuf) -> Watcher {
        let mut follower = TranscriptFollower::new();
        follower.add(path, FollowStart::Beginning);
        let stopper = follower.stopper();
        let thread = std::thread::spawn(move || {
            let mut shown = Vec::new();
            while !follower.is_stopped() {
                match follower.next(Duration::from_secs(1)).unwrap() {
                    Some(FollowUpdate::Record { record, .. }) => {
                        shown.push(serde_json::from_str(&record.text).unwrap());
                    }
                    Some(FollowUpdate::Fault { fault, .. }) => panic!("{fault:?}"),
                    Some(FollowUpdate::Restarted { reason: why, .. }) => panic!("{why:?}"),
                    None => {}
                }
            }
            shown
        });
        Watcher { stopper, thread }
    }

    /// Returns what was shown.
    fn stop(self) -> Vec<Json> {
        self.stopper.stop();
        self.thread.join().unwrap()
    }
}

/// What an agent of a round does: it talks, works, leaves processes behind, and may hang.
fn steps(random: &mut fastrand::Rng, all_are_found: bool) -> Vec<Json> {
    let mut steps = vec![json!({"say": "hello"})];
    for _ in 0..random.usize(0..6) {
        steps.push(match random.u8(0..8) {
            0 => json!({"say": "in pieces, one after the other", "chunks": 5, "delay": "1ms"}),
            1 => json!({"run": "echo done"}),
            2 | 3 => json!({"flood": random.u64(1..1000), "size": 300}),
            4 | 5 => json!({"spawn": "sleep 1000", "setsid": true, "ignore_term": random.bool(),
                "clear_env": all_are_found && random.bool(), "hold_output": random.bool()}),
            6 => json!({"sleep": "3ms"}),
            _ => json!({"say": "x".repeat(random.usize(1..20_000))}),
        });
    }
    if random.bool() {
        steps.push(json!({"hang": true, "ignore_term": random.bool()}));
    }
    steps
}

/// Waits for a moment of the run, from before its start to after its end.
fn wait_for_a_moment(run: &mut Run, random: &mut fastrand::Rng) {
    let by_time = random.u8(0..4) == 0;
    let patience = Duration::from_millis(if by_time { random.u64(0..100) } else { 400 });
    let rows = if by_time { usize::MAX } else { random.usize(1..60) };
    let begin = Instant::now();
    while begin.elapsed() < patience && run.runner.try_wait().unwrap().is_none() {
        let log = std::fs::read(&run.spec.job_log).unwrap_or_default();
        if log.iter().filter(|&&byte| byte == b'\n').count() >= rows {
            break;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    // Without this the kill would always come at the same stage of a row.
    let moment = Duration::from_micros(random.u64(0..3000));
    let begin = Instant::now();
    while begin.elapsed() < moment {
        std::hint::spin_loop();
    }
}

/// Kills the runner, the agent or both, in either order; returns when the runner is gone.
fn kill_some(run: &mut Run, random: &mut fastrand::Rng) {
    let agent = run.agent();
    match random.u8(0..4) {
        0 => kill(run.runner_pid()),
        1 => {
            agent.iter().for_each(kill_held);
            kill(run.runner_pid());
        }
        2 => {
            kill(run.runner_pid());
            agent.iter().for_each(kill_held);
        }
        // The runner lives, and sees to the end of the run by itself.
        _ => match agent {
            Some(agent) => kill_held(&agent),
            None => kill(run.runner_pid()),
        },
    }
    run.runner.wait().unwrap();
}

/// Settles, sometimes after a settling that is killed too.
fn settle(run: &Run, random: &mut fastrand::Rng) -> RunResult {
    if random.u8(0..3) == 0 {
        let mut first = run.settling().spawn().unwrap();
        std::thread::sleep(Duration::from_micros(random.u64(0..40_000)));
        first.kill().unwrap();
        let first = first.wait_with_output().unwrap();
        // Nothing but the kill ends it before it has done its work.
        let was_killed = first.status.signal() == Some(Signal::KILL.as_raw());
        assert!(was_killed || first.status.success(), "{first:?}");
        println!("a settling was {}", if was_killed { "killed" } else { "faster than its kill" });
    }
    let settled = run.settle();
    assert!(settled.status.success(), "{settled:?}");
    run.result()
}

#[track_caller]
fn check(run: &Run, shown: &[Json], result: &RunResult) {
    let job = rows(&run.spec.job_log);
    assert!(job.starts_with(shown), "rows that were shown are lost or changed");
    let ids: HashSet<&str> = job.iter().map(|row| row["uuid"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), job.len(), "a row is there twice");
    if let Some(started) = run.started() {
        let session = rows(&started.session_log);
        let own = session.iter().filter(|row| row["runId"] == run.spec.run.to_string());
        for row in own {
            assert!(ids.contains(row["uuid"].as_str().unwrap()), "the job lacks {row}");
        }
        assert_eq!(started.cgroup.filter(|path| path.exists()), None);
        assert!(!started.socket.exists(), "{}", started.socket);
    }
    assert_eq!(run.processes(), Vec::<String>::new(), "processes that outlived the run");
    assert_eq!(LockFile::probe(&run.dir.join("lock")).unwrap(), None);
    assert_eq!(LockFile::probe(&run.session_lock()).unwrap(), None);
    let before = std::fs::read(run.dir.join("result.json")).unwrap();
    let again = run.settle();
    assert!(again.status.success(), "{again:?}");
    assert_eq!(std::fs::read(run.dir.join("result.json")).unwrap(), before);
    assert_eq!(result.run, run.spec.run);
}

#[test]
fn proof_kill_9_of_runner_or_agent_at_any_instant_is_settled() {
    let proof = ProofSettings::new(ROUNDS_IN_CI);
    let all_are_found = heeler_runner::control_group_unavailable_reason().is_none();
    let mut scene = Scene::new();
    let mut session: Option<AgentSessionId> = None;
    let mut ends = std::collections::BTreeMap::new();
    for round in 0..proof.rounds {
        println!("round {round}, HEELER_PROOF_SEED={}", proof.seed);
        let random = &mut proof.random(round);
        if round % ROUNDS_PER_SCENE == 0 {
            (scene, session) = (Scene::new(), None);
        }
        let start = match session.take() {
            Some(id) => SessionStart::Resume { id },
            None => fresh(),
        };
        let mut run = scene.start(start, &steps(random, all_are_found));
        let watcher = Watcher::of(&run.spec.job_log);
        wait_for_a_moment(&mut run, random);
        kill_some(&mut run, random);
        let result = settle(&run, random);
        check(&run, &watcher.stop(), &result);
        let settled = result.settled.unwrap_or_default();
        *ends.entry(result.end.as_str()).or_insert(0) += 1;
        *ends.entry("rows completed").or_insert(0) += settled.rows_completed;
        *ends.entry("processes ended").or_insert(0) += settled.processes_ended;
        if let Some(left) = result.session.filter(|left| left.resumable) {
            let next =
                scene.run(SessionStart::Resume { id: left.id.clone() }, &[json!({"say": "on"})]);
            assert_eq!(next.error, None);
            assert_eq!(next.session.unwrap().id, left.id, "it is the same conversation");
            session = Some(left.id);
        }
    }
    println!("{} kills: {ends:?}", proof.rounds);
}

#[test]
fn settling_a_run_that_lives_is_refused_and_harms_nothing() {
    let scene = Scene::new();
    let mut run = scene.start(fresh(), &[json!({"say": "ready"}), json!({"hang": true})]);
    run.says("ready");
    let agent = run.agent_pid().unwrap();
    let marked = |pid| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
        String::from_utf8(environ).unwrap().contains("HEELER_RUN=")
    };
    assert!(marked(agent) && !marked(run.runner_pid()));
    let refused = run.settle();
    assert_eq!(refused.status.code(), Some(SETTLE_EXIT_BUSY.into()));
    let told = String::from_utf8(refused.stderr).unwrap();
    let runner = run.runner_pid();
    assert!(told.contains(&format!("process {runner}")), "{told}");
    assert_eq!(run.runner.try_wait().unwrap(), None);
    assert_eq!(run.agent_pid(), Some(agent));
    assert!(!run.dir.join("result.json").exists());
    kill(runner);
    run.runner.wait().unwrap();
    let spec = std::fs::read(run.dir.join("spec.json")).unwrap();
    std::fs::write(run.dir.join("spec.json"), "{").unwrap();
    assert_eq!(run.settle().status.code(), Some(SETTLE_EXIT_UNUSABLE.into()));
    std::fs::write(run.dir.join("spec.json"), spec).unwrap();
    assert!(run.settle().status.success());
    assert_eq!(run.result().end, RunEnd::Interrupted);
}

#[test]
fn what_a_run_left_running_is_ended_also_where_its_folder_cannot_be_used() {
    let scene = Scene::new();
    let steps = [json!({"say": "ready"}), json!({"hang": true, "ignore_term": true})];
    let mut run = scene.start(fresh(), &steps);
    run.says("ready");
    let end = || {
        let mut end = heeler();
        end.args(["runner", "--end", run.dir.as_str()]).env("HEELER_HOME", &run.spec.home);
        end.output().unwrap()
    };
    assert!(!end().status.success(), "its runner lives");
    kill(run.runner_pid());
    run.runner.wait().unwrap();
    assert!(!run.processes().is_empty(), "it heeds no signal");
    std::fs::write(run.dir.join("spec.json"), "{").unwrap();
    let ended = end();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(run.processes(), Vec::<String>::new());
}

#[test]
fn a_second_runner_of_a_run_is_refused_and_one_that_comes_too_late_finds_the_result() {
    let scene = Scene::new();
    let steps = [json!({"say": "ready"}), json!({"hang": true})];
    let mut run = scene.start(fresh(), &steps);
    run.says("ready");
    let second = start_runner(&run.dir, &steps).wait_with_output().unwrap();
    assert!(!second.status.success(), "{second:?}");
    kill(run.runner_pid());
    run.runner.wait().unwrap();
    let after = start_runner(&run.dir, &steps).wait_with_output().unwrap();
    assert!(!after.status.success(), "it may have done something already: {after:?}");
    assert!(run.settle().status.success());
    let result = run.result();
    assert!(start_runner(&run.dir, &steps).wait_with_output().unwrap().status.success());
    assert_eq!(run.result(), result);
}

#[test]
fn a_session_has_one_run_at_a_time_also_while_only_an_orphaned_agent_has_it() {
    let scene = Scene::new();
    let stubborn = [json!({"say": "ready"}), json!({"hang": true, "ignore_term": true})];
    let mut run = scene.start(fresh(), &stubborn);
    run.says("ready");
    let (runner, agent) = (run.runner_pid(), run.agent_pid().unwrap());
    let resume = || SessionStart::Resume { id: run.spec.session.start.id().clone() };
    let told_by_whom = |result: &RunResult| {
        assert_eq!(result.end, RunEnd::SessionBusy);
        let error = result.error.as_ref().unwrap();
        assert_eq!(error.class, ErrorClass::SessionBusy);
        let told = &error.message;
        assert!(told.contains(&format!("process {runner}")), "{told}");
        assert!(told.contains(run.spec.job.as_str()), "{told}");
    };
    told_by_whom(&scene.run(resume(), &[json!({"say": "me too"})]));
    kill(runner);
    wait("the runner is gone", || run.runner.try_wait().unwrap());
    assert!(std::fs::exists(format!("/proc/{agent}")).unwrap(), "the agent takes no hint");
    told_by_whom(&scene.run(resume(), &[json!({"say": "me too"})]));
    assert!(run.settle().status.success());
    assert_eq!(run.result().settled.unwrap().processes_ended, 1);
    let next = scene.run(resume(), &[json!({"say": "now me"})]);
    assert_eq!((next.end, next.error), (RunEnd::Finished, None));
}

#[test]
fn an_agent_that_heeds_sigterm_ends_with_its_runner_before_anybody_settles() {
    let scene = Scene::new();
    let mut run = scene.start(fresh(), &[json!({"say": "ready"}), json!({"hang": true})]);
    run.says("ready");
    kill(run.runner_pid());
    run.runner.wait().unwrap();
    wait("the agent has ended", || run.processes().is_empty().then_some(()));
    assert!(run.settle().status.success());
    let result = run.result();
    assert_eq!(result.end, RunEnd::Interrupted);
    assert!(result.session.unwrap().resumable);
}

#[test]
fn a_run_in_a_folder_whose_path_has_200_characters_works() {
    let scene = Scene::below(&format!("{}/{}", "long".repeat(30), "deep".repeat(20)));
    assert!(scene.root.as_str().len() > 200);
    let steps = [json!({"say": "ready"}), json!({"run": "echo work"}), json!({"hang": true})];
    let mut run = scene.start(fresh(), &steps);
    run.says("work");
    kill(run.runner_pid());
    run.runner.wait().unwrap();
    assert!(run.settle().status.success());
    assert_eq!(run.result().end, RunEnd::Interrupted);
    let id = run.spec.session.start.id().clone();
    let next = scene.run(SessionStart::Resume { id }, &[json!({"say": "on"})]);
    assert_eq!((next.end, next.error), (RunEnd::Finished, None));
}
