//! Watched files, queue, retries, jobs that start jobs, what is kept and for how long.

use expect_test::expect;
use heeler_config::{GLOBS_MAX, ScheduleTrigger};

use crate::{agent, check, check_agent, load_files, render};

#[test]
fn a_schedule_with_paths_watches_files() {
    let agent = agent(
        "\
schedules:
  plain: {paths: [src]}
  full: {type: watch, paths: ['**/*.rs'], ignore: [target], debounce: 500ms}
  listed: {trigger: {type: watch, paths: ['**/*.rs'], ignore: [target], debounce: 500ms}}
  hook: {type: webhook}
",
    );
    let triggers: Vec<&ScheduleTrigger> = agent.schedules.iter().map(|one| &one.trigger).collect();
    expect![[r#"[Watch { paths: Globs(["src"]), ignore: Globs([]), debounce: Period(2s) }, Watch { paths: Globs(["**/*.rs"]), ignore: Globs(["target"]), debounce: Period(500ms) }, Watch { paths: Globs(["**/*.rs"]), ignore: Globs(["target"]), debounce: Period(500ms) }, Webhook(WebhookRules { secret_env: None, events: [], branches: None, paths: None, labels: [], authors: [], associations: None, mention: None, intents: false, own_login: None, bots: false, fields: {} })]"#]].assert_eq(&format!("{triggers:?}"));
    assert_eq!(triggers[1], triggers[2]);
}

#[test]
fn a_webhook_goes_by_rules_of_its_own() {
    let agent = agent(
        "\
schedules:
  hook:
    type: webhook
    secret: A_SECRET
    events: [push, issues.opened]
    branches: [main]
    paths: ['src/**']
    labels: [bug]
    authors: [ann]
    bots: true
    fields: {title: issue.title, label: issue.labels.0.name}
",
    );
    let ScheduleTrigger::Webhook(rules) = &agent.schedules[0].trigger else { panic!("{agent:?}") };
    assert_eq!(rules.secret_env.as_ref().unwrap().as_str(), "A_SECRET");
    let events: Vec<String> = rules.events.iter().map(ToString::to_string).collect();
    assert_eq!(events, ["push", "issues.opened"]);
    assert_eq!(rules.branches.as_ref().unwrap().patterns(), ["main"]);
    assert_eq!(rules.paths.as_ref().unwrap().patterns(), ["src/**"]);
    assert_eq!(
        (&rules.labels[..], &rules.authors[..]),
        (&["bug".to_owned()][..], &["ann".to_owned()][..])
    );
    assert!(rules.bots);
    let fields: Vec<String> =
        rules.fields.iter().map(|(name, at)| format!("{name}={at}")).collect();
    assert_eq!(fields, ["title=issue.title", "label=issue.labels.0.name"]);
}

#[test]
fn what_is_watched_is_below_the_working_directory() {
    check_agent(
        "\
schedules:
  a: {paths: [/etc, '../x', 'src/[a', '']}
  b: {paths: src}
",
        expect![[r#"
            error: `/etc` is not a glob: it is not relative to the working directory
             --> a.yaml:3:15
              |
            3 |   a: {paths: [/etc, '../x', 'src/[a', '']}
              |               ^^^^ expected a glob such as `src/**/*.rs`

            error: `../x` is not a glob: it leads out of the working directory
             --> a.yaml:3:21
              |
            3 |   a: {paths: [/etc, '../x', 'src/[a', '']}
              |                     ^^^^^^ expected a glob such as `src/**/*.rs`

            error: `src/[a` is not a glob: unclosed character class; missing ']'
             --> a.yaml:3:29
              |
            3 |   a: {paths: [/etc, '../x', 'src/[a', '']}
              |                             ^^^^^^^^ expected a glob such as `src/**/*.rs`

            error: `` is not a glob: it is empty; `**` is everything
             --> a.yaml:3:39
              |
            3 |   a: {paths: [/etc, '../x', 'src/[a', '']}
              |                                       ^^ expected a glob such as `src/**/*.rs`

            error: expected a list of globs, found `src`
             --> a.yaml:4:14
              |
            4 |   b: {paths: src}
              |              ^^^ expected a list of globs
        "#]],
    );
}

#[test]
fn what_starts_a_schedule_is_one_of_three_keys() {
    check_agent(
        "\
schedules:
  c: {type: watch}
  d: {type: watch, paths: []}
  e: {interval: 5m, paths: [src]}
  f: {type: interval, interval: 5m, paths: [src], debounce: 1s}
  g: {prompt: x}
",
        expect![[r#"
            error: a schedule of type `watch` needs the key `paths`
             --> a.yaml:3:13
              |
            3 |   c: {type: watch}
              |             ^^^^^ `paths` is missing

            error: a schedule of type `watch` needs the key `paths`
             --> a.yaml:4:13
              |
            4 |   d: {type: watch, paths: []}
              |             ^^^^^ `paths` is missing

            error: the schedule `e` has both `interval` and `paths`
             --> a.yaml:5:29
              |
            5 |   e: {interval: 5m, paths: [src]}
              |                             ^^^ keep one, or say which with `type`

            error: nothing starts the schedule `g`
             --> a.yaml:7:7
              |
            7 |   g: {prompt: x}
              |       ^^^^^^ `interval`, `cron` or `paths` belongs here

            warning: `paths` has no effect: the schedule's type is `interval`
             --> a.yaml:6:45
              |
            6 |   f: {type: interval, interval: 5m, paths: [src], debounce: 1s}
              |                                             ^^^ ignored

            warning: `debounce` has no effect: the schedule's type is `interval`
             --> a.yaml:6:61
              |
            6 |   f: {type: interval, interval: 5m, paths: [src], debounce: 1s}
              |                                                             ^^ ignored
        "#]],
    );
}

#[test]
fn a_repository_that_git_cannot_clone_is_refused() {
    check_agent(
        "repo: https://me:secret-token@example.com/x?y=z\nworking_directory: w\n",
        expect![[r#"
            error: this is not a repository: its address has a `?` or `#`
             --> a.yaml:2:7
              |
            2 | repo: https://me:secret-token@example.com/x?y=z
              |       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ expected `owner/name` on GitHub, an address or a path
        "#]],
    );
    let shown = agent("repo: a/b\nworking_directory: {root: w}\n");
    assert_eq!(format!("{:?}", shown.repo), "Some(Repo(https://github.com/a/b.git))");
}

#[test]
fn a_list_of_globs_has_a_limit() {
    let yaml = |count: usize| {
        let globs = vec!["a"; count].join(", ");
        format!("agents: [{{name: a, schedules: {{s: {{paths: [{globs}]}}}}}}]")
    };
    assert_eq!(render(&[("heeler.yaml", &yaml(GLOBS_MAX))], &[]), "ok\n");
    let refused = render(&[("heeler.yaml", &yaml(GLOBS_MAX + 1))], &[]);
    assert!(refused.contains("a list of at most 100 globs"), "{refused}");
}

#[test]
fn a_schedule_takes_the_priority_of_its_agent_or_its_own() {
    let agent = agent("priority: -100\nschedules: {a: {every: 1h}, b: {every: 1h, priority: 7}}\n");
    let schedules: Vec<i32> = agent.schedules.iter().map(|one| one.priority).collect();
    assert_eq!((agent.priority, schedules), (-100, vec![-100, 7]));
}

#[test]
fn retries_are_off_unless_asked_for() {
    let retry = agent("").retry;
    assert_eq!(
        format!("{retry:?}"),
        "RetryPolicy { max: 0, backoff: Period(30s), max_backoff: Period(15m) }"
    );
    let retry = agent("retry: {max: 10, backoff: 20m}").retry;
    assert_eq!(
        format!("{retry:?}"),
        "RetryPolicy { max: 10, backoff: Period(20m), max_backoff: Period(20m) }"
    );
}

#[test]
fn numbers_beyond_their_limits_are_refused() {
    check_agent(
        "\
priority: 101
retry: {max: 11, backoff: 1m, max_backoff: 30s}
spawn: {max_depth: 17, max_jobs: -1}
schedules: {s: {every: 5m, priority: high}}
",
        expect![[r#"
            error: expected a whole number from -100 to 100, found `101`
             --> a.yaml:2:11
              |
            2 | priority: 101
              |           ^^^ expected a whole number from -100 to 100

            error: expected a whole number from 0 to 10, found `11`
             --> a.yaml:3:14
              |
            3 | retry: {max: 11, backoff: 1m, max_backoff: 30s}
              |              ^^ expected a whole number from 0 to 10

            error: `max_backoff` 30s is shorter than `backoff` 1m
             --> a.yaml:3:44
              |
            3 | retry: {max: 11, backoff: 1m, max_backoff: 30s}
              |                                            ^^^ expected the longest wait

            error: expected a whole number from 0 to 16, found `17`
             --> a.yaml:4:20
              |
            4 | spawn: {max_depth: 17, max_jobs: -1}
              |                    ^^ expected a whole number from 0 to 16

            error: expected a whole number from 0 to 1000, found `-1`
             --> a.yaml:4:34
              |
            4 | spawn: {max_depth: 17, max_jobs: -1}
              |                                  ^^ expected a whole number from 0 to 1000

            error: expected a whole number from -100 to 100, found `high`
             --> a.yaml:5:38
              |
            5 | schedules: {s: {every: 5m, priority: high}}
              |                                      ^^^^ expected a whole number from -100 to 100
        "#]],
    );
}

#[test]
fn limits_of_a_fleet_are_checked() {
    check(
        "\
queue: {max: many, max_wait: 0s}
retention: {jobs: forever, count: 0}
logs: {max_size: big, keep: 101}
watch_config: sometimes
",
        expect![[r#"
            error: expected a whole number from 0 to 100000, found `many`
             --> heeler.yaml:1:14
              |
            1 | queue: {max: many, max_wait: 0s}
              |              ^^^^ expected a whole number from 0 to 100000

            error: `0s` is not a duration: it must be longer than zero
             --> heeler.yaml:1:30
              |
            1 | queue: {max: many, max_wait: 0s}
              |                              ^^ expected a duration such as `1h30m`

            error: `forever` is not a duration: a number comes before each unit
             --> heeler.yaml:2:19
              |
            2 | retention: {jobs: forever, count: 0}
              |                   ^^^^^^^ expected a duration such as `1h30m`

            error: expected a whole number of at least 1, found `0`
             --> heeler.yaml:2:35
              |
            2 | retention: {jobs: forever, count: 0}
              |                                   ^ expected a whole number of at least 1

            error: `big` is not a size: a number and k, m, g or t
             --> heeler.yaml:3:18
              |
            3 | logs: {max_size: big, keep: 101}
              |                  ^^^ expected a size such as `512m`

            error: expected a whole number from 0 to 100, found `101`
             --> heeler.yaml:3:29
              |
            3 | logs: {max_size: big, keep: 101}
              |                             ^^^ expected a whole number from 0 to 100

            error: expected true or false, found `sometimes`
             --> heeler.yaml:4:15
              |
            4 | watch_config: sometimes
              |               ^^^^^^^^^ expected true or false
        "#]],
    );
}

#[test]
fn an_agent_names_those_it_may_start_in_its_own_fleet_or_in_full() {
    let files = [
        (
            "heeler.yaml",
            "agents: [{name: a}, {name: b, spawn: {agents: [a, web.c]}}]\nfleets: [{path: web/heeler.yaml}]",
        ),
        (
            "web/heeler.yaml",
            "agents: [{name: a, spawn: {agents: [c, a, b], max_depth: 1}}, {name: c}]",
        ),
    ];
    let loaded = load_files(&files, &[]).unwrap();
    let spawns: Vec<String> =
        loaded.agents.iter().map(|agent| format!("{}: {:?}", agent.name, agent.spawn)).collect();
    expect![[r#"
        a: SpawnLimits { max_depth: 3, max_jobs: 10, agents: [], elevate: [] }
        b: SpawnLimits { max_depth: 3, max_jobs: 10, agents: [AgentName("a"), AgentName("web.c")], elevate: [] }
        web.a: SpawnLimits { max_depth: 1, max_jobs: 10, agents: [AgentName("web.c"), AgentName("web.a"), AgentName("b")], elevate: [] }
        web.c: SpawnLimits { max_depth: 3, max_jobs: 10, agents: [], elevate: [] }"#]].assert_eq(&spawns.join("\n"));
}

#[test]
fn an_agent_that_may_be_started_must_be_there() {
    let unknown = "agents: [{name: coder}, {name: b, spawn: {agents: [codr]}}]\n";
    check(
        unknown,
        expect![[r#"
        error: there is no agent `codr`
         --> heeler.yaml:1:52
          |
        1 | agents: [{name: coder}, {name: b, spawn: {agents: [codr]}}]
          |                                                    ^^^^ expected the name of an agent
          |
          = help: did you mean `coder`?
    "#]],
    );
}

#[test]
fn the_fleet_says_how_jobs_wait_and_what_is_kept() {
    let load = |yaml: &str| load_files(&[("heeler.yaml", yaml)], &[]).unwrap().fleets.remove(0);
    let fleet = load("");
    let said = format!("{:?}\n{:?}\n{:?}\n", fleet.queue, fleet.retention, fleet.logs);
    expect![[r#"
        QueueLimits { max: 1000, max_wait: Period(1d) }
        None
        LogRotation { max_size: ByteSize(10485760), keep: 5 }
    "#]]
    .assert_eq(&said);
    assert!(!fleet.watch_config);
    let fleet = load(
        "\
queue: {max: 5, max_wait: 1h}
retention: {jobs: 30d}
logs: {max_size: 1MB, keep: 0}
watch_config: true
timezone: Europe/Vienna
",
    );
    let said = format!("{:?}\n{:?}\n{:?}\n", fleet.queue, fleet.retention, fleet.logs);
    expect![[r#"
        QueueLimits { max: 5, max_wait: Period(1h) }
        Some(RetentionPolicy { jobs: Some(Period(4w2d)), count: None })
        LogRotation { max_size: ByteSize(1048576), keep: 0 }
    "#]]
    .assert_eq(&said);
    assert!(fleet.watch_config);
    assert_eq!(fleet.timezone.unwrap().name(), "Europe/Vienna");
}
