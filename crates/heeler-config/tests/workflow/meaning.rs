//! What workflow files mean.

use heeler_config::workflow::{
    ContextNumber, GateDefault, GateKind, PhaseRepeat, PhaseWork, ScriptLanguage, TriggerRule,
    WorkflowInputType, WorkflowSettings,
};

use crate::{load_with, phases, settings};

#[test]
fn without_depends_on_phases_come_one_after_the_other() {
    let workflow =
        phases("  - {name: a, prompt: x}\n  - {name: b, prompt: x}\n  - {name: c, prompt: x}\n");
    let waits: Vec<&[usize]> = workflow.phases.iter().map(|it| &*it.depends_on).collect();
    assert_eq!(waits, [&[][..], &[0], &[1]]);
}

#[test]
fn with_depends_on_phases_wait_for_those_they_name() {
    let workflow = phases(
        "  - {name: c, prompt: x, depends_on: [a, b, a], trigger_rule: all_done}\n  - {name: a, prompt: x}\n  - {name: b, prompt: x, depends_on: a}\n",
    );
    let waits: Vec<&[usize]> = workflow.phases.iter().map(|it| &*it.depends_on).collect();
    assert_eq!(waits, [&[1, 2][..], &[], &[1]]);
    assert_eq!(workflow.phases[0].trigger_rule, TriggerRule::AllDone);
    let workflow = phases("  - {name: a, prompt: x, depends_on: []}\n  - {name: b, prompt: x}\n");
    assert!(workflow.phases[1].depends_on.is_empty(), "nobody said that it waits");
}

#[test]
fn a_prompt_is_text_or_a_file_and_skills_come_before_it() {
    let text = "name: w\nagent: coder\nphases:\n  - {name: a, prompt: see a.md}\n  - {name: b, prompt: prompts/b.md, skill: build}\n  - {name: c, skills: [build, test]}\n  - {name: d, prompt: b.md}\n";
    let files = [
        ("sub/w.yaml", text),
        ("sub/prompts/b.md", "Build {{ x }}.\n"),
        ("skills/build/SKILL.md", "---\nname: build\n---\n# Build\nnot {{ a template }}\n"),
        ("sub/skills/test/SKILL.md", "# Test\n"),
    ];
    let loaded = load_with(&files, &settings()).unwrap();
    let names: Vec<&str> = loaded.files.keys().map(|path| path.as_str()).collect();
    assert_eq!(
        names,
        [
            "/fleet/workflows/skills/build/SKILL.md",
            "/fleet/workflows/sub/prompts/b.md",
            "/fleet/workflows/sub/skills/test/SKILL.md",
            "/fleet/workflows/sub/w.yaml",
        ]
    );
    let context = serde_json::json!({"x": "it"});
    let scope = heeler_config::workflow::TemplateScope {
        context: &context,
        scratch: &serde_json::Map::new(),
        outputs: &indexmap::IndexMap::new(),
        loop_results: &indexmap::IndexMap::new(),
        extra_names: &[],
    };
    let prompts: Vec<String> = loaded
        .workflow
        .phases
        .iter()
        .map(|phase| match &phase.work {
            PhaseWork::Agent { prompt, .. } => prompt.render(&scope).unwrap(),
            _ => unreachable!("all ask an agent"),
        })
        .collect();
    assert_eq!(
        prompts,
        [
            "see a.md",
            "# Build\nnot {{ a template }}\n\nBuild it.\n",
            "# Build\nnot {{ a template }}\n\n# Test",
            "Build it.\n",
        ]
    );
}

