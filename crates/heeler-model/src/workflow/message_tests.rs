//! Every message hook at every outcome, with files in Last Light's shape. `message_table_tests` has
//! the table in `docs/workflow-reference.md`, row by row.

use std::collections::BTreeMap;
use std::io;

use camino::Utf8Path;
use heeler_config::workflow::{self, Workflow, WorkflowSettings};
use serde_json::{Value as Json, json};

use super::tests::WorkflowRunFixture;
use super::*;

/// Hooks of every phase. Each says its name.
const HOOKS: &str = "on_start: start, on_success: success, on_failure: 'failure ({{ error }})', \
    on_skipped_done: skipped, on_blocked: blocked, on_blocked_bypassed: bypassed";

/// Hooks of a review loop, with their variables.
const LOOP_HOOKS: &str = "on_cycle_start: 'cycle {{cycle}}/{{maxCycles}}', \
    on_approved: 'approved {{cycle}}', on_request_changes: 'changes {{cycle}}/{{maxCycles}}', \
    on_max_cycles: 'max {{cycle}}/{{maxCycles}}', on_fix_start: 'fix {{cycle}}/{{maxCycles}}', \
    on_fix_failed: 'fix failed {{cycle}}', on_pause_for_approval: 'pause {{cycle}}'";

/// Loads a workflow by the lines of its phases.
pub(super) fn load(phases: &str) -> Workflow {
    let text = format!("name: flow\nagent: coder\nphases:\n{phases}");
    load_files(&[("flow.yaml", &text)])
}

fn load_files(files: &[(&str, &str)]) -> Workflow {
    let folder = Utf8Path::new("/fleet/workflows");
    let read = |path: &Utf8Path| match path == "/fleet/heeler.yaml" {
        true => Ok("agents: [{name: coder, runtime: command, command: 'true'}]".to_owned()),
        false => {
            let found = files.iter().find(|(name, _)| folder.join(name) == path);
            found
                .map(|(_, text)| (*text).to_owned())
                .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
        }
    };
    let list = |below: &Utf8Path| {
        let paths = files.iter().map(|(name, _)| folder.join(name));
        paths.filter(|path| path.starts_with(below)).collect()
    };
    let fleet = heeler_config::load("/fleet/heeler.yaml".into(), &read, &BTreeMap::new()).unwrap();
    let settings = WorkflowSettings { folder: folder.to_owned(), ..WorkflowSettings::default() };
    let root = folder.join(files[0].0);
    workflow::load_workflow(&root, (&read, &list), &fleet.agents, &settings).unwrap().workflow
}

/// A phase with every hook, and more keys.
fn hooked(keys: &str) -> Workflow {
    load(&format!("  - {{name: a, prompt: go, messages: {{{HOOKS}}}, {keys}}}\n"))
}

fn reviewed(keys: &str) -> Workflow {
    let review = format!(
        "loop: {{max_cycles: 2, on_request_changes: {{fix_prompt: 'fix {{{{fixCycle}}}}', \
         re_review_prompt: 'again {{{{fixCycle}}}}'}}, messages: {{{LOOP_HOOKS}}}{keys}}}"
    );
    hooked(&format!("output_var: result, {review}"))
}

fn looped(keys: &str) -> Workflow {
    let hooks = "on_start: 'start {{iteration}}/{{maxIterations}}', \
        on_success: 'success {{iteration}}/{{maxIterations}}', \
        on_failure: 'failure {{iteration}}/{{maxIterations}}', on_skipped_done: skipped";
    load(&format!(
        "  - {{name: a, prompt: go, output_var: result, messages: {{{hooks}}}, {keys}}}\n"
    ))
}

impl WorkflowRunFixture {
    /// Returns the messages and questions so far.
    pub(super) fn heard(&self) -> Vec<&str> {
        let lines = self.log.lines().map(str::trim);
        lines.filter_map(|line| line.strip_prefix("say ")).collect()
    }

    fn result(&self) -> &Json {
        &self.course.loop_results["result"]
    }
}

