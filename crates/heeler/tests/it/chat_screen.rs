//! `heeler chat` in a terminal: what is typed, streamed, folded, asked, resized and stopped.

use expect_test::expect;

use crate::chat_lines::session;
use crate::fleet::Fleet;
use crate::pty::{ALT_ENTER, CTRL_D, CTRL_L, CTRL_O, CTRL_R, CTRL_Z, DOWN, ENTER, ESC, Pty, UP};
use crate::trigger::{fleet, scripted};

/// A fleet with one agent who plays this, and a terminal with that agent.
pub(crate) fn chat(steps: &str) -> (Fleet, Pty) {
    let fleet = fleet(&[("lead", &scripted(steps))]);
    let pty = Pty::start(&fleet, &["chat", "--no-insights"]);
    pty.shows("lead");
    (fleet, pty)
}

/// Waits until the agent has said this and nothing more is to come.
#[track_caller]
pub(crate) fn answered(pty: &Pty, words: &str) {
    pty.until(words, |screen| screen.contains(words) && !screen.contains("Esc interrupts"));
}

/// Leaves by the shortest way, which ends well and gives the terminal back.
#[track_caller]
pub(crate) fn leave(mut pty: Pty) {
    pty.type_in(CTRL_D);
    let (code, screen) = pty.ended();
    assert_eq!(code, Some(0), "{screen}");
    pty.is_given_back();
}

