//! Sessions that go on in a new one because their context had grown too large.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;

use heeler_model::run::RunEnd;
use heeler_model::{AgentSessionId, ExitReason};

use super::*;
use crate::fault::RunnerFaultPoint;
use crate::settle_run;

/// Sums up when it is asked to, else answers.
const AGENT: &str = r#"
told() { printf '{"type":"result","subtype":"success","is_error":false,"result":"%s","num_turns":1,"total_cost_usd":%s,"session_id":"%s"}\n' "$1" "$2" "$SESSION"; }
echo "$START $*" >> starts
if [ $START = fork ]; then await user; echo "$line" > asked; say 'All of it.'; told 'All of it.' 0.25
else await user; say 'I go on.'; told 'I go on.' 0.5; fi; await forever"#;

const SOURCE: &str = "5e550000-0000-4000-8000-000000000009";

/// A run that goes on from a session of four turns.
struct HandoverFixture {
    trial: RunFixture,
    id: AgentSessionId,
    source: Utf8PathBuf,
    own: Utf8PathBuf,
}

fn entry(n: u128) -> Json {
    let (role, content) = match n % 4 {
        1 | 3 => ("user", json!(format!("prompt {n}"))),
        _ => ("assistant", json!([{"type": "text", "text": format!("reply {n}")}])),
    };
    let uuid = |n: u128| uuid::Uuid::from_u128(n << 64);
    json!({"type": role, "uuid": uuid(n), "parentUuid": uuid(n - 1), "isSidechain": false,
        "timestamp": format!("2026-11-15T09:00:{n:02}.000Z"), "requestRef": "elsewhere",
        "sessionId": SOURCE, "version": "1.2.3",
        "message": {"role": role, "id": format!("m{n}"), "content": content,
        "usage": {"input_tokens": 100_000}}})
}

impl HandoverFixture {
    fn new(script: &str) -> HandoverFixture {
        let trial = stream_fixture(script);
        let id = trial.spec.session.start.id().clone();
        let source: AgentSessionId = SOURCE.parse().unwrap();
        let folder = trial.spec.home.join("scripted/projects");
        let path = |id: &AgentSessionId| {
            native_session::session_path(&folder, &trial.spec.working_directory, id)
        };
        let (from, own) = (path(&source), path(&id));
        std::fs::create_dir_all(from.parent().unwrap()).unwrap();
        let text: String = (1..=8).map(|n| format!("{}\n", entry(n))).collect();
        std::fs::write(&from, text).unwrap();
        let start = SessionStart::Continue { source, id: id.clone(), keep: 5 };
        HandoverFixture { trial: trial.start_session(start), id, source: from, own }
    }

    fn starts(&self) -> String {
        std::fs::read_to_string(self.trial.spec.working_directory.join("starts")).unwrap()
    }

    /// Says that nothing came of it, and that the source is as it was.
    #[track_caller]
    fn is_as_before(&self) {
        let expected: Vec<Json> = (1..=8).map(entry).collect();
        assert_eq!(RunFixture::rows(&self.source), expected);
    }
}

