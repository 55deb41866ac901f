//! Agents besides Claude: their programs, and the keys that their runtimes cannot honour.

use expect_test::expect;
use heeler_config::{
    AgentProgram, EgressConfig, EgressPreset, EgressRules, KNOWN_AGENTS, RuntimeConfig, RuntimeType,
};

use crate::{agent, render};

#[track_caller]
fn program(keys: &str) -> AgentProgram {
    match agent(keys).runtime {
        RuntimeConfig::Acp(program)
        | RuntimeConfig::Codex(program)
        | RuntimeConfig::Qwen(program) => program,
        other => panic!("{other:?} has no program"),
    }
}

#[test]
fn a_program_is_a_known_agent_a_path_or_a_block() {
    let gemini = program("runtime: acp\nprogram: gemini");
    assert_eq!((gemini.name(), gemini.path.as_path().as_str()), ("gemini", "gemini"));
    assert_eq!(gemini.args, ["--acp"]);

    let moved = program("runtime: acp\nprogram: {agent: gemini, path: /opt/gemini, args: [-x]}");
    assert_eq!((moved.name(), moved.path.as_path().as_str()), ("gemini", "/opt/gemini"));
    assert_eq!(moved.args, ["-x"]);

    let own = "runtime: acp\nprogram: {path: /opt/own, args: [acp], asks: true}";
    let own = program(own);
    assert_eq!((own.name(), own.known, own.asks_before_commands), ("/opt/own", None, true));

    assert_eq!(program("runtime: codex").path.as_path(), "codex");
    assert_eq!(program("runtime: codex\nprogram: /opt/codex").path.as_path(), "/opt/codex");
}

#[test]
fn qwen_is_a_program_of_the_runtime_sdk() {
    for keys in ["program: qwen", "runtime: sdk\nprogram: {agent: qwen}", "runtime: qwen"] {
        assert_eq!(agent(keys).runtime.kind(), RuntimeType::Qwen, "{keys}");
        let qwen = program(keys);
        assert_eq!((qwen.name(), qwen.path.as_path().as_str()), ("qwen", "qwen"), "{keys}");
        // The options of the protocol are added by the runtime.
        assert_eq!(qwen.args, Vec::<String>::new(), "{keys}");
    }
    let moved = program("program: {agent: qwen, path: /opt/node, args: [/opt/qwen.js]}");
    assert_eq!((moved.name(), moved.path.as_path().as_str()), ("qwen", "/opt/node"));
    assert_eq!(moved.args, ["/opt/qwen.js"]);
    assert_eq!(program("runtime: qwen\nprogram: /opt/qwen").path.as_path(), "/opt/qwen");
    assert_eq!(agent("runtime: acp\nprogram: qwen").runtime.kind(), RuntimeType::Acp);
}

