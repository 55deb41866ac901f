//! What single values may be.

use expect_test::expect;

use crate::{agent, check, check_agent, load_files, render};

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

            error: expected one of: sdk, cli, scripted, command, acp, codex, qwen; found `skd`
             --> a.yaml:4:10
              |
            4 | runtime: skd
              |          ^^^ expected one of: sdk, cli, scripted, command, acp, codex, qwen
              |
              = help: did you mean `sdk`?

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
              |       ^^^^^^ `interval`, `cron` or `paths` belongs here

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
fn schedules_are_checked_at_load() {
    check_agent(
        "\
schedules:
  a: {cron: '0 0 9 * * *'}
  b: {cron: '0 0 30 2 *'}
  c: {cron: '61 * * * *'}
  d: {interval: 0s}
  e: {interval: 100ms}
  f: {interval: 1h, jitter: 1h}
  g: {interval: 10s}
jitter: 10s
",
        expect![[r#"
            error: `0 0 9 * * *` is not a cron expression: it has six fields: remove the seconds, the first field is the minute
             --> a.yaml:3:13
              |
            3 |   a: {cron: '0 0 9 * * *'}
              |             ^^^^^^^^^^^^^ expected a cron expression such as `0 9 * * mon-fri`

            error: `0 0 30 2 *` is not a cron expression: it is never due: no date matches
             --> a.yaml:4:13
              |
            4 |   b: {cron: '0 0 30 2 *'}
              |             ^^^^^^^^^^^^ expected a cron expression such as `0 9 * * mon-fri`

            error: `61 * * * *` is not a cron expression: its minute must be 0-59
             --> a.yaml:5:13
              |
            5 |   c: {cron: '61 * * * *'}
              |             ^^^^^^^^^^^^ expected a cron expression such as `0 9 * * mon-fri`

            error: `0s` is not a duration: it must be longer than zero
             --> a.yaml:6:17
              |
            6 |   d: {interval: 0s}
              |                 ^^ expected a duration such as `1h30m`

            error: the interval 100ms is shorter than a second
             --> a.yaml:7:17
              |
            7 |   e: {interval: 100ms}
              |                 ^^^^^ at least `1s`

            error: the jitter 10s is not shorter than the interval 100ms
             --> a.yaml:7:17
              |
            7 |   e: {interval: 100ms}
              |                 ^^^^^ the jitter must be shorter

            error: the jitter 1h is not shorter than the interval 1h
             --> a.yaml:8:29
              |
            8 |   f: {interval: 1h, jitter: 1h}
              |                             ^^ the jitter must be shorter

            error: the jitter 10s is not shorter than the interval 10s
             --> a.yaml:9:17
              |
            9 |   g: {interval: 10s}
              |                 ^^^ the jitter must be shorter
        "#]],
    );
}

#[test]
fn zones_urls_money_and_names_of_variables_are_checked_at_load() {
    check_agent(
        "\
timezone: Europe/Viena
budget: {job: free, day: 0}
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

            error: `not a url` is not a URL: relative URL without a base
             --> a.yaml:6:28
              |
            6 |     - {type: webhook, url: not a url}
              |                            ^^^^^^^^^ expected a URL such as `https://example.com/hook`

            error: expected a URL that starts with http:// or https://, found `ftp://x/y`
             --> a.yaml:7:28
              |
            7 |     - {type: webhook, url: 'ftp://x/y'}
              |                            ^^^^^^^^^^^ expected a URL that starts with http:// or https://

            error: `GITHUB-TOKEN` is not the name of an environment variable: only letters, digits and `_` are allowed, and no digit first
             --> a.yaml:8:11
              |
            8 | secrets: [GITHUB-TOKEN]
              |           ^^^^^^^^^^^^ expected the name of an environment variable such as `GITHUB_TOKEN`
        "#]],
    );
}

#[test]
fn container_settings_are_checked_at_load() {
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

            error: `/data` is not a mount: write host:container, and :ro or :rw; both are absolute paths, or host is the name of a volume
             --> heeler.yaml:1:62
              |
            1 | docker: {memory: lots, user: root, ports: ['0:1'], volumes: [/data], tmpfs: [tmp]}
              |                                                              ^^^^^ expected a mount such as `/data:/data:ro`

            error: `tmp` is not a mount in memory: it must start with `/`
             --> heeler.yaml:1:78
              |
            1 | docker: {memory: lots, user: root, ports: ['0:1'], volumes: [/data], tmpfs: [tmp]}
              |                                                                              ^^^ expected a mount in memory such as `/tmp:size=100m`
        "#]],
    );
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

#[test]
fn environment_variables_are_such_as_a_process_can_be_given() {
    check_agent(
        "env: {'A=B': x, '': y, C: \"a\\0b\", D: 5}\n",
        expect![[r#"
            error: `A=B` cannot name an environment variable
             --> a.yaml:2:7
              |
            2 | env: {'A=B': x, '': y, C: "a\0b", D: 5}
              |       ^^^^^ expected a name such as `PATH`

            error: `` cannot name an environment variable
             --> a.yaml:2:17
              |
            2 | env: {'A=B': x, '': y, C: "a\0b", D: 5}
              |                 ^^ expected a name such as `PATH`

            error: the value of `C` has a NUL in it
             --> a.yaml:2:27
              |
            2 | env: {'A=B': x, '': y, C: "a\0b", D: 5}
              |                           ^^^^^^ no process can be given this
        "#]],
    );
    check_agent(
        "runtime: command\ncommand: ' '\n",
        expect![[r#"
            error: expected some text, found ` `
             --> a.yaml:3:10
              |
            3 | command: ' '
              |          ^^^ expected some text
        "#]],
    );
}

#[test]
fn a_sign_is_no_part_of_a_port_or_user() {
    for keys in ["ports: ['+80:80'], network: bridge", "user: '+1'", "user: '1:+1'"] {
        let fleet = format!("agents: [{{name: a, docker: {{enabled: true, {keys}}}}}]");
        let told = render(&[("heeler.yaml", &fleet)], &[]);
        assert!(told.contains("+") && told.contains("is not a"), "{keys}: {told}");
    }
}

#[test]
fn settings_that_break_a_container_are_refused() {
    let cases = [
        "network: host",
        "volumes: ['/var/run/docker.sock:/s', '/home/a/./engine.sock:/s', '/:/host', '/etc//:/e:ro', '/x/../etc:/e']",
        "volumes: ['/a:/', '/a:/.heeler/x'], tmpfs: ['/.heeler:size=1m']",
        "host_config: {Privileged: true, CapAdd: [SYS_ADMIN], Devices: [x], IpcMode: host, SecurityOpt: [x]}",
        "host_config: {PidMode: host, binds: ['/:/host'], NetworkMode: host}",
        "host_config: [Privileged]",
        "ports: ['8080:80']",
        "labels: {heeler.run: x}",
        "memory: 1m, cpu_period: 10, cpu_quota: 1",
    ];
    let mut told = String::new();
    for case in cases {
        let fleet = format!("agents: [{{name: a, docker: {{enabled: true, {case}}}}}]");
        let faults = load_files(&[("heeler.yaml", &fleet)], &[]).unwrap_err();
        let lines = faults.list.iter().map(|fault| format!("    {}\n", fault.message));
        told.push_str(&format!("{case}\n{}", lines.collect::<String>()));
    }
    expect![[r#"
        network: host
            `docker.network: host` breaks the isolation of the container: the agent reaches every service of this machine
        volumes: ['/var/run/docker.sock:/s', '/home/a/./engine.sock:/s', '/:/host', '/etc//:/e:ro', '/x/../etc:/e']
            the volume `/var/run/docker.sock:/s` breaks the isolation of the container: it gives the agent files or sockets that control this machine
            the volume `/home/a/./engine.sock:/s` breaks the isolation of the container: who listens on that socket may act for the agent
            the volume `/:/host` breaks the isolation of the container: it gives the agent files or sockets that control this machine
            the volume `/etc//:/e:ro` breaks the isolation of the container: it gives the agent files or sockets that control this machine
            the volume `/x/../etc:/e` breaks the isolation of the container: its path contains `..`
        volumes: ['/a:/', '/a:/.heeler/x'], tmpfs: ['/.heeler:size=1m']
            `docker.volumes` cannot replace `/` of the container
            `docker.volumes` cannot replace `/.heeler/x` of the container
            `docker.tmpfs` cannot replace `/.heeler` of the container
        host_config: {Privileged: true, CapAdd: [SYS_ADMIN], Devices: [x], IpcMode: host, SecurityOpt: [x]}
            `docker.host_config.Privileged` breaks the isolation of the container: it is not known to be harmless
            `docker.host_config.CapAdd` breaks the isolation of the container: it is not known to be harmless
            `docker.host_config.Devices` breaks the isolation of the container: it is not known to be harmless
            `docker.host_config.IpcMode` breaks the isolation of the container: it is not known to be harmless
            `docker.host_config.SecurityOpt` breaks the isolation of the container: it is not known to be harmless
        host_config: {PidMode: host, binds: ['/:/host'], NetworkMode: host}
            `docker.host_config.PidMode` is a setting of Heeler
            `docker.host_config.binds` is a setting of Heeler
            `docker.host_config.NetworkMode` is a setting of Heeler
        host_config: [Privileged]
            `docker.host_config` must be a map of settings
        ports: ['8080:80']
            `docker.ports` cannot be published without a network
        labels: {heeler.run: x}
            the label `heeler.run` is one that Heeler sets
        memory: 1m, cpu_period: 10, cpu_quota: 1
            `docker.memory` is too small
            `docker.cpu_period` is no period that the kernel accepts
            `docker.cpu_quota` is no quota that the kernel accepts
    "#]].assert_eq(&told);
}

#[test]
fn unsafe_settings_of_a_container_need_one_word_and_some_are_never_accepted() {
    let fleet = |keys: &str| {
        let fleet = format!("agents: [{{name: a, docker: {{enabled: true, {keys}}}}}]");
        render(&[("heeler.yaml", &fleet)], &[])
    };
    let accepted = "allow_unsafe: true, network: host, volumes: ['/var/run/docker.sock:/s'], host_config: {Privileged: true}";
    assert_eq!(fleet(accepted), "ok\n");
    // What is switched off, and limits, need no word.
    assert_eq!(
        fleet(
            "host_config: {Privileged: false, CapAdd: [], NanoCpus: 500000000}, network: bridge, ports: [80]"
        ),
        "ok\n"
    );
    let never = fleet("allow_unsafe: true, host_config: {PidMode: host}");
    assert!(never.contains("is a setting of Heeler"), "{never}");
    // A container that is switched off is not judged.
    let off = "agents: [{name: a, docker: {enabled: false, network: host}}]";
    assert_eq!(render(&[("heeler.yaml", off)], &[]), "ok\n");
}

#[test]
fn a_container_and_a_sandbox_together_say_what_cannot_be_had() {
    let fleet = |docker: &str, more: &str| {
        let fleet = format!("agents: [{{name: a, docker: {{enabled: true, {docker}}}, {more}}}]");
        render(&[("heeler.yaml", &fleet)], &[])
    };
    assert_eq!(fleet("network: none", "sandbox: {network: {presets: [github]}}"), "ok\n");
    let told = fleet("network: bridge", "sandbox: {network: none, credentials: proxied}");
    assert!(told.contains("leaves no way to honour `sandbox.network`"), "{told}");
    assert!(told.contains("leaves no way to proxy the credentials"), "{told}");
    let told = fleet("memory: 1g", "runtime: command, command: x, allow_new_privileges: true");
    assert!(told.contains("no process gains privileges in a container"), "{told}");
}

#[test]
fn what_would_have_an_agent_refused_is_told_as_that() {
    check_agent(
        "docker: {enabled: true}\npermission_mode: delegate",
        expect![[r#"
            warning: Claude has no mode `delegate` any more: the agent is refused and never runs in another mode instead
             --> a.yaml:3:18
              |
            3 | permission_mode: delegate
              |                  ^^^^^^^^ choose another mode
        "#]],
    );
    check_agent(
        "sandbox: false\ndocker: {enabled: false}\npermission_mode: auto",
        expect![[r#"
            ok
        "#]],
    );
}

#[test]
fn landlock_is_refused_with_keys_that_it_cannot_honour() {
    check_agent(
        "sandbox: {level: landlock, write: [x], deny_read: [y]}",
        expect![[r#"
            ok
        "#]],
    );
    check_agent(
        "sandbox: {level: landlock, network: none}",
        expect![[r#"
            error: `level: landlock` limits only files, so it cannot honour `network`
             --> a.yaml:2:11
              |
            2 | sandbox: {level: landlock, network: none}
              |           ^^^^^ remove `network`, or `level: landlock`
        "#]],
    );
    let agent = |keys: &str| {
        render(&[("heeler.yaml", "agents: [a.yaml]"), ("a.yaml", &format!("name: a\n{keys}"))], &[])
    };
    let forward = "forward: ['127.0.0.1:5432']";
    for key in ["unix_sockets: deny", "credentials: agent", "read_only: [x]", forward] {
        let told = agent(&format!("sandbox: {{level: landlock, {key}}}"));
        assert!(told.contains("limits only files"), "{told}");
    }
    for other in ["allow_new_privileges: true", "docker: {enabled: true}"] {
        let told = agent(&format!("sandbox: {{level: landlock}}\n{other}"));
        assert!(told.contains("cannot"), "{told}");
    }
}

#[test]
fn a_sandbox_is_a_word_or_settings_and_nothing_unknown() {
    for keys in ["sandbox: true", "sandbox: off", "sandbox: {write: [x], unix_sockets: deny}"] {
        check_agent(
            keys,
            expect![[r#"
                ok
            "#]],
        );
    }
    check_agent(
        "sandbox: {read: [x]}",
        expect![[r#"
            error: unknown key `read` in sandbox
             --> a.yaml:2:11
              |
            2 | sandbox: {read: [x]}
              |           ^^^^ did you mean `read_only`?
        "#]],
    );
    check_agent(
        "sandbox: maybe",
        expect![[r#"
            error: expected true or false, found `maybe`
             --> a.yaml:2:10
              |
            2 | sandbox: maybe
              |          ^^^^^ expected true or false
        "#]],
    );
    check_agent(
        "sandbox: true\nallow_new_privileges: true",
        expect![[r#"
            error: no process gains privileges in a sandbox, so `allow_new_privileges` cannot be honoured
             --> a.yaml:2:10
              |
            2 | sandbox: true
              |          ^^^^ remove one of both keys

            warning: with `allow_new_privileges`, a process that outlives its run may count as a person
             --> a.yaml:3:23
              |
            3 | allow_new_privileges: true
              |                       ^^^^ needed only for programs such as `sudo`
              |
              = help: run what needs privileges outside of the agent
        "#]],
    );
}