fn play(workflow: Workflow) -> WorkflowRunFixture {
    WorkflowRunFixture::new(workflow)
}

pub(super) const CHANGES: &str = "VERDICT: REQUEST_CHANGES";
pub(super) const APPROVED: &str = "VERDICT: APPROVED";

#[test]
fn a_phase_says_how_it_ended() {
    let mut run = play(hooked(""));
    run.says("a", "work", "done");
    assert_eq!(run.heard(), ["start", "success"]);

    let mut run = play(hooked(""));
    run.ends("a", "work", PartOutcome::Failed, "it broke");
    assert_eq!(run.heard(), ["start", "failure (it broke)"]);

    let mut run = play(hooked("retry: {max: 1, backoff: 1s}"));
    run.ends("a", "work", PartOutcome::Failed, "it broke").says("a", "work", "done");
    assert_eq!(run.heard(), ["start", "success"], "a retry is not another start");

    let mut run = play(hooked("retry: {max: 0, backoff: 1s}"));
    run.ends("a", "work", PartOutcome::Interrupted, "").says("a", "work", "done");
    assert_eq!(run.heard(), ["start", "success"], "nor is a repetition after a crash");

    let mut run = play(hooked(""));
    run.happens(WorkflowStepEvent::Cancel { by: "ada".to_owned(), now: true });
    run.ends("a", "work", PartOutcome::Cancelled, "");
    assert_eq!(run.heard(), ["start"], "the person who cancelled knows");
}

#[test]
fn a_gate_says_how_it_was_answered_by_the_end_of_its_phase() {
    let mut run = play(hooked("approval_gate: go"));
    run.says("a", "work", "done");
    assert_eq!(run.heard(), ["start"]);
    run.answers("a", "gate:0", true, "");
    assert_eq!(run.heard(), ["start", "success"]);

    let mut run = play(hooked("approval_gate: go"));
    run.says("a", "work", "done").answers("a", "gate:0", false, "no");
    assert_eq!(run.heard(), ["start", "failure (rejected by ada: no)"]);
}

#[test]
fn a_skipped_phase_says_so_only_if_it_was_left_out_on_purpose() {
    let run = play(hooked("skip_if: \"skip == 'yes'\""));
    assert_eq!(run.heard(), ["start"]);
    let skip = json!({"skip": "yes"});
    let run = WorkflowRunFixture::with(hooked("skip_if: \"skip == 'yes'\""), skip, &[]);
    assert_eq!(run.heard(), ["skipped"]);

    let first = "  - {name: first, prompt: go}\n";
    let mut run =
        play(load(&format!("{first}  - {{name: a, prompt: go, messages: {{{HOOKS}}}}}\n")));
    run.ends("first", "work", PartOutcome::Failed, "it broke");
    assert_eq!(run.heard(), [""; 0], "the failure of another phase is not \"already completed\"");

    let run = play(hooked("skip_if: '1 / nothing > 2'"));
    let heard = run.heard();
    assert!(heard.len() == 1 && heard[0].starts_with("failure ("), "{heard:?}");
}

#[test]
fn an_output_with_a_marker_or_without_one_says_which() {
    let blocked = "on_output: {contains_BLOCKED: {unless_label: fine}}";
    let mut run = play(hooked(blocked));
    run.says("a", "work", "I am BLOCKED");
    assert_eq!(run.heard(), ["start", "blocked"]);

    let own = "on_output: {contains_BLOCKED: {message: 'stuck', bypass_message: 'let through', \
        unless_label: fine}}";
    let mut run = play(hooked(own));
    run.says("a", "work", "I am BLOCKED");
    assert_eq!(run.heard(), ["start", "stuck"], "the rule's own message comes first");

    let label = json!({"issueLabels": ["fine"]});
    let mut run = WorkflowRunFixture::with(hooked(blocked), label.clone(), &[]);
    run.says("a", "work", "I am BLOCKED");
    assert_eq!(run.heard(), ["start", "bypassed", "success"]);
    let mut run = WorkflowRunFixture::with(hooked(own), label, &[]);
    run.says("a", "work", "I am BLOCKED");
    assert_eq!(run.heard(), ["start", "let through", "success"]);

    let silent = "  - {name: a, prompt: go, messages: {on_failure: failure}, \
        on_output: {contains_BLOCKED: {}}}\n";
    let mut run = play(load(silent));
    run.says("a", "work", "I am BLOCKED");
    assert_eq!(run.heard(), ["failure"], "without a message of its own it is a failure");

    let mut run = play(hooked("on_output: {requires_marker: 'DONE:', contains_BLOCKED: {}}"));
    run.says("a", "work", "I am lost");
    assert_eq!(run.heard(), ["start", "failure (its output lacks `DONE:`)"]);
}

