//! Rebuild of a database: begins a draft from the newest sound backup, and installs it in the end.
//!
//! In between, the caller adds the records that it finds in views and transcripts. The new database
//! is built completely under its own name, so the old one is unchanged until the end. Start at
//! [`DatabaseRebuild`].

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{LockError, LockFile, LockHolder};
use jiff::Timestamp;
use thiserror::Error;

use crate::backup;
use crate::db::meta::ConfigRecordRows;
use crate::db::migrate::{SCHEMA_VERSION, check_not_newer};
use crate::db::{DatabaseOpenError, StateDatabase};
use crate::layout::{StateDir, StateDirError};
use crate::staging::{
    DraftDatabase, RecordTarget, StagingError, finish_rebuild, has_unfinished_rebuild,
};
use crate::writer_lock::acquire_writer_lock;

/// Rows that exist only in the database, not in views or transcripts: first schema version that
/// has them, table, and name for users.
const ONLY_IN_DATABASE: [(i64, &str, &str); 20] = [
    (1, "runs", "runs"),
    (1, "effects", "effects"),
    (1, "workflow_runs", "workflow runs"),
    (1, "workflow_approvals", "approvals"),
    (1, "messaging_sessions", "chat threads"),
    (1, "messaging_messages", "chat messages"),
    (1, "cron_overrides", "settings of schedules"),
    (1, "workflow_overrides", "settings of workflows"),
    (5, "executions WHERE step IS NOT NULL", "steps of workflow runs"),
    (5, "workflow_events", "events of workflow runs"),
    (3, "agents WHERE enabled = 0", "disabled agents"),
    (3, "schedules WHERE anchor IS NOT NULL", "records of schedule progress"),
    (3, "occurrences", "records of due times that were run"),
    (3, "skips", "records of due times that were skipped"),
    (3, "queue", "places in the queue"),
    (3, "reservations", "reservations of money"),
    (3, "spending", "days of spending"),
    (3, "parked", "parked credentials"),
    (10, "inbox", "events of chat platforms"),
    (10, "chat_questions", "questions in chats"),
];

/// Longest wait for the lock.
pub(crate) const LOCK_WAIT: Duration = Duration::from_secs(2);

/// Failure to begin a rebuild. The database is unchanged.
#[derive(Debug, Error)]
pub enum RebuildBeginError {
    #[error(transparent)]
    Layout(#[from] StateDirError),
    /// Another process is the writer, or is running a restore.
    #[error("cannot rebuild the database while it is in use")]
    Locked(#[source] LockError),
    /// A newer release wrote the database: nothing is wrong with it.
    #[error(transparent)]
    Newer(#[from] DatabaseOpenError),
    /// The records are on a server, which has backups of its own.
    #[error(
        "the records are on {0}, and a rebuild makes a file; restore a backup with `heeler restore`, or \
         with the tools of PostgreSQL"
    )]
    OnServer(String),
    #[error("the database was not rebuilt")]
    Build(#[source] StagingError),
}

/// Result of [`DatabaseRebuild::finish`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebuiltDatabase {
    /// The backup on which the rebuild is based.
    pub base: Option<Utf8PathBuf>,
    /// Known losses.
    pub losses: Vec<String>,
    /// Directory that now holds the old database.
    pub trash: Utf8PathBuf,
}

/// A rebuild of a directory's database. It holds the directory's locks; dropping it changes
/// nothing.
pub struct DatabaseRebuild {
    dir: StateDir,
    draft: DraftDatabase,
    base: Option<Utf8PathBuf>,
    // Declared last, so that the draft is removed under the locks.
    _locks: [LockFile; 2],
}

impl DatabaseRebuild {
    /// Takes the locks and begins with the last sound backup, or with an empty database.
    pub fn begin(root: &Utf8Path, now: Timestamp) -> Result<DatabaseRebuild, RebuildBeginError> {
        let dir = StateDir::open(root)?;
        if let Some(location) = dir.postgres() {
            return Err(RebuildBeginError::OnServer(location.url.to_string()));
        }
        let holder = LockHolder::this_process("doctor --rebuild", now);
        let hold = |path: &Utf8Path| {
            acquire_writer_lock(&dir, path, &holder, LOCK_WAIT).map_err(RebuildBeginError::Locked)
        };
        let locks = [hold(&dir.lock())?, hold(&dir.restore_lock())?];
        refuse_newer(&dir)?;
        // Folders are created only under the locks.
        let dir = StateDir::create(root)?;
        let mut bases = backup::list_backups(&dir).unwrap_or_default();
        // A person rejected the state that a restore replaced.
        bases.retain(|path| !path.as_str().contains(backup::BEFORE_RESTORE));
        if has_unfinished_rebuild(&dir) {
            // The database that `finish_rebuild` installs was just restored or rebuilt, so it is
            // newer than any backup.
            bases.push(dir.database());
        }
        finish_rebuild(&dir).map_err(RebuildBeginError::Build)?;
        let (draft, base) = begin_draft(&dir, bases, now).map_err(RebuildBeginError::Build)?;
        Ok(DatabaseRebuild { dir, draft, base, _locks: locks })
    }

