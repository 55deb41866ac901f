//! What agents ask people, and how people answer, as a user types it.

use std::process::Stdio;

use serde_json::{Value as Json, json};

use crate::fleet::{Fleet, Ran};
use crate::trigger::{ended, fleet, scripted, wait_for};

/// A fleet whose daemon is stopped with the test.
struct Asked(Fleet);

impl std::ops::Deref for Asked {
    type Target = Fleet;
    fn deref(&self) -> &Fleet {
        &self.0
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        // There may be none.
        self.0.run(&["stop", "--force", "-q"]);
    }
}

/// A fleet with an agent whose questions wait for people.
fn fleet_of(steps: &str) -> Asked {
    Asked(fleet(&[("asker", &format!("approvals: interactive\n{}", scripted(steps)))]))
}

impl Asked {
    /// Starts the agent, and returns what it asks.
    fn ask(&self) -> Json {
        self.run(&["trigger", "asker", "--detach", "-q"]).ok();
        self.waiting()
    }

    fn waiting(&self) -> Json {
        wait_for("a question", || {
            let list = self.json(&["approvals", "list", "--json"]);
            list["approvals"].get(0).cloned()
        })
    }

    fn shown(&self, id: &str) -> Json {
        self.json(&["approvals", "show", id, "--json"])["approval"].clone()
    }
}

const MAY_I: &str = "{run: 'echo done > did', ask_permission: true}, {say: Went on.}";
const WHICH: &str =
    "{question: 'Which?', header: C, options: [red, blue]}, {say: 'Took {answer}.'}";

fn id_of(approval: &Json) -> String {
    approval["id"].as_str().unwrap().to_owned()
}

#[test]
fn what_an_agent_wants_to_do_is_listed_shown_and_allowed() {
    let fleet = fleet_of(MAY_I);
    let asked = fleet.ask();
    let id = id_of(&asked);
    assert_eq!((&asked["kind"], &asked["status"]), (&json!("permission"), &json!("pending")));
    assert_eq!((&asked["requestedBy"], &asked["gate"]), (&json!("asker"), &json!("Bash")));
    assert_eq!(asked["summary"], "Bash: echo done > did");
    assert_eq!(asked["workflowRunId"], asked["jobId"]);
    assert!(asked["expiresAt"].is_string() && asked.get("detail").is_none());
    assert!(fleet.run(&["status"]).stderr.contains("1 open question"));
    assert_eq!(fleet.json(&["status", "--json"])["approvalsWaiting"], 1);
    let shown = fleet.run(&["approvals", "show", &id[..8]]).ok();
    assert!(shown.contains("command: echo done > did"), "{shown}");
    assert!(!fleet.file("did").exists());
    let said = fleet.run(&["approvals", "approve", &id, "--reason", "fine"]).ok();
    assert_eq!(said, format!("Bash is allowed ({id})\n"));
    fleet.wait_until_said("Went on.");
    assert_eq!(fleet.read("did"), "done\n");
    let row = wait_for("the delivery", || {
        Some(fleet.shown(&id)).filter(|row| row["deliveredAt"].is_string())
    });
    assert_eq!((&row["status"], &row["response"]), (&json!("approved"), &json!("fine")));
    assert!(!row["respondedBy"].as_str().unwrap().is_empty());
    assert!(fleet.run(&["approvals", "list"]).ok().contains("no open questions"));
    let all = fleet.json(&["approvals", "list", "--all", "--json"]);
    assert_eq!((all["total"].as_i64(), all["approvals"][0]["id"].as_str()), (Some(1), Some(&*id)));
}

#[test]
fn a_refusal_reaches_the_agent_with_its_reason() {
    let fleet = fleet_of(MAY_I);
    let id = id_of(&fleet.ask());
    fleet.run(&["approvals", "reject", &id, "--reason", "not on a Sunday"]).ok();
    fleet.wait_until_said("not on a Sunday");
    fleet.wait_until_said("Went on.");
    assert!(!fleet.file("did").exists());
    assert_eq!(fleet.shown(&id)["status"], "rejected");
}

#[test]
fn a_question_is_answered_with_words_or_a_number() {
    for (reply, took) in [("2", "Took blue."), ("green", "Took green.")] {
        let fleet = fleet_of(WHICH);
        let asked = fleet.ask();
        let id = id_of(&asked);
        assert_eq!((&asked["kind"], &asked["summary"]), (&json!("question"), &json!("Which?")));
        let said = fleet.run(&["approvals", "approve", &id]).fails(2);
        assert!(said.contains(&format!("heeler approvals reply {id}")), "{said}");
        let said = fleet.run(&["approvals", "reply", &id, "7"]).fails(2);
        assert!(said.contains("there is no option 7"), "{said}");
        fleet.run(&["approvals", "reply", &id, reply, "--json"]).ok();
        fleet.wait_until_said(took);
        assert_eq!(fleet.shown(&id)["response"], reply);
    }
}

#[test]
fn an_answer_that_is_piped_ends_before_the_end_of_its_line() {
    let fleet = fleet_of(WHICH);
    let id = id_of(&fleet.ask());
    let mut piped = fleet.command(&["approvals", "reply", &id, "-"]);
    let mut child = piped.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"green\n").unwrap();
    assert!(child.wait().unwrap().success());
    fleet.wait_until_said("Took green.");
    assert_eq!(fleet.shown(&id)["response"], "green");
}