#[test]
fn a_review_loop_says_each_step_with_its_cycle() {
    let mut run = play(reviewed(""));
    run.says("a", "work", APPROVED);
    assert_eq!(run.heard(), ["start", "cycle 1/2", "approved 1", "success"]);
    assert_eq!(*run.result(), json!({"approved": true, "cycles": 0}));

    let mut run = play(reviewed(""));
    run.says("a", "work", CHANGES).says("a", "fix:1", "did it").says("a", "recheck:1", APPROVED);
    assert_eq!(
        run.heard(),
        ["start", "cycle 1/2", "changes 1/2", "fix 1/2", "cycle 2/2", "approved 2", "success"]
    );
    assert_eq!(*run.result(), json!({"approved": true, "cycles": 1}));
    assert!(run.log.contains("start a fix:1: fix 1\n"), "{}", run.log);
    assert!(run.log.contains("start a recheck:1: again 1\n"), "{}", run.log);
}

#[test]
fn a_review_loop_that_ends_without_consent_never_says_success() {
    let mut run = play(reviewed(""));
    run.says("a", "work", CHANGES).says("a", "fix:1", "did it").says("a", "recheck:1", CHANGES);
    run.says("a", "fix:2", "did more").says("a", "recheck:2", CHANGES);
    assert_eq!(run.heard()[6..], ["fix 2/2", "cycle 3/2", "max 2/2"]);
    assert_eq!(*run.result(), json!({"approved": false, "cycles": 2}));
    assert_eq!(run.course.status, WorkflowRunStatus::Succeeded);

    let mut run = play(reviewed(""));
    run.ends("a", "work", PartOutcome::Failed, "it broke");
    assert_eq!(run.heard(), ["start", "cycle 1/2", "failure (it broke)"]);
}

#[test]
fn a_fix_that_fails_ends_its_loop_and_later_phases_proceed() {
    let pr = "  - {name: pr, prompt: 'open{{#if !result.approved}}, \
        unresolved after {{result.cycles}}{{/if}}'}\n";
    let review = format!(
        "  - {{name: a, prompt: go, output_var: result, messages: {{{HOOKS}}}, loop: {{max_cycles: 2, \
         on_request_changes: {{fix_prompt: fix, re_review_prompt: again}}, messages: {{{LOOP_HOOKS}}}}}}}\n{pr}"
    );
    let mut run = play(load(&review));
    run.says("a", "work", CHANGES).ends("a", "fix:1", PartOutcome::Interrupted, "");
    assert!(!run.heard().contains(&"fix failed 1"), "a crash is not a failure: it is repeated");
    run.ends("a", "fix:1", PartOutcome::Failed, "no space");
    assert_eq!(run.heard()[2..], ["changes 1/2", "fix 1/2", "fix failed 1"]);
    assert!(run.log.contains("start pr work: open, unresolved after 1\n"), "{}", run.log);
    run.says("pr", "work", "opened");
    assert_eq!(run.course.status, WorkflowRunStatus::Failed, "as in Last Light");
    assert_eq!(run.course.error.as_deref(), Some("a: no space"));

    run.happens(WorkflowStepEvent::Retry { from: None, queued: false });
    run.says("a", "work", APPROVED);
    assert!(
        run.log.contains("start pr work: open\n"),
        "after consent nothing is open: {}",
        run.log
    );
    run.says("pr", "work", "opened");
    assert_eq!(run.course.status, WorkflowRunStatus::Succeeded);
}

