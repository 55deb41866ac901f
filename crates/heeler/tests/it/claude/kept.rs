//! The process of the real claude between the turns of a conversation.
//!
//! Claude is not kept after each turn: it may still have a process of its own when the time for that
//! is up. So these tests repeat turns until it was kept, and none takes it for granted.

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

/// Number of turns after which an agent that was never kept is a failure.
const TURNS_MAX: usize = 20;

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

fn fleet_with(session: serde_json::Value) -> Fleet {
    fleet_in(json!(false), session)
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

/// A conversation with its number of turns.
struct KeptConversation<'f> {
    fleet: &'f Fleet,
    pty: Pty,
    turns: usize,
}

impl<'f> KeptConversation<'f> {
    fn start(fleet: &'f Fleet, api: &MessagesApi) -> KeptConversation<'f> {
        KeptConversation { fleet, pty: chat(fleet, api, &["chat"]), turns: 0 }
    }

    /// Says something and waits for the reply; returns the start of its run.
    #[track_caller]
    fn turn(&mut self) -> RunStartRecord {
        self.turns += 1;
        let (words, reply) = (format!("Say {}.", self.turns), format!("Reply {}.", self.turns));
        say(&self.pty, &words, &ModelScript::new().text(&reply));
        answered(&self.pty, &format!("● {reply}"));
        starts(self.fleet).pop().unwrap()
    }

    /// Takes turns until one was executed by the process of an earlier one.
    #[track_caller]
    fn kept_turn(&mut self) -> RunStartRecord {
        let kept = (0..TURNS_MAX).map(|_| self.turn()).find(|start| start.agent_run.is_some());
        kept.expect("claude is kept after one of many turns")
    }
}

fn daemon_pid(fleet: &Fleet) -> Option<u32> {
    let dir = StateDir::open(&fleet.state_dir()).ok()?;
    Some(DaemonFile::read(&dir).ok()??.pid)
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number.try_into().unwrap()).unwrap()
}

/// Returns the children of a runner: claude, if it is kept.
fn children(start: &RunStartRecord) -> Vec<Pid> {
    let runner = start.pid;
    let children = std::fs::read_to_string(format!("/proc/{runner}/task/{runner}/children"));
    let children = children.unwrap_or_default();
    children.split_whitespace().map(|number| pid(number.parse().unwrap())).collect()
}

/// Kills a process that may have ended.
fn kill(process: Pid) {
    let _gone = kill_process(process, Signal::KILL);
}

#[track_caller]
fn wait_until_gone(process: Pid) {
    wait_for("the end of a process", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
        stat.map_or(true, |stat| stat.contains(") Z ")).then_some(())
    });
}

#[test]
fn claude_stays_by_default_and_any_death_between_turns_costs_only_its_start() {
    let api = MessagesApi::start();
    let fleet = fleet_with(json!({}));
    let mut conversation = KeptConversation::start(&fleet, &api);
    let kept = conversation.kept_turn();
    assert_eq!(starts(&fleet).iter().filter(|start| start.pid == kept.pid).count(), 2);

    // Claude, its runner and the daemon die, each while the conversation is idle.
    let processes = children(&kept);
    processes.iter().for_each(|process| kill(*process));
    processes.iter().for_each(|process| wait_until_gone(*process));
    // The runner notices it and ends. A turn that is sent before that fails.
    wait_until_gone(pid(kept.pid));
    let next = conversation.turn();
    assert_eq!(next.agent_run, None, "the process has died");

    let kept = conversation.kept_turn();
    let processes = children(&kept);
    kill(pid(kept.pid));
    let next = conversation.turn();
    assert!(next.agent_run.is_none() && next.pid != kept.pid, "its runner has died");
    processes.iter().for_each(|process| wait_until_gone(*process));

    let kept = conversation.kept_turn();
    let processes = children(&kept);
    kill(pid(daemon_pid(&fleet).unwrap()));
    let next = conversation.turn();
    assert!(next.agent_run.is_none() && next.pid != kept.pid, "its daemon has died");
    processes.iter().for_each(|process| wait_until_gone(*process));
    let last = conversation.kept_turn();

    // Nothing was lost, and nothing was asked twice.
    let KeptConversation { pty, turns, .. } = conversation;
    let sent = api.messages();
    assert_eq!(sent.len(), turns, "{sent:#?}");
    let history = sent.last().unwrap().history().join("\n");
    for number in 1..=turns {
        let count = history.matches(&format!(": Say {number}.")).count();
        assert_eq!(count, 1, "{number}: {history}");
    }
    wait_for("all results", || {
        let is_done = |status| status == JobStatus::Completed;
        fleet.jobs().iter().all(|job| is_done(job.head.status)).then_some(())
    });
    let jobs = fleet.jobs();
    assert_eq!(jobs.len(), turns);
    for job in &jobs {
        assert!(job.head.cost_usd.is_some_and(|cost| cost > 0.0), "{:?}", job.head);
    }
    leave(pty);
    wait_until_gone(pid(last.pid));
}

