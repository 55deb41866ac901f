//! Workflows: how soon the next phase begins, how many phases a second, long runs, and lists.
//!
//! The alternative is a sequential Node.js runner that keeps its state by better-sqlite3 in the
//! documented schema of Last Light.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_engine::{
    CommandReply, DaemonCommand as Order, WorkflowMode, WorkflowOperation, WorkflowRunRequest,
};
use heeler_model::workflow::WorkflowRunStatus;
use heeler_model::{ApprovalAnswer, ApprovalStatus, TriggerType, WorkflowRunId};
use heeler_server::DaemonClient;
use heeler_store::{
    ApprovalFilter, DatabaseError, StateDir, Store, StoreReader, WorkflowRunFilter,
    WorkflowRunHead, WorkflowRunRow,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value as Json, json};

use crate::scene::{Daemon, Scene, Side, until};
use crate::{Amount, Bench, Figure, Goal, median};

/// A run with the most phases there may be.
const PHASES: usize = 10_000;
/// What the alternative is given instead: its time grows with the square.
const NODE_PHASES: usize = 2_000;
/// How often a long run is done.
const ROUNDS: usize = 15;
const GATES: usize = 200;
const PROCESSES: usize = 400;
const AT_ONCE: usize = 8;
/// How many phases with a process stand at each end of a run of so many phases.
const AT_EACH_END: usize = 100;
/// How much longer than one fdatasync the next phase may take.
const ABOVE_SYNC: Duration = Duration::from_millis(3);
const RUNS: u64 = 100_000;
const HEAVY_RUNS: u64 = 1_000;
const HEAVY_BYTES: usize = 1_000_000;
const RUNS_PER_COMMIT: u64 = 250;

pub(crate) fn figures(bench: &Bench) -> Vec<Figure> {
    let mut figures = next_phase(bench);
    figures.extend(long_run(bench));
    figures.push(processes(bench));
    figures.push(processes_at_both_ends(bench));
    figures.push(newest_runs(bench));
    figures
}

/// A daemon with one workflow.
struct Stage<'a> {
    /// Holds the folder of the socket.
    _scene: Scene<'a>,
    daemon: Daemon,
    client: DaemonClient,
    reader: StoreReader,
}

