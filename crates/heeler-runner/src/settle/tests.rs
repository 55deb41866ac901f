//! Every state that the death of a runner, or of a settling, leaves.

use heeler_config::RuntimeType;
use heeler_model::ExitReason;
use heeler_model::message::parse_line;
use heeler_model::recorder::{EXIT_REASON_KEY, RecordedRows, TranscriptRecorder};
use heeler_model::run::{ErrorClass, ResultPublicKey, ResultSigningKey, RunEnd, RunError};
use heeler_transcript::{TranscriptEntry, TranscriptScanner};
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::command::CommandRuntime;
use crate::files::tests::RunFolderFixture;
use crate::files::{read_result, write_started};
use crate::runtime::{AgentRuntime as _, RuntimeEffect};
use crate::transcript_writer::RUN_KEY;

fn now() -> Timestamp {
    "2026-11-15T10:00:00Z".parse().unwrap()
}

/// A run whose runner died, and what it had written.
struct DeadRunFixture {
    folder: RunFolderFixture,
    started: RunStartRecord,
    recorder: TranscriptRecorder,
}

impl DeadRunFixture {
    fn new() -> DeadRunFixture {
        let folder = RunFolderFixture::new();
        let started = folder.started();
        std::fs::create_dir_all(started.session_log.parent().unwrap()).unwrap();
        write_started(&folder.dir, &started).unwrap();
        let recorder = TranscriptRecorder::new(started.session.clone(), "/work".into());
        DeadRunFixture { folder, started, recorder }
    }

    /// Says that so much was in the logs before the run.
    fn begins_after(&mut self, session_rows: u64, job_rows: u64) {
        self.started.session_rows_before = session_rows;
        self.started.job_rows_before = job_rows;
        write_started(&self.folder.dir, &self.started).unwrap();
    }

    fn prompt(&mut self) -> RecordedRows {
        let uuid = Uuid::from_u128(u128::from(fastrand::u64(..)) << 64);
        self.recorder.record_prompt(uuid, "do it", now())
    }

    fn says(&mut self, line: &Json) -> RecordedRows {
        let mut line = line.clone();
        line["uuid"] = Uuid::from_u128(u128::from(fastrand::u64(..)) << 64).to_string().into();
        self.recorder.record_message(parse_line(line.to_string().as_bytes()), now())
    }

    fn session(&self, rows: &RecordedRows) {
        append(&self.started.session_log, &rows.session);
    }

    fn job(&self, rows: &RecordedRows) {
        append(&self.folder.spec.job_log, &rows.job);
    }

    fn both(&self, rows: &RecordedRows) {
        self.session(rows);
        self.job(rows);
    }

    #[track_caller]
    fn settle(&self) -> RunResult {
        let result = settle_run(&self.folder.dir, &self.folder.spec.home, now).unwrap();
        assert_eq!(read_result(&self.folder.dir).unwrap(), Some(result.clone()));
        assert_eq!(
            settle_run(&self.folder.dir, &self.folder.spec.home, now).unwrap(),
            result,
            "twice gives the same"
        );
        result
    }

    /// Returns the rows of the job, without the one that says that it was interrupted.
    fn job_rows(&self) -> Vec<Json> {
        without_closing_row(rows(&self.folder.spec.job_log))
    }
}

fn without_closing_row(mut rows: Vec<Json>) -> Vec<Json> {
    rows.retain(|row| row["code"] != "interrupted");
    rows
}

fn append(path: &Utf8Path, rows: &[Json]) {
    let mut log = TranscriptWriter::open(path, TranscriptWriterOptions::default()).unwrap().writer;
    for row in rows {
        log.append(row.to_string().as_bytes()).unwrap();
    }
}

fn rows(path: &Utf8Path) -> Vec<Json> {
    let entries = TranscriptScanner::open(path).unwrap().map(|entry| match entry.unwrap() {
        TranscriptEntry::Record(record) => serde_json::from_str(&record.text).unwrap(),
        TranscriptEntry::Fault(fault) => panic!("{fault:?}"),
    });
    entries.collect()
}

fn text(text: &str) -> Json {
    json!({"type": "assistant", "message": {"id": text, "role": "assistant",
        "content": [{"type": "text", "text": text}, {"type": "tool_use", "id": "t1", "name": "Bash",
        "input": {"command": "ls"}}]}})
}