#[test]
fn claude_ends_with_its_turn_if_a_process_is_left_behind_and_after_the_idle_time() {
    let api = MessagesApi::start();
    let fleet = fleet_with(json!({"keep_agent": true, "keep_agent_for": "2s"}));
    let mut conversation = KeptConversation::start(&fleet, &api);
    let command = "setsid -f sh -c 'echo $$ > left.new; mv left.new left; exec sleep 1000'; \
                   while [ ! -e left ]; do sleep 0.1; done";
    let script = ModelScript::new().tool("Bash", json!({"command": command})).text("Left.");
    say(&conversation.pty, "Leave a process.", &script);
    conversation.pty.shows("? the agent wants to use Bash");
    conversation.pty.type_in("1");
    answered(&conversation.pty, "● Left.");
    gone(pid(fleet.read("left").trim().parse().unwrap()));
    let one = starts(&fleet).pop().unwrap();
    wait_until_gone(pid(one.pid));
    let two = conversation.turn();
    assert_ne!(two.pid, one.pid);
    wait_until_gone(pid(two.pid));
    let three = conversation.turn();
    assert_eq!(three.agent_run, None);
    leave(conversation.pty);
}

#[test]
fn a_config_without_kept_agents_ends_claude_with_each_turn() {
    let api = MessagesApi::start();
    let fleet = fleet_with(json!({"keep_agent": false}));
    let mut conversation = KeptConversation::start(&fleet, &api);
    let one = conversation.turn();
    wait_until_gone(pid(one.pid));
    let two = conversation.turn();
    assert!(two.agent_run.is_none() && two.pid != one.pid);
    leave(conversation.pty);
}

#[test]
fn a_turn_that_is_handed_over_while_the_daemon_dies_is_executed_once() {
    let api = MessagesApi::start();
    let fleet = fleet_with(json!({}));
    let mut command = fleet.command(&["start", "--fault", FaultPoint::RunHandedOver.name()]);
    let mut daemon = with_api(&mut command, &api).stdout(Stdio::null()).spawn().unwrap();
    wait_for("a daemon", || daemon_pid(&fleet));
    let mut conversation = KeptConversation::start(&fleet, &api);
    // The daemon dies when it hands the first turn over.
    let is_dead = (0..TURNS_MAX).any(|_| {
        conversation.turn();
        daemon.try_wait().unwrap().is_some()
    });
    assert!(is_dead, "claude is kept after one of many turns");
    assert!(!daemon.wait().unwrap().success(), "it died of its fault");
    conversation.turn();
    wait_for("all results", || {
        let is_done = |status| status == JobStatus::Completed;
        fleet.jobs().iter().all(|job| is_done(job.head.status)).then_some(())
    });
    assert_eq!(fleet.jobs().len(), conversation.turns);
    assert_eq!(api.messages().len(), conversation.turns);
    leave(conversation.pty);
}

#[test]
fn claude_stays_in_its_sandbox_and_its_network_is_open_during_turns_only() {
    let api = MessagesApi::start();
    let fleet = fleet_in(json!({"read_only": [claude()]}), json!({}));
    let mut conversation = KeptConversation::start(&fleet, &api);
    let mut first = conversation.turn();
    let egress = |start: &RunStartRecord| start.socket.with_extension("d").join("e");
    // The way out of the sandbox that was open after a turn, if the agent was kept then.
    let is_closed = (0..TURNS_MAX).any(|_| {
        let kind = wait_for("the end of the network", || {
            UnixStream::connect(egress(&first)).err().map(|error| error.kind())
        });
        let next = conversation.turn();
        if next.agent_run.is_some() {
            assert_eq!(kind, ErrorKind::ConnectionRefused, "the socket waits for the next turn");
            return true;
        }
        first = next;
        false
    });
    assert!(is_closed, "claude is kept after one of many turns");
    wait_for("all results", || {
        let jobs = fleet.jobs();
        let is_paid = |cost: Option<f64>| cost.is_some_and(|cost| cost > 0.0);
        jobs.iter().all(|job| is_paid(job.head.cost_usd)).then_some(())
    });
    leave(conversation.pty);
    wait_until_gone(pid(first.pid));
    assert!(!egress(&first).exists());
}
