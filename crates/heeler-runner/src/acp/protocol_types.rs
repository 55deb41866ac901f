//! Every line that the client writes to an ACP agent is a message of the protocol, by the types of the
//! protocol's own crate. Only the tests use that crate: lines of agents are read loosely.

use agent_client_protocol_schema::v1::{
    CancelNotification, Error, ForkSessionRequest, InitializeRequest, LoadSessionRequest,
    NewSessionRequest, PromptRequest, RequestPermissionResponse, ResumeSessionRequest,
    SetSessionConfigOptionRequest, SetSessionModeRequest,
};
use heeler_config::find_known_agent;
use heeler_model::run::McpServerSpec;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::replay::replay_lines;
use super::tests::{fresh, options, reply, resumed};
use super::*;
use crate::native_fork::NativeForkPoint;
use crate::protocol_replay::{RuntimeTrace, read_recording, recording_names};

/// Method that the schema no longer has, and that agents still serve.
const SET_MODEL: &str = "session/set_model";

/// Checks one written line, and returns its kind.
#[track_caller]
fn check_line(line: &Json) -> String {
    assert_eq!(line["jsonrpc"], "2.0", "{line}");
    let Some(method) = line["method"].as_str() else {
        assert!(!line["id"].is_null(), "{line}");
        match line.get("error") {
            Some(error) => check_type::<Error>(error),
            None => check_type::<RequestPermissionResponse>(&line["result"]),
        }
        return "reply".to_owned();
    };
    let params = &line["params"];
    match method {
        "initialize" => check_type::<InitializeRequest>(params),
        "session/new" => check_type::<NewSessionRequest>(params),
        "session/load" => check_type::<LoadSessionRequest>(params),
        "session/resume" => check_type::<ResumeSessionRequest>(params),
        "session/fork" => check_type::<ForkSessionRequest>(params),
        "session/prompt" => check_type::<PromptRequest>(params),
        "session/set_mode" => check_type::<SetSessionModeRequest>(params),
        "session/set_config_option" => check_type::<SetSessionConfigOptionRequest>(params),
        "session/cancel" => check_type::<CancelNotification>(params),
        SET_MODEL => {}
        method => panic!("the protocol has no method {method}"),
    }
    assert_eq!(line["id"].is_u64(), method != "session/cancel", "{line}");
    method.to_owned()
}

/// Parses a value into a type of the protocol. The type must know each of its fields.
#[track_caller]
fn check_type<T: DeserializeOwned + Serialize>(value: &Json) {
    let parsed: T = match serde_json::from_value(value.clone()) {
        Ok(parsed) => parsed,
        Err(error) => panic!("{} does not accept {value}: {error}", std::any::type_name::<T>()),
    };
    check_known(value, &serde_json::to_value(parsed).unwrap());
}

/// Checks that the fields of a value survived. A field without effect may be left out.
#[track_caller]
fn check_known(value: &Json, known: &Json) {
    let is_nothing = |value: &Json| match value {
        Json::Null | Json::Bool(false) => true,
        Json::Array(values) => values.is_empty(),
        Json::Object(fields) => fields.is_empty(),
        _ => false,
    };
    match value {
        Json::Object(fields) => {
            for (key, value) in fields.iter().filter(|(_, value)| !is_nothing(value)) {
                check_known(value, &known[key]);
            }
        }
        Json::Array(values) => {
            for (at, value) in values.iter().enumerate() {
                check_known(value, &known[at]);
            }
        }
        value if is_nothing(value) => {}
        value => assert_eq!(value, known, "a field that the protocol does not have"),
    }
}

#[test]
fn every_line_of_the_recorded_conversations_has_a_type_of_the_protocol() {
    let mut kinds = Vec::new();
    for name in recording_names("acp") {
        let known = find_known_agent(super::replay::known_name(&name));
        for conversation in replay_lines(known, &read_recording("acp", &name)) {
            kinds.extend(conversation.written.iter().map(check_line));
        }
    }
    kinds.sort();
    kinds.dedup();
    let expected = [
        "initialize",
        "reply",
        "session/cancel",
        "session/load",
        "session/new",
        "session/prompt",
        "session/resume",
        "session/set_mode",
    ];
    assert_eq!(kinds, expected);
}

fn servers() -> IndexMap<String, McpServerSpec> {
    let pair = || IndexMap::from([("name".to_owned(), "value".to_owned())]);
    let (timeout_ms, always_load) = (None, None);
    let url = "http://localhost/".to_owned();
    let local = McpServerSpec::Stdio {
        command: "/bin/server".to_owned(),
        args: vec!["--x".to_owned()],
        env: pair(),
        timeout_ms,
        always_load,
        is_on_host: false,
    };
    let remote = McpServerSpec::Http { url: url.clone(), headers: pair(), timeout_ms, always_load };
    let old = McpServerSpec::Sse { url, headers: pair(), timeout_ms, always_load };
    let servers = [("local", local), ("remote", remote), ("old", old)];
    servers.into_iter().map(|(name, server)| (name.to_owned(), server)).collect()
}

/// Opens a session with everything that a config can ask for, and returns the written lines.
fn open_with_all(start: &SessionStart, setup: AcpLaunchOptions, opening: &str) -> Vec<Json> {
    let mut runtime = AcpRuntime::new("hello".to_owned(), setup);
    runtime.launch_spec(start);
    let begin = runtime.begin(Uuid::nil());
    let mut trace = RuntimeTrace::new(&mut runtime);
    trace.record(begin);
    let capabilities = json!({ "loadSession": true,
        "mcpCapabilities": { "http": true, "sse": true },
        "sessionCapabilities": { "fork": {}, "resume": {} } });
    reply(
        &mut trace,
        "initialize",
        &json!({ "protocolVersion": 1, "agentCapabilities": capabilities }),
    );
    let model = json!({ "id": "model", "currentValue": "other", "options": [] });
    reply(&mut trace, opening, &json!({ "sessionId": "fork", "configOptions": [model] }));
    reply(&mut trace, "session/set_config_option", &json!({}));
    trace.interrupt();
    trace.written
}

#[test]
fn servers_models_and_forks_have_types_of_the_protocol() {
    let setup = |fork: Option<NativeForkPoint>| AcpLaunchOptions {
        mcp_servers: servers(),
        injected: vec![InjectedMcpAddress {
            name: "heeler".to_owned(),
            url: "http://localhost/heeler".to_owned(),
            authorization: "Bearer x".to_owned(),
        }],
        model: Some("m".to_owned()),
        system_prompt: Some("be brief".to_owned()),
        native_session: Some("s".to_owned()),
        fork: fork.map(|point| NativeFork { point, prompt: "go on".to_owned() }),
        ..options(None)
    };
    let point = NativeForkPoint { session: "s".to_owned(), turn: None, is_at_end: true };
    for (start, fork, opening) in [
        (fresh(), None, "session/new"),
        (resumed(), None, "session/resume"),
        (fresh(), Some(point), "session/fork"),
    ] {
        let written = open_with_all(&start, setup(fork), opening);
        let kinds: Vec<String> = written.iter().map(check_line).collect();
        let expected = [
            "initialize",
            opening,
            "session/set_config_option",
            "session/prompt",
            "session/cancel",
        ];
        assert_eq!(kinds, expected);
    }
}