fn result(is_error: bool) -> Json {
    json!({"type": "result", "subtype": "success", "is_error": is_error, "result": "all done",
        "num_turns": 2, "total_cost_usd": 0.25, "stop_reason": "end_turn"})
}

#[test]
fn a_run_that_did_not_start_has_never_been() {
    let folder = RunFolderFixture::new();
    let result = settle_run(&folder.dir, &folder.spec.home, now).unwrap();
    assert_eq!((result.end, &result.session), (RunEnd::NeverStarted, &None));
    assert_eq!(result.settled, Some(RunRecovery::default()));
    assert!(!folder.spec.job_log.exists());
    assert_eq!(settle_run(&folder.dir, &folder.spec.home, now).unwrap(), result);
}

#[test]
fn what_a_dead_run_said_at_last_is_kept_if_it_is_to_be() {
    for keep in [false, true] {
        let mut dead = DeadRunFixture::new();
        let spec = RunSpec { keep_output: keep, ..dead.folder.spec.clone() };
        dead.folder.write_spec(&spec);
        for line in [text("first"), text("last words")] {
            let rows = dead.says(&line);
            dead.both(&rows);
        }
        let output = dead.settle().output;
        assert_eq!(output.as_deref(), keep.then_some("last words"));
    }
}

#[test]
fn a_run_whose_agent_said_nothing_is_interrupted_and_cannot_be_resumed() {
    let dead = DeadRunFixture::new();
    let result = dead.settle();
    assert_eq!((result.end, result.exit_reason), (RunEnd::Interrupted, ExitReason::Error));
    assert_eq!(result.error.unwrap().class, ErrorClass::Interrupted);
    assert!(!result.session.unwrap().resumable);
    assert_eq!(result.finished_at, result.started_at, "it was not seen alive after that");
    assert!(!dead.started.session_log.exists(), "no log is made for what was never said");
}

#[test]
fn an_interrupted_run_ends_with_one_row_that_says_so() {
    let mut dead = DeadRunFixture::new();
    let said = dead.says(&text("first"));
    dead.both(&said);
    dead.settle();
    let once = rows(&dead.folder.spec.job_log);
    let last = once.last().unwrap();
    assert_eq!((&last["type"], &last["code"]), (&json!("error"), &json!("interrupted")));
    assert_eq!(last["message"], "the process that ran the agent died");
    assert_eq!(last["timestamp"], "2026-11-15T10:00:00.000Z");
    // The settling process died before it wrote the result, so another one settles the run again.
    std::fs::remove_file(dead.folder.dir.join("result.json")).unwrap();
    dead.settle();
    assert_eq!(rows(&dead.folder.spec.job_log), once);
    assert_eq!(rows(&dead.started.session_log).len(), said.session.len(), "only the job ended");
}

#[test]
fn rows_that_the_job_lacks_are_completed_in_order_and_none_twice() {
    let mut dead = DeadRunFixture::new();
    let (asked, said) = (dead.prompt(), dead.says(&text("first")));
    let more = dead.says(&text("second"));
    dead.both(&asked);
    dead.both(&said);
    // Two rows of one message: the runner died between them.
    dead.session(&more);
    append(&dead.folder.spec.job_log, &more.job[..1]);
    let last = dead.says(&text("third"));
    dead.session(&last);
    let result = dead.settle();
    let expected: Vec<Json> = [asked, said, more, last].into_iter().flat_map(|it| it.job).collect();
    assert_eq!(dead.job_rows(), expected);
    assert_eq!(result.settled.unwrap().rows_completed, 3);
    assert_eq!(result.end, RunEnd::Interrupted);
    assert_eq!((result.started_at, result.finished_at), (dead.started.at, now()));
    assert_eq!(result.cost.usd, None);
    assert_eq!(result.error.unwrap().messages_received, 3);
    let session = result.session.unwrap();
    assert_eq!((session.messages, session.resumable), (4, true));
}

#[test]
fn a_settling_that_was_cut_off_after_any_row_is_completed_by_the_next() {
    let mut dead = DeadRunFixture::new();
    let (asked, said) = (dead.prompt(), dead.says(&text("first")));
    dead.session(&asked);
    dead.session(&said);
    let expected: Vec<Json> = asked.job.into_iter().chain(said.job).collect();
    for written in 0..=expected.len() {
        for log in [&dead.folder.spec.job_log, &dead.folder.dir.join("result.json")] {
            drop(std::fs::remove_file(log));
        }
        append(&dead.folder.spec.job_log, &expected[..written]);
        let result = dead.settle();
        assert_eq!(dead.job_rows(), expected);
        assert_eq!(result.settled.unwrap().rows_completed, (expected.len() - written) as u64);
    }
}

