//! Runs and queues that outlive their daemon, runners that do not answer or are of an earlier
//! release, and usage limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use heeler_engine::{CommandReply, DaemonCommand, DaemonStatus, StopMode};
use heeler_model::run::{
    ErrorClass, PROTOCOL, PROTOCOL_MIN, RunEnd, RunResult, RunSpec, RunStartRecord, file,
};
use heeler_model::timetable::SkipReason;
use heeler_model::{ExitReason, Job, JobId, JobRequest, JobStatus, RunId};
use heeler_server::DaemonClient;
use heeler_store::{StateDir, StoreReader};
use heeler_transcript::LockFile;
use jiff::Timestamp;
use rustix::process::{Pid, Signal};
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};

use crate::daemon_kills::{Herd, Life};
use crate::processes::signal_if;
use crate::trigger::wait_for;

/// An agent that goes on after it was interrupted, and before that works without end, whatever it is
/// told.
const RESUMED: &str = "
  - name: keeper
    runtime: scripted
    session: {auto_resume: true}
    script:
      - when: {prompt: You were interrupted}
        do: [{say: Going on.}, {run: 'read line < gate'}, {say: Finished.}]
        else: [{say: Working.}, {hang: true, ignore_term: true}]
";

/// How many agents share a credential.
const ON_ONE_CREDENTIAL: usize = 20;

