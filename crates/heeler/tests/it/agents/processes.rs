//! Scenarios of the processes of a run: none is left, however the run ends.

use heeler_config::{AgentScenario, CertifiedAgent};
use heeler_model::ExitReason;
use heeler_model::run::ErrorClass;
use heeler_testkit::{ModelScript, ModelScriptStep};
use rustix::process::{Pid, Signal, kill_process};

use super::{
    calls_are_closed, failed, for_each_agent, said, set_mode, shell, succeeded, tool_ids, work,
};
use crate::rig::{Live, Rig, wait};

/// Waits until the process is gone.
#[track_caller]
fn until_gone(pid: Pid) {
    wait("the end of a process", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        stat.map_or(true, |stat| stat.contains(") Z ")).then_some(())
    });
}

/// A command that tells its process ID and never ends by itself.
fn endless(rig: &Rig) -> ModelScriptStep {
    let (pid, temp) = (work(rig, "pid"), work(rig, "pid.tmp"));
    shell(&format!("echo $$ > {temp}; mv {temp} {pid}; exec tail -f /dev/null"))
}

#[track_caller]
fn endless_pid(rig: &Rig) -> Pid {
    let text = wait("the tool", || std::fs::read_to_string(work(rig, "pid")).ok());
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

/// The agent's process: the child of the runner.
#[track_caller]
fn agent_pid(live: &Live<'_>) -> Pid {
    let runner = live.child.id();
    let file = format!("/proc/{runner}/task/{runner}/children");
    wait("the agent", || {
        let children = std::fs::read_to_string(&file).ok()?;
        Pid::from_raw(children.split_whitespace().next()?.parse().ok()?)
    })
}

#[test]
fn a_cancel_ends_a_tool_with_all_its_processes() {
    for_each_agent(AgentScenario::CancelTool, |agent| {
        let rig = Rig::new();
        let script = ModelScript::new().step(endless(&rig)).text("Never said.");
        let mut plan = agent.plan(&rig, &script);
        set_mode(&mut plan, "bypassPermissions");
        let mut live = rig.start(plan);
        let tool = endless_pid(&rig);
        live.cancel();
        let end = live.finish();
        assert_eq!(end.result.exit_reason, ExitReason::Cancelled, "{agent:?} {:#?}", end.rows);
        until_gone(tool);
        calls_are_closed(&end);
    });
}

#[test]
fn an_agent_that_is_killed_fails_and_leaves_no_process() {
    for_each_agent(AgentScenario::Killed, |agent| {
        let rig = Rig::new();
        let script = ModelScript::new().step(endless(&rig)).text("Never said.");
        let mut plan = agent.plan(&rig, &script);
        set_mode(&mut plan, "bypassPermissions");
        let live = rig.start(plan);
        let tool = endless_pid(&rig);
        kill_process(agent_pid(&live), Signal::KILL).unwrap();
        let end = live.finish();
        failed(&end, ErrorClass::AgentDied);
        until_gone(tool);
        // The rows of Claude are its own: they show that the call has no result.
        if agent.0 == CertifiedAgent::Claude {
            assert_eq!(tool_ids(&end, "tool_use").len(), 1, "{:#?}", end.rows);
            assert_eq!(tool_ids(&end, "tool_result"), Vec::<&str>::new(), "{:#?}", end.rows);
        } else {
            calls_are_closed(&end);
        }
    });
}

/// SIGTERM reaches the runner when the machine is shut down.
#[test]
fn a_runner_that_is_told_to_end_leaves_no_process() {
    for_each_agent(AgentScenario::Terminated, |agent| {
        let rig = Rig::new();
        let script = ModelScript::new().step(endless(&rig)).text("Never said.");
        let mut plan = agent.plan(&rig, &script);
        set_mode(&mut plan, "bypassPermissions");
        let live = rig.start(plan);
        let tool = endless_pid(&rig);
        let program = agent_pid(&live);
        kill_process(Pid::from_child(&live.child), Signal::TERM).unwrap();
        let end = live.finish();
        assert_eq!(end.result.exit_reason, ExitReason::Cancelled, "{agent:?} {:#?}", end.rows);
        let stopped = rig.show(&end.rows);
        assert!(stopped.contains("SIGTERM"), "{agent:?} {stopped}");
        until_gone(tool);
        until_gone(program);
        calls_are_closed(&end);
    });
}

#[test]
fn a_process_that_a_command_leaves_behind_ends_with_the_run() {
    for_each_agent(AgentScenario::Orphan, |agent| {
        let rig = Rig::new();
        let (pid, temp) = (work(&rig, "pid"), work(&rig, "pid.tmp"));
        let left = format!("echo $$ > {temp}; mv {temp} {pid}; exec tail -f /dev/null");
        // It has a session of its own and no pipe of the agent.
        let command = format!(
            "(setsid sh -c '{left}' < /dev/null > /dev/null 2>&1 &); until [ -e {pid} ]; do sleep 0.1; done"
        );
        let script = ModelScript::new().step(shell(&command)).text("Done.");
        let mut plan = agent.plan(&rig, &script);
        set_mode(&mut plan, "bypassPermissions");
        let end = rig.run(plan);
        succeeded(&end);
        calls_are_closed(&end);
        assert_eq!(said(&end), ["Done."], "{agent:?}");
        until_gone(endless_pid(&rig));
    });
}
