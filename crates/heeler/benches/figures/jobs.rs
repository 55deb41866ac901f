//! Lists of jobs, and whole commands as cold processes.

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{ExitReason, Job, JobId, JobStatus, TriggerType};
use heeler_store::{DatabaseError, JobFilter, StateDir, Store, StoreReader};
use jiff::{SignedDuration, Timestamp};

use crate::{Bench, Figure, Goal, median, process};

const SIZES: [(u64, &str); 3] = [(1_000, "1k"), (100_000, "100k"), (1_000_000, "1M")];
const YAML_JOBS: u64 = 10_000;
const JOBS_PER_COMMIT: u64 = 20_000;

pub(crate) fn figures(bench: &Bench) -> Vec<Figure> {
    let yaml = bench.node("yaml-jobs.mjs", &[yaml_folder(bench).as_str()]);
    let mut figures = Vec::new();
    for (count, name) in SIZES {
        let reader = StoreReader::open(&fleet(bench, count)).expect("the database opens");
        let ours = median(2_000, || {
            let heads = reader.jobs(&JobFilter::default(), None, 20).expect("the list is read");
            assert_eq!(heads.len(), 20);
        });
        let goal = Goal::AtMost(Duration::from_micros(200).into());
        let file = bench.folder.join(format!("seed-{name}.db"));
        let theirs = bench.node("sqlite-jobs.mjs", &[file.as_str(), &count.to_string(), "2000"]);
        figures.push(Figure {
            what: format!("newest 20 of {name} jobs"),
            ours: ours.into(),
            goal,
            alternative: Some(("better-sqlite3".to_owned(), theirs.into())),
        });
        if count == 100_000 {
            figures.push(Figure {
                what: "the same, beside files".to_owned(),
                ours: ours.into(),
                goal: Goal::AtMost(Duration::from_micros(200).into()),
                alternative: Some(("node parses 10k YAML files".to_owned(), yaml.into())),
            });
        }
    }
    figures.extend(commands(bench));
    figures
}

fn commands(bench: &Bench) -> Vec<Figure> {
    let folder = bench.folder.join("100k");
    let heeler = env!("CARGO_BIN_EXE_heeler");
    let node = process(20, "node", &["-e", "0"], &bench.folder);
    ["jobs", "status"]
        .map(|command| Figure {
            what: format!("`heeler {command}`, cold process, 100k jobs"),
            ours: process(50, heeler, &[command], &folder).into(),
            goal: Goal::AtMost(Duration::from_millis(15).into()),
            alternative: Some(("node -e 0".to_owned(), node.into())),
        })
        .into()
}

/// A fleet with so many finished jobs; made once.
fn fleet(bench: &Bench, count: u64) -> StateDir {
    let (_, name) = SIZES.into_iter().find(|(size, _)| *size == count).expect("a listed size");
    let folder = bench.folder.join(name);
    std::fs::create_dir_all(&folder).expect("disk has space");
    std::fs::write(folder.join("heeler.yaml"), "agents: []\n").expect("disk has space");
    let dir = StateDir::create(&folder.join(".heeler")).expect("disk has space");
    make(&dir, count);
    dir
}

/// Makes so many finished jobs, unless they are there.
pub(crate) fn make(dir: &StateDir, count: u64) {
    // An earlier release may have made them; a reader would refuse its schema.
    drop(Store::open(dir, "bench", start()).expect("the store opens"));
    let there =
        StoreReader::open(dir).ok().and_then(|db| db.count_jobs(&JobFilter::default()).ok());
    if there != Some(count as i64) {
        fill(dir, count);
    }
}

fn fill(dir: &StateDir, count: u64) {
    let store = Store::open(dir, "bench", start()).expect("the store opens").store;
    for first in (0..count).step_by(JOBS_PER_COMMIT as usize) {
        let written = store.write(move |tx| -> Result<(), DatabaseError> {
            for number in first..count.min(first + JOBS_PER_COMMIT) {
                tx.insert_job(&job(number))?;
            }
            Ok(())
        });
        written.expect("jobs are inserted");
    }
}

fn start() -> Timestamp {
    Timestamp::from_second(1_700_000_000).expect("a legal time")
}

pub(crate) fn job(number: u64) -> Job {
    let at = start() + SignedDuration::from_mins(number as i64);
    let id = JobId::mint(at, number);
    let mut job =
        Job::new_pending(id, &format!("agent-{}", number % 10), TriggerType::Schedule, at);
    job.head.schedule = Some("hourly".to_owned());
    job.head.status =
        if number.is_multiple_of(17) { JobStatus::Failed } else { JobStatus::Completed };
    job.head.exit_reason = Some(ExitReason::Success);
    job.head.finished_at = Some(at + SignedDuration::from_secs(90));
    job.head.duration_ms = Some(90_000);
    job.head.cost_usd = Some(0.0123);
    job.head.summary = Some(format!("Closed issue #{number} and opened a pull request."));
    job.prompt = Some("Check for ready issues and implement one.".to_owned());
    job
}

/// A folder of job files as herdctl keeps them.
fn yaml_folder(bench: &Bench) -> Utf8PathBuf {
    let folder = bench.folder.join("yaml-jobs");
    std::fs::create_dir_all(&folder).expect("disk has space");
    for number in 0..YAML_JOBS {
        let job = job(number);
        let path = folder.join(format!("{}.yaml", job.head.id));
        if !path.exists() {
            write_yaml(&path, &job);
        }
    }
    folder
}

fn write_yaml(path: &Utf8Path, job: &Job) {
    let head = &job.head;
    let text = format!(
        "id: {}\nagent: {}\nschedule: hourly\ntrigger_type: schedule\nstatus: {}\nexit_reason: success\n\
         session_id: null\nforked_from: null\nstarted_at: \"{}\"\nfinished_at: \"{}\"\nduration_seconds: 90\n\
         prompt: {}\nsummary: {}\noutput_file: {}.jsonl\n",
        head.id,
        head.agent,
        head.status,
        head.started_at,
        head.finished_at.expect("set above"),
        job.prompt.as_deref().unwrap_or_default(),
        head.summary.as_deref().unwrap_or_default(),
        head.id,
    );
    std::fs::write(path, text).expect("disk has space");
}
