//! Tests of the transcript, the input and the lines around it.

use super::*;

fn status() -> ConversationStatus {
    ConversationStatus {
        id: "s1".to_owned(),
        agent: "lead".to_owned(),
        model: Some("sonnet".to_owned()),
        context_tokens: Some(34_567),
        cost_usd: 0.1234,
        tasks: 3,
        loops: 1,
        ..ConversationStatus::default()
    }
}

fn with_workers(status: ConversationStatus) -> ConversationStatus {
    let chip =
        |name: &str, state, unseen| ChatWorkerStatus { name: name.to_owned(), state, unseen };
    let workers = vec![
        chip("coder-1", ChatJobState::Running, 3),
        chip("coder-2", ChatJobState::Done, 0),
        chip("tester-1", ChatJobState::Failed, 12),
    ];
    ConversationStatus { workers, ..status }
}

fn talk(rig: &mut ScreenFixture) {
    rig.say(EntryRole::System, "session started");
    rig.say(EntryRole::User, "please look\nat the tests");
    rig.call(
        "1",
        "Bash",
        json!({"command": "cargo test --workspace --all-features -- --nocapture"}),
    );
    rig.call("2", "Read", json!({"file_path": "src/main.rs"}));
    rig.gave("1", "error: no such file\nand more", true);
    rig.gave("2", "fn main() {}", false);
    rig.call("3", "Grep", json!({"pattern": "todo", "glob": "*.rs"}));
    rig.say(EntryRole::Assistant, "They **fail**:\n\n- `a` is missing\n- b");
    rig.say(EntryRole::Other("critic".to_owned()), "I doubt it");
}

