//! Tests of restores, adoptions and rebuilds that run at the same time, or after one that was
//! interrupted.

use std::panic::{AssertUnwindSafe, catch_unwind};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_import::{AdoptError, ImportItemKind, RebuildError, adopt, import_herdctl, rebuild};
use heeler_model::{
    AgentState, Job, JobId, JobStatus, Session, SessionId, SessionMode, SessionStatus, TriggerType,
};
use heeler_store::{
    DatabaseError, JobFilter, RestoreReport, SessionFilter, StateDir, Store, StoreReader,
    StoreTransaction, backup_to_file, is_adoptable, restore_from_file,
};
use heeler_transcript::{LockFile, LockHolder, fault};
use jiff::{SignedDuration, Timestamp};

use super::copy_tree;

/// More writes than any of these needs.
const WRITES_MAX: u64 = 400;

/// A state directory of its own, gone with the test.
struct RecoveryTestDir {
    _temp: tempfile::TempDir,
    root: Utf8PathBuf,
    dir: StateDir,
}

fn place() -> RecoveryTestDir {
    let temp = tempfile::tempdir().unwrap();
    let root = Utf8PathBuf::from_path_buf(temp.path().to_owned()).unwrap().join(".heeler");
    let dir = StateDir::create(&root).unwrap();
    RecoveryTestDir { _temp: temp, root, dir }
}

impl RecoveryTestDir {
    fn store(&self) -> Store {
        Store::open(&self.dir, "test", now()).unwrap().store
    }

    fn reader(&self) -> StoreReader {
        StoreReader::open(&self.dir).unwrap()
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.root.join(path)).unwrap()
    }

    fn write(&self, path: &str, text: &str) {
        std::fs::write(self.root.join(path), text).unwrap();
    }

    fn has(&self, path: &str) -> bool {
        self.root.join(path).symlink_metadata().is_ok()
    }
}

fn now() -> Timestamp {
    "2026-11-15T00:48:57.120Z".parse().unwrap()
}

