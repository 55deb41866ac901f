//! The files that `heeler init` writes.

use expect_test::{Expect, expect};
use heeler_config::templates::{
    AgentTemplateOptions, AgentTemplateSandbox, FIRST_AGENT_PATH, TemplateSandbox, add_agent,
    agent_file, agent_file_with, first_agent_file, fleet_file,
};
use heeler_config::{
    EgressConfig, LocalName, RuntimeConfig, RuntimeType, ScheduleTrigger, detectable_agents,
};

use crate::{load_files, render};

const SCHEMA: &str = "https://example.com/heeler.schema.json";

fn name(text: &str) -> LocalName {
    text.parse().unwrap()
}

#[test]
fn a_new_fleet_loads_without_a_fault_or_a_warning_and_starts_by_itself() {
    let first = first_agent_file(SCHEMA);
    let fleet = fleet_file(&name("my-fleet"), SCHEMA, TemplateSandbox::On);
    let fleet = add_agent(&fleet, "agents/coder.yaml").unwrap();
    let coder = agent_file(&name("coder"), SCHEMA);
    let files = [
        ("heeler.yaml", fleet.as_str()),
        (FIRST_AGENT_PATH, first.as_str()),
        ("agents/coder.yaml", coder.as_str()),
    ];
    assert_eq!(render(&files, &[]), "ok\n");
    let loaded = load_files(&files, &[]).unwrap();
    assert!(matches!(loaded.agents[0].runtime, RuntimeConfig::Scripted(_)));
    assert!(matches!(loaded.agents[0].schedules[0].trigger, ScheduleTrigger::Interval(_)));
    assert_eq!(loaded.agents[1].name.as_str(), "coder");
    for text in [fleet, first, coder] {
        let line = format!("# yaml-language-server: $schema={SCHEMA}\n");
        assert!(text.starts_with(&line), "{text}");
    }
}

#[test]
fn a_new_fleet_says_whether_its_agents_have_a_sandbox_and_why() {
    let first = first_agent_file(SCHEMA);
    // A reason may be a message of another program.
    let reason = "run `sysctl -w a=1`\nagents: []\r\u{1b}[2J";
    let cases = [
        (TemplateSandbox::On, true),
        (TemplateSandbox::Off, false),
        (TemplateSandbox::Unavailable(reason), false),
    ];
    for (sandbox, is_on) in cases {
        let text = fleet_file(&name("my-fleet"), SCHEMA, sandbox);
        let files = [("heeler.yaml", text.as_str()), (FIRST_AGENT_PATH, first.as_str())];
        assert_eq!(render(&files, &[]), "ok\n", "{text}");
        let loaded = load_files(&files, &[]).unwrap();
        let found = loaded.agents[0].sandbox.as_ref().map(|it| it.settings().is_some());
        assert_eq!(found, Some(is_on), "{text}");
    }
    let text = fleet_file(&name("my-fleet"), SCHEMA, TemplateSandbox::Unavailable(reason));
    assert!(text.contains("  # run `sysctl -w a=1`\n  # agents: []"), "{text}");
    assert!(!text.contains(['\r', '\u{1b}']), "{text:?}");
}

#[test]
fn an_agent_of_each_kind_of_program_loads_without_a_fault_or_a_warning() {
    let first = first_agent_file(SCHEMA);
    for found in detectable_agents().iter().filter(|it| it.can_be_added(true)) {
        let runtime = found.runtime.to_string();
        let is_claude = found.runtime == RuntimeType::Sdk;
        let sandbox = AgentTemplateSandbox {
            title: found.title,
            state_folders: found.state_folders,
            preset: found.preset,
        };
        let secret = found.login.variables.first().copied();
        let options = AgentTemplateOptions {
            permission_mode: (!found.asks_before_commands).then_some("bypassPermissions"),
            runtime: Some(&runtime),
            program: (found.runtime == RuntimeType::Acp).then_some(found.name),
            secret,
            sandbox: (!is_claude).then_some(sandbox),
            ..AgentTemplateOptions::default()
        };
        let text = agent_file_with(&name(found.name), SCHEMA, &options);
        let path = format!("agents/{}.yaml", found.name);
        let fleet = fleet_file(&name("my-fleet"), SCHEMA, TemplateSandbox::On);
        let fleet = add_agent(&fleet, &path).unwrap();
        let files = [
            ("heeler.yaml", fleet.as_str()),
            (FIRST_AGENT_PATH, first.as_str()),
            (path.as_str(), text.as_str()),
        ];
        let env = [("HOME", "/home/user"), (secret.unwrap_or("UNUSED"), "key")];
        assert_eq!(render(&files, &env), "ok\n", "{text}");
        let agent = load_files(&files, &env).unwrap().agents.remove(1);
        let settings = agent.isolation_settings().unwrap();
        let EgressConfig::Allow(rules) = settings.network else { panic!("{text}") };
        assert_eq!(rules.presets, found.preset.as_slice(), "{text}");
        let folders = if is_claude { 0 } else { found.state_folders.len() };
        assert_eq!(settings.write.len(), folders, "{text}");
        assert_eq!(text.contains("budget"), is_claude, "{text}");
    }
}

