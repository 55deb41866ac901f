//! What a killed daemon leaves: a thousand runs without a result, of which some live.

use std::collections::HashSet;
use std::process::{Child, Stdio};
use std::time::Duration;

use heeler_config::RuntimeType;
use heeler_model::fleet::QueuedJobRecord;
use heeler_model::run::{
    AgentLaunchSpec, PROTOCOL, QuestionPolicy, RunAuthority, RunLimits, RunSpec, RunStartRecord,
    RuntimeLaunchSpec, SessionPlan, SessionStart, file,
};
use heeler_model::{Job, JobId, JobRequest, JobStatus, RunId, TriggerType};
use heeler_store::{DatabaseError, RunRecord, Store, StoreReader, is_run_alive};
use indexmap::IndexMap;
use jiff::Timestamp;
use serde_json::json;

use crate::agent::moment;
use crate::scene::{Scene, Side, agent_name, until};
use crate::{Bench, Figure, Goal};

const RUNS: usize = 1_000;

/// Every so many of them lives.
const ALIVE_EVERY: usize = 10;

/// How often it is looked how far the daemon is.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// From the start of a daemon until every run has its result on record or is watched again.
pub(crate) fn figure(bench: &Bench) -> Figure {
    let ours = {
        let scene = Scene::new(bench, "recovery", RUNS, |_| String::new());
        let (dead, runners) = leave(&scene);
        let before = moment();
        let daemon = scene.start(Side::Ours);
        let reader = StoreReader::open(&scene.dir()).expect("the database opens");
        let log = scene.state.join("logs/heeler.log");
        until(LOOK_EVERY, || {
            let left = reader.uncommitted_runs().expect("runs are listed");
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let attached = text.matches("taken over").count();
            let is_settled = left.iter().all(|run| !dead.contains(&run.id));
            (is_settled && attached >= runners.len()).then_some(())
        })
        .expect("every run is settled or watched");
        let time = moment() - before;
        daemon.stop_all();
        runners.into_iter().for_each(|mut runner| drop(runner.wait()));
        time
    };
    Figure {
        what: "1,000 unfinished runs settled or watched again".to_owned(),
        ours: ours.into(),
        goal: Goal::AtMost(Duration::from_secs(3).into()),
        alternative: Some(("node sets a status".to_owned(), theirs(bench).into())),
    }
}

/// The alternative has a file for each job, and looks whether its process is there.
fn theirs(bench: &Bench) -> Duration {
    let scene = Scene::new(bench, "recovery", RUNS, |_| String::new());
    let jobs = scene.root.join("node/jobs");
    std::fs::create_dir_all(&jobs).expect("disk has space");
    for number in 0..RUNS {
        let is_alive = number % ALIVE_EVERY == 0;
        // No process has the highest number.
        let pid = if is_alive { std::process::id() } else { i32::MAX as u32 };
        let agent = agent_name(number);
        let job = json!({ "id": number, "agent": agent, "status": "running", "pid": pid });
        std::fs::write(jobs.join(format!("{number}.json")), job.to_string())
            .expect("disk has space");
    }
    let before = moment();
    let daemon = scene.start(Side::Node);
    let time = moment() - before;
    daemon.stop();
    time
}

/// Leaves runs as a killed daemon does; returns the dead ones, and the runners of the others.
fn leave(scene: &Scene<'_>) -> (HashSet<RunId>, Vec<Child>) {
    let now = Timestamp::now();
    let specs: Vec<RunSpec> = (0..RUNS).map(|number| spec(scene, number, now)).collect();
    record(scene, &specs, now);
    let (mut dead, mut runners) = (HashSet::new(), Vec::new());
    for (number, spec) in specs.iter().enumerate() {
        let folder = scene.dir().run(spec.run);
        std::fs::create_dir_all(&folder).expect("disk has space");
        let text = serde_json::to_vec(spec).expect("a spec is JSON");
        std::fs::write(folder.join(file::SPEC), text).expect("disk has space");
        if number % ALIVE_EVERY == 0 {
            runners.push(live(scene, spec));
            continue;
        }
        dead.insert(spec.run);
        if number % 2 == 1 {
            die_at_work(scene, spec);
        }
    }
    for spec in specs.iter().step_by(ALIVE_EVERY) {
        let folder = scene.dir().run(spec.run);
        let is_up = || (is_run_alive(&folder) && folder.join(file::STARTED).exists()).then_some(());
        until(LOOK_EVERY, is_up).expect("runners start");
    }
    (dead, runners)
}

