//! Tests of forks, and of other commands that read a whole transcript.

use std::sync::atomic::AtomicBool;

use super::leaving::worker;
use super::*;
use crate::background::WAIT_BYTES_MAX;
use crate::conversation::fork::find_fork_message;

/// Conversation of two turns with a transcript too long to process in the foreground.
fn long() -> ConversationFixture {
    let mut rig = ConversationFixture::new();
    let id = rig.conversation.take().unwrap().id().to_owned();
    let words = format!("{{\"role\":\"user\",\"content\":\"{}\"}}\n", "x".repeat(4000));
    let lines = WAIT_BYTES_MAX as usize / words.len() + 1;
    let path = rig.folder().join(format!("sessions/{id}.transcript.ndjson"));
    std::fs::write(path, words.repeat(lines)).unwrap();
    let session_file =
        rig.directory().open(&id, rig.now, crate::OldFormatPolicy::Migrate).unwrap().session_file;
    rig.begin(session_file, |_| {});
    two_turns(&mut rig);
    rig
}

fn two_turns(rig: &mut ConversationFixture) {
    for turn in 1..=2 {
        rig.say(&format!("say {turn}"));
        rig.said(turn, 1, &format!("said {turn}"));
        rig.is(turn, ChatJobState::Done);
    }
    rig.shown();
}

/// Waits until no background operation runs.
fn settled(rig: &mut ConversationFixture) {
    while rig.conversation().display.status.busy.is_some() {
        std::thread::yield_now();
        rig.pass(1);
    }
}

fn transcripts(rig: &ConversationFixture) -> usize {
    let names = std::fs::read_dir(rig.folder().join("sessions")).unwrap();
    let names = names.map(|name| name.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains(".ndjson")).count()
}

#[test]
fn search_tells_the_numbers_that_fork_takes_and_fork_those_that_it_takes_instead() {
    let mut rig = ConversationFixture::new();
    two_turns(&mut rig);
    rig.say("/search SAY");
    let hint = "/fork N continues in a copy, up to that message of the agent";
    assert_eq!(rig.shown(), [format!("   1  you: say 1\n   3  you: say 2\n{hint}")]);
    let usable = |number: u64, some: &str| {
        format!("message {number} cannot be forked from; these messages of the agent can:{some}")
    };
    rig.say("/fork 99");
    assert_eq!(rig.shown(), [usable(99, "\n   2  said 1\n   4  said 2")]);
    rig.say("/fork 1");
    assert_eq!(rig.shown(), [usable(1, "\n   2  said 1")]);
    rig.say("/fork 2");
    let shown = rig.shown();
    assert_eq!(shown[1], "User say 1 | Assistant said 1");
    rig.say("/search said 2");
    assert_eq!(rig.shown(), ["`said 2` was not found here; heeler search looks everywhere"]);
    rig.say("on");
    let behind_1 = TurnSessionChoice::Fork(rig.stage.session(1), Some(Uuid::from_u128(101)));
    assert_eq!(rig.stage.last_session(), behind_1);
}

#[test]
fn whoever_gives_up_does_not_wait_until_a_message_is_found() {
    let mut rig = ConversationFixture::new();
    two_turns(&mut rig);
    let whole = rig.conversation().record.session_file.contents(&ChatSpeaker::Coordinator).unwrap();
    let found = |is_stopped| find_fork_message(&whole, 4, &AtomicBool::new(is_stopped));
    assert_eq!(found(false).unwrap().0.text(), "said 2");
    found(true).expect_err("it was stopped at the first entry");
}

#[test]
fn where_the_agent_has_said_nothing_there_is_nothing_to_fork_from() {
    let mut rig = ConversationFixture::new();
    rig.say("/fork 1");
    assert_eq!(rig.shown(), ["no message of the agent can be forked from"]);
    assert_eq!(rig.directory().list().unwrap().len(), 1);
}

