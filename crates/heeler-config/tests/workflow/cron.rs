//! A fleet's workflow folder: workflows, and files that start them by the clock.

use expect_test::expect;
use heeler_config::{CronFanOut, DiscoveryKind, TRUSTED_ASSOCIATIONS};
use serde_json::json;

use crate::{Files, load_any, load_any_with, load_folder, render};

const WORKFLOW: &str = "name: nightly\nagent: coder\ninputs: {n: {type: number, default: 1}}\nphases: [{name: a, prompt: x}]";

#[track_caller]
fn check(files: Files<'_>, expect: expect_test::Expect) {
    let said = match load_folder(files) {
        Ok(all) => render(&all.warnings),
        Err(faults) => render(&faults),
    };
    expect.assert_eq(&said);
}

#[test]
fn a_cron_file_names_a_workflow_and_what_it_is_given() {
    let cron = "kind: cron\nname: every-night\nschedule: '0 3 * * *'\ntimezone: Europe/Vienna\nworkflow: nightly\ncontext: {n: '7'}\n";
    let all = load_folder(&[("a/every-night.yaml", cron), ("nightly.yaml", WORKFLOW)]).unwrap();
    let [cron] = &all.crons[..] else { unreachable!("there is one") };
    assert_eq!((cron.name.as_str(), cron.workflow.as_str()), ("every-night", "nightly"));
    assert_eq!((cron.schedule.as_str(), cron.enabled), ("0 3 * * *", true));
    assert_eq!(cron.context.get("n"), Some(&json!(7)));
    assert_eq!(all.workflows.len(), 1);
    let files: Vec<&str> = all.files.iter().map(|file| file.as_str()).collect();
    assert_eq!(files, ["/fleet/workflows/a/every-night.yaml", "/fleet/workflows/nightly.yaml"]);
}

/// Loads files and returns the names of what counts, and all that is wrong.
fn split(files: Files<'_>) -> (Vec<String>, String) {
    let all = load_any(files);
    let workflows = all.workflows.iter().map(|it| it.workflow.name.to_string());
    let names = workflows.chain(all.crons.iter().map(|it| it.name.to_string())).collect();
    let base = "/fleet/workflows".into();
    let told: Vec<String> = all.faulty_files.iter().map(|it| it.describe(base)).collect();
    (names, told.join("\n"))
}