    /// Returns the target for records that are found in views and transcripts.
    pub fn target(&self) -> RecordTarget<'_> {
        self.draft.target()
    }

    /// Replaces the old database with the new one, under a new epoch and with every view due.
    pub fn finish(self, now: Timestamp) -> Result<RebuiltDatabase, StagingError> {
        let DatabaseRebuild { dir, draft, base, _locks } = self;
        // The old database may be damaged, so every read from it may fail.
        let old = StateDatabase::read_any(&dir.database()).ok();
        let epoch = [Some(draft.db()), old.as_ref()].into_iter().flatten();
        // Higher than both, so that no writer of the old state can continue.
        let epoch = epoch.filter_map(|db| db.epoch().ok()).max().unwrap_or(1).saturating_add(1);
        let record = config_record(old.as_ref(), &dir);
        draft.target().commit(move |tx| {
            tx.set_meta("epoch", &epoch.to_string())?;
            let mut rows = record.iter().flat_map(ConfigRecordRows::rows);
            rows.try_for_each(|(key, value)| tx.set_meta(key, value))?;
            // Records were added in bulk, and the backup's counters are older.
            tx.recount()?;
            tx.mark_all_views_due()
        })?;
        let losses = describe_losses(old.as_ref(), draft.db(), base.as_deref(), &dir);
        // The file must be closed before it is moved.
        drop(old);
        let trash = draft.replace(now)?;
        Ok(RebuiltDatabase { base, losses, trash })
    }
}

/// Returns the record of what a run may have changed in the config files, which are not rebuilt. A
/// change that waits for a person still does. Without an old database, that of the backup is used.
fn config_record(old: Option<&StateDatabase>, dir: &StateDir) -> Option<ConfigRecordRows> {
    let record = old.and_then(|old| ConfigRecordRows::read(old).ok());
    let is_lost = record.is_none() && dir.database().exists();
    record.or_else(|| is_lost.then(ConfigRecordRows::unreadable))
}

/// Refuses a database of a newer release: this one would lose what it does not know.
fn refuse_newer(dir: &StateDir) -> Result<(), DatabaseOpenError> {
    let path = dir.database();
    match StateDatabase::read_any(&path).and_then(|db| check_not_newer(&db.conn, &path)) {
        Err(error @ DatabaseOpenError::Newer { .. }) => Err(error),
        // A damaged database is what a rebuild is for.
        _ => Ok(()),
    }
}

/// Starts with the last sound one of `bases`, or with an empty database.
fn begin_draft(
    dir: &StateDir,
    bases: Vec<Utf8PathBuf>,
    now: Timestamp,
) -> Result<(DraftDatabase, Option<Utf8PathBuf>), StagingError> {
    for base in bases.into_iter().rev() {
        let draft = match DraftDatabase::begin(dir, Some(&base), now) {
            Ok(draft) => draft,
            // A full disk does not mean that the backup is damaged.
            Err(error @ StagingError::Write { .. }) => return Err(error),
            Err(_) => continue,
        };
        // A backup of a database that was already damaged is skipped in favour of an older one.
        if draft.db().integrity_faults().is_ok_and(|faults| faults.is_empty()) {
            return Ok((draft, Some(base)));
        }
    }
    Ok((DraftDatabase::begin(dir, None, now)?, None))
}

/// Lists the data that neither the backup nor views and transcripts hold.
fn describe_losses(
    old: Option<&StateDatabase>,
    new: &StateDatabase,
    base: Option<&Utf8Path>,
    dir: &StateDir,
) -> Vec<String> {
    let count = |db: &StateDatabase, table: &str| -> Option<i64> {
        let sql = format!("SELECT COUNT(*) FROM {table}");
        db.conn.as_sqlite()?.query_row(&sql, [], |row| row.get(0)).ok()
    };
    let since = match base.and_then(Utf8Path::file_name) {
        Some(name) => format!("since the backup {name}"),
        None => "since the beginning: there was no usable backup".to_owned(),
    };
    // Without an old database it is unknown what is lost, so nothing is claimed.
    if !dir.database().exists() {
        return Vec::new();
    }
    let mut lost = Vec::new();
    let version = old.and_then(|old| old.schema_version().ok()).unwrap_or(SCHEMA_VERSION);
    // An older database lacks newer tables, which is no loss.
    for (_, table, what) in ONLY_IN_DATABASE.into_iter().filter(|(since, ..)| *since <= version) {
        match old.and_then(|old| count(old, table)) {
            None => lost.push(format!("{what} {since} (their number is unknown)")),
            Some(before) => {
                let missing = before - count(new, table).unwrap_or(0);
                if missing > 0 {
                    lost.push(format!("{missing} {what} {since}"));
                }
            }
        }
    }
    lost
}