#[test]
fn loops_gates_and_numbers_are_read_whole() {
    let workflow = phases(
        "  - name: a
    prompt: x
    timeout_seconds: {from: fix.limit, default: 900}
    retry: {max: 2, backoff: 1s}
    approval_gate: {name: go, timeout: 2h, default: approve, message: 'Go with {{ output }}?'}
    approval_artifact: plan.md
    loop:
      max_cycles: 2
      on_request_changes: {fix_prompt: fix it, re_review_prompt: look again}
      approval_gate: fixing
      messages: {on_approved: fine}
    model: opus
  - name: b
    prompt: x
    generic_loop:
      max_iterations: 8
      until: output.contains('READY')
      until_bash: test -e done
      interactive: true
      gate_kind: reply
      gate_timeout: 1d
      gate_default: go on
      scratch_key: socratic
      on_soft_failure: {retries: 1, then: complete}
  - name: c
    type: script
    runtime: python
    script: print(1)
    foreach: {items: '{{ inputs.repos }}', as: repo, max_parallel: 3}
    output_var: all
    on_success: {set_phase: complete}
    working_directory: sub/{{ repo }}
  - {name: d, type: bash, command: 'ls {{ item }}', foreach: [a b, c], agent: painter}
",
    );
    let [a, b, c, d] = &workflow.phases[..] else { unreachable!("there are four") };
    let limit = ContextNumber::Context { path: "fix.limit".to_owned(), default: 900 };
    assert_eq!(a.timeout_seconds, Some(limit));
    assert_eq!((a.retry.max, a.retry.backoff.to_string()), (2, "1s".to_owned()));
    let gate = a.gate.as_ref().unwrap();
    assert_eq!((gate.name.as_str(), gate.kind), ("go", GateKind::Approve));
    assert_eq!(gate.artifact.as_deref(), Some("plan.md"));
    let (timeout, default) = gate.timeout.as_ref().unwrap();
    assert_eq!((timeout.to_string().as_str(), default), ("2h", &GateDefault::Approve));
    let PhaseRepeat::Review(review) = &a.repeat else { unreachable!("it is a review loop") };
    assert_eq!((review.max_cycles, review.fix_model.as_ref().unwrap().as_str()), (2, "opus"));
    assert_eq!(review.gate.as_ref().unwrap().name, "fixing");
    assert_eq!(a.messages.on_approved.as_ref().unwrap().as_str(), "fine");
    let PhaseRepeat::Until(until) = &b.repeat else { unreachable!("it is a loop") };
    let gate = until.gate.as_ref().unwrap();
    assert_eq!((gate.name.as_str(), gate.kind), ("b", GateKind::Reply));
    let (_, default) = gate.timeout.as_ref().unwrap();
    assert_eq!(default, &GateDefault::Reply("go on".to_owned()));
    assert!(until.until_bash.is_some() && until.on_soft_failure.completes);
    let PhaseRepeat::Foreach(each) = &c.repeat else { unreachable!("it is for each") };
    assert_eq!((each.name.as_str(), each.max_parallel.unwrap().get()), ("repo", 3));
    assert!(matches!(&c.work, PhaseWork::Script { language: ScriptLanguage::Python, .. }));
    assert_eq!((c.output_var.as_deref(), c.set_phase.as_deref()), (Some("all"), Some("complete")));
    let PhaseRepeat::Foreach(each) = &d.repeat else { unreachable!("it is for each") };
    assert_eq!(each.items.to_string(), r#"["a b","c"]"#);
    assert_eq!(d.agent.as_ref().unwrap().as_str(), "web.painter");
}

#[test]
fn the_agent_is_the_phases_the_workflows_or_the_fleets() {
    let settings = WorkflowSettings { agent: Some("tester".parse().unwrap()), ..settings() };
    let text = "name: w\nphases: [{name: a, prompt: x}]";
    let loaded = load_with(&[("w.yaml", text)], &settings).unwrap();
    assert_eq!(loaded.workflow.agent.unwrap().as_str(), "tester");
    let text = "name: w\nagent: coder\nphases: [{name: a, prompt: x}]";
    let loaded = load_with(&[("w.yaml", text)], &settings).unwrap();
    assert_eq!(loaded.workflow.agent.unwrap().as_str(), "coder");
}

#[test]
fn inputs_have_types_and_defaults() {
    let text = "name: w\nagent: coder\nmax_parallel: 7\nbudget: 2.5\ninputs:\n  title: {description: What}\n  n: {type: number, default: '3', options: [1, 3]}\n  l: {type: list, default: a}\nphases: [{name: a, prompt: x}]";
    let workflow = load_with(&[("w.yaml", text)], &settings()).unwrap().workflow;
    assert_eq!(workflow.max_parallel.get(), 7);
    assert_eq!(workflow.budget.unwrap().to_string(), "2.5");
    let kinds: Vec<WorkflowInputType> = workflow.inputs.values().map(|input| input.kind).collect();
    assert_eq!(
        kinds,
        [WorkflowInputType::String, WorkflowInputType::Number, WorkflowInputType::List]
    );
    assert_eq!(workflow.inputs["n"].default, Some(serde_json::json!(3)));
    assert_eq!(workflow.inputs["l"].default, Some(serde_json::json!(["a"])));
    assert_eq!(workflow.inputs["title"].default, None);
}

#[test]
fn a_workflow_has_so_many_phases_and_no_more() {
    use std::fmt::Write as _;
    let mut text = "name: w\nphases:\n".to_owned();
    for number in 0..10_000 {
        writeln!(text, "- {{name: p{number}, type: context}}").unwrap();
    }
    let loaded = load_with(&[("w.yaml", &text)], &settings()).unwrap();
    assert_eq!(loaded.workflow.phases.len(), heeler_config::workflow::PHASES_MAX);
    text.push_str("- {name: more, type: context}\n");
    let faults = load_with(&[("w.yaml", &text)], &settings()).unwrap_err();
    assert_eq!(faults.list[0].message, "the workflow has more than 10000 phases");
}
