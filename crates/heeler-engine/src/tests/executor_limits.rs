//! The executor at its limits: runs that hang, and more requests than may wait.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use heeler_model::run::{RunStartRecord, file};
use heeler_model::{JobRequest, RunId};
use heeler_testkit::WAIT_MAX;

use super::*;
use crate::command::{
    CommandReply, DaemonCommandError, DaemonCommandErrorKind, PendingReply, ReplyCallback,
};
use crate::daemon_handle::DaemonHandle;
use crate::dispatch_input::DispatchInput;
use crate::executor::{EffectExecutor, SaidText};

type CommandOutcome = Result<CommandReply, DaemonCommandError>;

const AGENT: &str = "agents: [{name: coder, runtime: scripted, script: [{say: hi}]}]";

struct ExecutorFixture {
    place: EngineFixture,
    executor: EffectExecutor,
    inputs: Receiver<DispatchInput>,
}

impl ExecutorFixture {
    fn new() -> ExecutorFixture {
        let place = EngineFixture::new("success");
        let (handle, inputs) = DaemonHandle::channel(crate::HookGrants::default());
        let setup = Arc::new(place.setup(AGENT));
        let executor = EffectExecutor::new(place.fleet.clone(), handle, setup).unwrap();
        ExecutorFixture { place, executor, inputs }
    }

    /// Creates the folder of a run with a runner that accepts no connection.
    fn hung_run(&self, number: u8) -> (RunId, UnixListener) {
        let run = RunId::mint(clock(), [number; 10]);
        let folder = self.place.fleet.dir.run(run);
        std::fs::create_dir_all(&folder).unwrap();
        let socket = self.place.root.join(format!("run{number}"));
        let listener = UnixListener::bind(&socket).unwrap();
        let started = RunStartRecord {
            protocol: PROTOCOL,
            run,
            pid: 1,
            at: clock(),
            session: "11111111-hung".parse().unwrap(),
            session_log: folder.join("log"),
            socket,
            cgroup: None,
            job_rows_before: 0,
            session_rows_before: 0,
            own_sessions: None,
            agent_run: None,
        };
        std::fs::write(folder.join(file::STARTED), serde_json::to_vec(&started).unwrap()).unwrap();
        (run, listener)
    }

    fn say(&self, run: RunId) -> Receiver<CommandOutcome> {
        let (reply, told) = reply_channel();
        let job = JobId::mint(clock(), 1);
        let said = SaidText { job, text: "hello".to_owned(), by: "me".to_owned() };
        self.executor.send_message(run, said, PendingReply::after_commit(reply));
        told
    }
}

fn reply_channel() -> (ReplyCallback, Receiver<CommandOutcome>) {
    let (tell, told) = sync_channel(1);
    (Box::new(move |outcome| drop(tell.send(outcome))), told)
}

/// Takes one request, replies to it and returns it.
fn serve_request(listener: &UnixListener) -> String {
    let (mut stream, _) = listener.accept().unwrap();
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    stream.write_all(b"{\"protocol\":1,\"id\":1,\"reply\":\"done\"}\n").unwrap();
    line
}

#[track_caller]
fn assert_refused(outcome: CommandOutcome, message: &str) {
    let refused = outcome.unwrap_err();
    assert_eq!((refused.kind, &*refused.message), (DaemonCommandErrorKind::Busy, message));
    assert_eq!(refused.hint.as_deref(), Some("repeat the command later"));
}

#[test]
fn a_cancel_passes_runs_that_hang() {
    let place = ExecutorFixture::new();
    let hung: Vec<_> = (1..=60).map(|number| place.hung_run(number)).collect();
    let mut lost = Vec::new();
    for (run, _) in &hung {
        place.executor.cancel_run(*run, false, "me".to_owned());
        place.executor.cancel_run(*run, true, "me".to_owned());
        lost.push(place.say(*run));
    }
    let (awake, listener) = place.hung_run(99);
    place.executor.cancel_run(awake, false, "me".to_owned());
    let heard = serve_request(&listener);
    assert!(heard.contains("\"op\":\"cancel\""), "{heard}");
    let told = place.say(awake);
    serve_request(&listener);
    assert!(told.recv_timeout(WAIT_MAX).unwrap().is_ok());
    assert!(lost.iter().all(|told| told.try_recv().is_err()), "the others still wait");
}

