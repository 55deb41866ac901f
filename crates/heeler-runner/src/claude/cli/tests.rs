//! Captured one-shot runs of claude, replayed.

use heeler_model::message::MessageBody;
use serde_json::json;

use super::*;

fn cli(allowed: Option<&[&str]>) -> Result<ClaudeCliRuntime, AllowedToolsError> {
    let listed = allowed.map(|list| list.iter().map(|entry| (*entry).to_owned()).collect());
    let brief = heeler_model::run::ClaudeLaunchSpec { allowed_tools: listed, ..Default::default() };
    let (limits, mcp) = (Default::default(), json!({}));
    let (injected, long_running) = (Vec::new(), false);
    ClaudeCliRuntime::new(
        "hello".to_owned(),
        ClaudeLaunchOptions { brief, limits, mcp, injected, long_running },
    )
}

#[test]
fn the_prompt_is_all_that_is_said() {
    let mut cli = cli(None).unwrap();
    assert_eq!(
        cli.begin(Uuid::nil()),
        [RuntimeEffect::Write(b"hello".to_vec()), RuntimeEffect::CloseInput]
    );
    assert_eq!(cli.send_message(Uuid::nil(), "more"), None);
    assert_eq!(cli.deliver_mcp_reply("a", json!({})), []);
    assert_eq!(cli.interrupt(), [RuntimeEffect::Signal(Signal::INT)]);
}

#[test]
fn a_list_that_cannot_be_held_is_refused() {
    assert!(cli(Some(&["Read", "mcp__github__*"])).is_ok());
    assert!(cli(Some(&["Read", "Bash(git *)"])).is_err());
}

#[test]
fn every_captured_run_ends_with_its_last_result() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    let mut runs = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "io") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        if text.lines().any(|line| line.split(' ').nth(1) == Some(">")) {
            continue;
        }
        let mut cli = cli(None).unwrap();
        cli.begin(Uuid::nil());
        let said = text.lines().filter_map(|line| line.split_once(" < ").map(|(_, said)| said));
        let steps: Vec<RuntimeEffect> =
            said.flat_map(|line| cli.handle_line(line.as_bytes())).collect();
        let result = |step: &&RuntimeEffect| matches!(step, RuntimeEffect::Message(m) if matches!(m.body, MessageBody::Result(_)));
        assert_eq!(steps.iter().filter(result).count(), 1, "{path:?}");
        assert_eq!(
            steps.iter().filter(|step| **step == RuntimeEffect::Done).count(),
            1,
            "{path:?}"
        );
        runs += 1;
    }
    assert!(runs >= 10, "only {runs} captures");
}
