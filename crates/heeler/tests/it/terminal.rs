//! Jobs on a terminal: what is shown there, and what is asked.

use std::io::{BufReader, Read as _, Write as _};
use std::process::{Child, Stdio};

use crate::fleet::Fleet;
use crate::trigger::{fleet, scripted};

/// A terminal that `heeler` runs in, 80 columns wide.
pub(crate) struct Terminal {
    child: Child,
    screen: BufReader<std::process::ChildStdout>,
    seen: String,
}

impl Terminal {
    pub(crate) fn start(fleet: &Fleet, command: &str) -> Terminal {
        Terminal::shell(fleet, &format!("exec heeler {command}"))
    }

    /// A shell that is given this line.
    pub(crate) fn shell(fleet: &Fleet, line: &str) -> Terminal {
        let heeler = format!("{} ", env!("CARGO_BIN_EXE_heeler"));
        let line = format!("stty cols 80; {}", line.replace("heeler ", &heeler));
        let mut script = fleet.command(&[]);
        let envs: Vec<_> =
            script.get_envs().map(|(k, v)| (k.to_owned(), v.unwrap().to_owned())).collect();
        script = std::process::Command::new("script");
        script.args(["-qefc", &line, "/dev/null"]).env_clear().envs(envs).env("TERM", "xterm");
        script.current_dir(fleet.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = script.spawn().unwrap();
        let screen = BufReader::new(child.stdout.take().unwrap());
        Terminal { child, screen, seen: String::new() }
    }

    #[track_caller]
    pub(crate) fn wait_for(&mut self, text: &str) {
        let mut piece = [0; 4096];
        while !self.seen.contains(text) {
            let count = self.screen.read(&mut piece).unwrap();
            assert_ne!(count, 0, "waited for {text:?}, saw {:?}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&piece[..count]));
        }
        let end = self.seen.find(text).unwrap() + text.len();
        self.seen.drain(..end);
    }

    pub(crate) fn type_in(&mut self, text: &str) {
        self.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        self.screen.read_to_string(&mut self.seen).unwrap();
        (self.child.wait().unwrap().code(), self.seen)
    }
}

#[test]
fn questions_are_asked_and_answered_on_a_terminal() {
    let fleet = fleet(&[(
        "coder",
        &scripted(
            "{write: a.txt, text: hi, ask_permission: true}, {write: b.txt, text: hi, ask_permission: true}, \
             {question: 'Which colour?', options: [red, green]}, {say: 'It is {answer}.'}",
        ),
    )]);
    let mut terminal = Terminal::start(&fleet, "trigger coder");
    terminal.wait_for("Write");
    terminal.wait_for("allow it? `y`, `n`");
    terminal.type_in("y\n");
    terminal.wait_for("b.txt");
    terminal.wait_for("allow it? `y`, `n`");
    terminal.type_in("rather not\n");
    terminal.wait_for("2. green");
    terminal.wait_for("a number, or your own answer:");
    terminal.type_in("2\n");
    let (code, rest) = terminal.end();
    assert_eq!(code, Some(0), "{rest}");
    assert!(rest.contains("It is green."), "{rest}");
    assert_eq!(fleet.read("a.txt"), "hi");
    assert!(!fleet.file("b.txt").exists());
    let job = fleet.jobs().remove(0);
    let log = fleet.read(&format!(".heeler/jobs/{}.jsonl", job.head.id));
    assert!(log.contains("rather not"), "the reason is told to the agent and recorded: {log}");
    let list = fleet.json(&["approvals", "list", "--all", "--json"]);
    let answered: Vec<_> = list["approvals"]
        .as_array()
        .unwrap()
        .iter()
        .map(|approval| {
            let id = approval["id"].as_str().unwrap();
            let shown = fleet.json(&["approvals", "show", id, "--json"])["approval"].clone();
            assert!(!shown["respondedBy"].as_str().unwrap().is_empty(), "{shown}");
            assert!(shown["deliveredAt"].is_string() && shown["respondedAt"].is_string());
            format!("{} {} {}", shown["kind"], shown["status"], shown["response"])
        })
        .collect();
    let expected = [
        r#""question" "approved" "green""#,
        r#""permission" "rejected" "rather not""#,
        r#""permission" "approved" null"#,
    ];
    assert_eq!(answered, expected, "answers of a terminal are on record");
}

#[test]
fn what_is_typed_before_a_question_does_not_answer_it() {
    let wait = |file: &str| format!("{{run: 'until test -e {file}; do sleep 0.01; done'}}");
    let ask = |file: &str| format!("{{write: {file}, text: hi, ask_permission: true}}");
    let steps = [wait("go"), ask("a.txt"), wait("on"), ask("b.txt")].join(", ");
    let fleet = fleet(&[("coder", &scripted(&format!("{{say: Thinking.}}, {steps}")))]);
    let mut terminal = Terminal::start(&fleet, "trigger coder");
    terminal.wait_for("Thinking.");
    for (go, answer) in [("go", "no\n"), ("on", "n\n")] {
        terminal.type_in("yes\n");
        terminal.wait_for("yes");
        fleet.write(go, "");
        terminal.wait_for("allow it? `y`, `n`");
        terminal.type_in(answer);
    }
    let (code, rest) = terminal.end();
    assert_eq!(code, Some(0), "{rest}");
    assert!(!fleet.file("a.txt").exists() && !fleet.file("b.txt").exists());
}

#[test]
fn after_the_end_of_input_every_question_is_denied_at_once() {
    let ask = |file: &str| format!("{{write: {file}, text: hi, ask_permission: true}}");
    let steps = [ask("a.txt"), ask("b.txt"), "{say: Done.}".to_owned()].join(", ");
    let fleet = fleet(&[("coder", &scripted(&steps))]);
    let mut terminal = Terminal::start(&fleet, "trigger coder");
    terminal.wait_for("allow it? `y`, `n`");
    terminal.type_in("\u{4}");
    let (code, rest) = terminal.end();
    assert_eq!(code, Some(0), "{rest}");
    assert_eq!(
        rest.matches("denied, because there is no one left to answer: Write").count(),
        2,
        "{rest}"
    );
    assert!(!fleet.file("a.txt").exists() && !fleet.file("b.txt").exists());
}

#[test]
fn what_an_agent_says_cannot_steer_the_terminal() {
    let evil = r#"{say: "a\e[2Jb\e]0;title\a\u009bc", chunks: 9}, {run: "printf '\\033[31mred'"}"#;
    let fleet = fleet(&[("coder", &scripted(evil))]);
    let (code, seen) = Terminal::start(&fleet, "trigger coder").end();
    assert_eq!(code, Some(0), "{seen:?}");
    assert!(
        !seen.contains("\u{1b}[2J") && !seen.contains("\u{1b}]") && !seen.contains('\u{9b}'),
        "{seen:?}"
    );
    assert!(seen.contains("✓ completed"), "{seen:?}");
    let last = seen.rfind("\u{1b}[K").map_or("", |at| &seen[at..]);
    assert!(!last.contains('⠋'), "no moving sign is left on the screen: {seen:?}");
}

#[test]
fn where_the_prompt_comes_from_standard_input_the_terminal_is_asked() {
    let steps = "{question: 'Which colour?', options: [red, green]}, {say: '{prompt} {answer}.'}";
    let fleet = fleet(&[("coder", &scripted(steps))]);
    let mut terminal = Terminal::shell(&fleet, "echo 'It is' | heeler trigger coder -p -");
    terminal.wait_for("a number, or your own answer:");
    terminal.type_in("2\n");
    let (code, rest) = terminal.end();
    assert_eq!(code, Some(0), "{rest}");
    assert!(rest.contains("It is green."), "{rest}");
}

#[test]
fn a_number_that_stands_for_nothing_is_asked_for_again() {
    let steps = "{question: 'Which colour?', options: [red, green]}, {say: 'It is {answer}.'}";
    let fleet = fleet(&[("coder", &scripted(steps))]);
    let mut terminal = Terminal::start(&fleet, "trigger coder");
    terminal.wait_for("a number, or your own answer:");
    terminal.type_in("3\n");
    terminal.wait_for("there is no option 3: choose 1 to 2");
    terminal.wait_for("a number, or your own answer:");
    terminal.type_in("1\n");
    let (code, rest) = terminal.end();
    assert_eq!(code, Some(0), "{rest}");
    assert!(rest.contains("It is red."), "{rest}");
}

#[test]
fn a_long_answer_is_shown_once_and_whole_on_a_terminal() {
    let steps = r#"{run: "seq 30000"}, {say: "{output}", chunks: 5}"#;
    let fleet = fleet(&[("coder", &scripted(steps))]);
    let (code, seen) = Terminal::start(&fleet, "trigger coder").end();
    assert_eq!(code, Some(0));
    // The line that says what goes on may have been drawn and erased between two pieces.
    let shown = seen.lines().map(|line| line.rsplit("\u{1b}[K").next().unwrap().trim());
    let numbers: Vec<u32> = shown.filter_map(|line| line.parse().ok()).collect();
    assert!(numbers.into_iter().eq(1..=30_000), "each line once, in order");
}

/// Markdown with text of each kind, and with what would control a terminal.
const MARKDOWN: &str = "# The plan\\n\\nSome **bold** words and a sentence that is longer than a narrow terminal.\\n\\n\
    | file | lines |\\n|---|--:|\\n| a.rs | 12 |\\n\\n```sh\\nmake  test\\n```\\n\\n- one&#27;[2J\\n- two\\n\\nThe end.";

/// Returns the rows that a terminal of so many columns shows.
fn rows(seen: &str, columns: u16) -> Vec<String> {
    let size = |number: u16| std::num::NonZero::new(number).unwrap();
    let mut terminal = vt100::Parser::new(size(200), size(columns), 0);
    terminal.process(seen.as_bytes());
    let screen = terminal.screen();
    // Lines of the program itself may be longer.
    let wrapped = (0..200).filter(|row| screen.row_wrapped(*row));
    let wrapped: Vec<String> =
        wrapped.map(|row| screen.contents_between(row, 0, row, columns)).collect();
    let is_of_agent = |row: &String| row.contains("sentence") || row.contains("file");
    assert!(!wrapped.iter().any(is_of_agent), "a line is too long: {wrapped:?}");
    screen.rows(0, columns).map(|row| row.trim_end().to_owned()).collect()
}

#[track_caller]
fn assert_rendered(rows: &[String], margin: &str) {
    let is_shown = |text: &str| rows.iter().any(|row| row.trim() == text || row.ends_with(text));
    for text in ["The plan", "file │ lines", "a.rs │    12", "make  test", "• two", "The end."]
    {
        assert!(is_shown(text), "{text:?} is missing: {rows:#?}");
    }
    let all = rows.join("\n");
    assert!(all.contains(&format!("{margin}• one\\u{{1b}}[2J")), "{all}");
    assert!(!all.contains("**") && !all.contains("```") && !all.contains("|--"), "{all}");
}

#[test]
fn markdown_is_laid_out_on_a_terminal_of_any_width() {
    let fleet = fleet(&[("coder", &scripted(&format!("{{say: \"{MARKDOWN}\", chunks: 9}}")))]);
    for columns in [45, 80] {
        let line = format!("stty cols {columns}; exec heeler trigger coder 2>/dev/null");
        let (code, seen) = Terminal::shell(&fleet, &line).end();
        assert_eq!(code, Some(0), "{seen:?}");
        assert!(seen.contains("\u{1b}[1m") && !seen.contains("\u{1b}[2J"), "{seen:?}");
        assert_rendered(&rows(&seen, columns), "");
        let job = fleet.jobs().remove(0).head;
        let session = fleet.json(&["session", "list", "--json"])["sessions"][0]["id"].clone();
        let session = session.as_str().unwrap();
        let logs = format!("logs --job {}", job.id);
        for command in [logs.as_str(), &format!("session show {session} --history")] {
            let line = format!("stty cols {columns}; exec heeler {command} 2>/dev/null");
            let (code, seen) = Terminal::shell(&fleet, &line).end();
            assert_eq!(code, Some(0), "{seen:?}");
            assert!(!seen.contains("\u{1b}[2J"), "{seen:?}");
            assert_rendered(&rows(&seen, columns), "  ");
        }
    }
}

#[test]
fn a_program_reads_markdown_as_the_agent_wrote_it() {
    let fleet = fleet(&[("coder", &scripted(&format!("{{say: \"{MARKDOWN}\"}}")))]);
    let ran = fleet.run(&["trigger", "coder"]);
    assert!(
        ran.stdout.contains("Some **bold** words") && ran.stdout.contains("|---|--:|"),
        "{}",
        ran.stdout
    );
    let ran = fleet.run(&["logs", "coder"]);
    assert!(
        ran.stdout.contains("Some **bold** words") && ran.stdout.contains("```sh"),
        "{}",
        ran.stdout
    );
    let mut terminal = Terminal::shell(&fleet, "TERM=dumb heeler trigger coder");
    terminal.wait_for("Some **bold** words");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn the_output_of_a_command_is_no_markdown() {
    let fleet = fleet(&[("lister", "runtime: command\ncommand: echo '# a  **b**'")]);
    let mut terminal = Terminal::start(&fleet, "trigger lister");
    terminal.wait_for("# a  **b**");
    assert_eq!(terminal.end().0, Some(0));
    let mut terminal = Terminal::start(&fleet, "logs lister");
    terminal.wait_for("# a  **b**");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn messages_and_results_of_a_workflow_are_laid_out_on_a_terminal() {
    let fleet = fleet(&[("coder", &scripted(&format!("{{say: \"{MARKDOWN}\"}}")))]);
    fleet.write(
        "workflows/plan.yaml",
        "name: plan\nagent: coder\nphases:\n  - {name: think, prompt: Think.}\n",
    );
    let line = "stty cols 45; exec heeler workflow run plan 2>/dev/null";
    let (code, seen) = Terminal::shell(&fleet, line).end();
    assert_eq!(code, Some(0), "{seen:?}");
    assert_rendered(&rows(&seen, 45), "");
}

#[test]
fn a_person_with_a_screen_reader_answers_questions_by_lines() {
    let fleet = fleet(&[(
        "coder",
        &scripted(
            "{write: a.txt, text: hi, ask_permission: true}, {write: b.txt, text: hi, ask_permission: true}, \
             {say: '**Done** with it.'}",
        ),
    )]);
    let mut terminal = Terminal::start(&fleet, "chat coder --screen-reader");
    terminal.type_in("go\n");
    terminal.wait_for("Write");
    terminal.wait_for("allow it? `y`, `n`");
    terminal.type_in("y\n");
    terminal.wait_for("b.txt");
    terminal.wait_for("allow it? `y`, `n`");
    terminal.type_in("rather not\n");
    terminal.wait_for("**Done** with it.");
    terminal.type_in("/exit\n");
    let (code, rest) = terminal.end();
    assert_eq!(code, Some(0), "{rest}");
    assert!(!rest.contains("\u{1b}[?1049h"), "no screen is opened: {rest:?}");
    assert_eq!(fleet.read("a.txt"), "hi");
    assert!(!fleet.file("b.txt").exists());
}