#[test]
fn a_gate_of_a_review_loop_says_its_cycle() {
    let mut run = play(reviewed(", approval_gate: go"));
    run.says("a", "work", CHANGES);
    assert_eq!(run.heard()[2..], ["changes 1/2", "pause 1"]);
    run.answers("a", "gate:1", true, "");
    assert_eq!(run.heard()[4..], ["fix 1/2"]);
}

#[test]
fn a_loop_says_success_only_if_its_condition_holds() {
    let until = "generic_loop: {max_iterations: 2, until: \"output.contains('READY')\"}";
    let mut run = play(looped(until));
    run.says("a", "iteration:1", "not yet").says("a", "iteration:2", "READY");
    assert_eq!(run.heard(), ["start 0/2", "success 2/2"]);
    assert_eq!(*run.result(), json!({"completed": true, "iterations": 2}));

    let mut run = play(looped(until));
    run.says("a", "iteration:1", "not yet").says("a", "iteration:2", "nor now");
    assert_eq!(run.heard(), ["start 0/2", "failure 2/2"]);
    assert_eq!(*run.result(), json!({"completed": false, "iterations": 2}));
    assert_eq!(run.course.status, WorkflowRunStatus::Succeeded);

    let mut run = play(looped(until));
    run.ends("a", "iteration:1", PartOutcome::Failed, "it broke");
    assert_eq!(run.heard(), ["start 0/2", "failure 1/2"]);
    assert_eq!(*run.result(), json!({"completed": false, "iterations": 1}));

    let soft = "generic_loop: {max_iterations: 2, until: \"output.contains('READY')\", \
        on_soft_failure: {retries: 0, then: complete}}";
    let mut run = play(looped(soft));
    run.ends("a", "iteration:1", PartOutcome::Soft, "");
    assert_eq!(run.heard(), ["start 0/2"], "neither is certain");
    assert_eq!(*run.result(), json!({"completed": true, "iterations": 1}));
}

#[test]
fn a_check_that_never_holds_is_not_a_success() {
    let check = "generic_loop: {max_iterations: 2, until_bash: make test}";
    let mut run = play(looped(check));
    for number in 1..=2 {
        run.says("a", &format!("iteration:{number}"), "tried");
        run.ends("a", &format!("check:{number}"), PartOutcome::Failed, "");
    }
    assert_eq!(run.heard(), ["start 0/2", "failure 2/2"]);
    assert_eq!(*run.result(), json!({"completed": false, "iterations": 2}));
}

#[test]
fn only_the_last_iteration_must_have_the_marker() {
    let marked = |until: &str| {
        looped(&format!(
            "on_output: {{requires_marker: 'DONE:'}}, generic_loop: {{max_iterations: 2, {until}}}"
        ))
    };
    let word = "until: \"output.contains('READY')\"";
    let mut run = play(marked(word));
    run.says("a", "iteration:1", "in the middle").says("a", "iteration:2", "DONE: READY");
    assert_eq!(run.heard(), ["start 0/2", "success 2/2"]);
    let mut run = play(marked(word));
    run.says("a", "iteration:1", "READY");
    assert_eq!(run.heard(), ["start 0/2", "failure 1/2"]);
    assert_eq!(run.course.status, WorkflowRunStatus::Failed);

    let mut run = play(marked("until_bash: make test"));
    run.says("a", "iteration:1", "no marker").says("a", "check:1", "");
    assert_eq!(run.course.status, WorkflowRunStatus::Failed);
    assert_eq!(run.course.error.as_deref(), Some("a: its output lacks `DONE:`"));
}

