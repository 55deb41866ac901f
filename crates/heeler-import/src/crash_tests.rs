//! Tests that interrupt imports and adoptions at each of their writes and then repeat them.

use camino::{Utf8Path, Utf8PathBuf};
use heeler_store::{JobFilter, SessionFilter, StateDir, Store, StoreReader, is_adoptable};
use heeler_transcript::fault;
use jiff::Timestamp;

use super::{
    ImportError, ImportReport, adopt, import_agents_fleet, import_herdctl, import_lastlight,
    rebuild,
};

/// More writes than any of these tests needs.
const WRITES_MAX: u64 = 400;

fn now() -> Timestamp {
    "2026-11-15T12:00:00Z".parse().unwrap()
}

fn temp() -> (tempfile::TempDir, Utf8PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::from_path_buf(temp.path().canonicalize().unwrap()).unwrap();
    (temp, path)
}

fn fixture(name: &str, to: &Utf8Path) {
    let from = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    copy_tree(&from, to);
}

fn copy_tree(from: &Utf8Path, to: &Utf8Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in from.read_dir_utf8().unwrap().flatten() {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_tree(entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), &target).unwrap()),
        }
    }
}

/// Lists everything in a directory that a user would miss: rows, and files with their content.
fn content(root: &Utf8Path) -> Vec<String> {
    let dir = StateDir::open(root).unwrap();
    let reader = StoreReader::open(&dir).unwrap();
    let mut lines = Vec::new();
    for head in reader.jobs(&JobFilter::default(), None, 1000).unwrap() {
        lines.push(format!("{:?}", reader.job(&head.id).unwrap()));
    }
    for session in reader.sessions(&SessionFilter::default(), None, 1000).unwrap() {
        let log = session.log_path.as_ref().map(|log| std::fs::read(dir.root().join(log)).unwrap());
        lines.push(format!("{session:?} {log:?}"));
    }
    lines.push(format!("{:?}", reader.agents().unwrap()));
    assert_eq!(reader.integrity_faults().unwrap(), [""; 0]);
    for folder in ["jobs", "sessions", "docker-sessions", "session-metadata", "logs"] {
        let entries = root.join(folder).read_dir_utf8().into_iter().flatten().flatten();
        for entry in entries.filter(|entry| !entry.file_name().starts_with('.')) {
            lines.push(format!(
                "{folder}/{} {:?}",
                entry.file_name(),
                std::fs::read(entry.path()).ok()
            ));
        }
    }
    lines.sort();
    lines.iter().map(|line| line.replace(root.as_str(), "ROOT")).collect()
}

/// Interrupts `import` at every write in turn, repeats it, and compares the result with an
/// uninterrupted import.
fn check(import: impl Fn(&Store) -> Result<ImportReport, ImportError>) {
    let (_temp, root) = temp();
    let whole = root.join("whole");
    let store = open(&whole);
    import(&store).unwrap();
    drop(store);
    let expected = content(&whole);
    for writes in 0..WRITES_MAX {
        let cut = root.join(format!("cut-{writes}"));
        let store = open(&cut);
        fault::fail_after(writes);
        let first = import(&store);
        fault::never_fail();
        if first.is_err() {
            import(&store).unwrap();
        }
        let last = import(&store).unwrap();
        assert_eq!(last.total().imported, 0, "after {writes} writes");
        drop(store);
        pretty_assert(&content(&cut), &expected, writes);
        std::fs::remove_dir_all(&cut).unwrap();
        if first.is_ok() {
            assert!(writes > 5, "the faults were met");
            return;
        }
    }
    panic!("the import never came to its end");
}

#[track_caller]
fn pretty_assert(found: &[String], expected: &[String], writes: u64) {
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found, expected, "after {writes} writes");
    }
    assert_eq!(found.len(), expected.len(), "after {writes} writes");
}

fn open(path: &Utf8Path) -> Store {
    Store::open(&StateDir::create(path).unwrap(), "import", now()).unwrap().store
}

#[test]
fn an_import_from_herdctl_that_was_cut_off_is_completed_by_the_next() {
    let (_temp, root) = temp();
    fixture("herdctl", &root.join(".herdctl"));
    check(|store| import_herdctl(store, &root, now()));
}

#[test]
fn an_import_from_agents_fleet_that_was_cut_off_is_completed_by_the_next() {
    let (_temp, root) = temp();
    fixture("agents-fleet", &root.join("sessions"));
    check(|store| import_agents_fleet(store, &store.dir().root().join("home"), &root, now()));
}

#[test]
fn an_import_from_last_light_that_was_cut_off_is_completed_by_the_next() {
    let (_temp, root) = temp();
    let script = include_str!("../tests/import/lastlight_seed.sql");
    #[expect(clippy::disallowed_methods, reason = "makes another system's database")]
    let db = rusqlite::Connection::open(root.join("lastlight.db")).unwrap();
    db.execute_batch(script).unwrap();
    drop(db);
    let logs = root.join("agent-sessions/projects/-app");
    std::fs::create_dir_all(&logs).unwrap();
    std::fs::write(logs.join("aaaa0003-0000-4000-8000-000000000003.jsonl"), "{}\n").unwrap();
    check(|store| import_lastlight(store, &root, now()));
}

#[test]
fn an_adoption_that_was_cut_off_leaves_no_database_or_a_whole_one() {
    let (_temp, root) = temp();
    let whole = root.join("whole");
    fixture("herdctl", &whole);
    adopt(&whole, now()).unwrap().unwrap();
    let expected = content(&whole);
    for writes in 0..WRITES_MAX {
        let cut = root.join(format!("cut-{writes}"));
        fixture("herdctl", &cut);
        fault::fail_after(writes);
        let first = adopt(&cut, now());
        fault::never_fail();
        assert_eq!(cut.join("heeler.db").exists(), first.is_ok(), "after {writes} writes");
        assert!(!cut.join("heeler.db-wal").exists());
        if first.is_ok() {
            assert!(writes > 5, "the faults were met");
            pretty_assert(&content(&cut), &expected, writes);
            return;
        }
        assert!(is_adoptable(&cut));
        adopt(&cut, now()).unwrap().unwrap();
        pretty_assert(&content(&cut), &expected, writes);
        std::fs::remove_dir_all(&cut).unwrap();
    }
    panic!("the adoption never came to its end");
}

#[test]
fn a_rebuild_that_was_cut_off_leaves_the_old_database_or_is_completed() {
    let (_temp, root) = temp();
    for writes in 0..WRITES_MAX {
        let cut = root.join(format!("cut-{writes}"));
        fixture("herdctl", &cut);
        adopt(&cut, now()).unwrap();
        let store = open(&cut);
        store.backup_daily(now()).unwrap().unwrap();
        drop(store);
        let jobs = |root: &Utf8Path| {
            let dir = StateDir::open(root).unwrap();
            // The first process that opens the store completes the interrupted rebuild.
            drop(Store::open(&dir, "test", now()).unwrap());
            let reader = StoreReader::open(&dir).unwrap();
            assert_eq!(reader.integrity_faults().unwrap(), [""; 0]);
            reader.count_jobs(&JobFilter::default()).unwrap()
        };
        let before = jobs(&cut);
        fault::fail_after(writes);
        let first = rebuild(&cut, now());
        fault::never_fail();
        assert_eq!(jobs(&cut), before, "after {writes} writes");
        assert!(!cut.join("rebuild.json").exists());
        std::fs::remove_dir_all(&cut).unwrap();
        if first.is_ok() {
            assert!(writes > 5, "the faults were met");
            return;
        }
    }
    panic!("the rebuild never came to its end");
}
