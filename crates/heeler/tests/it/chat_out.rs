//! Every way out of `heeler chat`: what is said, what is kept, and that nothing is left behind.

use expect_test::{Expect, expect};
use heeler_model::JobStatus;
use rustix::process::Signal;

use crate::chat_lines::session;
use crate::chat_screen::{answered, chat, leave};
use crate::fleet::Fleet;
use crate::pty::{CTRL_C, CTRL_D, Pty};
use crate::trigger::{fleet, scripted, wait_for};

/// An agent that has learned something, or does this instead when it is asked what.
fn learner(asked: &str) -> String {
    scripted(&format!(
        "{{when: {{prompt: 'The session ends'}}, do: [{asked}], else: [{{say: 'I heard {{prompt}}.'}}]}}"
    ))
}

const LEARNED: &str = r#"{say: "- uses tabs\n- is terse"}"#;

/// Nothing of the fleet runs any more, also not the daemon that was started for it.
#[track_caller]
pub(crate) fn nothing_is_left(fleet: &Fleet) {
    for word in ["runner", "play", "start"] {
        wait_for(&format!("the end of {word}"), || fleet.processes(word).is_empty().then_some(()));
    }
}

/// A terminal in which something was said and answered.
fn after_a_turn(fleet: &Fleet) -> Pty {
    let pty = Pty::start(fleet, &["chat", "--insights"]);
    pty.shows("lead");
    pty.type_in("hello\r");
    answered(&pty, "● I heard hello.");
    pty
}

/// Leaves so; what is then on the terminal is what was said last.
#[track_caller]
fn check(way: impl Fn(&Pty), expected: &Expect) {
    let fleet = fleet(&[("lead", &learner(LEARNED))]);
    let mut pty = after_a_turn(&fleet);
    way(&pty);
    let (code, screen) = pty.ended();
    expected.assert_eq(&screen);
    assert_eq!(code, Some(0));
    pty.is_given_back();
    let (id, said) = session(&fleet);
    assert_eq!(said, ["user hello", "assistant I heard hello."], "what was learned is not in it");
    let learned = fleet.read(&format!("home/.heeler/sessions/{id}.insights.md"));
    assert_eq!(learned, "- uses tabs\n- is terse\n");
    nothing_is_left(&fleet);
}

