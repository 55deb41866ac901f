//! What a newly loaded config changes, in words.

use expect_test::{Expect, expect};
use heeler_config::diff_configs;

use crate::{Files, load_files};

#[track_caller]
fn check_files(
    old: (Files<'_>, &[(&str, &str)]),
    new: (Files<'_>, &[(&str, &str)]),
    expect: Expect,
) {
    let (old, new) = (load_files(old.0, old.1).unwrap(), load_files(new.0, new.1).unwrap());
    let lines: Vec<String> = diff_configs(&old, &new).iter().map(ToString::to_string).collect();
    expect.assert_eq(&lines.join("\n"));
    assert_eq!(diff_configs(&new, &new), []);
}

#[track_caller]
fn check(old: &str, new: &str, expect: Expect) {
    check_files((&[("heeler.yaml", old)], &[]), (&[("heeler.yaml", new)], &[]), expect);
}

#[test]
fn agents_and_fleets_come_and_go() {
    let web = ("web/heeler.yaml", "agents: [{name: c}]");
    check_files(
        (
            &[
                (
                    "heeler.yaml",
                    "agents: [{name: a}, {name: old}]\nfleets: [{path: web/heeler.yaml}]",
                ),
                web,
            ],
            &[],
        ),
        (&[("heeler.yaml", "agents: [{name: new}, {name: a}]")], &[]),
        expect![[r#"
            fleet web removed
            agent new added
            agent old removed
            agent web.c removed"#]],
    );
    check_files(
        (&[("heeler.yaml", "")], &[]),
        (&[("heeler.yaml", "fleets: [{path: web/heeler.yaml}]"), web], &[]),
        expect![[r#"
            fleet web added
            agent web.c added"#]],
    );
}

#[test]
fn values_that_are_no_secret_are_told() {
    check(
        "\
max_concurrent: 2
budget: {day: 5}
agents:
  - {name: a, model: x, session: {mode: persistent}, max_turns: 5, permission_mode: plan, runtime: cli}
",
        "\
max_concurrent: 4
budget: {day: 7.5, total: 100}
watch_config: true
timezone: Europe/Vienna
agents:
  - {name: a, model: y, session: {mode: fresh_per_job, timeout: 5m}, instances: {max_concurrent: 3}}
",
        expect![[r#"
            fleet: max_concurrent 2 -> 4
            fleet: budget.day 5 -> 7.5
            fleet: budget.total not set -> 100
            fleet: watch_config false -> true
            fleet: timezone not set -> Europe/Vienna
            agent a: runtime cli -> sdk
            agent a: model x -> y
            agent a: session.mode persistent -> fresh_per_job
            agent a: session.timeout not set -> 5m
            agent a: permission_mode plan -> acceptEdits
            agent a: instances.max_concurrent 1 -> 3
            agent a: timezone not set -> Europe/Vienna
            agent a: max_turns 5 -> not set"#]],
    );
}

#[test]
fn schedules_come_and_go_and_change() {
    check(
        "\
agents:
  - name: coder
    schedules:
      hourly: {every: 1h, prompt: look}
      gone: {every: 1h}
      moved: {every: 1h}
",
        "\
agents:
  - name: coder
    schedules:
      hourly: {every: 2h, prompt: look again, enabled: false, session: {mode: persistent}}
      moved: {cron: '0 9 * * *'}
      nightly: {cron: '@daily'}
      files: {paths: [src]}
",
        expect![[r#"
            agent coder: interval of hourly 1h -> 2h
            agent coder: prompt of hourly changed
            agent coder: enabled of hourly true -> false
            agent coder: session of hourly changed
            agent coder: cron of moved not set -> 0 9 * * *
            agent coder: interval of moved 1h -> not set
            agent coder: schedule nightly added
            agent coder: schedule files added
            agent coder: schedule gone removed"#]],
    );
}

#[test]
fn what_may_hold_a_secret_is_not_told() {
    let fleet = |word: &str| {
        format!(
            "\
agents:
  - name: a
    system_prompt: {word}
    repo: https://u:{word}@example.com/x
    env: {{API_KEY: {word}}}
    mcp_servers: {{m: {{command: x, env: {{K: {word}}}}}}}
    hooks: {{after_run: [{{type: webhook, url: 'https://x.y/{word}'}}]}}
    schedules: {{s: {{every: 1h, prompt: {word}}}}}
"
        )
    };
    check(
        &fleet("one-secret"),
        &fleet("other-secret"),
        expect![[r#"
        agent a: repo changed
        agent a: system_prompt changed
        agent a: mcp_servers changed
        agent a: env changed
        agent a: hooks.after_run changed
        agent a: prompt of s changed"#]],
    );
}

#[test]
fn what_lies_behind_variables_and_files_is_told_as_that() {
    let fleet =
        "agents: [{name: a, runtime: scripted, script: s.yaml}, {name: b, description: '${X}'}]";
    let files = |script| [("heeler.yaml", fleet), ("s.yaml", script)];
    check_files(
        (&files("- say: one"), &[("X", "1")]),
        (&files("- say: two"), &[("X", "2")]),
        expect![[r#"
            agent a: content of its script changed
            agent b: values of variables changed"#]],
    );
}
