//! `kill -9` of an importing process at random moments: the next import completes it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use camino::Utf8Path;
use heeler_import::{ImportItemKind, adopt, import_herdctl};
use heeler_store::{JobFilter, StateDir, Store, StoreReader, is_adoptable};
use heeler_testkit::ProofSettings;

use super::{Place, now};

/// How many processes are killed in CI.
const KILLS: u64 = 20;

/// How many jobs the source holds: enough for several batches of writes.
const JOBS: usize = 50;

/// What the child does: `import SOURCE STATE` or `adopt STATE`.
const TASK: &str = "HEELER_IMPORT_TASK";

fn fill(jobs: &Utf8Path) {
    std::fs::create_dir_all(jobs).unwrap();
    for number in 0..JOBS {
        let id = format!("job-2026-01-01-{number:06}");
        let yaml = format!(
            "id: {id}\nagent: coder\nstatus: completed\nstarted_at: 2026-01-01T00:00:00.000Z\n"
        );
        std::fs::write(jobs.join(format!("{id}.yaml")), yaml).unwrap();
        std::fs::write(jobs.join(format!("{id}.jsonl")), format!("{{\"n\":{number}}}\n")).unwrap();
    }
}

/// The process that is killed; without a task it has nothing to do.
#[test]
fn child_that_imports() {
    #[expect(clippy::disallowed_methods, reason = "the parent says by it what to do")]
    let Ok(task) = std::env::var(TASK) else { return };
    match task.split(' ').collect::<Vec<_>>()[..] {
        ["import", source, state] => {
            let dir = StateDir::create(Utf8Path::new(state)).unwrap();
            let store = Store::open(&dir, "import", now()).unwrap().store;
            import_herdctl(&store, Utf8Path::new(source), now()).unwrap();
        }
        ["adopt", state] => drop(adopt(Utf8Path::new(state), now()).unwrap()),
        _ => panic!("unknown task {task}"),
    }
}

/// Starts the child and kills it after `delay`; returns how long it lived if it ended by itself.
#[expect(clippy::disallowed_methods, reason = "the proof kills real processes")]
fn run_child(task: &str, delay: Option<Duration>) -> Duration {
    let started = Instant::now();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::child_that_imports", "--quiet"])
        .env(TASK, task)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    if let Some(delay) = delay {
        std::thread::sleep(delay);
        // It may have ended by itself, which is as good.
        drop(child.kill());
    }
    child.wait().unwrap();
    started.elapsed()
}

/// Kills a child at random moments; what `check` then finds wrong is told with the seed.
fn proof(check: impl Fn(&Place, u64, Duration)) {
    let proof = ProofSettings::new(KILLS);
    let place = Place::new();
    fill(&place.path("site/.herdctl/jobs"));
    let whole = run_child(&format!("import {} {}", place.path("site"), place.path("whole")), None);
    for kill in 0..proof.rounds {
        let delay = whole.mul_f64(proof.random(kill).f64());
        let checked = catch_unwind(AssertUnwindSafe(|| check(&place, kill, delay)));
        assert!(
            checked.is_ok(),
            "kill {kill} failed; repeat with HEELER_PROOF_SEED={}",
            proof.seed
        );
    }
}

fn assert_complete(root: &Utf8Path, source: &Utf8Path) {
    let dir = StateDir::open(root).unwrap();
    let reader = StoreReader::open(&dir).unwrap();
    assert_eq!(reader.count_jobs(&JobFilter::default()).unwrap(), JOBS as i64);
    assert_eq!(reader.integrity_faults().unwrap(), [""; 0]);
    for job in reader.jobs(&JobFilter::default(), None, 10_000).unwrap() {
        let name = format!("jobs/{}.jsonl", job.id);
        assert_eq!(
            std::fs::read(root.join(&name)).unwrap(),
            std::fs::read(source.join(&name)).unwrap()
        );
    }
}

#[test]
fn proof_a_killed_import_is_completed_by_the_next() {
    proof(|place, kill, delay| {
        let state = place.path(&format!("state-{kill}"));
        run_child(&format!("import {} {state}", place.path("site")), Some(delay));
        let store = Store::open(&StateDir::create(&state).unwrap(), "import", now()).unwrap().store;
        let report = import_herdctl(&store, &place.path("site"), now()).unwrap();
        assert_eq!(report.counts_for(ImportItemKind::Job).read, JOBS as u64);
        assert_eq!(report.counts_for(ImportItemKind::Job).refused, 0);
        drop(store);
        assert_complete(&state, &place.path("site/.herdctl"));
    });
}

#[test]
fn proof_a_killed_adoption_leaves_no_database_or_a_whole_one() {
    proof(|place, kill, delay| {
        let state = place.path(&format!("site-{kill}/.herdctl"));
        fill(&state.join("jobs"));
        run_child(&format!("adopt {state}"), Some(delay));
        if is_adoptable(&state) {
            adopt(&state, now()).unwrap().unwrap();
        }
        assert_complete(&state, &place.path("site/.herdctl"));
    });
}