#[test]
fn keys_that_qwen_cannot_honour_are_refused() {
    let fleet = "\
agents:
  - {name: a, program: qwen, allowed_tools: [Read]}
  - {name: b, program: qwen, approvals: review}
  - {name: c, runtime: qwen, program: {agent: gemini}}
  - {name: d, program: qwen, max_turns: 3, effort: high, permission_mode: plan}
";
    expect![[r#"
        error: `allowed_tools` cannot be honoured with `runtime: qwen`
         --> heeler.yaml:2:46
          |
        2 |   - {name: a, program: qwen, allowed_tools: [Read]}
          |                                              ^^^^ Qwen Code has no hook that enforces a list of tools: restrict the agent by `sandbox`
          |
          = help: remove the key; if `defaults` sets it, write `allowed_tools: null` for this agent

        error: `approvals: review` cannot be honoured with `runtime: qwen`
         --> heeler.yaml:3:41
          |
        3 |   - {name: b, program: qwen, approvals: review}
          |                                         ^^^^^^ Qwen Code asks only about what it considers worth asking

        error: with `runtime: qwen` the key `program` has a path and arguments only
         --> heeler.yaml:4:40
          |
        4 |   - {name: c, runtime: qwen, program: {agent: gemini}}
          |                                        ^^^^^ remove the other keys
    "#]]
    .assert_eq(&render(&[("heeler.yaml", fleet)], &[]));
}

#[test]
fn every_known_agent_runs_with_some_permission_mode() {
    for known in KNOWN_AGENTS.iter() {
        let keys =
            format!("runtime: acp\nprogram: {}\npermission_mode: bypassPermissions", known.name);
        assert_eq!(program(&keys).known, Some(known));
    }
}

#[test]
fn programs_that_cannot_be_started_are_refused() {
    let fleet = "\
agents:
  - {name: a, runtime: acp}
  - {name: b, runtime: acp, program: gemni}
  - {name: c, runtime: acp, program: {args: [x]}}
  - {name: d, program: gemini}
  - {name: e, runtime: codex, program: {agent: gemini}}
";
    expect![[r#"
        error: an agent with `runtime: acp` needs the key `program`
         --> heeler.yaml:2:6
          |
        2 |   - {name: a, runtime: acp}
          |      ^^^^ the name of a known agent: gemini, opencode, qwen, copilot, goose, kimi, grok, vibe, claude-acp, codex-acp

        error: `gemni` is not a known agent
         --> heeler.yaml:3:38
          |
        3 |   - {name: b, runtime: acp, program: gemni}
          |                                      ^^^^^ one of gemini, opencode, qwen, copilot, goose, kimi, grok, vibe, claude-acp, codex-acp; for another agent write `program: {path: gemni, args: [...]}`

        error: `program` names no program
         --> heeler.yaml:4:39
          |
        4 |   - {name: c, runtime: acp, program: {args: [x]}}
          |                                       ^^^^ add `path`, or `agent` with a known agent

        error: with `runtime: sdk`, `program` may only be `qwen`
         --> heeler.yaml:5:24
          |
        5 |   - {name: d, program: gemini}
          |                        ^^^^^^ `claude_path` names the `claude` program; other programs need `runtime: acp`

        error: with `runtime: codex` the key `program` has a path only
         --> heeler.yaml:6:41
          |
        6 |   - {name: e, runtime: codex, program: {agent: gemini}}
          |                                         ^^^^^ remove the other keys
    "#]].assert_eq(&render(&[("heeler.yaml", fleet)], &[]));
}

#[track_caller]
fn network(keys: &str) -> EgressRules {
    agent(keys).isolation_settings().unwrap().network.rules()
}

#[test]
fn a_sandbox_allows_the_api_of_its_agent() {
    let presets = |keys: &str| network(keys).presets;
    assert_eq!(presets("sandbox: true"), [EgressPreset::Anthropic]);
    assert_eq!(presets("runtime: codex\nsandbox: true"), [EgressPreset::Openai]);
    assert_eq!(presets("runtime: acp\nprogram: gemini\nsandbox: true"), [EgressPreset::Google]);
    let listed = "runtime: codex\nsandbox: {network: {presets: [npm]}}";
    assert_eq!(presets(listed), [EgressPreset::Npm]);
    let more = network("runtime: codex\nsandbox: {network: {allow: [docs.rs]}}");
    assert_eq!(more.presets, [EgressPreset::Openai]);
    assert_eq!(more.allow.iter().map(ToString::to_string).collect::<Vec<_>>(), ["docs.rs"]);

    let url = |keys: &str| -> Vec<String> {
        let rules = network(keys);
        let local = rules.allow_local.iter().map(ToString::to_string);
        rules.allow.iter().map(ToString::to_string).chain(local).collect()
    };
    let goose = |host: &str| {
        format!("runtime: acp\nprogram: goose\nsandbox: true\nenv: {{OPENAI_HOST: '{host}'}}")
    };
    assert_eq!(url(&goose("https://api.example.com/v1")), ["api.example.com:443"]);
    assert_eq!(url(&goose("api.example.com:8443")), ["api.example.com:8443"]);
    assert_eq!(url(&goose("http://10.1.2.3:8000")), ["10.1.2.3:8000"]);
    let container = "runtime: codex\ndocker: {enabled: true}\nenv: {OPENAI_BASE_URL: 'https://gate.example.com/v1'}";
    assert_eq!(url(container), ["gate.example.com:443"]);
    // The usual API is not needed then.
    assert!(presets(container).is_empty());
    let forwarded = "runtime: acp\nprogram: qwen\nsandbox: {forward: ['127.0.0.1:8000']}\nenv: {OPENAI_BASE_URL: 'http://127.0.0.1:8000'}";
    assert_eq!(url(forwarded), Vec::<String>::new());
    let cut_off = agent("runtime: acp\nprogram: goose\nsandbox: {network: none}");
    assert_eq!(cut_off.isolation_settings().unwrap().network, EgressConfig::None);
}

#[test]
fn every_known_agent_reaches_its_default_api_from_a_sandbox() {
    for known in KNOWN_AGENTS.iter() {
        // Only goose has no default.
        let env = known.provider.map(|it| format!("env: {{{}: openai}}\n", it.variable));
        let keys = format!(
            "runtime: acp\nprogram: {}\npermission_mode: bypassPermissions\nsandbox: true\n{}",
            known.name,
            env.unwrap_or_default()
        );
        let rules = network(&keys);
        assert!(!rules.presets.is_empty() || !rules.allow.is_empty(), "{}", known.name);
        let hosts: Vec<String> = rules.allow.iter().map(ToString::to_string).collect();
        assert_eq!(hosts, known.hosts, "{}", known.name);
    }
}

#[test]
fn an_api_of_its_own_replaces_the_usual_hosts_of_an_agent() {
    let rules = |program: &str, env: &str| {
        network(&format!("runtime: acp\nprogram: {program}\nsandbox: true\nenv: {{{env}}}"))
    };
    let hosts = |rules: &EgressRules| rules.allow.iter().map(ToString::to_string).collect();
    for (program, env, expected) in [
        ("gemini", "GOOGLE_GEMINI_BASE_URL: 'https://gate.example.com'", "gate.example.com:443"),
        ("kimi", "KIMI_BASE_URL: 'https://gate.example.com/v1'", "gate.example.com:443"),
        ("qwen", "OPENAI_BASE_URL: 'https://gate.example.com:8443/v1'", "gate.example.com:8443"),
        (
            "goose",
            "GOOSE_PROVIDER: openai, OPENAI_HOST: 'https://gate.example.com'",
            "gate.example.com:443",
        ),
    ] {
        let own = rules(program, env);
        let own_hosts: Vec<String> = hosts(&own);
        assert_eq!((own.presets, own_hosts), (vec![], vec![expected.to_owned()]), "{program}");
    }
    // The same hosts, and a text that is no URL, replace nothing.
    let usual: Vec<String> = hosts(&rules("qwen", "A: b"));
    for url in ["https://dashscope.aliyuncs.com/compatible-mode/v1", "", "not a host"] {
        let same: Vec<String> = hosts(&rules("qwen", &format!("OPENAI_BASE_URL: '{url}'")));
        assert_eq!(same, usual, "{url}");
    }
    let gemini =
        rules("gemini", "GOOGLE_GEMINI_BASE_URL: 'https://generativelanguage.googleapis.com'");
    assert_eq!((gemini.presets, gemini.allow), (vec![EgressPreset::Google], vec![]));
    let anthropic = rules("goose", "GOOSE_PROVIDER: anthropic");
    assert_eq!(anthropic.presets, [EgressPreset::Anthropic]);
}

#[test]
fn a_sandbox_that_cuts_an_agent_off_is_refused() {
    let fleet = "\
agents:
  - {name: a, runtime: acp, program: goose, sandbox: true}
  - {name: b, runtime: acp, program: {path: /opt/own, asks: true}, sandbox: true}
  - {name: c, runtime: acp, program: qwen, sandbox: true, env: {OPENAI_BASE_URL: 'http://localhost:8000'}}
  - {name: d, runtime: acp, program: grok, permission_mode: bypassPermissions, sandbox: {credentials: proxied, network: {presets: [openai]}}}
";
    expect![[r#"
        error: Heeler does not know the API host of `goose`, and a sandbox allows listed hosts only
         --> heeler.yaml:2:54
          |
        2 |   - {name: a, runtime: acp, program: goose, sandbox: true}
          |                                                      ^^^^ list it: `sandbox: {network: {allow: [api.example.com]}}`, or a group of hosts with `presets: [openai]`, or set GOOSE_PROVIDER or OPENAI_HOST or ANTHROPIC_HOST in `env`

        error: Heeler does not know the API host of `/opt/own`, and a sandbox allows listed hosts only
         --> heeler.yaml:3:77
          |
        3 |   - {name: b, runtime: acp, program: {path: /opt/own, asks: true}, sandbox: true}
          |                                                                             ^^^^ list it: `sandbox: {network: {allow: [api.example.com]}}`, or a group of hosts with `presets: [openai]`

        error: the sandbox has its own loopback interface, so `OPENAI_BASE_URL` does not reach localhost:8000
         --> heeler.yaml:4:53
          |
        4 |   - {name: c, runtime: acp, program: qwen, sandbox: true, env: {OPENAI_BASE_URL: 'http://localhost:8000'}}
          |                                                     ^^^^ add `forward: [localhost:8000]` to `sandbox`

        error: `credentials: proxied` cannot be honoured with `grok`
         --> heeler.yaml:5:103
          |
        5 | ...ls: proxied, network: {presets: [openai]}}}
          |        ^^^^^^^ Heeler knows the APIs of Claude, Codex, Gemini CLI, Qwen Code and goose, and that of Copilot with a key of its own
    "#]].assert_eq(&render(&[("heeler.yaml", fleet)], &[]));
}

#[test]
fn a_proxied_api_needs_no_listed_host() {
    let loopback = "env: {OPENAI_BASE_URL: 'http://127.0.0.1:8000/v1', OPENAI_API_KEY: k}";
    let qwen = "runtime: acp\nprogram: qwen";
    agent(&format!("{qwen}\nsandbox: true\n{loopback}"));
    agent(&format!("{qwen}\nsandbox: {{credentials: proxied}}\n{loopback}"));
    agent(&format!("{qwen}\nsandbox: true\nsecrets: [OPENAI_API_KEY]"));
    agent("runtime: codex\nsandbox: {credentials: proxied}");
    let goose = "runtime: acp\nprogram: goose\nsandbox: true\nsecrets: [GOOGLE_API_KEY]";
    agent(&format!("{goose}\nenv: {{GOOSE_PROVIDER: google}}"));
    let fleet = "\
agents:
  - {name: a, runtime: acp, program: goose, sandbox: true, secrets: [GOOGLE_API_KEY]}
  - {name: b, runtime: acp, program: qwen, sandbox: {credentials: agent}, env: {OPENAI_BASE_URL: 'http://127.0.0.1:8000', OPENAI_API_KEY: k}}
";
    let told = render(&[("heeler.yaml", fleet)], &[]);
    assert!(told.contains("does not know the API host of `goose`"), "{told}");
    assert!(told.contains("`OPENAI_BASE_URL` does not reach 127.0.0.1:8000"), "{told}");
}

#[test]
fn a_budget_holds_if_tokens_and_their_price_are_known() {
    let codex = agent(
        "runtime: codex\nmodel: m\nprices: {m: {input: 2, output: 10, cache_read: 0.2}}\nbudget: {job: 1}",
    );
    let price = codex.token_price().unwrap();
    assert_eq!((price.input.to_string(), price.output.to_string()), ("2".into(), "10".into()));
    assert_eq!(price.cache_read.map(|it| it.to_string()).as_deref(), Some("0.2"));
    let estimated = agent("runtime: acp\nprogram: gemini\nmodel: gemini-2.5-pro\nbudget: {day: 1}");
    assert_eq!(estimated.token_price().unwrap().input.to_string(), "1.25");
    assert_eq!(agent("runtime: codex").token_price(), None);
    // The proxy counts the tokens that goose does not report.
    let counted = "runtime: acp\nprogram: goose\nmodel: gpt-5\nsecrets: [OPENAI_API_KEY]\n\
        env: {GOOSE_PROVIDER: openai}\nsandbox: {credentials: proxied}\nbudget: {job: 1}";
    assert_eq!(agent(counted).token_price().unwrap().input.to_string(), "1.25");
    let fleet = "\
agents:
  - {name: a, runtime: codex, budget: {job: 1}}
  - {name: b, runtime: codex, model: m, budget: {day: 1}}
  - {name: c, runtime: acp, program: goose, model: gpt-5, budget: {total: 1}}
  - {name: d, runtime: acp, program: {path: /opt/own, asks: true}, model: gpt-5, budget: {total: 1}}
";
    expect![[r#"
        error: `budget.job` cannot be honoured with `runtime: codex`
         --> heeler.yaml:2:45
          |
        2 |   - {name: a, runtime: codex, budget: {job: 1}}
          |                                             ^ the agent reports tokens and no cost: name its `model`, and the price in `prices`
          |
          = help: or remove the key; if `defaults` sets it, write `budget.job: null` for this agent

        error: `budget.day` cannot be honoured with `runtime: codex`
         --> heeler.yaml:3:55
          |
        3 |   - {name: b, runtime: codex, model: m, budget: {day: 1}}
          |                                                       ^ the agent reports tokens and no cost: name its `model`, and the price in `prices`
          |
          = help: or remove the key; if `defaults` sets it, write `budget.day: null` for this agent

        error: `budget.total` cannot be honoured with `runtime: acp`
         --> heeler.yaml:4:75
          |
        4 |   - {name: c, runtime: acp, program: goose, model: gpt-5, budget: {total: 1}}
          |                                                                           ^ the agent does not report all of its tokens, so no budget holds: use `timeout`
          |
          = help: or remove the key; if `defaults` sets it, write `budget.total: null` for this agent

        error: `budget.total` cannot be honoured with `runtime: acp`
         --> heeler.yaml:5:98
          |
        5 |   - {name: d, runtime: acp, program: {path: /opt/own, asks: true}, model: gpt-5, budget: {total: 1}}
          |                                                                                                  ^ the agent does not report all of its tokens, so no budget holds: use `timeout`
          |
          = help: or remove the key; if `defaults` sets it, write `budget.total: null` for this agent
    "#]].assert_eq(&render(&[("heeler.yaml", fleet)], &[]));
}

#[test]
fn prices_without_an_effect_are_refused() {
    let fleet = "\
defaults:
  prices: {m: {input: 2, output: 10}}
agents:
  - {name: a}
  - {name: b, prices: null}
  - {name: c, prices: {}}
  - {name: d, runtime: codex, model: m}
  - {name: e, runtime: acp, program: kimi}
  - {name: f, runtime: scripted, script: [{say: Hi.}]}
";
    expect![[r#"
        error: `prices` has no effect with `runtime: sdk`
         --> heeler.yaml:2:12
          |
        2 |   prices: {m: {input: 2, output: 10}}
          |            ^ Claude Code reports its cost itself
          |
          = help: remove the key; if `defaults` sets it, write `prices: null` for this agent

        error: `prices` has no effect with `runtime: acp`
         --> heeler.yaml:2:12
          |
        2 |   prices: {m: {input: 2, output: 10}}
          |            ^ the agent reports no tokens
          |
          = help: remove the key; if `defaults` sets it, write `prices: null` for this agent

        error: `prices` has no effect with `runtime: scripted`
         --> heeler.yaml:2:12
          |
        2 |   prices: {m: {input: 2, output: 10}}
          |            ^ a script reports the cost of its steps itself
          |
          = help: remove the key; if `defaults` sets it, write `prices: null` for this agent

        error: `prices` has no effect with `runtime: sdk`
         --> heeler.yaml:6:23
          |
        6 |   - {name: c, prices: {}}
          |                       ^ Claude Code reports its cost itself
          |
          = help: remove the key; if `defaults` sets it, write `prices: null` for this agent
    "#]]
    .assert_eq(&render(&[("heeler.yaml", fleet)], &[]));
}

#[test]
fn keys_that_a_runtime_cannot_honour_are_refused_with_the_reason() {
    let fleet = "\
defaults:
  max_turns: 9
agents:
  - {name: a, runtime: codex, allowed_tools: [Read], max_turns: null}
  - {name: b, runtime: codex}
  - {name: c, runtime: acp, program: gemini, max_turns: null, budget: {job: 1}, session: {max_context_tokens: 9}}
  - {name: d, runtime: acp, program: goose, max_turns: null, approvals: review}
  - {name: e, runtime: codex, max_turns: null, claude_path: /x, plugins: [./p]}
  - {name: f, runtime: codex, max_turns: null}
";
    expect![[r#"
        error: `max_turns` cannot be honoured with `runtime: codex`
         --> heeler.yaml:2:14
          |
        2 |   max_turns: 9
          |              ^ Codex has no limit of turns: use `timeout`
          |
          = help: remove the key; if `defaults` sets it, write `max_turns: null` for this agent

        error: `allowed_tools` cannot be honoured with `runtime: codex`
         --> heeler.yaml:4:47
          |
        4 |   - {name: a, runtime: codex, allowed_tools: [Read], max_turns: null}
          |                                               ^^^^ Codex has no list of tools: restrict the agent by `sandbox`
          |
          = help: remove the key; if `defaults` sets it, write `allowed_tools: null` for this agent

        error: `budget.job` cannot be honoured with `runtime: acp`
         --> heeler.yaml:6:77
          |
        6 |   - {name: c, runtime: acp, program: gemini, max_turns: null, budget: {job: 1}, session: {max_context_tokens: 9}}
          |                                                                             ^ the agent reports tokens and no cost: name its `model`, and the price in `prices`
          |
          = help: or remove the key; if `defaults` sets it, write `budget.job: null` for this agent

        error: `session.max_context_tokens` cannot be honoured with `runtime: acp`
         --> heeler.yaml:6:111
          |
        6 |   - {name: c, runtime: acp, program: gemini, max_turns: null, budget: {job: 1}, session: {max_context_tokens: 9}}
          |                                                                                                               ^ Heeler does not summarize sessions of ACP agents yet
          |
          = help: remove the key; if `defaults` sets it, write `session.max_context_tokens: null` for this agent

        error: `approvals: review` cannot be honoured with `runtime: acp`
         --> heeler.yaml:7:73
          |
        7 |   - {name: d, runtime: acp, program: goose, max_turns: null, approvals: review}
          |                                                                         ^^^^^^ an ACP agent asks only about what it considers worth asking

        error: `claude_path` cannot be honoured with `runtime: codex`
         --> heeler.yaml:8:61
          |
        8 |   - {name: e, runtime: codex, max_turns: null, claude_path: /x, plugins: [./p]}
          |                                                             ^^ this key is about Claude Code
          |
          = help: remove the key; if `defaults` sets it, write `claude_path: null` for this agent

        error: `plugins` cannot be honoured with `runtime: codex`
         --> heeler.yaml:8:75
          |
        8 |   - {name: e, runtime: codex, max_turns: null, claude_path: /x, plugins: [./p]}
          |                                                                           ^^^ this key is about Claude Code
          |
          = help: remove the key; if `defaults` sets it, write `plugins: null` for this agent
    "#]].assert_eq(&render(&[("heeler.yaml", fleet)], &[]));
}

#[test]
fn a_permission_mode_that_the_agent_lacks_is_refused() {
    let fleet = "\
agents:
  - {name: a, runtime: acp, program: opencode}
  - {name: b, runtime: acp, program: /opt/own}
  - {name: c, runtime: acp, program: vibe, permission_mode: plan}
  - {name: d, runtime: codex, permission_mode: auto}
  - {name: e, runtime: codex, permission_mode: plan, sandbox: true}
  - {name: f, runtime: acp, program: grok, permission_mode: bypassPermissions}
  - {name: g, runtime: acp, program: gemini, permission_mode: plan}
  - {name: h, runtime: codex, permission_mode: plan}
  - {name: i, runtime: acp, program: grok}
  - {name: j, runtime: acp, program: grok, sandbox: true}
";
    expect![[r#"
        error: `permission_mode: acceptEdits` cannot be honoured with `runtime: acp`
         --> heeler.yaml:2:6
          |
        2 |   - {name: a, runtime: acp, program: opencode}
          |      ^^^^ opencode runs commands without asking: use `permission_mode: bypassPermissions`, best with `sandbox: true`

        error: `permission_mode: acceptEdits` cannot be honoured with `runtime: acp`
         --> heeler.yaml:3:6
          |
        3 |   - {name: b, runtime: acp, program: /opt/own}
          |      ^^^^ /opt/own runs commands without asking: use `permission_mode: bypassPermissions`, best with `sandbox: true`

        error: `permission_mode: plan` cannot be honoured with `runtime: acp`
         --> heeler.yaml:4:61
          |
        4 |   - {name: c, runtime: acp, program: vibe, permission_mode: plan}
          |                                                             ^^^^ vibe has no mode for planning only

        error: `permission_mode: auto` cannot be honoured with `runtime: codex`
         --> heeler.yaml:5:48
          |
        5 |   - {name: d, runtime: codex, permission_mode: auto}
          |                                                ^^^^ Codex has no mode in which it decides what to ask

        error: `permission_mode: plan` cannot be honoured with `runtime: codex`
         --> heeler.yaml:6:48
          |
        6 |   - {name: e, runtime: codex, permission_mode: plan, sandbox: true}
          |                                                ^^^^ Codex is read-only by its own sandbox, which does not run inside another

        error: `permission_mode: acceptEdits` cannot be honoured with `runtime: acp`
          --> heeler.yaml:11:6
           |
        11 |   - {name: j, runtime: acp, program: grok, sandbox: true}
           |      ^^^^ grok runs commands without asking: use `permission_mode: bypassPermissions`, best with `sandbox: true`
    "#]].assert_eq(&render(&[("heeler.yaml", fleet)], &[]));
}

#[test]
fn servers_by_sse_are_refused_for_codex_only() {
    let server = "mcp_servers: {news: {type: sse, url: 'https://example.com/sse'}}";
    let fleet = |runtime: &str| format!("agents:\n  - {{name: a, {runtime}, {server}}}\n");
    let refused = render(&[("heeler.yaml", fleet("runtime: codex").as_str())], &[]);
    assert!(
        refused.contains("the MCP server `news` cannot be used with `runtime: codex`"),
        "{refused}"
    );
    assert!(refused.contains("use `type: http`"), "{refused}");
    for runtime in ["runtime: sdk", "runtime: acp, program: gemini"] {
        assert_eq!(render(&[("heeler.yaml", fleet(runtime).as_str())], &[]), "ok\n", "{runtime}");
    }
}