#[test]
fn a_repeated_cancel_of_a_run_that_hangs_costs_nothing() {
    let place = ExecutorFixture::new();
    let (run, listener) = place.hung_run(1);
    for _ in 0..1000 {
        place.executor.cancel_run(run, false, "me".to_owned());
    }
    serve_request(&listener);
    let (marker, told) = (place.say(run), serve_request(&listener));
    assert!(told.contains("hello"), "there was one request: {told}");
    assert!(marker.recv_timeout(WAIT_MAX).unwrap().is_ok());
}

#[test]
fn a_run_that_hangs_takes_a_few_messages_and_leaves_room_for_others() {
    let place = ExecutorFixture::new();
    let (hung, _listener) = place.hung_run(1);
    let waiting: Vec<_> = (0..16).map(|_| place.say(hung)).collect();
    let refused = place.say(hung).recv_timeout(WAIT_MAX).unwrap().unwrap_err();
    assert_eq!(refused.kind, DaemonCommandErrorKind::Busy);
    let refused = refused.message;
    assert!(refused.starts_with("too many requests: earlier messages to job-"), "{refused}");
    assert!(refused.ends_with("still being sent, and the limit is 16"), "{refused}");
    let (awake, listener) = place.hung_run(2);
    let told = place.say(awake);
    serve_request(&listener);
    assert!(told.recv_timeout(WAIT_MAX).unwrap().is_ok());
    assert!(waiting.iter().all(|told| told.try_recv().is_err()));
}

#[test]
fn messages_beyond_the_limit_are_refused() {
    let place = ExecutorFixture::new();
    let hung: Vec<_> = (1..=16).map(|number| place.hung_run(number)).collect();
    let all = (0..16).flat_map(|_| &hung);
    let _waiting: Vec<_> = all.map(|(run, _)| place.say(*run)).collect();
    let (other, _listener) = place.hung_run(99);
    let outcome = place.say(other).recv_timeout(WAIT_MAX).unwrap();
    let message = "too many requests: other messages are still being sent, and the limit is 256";
    assert_refused(outcome, message);
}

#[test]
fn jobs_beyond_the_limit_of_preparations_are_refused_and_queued_ones_wait() {
    let place = ExecutorFixture::new();
    let most = place.executor.free_preparations();
    let request = || JobRequest::new("coder".parse().unwrap());
    let held = place.executor.hold_starters();
    for number in 0..most {
        assert_eq!(place.executor.free_preparations(), most - number);
        place.executor.prepare_job(Some(JobId::mint(clock(), 1)), request(), None);
    }
    assert_eq!(place.executor.free_preparations(), 0, "the dispatcher admits no more");
    let (reply, told) = reply_channel();
    place.executor.prepare_job(None, request(), Some(PendingReply::after_commit(reply)));
    assert_refused(
        told.recv_timeout(WAIT_MAX).unwrap(),
        "too many requests: other jobs are being prepared to start, and the limit is 1024",
    );
    drop(held);
    for _ in 0..most {
        let input = place.inputs.recv_timeout(WAIT_MAX).unwrap();
        assert!(matches!(input, DispatchInput::JobPrepared { .. }));
    }
    assert_eq!(place.executor.free_preparations(), most);
}

#[test]
fn log_lines_beyond_the_limit_are_lost_and_the_rest_is_written() {
    let place = ExecutorFixture::new();
    let held = place.executor.hold_logger();
    for number in 0..5000 {
        place.executor.append_log("coder".to_owned(), format!("line {number}"));
    }
    drop(held);
    let log = place.place.fleet.dir.logs().join("coder.log");
    let last = || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("line 4095\n"));
    place.place.wait_until(last);
    place.executor.append_log("coder".to_owned(), "after".to_owned());
    let last = || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("after\n"));
    place.place.wait_until(last);
    assert!(!std::fs::read_to_string(&log).unwrap().contains("line 4096\n"));
}
