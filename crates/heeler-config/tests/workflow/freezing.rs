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

#[test]
fn a_workflow_in_a_subdirectory_keeps_the_prompts_and_skills_that_it_found_above() {
    let text = "name: w\nagent: coder\nphases: [{name: a, prompt: prompts/a.md, skill: s}, {name: b, skill: t}]\n";
    let files = [
        ("sub/w.yaml", text),
        ("prompts/a.md", "Do it."),
        ("../skills/s/SKILL.md", "The skill."),
        ("../skills/s/references/format.md", "Three lines."),
        ("sub/skills/t/SKILL.md", "Another."),
        ("sub/skills/t/scripts/run.sh", "exit 0"),
    ];
    let path = |name: &str| {
        let path = camino::Utf8Path::new("/fleet/workflows").join(name);
        camino::Utf8PathBuf::from(path.as_str().replace("/workflows/..", ""))
    };
    let read = |wanted: &camino::Utf8Path| {
        let found = files.iter().find(|(name, _)| path(name) == wanted);
        found
            .map(|(_, text)| (*text).to_owned())
            .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotFound))
    };
    let list = |folder: &camino::Utf8Path| {
        files.iter().map(|(name, _)| path(name)).filter(|path| path.starts_with(folder)).collect()
    };
    let loaded = heeler_config::workflow::load_workflow(
        &path("sub/w.yaml"),
        (&read, &list),
        &agents(),
        &settings(),
    )
    .unwrap();
    let told = |workflow: &heeler_config::workflow::Workflow| {
        let files = workflow.phases.iter().flat_map(|phase| &phase.skills.files);
        files.map(|file| format!("{}/{}: {}", file.skill, file.path, file.text)).collect::<Vec<_>>()
    };
    let expected = ["s/references/format.md: Three lines.", "t/scripts/run.sh: exit 0"];
    assert_eq!(told(&loaded.workflow), expected);
    let (_, json) = freeze_workflow(&loaded);
    let workflow = load_frozen_workflow(&json, &agents()).unwrap();
    assert_eq!(told(&workflow), expected);
    assert_eq!(format!("{workflow:?}"), format!("{:?}", loaded.workflow));
}

#[test]
fn a_skill_has_a_limit_of_files() {
    let names: Vec<String> = (0..=heeler_config::workflow::SKILL_FILES_MAX)
        .map(|number| format!("skills/s/references/{number}.md"))
        .collect();
    let mut files = vec![
        ("w.yaml", "name: w\nagent: coder\nphases: [{name: a, skill: s}]\n"),
        ("skills/s/SKILL.md", "The skill."),
    ];
    files.extend(names.iter().map(|name| (name.as_str(), "x")));
    let faults = load_with(&files, &settings()).unwrap_err();
    assert!(faults.list[0].message.contains("more than 100 files"), "{:?}", faults.list);
    files.pop();
    assert!(load_with(&files, &settings()).is_ok());
}