#[test]
fn a_session_goes_on_with_a_summary_and_its_last_messages() {
    let scene = HandoverFixture::new(AGENT);
    let result = scene.trial.run();
    assert_eq!(result.exit_reason, ExitReason::Success, "{:?}", result.error);
    scene.is_as_before();
    assert_eq!(scene.starts(), "fork --no-session-persistence --tools \nresume \n");
    let asked = std::fs::read_to_string(scene.trial.spec.working_directory.join("asked")).unwrap();
    assert!(asked.contains("Write that summary now"), "{asked}");

    // What the agent finds when it goes on.
    let own = RunFixture::rows(&scene.own);
    assert_eq!(scene.own.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(own.len(), 6);
    let summary = own[0]["message"]["content"].as_str().unwrap();
    assert!(summary.starts_with("[Summary] ") && summary.ends_with("\n\nAll of it."), "{summary}");
    assert_eq!((&own[0]["type"], &own[1]["type"]), (&json!("user"), &json!("assistant")));
    let mut parent = Json::Null;
    for row in &own {
        assert_eq!((&row["parentUuid"], &row["sessionId"]), (&parent, &json!(scene.id)));
        assert!(row["timestamp"].is_string() && row["message"].is_object(), "{row}");
        assert!(row.get("requestRef").is_none() && row["message"].get("usage").is_none(), "{row}");
        parent = row["uuid"].clone();
    }
    for (row, n) in own[2..].iter().zip(5..) {
        assert_eq!(
            (&row["uuid"], &row["message"]["content"]),
            (&entry(n)["uuid"], &entry(n)["message"]["content"])
        );
    }

    // What we have of it.
    let log = RunFixture::rows(&scene.trial.session_log());
    let from = json!({"sessionId": SOURCE, "messages": null});
    assert_eq!((&log[0]["subtype"], &log[0]["continuedFrom"]), (&json!("session"), &from));
    let carried: Vec<_> = log.iter().filter(|row| row["carriedOver"] == true).collect();
    let uuids = |rows: &[&Json]| rows.iter().map(|row| row["uuid"].clone()).collect::<Vec<_>>();
    assert_eq!(uuids(&carried), uuids(&own.iter().collect::<Vec<_>>()));
    assert_eq!(scene.trial.notes("summary"), ["All of it."]);
    assert_eq!(scene.trial.said(), ["I go on."], "the job is what was asked now");
    let prompts = scene.trial.notes("user_input");
    assert_eq!(prompts, ["do it"]);
    let session = result.session.unwrap();
    assert_eq!((&session.id, session.messages, session.resumable), (&scene.id, 8, true));
    assert!((1..1000).contains(&session.tokens), "{}", session.tokens);
    assert_eq!(result.cost.usd, Some(0.75), "the summary is paid for too");
}

#[test]
fn a_summary_that_fails_fails_the_run_and_nothing_is_lost() {
    let check = |script: &str, class: ErrorClass| {
        let scene = HandoverFixture::new(script);
        let result = scene.trial.run();
        assert_eq!(super::class(&result), Some(class), "{:?}", result.error);
        assert!(!result.session.unwrap().resumable);
        assert!(!scene.own.exists());
        scene.is_as_before();
        result.error.unwrap().message
    };
    let told = check("await user; result ''; await forever", ErrorClass::AgentFailed);
    assert!(told.contains("gave none"), "{told}");
    check("await user; fail 'API Error: 529 overloaded'; exit 1", ErrorClass::Overloaded);
    check("await user; exit 3", ErrorClass::AgentDied);
    // A session that is gone is not begun anew: its history would be.
    let gone = r#"fail "No conversation found with session ID: x"; exit 1"#;
    check(gone, ErrorClass::SessionExpired);
}

#[test]
fn a_session_of_which_the_agent_has_no_record_cannot_be_gone_on_from() {
    let scene = HandoverFixture::new("touch started");
    std::fs::remove_file(&scene.source).unwrap();
    let result = scene.trial.run();
    assert_eq!(class(&result), Some(ErrorClass::NotStarted));
    assert!(result.error.unwrap().message.contains("--fresh"));
    assert!(!scene.trial.spec.working_directory.join("started").exists());
}

#[test]
fn a_summary_that_takes_all_of_the_budget_ends_the_run() {
    let mut scene = HandoverFixture::new(AGENT);
    scene.trial.spec.limits.budget_usd = Some(0.25);
    let result = scene.trial.run();
    assert_eq!((class(&result), result.cost.usd), (Some(ErrorClass::Budget), Some(0.25)));
    assert!(!scene.own.exists());
}

#[test]
fn a_session_that_moved_on_is_not_gone_on_from_unless_it_is_taken_in() {
    let mut scene = HandoverFixture::new(AGENT);
    let mark = native_session::read_mark(&scene.source).unwrap();
    scene.trial.spec.session.own = mark;
    let more: String = (9..=10).map(|n| format!("{}\n", entry(n))).collect();
    std::fs::write(&scene.source, std::fs::read_to_string(&scene.source).unwrap() + &more).unwrap();
    assert_eq!(class(&scene.trial.run()), Some(ErrorClass::SessionMovedOn));
    scene.trial.next_run();
    scene.trial.spec.session.take_in = true;
    assert_eq!(scene.trial.run().exit_reason, ExitReason::Success);
    let own = RunFixture::rows(&scene.own);
    assert_eq!(own.last().unwrap()["uuid"], entry(10)["uuid"]);
    assert_eq!(scene.trial.notes("taken_in").len(), 1);
}

#[test]
fn who_cancels_while_it_is_summed_up_ends_the_run() {
    let scene = HandoverFixture::new("await user; touch asked; await interrupt; exit 0");
    let running = scene.trial.start();
    scene.trial.wait_file("asked");
    let refused = running.client().refused(ControlOperation::message("and this".to_owned()));
    assert!(refused.contains("is summarizing the session"), "{refused}");
    running.client().ask(cancel(false));
    let result = running.finish();
    assert_eq!(result.exit_reason, ExitReason::Cancelled);
    assert!(!scene.own.exists() && !result.session.unwrap().resumable);
}

#[test]
fn a_runner_that_dies_while_it_hands_over_leaves_the_old_session_to_go_on_from() {
    let points = [
        RunnerFaultPoint::SummaryWritten,
        RunnerFaultPoint::MessagesCarriedOver,
        RunnerFaultPoint::NativeSessionWritten,
    ];
    for point in points {
        let mut scene = HandoverFixture::new(AGENT);
        let died = crashes::runner(&scene.trial, AGENT, point).wait().unwrap();
        assert_eq!(died.signal(), Some(9), "{point:?}");
        let whole = scene.own.exists();
        assert_eq!(whole, point == RunnerFaultPoint::NativeSessionWritten, "{point:?}");
        if whole {
            assert_eq!(RunFixture::rows(&scene.own).len(), 6, "{point:?}");
        }
        let result = settle_run(&scene.trial.dir(), &scene.trial.spec.home, now).unwrap();
        assert_eq!(result.end, RunEnd::Interrupted, "{point:?}");
        assert!(!result.session.unwrap().resumable, "{point:?}");
        assert_eq!(result.cost.usd, None, "{point:?}");
        assert_eq!(scene.trial.said(), [""; 0], "what was carried over is no part of the job");
        scene.is_as_before();
        assert!(!scene.own.exists(), "nobody goes on with it: {point:?}");

        // The next run plans anew, from the source.
        scene.trial.next_run();
        let id: AgentSessionId = "5e550000-0000-4000-8000-00000000000a".parse().unwrap();
        let source = SOURCE.parse().unwrap();
        scene.trial.spec.session.start = SessionStart::Continue { source, id, keep: 5 };
        let result = scene.trial.run();
        assert_eq!(result.exit_reason, ExitReason::Success, "{point:?} {:?}", result.error);
    }
}

#[test]
fn what_a_person_said_in_a_session_that_we_left_unused_stays() {
    let scene = HandoverFixture::new(AGENT);
    crashes::runner(&scene.trial, AGENT, RunnerFaultPoint::NativeSessionWritten).wait().unwrap();
    let mut rows = std::fs::read_to_string(&scene.own).unwrap();
    let said = json!({"type": "user", "uuid": "5e550000-0000-4000-8000-0000000000ff",
        "parentUuid": null, "isSidechain": false, "message": {"role": "user", "content": "mine"}});
    rows += &format!("{said}\n");
    std::fs::write(&scene.own, &rows).unwrap();
    settle_run(&scene.trial.dir(), &scene.trial.spec.home, now).unwrap();
    assert_eq!(std::fs::read_to_string(&scene.own).unwrap(), rows);
}

#[test]
fn a_runner_that_dies_after_the_new_session_was_used_leaves_it_resumable() {
    let scene = HandoverFixture::new(AGENT);
    let died = crashes::runner(&scene.trial, AGENT, RunnerFaultPoint::LogsSynced).wait().unwrap();
    assert_eq!(died.signal(), Some(9));
    let result = settle_run(&scene.trial.dir(), &scene.trial.spec.home, now).unwrap();
    // Rows are no proof of the cost: the reservation counts.
    assert_eq!((result.end, result.cost.usd), (RunEnd::Interrupted, None));
    let session = result.session.unwrap();
    assert_eq!((session.resumable, session.messages), (true, 8));
    assert_eq!(scene.trial.said(), ["I go on."]);
}
