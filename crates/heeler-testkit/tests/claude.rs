//! The pinned claude takes the fake Messages API for the real one.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests start programs")]

use std::process::{Command, Stdio};

use heeler_testkit::{MessagesApi, ModelScript, ModelScriptStep, claude};
use serde_json::{Value as Json, json};

/// Runs claude in a folder of its own and returns its exit code and what it printed.
fn run(api: &MessagesApi, home: &tempfile::TempDir, args: &[&str]) -> (Option<i32>, Vec<Json>) {
    let output = Command::new(claude())
        .args(["-p", "--output-format", "stream-json", "--verbose"])
        .args(args)
        .current_dir(home.path())
        .stdin(Stdio::null())
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .envs([("HOME", home.path()), ("TMPDIR", home.path())])
        .envs([("ANTHROPIC_BASE_URL", api.url()), ("ANTHROPIC_API_KEY", "test")])
        .envs(["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER"].map(|n| (n, "1")))
        .env("CLAUDE_CODE_MAX_RETRIES", "1")
        .output()
        .unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output.status.code(), lines)
}

#[test]
fn claude_plays_tools_thoughts_and_turns_of_a_script() {
    let (api, home) = (MessagesApi::start(), tempfile::tempdir().unwrap());
    let session = "0b0ba0e5-3c5f-4a5c-9a50-c3e6c0f6f6f6";
    let thought = ModelScriptStep { thinking: Some("hm".into()), ..ModelScriptStep::text("done") };
    let script = ModelScript::new().tool("Bash", json!({"command": "echo hi"})).step(thought);
    let (code, said) = run(&api, &home, &[&format!("go {script}"), "--session-id", session]);
    assert_eq!(code, Some(0), "{said:#?}");
    assert_eq!(said.last().unwrap()["result"], "done");
    let again = ModelScript::new().echo();
    let (code, said) = run(&api, &home, &[&format!("on {again}"), "--resume", session]);
    assert_eq!(code, Some(0), "{said:#?}");
    let told = said.last().unwrap()["result"].as_str().unwrap().to_owned();
    for part in
        ["user: go ", "\"Bash\" {\"command\":\"echo hi\"}", "result \"hi\"", "done", "user: on"]
    {
        assert!(told.contains(part), "{part} is not in {told}");
    }
    assert_eq!(api.messages().len(), 3);
    assert_eq!(api.messages()[0].header("x-api-key"), Some("test"));
}

#[test]
fn claude_tries_again_after_failures_of_the_api() {
    let (api, home) = (MessagesApi::start(), tempfile::tempdir().unwrap());
    let script = ModelScript::new().step(ModelScriptStep::error(529).times(1)).text("at last");
    let (code, said) = run(&api, &home, &[&script.to_string()]);
    assert_eq!(code, Some(0), "{said:#?}");
    assert!(said.iter().any(|line| line["subtype"] == "api_retry"), "{said:#?}");
    assert_eq!(said.last().unwrap()["result"], "at last");
    let (code, said) =
        run(&api, &home, &[&ModelScript::new().step(ModelScriptStep::error(500)).to_string()]);
    assert_eq!(code, Some(1), "{said:#?}");
    assert_eq!(said.last().unwrap()["is_error"], true);
}