#[test]
fn a_run_whose_state_directory_was_moved_is_settled_where_it_is() {
    let mut dead = DeadRunFixture::new();
    let rows = [dead.prompt(), dead.says(&text("first")), dead.says(&result(false))];
    dead.both(&rows[0]);
    rows[1..].iter().for_each(|rows| dead.session(rows));
    let moved = tempfile::tempdir().unwrap();
    let moved = Utf8Path::from_path(moved.path()).unwrap().canonicalize_utf8().unwrap();
    let state = moved.join("state");
    std::fs::rename(&dead.folder.state, &state).unwrap();
    let there = |path: &Utf8Path| state.join(path.strip_prefix(&dead.folder.state).unwrap());
    let result = settle_run(&there(&dead.folder.dir), &dead.folder.spec.home, now).unwrap();
    assert_eq!((result.end, result.settled.unwrap().rows_completed), (RunEnd::Interrupted, 3));
    assert_eq!(result.session.unwrap().log, there(&dead.started.session_log));
    let expected: Vec<Json> = rows.into_iter().flat_map(|rows| rows.job).collect();
    let found = without_closing_row(super::tests::rows(&there(&dead.folder.spec.job_log)));
    assert_eq!(found, expected);
    assert!(!dead.folder.state.exists(), "nothing is written where it was");
}

#[test]
fn a_dead_command_without_a_session_is_completed_from_the_file_of_its_run() {
    let mut dead = DeadRunFixture::new();
    dead.folder.spec.runtime = RuntimeType::Command;
    dead.folder.spec.session.is_unrecorded = true;
    // The state directory was moved since.
    let run = dead.folder.spec.run;
    dead.folder.spec.session.log = Some(format!("/elsewhere/runs/{run}/session.log").into());
    dead.folder.write_spec(&dead.folder.spec);
    dead.started.session_log = dead.folder.dir.join(file::SESSION_LOG);
    let rows = [dead.prompt(), dead.says(&text("first"))];
    rows.iter().for_each(|rows| dead.session(rows));
    let result = dead.settle();
    assert_eq!((result.end, result.session), (RunEnd::Interrupted, None));
    let expected: Vec<Json> = rows.into_iter().flat_map(|rows| rows.job).collect();
    assert_eq!(dead.job_rows(), expected);
}

#[test]
fn torn_tails_are_repaired_and_a_row_that_is_whole_counts() {
    let mut dead = DeadRunFixture::new();
    let (asked, said) = (dead.prompt(), dead.says(&text("first")));
    dead.both(&asked);
    let mut file =
        std::fs::OpenOptions::new().append(true).open(&dead.started.session_log).unwrap();
    std::io::Write::write_all(&mut file, said.session[0].to_string().as_bytes()).unwrap();
    let job = dead.folder.spec.job_log.clone();
    let mut file = std::fs::OpenOptions::new().append(true).open(&job).unwrap();
    std::io::Write::write_all(&mut file, &said.job[0].to_string().as_bytes()[..20]).unwrap();
    dead.settle();
    let expected: Vec<Json> = asked.job.into_iter().chain(said.job).collect();
    assert_eq!(dead.job_rows(), expected);
    assert_eq!(rows(&dead.started.session_log).len(), 2);
}

#[test]
fn what_was_in_the_logs_before_the_run_is_left_alone() {
    let mut dead = DeadRunFixture::new();
    let before = [dead.prompt(), dead.says(&text("earlier")), dead.says(&result(false))];
    before.iter().for_each(|rows| dead.session(rows));
    dead.begins_after(3, 0);
    let asked = dead.prompt();
    dead.session(&asked);
    let result = dead.settle();
    assert_eq!(dead.job_rows(), asked.job);
    assert_eq!(result.end, RunEnd::Interrupted, "the result is an earlier run's");
    let session = result.session.unwrap();
    assert_eq!((session.messages, session.resumable), (3, false), "it said nothing in this run");
}

#[test]
fn a_session_that_was_resumed_can_be_resumed_again() {
    let mut dead = DeadRunFixture::new();
    let id = dead.started.session.clone();
    dead.folder.spec.session.start = heeler_model::run::SessionStart::Resume { id };
    dead.folder.write_spec(&dead.folder.spec);
    let asked = dead.prompt();
    dead.session(&asked);
    assert!(dead.settle().session.unwrap().resumable);
}

