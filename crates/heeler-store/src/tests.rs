//! Tests that need a whole state directory.

mod archive;
mod crash;
mod daemon;
mod database;
mod hostile;
mod lists;
mod locks;
mod lost_files;
mod parts;
mod races;
mod view_requests;
mod views;
mod workflows;
mod writer;

use camino::Utf8PathBuf;
use heeler_model::{
    Job, JobId, JobStatus, Session, SessionId, SessionMode, SessionStatus, TriggerType,
};
use jiff::{SignedDuration, Timestamp};

use crate::{DatabaseError, StateDir, Store, StoreReader, StoreTransaction};

/// A state directory of its own, gone with the test.
struct TempStateDir {
    _temp: tempfile::TempDir,
    root: Utf8PathBuf,
    dir: StateDir,
}

fn place() -> TempStateDir {
    let temp = tempfile::tempdir().unwrap();
    let root = Utf8PathBuf::from_path_buf(temp.path().to_owned()).unwrap().join(".heeler");
    let dir = StateDir::create(&root).unwrap();
    TempStateDir { _temp: temp, root, dir }
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
