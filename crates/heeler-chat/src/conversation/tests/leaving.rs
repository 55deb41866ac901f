//! Tests of workers and of the exit.

use super::*;
use crate::ChatWorkerInfo;

pub(super) fn worker(state: ChatJobState) -> ChatFleetEvent {
    worker_at(&[state])
}

/// Creates a worker with one job per state.
fn worker_at(states: &[ChatJobState]) -> ChatFleetEvent {
    let facts = |(number, state): (usize, &ChatJobState)| ChatJobInfo {
        job: job(50 + number),
        agent: "coder".to_owned(),
        state: *state,
        reason: None,
        session: None,
        cost_usd: None,
        context_tokens: None,
        context_window: None,
        model: None,
    };
    let (name, task) = ("coder-1".to_owned(), "Fix it.".to_owned());
    let jobs = states.iter().enumerate().map(facts).collect();
    ChatFleetEvent::Workers(vec![ChatWorkerInfo { name, task, jobs }])
}

#[test]
fn a_worker_s_jobs_stand_one_after_the_other_in_its_transcript_also_after_a_crash() {
    let mut rig = ConversationFixture::new();
    rig.say("go");
    let now = rig.now;
    let follows = |rig: &ConversationFixture| {
        let calls = rig.stage.calls().into_iter();
        calls.filter_map(|it| it.strip_prefix("follow ").map(str::to_owned)).collect::<Vec<_>>()
    };
    follows(&rig);
    let (done, running) = (ChatJobState::Done, ChatJobState::Running);
    rig.conversation().handle_fleet_event(worker_at(&[done, done, running]), now);
    assert_eq!(follows(&rig), [format!("{} 0", job(50))]);
    rig.said(50, 3, "One.");
    rig.is(50, done);
    assert_eq!(follows(&rig), [format!("{} 0", job(51))], "when all of the first is told");
    rig.said(51, 3, "Two.");
    rig.crash();
    follows(&rig);
    rig.conversation().handle_fleet_event(worker_at(&[done, done, running]), now);
    assert_eq!(follows(&rig), [format!("{} 4", job(51))], "the first is there whole");
    rig.is(51, done);
    assert_eq!(follows(&rig), [format!("{} 0", job(52))]);
    rig.conversation().handle_fleet_event(worker_at(&[done, done, running]), now);
    assert_eq!(follows(&rig), [""; 0], "it is followed already");
}

#[test]
fn a_worker_has_a_transcript_of_its_own_that_survives_a_crash() {
    let mut rig = ConversationFixture::new();
    rig.say("go");
    let now = rig.now;
    rig.conversation().handle_fleet_event(worker(ChatJobState::Running), now);
    rig.said(50, 3, "Fixing.");
    assert_eq!(rig.shown(), ["User go", "coder-1: Assistant Fixing."]);
    rig.stage.calls();
    rig.crash();
    rig.conversation().handle_fleet_event(worker(ChatJobState::Running), now);
    assert!(rig.stage.calls().contains(&"follow job-2026-01-02-aaaa50 4".to_owned()));
    rig.shown();
    rig.say("/view coder-1");
    assert_eq!(rig.shown()[1..], ["System Worker spawned | Assistant Fixing."]);
    rig.say("faster");
    assert_eq!(rig.stage.calls(), ["say job-2026-01-02-aaaa50 faster"]);
}

#[test]
fn whoever_leaves_is_asked_about_workers_and_told_how_to_come_back() {
    let mut rig = ConversationFixture::new();
    rig.say("go");
    let now = rig.now;
    rig.conversation().handle_fleet_event(worker(ChatJobState::Running), now);
    rig.is(1, ChatJobState::Done);
    rig.shown();
    rig.say("/exit");
    rig.say("stop");
    assert!(rig.stage.calls().contains(&"cancel job-2026-01-02-aaaa50 false".to_owned()));
    rig.conversation().handle_fleet_event(worker(ChatJobState::Failed), now);
    rig.pass(1);
    let id = rig.conversation().id().to_owned();
    let shown = rig.shown();
    assert_eq!(
        shown[shown.len() - 3..],
        [
            format!("Session saved: {id}"),
            format!("Resume: heeler --resume {id}"),
            "Exited".to_owned(),
        ]
    );
    assert!(rig.conversation().has_ended());
}

