//! Rebuilds the database from the newest sound backup and from views and transcripts.
//!
//! The new database is built completely under its own name. Then a marker records that it must
//! replace the old one. From then on, [`finish_rebuild`] can be interrupted anywhere and
//! repeated: the old database is moved first (a missing file cannot be opened), then its
//! write-ahead log and shared memory; renaming the new database makes it valid. Code that opens
//! the store or adopts the directory must call [`finish_rebuild`] first.

use std::io;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::AgentSessionId;
use heeler_transcript::{OsDisk, replace_file, resolve_inside, validate_id};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::backup;
use crate::db::StateDatabase;
use crate::db::migrate::SCHEMA_VERSION;
use crate::import::draft_database::{DraftDatabase, rename, rename_new, sync_folder_of};
use crate::import::herdctl::{HerdctlImport, ImportPurpose};
use crate::import::idle_session::{UNKNOWN_AGENT, idle_session, put_new};
use crate::import::source::ImportSource;
use crate::import::target::{ImportTarget, transaction};
use crate::import::{ImportError, ImportItemKind, ImportReport, atomic_files, message_count};
use crate::layout::{StateDir, StateDirError};
use heeler_transcript::untrusted_file;
use heeler_transcript::{LockError, LockFile, LockHolder};

/// Marker file: a rebuilt database must replace the old one.
const MARKER: &str = "rebuild.json";

/// Version of the marker's format.
const MARKER_VERSION: u32 = 1;

/// Size limit of the marker.
const MARKER_BYTES_MAX: u64 = 64 << 10;

/// Name of the rebuilt database until it is in place.
const REBUILT_DATABASE: &str = "heeler.db.rebuilt";

/// Suffixes of a database and its SQLite side files; the database itself is moved first.
const DATABASE_SUFFIXES: [&str; 4] = ["", "-wal", "-shm", "-journal"];

/// Rows that exist only in the database, not in views or transcripts: first schema version that
/// has them, table, and name for users.
const ONLY_IN_DATABASE: [(i64, &str, &str); 18] = [
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
];

/// Longest wait for the lock.
pub(crate) const LOCK_WAIT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebuildReport {
    /// The backup on which the rebuild is based.
    pub base: Option<Utf8PathBuf>,
    /// Records added from views and transcripts.
    pub report: ImportReport,
    /// Known losses.
    pub losses: Vec<String>,
    /// Directory that now holds the old database.
    pub trash: Utf8PathBuf,
}

