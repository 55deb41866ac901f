//! Agents that stay between the turns of a conversation.

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use heeler_model::run::{AGENT_KEPT_REPLY, KeptAgentLimits, RUN_TAKEN_REPLY, RunEnd, RunnerInput};
use heeler_transcript::LockFile;

use super::external_messages::{ExternalMessagesFixture, talk};
use super::*;
use crate::fault::{RunnerFaultPoint, arm};
use crate::run::kept_agent::KEPT_AGENT_MEMORY_MIN;
use crate::settle_run;

/// An agent of many turns, with what it does before and after the end of each.
const AGENT: &str = r#"
echo $$ > pid
state() { printf '{"type":"system","subtype":"session_state_changed","state":"%s","session_id":"%s"}\n' "$1" "$SESSION"; }
n=0
while read -r line; do case "$line" in *'"type":"user"'*)
    n=$((n+1)); state running; took; say "reply $n"; result "reply $n"; BEFORE state idle
    AFTER
esac; done
"#;

/// A conversation whose runner is a thread of the test.
struct KeptAgentFixture {
    scene: ExternalMessagesFixture,
    link: UnixStream,
    runner: JoinHandle<()>,
}

fn agent(before: &str, after: &str) -> String {
    AGENT.replace("BEFORE", before).replace("AFTER", after)
}

/// The first run of a conversation with an agent that may stay.
fn first_run(script: &str, idle_ms: u64) -> ExternalMessagesFixture {
    let trial = stream_fixture(script);
    let mut scene = ExternalMessagesFixture::of(trial, &talk(2));
    scene.leave();
    let conversation_pid = std::process::id();
    scene.trial.spec.keep_agent = Some(KeptAgentLimits { idle_ms, conversation_pid });
    let trial = &scene.trial;
    let gate = trial.spec.working_directory.join("gate");
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, gate.as_std_path(), kind, mode, 0).unwrap();
    trial.folder.write_spec(&trial.spec);
    scene
}

/// Executes the runs that arrive.
fn be_a_runner(first: RunnerTask, link: UnixStream, means: &RunnerDependencies) {
    let (runs, program) = (first.dir.parent().unwrap().to_owned(), first.host.program.clone());
    let prepare = |input: RunnerInput| {
        let spec = input.spec.ok_or("no spec")?;
        let dir = runs.join(spec.run.to_string());
        let host = RunnerHost::new(program.clone(), now, input.brief);
        Ok(RunnerTask { dir, spec, host })
    };
    run_conversation_with(first, link, prepare, means).unwrap();
}

/// Makes the next run; returns the line that sends it.
fn next_run(trial: &mut RunFixture) -> Vec<u8> {
    trial.next_run();
    trial.folder.write_spec(&trial.spec);
    let (brief, spec) = (trial.brief.clone(), Some(trial.spec.clone()));
    let mut line = serde_json::to_vec(&RunnerInput { brief, spec, result_key: None }).unwrap();
    line.push(b'\n');
    line
}

fn pair() -> (UnixStream, UnixStream) {
    let (link, theirs) = UnixStream::pair().unwrap();
    link.set_read_timeout(Some(WAIT_MAX)).unwrap();
    (link, theirs)
}

impl KeptAgentFixture {
    fn start(after: &str, idle_ms: u64) -> KeptAgentFixture {
        KeptAgentFixture::start_patient(&agent("", after), idle_ms)
    }

    fn start_patient(script: &str, idle_ms: u64) -> KeptAgentFixture {
        // A machine under load must not end an agent that is to stay.
        let companion_wait_max = WAIT_MAX;
        let means = RunnerDependencies { companion_wait_max, ..RunnerDependencies::default() };
        KeptAgentFixture::start_with(script, idle_ms, means)
    }

    /// Starts a conversation with an agent that executes `death` in its second turn.
    fn start_mortal(death: &str) -> KeptAgentFixture {
        let begin = "state running;";
        let script = agent("", "").replace(begin, &format!("{death}; {begin}"));
        let mut kept = KeptAgentFixture::start_patient(&script, 600_000);
        kept.hear(AGENT_KEPT_REPLY);
        kept.scene.trial.touch("deadly");
        kept.send_run();
        kept
    }

