//! Tests of events that arrive in an unusual phase.

use super::leaving::worker;
use super::*;

#[test]
fn messages_that_waited_during_the_question_about_workers_are_sent_when_the_person_stays() {
    let mut rig = ConversationFixture::new();
    rig.say("one");
    rig.say("two");
    let now = rig.now;
    rig.conversation().handle_fleet_event(worker(ChatJobState::Running), now);
    rig.leave();
    rig.is(1, ChatJobState::Done);
    rig.stage.calls();
    rig.say("stay");
    assert_eq!(rig.stage.calls(), ["ask two", "follow job-2026-01-02-aaaa02 0"]);
}

#[test]
fn messages_behind_a_refused_one_return_to_the_input_with_it() {
    let mut rig = ConversationFixture::new();
    rig.say("one");
    rig.say("two");
    rig.say("three");
    rig.stage.with(|played| played.refuses = Some("the budget is spent".to_owned()));
    rig.shown();
    rig.is(1, ChatJobState::Done);
    assert_eq!(
        rig.shown(),
        ["User two", "System not sent: the budget is spent", "suggested: two\nthree"]
    );
}

#[test]
fn insights_are_the_reply_to_their_own_request_even_if_the_turn_still_replies() {
    let mut rig = ConversationFixture::new();
    rig.say("one");
    rig.is(1, ChatJobState::Done);
    rig.conversation().options.insights = true;
    rig.say("two");
    rig.leave();
    rig.pass(5);
    rig.said(3, 1, "- uses tabs");
    rig.said(2, 1, "Still busy.");
    rig.shown();
    rig.is(3, ChatJobState::Done);
    assert_eq!(rig.shown()[0], "Found 1 steering insight(s)");
}

#[test]
fn a_conversation_that_has_ended_ignores_everything() {
    let mut rig = ConversationFixture::new();
    rig.say("one");
    rig.leave();
    rig.leave();
    assert!(rig.conversation().has_ended());
    rig.shown();
    rig.stage.calls();
    rig.say("two");
    rig.leave();
    rig.said(1, 1, "Hi.");
    rig.is(1, ChatJobState::Done);
    rig.pass(60);
    assert_eq!(rig.shown(), [""; 0]);
    assert_eq!(rig.stage.calls(), [""; 0]);
}
