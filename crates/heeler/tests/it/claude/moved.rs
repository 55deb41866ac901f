//! Sessions of the real claude as people have them: forked by command, made in a terminal, brought
//! from another machine, grown old, left behind by an agent that moved. What the model is sent tells.

use std::process::{Command, Stdio};

use heeler_testkit::{MessagesApi, ModelScript, claude};
use serde_json::{Value as Json, json};

use crate::fleet::Fleet;
use crate::trigger::wait_for;

/// A fleet with one agent of claude's.
struct Home {
    fleet: Fleet,
    api: MessagesApi,
}

impl Home {
    fn new(session: &Json) -> Home {
        let home = Home { fleet: Fleet::empty(), api: MessagesApi::start() };
        std::fs::create_dir(home.fleet.file("work")).unwrap();
        home.configure(session, "work");
        home
    }

    fn configure(&self, session: &Json, directory: &str) {
        let agent = json!({
            "name": "coder", "runtime": "sdk", "claude_path": claude(), "setting_sources": [],
            "working_directory": directory, "session": session,
        });
        self.fleet.write("heeler.yaml", &json!({"agents": [agent]}).to_string());
    }

    fn env(&self, command: &mut Command) {
        command.env("ANTHROPIC_BASE_URL", self.api.url());
        command.env("ANTHROPIC_API_KEY", "mock-api-key");
        command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
        command.env("CLAUDE_CODE_MAX_RETRIES", "1");
    }

    /// Runs a command of ours that must succeed.
    #[track_caller]
    fn run(&self, args: &[&str]) -> String {
        let mut command = self.fleet.command(args);
        self.env(&mut command);
        crate::fleet::Ran::from(command.output().unwrap()).ok()
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> Json {
        serde_json::from_str(&self.run(&[args, &["--json"]].concat())).unwrap()
    }

    /// Has the agent say something in a session, or as its rules say; returns what the model was sent.
    #[track_caller]
    fn say(&self, session: Option<&str>, prompt: &str, answer: &str) -> Vec<String> {
        let prompt = format!("{prompt} {}", ModelScript::new().text(answer));
        let given = session.map(|id| ["--session", id]);
        let mut args = vec!["trigger", "coder", "-q", "-p", &prompt];
        args.extend(given.iter().flatten());
        self.run(&args);
        self.sent()
    }

    /// What the model was sent last, without the scripts in prompts.
    fn sent(&self) -> Vec<String> {
        let requests = self.api.requests();
        let history = requests.last().expect("the model was asked").history();
        let plain = |line: &String| line.split(" MOCK").next().unwrap().trim().to_owned();
        history.iter().map(plain).collect()
    }

    fn newest(&self) -> String {
        let list = self.json(&["session", "list"]);
        list["sessions"][0]["id"].as_str().unwrap().to_owned()
    }

    /// Talks to claude as a person does, in a terminal in the agent's directory.
    fn by_hand(&self, directory: &str, prompt: &str, answer: &str) {
        self.by_hand_in(&[], directory, prompt, answer);
    }

    fn by_hand_in(&self, session: &[&str], directory: &str, prompt: &str, answer: &str) {
        let mut command = Command::new(claude());
        let prompt = format!("{prompt} {}", ModelScript::new().text(answer));
        command
            .args(["-p", &prompt])
            .args(session)
            .current_dir(self.fleet.file(directory))
            .env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.fleet.file("home")).stdin(Stdio::null());
        self.env(&mut command);
        let done = command.output().unwrap();
        assert!(done.status.success(), "{done:#?}");
    }
}

#[test]
fn forks_of_a_session_of_claudes_have_the_prefix_and_differ() {
    let home = Home::new(&json!({"mode": "persistent"}));
    home.say(None, "one", "First.");
    home.say(None, "two", "Second.");
    let source = home.newest();
    let fork = |at: &str| {
        let made = home.json(&["session", "fork", &source, "--at-message", at]);
        made["id"].as_str().unwrap().to_owned()
    };
    let (early, late) = (fork("2"), fork("4"));
    let sent = home.say(Some(&early), "other", "Other.");
    assert_eq!(sent, ["user: one", "assistant: First.", "user: other"]);
    let sent = home.say(Some(&late), "more", "More.");
    let whole = ["user: one", "assistant: First.", "user: two", "assistant: Second."];
    assert_eq!(sent, [&whole[..], &["user: more"]].concat());
    let sent = home.say(Some(&early), "on", "On.");
    let expected =
        ["user: one", "assistant: First.", "user: other", "assistant: Other.", "user: on"];
    assert_eq!(sent, expected);
    // The source knows nothing of them.
    assert_eq!(home.say(None, "three", "Third."), [&whole[..], &["user: three"]].concat());
}