#[track_caller]
pub(crate) fn ask(client: &mut DaemonClient, wanted: JobRequest) -> JobId {
    match client.send_command(&DaemonCommand::Trigger(Box::new(wanted)), None).unwrap() {
        CommandReply::Job { job, .. } => job,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn wanted(agent: &str) -> JobRequest {
    JobRequest::new(agent.parse().unwrap())
}

/// A moment that is a whole second, as resets are.
pub(crate) fn in_seconds(seconds: i64) -> Timestamp {
    Timestamp::from_second(Timestamp::now().as_second() + seconds).unwrap()
}

#[track_caller]
fn status(client: &mut DaemonClient) -> DaemonStatus {
    match client.send_command(&DaemonCommand::Status, None).unwrap() {
        CommandReply::Status(status) => *status,
        other => panic!("{other:?}"),
    }
}

/// Leaves what runs to the next daemon.
#[track_caller]
fn leave(client: &mut DaemonClient, mut life: Life) {
    client.send_command(&DaemonCommand::Stop(StopMode::KeepJobs), None).unwrap();
    assert!(life.child.wait().unwrap().success());
}

impl Herd {
    pub(crate) fn job(&self, id: &JobId) -> Job {
        self.reader().job(id).unwrap().unwrap()
    }

    pub(crate) fn run_ids(&self, job: &JobId) -> Vec<RunId> {
        self.reader().runs_of_job(job).unwrap().iter().map(|run| run.id).collect()
    }

    pub(crate) fn results(&self, job: &JobId) -> Vec<RunResult> {
        let reader = self.reader();
        let result = |run: RunId| reader.run_result(run).unwrap().unwrap();
        self.run_ids(job).into_iter().map(result).collect()
    }

    /// Waits until a job's transcript says something so often.
    #[track_caller]
    fn says(&self, job: &JobId, text: &str, times: usize) {
        let log = self.dir().job_transcript(job);
        wait_for(text, || {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            (said.matches(text).count() >= times).then_some(())
        });
    }

    #[track_caller]
    pub(crate) fn ends(&self, job: &JobId) -> Job {
        wait_for("the job's end", || Some(self.job(job)).filter(|job| job.head.status.is_final()))
    }

    /// Sends a signal to the runner of a run.
    #[track_caller]
    fn signal(&self, run: RunId, signal: Signal) {
        let lock = self.dir().run(run).join(file::LOCK);
        let holder = || LockFile::probe(&lock).unwrap()?.holder;
        let pid = Pid::from_raw(holder().unwrap().pid.cast_signed()).unwrap();
        let is_it = || holder().is_some_and(|it| it.pid == pid.as_raw_nonzero().get() as u32);
        assert!(signal_if(pid, signal, is_it), "it is gone");
    }
}

#[test]
fn a_stopped_runner_is_killed_and_its_job_ends_or_goes_on_as_its_agent_says() {
    let herd = Herd::of(&format!(
        "agents:{RESUMED}
  - name: once
    runtime: scripted
    script: [{{say: Working.}}, {{spawn: sleep 1000, setsid: true, ignore_term: true}}, {{say: Spawned.}}, {{hang: true}}]
"
    ));
    let (mut life, mut client) = herd.begin(&["--unheard-max", "3s"]);
    let (keeper, once) = (ask(&mut client, wanted("keeper")), ask(&mut client, wanted("once")));
    herd.says(&keeper, "Working.", 1);
    herd.says(&once, "Spawned.", 1);
    for job in [&keeper, &once] {
        herd.signal(herd.run_ids(job)[0], Signal::STOP);
    }
    let job = herd.ends(&once);
    assert_eq!((job.head.status, job.interrupted), (JobStatus::Failed, true), "{job:#?}");
    assert_eq!(herd.results(&once)[0].end, RunEnd::Interrupted);
    assert_eq!(processes_of(herd.run_ids(&once)[0]), Vec::<u32>::new(), "its tree is gone");
    herd.says(&keeper, "Going on.", 1);
    let runs = herd.run_ids(&keeper);
    assert_eq!(runs.len(), 2, "the same job, in another run");
    assert_eq!(processes_of(runs[0]), Vec::<u32>::new(), "its tree is gone");
    let mut herd = herd;
    herd.open_gate();
    let job = herd.ends(&keeper);
    assert_eq!((job.head.status, job.restart_count), (JobStatus::Completed, 1), "{job:#?}");
    let ends: Vec<RunEnd> = herd.results(&keeper).iter().map(|result| result.end).collect();
    assert_eq!(ends, [RunEnd::Interrupted, RunEnd::Finished]);
    life.kill();
}

#[test]
fn the_duration_of_an_interrupted_job_is_the_time_that_it_ran() {
    let herd = Herd::of(
        "agents: [{name: coder, runtime: scripted, script: [{say: Working.}, {hang: true}]}]\n",
    );
    let (mut life, mut client) = herd.begin(&[]);
    let job = ask(&mut client, wanted("coder"));
    herd.says(&job, "Working.", 1);
    let started = herd.job(&job).head.started_at;
    wait_for("some seconds of work", || {
        (Timestamp::now().duration_since(started).as_secs() >= 3).then_some(())
    });
    herd.signal(herd.run_ids(&job)[0], Signal::KILL);
    let ended = herd.ends(&job);
    assert_eq!((ended.head.status, ended.interrupted), (JobStatus::Failed, true), "{ended:#?}");
    assert!(ended.head.duration_ms.is_some_and(|it| it >= 1_000), "{ended:#?}");
    let view = herd.dir().root().join(format!("jobs/{job}.yaml"));
    wait_for("the view", || {
        let view = std::fs::read_to_string(&view).ok()?;
        let duration = view.lines().find_map(|line| line.strip_prefix("duration_seconds: "))?;
        duration.trim().parse::<f64>().ok().filter(|it| *it >= 1.0)
    });
    life.kill();
}

/// As a machine that is suspended. Nothing tells the daemon, and its wall clock goes on.
#[test]
fn due_times_while_the_daemon_was_stopped_are_missed() {
    let agent = |name: &str, missed: &str| {
        format!(
            "\n  - {{name: {name}, runtime: scripted, script: [{{say: Tick.}}],
     schedules: {{s: {{interval: 1s, missed: {missed}, overlap: queue}}}}}}"
        )
    };
    let config = [agent("skips", "skip"), agent("once", "run_once"), agent("all", "run_all")];
    let herd = Herd::of(&format!("agents:{}\n", config.concat()));
    let (mut life, _client) = herd.begin(&[]);
    wait_for("the first jobs", || (herd.jobs().len() >= 3).then_some(()));
    let daemon = Pid::from_child(&life.child);
    assert!(signal_if(daemon, Signal::STOP, || true));
    // Nothing happens meanwhile that could be waited for.
    let stopped_at = Timestamp::now();
    std::thread::sleep(Duration::from_secs(9));
    assert!(signal_if(daemon, Signal::CONT, || true));
    let is_missed = |row: &heeler_store::SkipRecord| row.skip.reason != SkipReason::Overlap;
    let missed = |agent: &str| {
        let skips = herd.reader().skips(agent, "s", None, usize::MAX).unwrap();
        let skips = skips.into_iter().filter(|row| is_missed(row)).map(|row| row.skip);
        // A busy machine may have delayed the daemon before.
        skips.filter(|skip| skip.last >= stopped_at).collect::<Vec<_>>()
    };
    for (agent, reason) in [("skips", SkipReason::Missed), ("once", SkipReason::MadeUp)] {
        let skips = wait_for("the skips", || Some(missed(agent)).filter(|it| !it.is_empty()));
        assert!(skips.iter().all(|skip| skip.reason == reason), "{agent}: {skips:?}");
        assert!(skips.iter().map(|skip| skip.count).sum::<u64>() >= 3, "{agent}: {skips:?}");
    }
    assert_eq!(missed("all"), []);
    life.kill();
}

