//! API keys that stay outside of the sandbox of an agent that is not Claude.
//!
//! The real programs run in a real sandbox. The fake API tells which key it got, and the agent looks for the
//! key in everything that it can read of its processes.

use camino::Utf8Path;
use heeler_config::{CertifiedAgent, PROXIED_APIS};
use heeler_testkit::{
    ApiRequest, MessagesApi, ModelScript, ModelScriptStep, codex, gemini, goose, node, qwen,
};
use serde_json::{Value as Json, json};

use super::{TestedAgent, shell};
use crate::fleet::{Fleet, Ran};

/// Key of the API, which the agent must not see.
const KEY: &str = "sk-agents-own-4711";

/// Output tokens of each reply.
const REPLY_TOKENS: i64 = 50;

/// Looks for the key in the processes of the sandbox, and leaves what it finds in the working directory.
const SEARCH: &str = "env > env.txt; cat /proc/*/environ > environ.txt 2>/dev/null; \
    cat /proc/*/cmdline > args.txt 2>/dev/null; true";

/// Returns the config of an agent, without its environment.
fn agent_config(agent: CertifiedAgent) -> Json {
    match agent {
        CertifiedAgent::Codex => json!({ "runtime": "codex", "program": codex() }),
        CertifiedAgent::Gemini => {
            let program = json!({ "agent": "gemini", "path": node(), "args": [gemini(), "--acp"] });
            json!({ "runtime": "acp", "program": program })
        }
        CertifiedAgent::Goose => {
            json!({ "runtime": "acp", "program": { "agent": "goose", "path": goose() } })
        }
        CertifiedAgent::Qwen => {
            let program = json!({ "agent": "qwen", "path": node(), "args": [qwen(), "--acp"] });
            json!({ "runtime": "acp", "program": program })
        }
        CertifiedAgent::QwenSdk => {
            let program = json!({ "agent": "qwen", "path": node(), "args": [qwen()] });
            json!({ "runtime": "sdk", "program": program })
        }
        other => panic!("no test uses {other}"),
    }
}

/// A fleet with one sandboxed agent, whose key is in Heeler's environment only.
fn sandboxed_fleet(agent: CertifiedAgent, api: &MessagesApi, key_variable: &str) -> Fleet {
    let fleet = Fleet::empty();
    let home = fleet.file("agent-home");
    let home = Utf8Path::from_path(&home).unwrap();
    let mut env = TestedAgent(agent).write_settings(home, api.url());
    env.shift_remove(key_variable);
    if agent == CertifiedAgent::Codex {
        // With a key, Heeler chooses the provider.
        env.insert("OPENAI_BASE_URL".to_owned(), format!("{}/v1", api.url()));
    }
    let mut config = agent_config(agent);
    for (key, value) in [
        ("name", json!("builder")),
        ("working_directory", json!("work")),
        ("permission_mode", json!("bypassPermissions")),
        ("env", json!(env)),
        ("secrets", json!([key_variable])),
        ("sandbox", json!({ "write": ["agent-home"] })),
    ] {
        config[key] = value;
    }
    fleet.write("heeler.yaml", &json!({ "agents": [config] }).to_string());
    fleet.write("work/README.md", "work\n");
    fleet
}

/// Returns the key that a request has.
fn sent_key(request: &ApiRequest) -> Option<&str> {
    let bearer = request.header("authorization").and_then(|it| it.strip_prefix("Bearer "));
    bearer.or(request.header("x-goog-api-key"))
}

