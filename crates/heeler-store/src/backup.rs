//! Backups of the database in `backups/`: one a day, and one before each migration and restore.
//!
//! A backup is made with SQLite's online backup, so it is consistent while a writer is running.
//! It is a single file without a write-ahead log. The last seven are kept. Start at
//! [`take_daily_backup`].

use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{DiskBackend as _, OsDisk, create_folder, temp_name};
use jiff::Timestamp;
use thiserror::Error;

use crate::db::connection::DatabaseConnection;
use crate::db::{DatabaseError, DatabaseOpenError, SqliteResultExt as _, StateDatabase};
use crate::layout::StateDir;
use crate::table_copy;

/// Number of backups that are kept.
const BACKUPS_MAX: usize = 7;

/// Beginning of the label of a backup before a migration.
pub(crate) const BEFORE_SCHEMA: &str = "before-schema-";

/// Label of the daily backup.
const DAILY: &str = "daily";

/// Label of the state that a restore replaced, which a person therefore rejected.
pub(crate) const BEFORE_RESTORE: &str = "before-restore";

/// Failure to take a backup.
#[derive(Debug, Error)]
pub enum BackupError {
    #[error(transparent)]
    Open(#[from] DatabaseOpenError),
    #[error("cannot copy the database to {path}")]
    Copy {
        path: Utf8PathBuf,
        #[source]
        source: DatabaseError,
    },
    #[error("cannot {attempt} {path}")]
    Io {
        attempt: &'static str,
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Takes today's backup unless it exists.
pub fn take_daily_backup(
    dir: &StateDir,
    now: Timestamp,
) -> Result<Option<Utf8PathBuf>, BackupError> {
    let today = format!("heeler-{}", now.strftime("%Y-%m-%d"));
    let is_todays = |path: &Utf8PathBuf| {
        path.file_name().is_some_and(|name| name.starts_with(&today) && name.contains(DAILY))
    };
    if list_backups(dir)?.iter().any(is_todays) {
        return Ok(None);
    }
    take(dir, DAILY, now).map(Some)
}

pub fn list_backups(dir: &StateDir) -> Result<Vec<Utf8PathBuf>, BackupError> {
    let folder = dir.backups();
    let entries = match folder.read_dir_utf8() {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(io_error("list", &folder, source)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|source| io_error("list", &folder, source))?;
        let name = entry.file_name();
        // Other files in the folder belong to the user.
        if name.starts_with("heeler-") && name.ends_with(".db") {
            found.push(entry.path().to_owned());
        }
    }
    // The time is first in the name, so the order by name is the order by age.
    found.sort();
    Ok(found)
}

/// Takes a backup named after the time and `label`, and removes the oldest ones beyond the
/// limit.
pub(crate) fn take(
    dir: &StateDir,
    label: &str,
    now: Timestamp,
) -> Result<Utf8PathBuf, BackupError> {
    let folder = dir.backups();
    create_folder(&OsDisk, &folder).map_err(|error| BackupError::Io {
        attempt: "make",
        path: error.path,
        source: error.source,
    })?;
    let stamp = now.strftime("%Y-%m-%dT%H-%M-%SZ");
    // A temporary name: a backup that was interrupted must not count as one.
    let draft = temp_name(&folder.join("heeler.db"));
    snapshot(dir, &draft)?;
    let path = name_backup(&folder, &draft, &format!("heeler-{stamp}-{label}"))?;
    sync_folder(&folder)?;
    // An upgrade over many schemas must not remove the backup of its beginning.
    if label.starts_with(BEFORE_SCHEMA) {
        return Ok(path);
    }
    // The oldest are removed only after the new one is durable.
    let there = list_backups(dir)?;
    for old in there.iter().rev().skip(BACKUPS_MAX) {
        std::fs::remove_file(old).map_err(|source| io_error("remove", old, source))?;
    }
    Ok(path)
}

/// Gives a backup its final name. An existing backup is kept, and this one gets a number.
fn name_backup(
    folder: &Utf8Path,
    draft: &Utf8Path,
    name: &str,
) -> Result<Utf8PathBuf, BackupError> {
    let mut path = folder.join(format!("{name}.db"));
    let mut count = 1;
    loop {
        match OsDisk.rename_new(draft, &path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                count += 1;
                path = folder.join(format!("{name}-{count}.db"));
            }
            Err(source) => {
                drop(std::fs::remove_file(draft));
                return Err(io_error("name", &path, source));
            }
        }
    }
}

/// Copies a database into one consistent file and syncs the copy.
pub(crate) fn snapshot(from: &StateDir, to: &Utf8Path) -> Result<(), BackupError> {
    save_copy(&StateDatabase::any_reader_of(from)?, to)
}

/// Copies an open database into one consistent file and syncs the copy.
pub(crate) fn save_copy(source: &StateDatabase, to: &Utf8Path) -> Result<(), BackupError> {
    let mut copy = StateDatabase::private(to)?;
    let copied = copy_content(source, &mut copy)
        // The copied header says WAL, but a single file must not need a log.
        .and_then(|()| copy.disable_wal())
        .map_err(|source| BackupError::Copy { path: to.to_owned(), source });
    // SQLite must have closed the file before it is synced as a plain one.
    drop(copy);
    let synced = copied.and_then(|()| {
        let file = std::fs::File::open(to).map_err(|source| io_error("open", to, source))?;
        file.sync_all().map_err(|source| io_error("sync", to, source))
    });
    if synced.is_err() {
        // The first error is the one to report; a leftover draft is removed later.
        drop(std::fs::remove_file(to));
    }
    synced
}

/// Replaces the whole content of `to` with that of `from` in one transaction.
pub(crate) fn copy_content(
    from: &StateDatabase,
    to: &mut StateDatabase,
) -> Result<(), DatabaseError> {
    use rusqlite::backup::{Backup, StepResult};
    let (DatabaseConnection::Sqlite(from), DatabaseConnection::Sqlite(to)) =
        (&from.conn, &mut to.conn)
    else {
        return table_copy::replace_content(from, to).map(drop);
    };
    let attempt = "copy the database";
    let deadline = std::time::Instant::now() + BUSY_MAX;
    let backup = Backup::new(from, to).attempt(attempt)?;
    loop {
        // All pages in one step: the copy is one transaction, and a reader sees none of it before.
        match backup.step(-1).attempt(attempt)? {
            StepResult::Done => return Ok(()),
            StepResult::Busy | StepResult::Locked if std::time::Instant::now() >= deadline => {
                let busy = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
                return Err(rusqlite::Error::SqliteFailure(busy, None)).attempt(attempt);
            }
            // Another connection writes at the moment. The backup waits like any other transaction.
            _ => std::thread::sleep(BUSY_PAUSE),
        }
    }
}

/// Longest wait for another connection's transaction, and the interval between attempts.
const BUSY_MAX: std::time::Duration = std::time::Duration::from_secs(10);
const BUSY_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

fn sync_folder(folder: &Utf8Path) -> Result<(), BackupError> {
    OsDisk.sync_folder(folder).map_err(|source| io_error("sync", folder, source))
}

fn io_error(attempt: &'static str, path: &Utf8Path, source: io::Error) -> BackupError {
    BackupError::Io { attempt, path: path.to_owned(), source }
}
