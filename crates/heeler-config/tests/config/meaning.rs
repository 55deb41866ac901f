//! What keys mean together.

use expect_test::expect;
use heeler_config::{
    ApprovalMode, ConfigDuration, MISSED_RUNS_MAX, RuntimeConfig, ScheduleTrigger, SessionMode,
};

use crate::{agent, check_agent, load_files, render};

#[test]
fn a_schedule_needs_what_its_type_says() {
    check_agent(
        "schedules: {s: {type: cron, interval: 5m}}\n",
        expect![[r#"
            error: a schedule of type `cron` needs the key `cron`
             --> a.yaml:2:23
              |
            2 | schedules: {s: {type: cron, interval: 5m}}
              |                       ^^^^ `cron` is missing

            warning: `interval` has no effect: the schedule's type is `cron`
             --> a.yaml:2:39
              |
            2 | schedules: {s: {type: cron, interval: 5m}}
              |                                       ^^ ignored
        "#]],
    );
    check_agent(
        "schedules: {s: {type: interval, interval: 5m, cron: '@daily'}}\n",
        expect![[r#"
            warning: `cron` has no effect: the schedule's type is `interval`
             --> a.yaml:2:53
              |
            2 | schedules: {s: {type: interval, interval: 5m, cron: '@daily'}}
              |                                                     ^^^^^^^^ ignored
        "#]],
    );
    check_agent(
        "schedules: {'a b': {interval: 5m}}\n",
        expect![[r#"
            error: `a b` is no name for a schedule: only letters, digits, `-` and `_` are allowed
             --> a.yaml:2:13
              |
            2 | schedules: {'a b': {interval: 5m}}
              |             ^^^^^ expected a name such as `nightly`
        "#]],
    );
    check_agent(
        "schedules: 5\n",
        expect![[r#"
            error: expected a map of schedules or a list, found `5`
             --> a.yaml:2:12
              |
            2 | schedules: 5
              |            ^ expected a map of schedules or a list
        "#]],
    );
}

#[test]
fn the_list_form_of_schedules_is_the_map_form() {
    let list = agent(
        "\
schedules:
  - name: check
    trigger: {type: interval, every: 5m}
    prompt: look
  - name: daily
    trigger: {type: cron, expression: '0 9 * * *'}
",
    );
    let map = agent(
        "\
schedules:
  check: {type: interval, interval: 5m, prompt: look}
  daily: {type: cron, expression: '0 9 * * *'}
",
    );
    assert_eq!(list.schedules, map.schedules);
    check_agent(
        "\
schedules:
  - trigger: {every: 5m}
  - {name: x, every: 5m}
  - {name: x, every: 5m}
  - {name: y, interval: 1m, trigger: {every: 5m, when: now}}
  - soon
",
        expect![[r#"
            error: the key `name` is missing
             --> a.yaml:3:5
              |
            3 |   - trigger: {every: 5m}
              |     ^^^^^^^ each schedule of a list has a `name`

            error: there are two schedules `x`
             --> a.yaml:5:12
              |
            5 |   - {name: x, every: 5m}
              |            ^ expected another name

            error: `trigger.every` and `interval` are the same key
             --> a.yaml:6:39
              |
            6 |   - {name: y, interval: 1m, trigger: {every: 5m, when: now}}
              |                                       ^^^^^ keep one of them

            error: unknown key `when` in trigger
             --> a.yaml:6:50
              |
            6 |   - {name: y, interval: 1m, trigger: {every: 5m, when: now}}
              |                                                  ^^^^
              |
              = help: known keys: type, every, expression, paths, ignore, debounce

            error: expected a schedule with a `name`, found `soon`
             --> a.yaml:7:5
              |
            7 |   - soon
              |     ^^^^ expected a schedule with a `name`
        "#]],
    );
}

#[test]
fn session_timeout_means_what_the_mode_makes_of_it() {
    let fresh = agent("session: {timeout: 30m}\n");
    assert_eq!(fresh.timeout.unwrap().to_string(), "30m");
    assert_eq!(fresh.session.expires_after, None);
    let both = agent("timeout: 5m\nsession: {timeout: 30m}\n");
    assert_eq!(both.timeout.unwrap().to_string(), "5m");
    let kept = agent("session: {mode: persistent, timeout: 30m}\n");
    assert_eq!(
        (kept.timeout, kept.session.expires_after.unwrap().to_string().as_str()),
        (None, "30m")
    );
    let plain = agent("session: {mode: per_channel}\n");
    assert_eq!(plain.session.expires_after.unwrap().to_string(), "1d");
    let resumed = agent("session: {auto_resume: true}\n");
    assert_eq!(resumed.session.auto_resume_within.unwrap().to_string(), "1h");
    assert_eq!(plain.session.auto_resume_within, None);
}

#[test]
fn resume_session_means_persistent_and_a_session_of_the_schedule_wins() {
    let agent = agent(
        "\
session: {mode: fresh_per_job, timeout: 30m, idle_timeout: 2h}
schedules:
  plain: {interval: 5m}
  resumed: {interval: 5m, resume_session: true}
  own: {interval: 5m, session: {mode: persistent}}
  limit: {interval: 5m, timeout: 1m}
",
    );
    let shown: Vec<String> = agent
        .schedules
        .iter()
        .map(|schedule| {
            let session = &schedule.session;
            let text = |period: Option<ConfigDuration>| {
                period.map_or("-".to_owned(), |period| period.to_string())
            };
            format!(
                "{}: {} limit {} expires {} idle {}",
                schedule.name,
                session.mode,
                text(schedule.timeout),
                text(session.expires_after),
                text(session.idle_timeout)
            )
        })
        .collect();
    expect![[r#"
        plain: fresh_per_job limit 30m expires - idle 2h
        resumed: persistent limit - expires 30m idle 2h
        own: persistent limit - expires 1d idle 2h
        limit: fresh_per_job limit 1m expires - idle 2h"#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn faults_of_a_script_are_shown_at_their_place() {
    check_agent(
        "runtime: scripted\nscript:\n  - say: hi\n  - when: {prompt: x}\n    do:\n      - syy: ho\n  - sleep: 5\n",
        expect![[r#"
            error: step 2, do: step 1: unknown step `syy`; did you mean `say`?
             --> a.yaml:7:9
              |
            7 |       - syy: ho
              |         ^^^

            error: step 3: `sleep` is a length such as `200ms`: the unit is missing: s, m, h, d or w
             --> a.yaml:8:5
              |
            8 |   - sleep: 5
              |     ^^^^^
        "#]],
    );
    let faults = heeler_config::parse_script_file("/fleet/s.yaml".into(), "- say: {prompt}\n");
    expect![[r#"
        error: step 1: put text that starts with a brace in quotes: `say: "{prompt} …"`
         --> /fleet/s.yaml:1:3
          |
        1 | - say: {prompt}
          |   ^^^
    "#]]
    .assert_eq(&format!("{:?}\n", faults.unwrap_err()));
    let faults = heeler_config::parse_script_file("/fleet/s.yaml".into(), "say: hi\n");
    expect![[r#"
        error: expected a list of steps, found a map
         --> /fleet/s.yaml:1:1
          |
        1 | say: hi
          | ^^^ expected a list of steps
    "#]]
    .assert_eq(&format!("{:?}\n", faults.unwrap_err()));
    let steps = heeler_config::parse_script_file("/fleet/s.yaml".into(), "- say: ${HOME}\n");
    assert_eq!(steps.unwrap(), [serde_json::json!({"say": "${HOME}"})]);
}

#[test]
fn a_script_may_be_a_file_of_its_own() {
    let fleet = "agents: [{name: a, runtime: scripted, script: s.yaml}]";
    let loaded =
        load_files(&[("heeler.yaml", fleet), ("s.yaml", "- say: ${HOME} {prompt}\n")], &[]);
    let loaded = loaded.unwrap();
    let steps = vec![serde_json::json!({"say": "${HOME} {prompt}"})];
    assert_eq!(loaded.agents[0].runtime, RuntimeConfig::Scripted(steps));
    assert_eq!(loaded.files, ["/fleet/heeler.yaml", "/fleet/s.yaml"]);
    let shown = loaded.show();
    assert_eq!(shown["agents"][0]["script"], "/fleet/s.yaml");
    expect![[r#"
        error: cannot read /fleet/s.yaml: entity not found
         --> heeler.yaml:1:47
          |
        1 | agents: [{name: a, runtime: scripted, script: s.yaml}]
          |                                               ^^^^^^ named here
    "#]]
    .assert_eq(&render(&[("heeler.yaml", fleet)], &[]));
    expect![[r#"
        error: step 1: unknown step `sya`; did you mean `say`?
         --> s.yaml:1:3
          |
        1 | - sya: hi
          |   ^^^
    "#]]
    .assert_eq(&render(&[("heeler.yaml", fleet), ("s.yaml", "- sya: hi\n")], &[]));
    expect![[r#"
        error: expected a list of steps, found nothing
         --> s.yaml:1:1
          |
        1 |
          | ^ expected a list of steps
    "#]]
    .assert_eq(&render(&[("heeler.yaml", fleet), ("s.yaml", "")], &[]));
}

#[test]
fn a_runtime_has_what_it_needs_and_nothing_else() {
    check_agent(
        "runtime: scripted\n",
        expect![[r#"
        error: an agent with `runtime: scripted` needs the key `script`
         --> a.yaml:1:7
          |
        1 | name: a
          |       ^ `script` is missing
    "#]],
    );
    check_agent(
        "script: [{say: hi}]\ncommand: ls\n",
        expect![[r#"
            error: `script` needs `runtime: scripted`; the runtime is `sdk`
             --> a.yaml:2:11
              |
            2 | script: [{say: hi}]
              |           ^^^ it would never be executed

            error: `command` needs `runtime: command`; the runtime is `sdk`
             --> a.yaml:3:10
              |
            3 | command: ls
              |          ^^ it would never be run
        "#]],
    );
    check_agent(
        "runtime: scripted\nscript: []\n",
        expect![[r#"
            error: expected at least one step, found an empty list
             --> a.yaml:3:9
              |
            3 | script: []
              |         ^ expected at least one step
        "#]],
    );
    let inline = agent("runtime: scripted\nscript: [{say: hi}, {sleep: 2s}]\n");
    let steps = vec![serde_json::json!({"say": "hi"}), serde_json::json!({"sleep": "2s"})];
    assert_eq!(inline.runtime, RuntimeConfig::Scripted(steps));
    assert_eq!(
        agent("runtime: command\ncommand: ls -l\n").runtime,
        RuntimeConfig::Command("ls -l".into())
    );
    assert_eq!(agent("").runtime, RuntimeConfig::Sdk);
}

#[test]
fn hooks_have_the_keys_of_their_type() {
    check_agent(
        "\
hooks:
  after_run:
    - {type: shell, url: https://example.com}
    - {type: discord}
    - {type: slak, channel_id: C1}
    - {command: ls}
  on_eror: []
",
        expect![[r#"
            error: a hook of type `shell` needs the key `command`
             --> a.yaml:4:8
              |
            4 |     - {type: shell, url: https://example.com}
              |        ^^^^ `command` belongs here

            error: `url` does not apply to a hook of type `shell`
             --> a.yaml:4:26
              |
            4 |     - {type: shell, url: https://example.com}
              |                          ^^^^^^^^^^^^^^^^^^^ remove it

            error: a hook of type `discord` needs the key `channel_id`
             --> a.yaml:5:8
              |
            5 |     - {type: discord}
              |        ^^^^ `channel_id` belongs here

            error: expected one of: shell, webhook, discord, slack; found `slak`
             --> a.yaml:6:14
              |
            6 |     - {type: slak, channel_id: C1}
              |              ^^^^ expected one of: shell, webhook, discord, slack
              |
              = help: did you mean `slack`?

            error: the key `type` is missing
             --> a.yaml:7:8
              |
            7 |     - {command: ls}
              |        ^^^^^^^ `type` belongs here

            error: unknown key `on_eror` in hooks
             --> a.yaml:8:3
              |
            8 |   on_eror: []
              |   ^^^^^^^ did you mean `on_error`?
        "#]],
    );
}

const HOOKS: &str = "\
hooks:
  after_run:
    - {type: shell, command: 'notify.sh', timeout: 1500}
    - {type: webhook, url: 'https://example.com/x', timeout: 5s, on_events: [failed]}
  on_error:
    - {type: slack, channel_id: C1}
";

#[test]
fn hooks_are_read_with_their_defaults() {
    let agent = agent(HOOKS);
    expect![[r#"
        AgentHooks {
            after_run: [
                Hook {
                    name: None,
                    continue_on_error: true,
                    on_events: None,
                    when: None,
                    action: Shell {
                        command: "notify.sh",
                        timeout: Period(1s500ms),
                        folder: "/fleet",
                    },
                    permissions: HookPermissions {
                        trigger: [],
                        cancel: false,
                        message: false,
                    },
                    allow_new_privileges: false,
                },
                Hook {
                    name: None,
                    continue_on_error: true,
                    on_events: Some(
                        [
                            Failed,
                        ],
                    ),
                    when: None,
                    action: Webhook {
                        url: WebUrl(example.com),
                        method: Post,
                        headers: {},
                        timeout: Period(5s),
                    },
                    permissions: HookPermissions {
                        trigger: [],
                        cancel: false,
                        message: false,
                    },
                    allow_new_privileges: false,
                },
            ],
            on_error: [
                Hook {
                    name: None,
                    continue_on_error: true,
                    on_events: None,
                    when: None,
                    action: Slack {
                        channel_id: "C1",
                        bot_token_env: VarName(
                            "SLACK_BOT_TOKEN",
                        ),
                    },
                    permissions: HookPermissions {
                        trigger: [],
                        cancel: false,
                        message: false,
                    },
                    allow_new_privileges: false,
                },
            ],
        }
    "#]]
    .assert_eq(&format!("{:#?}\n", agent.hooks));
}

#[test]
fn mcp_servers_are_reached_one_way() {
    check_agent(
        "\
mcp_servers:
  both: {command: x, url: 'https://example.com'}
  none: {}
  wrong: {type: http, command: x}
  odd: {type: pigeon}
",
        expect![[r#"
            error: the MCP server `both` has both `command` and `url`
             --> a.yaml:3:27
              |
            3 |   both: {command: x, url: 'https://example.com'}
              |                           ^^^^^^^^^^^^^^^^^^^^^ keep one of them

            error: the MCP server `none` of type `stdio` needs `command`
             --> a.yaml:4:9
              |
            4 |   none: {}
              |         ^ `command` belongs here

            error: the MCP server `wrong` of type `http` needs `url`
             --> a.yaml:5:11
              |
            5 |   wrong: {type: http, command: x}
              |           ^^^^ `url` belongs here

            error: expected one of: stdio, sse, http; found `pigeon`
             --> a.yaml:6:15
              |
            6 |   odd: {type: pigeon}
              |               ^^^^^^ expected one of: stdio, sse, http
        "#]],
    );
}

#[test]
fn a_server_on_the_host_is_a_program_by_name_or_absolute_path() {
    check_agent(
        "\
mcp_servers:
  good: {command: npx, host: true}
  better: {command: /usr/bin/server, host: true}
  off: {url: 'https://example.com', host: false}
  remote: {url: 'https://example.com', host: true}
  near: {command: ./server, host: true}
",
        expect![[r#"
            error: the MCP server `remote` has a `url`, so Heeler does not start it
             --> a.yaml:6:46
              |
            6 |   remote: {url: 'https://example.com', host: true}
              |                                              ^^^^ remove `host`, and allow the server in `sandbox.network` or `sandbox.forward`

            error: the MCP server `near` on the host has a relative path
             --> a.yaml:7:19
              |
            7 |   near: {command: ./server, host: true}
              |                   ^^^^^^^^ an absolute path, or a name in PATH
        "#]],
    );
}

#[test]
fn working_directories_are_relative_to_the_file_that_names_them() {
    assert_eq!(agent("").working_directory, "/fleet");
    assert_eq!(agent("workspace: ../code\n").working_directory, "/code");
    assert_eq!(
        agent("working_directory: {root: sub, clone_depth: 5}\n").working_directory,
        "/fleet/sub"
    );
    check_agent(
        "workspace: a\nworking_directory: b\n",
        expect![[r#"
            error: `workspace` and `working_directory` are the same key
             --> a.yaml:2:1
              |
            2 | workspace: a
              | ^^^^^^^^^ keep one of them
        "#]],
    );
    let files = [("heeler.yaml", "agents: [{name: a, working_directory: ~/code}]")];
    let loaded = load_files(&files, &[("HOME", "/home/me")]).unwrap();
    assert_eq!(loaded.agents[0].working_directory, "/home/me/code");
}

#[test]
fn both_forms_of_chat_are_read() {
    let flat = agent("chat: {discord: {channels: [{id: '1', mode: all}]}}\n");
    let guilds = agent(
        "chat: {discord: {bot_token_env: T, guilds: [{id: 9, channels: [{id: 123456789012345678901, mode: auto}]}]}}\n",
    );
    let flat = flat.chat.unwrap().discord.unwrap();
    let guilds = guilds.chat.unwrap().discord.unwrap();
    assert_eq!(flat.channels[0].mode, guilds.guilds[0].channels[0].mode);
    // Ids are longer than a float holds: they stay text.
    assert_eq!(guilds.guilds[0].channels[0].id, "123456789012345678901");
    check_agent(
        "chat: {slack: {output: {tool_result_max_length: 5000}, channels: [{mode: al}]}, irc: {}}\n",
        expect![[r#"
            error: expected a whole number from 1 to 1000, found `5000`
             --> a.yaml:2:49
              |
            2 | chat: {slack: {output: {tool_result_max_length: 5000}, channels: [{mode: al}]}, irc: {}}
              |                                                 ^^^^ expected a whole number from 1 to 1000

            error: the key `id` is missing
             --> a.yaml:2:68
              |
            2 | chat: {slack: {output: {tool_result_max_length: 5000}, channels: [{mode: al}]}, irc: {}}
              |                                                                    ^^^^ `id` belongs here

            error: expected one of: mention, auto, all; found `al`
             --> a.yaml:2:74
              |
            2 | chat: {slack: {output: {tool_result_max_length: 5000}, channels: [{mode: al}]}, irc: {}}
              |                                                                          ^^ expected one of: mention, auto, all
              |
              = help: did you mean `all`?

            error: unknown key `irc` in chat
             --> a.yaml:2:81
              |
            2 | chat: {slack: {output: {tool_result_max_length: 5000}, channels: [{mode: al}]}, irc: {}}
              |                                                                                 ^^^
              |
              = help: known keys: discord, github, slack, telegram
        "#]],
    );
}

#[test]
fn new_keys_have_their_defaults() {
    let agent =
        agent("schedules: {s: {cron: '@daily', timezone: Europe/Vienna}}\nmissed: run_all\n");
    let schedule = &agent.schedules[0];
    assert_eq!((schedule.missed.as_str(), schedule.overlap.as_str()), ("run_all", "skip"));
    assert!(
        matches!(&schedule.trigger, ScheduleTrigger::Cron { zone: Some(zone), .. } if zone.name() == "Europe/Vienna")
    );
    assert_eq!(agent.approvals, ApprovalMode::Autonomous);
    assert_eq!(agent.session.mode, SessionMode::FreshPerJob);
    assert_eq!(agent.permission_mode.as_str(), "acceptEdits");
    assert_eq!(agent.max_concurrent.get(), 1);
    assert_eq!(MISSED_RUNS_MAX, 100);
    let fleet = load_files(
        &[(
            "heeler.yaml",
            "budget: {day: 20, total: 100.50}\nmax_concurrent: 4\ndurability: event",
        )],
        &[],
    );
    let fleet = fleet.unwrap().fleets.remove(0);
    assert_eq!(fleet.budget.unwrap().total.unwrap().micros(), 100_500_000);
    assert_eq!((fleet.max_concurrent.unwrap().get(), fleet.durability.as_str()), (4, "event"));
}

#[test]
fn herdctl_lets_a_schedule_have_almost_any_name() {
    let load = |name: &str| {
        let yaml = format!("agents: [{{name: a, schedules: {{\"{name}\": {{interval: 5m}}}}}}]");
        load_files(&[("herdctl.yaml", &yaml)], &[])
            .map(|loaded| loaded.agents[0].schedules[0].name.clone())
    };
    assert_eq!(load("daily report: 9 o'clock").unwrap(), "daily report: 9 o'clock");
    assert!(load(&"x".repeat(128)).is_ok());
    for name in ["", "a\\nb", &"x".repeat(129)] {
        let faults = load(name).unwrap_err();
        assert!(faults.list[0].message.contains("is no name for a schedule"), "{faults:?}");
    }
}