    fn start_with(script: &str, idle_ms: u64, means: RunnerDependencies) -> KeptAgentFixture {
        let scene = first_run(script, idle_ms);
        let (link, theirs) = pair();
        let trial = &scene.trial;
        let first = RunnerTask { dir: trial.dir(), spec: trial.spec.clone(), host: trial.host() };
        let means = RunnerDependencies { runtime: trial.means.runtime, ..means };
        let runner = std::thread::spawn(move || be_a_runner(first, theirs, &means));
        KeptAgentFixture { scene, link, runner }
    }

    #[track_caller]
    fn hear(&mut self, words: &str) {
        let mut heard = vec![0; words.len()];
        self.link.read_exact(&mut heard).unwrap();
        assert_eq!(String::from_utf8(heard).unwrap(), words);
    }

    /// Sends the next run.
    fn send_run(&mut self) {
        self.link.write_all(&next_run(&mut self.scene.trial)).unwrap();
        self.hear(RUN_TAKEN_REPLY);
    }

    fn pid(&self) -> String {
        let file = self.scene.trial.spec.working_directory.join("pid");
        std::fs::read_to_string(file).unwrap()
    }

    fn is_session_free(&self) -> bool {
        let spec = &self.scene.trial.spec;
        let lock = spec.home.join("locks").join(spec.session.start.id().as_str());
        LockFile::probe(&lock).unwrap().is_none()
    }

    /// Waits for the end of the runner, and checks that the turn has a result and the agent has ended.
    #[track_caller]
    fn was_not_kept(mut self) -> ExternalMessagesFixture {
        let mut heard = Vec::new();
        self.link.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"", "it is not kept");
        let pid = self.pid();
        self.runner.join().unwrap();
        let result = files::read_result(&self.scene.trial.dir()).unwrap().unwrap();
        assert_eq!(result.error, None);
        assert!(is_gone(&pid));
        self.scene
    }

    /// Waits until the runner has closed the connection and ended the agent.
    #[track_caller]
    fn has_ended(mut self, pid: &str) {
        let mut rest = Vec::new();
        self.link.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"");
        self.runner.join().unwrap();
        assert!(is_gone(pid));
    }
}

#[test]
fn the_next_turns_are_executed_by_the_same_process_and_each_is_a_run() {
    let mut kept = KeptAgentFixture::start("", 600_000);
    kept.hear(AGENT_KEPT_REPLY);
    let (first, pid) = (kept.scene.trial.spec.run, kept.pid());
    assert!(kept.is_session_free() && !is_gone(&pid));
    for _ in 0..2 {
        kept.send_run();
        kept.hear(AGENT_KEPT_REPLY);
        let started = kept.scene.trial.started();
        assert_eq!((started.agent_run, kept.pid()), (Some(first), pid.clone()));
        let result = files::read_result(&kept.scene.trial.dir()).unwrap().unwrap();
        assert_eq!((result.run, result.error), (kept.scene.trial.spec.run, None));
        assert!(kept.is_session_free());
    }
    assert_eq!(kept.scene.trial.said(), ["reply 1", "reply 2", "reply 3"]);
    kept.link.shutdown(std::net::Shutdown::Write).unwrap();
    kept.has_ended(&pid);
}

#[test]
fn another_setup_or_another_writer_gets_another_process() {
    let mut kept = KeptAgentFixture::start("", 600_000);
    kept.hear(AGENT_KEPT_REPLY);
    let first = kept.pid();
    kept.scene.trial.brief.env.insert("NEW".to_owned(), "value".to_owned());
    kept.send_run();
    kept.hear(AGENT_KEPT_REPLY);
    let second = kept.pid();
    assert!(is_gone(&first) && second != first);
    assert_eq!(kept.scene.trial.started().agent_run, None);
    // Another run has continued the session since.
    kept.scene.write(&talk(4));
    kept.scene.leave();
    kept.send_run();
    kept.hear(AGENT_KEPT_REPLY);
    let third = kept.pid();
    assert!(is_gone(&second) && third != second);
    kept.link.shutdown(std::net::Shutdown::Write).unwrap();
    kept.has_ended(&third);
}

