//! A run goes by the workflow it began with: frozen and thawed.

use heeler_config::workflow::{WorkflowSettings, freeze_workflow, load_frozen_workflow};
use serde_json::json;

use crate::{agents, load_with, settings};

const TEXT: &str = "name: w\nphases:\n  - {name: a, prompt: prompts/a.md, skill: s, approval_gate: go}\n  - {name: b, prompt: '${a.output}', agent: painter, approval_gate: stay}\n";

fn frozen() -> (String, String) {
    let files =
        [("w.yaml", TEXT), ("prompts/a.md", "Do {{ x }}.\n"), ("skills/s/SKILL.md", "The skill.")];
    let settings = WorkflowSettings { agent: Some("tester".parse().unwrap()), ..settings() };
    freeze_workflow(&load_with(&files, &settings).unwrap())
}

#[test]
fn a_thawed_workflow_is_the_one_that_was_frozen() {
    let (hash, json) = frozen();
    assert_eq!(hash.len(), 64);
    assert_eq!(frozen(), (hash, json.clone()), "the same files give the same hash");
    let workflow = load_frozen_workflow(&json, &agents()).unwrap();
    let files =
        [("w.yaml", TEXT), ("prompts/a.md", "Do {{ x }}.\n"), ("skills/s/SKILL.md", "The skill.")];
    let settings = WorkflowSettings { agent: Some("tester".parse().unwrap()), ..settings() };
    let loaded = load_with(&files, &settings).unwrap().workflow;
    assert_eq!(format!("{workflow:?}"), format!("{loaded:?}"));
}

#[test]
fn what_was_good_when_it_was_frozen_is_not_refused_later() {
    // Once, a name that nothing has was a warning, and a title was matched by plain text.
    let marker = "{contains_BLOCKED: {unless_title_matches: '(draft'}}";
    let text = format!(
        "name: w\nagent: coder\ninputs: {{title: {{}}}}\nphases: [{{name: a, prompt: '{{{{ unheard }}}}', on_output: {marker}}}]\n"
    );
    assert!(load_with(&[("w.yaml", &text)], &settings()).is_err());
    let json = json!({ "root": "/f/w.yaml", "files": { "/f/w.yaml": text }, "agent": "coder" });
    let workflow = load_frozen_workflow(&json.to_string(), &agents()).unwrap();
    let marker = workflow.phases[0].on_output.blocked.as_ref().unwrap();
    let title = marker.unless_title_matches.as_ref().unwrap();
    assert!(title.is_match("A (Draft) of it") && !title.is_match("draft"));
}

#[test]
fn a_thawed_workflow_keeps_agents_that_are_gone() {
    let (_, json) = frozen();
    let workflow = load_frozen_workflow(&json, &[]).unwrap();
    assert_eq!(workflow.agent.unwrap().as_str(), "tester");
    assert_eq!(workflow.phases[1].agent.as_ref().unwrap().as_str(), "painter");
}

#[test]
fn what_is_no_definition_is_told() {
    let faults = load_frozen_workflow("{}", &agents()).unwrap_err();
    let message = &faults.list[0].message;
    assert!(message.starts_with("the definition of the run cannot be read: "), "{message}");
}