#[test]
fn rows_of_a_run_that_went_on_with_the_session_are_left_alone() {
    let mut dead = DeadRunFixture::new();
    let mut asked = dead.prompt();
    asked.session[0][RUN_KEY] = dead.folder.spec.run.to_string().into();
    dead.session(&asked);
    let mut other = dead.says(&result(false));
    other.session[0][RUN_KEY] = "018cc251-f400-7000-8000-000000000000".into();
    dead.session(&other);
    // It still runs, and has the session and its log.
    let locks = dead.folder.spec.home.join("locks");
    std::fs::create_dir_all(&locks).unwrap();
    let holder = LockHolder::this_process("runner", now());
    let path = locks.join(dead.started.session.as_str());
    let _lock = LockFile::acquire(&path, &holder, Duration::ZERO).unwrap();
    let _log =
        TranscriptWriter::open(&dead.started.session_log, TranscriptWriterOptions::default())
            .unwrap()
            .writer;
    let result = dead.settle();
    assert_eq!(dead.job_rows(), asked.job);
    assert_eq!(result.end, RunEnd::Interrupted);
}

/// An agent can write a row and kill its runner, so the row is no proof.
#[test]
fn a_result_row_is_no_proof_that_the_agent_had_finished() {
    for is_error in [false, true] {
        let mut dead = DeadRunFixture::new();
        let rows = [dead.prompt(), dead.says(&text("first")), dead.says(&result(is_error))];
        rows.iter().for_each(|rows| dead.both(rows));
        let result = dead.settle();
        assert_eq!((result.end, result.exit_reason), (RunEnd::Interrupted, ExitReason::Error));
        assert_eq!(result.stop_reason.as_deref(), Some("end_turn"));
        assert!(result.error.unwrap().message.contains("had reported a result"));
        assert_eq!(result.cost.usd, None);
        let settled = result.settled.unwrap();
        assert_eq!((settled.rows_completed, settled.spent_usd_min), (0, Some(0.25)));
    }
}

#[test]
fn a_recorded_exit_code_is_no_proof_that_the_command_had_finished() {
    for code in [0, 3] {
        let mut dead = DeadRunFixture::new();
        dead.folder.spec.runtime = RuntimeType::Command;
        dead.folder.write_spec(&dead.folder.spec);
        let prompt = dead.prompt();
        dead.both(&prompt);
        let mut command = CommandRuntime::new(String::new(), String::new());
        let steps = [command.handle_line(b"all done"), command.handle_exit(Some(code))].concat();
        for step in steps {
            let RuntimeEffect::Message(message) = step else { continue };
            let rows = dead.recorder.record_message(message, now());
            dead.session(&rows);
        }
        let result = dead.settle();
        assert_eq!((result.end, result.exit_reason), (RunEnd::Interrupted, ExitReason::Error));
        assert_eq!(result.summary.as_deref(), Some("all done"));
    }
}

#[test]
fn a_failure_row_never_makes_a_run_successful() {
    let mut dead = DeadRunFixture::new();
    let error = RunError::new(ErrorClass::Network, "none");
    let mut rows = dead.recorder.record_failure(&error, ExitReason::Timeout, now());
    for row in &mut rows.session {
        row[EXIT_REASON_KEY] = "success".into();
    }
    dead.session(&rows);
    assert_eq!(dead.settle().exit_reason, ExitReason::Error);
}

#[test]
fn times_of_rows_are_never_in_the_future() {
    let mut dead = DeadRunFixture::new();
    dead.started.at = "2999-01-01T00:00:00Z".parse().unwrap();
    write_started(&dead.folder.dir, &dead.started).unwrap();
    let mut rows = dead.prompt();
    for row in &mut rows.session {
        row["timestamp"] = "2999-01-01T00:00:00Z".into();
    }
    dead.session(&rows);
    let result = dead.settle();
    assert_eq!((result.started_at, result.finished_at), (now(), now()));
}

