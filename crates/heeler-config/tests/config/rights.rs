//! Which rights an agent would gain by starting another, and what the config says about it.

use expect_test::expect;
use heeler_config::{compare_rights, describe_differences};

use crate::{agent, check, load_files};

/// Returns the rights that the second agent has and the first lacks.
fn gains(caller: &str, target: &str) -> String {
    let keys = |keys: &str| keys.replace("; ", "\n");
    describe_differences(&compare_rights(&agent(&keys(caller)), &agent(&keys(target))))
}

#[test]
fn an_agent_gains_nothing_from_an_equal_or_weaker_one() {
    let bypass = "permission_mode: bypassPermissions";
    for (caller, target) in [
        ("", ""),
        ("", "permission_mode: plan"),
        ("", "permission_mode: default; allowed_tools: [Read, Edit]"),
        ("allowed_tools: [Read, Bash]", "allowed_tools: [Read]"),
        ("allowed_tools: [Read, Bash]", "allowed_tools: ['Bash(git *)']"),
        ("allowed_tools: [mcp__x]", "allowed_tools: [mcp__x__get, 'mcp__x__*']"),
        ("allowed_tools: [Task]", "allowed_tools: [Agent]"),
        ("tools: [Read, Bash]", "tools: [Read]"),
        ("tools: [Read]", "allowed_tools: [Read]"),
        ("denied_tools: [Bash]", "denied_tools: [Bash, Write]"),
        ("denied_tools: ['Bash(rm *)']", "denied_tools: [Bash]"),
        ("denied_tools: [Bash]", "allowed_tools: [Read]"),
        ("runtime: command; command: x", "runtime: command; command: y"),
        ("runtime: command; command: x", bypass),
        (bypass, "runtime: command; command: y"),
        ("approvals: review", "approvals: review"),
        ("secrets: [A, B]", "secrets: [A]"),
        ("env: {A: x, B: y}", "env: {A: x}"),
        ("mcp_servers: {x: {command: y}}", "mcp_servers: {x: {command: y}}"),
        (
            "hooks: {after_run: [{type: shell, command: x}]}",
            "hooks: {after_run: [{type: shell, command: x}]}",
        ),
        ("allow_new_privileges: true; edit_instructions: true", "allow_new_privileges: true"),
        ("working_directory: x", "working_directory: y"),
        ("budget: {day: 2}", "budget: {day: 2}"),
        // The budget of a job holds for the jobs that it starts, too.
        ("budget: {job: 1}", "budget: {job: 5}"),
        ("max_turns: 9; timeout: 1h", "max_turns: 3; timeout: 10m"),
        ("sandbox: true", "sandbox: {network: none}"),
        (
            "sandbox: {network: {allow: ['*.example.com']}}",
            "sandbox: {network: {allow: [a.example.com]}}",
        ),
        ("sandbox: true; working_directory: /w", "sandbox: true; working_directory: /w/sub"),
        (
            "sandbox: {write: [/srv], deny_read: [/]}; working_directory: /w",
            "sandbox: {write: [/srv], deny_read: [/]}; working_directory: /srv/a",
        ),
        ("working_directory: /w", "sandbox: true; working_directory: /v"),
        ("sandbox: {level: landlock}", "sandbox: {level: landlock}"),
    ] {
        assert_eq!(gains(caller, target), "", "{caller} -> {target}");
    }
}

