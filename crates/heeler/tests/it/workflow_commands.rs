//! `heeler workflow`: what is shown of workflows and their runs, how a run is watched and steered.

use std::process::Stdio;

use rustix::process::{Pid, Signal};
use serde_json::{Value as Json, json};

use crate::fleet::{Fleet, Ran};
use crate::terminal::Terminal;
use crate::trigger::{fleet, scripted, wait_for};

/// A workflow that asks before it ships.
const SHIP: &str = "
name: ship
description: Makes and ships
agent: coder
inputs:
  what: {description: What to ship}
  times: {type: number, default: 1}
phases:
  - name: make
    prompt: 'Make {{ what }}'
    approval_gate: {name: may-ship, message: 'Ship {{ what }}?'}
    messages: {on_success: 'made {{ what }}'}
  - name: ship
    type: bash
    command: 'echo shipped {{ what }} >> shipped.txt; cat shipped.txt'
final_message: 'done: {{ ship }}'
";

/// A workflow that fails until a file is there.
const TRY: &str = "
name: try
agent: coder
phases:
  - {name: first, type: bash, command: 'echo x >> first.txt'}
  - {name: second, type: bash, command: 'test -e ready'}
  - {name: third, type: context}
";

fn with(workflows: &[(&str, &str)]) -> Fleet {
    let fleet = fleet(&[("coder", &scripted("{say: 'I did: {prompt}'}"))]);
    for (name, text) in workflows {
        fleet.write(&format!("workflows/{name}.yaml"), text);
    }
    fleet
}

impl Fleet {
    /// Runs a workflow without watching it, and returns the run's id.
    #[track_caller]
    fn begin(&self, args: &[&str]) -> String {
        let args = [&["workflow", "run"], args, &["--detach", "-q"]].concat();
        self.run(&args).ok().trim().to_owned()
    }

    #[track_caller]
    fn workflow_run(&self, id: &str) -> Json {
        self.json(&["workflow", "show", id, "--json"])["run"].take()
    }

    #[track_caller]
    pub(crate) fn waits_as(&self, id: &str, status: &str) -> Json {
        wait_for(status, || Some(self.workflow_run(id)).filter(|run| run["status"] == status))
    }

    /// Returns what waits for an answer.
    #[track_caller]
    pub(crate) fn asked(&self) -> String {
        wait_for("a question", || {
            let asked = self.json(&["approvals", "list", "--json"]);
            asked["approvals"][0]["id"].as_str().map(str::to_owned)
        })
    }
}

/// The names and the states of a run's phases.
fn phases(run: &Json) -> Vec<String> {
    let phases = run["phases"].as_array().unwrap().iter();
    let told = |phase: &Json| {
        format!("{} {}", phase["name"].as_str().unwrap(), phase["status"].as_str().unwrap())
    };
    phases.map(told).collect()
}

