//! Variables in values.

use expect_test::{Expect, expect};
use heeler_config::{AgentConfig, LoadedConfig};

use crate::{load_files, render};

const ENV: &[(&str, &str)] = &[
    ("TURNS", "7"),
    ("FLAG", "true"),
    ("MODE", "persistent"),
    ("HOST", "example.com"),
    ("EMPTY", ""),
    ("YAML", "{a: [b]}"),
    ("GITHUB_TOKEN", "s3cr3t-value"),
];

#[track_caller]
fn check(keys: &str, expect: Expect) {
    let agent = format!("name: a\n{keys}");
    expect.assert_eq(&render(&[("heeler.yaml", "agents: [a.yaml]"), ("a.yaml", &agent)], ENV));
}

#[track_caller]
fn load(keys: &str) -> LoadedConfig {
    let agent = format!("name: a\n{keys}");
    load_files(&[("heeler.yaml", "agents: [a.yaml]"), ("a.yaml", &agent)], ENV).unwrap()
}

/// Loads one agent from its keys.
#[track_caller]
fn agent(keys: &str) -> AgentConfig {
    load(keys).agents.remove(0)
}

/// Shows one key of an agent after loading.
#[track_caller]
fn shown(keys: &str, key: &str) -> String {
    load(keys).show()["agents"][0][key].to_string()
}

