//! The real claude in a conversation on a terminal.

use std::process::Command;

use expect_test::expect;
use heeler_testkit::{MessagesApi, ModelScript, ModelScriptStep, claude};
use serde_json::json;

use crate::chat_lines::session;
use crate::chat_screen::{answered, leave};
use crate::fleet::Fleet;
use crate::pty::{ENTER, ESC, Pty};

/// Starts a conversation, or goes on with one.
pub(super) fn chat(fleet: &Fleet, api: &MessagesApi, args: &[&str]) -> Pty {
    let mut command = fleet.command(&[args, &["--no-insights"]].concat());
    let pty = Pty::of(with_api(&mut command, api));
    pty.shows("lead");
    pty
}

/// Lets the agents of a command use this API.
pub(super) fn with_api<'c>(command: &'c mut Command, api: &MessagesApi) -> &'c mut Command {
    command
        .env("ANTHROPIC_BASE_URL", api.url())
        .env("ANTHROPIC_API_KEY", "mock-api-key")
        .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
        .env("CLAUDE_CODE_MAX_RETRIES", "1")
}

/// Says something; what the model does about it is in it.
pub(super) fn say(pty: &Pty, words: &str, script: &ModelScript) {
    pty.paste(&format!("{words} {script}"));
    pty.type_in(ENTER);
}

#[test]
fn a_conversation_streams_asks_is_interrupted_left_and_gone_on_with() {
    let api = MessagesApi::start();
    let fleet = Fleet::empty();
    let lead = json!({
        "name": "lead", "runtime": "sdk", "claude_path": claude(), "setting_sources": [],
        "permission_mode": "default",
    });
    fleet.write("heeler.yaml", &json!({"agents": [lead]}).to_string());
    let pty = chat(&fleet, &api, &["chat"]);

    let write = |name: &str| json!({"file_path": fleet.file(name), "content": "hi"});
    let script = ModelScript::new()
        .tool("Write", write("yes.txt"))
        .tool("Write", write("no.txt"))
        .text("All is **written**.");
    say(&pty, "One.", &script);
    pty.shows("? the agent wants to use Write");
    pty.shows("yes.txt");
    pty.type_in("1");
    pty.until("the second request", |screen| {
        screen.contains("✓ Write") && screen.contains("? the agent wants to use Write")
    });
    pty.type_in("4");
    pty.type_in("rather not\r");
    answered(&pty, "● All is written.");
    assert_eq!(fleet.read("yes.txt"), "hi");
    assert!(!fleet.file("no.txt").exists());
    let told = api.messages().last().unwrap().history().join("\n");
    assert!(told.contains("rather not"), "{told}");

    // What is said is on the screen while the rest of it does not come.
    let stalls = ModelScriptStep {
        piece: Some(6),
        stall_after: Some(3),
        ..ModelScriptStep::text("These words are never said to their end.")
    };
    say(&pty, "Two.", &ModelScript::new().step(stalls));
    pty.shows("● These words");
    pty.type_in(ESC);
    answered(&pty, "  interrupted");
    leave(pty);

    let (id, said) = session(&fleet);
    let words = |line: &String| line.split(" MOCK").next().unwrap().to_owned();
    expect![[r#"
        user One.
        assistant All is **written**.
        user Two.
        assistant These words are ne
        system interrupted"#]]
    .assert_eq(&said.iter().map(words).collect::<Vec<_>>().join("\n"));
    let pty = chat(&fleet, &api, &["--resume", &id]);
    pty.shows("● All is written.");
    say(&pty, "Three.", &ModelScript::new().text("It goes on."));
    answered(&pty, "● It goes on.");
    leave(pty);
    let told = api.messages().last().unwrap().history().join("\n");
    for known in ["user: One.", "assistant: All is **written**.", "user: Two.", "user: Three."] {
        assert!(told.contains(known), "{known}: {told}");
    }
    assert_eq!(session(&fleet).1.last().unwrap(), "assistant It goes on.");
}

#[test]
fn a_permission_for_the_conversation_holds_in_later_turns_and_ends_with_it() {
    let api = MessagesApi::start();
    let fleet = Fleet::empty();
    let lead = json!({
        "name": "lead", "runtime": "sdk", "claude_path": claude(), "setting_sources": [],
        "permission_mode": "default",
    });
    fleet.write("heeler.yaml", &json!({"agents": [lead]}).to_string());
    let pty = chat(&fleet, &api, &["chat"]);
    let write = |name: &str| json!({"file_path": fleet.file(name), "content": "hi"});
    let two = ModelScript::new().tool("Write", write("a.txt")).tool("Write", write("b.txt"));
    say(&pty, "One.", &two.text("Both of them."));
    pty.shows("2. allow for this conversation: all edits of files");
    pty.type_in("2");
    answered(&pty, "● Both of them.");
    say(&pty, "Two.", &ModelScript::new().tool("Write", write("c.txt")).text("One more."));
    answered(&pty, "● One more.");
    for name in ["a.txt", "b.txt", "c.txt"] {
        assert_eq!(fleet.read(name), "hi");
    }
    leave(pty);
    let pty = chat(&fleet, &api, &["--resume", &session(&fleet).0]);
    say(&pty, "Three.", &ModelScript::new().tool("Write", write("d.txt")).text("The last."));
    pty.shows("? the agent wants to use Write");
    assert!(!fleet.file("d.txt").exists());
    pty.type_in("1");
    answered(&pty, "● The last.");
    assert_eq!(fleet.read("d.txt"), "hi");
    leave(pty);
}
