//! Needs of Last Light's files that the agents of a fleet meet or do not meet.

use std::collections::BTreeMap;

use camino::Utf8Path;
use heeler_config::AgentConfig;
use heeler_config::workflow::{GitAccessProfile, PhaseWork, RunClonePolicy, WorkflowFolder};

use crate::{Files, load_any_with, render, settings};

/// Agents of every kind of isolation, and with lists of tools.
const FLEET: &str = "\
github: {bot: heeler-bot, app: {id: 1, private_key_file: key.pem, installation: 2}, repos: [acme/web],
  agent_tokens: {reviewer: {contents: read, pull_requests: write}}}
agents:
  - {name: plain}
  - {name: cloned, repo: ./origin.git}
  - {name: boxed, sandbox: true}
  - {name: held, docker: {enabled: true, image: dev}}
  - {name: open, docker: {enabled: true, image: dev, network: bridge}, sandbox: {credentials: agent}}
  - {name: offline, allowed_tools: [Read]}
  - {name: denied, denied_tools: [WebSearch]}
  - {name: searching, allowed_tools: [Read, WebSearch]}
  - {name: reviewer}
  - {name: shell, runtime: command, command: 'true'}
  - name: listener
    schedules: {talk: {type: webhook, secret_env: HOOK, events: [issue_comment], workflow: heard}}
";

fn fleet() -> Vec<AgentConfig> {
    let read = |_: &Utf8Path| Ok(FLEET.to_owned());
    let loaded = heeler_config::load("/fleet/heeler.yaml".into(), &read, &BTreeMap::new());
    loaded.unwrap_or_else(|faults| panic!("{faults:?}")).agents
}

fn load(files: Files<'_>) -> WorkflowFolder {
    load_any_with(files, &fleet(), &settings())
}

/// Loads a workflow with one phase. Returns everything that is said about it.
fn said(keys: &str, phase: &str) -> String {
    let text = format!("name: w\n{keys}phases:\n  - {{name: a, prompt: go, {phase}}}\n");
    match load(&[("w.yaml", &text)]).into_result() {
        Ok(all) => render(&all.warnings),
        Err(faults) => render(&faults),
    }
}

/// Checks that something is said, or that nothing is if the words are empty.
#[track_caller]
fn check(keys: &str, phase: &str, words: &str) {
    let said = said(keys, phase);
    match words {
        "" => assert_eq!(said, "ok\n"),
        words => assert!(said.contains(words), "{said}"),
    }
}

#[test]
fn a_phase_without_an_egress_list_needs_an_agent_without_one() {
    let refused = "error: the phase needs access to every host";
    for (agent, words) in [("plain", ""), ("open", ""), ("boxed", refused), ("held", refused)] {
        check("", &format!("agent: {agent}, unrestricted_egress: true"), words);
        check("", &format!("agent: {agent}, unrestricted_egress: false"), "");
    }
}

#[test]
fn a_phase_that_searches_the_web_needs_the_tool() {
    let refused = "exclude `WebSearch`";
    let cases = [
        ("plain", ""),
        ("searching", ""),
        ("shell", ""),
        ("offline", refused),
        ("denied", refused),
    ];
    for (agent, words) in cases {
        check("", &format!("agent: {agent}, web_search: true"), words);
    }
}

#[test]
fn a_phase_is_skipped_where_its_agent_does_not_run_as_it_requires() {
    let skipped = "warning: the phase `a` is always skipped";
    let cases = [
        ("docker", "held", ""),
        ("docker", "boxed", skipped),
        ("docker", "plain", skipped),
        ("gondolin", "boxed", ""),
        ("gondolin", "held", skipped),
        ("none", "plain", ""),
        ("none", "boxed", skipped),
    ];
    for (required, agent, words) in cases {
        check("", &format!("agent: {agent}, requires_sandbox: {required}"), words);
        let text = format!(
            "name: w\nphases: [{{name: a, prompt: go, agent: {agent}, requires_sandbox: {required}}}]\n"
        );
        let all = load(&[("w.yaml", &text)]);
        let skip_if = &all.workflows[0].workflow.phases[0].skip_if;
        assert_eq!(skip_if.len(), usize::from(!words.is_empty()), "{required} {agent}");
    }
    check("", "agent: held, sandbox_image: qa", "");
    check("agent: held\n", "sandbox_image: default", "");
    check("agent: held\n", "sandbox_image: qa", skipped);
    check("", "agent: plain, sandbox_image: qa", "no `agent` of its own that runs in a container");
}

#[test]
fn a_reasoning_effort_is_one_that_models_have() {
    check("agent: plain\n", "variant: high", "");
    check("agent: plain\n", "variant: minimal", "");
    check("agent: plain\n", "variant: '{{ effort }}'", "");
    check("agent: plain\n", "variant: deep", "error: unknown reasoning effort `deep`");
    check("agent: shell\n", "variant: high", "has no reasoning effort");
    let text = "name: w\nagent: plain\nphases: [{name: a, prompt: go, variant: xhigh}]\n";
    let all = load(&[("w.yaml", text)]);
    let PhaseWork::Agent { effort: Some(effort), .. } = &all.workflows[0].workflow.phases[0].work
    else {
        unreachable!("it has an effort")
    };
    assert_eq!(effort.as_str(), "xhigh");
}

