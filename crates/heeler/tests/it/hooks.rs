//! Hooks that are commands: the real runner, cut off and found again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_engine::hooks::{
    ChatServiceUrls, FinishedHook, HookOutcome, HookResultKey, HookWorker, HookWorkerConfig,
    JobEnd, hook_effects,
};
use heeler_engine::{EngineContext, HookGrants};
use heeler_model::run::RunStartRecord;
use heeler_model::{ExitReason, Job, JobStatus, TriggerType};
use heeler_store::{DatabaseError, StateDir, Store, StoreReader};
use heeler_testkit::WAIT_MAX;
use jiff::Timestamp;
use rustix::process::{Pid, Signal};
use serde_json::Value as Json;

use crate::processes::{remove_groups, signal_if};
use crate::trigger::rest_after_look;

/// A secret of the agent's.
const SECRET: &str = "hunter2-hunter2";

/// A fleet of one agent with one hook, whose job has ended.
struct Hooked {
    _temp: tempfile::TempDir,
    root: Utf8PathBuf,
    fleet: EngineContext,
    config: HookWorkerConfig,
}

impl Drop for Hooked {
    fn drop(&mut self) {
        for event in self.events() {
            remove_groups(event.join("runs").as_std_path());
        }
    }
}

impl Hooked {
    fn new(command: &str, timeout: &str) -> Hooked {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temp.path().canonicalize().unwrap()).unwrap();
        let dir = StateDir::create(&root.join(".heeler")).unwrap();
        std::fs::create_dir(root.join("work")).unwrap();
        let path = std::env::var("PATH").unwrap();
        let env = BTreeMap::from([
            ("PATH".to_owned(), path.clone()),
            ("KEY".to_owned(), SECRET.to_owned()),
            ("OTHER".to_owned(), "unnamed".to_owned()),
        ]);
        let hook = serde_json::json!({"type": "shell", "command": command, "timeout": timeout});
        let agent = serde_json::json!({"name": "coder", "runtime": "command", "command": "true",
            "working_directory": "work", "secrets": ["KEY"], "hooks": {"after_run": [hook]}});
        let text = serde_json::json!({"agents": [agent]}).to_string();
        let read = |_: &Utf8Path| Ok(text.clone());
        let loaded = heeler_config::load(&root.join("heeler.yaml"), &read, &env);
        let loaded = Arc::new(loaded.unwrap_or_else(|faults| panic!("{}", faults.summary())));
        let program = Utf8PathBuf::from(env!("CARGO_BIN_EXE_heeler"));
        let fleet = EngineContext {
            dir,
            program,
            env: vec![("PATH".to_owned(), path)],
            now: Timestamp::now,
            hook_grants: HookGrants::default(),
            lead: heeler_store::LeadLease::default(),
            host_lease: heeler_store::HostLease::default(),
        };
        let config = HookWorkerConfig {
            loaded,
            env,
            sockets: root.clone(),
            services: ChatServiceUrls::from_env(&BTreeMap::new()),
        };
        let hooked = Hooked { _temp: temp, root, fleet, config };
        hooked.record_end();
        hooked
    }

    fn store(&self) -> Store {
        self.fleet.open_writer("test", WAIT_MAX).unwrap()
    }

    /// Has a job of the agent end.
    fn record_end(&self) {
        let now = Timestamp::now();
        let id = "job-2026-11-15-abc123".parse().unwrap();
        let mut job = Job::new_pending(id, "coder", TriggerType::Schedule, now);
        job.head.status = JobStatus::Completed;
        job.head.exit_reason = Some(ExitReason::Success);
        job.head.finished_at = Some(now);
        job.head.summary = Some("did it".to_owned());
        let effects = hook_effects(&self.config.loaded.agents[0], &job, &JobEnd::default(), now);
        assert_eq!(effects.len(), 1);
        self.store()
            .write::<_, DatabaseError, _>(move |tx| tx.add_effect(&effects[0]).map(|_| ()))
            .unwrap();
    }

    fn work(&self) -> (HookWorker, Receiver<HookOutcome>) {
        let (tell, told) = channel();
        let done = Box::new(move |outcome| drop(tell.send(outcome)));
        // Each daemon has a key of its own, which the next ones know.
        let key = HookResultKey::new();
        let recorded = key.clone();
        self.store().write::<_, DatabaseError, _>(move |tx| recorded.record(tx)).unwrap();
        let worker = HookWorker::start(self.fleet.clone(), self.config.clone(), key, done);
        (worker.unwrap(), told)
    }

    /// Waits for the hook's end and returns why it failed.
    #[track_caller]
    fn end(&self, told: &Receiver<HookOutcome>) -> (HookOutcome, Option<String>) {
        let outcome = told.recv_timeout(WAIT_MAX).unwrap();
        let HookOutcome::Finished(hooks) = &outcome else { panic!("{outcome:?}") };
        let [FinishedHook { error, .. }] = &hooks[..] else { panic!("{hooks:?}") };
        (outcome.clone(), error.clone())
    }

    fn record(&self, outcome: HookOutcome) {
        let now = Timestamp::now();
        self.store().write::<_, DatabaseError, _>(move |tx| outcome.record(tx, now)).unwrap();
    }

    /// The folders of events.
    fn events(&self) -> Vec<Utf8PathBuf> {
        let found = self.fleet.dir.hooks().read_dir_utf8();
        found.into_iter().flatten().flatten().map(|entry| entry.into_path()).collect()
    }

    /// Waits until the command has written this file.
    #[track_caller]
    fn wait_for(&self, name: &str) -> String {
        let path = self.root.join("work").join(name);
        wait(path.as_str(), || std::fs::read_to_string(&path).ok().filter(|it| it.ends_with('\n')))
    }

    /// The runner of the hook that is being done.
    fn runner(&self) -> Pid {
        let run = self.events()[0].join("runs").read_dir_utf8().unwrap().next().unwrap().unwrap();
        let started = std::fs::read(run.path().join("started.json")).unwrap();
        let started: RunStartRecord = serde_json::from_slice(&started).unwrap();
        Pid::from_raw(started.pid.cast_signed()).unwrap()
    }
}

