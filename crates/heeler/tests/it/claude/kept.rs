//! The process of the real claude between the turns of a conversation.

use std::path::PathBuf;

use heeler_model::run::RunStartRecord;
use heeler_testkit::{MessagesApi, ModelScript, claude};
use rustix::process::Pid;
use serde_json::json;

use super::chat::{chat, say};
use super::gone;
use crate::chat_screen::{answered, leave};
use crate::fleet::Fleet;
use crate::pty::Pty;
use crate::trigger::wait_for;

fn fleet_with(session: serde_json::Value) -> Fleet {
    let fleet = Fleet::empty();
    let lead = json!({
        "name": "lead", "runtime": "sdk", "claude_path": claude(), "setting_sources": [],
        "permission_mode": "default", "session": session, "sandbox": false,
    });
    fleet.write("heeler.yaml", &json!({"agents": [lead]}).to_string());
    fleet
}

/// Returns the start records of all runs, oldest first.
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

fn pid(number: u32) -> Pid {
    Pid::from_raw(number.try_into().unwrap()).unwrap()
}

#[track_caller]
fn wait_until_gone(process: Pid) {
    wait_for("the end of a process", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
        stat.map_or(true, |stat| stat.contains(") Z ")).then_some(())
    });
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
