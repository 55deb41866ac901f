//! Puts a complete database in the place of an old or missing one.
//!
//! A marker records that the new database must replace the old one. From then on,
//! [`finish_rebuild`] can be interrupted anywhere and repeated: the old database is moved first (a
//! missing file cannot be opened), then its write-ahead log and shared memory; renaming the new
//! database makes it valid. Code that opens the store or adopts the directory must call
//! [`finish_rebuild`] first.

use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{OsDisk, replace_file, resolve_inside, untrusted_file, validate_id};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::error::StagingError;
use super::state_files::{self, is_same_file, rename, rename_new, sync_folder_of};
use crate::backup;
use crate::layout::StateDir;

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

#[derive(Debug, Serialize, Deserialize)]
struct RebuildMarker {
    version: u32,
    /// New location of the old database, relative to the state directory.
    trash: String,
}

/// Replaces the database with a complete and synced one, and returns the trash directory that
/// now holds the old one. The caller holds the directory's lock.
pub(crate) fn replace_database(
    dir: &StateDir,
    complete: &Utf8Path,
    now: Timestamp,
) -> Result<Utf8PathBuf, StagingError> {
    // Chosen before the marker is written, so that every repetition moves to the same folder.
    let trash = free_trash(dir, now);
    // Complete under its own name first: the marker promises that this file exists.
    rename(complete, &dir.root().join(REBUILT_DATABASE))?;
    let marker = RebuildMarker { version: MARKER_VERSION, trash: trash.clone() };
    let marker = serde_json::to_vec(&marker).expect("a marker is plain JSON");
    state_files::fault_point()?;
    // From here on the replacement is completed by any process that opens the store.
    replace_file(&OsDisk, &dir.root().join(MARKER), &marker)
        .map_err(|error| StagingError::Write { path: error.path, source: error.source })?;
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
) -> Result<(), StagingError> {
    // A database without its log would lose changes, so a log is moved only where no database is.
    if !dir.database().exists() {
        move_parts(dir, &DATABASE_SUFFIXES[1..], &dir.root().join(free_trash(dir, now)))?;
    }
    // Never over a database that another process created meanwhile.
    rename_new(complete, &dir.database())
}

/// Returns true if a path names the database or one of its SQLite side files. Opens nothing:
/// closing a file of the database would drop the locks that SQLite holds on it.
pub fn is_database_file(dir: &StateDir, path: &Utf8Path) -> bool {
    let parts =
        DATABASE_SUFFIXES.map(|part| Utf8PathBuf::from(format!("{}{part}", dir.database())));
    parts.iter().any(|part| is_same_file(part, path))
}

/// Moves the existing files of a database to a directory.
fn move_parts(dir: &StateDir, parts: &[&str], trash: &Utf8Path) -> Result<(), StagingError> {
    for part in parts {
        let name = format!("heeler.db{part}");
        if dir.root().join(&name).exists() {
            state_files::create_folder(trash)?;
            // The folder must be durable before a file moves into it.
            sync_folder_of(trash)?;
            rename_new(&dir.root().join(&name), &trash.join(&name))?;
        }
    }
    Ok(())
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
fn read_marker(dir: &StateDir) -> Result<Option<Utf8PathBuf>, StagingError> {
    let path = dir.root().join(MARKER);
    let bad = |reason: String| StagingError::BadRebuildMarker { path: path.clone(), reason };
    let text = match untrusted_file::read(&path, MARKER_BYTES_MAX) {
        Ok(text) => text,
        // No marker is the usual case.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(bad(error.to_string())),
    };
    let marker: RebuildMarker =
        serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
    if marker.version != MARKER_VERSION {
        return Err(bad(format!("its version is {}", marker.version)));
    }
    // Only the trash may be named: the old database is moved there.
    let name = marker.trash.strip_prefix("trash/").unwrap_or_default();
    validate_id(name).map_err(|error| bad(error.to_string()))?;
    resolve_inside(dir.root(), &marker.trash).map(Some).map_err(|error| bad(error.to_string()))
}

/// Rejects a marker if nothing shows that there was a database to rebuild: no database, here or
/// in the trash, and no backup.
pub fn refuse_unexpected_marker(dir: &StateDir) -> Result<(), StagingError> {
    let Some(trash) = read_marker(dir)? else { return Ok(()) };
    // A rebuild leaves the old database in one of these places, so a marker without it is forged.
    let has_database = dir.database().exists() || trash.join("heeler.db").exists();
    if has_database || !backup::list_backups(dir).unwrap_or_default().is_empty() {
        return Ok(());
    }
    let reason = "there never was a database here".to_owned();
    Err(StagingError::BadRebuildMarker { path: dir.root().join(MARKER), reason })
}

/// Returns true if a rebuild was interrupted.
pub fn is_unfinished(dir: &StateDir) -> bool {
    dir.root().join(MARKER).exists()
}

/// Completes an interrupted rebuild. The caller holds the directory's lock.
pub fn finish_rebuild(dir: &StateDir) -> Result<(), StagingError> {
    let marker = dir.root().join(MARKER);
    let ready = dir.root().join(REBUILT_DATABASE);
    let failed = |source| StagingError::Write { path: marker.clone(), source };
    let Some(trash) = read_marker(dir)? else { return Ok(()) };
    // Without this file the last step was done, and only the marker is left.
    if ready.exists() {
        // Created even if there is nothing to move, because its path is reported to the user.
        state_files::create_folder(&trash)?;
        move_parts(dir, &DATABASE_SUFFIXES, &trash)?;
        // The old files are gone from these names, so no log can be replayed into the new database.
        rename_new(&ready, &dir.database())?;
    }
    state_files::fault_point()?;
    // Last, because it is the marker that makes an interrupted replacement continue.
    std::fs::remove_file(&marker).map_err(failed)?;
    sync_folder_of(&marker)
}
