//! Conversations in lines, with the real program.

use std::io::Write as _;
use std::process::Stdio;

use crate::fleet::{Fleet, Ran};
use crate::trigger::{ended, fleet, scripted, wait_for};

/// Says lines, one when the one before is answered, and leaves.
fn talk(fleet: &Fleet, args: &[&str], lines: &str) -> Ran {
    let mut command = fleet.command(args);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    ended(child)
}

/// Returns the only session: its id, and the roles and words of its transcript but for tools.
pub(crate) fn session(fleet: &Fleet) -> (String, Vec<String>) {
    try_session(fleet).unwrap()
}

/// The same, if it is there yet.
pub(crate) fn try_session(fleet: &Fleet) -> Option<(String, Vec<String>)> {
    let names = std::fs::read_dir(fleet.file("home/.heeler/sessions")).ok()?;
    let names = names.map(|it| it.unwrap().file_name().into_string().unwrap());
    // A file that is being written is hidden until it is whole.
    let names = names.filter(|name| !name.starts_with('.'));
    let mut ids = names.filter_map(|it| it.strip_suffix(".json").map(str::to_owned));
    let id = ids.next()?;
    assert_eq!(ids.next(), None, "one session");
    let log = fleet.file(&format!("home/.heeler/sessions/{id}.transcript.ndjson"));
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let entry = |line: &str| {
        let entry: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        format!("{} {}", text("role"), text("content"))
    };
    // The last line may still be on its way.
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    Some((id, whole.map(entry).filter(|it| !it.starts_with("tool ")).collect()))
}

#[test]
fn a_conversation_in_lines_is_kept_and_goes_on_in_its_session() {
    let fleet = fleet(&[("lead", &scripted("{say: 'I heard {prompt}.'}"))]);
    let ran = talk(&fleet, &["chat", "--no-insights"], "one\n/exti\n");
    let (id, said) = session(&fleet);
    assert_eq!(said, ["user one", "assistant I heard one."]);
    assert!(ran.stderr.contains("did you mean /exit"), "{}", ran.stderr);
    assert!(ran.stderr.contains(&format!("Resume: heeler --resume {id}\n")), "{}", ran.stderr);
    assert_eq!(ran.ok(), "I heard one.\n");

    let ran = talk(&fleet, &["--resume", &id, "--no-insights"], "two\n");
    assert_eq!(ran.ok(), "I heard one.\nI heard two.\n");
    assert_eq!(session(&fleet).1[2..], ["user two", "assistant I heard two."]);
    // Both turns were said in one session of the agent's.
    let sessions: Vec<_> = fleet.jobs().iter().map(|job| job.head.session_id.clone()).collect();
    assert_eq!(sessions.len(), 2);
    assert_eq!(sessions[0], sessions[1]);
}

#[test]
fn a_session_goes_on_in_the_state_directory_that_it_was_begun_in() {
    let fleet = fleet(&[("lead", &scripted("{say: 'I heard {prompt}.'}"))]);
    fleet.run(&["start", "--until-idle", "-s", "elsewhere"]).ok();
    let begin = ["chat", "--no-insights", "-s", "elsewhere"];
    assert_eq!(talk(&fleet, &begin, "one\n").ok(), "I heard one.\n");
    let (id, _) = session(&fleet);
    let resume = ["--resume", &id, "--no-insights"];
    assert_eq!(talk(&fleet, &resume, "two\n").ok(), "I heard one.\nI heard two.\n");
    assert!(!fleet.file(".heeler").exists(), "nothing was done elsewhere");

    let file = format!("home/.heeler/sessions/{id}.json");
    fleet.write(&file, &fleet.read(&file).replace("/elsewhere\"", "/nowhere\""));
    let told = fleet.run(&["chat", "--resume", &id]).fails(5);
    assert!(told.contains("nowhere no longer exists"), "{told}");
    assert!(told.contains(".heeler continues the session there"), "{told}");
}