#[test]
fn a_conversation_is_shown_with_its_tools_folded() {
    let mut rig = ScreenFixture::new(50, 24);
    rig.screen.handle_output(ChatOutput::Status(Box::new(status())));
    talk(&mut rig);
    rig.check(expect![[r#"






          session started

        › please look
          at the tests
          ✗ Bash cargo test --workspace --all-featu…  1.2s
            error: no such file and more
          ✓ Read src/main.rs  1.2s
          · Grep todo

        ● They fail:

          • `a` is missing
          • b

        critic: I doubt it
        ──────────────────────────────────────────────────
        ›
        lead · sonnet · $0.1234 · 34k tokens · 3 tasks"#]]);
    rig.keys("<C-o>");
    rig.check(expect![[r#"

        › please look
          at the tests
          ✗ Bash cargo test --workspace --all-featu…  1.2s
            command: cargo test --workspace --all-features
            -- --nocapture
            → error: no such file
              and more
          ✓ Read src/main.rs  1.2s
            file_path: src/main.rs
            → fn main() {}
          · Grep todo
            pattern: todo
            glob: *.rs

        ● They fail:

          • `a` is missing
          • b

        critic: I doubt it
        ──────────────────────────────────────────────────
        ›
        lead · sonnet · $0.1234 · 34k tokens · 3 tasks"#]]);
}

#[test]
fn words_come_as_they_are_said_and_the_time_goes_on() {
    let mut rig = ScreenFixture::new(46, 12);
    rig.screen.handle_output(ChatOutput::Status(Box::new(ConversationStatus {
        busy: Some("Bash cargo test".to_owned()),
        queued: 2,
        ..status()
    })));
    rig.say(EntryRole::User, "go");
    rig.screen.handle_output(ChatOutput::Delta {
        of: ChatSpeaker::Coordinator,
        text: "I am **think".to_owned(),
    });
    rig.screen.handle_output(ChatOutput::Delta {
        of: ChatSpeaker::Coordinator,
        text: "ing** of".to_owned(),
    });
    rig.screen.set_time(now() + jiff::SignedDuration::from_secs(65));
    assert!(rig.screen.is_ticking());
    rig.check(expect![[r#"





        › go

        ● I am thinking of
        * Bash car… 1m 05s · 2 queued · Esc interrupts
        ──────────────────────────────────────────────
        ›
        lead · sonnet · $0.1234 · 34k tokens · 3 tasks"#]]);
    rig.screen.handle_output(ChatOutput::DeltaEnded { of: ChatSpeaker::Coordinator });
    rig.screen.handle_output(ChatOutput::Status(Box::new(status())));
    assert!(!rig.screen.is_ticking());
    rig.screen.handle_output(ChatOutput::Notice("the answer to a command".to_owned()));
    rig.screen.handle_output(ChatOutput::Error("cannot do that".to_owned()));
    rig.check(expect![[r#"





        › go

          the answer to a command
        ! cannot do that
        ──────────────────────────────────────────────
        ›
        lead · sonnet · $0.1234 · 34k tokens · 3 tasks"#]]);
}

#[test]
fn nothing_that_an_agent_says_steers_the_terminal() {
    let mut rig = ScreenFixture::new(40, 14);
    let evil = "\x1b[2J\x1b]0;title\x07\u{9b}31mred\u{202e}back \x08\x08 日本語 e\u{301}\r\nnext";
    for role in [
        EntryRole::User,
        EntryRole::Assistant,
        EntryRole::System,
        EntryRole::Other(evil.to_owned()),
    ] {
        rig.say(role, evil);
    }
    rig.call("1", evil, json!({"command": evil}));
    rig.gave("1", evil, true);
    rig.screen
        .handle_output(ChatOutput::Delta { of: ChatSpeaker::Coordinator, text: evil.to_owned() });
    rig.screen.handle_output(ChatOutput::Status(Box::new(ConversationStatus {
        agent: evil.to_owned(),
        model: Some(evil.to_owned()),
        busy: Some(evil.to_owned()),
        workers: vec![ChatWorkerStatus {
            name: evil.to_owned(),
            state: ChatJobState::Running,
            unseen: 0,
        }],
        ..ConversationStatus::default()
    })));
    rig.screen.handle_output(ChatOutput::SuggestedInput(evil.to_owned()));
    for unfolded in ["", "<C-o>"] {
        rig.keys(unfolded);
        let shown = rig.draw();
        let steers = |c: char| c != '\n' && heeler_model::is_terminal_control(c);
        assert!(!shown.contains(steers), "{shown:?}");
        assert!(shown.contains("red"), "{shown}");
    }
}

#[test]
fn what_is_suggested_comes_before_what_is_typed() {
    let mut rig = ScreenFixture::new(40, 8);
    rig.screen.handle_output(ChatOutput::SuggestedInput("first".to_owned()));
    rig.keys(" words");
    rig.screen.handle_output(ChatOutput::SuggestedInput("not sent".to_owned()));
    let actions = rig.keys("!<Enter>");
    assert_eq!(actions, [UserAction::SendLine("not sent\nfirst words!".to_owned())]);
}

#[test]
fn workers_are_chips_and_one_is_looked_at_and_talked_to() {
    let mut rig = ScreenFixture::new(60, 12);
    rig.screen.handle_output(ChatOutput::Status(Box::new(with_workers(status()))));
    rig.say(EntryRole::User, "to the agent");
    let worker = ChatSpeaker::Worker("coder-1".to_owned());
    rig.entry(worker.clone(), ConversationEntry::new(EntryRole::Assistant, "I am coder-1", now()));
    rig.check(expect![[r#"







        › to the agent
        ────────────────────────────────────────────────────────────
        ›
        [main] coder-1 ▶ +3  coder-2 ✓  tester-1 ✗ +12
        lead · sonnet · $0.1234 · 34k tokens · 3 tasks · 1 loop"#]]);
    assert_eq!(
        rig.keys("<Tab><BackTab>"),
        [UserAction::ViewNext { back: false }, UserAction::CycleMode]
    );
    rig.screen.handle_output(ChatOutput::ViewChanged(worker));
    rig.check(expect![[r#"






        ● I am coder-1
        * coder-1 is running · Esc stops it
        ─ to coder-1 ───────────────────────────────────────────────
        ›
         main [coder-1 ▶ +3] coder-2 ✓  tester-1 ✗ +12
        lead · sonnet · $0.1234 · 34k tokens · 3 tasks · 1 loop"#]]);
    assert_eq!(rig.keys("hi<Enter>"), [UserAction::SendLine("hi".to_owned())]);
    assert_eq!(rig.keys("<Esc>"), [UserAction::Interrupt], "it is at work");
    rig.screen.handle_output(ChatOutput::ViewChanged(ChatSpeaker::Worker("coder-2".to_owned())));
    assert_eq!(rig.keys("<Esc>"), [UserAction::View(ChatSpeaker::Coordinator)]);
}

#[test]
fn whoever_is_looked_at_is_the_one_that_esc_is_said_to_be_for() {
    let mut rig = ScreenFixture::new(60, 12);
    let busy = Some("Bash".to_owned());
    rig.screen.handle_output(ChatOutput::Status(Box::new(with_workers(ConversationStatus {
        busy,
        ..status()
    }))));
    assert!(rig.draw().contains("* Bash 0s · Esc interrupts"));
    for (worker, is_running) in [("coder-1", true), ("coder-2", false)] {
        rig.screen.handle_output(ChatOutput::ViewChanged(ChatSpeaker::Worker(worker.to_owned())));
        let shown = rig.draw();
        assert!(!shown.contains("Esc interrupts"), "{shown}");
        assert_eq!(
            shown.contains(&format!("* {worker} is running · Esc stops it")),
            is_running,
            "{shown}"
        );
    }
}

#[test]
fn what_is_typed_has_lines_and_what_is_offered_is_above() {
    let mut rig = ScreenFixture::new(44, 12);
    rig.keys("one<C-j>two");
    rig.check(expect![[r#"








        ────────────────────────────────────────────
        › one
          two
    "#]]);
    assert_eq!(rig.keys("<C-c>"), []);
    rig.keys("/");
    rig.keys("<Down>");
    rig.check(expect![[r#"






          /help           show commands and keys
        ▸ /view [WORKER]  view a worker
          /workers        the workers of this sessi…
        ────────────────────────────────────────────
        › /
    "#]]);
    rig.keys("<Esc><C-u>see @sr");
    rig.check(expect![[r#"







        ▸ src/
          src/main.rs
        ────────────────────────────────────────────
        › see @sr
    "#]]);
    assert_eq!(rig.keys("<C-c><Up><Enter>"), [UserAction::SendLine("before".to_owned())]);
    rig.keys("<C-r>bef");
    rig.check(expect![[r#"









        ────────────────────────────────────────────
        › before
        search: bef"#]]);
}

#[test]
fn leaving_is_asked_for_twice_or_said_by_the_end_of_input() {
    let mut rig = ScreenFixture::new(40, 8);
    assert_eq!(rig.keys("<C-c>"), []);
    assert!(rig.draw().contains("Ctrl+C again to leave"));
    assert_eq!(rig.keys("x<C-c><C-c>"), [], "a key between them, then text to clear");
    assert_eq!(rig.keys("<C-c>"), [UserAction::Exit]);
    assert_eq!(rig.keys("<C-c>"), []);
    assert_eq!(rig.keys("<C-d>"), [UserAction::Exit]);
    assert_eq!(rig.keys("ab<C-b><C-d><C-d><Enter>"), [UserAction::SendLine("a".to_owned())]);
}

#[test]
fn the_second_press_counts_only_for_a_while() {
    let mut rig = ScreenFixture::new(40, 8);
    assert_eq!(rig.keys("<C-c>"), []);
    assert!(rig.screen.is_ticking(), "the hint disappears by itself");
    rig.screen.set_time(now() + jiff::SignedDuration::from_secs(4));
    assert!(!rig.draw().contains("Ctrl+C again"));
    assert!(!rig.screen.is_ticking());
    assert_eq!(rig.keys("<C-c>"), [], "it counts as the first");
    rig.screen.set_time(now() + jiff::SignedDuration::from_secs(6));
    assert_eq!(rig.keys("<C-c>"), [UserAction::Exit]);
}

#[test]
fn messages_that_wait_are_shown_and_taken_back() {
    let mut rig = ScreenFixture::new(40, 14);
    rig.say(EntryRole::User, "go");
    rig.screen.handle_output(ChatOutput::Status(Box::new(ConversationStatus {
        busy: Some("waiting".to_owned()),
        queued: 2,
        queued_texts: vec!["then this".to_owned(), "and\x1b[2J that".to_owned()],
        ..status()
    })));
    rig.check(expect![[r#"







        › go
        * waiting 0s · 2 queued · Esc interrupts
        ↳ queued: then this
        ↳ queued: and\u{1b}[2J that
        ────────────────────────────────────────
        ›
        lead · sonnet · $0.1234 · 34k tokens"#]]);
    assert_eq!(rig.keys("<Up>"), [UserAction::EditQueued]);
    assert_eq!(rig.keys("x<Up>"), [], "with text, the key recalls history");
}

#[test]
fn a_transcript_is_searched_from_its_end() {
    let mut rig = ScreenFixture::new(40, 8);
    for number in 0..30 {
        let text = if number % 10 == 3 { "a Needle here" } else { "hay" };
        rig.say(EntryRole::System, &format!("{number}: {text}"));
    }
    rig.keys("<C-s>needle");
    let shown = rig.draw();
    assert!(shown.contains("23: a Needle"), "{shown}");
    assert!(shown.contains("find: needle · ↑ older"), "{shown}");
    rig.keys("<Up>");
    assert!(rig.draw().contains("13: a Needle"));
    rig.keys("<Up><Up>");
    let shown = rig.draw();
    assert!(shown.contains("3: a Needle") && shown.contains("not above"), "{shown}");
    rig.keys("<Down><Down>");
    assert!(rig.draw().contains("23: a Needle"));
    assert_eq!(rig.keys("<Esc>hi<Enter>"), [UserAction::SendLine("hi".to_owned())]);
}

#[test]
fn a_text_for_the_clipboard_is_taken_once() {
    let mut rig = ScreenFixture::new(60, 8);
    rig.screen.handle_output(ChatOutput::Clipboard("abc".to_owned()));
    assert!(rig.draw().contains("copied: 3 characters"));
    assert_eq!(rig.screen.take_clipboard().as_deref(), Some("abc"));
    assert_eq!(rig.screen.take_clipboard(), None);
}

#[test]
fn changes_are_shown_as_a_diff() {
    let mut rig = ScreenFixture::new(40, 10);
    rig.screen.handle_output(ChatOutput::Diff("@@ -1 +1 @@\n-old\n+new\x1b[2J\n".to_owned()));
    let shown = rig.draw();
    assert!(shown.contains("  @@ -1 +1 @@\n  -old\n  +new"), "{shown}");
}

#[test]
fn esc_interrupts_who_is_at_work_and_else_clears() {
    let mut rig = ScreenFixture::new(40, 8);
    rig.screen.handle_output(ChatOutput::Status(Box::new(ConversationStatus {
        busy: Some(String::new()),
        ..status()
    })));
    assert_eq!(rig.keys("draft<Esc>"), [UserAction::Interrupt]);
    rig.screen.handle_output(ChatOutput::Status(Box::new(status())));
    assert!(rig.draw().contains("draft"), "what was typed stays");
    assert_eq!(rig.keys("<Esc>"), []);
    assert!(!rig.draw().contains("draft"));
    assert_eq!(rig.keys("<Esc>"), []);
}

#[test]
fn the_past_is_scrolled_to_and_asked_for() {
    let mut rig = ScreenFixture::new(30, 10);
    for number in 0..20 {
        rig.say(EntryRole::System, &format!("line {number}"));
    }
    rig.draw();
    assert_eq!(rig.screen.handle_event(&wheel(MouseEventKind::ScrollUp)), []);
    rig.say(EntryRole::System, "line 20");
    rig.check(expect![[r#"
          line 10
          line 11
          line 12
          line 13
          line 14
          line 15
          line 16   ↓ 1 new · Ctrl+End
        ──────────────────────────────
        ›
    "#]]);
    assert_eq!(rig.keys("<PgUp>"), []);
    let of = ChatSpeaker::Coordinator;
    assert_eq!(rig.keys("<PgUp><PgUp><S-Up>"), [UserAction::LoadOlder { of: of.clone() }]);
    let entries = vec![ConversationEntry::new(EntryRole::System, "older", now())];
    rig.screen.handle_output(ChatOutput::OlderEntries { of, entries, has_more: false });
    assert_eq!(rig.keys("<S-Up><S-Up>"), []);
    rig.check(expect![[r#"
          older
          line 0
          line 1
          line 2
          line 3
          line 4
          line 5    ↓ 1 new · Ctrl+End
        ──────────────────────────────
        ›
    "#]]);
    rig.keys("<C-End>");
    assert!(rig.draw().contains("line 20"));
    rig.screen.handle_output(ChatOutput::SessionReplaced);
    assert!(!rig.draw().contains("line"));
}

#[test]
fn narrow_and_tiny_terminals_show_what_they_can() {
    let mut rig = ScreenFixture::new(40, 14);
    rig.screen.handle_output(ChatOutput::Status(Box::new(with_workers(status()))));
    talk(&mut rig);
    rig.keys("some words that take more than one row here");
    rig.check(expect![[r#"
          ✓ Read src/main.rs  1.2s
          · Grep todo

        ● They fail:

          • `a` is missing
          • b

        critic: I doubt it
        ────────────────────────────────────────
        › some words that take more than one row
           here
        [main] coder-1 ▶ +3  coder-2 ✓ ›
        lead · sonnet · $0.1234 · 34k tokens"#]]);
    rig.terminal.backend_mut().resize(10, 3);
    rig.check(expect![[r#"
        doubt it
          ere
        lead"#]]);
    rig.screen.handle_output(ChatOutput::ViewChanged(ChatSpeaker::Worker("coder-1".to_owned())));
    rig.check(expect![[r#"

          ere
        to coder-1"#]]);
    rig.keys("<C-a>");
    rig.terminal.backend_mut().resize(3, 1);
    rig.check(expect!["› s"]);
}

#[test]
fn trouble_is_told_before_all_else() {
    let mut rig = ScreenFixture::new(40, 5);
    rig.screen.handle_output(ChatOutput::Status(Box::new(ConversationStatus {
        trouble: Some("the daemon does not answer".to_owned()),
        ..status()
    })));
    rig.check(expect![[r#"



        ›
        ! the daemon does not answer"#]]);
}

#[test]
fn colours_change_at_once() {
    let mut rig = ScreenFixture::with_theme(50, 20, TerminalTheme::dark());
    talk(&mut rig);
    let colours = |rig: &mut ScreenFixture| {
        rig.draw();
        let cells = rig.terminal.backend().buffer().content().to_vec();
        cells.iter().filter(|cell| cell.fg != ratatui::style::Color::Reset).count()
    };
    assert!(colours(&mut rig) > 0);
    rig.screen.handle_output(ChatOutput::ThemeChanged(heeler_chat::ChatTheme::None));
    assert_eq!(colours(&mut rig), 0);
    rig.screen.handle_output(ChatOutput::ThemeChanged(heeler_chat::ChatTheme::Light));
    assert!(colours(&mut rig) > 0);
}

#[test]
fn the_status_line_is_complete_from_the_start() {
    let start = ConversationStatus {
        agent: "lead".to_owned(),
        mode: Some("default".to_owned()),
        model: Some("opus".to_owned()),
        folder: Some("shop".to_owned()),
        branch: Some("main".to_owned()),
        context_tokens: Some(0),
        ..ConversationStatus::default()
    };
    let line = |status: &ConversationStatus, width: usize| {
        crate::status_line::status_line(status, width, &TerminalTheme::plain()).to_string()
    };
    assert_eq!(line(&start, 80), "lead · default · opus · $0.00 · context 0% · shop (main)");
    assert_eq!(line(&start, 45), "lead · default · opus · $0.00 · context 0%");
    let used = ConversationStatus {
        cost_usd: 0.42,
        context_tokens: Some(34_567),
        context_window: Some(200_000),
        ..start
    };
    assert_eq!(line(&used, 80), "lead · default · opus · $0.42 · context 18% · shop (main)");
    let barely = ConversationStatus { context_tokens: Some(1), ..used.clone() };
    assert!(line(&barely, 80).contains("context 1%"));
    // The agent does not report the limit of its context.
    let unknown = ConversationStatus { context_window: None, ..used };
    assert!(line(&unknown, 80).contains("34k tokens"));
    assert_eq!(line(&ConversationStatus::default(), 80), "");
}

#[test]
fn no_theme_tells_anything_by_colour_alone() {
    let mut texts = vec![];
    for theme in [TerminalTheme::dark(), TerminalTheme::light(), TerminalTheme::plain()] {
        let mut rig = ScreenFixture::with_theme(50, 20, theme);
        talk(&mut rig);
        texts.push(rig.draw());
    }
    assert!(texts.iter().all(|text| *text == texts[0]));
    let mut rig = ScreenFixture::new(50, 20);
    talk(&mut rig);
    rig.draw();
    let buffer = rig.terminal.backend().buffer();
    assert!(buffer.content().iter().all(|cell| {
        (cell.fg, cell.bg) == (ratatui::style::Color::Reset, ratatui::style::Color::Reset)
    }));
}

#[test]
fn a_second_column_goes_on_below_itself_or_gets_lines_of_its_own() {
    let text = "/cost      what this session has cost\n/undo      take the last turn back\nid  a short one";
    let mut rig = ScreenFixture::new(40, 12);
    rig.screen.handle_output(ChatOutput::Notice(text.to_owned()));
    let seen = rig.draw();
    assert!(seen.contains("  /cost      what this session has cost\n"), "{seen}");
    let mut rig = ScreenFixture::new(36, 12);
    rig.screen.handle_output(ChatOutput::Notice(text.to_owned()));
    let seen = rig.draw();
    assert!(seen.contains("  /cost      what this session has\n             cost\n"), "{seen}");
    let mut rig = ScreenFixture::new(24, 12);
    rig.screen.handle_output(ChatOutput::Notice(text.to_owned()));
    let seen = rig.draw();
    assert!(
        seen.contains("  /undo\n      take the last turn\n      back\n  id  a short one\n"),
        "{seen}"
    );
}

#[test]
fn where_nothing_was_said_yet_it_says_what_to_do() {
    let mut rig = ScreenFixture::new(70, 5);
    assert!(!rig.draw().contains("/help"), "nobody knows yet what there is");
    rig.screen.handle_output(ChatOutput::OlderEntries {
        of: ChatSpeaker::Coordinator,
        entries: vec![],
        has_more: false,
    });
    assert!(
        rig.draw().contains("  Type a message and press Enter; /help lists commands and keys.")
    );
    let entry = ConversationEntry::new(EntryRole::User, "hello", now());
    rig.screen.handle_output(ChatOutput::Entry { of: ChatSpeaker::Coordinator, entry });
    assert!(!rig.draw().contains("/help"));
}
