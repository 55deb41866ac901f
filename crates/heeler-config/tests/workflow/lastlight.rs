//! Files with Last Light's vocabulary load as they are.

use camino::Utf8Path;
use expect_test::expect;
use heeler_config::RenderStyle;
use heeler_config::workflow::{self, LoadedWorkflow, PhaseRepeat};

use crate::{agents, load_with, render, settings};

/// Loads one of the fixtures.
#[track_caller]
fn load(name: &str) -> LoadedWorkflow {
    let root = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workflow/fixtures");
    let read = |path: &Utf8Path| std::fs::read_to_string(path);
    let mut settings = settings();
    settings.folder = root.clone();
    settings.agent = Some("coder".parse().unwrap());
    workflow::load_workflow(&root.join(name), (&read, &|_| Vec::new()), &agents(), &settings)
        .unwrap()
}

/// Tells only messages: the fixtures are wherever the sources are.
fn warnings(loaded: &LoadedWorkflow) -> String {
    loaded
        .warnings
        .list
        .iter()
        .map(|fault| format!("{}: {}\n", fault.line(), fault.message))
        .collect()
}

#[test]
fn a_build_with_architect_executor_and_reviewer_loads() {
    let loaded = load("build.yaml");
    let names: Vec<&str> = loaded.workflow.phases.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["phase_0", "guardrails", "architect", "executor", "reviewer", "pr"]);
    assert!(loaded.workflow.phases[1].on_output.blocked.is_some());
    assert!(matches!(loaded.workflow.phases[4].repeat, PhaseRepeat::Review(_)));
    expect![[r#"
        8: no text of a person starts the workflow `build`
        21: the agent `coder` has no reasoning effort, because it has `runtime: command`
    "#]]
    .assert_eq(&warnings(&loaded));
}

#[test]
fn a_socratic_loop_loads() {
    let loaded = load("explore.yaml");
    let PhaseRepeat::Until(until) = &loaded.workflow.phases[2].repeat else {
        unreachable!("a loop")
    };
    assert!(until.gate.is_some());
    expect![""].assert_eq(&warnings(&loaded));
}

#[test]
fn a_fix_with_its_own_check_loads() {
    let loaded = load("pr-fix.yaml");
    assert_eq!(loaded.workflow.phases[1].skip_if.len(), 3);
    expect![""].assert_eq(&warnings(&loaded));
}

#[test]
fn a_smoke_test_of_commands_loads() {
    let loaded = load("smoke.yaml");
    assert_eq!(render(&loaded.warnings), "ok\n");
}

#[test]
fn what_last_lights_host_reads_from_files_is_refused_with_the_reason() {
    let file = |key: &str| {
        format!(
            "name: fix\nagent: coder\nphases:\n  - name: a\n    prompt: go\n    \
             skip_if: [\"scratch.fixMarkers.{key} == 'x'\"]\n"
        )
    };
    for key in ["notes", "verifyScript", "phases"] {
        let faults = load_with(&[("fix.yaml", &file(key))], &settings()).unwrap_err();
        let said = faults.render(RenderStyle::Plain, Utf8Path::new(""));
        assert!(said.contains(&format!("does not fill `scratch.fixMarkers.{key}`")), "{said}");
    }
    for key in ["diagnosis.class", "fix.outcome"] {
        load_with(&[("fix.yaml", &file(key))], &settings()).unwrap();
    }
}
