//! What is said about files that are not YAML of the form we read.

use expect_test::expect;
use heeler_config::{
    DEPTH_MAX, FAULTS_SHOWN_MAX, FILE_BYTES_MAX, FileArchiveConfig, FileArchivePlace, HostChoice,
    LOAD_BYTES_MAX, MEMBERS_MAX, NODES_MAX, PartitionPolicy, PlacementOrder, TEXT_BYTES_MAX,
};

use crate::{check, load_files, render};

#[test]
fn an_empty_file_is_a_fleet_without_agents() {
    check(
        "",
        expect![[r#"
        ok
    "#]],
    );
    check(
        "# nothing\n",
        expect![[r#"
        ok
    "#]],
    );
    check(
        "---\n",
        expect![[r#"
        ok
    "#]],
    );
    check(
        "agents:\nfleets:\n",
        expect![[r#"
        ok
    "#]],
    );
}

#[test]
fn a_byte_order_mark_and_windows_line_ends_are_read() {
    check(
        "\u{feff}version: 1\r\nagents: []\r\n",
        expect![[r#"
        ok
    "#]],
    );
    check(
        "\u{feff}version: 1\r\nagent: []\r\n",
        expect![[r#"
            error: unknown key `agent` in fleet file
             --> heeler.yaml:2:1
              |
            2 | agent: []
              | ^^^^^ did you mean `agents`?
        "#]],
    );
}

#[test]
fn a_file_that_is_not_a_map_is_refused() {
    check(
        "- a\n- b\n",
        expect![[r#"
        error: expected a map, found a list
         --> heeler.yaml:1:3
          |
        1 | - a
          |   ^ expected a map
    "#]],
    );
    check(
        "just text",
        expect![[r#"
        error: expected a map, found `just text`
         --> heeler.yaml:1:1
          |
        1 | just text
          | ^^^^^^^^^ expected a map
    "#]],
    );
}

#[test]
fn broken_yaml_is_shown_where_it_breaks() {
    check(
        "agents: [a.yaml\nversion: 1\n",
        expect![[r#"
            error: not valid YAML: illegal placement of ':' indicator
             --> heeler.yaml:2:8
              |
            2 | version: 1
              |        ^
        "#]],
    );
    check(
        "fleet:\n\tname: x\n",
        expect![[r#"
            error: not valid YAML: tabs disallowed within this context (block indentation)
             --> heeler.yaml:2:2
              |
            2 |     name: x
              |     ^
              |
              = help: indent with spaces: YAML allows no tabs there
        "#]],
    );
    check(
        "fleet: {name: \"x}\n",
        expect![[r#"
        error: not valid YAML: unclosed quote
         --> heeler.yaml:1:15
          |
        1 | fleet: {name: "x}
          |               ^
    "#]],
    );
    check(
        "version: 1\n  fleet: x\n",
        expect![[r#"
            error: not valid YAML: mapping values are not allowed in this context
             --> heeler.yaml:2:8
              |
            2 |   fleet: x
              |        ^
        "#]],
    );
}

#[test]
fn a_second_document_is_refused() {
    check(
        "version: 1\n---\nversion: 1\n",
        expect![[r#"
            error: a second document starts here
             --> heeler.yaml:2:1
              |
            2 | ---
              | ^^^
              |
              = help: a config file holds one document: remove the `---`
        "#]],
    );
}

#[test]
fn duplicate_keys_are_refused_with_the_first_line() {
    check(
        "version: 1\nfleet: {name: a}\nversion: 1\n",
        expect![[r#"
            error: the key `version` is here twice
             --> heeler.yaml:3:1
              |
            3 | version: 1
              | ^^^^^^^ it is already on line 1
        "#]],
    );
}

#[test]
fn tags_and_keys_that_are_no_words_are_refused() {
    check(
        "fleet: !thing {name: a}\n",
        expect![[r#"
        error: the tag `!thing` is not supported
         --> heeler.yaml:1:15
          |
        1 | fleet: !thing {name: a}
          |               ^
          |
          = help: remove it: config uses no tags
    "#]],
    );
    check(
        "[1, 2]: x\n",
        expect![[r#"
        error: this key is not a plain word
         --> heeler.yaml:1:2
          |
        1 | [1, 2]: x
          |  ^
    "#]],
    );
    check(
        "fleet:\n  name: !!str 2024\n",
        expect![[r#"
        ok
    "#]],
    );
}

#[test]
fn aliases_and_merge_keys_are_expanded_and_own_keys_win() {
    let yaml = "\
agents:
  - &base {name: a, runtime: command, command: 'true', timeout: 5m}
  - <<: *base
    name: b
  - <<: [{timeout: 1h}, *base]
    name: c
";
    let loaded = load_files(&[("heeler.yaml", yaml)], &[]).unwrap();
    let timeouts: Vec<String> = loaded
        .agents
        .iter()
        .map(|agent| format!("{} {}", agent.name, agent.timeout.unwrap()))
        .collect();
    assert_eq!(timeouts, ["a 5m", "b 5m", "c 1h"]);
    check(
        "fleet: {<<: 5}\n",
        expect![[r#"
        error: `<<` takes a map or a list of maps
         --> heeler.yaml:1:13
          |
        1 | fleet: {<<: 5}
          |             ^
    "#]],
    );
    check(
        "fleet: *nobody\n",
        expect![[r#"
        error: there is no anchor `&nobody` before this alias
         --> heeler.yaml:1:8
          |
        1 | fleet: *nobody
          |        ^^^^^^^
    "#]],
    );
    check(
        "fleet: &a {name: *a}\n",
        expect![[r#"
        error: an alias inside its own anchor
         --> heeler.yaml:1:18
          |
        1 | fleet: &a {name: *a}
          |                  ^^
    "#]],
    );
}

#[test]
fn an_alias_bomb_is_refused_by_the_budget() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let below = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{below}]\n"));
    }
    let said = render(&[("heeler.yaml", &bomb)], &[]);
    assert!(said.contains(&format!("more than {NODES_MAX} values")), "{said}");
}

#[test]
fn an_alias_of_a_long_text_is_paid_for_with_each_use() {
    let long = "x".repeat(FILE_BYTES_MAX * 9 / 10);
    let bomb = format!("a: &a '{long}'\nb: [{}]\n", vec!["*a"; 9_000].join(", "));
    let said = render(&[("heeler.yaml", &bomb)], &[]);
    assert!(said.contains(&format!("more than {TEXT_BYTES_MAX} bytes of text")), "{said:.500}");
    let anchors: String = (0..60).map(|level| format!("&a{level} [")).collect();
    let nested = format!("a: {anchors}'{long}'{}\n", "]".repeat(60));
    let said = render(&[("heeler.yaml", &nested)], &[]);
    assert!(said.contains("bytes of text"), "{said:.500}");
}

#[test]
fn variables_are_paid_for_by_what_they_become() {
    let value = "x".repeat(FILE_BYTES_MAX);
    let bomb = format!("fleet: {{description: '{}'}}\n", "${LONG}".repeat(100_000));
    let said = render(&[("heeler.yaml", &bomb)], &[("LONG", &value)]);
    assert!(said.contains(&format!("more than {TEXT_BYTES_MAX} bytes of text")), "{said:.500}");
    let spread = format!("chat: [{}]\n", vec!["'${LONG}'"; 1_000].join(", "));
    let said = render(&[("heeler.yaml", &spread)], &[("LONG", &value)]);
    assert!(said.contains("bytes of text"), "{said:.500}");
}

#[test]
fn defaults_are_paid_for_with_each_agent_that_gets_them() {
    let long = "x".repeat(FILE_BYTES_MAX / 2);
    let agents: String = (0..MEMBERS_MAX).map(|n| format!("  - {{name: a{n}}}\n")).collect();
    let bomb = format!("defaults: {{system_prompt: {long}}}\nagents:\n{agents}");
    let said = render(&[("heeler.yaml", &bomb)], &[]);
    let limit = format!("more than {LOAD_BYTES_MAX} bytes with its defaults");
    assert!(said.contains(&limit), "{said:.500}");
}

#[test]
fn nesting_and_size_have_limits() {
    let deep = format!("chat: {}{}\n", "[".repeat(DEPTH_MAX + 1), "]".repeat(DEPTH_MAX + 1));
    assert!(render(&[("heeler.yaml", &deep)], &[]).contains("error"), "{deep}");
    let fits = format!("chat: {}{}\n", "[".repeat(DEPTH_MAX - 1), "]".repeat(DEPTH_MAX - 1));
    assert!(!render(&[("heeler.yaml", &fits)], &[]).contains("error"));
    let mut chained = format!("a0: &a0 {}x{}\n", "[".repeat(60), "]".repeat(60));
    for level in 1..1000 {
        let (open, close) = ("[".repeat(60), "]".repeat(60));
        chained.push_str(&format!("a{level}: &a{level} {open}*a{}{close}\n", level - 1));
    }
    let said = render(&[("heeler.yaml", &chained)], &[]);
    assert!(said.contains(&format!("nested deeper than {DEPTH_MAX}")), "{said}");
    let large = format!("# {}\n", "x".repeat(FILE_BYTES_MAX));
    assert!(render(&[("heeler.yaml", &large)], &[]).contains("larger than 1048576 bytes"));
}

#[test]
fn very_many_faults_are_counted_not_shown() {
    let keys: String = (0..FAULTS_SHOWN_MAX + 7).map(|at| format!("zz{at}: 1\n")).collect();
    let said = render(&[("heeler.yaml", &keys)], &[]);
    assert!(said.ends_with("… and 7 more\n"), "{said}");
    let keys: String = (0..3_000).map(|at| format!("zz{at}: 1\n")).collect();
    let said = render(&[("heeler.yaml", &keys)], &[]);
    assert!(said.ends_with(&format!("… and {} more\n", 3_000 - FAULTS_SHOWN_MAX)), "{said}");
}

#[test]
fn unknown_keys_are_errors_in_heeler_yaml_and_warnings_in_herdctl_yaml() {
    let yaml = "fleeet: {name: a}\nquite_unlike_anything: 1\n";
    check(
        yaml,
        expect![[r#"
            error: unknown key `fleeet` in fleet file
             --> heeler.yaml:1:1
              |
            1 | fleeet: {name: a}
              | ^^^^^^ did you mean `fleet`?

            error: unknown key `quite_unlike_anything` in fleet file
             --> heeler.yaml:2:1
              |
            2 | quite_unlike_anything: 1
              | ^^^^^^^^^^^^^^^^^^^^^
              |
              = help: known keys: version, fleet, defaults, agents, fleets, max_concurrent, budget, queue, retention, logs, watch_config, timezone, durability, store, archive, workflows, web, webhooks, github, notify, metrics, telemetry, docker, working_directory, chat
        "#]],
    );
    let said = render(&[("herdctl.yaml", yaml)], &[]);
    expect![[r#"
        warning: unknown key `fleeet` in fleet file
         --> herdctl.yaml:1:1
          |
        1 | fleeet: {name: a}
          | ^^^^^^ did you mean `fleet`?

        warning: unknown key `quite_unlike_anything` in fleet file
         --> herdctl.yaml:2:1
          |
        2 | quite_unlike_anything: 1
          | ^^^^^^^^^^^^^^^^^^^^^
          |
          = help: known keys: version, fleet, defaults, agents, fleets, max_concurrent, budget, queue, retention, logs, watch_config, timezone, durability, store, archive, workflows, web, webhooks, github, notify, metrics, telemetry, docker, working_directory, chat
    "#]].assert_eq(&said);
}

#[test]
fn a_fault_knows_its_place_in_characters() {
    let faults = load_files(&[("heeler.yaml", "fleet: {description: äöü, nmae: x}\n")], &[]);
    let faults = faults.unwrap_err();
    assert_eq!((faults.list[0].line(), faults.list[0].column()), (1, 27));
    assert_eq!(faults.to_string(), "1 error in the config");
}

#[test]
fn a_missing_file_is_named_where_it_is_named() {
    check(
        "agents:\n  - ./agents/gone.yaml\nfleets:\n  - path: sub/heeler.yaml\n",
        expect![[r#"
            error: cannot read /fleet/agents/gone.yaml: entity not found
             --> heeler.yaml:2:5
              |
            2 |   - ./agents/gone.yaml
              |     ^^^^^^^^^^^^^^^^^^ named here

            error: cannot read /fleet/sub/heeler.yaml: entity not found
             --> heeler.yaml:4:11
              |
            4 |   - path: sub/heeler.yaml
              |           ^^^^^^^^^^^^^^^ named here
        "#]],
    );
    let nothing = heeler_config::load(
        "/nowhere/heeler.yaml".into(),
        &|_| Err(std::io::ErrorKind::NotFound.into()),
        &Default::default(),
    );
    expect![[r#"
        error: cannot read /nowhere/heeler.yaml: entity not found
         --> /nowhere/heeler.yaml:1:1
          |
        1 |
          | ^
    "#]]
    .assert_eq(&format!("{:?}\n", nothing.unwrap_err()));
}

#[test]
fn keys_without_effect_are_named_once_for_each_file() {
    let fleet = "\
webhooks: {port: 8081, enabled: true}
web: {enabled: false}
defaults:
  docker: {enabled: true}
agents:
  - a.yaml
";
    let agent = "\
name: a
plugins: [./p]
session: {mode: persistent, context_window: 50}
identity: {role: support}
";
    let said = render(&[("heeler.yaml", fleet), ("a.yaml", agent)], &[]);
    expect![[r#"
        warning: `webhooks.port` has no effect yet
         --> heeler.yaml:1:12
          |
        1 | webhooks: {port: 8081, enabled: true}
          |            ^^^^ accepted, not used

        warning: `identity.role` has no effect yet
         --> a.yaml:4:12
          |
        4 | identity: {role: support}
          |            ^^^^ accepted, not used
    "#]]
    .assert_eq(&said);
}

#[test]
fn a_review_that_the_runtime_cannot_ask_for_is_refused() {
    let fleet = "\
defaults:
  budget: {job: 2, day: 5}
agents:
  - {name: a, approvals: review, metadata_file: m.json, budget: {job: 1, total: 9}}
  - {name: b, approvals: autonomous, hooks: {after_run: [{type: shell, command: x}]}}
  - {name: c, approvals: review, runtime: cli}
  - {name: d, approvals: review, runtime: command, command: date}
";
    let said = render(&[("heeler.yaml", fleet)], &[]);
    expect![[r#"
        error: `approvals: review` cannot be honoured with `runtime: cli`
         --> heeler.yaml:6:26
          |
        6 |   - {name: c, approvals: review, runtime: cli}
          |                          ^^^^^^ the runtime `cli` cannot ask a person: use `runtime: sdk`

        error: `approvals: review` cannot be honoured with `runtime: command`
         --> heeler.yaml:7:26
          |
        7 |   - {name: d, approvals: review, runtime: command, command: date}
          |                          ^^^^^^ only Claude with `runtime: sdk` asks before each action
    "#]].assert_eq(&said);
}

#[test]
fn rules_for_claude_are_warned_about_once_where_the_agent_is_not_claude() {
    let fleet = "\
defaults:
  permission_mode: plan
agents:
  - {name: a, denied_tools: [Bash]}
  - {name: b, runtime: command, command: date, denied_tools: [Bash]}
  - {name: c, runtime: scripted, script: [{say: hi}], allowed_tools: [Read]}
  - {name: d, runtime: scripted, script: [{say: hi}], tools: null}
";
    let said = render(&[("heeler.yaml", fleet)], &[]);
    expect![[r#"
        warning: `permission_mode` has no effect with `runtime: command`
         --> heeler.yaml:2:3
          |
        2 |   permission_mode: plan
          |   ^^^^^^^^^^^^^^^ a command may do everything that its user may do

        warning: `permission_mode` has no effect with `runtime: scripted`
         --> heeler.yaml:2:3
          |
        2 |   permission_mode: plan
          |   ^^^^^^^^^^^^^^^ a script executes all of its steps

        warning: `denied_tools` has no effect with `runtime: command`
         --> heeler.yaml:5:48
          |
        5 |   - {name: b, runtime: command, command: date, denied_tools: [Bash]}
          |                                                ^^^^^^^^^^^^ a command may do everything that its user may do

        warning: `allowed_tools` has no effect with `runtime: scripted`
         --> heeler.yaml:6:55
          |
        6 |   - {name: c, runtime: scripted, script: [{say: hi}], allowed_tools: [Read]}
          |                                                       ^^^^^^^^^^^^^ a script executes all of its steps
    "#]].assert_eq(&said);
}

#[test]
fn a_work_source_that_cannot_be_used_is_refused_with_the_reason() {
    let github = "github: {bot: b, token_env: T, repos: [acme/app]}\n";
    let load = |fleet: &str, source: &str| {
        let agent = format!(
            "{fleet}agents: [{{name: a, work_source: {{type: github{source}}}, \
             schedules: {{s: {{interval: 5m, prompt: x}}}}}}]\n"
        );
        render(&[("heeler.yaml", &agent)], &[])
    };
    for (fleet, source, expected) in [
        ("", ", repo: acme/app", "`work_source` needs access to GitHub"),
        ("github: {bot: b, repos: [acme/app]}\n", ", repo: acme/app", "needs access to GitHub"),
        (github, "", "`work_source` names no `repo`"),
        (github, ", repo: acme/other", "acme/other is not in `github.repos`"),
        (github, ", repo: acme/app, auth: {token_env: OTHER}", "names the token OTHER"),
    ] {
        let said = load(fleet, source);
        assert!(said.contains("error: ") && said.contains(expected), "{said}");
    }
    for source in [", repo: acme/app", ", repo: ACME/app, auth: {token_env: T}"] {
        let said = load(github, source);
        assert!(!said.contains("work_source") && !said.contains("error: "), "{said}");
    }
}

#[test]
fn a_conversation_on_github_needs_access_to_its_repositories() {
    let github = "github: {bot: b, token_env: T, repos: [acme/app]}\n";
    let load = |fleet: &str, keys: &str| {
        let agent = format!("{fleet}agents: [{{name: a, chat: {{github: {{{keys}}}}}}}]\n");
        render(&[("heeler.yaml", &agent)], &[])
    };
    for (fleet, keys, expected) in [
        ("", "repos: [{repo: acme/app}]", "`chat.github` needs access to GitHub"),
        (github, "repos: [{repo: acme/other}]", "acme/other is not in `github.repos`"),
        (github, "repos: [{repo: acme}]", "owner/name"),
        (github, "poll_seconds: 61", "60"),
    ] {
        let said = load(fleet, keys);
        assert!(said.contains("error: ") && said.contains(expected), "{said}");
    }
    let said = load(github, "repos: [{repo: ACME/app, mode: auto}], approvers: ['42']");
    assert!(!said.contains("error: ") && !said.contains("chat"), "{said}");
}

#[test]
fn access_to_github_is_refused_where_it_would_be_sent_in_the_clear_or_to_agents() {
    for (keys, expected) in [
        ("token_env: T, api_url: 'http://git.example.com'", "are not sent to this address"),
        ("token_env: T, api_url: 'https://u:p@git.example.com'", "are not sent to this address"),
        ("token_env: CLAUDE_GITHUB", "every agent gets the variable CLAUDE_GITHUB"),
        ("token_env: T, app: {id: 1, installation: 2, private_key_env: K}", "cannot both be set"),
        ("app: {id: 1, installation: 2}", "an App has exactly one private key"),
    ] {
        let fleet = format!("github: {{bot: b, {keys}}}\nagents: [{{name: a}}]\n");
        let said = render(&[("heeler.yaml", &fleet)], &[]);
        assert!(said.contains("error: ") && said.contains(expected), "{said}");
    }
    let fleet =
        "github: {bot: b, token_env: T, api_url: 'http://127.0.0.1:80'}\nagents: [{name: a}]\n";
    assert!(!render(&[("heeler.yaml", fleet)], &[]).contains("error: "));
}

#[test]
fn on_partition_is_a_word_that_defaults_may_set_and_that_one_machine_accepts() {
    let fleet = "defaults: {on_partition: stop}
agents: [{name: a}, {name: b, on_partition: keep}]";
    let loaded = load_files(&[("heeler.yaml", fleet)], &[]).unwrap();
    let policies: Vec<PartitionPolicy> =
        loaded.agents.iter().map(|agent| agent.on_partition).collect();
    assert_eq!(policies, [PartitionPolicy::Stop, PartitionPolicy::Keep]);
    let loaded = load_files(&[("heeler.yaml", "agents: [{name: a}]")], &[]).unwrap();
    assert_eq!(loaded.agents[0].on_partition, PartitionPolicy::Keep);
    let said = render(&[("heeler.yaml", "agents: [{name: a, on_partition: leave}]")], &[]);
    assert!(said.contains("expected one of: keep, stop"), "{said}");
}

#[test]
fn a_host_of_an_agent_needs_records_on_a_server() {
    let agent = "agents: [{name: a, host: beta, runtime: scripted, script: [{say: hi}]}]";
    let said = render(&[("heeler.yaml", agent)], &[]);
    assert!(said.contains("host `beta` cannot be used: this fleet has one machine"), "{said}");
    assert!(said.contains("set `store` to a PostgreSQL server"), "{said}");
    let text = format!("store: postgres://me@/fleet?host=/run/pg\n{agent}");
    let loaded = load_files(&[("heeler.yaml", &text)], &[]).unwrap();
    assert_eq!(loaded.agents[0].host, Some(HostChoice::Named("beta".parse().unwrap())));
}

#[test]
fn an_archive_of_files_needs_records_on_a_server() {
    let agent = "agents: [{name: a}]\n";
    let said = render(&[("heeler.yaml", &format!("archive: database\n{agent}"))], &[]);
    assert!(said.contains("this fleet has one machine, which has all files"), "{said}");
    assert!(said.contains("set `store` to a PostgreSQL server, or remove `archive`"), "{said}");
    let load = |archive: &str| {
        let store = "store: postgres://me@/fleet?host=/run/pg";
        let text = format!("{store}\narchive: {archive}\n{agent}");
        load_files(&[("heeler.yaml", &text)], &[]).unwrap().fleets[0].archive.clone()
    };
    let day = "1d".parse().unwrap();
    let database = load("database");
    assert_eq!((&database.to, database.after), (&FileArchivePlace::Database, day));
    let later = FileArchiveConfig { after: "2h".parse().unwrap(), ..database };
    assert_eq!(load("{to: database, after: 2h}"), later);
    assert_eq!(load("off").to, FileArchivePlace::Off);
    let s3 = load("s3://heeler-files/team");
    assert_eq!(s3.to.to_string(), "s3://heeler-files/team");
    assert_eq!(s3.secret_key_env.as_str(), "AWS_SECRET_ACCESS_KEY");
    let own = load("{to: 's3://files', endpoint: 'http://127.0.0.1:9000', region: eu-west-1}");
    assert_eq!((own.endpoint.is_some(), own.region.as_str()), (true, "eu-west-1"));
    for (archive, expected) in [
        ("{after: 1d}", "the key `to` is missing"),
        ("floppy", "expected"),
        ("{to: database, after: soon}", "is not a duration"),
        ("s3://x", "a bucket has 3 to 63"),
        ("{to: 's3://files', endpoint: 'http://minio:9000'}", "it must begin with https://"),
        ("{to: 's3://files', region: 'a b'}", "only lower-case letters"),
    ] {
        let said = render(&[("heeler.yaml", &format!("archive: {archive}\n{agent}"))], &[]);
        assert!(said.contains("error: ") && said.contains(expected), "{said}");
    }
    // One machine may say that it has none.
    load_files(&[("heeler.yaml", &format!("archive: off\n{agent}"))], &[]).unwrap();
}

#[test]
fn a_host_is_chosen_by_labels() {
    let choice = |host: &str| {
        let agent = format!("{{name: a, host: {host}, runtime: scripted, script: [{{say: hi}}]}}");
        format!("store: postgres://me@/fleet?host=/run/pg\nagents: [{agent}]\n")
    };
    let load = |host: &str| {
        let loaded = load_files(&[("heeler.yaml", &choice(host))], &[]).unwrap();
        loaded.agents[0].host.clone().unwrap()
    };
    let labels = vec!["gpu".parse().unwrap(), "os=linux".parse().unwrap()];
    let spread = HostChoice::Labels { labels, order: PlacementOrder::Spread };
    assert_eq!(load("{labels: [gpu, os=linux]}"), spread);
    let any = HostChoice::Labels { labels: Vec::new(), order: PlacementOrder::Pack };
    assert_eq!(load("{placement: pack}"), any);
    for (host, expected) in [
        ("{labels: [a b]}", "write `KEY` or `KEY=VALUE`"),
        ("{labels: gpu}", "expected a list"),
        ("{label: [gpu]}", "label"),
        ("{placement: random}", "expected one of: spread, pack"),
    ] {
        let said = render(&[("heeler.yaml", &choice(host))], &[]);
        assert!(said.contains("error: ") && said.contains(expected), "{said}");
    }
    let said = render(&[("heeler.yaml", "agents: [{name: a, host: {labels: [gpu]}}]")], &[]);
    assert!(said.contains("a host with gpu cannot be used: this fleet has one machine"), "{said}");
}