/// Configs of a caller and of a target with more rights.
const GAINS: &[(&str, &str)] = &[
    ("", "permission_mode: bypassPermissions"),
    ("permission_mode: plan", ""),
    ("permission_mode: dontAsk", "permission_mode: default"),
    ("", "permission_mode: auto"),
    ("", "allowed_tools: [Read, Bash]"),
    ("permission_mode: default", "permission_mode: default; allowed_tools: [Write]"),
    ("allowed_tools: [Read]", ""),
    ("allowed_tools: [Read, 'Bash(git *)']", "allowed_tools: [Read, Bash, 'Bash(rm *)']"),
    ("allowed_tools: [mcp__x__get]", "allowed_tools: [mcp__x, mcp__xy__get]"),
    ("allowed_tools: [mcp__x]", "allowed_tools: [mcp__xy__get]"),
    ("tools: [Read]", ""),
    ("tools: [Read]", "tools: [Read, Bash]"),
    ("denied_tools: [Bash, 'Read(/etc)']", "denied_tools: ['Bash(rm *)']"),
    ("denied_tools: [Bash]; permission_mode: bypassPermissions", "runtime: command; command: x"),
    ("permission_mode: bypassPermissions; approvals: review", "runtime: command; command: x"),
    ("", "runtime: command; command: x"),
    ("", "runtime: scripted; script: [{say: x}]"),
    ("approvals: review", ""),
    ("", "mcp_servers: {x: {command: y}}"),
    ("mcp_servers: {x: {command: y}}", "mcp_servers: {x: {command: z}}"),
    ("mcp_servers: {x: {command: y}}", "mcp_servers: {x: {command: y, host: true}}"),
    ("", "secrets: [TOKEN]"),
    ("runtime: command; command: x", "runtime: command; command: x; secrets: [TOKEN]"),
    (
        "runtime: command; command: x",
        "runtime: command; command: x; mcp_servers: {x: {url: 'https://y', headers: {a: b}}}",
    ),
    ("env: {A: x}", "env: {A: y, B: x}"),
    (
        "runtime: command; command: x",
        "runtime: command; command: x; allow_new_privileges: true; edit_instructions: true",
    ),
    (
        "hooks: {after_run: [{type: shell, command: x}]}",
        "hooks: {after_run: [{type: shell, command: x, allow: {cancel: true}}], on_error: [{type: shell, name: tell, command: x}]}",
    ),
    ("", "claude_path: /opt/claude"),
    ("", "setting_sources: [user]"),
    ("budget: {day: 1, total: 5}", "budget: {day: 2}"),
    ("max_turns: 3; timeout: 10m", "timeout: 1h"),
    ("docker: {enabled: true}", ""),
    ("sandbox: true", "docker: {enabled: true}"),
    ("docker: {enabled: true}", "docker: {enabled: true, memory: 4g}"),
    ("docker: {enabled: true}", "docker: {enabled: true}; sandbox: {network: {presets: [github]}}"),
    ("sandbox: {enabled: true}", "sandbox: false"),
    ("sandbox: {level: landlock}", "sandbox: off"),
    ("sandbox: {level: landlock}", "sandbox: {level: landlock, write: [/srv]}"),
    ("sandbox: true", "sandbox: {level: landlock}"),
    ("sandbox: {network: none}", "sandbox: true"),
    ("sandbox: true", "sandbox: {network: none, write: [/srv]}"),
    ("sandbox: true; working_directory: /w/a", "sandbox: true; working_directory: /w/ab"),
    (
        "sandbox: {deny_read: [/w/b]}; working_directory: /w",
        "sandbox: {deny_read: [/w/b]}; working_directory: /w/b/c",
    ),
    (
        "sandbox: {read_only: [/w/b]}; working_directory: /w",
        "sandbox: {read_only: [/w/b]}; working_directory: /w/b",
    ),
];