#[test]
fn a_gate_that_asks_for_a_reply_shows_the_question() {
    let gate = |message: &str| {
        looped(&format!(
            "generic_loop: {{max_iterations: 3, until: \"output.contains('READY')\", \
             interactive: true, gate_kind: reply, gate_message: '{message}'}}"
        ))
    };
    let mut run = play(gate("Round {{iteration}} of {{maxIterations}}: just reply."));
    run.says("a", "iteration:1", "Which colour?\n");
    let asked = "ask a gate:1 reply: Which colour?\n\n---\n\nRound 1 of 3: just reply.\n";
    assert!(run.log.contains(asked), "{}", run.log);

    let mut run = play(gate("I ask: {{a}}"));
    run.says("a", "iteration:1", "Which colour?");
    assert!(run.log.contains("ask a gate:1 reply: I ask: Which colour?\n"), "{}", run.log);
}

#[test]
fn a_list_says_one_end_for_all_items() {
    let each = "foreach: [x, y], retry: {max: 0, backoff: 1s}";
    let text = format!(
        "  - {{name: a, prompt: '{{{{index}}}} {{{{item}}}}', messages: {{{HOOKS}}}, {each}}}\n"
    );
    let mut run = play(load(&text));
    assert!(run.log.contains("start a item:1: 1 x\n"), "{}", run.log);
    assert!(run.log.contains("start a item:2: 2 y\n"), "{}", run.log);
    run.says("a", "item:1", "done").says("a", "item:2", "done");
    assert_eq!(run.heard(), ["start", "success"]);

    let mut run = play(load(&text));
    run.ends("a", "item:1", PartOutcome::Failed, "it broke").says("a", "item:2", "done");
    assert_eq!(run.heard(), ["start", "failure (it failed)"]);
}

#[test]
fn a_prompt_of_skills_ends_with_the_inputs_of_the_run() {
    let text = "name: flow\nagent: coder\nphases:\n  - {name: read, prompt: read}\n  - {name: a, skill: triage}\n";
    let files = [("flow.yaml", text), ("skills/triage/SKILL.md", "Triage the issue.")];
    let context = json!({
        "repo": "web", "issueNumber": 7, "issueLabels": ["bug"], "body": "It {{ fails }}", "none": null,
    });
    let mut run = WorkflowRunFixture::with(load_files(&files), context, &[]);
    run.says("read", "work", "seen");
    let prompt = "start a work: Triage the issue.\n\nContext:\nrepo: web\nissueNumber: 7\n\
        issueLabels: [\"bug\"]\nbody: It {{ fails }}\nphaseOutputs: {\"read\":\"seen\"}\n";
    assert!(run.log.contains(prompt), "{}", run.log);
}

#[test]
fn a_skill_beside_a_prompt_adds_no_inputs() {
    let text = "name: flow\nagent: coder\nphases: [{name: a, prompt: 'Do {{ x }}.', skill: s}]\n";
    let files = [("flow.yaml", text), ("skills/s/SKILL.md", "The skill.")];
    let run = WorkflowRunFixture::with(load_files(&files), json!({"x": "it"}), &[]);
    assert!(run.log.contains("start a work: The skill.\n\nDo it.\n"), "{}", run.log);
    assert!(!run.log.contains("Context:"), "{}", run.log);
}

#[test]
fn a_fix_is_skipped_if_the_diagnosis_says_that_there_is_nothing_to_fix() {
    let flow = format!(
        "  - {{name: diagnose, prompt: go, on_output: {{requires_marker: 'DIAGNOSIS_COMPLETE:'}}}}\n  \
         - {{name: a, prompt: go, messages: {{{HOOKS}}},\n     skip_if: [\"scratch.fixMarkers.diagnosis.class \
         == 'flaky'\"]}}\n"
    );
    let mut run = play(load(&flow));
    run.says(
        "diagnose",
        "work",
        "Odd.\nDIAGNOSIS_COMPLETE: pr=7 attempt=1 class=flaky cause=a race",
    );
    assert_eq!(run.heard(), ["skipped"]);
    let mut run = play(load(&flow));
    // Prose about the class is no diagnosis.
    run.says(
        "diagnose",
        "work",
        "Not class=flaky.\nDIAGNOSIS_COMPLETE: class=reproducible cause=x",
    );
    assert_eq!(run.heard(), ["start"]);
}