#[test]
fn a_session_that_was_made_in_a_terminal_is_adopted_and_goes_on_where_it_was_made() {
    let home = Home::new(&json!({}));
    std::fs::create_dir(home.fleet.file("elsewhere")).unwrap();
    home.by_hand("elsewhere", "one", "First.");
    let natives = home.json(&["session", "list", "--native"]);
    let native = natives["sessions"][0]["agentSessionId"].as_str().unwrap();
    // The directory is no working directory of the fleet, so a person agrees to it.
    let adopted = home.json(&["session", "adopt", native, "--as", "coder", "--yes"]);
    let id = adopted["id"].as_str().unwrap();
    assert_eq!(adopted["messageCount"], 2);
    let sent = home.say(Some(id), "two", "Second.");
    assert_eq!(sent, ["user: one", "assistant: First.", "user: two"]);
    let shown = home.json(&["session", "show", id, "--history"]);
    let messages = shown["messages"].as_array().or(shown["history"]["messages"].as_array());
    assert_eq!(messages.map(Vec::len), Some(4), "{shown}");
    let directory = home.json(&["session", "show", id])["session"]["workingDirectory"].clone();
    assert!(directory.as_str().unwrap().ends_with("/elsewhere"), "{directory}");
    // Twice is refused.
    let mut again = home.fleet.command(&["session", "adopt", native, "--as", "coder"]);
    home.env(&mut again);
    assert_eq!(again.output().unwrap().status.code(), Some(5));
}

#[test]
fn an_exported_session_goes_on_on_another_machine_under_another_path() {
    let home = Home::new(&json!({"mode": "persistent"}));
    home.say(None, "one", "First.");
    let source = home.newest();
    home.run(&["session", "export", &source, "-o", "session.json"]);
    let other = Home::new(&json!({"mode": "persistent"}));
    std::fs::copy(home.fleet.file("session.json"), other.fleet.file("session.json")).unwrap();
    let imported = other.json(&["session", "import", "session.json"]);
    let id = imported["id"].as_str().unwrap();
    assert_eq!(id, source);
    other.run(&["session", "export", id, "-o", "again.json"]);
    assert_eq!(home.fleet.read("session.json"), other.fleet.read("again.json"), "a round trip");
    let sent = other.say(Some(id), "two", "Second.");
    assert_eq!(sent, ["user: one", "assistant: First.", "user: two"]);
}

#[test]
fn what_was_said_outside_is_shown_before_and_after_it_is_taken_in() {
    let home = Home::new(&json!({"mode": "persistent"}));
    home.say(None, "one", "First.");
    let id = home.newest();
    let own = home.json(&["session", "show", &id])["session"]["agentSessionId"].clone();
    let key = format!("sk-ant-{}", "a1B2".repeat(10));
    let resume = ["--resume", own.as_str().unwrap()];
    home.by_hand_in(&resume, "work", &format!("by hand with {key}"), "Hand.");
    let marks = || {
        let past = home.json(&["session", "show", &id, "--history"]);
        let mark =
            |it: &Json| (it["number"].as_u64(), it["fromOutside"] == true, it["takenIn"] == true);
        past["messages"].as_array().unwrap().iter().map(mark).collect::<Vec<_>>()
    };
    let ours = [(Some(1), false, true), (Some(2), false, true)];
    let pending = [(None, true, false), (None, true, false)];
    assert_eq!(marks(), [ours, pending].concat());
    let text = home.run(&["session", "show", &id, "--history"]);
    assert!(
        text.contains("from outside Heeler, not imported yet\n  by hand with [secret]"),
        "{text}"
    );
    assert!(!text.contains(&key), "{text}");
    let older = home.json(&["session", "show", &id, "--history", "--before", "3"]);
    assert_eq!(older["messages"].as_array().unwrap().len(), 2, "they are the last ones");

    let prompt = format!("two {}", ModelScript::new().text("Second."));
    home.run(&["trigger", "coder", "-q", "--take-in", "-p", &prompt]);
    let taken = [(Some(3), true, true), (Some(4), true, true)];
    let new = [(Some(5), false, true), (Some(6), false, true)];
    assert_eq!(marks(), [ours, taken, new].concat());
}