#[test]
#[expect(clippy::too_many_lines, reason = "most of it is the expected text")]
fn every_right_that_an_agent_would_gain_is_told() {
    let told: Vec<String> =
        GAINS.iter().map(|(from, to)| format!("{from} -> {to}\n    {}", gains(from, to))).collect();
    expect![[r#"
         -> permission_mode: bypassPermissions
            permission_mode bypassPermissions instead of acceptEdits
        permission_mode: plan -> 
            permission_mode acceptEdits instead of plan
        permission_mode: dontAsk -> permission_mode: default
            permission_mode default instead of dontAsk
         -> permission_mode: auto
            permission_mode auto instead of acceptEdits
         -> allowed_tools: [Read, Bash]
            allowed_tools Bash
        permission_mode: default -> permission_mode: default; allowed_tools: [Write]
            allowed_tools Write
        allowed_tools: [Read] -> 
            all tools (no `allowed_tools`)
        allowed_tools: [Read, 'Bash(git *)'] -> allowed_tools: [Read, Bash, 'Bash(rm *)']
            allowed_tools Bash, Bash(rm *)
        allowed_tools: [mcp__x__get] -> allowed_tools: [mcp__x, mcp__xy__get]
            allowed_tools mcp__x, mcp__xy__get
        allowed_tools: [mcp__x] -> allowed_tools: [mcp__xy__get]
            allowed_tools mcp__xy__get
        tools: [Read] -> 
            all tools (no `tools`)
        tools: [Read] -> tools: [Read, Bash]
            tools Bash
        denied_tools: [Bash, 'Read(/etc)'] -> denied_tools: ['Bash(rm *)']
            not in its denied_tools: Bash, Read(/etc)
        denied_tools: [Bash]; permission_mode: bypassPermissions -> runtime: command; command: x
            runtime command has no permission checks
        permission_mode: bypassPermissions; approvals: review -> runtime: command; command: x
            runtime command has no permission checks
         -> runtime: command; command: x
            runtime command has no permission checks
         -> runtime: scripted; script: [{say: x}]
            runtime scripted has no permission checks
        approvals: review -> 
            no `approvals: review`
         -> mcp_servers: {x: {command: y}}
            mcp_servers x
        mcp_servers: {x: {command: y}} -> mcp_servers: {x: {command: z}}
            mcp_servers x
        mcp_servers: {x: {command: y}} -> mcp_servers: {x: {command: y, host: true}}
            mcp_servers x
         -> secrets: [TOKEN]
            secrets TOKEN
        runtime: command; command: x -> runtime: command; command: x; secrets: [TOKEN]
            secrets TOKEN
        runtime: command; command: x -> runtime: command; command: x; mcp_servers: {x: {url: 'https://y', headers: {a: b}}}
            mcp_servers x
        env: {A: x} -> env: {A: y, B: x}
            env A, B
        runtime: command; command: x -> runtime: command; command: x; allow_new_privileges: true; edit_instructions: true
            `allow_new_privileges: true`; `edit_instructions: true`
        hooks: {after_run: [{type: shell, command: x}]} -> hooks: {after_run: [{type: shell, command: x, allow: {cancel: true}}], on_error: [{type: shell, name: tell, command: x}]}
            hooks after_run 1, on_error tell
         -> claude_path: /opt/claude
            not the same `claude_path`
         -> setting_sources: [user]
            settings from user
        budget: {day: 1, total: 5} -> budget: {day: 2}
            a larger `budget.day`, or none; a larger `budget.total`, or none
        max_turns: 3; timeout: 10m -> timeout: 1h
            a larger `max_turns`, or none; a larger `timeout`, or none
        docker: {enabled: true} -> 
            not the same `docker`
        sandbox: true -> docker: {enabled: true}
            not the same `docker`
        docker: {enabled: true} -> docker: {enabled: true, memory: 4g}
            not the same `docker`
        docker: {enabled: true} -> docker: {enabled: true}; sandbox: {network: {presets: [github]}}
            not the same `sandbox`
        sandbox: {enabled: true} -> sandbox: false
            not the same `sandbox`
        sandbox: {level: landlock} -> sandbox: off
            not the same `sandbox`
        sandbox: {level: landlock} -> sandbox: {level: landlock, write: [/srv]}
            not the same `sandbox`
        sandbox: true -> sandbox: {level: landlock}
            not the same `sandbox`
        sandbox: {network: none} -> sandbox: true
            not the same `sandbox`
        sandbox: true -> sandbox: {network: none, write: [/srv]}
            not the same `sandbox`
        sandbox: true; working_directory: /w/a -> sandbox: true; working_directory: /w/ab
            working_directory /w/ab, which the other's sandbox cannot write
        sandbox: {deny_read: [/w/b]}; working_directory: /w -> sandbox: {deny_read: [/w/b]}; working_directory: /w/b/c
            working_directory /w/b/c, which the other's sandbox cannot write
        sandbox: {read_only: [/w/b]}; working_directory: /w -> sandbox: {read_only: [/w/b]}; working_directory: /w/b
            working_directory /w/b, which the other's sandbox cannot write"#]]
    .assert_eq(&told.join("\n"));
}

#[test]
fn the_config_tells_of_agents_that_gain_rights_and_of_those_that_cannot_be_started() {
    let files = [(
        "heeler.yaml",
        "\
agents:
  - name: reader
    allowed_tools: [Read]
    spawn:
      agents: [peer, worker, deployer]
      elevate: [deployer]
  - {name: peer, allowed_tools: [Read]}
  - {name: worker}
  - {name: deployer, permission_mode: bypassPermissions}
",
    )];
    let loaded = load_files(&files, &[]).unwrap();
    expect![[r#"
        warning: `reader` cannot start `worker`, which has more rights: all tools (no `allowed_tools`)
         --> heeler.yaml:5:22
          |
        5 |       agents: [peer, worker, deployer]
          |                      ^^^^^^ refused when it is started
          |
          = help: give `worker` no more rights, or add it to `spawn.elevate`

        warning: `reader` gains rights by starting `deployer`: permission_mode bypassPermissions instead of acceptEdits; all tools (no `allowed_tools`)
         --> heeler.yaml:5:30
          |
        5 |       agents: [peer, worker, deployer]
          |                              ^^^^^^^^ allowed by `spawn.elevate`
    "#]].assert_eq(&crate::render(&files, &[]));
    let spawn = &loaded.agents[0].spawn;
    assert!(spawn.allows_jobs());
    assert_eq!(spawn.elevate, ["deployer".parse().unwrap()]);
    assert!(!loaded.agents[1].spawn.allows_jobs());
}

#[test]
fn only_an_agent_that_may_be_started_can_be_elevated() {
    check(
        "agents: [{name: a, spawn: {elevate: [b]}}, {name: b}]\n",
        expect![[r#"
        error: `spawn.agents` does not name `b`
         --> heeler.yaml:1:38
          |
        1 | agents: [{name: a, spawn: {elevate: [b]}}, {name: b}]
          |                                      ^ expected one of `spawn.agents`
          |
          = help: add it to `spawn.agents`
    "#]],
    );
}
