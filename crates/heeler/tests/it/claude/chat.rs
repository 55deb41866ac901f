//! The real claude in a conversation on a terminal.

use std::process::Command;

use expect_test::expect;
use heeler_testkit::{MessagesApi, ModelScript, ModelScriptStep, claude};
use serde_json::json;

use crate::chat_lines::session;
use crate::chat_screen::{answered, leave};
use crate::fleet::Fleet;
use crate::pty::{ENTER, ESC, Pty};
use crate::trigger::wait_for;

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

#[test]
fn a_permission_for_always_holds_in_later_conversations_until_it_is_forgotten() {
    let api = MessagesApi::start();
    let fleet = Fleet::empty();
    let lead = json!({
        "name": "lead", "runtime": "sdk", "claude_path": claude(), "setting_sources": [],
        "permission_mode": "default", "sandbox": false,
    });
    fleet.write("heeler.yaml", &json!({"agents": [lead]}).to_string());
    let init = |name: &str| json!({"command": format!("git init {name}")});
    let kept = || fleet.run(&["agent", "show", "lead", "--json"]).ok();
    assert!(!kept().contains("Bash(git init"));

    let pty = chat(&fleet, &api, &["chat"]);
    say(&pty, "One.", &ModelScript::new().tool("Bash", init("a")).text("The first."));
    // The rule is shown before it is kept.
    pty.shows("3. allow always: Bash(git init *)");
    pty.type_in("3");
    answered(&pty, "● The first.");
    leave(pty);
    assert!(fleet.file("a/.git").exists());
    wait_for("the rule", || kept().contains("Bash(git init *)").then_some(()));

    // Another conversation, another process.
    let pty = chat(&fleet, &api, &["chat"]);
    say(&pty, "Two.", &ModelScript::new().tool("Bash", init("b")).text("The second."));
    answered(&pty, "● The second.");
    assert!(fleet.file("b/.git").exists());
    leave(pty);

    let reply = fleet.run(&["agent", "forget-permissions", "lead"]).ok();
    assert!(reply.contains("1 permission that a person gave lead is forgotten"), "{reply}");
    assert!(!kept().contains("Bash(git init"));
    let pty = chat(&fleet, &api, &["chat"]);
    say(&pty, "Three.", &ModelScript::new().tool("Bash", init("c")).text("The third."));
    pty.shows("? the agent wants to use Bash");
    // Deny it.
    pty.type_in("4");
    answered(&pty, "● The third.");
    assert!(!fleet.file("c").exists());
    leave(pty);
}

#[test]
fn a_job_whose_request_is_approved_always_is_not_asked_again() {
    let api = MessagesApi::start();
    let fleet = Fleet::empty();
    let lead = json!({
        "name": "lead", "runtime": "sdk", "claude_path": claude(), "setting_sources": [],
        "permission_mode": "default", "sandbox": false, "approvals": "interactive",
    });
    fleet.write("heeler.yaml", &json!({"agents": [lead]}).to_string());
    let run = |args: &[&str]| {
        let status = with_api(&mut fleet.command(args), &api).status().unwrap();
        assert!(status.success(), "{args:?}");
    };
    run(&["start", "--detach", "-q"]);
    let trigger = |name: &str| {
        let command = json!({"command": format!("git init {name}")});
        let script = ModelScript::new().tool("Bash", command).text("It is there.");
        run(&["trigger", "lead", "--detach", "-q", "-p", &format!("Go. {script}")]);
    };
    let completed = |count: usize| {
        wait_for("the end of a job", || {
            let jobs = fleet.jobs();
            let is_done = |status| status == heeler_model::JobStatus::Completed;
            let done = jobs.iter().filter(|job| is_done(job.head.status)).count();
            (done == count).then_some(())
        });
    };
    trigger("a");
    let id = wait_for("a question", || {
        let open = fleet.json(&["approvals", "list", "--json"]);
        open["approvals"].get(0).map(|it| it["id"].as_str().unwrap().to_owned())
    });
    let shown = fleet.run(&["approvals", "show", &id]).ok();
    let offered = "With --always, later runs are not asked about: Bash(git init *)";
    assert!(shown.contains(offered), "{shown}");
    let said = fleet.run(&["approvals", "approve", &id, "--always"]).ok();
    assert!(said.contains("and always: Bash(git init *)"), "{said}");
    completed(1);
    assert!(fleet.file("a/.git").exists());
    let shown = fleet.run(&["agent", "show", "lead"]).ok();
    assert!(shown.contains("Bash(git init *)"), "{shown}");

    trigger("b");
    completed(2);
    assert!(fleet.file("b/.git").exists());
    let all = fleet.json(&["approvals", "list", "--all", "--json"]);
    assert_eq!(all["approvals"].as_array().unwrap().len(), 1, "{all}");
    fleet.run(&["stop", "-q"]).ok();
}