#[test]
fn a_settled_result_is_signed_and_replaces_one_that_the_runner_did_not_sign() {
    let runner = ResultSigningKey::from_seed([1; 32]);
    let keys = |folder: &RunFolderFixture| SettleInput {
        protocol: PROTOCOL,
        result_key: ResultSigningKey::from_seed([2; 32]),
        runner_keys: [(folder.spec.run, runner.public_key())].into(),
    };
    let mut dead = DeadRunFixture::new();
    let rows = dead.prompt();
    dead.both(&rows);
    let (folder, keys) = (&dead.folder, keys(&dead.folder));
    folder.sign_spec(&folder.spec, &runner);
    let settle = || settle_run_signed(&folder.dir, &folder.spec.home, now, Some(&keys)).unwrap();
    let read = || std::fs::read(folder.dir.join(file::RESULT)).unwrap();
    std::fs::write(folder.dir.join(file::RESULT), "forged").unwrap();
    let settled = settle();
    assert_eq!(settled.end, RunEnd::Interrupted);
    assert!(keys.result_key.public_key().has_signed(&read()));
    let log = std::fs::read(&folder.spec.job_log).unwrap();
    assert_eq!(settled.transcript.as_ref().unwrap().bytes, log.len() as u64);
    // The next daemon does not know this key, so it settles again, with the same outcome.
    let again = RunResult { settled: None, ..settle() };
    assert_eq!(again, RunResult { settled: None, ..settled });
    // A result of the runner stays.
    std::fs::remove_file(folder.dir.join(file::RESULT)).unwrap();
    ReservedResultFile::create(&folder.dir, Some(&runner)).unwrap().write(&again).unwrap();
    let before = read();
    assert_eq!((settle(), read()), (again, before));
}

#[test]
fn a_run_is_settled_by_the_spec_that_its_daemon_wrote_and_by_no_other() {
    let runner = ResultSigningKey::from_seed([1; 32]);
    let mut dead = DeadRunFixture::new();
    let rows = dead.prompt();
    dead.both(&rows);
    let folder = &dead.folder;
    let settle = |key: ResultPublicKey| {
        let keys = SettleInput {
            protocol: PROTOCOL,
            result_key: ResultSigningKey::from_seed([2; 32]),
            runner_keys: [(folder.spec.run, key)].into(),
        };
        settle_run_signed(&folder.dir, &folder.spec.home, now, Some(&keys))
    };
    let refused = || {
        let error = settle(runner.public_key()).unwrap_err();
        assert!(matches!(error, RunSettleError::File(RunFileError::ForeignSpec { .. })), "{error}");
        assert!(error.is_permanent());
        assert!(!folder.dir.join(file::RESULT).exists());
    };
    // Without a signature, with that of another key, and with a changed folder.
    refused();
    folder.sign_spec(&folder.spec, &ResultSigningKey::from_seed([3; 32]));
    refused();
    folder.sign_spec(&folder.spec, &runner);
    let text = std::fs::read_to_string(folder.dir.join("spec.json")).unwrap();
    let directory = folder.spec.working_directory.as_str();
    std::fs::write(folder.dir.join("spec.json"), text.replace(directory, "/")).unwrap();
    refused();
    folder.sign_spec(&folder.spec, &runner);
    assert_eq!(settle(runner.public_key()).unwrap().end, RunEnd::Interrupted);
    // An earlier release did not sign it.
    std::fs::remove_file(folder.dir.join(file::RESULT)).unwrap();
    folder.write_spec(&folder.spec);
    let settled = settle(runner.public_key().without_spec()).unwrap();
    assert_eq!(settled.end, RunEnd::Interrupted);
}

#[test]
fn an_agent_that_went_on_after_a_result_was_interrupted() {
    let queued = json!({"type": "result", "is_error": false, "queued_turn_count": 1});
    for last in [text("more"), queued] {
        let mut dead = DeadRunFixture::new();
        let rows = [dead.prompt(), dead.says(&result(false)), dead.says(&last)];
        rows.iter().for_each(|rows| dead.both(rows));
        let result = dead.settle();
        assert_eq!((result.end, result.cost.usd), (RunEnd::Interrupted, None), "{last}");
    }
}

#[test]
fn a_background_task_that_was_running_was_interrupted() {
    let task = |subtype: &str, status: &str| {
        json!({"type": "system", "subtype": subtype, "task_id": "b1", "task_type": "local_bash",
            "is_backgrounded": true, "status": status})
    };
    let notified = Some(("task_notification", "completed"));
    let updated = |status| Some(("task_updated", status));
    const IS_DONE: bool = true;
    for (last, is_done) in [
        (None, false),
        (updated("running"), false),
        (notified, IS_DONE),
        (updated("killed"), IS_DONE),
        (updated("cancelled"), IS_DONE),
    ] {
        let mut dead = DeadRunFixture::new();
        let mut rows = vec![dead.prompt(), dead.says(&task("task_started", "running"))];
        if let Some((subtype, status)) = last {
            rows.push(dead.says(&task(subtype, status)));
        }
        rows.push(dead.says(&result(false)));
        rows.iter().for_each(|rows| dead.both(rows));
        let error = dead.settle().error.unwrap();
        assert_eq!(error.message.contains("had reported a result"), is_done, "{last:?}");
    }
}

