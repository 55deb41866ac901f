//! A workflow file with a fault stops that workflow and nothing else, and is told of everywhere.

use serde_json::json;

use crate::fleet::Fleet;
use crate::terminal::Terminal;
use crate::trigger::{fleet, scripted, wait_for};

const GOOD: &str =
    "name: good\nagent: coder\nphases:\n  - {name: a, type: bash, command: 'echo fine'}\n";
const BAD: &str = "name: bad\nagent: nobody\nphases:\n  - {name: a, prompt: x}\n";
const CRON: &str = "kind: cron\nname: nightly\nschedule: '0 3 * * *'\nworkflow: bad\n";

/// A fleet with a good workflow, one with a fault, and what starts that by the clock.
fn faulty() -> Fleet {
    let fleet = fleet(&[("coder", &scripted("{say: Done.}"))]);
    fleet.write("workflows/good.yaml", GOOD);
    fleet.write("workflows/odd-file.yaml", BAD);
    fleet.write("workflows/nightly.yaml", CRON);
    fleet
}

const PLACE: &str = "workflows/odd-file.yaml:2:8";

#[test]
fn a_faulty_workflow_does_not_stop_the_fleet_and_is_refused_when_it_is_run() {
    let fleet = faulty();
    let started = fleet.run(&["start", "-d"]);
    assert_eq!(started.code, Some(0), "{}", started.stderr);
    for part in [PLACE, "workflow bad cannot run", "cron nightly cannot run"] {
        assert!(started.stderr.contains(part), "{part}: {}", started.stderr);
    }
    fleet.run(&["trigger", "coder", "-p", "x"]).ok();
    assert_eq!(fleet.run(&["workflow", "run", "good", "-q"]).ok(), "fine\n");
    for name in ["bad", "odd-file"] {
        let told = fleet.run(&["workflow", "run", name]).fails(2);
        assert!(told.contains("there is no agent `nobody`") && told.contains(PLACE), "{told}");
    }
    let told = fleet.run(&["workflow", "show", "bad"]).fails(2);
    assert!(told.contains(PLACE), "{told}");
    fleet.run(&["workflow", "run", "other"]).fails(4);
    let reloaded = fleet.run(&["reload"]).ok();
    assert!(reloaded.contains(&format!("workflow bad cannot run: {PLACE}")), "{reloaded}");
    fleet.run(&["workflow", "disable", "odd-file"]).ok();
    // Corrected, it counts; broken, it does not any more.
    fleet.write("workflows/odd-file.yaml", &BAD.replace("nobody", "coder"));
    let reloaded = fleet.run(&["reload"]).ok();
    assert!(!reloaded.contains("cannot run"), "{reloaded}");
    fleet.run(&["workflow", "run", "bad"]).fails(5);
    fleet.run(&["workflow", "enable", "bad"]).ok();
    fleet.run(&["workflow", "run", "bad"]).ok();
    fleet.write("workflows/good.yaml", &GOOD.replace("type: bash", "type: bush"));
    let reloaded = fleet.run(&["reload"]).ok();
    assert!(reloaded.contains("workflow good cannot run"), "{reloaded}");
    assert!(!reloaded.contains("removed"), "{reloaded}");
    fleet.run(&["workflow", "run", "good"]).fails(2);
    fleet.run(&["stop"]).ok();
}

#[test]
fn a_faulty_workflow_is_told_of_by_all_that_show_the_fleet() {
    let fleet = faulty();
    let status = fleet.run(&["status"]).ok();
    assert!(status.contains(&format!("fault workflow bad cannot run: {PLACE}")), "{status}");
    assert!(status.contains("fault cron nightly cannot run: workflows/nightly.yaml:4:11"));
    let status = fleet.json(&["status", "--json"]);
    let faulty = &status["faultyWorkflows"];
    assert_eq!((&faulty[0]["name"], &faulty[0]["kind"]), (&json!("bad"), &json!("workflow")));
    assert_eq!((&faulty[0]["errors"][0]["line"], &faulty[1]["kind"]), (&json!(2), &json!("cron")));
    let list = fleet.run(&["workflow", "list"]);
    assert_eq!(list.code, Some(0));
    assert!(list.stdout.contains("good  enabled") && list.stdout.contains("bad   invalid"));
    assert!(list.stderr.contains(PLACE), "{}", list.stderr);
    let list = fleet.json(&["workflow", "list", "--json"]);
    assert_eq!((&list["total"], &list["faulty"][0]["name"]), (&json!(1), &json!("bad")));
    let told = fleet.run(&["config", "validate"]).fails(2);
    assert!(told.contains(PLACE) && told.contains("has errors"), "{told}");
    assert_eq!(fleet.run(&["config", "validate", "--json"]).code, Some(2));
    // By its name, by that of its file, and by its path; others are not told of then.
    for which in ["bad", "odd-file", "workflows/odd-file.yaml"] {
        let told = fleet.run(&["workflow", "validate", which]).fails(2);
        assert!(told.contains("1 error") && told.contains(PLACE), "{which}: {told}");
    }
    let told = fleet.run(&["workflow", "validate", "nightly"]).fails(2);
    assert!(told.contains("has errors") && !told.contains(PLACE), "{told}");
    fleet.run(&["workflow", "validate", "good"]).ok();
}

