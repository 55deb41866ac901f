//! `kill -9` of the runner between any two of its writes, then settling.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};

use heeler_model::ExitReason;
use heeler_model::run::RunEnd;
use heeler_transcript::LockFile;

use super::*;
use crate::fault::{RunnerFaultPoint, arm};
use crate::settle_run;

const DIR: &str = "HEELER_TEST_RUN_DIR";
const POINT: &str = "HEELER_TEST_POINT";
const SCRIPT: &str = "HEELER_TEST_SCRIPT";

const POINTS: [RunnerFaultPoint; 14] = [
    RunnerFaultPoint::RunLocked,
    RunnerFaultPoint::SessionLocked,
    RunnerFaultPoint::ExternalMessagesAdded,
    RunnerFaultPoint::Started,
    RunnerFaultPoint::Spawned,
    RunnerFaultPoint::SessionRow,
    RunnerFaultPoint::JobRow,
    RunnerFaultPoint::QuestionAsked,
    RunnerFaultPoint::SummaryWritten,
    RunnerFaultPoint::NativeSessionWritten,
    RunnerFaultPoint::MessagesCarriedOver,
    RunnerFaultPoint::TreeEnded,
    RunnerFaultPoint::LogsSynced,
    RunnerFaultPoint::ResultWritten,
];

/// An agent that leaves a process behind, asks, speaks, and ends well.
const AGENT: &str = r#"echo $$ > pid; setsid sleep 1000 & echo $! > child
await user; may q1 ls; await '"request_id":"q1"'; say one; result done; await forever"#;

/// Starts a runner of its own that dies at the point.
#[expect(clippy::disallowed_methods, reason = "the test runs itself as the process that dies")]
pub(super) fn runner(trial: &RunFixture, script: &str, point: RunnerFaultPoint) -> Child {
    trial.folder.write_spec(&trial.spec);
    let number = POINTS.iter().position(|&it| it == point).unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "run::tests::crashes::be_the_runner", "--nocapture"])
        .env(DIR, &trial.folder.dir)
        .env(POINT, number.to_string())
        .env(SCRIPT, script)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Is the process that dies; does nothing when it is run as a test.
#[test]
#[expect(clippy::disallowed_methods, reason = "the test runs itself as the process that dies")]
fn be_the_runner() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let point: usize = std::env::var(POINT).unwrap().parse().unwrap();
    arm(POINTS[point]);
    let (dir, script) = (Utf8Path::new(&dir), std::env::var(SCRIPT).unwrap());
    let spec = files::read_spec(dir).unwrap();
    let trial = match spec.runtime {
        RuntimeType::Command => command_fixture(&script),
        #[cfg(target_os = "linux")]
        RuntimeType::Acp => client_tools::free_fixture(&script),
        _ => stream_fixture(&script),
    };
    run_with(dir, spec, &trial.host(), &trial.means).unwrap();
}

fn check(point: RunnerFaultPoint, end: RunEnd) {
    let trial = stream_fixture("").attended(50);
    let died = runner(&trial, AGENT, point).wait().unwrap();
    assert_eq!(died.signal(), Some(9), "{point:?}");
    let shown = match trial.spec.job_log.exists() {
        true => trial.job_rows(),
        false => Vec::new(),
    };
    let result = settle_run(&trial.dir(), &trial.spec.home, now).unwrap();
    assert_eq!(result.end, end, "{point:?}");
    assert_eq!(settle_run(&trial.dir(), &trial.spec.home, now).unwrap(), result, "{point:?}");
    for file in ["pid", "child"] {
        if let Ok(pid) = std::fs::read_to_string(trial.spec.working_directory.join(file)) {
            // One that was killed before it could say its number left an empty file.
            assert!(pid.is_empty() || is_gone(&pid), "{point:?}: {file} {pid} is left");
        }
    }
    let lock = trial.spec.home.join("locks").join(trial.spec.session.start.id().as_str());
    assert!(LockFile::probe(&lock).unwrap().is_none(), "{point:?}");
    if end == RunEnd::NeverStarted {
        assert!(shown.is_empty() && !trial.spec.working_directory.join("pid").exists());
        return;
    }
    let mut rows = trial.job_rows();
    assert_eq!(rows[..shown.len()], shown, "{point:?}");
    if end == RunEnd::Interrupted {
        // Only the job has the row that says so.
        assert_eq!(rows.pop().unwrap()["code"], "interrupted", "{point:?}");
    }
    let uuids = |rows: &[Json]| rows.iter().map(|row| row["uuid"].clone()).collect::<Vec<_>>();
    assert_eq!(uuids(&rows), uuids(&RunFixture::rows(&trial.session_log())), "{point:?}");
    let started = trial.started();
    let socket_of_the_dead = point != RunnerFaultPoint::ResultWritten && started.socket.exists();
    assert!(!socket_of_the_dead, "{point:?}");
    // The run is over for good: a runner that comes late changes nothing.
    assert_eq!(trial.run(), result, "{point:?}");
}

