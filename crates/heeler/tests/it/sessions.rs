//! Which session a job continues, and the row that says why.

use crate::fleet::Fleet;

/// Sets the one agent's keys.
fn set(fleet: &Fleet, keys: &str) {
    let agent = format!("{{name: coder, {keys}}}");
    fleet.write("heeler.yaml", &format!("agents:\n  - {agent}\n"));
}

const SCRIPTED: &str = "runtime: scripted, script: [{say: Hi.}]";

/// Runs a job; returns the row that says which session it has, and that session.
#[track_caller]
fn job(fleet: &Fleet, args: &[&str]) -> (String, String) {
    fleet.run(&[&["trigger", "coder"], args].concat()).ok();
    let id = fleet.json(&["jobs", "--json"])["jobs"][0]["id"].as_str().unwrap().to_owned();
    let rows = fleet.read(&format!(".heeler/jobs/{id}.jsonl"));
    let row: serde_json::Value = serde_json::from_str(rows.lines().next().unwrap()).unwrap();
    assert_eq!((row["type"].as_str(), row["subtype"].as_str()), (Some("system"), Some("session")));
    let sessions = fleet.json(&["session", "list", "--json"]);
    let session = sessions["sessions"][0]["id"].as_str().unwrap().to_owned();
    (row["content"].as_str().unwrap().to_owned(), session)
}

#[test]
fn a_row_says_which_session_a_job_has_and_why() {
    let fleet = Fleet::empty();
    let here = fleet.path().canonicalize().unwrap().display().to_string();
    let kept = "session: {mode: persistent}";
    set(&fleet, &format!("{kept}, {SCRIPTED}"));
    let (why, first) = job(&fleet, &[]);
    assert_eq!(why, "new session: there is none to resume");
    let (why, same) = job(&fleet, &[]);
    assert_eq!((why, &same), (format!("session {first} is resumed"), &first));

    // Working directory.
    std::fs::create_dir(fleet.file("other")).unwrap();
    set(&fleet, &format!("{kept}, working_directory: other, {SCRIPTED}"));
    let (why, second) = job(&fleet, &[]);
    let moved = format!("{first} belongs to {here}, the agent now works in {here}/other");
    assert_eq!(why, format!("new session: {moved}"));
    assert_ne!(second, first);

    // Expiry.
    let brief = "session: {mode: persistent, timeout: 1ms}";
    set(&fleet, &format!("{brief}, working_directory: other, {SCRIPTED}"));
    let (why, third) = job(&fleet, &[]);
    assert!(why.starts_with(&format!("new session: {second} was last used at ")), "{why}");
    assert!(why.ends_with(", longer than its timeout of 1ms ago"), "{why}");

    // Runtime.
    set(&fleet, &format!("{kept}, working_directory: other, runtime: command, command: echo hi"));
    let (why, _) = job(&fleet, &[]);
    let changed = format!("{third} was made by runtime scripted, the agent now has command");
    assert_eq!(why, format!("new session: {changed}"));

    // The caller's word is enough, whatever the rules would say.
    set(&fleet, SCRIPTED);
    let (why, _) = job(&fleet, &["--session", &first]);
    assert_eq!(why, format!("session {first} is resumed, as requested"));
    assert_eq!(job(&fleet, &["--fresh"]).0, "new session, as requested");
    assert_eq!(job(&fleet, &[]).0, "new session: each job of this agent has its own");
}
