//! Ends that are not the agent's own: time limits, cancels, signals.

use std::sync::atomic::{AtomicBool, Ordering};

use heeler_model::ExitReason;
use heeler_model::run::{HostContact, ResultSigningKey, RunEnd, RunLeaseSource};
use heeler_process::{boot_id, boot_time};
use rustix::process::{Signal, getpid, kill_process};

use super::*;

/// An agent that heeds no signal that it can ignore.
const STUBBORN: &str = "trap '' INT TERM HUP; echo ready; while :; do sleep 1; done";

#[test]
fn a_cancel_ends_an_agent_that_heeds_no_signal_and_keeps_what_it_said() {
    let trial = command_fixture(STUBBORN);
    let running = trial.start();
    trial.wait_row("ready");
    assert_eq!(running.client().ask(cancel(false)), ControlReplyBody::Done);
    let result = running.finish();
    assert_eq!(
        (result.exit_reason, class(&result)),
        (ExitReason::Cancelled, Some(ErrorClass::Cancelled))
    );
    assert_eq!(result.error.unwrap().message, "cancelled by ann");
    assert_eq!(result.exit_code, None);
    assert_eq!(trial.said(), ["ready"]);
}

#[test]
fn a_cancel_now_does_not_wait_for_a_grace() {
    let mut trial = command_fixture(STUBBORN);
    trial.spec.limits.grace_ms = Some(u64::MAX);
    let running = trial.start();
    trial.wait_row("ready");
    assert_eq!(running.client().ask(cancel(true)), ControlReplyBody::Done);
    assert_eq!(running.finish().exit_reason, ExitReason::Cancelled);
}

#[test]
fn a_second_cancel_may_be_harder_than_the_first() {
    let mut trial = command_fixture(STUBBORN);
    trial.spec.limits.grace_ms = Some(u64::MAX);
    let running = trial.start();
    trial.wait_row("ready");
    let mut client = running.client();
    client.ask(cancel(false));
    assert!(status(&mut client).cancelling);
    client.ask(cancel(true));
    assert_eq!(running.finish().exit_reason, ExitReason::Cancelled);
}

#[test]
fn each_rung_of_the_ladder_is_tried_before_the_next() {
    let mut trial = command_fixture(
        "trap 'echo interrupted' INT; trap 'echo terminated; exit 0' TERM; echo ready; while :; do sleep 0.05; done",
    );
    // Time for the agent to heed a rung.
    trial.spec.limits.grace_ms = Some(3000);
    let running = trial.start();
    trial.wait_row("ready");
    running.client().ask(cancel(false));
    let result = running.finish();
    assert_eq!(result.exit_reason, ExitReason::Cancelled);
    assert_eq!(trial.said(), ["ready", "interrupted", "terminated"]);
}

#[test]
fn an_agent_of_the_stream_is_interrupted_by_its_protocol() {
    let mut trial = stream_fixture(
        "await user; say begun; await interrupt; say partial; fail interrupted; await forever",
    );
    trial.spec.limits.grace_ms = Some(u64::MAX);
    let running = trial.start();
    trial.wait_row("begun");
    running.client().ask(cancel(false));
    let result = running.finish();
    assert_eq!(result.exit_reason, ExitReason::Cancelled);
    assert!(trial.said().contains(&"partial".to_owned()));
}

#[test]
fn a_signal_to_the_runner_is_a_cancel() {
    let mut trial =
        command_fixture("trap 'echo bye; exit 0' INT; echo ready; while :; do sleep 0.05; done");
    trial.spec.limits.grace_ms = Some(u64::MAX);
    let running = trial.start();
    trial.wait_row("ready");
    kill_process(getpid(), Signal::TERM).unwrap();
    let result = running.finish();
    assert_eq!(result.exit_reason, ExitReason::Cancelled);
    assert_eq!(result.error.unwrap().message, "cancelled by SIGTERM");
    assert_eq!(trial.said(), ["ready", "bye"]);
}

#[test]
fn a_second_signal_to_the_runner_does_not_wait() {
    let mut trial = command_fixture(STUBBORN);
    trial.spec.limits.grace_ms = Some(u64::MAX);
    let running = trial.start();
    trial.wait_row("ready");
    kill_process(getpid(), Signal::INT).unwrap();
    wait_for("the cancel", || status(&mut running.client()).cancelling);
    kill_process(getpid(), Signal::HUP).unwrap();
    assert_eq!(running.finish().exit_reason, ExitReason::Cancelled);
}