#[test]
fn a_runner_that_dies_before_its_start_is_on_record_has_never_started() {
    check(RunnerFaultPoint::RunLocked, RunEnd::NeverStarted);
    check(RunnerFaultPoint::SessionLocked, RunEnd::NeverStarted);
}

#[test]
fn a_runner_that_dies_before_its_agent_speaks_was_interrupted() {
    check(RunnerFaultPoint::Started, RunEnd::Interrupted);
    check(RunnerFaultPoint::Spawned, RunEnd::Interrupted);
}

#[test]
fn a_runner_that_dies_between_two_rows_was_interrupted_and_the_logs_agree() {
    check(RunnerFaultPoint::SessionRow, RunEnd::Interrupted);
    check(RunnerFaultPoint::JobRow, RunEnd::Interrupted);
    check(RunnerFaultPoint::QuestionAsked, RunEnd::Interrupted);
}

#[test]
fn a_runner_that_dies_before_its_result_was_interrupted_even_if_its_agent_was_done() {
    check(RunnerFaultPoint::TreeEnded, RunEnd::Interrupted);
    check(RunnerFaultPoint::LogsSynced, RunEnd::Interrupted);
    check(RunnerFaultPoint::ResultWritten, RunEnd::Finished);
}

#[test]
fn a_command_whose_runner_dies_was_interrupted_and_what_is_recorded_is_kept() {
    let died = |script: &str, point| {
        let trial = command_fixture("");
        let died = runner(&trial, script, point).wait().unwrap();
        assert_eq!(died.signal(), Some(9), "{point:?}");
        settle_run(&trial.dir(), &trial.spec.home, now).unwrap()
    };
    let result = died("echo one", RunnerFaultPoint::LogsSynced);
    assert_eq!((result.end, result.exit_reason), (RunEnd::Interrupted, ExitReason::Error));
    assert_eq!(result.summary.as_deref(), Some("one"));
    // A failure that the runner recorded is believed: it gives the agent nothing.
    let result = died("echo rate limit; exit 3", RunnerFaultPoint::LogsSynced);
    assert_eq!((result.end, class(&result)), (RunEnd::Finished, Some(ErrorClass::AgentFailed)));
    // What it printed last is lost with the pipe that held it.
    for point in [RunnerFaultPoint::Spawned, RunnerFaultPoint::TreeEnded] {
        let result = died("echo one", point);
        assert_eq!((result.end, result.exit_code), (RunEnd::Interrupted, None), "{result:#?}");
    }
}

/// Returns a run whose runner died, and whose agent lives on because it heeds no signal. One that is
/// told of the death before it can close its ears dies too: then another is tried.
fn orphan() -> RunFixture {
    for _ in 0..50 {
        let first = stream_fixture("");
        let agent = "trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done";
        let mut died = runner(&first, agent, RunnerFaultPoint::Spawned);
        assert_eq!(died.wait().unwrap().signal(), Some(9));
        let pid = first.spec.working_directory.join("pid");
        let lock = first.spec.home.join("locks").join(first.spec.session.start.id().as_str());
        let lives = || std::fs::read_to_string(&pid).is_ok_and(|pid| !pid.is_empty());
        wait_for("the agent", || lives() || matches!(LockFile::probe(&lock), Ok(None)));
        if lives() {
            return first;
        }
    }
    panic!("no agent outlived its runner");
}

#[test]
fn an_orphaned_agent_still_holds_its_session() {
    let first = orphan();
    let mut second = stream_fixture("await user; result done");
    second.spec.home = first.spec.home.clone();
    let busy = second.run();
    assert_eq!(busy.end, RunEnd::SessionBusy);
    assert!(busy.error.unwrap().message.contains("`heeler runner"));
    settle_run(&first.dir(), &first.spec.home, now).unwrap();
    let mut third = stream_fixture("await user; result done");
    third.spec.home = first.spec.home.clone();
    assert_eq!(third.run().exit_reason, ExitReason::Success);
}
