//! Workflows as pictures.

use expect_test::expect;
use heeler_config::workflow::graph::{PhaseDisplayStatus, draw, mermaid};

use crate::phases;

const DIAMOND: &str = "  - {name: plan, prompt: x, approval_gate: go}
  - {name: build, prompt: x, depends_on: plan, generic_loop: {max_iterations: 3, until: output}}
  - {name: docs, type: bash, command: ls, depends_on: plan, foreach: [a, b]}
  - {name: review, label: 'Review \"it\"', prompt: x, agent: tester, depends_on: [build, docs], loop: {max_cycles: 2, on_request_changes: {fix_prompt: a, re_review_prompt: b}}}
  - {name: tell, type: context, depends_on: [review, plan], trigger_rule: all_done}
";

fn mark(place: usize) -> PhaseDisplayStatus {
    [
        PhaseDisplayStatus::Succeeded,
        PhaseDisplayStatus::Running,
        PhaseDisplayStatus::Failed,
        PhaseDisplayStatus::Waiting,
        PhaseDisplayStatus::Waiting,
    ][place]
}

#[test]
fn a_workflow_is_drawn_in_layers() {
    let workflow = phases(DIAMOND);
    expect![[r#"
        ✓ plan ⏸ go
          │
        ▶ build (loop ≤3)   ✗ docs (bash, each item)
          │
        · Review "it" (tester, review ≤2)
          │
        · tell  ← review, plan (all_done)"#]]
    .assert_eq(&draw(&workflow, &mark, 80).join("\n"));
}

#[test]
fn a_narrow_terminal_gets_one_phase_in_a_line() {
    let workflow = phases(DIAMOND);
    expect![[r#"
        ✓ plan ⏸ go
          │
        ▶ build (loop ≤3)
        ✗ docs (bash, each item)
          │
        · Review "it" (tester, review ≤2)
          │
        · tell  ← review, plan (all_done)"#]]
    .assert_eq(&draw(&workflow, &mark, 40).join("\n"));
    for width in 10..200 {
        let lines = draw(&workflow, &mark, width);
        assert!(lines.iter().all(|line| line.chars().count() <= width), "{width}: {lines:#?}");
    }
}

#[test]
fn a_chain_is_a_column() {
    let workflow = phases("  - {name: a, prompt: x}\n  - {name: b, prompt: x}\n");
    expect![[r#"
        · a
          │
        · b"#]]
    .assert_eq(&draw(&workflow, &|_| PhaseDisplayStatus::Waiting, 80).join("\n"));
}

#[test]
fn mermaid_gets_every_phase_gate_and_arrow() {
    expect![[r#"
        flowchart TD
          p0["plan"]
          p1["build<br>loop ≤3"]
          p1 --> p1
          p2[["docs<br>bash, each item"]]
          p3["Review #quot;it#quot;<br>tester, review ≤2"]
          p3 --> p3
          p4(["tell"])
          p0 --> g0{"go"}
          g0 --> p1
          g0 --> p2
          p1 --> p3
          p2 --> p3
          p3 -. all_done .-> p4
          g0 -. all_done .-> p4
    "#]]
    .assert_eq(&mermaid(&phases(DIAMOND)));
}
