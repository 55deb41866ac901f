//! Sessions of scripted agents, run by `heeler runner`: forked, handed over, with their files.

use std::process::Command;

use heeler_config::RuntimeType::Scripted;
use heeler_model::ExitReason;
use heeler_model::run::{RuntimeLaunchSpec, SessionStart};
use serde_json::{Value as Json, json};
use uuid::Uuid;

use crate::fleet::Fleet;
use crate::rig::{End, Live, Plan, Rig, new_session, rows};

/// Tells what it remembers.
fn tells(rig: &Rig, prompt: &str) -> Plan {
    plays(rig, prompt, json!([{"say": "turn {turn}, I remember {remembered}"}]))
}

fn plays(rig: &Rig, prompt: &str, steps: Json) -> Plan {
    let Json::Array(steps) = steps else { panic!("{steps} is no list") };
    let mut plan = rig.plan(Scripted, prompt);
    plan.brief.work = RuntimeLaunchSpec::Script { steps };
    plan
}

#[track_caller]
fn said(end: &End) -> String {
    let result = &end.result;
    assert_eq!(result.exit_reason, ExitReason::Success, "{result:#?} {:#?}", end.rows);
    end.row("assistant", "")["content"].as_str().unwrap().to_owned()
}

fn own(rig: &Rig, plan: &Plan) -> camino::Utf8PathBuf {
    let project = heeler_model::project_slug(&plan.spec.working_directory);
    let name = format!("{}.jsonl", plan.spec.session.start.id());
    rig.path("home/scripted/projects").join(project).join(name)
}

#[test]
fn many_forks_run_side_by_side_and_their_source_stays_as_it_is() {
    let rig = Rig::new();
    let plan = tells(&rig, "one");
    let file = own(&rig, &plan);
    let first = rig.run(plan);
    let ends: Vec<End> = ["two", "three"]
        .map(|prompt| rig.run(tells(&rig, prompt).resume(&first)))
        .into_iter()
        .collect();
    assert_eq!(said(&ends[1]), "turn 3, I remember one | two");
    let before = std::fs::read(&file).unwrap();
    let cut = |end: &End| -> Uuid {
        let said = end.session.iter().rfind(|row| row["type"] == "assistant").unwrap();
        said["uuid"].as_str().unwrap().parse().unwrap()
    };
    let cuts = [cut(&first), cut(&ends[0]), cut(&ends[1]), cut(&first)];
    let live = cuts.map(|at| {
        let mut plan = tells(&rig, "branch");
        let (source, id) = (first.session_id(), new_session());
        plan.spec.session.start = SessionStart::Fork { source, id, at: Some(at) };
        rig.start(plan)
    });
    let forks = live.map(Live::finish);
    let remembered = forks.each_ref().map(said);
    let expected = ["one", "one | two", "one | two | three", "one"]
        .map(|known| format!("turn {}, I remember {known}", known.split(" | ").count() + 1));
    assert_eq!(remembered, expected);
    assert_eq!(std::fs::read(&file).unwrap(), before);
}

#[test]
fn a_session_that_is_full_goes_on_in_a_new_one() {
    let rig = Rig::new();
    let plan = tells(&rig, "one");
    let file = own(&rig, &plan);
    let first = rig.run(plan);
    rig.run(tells(&rig, "two").resume(&first));
    rig.run(tells(&rig, "three").resume(&first));
    let before = std::fs::read(&file).unwrap();
    let steps = json!([{"run": "echo ran >> ran"}, {"say": "I remember {remembered}"}]);
    let mut plan = plays(&rig, "four", steps);
    let (source, id) = (first.session_id(), new_session());
    plan.spec.session.start = SessionStart::Continue { source, id, keep: 4 };
    let new = own(&rig, &plan);
    let end = rig.run(plan);
    let said = said(&end);
    assert_eq!(std::fs::read(&file).unwrap(), before);
    assert!(said.starts_with("I remember [Summary] "), "{said}");
    assert!(said.ends_with("\n\nI remember one | two | three | two | three"), "{said}");
    let ran = std::fs::read_to_string(rig.path("work/ran")).unwrap();
    assert_eq!(ran, "ran\n", "tools are not for a summary");
    let summary = end.row("system", "summary")["content"].as_str().unwrap();
    assert_eq!(summary, "I remember one | two | three");
    let projects = new.parent().unwrap().read_dir_utf8().unwrap();
    assert_eq!(projects.count(), 2, "nothing is left of the summary's own session");
    let entries = rows(&new);
    assert!(entries[0]["message"]["content"].as_str().unwrap().starts_with("[Summary] "));
}