#[track_caller]
fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        let begun = Instant::now();
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < WAIT_MAX, "waited in vain for {what}");
        rest_after_look(begun.elapsed());
    }
}

/// Says whether a process lives. A zombie of another parent does not.
fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn a_command_gets_the_context_its_event_and_what_its_agent_gets() {
    let command =
        "cat > told; pwd > where; echo \"$KEY-$OTHER\" > given; echo $HEELER_EVENT > event";
    let hooked = Hooked::new(command, "20s");
    let (worker, told) = hooked.work();
    let (outcome, error) = hooked.end(&told);
    assert_eq!(error, None);
    let read = |name: &str| std::fs::read_to_string(hooked.root.join("work").join(name)).unwrap();
    let context: Json = serde_json::from_str(&read("told")).unwrap();
    assert_eq!(context["event"], "completed");
    assert_eq!(context["result"]["output"], "did it");
    assert_eq!(context["eventId"], read("event").trim());
    assert_eq!(read("where").trim(), hooked.root.join("work"));
    assert_eq!(read("given").trim(), format!("{SECRET}-"));
    // The fleet's own records are as they were, and what the run needed goes with its event.
    for folder in ["runs", "jobs", "agent-sessions/projects"] {
        let below = hooked.fleet.dir.root().join(folder).read_dir_utf8().unwrap();
        assert_eq!(below.count(), 0, "{folder}");
    }
    assert_eq!(hooked.events().len(), 1, "kept until it is on record");
    hooked.record(outcome);
    worker.wake();
    wait("the folder to go", || hooked.events().is_empty().then_some(()));
    worker.stop();
}

#[test]
fn a_command_that_fails_says_why_without_secrets_and_is_not_repeated() {
    let command = "echo x >> count; echo \"no such thing: $KEY\" >&2; exit 3";
    let hooked = Hooked::new(command, "20s");
    let (worker, told) = hooked.work();
    let (_, error) = hooked.end(&told);
    let error = error.unwrap();
    assert!(error.starts_with("the command exited with code 3: no such thing: "), "{error}");
    assert!(!error.contains(SECRET), "{error}");
    worker.stop();
    // The daemon died before that was on record: the next one hears of it and repeats nothing.
    let (worker, told) = hooked.work();
    assert_eq!(hooked.end(&told).1, Some(error));
    worker.stop();
    assert_eq!(hooked.wait_for("count"), "x\n");
}

#[test]
fn a_command_that_is_out_of_time_is_ended_with_all_that_it_started() {
    let command = "trap '' INT TERM HUP
        (trap '' INT TERM HUP; setsid sh -c 'trap \"\" INT TERM HUP; echo $$ > daemon; \
            while :; do sleep 1; done' > /dev/null 2>&1 &)
        echo $$ > self
        while :; do sleep 1; done";
    let hooked = Hooked::new(command, "1s");
    let (worker, told) = hooked.work();
    let (daemon, own) = (hooked.wait_for("daemon"), hooked.wait_for("self"));
    let (_, error) = hooked.end(&told);
    let expected = "the command was ended after 1s; `timeout` sets how long it may take";
    assert_eq!(error.as_deref(), Some(expected));
    assert!(!lives(&daemon) && !lives(&own));
    worker.stop();
}