#[test]
fn a_wrong_verb_an_unknown_id_and_a_late_answer_are_told_apart() {
    let fleet = fleet_of(MAY_I);
    let said = fleet.run(&["approvals", "show", "ask-none"]).fails(4);
    assert!(said.contains("there is no approval `ask-none`"), "{said}");
    let id = id_of(&fleet.ask());
    fleet.run(&["approvals", "approve", "ask-none"]).fails(4);
    let said = fleet.run(&["approvals", "approve", &id, &id, "ask-none"]).fails(4);
    assert!(said.contains("nothing was answered: there is no approval `ask-none`"), "{said}");
    assert_eq!(fleet.shown(&id)["status"], "pending");
    let said = fleet.run(&["approvals", "reply", &id, "yes"]).fails(2);
    assert!(said.contains("asks for yes or no") && said.contains("approvals approve"), "{said}");
    fleet.run(&["approvals", "approve", &id]).ok();
    let late = fleet.run(&["approvals", "reject", &id, "--reason", "no", "--json"]);
    assert_eq!(late.code, Some(5), "{}", late.stdout);
    let told: Json = serde_json::from_str(&late.stdout).unwrap();
    let error = told["approvals"][0]["error"].as_str().unwrap();
    assert!(error.contains("answered already: approved by "), "{error}");
}

#[test]
fn of_fifty_answers_at_once_one_counts_and_the_others_are_told_whose() {
    let fleet = fleet_of(MAY_I);
    let id = id_of(&fleet.ask());
    let answers: Vec<_> = (0..50)
        .map(|number| match number % 2 {
            0 => fleet.start(&["approvals", "approve", &id]),
            _ => fleet.start(&["approvals", "reject", &id, "--reason", "no"]),
        })
        .collect();
    let came: Vec<Ran> = answers.into_iter().map(ended).collect();
    let counted = came.iter().filter(|ran| ran.code == Some(0)).count();
    let told: Vec<_> = came.iter().map(|ran| (ran.code, &ran.stderr)).collect();
    assert_eq!(counted, 1, "{told:?}");
    let refused = |ran: &&Ran| ran.code == Some(5) && ran.stderr.contains("answered already: ");
    assert_eq!(came.iter().filter(refused).count(), 49, "{told:?}");
    let job = fleet.wait_until_ended();
    let log = fleet.read(&format!(".heeler/jobs/{}.jsonl", job.head.id));
    assert_eq!(log.matches("(question ").count(), 2, "asked once and answered once: {log}");
}

#[test]
fn an_agent_cannot_answer_for_the_people_it_asks() {
    let program = env!("CARGO_BIN_EXE_heeler");
    let tries = format!(
        "{program} approvals approve $(cat id) > said 2>&1; echo $? > code.new; mv code.new code"
    );
    let steps = format!(
        "{{run: '(until test -e id; do sleep 0.01; done; {tries}) > /dev/null 2>&1 &'}}, {MAY_I}"
    );
    let fleet = fleet_of(&steps);
    let id = id_of(&fleet.ask());
    fleet.write("id.new", &id);
    std::fs::rename(fleet.file("id.new"), fleet.file("id")).unwrap();
    wait_for("the agent's attempt", || fleet.file("code").exists().then_some(()));
    assert_eq!(fleet.read("code"), "5\n", "{}", fleet.read("said"));
    assert!(fleet.read("said").contains("this is a process of the run itself"));
    assert_eq!(fleet.shown(&id)["status"], "pending");
    fleet.run(&["approvals", "approve", &id]).ok();
    fleet.wait_until_said("Went on.");
}

#[test]
fn what_an_agent_asked_is_withdrawn_with_its_run() {
    let fleet = fleet_of(MAY_I);
    let asked = fleet.ask();
    let id = id_of(&asked);
    fleet.run(&["jobs", "cancel", "--now", asked["jobId"].as_str().unwrap()]).ok();
    assert_eq!(fleet.shown(&id)["status"], "withdrawn");
    let said = fleet.run(&["approvals", "approve", &id]).fails(5);
    assert!(said.contains("was withdrawn at "), "{said}");
    // Also if nobody could say so any more.
    let asked = fleet.ask();
    let id = id_of(&asked);
    fleet.kill("runner");
    fleet.wait_until_ended();
    assert_eq!(fleet.shown(&id)["status"], "withdrawn");
}

#[test]
fn nobody_is_asked_where_the_config_does_not_say_so() {
    let fleet = Asked(fleet(&[("asker", &scripted(MAY_I))]));
    fleet.run(&["trigger", "asker", "-q"]).ok();
    assert_eq!(fleet.json(&["approvals", "list", "--all", "--json"])["total"], 0);
    assert!(!fleet.file("did").exists());
}

#[test]
fn what_an_agent_asks_by_its_tool_reaches_people_and_the_answer_comes_back() {
    let ask = "{call: mcp__heeler__ask_human, input: {question: 'Which?', options: [red, blue]}}, \
               {say: 'Took {output}.'}";
    let fleet = fleet_of(ask);
    let asked = fleet.ask();
    assert_eq!((&asked["kind"], &asked["summary"]), (&json!("question"), &json!("Which?")));
    fleet.run(&["approvals", "reply", &id_of(&asked), "2"]).ok();
    fleet.wait_until_said("Took blue.");
    fleet.ask();
    let id = id_of(&fleet.waiting());
    fleet.run(&["approvals", "reject", &id, "--reason", "ask me later"]).ok();
    fleet.wait_until_said("there is no answer: ask me later; go on without it");
}

#[test]
fn an_agent_whom_nobody_attends_is_told_that_nobody_answers() {
    let ask = "{call: mcp__heeler__ask_human, input: {question: 'Which?'}}, {say: '{output}'}";
    let fleet = Asked(fleet(&[("asker", &scripted(ask))]));
    let said = fleet.run(&["trigger", "asker"]).ok();
    assert!(said.starts_with("there is no answer: this run is unattended"), "{said}");
}
