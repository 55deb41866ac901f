//! Workflow runs of Last Light: shown whole after an import, answered, cancelled and retried.

use rusqlite::Connection;
use serde_json::{Value as Json, json};

use crate::fleet::Fleet;
use crate::trigger::{fleet, scripted};

/// Tables of Last Light as its specification lists them, as far as runs need them.
const TABLES: &str = "
CREATE TABLE executions (id TEXT PRIMARY KEY, trigger_type TEXT NOT NULL, trigger_id TEXT NOT NULL,
  skill TEXT NOT NULL, started_at TEXT NOT NULL, finished_at TEXT, success INTEGER, error TEXT,
  session_id TEXT, cost_usd REAL, stop_reason TEXT, workflow_run_id TEXT, output_text TEXT);
CREATE TABLE workflow_runs (id TEXT PRIMARY KEY, workflow_name TEXT NOT NULL,
  trigger_id TEXT NOT NULL, current_phase TEXT NOT NULL, phase_history TEXT NOT NULL DEFAULT '[]',
  status TEXT NOT NULL, context TEXT, scratch TEXT, restart_count INTEGER NOT NULL DEFAULT 0,
  started_at TEXT NOT NULL, updated_at TEXT NOT NULL, finished_at TEXT);
CREATE TABLE workflow_approvals (id TEXT PRIMARY KEY, workflow_run_id TEXT NOT NULL,
  gate TEXT NOT NULL, summary TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'pending',
  kind TEXT NOT NULL DEFAULT 'approve', requested_by TEXT, responded_by TEXT, response TEXT,
  responded_at TEXT, created_at TEXT NOT NULL);";

/// A run that waits after its plan, one that waits for a reply, and one that failed.
const ROWS: &str = r#"
INSERT INTO workflow_runs (id, workflow_name, trigger_id, current_phase, phase_history, status,
  context, scratch, started_at, updated_at) VALUES
 ('run-plan', 'build', 'ann/site#7', 'architect',
  '[{"phase":"phase_0","timestamp":"2025-02-03T04:05:00.000Z","success":true,"summary":"Context assembled"},
    {"phase":"architect","timestamp":"2025-02-03T04:06:06.000Z","success":true}]',
  'paused', '{"title":"Login"}', NULL, '2025-02-03T04:05:00.000Z', '2025-02-03T04:06:06.000Z'),
 ('run-ask', 'explore', 'ann/site#8', 'socratic', '[]', 'paused', '{}',
  '{"socratic":{"iteration":1}}', '2025-02-03T05:00:00.000Z', '2025-02-03T05:01:00.000Z'),
 ('run-bad', 'build', 'ann/site#9', 'architect', '[]', 'failed', '{"title":"Logout"}', NULL,
  '2025-02-03T06:00:00.000Z', '2025-02-03T06:01:00.000Z'),
 ('run-gone', 'vanished', 'ann/site#10', 'scan', '[]', 'paused', '{}', NULL,
  '2025-02-03T07:00:00.000Z', '2025-02-03T07:01:00.000Z');
INSERT INTO executions (id, trigger_type, trigger_id, skill, started_at, finished_at, success, error,
  session_id, cost_usd, stop_reason, workflow_run_id, output_text) VALUES
 ('e-plan', 'webhook', 'ann/site#7', 'build:architect', '2025-02-03T04:05:06.000Z',
  '2025-02-03T04:06:06.000Z', 1, NULL, 'aaaa0001-0000-4000-8000-000000000001', 0.25, 'end_turn',
  'run-plan', 'Use a form.'),
 ('e-ask', 'webhook', 'ann/site#8', 'explore:socratic_iter_1', '2025-02-03T05:00:06.000Z',
  '2025-02-03T05:00:36.000Z', 1, NULL, NULL, 0.5, 'end_turn', 'run-ask', 'Which colour?'),
 ('e-bad', 'webhook', 'ann/site#9', 'build:architect', '2025-02-03T06:00:06.000Z',
  '2025-02-03T06:00:36.000Z', 0, 'it broke', NULL, 0.125, 'error_fatal', 'run-bad', NULL),
 ('e-gone', 'webhook', 'ann/site#10', 'vanished:scan', '2025-02-03T07:00:06.000Z',
  '2025-02-03T07:00:36.000Z', 1, NULL, NULL, 0.125, 'end_turn', 'run-gone', NULL);
