//! Sessions with which somebody else went on, and forks that the agent has begun.

use std::os::unix::process::ExitStatusExt as _;

use heeler_model::run::RunEnd;
use heeler_model::{AgentSessionId, ExitReason, NativeSessionPosition};
use uuid::Uuid;

use super::*;
use crate::fault::RunnerFaultPoint;
use crate::settle_run;

const ANSWERS: &str = "await user; say hello; result done; await forever";

fn uuid(n: u128) -> Uuid {
    Uuid::from_u128(n << 64)
}

fn entry(n: u128, after: u128) -> Json {
    let (role, content) = match n % 2 {
        1 => ("user", json!(format!("prompt {n}"))),
        _ => ("assistant", json!([{"type": "text", "text": format!("reply {n}")}])),
    };
    let parent = if after == 0 { Json::Null } else { json!(uuid(after)) };
    json!({"type": role, "uuid": uuid(n), "parentUuid": parent, "isSidechain": false,
        "timestamp": format!("2026-11-15T09:00:{n:02}.000Z"),
        "message": {"role": role, "id": format!("m{n}"), "content": content}})
}

/// A run that goes on with a session of which the agent has its own record.
pub(super) struct ExternalMessagesFixture {
    pub(super) trial: RunFixture,
    id: AgentSessionId,
    own: Utf8PathBuf,
}

impl ExternalMessagesFixture {
    fn new(rows: &[Json]) -> ExternalMessagesFixture {
        ExternalMessagesFixture::of(stream_fixture(ANSWERS), rows)
    }

    pub(super) fn of(trial: RunFixture, rows: &[Json]) -> ExternalMessagesFixture {
        let id = trial.spec.session.start.id().clone();
        let trial = trial.start_session(SessionStart::Resume { id: id.clone() });
        let folder = trial.spec.home.join("scripted/projects");
        let own = native_session::session_path(&folder, &trial.spec.working_directory, &id);
        let scene = ExternalMessagesFixture { trial, id, own };
        scene.write(rows);
        scene
    }

    pub(super) fn write(&self, rows: &[Json]) {
        std::fs::create_dir_all(self.own.parent().unwrap()).unwrap();
        let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
        std::fs::write(&self.own, text).unwrap();
    }

    /// Says that we left the session as it is now.
    pub(super) fn leave(&mut self) -> NativeSessionPosition {
        let mark = native_session::read_mark(&self.own).unwrap().unwrap();
        self.trial.spec.session.own = Some(mark);
        mark
    }

    fn uuids(&self) -> Vec<String> {
        let rows = RunFixture::rows(&self.trial.session_log());
        rows.iter().map(|row| row["uuid"].as_str().unwrap().to_owned()).collect()
    }
}

pub(super) fn talk(n: u128) -> Vec<Json> {
    (1..=n).map(|n| entry(n, n - 1)).collect()
}

#[test]
fn every_end_of_a_run_says_where_the_agents_own_record_ends() {
    let scene = ExternalMessagesFixture::new(&talk(2));
    let end = scene.trial.run().session.unwrap();
    let mark = native_session::read_mark(&scene.own).unwrap();
    assert_eq!((end.own, mark.map(|mark| mark.last)), (mark, Some(uuid(2))));
    let started = scene.trial.started();
    assert_eq!(started.own_sessions, Some(scene.trial.spec.home.join("scripted/projects")));

    let killed = ExternalMessagesFixture::new(&talk(4));
    let mut died = crashes::runner(&killed.trial, ANSWERS, RunnerFaultPoint::Spawned);
    assert_eq!(died.wait().unwrap().signal(), Some(9));
    let end =
        settle_run(&killed.trial.dir(), &killed.trial.spec.home, now).unwrap().session.unwrap();
    assert_eq!(end.own, native_session::read_mark(&killed.own).unwrap());
}

#[test]
fn a_session_that_nobody_else_went_on_with_goes_on() {
    let mut scene = ExternalMessagesFixture::new(&talk(2));
    scene.leave();
    let mut rows = talk(2);
    rows.push(json!({"type": "cost-state", "sessionId": "x"}));
    scene.write(&rows);
    assert_eq!(scene.trial.run().exit_reason, ExitReason::Success);
    assert_eq!(scene.trial.notes("taken_in"), [""; 0]);

    // What we do not know, we cannot compare.
    let unknown = ExternalMessagesFixture::new(&talk(2));
    assert_eq!(unknown.trial.run().exit_reason, ExitReason::Success);
    let mut gone = ExternalMessagesFixture::new(&talk(2));
    gone.leave();
    std::fs::remove_file(&gone.own).unwrap();
    assert_eq!(gone.trial.run().exit_reason, ExitReason::Success);
}