/// A moment so many seconds after [`now`].
fn later(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

fn job_id(number: u64) -> JobId {
    JobId::mint(now(), number)
}

/// The `number`th job of a test, asked for `number` seconds after the first.
fn job(number: u64, agent: &str, status: JobStatus) -> Job {
    let at = later(i64::try_from(number).unwrap());
    let mut job = Job::new_pending(job_id(number), agent, TriggerType::Manual, at);
    job.head.status = status;
    job
}

fn session(number: u32, agent: &str) -> Session {
    Session {
        agent_session_id: Some(format!("agent-session-{number}").parse().unwrap()),
        mode: SessionMode::Persistent,
        status: SessionStatus::Paused,
        last_active_at: later(i64::from(number)),
        message_count: 47,
        token_estimate: 32000,
        job_count: 3,
        working_directory: Some("/home/me/project".into()),
        runtime: "sdk".to_owned(),
        ..Session::new(SessionId::mint(number), agent, now())
    }
}

/// Commits a change that must succeed.
#[track_caller]
fn commit<T: Send + 'static>(
    store: &Store,
    work: impl FnOnce(&mut StoreTransaction<'_>) -> Result<T, DatabaseError> + Send + 'static,
) -> T {
    store.write(work).unwrap()
}

#[track_caller]
fn insert_jobs(store: &Store, jobs: Vec<Job>) {
    commit(store, move |tx| jobs.iter().try_for_each(|job| tx.insert_job(job)));
}

/// A state with two jobs, and its archive.
fn archived() -> (RecoveryTestDir, Utf8PathBuf) {
    let place = place();
    let store = place.store();
    insert_jobs(
        &store,
        vec![job(1, "coder", JobStatus::Completed), job(2, "coder", JobStatus::Failed)],
    );
    commit(&store, |tx| {
        tx.put_agent("coder", &AgentState::default())?;
        tx.set_meta("only", "in the database")
    });
    store.publish_views(now()).unwrap();
    drop(store);
    let file = place.root.parent().unwrap().join("fleet.tar");
    backup_to_file(&place.dir, &file, now(), &mut |_, _| {}).unwrap();
    (place, file)
}

#[track_caller]
fn restore(dir: &StateDir, file: &Utf8Path) -> RestoreReport {
    restore_from_file(dir, file, later(100), &mut |_, _| {}).unwrap()
}

#[track_caller]
fn is_whole(dir: &StateDir) {
    drop(Store::open(dir, "test", later(200)).unwrap());
    let reader = StoreReader::open(dir).unwrap();
    assert_eq!(reader.count_jobs(&JobFilter::default()).unwrap(), 2);
    assert_eq!(reader.meta("only").unwrap().as_deref(), Some("in the database"));
    assert_eq!(reader.integrity_faults().unwrap(), [""; 0]);
}

fn damage(place: &RecoveryTestDir) {
    place.write("heeler.db", &"not a database at all, but long enough to be read".repeat(99));
}

fn herdctl_directory() -> (tempfile::TempDir, Utf8PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let root = Utf8PathBuf::from_path_buf(temp.path().canonicalize().unwrap()).unwrap();
    let root = root.join("site/.herdctl");
    let fixture = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/herdctl");
    copy_tree(&fixture, &root);
    (temp, root)
}

#[test]
fn a_rebuild_that_was_cut_off_does_not_undo_a_later_restore() {
    let mut met = 0;
    for writes in 0..WRITES_MAX {
        let (place, file) = archived();
        let store = place.store();
        insert_jobs(&store, vec![job(3, "coder", JobStatus::Failed)]);
        drop(store);
        fault::fail_after(writes);
        let rebuilt = rebuild(&place.root, later(5));
        fault::never_fail();
        met += u32::from(place.has("rebuild.json"));
        restore(&place.dir, &file);
        is_whole(&place.dir);
        if rebuilt.is_ok() {
            assert!(met > 1, "it was cut off between its marker and its end");
            return;
        }
    }
    panic!("the rebuild never came to its end");
}

#[test]
fn a_restore_into_a_new_directory_is_not_met_by_an_adoption() {
    let (place, file) = archived();
    let fresh = place.root.parent().unwrap().join("fresh");
    let dir = StateDir::create(&fresh).unwrap();
    let mut refused = None;
    restore_from_file(&dir, &file, later(100), &mut |_, _| {
        if refused.is_none() && is_adoptable(&fresh) {
            refused = Some(adopt(&fresh, later(101)).unwrap_err());
        }
    })
    .unwrap();
    let Some(AdoptError::Locked { source, .. }) = refused else { panic!("{refused:?}") };
    assert!(source.to_string().contains("`heeler restore`"), "{source}");
    is_whole(&dir);
}

#[test]
fn neither_an_adoption_nor_a_rebuild_begins_while_a_restore_is_under_way() {
    let (_temp, root) = herdctl_directory();
    let dir = StateDir::open(&root).unwrap();
    let holder = LockHolder::this_process("restore", now());
    let wait = std::time::Duration::ZERO;
    let lock = LockFile::acquire(&dir.restore_lock(), &holder, wait).unwrap();
    assert!(matches!(adopt(&root, now()), Err(AdoptError::Locked { .. })));
    let rebuilt = rebuild(&root, now());
    assert!(matches!(rebuilt, Err(RebuildError::Locked(_))), "{rebuilt:?}");
    drop(lock);
    adopt(&root, now()).unwrap().unwrap();
}

#[test]
fn a_log_that_an_earlier_database_left_is_not_played_into_an_adopted_or_restored_one() {
    let (place, file) = archived();
    let store = place.store();
    let mut jobs: Vec<_> = (10..300).map(|n| job(n, "x", JobStatus::Completed)).collect();
    jobs.iter_mut().for_each(|job| job.prompt = Some("x".repeat(3000)));
    insert_jobs(&store, jobs);
    let log = std::fs::read(place.root.join("heeler.db-wal")).unwrap();
    drop(store);
    std::fs::remove_file(place.dir.database()).unwrap();
    place.write("heeler.db-journal", "stale");
    std::fs::write(place.root.join("heeler.db-wal"), &log).unwrap();
    restore(&place.dir, &file);
    is_whole(&place.dir);

    let (_temp, root) = herdctl_directory();
    std::fs::write(root.join("heeler.db-wal"), &log).unwrap();
    adopt(&root, now()).unwrap().unwrap();
    let reader = StoreReader::open(&StateDir::open(&root).unwrap()).unwrap();
    assert_eq!(reader.integrity_faults().unwrap(), [""; 0]);
    assert_eq!(reader.jobs(&JobFilter::default(), None, 1000).unwrap().len(), 5);
    let kept = root.join("trash/2026-11-15T00-48-57Z-database/heeler.db-wal");
    assert_eq!(std::fs::read(kept).unwrap(), log, "it is in the trash");
}

#[test]
fn a_damaged_database_stays_in_its_place_until_all_files_are_back() {
    let (place, file) = archived();
    damage(&place);
    let pass = std::fs::metadata(&file).unwrap().len();
    let killed = catch_unwind(AssertUnwindSafe(|| {
        restore_from_file(&place.dir, &file, later(9), &mut |done, _| assert!(done <= pass))
    }));
    assert!(killed.is_err());
    assert!(place.read("heeler.db").starts_with("not a database"));
    restore(&place.dir, &file);
    is_whole(&place.dir);
}

#[test]
fn a_restore_over_a_damaged_database_that_was_cut_off_leaves_the_old_or_the_new() {
    let mut completed = 0;
    for writes in 0..WRITES_MAX {
        let (place, file) = archived();
        damage(&place);
        fault::fail_after(writes);
        let restored = restore_from_file(&place.dir, &file, later(9), &mut |_, _| {});
        fault::never_fail();
        if place.has("rebuild.json") {
            // The next process completes it.
            if completed % 2 == 0 {
                rebuild(&place.root, later(10)).unwrap();
            }
            is_whole(&place.dir);
            completed += 1;
        } else if restored.is_err() {
            assert!(place.read("heeler.db").starts_with("not a database"));
        }
        if let Ok(report) = restored {
            assert!(std::fs::read(report.damaged.unwrap()).unwrap().starts_with(b"not a data"));
            is_whole(&place.dir);
            assert!(completed > 2, "the faults were met");
            return;
        }
        restore(&place.dir, &file);
        is_whole(&place.dir);
    }
    panic!("the restore never came to its end");
}

/// Adopts herdctl's state and returns the log of a session that came with it.
fn imported_log(root: &Utf8Path) -> Utf8PathBuf {
    let reader = StoreReader::open(&StateDir::open(root).unwrap()).unwrap();
    let sessions = reader.sessions(&SessionFilter::default(), None, 100).unwrap();
    let mut logs = sessions.into_iter().filter_map(|session| session.log_path);
    root.join(logs.find(|log| log.as_str().contains("-herdctl")).unwrap())
}

#[test]
fn a_transcript_that_went_on_since_its_adoption_is_not_replaced_by_another_or_a_rebuild() {
    for again in [
        |root: &Utf8Path| drop(rebuild(root, later(5)).unwrap()),
        |root: &Utf8Path| drop(adopt(root, later(5)).unwrap().unwrap()),
    ] {
        let (_temp, root) = herdctl_directory();
        adopt(&root, now()).unwrap().unwrap();
        let log = imported_log(&root);
        let mut writer =
            heeler_transcript::TranscriptWriter::open(&log, Default::default()).unwrap().writer;
        writer.append(br#"{"text":"seen since"}"#).unwrap();
        std::fs::remove_file(root.join("heeler.db")).unwrap();
        again(&root);
        writer.append(br#"{"text":"acknowledged later"}"#).unwrap();
        writer.close().unwrap();
        let text = std::fs::read_to_string(&log).unwrap();
        assert!(text.contains("seen since") && text.contains("acknowledged later"), "{text}");
        assert_eq!(imported_log(&root), log, "its session still names it");
    }
}

#[test]
fn a_transcript_that_went_on_since_its_import_is_kept_by_an_import_after_a_restore() {
    let (place, file) = archived();
    let (_temp, source) = herdctl_directory();
    let store = place.store();
    import_herdctl(&store, &source, now()).unwrap();
    let log = imported_log(&place.root);
    let mut writer =
        heeler_transcript::TranscriptWriter::open(&log, Default::default()).unwrap().writer;
    writer.append(br#"{"text":"seen since"}"#).unwrap();
    drop(store);
    restore(&place.dir, &file);
    import_herdctl(&place.store(), &source, later(200)).unwrap();
    writer.append(br#"{"text":"acknowledged later"}"#).unwrap();
    writer.close().unwrap();
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains("seen since") && text.contains("acknowledged later"), "{text}");
    assert_eq!(imported_log(&place.root), log, "its session still names it");
}

#[test]
fn a_session_with_logs_in_two_projects_is_rebuilt_once() {
    let (place, _file) = archived();
    for project in ["-p", "-q"] {
        let project = place.dir.projects().join(project);
        std::fs::create_dir_all(&project).unwrap();
        std::fs::write(project.join("0198c0de-1111.jsonl"), "{}\n").unwrap();
    }
    let report = rebuild(&place.root, later(5)).unwrap().report;
    let tally = report.counts_for(ImportItemKind::Session);
    assert_eq!((tally.imported, tally.existing), (1, 1));
    let id = "0198c0de-1111".parse().unwrap();
    let session = place.reader().session_by_agent_id(&id).unwrap().unwrap();
    assert_eq!(session.log_path.unwrap(), "agent-sessions/projects/-p/0198c0de-1111.jsonl");
}

#[test]
fn a_view_that_was_still_due_does_not_undo_the_end_of_a_job_in_a_rebuild() {
    let place = place();
    let store = place.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Running)]);
    store.publish_views(now()).unwrap();
    let mut job = place.reader().job(&job_id(1)).unwrap().unwrap();
    job.head.status = JobStatus::Completed;
    job.head.finished_at = Some(later(5));
    commit(&store, move |tx| tx.update_job(&job));
    store.backup_daily(later(6)).unwrap().unwrap();
    drop(store);
    damage(&place);
    rebuild(&place.root, later(300)).unwrap();
    let job = place.reader().job(&job_id(1)).unwrap().unwrap();
    assert_eq!((job.head.status, job.head.finished_at), (JobStatus::Completed, Some(later(5))));
}

#[test]
fn a_view_of_a_later_attempt_counts_in_a_rebuild() {
    let place = place();
    let store = place.store();
    insert_jobs(&store, vec![job(1, "coder", JobStatus::Failed)]);
    store.backup_daily(now()).unwrap().unwrap();
    let mut job = place.reader().job(&job_id(1)).unwrap().unwrap();
    job.head.status = JobStatus::Running;
    job.restart_count = 1;
    commit(&store, move |tx| tx.update_job(&job));
    store.publish_views(now()).unwrap();
    drop(store);
    damage(&place);
    rebuild(&place.root, later(300)).unwrap();
    let job = place.reader().job(&job_id(1)).unwrap().unwrap();
    assert_eq!((job.head.status, job.restart_count), (JobStatus::Running, 1));
}

#[test]
fn the_file_of_an_agent_decides_its_session_in_a_rebuild() {
    // Session 2 is in the backup, but not as the agent's; session 3 came after it.
    for last in [2, 3] {
        let place = place();
        let store = place.store();
        commit(&store, |tx| {
            tx.put_session(&session(1, "coder"))?;
            tx.put_session(&session(2, "coder"))?;
            tx.set_agent_session("coder", Some(&SessionId::mint(1)))
        });
        store.publish_views(now()).unwrap();
        store.backup_daily(later(6)).unwrap().unwrap();
        commit(&store, move |tx| {
            if last == 3 {
                tx.put_session(&session(3, "coder"))?;
            }
            tx.set_agent_session("coder", Some(&SessionId::mint(last)))
        });
        store.publish_views(now()).unwrap();
        drop(store);
        damage(&place);
        rebuild(&place.root, later(300)).unwrap();
        drop(place.store());
        let own = place.reader().agent_session("coder").unwrap().unwrap();
        assert_eq!(own.id, SessionId::mint(last));
        let id = format!("agent-session-{last}");
        assert!(place.read("sessions/coder.json").contains(&id));
    }
}