impl<'a> Stage<'a> {
    fn new(bench: &'a Bench, name: &str, workflow: &Json) -> Stage<'a> {
        let scene = Scene::new(bench, name, 1, |_| String::new());
        let folder = scene.root.join("workflows");
        std::fs::create_dir(&folder).expect("disk has space");
        std::fs::write(folder.join("flow.yaml"), workflow.to_string()).expect("disk has space");
        let daemon = scene.start(Side::Ours);
        let (client, reader) = (daemon.client(), StoreReader::open(&scene.dir()));
        Stage { _scene: scene, daemon, client, reader: reader.expect("the database opens") }
    }

    fn run(&mut self) -> WorkflowRunId {
        let order = WorkflowOperation::Run(WorkflowRunRequest {
            workflow: "flow".to_owned(),
            inputs: Map::new(),
            trigger_id: None,
            trigger: TriggerType::Manual,
            mode: WorkflowMode::Real,
            subject: None,
        });
        let order = Order::Workflow { order, by: "the bench".to_owned() };
        match self.client.send_command(&order, None) {
            Ok(CommandReply::WorkflowRun { run, .. }) => run,
            other => panic!("{other:?}"),
        }
    }

    /// Follows a run to its end; returns after which time how many entries were on record.
    fn follow(&mut self) -> Vec<(f64, f64)> {
        let start = Instant::now();
        let run = self.run();
        let mut points = vec![(0.0, 0.0)];
        let ended = until(Duration::from_micros(500), || {
            let row = self.reader.workflow_run(&run).expect("it is read").expect("it is there");
            points.push((start.elapsed().as_secs_f64(), row.seq as f64));
            row.head.status.is_final().then_some(row.head)
        });
        let head = ended.expect("it ends in time");
        assert_eq!(head.status, WorkflowRunStatus::Succeeded, "{:?}", head.error);
        points.dedup_by(|after, before| after.1 == before.1);
        points
    }
}

/// Returns when so many entries were on record, by the points around.
fn moment_of(points: &[(f64, f64)], entries: f64) -> f64 {
    let after = points.partition_point(|(_, seq)| *seq < entries).min(points.len() - 1);
    let ((from, seq), (to, more)) = (points[after.saturating_sub(1)], points[after]);
    if more <= seq { to } else { from + (to - from) * ((entries - seq) / (more - seq)).min(1.0) }
}

fn workflow(phases: Vec<Json>) -> Json {
    json!({ "name": "flow", "max_parallel": AT_ONCE, "phases": phases })
}

/// A phase that waits for the one before.
fn context(place: usize) -> Json {
    let on: Vec<String> = place.checked_sub(1).map(|on| format!("p{on}")).into_iter().collect();
    json!({ "name": format!("p{place}"), "type": "context", "depends_on": on })
}

/// From the answer that ends a phase to the commit with which the next one has begun.
fn next_phase(bench: &Bench) -> Vec<Figure> {
    let gate = |place| {
        let mut phase = context(place);
        phase["approval_gate"] = json!("go");
        phase
    };
    let mut stage = Stage::new(bench, "gates", &workflow((0..GATES).map(gate).collect()));
    let run = stage.run();
    let page = vec![7_u8; 4096];
    let path = bench.folder.join("synced");
    let file = File::create(&path).expect("disk has space");
    file.write_all_at(&page, 0).expect("disk has space");
    file.sync_all().expect("disk has space");
    let (mut syncs, mut answers) = (Vec::new(), Vec::new());
    let filter =
        ApprovalFilter { run: Some(run.to_string()), status: Some(ApprovalStatus::Pending) };
    for _ in 0..GATES {
        let start = Instant::now();
        file.write_all_at(&page, 0).expect("disk has space");
        file.sync_data().expect("disk has space");
        syncs.push(start.elapsed());
        let mut waiting = stage.reader.approvals(&filter, None, 1).expect("it is read");
        let approval = waiting.pop().expect("the phase before has asked").id;
        let answer = ApprovalAnswer { approve: true, ..ApprovalAnswer::default() };
        let order = Order::Approval { approval, answer, by: "the bench".to_owned() };
        let start = Instant::now();
        stage.client.send_command(&order, None).expect("it counts");
        answers.push(start.elapsed());
    }
    stage.daemon.stop();
    syncs.sort_unstable();
    answers.sort_unstable();
    let (sync, ours) = (syncs[GATES / 2], answers[GATES / 2]);
    let theirs = |phases: &str, full: &[&str]| {
        let database = bench.folder.join("runner.db");
        let args = [&[database.as_str(), phases, "-", "p50"][..], full].concat();
        bench.node("workflow-runner.mjs", &args)
    };
    vec![
        Figure {
            what: "one fdatasync, p50".to_owned(),
            ours: sync.into(),
            goal: Goal::None,
            alternative: None,
        },
        Figure {
            what: "answer to next context phase on record, p50".to_owned(),
            ours: ours.into(),
            goal: Goal::AtMost((sync + ABOVE_SYNC).into()),
            alternative: Some(("node runner, synced".to_owned(), theirs("200", &["FULL"]).into())),
        },
    ]
}

/// Ten thousand phases that nobody works at.
fn long_run(bench: &Bench) -> Vec<Figure> {
    let mut stage = Stage::new(bench, "contexts", &workflow((0..PHASES).map(context).collect()));
    // A few syncs of a busy disk make most of a thousand phases.
    let rounds: Vec<[f64; 3]> = (0..ROUNDS)
        .map(|_| {
            let points = stage.follow();
            let (end, count) = *points.last().expect("it has ended");
            // The first commit comes with the answer to the order.
            let first = points[1].1;
            let early = moment_of(&points, first + 1_000.0) - moment_of(&points, first);
            let late = moment_of(&points, count) - moment_of(&points, count - 1_000.0);
            [end, early, late]
        })
        .collect();
    stage.daemon.stop();
    let middle = |which: usize| {
        let mut all: Vec<f64> = rounds.iter().map(|round| round[which]).collect();
        all.sort_by(f64::total_cmp);
        all[ROUNDS / 2]
    };
    let (rate, ratio) = (PHASES as f64 / middle(0), middle(2) / middle(1));
    let database = bench.folder.join("runner.db");
    let theirs = |what: &str| {
        bench.node_number(
            "workflow-runner.mjs",
            &[database.as_str(), &NODE_PHASES.to_string(), "-", what],
        )
    };
    vec![
        Figure {
            what: "10,000 context phases".to_owned(),
            ours: Amount::PerSecond(rate),
            goal: Goal::AtLeast(Amount::PerSecond(1_000.0)),
            alternative: Some((
                "node runner, 2,000 unsynced".to_owned(),
                Amount::PerSecond(NODE_PHASES as f64 / theirs("total")),
            )),
        },
        Figure {
            what: "the same: last 1,000 to first 1,000".to_owned(),
            ours: Amount::Times(ratio),
            goal: Goal::AtMost(Amount::Times(1.2)),
            alternative: Some((
                "node runner, 200 of 2,000".to_owned(),
                Amount::Times(theirs("ratio")),
            )),
        },
    ]
}

fn bash(name: String, on: Vec<String>) -> Json {
    json!({ "name": name, "type": "bash", "command": "true", "depends_on": on })
}

fn processes(bench: &Bench) -> Figure {
    let phases = (0..PROCESSES).map(|place| bash(format!("p{place}"), Vec::new())).collect();
    let mut stage = Stage::new(bench, "processes", &workflow(phases));
    let points = stage.follow();
    stage.daemon.stop();
    let (end, _) = *points.last().expect("it has ended");
    let database = bench.folder.join("runner.db");
    let args = [database.as_str(), &PROCESSES.to_string(), "true", "total"];
    let theirs = bench.node_number("workflow-runner.mjs", &args);
    let rate = |seconds: f64| Amount::PerSecond(PROCESSES as f64 / seconds);
    Figure {
        what: format!("phases with a process each, {AT_ONCE} at once"),
        ours: rate(end),
        goal: Goal::AtLeast(Amount::PerSecond(80.0)),
        alternative: Some(("node runner, one at a time".to_owned(), rate(theirs))),
    }
}

/// Processes before and after thousands of other phases, in one run.
fn processes_at_both_ends(bench: &Bench) -> Figure {
    let last = PHASES - AT_EACH_END;
    let names = |from: usize| -> Vec<String> {
        (from..from + AT_EACH_END).map(|it| format!("p{it}")).collect()
    };
    let phases = (0..PHASES).map(|place| match place {
        0..AT_EACH_END => bash(format!("p{place}"), Vec::new()),
        AT_EACH_END => {
            json!({ "name": format!("p{place}"), "type": "context", "depends_on": names(0) })
        }
        _ if place < last => context(place),
        _ => bash(format!("p{place}"), vec![format!("p{}", last - 1)]),
    });
    let mut stage = Stage::new(bench, "both-ends", &workflow(phases.collect()));
    let points = stage.follow();
    stage.daemon.stop();
    let (end, _) = *points.last().expect("it has ended");
    let early = moment_of(&points, AT_EACH_END as f64) - moment_of(&points, AT_ONCE as f64);
    let late_from = moment_of(&points, (last + AT_ONCE) as f64);
    let late = moment_of(&points, PHASES as f64) - late_from;
    assert!(end >= late, "it was followed to its end");
    Figure {
        what: "a process each, after 9,900 phases to before".to_owned(),
        ours: Amount::Times(late / early),
        goal: Goal::AtMost(Amount::Times(1.2)),
        alternative: None,
    }
}

fn newest_runs(bench: &Bench) -> Figure {
    let folder = bench.folder.join("100k-workflow-runs");
    let dir = StateDir::create(&folder.join(".heeler")).expect("disk has space");
    let filter = WorkflowRunFilter::default();
    let there = StoreReader::open(&dir).ok().and_then(|db| db.count_workflow_runs(&filter).ok());
    if there != Some(RUNS as i64) {
        drop(std::fs::remove_dir_all(&folder));
        fill(&StateDir::create(&folder.join(".heeler")).expect("disk has space"));
    }
    let reader = StoreReader::open(&dir).expect("the database opens");
    let ours = median(2_000, || {
        let heads = reader.workflow_runs(&filter, None, 20).expect("the list is read");
        assert_eq!(heads.len(), 20);
    });
    let seed: Utf8PathBuf = bench.folder.join("seed-workflow-runs.db");
    let (runs, heavy) = (RUNS.to_string(), HEAVY_RUNS.to_string());
    let theirs = bench.node("workflow-runs.mjs", &[seed.as_str(), &runs, &heavy, "2000"]);
    Figure {
        what: "newest 20 of 100k workflow runs".to_owned(),
        ours: ours.into(),
        goal: Goal::AtMost(Duration::from_micros(300).into()),
        alternative: Some(("better-sqlite3".to_owned(), theirs.into())),
    }
}

/// Makes runs that have ended; the newest have a large scratch.
fn fill(dir: &StateDir) {
    let start = Timestamp::from_second(1_700_000_000).expect("a legal time");
    let store = Store::open(dir, "bench", start).expect("the store opens").store;
    for first in (0..RUNS).step_by(RUNS_PER_COMMIT as usize) {
        let written = store.write(move |tx| -> Result<(), DatabaseError> {
            for number in first..RUNS.min(first + RUNS_PER_COMMIT) {
                tx.insert_workflow_run(&past_run(number, start))?.expect("its trigger is its own");
            }
            Ok(())
        });
        written.expect("runs are inserted");
    }
}

fn past_run(number: u64, start: Timestamp) -> WorkflowRunRow {
    let at = start + SignedDuration::from_mins(number as i64);
    let mut scratch = Map::new();
    if number >= RUNS - HEAVY_RUNS {
        scratch.insert("notes".to_owned(), Json::from("x".repeat(HEAVY_BYTES)));
    }
    WorkflowRunRow {
        head: WorkflowRunHead {
            id: WorkflowRunId::mint(at, number),
            workflow: format!("flow-{}", number % 10),
            trigger_id: format!("issue-{number}"),
            trigger_type: Some("manual".to_owned()),
            current_phase: "review".to_owned(),
            status: WorkflowRunStatus::Succeeded,
            restart_count: 0,
            started_at: at,
            updated_at: at,
            finished_at: Some(at),
            spent: 12_300,
            origin: None,
            error: None,
            mode: None,
            owner: None,
            repo: None,
            issue_number: None,
        },
        version: 1,
        seq: 9,
        definition: None,
        triggered_by: None,
        trigger_actor_type: None,
        context: json!({}),
        scratch,
    }
}