#[test]
fn a_session_with_which_somebody_else_went_on_is_refused() {
    let mut scene = ExternalMessagesFixture::of(
        stream_fixture("touch started; await user; result done"),
        &talk(2),
    );
    scene.leave();
    scene.write(&talk(4));
    let before = std::fs::read(&scene.own).unwrap();
    let result = scene.trial.run();
    assert_eq!((result.end, class(&result)), (RunEnd::Finished, Some(ErrorClass::SessionMovedOn)));
    let error = result.error.unwrap();
    let expected = format!(
        "the session was continued outside Heeler: 2 messages were added to the native session \
         ({}), the last at 2026-11-15T09:00:04.000Z",
        scene.own
    );
    assert_eq!(error.message, expected);
    assert!(error.cure.contains("--take-in") && !error.recoverable, "{error:?}");
    assert_eq!((result.cost.usd, result.session), (Some(0.0), None));
    assert!(!scene.trial.spec.working_directory.join("started").exists());
    assert_eq!(std::fs::read(&scene.own).unwrap(), before);
    assert!(!scene.trial.session_log().exists() && !scene.trial.spec.job_log.exists());
}

#[test]
fn a_session_whose_past_was_rewritten_is_refused() {
    // Same length, shorter, and longer by something that is no message.
    let aside = json!({"type": "cost-state", "sessionId": "x"});
    for (changed, more) in [("prompt 9", None), ("no", None), ("prompt 9", Some(&aside))] {
        let mut scene = ExternalMessagesFixture::new(&talk(2));
        std::fs::create_dir_all(scene.trial.session_log().parent().unwrap()).unwrap();
        let log: String = talk(2).iter().map(|row| format!("{row}\n")).collect();
        std::fs::write(scene.trial.session_log(), log).unwrap();
        scene.leave();
        let mut rows = talk(2);
        rows[0]["message"]["content"] = json!(changed);
        rows.extend(more.cloned());
        scene.write(&rows);
        let result = scene.trial.run();
        assert_eq!(class(&result), Some(ErrorClass::SessionMovedOn), "{changed}");
        let message = result.error.unwrap().message;
        assert!(message.contains("was changed outside Heeler since the last run: "), "{message}");
        let expected = match changed {
            "no" => "it was shortened; it had".to_owned(),
            _ => format!("the message in line 1 ({}) is not the recorded one", uuid(1)),
        };
        assert!(message.contains(&expected), "{message}");
        // A person who has looked at it may go on.
        scene.trial.next_run();
        scene.trial.spec.session.take_in = true;
        assert_eq!(scene.trial.run().exit_reason, ExitReason::Success);
    }
}

#[test]
fn what_somebody_else_said_is_taken_in_when_that_is_asked_for() {
    let mut scene = ExternalMessagesFixture::new(&talk(2));
    scene.trial.run();
    let rows = scene.uuids().len();
    scene.leave();
    scene.write(&talk(4));
    scene.trial.next_run();
    scene.trial.spec.session.take_in = true;
    let result = scene.trial.run();
    assert_eq!(result.exit_reason, ExitReason::Success, "{:?}", result.error);
    let session = RunFixture::rows(&scene.trial.session_log());
    let mut taken = session[rows..rows + 2].to_vec();
    for row in &mut taken {
        let Json::Object(row) = row else { panic!("{row}") };
        assert_eq!(row.shift_remove("outside"), Some(json!(true)));
        assert!(row.shift_remove("runId").is_some());
    }
    assert_eq!(taken, talk(4)[2..]);
    // What they said is no part of this job, and counts in the session.
    let said: Vec<_> = scene.trial.said();
    assert_eq!(said, ["hello", "hello"], "of both runs");
    let notes = scene.trial.notes("taken_in");
    assert!(notes[0].ends_with("the messages are imported, as requested"), "{notes:?}");
    let next = session.iter().rposition(|row| row["type"] == "user").unwrap();
    assert_eq!(session[next]["parentUuid"], json!(uuid(4)), "it follows what they said");
    assert_eq!(result.session.unwrap().messages, 6);
}