/// Lists the processes that carry the marker of a run. What is dead carries none.
fn processes_of(run: RunId) -> Vec<u32> {
    let marker = format!("HEELER_RUN={run}");
    let names = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_marked(*pid, &marker)).collect()
}

fn is_marked(pid: u32, marker: &str) -> bool {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environ.split(|&byte| byte == 0).any(|variable| variable == marker.as_bytes())
}

/// Looks all the time whether two runs of a job are there at once.
struct Guard {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(u64, Vec<String>)>,
}

impl Guard {
    fn of(dir: StateDir, job: JobId) -> Guard {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut looks, mut seen) = (0, Vec::new());
            while !stopped.load(Ordering::Relaxed) {
                let runs = StoreReader::open(&dir).unwrap().runs_of_job(&job).unwrap();
                let runs: Vec<RunId> = runs.iter().map(|run| run.id).collect();
                for pair in runs.windows(2) {
                    seen.extend(beside(&dir, pair[0], pair[1]));
                }
                looks += 1;
            }
            (looks, seen)
        });
        Guard { stop, thread }
    }

    #[track_caller]
    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        let (looks, seen) = self.thread.join().unwrap();
        assert!(looks > 0);
        assert_eq!(seen, Vec::<String>::new(), "two runs of one job at once");
    }
}

/// Says how a run is there while the next one of its job is. What was of the first is looked at
/// again after the second was seen: else one may have ended before the other began.
fn beside(dir: &StateDir, first: RunId, second: RunId) -> Option<String> {
    let is_locked = |run| heeler_store::is_run_alive(&dir.run(run));
    let before = processes_of(first);
    let was_locked = is_locked(first);
    let is_second_there = is_locked(second) || !processes_of(second).is_empty();
    if !is_second_there {
        return None;
    }
    let marker = format!("HEELER_RUN={first}");
    if was_locked && is_locked(first) {
        return Some(format!("the locks of {first} and {second} are held"));
    }
    let left = before.into_iter().find(|pid| is_marked(*pid, &marker));
    left.map(|pid| format!("process {pid} of {first} is there while {second} runs"))
}

#[test]
fn a_job_is_never_resumed_beside_a_run_of_it_that_lives() {
    let mut herd = Herd::of(&format!("agents:{RESUMED}"));
    let (mut life, mut client) = herd.begin(&[]);
    let job = ask(&mut client, wanted("keeper"));
    herd.says(&job, "Working.", 1);
    let guard = Guard::of(herd.dir(), job.clone());
    for _ in 0..3 {
        life.kill();
        (life, client) = herd.begin(&[]);
        assert_eq!(status(&mut client).running.len(), 1, "it is taken over");
        assert_eq!(herd.run_ids(&job).len(), 1);
    }
    leave(&mut client, life);
    (life, client) = herd.begin(&[]);
    assert_eq!(herd.run_ids(&job).len(), 1);
    assert_eq!(status(&mut client).running.len(), 1);
    // Its runner dies under the daemon, and its agent takes no hint.
    herd.signal(herd.run_ids(&job)[0], Signal::KILL);
    herd.says(&job, "Going on.", 1);
    // Its runner dies while there is no daemon.
    life.kill();
    herd.signal(herd.run_ids(&job)[1], Signal::KILL);
    (life, _) = herd.begin(&[]);
    herd.says(&job, "Going on.", 2);
    herd.open_gate();
    let ended = herd.ends(&job);
    guard.end();
    assert_eq!((ended.head.status, ended.restart_count), (JobStatus::Completed, 2), "{ended:#?}");
    let ends: Vec<RunEnd> = herd.results(&job).iter().map(|result| result.end).collect();
    assert_eq!(ends, [RunEnd::Interrupted, RunEnd::Interrupted, RunEnd::Finished]);
    life.kill();
}