#[test]
fn what_an_agent_says_after_a_conversation_was_killed_is_there_when_it_is_resumed() {
    let steps = "{say: Before.}, {run: 'until [ -e go ]; do sleep 0.02; done'}, {say: After.}";
    let fleet = fleet(&[("lead", &scripted(steps))]);
    let mut command = fleet.command(&["chat", "--no-insights"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"begin\n").unwrap();
    wait_for("the first words", || {
        (try_session(&fleet)?.1.last()? == "assistant Before.").then_some(())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    fleet.write("go", "");
    fleet.wait_until_ended();
    let (id, _) = session(&fleet);
    assert_eq!(talk(&fleet, &["--resume", &id, "--no-insights"], "").ok(), "Before.\nAfter.\n");
    let said = ["user begin", "assistant Before.", "assistant After."];
    assert_eq!(session(&fleet).1, said);
}

#[test]
fn a_session_that_is_open_elsewhere_or_unknown_is_refused_with_what_to_do() {
    let fleet = fleet(&[("lead", &scripted("{say: Hi.}")), ("other", &scripted("{say: Ho.}"))]);
    assert!(fleet.run(&["chat"]).fails(2).contains("several agents can chat: lead, other"));
    let told = fleet.run(&["chat", "nobody"]).fails(4);
    assert!(told.contains("heeler chat AGENT, with one of: lead, other"), "{told}");
    assert!(
        fleet.run(&["chat", "--resume", "chat-nope"]).fails(4).contains("no session `chat-nope`")
    );
    let mut command = fleet.command(&["chat", "lead", "--no-insights"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let (id, _) = wait_for("a session", || try_session(&fleet));
    let told = fleet.run(&["chat", "--resume", &id]).fails(5);
    assert!(told.contains("chat"), "{told}");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn another_agent_that_goes_on_with_a_session_is_told_to_know_nothing_of_it() {
    let fleet = fleet(&[("lead", &scripted("{say: Hi.}")), ("other", &scripted("{say: Ho.}"))]);
    talk(&fleet, &["chat", "lead", "--no-insights"], "one\n").ok();
    let (id, _) = session(&fleet);
    let ran = talk(&fleet, &["chat", "other", "--no-insights", "--resume", &id], "two\n");
    let told = "other continues this session, but does not know the messages exchanged with lead\n";
    assert!(ran.stderr.contains(told), "{}", ran.stderr);
    let ran = talk(&fleet, &["chat", "other", "--no-insights", "--resume", &id], "");
    assert!(!ran.stderr.contains("does not know"), "{}", ran.stderr);
    assert_eq!(ran.ok(), "Hi.\nHo.\n");
}

#[test]
fn what_is_asked_where_nobody_can_answer_says_who_can() {
    let asks = "{run: 'echo done', ask_permission: true}, {say: 'It said {output}.'}";
    let agent = format!("{}\napprovals: interactive", scripted(asks));
    let fleet = fleet(&[("lead", &agent)]);
    let mut command = fleet.command(&["chat", "--no-insights"]);
    // A question that is answered before the conversation sees it is not shown.
    let notes = fleet.file("stderr");
    let (input, output) = (Stdio::piped(), Stdio::piped());
    command.stdin(input).stdout(output).stderr(std::fs::File::create(&notes).unwrap());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"/permissions\ngo\n").unwrap();
    let told = "question: Bash (answer it with `heeler approvals`)\n";
    wait_for("the question", || std::fs::read_to_string(&notes).ok()?.contains(told).then_some(()));
    let id = wait_for("the request", || {
        let listed = fleet.run(&["approvals", "list", "--json"]).stdout;
        let listed: serde_json::Value = serde_json::from_str(&listed).ok()?;
        listed["approvals"][0]["id"].as_str().map(str::to_owned)
    });
    fleet.run(&["approvals", "approve", &id]).ok();
    let said = ended(child).ok();
    assert!(
        said.contains("asked    you, by `heeler approvals` (approvals: interactive)"),
        "{said}"
    );
    assert!(said.ends_with("It said done.\n"), "{said}");
}

#[test]
fn a_state_directory_that_was_named_by_mistake_is_told_before_anything_is_said() {
    let fleet = fleet(&[("lead", &scripted("{say: Hi.}"))]);
    let mut command = fleet.command(&["chat", "--no-insights"]);
    command.env("HEELER_STATE_DIR", fleet.file("state"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let told = ended(command.spawn().unwrap());
    assert!(told.stderr.contains("state"), "{}", told.stderr);
    assert_ne!(told.code, Some(0));
    assert!(!fleet.file("state").exists());
    assert!(try_session(&fleet).is_none(), "no session is begun");
}
