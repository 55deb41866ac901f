//! Tests of hostile state directories, such as one that came with a cloned repository.

use std::os::unix::fs::symlink;

use camino::Utf8Path;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;
use crate::db::VALUE_BYTES_MAX;
use crate::{StateDirError, backup_to_file};
use heeler_transcript::{LockError, LockFile, LockHolder};

/// A folder outside, which nothing may touch.
struct OutsideFolder {
    root: Utf8PathBuf,
    _temp: tempfile::TempDir,
}

impl OutsideFolder {
    fn new() -> OutsideFolder {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temp.path().canonicalize().unwrap()).unwrap();
        std::fs::write(root.join("precious"), "precious").unwrap();
        OutsideFolder { root, _temp: temp }
    }

    fn file(&self) -> Utf8PathBuf {
        self.root.join("precious")
    }

    #[track_caller]
    fn is_untouched(&self) {
        assert_eq!(std::fs::read_to_string(self.file()).unwrap(), "precious");
        assert_eq!(self.root.read_dir_utf8().unwrap().count(), 1);
    }
}

fn pipe(path: &Utf8Path) {
    mknodat(CWD, path.as_std_path(), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// A directory in herdctl's form, as a repository may bring it.
fn herdctl() -> (tempfile::TempDir, Utf8PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let root = Utf8PathBuf::from_path_buf(temp.path().canonicalize().unwrap()).unwrap();
    let root = root.join(".herdctl");
    std::fs::create_dir_all(root.join("sessions")).unwrap();
    std::fs::write(root.join("state.yaml"), "fleet: {}\nagents: {}\n").unwrap();
    std::fs::write(root.join("sessions/settings.json"), "{\"evil\": true}").unwrap();
    (temp, root)
}

fn take(path: &Utf8Path) -> Result<LockFile, LockError> {
    LockFile::acquire(path, &LockHolder::this_process("test", now()), std::time::Duration::ZERO)
}

#[test]
fn a_lock_file_that_is_a_link_a_pipe_or_has_two_names_is_refused() {
    let place = place();
    let outside = OutsideFolder::new();
    let link = place.root.join("link.lock");
    symlink(outside.file(), &link).unwrap();
    let fifo = place.root.join("pipe.lock");
    pipe(&fifo);
    let twin = place.root.join("twin.lock");
    let other = place.root.join("other");
    std::fs::write(&other, "precious").unwrap();
    std::fs::hard_link(&other, &twin).unwrap();
    for path in [&link, &fifo, &twin] {
        assert!(matches!(take(path), Err(LockError::Io { .. })), "{path}");
        assert!(matches!(LockFile::probe(path), Err(LockError::Io { .. })), "{path}");
    }
    outside.is_untouched();
    assert_eq!(std::fs::read_to_string(other).unwrap(), "precious");
}

#[test]
fn a_directory_with_links_where_ours_would_be_is_refused_and_the_link_named() {
    for name in [
        "heeler.db",
        "heeler.db-wal",
        "heeler.db-shm",
        "heeler.db-journal",
        "heeler.db.rebuilt",
        "heeler.lock",
        "restore.lock",
        "rebuild.json",
        "state.yaml",
        "schema",
        ".before-heeler",
        "jobs",
        "sessions",
        "agent-sessions",
        "agent-sessions/projects",
        "runs",
        "logs",
        "backups",
        "trash",
        "workspaces",
        "worktrees",
        "agent-sessions/projects/-home-me",
        "trash/sessions",
        "trash/jobs",
        "workspaces/0123456789abcdef",
        "worktrees/sess-0123abcd",
    ] {
        let (_temp, root) = herdctl();
        let outside = OutsideFolder::new();
        let path = root.join(name);
        drop(std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path)));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(&outside.root, &path).unwrap();
        for refused in [StateDir::open(&root), StateDir::create(&root)] {
            let error = refused.unwrap_err();
            assert!(matches!(error, StateDirError::Link { .. }), "{name}: {error}");
            assert!(error.to_string().contains(path.as_str()), "{error}");
        }
        outside.is_untouched();
    }
}

#[test]
fn the_directory_itself_may_be_a_link() {
    let place = place();
    let link = place.root.with_file_name("link");
    symlink(&place.root, &link).unwrap();
    let dir = StateDir::create(&link).unwrap();
    assert_eq!(dir.root(), place.root.canonicalize_utf8().unwrap());
    drop(Store::open(&dir, "test", now()).unwrap());
    crate::StoreReader::open(&dir).unwrap();
}