fn farewell() -> Expect {
    expect![[r#"
        Extracting learnings from 2 message(s)…
        Found 2 steering insight(s)
        Insight synthesis complete
        Session saved: chat-ID
        Resume: heeler --resume chat-ID"#]]
}

#[test]
fn exit_leaves() {
    check(|pty| pty.type_in("/exit\r"), &farewell());
}

#[test]
fn quit_leaves() {
    check(|pty| pty.type_in("/quit\r"), &farewell());
}

#[test]
fn q_leaves() {
    check(|pty| pty.type_in("/q\r"), &farewell());
}

#[test]
fn ctrl_c_leaves_when_it_is_pressed_twice() {
    let twice = |pty: &Pty| {
        pty.type_in(CTRL_C);
        pty.shows("Ctrl+C again to leave");
        pty.type_in(CTRL_C);
    };
    check(twice, &farewell());
}

#[test]
fn ctrl_d_leaves() {
    check(|pty| pty.type_in(CTRL_D), &farewell());
}

#[test]
fn sigterm_leaves() {
    check(|pty| pty.signal(Signal::TERM), &farewell());
}

#[test]
fn sighup_leaves() {
    check(|pty| pty.signal(Signal::HUP), &farewell());
}

#[test]
fn a_closed_terminal_leaves_in_the_same_way() {
    let fleet = fleet(&[("lead", &learner(LEARNED))]);
    let mut pty = after_a_turn(&fleet);
    pty.close();
    assert_eq!(pty.wait().code(), Some(0));
    let (id, said) = session(&fleet);
    assert_eq!(said, ["user hello", "assistant I heard hello."]);
    let learned = fleet.read(&format!("home/.heeler/sessions/{id}.insights.md"));
    assert_eq!(learned, "- uses tabs\n- is terse\n");
    nothing_is_left(&fleet);
    // What it has learned is told to the next.
    let pty = Pty::start(&fleet, &["chat", "--no-insights"]);
    pty.shows("lead");
    pty.type_in("again\r");
    answered(&pty, "• uses tabs");
    leave(pty);
    nothing_is_left(&fleet);
}

#[test]
fn the_last_words_are_on_the_screen_before_it_is_gone_and_a_second_signal_does_not_wait() {
    let fleet = fleet(&[("lead", &learner("{hang: true}"))]);
    let mut pty = after_a_turn(&fleet);
    pty.signal(Signal::TERM);
    pty.shows("Extracting learnings from 2 message(s)…");
    assert!(pty.taken().contains(&"alternate screen"), "{:?}", pty.taken());
    pty.signal(Signal::TERM);
    let (code, screen) = pty.ended();
    expect![[r#"
        Extracting learnings from 2 message(s)…
        Session saved: chat-ID
        Resume: heeler --resume chat-ID"#]]
    .assert_eq(&screen);
    assert_eq!(code, Some(0));
    pty.is_given_back();
    assert_eq!(session(&fleet).1, ["user hello", "assistant I heard hello."]);
    nothing_is_left(&fleet);
}

#[test]
fn who_leaves_during_a_turn_interrupts_it_and_is_told_so_by_the_resumed_session() {
    let steps = "{when: {session: new}, do: [{say: Working.}, {hang: true}], else: [{say: 'Turn {turn}.'}]}";
    let (fleet, mut pty) = chat(steps);
    pty.type_in("go\r");
    pty.shows("● Working.");
    pty.signal(Signal::HUP);
    let (code, screen) = pty.ended();
    assert_eq!(code, Some(0), "{screen}");
    pty.is_given_back();
    let (id, said) = session(&fleet);
    assert_eq!(said, ["user go", "assistant Working.", "system interrupted"]);
    assert_eq!(fleet.wait_until_ended().head.status, JobStatus::Cancelled);
    nothing_is_left(&fleet);

    let pty = Pty::start(&fleet, &["--resume", &id, "--no-insights"]);
    pty.check(&expect![[r#"
        › go

        ● Working.
          interrupted
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        lead · $0.00 · 24 tokens"#]]);
    pty.type_in("on\r");
    pty.check(&expect![[r#"
        › go

        ● Working.
          interrupted

        › on

        ● Turn 2.
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        lead · $0.00 · 34 tokens"#]]);
    leave(pty);
    assert_eq!(session(&fleet).1[3..], ["user on", "assistant Turn 2."]);
    nothing_is_left(&fleet);
}

#[test]
fn a_turn_that_does_not_end_is_left_to_the_daemon_by_a_second_signal() {
    let (fleet, mut pty) = chat("{say: Deaf.}, {hang: true, ignore_interrupt: true}");
    pty.type_in("go\r");
    pty.shows("● Deaf.");
    pty.type_in("\x1b");
    pty.signal(Signal::TERM);
    // Words that are typed now are refused, which shows that it leaves.
    wait_for("the way out", || {
        pty.type_in("hm\r");
        pty.screen().contains("the session is ending").then_some(())
    });
    pty.signal(Signal::TERM);
    let (code, screen) = pty.ended();
    assert_eq!(code, Some(0), "{screen}");
    assert!(screen.contains("Resume: heeler --resume chat-ID"), "{screen}");
    pty.is_given_back();
    let said = session(&fleet).1;
    assert_eq!(said[..2], ["user go", "assistant Deaf."]);
    let job = fleet.jobs().remove(0).head.id.to_string();
    drop(fleet.run(&["cancel", &job, "--force"]));
    fleet.wait_until_ended();
    nothing_is_left(&fleet);
}

#[test]
fn a_turn_in_the_background_goes_on_with_its_question_and_is_there_when_the_session_is_resumed() {
    let (fleet, mut pty) =
        chat("{write: a.txt, text: hi, ask_permission: true}, {say: 'Written.'}");
    pty.type_in("/background\r");
    pty.shows("/exit leaves");
    pty.type_in("go\r");
    pty.shows("the agent wants to use Write");
    // Tab goes from the question to the input.
    pty.type_in("\t/background\r");
    let (code, screen) = pty.ended();
    assert_eq!(code, Some(0), "{screen}");
    pty.is_given_back();
    let job = fleet.jobs().remove(0).head.id.to_string();
    for line in ["The agent goes on in the background: ", "Watch: heeler logs -f "] {
        assert!(screen.contains(line), "{screen}");
    }
    assert!(screen.contains("Resume: heeler --resume chat-ID"), "{screen}");
    assert!(!fleet.file("a.txt").exists(), "{job} was answered by nobody");

    let waiting = fleet.json(&["approvals", "list", "--json"]);
    let question = waiting["approvals"][0]["id"].as_str().unwrap().to_owned();
    fleet.run(&["approvals", "approve", &question]).ok();
    assert_eq!(fleet.wait_until_ended().head.status, JobStatus::Completed);
    assert_eq!(fleet.read("a.txt"), "hi");
    let (id, _) = session(&fleet);
    let pty = Pty::start(&fleet, &["--resume", &id, "--no-insights"]);
    answered(&pty, "● Written.");
    leave(pty);
    assert_eq!(session(&fleet).1.last().unwrap(), "assistant Written.");
    nothing_is_left(&fleet);
}
