//! The process of the real claude between the turns of a conversation.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;

use heeler_engine::fault::FaultPoint;
use heeler_model::JobStatus;
use heeler_model::run::RunStartRecord;
use heeler_store::{DaemonFile, StateDir};
use heeler_testkit::{MessagesApi, ModelScript, claude};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::chat::{chat, say, with_api};
use super::gone;
use crate::chat_screen::{answered, leave};
use crate::fleet::Fleet;
use crate::pty::Pty;
use crate::trigger::wait_for;

fn fleet_with(session: serde_json::Value) -> Fleet {
    fleet_in(json!(false), session)
}

/// A fleet whose agent has this sandbox.
fn fleet_in(sandbox: serde_json::Value, session: serde_json::Value) -> Fleet {
    let fleet = Fleet::empty();
    let lead = json!({
        "name": "lead", "runtime": "sdk", "claude_path": claude(), "setting_sources": [],
        "permission_mode": "default", "session": session, "sandbox": sandbox,
    });
    fleet.write("heeler.yaml", &json!({"agents": [lead]}).to_string());
    fleet
}

/// What the runners of all runs recorded at their start, the oldest first.
fn starts(fleet: &Fleet) -> Vec<RunStartRecord> {
    let runs = std::fs::read_dir(fleet.file(".heeler/runs")).unwrap();
    let mut runs: Vec<PathBuf> = runs.map(|it| it.unwrap().path()).collect();
    // The ID of a run begins with its time.
    runs.sort();
    let started = |run: &PathBuf| std::fs::read_to_string(run.join("started.json")).ok();
    let started = runs.iter().filter_map(started);
    started.map(|text| serde_json::from_str(&text).unwrap()).collect()
}

/// Says something and waits for the reply; returns the start of its run.
#[track_caller]
fn turn(fleet: &Fleet, pty: &Pty, words: &str, reply: &str) -> RunStartRecord {
    say(pty, words, &ModelScript::new().text(reply));
    answered(pty, &format!("● {reply}"));
    starts(fleet).pop().unwrap()
}

fn daemon_pid(fleet: &Fleet) -> Option<u32> {
    let dir = StateDir::open(&fleet.state_dir()).ok()?;
    Some(DaemonFile::read(&dir).ok()??.pid)
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number.try_into().unwrap()).unwrap()
}

/// The only child of a runner: claude.
#[track_caller]
fn claude_of(start: &RunStartRecord) -> Pid {
    let runner = start.pid;
    let children = std::fs::read_to_string(format!("/proc/{runner}/task/{runner}/children"));
    let children = children.unwrap();
    let children: Vec<&str> = children.split_whitespace().collect();
    assert_eq!(children.len(), 1, "{children:?}");
    pid(children[0].parse().unwrap())
}

#[track_caller]
fn wait_until_gone(process: Pid) {
    wait_for("the end of a process", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
        stat.map_or(true, |stat| stat.contains(") Z ")).then_some(())
    });
}

#[test]
fn claude_stays_for_the_next_turns_and_any_death_between_them_costs_only_its_start() {
    let api = MessagesApi::start();
    let fleet = fleet_with(json!({"keep_agent": true}));
    let pty = chat(&fleet, &api, &["chat"]);
    let one = turn(&fleet, &pty, "One.", "First.");
    let process = claude_of(&one);
    let two = turn(&fleet, &pty, "Two.", "Second.");
    let three = turn(&fleet, &pty, "Three.", "Third.");
    for later in [&two, &three] {
        assert_eq!((later.pid, later.agent_run), (one.pid, Some(one.run)));
    }
    assert_eq!(claude_of(&three), process);

    // Claude, its runner and the daemon die, each while the conversation is idle.
    kill_process(process, Signal::KILL).unwrap();
    wait_until_gone(process);
    let four = turn(&fleet, &pty, "Four.", "Fourth.");
    assert_eq!(four.agent_run, None);
    let process = claude_of(&four);
    kill_process(pid(four.pid), Signal::KILL).unwrap();
    let five = turn(&fleet, &pty, "Five.", "Fifth.");
    wait_until_gone(process);
    assert!(five.agent_run.is_none() && five.pid != four.pid);
    let process = claude_of(&five);
    let daemon = daemon_pid(&fleet).unwrap();
    kill_process(pid(daemon), Signal::KILL).unwrap();
    let six = turn(&fleet, &pty, "Six.", "Sixth.");
    wait_until_gone(process);
    assert!(six.agent_run.is_none() && six.pid != five.pid);
    let seven = turn(&fleet, &pty, "Seven.", "Seventh.");
    assert_eq!((seven.pid, seven.agent_run), (six.pid, Some(six.run)));

    // Nothing was lost, and nothing was asked twice.
    let sent = api.messages();
    assert_eq!(sent.len(), 7, "{sent:#?}");
    let told = sent.last().unwrap().history().join("\n");
    for known in ["One.", "First.", "Four.", "Fourth.", "Five.", "Sixth.", "Seven."] {
        assert_eq!(told.matches(&format!(": {known}")).count(), 1, "{known}: {told}");
    }
    let jobs = fleet.jobs();
    assert_eq!(jobs.len(), 7);
    for job in &jobs {
        assert_eq!(job.head.status, JobStatus::Completed);
        assert!(job.head.cost_usd.is_some_and(|cost| cost > 0.0), "{:?}", job.head);
    }
    let process = claude_of(&seven);
    leave(pty);
    wait_until_gone(process);
    wait_until_gone(pid(seven.pid));
}