#[test]
fn access_to_github_is_what_the_tokens_of_the_agents_allow() {
    check("agent: reviewer\ngit_access: read\n", "", "");
    check("agent: reviewer\ngit_access: review-write\n", "", "");
    check("agent: reviewer\ngit_access: issues-write\n", "", "needs `issues: write`");
    check("agent: reviewer\ngit_access: repo-write\n", "", "needs `contents: write`");
    check("agent: plain\ngit_access: repo-write\n", "", "");
    check("agent: plain\ngit_access: repo-write\n", "agent: reviewer", "needs `contents: write`");
    let text = "name: w\nagent: plain\ngit_access: read\npr_scoped: true\nstatus_checklist: true\n\
        phases: [{name: a, prompt: go}]\n";
    let rules = load(&[("w.yaml", text)]).workflows[0].workflow.github;
    assert_eq!(rules.access, Some(GitAccessProfile::Read));
    assert!(rules.is_pr_scoped && rules.has_checklist);
}

#[test]
fn a_fix_of_a_pull_request_is_scoped_to_it() {
    check("agent: plain\npr_fix_shaped: true\n", "", "`pr_fix_shaped` needs `pr_scoped: true`");
    check("agent: plain\npr_scoped: true\npr_fix_shaped: true\n", "", "");
    check("agent: plain\nprepopulate_synth_branch: true\n", "", "");
}

#[test]
fn a_run_with_a_clone_needs_agents_with_a_repository() {
    let refused = "error: `workspace: per-run` needs a clone for each run, and the agent `plain` has no `repo`";
    check("agent: plain\nworkspace: per-target-reuse\n", "", "");
    check("agent: plain\nworkspace: per-run\n", "", refused);
    check("agent: plain\nworkspace: per-target-recreate\n", "", "the agent `plain` has no `repo`");
    check("agent: cloned\nworkspace: per-run\n", "", "");
    check("agent: cloned\nworkspace: per-run\n", "agent: plain", refused);
    let policy = |word: &str| {
        let text = format!("name: w\nagent: cloned\n{word}phases: [{{name: a, prompt: go}}]\n");
        load(&[("w.yaml", &text)]).workflows[0].workflow.run_clone
    };
    assert_eq!(policy(""), None);
    assert_eq!(policy("workspace: per-target-reuse\n"), None);
    assert_eq!(policy("workspace: per-run\n"), Some(RunClonePolicy::PerRun));
    assert_eq!(policy("workspace: per-target-recreate\n"), Some(RunClonePolicy::PerTarget));
}

#[test]
fn a_workflow_that_a_text_starts_needs_a_rule_for_it() {
    let file = |name: &str, keys: &str| {
        format!("name: {name}\nagent: plain\n{keys}\nphases: [{{name: a, prompt: go}}]\n")
    };
    let all = |fleet: &str, files: Files<'_>| {
        let read = |_: &Utf8Path| Ok(fleet.to_owned());
        let loaded = heeler_config::load("/fleet/heeler.yaml".into(), &read, &BTreeMap::new());
        let agents = loaded.unwrap_or_else(|faults| panic!("{faults:?}")).agents;
        load_any_with(files, &agents, &settings())
    };
    let keys = "classification: {intent: qa-test, description: Test it}";
    let chat = "chat: {trigger: 'test it', summary: Tests it}";
    let (heard, deaf) = (file("heard", keys), file("deaf", chat));
    let folder = load(&[("heard.yaml", &heard), ("deaf.yaml", &deaf)]).into_result().unwrap();
    let said = render(&folder.warnings);
    assert!(said.contains("no text of a person starts the workflow `deaf`"), "{said}");
    assert!(!said.contains("`heard`"), "{said}");

    // A schedule with `intents` starts every workflow that has one.
    let listening =
        FLEET.replace("workflow: heard}", "mention: bot, intents: true, workflow: deaf}");
    let other = file("other", keys);
    let folder = all(&listening, &[("other.yaml", &other), ("deaf.yaml", &deaf)]);
    assert_eq!(render(&folder.warnings), "ok\n");
    let intent = |word: &str| Some(word.parse().unwrap());
    assert_eq!(folder.workflows[0].workflow.intent, intent("QATEST"));
    let twins = [("heard.yaml", heard.as_str()), ("other.yaml", &other)];
    let said = render(&all(&listening, &twins).into_result().unwrap_err());
    assert!(said.contains("the workflow `heard` has the same intent"), "{said}");
    let said = said_of_keys("classification: {intent: 'do it'}\n");
    assert!(said.contains("error: `do it` cannot be the intent of a text"), "{said}");
}

fn said_of_keys(keys: &str) -> String {
    said(&format!("agent: plain\n{keys}"), "")
}