#[test]
fn links_and_pipes_that_came_after_the_directory_was_opened_are_not_archived() {
    let place = place();
    let outside = OutsideFolder::new();
    drop(place.store());
    let file = place.root.with_file_name("a.tar");
    symlink(outside.file(), place.dir.state_yaml()).unwrap();
    std::fs::remove_dir(place.dir.logs()).unwrap();
    symlink(&outside.root, place.dir.logs()).unwrap();
    pipe(&place.root.join("jobs/pipe.jsonl"));
    let report = backup_to_file(&place.dir, &file, now(), &mut |_, _| {}).unwrap();
    let names: Vec<_> = report.manifest.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(names, ["heeler.db"]);
}

#[test]
fn temp_files_and_databases_behind_a_link_are_left_alone() {
    let place = place();
    let elsewhere = super::place();
    drop(elsewhere.store());
    elsewhere.write("logs/.a.yaml.tmp.0123456789abcdef", "");
    std::fs::remove_dir(place.dir.logs()).unwrap();
    symlink(elsewhere.dir.logs(), place.dir.logs()).unwrap();
    assert_eq!(crate::views::remove_temp_files(&place.dir, now()), 0);
    assert!(elsewhere.has("logs/.a.yaml.tmp.0123456789abcdef"));
    symlink(elsewhere.dir.database(), place.dir.database()).unwrap();
    Store::open(&place.dir, "test", now()).unwrap_err();
    crate::StoreReader::open(&place.dir).unwrap_err();
}

#[test]
fn a_sessions_log_is_only_looked_for_where_logs_are() {
    let place = place();
    let outside = OutsideFolder::new();
    let home = outside.root.join("home");
    std::fs::create_dir_all(home.join("sessions")).unwrap();
    symlink(&outside.root, place.root.join("agent-sessions/projects/out")).unwrap();
    let root = place.dir.root();
    let found = |log: &str| {
        let mut session = session(1, "coder");
        session.log_path = Some(log.into());
        place.dir.session_log_path(Some(&home), &session)
    };
    let inside = "agent-sessions/projects/-p/s.jsonl";
    assert_eq!(found(inside), Some(root.join(inside)));
    let container = "docker-sessions/s.jsonl";
    assert_eq!(found(container), Some(root.join(container)));
    let own = home.join("sessions/s.transcript.ndjson");
    assert_eq!(found(own.as_str()), Some(own));
    for log in [
        "../precious",
        "agent-sessions/../heeler.db",
        "agent-sessions",
        "heeler.db",
        "jobs/a.jsonl",
        "agent-sessions/projects/out/precious",
        outside.file().as_str(),
        home.join("sessions/../../precious").as_str(),
        "",
    ] {
        assert_eq!(found(log), None, "{log}");
    }
    assert_eq!(place.dir.session_log_path(Some(&home), &session(1, "coder")), None);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test damages the database")]
fn a_value_beyond_the_limit_is_refused_before_it_is_in_memory() {
    let temp = tempfile::tempdir().unwrap();
    let root = Utf8Path::from_path(temp.path()).unwrap().join(".heeler");
    let dir = StateDir::create(&root).unwrap();
    let store = Store::open(&dir, "test", now()).unwrap().store;
    let written = job(1, "coder", JobStatus::Completed);
    let id = written.head.id.clone();
    store.write(move |tx| tx.insert_job(&written)).unwrap();
    drop(store);
    let prompt_of = |bytes: i32| {
        // A computed column takes no room in the file.
        let conn = rusqlite::Connection::open(dir.database()).unwrap();
        let batch = format!(
            "ALTER TABLE executions DROP COLUMN prompt; ALTER TABLE executions ADD COLUMN prompt TEXT \
             AS (CAST(zeroblob({bytes}) AS TEXT))"
        );
        conn.execute_batch(&batch).unwrap();
        drop(conn);
        StoreReader::open(&dir).unwrap().job(&id).map(|job| job.unwrap().prompt.unwrap().len())
    };
    let size = std::fs::metadata(dir.database()).unwrap().len();
    assert_eq!(prompt_of(1 << 20).unwrap(), 1 << 20);
    let error = prompt_of(VALUE_BYTES_MAX + 1).unwrap_err();
    let error = heeler_model::error_chain(&error);
    assert!(error.contains("too big"), "{error}");
    assert!(std::fs::metadata(dir.database()).unwrap().len() <= size + (64 << 10));
}
