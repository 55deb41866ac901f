//! Tests that need a whole state directory.

mod archive;
mod crash;
mod daemon;
mod database;
mod fail_overs;
mod file_archives;
mod host_part_batches;
mod host_records;
mod host_session_moves;
mod hostile;
mod lists;
mod locks;
mod lost_files;
mod moves;
mod parts;
mod postgres;
mod postgres_network;
mod races;
mod shared_files;
mod view_requests;
mod views;
mod workflows;
mod writer;

use camino::Utf8PathBuf;
use heeler_model::{
    Job, JobId, JobStatus, Session, SessionId, SessionMode, SessionStatus, TriggerType,
};
use jiff::{SignedDuration, Timestamp};

use crate::db::connection::SqlRow;
use crate::db::{ColumnReader, query_first};
use crate::{DatabaseError, PostgresLocation, StateDir, Store, StoreReader, StoreTransaction};

/// A state directory of its own, gone with the test.
struct TempStateDir {
    _temp: tempfile::TempDir,
    root: Utf8PathBuf,
    dir: StateDir,
    /// Socket folder and name of its database on a server.
    database: Option<(Utf8PathBuf, String)>,
}

/// Variable with the socket folder of the PostgreSQL server that tests use in place of SQLite.
const SERVER_VARIABLE: &str = "HEELER_TEST_POSTGRES";

/// Returns the socket folder of the server; `None` if the tests use SQLite.
#[expect(clippy::disallowed_methods, reason = "one test runs all others on a server")]
fn test_server() -> Option<Utf8PathBuf> {
    std::env::var(SERVER_VARIABLE).ok().map(Utf8PathBuf::from)
}

fn place() -> TempStateDir {
    let temp = tempfile::tempdir().unwrap();
    let root = Utf8PathBuf::from_path_buf(temp.path().to_owned()).unwrap().join(".heeler");
    let dir = StateDir::create(&root).unwrap();
    let Some(server) = test_server() else {
        return TempStateDir { _temp: temp, root, dir, database: None };
    };
    let name = format!("test_{}", uuid::Uuid::new_v4().simple());
    let url = heeler_testkit::create_database(&server, &name).parse().unwrap();
    let dir = PostgresLocation::for_new_fleet(url).write(&dir).unwrap();
    TempStateDir { _temp: temp, root, dir, database: Some((server, name)) }
}

impl Drop for TempStateDir {
    fn drop(&mut self) {
        if let Some((server, name)) = &self.database {
            heeler_testkit::drop_database(server, name);
        }
    }
}

/// Returns true if a message names the reason, in the words of either engine.
fn is_refused_by(message: &str, sqlite: &str, postgres: &str) -> bool {
    message.contains(if test_server().is_none() { sqlite } else { postgres })
}

fn count_rows(reader: &StoreReader, sql: &'static str) -> i64 {
    let read = |row: &SqlRow<'_>| ColumnReader::new("test", row).get();
    query_first(&reader.conn, sql, [], "test", read).unwrap().unwrap()
}

impl TempStateDir {
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