INSERT INTO workflow_approvals (id, workflow_run_id, gate, summary, kind, created_at) VALUES
 ('ap-plan', 'run-plan', 'post_architect', 'Build it?', 'approve', '2025-02-03T04:06:06.500Z'),
 ('ap-ask', 'run-ask', 'socratic_iter_1', 'Just reply.', 'reply', '2025-02-03T05:00:37.000Z'),
 ('ap-gone', 'run-gone', 'post_scan', 'Go on?', 'approve', '2025-02-03T07:00:37.000Z');"#;

const BUILD: &str = "name: build\nagent: coder\nphases:
  - {name: phase_0, type: context}
  - {name: architect, prompt: 'plan {{ title }}', approval_gate: post_architect}
  - {name: executor, prompt: 'build by {{ architect }}'}\n";

const EXPLORE: &str = "name: explore\nagent: coder\nphases:
  - name: socratic
    prompt: 'READY, as you said {{ scratch.socratic.qa[0].answer }}'
    generic_loop: {max_iterations: 3, until: \"output.contains('READY')\", interactive: true,
      gate_kind: reply, scratch_key: socratic, gate_message: Just reply.}\n";

/// A fleet into which the rows are imported.
fn imported() -> Fleet {
    let fleet = fleet(&[("coder", &scripted("{say: '{prompt}'}"))]);
    fleet.write("workflows/build.yaml", BUILD);
    fleet.write("workflows/explore.yaml", EXPLORE);
    let log = "{\"type\":\"user\",\"message\":{\"role\":\"user\",\"content\":\"plan it\"}}\n\
        {\"type\":\"assistant\",\"message\":{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"Use a form.\"}]}}\n\
        {\"type\":\"assistant\",\"isApiErrorMessage\":true,\"error\":\"the sandbox ran out of memory\"}\n";
    let session = "aaaa0001-0000-4000-8000-000000000001";
    fleet.write(&format!("state/agent-sessions/projects/-work/{session}.jsonl"), log);
    let db = fleet.file("state/lastlight.db");
    let db = Connection::open(&db).unwrap();
    db.execute_batch(TABLES).unwrap();
    db.execute_batch(ROWS).unwrap();
    drop(db);
    fleet.run(&["import", "lastlight", "state"]).ok();
    fleet
}

fn show(fleet: &Fleet, run: &str) -> Json {
    fleet.json(&["workflow", "show", run, "--json"])["run"].clone()
}

/// Names and states of the phases of a run.
fn phases(run: &Json) -> Vec<(String, String)> {
    let text = |value: &Json| value.as_str().unwrap().to_owned();
    let phases = run["phases"].as_array().unwrap().iter();
    phases.map(|phase| (text(&phase["name"]), text(&phase["status"]))).collect()
}

fn phase(name: &str, status: &str) -> (String, String) {
    (name.to_owned(), status.to_owned())
}

#[test]
fn an_imported_run_shows_its_phases_costs_events_and_logs() {
    let fleet = imported();
    let run = show(&fleet, "run-plan");
    assert_eq!(phases(&run), [phase("phase_0", "succeeded"), phase("architect", "succeeded")]);
    assert_eq!(run["costUsd"], json!(0.25));
    assert_eq!(run["phases"][1]["costUsd"], json!(0.25));
    assert_eq!(run["approvals"][0]["gate"], json!("post_architect"));
    assert_eq!(run["events"][0]["text"], json!("succeeded: Context assembled"));
    let logs = fleet.run(&["workflow", "logs", "run-plan"]).ok();
    assert!(logs.contains("Use a form."), "{logs}");
    assert!(logs.contains("the sandbox ran out of memory"), "{logs}");
    let session = fleet.json(&["session", "list", "--json"])["sessions"][0]["id"].clone();
    let history = fleet.run(&["session", "show", session.as_str().unwrap(), "--history"]).ok();
    assert!(history.contains("error: the sandbox ran out of memory"), "{history}");
    // A second import makes no second journal.
    fleet.run(&["import", "lastlight", "state"]).ok();
    assert_eq!(show(&fleet, "run-plan"), run);
}

#[test]
fn an_imported_run_that_waits_goes_on_when_it_is_approved() {
    let fleet = imported();
    fleet.run(&["approvals", "approve", "ap-plan"]).ok();
    fleet.run(&["workflow", "watch", "run-plan"]).ok();
    let run = show(&fleet, "run-plan");
    assert_eq!(run["status"], json!("succeeded"), "{run:#}");
    let ended = ["phase_0", "architect", "executor"].map(|name| phase(name, "succeeded"));
    assert_eq!(phases(&run), ended);
    assert_eq!(run["phases"][2]["output"], json!("build by Use a form."));
    assert_eq!(
        run["phases"][1]["parts"].as_array().unwrap().len(),
        1,
        "the plan is not made again"
    );
    // It is an ordinary run now: an answer counts once.
    let told = fleet.run(&["approvals", "approve", "ap-plan"]).fails(5);
    assert!(told.contains("answered already: approved by "), "{told}");
}

