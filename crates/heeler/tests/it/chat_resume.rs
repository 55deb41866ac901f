//! Sessions of `heeler chat` that are gone on with: by id, and from the list.

use expect_test::expect;
use rustix::process::Signal;

use crate::chat_lines::session;
use crate::chat_screen::{answered, chat, leave};
use crate::fleet::Fleet;
use crate::pty::{DOWN, ENTER, ESC, Pty};
use crate::trigger::{fleet, scripted};

#[test]
fn a_session_goes_on_by_its_id_where_it_was() {
    let (fleet, pty) = chat("{say: 'This is turn {turn}, before you said {remembered}.'}");
    pty.type_in("first\r");
    answered(&pty, "● This is turn 1");
    leave(pty);
    let id = session(&fleet).0;
    // A beginning of it will do.
    let pty = Pty::start(&fleet, &["--resume", &id[..9], "--no-insights"]);
    pty.shows("● This is turn 1");
    pty.type_in("second\r");
    pty.check(&expect![[r#"
        › first

        ● This is turn 1, before you said nothing.

        › second

        ● This is turn 2, before you said first.
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        lead · $0.00 · 36 tokens"#]]);
    // What was said before the program was started can be called back.
    pty.type_in("\x1b[A\x1b[A");
    pty.shows("› first\nlead");
    pty.type_in("\x15");
    pty.hides("› first\nlead");
    leave(pty);
}

/// A fleet with a session of ours and one of agents-fleet.
fn with_foreign() -> Fleet {
    let fleet = fleet(&[("lead", &scripted("{say: 'I heard {prompt}.'}"))]);
    let pty = Pty::start(&fleet, &["chat", "--no-insights"]);
    pty.shows("lead");
    pty.type_in("mend the roof\r");
    answered(&pty, "● I heard mend the roof.");
    leave(pty);
    let folder = "home/.fleet/sessions";
    fleet.write(
        &format!("{folder}/old-one.json"),
        r#"{"id":"old-one","schemaVersion":3,"createdAt":1736935200000,"updatedAt":1736938800000,"transcript":[]}"#,
    );
    let lines = [
        r#"{"role":"user","content":"paint the door"}"#,
        r#"{"role":"assistant","content":"It is red now."}"#,
    ];
    fleet.write(&format!("{folder}/old-one.transcript.ndjson"), &(lines.join("\n") + "\n"));
    // What was last written comes first.
    for name in ["old-one.json", "old-one.transcript.ndjson"] {
        let file =
            std::fs::File::options().append(true).open(fleet.file(&format!("{folder}/{name}")));
        let at = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_736_938_800);
        file.unwrap().set_modified(at).unwrap();
    }
    fleet
}

#[test]
fn a_session_is_found_in_the_list_and_chosen() {
    let fleet = with_foreign();
    let pty = Pty::start(&fleet, &["--resume", "--no-insights"]);
    pty.check(&expect![[r#"
        Resume a session (2 of 2):
        ▸ mend the roof
          now · 2 entries · lead · chat-ID
          … I heard mend the roof.
          paint the door
          2025-01-15 · 2 entries · from agents-fleet · old-one
          … It is red now.






















        type to search · Enter: resume · Esc: leave"#]]);
    pty.type_in("roof");
    pty.shows("(1 of 2): roof");
    pty.type_in(ENTER);
    pty.check(&expect![[r#"
        › mend the roof

        ● I heard mend the roof.
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        lead · $0.00 · 15 tokens"#]]);
    leave(pty);
}

#[test]
fn a_session_of_agents_fleet_is_chosen_and_copied_when_something_is_said() {
    let fleet = with_foreign();
    let pty = Pty::start(&fleet, &["--resume", "--no-insights"]);
    pty.shows("▸ mend the roof");
    pty.type_in(DOWN);
    pty.shows("▸ paint the door");
    pty.type_in(ENTER);
    pty.shows("● It is red now.");
    assert!(!fleet.file("home/.heeler/sessions/old-one.json").exists(), "looking copies nothing");
    pty.type_in("now green\r");
    pty.check(&expect![[r#"
        › paint the door

        ● It is red now.

        › now green

        ● I heard now green

          (Earlier in this conversation:
          user: paint the door
          assistant: It is red now.).
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        lead · $0.00 · 53 tokens"#]]);
    leave(pty);
    let copied = fleet.read("home/.heeler/sessions/old-one.transcript.ndjson");
    assert_eq!(copied.lines().count(), 4, "{copied}");
    let theirs = fleet.read("home/.fleet/sessions/old-one.transcript.ndjson");
    assert_eq!(theirs.lines().count(), 2, "theirs stays as it is: {theirs}");
}

#[test]
fn esc_leaves_the_list_and_gives_the_terminal_back() {
    let fleet = with_foreign();
    let mut pty = Pty::start(&fleet, &["--resume"]);
    pty.shows("Resume a session (2 of 2)");
    pty.type_in("nowhere");
    pty.shows("no matching sessions");
    pty.type_in(ESC);
    pty.shows("Resume a session (2 of 2)");
    pty.type_in(ESC);
    assert_eq!(pty.ended(), (Some(0), String::new()));
    pty.is_given_back();
}

#[test]
fn a_signal_leaves_the_list_and_gives_the_terminal_back() {
    let fleet = with_foreign();
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let mut pty = Pty::start(&fleet, &["--resume"]);
        pty.shows("Resume a session (2 of 2)");
        pty.signal(signal);
        assert_eq!(pty.ended(), (Some(0), String::new()));
        pty.is_given_back();
    }
}
