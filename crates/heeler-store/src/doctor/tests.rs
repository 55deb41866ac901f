//! For each finding: make the damage, see it, cure it, see it gone.

mod record_checks;
mod waiting;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::{
    AgentState, AgentStatus, Job, JobId, JobStatus, RunId, ScheduleState, TriggerType,
};
use jiff::{SignedDuration, Timestamp};

use super::{
    DatabaseRebuild, Finding, FindingArea, FindingSeverity, RebuiltDatabase, examine, fix,
};
use crate::db::StateDatabase;
use crate::db::jobs::JobFilter;
use crate::db::runs::RunRecord;
use crate::idle_session::idle_session;
use crate::layout::StateDir;
use crate::reader::StoreReader;
use crate::staging::state_files::create_folder;
use crate::store::Store;
use heeler_transcript::{LockFile, LockHolder};

/// The fleet's one session.
const SESSION: &str = "sess-0000beef";

struct DoctorTestFleet {
    dir: StateDir,
    home: Utf8PathBuf,
    _temp: tempfile::TempDir,
}

fn now() -> Timestamp {
    "2026-11-15T12:00:00Z".parse().unwrap()
}

impl DoctorTestFleet {
    /// A fleet in good health: an agent, a finished job with its log, a session, a backup.
    fn new() -> DoctorTestFleet {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temp.path().canonicalize().unwrap()).unwrap();
        let dir = StateDir::create(&root.join(".heeler")).unwrap();
        let fleet = DoctorTestFleet { dir, home: root.join("home"), _temp: temp };
        let store = fleet.store();
        store
            .write(|tx| {
                let mut agent = AgentState::default();
                agent.schedules.insert("nightly".to_owned(), ScheduleState::default());
                tx.put_agent("coder", &agent)?;
                tx.insert_job(&job("job-2026-11-15-aaaaaa", JobStatus::Completed))?;
                let own = Some("5b7c2c0e".parse().expect("a plain id"));
                let mut session = idle_session("coder", own, now());
                session.id = SESSION.parse().expect("a session id");
                session.log_path = Some("agent-sessions/projects/-x/5b7c2c0e.jsonl".into());
                tx.put_session(&session)?;
                tx.set_agent_session("coder", Some(&session.id))
            })
            .unwrap();
        fleet.write("jobs/job-2026-11-15-aaaaaa.jsonl", "{\"type\":\"system\"}\n");
        fleet.write("agent-sessions/projects/-x/5b7c2c0e.jsonl", "{\"type\":\"user\"}\n");
        store.publish_views(now()).unwrap();
        store.backup_daily(now()).unwrap().unwrap();
        drop(store);
        let found = fleet.examine();
        assert!(found.is_empty(), "{found:#?}");
        fleet
    }

    fn store(&self) -> Store {
        Store::open(&self.dir, "test", now()).unwrap().store
    }

    fn path(&self, relative: &str) -> Utf8PathBuf {
        self.dir.root().join(relative)
    }

    fn write(&self, relative: &str, text: &str) {
        let path = self.path(relative);
        create_folder(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// Changes the database behind the store's back.
    fn sql(&self, sql: &str) {
        let db = StateDatabase::private(&self.dir.database()).unwrap();
        db.conn.run_batch(sql, "test").unwrap();
    }

    fn examine(&self) -> Vec<Finding> {
        // Old enough for temp files, young enough for backups.
        let touched = self.dir.root().metadata().unwrap().modified().unwrap();
        let later = Timestamp::try_from(touched).unwrap() + SignedDuration::from_hours(2);
        examine(self.dir.root(), Some(&self.home), later)
    }

    /// Expects exactly one finding, and returns it.
    #[track_caller]
    fn finds(&self, area: FindingArea, severity: FindingSeverity, problem: &str) -> Finding {
        let found = self.examine();
        assert_eq!(found.len(), 1, "{found:#?}");
        let finding = found.into_iter().next().unwrap();
        assert_eq!((finding.area, finding.severity), (area, severity), "{finding:#?}");
        assert!(finding.problem.contains(problem), "{finding:#?}");
        assert!(!finding.remedy.is_empty());
        finding
    }

    /// Applies all repairs and expects no findings afterwards.
    #[track_caller]
    fn fixes(&self) -> Vec<String> {
        let fixed = fix(self.dir.root(), &self.examine(), now());
        let done = fixed.into_iter().map(|fixed| fixed.outcome.unwrap()).collect();
        let left = self.examine();
        assert!(left.is_empty(), "{left:#?}");
        done
    }
}

fn job(id: &str, status: JobStatus) -> Job {
    let mut job = Job::new_pending(id.parse().unwrap(), "coder", TriggerType::Manual, now());
    job.head.status = status;
    job
}

fn run_of(job: &str, id: RunId) -> RunRecord {
    RunRecord {
        id,
        job_id: job.parse().unwrap(),
        attempt: 1,
        host: "here".to_owned(),
        epoch: 1,
        status: "running".to_owned(),
        created_at: now(),
        started_at: None,
        finished_at: None,
        committed: false,
        version: 1,
        result_key: None,
    }
}

#[test]
fn permissions_are_found_and_closed() {
    let fleet = DoctorTestFleet::new();
    fs::set_permissions(fleet.path("jobs"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(fleet.path("state.yaml"), fs::Permissions::from_mode(0o644)).unwrap();
    let finding = fleet.finds(FindingArea::Permissions, FindingSeverity::Warning, "other users");
    assert!(finding.subject.ends_with("and 1 more"), "{}", finding.subject);
    assert_eq!(fleet.fixes(), ["closed to others: 2 files"]);
}

#[test]
fn temp_files_are_found_and_removed() {
    let fleet = DoctorTestFleet::new();
    fleet.write("agent-sessions/.log.tmp.0123456789abcdef", "half");
    fleet.write(".import.tmp.0123456789abcdef/copy.db", "half");
    fleet.write("jobs/.hidden", "of the user");
    fs::set_permissions(
        fleet.path(".import.tmp.0123456789abcdef"),
        fs::Permissions::from_mode(0o700),
    )
    .unwrap();
    let holder = LockHolder::this_process("import", now());
    let importer =
        LockFile::acquire(&fleet.dir.lock(), &holder, std::time::Duration::ZERO).unwrap();
    fleet.finds(FindingArea::Locks, FindingSeverity::Note, "is held by");
    drop(importer);
    fleet.finds(FindingArea::TempFiles, FindingSeverity::Note, "half-written");
    assert_eq!(fleet.fixes(), ["removed: 2 files"]);
    assert!(fleet.path("jobs/.hidden").exists());
}

#[test]
fn a_torn_tail_is_found_and_cut_but_not_under_a_writer() {
    let fleet = DoctorTestFleet::new();
    let log = fleet.path("jobs/job-2026-11-15-aaaaaa.jsonl");
    fs::write(&log, "{\"type\":\"system\"}\n{\"type\":\"assi").unwrap();
    let finding =
        fleet.finds(FindingArea::Transcripts, FindingSeverity::Warning, "middle of a line");

    let writer = fs::File::open(&log).unwrap();
    writer.try_lock().unwrap();
    assert!(fleet.examine().is_empty(), "its writer lives");
    let refused = fix(fleet.dir.root(), &[finding], now());
    assert_eq!(refused[0].outcome, Err("it has a writer now".to_owned()));
    drop(writer);

    let done = fleet.fixes();
    assert!(done[0].starts_with("cut 13 bytes off, kept in "), "{done:?}");
    assert_eq!(fs::read_to_string(&log).unwrap(), "{\"type\":\"system\"}\n");
}

#[test]
fn damaged_lines_are_counted() {
    let fleet = DoctorTestFleet::new();
    let text = "{\"a\":1}\ngarbage\n\0\0\0\n{\"b\":1}{\"c\":1} x\n{}\n";
    fleet.write("jobs/job-2026-11-15-aaaaaa.jsonl", text);
    let finding = fleet.finds(FindingArea::Transcripts, FindingSeverity::Note, "");
    assert_eq!(finding.problem, "has 2 damaged lines and 1 block of NUL bytes; readers skip them");
}

#[test]
fn logs_without_records_and_records_without_logs_are_found() {
    let fleet = DoctorTestFleet::new();
    fleet.write("jobs/job-2026-11-15-zzzzzz.jsonl", "{}\n");
    let finding = fleet.finds(FindingArea::Transcripts, FindingSeverity::Note, "belongs to no job");
    assert!(finding.subject.ends_with("job-2026-11-15-zzzzzz.jsonl"));
    fs::remove_file(fleet.path("jobs/job-2026-11-15-zzzzzz.jsonl")).unwrap();
    fs::remove_file(fleet.path("agent-sessions/projects/-x/5b7c2c0e.jsonl")).unwrap();
    fleet.finds(FindingArea::Transcripts, FindingSeverity::Warning, "does not exist");
}

#[test]
fn a_transcript_that_was_put_away_is_not_missed() {
    let fleet = DoctorTestFleet::new();
    let bare = job("job-2026-11-15-bbbbbb", JobStatus::Completed);
    let store = fleet.store();
    store.write(move |tx| tx.insert_job(&bare)).unwrap();
    store.publish_views(now()).unwrap();
    drop(store);
    fleet.finds(FindingArea::Transcripts, FindingSeverity::Note, "has no transcript");
    fleet.write("trash/jobs/job-2026-11-15-bbbbbb/tombstone.json", "{}");
    let findings = fleet.examine();
    assert!(findings.iter().all(|it| !it.problem.contains("has no transcript")), "{findings:?}");
}

#[test]
fn views_that_are_missing_or_unreadable_or_edited_come_back() {
    let fleet = DoctorTestFleet::new();
    let yaml = fleet.path("jobs/job-2026-11-15-aaaaaa.yaml");
    let good = fs::read_to_string(&yaml).unwrap();
    fs::remove_file(&yaml).unwrap();
    fleet.finds(FindingArea::Views, FindingSeverity::Warning, "is missing");
    assert_eq!(fleet.fixes(), ["published 1 file"]);
    assert_eq!(fs::read_to_string(&yaml).unwrap(), good);

    fleet.write("jobs/job-2026-11-15-aaaaaa.yaml", "id: [half");
    fleet.finds(FindingArea::Views, FindingSeverity::Warning, "cannot be parsed");
    assert_eq!(fleet.fixes(), ["published 1 file"]);
    assert_eq!(fs::read_to_string(&yaml).unwrap(), good);
    let kept = yaml.parent().unwrap().read_dir_utf8().unwrap().flatten();
    assert!(kept.into_iter().any(|entry| entry.file_name().contains("unreadable")));

    fleet.write("jobs/job-2026-11-15-aaaaaa.yaml", &format!("{good}note: mine\n"));
    fleet.finds(FindingArea::Views, FindingSeverity::Note, "changed by hand");
    assert_eq!(fleet.fixes(), ["published 1 file"]);
    assert!(fs::read_to_string(&yaml).unwrap().contains("note: mine"));
}

#[test]
fn records_that_the_database_does_not_have_are_found() {
    let fleet = DoctorTestFleet::new();
    fleet.write("jobs/job-2026-11-12-broken.yaml", "id: [half");
    fleet.finds(FindingArea::Views, FindingSeverity::Warning, "is not a readable record: not YAML");
    let yaml = "agent: coder\nstatus: completed\nstarted_at: 2026-11-12T00:00:00Z\n";
    fleet.write("jobs/job-2026-11-12-broken.yaml", yaml);
    fleet.finds(FindingArea::Views, FindingSeverity::Warning, "the database does not have");
}

#[test]
fn a_view_that_is_behind_is_found_and_published() {
    let fleet = DoctorTestFleet::new();
    fleet.sql("UPDATE views SET generation = generation + 1 WHERE path = 'state.yaml'");
    fleet.finds(FindingArea::Views, FindingSeverity::Note, "is older");
    let holder = LockHolder::this_process("start", now());
    let daemon = LockFile::acquire(&fleet.dir.lock(), &holder, std::time::Duration::ZERO).unwrap();
    fleet.finds(FindingArea::Locks, FindingSeverity::Note, "is held by");
    drop(daemon);
    fleet.fixes();
}

#[test]
fn wrong_totals_are_found_and_counted_anew() {
    let fleet = DoctorTestFleet::new();
    fleet.sql("UPDATE counters SET total = 7 WHERE kind = 'job'");
    fleet.finds(FindingArea::Database, FindingSeverity::Warning, "counters");
    assert_eq!(fleet.fixes(), ["counted anew"]);
    let reader = StoreReader::open(&fleet.dir).unwrap();
    assert_eq!(reader.count_jobs(&JobFilter::default()).unwrap(), 1);
}

#[test]
fn a_job_that_nobody_works_on_is_found_and_interrupted() {
    let fleet = DoctorTestFleet::new();
    let store = fleet.store();
    let id: JobId = "job-2026-11-15-bbbbbb".parse().unwrap();
    let current = Some(id.clone());
    store
        .write::<(), crate::db::DatabaseError, _>(move |tx| {
            tx.insert_job(&job("job-2026-11-15-bbbbbb", JobStatus::Running))?;
            let agent = AgentState {
                status: AgentStatus::Running,
                current_job: current,
                ..AgentState::default()
            };
            tx.put_agent("coder", &agent)
        })
        .unwrap();
    store.publish_views(now()).unwrap();
    let under_a_daemon = fleet.examine();
    assert!(
        under_a_daemon.iter().all(|finding| finding.area == FindingArea::Locks),
        "{under_a_daemon:#?}"
    );
    drop(store);

    let finding =
        fleet.finds(FindingArea::Database, FindingSeverity::Warning, "no process works on it");
    assert_eq!(finding.subject, id.as_str());
    let fixed = fix(fleet.dir.root(), &fleet.examine(), now());
    assert_eq!(fixed[0].outcome, Ok("marked as interrupted".to_owned()));
    drop(fleet.store());
    assert!(fleet.examine().is_empty());
    let reader = StoreReader::open(&fleet.dir).unwrap();
    let job = reader.job(&id).unwrap().unwrap();
    assert!(job.interrupted && job.head.status == JobStatus::Failed);
    let agent = reader.agent("coder").unwrap().unwrap();
    assert_eq!(
        (agent.status, agent.current_job, agent.last_job),
        (AgentStatus::Idle, None, Some(id))
    );
}

#[test]
fn held_locks_name_their_holder() {
    let fleet = DoctorTestFleet::new();
    fs::create_dir_all(fleet.home.join("locks")).unwrap();
    for folder in [fleet.home.clone(), fleet.home.join("locks")] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
    }
    let lock = fleet.home.join("locks/5b7c2c0e");
    let wait = std::time::Duration::ZERO;
    let held = LockFile::acquire(&lock, &LockHolder::this_process("start", now()), wait).unwrap();
    fleet.finds(
        FindingArea::Locks,
        FindingSeverity::Note,
        &format!("process {}", std::process::id()),
    );
    drop(held);
    assert!(fleet.examine().is_empty(), "what a holder left in the file is no lock");
    let gone = LockHolder { pid: 99_999_999, command: "start".to_owned(), since: now() };
    let _held = LockFile::acquire(&lock, &gone, wait).unwrap();
    fleet.finds(FindingArea::Locks, FindingSeverity::Warning, "which has exited");
}

#[test]
fn folders_of_runs_that_do_not_fit_are_found() {
    let fleet = DoctorTestFleet::new();
    let run = RunId::mint(now(), [7; 10]);
    let spec = format!("runs/{run}/spec.json");
    for (text, cure) in [("{}", "move it elsewhere"), (r#"{"protocol": 99}"#, "--fix` adopts it")] {
        fleet.write(&spec, text);
        let finding = fleet.finds(FindingArea::Runs, FindingSeverity::Warning, "has no record");
        assert!(finding.remedy.contains(cure), "{finding:?}");
    }

    let record = run_of("job-2026-11-15-aaaaaa", run);
    fleet.store().write(move |tx| tx.insert_run(&record)).unwrap();
    assert!(fleet.examine().is_empty(), "not started yet");
    fleet.write(&format!("runs/{run}/started.json"), "{}");
    fleet.finds(FindingArea::Runs, FindingSeverity::Warning, "was started, has no result");
    let lock = fleet.dir.run(run).join("lock");
    let holder = LockHolder::this_process("runner", now());
    let held = LockFile::acquire(&lock, &holder, std::time::Duration::ZERO).unwrap();
    assert!(fleet.examine().is_empty(), "its runner lives");
    drop(held);
    fs::remove_dir_all(fleet.dir.run(run)).unwrap();
    fleet.finds(FindingArea::Runs, FindingSeverity::Warning, "is missing");
    for name in [OsStr::new("mine"), OsStr::from_bytes(b"n\xf6")] {
        let folder = fleet.path("runs").as_std_path().join(name);
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    }
    let findings = fleet.examine();
    let strange = findings.iter().filter(|it| it.problem == "is not the folder of a run");
    assert_eq!(strange.count(), 2, "{findings:?}");
}

#[test]
fn old_and_missing_backups_are_found() {
    let fleet = DoctorTestFleet::new();
    let later = now() + SignedDuration::from_hours(24 * 400);
    let found = examine(fleet.dir.root(), None, later);
    assert!(found.iter().any(|finding| finding.area == FindingArea::Backups
        && finding.severity == FindingSeverity::Warning));
    for backup in crate::backup::list_backups(&fleet.dir).unwrap() {
        fs::remove_file(backup).unwrap();
    }
    fleet.finds(FindingArea::Backups, FindingSeverity::Note, "no backup");
    fleet.store().backup_daily(now()).unwrap().unwrap();
    assert!(fleet.examine().is_empty());
}

#[test]
fn databases_of_other_versions_are_found() {
    let fleet = DoctorTestFleet::new();
    fleet.sql("INSERT INTO schema_migration VALUES (99, 'later', 'x')");
    fleet.finds(FindingArea::Versions, FindingSeverity::Error, "newer heeler");
    fleet.sql("DELETE FROM schema_migration WHERE version = 99");
    assert!(fleet.examine().is_empty());
}

#[test]
fn rows_that_point_nowhere_are_found() {
    let fleet = DoctorTestFleet::new();
    fleet.sql(
        "PRAGMA foreign_keys = OFF; INSERT INTO schedules (agent, name) VALUES ('nobody', 'x');",
    );
    fleet.finds(FindingArea::Database, FindingSeverity::Warning, "point to rows that are gone");
}

#[test]
fn a_directory_that_is_not_there_is_said_to_be_missing() {
    let found = examine(Utf8Path::new("/nonexistent/fleet"), None, now());
    assert_eq!(found.len(), 1);
    assert!(found[0].problem.contains("there is no state directory"));
}

/// Rebuilds the database from the newest backup alone.
fn rebuild(root: &Utf8Path, now: Timestamp) -> RebuiltDatabase {
    DatabaseRebuild::begin(root, now).unwrap().finish(now).unwrap()
}

#[test]
fn a_database_that_is_gone_is_missed_if_there_are_backups() {
    let fleet = DoctorTestFleet::new();
    fs::remove_file(fleet.dir.database()).unwrap();
    fleet.finds(FindingArea::Database, FindingSeverity::Error, "it is missing");
    rebuild(fleet.dir.root(), now());
    drop(fleet.store());
    assert_eq!(fleet.examine(), []);
}

#[test]
fn a_damaged_backup_is_passed_over() {
    let fleet = DoctorTestFleet::new();
    fs::write(fleet.path("backups/heeler-2027-01-01T00-00-00Z-daily.db"), "not a database")
        .unwrap();
    let rebuilt = rebuild(fleet.dir.root(), now());
    assert!(rebuilt.base.unwrap().as_str().contains("2026-11-15"));
}

#[test]
fn a_rebuild_is_refused_while_a_writer_lives() {
    let fleet = DoctorTestFleet::new();
    let _store = fleet.store();
    let error = DatabaseRebuild::begin(fleet.dir.root(), now()).err().unwrap();
    assert_eq!(error.to_string(), "cannot rebuild the database while it is in use");
}

#[test]
fn a_rebuild_of_a_newer_database_is_refused() {
    let fleet = DoctorTestFleet::new();
    let db = StateDatabase::open_read_write(&fleet.dir.database()).unwrap();
    let newer = "INSERT INTO schema_migration (version, name, applied_at) VALUES (999, 'x', '')";
    db.conn.sqlite().execute(newer, []).unwrap();
    drop(db);
    let before = fs::read(fleet.dir.database()).unwrap();
    let error = DatabaseRebuild::begin(fleet.dir.root(), now()).err().unwrap();
    assert!(error.to_string().contains("newer heeler (schema 999"), "{error}");
    assert_eq!(fs::read(fleet.dir.database()).unwrap(), before);
}

#[test]
fn a_rebuild_that_was_cut_off_is_found_and_completed() {
    let fleet = DoctorTestFleet::new();
    fs::copy(fleet.dir.database(), fleet.path("heeler.db.rebuilt")).unwrap();
    fleet.write("rebuild.json", "{\"version\":1,\"trash\":\"trash/x\"}");
    fleet.finds(FindingArea::Database, FindingSeverity::Error, "interrupted");
    assert_eq!(fleet.fixes(), ["completed the rebuild"]);
    assert!(fleet.path("trash/x/heeler.db").exists());
}

#[test]
fn a_note_of_a_rebuild_that_leads_out_of_the_trash_is_refused() {
    let fleet = DoctorTestFleet::new();
    let other = DoctorTestFleet::new();
    let database = fs::read(other.path("heeler.db")).unwrap();
    fleet.write("heeler.db.rebuilt", "not a database");
    let before = fs::read(fleet.path("heeler.db")).unwrap();
    let out = other.dir.root().as_str();
    for trash in
        [out, "../x", "trash/../jobs", "trash", "trash/", "trash/.x", "trash/a/b", "jobs/x"]
    {
        fleet.write("rebuild.json", &format!("{{\"version\":1,\"trash\":\"{trash}\"}}"));
        let error = Store::open(&fleet.dir, "test", now()).unwrap_err();
        let text = heeler_model::error_chain(&error);
        assert!(text.contains("is not a valid marker"), "{trash}: {text}");
        assert_eq!(fs::read(fleet.path("heeler.db")).unwrap(), before);
    }
    fleet.write("rebuild.json", "{\"version\":2,\"trash\":\"trash/x\"}");
    Store::open(&fleet.dir, "test", now()).unwrap_err();
    std::os::unix::fs::symlink(other.dir.root(), fleet.path("trash/x")).unwrap();
    fleet.write("rebuild.json", "{\"version\":1,\"trash\":\"trash/x\"}");
    Store::open(&fleet.dir, "test", now()).unwrap_err();
    assert_eq!(fs::read(fleet.path("heeler.db")).unwrap(), before);
    assert_eq!(fs::read(other.path("heeler.db")).unwrap(), database);
}

#[test]
fn completing_a_rebuild_replaces_nothing_in_the_trash() {
    let fleet = DoctorTestFleet::new();
    let before = fs::read(fleet.path("heeler.db")).unwrap();
    fs::copy(fleet.path("heeler.db"), fleet.path("heeler.db.rebuilt")).unwrap();
    fleet.write("trash/x/heeler.db", "precious");
    fleet.write("rebuild.json", "{\"version\":1,\"trash\":\"trash/x\"}");
    Store::open(&fleet.dir, "test", now()).unwrap_err();
    assert_eq!(fs::read(fleet.path("trash/x/heeler.db")).unwrap(), b"precious");
    assert_eq!(fs::read(fleet.path("heeler.db")).unwrap(), before);
    // Where a rename needs two steps, a crash between them leaves both names.
    fs::remove_file(fleet.path("trash/x/heeler.db")).unwrap();
    fs::hard_link(fleet.path("heeler.db"), fleet.path("trash/x/heeler.db")).unwrap();
    fleet.store();
    assert_eq!(fs::read(fleet.path("trash/x/heeler.db")).unwrap(), before);
}

#[test]
fn a_folder_that_is_no_state_directory_is_not_put_in_order() {
    let temp = tempfile::tempdir().unwrap();
    let root = Utf8Path::from_path(temp.path()).unwrap();
    fs::create_dir(root.join("jobs")).unwrap();
    fs::write(root.join("jobs/.a.yaml.tmp.0123456789abcdef"), "").unwrap();
    fs::write(root.join("jobs/a.jsonl"), "{\"torn").unwrap();
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    let later = now() + SignedDuration::from_hours(24 * 365 * 10);
    let found = examine(root, None, later);
    assert!(found.iter().all(|finding| finding.repair.is_none()), "{found:#?}");
}

#[test]
fn what_is_not_ours_in_a_state_directory_is_left_alone() {
    let fleet = DoctorTestFleet::new();
    let notes = fleet.path("notes");
    fleet.write("notes/.a.yaml.tmp.0123456789abcdef", "");
    fs::set_permissions(&notes, fs::Permissions::from_mode(0o755)).unwrap();
    let found = fleet.examine();
    assert!(found.is_empty(), "{found:#?}");
    // Symbolic links are not followed, regardless of their origin.
    std::os::unix::fs::symlink(&notes, fleet.path("jobs/link")).unwrap();
    super::files::restrict_permissions(&fleet.path("jobs/link")).unwrap();
    assert_eq!(notes.metadata().unwrap().permissions().mode() & 0o777, 0o755);
}

#[test]
fn a_worktree_that_is_gone_is_told_with_what_to_do() {
    let fleet = DoctorTestFleet::new();
    let place = fleet.path("worktrees/sess-0000aaaa");
    let mut session = idle_session("coder", None, now());
    session.id = "sess-0000aaaa".parse().unwrap();
    session.workspace = Some(place.clone());
    let store = fleet.store();
    store.write(move |tx| tx.put_session(&session)).unwrap();
    store.publish_views(now()).unwrap();
    drop(store);
    create_folder(&place).unwrap();
    assert_eq!(fleet.examine(), []);
    fs::remove_dir(&place).unwrap();
    let finding = fleet.finds(FindingArea::Worktrees, FindingSeverity::Warning, "is missing");
    assert_eq!(finding.subject, "sess-0000aaaa");
    assert!(finding.remedy.contains("heeler session resume sess-0000aaaa"), "{}", finding.remedy);
}
