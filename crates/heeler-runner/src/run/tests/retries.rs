//! The second chance of a session that is gone and of a login that has expired.

use heeler_model::ExitReason;
use heeler_transcript::LockFile;

use super::*;

const GONE: &str = r#"if [ "$START" != fresh ]; then fail "No conversation found with session ID: $SESSION"; exit 1; fi; "#;

fn resume(script: &str) -> RunFixture {
    let trial = stream_fixture(script);
    let id = trial.spec.session.start.id().clone();
    trial.start_session(SessionStart::Resume { id })
}

#[test]
fn a_session_that_the_agent_does_not_know_begins_anew_under_another_name() {
    let trial = resume(&format!("{GONE}await user; say hello; result done; await forever"));
    let result = trial.run();
    assert_eq!(result.exit_reason, ExitReason::Success, "{:?}", result.error);
    let session = result.session.unwrap();
    assert_ne!(&session.id, trial.spec.session.start.id());
    assert!(session.resumable);
    let started = trial.started();
    assert_eq!((&started.session, &started.session_log), (&session.id, &session.log));
    assert_eq!((started.job_rows_before, started.session_rows_before), (0, 0));
    assert!(trial.spec.home.join("locks").join(session.id.as_str()).exists());
    let notes = trial.notes("session");
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[1].contains("so a new one is started"), "{notes:?}");
    let rows = RunFixture::rows(&session.log);
    assert!(rows.iter().all(|row| row["sessionId"] == session.id.as_str()), "{rows:?}");
    assert!(rows.iter().any(|row| row["type"] == "user"));
}

#[test]
fn a_session_that_cannot_begin_anew_leaves_its_failure_where_the_run_says() {
    // The second start cannot be put on record.
    let mut trial = resume(&format!(
        "rm -f $RUN/started.json; mkdir -p $RUN/started.json/in-the-way; {GONE} say hello; result done"
    ));
    trial.brief.env.insert("RUN".to_owned(), trial.dir().to_string());
    let result = trial.run();
    assert_eq!(class(&result), Some(ErrorClass::SessionExpired));
    let session = result.session.unwrap();
    assert_eq!((&session.id, &session.log), (trial.spec.session.start.id(), &trial.session_log()));
    let rows = RunFixture::rows(&session.log);
    assert!(rows.last().unwrap()["failure"].is_object(), "{rows:?}");
}

#[test]
fn the_fresh_session_is_locked_while_it_runs() {
    let trial = resume(&format!("{GONE}await user; say hello; await forever"));
    let running = trial.start();
    wait_for("the second start", || {
        status(&mut running.client()).session != *trial.spec.session.start.id()
    });
    let session = status(&mut running.client()).session;
    let lock = trial.spec.home.join("locks").join(session.as_str());
    assert!(LockFile::probe(&lock).unwrap().is_some());
    running.client().ask(cancel(true));
    running.finish();
    assert!(LockFile::probe(&lock).unwrap().is_none());
}

#[test]
fn a_fresh_session_that_the_agent_does_not_know_is_an_error() {
    let trial = stream_fixture(r#"fail "No conversation found with session ID: x"; exit 1"#);
    let result = trial.run();
    assert_eq!(class(&result), Some(ErrorClass::SessionExpired));
    assert_eq!(trial.notes("session").len(), 1);
}

#[test]
fn an_expired_login_is_tried_once_more_in_the_same_session() {
    let trial = stream_fixture(
        r#"echo "$START" >> starts; if [ "$START" = fresh ]; then fail "OAuth token has expired. Please obtain a new token"; exit 1; fi; await user; say hello; result done; await forever"#,
    );
    let result = trial.run();
    assert_eq!(result.exit_reason, ExitReason::Success, "{:?}", result.error);
    assert_eq!(&result.session.unwrap().id, trial.spec.session.start.id());
    let starts = std::fs::read_to_string(trial.spec.working_directory.join("starts")).unwrap();
    assert_eq!(starts, "fresh\nresume\n");
}

/// Tells the cost of the whole session, with the tokens of the turn: `told <error> <usd> <tokens>`.
const TOLD: &str = r#"
told() { printf '{"type":"result","subtype":"success","is_error":%s,"result":"OAuth token has expired","total_cost_usd":%s,"num_turns":1,"usage":{"output_tokens":%s},"session_id":"%s"}\n' "$1" "$2" "$3" "$SESSION"; }
"#;

#[test]
fn a_second_try_in_the_same_session_is_paid_for_once_and_nothing_of_the_first_is_dropped() {
    let trial = stream_fixture(&format!(
        "{TOLD} if [ $START = fresh ]; then told true 0.5 10; else told false 0.75 20; fi"
    ));
    let result = trial.run();
    assert_eq!(result.exit_reason, ExitReason::Success, "{:?}", result.error);
    assert_eq!(result.cost.usd, Some(0.75));
    assert_eq!(result.cost.usage.output_tokens, Some(30));
    assert_eq!(result.cost.usage.num_turns, Some(2));
}

#[test]
fn what_the_first_try_cost_is_not_made_up() {
    let trial = stream_fixture(&format!(
        r#"{TOLD} if [ $START = fresh ]; then fail "OAuth token has expired"; else told false 0.75 20; fi"#
    ));
    let result = trial.run();
    assert_eq!(result.exit_reason, ExitReason::Success, "{:?}", result.error);
    assert_eq!(result.cost.usd, None);
}

#[test]
fn a_session_that_begins_anew_owes_nothing_of_the_one_that_is_gone() {
    let trial = resume(&format!(
        "{TOLD} if [ $START != fresh ]; then printf '{{\"type\":\"result\",\"is_error\":true,\"errors\":[\"No conversation found with session ID: x\"],\"total_cost_usd\":0.5}}\n'; else told false 0.75 20; fi"
    ));
    let result = trial.run();
    assert_eq!(result.exit_reason, ExitReason::Success, "{:?}", result.error);
    assert_eq!(result.cost.usd, Some(1.25));
}

#[test]
fn a_login_that_stays_expired_is_reported_after_one_more_try() {
    let trial = stream_fixture(
        r#"echo "$START" >> starts; fail "OAuth token has expired. Please obtain a new token"; exit 1"#,
    );
    let result = trial.run();
    assert_eq!(class(&result), Some(ErrorClass::TokenExpired));
    let starts = std::fs::read_to_string(trial.spec.working_directory.join("starts")).unwrap();
    assert_eq!(starts, "fresh\nresume\n");
    let errors = trial.job_rows().into_iter().filter(|row| row["type"] == "error").count();
    assert_eq!(errors, 1);
}

#[test]
fn a_cancelled_run_is_not_tried_again() {
    let trial = resume(&format!("echo x >> starts; await interrupt; {GONE}"));
    let running = trial.start();
    wait_for("the agent", || trial.spec.working_directory.join("starts").exists());
    running.client().ask(cancel(false));
    assert_eq!(running.finish().exit_reason, ExitReason::Cancelled);
    let starts = std::fs::read_to_string(trial.spec.working_directory.join("starts")).unwrap();
    assert_eq!(starts, "x\n");
}
