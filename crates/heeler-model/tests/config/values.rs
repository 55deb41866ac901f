//! What single values may be, and what keys mean together.

use expect_test::expect;
use heeler_model::config::{Agent, MISSED_RUNS_MAX, Runtime, Script, Trigger};
use heeler_model::{Approvals, SessionMode};

use crate::{check, check_agent, load_files, render};

fn agent(keys: &str) -> Agent {
    let text = format!("name: a\n{keys}");
    let loaded = load_files(&[("heeler.yaml", "agents: [a.yaml]"), ("a.yaml", &text)], &[]);
    loaded.unwrap().agents.remove(0)
}

#[test]
fn every_fault_is_reported_at_once() {
    check_agent(
        "\
max_turns: lots
timeout: 5x
runtime: skd
modle: opus
instances: {max_concurrent: 0}
schedules:
  s: {interval: 5x}
  t: {prompt: hi}
  u: {interval: 1h, cron: '* * * * *'}
",
        expect![[r#"
            error: expected a whole number of at least 1, found `lots`
             --> a.yaml:2:12
              |
            2 | max_turns: lots
              |            ^^^^ expected a whole number of at least 1

            error: `5x` is not a duration: the unit must be ms, s, m, h, d or w
             --> a.yaml:3:10
              |
            3 | timeout: 5x
              |          ^^ expected a duration such as `1h30m`

            error: expected one of: sdk, cli, scripted, command; found `skd`
             --> a.yaml:4:10
              |
            4 | runtime: skd
              |          ^^^ expected one of: sdk, cli, scripted, command

            error: unknown key `modle` in agent
             --> a.yaml:5:1
              |
            5 | modle: opus
              | ^^^^^ did you mean `model`?

            error: expected a whole number of at least 1, found `0`
             --> a.yaml:6:29
              |
            6 | instances: {max_concurrent: 0}
              |                             ^ expected a whole number of at least 1

            error: `5x` is not a duration: the unit must be ms, s, m, h, d or w
             --> a.yaml:8:17
              |
            8 |   s: {interval: 5x}
              |                 ^^ expected a duration such as `1h30m`

            error: nothing starts the schedule `t`
             --> a.yaml:9:7
              |
            9 |   t: {prompt: hi}
              |       ^^^^^^ `interval` or `cron` belongs here

            error: the schedule `u` has both `interval` and `cron`
              --> a.yaml:10:27
               |
            10 |   u: {interval: 1h, cron: '* * * * *'}
               |                           ^^^^^^^^^^^ keep one, or say which with `type`
        "#]],
    );
}

#[test]
fn numbers_and_booleans_are_not_text() {
    check_agent(
        "max_turns: '5'\n",
        expect![[r#"
        error: expected a whole number of at least 1, found the text `5`
         --> a.yaml:2:12
          |
        2 | max_turns: '5'
          |            ^^^ expected a whole number of at least 1
          |
          = help: remove the quotes
    "#]],
    );
    check_agent(
        "max_turns: 1.5\nsession: {auto_resume: yes}\n",
        expect![[r#"
        error: expected a whole number of at least 1, found `1.5`
         --> a.yaml:2:12
          |
        2 | max_turns: 1.5
          |            ^^^ expected a whole number of at least 1

        error: expected true or false, found `yes`
         --> a.yaml:3:24
          |
        3 | session: {auto_resume: yes}
          |                        ^^^ expected true or false
    "#]],
    );
    check_agent(
        "max_turns: [5]\ntools: Bash\nenv: [A]\n",
        expect![[r#"
        error: expected a whole number of at least 1, found a list
         --> a.yaml:2:13
          |
        2 | max_turns: [5]
          |             ^ expected a whole number of at least 1

        error: expected a list, found `Bash`
         --> a.yaml:3:8
          |
        3 | tools: Bash
          |        ^^^^ expected a list

        error: expected a map, found a list
         --> a.yaml:4:7
          |
        4 | env: [A]
          |       ^ expected a map
    "#]],
    );
    check(
        "web: {port: 70000}\n",
        expect![[r#"
        error: expected a whole number from 1 to 65535, found `70000`
         --> heeler.yaml:1:13
          |
        1 | web: {port: 70000}
          |             ^^^^^ expected a whole number from 1 to 65535

        warning: `web` has no effect yet
         --> heeler.yaml:1:1
          |
        1 | web: {port: 70000}
          | ^^^ accepted, not used
    "#]],
    );
}

#[test]
fn text_may_look_like_a_number() {
    let agent = agent("description: 2024\nmodel: 1.50\n");
    assert_eq!(agent.description.as_deref(), Some("2024"));
    assert_eq!(agent.model.as_deref(), Some("1.50"));
}

#[test]
fn names_follow_the_pattern_and_are_no_ids() {
    let said = |name: &str| render(&[("heeler.yaml", &format!("agents: [{{name: {name}}}]"))], &[]);
    expect![[r#"
        error: `a b` is not a name: only letters, digits, `-` and `_` are allowed
         --> heeler.yaml:1:17
          |
        1 | agents: [{name: 'a b'}]
          |                 ^^^^^ expected a name such as `issue-fixer`
    "#]]
    .assert_eq(&said("'a b'"));
    expect![[r#"
        error: `sess-a1b2c3d4` is not a name: it looks like a session id
         --> heeler.yaml:1:17
          |
        1 | agents: [{name: sess-a1b2c3d4}]
          |                 ^^^^^^^^^^^^^ expected a name such as `issue-fixer`
    "#]]
    .assert_eq(&said("sess-a1b2c3d4"));
    expect![[r#"
        error: `job-2024-01-19-abc123` is not a name: it looks like a job id
         --> heeler.yaml:1:17
          |
        1 | agents: [{name: job-2024-01-19-abc123}]
          |                 ^^^^^^^^^^^^^^^^^^^^^ expected a name such as `issue-fixer`
    "#]]
    .assert_eq(&said("job-2024-01-19-abc123"));
    check(
        "agents: [{description: x}]\n",
        expect![[r#"
        error: the agent has no `name`
         --> heeler.yaml:1:11
          |
        1 | agents: [{description: x}]
          |           ^^^^^^^^^^^ `name` belongs here
    "#]],
    );
}

#[test]
fn zones_cron_sizes_urls_and_money_are_checked_at_load() {
    check_agent(
        "\
timezone: Europe/Viena
budget: {job: free, day: 0}
schedules:
  a: {cron: '0 0 9 * * *'}
  b: {cron: '0 0 30 2 *'}
  c: {cron: '61 * * * *'}
  d: {interval: 0s}
  e: {interval: 100ms}
  f: {interval: 1h, jitter: 1h}
hooks:
  after_run:
    - {type: webhook, url: not a url}
    - {type: webhook, url: 'ftp://x/y'}
secrets: [GITHUB-TOKEN]
",
        expect![[r#"
            error: `Europe/Viena` is not a time zone: did you mean `Europe/Vienna`?
             --> a.yaml:2:11
              |
            2 | timezone: Europe/Viena
              |           ^^^^^^^^^^^^ expected a time zone such as `Europe/Vienna`

            error: `free` is not an amount of money: an amount in US dollars such as 2.50
             --> a.yaml:3:15
              |
            3 | budget: {job: free, day: 0}
              |               ^^^^ expected an amount of money such as `2.50`

            error: `0` is not an amount of money: it must be more than zero
             --> a.yaml:3:26
              |
            3 | budget: {job: free, day: 0}
              |                          ^ expected an amount of money such as `2.50`

            error: `0 0 9 * * *` is not a cron expression: it has six fields: remove the seconds, the first field is the minute
             --> a.yaml:5:13
              |
            5 |   a: {cron: '0 0 9 * * *'}
              |             ^^^^^^^^^^^^^ expected a cron expression such as `0 9 * * mon-fri`

            error: `0 0 30 2 *` is not a cron expression: it never comes due: no date fits it
             --> a.yaml:6:13
              |
            6 |   b: {cron: '0 0 30 2 *'}
              |             ^^^^^^^^^^^^ expected a cron expression such as `0 9 * * mon-fri`

            error: `61 * * * *` is not a cron expression: `61` is no minute: 0-59
             --> a.yaml:7:13
              |
            7 |   c: {cron: '61 * * * *'}
              |             ^^^^^^^^^^^^ expected a cron expression such as `0 9 * * mon-fri`

            error: `0s` is not a duration: it must be longer than zero
             --> a.yaml:8:17
              |
            8 |   d: {interval: 0s}
              |                 ^^ expected a duration such as `1h30m`

            error: the interval 100ms is shorter than a second
             --> a.yaml:9:17
              |
            9 |   e: {interval: 100ms}
              |                 ^^^^^ at least `1s`

            error: the jitter 1h is as long as the interval
              --> a.yaml:10:29
               |
            10 |   f: {interval: 1h, jitter: 1h}
               |                             ^^ less than 1h

            error: `not a url` is not a URL: relative URL without a base
              --> a.yaml:13:28
               |
            13 |     - {type: webhook, url: not a url}
               |                            ^^^^^^^^^ expected a URL such as `https://example.com/hook`

            error: expected a URL that starts with http:// or https://, found `ftp://x/y`
              --> a.yaml:14:28
               |
            14 |     - {type: webhook, url: 'ftp://x/y'}
               |                            ^^^^^^^^^^^ expected a URL that starts with http:// or https://

            error: `GITHUB-TOKEN` is not the name of an environment variable: only letters, digits and `_` are allowed, and no digit first
              --> a.yaml:15:11
               |
            15 | secrets: [GITHUB-TOKEN]
               |           ^^^^^^^^^^^^ expected the name of an environment variable such as `GITHUB_TOKEN`
        "#]],
    );
    check(
        "docker: {memory: lots, user: root, ports: ['0:1'], volumes: [/data], tmpfs: [tmp]}\n",
        expect![[r#"
            error: `lots` is not a size: a number and k, m, g or t
             --> heeler.yaml:1:18
              |
            1 | docker: {memory: lots, user: root, ports: ['0:1'], volumes: [/data], tmpfs: [tmp]}
              |                  ^^^^ expected a size such as `512m`

            error: `root` is not a user: write UID or UID:GID
             --> heeler.yaml:1:30
              |
            1 | docker: {memory: lots, user: root, ports: ['0:1'], volumes: [/data], tmpfs: [tmp]}
              |                              ^^^^ expected a user such as `1000:1000`

            error: `0:1` is not a port: write host:container or container, from 1 to 65535
             --> heeler.yaml:1:44
              |
            1 | docker: {memory: lots, user: root, ports: ['0:1'], volumes: [/data], tmpfs: [tmp]}
              |                                            ^^^^^ expected a port such as `8080:80`

            error: `/data` is not a mount: write host:container, and :ro or :rw
             --> heeler.yaml:1:62
              |
            1 | docker: {memory: lots, user: root, ports: ['0:1'], volumes: [/data], tmpfs: [tmp]}
              |                                                              ^^^^^ expected a mount such as `/data:/data:ro`

            error: `tmp` is not a mount in memory: it must start with `/`
             --> heeler.yaml:1:78
              |
            1 | docker: {memory: lots, user: root, ports: ['0:1'], volumes: [/data], tmpfs: [tmp]}
              |                                                                              ^^^ expected a mount in memory such as `/tmp:size=100m`

            warning: `docker` has no effect yet
             --> heeler.yaml:1:1
              |
            1 | docker: {memory: lots, user: root, ports: ['0:1'], volumes: [/data], tmpfs: [tmp]}
              | ^^^^^^ accepted, not used
        "#]],
    );
}

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
              = help: known keys: type, every, expression

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
            let text = |period: Option<heeler_model::config::Period>| {
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
          |           ^^^ it would never be played

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
    let inline = agent("runtime: scripted\nscript: [{say: hi}, {wait: 2}]\n");
    let steps = vec![serde_json::json!({"say": "hi"}), serde_json::json!({"wait": 2})];
    assert_eq!(inline.runtime, Runtime::Scripted(Script::Steps(steps)));
    let file = agent("runtime: scripted\nscript: ../scripts/a.yaml\n");
    assert_eq!(file.runtime, Runtime::Scripted(Script::File("/scripts/a.yaml".into())));
    assert_eq!(
        agent("runtime: command\ncommand: ls -l\n").runtime,
        Runtime::Command("ls -l".into())
    );
    assert_eq!(agent("").runtime, Runtime::Sdk);
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

            error: `url` means nothing in a hook of type `shell`
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
    let agent = agent(
        "\
hooks:
  after_run:
    - {type: shell, command: 'notify.sh', timeout: 1500}
    - {type: webhook, url: 'https://example.com/x', timeout: 5s, on_events: [failed]}
  on_error:
    - {type: slack, channel_id: C1}
",
    );
    expect![[r#"
        Hooks {
            after_run: [
                Hook {
                    name: None,
                    continue_on_error: true,
                    on_events: None,
                    when: None,
                    action: Shell {
                        command: "notify.sh",
                        timeout: Period(1s500ms),
                    },
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
              = help: known keys: discord, slack

            warning: `chat` has no effect yet
             --> a.yaml:2:1
              |
            2 | chat: {slack: {output: {tool_result_max_length: 5000}, channels: [{mode: al}]}, irc: {}}
              | ^^^^ accepted, not used
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
        matches!(&schedule.trigger, Trigger::Cron { zone: Some(zone), .. } if zone.name() == "Europe/Vienna")
    );
    assert_eq!(agent.approvals, Approvals::Autonomous);
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
fn an_unknown_version_is_refused_in_heeler_yaml_only() {
    check(
        "version: 2\n",
        expect![[r#"
        error: version 2 of the config format is not known
         --> heeler.yaml:1:10
          |
        1 | version: 2
          |          ^ expected 1
    "#]],
    );
    assert_eq!(render(&[("herdctl.yaml", "version: 2")], &[]), "ok\n");
}
