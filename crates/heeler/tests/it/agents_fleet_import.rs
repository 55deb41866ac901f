//! Sessions of agents-fleet after an import: one set of IDs, history, workers and search.

use std::io::Write as _;
use std::process::Stdio;

use serde_json::json;

use crate::fleet::{Fleet, Ran};
use crate::trigger::{ended, fleet, scripted};

/// A fleet with an imported session of agents-fleet.
fn imported() -> Fleet {
    let fleet = fleet(&[("lead", &scripted("{say: 'I heard: {prompt}'}"))]);
    let roster = r#"[{"agentId":"scout","transcriptPath":"scout.ndjson"}]"#;
    let json = format!(r#"{{"id":"was-other","schemaVersion":2,"workers":{roster}}}"#);
    fleet.write("theirs/sessions/old-one.json", &json);
    let lines = "{\"role\":\"user\",\"content\":\"Paint it blue.\"}\n\
        {\"role\":\"system\",\"content\":\"Loop stopped\"}\n\
        {\"role\":\"tool\",\"name\":\"view\",\"args\":{\"path\":\"door.txt\"}}\n\
        {\"role\":\"assistant\",\"content\":\"It is blue.\"}\n";
    fleet.write("theirs/sessions/old-one.transcript.ndjson", lines);
    let lines = "{\"role\":\"system\",\"content\":\"Worker spawned\"}\n\
        {\"role\":\"assistant\",\"content\":\"I found turquoise paint.\"}\n";
    fleet.write("theirs/sessions/old-one.workers/scout.ndjson", lines);
    let ran = fleet.run(&["import", "agents-fleet", "theirs"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let told = format!("{}{}", ran.stdout, ran.stderr);
    assert!(told.contains("old-one.json has the id `was-other`; its file name is used"), "{told}");
    fleet
}

/// Sends lines to a conversation.
fn chat(fleet: &Fleet, args: &[&str], lines: &str) -> Ran {
    let mut command = fleet.command(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    ended(child)
}

#[test]
fn an_imported_session_shows_its_entries_under_both_ids() {
    let fleet = imported();
    let page = fleet.json(&["session", "list", "--agent", "interactive", "--json"]);
    let id = page["sessions"][0]["id"].as_str().unwrap().to_owned();
    for id in [id.as_str(), "old-one"] {
        let past = fleet.run(&["session", "show", id, "--history"]);
        assert_eq!(past.code, Some(0), "{}", past.stderr);
        for part in ["Paint it blue.", "[system] Loop stopped", "view", "It is blue."] {
            assert!(past.stdout.contains(part), "{part}: {}", past.stdout);
        }
        assert!(past.stderr.contains("messages 1 to 4 of 4"), "{}", past.stderr);
    }
    let page = fleet.json(&["session", "show", "old-one", "--history", "--json"]);
    assert_eq!(page["total"], json!(4), "{page:#}");
}

#[test]
fn an_imported_session_is_resumed_by_both_ids_and_tells_the_agent_its_history() {
    let fleet = imported();
    let page = fleet.json(&["session", "list", "--agent", "interactive", "--json"]);
    let id = page["sessions"][0]["id"].as_str().unwrap().to_owned();
    let lines = "/workers\nNow green.\n";
    let said = chat(&fleet, &["chat", "lead", "--resume", &id, "--no-insights"], lines);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stdout.contains("\nscout  done"), "{}", said.stdout);
    let told = "I heard: Now green.\n\n(Earlier in this conversation:\nuser: Paint it blue.\nassistant: It is blue.)";
    assert!(said.stdout.contains(told), "{}", said.stdout);
    assert!(said.stderr.contains("Resume: heeler --resume old-one"), "{}", said.stderr);
    let said = chat(&fleet, &["--resume", "old-one", "--no-insights"], "Thanks.\n");
    assert!(said.stdout.ends_with("I heard: Thanks.\n"), "{}", said.stdout);
}

#[test]
fn text_of_an_imported_worker_is_found() {
    let fleet = imported();
    let found = fleet.run(&["search", "turquoise"]).ok();
    assert!(found.contains("I found turquoise paint."), "{found}");
}

#[test]
fn a_session_of_another_program_in_a_fleet_with_several_agents_is_resumed_as_the_hint_says() {
    let fleet = fleet(&[
        ("lead", &scripted("{say: 'I am lead.'}")),
        ("other", &scripted("{say: 'I am other.'}")),
    ]);
    fleet.write("home/.fleet/sessions/old-two.json", r#"{"schemaVersion":3}"#);
    let line = "{\"role\":\"user\",\"content\":\"hello\"}\n";
    fleet.write("home/.fleet/sessions/old-two.transcript.ndjson", line);
    let told = chat(&fleet, &["--resume", "old-two"], "").fails(2);
    assert!(told.contains("heeler chat lead --resume old-two"), "{told}");
    let said = chat(&fleet, &["chat", "lead", "--resume", "old-two", "--no-insights"], "");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stderr.contains("Nothing was changed in session old-two"), "{}", said.stderr);
    assert!(!said.stderr.contains("Session saved"), "{}", said.stderr);
}