#[test]
fn a_failure_that_the_runner_had_recorded_is_how_the_run_ended() {
    let mut dead = DeadRunFixture::new();
    let asked = dead.prompt();
    dead.both(&asked);
    // A connection that timed out is a timeout: more than its class tells.
    let error = RunError::new(ErrorClass::Network, "request timed out");
    let failed = dead.recorder.record_failure(&error, ExitReason::Timeout, now());
    dead.session(&failed);
    let result = dead.settle();
    assert_eq!((result.end, result.exit_reason), (RunEnd::Finished, ExitReason::Timeout));
    assert_eq!(result.error, Some(error));
    assert!(!result.session.unwrap().resumable);
    assert_eq!(dead.job_rows().len(), 2);
}

#[test]
fn a_run_whose_runner_died_while_ending_it_ended_for_the_runners_reason() {
    let aborted = json!({"type": "result", "subtype": "error_during_execution", "is_error": true,
        "terminal_reason": "aborted_streaming"});
    for (class, reason) in [
        (ErrorClass::Timeout, ExitReason::Timeout),
        (ErrorClass::Stalled, ExitReason::Timeout),
        (ErrorClass::Cancelled, ExitReason::Cancelled),
    ] {
        // Whatever the agent said then, or did not come to say.
        for last in [aborted.clone(), result(false), text("partial")] {
            let mut dead = DeadRunFixture::new();
            let before = [dead.prompt(), dead.says(&text("first"))];
            before.iter().for_each(|rows| dead.both(rows));
            dead.recorder.set_interruption(class, "because");
            let rows = dead.says(&last);
            dead.session(&rows);
            let result = dead.settle();
            assert_eq!((result.end, result.exit_reason), (RunEnd::Finished, reason), "{last}");
            let error = result.error.unwrap();
            assert_eq!((error.class, error.message.as_str()), (class, "because"));
            assert_eq!(error.messages_received, 2);
        }
    }
}

#[test]
fn a_run_that_lives_is_left_alone() {
    let dead = DeadRunFixture::new();
    let holder = LockHolder { pid: 4242, command: "runner".to_owned(), since: now() };
    let lock = LockFile::acquire(&dead.folder.dir.join("lock"), &holder, Duration::ZERO).unwrap();
    let error = settle_run(&dead.folder.dir, &dead.folder.spec.home, now).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("is still running: `heeler runner`, process 4242"), "{said}");
    assert!(!dead.folder.dir.join("result.json").exists());
    drop(lock);
    dead.settle();
}

#[test]
fn a_result_that_is_there_is_returned_whatever_else_is() {
    let mut dead = DeadRunFixture::new();
    let result = dead.settle();
    let more = dead.prompt();
    dead.session(&more);
    assert_eq!(settle_run(&dead.folder.dir, &dead.folder.spec.home, now).unwrap(), result);
    assert_eq!(dead.job_rows(), Vec::<Json>::new());
}