#[test]
fn who_leaves_workers_to_the_daemon_does_not_wait_for_them_whatever_is_heard() {
    let mut rig = ConversationFixture::new();
    rig.say("go");
    let now = rig.now;
    rig.is(1, ChatJobState::Running);
    rig.conversation().handle_fleet_event(worker(ChatJobState::Running), now);
    rig.leave();
    rig.shown();
    rig.say("leave");
    assert_eq!(rig.shown(), ["Workers that keep running: coder-1"]);
    rig.conversation().handle_fleet_event(worker(ChatJobState::Running), now);
    rig.is(1, ChatJobState::Failed);
    assert!(rig.conversation().has_ended(), "the turn was all that it waited for");
}

#[test]
fn a_worker_that_is_set_to_work_while_the_person_leaves_is_stopped_too() {
    let mut rig = ConversationFixture::new();
    rig.conversation().options.worker_exit_policy = WorkerExitPolicy::Stop;
    rig.say("go");
    let now = rig.now;
    rig.is(1, ChatJobState::Running);
    rig.leave();
    rig.stage.calls();
    rig.conversation().handle_fleet_event(worker(ChatJobState::Waiting), now);
    rig.conversation().handle_fleet_event(worker(ChatJobState::Running), now);
    assert!(rig.stage.calls().contains(&format!("cancel {} false", job(50))));
    rig.is(1, ChatJobState::Failed);
    assert!(!rig.conversation().has_ended(), "it is waited for");
    rig.is(50, ChatJobState::Failed);
    assert!(rig.conversation().has_ended());
}

#[test]
fn what_was_learned_is_written_before_the_end_and_a_second_signal_does_not_wait() {
    let mut rig = ConversationFixture::new();
    let id = rig.conversation().id().to_owned();
    drop(rig.conversation.take());
    let session_file =
        rig.directory().open(&id, rig.now, crate::OldFormatPolicy::Migrate).unwrap().session_file;
    rig.begin(session_file, |options| options.insights = true);
    rig.say("use tabs");
    rig.said(1, 1, "Tabs it is.");
    rig.is(1, ChatJobState::Done);
    rig.shown();
    rig.leave();
    rig.said(2, 1, "- uses tabs\n- hates spaces");
    rig.is(2, ChatJobState::Done);
    let shown = rig.shown();
    assert_eq!(
        shown[..3],
        [
            "Extracting learnings from 2 message(s)…",
            "Found 2 steering insight(s)",
            "Insight synthesis complete",
        ]
    );
    assert!(rig.conversation().has_ended());

    let mut rig = ConversationFixture::new();
    rig.say("slow");
    rig.leave();
    assert!(!rig.conversation().has_ended());
    rig.leave();
    assert!(rig.conversation().has_ended());

    let mut rig = ConversationFixture::new();
    rig.conversation().options.insights = true;
    rig.say("hi");
    rig.is(1, ChatJobState::Done);
    rig.leave();
    rig.stage.calls();
    rig.leave();
    assert_eq!(rig.stage.calls(), [format!("cancel {} true", job(2))], "nobody reads it");
    assert!(rig.conversation().has_ended());
}