#[track_caller]
fn the_key_stays_outside(agent: CertifiedAgent) {
    let api = MessagesApi::start();
    let name = TestedAgent(agent).program_name();
    // The first row of goose is that of the provider of its test settings.
    let proxied = PROXIED_APIS.iter().find(|api| api.agent == name).unwrap();
    let fleet = sandboxed_fleet(agent, &api, proxied.key_variable);
    let usage = || Some(json!({ "input": 1000, "cached": 400, "output": REPLY_TOKENS }));
    let search = ModelScriptStep { usage: usage(), ..shell(SEARCH) };
    let done = ModelScriptStep { usage: usage(), ..ModelScriptStep::text("Done.") };
    let script = ModelScript::new().step(search).step(done);
    let prompt = format!("Please. {script}");
    let mut command = fleet.command(&["trigger", "builder", "--prompt", &prompt]);
    let said = Ran::from(command.env(proxied.key_variable, KEY).output().unwrap());
    let stderr = said.stderr.clone();
    assert!(said.ok().contains("Done."), "{agent}: {stderr}");

    let messages = api.messages();
    assert!(messages.len() >= 2, "{agent}: {messages:#?}");
    for request in api.requests() {
        assert_eq!(sent_key(&request), Some(KEY), "{agent}: {request:#?}");
    }
    assert!(fleet.read("work/env.txt").contains("PATH="), "{agent}");
    for file in ["env.txt", "environ.txt", "args.txt"] {
        let found = std::fs::read(fleet.file("work").join(file)).unwrap();
        let has_key = found.windows(KEY.len()).any(|part| part == KEY.as_bytes());
        assert!(!has_key, "{agent}: the key is in {file}");
    }

    let id = fleet.json(&["jobs", "--json"])["jobs"][0]["id"].clone();
    let job = fleet.json(&["jobs", "show", id.as_str().unwrap(), "--json"])["job"].clone();
    let tokens = |name: &str| job["usage"][name].as_i64().unwrap_or_default();
    // The proxy has counted both replies, whatever the agent reports.
    assert!(tokens("outputTokens") >= 2 * REPLY_TOKENS, "{agent}: {job:#}");
    assert!(tokens("cacheReadInputTokens") >= 800, "{agent}: {job:#}");
}

#[test]
fn codex_works_without_its_key() {
    the_key_stays_outside(CertifiedAgent::Codex);
}

#[test]
fn gemini_works_without_its_key() {
    the_key_stays_outside(CertifiedAgent::Gemini);
}

#[test]
fn goose_works_without_its_key() {
    the_key_stays_outside(CertifiedAgent::Goose);
}

#[test]
fn qwen_works_without_its_key_by_acp() {
    the_key_stays_outside(CertifiedAgent::Qwen);
}

#[test]
fn qwen_works_without_its_key_by_its_own_protocol() {
    the_key_stays_outside(CertifiedAgent::QwenSdk);
}

#[test]
fn a_run_whose_key_the_proxy_cannot_add_is_refused() {
    let fleet = Fleet::empty();
    let agents = json!({ "agents": [{
        "name": "builder", "runtime": "codex", "program": codex(), "working_directory": "work",
        "permission_mode": "bypassPermissions", "sandbox": { "credentials": "proxied" },
    }] });
    fleet.write("heeler.yaml", &agents.to_string());
    fleet.write("work/README.md", "work\n");
    let refused = fleet.run(&["trigger", "builder", "--prompt", "hi"]);
    let said = format!("{}{}", refused.stdout, refused.stderr);
    assert_ne!(refused.code, Some(0), "{said}");
    assert!(said.contains("CODEX_API_KEY is not set"), "{said}");
    assert!(said.contains("credentials: agent"), "{said}");
}

/// Goose reports the tokens of its last request only, so its own figures hold no budget.
#[test]
fn a_budget_of_goose_holds_by_the_tokens_of_its_replies() {
    let api = MessagesApi::start();
    let fleet = sandboxed_fleet(CertifiedAgent::Goose, &api, "OPENAI_API_KEY");
    let mut config: Json = serde_json::from_str(&fleet.read("heeler.yaml")).unwrap();
    let agent = &mut config["agents"][0];
    agent["model"] = json!("mock-model");
    agent["prices"] = json!({ "mock-model": { "input": 1, "output": 1 } });
    agent["budget"] = json!({ "job": 0.5 });
    agent["sandbox"]["credentials"] = json!("proxied");
    fleet.write("heeler.yaml", &config.to_string());
    let step = || {
        let usage = Some(json!({ "input": 1_000_000, "output": 10 }));
        ModelScriptStep { usage, ..shell("echo again") }
    };
    let script = ModelScript::new().step(step()).step(step()).step(step()).step(step());
    let prompt = format!("Please. {}", script.text("Done."));
    let mut command = fleet.command(&["trigger", "builder", "--prompt", &prompt]);
    let ran = Ran::from(command.env("OPENAI_API_KEY", KEY).output().unwrap());
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert_ne!(ran.code, Some(0), "{said}");
    assert!(said.contains("the run has spent its budget"), "{said}");
    // A wrong key would have another cure.
    assert!(said.contains("raise the agent's budget"), "{said}");
    // The first reply spends the budget.
    assert_eq!(api.messages().len(), 1, "{said}");
    let id = fleet.json(&["jobs", "--json"])["jobs"][0]["id"].clone();
    let job = fleet.json(&["jobs", "show", id.as_str().unwrap(), "--json"])["job"].clone();
    assert!(job["costUsd"].as_f64().is_some_and(|usd| usd >= 1.0), "{job:#}");
}