#[test]
fn claude_ends_with_its_turn_if_a_process_is_left_behind_and_after_the_idle_time() {
    let api = MessagesApi::start();
    let fleet = fleet_with(json!({"keep_agent": true, "keep_agent_for": "2s"}));
    let pty = chat(&fleet, &api, &["chat"]);
    let command = "setsid -f sh -c 'echo $$ > left.new; mv left.new left; exec sleep 1000'; \
                   while [ ! -e left ]; do sleep 0.1; done";
    let script = ModelScript::new().tool("Bash", json!({"command": command})).text("Left.");
    say(&pty, "One.", &script);
    pty.shows("? the agent wants to use Bash");
    pty.type_in("1");
    answered(&pty, "● Left.");
    gone(pid(fleet.read("left").trim().parse().unwrap()));
    let one = starts(&fleet).pop().unwrap();
    wait_until_gone(pid(one.pid));
    let two = turn(&fleet, &pty, "Two.", "Second.");
    assert_ne!(two.pid, one.pid);
    let process = claude_of(&two);
    wait_until_gone(process);
    wait_until_gone(pid(two.pid));
    let three = turn(&fleet, &pty, "Three.", "Third.");
    assert_eq!(three.agent_run, None);
    leave(pty);
}

#[test]
fn a_config_without_kept_agents_ends_claude_with_each_turn() {
    let api = MessagesApi::start();
    let fleet = fleet_with(json!({}));
    let pty = chat(&fleet, &api, &["chat"]);
    let one = turn(&fleet, &pty, "One.", "First.");
    wait_until_gone(pid(one.pid));
    let two = turn(&fleet, &pty, "Two.", "Second.");
    assert!(two.agent_run.is_none() && two.pid != one.pid);
    leave(pty);
}

#[test]
fn a_turn_that_is_handed_over_while_the_daemon_dies_is_executed_once() {
    let api = MessagesApi::start();
    let fleet = fleet_with(json!({"keep_agent": true}));
    let mut command = fleet.command(&["start", "--fault", FaultPoint::RunHandedOver.name()]);
    let mut daemon = with_api(&mut command, &api).stdout(Stdio::null()).spawn().unwrap();
    wait_for("a daemon", || daemon_pid(&fleet));
    let pty = chat(&fleet, &api, &["chat"]);
    let one = turn(&fleet, &pty, "One.", "First.");
    let two = turn(&fleet, &pty, "Two.", "Second.");
    assert_eq!((two.pid, two.agent_run), (one.pid, Some(one.run)));
    assert!(!daemon.wait().unwrap().success(), "it died of its fault");
    assert_eq!(api.messages().len(), 2);
    wait_for("both results", || {
        let jobs = fleet.jobs();
        jobs.iter().all(|job| job.head.status == JobStatus::Completed).then_some(())
    });
    assert_eq!(fleet.jobs().len(), 2);
    let three = turn(&fleet, &pty, "Three.", "Third.");
    assert_eq!(three.agent_run, None, "the next daemon does not know the kept agent");
    leave(pty);
}

#[test]
fn claude_stays_in_its_sandbox_whose_network_is_open_during_turns_only() {
    let api = MessagesApi::start();
    let fleet = fleet_in(json!({"read_only": [claude()]}), json!({"keep_agent": true}));
    let pty = chat(&fleet, &api, &["chat"]);
    let one = turn(&fleet, &pty, "One.", "First.");
    let egress = |start: &RunStartRecord| start.socket.with_extension("d").join("e");
    assert!(egress(&one).exists());
    let (stopped, listening) = (ErrorKind::ConnectionRefused, UnixStream::connect(egress(&one)));
    assert_eq!(listening.unwrap_err().kind(), stopped, "it has no network between the turns");
    let two = turn(&fleet, &pty, "Two.", "Second.");
    assert_eq!((two.pid, two.agent_run), (one.pid, Some(one.run)));
    let costs: Vec<Option<f64>> = fleet.jobs().iter().map(|job| job.head.cost_usd).collect();
    assert!(costs.iter().all(|cost| cost.is_some_and(|cost| cost > 0.0)), "{costs:?}");
    leave(pty);
    wait_until_gone(pid(one.pid));
    assert!(!egress(&one).exists());
}