#[test]
fn workflows_are_listed_and_shown_with_what_they_ask_for() {
    let fleet = with(&[("ship", SHIP), ("try", TRY)]);
    let list = fleet.run(&["workflow", "list"]).ok();
    assert!(list.contains("ship  enabled  2       never"), "{list}");
    let list = fleet.json(&["workflow", "list", "--json"]);
    assert_eq!(list["total"], 2);
    assert_eq!(list["workflows"][0]["phases"], json!(["make", "ship"]));
    let shown = fleet.run(&["workflow", "show", "ship"]);
    let text = shown.stderr.clone() + shown.ok().as_str();
    for part in [
        "what   string  required   What to ship",
        "times  number  default 1",
        "asks for approval (may-ship)",
        "after make",
        "heeler workflow run ship -i what=…",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let shown = fleet.json(&["workflow", "show", "ship", "--json"]);
    assert_eq!(shown["workflow"]["inputs"][0]["required"], true);
    assert_eq!(shown["workflow"]["phases"][1]["dependsOn"], json!(["make"]));
    let told = fleet.run(&["workflow", "show", "shop"]).fails(4);
    assert!(told.contains("there is no workflow `shop`") && told.contains("did you mean `ship`?"));
}

#[test]
fn faults_of_workflow_files_are_told_with_line_and_column() {
    let fleet = with(&[("ship", SHIP)]);
    let valid = fleet.run(&["workflow", "validate"]).ok();
    assert_eq!(valid, "valid: 1 workflow (ship)\n");
    let bad = TRY.replace("{name: third, type: context}", "{name: third, typ: context}");
    fleet.write("workflows/try.yaml", &bad);
    let told = fleet.run(&["workflow", "validate"]).fails(2);
    assert!(told.contains("workflows/try.yaml:7:19"), "{told}");
    let told = fleet.run(&["workflow", "validate", "--json"]);
    assert_eq!(told.code, Some(2));
    let told: Json = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!((&told["valid"], &told["errors"][0]["line"]), (&json!(false), &json!(7)));
    // Others, and files elsewhere, are checked by themselves.
    fleet.run(&["workflow", "validate", "ship"]).ok();
    fleet.write("draft.yaml", TRY);
    assert_eq!(
        fleet.run(&["workflow", "validate", "draft.yaml"]).ok(),
        "valid: 1 workflow (try)\n"
    );
    fleet.run(&["workflow", "validate", "nothing"]).fails(4);
    fleet.run(&["workflow", "validate", "no.yaml"]).fails(4);
}

#[test]
fn a_workflow_is_drawn_and_so_is_where_a_run_stands() {
    let fleet = with(&[("ship", SHIP)]);
    let drawn = fleet.run(&["workflow", "graph", "ship"]).ok();
    assert!(drawn.contains("make") && drawn.contains("ship"), "{drawn}");
    let mermaid = fleet.run(&["workflow", "graph", "ship", "--mermaid"]).ok();
    assert!(mermaid.starts_with("flowchart"), "{mermaid}");
    let id = fleet.begin(&["ship", "-i", "what=it"]);
    fleet.waits_as(&id, "paused");
    let stands = fleet.run(&["workflow", "graph", "--run", &id]).ok();
    assert_ne!(stands, drawn);
    fleet.run(&["workflow", "graph", "other", "--run", &id]).fails(2);
}

#[test]
fn a_run_is_watched_until_it_asks_and_after_it_is_answered() {
    let fleet = with(&[("ship", SHIP)]);
    let run = ["workflow", "run", "ship", "-i", "what=boats", "--until-asked"];
    let Ran { code, stdout, stderr } = fleet.run(&run);
    assert_eq!((code, stdout.as_str()), (Some(0), ""), "{stderr}");
    let ask = fleet.asked();
    for part in ["Ship boats?", &format!("heeler approvals approve {ask}"), "◆ waiting for you"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    let id =
        fleet.json(&["workflow", "runs", "--json"])["runs"][0]["id"].as_str().unwrap().to_owned();
    let shown = fleet.run(&["workflow", "show", &id]).ok();
    assert!(shown.contains("paused: waiting for an answer") && shown.contains(&ask), "{shown}");
    fleet.run(&["approvals", "approve", &ask]).ok();
    let watched = fleet.run(&["workflow", "watch", &id]);
    assert_eq!(watched.code, Some(0), "{}", watched.stderr);
    let run = fleet.waits_as(&id, "succeeded");
    assert_eq!(phases(&run), ["make succeeded", "ship succeeded"]);
    assert_eq!(run["phases"][0]["output"], "I did: Make boats");
    assert_eq!(run["phases"][1]["output"], "shipped boats");
    assert_eq!(run["approvals"][0]["status"], "approved");
    assert_eq!(run["inputs"], json!({"what": "boats", "times": 1}));
    let job = run["phases"][0]["parts"][0]["job"].as_str().unwrap();
    let shown = fleet.run(&["jobs", "show", job]).ok();
    assert!(shown.contains(&format!("workflow:     ship:make, {id}")), "{shown}");
    let logs = fleet.run(&["workflow", "logs", &id]).ok();
    assert!(logs.contains("I did: Make boats") && logs.contains("shipped boats"), "{logs}");
    let logs = fleet.run(&["workflow", "logs", &id, "--phase", "ship"]).ok();
    assert!(!logs.contains("I did"), "{logs}");
    let told = fleet.run(&["workflow", "logs", &id, "--phase", "nope"]).fails(4);
    assert!(told.contains("has no phase `nope`") && told.contains("make, ship"), "{told}");
    let told = fleet.run(&["workflow", "show", "wf-zzz"]).fails(4);
    assert!(told.contains("there is no workflow run `wf-zzz`"), "{told}");
    let asked = fleet.json(&["approvals", "list", "--all", "--run", &id, "--json"]);
    assert_eq!(asked["total"], 1);
    let told = fleet.run(&["approvals", "list", "--run", "nope"]).fails(4);
    assert!(told.contains("no workflow run and no job `nope`"), "{told}");
}

#[test]
fn what_a_workflow_says_goes_to_stdout_and_its_progress_to_stderr() {
    let fleet = with(&[(
        "ship",
        &SHIP.replace("    approval_gate: {name: may-ship, message: 'Ship {{ what }}?'}\n", ""),
    )]);
    let ran = fleet.run(&["workflow", "run", "ship", "-i", "what=one"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(ran.stdout, "made one\ndone: shipped one\n");
    for part in ["▸ make started", "✓ make", "✓ ship", "✓ succeeded in"] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    let quiet = fleet.run(&["workflow", "run", "ship", "-i", "what=two", "-q"]);
    assert_eq!(
        (quiet.stdout.as_str(), quiet.stderr.as_str()),
        ("done: shipped one\nshipped two\n", "")
    );
    let told = fleet.json(&["workflow", "run", "ship", "-i", "what=three", "--json"]);
    assert_eq!(told["success"], true);
    assert_eq!(told["run"]["phases"][1]["output"], "shipped one\nshipped two\nshipped three");
    let followed = fleet.run(&["workflow", "run", "ship", "-i", "what=four", "--follow"]);
    assert!(followed.stderr.contains("make │"), "{}", followed.stderr);
    assert!(followed.stderr.contains("I did: Make four"), "{}", followed.stderr);
}

#[test]
fn inputs_come_from_options_files_and_standard_input() {
    let fleet = with(&[("ship", SHIP)]);
    fleet.write("in.json", r#"{"what": "from a file", "times": 3}"#);
    let id = fleet.begin(&["ship", "--inputs", "in.json", "-i", "times=4"]);
    assert_eq!(fleet.workflow_run(&id)["inputs"], json!({"what": "from a file", "times": 4}));
    let mut piped = fleet.command(&["workflow", "run", "ship", "--inputs", "-", "--detach", "-q"]);
    let mut child = piped.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, br#"{"what": "piped"}"#).unwrap();
    drop(stdin);
    let id = Ran::from(child.wait_with_output().unwrap()).ok();
    assert_eq!(fleet.workflow_run(id.trim())["inputs"]["what"], "piped");
    for (args, code, said) in [
        (&["ship"][..], 2, "`what` must be given"),
        (&["ship", "-i", "what=x", "-i", "times=many"], 2, "`times` must be a number"),
        (&["ship", "-i", "what"], 2, "expected KEY=VALUE"),
        (&["ship", "--inputs", "none.json"], 2, "cannot use none.json"),
        (&["nothing"], 4, "there is no workflow `nothing`"),
    ] {
        let told = fleet.run(&[&["workflow", "run"], args].concat()).fails(code);
        assert!(told.contains(said), "{args:?}: {told}");
    }
}

#[test]
fn a_failed_run_goes_on_where_it_failed() {
    let fleet = with(&[("try", TRY)]);
    let ran = fleet.run(&["workflow", "run", "try"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("✗ second failed") && ran.stderr.contains("heeler workflow retry"));
    let listed = fleet.json(&["workflow", "runs", "try", "--status", "failed", "--json"]);
    assert_eq!((&listed["total"], &listed["limit"]), (&json!(1), &json!(20)));
    let id = listed["runs"][0]["id"].as_str().unwrap();
    assert_eq!(
        phases(&fleet.workflow_run(id)),
        ["first succeeded", "second failed", "third skipped"]
    );
    fleet.run(&["workflow", "retry", id, "--from", "fourth"]).fails(4);
    fleet.write("ready", "");
    let retried = fleet.run(&["workflow", "retry", id]);
    assert_eq!(retried.code, Some(0), "{}", retried.stderr);
    let run = fleet.workflow_run(id);
    assert_eq!(phases(&run), ["first succeeded", "second succeeded", "third succeeded"]);
    assert_eq!(fleet.read("first.txt"), "x\n", "what was done is not done again");
    fleet.run(&["workflow", "retry", id]).fails(5);
    fleet.run(&["workflow", "retry", id, "--from", "first"]).ok();
    assert_eq!(fleet.read("first.txt"), "x\nx\n", "unless a person asks");
    let detached = fleet.run(&["workflow", "retry", id, "--from", "first", "--detach"]);
    assert!(detached.stderr.contains("continued; watch it"), "{}", detached.stderr);
    fleet.waits_as(id, "succeeded");
}

#[test]
fn a_run_is_cancelled_with_its_jobs_and_what_it_asks() {
    let fleet = fleet(&[("coder", &scripted("{say: Working.}, {hang: true}"))]);
    fleet.write("workflows/ship.yaml", SHIP);
    let id = fleet.begin(&["ship", "-i", "what=x"]);
    fleet.wait_until_said("Working.");
    let told = fleet.json(&["workflow", "cancel", &id, "--now", "--json"]);
    assert_eq!(told["run"]["status"], "cancelled");
    let run = fleet.workflow_run(&id);
    assert_eq!(phases(&run), ["make cancelled", "ship waiting"]);
    assert_eq!(run["phases"][0]["parts"][0]["status"], "cancelled");
    fleet.run(&["workflow", "cancel", &id]).fails(5);
    fleet.run(&["workflow", "cancel", "wf-nothing"]).fails(4);
}

#[test]
fn jobs_that_take_their_time_after_a_cancel_can_be_ended_at_once() {
    let stubborn = "{say: Working.}, {hang: true, ignore_interrupt: true, ignore_term: true}";
    let fleet = fleet(&[("coder", &scripted(stubborn))]);
    fleet.write("workflows/ship.yaml", SHIP);
    let id = fleet.begin(&["ship", "-i", "what=x"]);
    fleet.wait_until_said("Working.");
    let graceful = fleet.start(&["workflow", "cancel", &id]);
    fleet.waits_as(&id, "cancelled");
    fleet.run(&["workflow", "cancel", &id, "--now"]).ok();
    Ran::from(graceful.wait_with_output().unwrap()).ok();
    assert_eq!(phases(&fleet.workflow_run(&id)), ["make cancelled", "ship waiting"]);
}

#[test]
fn ctrl_c_cancels_the_run_that_is_watched() {
    let fleet = fleet(&[("coder", &scripted("{say: Working.}, {hang: true}"))]);
    fleet.write("workflows/ship.yaml", SHIP);
    let child = fleet.start(&["workflow", "run", "ship", "-i", "what=x"]);
    fleet.wait_until_said("Working.");
    rustix::process::kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    assert!(ran.stderr.contains("cancelling; Ctrl-C again"), "{}", ran.stderr);
    let runs = fleet.json(&["workflow", "runs", "--json"]);
    assert_eq!(runs["runs"][0]["status"], "cancelled");
}

#[test]
fn a_run_about_the_same_is_joined_and_ctrl_c_leaves_it() {
    let fleet = with(&[("ship", SHIP)]);
    let about = ["ship", "-i", "what=x", "--trigger-id", "issue-7"];
    let id = fleet.begin(&about);
    assert_eq!(fleet.begin(&about), id);
    fleet.waits_as(&id, "paused");
    let mut joined = fleet.start(&[&["workflow", "run"], &about[..]].concat());
    let stderr = joined.stderr.take().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stderr)).map(Result::unwrap);
    lines.find(|line| line.contains("answer: heeler approvals approve")).unwrap();
    rustix::process::kill_process(Pid::from_child(&joined), Signal::INT).unwrap();
    assert!(lines.any(|line| line.contains("the run continues")));
    assert_eq!(joined.wait().unwrap().code(), Some(130));
    assert_eq!(fleet.workflow_run(&id)["status"], "paused");
    assert_eq!(fleet.json(&["workflow", "runs", "--json"])["total"], 1);
}

#[test]
fn a_workflow_that_is_switched_off_does_not_start() {
    let fleet = with(&[("try", TRY)]);
    fleet.run(&["workflow", "disable", "try"]).ok();
    let told = fleet.run(&["workflow", "run", "try"]).fails(5);
    assert!(told.contains("try was disabled by") && told.contains("heeler workflow enable try"));
    let listed = fleet.json(&["workflow", "list", "--json"]);
    assert_eq!(listed["workflows"][0]["enabled"], false);
    fleet.run(&["workflow", "enable", "try"]).ok();
    fleet.write("ready", "");
    fleet.run(&["workflow", "run", "try"]).ok();
    fleet.run(&["workflow", "disable", "nothing"]).fails(4);
}

#[test]
fn a_dry_run_runs_no_command_and_a_replay_asks_nobody() {
    let fleet = with(&[("ship", SHIP)]);
    let played = fleet.run(&["workflow", "run", "ship", "-i", "what=x", "--dry-run"]);
    assert!(played.stderr.contains("✓ succeeded (dry run) in"), "{}", played.stderr);
    assert!(!fleet.file("shipped.txt").exists());
    for list in [&["workflow", "runs"], &["workflow", "list"]] {
        assert!(fleet.run(list).ok().contains("succeeded (dry run)"), "{list:?}");
    }
    let id = fleet.begin(&["ship", "-i", "what=it"]);
    fleet.run(&["approvals", "approve", &fleet.asked()]).ok();
    fleet.waits_as(&id, "succeeded");
    assert_eq!(fleet.read("shipped.txt"), "shipped it\n");
    let replayed = fleet.json(&["workflow", "run", "ship", "--replay", &id, "--json"]);
    assert_eq!(replayed["run"]["mode"], format!("replay:{id}"));
    assert_eq!(replayed["run"]["phases"][0]["output"], "I did: Make it");
    assert_eq!(replayed["run"]["phases"][1]["output"], "shipped it");
    assert_eq!(fleet.read("shipped.txt"), "shipped it\n", "its command did not run");
}

#[test]
fn phases_are_drawn_in_place_on_a_terminal_and_questions_are_answered_there() {
    // It is at something for as long as nobody has seen it.
    let busy = scripted("{run: 'until test -e seen; do sleep 0.1; done'}, {say: Made.}");
    let fleet = fleet(&[("coder", &busy)]);
    fleet.write("workflows/ship.yaml", SHIP);
    let mut terminal = Terminal::start(&fleet, "workflow run ship -i what=boats");
    terminal.wait_for("until test -e seen");
    fleet.write("seen", "");
    terminal.wait_for("Ship boats?");
    terminal.wait_for("approve? [y/n, optional reason]");
    terminal.type_in("perhaps\n");
    terminal.wait_for("approve? [y/n, optional reason]");
    terminal.type_in("y, gladly\n");
    terminal.wait_for("`may-ship` approved by");
    terminal.wait_for("gladly");
    let (code, rest) = terminal.end();
    assert_eq!(code, Some(0), "{rest}");
    assert!(rest.contains("done: shipped boats") && rest.contains("✓ succeeded"), "{rest}");
    let after = rest.rfind("\u{1b}[J").map_or("", |at| &rest[at..]);
    assert!(!after.contains('⠋'), "no moving sign is left: {rest:?}");
}

#[test]
fn what_an_agent_of_a_run_asks_is_answered_on_the_terminal_too() {
    let asks = "{run: 'echo hi > made.txt', ask_permission: true}, \
        {question: 'Which colour?', options: [red, green]}, {say: 'It is {answer}.'}";
    let fleet = fleet(&[("coder", &scripted(asks))]);
    fleet.write("workflows/one.yaml", "name: one\nphases:\n  - {name: make, prompt: Make it}\n");
    let mut terminal = Terminal::start(&fleet, "workflow run one --follow");
    terminal.wait_for("echo hi > made.txt");
    terminal.wait_for("approve? [y/n, optional reason]");
    terminal.type_in("y\n");
    terminal.wait_for("2. green");
    terminal.wait_for("your answer:");
    terminal.type_in("2\n");
    terminal.wait_for("It is green.");
    let (code, rest) = terminal.end();
    assert_eq!(code, Some(0), "{rest}");
    assert_eq!(fleet.read("made.txt"), "hi\n");
}

#[test]
fn a_run_whose_agent_asks_says_so_and_is_watched_no_longer_than_until_then() {
    let fleet = fleet(&[(
        "coder",
        &scripted("{question: 'Which?', options: [red, green]}, {say: 'It is {answer}.'}"),
    )]);
    fleet.write("workflows/one.yaml", "name: one\nphases:\n  - {name: make, prompt: Make it}\n");
    let ran = fleet.run(&["workflow", "run", "one", "--until-asked"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("◆ waiting for you"), "{}", ran.stderr);
    assert!(fleet.run(&["workflow", "runs"]).ok().contains("running, open question"));
    let id = fleet.json(&["workflow", "runs", "--json"])["runs"][0]["id"].clone();
    let id = id.as_str().unwrap();
    let shown = fleet.run(&["workflow", "show", id]).ok();
    assert!(shown.contains("make, with an open question"), "{shown}");
    fleet.run(&["approvals", "reply", &fleet.asked(), "green"]).ok();
    fleet.waits_as(id, "succeeded");
    assert!(fleet.run(&["approvals", "list", "--all"]).ok().contains("  answered  "));
}

#[test]
fn of_a_workflow_that_says_nothing_the_last_output_is_shown() {
    let many = "name: many\nagent: coder\nphases:\n  - {name: count, type: bash, command: seq 25}\n  \
        - {name: end, type: context}\n";
    let fleet = with(&[("many", many)]);
    let ran = fleet.run(&["workflow", "run", "many"]);
    let first: String = (1..=20).map(|number| format!("{number}\n")).collect();
    assert_eq!(ran.stdout, first, "{}", ran.stderr);
    assert!(ran.stderr.contains("… 5 more lines: heeler workflow logs wf-"), "{}", ran.stderr);
    let quiet = fleet.run(&["workflow", "run", "many", "-q"]).ok();
    assert_eq!(quiet.lines().count(), 25, "{quiet}");
    let id = fleet.json(&["workflow", "runs", "--json"])["runs"][0]["id"].clone();
    let shown = fleet.run(&["workflow", "show", id.as_str().unwrap()]).ok();
    assert!(shown.contains("1 …"), "{shown}");
}

#[test]
fn a_phase_whose_job_is_in_the_queue_waits_and_says_why() {
    let fleet = fleet(&[("coder", &scripted("{say: Working.}, {hang: true}"))]);
    fleet.write("workflows/one.yaml", "name: one\nphases:\n  - {name: make, prompt: Make it}\n");
    let first = fleet.begin(&["one"]);
    wait_for("the agent", || {
        (phases(&fleet.workflow_run(&first)) == ["make running"]).then_some(())
    });
    let second = fleet.begin(&["one"]);
    let shown = wait_for("the reason", || {
        let shown = fleet.run(&["workflow", "show", &second]).ok();
        shown.contains("waits: ").then_some(shown)
    });
    assert!(shown.contains("· make"), "{shown}");
    assert_eq!(phases(&fleet.workflow_run(&second)), ["make waiting"]);
    fleet.run(&["workflow", "cancel", &second, "--now"]).ok();
    fleet.run(&["workflow", "cancel", &first, "--now"]).ok();
}

#[test]
fn an_answer_given_elsewhere_ends_the_question_on_the_terminal() {
    let fleet = with(&[("ship", SHIP)]);
    let mut terminal = Terminal::start(&fleet, "workflow run ship -i what=boats");
    terminal.wait_for("approve? [y/n, optional reason]");
    fleet.run(&["approvals", "reject", &fleet.asked(), "--reason", "too soon"]).ok();
    let (code, rest) = terminal.end();
    assert_eq!(code, Some(1), "{rest}");
    assert!(rest.contains("rejected by") && rest.contains("too soon"), "{rest}");
    assert!(!rest.contains("done:"), "what is said of a success is not said: {rest}");
    assert!(!fleet.file("shipped.txt").exists());
}

#[test]
fn a_run_goes_on_after_its_daemon_was_killed_while_it_is_watched() {
    let wait = "{say: Working.}, {run: 'until test -e go; do sleep 0.01; done'}, {say: Done.}";
    let fleet = fleet(&[("coder", &scripted(wait))]);
    let workflow =
        SHIP.replace("    approval_gate: {name: may-ship, message: 'Ship {{ what }}?'}\n", "");
    fleet.write("workflows/ship.yaml", &workflow);
    let child = fleet.start(&["workflow", "run", "ship", "-i", "what=x"]);
    fleet.wait_until_said("Working.");
    fleet.kill("--until-idle");
    fleet.write("go", "");
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(fleet.read("shipped.txt"), "shipped x\n");
}

#[test]
fn only_phases_that_an_agent_does_have_a_session_which_is_in_claudes_envelope() {
    let fleet = with(&[("ship", SHIP)]);
    let id = fleet.begin(&["ship", "-i", "what=it"]);
    fleet.run(&["approvals", "approve", &fleet.asked()]).ok();
    let run = fleet.waits_as(&id, "succeeded");
    let mut joined = 0;
    for phase in run["phases"].as_array().unwrap() {
        for part in phase["parts"].as_array().unwrap().iter().filter(|it| !it["job"].is_null()) {
            let job = fleet.json(&["jobs", "show", part["job"].as_str().unwrap(), "--json"]);
            let job = &job["job"];
            assert_eq!(job["workflowRunId"], id.as_str());
            assert_eq!((&job["phase"], &job["part"]), (&phase["name"], &part["part"]));
            assert_eq!(job["sessionId"], part["sessionId"]);
            joined += 1;
            if phase["name"] == "ship" {
                assert!(job["session"].is_null() && part["sessionId"].is_null(), "{job}");
                continue;
            }
            let session = part["sessionId"].as_str().unwrap();
            let log = session_log(&fleet, session);
            let rows: Vec<Json> =
                log.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
            let said = rows.iter().filter(|row| row["type"] == "assistant");
            assert!(said.clone().count() > 0, "{log}");
            for row in said {
                assert_eq!(row["sessionId"], session, "{row}");
                assert!(row["uuid"].is_string() && row["message"]["role"] == "assistant", "{row}");
            }
        }
    }
    assert_eq!(joined, 2, "{run}");
    assert_eq!(fleet.json(&["session", "list", "--json"])["total"], 1);
}

/// A workflow with commands, of which one outlives a daemon.
const COMMANDS: &str = "
name: commands
agent: coder
phases:
  - name: wait
    type: bash
    command: 'echo begun; until test -e go; do sleep 0.01; done; echo ended'
  - name: each
    prompt: 'Pass {{ iteration }}'
    generic_loop: {max_iterations: 2, until_bash: 'test -e never'}
";

#[test]
fn commands_of_a_workflow_have_no_session_also_if_their_daemon_is_killed() {
    let fleet = with(&[("commands", COMMANDS)]);
    let child = fleet.start(&["workflow", "run", "commands"]);
    fleet.wait_until_said("begun");
    let id =
        fleet.json(&["workflow", "runs", "--json"])["runs"][0]["id"].as_str().unwrap().to_owned();
    let job = fleet.workflow_run(&id)["phases"][0]["parts"][0]["job"].as_str().unwrap().to_owned();
    fleet.kill("--until-idle");
    fleet.write("go", "");
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let run = fleet.waits_as(&id, "succeeded");
    let parts = run["phases"].as_array().unwrap().iter();
    let parts: Vec<&Json> = parts.flat_map(|it| it["parts"].as_array().unwrap()).collect();
    let jobs = parts.iter().filter(|part| !part["job"].is_null()).count();
    let asked = parts.iter().filter(|part| !part["sessionId"].is_null()).count();
    assert!(asked == 2 && jobs > asked, "{run}");
    let list = fleet.json(&["session", "list", "--json"]);
    assert_eq!(list["total"], asked, "{list}");
    let sessions = list["sessions"].as_array().unwrap();
    assert!(sessions.iter().all(|it| it["runtime"] == "scripted"), "{list}");
    // All that the command printed is on record, and it cannot be forked.
    let shown = fleet.run(&["jobs", "logs", &job]).ok();
    assert!(shown.contains("no session: this is a command of a workflow"), "{shown}");
    assert!(shown.contains("begun") && shown.contains("ended"), "{shown}");
    let refused = fleet.run(&["jobs", "fork", &job]).fails(5);
    assert!(refused.contains("has no session to fork"), "{refused}");
    let found = fleet.run(&["doctor", "--json"]).stdout;
    assert!(!found.contains("belongs to no job or session"), "{found}");
}

/// What the event log has of a session.
fn session_log(fleet: &Fleet, session: &str) -> String {
    let projects = fleet.file(".heeler/agent-sessions/projects");
    let name = format!("{session}.jsonl");
    let folders = std::fs::read_dir(projects).unwrap().map(|entry| entry.unwrap().path());
    let found = folders.map(|folder| folder.join(&name)).find(|file| file.is_file());
    std::fs::read_to_string(found.expect("the session has a log")).unwrap()
}