#[test]
fn a_queue_survives_kills_and_restarts_in_its_order() {
    let mut herd = Herd::of(
        "agents: [{name: solo, runtime: scripted, script: [{run: 'read line < gate'}, {say: Done.}]}]",
    );
    let (mut life, mut client) = herd.begin(&[]);
    let jobs =
        [0, 0, 5, 1, 5].map(|priority| ask(&mut client, JobRequest { priority, ..wanted("solo") }));
    let in_order = [0, 2, 4, 3, 1].map(|number: usize| jobs[number].clone());
    let check = |client: &mut DaemonClient| {
        let status = status(client);
        let running: Vec<&JobId> = status.running.iter().map(|it| &it.job).collect();
        assert_eq!(running, [&in_order[0]]);
        let waiting: Vec<&JobId> = status.queue.iter().map(|it| &it.job).collect();
        assert_eq!(waiting, in_order[1..].iter().collect::<Vec<_>>());
        assert!(status.queue.iter().all(|it| it.reason.contains("limit of 1")), "{status:?}");
    };
    check(&mut client);
    // A run that has not begun would go back to the queue, where others are before it.
    let folder = herd.dir().run(herd.run_ids(&in_order[0])[0]);
    wait_for("the first run", || folder.join(file::STARTED).exists().then_some(()));
    life.kill();
    (life, client) = herd.begin(&[]);
    check(&mut client);
    leave(&mut client, life);
    (life, client) = herd.begin(&[]);
    check(&mut client);
    herd.open_gate();
    for job in &in_order {
        assert_eq!(herd.ends(job).head.status, JobStatus::Completed);
        assert_eq!(herd.run_ids(job).len(), 1, "it ran once");
    }
    let began: Vec<RunId> = in_order.iter().map(|job| herd.run_ids(job)[0]).collect();
    assert!(began.is_sorted(), "{began:?}");
    drop((life, client));
}

/// Takes everything out of a document that its type can do without, and puts in what it does not
/// know; of another version.
fn of_another_release<T: DeserializeOwned>(text: &[u8], protocol: u32) -> Vec<u8> {
    let mut document: Json = serde_json::from_slice(text).unwrap();
    let keys: Vec<String> = document.as_object().unwrap().keys().cloned().collect();
    for key in keys {
        let mut less = document.clone();
        less.as_object_mut().unwrap().shift_remove(&key);
        if serde_json::from_value::<T>(less.clone()).is_ok() {
            document = less;
        }
    }
    document["protocol"] = json!(protocol);
    document["of_the_future"] = json!({"nobody": ["knows", 1]});
    serde_json::to_vec(&document).unwrap()
}

impl Herd {
    fn rewrite<T: DeserializeOwned>(&self, run: RunId, name: &str, protocol: u32) {
        let path = self.dir().run(run).join(name);
        let text = of_another_release::<T>(&std::fs::read(&path).unwrap(), protocol);
        std::fs::write(path, text).unwrap();
    }
}

#[test]
fn runners_of_every_protocol_that_is_read_are_attached_to_cancelled_settled_and_committed() {
    for protocol in PROTOCOL_MIN..=PROTOCOL {
        let mut herd = Herd::of(
            "agents: [{name: a, runtime: scripted, instances: {max_concurrent: 3},
             script: [{say: Working.}, {run: 'read line < gate'}, {say: Done.}]}]",
        );
        let (life, mut client) = herd.begin(&[]);
        let jobs = [(); 3].map(|()| ask(&mut client, wanted("a")));
        jobs.iter().for_each(|job| herd.says(job, "Working.", 1));
        leave(&mut client, life);
        let [finished, killed, cancelled] = &jobs;
        // Runs of an earlier release have no key, so their results have no signature.
        let database = rusqlite::Connection::open(herd.dir().database()).unwrap();
        database.execute_batch("UPDATE runs SET result_key = NULL").unwrap();
        drop(database);
        for job in &jobs {
            let run = herd.run_ids(job)[0];
            herd.rewrite::<RunSpec>(run, file::SPEC, protocol);
            herd.rewrite::<RunStartRecord>(run, file::STARTED, protocol);
        }
        herd.signal(herd.run_ids(killed)[0], Signal::KILL);
        let (mut life, mut client) = herd.begin(&[]);
        let job = herd.ends(killed);
        assert_eq!((job.head.status, job.interrupted), (JobStatus::Failed, true), "settled");
        let (job, by) = (cancelled.clone(), "the test".to_owned());
        client.send_command(&DaemonCommand::Cancel { job, now: false, by }, None).unwrap();
        let job = herd.ends(cancelled);
        assert_eq!(job.head.exit_reason, Some(ExitReason::Cancelled), "{job:#?}");
        // The last one ends while there is no daemon, and leaves a result of its release.
        life.kill();
        herd.open_gate();
        let run = herd.run_ids(finished)[0];
        let result = herd.dir().run(run).join(file::RESULT);
        wait_for("its result", || result.exists().then_some(()));
        wait_for("its end", || (!heeler_store::is_run_alive(&herd.dir().run(run))).then_some(()));
        herd.rewrite::<RunResult>(run, file::RESULT, protocol);
        let (_life, _) = herd.begin(&[]);
        assert_eq!(herd.ends(finished).head.status, JobStatus::Completed);
        assert_eq!(herd.run_ids(finished), [run], "it ran once");
    }
}