#[test]
fn a_file_with_a_fault_does_not_count_and_all_others_do() {
    let faulty = "name: build\nagent: nobody\ncolour: red\nphases: [{name: a, prompt: x}]";
    let cron = |name: &str, workflow: &str| {
        format!("kind: cron\nname: {name}\nschedule: '0 3 * * *'\nworkflow: {workflow}\n")
    };
    let (good, bad) = (cron("every-night", "nightly"), cron("builds", "build"));
    let (names, told) = split(&[
        ("a.yaml", faulty),
        ("b.yaml", "name: [\n"),
        ("c.yaml", &good),
        ("d.yaml", &bad),
        ("nightly.yaml", WORKFLOW),
    ]);
    assert_eq!(names, ["nightly", "every-night"]);
    expect![[r#"
        workflow build cannot run: a.yaml:2:8: there is no agent `nobody` (and 1 more)
        workflow b cannot run: b.yaml:1:7: not valid YAML: unclosed bracket '['
        cron builds cannot run: d.yaml:4:11: the workflow `build` has errors"#]]
    .assert_eq(&told);
}

#[test]
fn of_two_files_with_one_name_none_counts() {
    let twin = "name: nightly\nagent: nobody\nphases: [{name: a, prompt: x}]";
    let cron = "kind: cron\nname: x\nschedule: '0 3 * * *'\nworkflow: other\n";
    let other = WORKFLOW.replace("nightly", "other");
    for (first, second) in [(WORKFLOW, WORKFLOW), (WORKFLOW, twin), (twin, WORKFLOW)] {
        let files = [("a.yaml", first), ("b.yaml", second), ("c.yaml", &other)];
        let (names, told) = split(&files);
        assert_eq!(names, ["other"], "{told}");
        assert!(told.contains("b.yaml:1:7: there are two workflows `nightly`"), "{told}");
    }
    let (names, told) = split(&[("a.yaml", cron), ("b.yaml", cron), ("c.yaml", &other)]);
    assert_eq!(names, ["other"]);
    assert_eq!(told, "cron x cannot run: b.yaml:2:7: there are two crons `x`");
}

#[test]
fn a_workflow_is_found_by_its_name_and_one_with_faults_by_that_of_its_file_too() {
    let all = load_any(&[("b.yaml", "name: build\n"), ("odd.yaml", "name: [\n")]);
    assert!(all.faulty_files[0].matches_name("build") && all.faulty_files[0].matches_name("b"));
    assert!(all.faulty_files[1].matches_name("odd") && !all.faulty_files[1].matches_name("build"));
    assert_eq!((all.faulty_files[0].label(), all.faulty_files[1].label()), ("build", "odd"));
}

#[test]
fn a_cron_file_with_a_handler_of_last_light_is_refused() {
    let cron = "kind: cron\nname: x\nschedule: '0 3 * * *'\nhandler: digest\ncondition: {unless: webhooksEnabled}\n";
    check(
        &[("x.yaml", cron)],
        expect![[r#"
            error: `handler` is code of Last Light, which Heeler does not have
             --> x.yaml:4:10
              |
            4 | handler: digest
              |          ^^^^^^ it cannot be run
              |
              = help: remove the file, or write a workflow for it and name that in `workflow`
        "#]],
    );
}

#[test]
fn faults_of_cron_files_are_told() {
    check(
        &[
            (
                "a.yaml",
                "kind: cron\nname: x\nschedule: '0 3 * *'\nworkflow: nightly\nwrokflow: a\n",
            ),
            ("nightly.yaml", WORKFLOW),
        ],
        expect![[r#"
            error: `0 3 * *` is not a cron expression: it has 4 fields: minute hour day month weekday are needed
             --> a.yaml:3:11
              |
            3 | schedule: '0 3 * *'
              |           ^^^^^^^^^ expected a cron expression such as `0 9 * * mon-fri`

            error: unknown key `wrokflow` in cron
             --> a.yaml:5:1
              |
            5 | wrokflow: a
              | ^^^^^^^^ did you mean `workflow`?
        "#]],
    );
}

#[test]
fn a_cron_file_fits_the_workflow_that_it_names() {
    check(
        &[
            ("a.yaml", "kind: cron\nname: x\nschedule: '0 3 * * *'\nworkflow: nightli\n"),
            (
                "b.yaml",
                "kind: cron\nname: x\nschedule: '0 3 * * *'\nworkflow: nightly\ncontext: {m: 1, n: x}\n",
            ),
            ("c.yaml", "kind: cron\nname: z\nschedule: '0 3 * * *'\n"),
            (
                "d.yaml",
                "kind: cron\nname: y\nschedule: '0 3 * * *'\nworkflow: nightly\nhandler: h\n",
            ),
            ("nightly.yaml", WORKFLOW),
        ],
        expect![[r#"
            error: there is no workflow `nightli`
             --> a.yaml:4:11
              |
            4 | workflow: nightli
              |           ^^^^^^^ expected the name of a workflow
              |
              = help: did you mean `nightly`?

            error: there are two crons `x`
             --> b.yaml:2:7
              |
            2 | name: x
              |       ^ it is also in /fleet/workflows/a.yaml

            error: there is no input `m`; there are: n
             --> b.yaml:5:11
              |
            5 | context: {m: 1, n: x}
              |           ^ inputs of `nightly`

            error: `n` must be a number, but "x" is not
             --> b.yaml:5:11
              |
            5 | context: {m: 1, n: x}
              |           ^ inputs of `nightly`

            error: the key `workflow` is missing
             --> c.yaml:2:7
              |
            2 | name: z
              |       ^ `workflow` belongs here

            error: `workflow` and `handler` cannot both be set
             --> d.yaml:5:10
              |
            5 | handler: h
              |          ^ remove this
        "#]],
    );
}

#[test]
fn two_workflows_of_one_name_are_refused() {
    check(
        &[("a.yaml", WORKFLOW), ("b.yaml", WORKFLOW)],
        expect![[r#"
        error: there are two workflows `nightly`
         --> b.yaml:1:7
          |
        1 | name: nightly
          |       ^^^^^^^ it is also in /fleet/workflows/a.yaml
    "#]],
    );
}

#[test]
fn a_folder_has_so_many_files_and_no_more() {
    let names: Vec<String> =
        (0..=heeler_config::workflow::WORKFLOW_FILES_MAX).map(|it| format!("{it}.yaml")).collect();
    let texts: Vec<String> = (0..names.len())
        .map(|it| format!("name: w{it}\nphases: [{{name: a, type: context}}]"))
        .collect();
    let files: Vec<(&str, &str)> =
        names.iter().map(String::as_str).zip(texts.iter().map(String::as_str)).collect();
    assert_eq!(load_folder(&files[1..]).unwrap().workflows.len(), 1000);
    let faults = load_folder(&files).unwrap_err();
    assert_eq!(faults.list[0].message, "there are more than 1000 workflow files");
}

#[test]
fn a_new_config_tells_what_became_of_workflows() {
    use heeler_config::LoadedConfig;
    let load = |files: Files<'_>| -> LoadedConfig {
        let read = |_: &camino::Utf8Path| Ok("agents: []".to_owned());
        let mut loaded =
            heeler_config::load("/fleet/heeler.yaml".into(), &read, &Default::default()).unwrap();
        loaded.add_workflows(load_folder(files).unwrap());
        loaded
    };
    let cron = "kind: cron\nname: c\nschedule: '0 3 * * *'\nworkflow: nightly\n";
    let prompt =
        |name: &str| format!("name: {name}\nagent: coder\nphases: [{{name: a, prompt: p.md}}]");
    let (same, other) = (prompt("same"), prompt("other"));
    let old =
        load(&[("nightly.yaml", WORKFLOW), ("c.yaml", cron), ("same.yaml", &same), ("p.md", "x")]);
    let later = cron.replace('3', "4");
    let new = load(&[
        ("nightly.yaml", WORKFLOW),
        ("c.yaml", &later),
        ("other.yaml", &other),
        ("p.md", "x"),
    ]);
    let told = |old: &LoadedConfig, new: &LoadedConfig| {
        let lines: Vec<String> =
            heeler_config::diff_configs(old, new).iter().map(ToString::to_string).collect();
        lines.join(", ")
    };
    assert_eq!(told(&old, &new), "cron c changed, workflow other added, workflow same removed");
    assert_eq!(told(&old, &old), "");
    let reworded =
        load(&[("nightly.yaml", WORKFLOW), ("c.yaml", cron), ("same.yaml", &same), ("p.md", "y")]);
    assert_eq!(told(&old, &reworded), "workflow same changed");
}

/// Loads a fleet file with the content of its workflow directory.
fn load_fleet(fleet: &str, files: Files<'_>) -> heeler_config::LoadedConfig {
    let read = |_: &camino::Utf8Path| Ok(fleet.to_owned());
    let mut loaded =
        heeler_config::load("/fleet/heeler.yaml".into(), &read, &Default::default()).unwrap();
    let settings = loaded.fleets[0].workflows.clone();
    loaded.add_workflows(load_any_with(files, &loaded.agents, &settings));
    loaded
}

#[test]
fn a_cron_that_searches_needs_access_to_github() {
    let workflow = "name: merge\nagent: coder\nphases: [{name: a, prompt: x}]";
    let cron = |keys: &str| {
        format!("kind: cron\nname: c\nschedule: '0 3 * * *'\nworkflow: merge\n{keys}\n")
    };
    let agents = "agents: [{name: coder}]\n";
    let github = "github: {bot: b, token_env: T, repos: [acme/app]}\n";
    let load = |fleet: &str, keys: &str| {
        let files = [("m.yaml", workflow), ("c.yaml", &cron(keys))];
        load_fleet(&format!("{fleet}{agents}"), &files)
    };
    let found = load(github, "context: {discover: green-dependency-prs, mode: x}");
    let Some(CronFanOut::EachMatch(rule)) = &found.crons[0].fan_out else { panic!("a search") };
    assert_eq!(rule.kind, DiscoveryKind::GreenDependencyPrs);
    assert_eq!(rule.associations, TRUSTED_ASSOCIATIONS);
    assert_eq!(found.crons[0].context, *json!({"mode": "x"}).as_object().unwrap());
    let scheduled = found.agents[0].schedules[0].workflow.as_ref().unwrap();
    assert_eq!(scheduled.fan_out, found.crons[0].fan_out);
    let fan_out = |fleet: &str, keys: &str| load(fleet, keys).crons[0].fan_out.clone();
    assert_eq!(fan_out(github, ""), Some(CronFanOut::EachRepo));
    assert_eq!(fan_out(github, "each_repo: false"), None);
    assert_eq!(fan_out("github: {bot: b}\n", ""), None);
    for (fleet, keys, expected) in [
        ("", "context: {discover: green-dependency-prs}", "needs access to GitHub"),
        ("github: {bot: b}\n", "context: {discover: stale-issues}", "needs access to GitHub"),
        ("github: {bot: b, token_env: T}\n", "each_repo: true", "needs access to GitHub"),
        (github, "context: {discover: everything}", "is no search that Heeler knows"),
        (github, "context: {discover: stale-issues, stale_days: soon}", "is no number of days"),
        (github, "context: {discover: stale-issues, associations: []}", "names no relations"),
        (github, "context: {discover: stale-issues}\neach_repo: true", "cannot be combined"),
    ] {
        let found = load(fleet, keys);
        assert!(found.crons.is_empty() && found.agents[0].schedules.is_empty(), "{keys}");
        let told = found.faulty_files[0].describe("/fleet/workflows".into());
        assert!(told.contains(expected), "{told}");
    }
}

#[test]
fn a_cron_that_is_a_substitute_for_webhooks_starts_nothing_beside_them() {
    let workflow = "name: triage\nagent: coder\nphases: [{name: a, prompt: x}]";
    let cron = "kind: cron\nname: c\nschedule: '0 3 * * *'\nworkflow: triage\n\
                condition: {unless: webhooksEnabled}\n";
    let is_enabled = |fleet: &str| {
        let found = load_fleet(fleet, &[("w.yaml", workflow), ("c.yaml", cron)]);
        assert!(found.faulty_files.is_empty(), "{:?}", found.faulty_files);
        found.agents[0].schedules.iter().find(|it| it.name == "c").unwrap().enabled
    };
    let agent =
        |schedule: &str| format!("agents: [{{name: coder, schedules: {{s: {schedule}}}}}]\n");
    let webhook = agent("{type: webhook, events: [issues], workflow: triage}");
    assert!(!is_enabled(&webhook));
    assert!(is_enabled(&format!("webhooks: {{enabled: false}}\n{webhook}")));
    assert!(is_enabled(&agent("{type: webhook, events: [issues]}")));
    assert!(is_enabled("agents: [{name: coder}]\n"));
    let other = cron.replace("webhooksEnabled", "moonFull");
    let found =
        load_fleet("agents: [{name: coder}]\n", &[("w.yaml", workflow), ("c.yaml", &other)]);
    assert!(found.agents[0].schedules.is_empty(), "a condition that is not known is not ignored");
}
