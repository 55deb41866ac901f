//! What holds for any text.

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use crate::any_text::{check_add_agent, check_loader};
use crate::load_files;

/// Text made of what config is made of, so that it gets past the parser often.
fn config_like() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "agents",
        "fleets",
        "defaults",
        "name",
        "a",
        "b",
        "path",
        "overrides",
        "schedules",
        "docker",
        "interval",
        "cron",
        "5m",
        "'0 9 * * *'",
        "session",
        "mode",
        "persistent",
        "true",
        "7",
        "${X}",
        "${Y:-2}",
        "${",
        "$${",
        "null",
        "~",
        "heeler.yaml",
        "a.yaml",
        "&x",
        "*x",
        "<<",
        "!!str",
        "|",
        "hooks",
        "after_run",
        "type",
        "shell",
        "env",
        "trigger",
        "every",
        "enabled",
        "paths",
        "spawn",
        "priority",
        "workspace",
        "é",
    ]);
    let glue = prop::sample::select(vec![
        ": ", ":\n  ", "\n", "\n  ", "\n    ", "- ", "\n- ", "{", "}", "[", "]", ", ", " ", "\t",
        "#", "\r\n", "\"", "'",
    ]);
    prop::collection::vec((word, glue), 0..60)
        .prop_map(|parts| parts.into_iter().map(|(word, glue)| format!("{word}{glue}")).collect())
}

proptest! {
    #[test]
    fn any_text_is_loaded_or_refused_with_reasons(
        fleet in prop_oneof![config_like(), "\\PC{0,200}"],
        agent in config_like(),
        dotenv in "\\PC{0,80}|([XY=\"'# \n\\\\]|export ){0,60}",
    ) {
        check_loader(&fleet, &agent, &format!("X=3\n{dotenv}"));
    }

    #[test]
    fn an_agent_is_added_to_any_file_or_the_file_is_refused(text in config_like()) {
        check_add_agent(&text);
    }

    #[test]
    fn what_is_shown_can_be_loaded_again_and_is_the_same(agent in agent_keys(), fleet in fleet_keys()) {
        let first = show(&fleet, &agent);
        let again = show(&without_loaded(&first["fleet"]), &without_loaded(&first["agents"][0]));
        prop_assert_eq!(first, again);
    }
}

/// Removes what only loading knows.
fn without_loaded(shown: &Json) -> Json {
    let mut shown = shown.clone();
    let map = shown.as_object_mut().unwrap();
    map.remove("qualified_name");
    map.remove("file");
    shown
}

#[track_caller]
fn show(fleet: &Json, agent: &Json) -> Json {
    let mut document = fleet.clone();
    document["agents"] = json!([agent]);
    let text = serde_json::to_string_pretty(&document).unwrap();
    let env = [("TOKEN", "t0ken-value"), ("N", "12")];
    match load_files(&[("heeler.yaml", &text)], &env) {
        Ok(loaded) => loaded.show(),
        Err(faults) => panic!("{faults:?}"),
    }
}

/// Some of many keys, each there or not.
fn some_of(keys: Vec<(&'static str, Vec<Json>)>) -> impl Strategy<Value = Json> {
    let picks: Vec<_> = keys
        .into_iter()
        .map(|(key, values)| {
            prop::option::of(prop::sample::select(values)).prop_map(move |value| (key, value))
        })
        .collect();
    picks.prop_map(|picks| {
        let present = picks.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        Json::Object(present.collect())
    })
}

fn fleet_keys() -> impl Strategy<Value = Json> {
    some_of(vec![
        ("fleet", vec![json!({}), json!({"name": "f", "description": "d ${N}"})]),
        ("timezone", vec![json!("UTC"), json!("Europe/Vienna")]),
        ("budget", vec![json!({"day": 2.5}), json!({"total": "$10.000001"})]),
        ("docker", vec![json!({"enabled": true, "memory": "1.5g"})]),
        ("defaults", vec![json!({"max_turns": 3, "env": {"A": "1"}}), json!({"workspace": "w"})]),
        ("web", vec![json!({"port": "${N}"})]),
        ("max_concurrent", vec![json!(4)]),
        ("queue", vec![json!({"max": 5, "max_wait": "${N}m"})]),
        ("retention", vec![json!({"jobs": "30d", "count": 5})]),
        ("logs", vec![json!({"max_size": "10MB", "keep": 0})]),
        ("watch_config", vec![json!(true)]),
        ("archive", vec![json!("off"), json!({"to": "off", "after": "90s"})]),
    ])
}

fn agent_keys() -> impl Strategy<Value = Json> {
    some_of(vec![
        ("description", vec![json!("a ${N} $${N}"), json!(""), json!("multi\nline")]),
        ("workspace", vec![json!("../x"), json!({"root": "y", "clone_depth": 2})]),
        ("timeout", vec![json!("90m"), json!("1.5h")]),
        ("max_turns", vec![json!(5), json!("${N}")]),
        ("session", vec![json!({"mode": "persistent", "timeout": "2w"}), json!({"auto_resume": true})]),
        ("schedules", vec![
            json!({"a": {"every": "5m", "session": {"mode": "fresh_per_job"}}}),
            json!([{"name": "a", "trigger": {"type": "cron", "expression": "@daily"}, "jitter": "1m"}]),
            json!({"w": {"paths": ["src/**/*.rs", "$${x}"], "debounce": "5s", "priority": -7}}),
        ]),
        ("env", vec![json!({"T": "x ${TOKEN}", "N": 5})]),
        ("secrets", vec![json!(["TOKEN"])]),
        ("default_prompt", vec![json!("use ${TOKEN}")]),
        ("hooks", vec![json!({"after_run": [{"type": "webhook", "url": "https://x.y/${TOKEN}", "timeout": 5}]})]),
        ("mcp_servers", vec![json!({"m": {"command": "x", "env": {"K": "${TOKEN}"}}})]),
        ("plugins", vec![json!(["./p", {"path": "q"}])]),
        ("chat", vec![json!({"discord": {"channels": [{"id": 5, "mode": "all"}]}})]),
        ("tools", vec![json!([]), json!(["Bash"])]),
        ("claude_path", vec![json!("claude"), json!("./bin/claude"), json!("~/claude")]),
        ("on_partition", vec![json!("keep"), json!("stop")]),
        ("sandbox", vec![
            json!(true),
            json!({"write": ["/w/${N}"], "network": "none", "unix_sockets": "deny"}),
            json!({"network": {"allow": ["a.example:8443"], "presets": ["npm"]}, "credentials": "agent"}),
        ]),
        ("budget", vec![json!({"job": 0.25})]),
        ("priority", vec![json!(-100), json!("${N}")]),
        ("retry", vec![json!({"max": 3, "backoff": "20m"})]),
        ("spawn", vec![json!({"max_depth": 0, "agents": ["a"]})]),
    ])
    .prop_map(|mut agent| {
        agent["name"] = json!("a");
        agent
    })
}