#[test]
fn a_run_that_takes_too_long_is_ended() {
    let mut trial = command_fixture("echo one; : > said; while :; do echo more; sleep 0.01; done");
    trial.spec.limits.timeout_ms = Some(LIMIT_MS);
    let (trial, result) = trial.run_late("said");
    assert_eq!(
        (result.exit_reason, class(&result)),
        (ExitReason::Timeout, Some(ErrorClass::Timeout))
    );
    assert_eq!(trial.said()[0], "one");
}

#[test]
fn an_agent_that_falls_silent_is_ended() {
    let mut trial = command_fixture("echo one; : > said; sleep 1000");
    trial.spec.limits.stall_timeout_ms = Some(LIMIT_MS);
    let (trial, result) = trial.run_late("said");
    assert_eq!(class(&result), Some(ErrorClass::Stalled));
    assert_eq!(trial.said(), ["one"]);
}

#[test]
fn an_agent_that_waits_for_a_person_has_not_stalled() {
    let mut trial = stream_fixture("may q1 ls; : > said; await forever").attended(3 * LIMIT_MS);
    trial.spec.limits.stall_timeout_ms = Some(LIMIT_MS);
    let (trial, result) = trial.run_late("said");
    // It stalls when it was denied what nobody answered, and not before.
    assert_eq!(trial.notes("denied"), ["nobody answered in time (question q1)"]);
    assert_eq!(class(&result), Some(ErrorClass::Stalled));
}

#[test]
fn an_agent_whose_tool_works_has_not_stalled_but_can_take_too_long() {
    let mut trial = stream_fixture(
        "use t1; : > said; sleep 1; rest=$(used t1; result ok); printf '%s\\n' \"$rest\"",
    );
    trial.spec.limits.stall_timeout_ms = Some(LIMIT_MS);
    let (_, result) = trial.run_late("said");
    assert_eq!(result.exit_reason, ExitReason::Success, "{:?}", result.error);
    let mut trial = stream_fixture("use t1; used t1; await forever");
    trial.spec.limits.stall_timeout_ms = Some(LIMIT_MS);
    assert_eq!(class(&trial.run()), Some(ErrorClass::Stalled));
    let mut trial = stream_fixture("use t1; : > said; await forever");
    trial.spec.limits.stall_timeout_ms = Some(LIMIT_MS);
    trial.spec.limits.timeout_ms = Some(3 * LIMIT_MS);
    let (_, result) = trial.run_late("said");
    assert_eq!(class(&result), Some(ErrorClass::Timeout));
}

#[test]
fn what_an_agent_said_in_time_counts_though_nobody_looked_in_time() {
    for (timeout_ms, stall_timeout_ms) in [(None, Some(LIMIT_MS)), (Some(LIMIT_MS), None)] {
        let mut trial = stream_fixture("say one; result done; : > said; await forever");
        trial.spec.limits.timeout_ms = timeout_ms;
        trial.spec.limits.stall_timeout_ms = stall_timeout_ms;
        let (trial, result) = trial.run_late("said");
        assert_eq!(result.exit_reason, ExitReason::Success, "{:?}", result.error);
        assert_eq!(trial.said(), ["one"]);
    }
}

#[test]
fn a_command_that_ended_in_time_has_not_timed_out_though_nobody_looked_in_time() {
    // A child makes the file when the command has ended; nobody has waited for it by then.
    let mut trial = command_fixture(
        "echo one; (until grep -q ') Z ' /proc/$$/stat; do sleep 0.01; done; : > said) &",
    );
    trial.spec.limits.timeout_ms = Some(LIMIT_MS);
    let (trial, result) = trial.run_late("said");
    assert_eq!(result.exit_reason, ExitReason::Success, "{:?}", result.error);
    assert_eq!(trial.said(), ["one"]);
}

#[test]
fn a_flood_does_not_put_the_time_limit_off() {
    let mut trial = command_fixture("yes $(printf %01000d 0)");
    trial.spec.limits.timeout_ms = Some(LIMIT_MS);
    trial.spec.limits.stall_timeout_ms = Some(LIMIT_MS);
    assert_eq!(class(&trial.run()), Some(ErrorClass::Timeout));
}

#[test]
fn what_the_agent_left_behind_is_ended_with_it() {
    let trial = command_fixture("sleep 1000 & echo $!; setsid sleep 1000 & echo $!");
    trial.run();
    for pid in trial.said() {
        let gone = || !Utf8Path::new("/proc").join(&pid).exists();
        wait_for("the end of a child", gone);
    }
}

