//! Leaving a conversation whose workers are at work.

use expect_test::{Expect, expect};
use heeler_model::JobStatus;

use crate::chat_lines::session;
use crate::chat_out::nothing_is_left;
use crate::chat_screen::{answered, leave};
use crate::chat_workers::{crew, ends_of, spawn};
use crate::fleet::Fleet;
use crate::pty::Pty;
use crate::trigger::wait_for;

/// A conversation with a worker at work.
fn at_work(more: &[&str]) -> (Fleet, Pty) {
    let fleet = crew(&format!(
        "{{when: {{prompt: 'The session ends'}}, do: [{{say: '- is terse'}}], \
         else: [{}, {{say: Started.}}]}}",
        spawn("bob", "a long one")
    ));
    let pty = Pty::start(&fleet, &[&["chat", "lead", "--insights"], more].concat());
    pty.shows("lead");
    pty.type_in("begin\r");
    answered(&pty, "● Started.");
    pty.shows("bob ▶ +3");
    (fleet, pty)
}

#[track_caller]
fn left(mut pty: Pty, expected: &Expect) {
    let (code, screen) = pty.ended();
    expected.assert_eq(&screen);
    assert_eq!(code, Some(0));
    pty.is_given_back();
}

/// The worker is stopped before all else, and nothing is left.
#[track_caller]
fn is_stopped(fleet: &Fleet, pty: Pty) {
    left(
        pty,
        &expect![[r#"
            Stopping workers: bob
            Extracting learnings from 2 message(s)…
            Found 1 steering insight(s)
            Insight synthesis complete
            Session saved: chat-ID
            Resume: heeler --resume chat-ID"#]],
    );
    assert_eq!(ends_of(fleet, "bob"), [JobStatus::Cancelled]);
    nothing_is_left(fleet);
}

/// The daemon goes on with the worker, and ends when that has.
#[track_caller]
fn goes_on(fleet: &Fleet, pty: Pty) {
    left(
        pty,
        &expect![[r#"
            Workers that keep running: bob
            Extracting learnings from 2 message(s)…
            Found 1 steering insight(s)
            Insight synthesis complete
            Session saved: chat-ID
            Resume: heeler --resume chat-ID"#]],
    );
    assert_eq!(ends_of(fleet, "bob"), [JobStatus::Running]);
    fleet.write("go", "");
    wait_for("bob's end", || (ends_of(fleet, "bob") == [JobStatus::Completed]).then_some(()));
    nothing_is_left(fleet);
    let id = session(fleet).0;
    let pty = Pty::start(fleet, &["--resume", &id, "--no-insights"]);
    pty.shows("bob ✓");
    pty.type_in("/view bob\r");
    pty.shows("● Did it.");
    leave(pty);
    nothing_is_left(fleet);
}

#[test]
fn workers_are_stopped_where_that_was_said_before() {
    let (fleet, pty) = at_work(&["--workers", "stop"]);
    pty.type_in("/exit\r");
    is_stopped(&fleet, pty);
}

#[test]
fn workers_go_on_where_that_was_said_before() {
    let (fleet, pty) = at_work(&["--workers", "leave"]);
    pty.type_in("/exit\r");
    goes_on(&fleet, pty);
}

#[test]
fn who_leaves_is_asked_about_workers_and_may_stay_or_stop_them() {
    let (fleet, pty) = at_work(&[]);
    pty.type_in("/exit\r");
    pty.shows("1 worker is running.");
    pty.type_in("hm\r");
    pty.shows("stop, leave or stay?");
    pty.type_in("stay\r");
    pty.check(&expect![[r#"
        › begin
          ✓ mcp__heeler__spawn_worker {"agent":"coder","name":"bob","task":"a long one"}

        ● Started.

          1 worker is running. stop: stop them; leave: keep them running; stay: do not leave.

          stop, leave or stay?

          continuing
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        [main] bob ▶ +3
        lead · $0.00 · 89 tokens"#]]);
    pty.type_in("/exit\r");
    pty.until("the question again", |screen| screen.matches("1 worker is running.").count() == 2);
    pty.type_in("stop\r");
    is_stopped(&fleet, pty);
}

#[test]
fn who_leaves_is_asked_about_workers_and_may_have_them_go_on() {
    let (fleet, pty) = at_work(&[]);
    pty.type_in("/exit\r");
    pty.shows("1 worker is running.");
    pty.type_in("leave\r");
    goes_on(&fleet, pty);
}
