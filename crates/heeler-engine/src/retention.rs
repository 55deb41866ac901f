//! Moves the files of jobs that ended long ago to the trash. Off unless the config enables it.
//!
//! Moved: `jobs/<id>.jsonl` and files with the same stem, `jobs/<id>/`, and the job's run
//! directories. Kept: the database row, its view, and the session, so that the session can still be
//! resumed. A tombstone records time and reason. Each step is a rename; a pass that was interrupted
//! is completed by the next one. Start at [`apply_retention`].

use std::collections::BTreeMap;
use std::fs::{self, TryLockError};
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::RetentionPolicy;
use heeler_model::{JobHead, JobId, RunId, iso_millis};
use heeler_store::{DatabaseError, StateDir, StoreReader};
use heeler_transcript::{
    DiskError, NameError, OsDisk, create_folder, replace_file, resolve_inside, untrusted_file,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use thiserror::Error;

/// Maximum number of jobs per pass; the next pass continues.
pub const JOBS_PER_PASS: usize = 500;

const TOMBSTONE_VERSION: u32 = 1;

const TOMBSTONE: &str = "tombstone.json";

/// Failure to move files to the trash.
#[derive(Debug, Error)]
pub enum RetentionError {
    #[error("cannot read which jobs have ended")]
    Read(#[from] DatabaseError),
    /// A directory cannot be listed.
    #[error("cannot list {path}")]
    List {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// A file cannot be moved.
    #[error("cannot move {path} to the trash")]
    Move {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// The directory in the trash is a link or outside the state directory.
    #[error("cannot use the trash")]
    Name(#[from] NameError),
    #[error("cannot write to the trash")]
    Write(#[from] DiskError),
}

/// Result of a pass.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RetentionReport {
    /// Jobs with files that were moved.
    pub jobs: Vec<JobId>,
    /// True if more jobs are due than one pass handles.
    pub has_more: bool,
}

/// Moves the files of old jobs to the trash as the config says.
///
/// It is safe at any time: transcripts with a writer, unfinished jobs, and runs without a committed
/// result are left alone.
pub fn apply_retention(
    dir: &StateDir,
    reader: &StoreReader,
    retention: &RetentionPolicy,
    now: Timestamp,
) -> Result<RetentionReport, RetentionError> {
    run_pass(dir, reader, retention, now, JOBS_PER_PASS)
}

fn run_pass(
    dir: &StateDir,
    reader: &StoreReader,
    retention: &RetentionPolicy,
    now: Timestamp,
    jobs_max: usize,
) -> Result<RetentionReport, RetentionError> {
    let files = list_job_files(dir, reader)?;
    // Only jobs with files are looked up, not all jobs that ever ran.
    let mut ended: Vec<JobHead> = Vec::new();
    for id in files.keys() {
        let job = reader.job(id)?;
        ended.extend(job.map(|job| job.head).filter(|head| head.status.is_final()));
    }
    ended.sort_by_key(|head| std::cmp::Reverse((ended_at(head), head.id.clone())));
    let mut done = RetentionReport::default();
    // The oldest come first, so a limited pass moves those that are due longest.
    for (newer, head) in ended.iter().enumerate().rev() {
        let Some(why) = removal_reason(retention, newer, ended_at(head), now) else { continue };
        if done.jobs.len() == jobs_max {
            done.has_more = true;
            break;
        }
        if trash_job_files(dir, reader, &head.id, &files[&head.id], &why, now)? {
            done.jobs.push(head.id.clone());
        }
    }
    if !done.jobs.is_empty() {
        // The renames become durable here, once for all jobs of the pass.
        sync_folder(&dir.jobs())?;
        sync_folder(&dir.runs())?;
    }
    Ok(done)
}

fn ended_at(head: &JobHead) -> Timestamp {
    head.finished_at.unwrap_or(head.started_at)
}

/// Returns the reason for which a job's files are moved; `None` if they are kept. `newer` is the
/// number of jobs that ended after it.
fn removal_reason(
    retention: &RetentionPolicy,
    newer: usize,
    ended: Timestamp,
    now: Timestamp,
) -> Option<String> {
    if let Some(kept) = retention.jobs
        // A period beyond the range of durations never passes.
        && let Ok(age) = SignedDuration::try_from(kept.get())
        && now.duration_since(ended) > age
    {
        return Some(format!("it ended more than {kept} ago"));
    }
    let count = retention.count.map(|count| count.get() as usize);
    let count = count.filter(|count| newer >= *count)?;
    Some(format!("{count} jobs have ended after it"))
}

/// Lists the files that could be moved, by job.
fn list_job_files(
    dir: &StateDir,
    reader: &StoreReader,
) -> Result<BTreeMap<JobId, Vec<Utf8PathBuf>>, RetentionError> {
    let mut found: BTreeMap<JobId, Vec<Utf8PathBuf>> = BTreeMap::new();
    for name in list_names(&dir.jobs())? {
        let (id, rest) = name.split_once('.').unwrap_or((&name, ""));
        if rest.is_empty() || rest.starts_with("jsonl") {
            let Ok(job) = id.parse::<JobId>() else { continue };
            found.entry(job).or_default().push(dir.jobs().join(&name));
        }
    }
    for name in list_names(&dir.runs())? {
        let Ok(id) = name.parse::<RunId>() else { continue };
        // A run without a row may still have to be adopted, so its folder stays.
        if let Some(run) = reader.run(id)? {
            found.entry(run.job_id).or_default().push(dir.run(id));
        }
    }
    Ok(found)
}

fn list_names(folder: &Utf8Path) -> Result<Vec<String>, RetentionError> {
    let failed = |source| RetentionError::List { path: folder.to_owned(), source };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        // Heeler's own file names are UTF-8; skip others.
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    Ok(names)
}

/// Moves the files of one job; returns true if they could be moved.
fn trash_job_files(
    dir: &StateDir,
    reader: &StoreReader,
    job: &JobId,
    files: &[Utf8PathBuf],
    why: &str,
    now: Timestamp,
) -> Result<bool, RetentionError> {
    if is_job_active(dir, reader, job)? {
        return Ok(false);
    }
    let trash = job_trash_folder(dir, job)?;
    create_folder(&OsDisk, &trash)?;
    let tombstone = json!({
        "version": TOMBSTONE_VERSION, "job": job, "moved_at": iso_millis(now), "reason": why,
    });
    // The tombstone comes first, so the trash never holds files without a reason.
    replace_file(&OsDisk, &trash.join(TOMBSTONE), format!("{tombstone:#}\n").as_bytes())?;
    // A job resumed after this point starts a new transcript. One resumed before holds the lock, or
    // has an unfinished run.
    let log = dir.job_transcript(job);
    // Without a transcript there is no lock to take.
    let lock = untrusted_file::open(&log).ok();
    match lock.as_ref().map(fs::File::try_lock) {
        None | Some(Ok(())) => {}
        Some(Err(TryLockError::WouldBlock)) => return Ok(false),
        Some(Err(TryLockError::Error(source))) => {
            return Err(RetentionError::Move { path: log, source });
        }
    }
    // The job may have been resumed before the lock was taken.
    if is_job_active(dir, reader, job)? {
        return Ok(false);
    }
    files.iter().try_for_each(|path| move_into(&trash, path))?;
    // The lock is held during the moves, so no writer can open the transcript meanwhile.
    drop(lock);
    sync_folder(&trash)?;
    Ok(true)
}

/// Returns the trash directory of a job; refuses a symbolic link.
fn job_trash_folder(dir: &StateDir, job: &JobId) -> Result<Utf8PathBuf, NameError> {
    let trash = dir.trashed_job(job);
    let relative = trash.strip_prefix(dir.root()).expect("the trash is in the state directory");
    resolve_inside(dir.root(), relative.as_str())
}

fn sync_folder(folder: &Utf8Path) -> Result<(), RetentionError> {
    let synced = fs::File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|source| RetentionError::Move { path: folder.to_owned(), source })
}

/// Returns true if a job has not ended, or a process works on it.
fn is_job_active(dir: &StateDir, reader: &StoreReader, job: &JobId) -> Result<bool, DatabaseError> {
    let ended = reader.job(job)?.is_some_and(|job| job.head.status.is_final());
    let uncommitted = reader.runs_of_job(job)?.iter().any(|run| !run.committed);
    Ok(!ended || uncommitted || reader.is_job_alive(dir, job)?)
}

/// Moves a file or directory, under another name if its own is taken: a job that was resumed after
/// its files were moved has new ones.
fn move_into(trash: &Utf8Path, path: &Utf8Path) -> Result<(), RetentionError> {
    let name = path.file_name().unwrap_or_default();
    let numbered = (2..).map(|number| format!("{name}.{number}"));
    let mut free = std::iter::once(name.to_owned())
        .chain(numbered)
        .map(|name| trash.join(name))
        .filter(|place| place.symlink_metadata().is_err());
    let place = free.next().expect("there are more names than files");
    match fs::rename(path, &place) {
        // It was removed or moved since it was listed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome.map_err(|source| RetentionError::Move { path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests;