#[test]
fn an_agent_that_is_told_too_much_and_does_not_read_is_ended() {
    fn floods(_: &RuntimeContext<'_>) -> Result<Box<dyn AgentRuntime>, String> {
        Ok(Box::new(FloodingRuntime))
    }
    struct FloodingRuntime;
    impl AgentRuntime for FloodingRuntime {
        fn launch_spec(&mut self, _: &SessionStart) -> LaunchSpec {
            let script = LaunchArg::Text("while :; do sleep 1; done".to_owned());
            LaunchSpec {
                program: "/bin/sh".into(),
                args: vec![LaunchArg::Text("-c".to_owned()), script],
                env: Vec::new(),
            }
        }
        fn begin(&mut self, _: Uuid) -> Vec<crate::runtime::RuntimeEffect> {
            let line = || {
                crate::runtime::RuntimeEffect::Write(vec![
                    b'x';
                    crate::input_writer::INPUT_BYTES_MAX
                ])
            };
            vec![line(), line()]
        }
        fn handle_line(&mut self, _: &[u8]) -> Vec<crate::runtime::RuntimeEffect> {
            Vec::new()
        }
        fn interrupt(&mut self) -> Vec<crate::runtime::RuntimeEffect> {
            Vec::new()
        }
    }
    let mut trial = command_fixture("");
    trial.means.runtime = floods;
    let result = trial.run();
    assert_eq!(class(&result), Some(ErrorClass::Internal));
    assert!(result.error.unwrap().message.contains("the agent does not read"));
}

/// Gives a run a lease whose file has never been renewed.
fn set_lease(trial: &mut RunFixture, length_ms: u64, first: &HostContact) -> ResultSigningKey {
    let key = ResultSigningKey::from_seed([5; 32]);
    let file = trial.folder.state.join("host-lease.json");
    trial.spec.limits.lease_ms = Some(length_ms);
    let source = RunLeaseSource { file, key: key.public_key(), first: first.clone() };
    trial.brief.authority.lease = Some(source);
    key
}

fn contact_now() -> HostContact {
    HostContact::new(&boot_id().unwrap(), boot_time())
}

#[test]
fn an_agent_whose_host_loses_contact_ends_and_counts_as_interrupted() {
    let mut trial = command_fixture(STUBBORN);
    // It would be killed long after its lease.
    trial.spec.limits.grace_ms = Some(u64::MAX);
    let key = set_lease(&mut trial, 2000, &contact_now());
    let state = &trial.folder.state;
    let (file, draft) = (state.join("host-lease.json"), state.join("draft"));
    let is_renewed = Arc::new(AtomicBool::new(true));
    let is_wanted = Arc::clone(&is_renewed);
    let renewing = std::thread::spawn(move || {
        while is_wanted.load(Ordering::SeqCst) {
            std::fs::write(&draft, contact_now().to_file(&key)).unwrap();
            std::fs::rename(&draft, &file).unwrap();
        }
        boot_time()
    });
    let running = trial.start();
    trial.wait_row("ready");
    let begin = Instant::now();
    wait_for("more than a lease", || begin.elapsed() > Duration::from_secs(3));
    assert!(!running.runner.is_finished());
    is_renewed.store(false, Ordering::SeqCst);
    let last = renewing.join().unwrap();
    let result = running.finish();
    // The agent heeds no signal that it can ignore, so it is killed at the end of the lease.
    let ended_after = boot_time() - last;
    assert!(ended_after > Duration::from_millis(1900), "{ended_after:?}");
    assert_eq!(
        (result.end, result.exit_reason, class(&result)),
        (RunEnd::Interrupted, ExitReason::Error, Some(ErrorClass::Interrupted))
    );
    let message = result.error.unwrap().message;
    assert!(message.starts_with("its host had no contact with the database for "), "{message}");
    assert_eq!(trial.said(), ["ready"]);
}

#[test]
fn an_agent_is_not_started_when_its_lease_is_over() {
    let mut trial = command_fixture("echo ran");
    let old = HostContact::new(&boot_id().unwrap(), Duration::ZERO);
    let key = set_lease(&mut trial, 1000, &old);
    // The file says otherwise: the fleet may have given the run up before that.
    let file = trial.folder.state.join("host-lease.json");
    std::fs::write(file, contact_now().to_file(&key)).unwrap();
    let result = trial.run();
    assert_eq!((result.end, class(&result)), (RunEnd::Interrupted, Some(ErrorClass::Interrupted)));
    assert!(trial.said().is_empty(), "{:?}", trial.said());
    // Nor without a way to learn of contacts.
    let mut trial = command_fixture("echo ran");
    trial.spec.limits.lease_ms = Some(1000);
    assert_eq!(class(&trial.run()), Some(ErrorClass::NotStarted));
}