#[test]
fn what_is_typed_in_lines_and_pasted_is_said_as_it_is_and_comes_back_by_a_key() {
    let (fleet, pty) = chat("{say: 'I heard {prompt}.'}");
    pty.type_in("one");
    pty.type_in(ALT_ENTER);
    pty.type_in("and two");
    pty.check(&expect![[r#"
          Type a message and press Enter; /help lists commands and keys.
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        › one
          and two
        lead · $0.00 · context 0%"#]]);
    pty.type_in(ENTER);
    pty.check(&expect![[r#"
        › one
          and two

        ● I heard one
          and two.
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        lead · $0.00 · 15 tokens"#]]);
    let pasted: Vec<String> = (1..=7).map(|line| format!("line {line}")).collect();
    pty.type_in("see ");
    pty.paste(&pasted.join("\r"));
    pty.check(&expect![[r#"
        › one
          and two

        ● I heard one
          and two.
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        › see [pasted #1: 7 lines]
        lead · $0.00 · 15 tokens"#]]);
    pty.type_in(ENTER);
    answered(&pty, "line 7.");
    let said = format!("see {}", pasted.join("\n"));
    assert_eq!(
        session(&fleet).1[2..],
        [format!("user {said}"), format!("assistant I heard {said}.")]
    );
    pty.type_in(UP);
    pty.shows("› see line 1");
    pty.type_in(CTRL_R);
    pty.type_in("and t");
    pty.check(&expect![[r#"
        › one
          and two

        ● I heard one
          and two.

        › see line 1
          line 2
          line 3
          line 4
          line 5
          line 6
          line 7

        ● I heard see line 1
          line 2
          line 3
          line 4
          line 5
          line 6
          line 7.
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        › one
          and two
        search: and t"#]]);
    pty.type_in(ENTER);
    answered(&pty, "and two.\n────");
    assert_eq!(session(&fleet).1[5], "assistant I heard one\nand two.");
    leave(pty);
}

#[test]
fn words_are_on_the_screen_before_they_are_all_said_and_esc_interrupts_them() {
    let (fleet, pty) = chat("{say: 'These words come; those never did.', chunks: 2, delay: 10m}");
    pty.type_in("go\r");
    pty.shows("● These words");
    pty.check(&expect![[r#"
        › go

        ● These words come;
        * thinking TIME · Esc interrupts
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        lead · $0.00"#]]);
    assert_eq!(session(&fleet).1, ["user go"], "what is not said to its end is no entry");
    pty.type_in(ESC);
    pty.check(&expect![[r#"
        › go

        ● These words come;
          interrupted
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        lead · $0.00 · 26 tokens"#]]);
    let said = ["user go", "assistant These words come;", "system interrupted"];
    assert_eq!(session(&fleet).1, said, "what it has said is kept");
    leave(pty);
}

#[test]
fn tools_are_folded_and_unfolded() {
    let (_fleet, pty) =
        chat("{run: 'echo found; echo more'}, {run: 'echo bad >&2; exit 3'}, {say: '**Done.**'}");
    pty.type_in("look\r");
    pty.check(&expect![[r#"
        › look
          ✓ Bash echo found; echo more
          ✗ Bash echo bad >&2; exit 3
            Exit code 3 bad

        ● Done.
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        lead · $0.00 · 134 tokens"#]]);
    pty.type_in(CTRL_O);
    pty.check(&expect![[r#"
        › look
          ✓ Bash echo found; echo more
            command: echo found; echo more
            → found
              more
          ✗ Bash echo bad >&2; exit 3
            command: echo bad >&2; exit 3
            → Exit code 3
              bad

        ● Done.
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        lead · $0.00 · 134 tokens"#]]);
    pty.type_in(CTRL_O);
    pty.hides("→");
    leave(pty);
}

#[test]
fn requests_and_questions_are_answered_in_their_place() {
    let (fleet, pty) = chat(
        "{write: a.txt, text: hi, ask_permission: true}, {write: b.txt, text: hi, ask_permission: true}, \
         {say: 'You said: {output}'}, {question: 'Which colour?', options: [red, green]}, {say: 'It is {answer}.'}",
    );
    pty.type_in("go\r");
    pty.check(&expect![[r#"
        › go
          · Write a.txt
        * waiting for an answer TIME · Esc interrupts
        ? the agent wants to use Write
        │ file_path: a.txt
        │ + hi
        ▸ 1. allow it once
          2. deny it
          3. deny it and say why
        a number or Enter · Esc: deny and end the turn · Tab: type
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        lead · $0.00"#]]);
    // What is being typed is no answer.
    pty.type_in("\t1");
    pty.shows("› 1");
    assert!(!fleet.file("a.txt").exists());
    pty.type_in("\x7f\t");
    pty.type_in("1");
    pty.shows("│ file_path: b.txt");
    pty.type_in("3");
    pty.type_in("rather not\r");
    pty.check(&expect![[r#"
        › go
          ✓ Write a.txt
            + hi
          ✗ Write b.txt
            rather not

        ● You said: rather not
          · AskUserQuestion Which colour?
        * waiting for an answer TIME · Esc interrupts
        ? the agent asks
        │ Which colour?
        ▸ 1. red
          2. green
          3. another answer, in your own words
        a number or Enter · Esc: no answer, end the turn · Tab: type
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        lead · $0.00"#]]);
    pty.type_in(DOWN);
    pty.type_in(ENTER);
    pty.check(&expect![[r#"
        › go
          ✓ Write a.txt
            + hi
          ✗ Write b.txt
            rather not

        ● You said: rather not
          ✓ AskUserQuestion Which colour?

        ● It is green.
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        lead · $0.00 · 267 tokens"#]]);
    assert_eq!(fleet.read("a.txt"), "hi");
    assert!(!fleet.file("b.txt").exists());
    leave(pty);
}

#[test]
fn a_window_of_another_size_keeps_what_is_typed_and_what_was_said() {
    let (fleet, pty) = chat("{say: 'I have heard all of it.'}");
    pty.type_in("first\r");
    answered(&pty, "● I have");
    pty.type_in("a line that is longer than a narrow window");
    pty.check(&expect![[r#"
        › first

        ● I have heard all of it.
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        › a line that is longer than a narrow window
        lead · $0.00 · 14 tokens"#]]);
    pty.resize(20, 8);
    pty.check(&expect![[r#"
        › first

        ● I have heard all
          of it.
        ────────────────────
          ger than a narrow
          window
        lead · $0.00"#]]);
    pty.type_in(", typed on");
    pty.resize(200, 60);
    pty.check(&expect![[r#"
        › first

        ● I have heard all of it.
        ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
        › a line that is longer than a narrow window, typed on
        lead · $0.00 · 14 tokens"#]]);
    pty.resize(100, 30);
    // All is drawn anew, and nothing is asked of the terminal for it.
    pty.type_in(CTRL_L);
    pty.type_in(ENTER);
    pty.check(&expect![[r#"
        › first

        ● I have heard all of it.

        › a line that is longer than a narrow window, typed on

        ● I have heard all of it.
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        lead · $0.00 · 40 tokens"#]]);
    assert_eq!(session(&fleet).1[2], "user a line that is longer than a narrow window, typed on");
    leave(pty);
}

/// With a shell around it, as it is where people press Ctrl+Z.
#[test]
fn ctrl_z_gives_the_terminal_to_the_shell_until_fg() {
    let steps = "{say: Before.}, {run: 'until [ -e go ]; do sleep 0.02; done'}, {say: After.}";
    let fleet = fleet(&[("lead", &scripted(steps))]);
    let heeler = env!("CARGO_BIN_EXE_heeler");
    let line = format!(
        "set -m; {heeler} chat --no-insights; echo \"stopped by $?\"; read go; fg; echo \"ended with $?\""
    );
    let mut shell = std::process::Command::new("sh");
    let like = fleet.command(&[]);
    shell.args(["-c", &line]).current_dir(fleet.path()).env_clear();
    shell.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut pty = Pty::of(&shell);
    pty.shows("lead");
    pty.type_in("begin\r");
    pty.shows("● Before.");
    pty.type_in("half");
    pty.shows("› half");
    pty.type_in(CTRL_Z);
    pty.shows("stopped by");
    pty.is_given_back();
    // The agent goes on.
    fleet.write("go", "");
    fleet.wait_until_ended();
    pty.type_in("\n");
    pty.check(&expect![[r#"
        › begin

        ● Before.
          ✓ Bash until [ -e go ]; do sleep 0.02; done

        ● After.
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        › half
        lead · $0.00 · 88 tokens"#]]);
    pty.type_in("\x15");
    pty.hides("half");
    pty.type_in(CTRL_D);
    let (code, screen) = pty.ended();
    assert!(screen.ends_with("ended with 0"), "{code:?} {screen}");
    pty.is_given_back();
}

#[test]
fn commands_of_the_person_run_here_and_files_are_found_by_a_part_of_their_name() {
    let fleet = fleet(&[("lead", &scripted("{say: 'I heard {prompt}.'}"))]);
    for file in ["repo/src/cart.ts", "repo/target/cart.o"] {
        fleet.write(file, "x");
    }
    fleet.write(".gitignore", "target/\n");
    let pty = Pty::start(&fleet, &["chat", "--no-insights"]);
    pty.shows("lead");
    pty.type_in("!echo one; echo two >&2; exit 3\r");
    pty.shows("goes with your next message");
    pty.check(&expect![[r#"
          $ echo one; echo two >&2; exit 3
          one
          two
          (exit status 3)
          (goes with your next message)
        ────────────────────────────────────────────────────────────────────────────────────────────────────
        ›
        lead · $0.00 · context 0% · 1 output attached"#]]);
    pty.type_in("!!echo only shown\r");
    pty.shows("  only shown");
    pty.type_in("why?\r");
    answered(&pty, "● I heard why?");
    let sent =
        "why?\n\nI ran `echo one; echo two >&2; exit 3` (exit status 3):\n```\none\ntwo\n```";
    assert_eq!(
        session(&fleet).1,
        [format!("user {sent}"), format!("assistant I heard {sent}.")],
        "the transcript has what the agent got, and nothing else"
    );
    pty.type_in("see @cart");
    pty.shows("▸ repo/src/cart.ts");
    assert!(!pty.screen().contains("cart.o"), "{}", pty.screen());
    pty.type_in("\t");
    pty.shows("› see @repo/src/cart.ts");
    pty.type_in("\u{3}");
    pty.type_in("!sleep 1000\r");
    pty.shows("running your command");
    pty.type_in(ESC);
    pty.shows("(stopped)");
    leave(pty);
}