#[track_caller]
fn check(text: &str, expect: Expect) {
    let added = match add_agent(text, "agents/new.yaml") {
        Ok(text) => text,
        Err(error) => format!("{error}\n"),
    };
    expect.assert_eq(&added);
}

#[test]
fn an_agent_is_added_and_everything_else_stays() {
    check(
        "",
        expect![[r#"
        agents:
          - path: agents/new.yaml
    "#]],
    );
    check(
        "# only a comment",
        expect![[r#"
        # only a comment
        agents:
          - path: agents/new.yaml
    "#]],
    );
    check(
        "fleet: {name: a} # note\n",
        expect![[r#"
        fleet: {name: a} # note
        agents:
          - path: agents/new.yaml
    "#]],
    );
    check(
        "agents: # none yet\n# end\n",
        expect![[r#"
        agents: # none yet
          - path: agents/new.yaml
        # end
    "#]],
    );
    check(
        "agents: [] # none yet\nfleet:\n  name: a\n",
        expect![[r#"
            agents: # none yet
              - path: agents/new.yaml
            fleet:
              name: a
        "#]],
    );
}

#[test]
fn an_agent_is_added_behind_the_last_one() {
    check(
        "agents: [a.yaml, {path: b.yaml}] # two\n",
        expect![[r#"
        agents: [a.yaml, {path: b.yaml}, {path: agents/new.yaml}] # two
    "#]],
    );
    check(
        "agents:\n    - path: a.yaml # first\n      overrides:\n        model: x # deep\n    # after\nfleet:\n  name: a\n",
        expect![[r#"
            agents:
                - path: a.yaml # first
                  overrides:
                    model: x # deep
                - path: agents/new.yaml
                # after
            fleet:
              name: a
        "#]],
    );
    check(
        "agents:\n- a.yaml\n- name: b\n  system_prompt: |\n    long\n    text\n\nversion: 1\n",
        expect![[r#"
            agents:
            - a.yaml
            - name: b
              system_prompt: |
                long
                text
            - path: agents/new.yaml

            version: 1
        "#]],
    );
    check(
        "agents:\n- a.yaml",
        expect![[r#"
        agents:
        - a.yaml
        - path: agents/new.yaml"#]],
    );
    check(
        "{version: 1}\n",
        expect![[r#"
        {version: 1, agents: [{path: agents/new.yaml}]}
    "#]],
    );
}

#[test]
fn windows_line_ends_stay() {
    let added = add_agent("agents:\r\n  - a.yaml\r\n", "b.yaml").unwrap();
    assert_eq!(added, "agents:\r\n  - a.yaml\r\n  - path: b.yaml\r\n");
}

#[test]
fn odd_paths_are_quoted() {
    let added = add_agent("", "agents/a b#1.yaml").unwrap();
    assert_eq!(added, "agents:\n  - path: \"agents/a b#1.yaml\"\n");
}

#[test]
fn a_file_that_cannot_be_changed_safely_is_left_to_its_owner() {
    check(
        "agents: all\n",
        expect![[r#"
        cannot add the agent automatically: its `agents` are not a list of this form; add `- path: agents/new.yaml` to `agents` by hand
    "#]],
    );
    check(
        "agents: [\n",
        expect![[r#"
        cannot add the agent automatically: the file has faults; add `- path: agents/new.yaml` to `agents` by hand
    "#]],
    );
    check(
        "x: &x [a.yaml]\nagents: *x\n",
        expect![[r#"
        cannot add the agent automatically: its layout is not supported; add `- path: agents/new.yaml` to `agents` by hand
    "#]],
    );
}