#[test]
fn a_session_exported_with_its_files_and_a_fork_that_has_not_begun_go_on_elsewhere() {
    let home = Home::new(&json!({"mode": "persistent"}));
    let git = |args: &[&str]| {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=t", "-c", "user.email=t@localhost"]).args(args);
        assert!(command.current_dir(home.fleet.file("work")).status().unwrap().success());
    };
    git(&["init", "-q"]);
    git(&["commit", "-q", "--allow-empty", "-m", "first"]);
    home.fleet.write("work/file", "at the first turn");
    home.say(None, "one", "First.");
    home.fleet.write("work/file", "later");
    home.say(None, "two", "Second.");
    let source = home.newest();
    let unbegun = home.json(&["session", "fork", &source, "--at-message", "2"]);
    let unbegun = unbegun["id"].as_str().unwrap();
    home.run(&["session", "export", &source, "--workspace", "-o", "whole.json"]);
    home.run(&["session", "export", unbegun, "-o", "fork.json"]);

    let other = Home::new(&json!({"mode": "persistent"}));
    for file in ["whole.json", "fork.json"] {
        std::fs::copy(home.fleet.file(file), other.fleet.file(file)).unwrap();
        other.json(&["session", "import", file]);
    }
    other.run(&["session", "export", &source, "--workspace", "-o", "again.json"]);
    assert!(home.fleet.read("whole.json") == other.fleet.read("again.json"), "a round trip");
    other.run(&["session", "export", unbegun, "-o", "fork-again.json"]);
    assert!(home.fleet.read("fork.json") == other.fleet.read("fork-again.json"), "a round trip");
    let sent = other.say(Some(unbegun), "other", "Other.");
    assert_eq!(sent, ["user: one", "assistant: First.", "user: other"]);
    let made = other.json(&["session", "fork", &source, "--at-message", "2", "--workspace"]);
    let place = made["workspace"].as_str().unwrap();
    let file = std::fs::read_to_string(format!("{place}/file")).unwrap();
    assert_eq!(file, "at the first turn");
    let sent = other.say(made["id"].as_str(), "branch", "Branch.");
    assert_eq!(sent, ["user: one", "assistant: First.", "user: branch"]);
    let sent = other.say(Some(&source), "three", "Third.");
    let whole = ["user: one", "assistant: First.", "user: two", "assistant: Second."];
    assert_eq!(sent, [&whole[..], &["user: three"]].concat());
}

#[test]
fn a_session_that_expired_or_whose_agent_moved_is_not_gone_on_with_and_can_be_named() {
    let brief = json!({"mode": "persistent", "timeout": "1s"});
    let home = Home::new(&brief);
    home.say(None, "one", "First.");
    let first = home.newest();
    wait_for("the session to expire", || {
        let shown = home.json(&["session", "show", &first]);
        let used: jiff::Timestamp =
            shown["session"]["lastActiveAt"].as_str().unwrap().parse().unwrap();
        (jiff::Timestamp::now().duration_since(used).as_millis() > 1100).then_some(())
    });
    assert_eq!(home.say(None, "two", "Second."), ["user: two"]);

    std::fs::create_dir(home.fleet.file("moved")).unwrap();
    home.configure(&json!({"mode": "persistent"}), "moved");
    assert_eq!(home.say(None, "three", "Third."), ["user: three"]);
    let sent = home.say(Some(&first), "four", "Fourth.");
    assert_eq!(sent, ["user: one", "assistant: First.", "user: four"]);
    // What was said in it is in one log, wherever it was said.
    let shown = home.json(&["session", "show", &first]);
    assert_eq!(shown["session"]["messageCount"], 4);
}