/// Failure to rebuild a database. The old one is unchanged.
#[derive(Debug, Error)]
pub enum RebuildError {
    #[error(transparent)]
    Layout(#[from] StateDirError),
    /// Another process is the writer, or is running a restore.
    #[error("cannot rebuild the database while it is in use")]
    Locked(#[source] LockError),
    #[error("the database was not rebuilt")]
    Build(#[source] ImportError),
}

#[derive(Debug, Serialize, Deserialize)]
struct RebuildMarker {
    version: u32,
    /// New location of the old database, relative to the state directory.
    trash: String,
}

/// Rebuilds the database of a state directory.
pub fn rebuild(root: &Utf8Path, now: Timestamp) -> Result<RebuildReport, RebuildError> {
    let dir = StateDir::open(root)?;
    let holder = LockHolder::this_process("doctor --rebuild", now);
    let hold = |path: &Utf8Path| LockFile::acquire(path, &holder, LOCK_WAIT);
    let _lock = hold(&dir.lock()).map_err(RebuildError::Locked)?;
    let _no_restore = hold(&dir.restore_lock()).map_err(RebuildError::Locked)?;
    let dir = StateDir::create(root)?;
    let mut bases = backup::list_backups(&dir).unwrap_or_default();
    // A person rejected the state that a restore replaced.
    bases.retain(|path| !path.as_str().contains(backup::BEFORE_RESTORE));
    if is_unfinished(&dir) {
        // The database that `finish_rebuild` installs was just restored or rebuilt, so it is newer
        // than any backup.
        bases.push(dir.database());
    }
    finish_rebuild(&dir).map_err(RebuildError::Build)?;
    build(&dir, bases, now).map_err(RebuildError::Build)
}

fn build(
    dir: &StateDir,
    bases: Vec<Utf8PathBuf>,
    now: Timestamp,
) -> Result<RebuildReport, ImportError> {
    let (draft, base) = begin(dir, bases, now)?;
    let source = ImportSource::open(dir.root())?;
    let target = ImportTarget::draft(dir, draft.db());
    let mut views = HerdctlImport::new(&source, &target, ImportPurpose::Rebuild, now);
    views.run()?;
    let mut report = views.report;
    sessions_from_logs(dir, &target, &source, &mut report)?;
    let old = StateDatabase::read_any(&dir.database()).ok();
    let epoch = [Some(draft.db()), old.as_ref()].into_iter().flatten();
    let epoch = epoch.filter_map(|db| db.epoch().ok()).max().unwrap_or(1).saturating_add(1);
    transaction(dir, draft.db(), |tx| {
        tx.set_meta("epoch", &epoch.to_string())?;
        tx.recount()?;
        tx.mark_all_views_due()
    })?;
    let lost = describe_losses(old.as_ref(), draft.db(), base.as_deref(), dir);
    drop(old);
    let trash = replace_database(dir, &draft.finish()?, now)?;
    Ok(RebuildReport { base, report, losses: lost, trash })
}

/// Replaces the database with a complete and synced one, and returns the trash directory that
/// now holds the old one. The caller holds the directory's lock.
pub(crate) fn replace_database(
    dir: &StateDir,
    complete: &Utf8Path,
    now: Timestamp,
) -> Result<Utf8PathBuf, ImportError> {
    let trash = free_trash(dir, now);
    rename(complete, &dir.root().join(REBUILT_DATABASE))?;
    let marker = RebuildMarker { version: MARKER_VERSION, trash: trash.clone() };
    let marker = serde_json::to_vec(&marker).expect("a marker is plain JSON");
    atomic_files::fault_point()?;
    replace_file(&OsDisk, &dir.root().join(MARKER), &marker)
        .map_err(|error| ImportError::Write { path: error.path, source: error.source })?;
    finish_rebuild(dir)?;
    Ok(dir.root().join(trash))
}

/// Installs a complete and synced database where there is none. The caller holds the
/// directory's lock.
///
/// A write-ahead log of an earlier database would be replayed into this one, so it is moved to
/// the trash.
pub(crate) fn place_database(
    dir: &StateDir,
    complete: &Utf8Path,
    now: Timestamp,
) -> Result<(), ImportError> {
    if !dir.database().exists() {
        move_parts(dir, &DATABASE_SUFFIXES[1..], &dir.root().join(free_trash(dir, now)))?;
    }
    rename_new(complete, &dir.database())
}

/// Returns the paths of the database and its SQLite side files, even if they do not exist.
pub(crate) fn database_files(dir: &StateDir) -> [Utf8PathBuf; 4] {
    DATABASE_SUFFIXES.map(|part| Utf8PathBuf::from(format!("{}{part}", dir.database())))
}

/// Moves the existing files of a database to a directory.
fn move_parts(dir: &StateDir, parts: &[&str], trash: &Utf8Path) -> Result<(), ImportError> {
    for part in parts {
        let name = format!("heeler.db{part}");
        if dir.root().join(&name).exists() {
            atomic_files::create_folder(trash)?;
            sync_folder_of(trash)?;
            rename_new(&dir.root().join(&name), &trash.join(&name))?;
        }
    }
    Ok(())
}

/// Starts with the last sound one of `bases`, or with an empty database.
fn begin(
    dir: &StateDir,
    bases: Vec<Utf8PathBuf>,
    now: Timestamp,
) -> Result<(DraftDatabase, Option<Utf8PathBuf>), ImportError> {
    for base in bases.into_iter().rev() {
        let draft = match DraftDatabase::begin(dir, Some(&base), now) {
            Ok(draft) => draft,
            // A full disk does not mean that the backup is damaged.
            Err(error @ ImportError::Write { .. }) => return Err(error),
            Err(_) => continue,
        };
        if draft.db().integrity_faults().is_ok_and(|faults| faults.is_empty()) {
            return Ok((draft, Some(base)));
        }
    }
    Ok((DraftDatabase::begin(dir, None, now)?, None))
}

/// Creates a session for each transcript that no session refers to.
fn sessions_from_logs(
    dir: &StateDir,
    target: &ImportTarget<'_>,
    source: &ImportSource,
    report: &mut ImportReport,
) -> Result<(), ImportError> {
    let mut found = Vec::new();
    for slug in source.names("agent-sessions/projects", ImportItemKind::Session, report) {
        let folder = format!("agent-sessions/projects/{slug}");
        for name in source.names(&folder, ImportItemKind::Session, report) {
            let id: Option<AgentSessionId> =
                name.strip_suffix(".jsonl").and_then(|stem| stem.parse().ok());
            let Some(id) = id.filter(|id| !id.as_str().starts_with("agent-")) else { continue };
            let relative = format!("{folder}/{name}");
            let is_named = target.db().session_by_agent_id(&id)?.is_some()
                || id
                    .as_str()
                    .parse()
                    .is_ok_and(|id| matches!(target.db().session(&id), Ok(Some(_))));
            let Ok(file) = source.file(&relative) else { continue };
            if is_named {
                continue;
            }
            let written = file.metadata().and_then(|meta| meta.modified()).ok();
            let written = written.and_then(|at| Timestamp::try_from(at).ok());
            let job = target.db().jobs_of_session(&id, None, 1)?.pop();
            let agent = job.map_or(UNKNOWN_AGENT.to_owned(), |job| job.agent);
            let mut session =
                idle_session(&agent, Some(id), written.unwrap_or(Timestamp::UNIX_EPOCH));
            session.message_count = message_count::count(&dir.root().join(&relative)).unwrap_or(0);
            session.log_path = Some(relative.into());
            found.push(session);
        }
    }
    let fresh = transaction(dir, target.db(), |tx| {
        found.into_iter().map(|session| put_new(tx, session)).collect::<Result<Vec<_>, _>>()
    })?;
    for fresh in fresh {
        match fresh {
            true => report.count_imported(ImportItemKind::Session),
            false => report.count_existing(ImportItemKind::Session),
        }
    }
    Ok(())
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
        db.conn.query_row(&sql, [], |row| row.get(0)).ok()
    };
    let since = match base.and_then(Utf8Path::file_name) {
        Some(name) => format!("since the backup {name}"),
        None => "since the beginning: there was no usable backup".to_owned(),
    };
    if !dir.database().exists() {
        return Vec::new();
    }
    let mut lost = Vec::new();
    let version = old.and_then(|old| old.schema_version().ok()).unwrap_or(SCHEMA_VERSION);
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

/// Returns an unused trash directory, relative to the state directory.
fn free_trash(dir: &StateDir, now: Timestamp) -> String {
    let stamp = now.strftime("%Y-%m-%dT%H-%M-%SZ");
    let names = (1..).map(|count| match count {
        1 => format!("trash/{stamp}-database"),
        _ => format!("trash/{stamp}-database-{count}"),
    });
    let mut free = names.filter(|name| dir.root().join(name).symlink_metadata().is_err());
    free.next().expect("there are more names than folders")
}

/// Reads the marker of an interrupted rebuild and returns the trash directory that it names.
///
/// The marker may have come with a cloned repository. So it is checked that it names a
/// directory in the trash that is not a symbolic link.
fn read_marker(dir: &StateDir) -> Result<Option<Utf8PathBuf>, ImportError> {
    let path = dir.root().join(MARKER);
    let bad = |reason: String| ImportError::BadRebuildMarker { path: path.clone(), reason };
    let text = match untrusted_file::read(&path, MARKER_BYTES_MAX) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(bad(error.to_string())),
    };
    let marker: RebuildMarker =
        serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
    if marker.version != MARKER_VERSION {
        return Err(bad(format!("its version is {}", marker.version)));
    }
    let name = marker.trash.strip_prefix("trash/").unwrap_or_default();
    validate_id(name).map_err(|error| bad(error.to_string()))?;
    resolve_inside(dir.root(), &marker.trash).map(Some).map_err(|error| bad(error.to_string()))
}

/// Rejects a marker if nothing shows that there was a database to rebuild: no database, here or
/// in the trash, and no backup.
pub(crate) fn refuse_unexpected_marker(dir: &StateDir) -> Result<(), ImportError> {
    let Some(trash) = read_marker(dir)? else { return Ok(()) };
    let has_database = dir.database().exists() || trash.join("heeler.db").exists();
    if has_database || !backup::list_backups(dir).unwrap_or_default().is_empty() {
        return Ok(());
    }
    let reason = "there never was a database here".to_owned();
    Err(ImportError::BadRebuildMarker { path: dir.root().join(MARKER), reason })
}

/// Returns true if a rebuild was interrupted.
pub(crate) fn is_unfinished(dir: &StateDir) -> bool {
    dir.root().join(MARKER).exists()
}

/// Completes an interrupted rebuild. The caller holds the directory's lock.
pub(crate) fn finish_rebuild(dir: &StateDir) -> Result<(), ImportError> {
    let marker = dir.root().join(MARKER);
    let ready = dir.root().join(REBUILT_DATABASE);
    let failed = |source| ImportError::Write { path: marker.clone(), source };
    let Some(trash) = read_marker(dir)? else { return Ok(()) };
    if ready.exists() {
        // Created even if there is nothing to move, because its path is reported to the user.
        atomic_files::create_folder(&trash)?;
        move_parts(dir, &DATABASE_SUFFIXES, &trash)?;
        rename_new(&ready, &dir.database())?;
    }
    atomic_files::fault_point()?;
    std::fs::remove_file(&marker).map_err(failed)?;
    sync_folder_of(&marker)
}