#[test]
fn variables_work_for_numbers_booleans_words_and_urls() {
    assert_eq!(shown("max_turns: ${TURNS}", "max_turns"), "7");
    assert_eq!(shown("max_turns: '${TURNS}'", "max_turns"), "7");
    assert_eq!(shown("max_turns: 1${TURNS}", "max_turns"), "17");
    assert_eq!(shown("max_turns: \"${TURNS}${TURNS}\"", "max_turns"), "77");
    assert_eq!(shown("max_turns: ${NONE:-9}", "max_turns"), "9");
    assert_eq!(
        shown("instances: {max_concurrent: '${NONE:-3}'}", "instances"),
        r#"{"max_concurrent":3}"#
    );
    let session = "session: {auto_resume: '${FLAG}', mode: '${MODE}'}";
    assert_eq!(agent(session).session.mode.as_str(), "persistent");
    let session = shown(session, "session");
    assert!(session.contains(r#""auto_resume":true"#), "{session}");
    check(
        "hooks: {after_run: [{type: webhook, url: 'https://${HOST}/x'}]}",
        expect![[r#"
            ok
        "#]],
    );
}

#[test]
fn text_keeps_what_is_no_variable() {
    let text = |description: &str| {
        agent(&format!("description: {description}")).description.unwrap_or_default()
    };
    assert_eq!(text("costs $5, $HOME, $$"), "costs $5, $HOME, $$");
    assert_eq!(text("a ${HOST} b ${NONE:-c d} e"), "a example.com b c d e");
    assert_eq!(text("$${HOST}"), "${HOST}");
    assert_eq!(text("'${NONE:-}'"), "");
    assert_eq!(text("'${EMPTY:-full}'"), "");
    assert_eq!(text("|\n  one ${HOST}\n  two\n"), "one example.com\ntwo\n");
    // What is shown can be read again, so a literal `${` is shown with its escape.
    assert_eq!(shown("description: $${HOST}", "description"), r#""$${HOST}""#);
}

#[test]
fn what_is_shown_names_variables_and_never_tells_text_from_them() {
    let yaml = "\
fleet: {name: '${GITHUB_TOKEN}', description: 'see ${GITHUB_TOKEN}'}
defaults: {system_prompt: 'be ${GITHUB_TOKEN}'}
agents:
  - name: ${GITHUB_TOKEN}
    default_prompt: do ${GITHUB_TOKEN}
    max_turns: ${TURNS}
    working_directory: ${GITHUB_TOKEN}/x
    allowed_tools: ['${GITHUB_TOKEN}', Read]
    schedules: {often: {type: interval, interval: 5m, prompt: 'say ${GITHUB_TOKEN}'}}
";
    let shown = load_files(&[("heeler.yaml", yaml)], ENV).unwrap().show();
    let (fleet, agent) = (&shown["fleet"], &shown["agents"][0]);
    assert_eq!(fleet["fleet"]["name"], "${GITHUB_TOKEN}");
    assert_eq!(fleet["fleet"]["description"], "see ${GITHUB_TOKEN}");
    assert_eq!(agent["name"], "${GITHUB_TOKEN}");
    assert_eq!(agent["system_prompt"], "be ${GITHUB_TOKEN}");
    assert_eq!(agent["default_prompt"], "do ${GITHUB_TOKEN}");
    assert_eq!(agent["working_directory"], "${GITHUB_TOKEN}/x");
    assert_eq!(agent["allowed_tools"][0], "${GITHUB_TOKEN}");
    assert_eq!(agent["schedules"]["often"]["prompt"], "say ${GITHUB_TOKEN}");
    assert_eq!(agent["max_turns"], 7);
    // The name by which other commands know the agent is no secret any more.
    assert_eq!(agent["qualified_name"], "s3cr3t-value");
    assert_eq!(shown.to_string().matches("s3cr3t").count(), 1, "{shown:#}");
}

#[test]
fn a_path_from_a_variable_is_named_as_written() {
    for yaml in ["agents: ['${GITHUB_TOKEN}']\n", "fleets: [{path: '${GITHUB_TOKEN}'}]\n"] {
        let said = render(&[("heeler.yaml", yaml)], ENV);
        assert!(said.contains("cannot read `${GITHUB_TOKEN}`"), "{said}");
        assert!(!said.contains("s3cr3t"), "{said}");
    }
    let files = [("heeler.yaml", "fleets: [{path: 'a b${AT}f.yaml'}]\n"), ("a bc/f.yaml", "")];
    let said = render(&files, &[("AT", "c/")]);
    assert!(said.contains("the folder of `a b${AT}f.yaml` is not a valid fleet name"), "{said}");
}

#[test]
fn a_variable_is_never_read_as_yaml() {
    assert_eq!(agent("description: ${YAML}").description.as_deref(), Some("{a: [b]}"));
    check(
        "instances: ${YAML}",
        expect![[r#"
            error: expected a map, found the value of `${YAML}`
             --> a.yaml:2:12
              |
            2 | instances: ${YAML}
              |            ^^^^^^^ expected a map
        "#]],
    );
}

#[test]
fn a_variable_that_is_not_set_is_shown_at_its_place() {
    check(
        "description: 'a ${HOST} ${NONE} b'\ndefault_prompt: |\n  first\n  then ${HOTS}\n",
        expect![[r#"
            error: the variable `NONE` is not set
             --> a.yaml:2:25
              |
            2 | description: 'a ${HOST} ${NONE} b'
              |                         ^^^^^^^ needs a value
              |
              = help: set it in the environment or in .env, or write `${NONE:-default}`

            error: the variable `HOTS` is not set
             --> a.yaml:5:8
              |
            5 |   then ${HOTS}
              |        ^^^^^^^ needs a value
              |
              = help: did you mean `HOST`? or give a default: `${HOTS:-…}`
        "#]],
    );
    check(
        "max_turns: ${EMPTY}",
        expect![[r#"
            error: expected a whole number of at least 1, found the value of `${EMPTY}`
             --> a.yaml:2:12
              |
            2 | max_turns: ${EMPTY}
              |            ^^^^^^^^ expected a whole number of at least 1
        "#]],
    );
    check(
        "max_turns: ${HOST}",
        expect![[r#"
            error: expected a whole number of at least 1, found the value of `${HOST}`
             --> a.yaml:2:12
              |
            2 | max_turns: ${HOST}
              |            ^^^^^^^ expected a whole number of at least 1
        "#]],
    );
}

#[test]
fn what_only_looks_like_a_variable_is_refused() {
    check(
        "description: ${1X}\nmodel: '${open'\nsystem_prompt: ${a b}\n",
        expect![[r#"
            error: `${1X}` is not a variable
             --> a.yaml:2:14
              |
            2 | description: ${1X}
              |              ^^^^^ expected `${NAME}` or `${NAME:-default}`
              |
              = help: write `$${` for a literal `${`

            error: `${open` is not a variable
             --> a.yaml:3:9
              |
            3 | model: '${open'
              |         ^^^^^^ expected `${NAME}` or `${NAME:-default}`
              |
              = help: write `$${` for a literal `${`

            error: `${a b}` is not a variable
             --> a.yaml:4:16
              |
            4 | system_prompt: ${a b}
              |                ^^^^^^ expected `${NAME}` or `${NAME:-default}`
              |
              = help: write `$${` for a literal `${`
        "#]],
    );
}

#[test]
fn secrets_are_shown_by_name_only() {
    let keys = "\
env: {TOKEN: 'x ${GITHUB_TOKEN}', PLAIN: y}
secrets: [GITHUB_TOKEN]
default_prompt: use ${GITHUB_TOKEN} well
mcp_servers: {m: {url: 'https://${HOST}/${GITHUB_TOKEN}', headers: {Authorization: 'Bearer ${GITHUB_TOKEN}'}}}
";
    let agent = format!("name: a\n{keys}");
    let files = [("heeler.yaml", "agents: [a.yaml]"), ("a.yaml", agent.as_str())];
    let loaded = load_files(&files, ENV).unwrap();
    let shown = loaded.show().to_string();
    assert!(!shown.contains("s3cr3t-value"), "{shown}");
    let agent = &loaded.agents[0];
    let debug = format!("{:?} {:?}", agent.env, agent.mcp_servers);
    assert!(!debug.contains("s3cr3t-value"), "{debug}");
    assert_eq!(loaded.show()["agents"][0]["env"]["TOKEN"], "x ${GITHUB_TOKEN}");
    assert_eq!(loaded.show()["agents"][0]["default_prompt"], "use ${GITHUB_TOKEN} well");
    assert_eq!(loaded.agents[0].env.get()["TOKEN"].expose(), "x s3cr3t-value");
}

#[test]
fn a_secret_within_another_and_one_that_looks_like_a_variable_are_hidden_whole() {
    let env = [("A", "s3cr"), ("B", "s3cr3t-long"), ("C", "x${y}z")];
    let yaml = "agents: [{name: a, secrets: [A, B, C], default_prompt: '${B} ${A} ${C}'}]";
    let loaded = load_files(&[("heeler.yaml", yaml)], &env).unwrap();
    assert_eq!(loaded.show()["agents"][0]["default_prompt"], "${B} ${A} ${C}");
}