#[test]
fn runs_that_are_settled_together_end_as_each_would_alone() {
    use std::process::{Command, Stdio};
    let (orphaned, quiet, alive) =
        (DeadRunFixture::new(), DeadRunFixture::new(), DeadRunFixture::new());
    let home = &orphaned.folder.spec.home;
    for dead in [&quiet, &alive] {
        let spec = RunSpec { home: home.clone(), ..dead.folder.spec.clone() };
        let text = serde_json::to_vec(&spec).unwrap();
        std::fs::write(dead.folder.dir.join(file::SPEC), text).unwrap();
    }
    #[expect(clippy::disallowed_methods, reason = "the test starts what a runner has started")]
    let mut orphan = Command::new("sh")
        .args(["-c", "echo up; exec sleep 1000"])
        .env("HEELER_RUN", orphaned.folder.spec.run.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(orphan.stdout.as_mut().unwrap(), &mut [0; 3]).unwrap();
    let holder = LockHolder { pid: 4242, command: "runner".to_owned(), since: now() };
    let _lock = LockFile::acquire(&alive.folder.dir.join("lock"), &holder, Duration::ZERO).unwrap();
    let dirs = [&orphaned, &quiet, &alive].map(|dead| dead.folder.dir.clone());
    let [first, second, third] = &settle_runs(&dirs, home, now, None)[..] else {
        panic!("one for each")
    };
    let ended = |result: &RunResult| (result.end, result.settled.clone().unwrap().processes_ended);
    assert_eq!(ended(first.as_ref().unwrap()), (RunEnd::Interrupted, 1));
    assert_eq!(ended(second.as_ref().unwrap()), (RunEnd::Interrupted, 0));
    assert!(matches!(third, Err(RunSettleError::Running { .. })), "{third:?}");
    assert!(!orphan.wait().unwrap().success());
    assert_eq!(read_result(&quiet.folder.dir).unwrap().as_ref(), second.as_ref().ok());
    assert!(!alive.folder.dir.join("result.json").exists());
}

#[test]
fn what_the_dead_run_left_running_is_ended_and_its_session_is_free() {
    use std::process::{Command, Stdio};
    let dead = DeadRunFixture::new();
    let locks = dead.folder.spec.home.join("locks");
    std::fs::create_dir_all(&locks).unwrap();
    let path = locks.join(dead.started.session.as_str());
    // As an agent that was orphaned: it has the marker and the session's lock, and takes no hint.
    #[expect(clippy::disallowed_methods, reason = "the test starts what a runner has started")]
    let mut orphan = Command::new("flock")
        .arg(&path)
        .args(["sh", "-c", "trap '' TERM; echo locked; exec sleep 1000"])
        .env("HEELER_RUN", dead.folder.spec.run.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 7];
    std::io::Read::read_exact(orphan.stdout.as_mut().unwrap(), &mut said).unwrap();
    assert!(LockFile::probe(&path).unwrap().is_some());
    let result = dead.settle();
    assert_eq!(result.settled.unwrap().processes_ended, 2, "the lock's holder and the sleeper");
    assert!(LockFile::probe(&path).unwrap().is_none());
    assert!(!orphan.wait().unwrap().success());
}

/// An agent that its runner had just started when it was killed has no marker yet, and one may clear
/// its environment. It still has the lock that the runner gave it.
#[test]
#[expect(clippy::disallowed_methods, reason = "the test starts what a runner has started")]
fn an_unmarked_agent_that_has_the_lock_of_the_session_is_ended_before_the_run_is_settled() {
    use std::process::{Command, Stdio};
    let dead = DeadRunFixture::new();
    let locks = dead.folder.spec.home.join("locks");
    std::fs::create_dir_all(&locks).unwrap();
    let path = locks.join(dead.started.session.as_str());
    let command = format!("runner {}", dead.folder.spec.job);
    let holder = LockHolder { pid: dead.started.pid, command, since: now() };
    let lock = LockFile::acquire(&path, &holder, Duration::ZERO).unwrap();
    rustix::io::fcntl_setfd(lock.fd(), rustix::io::FdFlags::empty()).unwrap();
    let mut orphan = Command::new("sh")
        .args(["-c", "trap '' TERM; echo locked; exec sleep 1000"])
        .env_clear()
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(orphan.stdout.as_mut().unwrap(), &mut [0; 7]).unwrap();
    // As the kernel closes the runner's descriptor, but not that of its agent.
    drop(lock);
    assert!(LockFile::probe(&path).unwrap().is_some());
    // A process that only reads the file is not the run's.
    let mut reader = Command::new("sleep");
    let mut reader = reader.arg("1000").stdin(std::fs::File::open(&path).unwrap()).spawn().unwrap();
    let result = dead.settle();
    assert_eq!(result.settled.unwrap().processes_ended, 1);
    assert!(!orphan.wait().unwrap().success());
    assert!(LockFile::probe(&path).unwrap().is_none());
    assert!(reader.try_wait().unwrap().is_none());
    reader.kill().unwrap();
    reader.wait().unwrap();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test starts what a runner has started")]
fn what_a_run_left_running_ends_also_where_its_folder_cannot_be_used() {
    use std::process::{Command, Stdio};
    let dead = DeadRunFixture::new();
    let (dir, run) = (&dead.folder.dir, dead.folder.spec.run.to_string());
    std::fs::write(dir.join("spec.json"), "{").unwrap();
    std::fs::write(dir.join("started.json"), "[]").unwrap();
    let mut orphan = Command::new("sleep").arg("1000").env("HEELER_RUN", &run).spawn().unwrap();
    // A runner of the same run in another folder, of which this one is a copy.
    let folder = format!("/elsewhere/runs/{run}");
    let mut runner = Command::new("sh");
    let runner = runner.args(["-c", "echo ready; read line", "runner", &folder]);
    let mut runner = runner.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = [0; 6];
    std::io::Read::read_exact(runner.stdout.as_mut().unwrap(), &mut said).unwrap();
    assert!(matches!(end_leftover_processes(dir, now), Err(RunSettleError::Running { .. })));
    assert!(orphan.try_wait().unwrap().is_none(), "its runner lives");
    drop(runner.stdin.take());
    runner.wait().unwrap();
    let holder = LockHolder::this_process("runner", now());
    let lock = LockFile::acquire(&dir.join("lock"), &holder, LOCK_WAIT).unwrap();
    assert!(matches!(end_leftover_processes(dir, now), Err(RunSettleError::Running { .. })));
    drop(lock);
    end_leftover_processes(dir, now).unwrap();
    assert!(!orphan.wait().unwrap().success());
}

#[test]
fn only_the_runs_own_socket_is_taken_away() {
    let mut dead = DeadRunFixture::new();
    let sockets = &dead.folder.spec.sockets;
    std::fs::create_dir(sockets).unwrap();
    let run = dead.folder.spec.run.to_string();
    let (own, other) = (sockets.join(format!("{}.sock", &run[24..])), sockets.join("other.sock"));
    for path in [&own, &other] {
        drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    }
    for socket in [other.clone(), own.clone()] {
        dead.started.socket = socket;
        write_started(&dead.folder.dir, &dead.started).unwrap();
        drop(std::fs::remove_file(dead.folder.dir.join("result.json")));
        dead.settle();
    }
    assert!(other.exists() && !own.exists());
}

/// What a stranger's repository could hold, to have us write into the user's files.
#[test]
fn a_folder_that_came_with_a_clone_leads_nowhere() {
    let dead = DeadRunFixture::new();
    let secret = dead.folder.state.join("ssh");
    std::fs::create_dir(&secret).unwrap();
    let key = secret.join(dead.started.session.as_str());
    std::fs::write(&key, "a private key").unwrap();
    let home = &dead.folder.spec.home;
    std::fs::create_dir(home).unwrap();
    std::os::unix::fs::symlink(&secret, home.join("locks")).unwrap();
    let error = settle_run(&dead.folder.dir, home, now).unwrap_err();
    assert!(error.to_string().contains("locks"), "{error}");
    let error = settle_run(&dead.folder.dir, "/home/me/.heeler".into(), now).unwrap_err();
    assert!(matches!(error, RunSettleError::OtherHome { .. }), "{error}");
    assert!(error.to_string().contains(&format!("HEELER_HOME={home}")), "{error}");
    // Not by the folder, then by the file.
    std::fs::remove_file(home.join("locks")).unwrap();
    std::fs::create_dir(home.join("locks")).unwrap();
    std::fs::copy(&key, home.join("locks").join(dead.started.session.as_str())).unwrap();
    assert!(matches!(
        settle_run(&dead.folder.dir, home, now),
        Err(RunSettleError::Lock(LockError::Io { attempt: "sign", .. }))
    ));
    assert_eq!(std::fs::read_to_string(&key).unwrap(), "a private key");
}

#[test]
fn a_copy_of_a_run_that_lives_is_left_alone() {
    let dead = DeadRunFixture::new();
    let copy = DeadRunFixture::new();
    let spec = dead.folder.spec.clone();
    let dir = copy.folder.state.join("runs").join(spec.run.to_string());
    std::fs::create_dir(&dir).unwrap();
    std::fs::copy(dead.folder.dir.join("spec.json"), dir.join("spec.json")).unwrap();
    let holder = LockHolder::this_process("runner", now());
    let lock = LockFile::acquire(&dead.folder.dir.join("lock"), &holder, LOCK_WAIT).unwrap();
    let error = settle_run(&dir, &spec.home, now).unwrap_err();
    assert!(matches!(&error, RunSettleError::Running { dir, .. } if *dir == dead.folder.dir));
    drop(lock);
    assert_eq!(settle_run(&dir, &spec.home, now).unwrap().end, RunEnd::NeverStarted);
}