/// A fleet whose agents share a credential, and one more that has its own.
fn on_one_credential() -> Herd {
    let agent = |name: &str, key: &str| {
        format!(
            "
  - name: {name}
    runtime: scripted
    env: {{ANTHROPIC_API_KEY: {key}}}
    script:
      - when: {{prompt: usage limit}}
        do: [{{say: Went on.}}]
        else:
          - run: 'read line < gate; cat reset'
          - {{error: rate_limit, message: 'Usage limit reached, resets at {{output}}'}}
"
        )
    };
    let shared = (0..ON_ONE_CREDENTIAL).map(|n| agent(&format!("agent-{n:02}"), "shared-key-0001"));
    let free = "\n  - {name: free, runtime: scripted, env: {ANTHROPIC_API_KEY: another-key-01}, \
         script: [{say: Done.}]}\n";
    Herd::of(&format!("agents:{}{free}", shared.collect::<String>()))
}

#[test]
fn proof_a_usage_limit_that_20_agents_run_into_parks_all_and_each_goes_on_once_after_the_reset() {
    let mut herd = on_one_credential();
    let (mut life, mut client) = herd.begin(&[]);
    let names: Vec<String> = (0..ON_ONE_CREDENTIAL).map(|n| format!("agent-{n:02}")).collect();
    let jobs: Vec<JobId> = names.iter().map(|name| ask(&mut client, wanted(name))).collect();
    let wait_running = |herd: &Herd| {
        let at_work = |job: &JobId| {
            herd.run_ids(job).iter().any(|run| herd.dir().run(*run).join(file::STARTED).exists())
        };
        wait_for("all of them at work", || jobs.iter().all(at_work).then_some(()));
    };
    wait_running(&herd);
    let reset = in_seconds(6);
    herd.fleet.write("reset", &reset.to_string());
    herd.open_gate();
    let parked = wait_for("the first that runs into it", || status(&mut client).parked.pop());
    assert_eq!((parked.until, parked.agents.len()), (reset, ON_ONE_CREDENTIAL));
    let said = herd.fleet.run(&["status"]).ok();
    assert!(said.contains("Usage limit reached"), "{said}");
    let free = ask(&mut client, wanted("free"));
    // What is parked stays so, whoever dies.
    life.kill();
    (life, client) = herd.begin(&[]);
    for job in &jobs {
        let ended = herd.ends(job);
        assert_eq!(ended.head.status, JobStatus::Completed, "{ended:#?}");
        let results = herd.results(job);
        let [first, second] = &results[..] else { panic!("{results:#?}") };
        let error = first.error.as_ref().unwrap();
        assert_eq!((error.class, error.resets_at), (ErrorClass::RateLimited, Some(reset)));
        assert_eq!((second.end, &second.error), (RunEnd::Finished, &None));
        assert!(second.started_at >= reset, "{second:?}");
        assert_eq!(second.session.as_ref().unwrap().id, first.session.as_ref().unwrap().id);
    }
    assert_eq!(herd.ends(&free).head.status, JobStatus::Completed, "its credential is another");
    assert_eq!(status(&mut client).parked.len(), 0);
    assert!(jobs.iter().all(|job| herd.run_ids(job).len() == 2), "none went on twice");
    life.kill();
}