#[test]
fn a_command_that_goes_on_when_its_daemon_ends_is_waited_for_by_the_next() {
    let command = "echo x >> count; until [ -e go ]; do sleep 0.01; done; echo y >> count";
    let hooked = Hooked::new(command, "20s");
    let (worker, told) = hooked.work();
    hooked.wait_for("count");
    worker.stop();
    assert!(told.try_recv().is_err(), "it is neither done nor failed");
    let (worker, told) = hooked.work();
    std::fs::write(hooked.root.join("work/go"), "").unwrap();
    assert_eq!(hooked.end(&told).1, None);
    worker.stop();
    assert_eq!(hooked.wait_for("count"), "x\ny\n", "it ran once");
}

#[test]
fn a_command_whose_runner_died_is_run_again_after_nothing_of_it_is_left() {
    let command = "if [ -e daemon ]; then
            read pid < daemon
            case $(cut -d' ' -f3 /proc/$pid/stat 2> /dev/null) in ''|Z) ;; *) exit 4 ;; esac
            echo $HEELER_EVENT > second; exit 0
        fi
        echo $HEELER_EVENT > first
        setsid sh -c 'trap \"\" INT TERM HUP; echo $$ > daemon; while :; do sleep 1; done' > /dev/null 2>&1 &
        while :; do sleep 1; done";
    let hooked = Hooked::new(command, "20s");
    let (worker, told) = hooked.work();
    let daemon = hooked.wait_for("daemon");
    let runner = hooked.runner();
    worker.stop();
    assert!(told.try_recv().is_err());
    assert!(signal_if(runner, Signal::KILL, || lives(&runner.as_raw_nonzero().to_string())));
    let (worker, told) = hooked.work();
    assert_eq!(hooked.end(&told).1, None);
    assert!(!lives(&daemon));
    assert_eq!(hooked.wait_for("first"), hooked.wait_for("second"), "the same event");
    worker.stop();
}

#[test]
fn a_command_that_somebody_killed_is_run_again() {
    let command = "if [ -e first ]; then echo $HEELER_EVENT > second; exit 0; fi
        echo $HEELER_EVENT > first; kill -9 $$";
    let hooked = Hooked::new(command, "20s");
    let (worker, told) = hooked.work();
    let outcome = told.recv_timeout(WAIT_MAX).unwrap();
    let HookOutcome::Postponed { error, .. } = &outcome else { panic!("{outcome:?}") };
    assert!(error.contains("SIGKILL"), "{error}");
    hooked.record(outcome);
    assert_eq!(hooked.end(&told).1, None);
    assert_eq!(hooked.wait_for("first"), hooked.wait_for("second"), "the same event");
    worker.stop();
}

#[test]
fn a_folder_that_a_daemon_died_in_the_making_of_is_no_run() {
    let hooked = Hooked::new("echo $HEELER_EVENT > done", "20s");
    let reader = StoreReader::open(&hooked.fleet.dir).unwrap();
    let event = reader.pending_effects(9).unwrap().remove(0).id;
    drop(reader);
    let half_made = "01a1dfca-0116-7791-af55-b1c86b7c7fe1";
    std::fs::create_dir_all(hooked.fleet.dir.hook(&event).join("runs").join(half_made)).unwrap();
    let (worker, told) = hooked.work();
    assert_eq!(hooked.end(&told).1, None);
    assert_eq!(hooked.wait_for("done").trim(), event);
    worker.stop();
}

#[test]
fn what_a_run_left_for_an_event_that_is_over_is_ended_and_removed() {
    let command = "echo $$ > self; while :; do sleep 1; done";
    let hooked = Hooked::new(command, "20s");
    let (worker, _told) = hooked.work();
    let own = hooked.wait_for("self");
    let runner = hooked.runner();
    worker.stop();
    signal_if(runner, Signal::KILL, || true);
    let reader = StoreReader::open(&hooked.fleet.dir).unwrap();
    let id = reader.pending_effects(9).unwrap().remove(0).id;
    hooked.record(HookOutcome::Finished(vec![FinishedHook { id, error: None }]));
    let (worker, _told) = hooked.work();
    wait("the folder to go", || hooked.events().is_empty().then_some(()));
    assert!(!lives(&own));
    worker.stop();
}

#[test]
fn a_folder_that_is_in_use_when_its_event_is_over_goes_later() {
    let hooked = Hooked::new("echo x > begun; until [ -e go ]; do sleep 0.01; done", "20s");
    let (worker, _told) = hooked.work();
    hooked.wait_for("begun");
    worker.stop();
    let reader = StoreReader::open(&hooked.fleet.dir).unwrap();
    let id = reader.pending_effects(9).unwrap().remove(0).id;
    hooked.record(HookOutcome::Finished(vec![FinishedHook { id, error: None }]));
    let (worker, _told) = hooked.work();
    // Long enough for the first search, which finds the runner alive.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(hooked.events().len(), 1);
    std::fs::write(hooked.root.join("work/go"), "").unwrap();
    wait("the folder to go", || {
        worker.wake();
        hooked.events().is_empty().then_some(())
    });
    worker.stop();
}
