//! Fleets, defaults and overrides.

use expect_test::{Expect, expect};
use heeler_config::FLEET_DEPTH_MAX;

use crate::{Files, load_files, render};

/// Shows some keys of every agent after loading.
#[track_caller]
fn check_agents(files: Files<'_>, keys: &[&str], expect: Expect) {
    let loaded = load_files(files, &[]).unwrap();
    let mut shown = String::new();
    for agent in loaded.show()["agents"].as_array().unwrap() {
        shown.push_str(agent["qualified_name"].as_str().unwrap());
        for key in keys {
            let value = key.split('.').fold(agent, |value, key| &value[key]);
            shown.push_str(&format!(" {key}={value}"));
        }
        shown.push('\n');
    }
    expect.assert_eq(&shown);
}

#[track_caller]
fn check(files: Files<'_>, expect: Expect) {
    expect.assert_eq(&render(files, &[]));
}

#[test]
fn agents_are_paths_references_or_themselves() {
    check_agents(
        &[
            (
                "heeler.yaml",
                "agents:\n  - agents/a.yaml\n  - {path: agents/b.yaml, overrides: {model: x}}\n  - {name: c, model: y}\n",
            ),
            ("agents/a.yaml", "name: a"),
            ("agents/b.yaml", "name: b\nmodel: own"),
        ],
        &["model", "working_directory"],
        expect![[r#"
            a model=null working_directory="/fleet/agents"
            b model="x" working_directory="/fleet/agents"
            c model="y" working_directory="/fleet"
        "#]],
    );
}

#[test]
fn a_partial_docker_block_keeps_the_sandbox_of_the_fleet_on() {
    let fleet = "defaults: {docker: {enabled: true, memory: 4g}, instances: {max_concurrent: 3}}\nagents: [a.yaml]";
    check_agents(
        &[
            ("herdctl.yaml", fleet),
            ("a.yaml", "name: a\ndocker: {pids_limit: 50}\ninstances: {}\n"),
        ],
        &["docker.enabled", "docker.memory", "docker.pids_limit", "instances.max_concurrent"],
        expect![[r#"
            a docker.enabled=true docker.memory="4g" docker.pids_limit=50 instances.max_concurrent=3
        "#]],
    );
    // The fleet's own `docker`, which herdctl reads and forgets, counts as a default too.
    check_agents(
        &[
            (
                "herdctl.yaml",
                "docker: {enabled: true, memory: 4g}\ndefaults: {docker: {memory: 1g}}\nagents: [a.yaml]",
            ),
            ("a.yaml", "name: a\ndocker: {pids_limit: 50}\n"),
        ],
        &["docker.enabled", "docker.memory", "docker.pids_limit"],
        expect![[r#"
            a docker.enabled=true docker.memory="1g" docker.pids_limit=50
        "#]],
    );
}

#[test]
fn later_files_win_and_null_takes_a_default_back() {
    check_agents(
        &[
            (
                "heeler.yaml",
                "defaults: {model: outer, max_turns: 1, timeout: 1h, allowed_tools: [Read], env: {A: outer}}\nfleets: [{path: sub/heeler.yaml}]\nagents: [{name: r}]",
            ),
            (
                "sub/heeler.yaml",
                "defaults: {max_turns: 2, timeout: 2h, env: {B: sub}}\nagents:\n  - {path: a.yaml, overrides: {timeout: 4h, env: {C: over}}}\n  - {name: i, model: null}",
            ),
            ("sub/a.yaml", "name: a\ntimeout: 3h\nallowed_tools: [Bash]\nenv: {B: agent}"),
        ],
        &["model", "max_turns", "timeout", "allowed_tools", "env"],
        expect![[r#"
            r model="outer" max_turns=1 timeout="1h" allowed_tools=["Read"] env={"A":"outer"}
            sub.a model="outer" max_turns=2 timeout="4h" allowed_tools=["Bash"] env={"A":"outer","B":"agent","C":"over"}
            sub.i model=null max_turns=2 timeout="2h" allowed_tools=["Read"] env={"A":"outer","B":"sub"}
        "#]],
    );
}

#[test]
fn paths_in_defaults_and_overrides_are_relative_to_their_own_file() {
    check_agents(
        &[
            (
                "heeler.yaml",
                "defaults: {working_directory: shared}\nagents: [agents/a.yaml, agents/b.yaml, {path: agents/c.yaml, overrides: {workspace: over}}]",
            ),
            ("agents/a.yaml", "name: a"),
            ("agents/b.yaml", "name: b\nworkspace: ."),
            ("agents/c.yaml", "name: c\nworking_directory: ."),
        ],
        &["working_directory"],
        expect![[r#"
            a working_directory="/fleet/shared"
            b working_directory="/fleet/agents"
            c working_directory="/fleet/over"
        "#]],
    );
}

#[test]
fn overrides_reach_into_schedules_of_either_form() {
    check_agents(
        &[
            (
                "heeler.yaml",
                "agents:\n  - {path: m.yaml, overrides: {schedules: {s: {interval: 1m}}}}\n  - {path: l.yaml, overrides: {schedules: [{name: s, every: 1m}]}}",
            ),
            ("m.yaml", "name: m\nschedules: {s: {type: interval, interval: 1h, prompt: p}}"),
            (
                "l.yaml",
                "name: l\nschedules: [{name: s, trigger: {type: interval, every: 1h}, prompt: p}]",
            ),
        ],
        &["schedules.s.interval", "schedules.s.prompt"],
        expect![[r#"
            m schedules.s.interval="1m" schedules.s.prompt="p"
            l schedules.s.interval="1m" schedules.s.prompt="p"
        "#]],
    );
}

#[test]
fn overrides_and_defaults_are_checked_and_faults_shown_there() {
    check(
        &[
            (
                "heeler.yaml",
                "defaults:\n  max_turns: none\n  name: x\nagents:\n  - path: a.yaml\n    overrides:\n      tiemout: 5m\n      timeout: soon\n  - path: a.yaml\n    overrides: {name: b}\n",
            ),
            ("a.yaml", "name: a"),
        ],
        expect![[r#"
            error: expected a whole number of at least 1, found `none`
             --> heeler.yaml:2:14
              |
            2 |   max_turns: none
              |              ^^^^ expected a whole number of at least 1

            error: `name` cannot have a default
             --> heeler.yaml:3:3
              |
            3 |   name: x
              |   ^^^^ set it on each agent

            error: unknown key `tiemout` in agent
             --> heeler.yaml:7:7
              |
            7 |       tiemout: 5m
              |       ^^^^^^^ did you mean `timeout`?

            error: `soon` is not a duration: a number comes before each unit
             --> heeler.yaml:8:16
              |
            8 |       timeout: soon
              |                ^^^^ expected a duration such as `1h30m`
        "#]],
    );
}

#[test]
fn only_the_fleet_file_may_open_the_container() {
    let fleet = "agents: [{path: a.yaml, overrides: {docker: {network: host}}}]";
    check(
        &[("herdctl.yaml", fleet), ("a.yaml", "name: a\ndocker: {enabled: true}")],
        expect![[r#"
            error: `docker.network: host` breaks the isolation of the container: the agent reaches every service of this machine
             --> herdctl.yaml:1:46
              |
            1 | agents: [{path: a.yaml, overrides: {docker: {network: host}}}]
              |                                              ^^^^^^^ remove it, or set `docker.allow_unsafe: true` in the fleet file
        "#]],
    );
    check(
        &[
            ("herdctl.yaml", "agents: [a.yaml]"),
            ("a.yaml", "name: a\ndocker: {enabled: true, network: host, base_image: x}"),
        ],
        expect![[r#"
            error: `docker.network: host` breaks the isolation of the container: the agent reaches every service of this machine
             --> a.yaml:2:10
              |
            2 | docker: {enabled: true, network: host, base_image: x}
              |          ^^^^^^^ remove it, or set `docker.allow_unsafe: true` in the fleet file

            error: only the fleet file may set `docker.network`
             --> a.yaml:2:25
              |
            2 | docker: {enabled: true, network: host, base_image: x}
              |                         ^^^^^^^ an agent's file may not
              |
              = help: move it to `defaults` or to the `overrides` of this agent

            error: only the fleet file may set `docker.image`
             --> a.yaml:2:40
              |
            2 | docker: {enabled: true, network: host, base_image: x}
              |                                        ^^^^^^^^^^ an agent's file may not
              |
              = help: move it to `defaults` or to the `overrides` of this agent
        "#]],
    );
}

#[test]
fn a_diamond_is_not_a_cycle() {
    check_agents(
        &[
            (
                "heeler.yaml",
                "fleets: [{path: l/heeler.yaml}, {path: r/heeler.yaml}, {path: both/heeler.yaml, name: again}]",
            ),
            ("l/heeler.yaml", "fleets: [{path: ../both/heeler.yaml}]"),
            (
                "r/heeler.yaml",
                "fleets: [{path: ../both/heeler.yaml, overrides: {defaults: {model: r}}}]",
            ),
            (
                "both/heeler.yaml",
                "fleet: {name: common}\ndefaults: {model: m}\nagents: [{name: a}]",
            ),
        ],
        &["model"],
        expect![[r#"
            l.common.a model="m"
            r.common.a model="r"
            again.a model="m"
        "#]],
    );
}

#[test]
fn a_cycle_is_refused_with_its_chain() {
    check(
        &[
            ("heeler.yaml", "fleets: [{path: a/heeler.yaml}]"),
            ("a/heeler.yaml", "fleets: [{path: ../b/heeler.yaml}]"),
            ("b/heeler.yaml", "fleets:\n  - path: ../a/./heeler.yaml\n"),
        ],
        expect![[r#"
            error: the fleet contains itself: /fleet/a/heeler.yaml -> /fleet/b/heeler.yaml -> /fleet/a/heeler.yaml
             --> b/heeler.yaml:2:11
              |
            2 |   - path: ../a/./heeler.yaml
              |           ^^^^^^^^^^^^^^^^^^ remove this entry
        "#]],
    );
}

#[test]
fn fleets_that_multiply_are_refused_by_the_limits() {
    let names: Vec<String> = (0..=FLEET_DEPTH_MAX).map(|at| format!("f{at}/heeler.yaml")).collect();
    let below = |at: usize| {
        format!(
            "fleets: [{{path: ../f{0}/heeler.yaml, name: a}}, {{path: ../f{0}/heeler.yaml, name: b}}]",
            at + 1
        )
    };
    let texts: Vec<String> = (0..=FLEET_DEPTH_MAX).map(below).collect();
    let root = "fleets: [{path: f0/heeler.yaml}]";
    let mut files = vec![("heeler.yaml", root)];
    files.extend(names.iter().map(String::as_str).zip(texts.iter().map(String::as_str)));
    let said = render(&files, &[]);
    assert!(said.contains("there are more than 10000 agents and fleets"), "{said}");
    assert!(said.contains("fleets are nested deeper than 16"), "{said}");
}

#[test]
fn names_must_be_unique_where_they_meet() {
    check(
        &[
            (
                "heeler.yaml",
                "agents: [{name: a}, a.yaml, {name: a}]\nfleets:\n  - {path: x/heeler.yaml}\n  - {path: y/heeler.yaml, name: x}\n  - {path: 'bad dir/heeler.yaml'}\n",
            ),
            ("a.yaml", "name: a"),
            ("x/heeler.yaml", "agents: [{name: a}]"),
            ("y/heeler.yaml", ""),
            ("bad dir/heeler.yaml", ""),
        ],
        expect![[r#"
            error: there are two agents `a`
             --> heeler.yaml:1:21
              |
            1 | agents: [{name: a}, a.yaml, {name: a}]
              |                     ^^^^^^ expected another name

            error: there are two agents `a`
             --> heeler.yaml:1:36
              |
            1 | agents: [{name: a}, a.yaml, {name: a}]
              |                                    ^ expected another name

            error: there are two fleets `x`
             --> heeler.yaml:4:12
              |
            4 |   - {path: y/heeler.yaml, name: x}
              |            ^^^^^^^^^^^^^ expected another name
              |
              = help: give one of them another `name` here

            error: the folder `bad dir` is not a valid fleet name
             --> heeler.yaml:5:12
              |
            5 |   - {path: 'bad dir/heeler.yaml'}
              |            ^^^^^^^^^^^^^^^^^^^^^ add a `name` beside the path
        "#]],
    );
}

#[test]
fn the_zone_of_the_fleet_holds_for_its_agents() {
    check_agents(
        &[
            (
                "heeler.yaml",
                "timezone: UTC\nagents: [{name: a}, {name: b, timezone: Asia/Tokyo}]\nfleets: [{path: s/heeler.yaml}]",
            ),
            ("s/heeler.yaml", "timezone: Europe/Vienna\nagents: [{name: c}]"),
        ],
        &["timezone"],
        expect![[r#"
            a timezone="UTC"
            b timezone="Asia/Tokyo"
            s.c timezone="Europe/Vienna"
        "#]],
    );
}

#[test]
fn a_fault_in_a_shared_default_is_reported_once() {
    check(
        &[(
            "heeler.yaml",
            "defaults: {timeout: 5x}\nagents: [{name: a}, {name: b}, {name: c, timeout: 5m}]",
        )],
        expect![[r#"
            error: `5x` is not a duration: the unit must be ms, s, m, h, d or w
             --> heeler.yaml:1:21
              |
            1 | defaults: {timeout: 5x}
              |                     ^^ expected a duration such as `1h30m`
        "#]],
    );
}

#[test]
fn what_herdctl_drops_from_defaults_is_only_warned_about() {
    check(
        &[("herdctl.yaml", "defaults: {description: all, runtime: cli}\nagents: [{name: a}]")],
        expect![[r#"
            warning: `description` cannot have a default
             --> herdctl.yaml:1:12
              |
            1 | defaults: {description: all, runtime: cli}
              |            ^^^^^^^^^^^ set it on each agent
        "#]],
    );
}
