//! The session of a run: its lock, its log, and what was said in it before.
//!
//! Nobody else writes to a session while its lock is held, and the agent inherits the lock, so that
//! it is free only when both are gone. Start at [`lock`].

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::record::Recorder;
use heeler_model::run::{RunSpec, SessionStart};
use heeler_model::{AgentSessionId, slug};
use heeler_transcript::{
    CopyError, Disk, DiskError, Entry, Holder, LockError, LockFile, OsDisk, Scan, UpTo,
    copy_prefix, create_folder,
};
use jiff::Timestamp;
use serde_json::Value as Json;
use thiserror::Error;
use uuid::Uuid;

/// How long to wait for a lock that somebody may only be looking at.
const SESSION_LOCK_WAIT: Duration = Duration::from_millis(300);

/// Why a session's lock was not taken.
#[derive(Debug, Error)]
pub(crate) enum SessionLockError {
    /// The folder of locks cannot be made.
    #[error(transparent)]
    Folder(#[from] DiskError),
    /// The lock itself.
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// Takes the lock of a session.
pub(crate) fn lock(
    spec: &RunSpec,
    session: &AgentSessionId,
    now: Timestamp,
) -> Result<LockFile, SessionLockError> {
    let locks = locks(&spec.home)?;
    // A lock need not survive a power loss: there is nothing to wait for where the folder is there.
    if !locks.is_dir() {
        create_folder(&OsDisk, &locks)?;
    }
    let holder = Holder::this_process(&format!("runner {}", spec.job), now);
    Ok(LockFile::acquire(&locks.join(session.as_str()), &holder, SESSION_LOCK_WAIT)?)
}

/// Returns the folder of session locks. One that is a link, or another user's, could lead us to sign
/// what is no lock.
pub(crate) fn locks(home: &Utf8Path) -> Result<Utf8PathBuf, DiskError> {
    let locks = home.join("locks");
    let us = rustix::process::geteuid();
    match locks.symlink_metadata() {
        Ok(found) if !found.is_dir() || !(us.is_root() || found.uid() == us.as_raw()) => {
            let reason = "it is not a folder of this user's; move it away";
            let source = io::Error::new(io::ErrorKind::InvalidInput, reason);
            Err(DiskError { action: "use", path: locks, source })
        }
        _ => Ok(locks),
    }
}

/// Returns where a session's log is.
pub(crate) fn log_path(spec: &RunSpec, session: &AgentSessionId) -> Utf8PathBuf {
    let folder = spec.projects.join(slug(&spec.working_directory));
    folder.join(format!("{session}.jsonl"))
}

/// Gives the log of a fork the history that the fork knows: the rows of its source up to the entry
/// at which it was cut. The source is only read.
///
/// Of a source that we have no log of, or not that entry, nothing is copied: the agent knows its
/// history all the same.
pub(crate) fn copy_history(disk: &dyn Disk, spec: &RunSpec) -> Result<(), CopyError> {
    let SessionStart::Fork { source, id, at } = &spec.session.start else { return Ok(()) };
    let copy = log_path(spec, id);
    let Some(source) = find_log(spec, source).filter(|_| !copy.exists()) else { return Ok(()) };
    let Some(end) = end_of(&source, *at)? else { return Ok(()) };
    if let Some(folder) = copy.parent() {
        create_folder(disk, folder)?;
    }
    copy_prefix(disk, &source, &copy, UpTo::Offset(end))?;
    Ok(())
}

/// Returns the log of a session: of this working directory, or of another one.
fn find_log(spec: &RunSpec, session: &AgentSessionId) -> Option<Utf8PathBuf> {
    let here = log_path(spec, session);
    if here.is_file() {
        return Some(here);
    }
    let name = format!("{session}.jsonl");
    let projects = spec.projects.read_dir_utf8().ok()?;
    let logs = projects.filter_map(Result::ok).map(|project| project.path().join(&name));
    logs.into_iter().find(|log| log.is_file())
}

/// Returns where the row with this id ends, or the last one.
fn end_of(log: &Utf8Path, at: Option<Uuid>) -> Result<Option<u64>, DiskError> {
    let mut end = None;
    for entry in Scan::open(log)? {
        let Entry::Record(record) = entry? else { continue };
        end = Some(record.next);
        let Some(at) = at else { continue };
        let row: Json = serde_json::from_str(&record.text).unwrap_or_default();
        if row["uuid"].as_str().and_then(|uuid| Uuid::try_parse(uuid).ok()) == Some(at) {
            return Ok(end);
        }
    }
    Ok(end.filter(|_| at.is_none()))
}

/// What was said in a session before.
#[derive(Debug)]
pub(crate) struct History {
    /// Goes on where the session stopped.
    pub(crate) recorder: Recorder,
    /// The last result in it.
    pub(crate) last_result: Option<Json>,
}

/// Reads the log of a session, which may be empty.
pub(crate) fn history(spec: &RunSpec, session: &AgentSessionId) -> Result<History, DiskError> {
    let cwd = spec.working_directory.clone();
    let mut recorder = Recorder::new(session.clone(), cwd, None);
    let mut last_result = None;
    for entry in Scan::open(&log_path(spec, session))? {
        // What is no record was reported when the log was repaired; it is no reason not to go on.
        let Entry::Record(record) = entry? else { continue };
        let Ok(row) = serde_json::from_str::<Json>(&record.text) else { continue };
        recorder.replay(&row);
        if row["type"] == "result" {
            last_result = Some(row);
        }
    }
    Ok(History { recorder, last_result })
}