#[test]
fn two_writers_at_once_are_told_apart_from_one_after_the_other() {
    let mut scene = ExternalMessagesFixture::new(&talk(4));
    scene.leave();
    let mut rows = talk(4);
    rows.extend([entry(5, 2), entry(6, 5)]);
    scene.write(&rows);
    let result = scene.trial.run();
    assert_eq!(class(&result), Some(ErrorClass::SessionMovedOn));
    let message = result.error.unwrap().message;
    assert!(
        message.starts_with("the session was written outside Heeler during a run"),
        "{message}"
    );
    assert!(message.ends_with("does not remember the last 2 of this session"), "{message}");
}

#[test]
fn a_runner_that_dies_while_it_takes_in_does_not_take_in_twice() {
    let mut scene = ExternalMessagesFixture::new(&talk(2));
    scene.leave();
    scene.write(&talk(6));
    scene.trial.spec.session.take_in = true;
    // After the first row, and after all of them.
    for (point, taken) in
        [(RunnerFaultPoint::SessionRow, 1), (RunnerFaultPoint::ExternalMessagesAdded, 4)]
    {
        let died = crashes::runner(&scene.trial, ANSWERS, point).wait().unwrap();
        assert_eq!(died.signal(), Some(9), "{point:?}");
        assert_eq!(scene.uuids().len(), taken, "{point:?}");
        let result = settle_run(&scene.trial.dir(), &scene.trial.spec.home, now).unwrap();
        assert_eq!((result.end, result.session), (RunEnd::NeverStarted, None), "{point:?}");
        scene.trial.next_run();
    }
    assert_eq!(scene.trial.run().exit_reason, ExitReason::Success);
    let expected: Vec<String> = (3..=6).map(|n| uuid(n).to_string()).collect();
    assert_eq!(scene.uuids()[..4], expected);
    let mut once = scene.uuids();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), scene.uuids().len());
}

/// A fork of a session that nobody has a log of.
fn fork(at: Option<Uuid>, rows: &[Json]) -> ExternalMessagesFixture {
    let script = format!("echo $START > start; {ANSWERS}");
    let mut scene = ExternalMessagesFixture::of(stream_fixture(&script), rows);
    let source = "5e550000-0000-4000-8000-000000000009".parse().unwrap();
    scene.trial.spec.session.start = SessionStart::Fork { source, id: scene.id.clone(), at };
    scene
}

fn started_as(trial: &RunFixture) -> String {
    std::fs::read_to_string(trial.spec.working_directory.join("start")).unwrap()
}

#[test]
fn a_fork_that_the_agent_has_made_already_is_gone_on_with() {
    let scene = fork(Some(uuid(2)), &talk(3));
    let result = scene.trial.run();
    assert_eq!(result.exit_reason, ExitReason::Success, "{:?}", result.error);
    assert_eq!(started_as(&scene.trial), "resume\n");
    assert!(scene.trial.notes("session")[0].contains("had begun the fork"));
    assert!(result.session.unwrap().resumable);
}

#[test]
fn a_fork_that_the_agent_has_not_made_is_made() {
    let scene = fork(Some(uuid(2)), &[]);
    std::fs::remove_file(&scene.own).unwrap();
    assert_eq!(scene.trial.run().exit_reason, ExitReason::Success);
    assert_eq!(started_as(&scene.trial), "fork\n");
}

#[test]
fn a_half_made_fork_is_moved_away_and_made_again() {
    let scene = fork(Some(uuid(4)), &talk(3));
    assert_eq!(scene.trial.run().exit_reason, ExitReason::Success);
    assert_eq!(started_as(&scene.trial), "fork\n");
    assert!(!scene.own.exists());
    let aside = format!("{}.cut-off", scene.own);
    assert_eq!(RunFixture::rows(Utf8Path::new(&aside)), talk(3));
}

#[test]
fn a_fork_of_all_there_was_is_whole_when_it_has_what_its_first_run_recorded() {
    for (held, start) in [(2, "resume\n"), (1, "fork\n")] {
        let scene = fork(None, &talk(held));
        let from = json!({"sessionId": "x", "messageUuid": uuid(2)});
        let row = json!({"type": "system", "subtype": "session", "forkedFrom": from});
        let log = scene.trial.session_log();
        std::fs::create_dir_all(log.parent().unwrap()).unwrap();
        std::fs::write(&log, format!("{row}\n{}\n", entry(3, 2))).unwrap();
        assert_eq!(scene.trial.run().exit_reason, ExitReason::Success);
        assert_eq!(started_as(&scene.trial), start);
    }
}