#[test]
fn a_kept_agent_that_dies_before_its_turn_begins_is_replaced() {
    let mut kept = KeptAgentFixture::start_mortal("[ -e deadly ] && { rm deadly; exit 1; }");
    kept.hear(AGENT_KEPT_REPLY);
    let trial = &kept.scene.trial;
    let result = files::read_result(&trial.dir()).unwrap().unwrap();
    assert_eq!(result.error, None);
    // Both are the first reply of a process.
    assert_eq!(trial.said(), ["reply 1", "reply 1"]);
    let rows = RunFixture::rows(&trial.session_log());
    let prompts = rows.iter().filter(|row| row["type"] == "user").count();
    assert_eq!(prompts, 2, "one per turn");
    let starts = trial.notes("session");
    assert!(starts.last().unwrap().contains("ended before this turn began"), "{starts:?}");
    let pid = kept.pid();
    kept.link.shutdown(std::net::Shutdown::Write).unwrap();
    kept.has_ended(&pid);
}

#[test]
fn a_turn_that_has_begun_is_not_repeated() {
    let death = "[ -e deadly ] && { rm deadly; state running; exit 1; }";
    let mut kept = KeptAgentFixture::start_mortal(death);
    let mut rest = Vec::new();
    kept.link.read_to_end(&mut rest).unwrap();
    kept.runner.join().unwrap();
    let trial = &kept.scene.trial;
    let result = files::read_result(&trial.dir()).unwrap().unwrap();
    assert!(result.error.is_some());
    assert_eq!(trial.said(), ["reply 1"]);
}

#[test]
fn a_kept_agent_ends_after_its_idle_time() {
    let mut kept = KeptAgentFixture::start("", 50);
    kept.hear(AGENT_KEPT_REPLY);
    let pid = kept.pid();
    kept.has_ended(&pid);
}

#[test]
fn an_agent_that_acts_between_two_turns_is_ended() {
    // Opening the pipe blocks the shell itself, without another process.
    let act = ": > ready; read -r go < gate; say 'by itself'";
    let mut kept = KeptAgentFixture::start(act, 600_000);
    // The file is made after the turn, so the end may come before or after the turn is over.
    kept.hear(AGENT_KEPT_REPLY);
    let pid = kept.pid();
    kept.scene.trial.wait_file("ready");
    let gate = kept.scene.trial.spec.working_directory.join("gate");
    std::fs::write(gate, "go\n").unwrap();
    kept.has_ended(&pid);
}

#[test]
fn the_end_of_a_turn_waits_for_a_short_process_of_the_agent() {
    // The process runs beside the agent until the test lets it end. The result is written before it.
    let script = agent("(read -r go < gate) & : > ready;", "");
    let companion_wait_max = WAIT_MAX;
    let means = RunnerDependencies { companion_wait_max, ..RunnerDependencies::default() };
    let mut kept = KeptAgentFixture::start_with(&script, 600_000, means);
    kept.scene.trial.wait_file("ready");
    let gate = kept.scene.trial.spec.working_directory.join("gate");
    std::fs::write(gate, "go\n").unwrap();
    kept.hear(AGENT_KEPT_REPLY);
    let pid = kept.pid();
    assert!(!is_gone(&pid));
    kept.link.shutdown(std::net::Shutdown::Write).unwrap();
    kept.has_ended(&pid);
}

#[test]
fn an_agent_with_a_process_that_stays_ends_with_its_turn() {
    let companion_wait_max = Duration::ZERO;
    let means = RunnerDependencies { companion_wait_max, ..RunnerDependencies::default() };
    let script = agent("sleep 1000 & echo $! > child;", "");
    let kept = KeptAgentFixture::start_with(&script, 600_000, means);
    let child = kept.scene.trial.spec.working_directory.join("child");
    let scene = kept.was_not_kept();
    assert!(is_gone(&std::fs::read_to_string(child).unwrap()));
    drop(scene);
}

#[test]
fn an_agent_is_not_kept_while_memory_is_short() {
    let available_memory: fn() -> Option<u64> = || Some(KEPT_AGENT_MEMORY_MIN - 1);
    let means = RunnerDependencies { available_memory, ..RunnerDependencies::default() };
    KeptAgentFixture::start_with(&agent("", ""), 600_000, means).was_not_kept();
}

#[test]
fn a_kept_agent_ends_when_memory_becomes_short() {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    // The first look is at the end of the turn, the later ones are made while the agent is idle.
    let available_memory: fn() -> Option<u64> = || match CALLS.fetch_add(1, Ordering::Relaxed) {
        0 => Some(KEPT_AGENT_MEMORY_MIN),
        _ => Some(KEPT_AGENT_MEMORY_MIN - 1),
    };
    let companion_wait_max = WAIT_MAX;
    let means = RunnerDependencies {
        available_memory,
        companion_wait_max,
        ..RunnerDependencies::default()
    };
    let mut kept = KeptAgentFixture::start_with(&agent("", ""), 600_000, means);
    kept.hear(AGENT_KEPT_REPLY);
    let pid = kept.pid();
    kept.has_ended(&pid);
}