#[test]
fn a_long_session_is_copied_beside_and_what_is_said_meanwhile_is_said_in_the_copy() {
    let mut rig = long();
    let before = rig.conversation().id().to_owned();
    rig.stage.calls();
    rig.say("/fork");
    assert!(rig.shown()[0].contains("MB, then continuing in the copy"));
    assert_eq!(rig.conversation().display.status.busy.as_deref(), Some("copying the session"));
    rig.say("three");
    rig.say("/fork");
    assert_eq!(rig.shown(), ["the session is being copied; Esc cancels it"]);
    assert_eq!(rig.stage.calls(), [""; 0]);
    while rig.conversation().display.status.busy.as_deref() == Some("copying the session") {
        std::thread::yield_now();
        rig.pass(1);
    }
    assert_ne!(rig.conversation().id(), before);
    assert_eq!(rig.stage.calls()[..1], ["ask three"]);
    assert_eq!(rig.shown().last().unwrap(), "User three");
    let read = |id: &str| {
        std::fs::read(rig.folder().join(format!("sessions/{id}.transcript.ndjson"))).unwrap()
    };
    let (old, new) = (read(&before), read(rig.conversation.as_ref().unwrap().id()));
    assert!(new.starts_with(&old) && new.len() > old.len());
}

#[test]
fn a_long_copy_that_is_given_up_left_or_cut_off_leaves_nothing() {
    let given_up: [fn(&mut ConversationFixture); 3] = [
        |rig| {
            let now = rig.now;
            rig.conversation().handle_action(UserAction::Interrupt, now);
            assert_eq!(rig.shown(), ["the copy was cancelled", "suggested: three"]);
            assert_eq!(transcripts(rig), 1);
        },
        |rig| {
            rig.leave();
            assert!(rig.conversation().has_ended());
            assert!(rig.shown().contains(&"not sent: three".to_owned()));
            assert_eq!(transcripts(rig), 1);
        },
        |rig| rig.crash(),
    ];
    for give_up in given_up {
        let mut rig = long();
        let before = rig.conversation().id().to_owned();
        rig.say("/fork");
        rig.say("three");
        rig.shown();
        give_up(&mut rig);
        assert_eq!(rig.conversation().id(), before);
        assert_eq!(rig.directory().list().unwrap().len(), 1);
    }
}

#[test]
fn a_loop_waits_for_a_long_copy() {
    let mut rig = long();
    rig.say("/loop \"stay green\" 10s");
    rig.is(3, ChatJobState::Done);
    rig.stage.calls();
    rig.say("/fork");
    rig.now += SignedDuration::from_secs(60);
    rig.conversation().start_due_loop();
    assert_eq!(rig.stage.calls(), [""; 0]);
    settled(&mut rig);
    assert_eq!(rig.stage.calls(), [""; 0], "the copy has no loops");
}

#[test]
fn a_long_transcript_is_searched_and_written_out_beside() {
    let mut rig = long();
    rig.say("/search said 2");
    assert_eq!(rig.shown(), ["reading 17 MB"]);
    rig.say("/export all.md");
    let refused = "the previous command is still reading the transcript; Esc cancels it";
    assert_eq!(rig.shown(), [refused]);
    settled(&mut rig);
    assert!(rig.shown()[0].contains("  agent: said 2\n/fork N"));
    rig.say("/export all.md");
    settled(&mut rig);
    let file = rig.folder().join("all.md");
    assert_eq!(rig.shown(), ["reading 17 MB".to_owned(), format!("written: {file}")]);
    assert!(std::fs::read_to_string(&file).unwrap().ends_with("## agent\n\nsaid 2\n"));

    let now = rig.now;
    rig.say("/export again.md");
    rig.conversation().handle_action(UserAction::Interrupt, now);
    let is_given_up = rig.shown()[1] == "cancelled";
    let is_there = rig.folder().join("again.md").exists();
    assert_ne!(is_there, is_given_up, "half of it is no export");
}

#[test]
fn a_fork_leaves_the_workers_requests_and_costs_to_the_session_before() {
    let mut rig = ConversationFixture::new();
    rig.say("go");
    let now = rig.now;
    rig.conversation().handle_fleet_event(worker(ChatJobState::Running), now);
    rig.said(50, 3, "Fixing.");
    rig.is(1, ChatJobState::Done);
    rig.say("/fork");
    let text = rig.shown().pop().unwrap();
    assert!(text.ends_with("which is unchanged. Its workers keep running."), "{text}");

    rig.said(50, 4, "Fixed.");
    rig.conversation().handle_fleet_event(worker(ChatJobState::Done), now);
    rig.said(50, 5, "Done.");
    rig.is(50, ChatJobState::Done);
    rig.is(1, ChatJobState::Done);
    rig.say("/workers");
    rig.say("/cost");
    let nothing = "no cost yet: no turn has reported its cost";
    assert_eq!(rig.shown(), ["no workers yet: the agent starts them", nothing]);
    let fork = rig.conversation().id().to_owned();
    assert!(!rig.folder().join(format!("sessions/{fork}.workers")).exists());
}
