//! Tests of turns that are taken back.

use super::*;

#[test]
fn a_turn_that_was_taken_back_stays_so_after_a_crash() {
    let mut rig = ConversationFixture::new();
    rig.say("one");
    rig.said(1, 1, "done");
    rig.is(1, ChatJobState::Done);
    rig.say("/undo");
    rig.stage.with(|played| played.refuses = Some("the budget is spent".to_owned()));
    rig.say("not sent");
    rig.stage.with(|played| played.refuses = None);
    rig.crash();
    rig.is(1, ChatJobState::Done);
    rig.say("two");
    let sessions = rig.stage.with(|played| played.sessions.clone());
    assert_eq!(sessions, [TurnSessionChoice::New, TurnSessionChoice::New]);
}

#[test]
fn undo_goes_on_from_before_the_last_turn() {
    let mut rig = ConversationFixture::new();
    for turn in 1..=2 {
        rig.say(&format!("say {turn}"));
        rig.said(turn, 1, &format!("said {turn}"));
        rig.is(turn, ChatJobState::Done);
    }
    rig.shown();
    rig.say("/undo");
    rig.say("/undo");
    let why = "was taken back: the next one continues from before it. Files are unchanged.";
    let text = ["say 2", "say 1"].map(|turn| format!("System The turn `{turn}` {why}"));
    assert_eq!(rig.shown(), text);
    assert!(rig.conversation().record.session_file.state().session.is_none());
    rig.say("/undo");
    assert_eq!(rig.shown().last().unwrap(), "there is nothing to take back");
    rig.say("again");
    assert_eq!(rig.stage.last_session(), TurnSessionChoice::New);
}

#[test]
fn a_transcript_that_cannot_be_read_takes_nothing_back() {
    let mut rig = ConversationFixture::new();
    rig.say("one");
    rig.said(1, 1, "done");
    rig.is(1, ChatJobState::Done);
    rig.shown();
    let session_file = &rig.conversation().record.session_file;
    let (transcript, before) =
        (session_file.transcript_path().unwrap(), session_file.state().session.clone());
    let kept = transcript.with_extension("kept");
    std::fs::rename(&transcript, &kept).unwrap();
    // Reading a folder fails, for root too.
    std::fs::create_dir(&transcript).unwrap();
    rig.say("/undo");
    std::fs::remove_dir(&transcript).unwrap();
    std::fs::rename(&kept, &transcript).unwrap();
    assert!(!rig.shown().iter().any(|line| line.contains("was taken back")));
    assert_eq!(rig.conversation().record.session_file.state().session, before);
    rig.say("/undo");
    assert!(rig.shown().iter().any(|line| line.contains("was taken back")));
}

#[test]
fn words_that_were_not_sent_are_no_turn_to_take_back() {
    let mut rig = ConversationFixture::new();
    for turn in 1..=2 {
        rig.say(&format!("say {turn}"));
        rig.said(turn, 1, &format!("said {turn}"));
        rig.is(turn, ChatJobState::Done);
    }
    rig.stage.with(|played| played.refuses = Some("the budget is spent".to_owned()));
    rig.say("say 3");
    rig.stage.with(|played| played.refuses = None);
    rig.say("/undo");
    rig.say("say 4");
    let behind_1 = TurnSessionChoice::Fork(rig.stage.session(1), Some(Uuid::from_u128(101)));
    assert_eq!(rig.stage.last_session(), behind_1);
}