fn spec(scene: &Scene<'_>, number: usize, now: Timestamp) -> RunSpec {
    let job = JobId::mint(now, fastrand::u64(..));
    let session = uuid::Uuid::new_v4().to_string().parse().expect("a session is a UUID");
    let dir = scene.dir();
    let real = |name: &str| scene.root.join(name).canonicalize_utf8().expect("the folder is there");
    RunSpec {
        protocol: PROTOCOL,
        run: RunId::mint(now, std::array::from_fn(|_| fastrand::u8(..))),
        attempt: 1,
        agent: agent_name(number).parse().expect("a name"),
        trigger: TriggerType::Manual,
        runtime: RuntimeType::Command,
        working_directory: real("work"),
        job_log: dir.job_transcript(&job),
        job,
        projects: dir.projects(),
        output_file: None,
        home: real("home"),
        sockets: scene.sockets().to_owned(),
        session: SessionPlan::new(SessionStart::Fresh { id: session }, "bench"),
        limits: RunLimits::default(),
        attendance: QuestionPolicy::Nobody,
        sync_each_row: false,
        workspaces: None,
        keep_output: false,
        keep_agent: None,
    }
}

/// Puts the runs and their jobs on record.
fn record(scene: &Scene<'_>, specs: &[RunSpec], now: Timestamp) {
    let specs = specs.to_vec();
    let store = Store::open(&scene.dir(), "bench", now).expect("the store opens").store;
    let written = store.write(move |tx| {
        let epoch = tx.epoch()?;
        for spec in &specs {
            let mut job =
                Job::new_pending(spec.job.clone(), spec.agent.as_str(), spec.trigger.clone(), now);
            job.head.status = JobStatus::Running;
            job.run_started_at = Some(now);
            tx.insert_job(&job)?;
            tx.insert_run(&RunRecord {
                id: spec.run,
                job_id: spec.job.clone(),
                attempt: 1,
                host: "bench".to_owned(),
                epoch,
                status: "created".to_owned(),
                created_at: now,
                started_at: None,
                finished_at: None,
                committed: false,
                version: 1,
                result_key: None,
            })?;
            let wanted = serde_json::to_string(&JobRequest::new(spec.agent.clone()));
            tx.enqueue(&QueuedJobRecord {
                job: spec.job.clone(),
                priority: 0,
                requested_at: now,
                not_before: None,
                expires_at: None,
                request_json: wanted.expect("it is JSON"),
                reason: String::new(),
            })?;
        }
        Ok::<_, DatabaseError>(())
    });
    written.expect("runs are recorded");
}

/// Starts the runner of a run that outlives the daemon.
fn live(scene: &Scene<'_>, spec: &RunSpec) -> Child {
    let mut runner = scene.heeler();
    runner.arg("runner").arg(scene.dir().run(spec.run));
    runner.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut runner = runner.spawn().expect("the program was built");
    let path = std::env::var("PATH").unwrap_or_default();
    let brief = AgentLaunchSpec {
        protocol: PROTOCOL,
        prompt: String::new(),
        env: IndexMap::from([("PATH".to_owned(), path)]),
        secrets: Vec::new(),
        shared_secrets: Vec::new(),
        work: RuntimeLaunchSpec::Command { command: "exec sleep 600".to_owned() },
        send_files_to: None,
        authority: RunAuthority::default(),
        may_start_jobs: false,
        sandbox: None,
    };
    let stdin = runner.stdin.take().expect("it was asked for");
    serde_json::to_writer(stdin, &brief).expect("the runner reads its brief");
    runner
}

/// Leaves what a runner does that was killed while its agent worked.
fn die_at_work(scene: &Scene<'_>, spec: &RunSpec) {
    let dir = scene.dir();
    let session = spec.session.start.id().clone();
    let at = Timestamp::now();
    let log = dir
        .root()
        .join(heeler_store::StateDir::session_log_relative(&spec.working_directory, &session));
    let row = json!({ "type": "system", "timestamp": at.to_string(), "content": "at work" });
    std::fs::write(&spec.job_log, format!("{row}\n")).expect("disk has space");
    let started = RunStartRecord {
        protocol: PROTOCOL,
        run: spec.run,
        pid: i32::MAX as u32,
        at,
        session,
        session_log: log,
        socket: spec.sockets.join("gone.sock"),
        cgroup: None,
        job_rows_before: 0,
        session_rows_before: 0,
        own_sessions: None,
        agent_run: None,
    };
    let text = serde_json::to_vec(&started).expect("it is JSON");
    std::fs::write(dir.run(spec.run).join(file::STARTED), text).expect("disk has space");
}