#[test]
fn of_two_workflows_with_one_name_neither_runs() {
    let fleet = faulty();
    fleet.write("workflows/twin.yaml", GOOD);
    let told = fleet.run(&["workflow", "run", "good"]).fails(2);
    assert!(told.contains("there are two workflows `good`"), "{told}");
    let told = fleet.run(&["workflow", "validate", "good"]).fails(2);
    assert!(told.contains("there are two workflows `good`"), "{told}");
    // A draft elsewhere is no twin.
    fleet.write("good.yaml", GOOD);
    fleet.run(&["workflow", "validate", "./good.yaml"]).ok();
}

#[test]
fn what_works_but_not_as_meant_is_told_when_a_workflow_is_run() {
    let fleet = fleet(&[("coder", &scripted("{say: Done.}"))]);
    let text = "name: w\nphases:\n  - {name: a, type: bash, command: 'echo {{ previousOuput }}'}\n";
    fleet.write("workflows/w.yaml", text);
    let ran = fleet.run(&["workflow", "run", "w"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("unknown name `previousOuput`"), "{}", ran.stderr);
    assert!(ran.stderr.contains("did you mean `previousOutput`?"), "{}", ran.stderr);
    assert_eq!(fleet.run(&["workflow", "run", "w", "-q"]).stderr, "");
    fleet.write("workflows/w.yaml", &text.replace("phases", "inputs: {x: {default: 1}}\nphases"));
    let told = fleet.run(&["workflow", "run", "w"]).fails(2);
    assert!(told.contains("error: unknown name `previousOuput`"), "{told}");
}

#[test]
fn status_lists_runs_of_workflows_that_go_on_and_those_that_wait() {
    let fleet = fleet(&[("coder", &scripted("{say: Done.}"))]);
    let ask = "name: ask\nphases:\n  - {name: a, prompt: x, approval_gate: {name: go, message: 'Answer {{approvalId}} ({{ approvalUrl }})'}}\n";
    let wait = "name: wait\nphases:\n  - {name: b, type: bash, command: 'until test -e go; do sleep 0.05; done'}\n";
    fleet.write("workflows/ask.yaml", ask);
    fleet.write("workflows/wait.yaml", wait);
    let begin =
        |name: &str| fleet.run(&["workflow", "run", name, "--detach", "-q"]).ok().trim().to_owned();
    let (asks, waits) = (begin("ask"), begin("wait"));
    fleet.waits_as(&asks, "paused");
    let status = fleet.run(&["status"]).ok();
    assert!(status.contains("\nWorkflows\n"), "{status}");
    let line = |id: &str| status.lines().find(|line| line.contains(id)).unwrap().to_owned();
    assert!(line(&asks).contains("paused, waiting for you"), "{status}");
    assert!(line(&waits).contains("running") && line(&waits).contains(" wait "), "{status}");
    let status = fleet.json(&["status", "--json"]);
    let runs = status["workflowRuns"].as_array().unwrap();
    assert_eq!((&runs[0]["id"], &runs[0]["asks"]), (&json!(asks), &json!(true)));
    assert_eq!((&runs[1]["id"], &runs[1]["asks"]), (&json!(waits), &json!(false)));
    // What is asked names itself.
    let ask = fleet.asked();
    let shown = fleet.run(&["approvals", "show", &ask]).ok();
    assert!(shown.contains(&format!("Answer {ask} (heeler approvals show {ask})")), "{shown}");
    // Without a terminal no reason is asked for, nor needed.
    fleet.run(&["approvals", "reject", &ask]).ok();
    fleet.waits_as(&asks, "failed");
    fleet.write("go", "");
    fleet.waits_as(&waits, "succeeded");
    assert!(!fleet.run(&["status"]).ok().contains("Workflows"));
}

#[test]
fn why_something_is_rejected_is_asked_at_a_terminal() {
    let fleet = fleet(&[("coder", &scripted("{say: Done.}"))]);
    let text = "name: ask\nphases:\n  - {name: a, prompt: x, approval_gate: go}\n";
    fleet.write("workflows/ask.yaml", text);
    let id = fleet.run(&["workflow", "run", "ask", "--detach", "-q"]).ok().trim().to_owned();
    let mut terminal = Terminal::start(&fleet, &format!("approvals reject {}", fleet.asked()));
    terminal.wait_for("reason for rejecting");
    terminal.type_in("too soon\n");
    let (code, rest) = terminal.end();
    assert_eq!(code, Some(0), "{rest}");
    let run = fleet.waits_as(&id, "failed");
    assert!(run["error"].as_str().unwrap().ends_with(": too soon"), "{run}");
}

#[test]
fn a_phases_command_and_its_complaints_are_in_the_logs() {
    let fleet = fleet(&[("coder", &scripted("{say: Done.}"))]);
    let text = "name: w\ninputs: {what: {}}\nphases:\n  - {name: a, type: bash, command: 'echo out; echo oh no >&2; echo {{ what }}'}\n";
    fleet.write("workflows/w.yaml", text);
    let id = fleet.run(&["workflow", "run", "w", "-i", "what=it", "--detach", "-q"]).ok();
    let run = fleet.waits_as(id.trim(), "succeeded");
    let logs = fleet.run(&["workflow", "logs", id.trim()]).ok();
    for part in ["echo out; echo oh no >&2; echo it", "stderr      oh no"] {
        assert!(logs.contains(part), "{part}: {logs}");
    }
    let job = run["phases"][0]["parts"][0]["job"].as_str().unwrap();
    let logs = fleet.run(&["jobs", "logs", job]).ok();
    assert!(logs.contains("echo it") && logs.contains("oh no"), "{logs}");
    let output = &run["phases"][0]["output"];
    assert_eq!(output, "out\nit", "what it complains of is no output");
}

#[test]
fn the_live_view_shows_how_long_the_run_takes_and_what_it_costs() {
    let fleet = fleet(&[("coder", &scripted("{say: Done.}"))]);
    let wait = "name: w\nphases:\n  - {name: b, type: bash, command: 'until test -e go; do sleep 0.05; done'}\n";
    fleet.write("workflows/w.yaml", wait);
    let mut terminal = Terminal::start(&fleet, "workflow run w");
    terminal.wait_for("total");
    fleet.write("go", "");
    let (code, rest) = terminal.end();
    assert_eq!(code, Some(0), "{rest}");
}

#[test]
fn a_run_that_is_tried_again_waits_for_its_turn() {
    let fleet = fleet(&[("coder", &scripted("{say: Done.}"))]);
    let config = fleet.read("heeler.yaml");
    fleet.write("heeler.yaml", &format!("{config}workflows: {{max_concurrent: 1}}\n"));
    fleet.write(
        "workflows/fails.yaml",
        "name: fails\nphases:\n  - {name: a, type: bash, command: 'test -e go'}\n",
    );
    fleet.write("workflows/wait.yaml", "name: wait\nphases:\n  - {name: b, type: bash, command: 'until test -e go; do sleep 0.05; done'}\n");
    let begin =
        |name: &str| fleet.run(&["workflow", "run", name, "--detach", "-q"]).ok().trim().to_owned();
    let failed = begin("fails");
    fleet.waits_as(&failed, "failed");
    let waits = begin("wait");
    wait_for("its phase", || {
        let run = fleet.json(&["workflow", "show", &waits, "--json"]);
        (run["run"]["phases"][0]["status"] == "running").then_some(())
    });
    let retried = fleet.json(&["workflow", "retry", &failed, "--detach", "--json"]);
    assert_eq!(retried["run"]["status"], "queued", "{retried}");
    fleet.write("go", "");
    fleet.waits_as(&waits, "succeeded");
    fleet.waits_as(&failed, "succeeded");
}
