//! Facts that lists show beside a job's status: its prompt, and the tools that its agent was denied; and
//! the short names by which people find jobs and sessions.

use heeler_model::JobId;

use crate::fleet::Fleet;
use crate::terminal::Terminal;
use crate::trigger::{fleet, scripted};

fn job_id(fleet: &Fleet) -> JobId {
    let jobs = fleet.json(&["jobs", "--json"]);
    jobs["jobs"][0]["id"].as_str().unwrap().parse().unwrap()
}

#[test]
fn a_denied_tool_marks_the_job_although_it_succeeded() {
    let steps = "{run: 'rm -r build', ask_permission: true}, {say: Done.}";
    let fleet = fleet(&[("coder", &scripted(steps))]);
    let ran = fleet.run(&["trigger", "coder", "-p", "Clean up\nand say so"]);
    assert!(ran.stderr.contains("1 request was denied"), "{}", ran.stderr);
    ran.ok();
    let job = &fleet.json(&["jobs", "--json"])["jobs"][0];
    assert_eq!(job["status"], "completed");
    assert_eq!(job["denied"], "Bash");
    assert_eq!(job["title"], "Clean up");
    let ran = fleet.run(&["jobs"]);
    assert!(ran.stdout.contains("completed, denied"), "{}", ran.stdout);
    assert!(ran.stdout.contains("Clean up"), "{}", ran.stdout);
    assert!(ran.stderr.contains("denied: the agent was not allowed"), "{}", ran.stderr);
    let shown = fleet.run(&["jobs", "show", job["id"].as_str().unwrap()]).ok();
    assert!(shown.contains("Bash: the agent was not allowed to use this"), "{shown}");
    // A rebuild of the database has the title, but not the mark: results of runs are not rebuilt.
    let session = &fleet.json(&["session", "list", "--json"])["sessions"][0];
    assert_eq!(session["title"], "Clean up");
}

#[test]
fn a_job_without_denials_has_no_mark() {
    let fleet = fleet(&[("coder", &scripted("{say: Done.}"))]);
    fleet.run(&["trigger", "coder", "-p", "Hello"]).ok();
    let job = &fleet.json(&["jobs", "--json"])["jobs"][0];
    assert_eq!((&job["denied"], &job["title"]), (&serde_json::Value::Null, &"Hello".into()));
    assert!(!fleet.run(&["jobs"]).ok().contains("denied"));
}

#[test]
fn the_end_of_an_id_names_a_job_and_a_session() {
    let fleet = fleet(&[("coder", &scripted("{say: Done.}"))]);
    fleet.run(&["trigger", "coder", "-p", "Hello"]).ok();
    let id = job_id(&fleet);
    let end = id.as_str().rsplit('-').next().unwrap();
    for short in [end, &end[..4]] {
        let shown = fleet.run(&["jobs", "show", short]).ok();
        assert!(shown.contains(id.as_str()), "{shown}");
    }
    assert!(fleet.run(&["jobs", "logs", end]).ok().contains("Done."));
    let session = fleet.json(&["session", "list", "--json"])["sessions"][0]["id"].clone();
    let session = session.as_str().unwrap();
    let shown = fleet.run(&["session", "show", session.strip_prefix("sess-").unwrap()]).ok();
    assert!(shown.contains(session), "{shown}");
    fleet.run(&["jobs", "show", "zzzzzz"]).fails(4);
    fleet.run(&["jobs", "show", ""]).fails(4);
}

#[test]
fn a_health_check_tells_whether_a_daemon_answers() {
    let fleet = fleet(&[("coder", &scripted("{say: Done.}"))]);
    fleet.run(&["status", "--check"]).fails(3);
    fleet.run(&["start", "-d"]).ok();
    assert_eq!(fleet.run(&["status", "--check"]).ok(), "");
    fleet.run(&["stop"]).ok();
    fleet.run(&["status", "--check"]).fails(3);
}

#[test]
fn a_small_screen_shows_the_cause_of_each_failure() {
    let steps =
        "{say: Trying.}, {error: invalid_request, message: the disk of the build machine is full}";
    let fleet = fleet(&[("builder", &scripted(steps)), ("other", &scripted("{say: Fine.}"))]);
    fleet.run(&["trigger", "builder", "-p", "Build it"]).fails(1);
    let mut terminal = Terminal::shell(&fleet, "stty cols 45 rows 24; heeler status --watch");
    terminal.wait_for("Failed in the last 24 hours");
    terminal.wait_for("the disk of the build machine");
    terminal.wait_for("Idle agents");
    terminal.type_in("q");
    terminal.end();
    let mut terminal = Terminal::shell(&fleet, "stty cols 45; heeler status");
    terminal.wait_for("the disk of the build machine");
    let (code, _) = terminal.end();
    assert_eq!(code, Some(0));
}