#[test]
fn undo_after_undo_passes_over_what_was_taken_back() {
    let mut rig = ConversationFixture::new();
    let turn = |rig: &mut ConversationFixture, number: usize| {
        rig.say(&format!("say {number}"));
        rig.said(number, 1, &format!("said {number}"));
        rig.is(number, ChatJobState::Done);
    };
    turn(&mut rig, 1);
    turn(&mut rig, 2);
    rig.say("/undo");
    turn(&mut rig, 3);
    let behind_1 = TurnSessionChoice::Fork(rig.stage.session(1), Some(Uuid::from_u128(101)));
    assert_eq!(rig.stage.last_session(), behind_1);
    assert_ne!(rig.stage.session(1), rig.stage.session(3), "it goes on in a copy");
    rig.say("/undo");
    turn(&mut rig, 4);
    assert_eq!(rig.stage.last_session(), behind_1, "neither turn 2 nor turn 3 is there");
    turn(&mut rig, 5);
    assert_eq!(rig.stage.last_session(), TurnSessionChoice::Existing(rig.stage.session(4)));
    // A message of a turn that was taken back belongs to the session of that turn.
    rig.say("/fork 4");
    turn(&mut rig, 6);
    let behind_2 = TurnSessionChoice::Fork(rig.stage.session(2), Some(Uuid::from_u128(201)));
    assert_eq!(rig.stage.last_session(), behind_2);
}

/// One event of the fleet.
fn restored(rig: &mut ConversationFixture, result: Result<&str, &str>) {
    let result = result.map(str::to_owned).map_err(str::to_owned);
    let now = rig.now;
    rig.conversation().handle_fleet_event(ChatFleetEvent::FilesRestored(result), now);
}

#[test]
fn rewind_restores_the_files_before_it_takes_the_turn_back() {
    let mut rig = ConversationFixture::new();
    for turn in 1..=2 {
        rig.say(&format!("say {turn}"));
        rig.said(turn, 1, &format!("said {turn}"));
        rig.is(turn, ChatJobState::Done);
    }
    rig.shown();
    rig.stage.calls();
    let session = rig.stage.session(1);
    rig.say("/rewind");
    // A message waits until it is known from where the conversation goes on.
    rig.say("again");
    rig.say("/undo");
    assert_eq!(rig.stage.calls(), [format!("restore {session} Some(101)")]);
    assert_eq!(rig.shown(), Vec::<String>::new());
    restored(&mut rig, Ok("2 files restored."));
    let why = "was taken back: the next one continues from before it. 2 files restored.";
    assert_eq!(rig.shown()[0], format!("System The turn `say 2` {why}"));
    rig.pass(1);
    let behind_1 = TurnSessionChoice::Fork(session, Some(Uuid::from_u128(101)));
    assert_eq!(rig.stage.last_session(), behind_1);
    assert_eq!(rig.stage.calls()[0], "ask again");
}

#[test]
fn files_that_cannot_be_restored_leave_the_turn_in_the_conversation() {
    let mut rig = ConversationFixture::new();
    rig.say("one");
    rig.said(1, 1, "done");
    rig.is(1, ChatJobState::Done);
    rig.shown();
    rig.stage.calls();
    rig.say("/rewind");
    assert_eq!(rig.stage.calls(), [format!("restore {} None", rig.stage.session(1))]);
    restored(&mut rig, Err("no snapshot was taken"));
    assert_eq!(rig.shown(), ["no snapshot was taken"]);
    rig.say("two");
    assert_eq!(rig.stage.last_session(), TurnSessionChoice::Existing(rig.stage.session(1)));
}

#[test]
fn rewind_is_refused_during_a_turn_and_without_one() {
    let mut rig = ConversationFixture::new();
    rig.say("/rewind");
    rig.say("one");
    rig.shown();
    rig.say("/rewind");
    assert_eq!(rig.shown(), ["a turn is in progress; Esc interrupts it"]);
    assert!(!rig.stage.calls().iter().any(|call| call.starts_with("restore")));
}

#[test]
fn leaving_waits_for_files_that_are_being_restored() {
    let mut rig = ConversationFixture::new();
    rig.say("one");
    rig.said(1, 1, "done");
    rig.is(1, ChatJobState::Done);
    rig.say("/rewind");
    rig.leave();
    assert!(!rig.conversation().has_ended());
    restored(&mut rig, Ok("1 file restored."));
    assert!(rig.conversation().has_ended());
    assert!(rig.conversation().record.session_file.state().session.is_none());
}