const DIR: &str = "HEELER_TEST_KEPT_RUN_DIR";
const POINT: &str = "HEELER_TEST_KEPT_POINT";

const POINTS: [RunnerFaultPoint; 3] = [
    RunnerFaultPoint::AgentKept,
    RunnerFaultPoint::NextRunReceived,
    RunnerFaultPoint::NextRunConfirmed,
];

/// Is the runner that dies; does nothing when it is run as a test.
#[test]
#[expect(clippy::disallowed_methods, reason = "the test runs itself as the process that dies")]
fn be_the_kept_runner() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let point: usize = std::env::var(POINT).unwrap().parse().unwrap();
    arm(POINTS[point]);
    let dir = Utf8PathBuf::from(dir);
    let spec = files::read_spec(&dir).unwrap();
    let trial = stream_fixture(&agent("", ""));
    let link = UnixStream::from(rustix::io::dup(std::io::stdin()).unwrap());
    let means = RunnerDependencies {
        runtime: trial.means.runtime,
        companion_wait_max: WAIT_MAX,
        ..RunnerDependencies::default()
    };
    be_a_runner(RunnerTask { dir, spec, host: trial.host() }, link, &means);
}

#[track_caller]
#[expect(clippy::disallowed_methods, reason = "the test runs itself as the process that dies")]
fn check_death(point: RunnerFaultPoint) {
    let mut scene = first_run(&agent("", ""), 600_000);
    let (mut link, theirs) = pair();
    let number = POINTS.iter().position(|&it| it == point).unwrap();
    let mut runner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "run::tests::kept::be_the_kept_runner", "--nocapture"])
        .env(DIR, scene.trial.dir())
        .env(POINT, number.to_string())
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (first_dir, home) = (scene.trial.dir(), scene.trial.spec.home.clone());
    if point != RunnerFaultPoint::AgentKept {
        let mut heard = vec![0; AGENT_KEPT_REPLY.len()];
        link.read_exact(&mut heard).unwrap();
        assert_eq!(heard, AGENT_KEPT_REPLY.as_bytes());
        link.write_all(&next_run(&mut scene.trial)).unwrap();
    }
    let mut heard = Vec::new();
    link.read_to_end(&mut heard).unwrap();
    assert_eq!(runner.wait().unwrap().signal(), Some(9), "{point:?}");
    let confirmation = match point {
        RunnerFaultPoint::NextRunConfirmed => RUN_TAKEN_REPLY,
        _ => "",
    };
    assert_eq!(String::from_utf8(heard).unwrap(), confirmation, "{point:?}");
    // The first turn has its result, and the agent that was kept is ended by what the daemon does.
    let result = files::read_result(&first_dir).unwrap().unwrap();
    assert_eq!(settle_run(&first_dir, &home, now).unwrap(), result, "{point:?}");
    assert_eq!((result.end, result.error), (RunEnd::Finished, None), "{point:?}");
    crate::end_leftover_processes(&first_dir, now).unwrap();
    let work = scene.trial.spec.working_directory.clone();
    let pid = std::fs::read_to_string(work.join("pid")).unwrap();
    assert!(is_gone(&pid), "{point:?}");
    let lock = home.join("locks").join(scene.trial.spec.session.start.id().as_str());
    assert!(LockFile::probe(&lock).unwrap().is_none(), "{point:?}");
    if point == RunnerFaultPoint::AgentKept {
        return;
    }
    // The next turn has not begun, so it can be started again.
    let settled = settle_run(&scene.trial.dir(), &home, now).unwrap();
    assert_eq!(settled.end, RunEnd::NeverStarted, "{point:?}");
    assert_eq!(scene.trial.said(), ["reply 1"], "{point:?}");
    scene.trial.next_run();
    assert_eq!(scene.trial.run().error, None, "{point:?}");
    assert_eq!(scene.trial.said(), ["reply 1", "reply 1"], "another process answers it once");
}

#[test]
fn a_runner_that_dies_between_two_turns_loses_and_repeats_nothing() {
    for point in POINTS {
        check_death(point);
    }
}