#[test]
fn a_job_goes_on_from_a_session_that_is_past_its_limit() {
    let fleet = Fleet::empty();
    let agent = "{name: coder, runtime: scripted, session: {mode: persistent, \
                 max_context_tokens: 1000, context_window: 2}, script: [{usage: {input: 2000, \
                 output: 5}}, {say: 'I remember {remembered}'}]}";
    fleet.write("heeler.yaml", &format!("agents:\n  - {agent}\n"));
    fleet.run(&["trigger", "coder", "-p", "one"]).ok();
    let first = fleet.json(&["session", "list", "--json"])["sessions"][0].clone();
    assert_eq!(first["tokenEstimate"], 2005, "{first:#}");
    let said = fleet.run(&["trigger", "coder", "-p", "two"]).ok();
    assert!(said.contains("\n\nI remember one | one"), "{said}");
    let job = fleet.json(&["jobs", "--json"])["jobs"][0]["id"].as_str().unwrap().to_owned();
    let rows = fleet.read(&format!(".heeler/jobs/{job}.jsonl"));
    assert!(rows.contains("about 2005 tokens exceeds max_context_tokens (1000)"), "{rows}");
    let listed = fleet.json(&["session", "list", "--json"]);
    let sessions = listed["sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), 2, "{listed:#}");
    let find =
        |is_first: bool| sessions.iter().find(|it| (it["id"] == first["id"]) == is_first).unwrap();
    assert_eq!(find(true)["status"], "completed", "{listed:#}");
    assert_eq!(
        (&find(false)["status"], &find(false)["messageCount"]),
        (&json!("paused"), &json!(6))
    );
    assert_eq!(find(true)["messageCount"], first["messageCount"]);
}

/// What git says in this repository.
#[track_caller]
fn git(dir: &camino::Utf8Path, args: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=t", "-c", "user.email=t@localhost", "-C", dir.as_str()]);
    let done = command.args(args).output().unwrap();
    assert!(done.status.success(), "{done:#?}");
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn the_files_are_recorded_at_the_end_of_each_turn() {
    let rig = Rig::new();
    let work = rig.path("work");
    git(&work, &["init", "-q", "-b", "trunk"]);
    std::fs::write(work.join("a.txt"), "old").unwrap();
    git(&work, &["add", "."]);
    git(&work, &["commit", "-q", "-m", "first"]);
    let turn = |text: &str| {
        let steps = json!([{"write": "a.txt", "text": text}, {"run": "echo shell > b.txt"}, {"say": "Done."}]);
        let mut plan = plays(&rig, "go", steps);
        plan.spec.workspaces = Some(rig.path("state/workspaces"));
        plan
    };
    let first = rig.run(turn("one"));
    said(&first);
    let second = rig.run(turn("two").resume(&first));
    said(&second);
    let recorded: Vec<&Json> =
        second.session.iter().filter(|row| row["subtype"] == "snapshot").collect();
    let [begin, recorded @ ..] = &recorded[..] else { panic!("{:#?}", second.session) };
    assert_eq!((&begin["snapshot"]["beginning"], recorded.len()), (&json!(true), 2));
    for (row, text) in recorded.iter().zip(["one", "two"]) {
        let snapshot = &row["snapshot"];
        let part = |key: &str| snapshot[key].as_str().unwrap();
        assert_eq!((part("branch"), part("top"), part("cwd")), ("trunk", work.as_str(), ""));
        assert_eq!(part("base"), git(&work, &["rev-parse", "HEAD"]).trim());
        let repository = rig.path("state/workspaces").join(part("repository")).join("repo.git");
        let shown = |file: &str| git(&repository, &["show", &format!("{}:{file}", part("commit"))]);
        assert_eq!((shown("a.txt").as_str(), shown("b.txt").as_str()), (text, "shell\n"));
        // It stands behind the last word of its turn, before its result.
        let at = second.session.iter().position(|other| other == *row).unwrap();
        let said = second.session[..at].iter().rfind(|row| row["type"] == "assistant").unwrap();
        assert_eq!(row["messageUuid"], said["uuid"]);
        assert_eq!(second.session[at + 1]["type"], "result");
    }
}