#[test]
fn who_has_gone_is_asked_nothing_and_hurries_nobody() {
    let mut rig = ConversationFixture::new();
    rig.say("go");
    let now = rig.now;
    rig.is(1, ChatJobState::Running);
    rig.conversation().handle_fleet_event(worker(ChatJobState::Running), now);
    // The person closes the terminal during the question about the worker.
    rig.leave();
    for _ in 0..3 {
        rig.conversation().handle_action(UserAction::HangUp, now);
    }
    assert!(!rig.conversation().has_ended(), "the turn is waited for");
    let cancels: Vec<String> =
        rig.stage.calls().into_iter().filter(|it| it.starts_with("cancel")).collect();
    assert_eq!(cancels, [format!("cancel {} false", job(1))], "the daemon has the worker");
    rig.is(1, ChatJobState::Failed);
    assert!(rig.conversation().has_ended());
}

#[test]
fn a_turn_that_does_not_end_is_not_waited_for_longer_than_5_seconds() {
    let mut rig = ConversationFixture::new();
    rig.say("hi");
    rig.is(1, ChatJobState::Running);
    rig.leave();
    rig.pass(4);
    assert!(!rig.conversation().has_ended());
    rig.pass(1);
    assert!(rig.conversation().has_ended());
}

#[test]
fn an_agent_that_says_nothing_at_the_end_is_not_waited_for_longer_than_20_seconds() {
    let mut rig = ConversationFixture::new();
    let id = rig.conversation().id().to_owned();
    drop(rig.conversation.take());
    let session_file =
        rig.directory().open(&id, rig.now, crate::OldFormatPolicy::Migrate).unwrap().session_file;
    rig.begin(session_file, |options| options.insights = true);
    rig.say("hi");
    rig.is(1, ChatJobState::Done);
    rig.leave();
    rig.pass(19);
    assert!(!rig.conversation().has_ended());
    rig.pass(1);
    assert!(rig.conversation().has_ended());
}

#[test]
fn a_turn_that_was_taken_back_teaches_nothing() {
    let mut rig = ConversationFixture::new();
    rig.conversation().options.insights = true;
    for turn in 1..=2 {
        rig.say(&format!("say {turn}"));
        rig.said(turn, 1, &format!("said {turn}"));
        rig.is(turn, ChatJobState::Done);
    }
    rig.say("/undo");
    rig.leave();
    let behind_1 = TurnSessionChoice::Fork(rig.stage.session(1), Some(Uuid::from_u128(101)));
    assert_eq!(rig.stage.last_session(), behind_1);
}

#[test]
fn what_waits_to_be_said_is_told_to_who_leaves() {
    let mut rig = ConversationFixture::new();
    rig.say("one");
    rig.say("two");
    rig.say("three");
    rig.shown();
    rig.leave();
    rig.is(1, ChatJobState::Failed);
    assert!(rig.conversation().has_ended());
    let shown = rig.shown();
    assert_eq!(shown[1..3], ["not sent: two", "not sent: three"], "{shown:?}");
}

#[test]
fn a_turn_in_the_background_is_neither_cancelled_nor_waited_for() {
    let mut rig = ConversationFixture::new();
    rig.say("/background");
    assert!(!rig.conversation().has_ended());
    let shown = rig.shown();
    assert!(shown[0].contains("nothing can go on; /exit leaves"), "{shown:?}");
    rig.say("go");
    rig.is(1, ChatJobState::Running);
    let now = rig.now;
    rig.conversation().handle_fleet_event(worker(ChatJobState::Running), now);
    rig.shown();
    rig.stage.calls();
    rig.say("/bg");
    assert!(rig.conversation().has_ended());
    assert_eq!(rig.stage.calls(), [""; 0], "neither the turn nor the worker is cancelled");
    let (shown, job) = (rig.shown(), job(1));
    assert_eq!(
        shown[..3],
        [
            "Workers that keep running: coder-1".to_owned(),
            format!("The agent goes on in the background: {job}"),
            format!("Watch: heeler logs -f {job}"),
        ]
    );
    rig.crash();
    rig.said(1, 1, "Done.");
    assert!(rig.shown().contains(&"Assistant Done.".to_owned()), "the resumed session follows it");
}