#[test]
fn an_imported_loop_that_waits_for_a_reply_goes_on_with_it() {
    let fleet = imported();
    fleet.run(&["approvals", "reply", "ap-ask", "blue"]).ok();
    fleet.run(&["workflow", "watch", "run-ask"]).ok();
    let run = show(&fleet, "run-ask");
    assert_eq!(run["status"], json!("succeeded"), "{run:#}");
    assert_eq!(run["phases"][0]["output"], json!("READY, as you said blue"));
    assert_eq!(run["scratch"]["socratic"]["qa"][0]["question"], json!("Which colour?"));
}

#[test]
fn an_imported_run_that_failed_is_retried_with_the_workflow_of_the_fleet() {
    let fleet = imported();
    fleet.run(&["workflow", "retry", "run-bad", "--until-asked"]).ok();
    let run = show(&fleet, "run-bad");
    assert_eq!(run["status"], json!("paused"), "{run:#}");
    assert_eq!(run["phases"][1]["output"], json!("plan Logout"));
    fleet.run(&["workflow", "cancel", "run-bad"]).ok();
}

#[test]
fn an_imported_run_can_be_cancelled_and_its_question_is_withdrawn() {
    let fleet = imported();
    fleet.run(&["workflow", "cancel", "run-plan"]).ok();
    let run = show(&fleet, "run-plan");
    assert_eq!((&run["status"], run["error"].is_string()), (&json!("cancelled"), true));
    assert_eq!(run["approvals"][0]["status"], json!("withdrawn"));
    // Watching it ends at once.
    fleet.run(&["workflow", "watch", "run-plan"]).fails(1);
}

#[test]
fn without_the_workflow_an_answer_is_refused_with_the_cure_and_a_rejection_ends_the_run() {
    let fleet = imported();
    let told = fleet.run(&["approvals", "approve", "ap-gone"]).fails(4);
    assert!(told.contains("was imported from lastlight:"), "{told}");
    assert!(told.contains("there is no workflow `vanished`"), "{told}");
    assert!(told.contains("heeler workflow cancel run-gone"), "{told}");
    assert_eq!(show(&fleet, "run-gone")["status"], json!("paused"));
    fleet.run(&["approvals", "reject", "ap-gone", "--reason", "too late"]).ok();
    let run = show(&fleet, "run-gone");
    assert_eq!(run["status"], json!("failed"));
    assert!(run["error"].as_str().unwrap().contains("too late"), "{run:#}");
    let told = fleet.run(&["workflow", "retry", "run-gone"]).fails(4);
    assert!(told.contains("there is no workflow `vanished`"), "{told}");
}

#[test]
fn scripts_of_last_light_read_the_phases_and_settings_of_new_runs() {
    let fleet = fleet(&[("coder", &scripted("{say: Done.}"))]);
    fleet.write(
        "workflows/build.yaml",
        "name: build\nphases:\n  - {name: plan, prompt: go}\n  - {name: test, type: bash, command: 'exit 1'}\n",
    );
    fleet.run(&["workflow", "run", "build"]).fails(1);
    let db = || Connection::open(fleet.file(".heeler/heeler.db")).unwrap();
    let text = |sql: &str| db().query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
    let history: Json =
        serde_json::from_str(&text("SELECT phase_history FROM workflow_runs")).unwrap();
    let phases = history.as_array().unwrap().iter();
    let phases: Vec<(&str, bool)> = phases
        .map(|it| (it["phase"].as_str().unwrap(), it["success"].as_bool().unwrap()))
        .collect();
    assert_eq!(phases, [("plan", true), ("test", false)], "{history}");
    assert!(history[0]["timestamp"].as_str().unwrap().ends_with('Z'), "{history}");

    let count = "SELECT CAST(count(*) AS TEXT) FROM workflow_overrides";
    fleet.run(&["workflow", "disable", "build"]).ok();
    assert_eq!(text(count), "1");
    fleet.run(&["workflow", "reset", "build"]).ok();
    assert_eq!(text(count), "0");
}
