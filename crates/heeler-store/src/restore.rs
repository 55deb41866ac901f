//! Restoring an archive: `heeler restore FILE`.
//!
//! The whole archive is verified before anything changes. Then a running writer is fenced off
//! by raising the epoch, the present database is backed up, missing files are restored, and
//! finally the database's content is replaced in one transaction. If the database is missing or
//! damaged, the writer's lock is held instead and the file is put in place. A crash between any
//! two steps leaves the old state or the new one. Transcripts are never shortened or deleted.
//! Start at [`restore_from_file`].

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufReader, Read, Write as _};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use flate2::read::GzDecoder;
use heeler_transcript::{DiskBackend as _, OsDisk, create_folder, resolve_inside};
use jiff::Timestamp;
use thiserror::Error;

use crate::archive::{
    ARCHIVE_VERSION, ARCHIVED_FILE, ARCHIVED_FOLDERS, ArchiveManifest, CHUNK, DATABASE,
    HashingReader, MANIFEST, TempFileGuard,
};
use crate::backup::{self, BackupError, copy_content};
use crate::daemon_file::remove_stale_file;
use crate::db::database_error::failed;
use crate::db::{
    DatabaseError, DatabaseOpenError, StateDatabase, meta, migrate, store_name, views, workflows,
};
use crate::layout::{StateDir, StateDirError, free_bytes};
use crate::server_store;
use crate::staging::{self, StagingError};
use crate::writer_lock::acquire_writer_lock;
use heeler_transcript::untrusted_file;
use heeler_transcript::{LockError, LockFile, LockHolder};

/// Longest wait for another restore, or for a process that probes the lock.
const LOCK_WAIT: Duration = Duration::from_millis(200);

/// Size limit of a manifest; a million files need less.
const MANIFEST_BYTES_MAX: u64 = 256 << 20;

/// Longest file name in an archive.
const NAME_BYTES_MAX: u64 = 8 << 10;

/// Space that must remain free on the disk in addition to the restored files.
const FREE_BYTES_RESERVE: u64 = 64 << 20;

/// Highest epoch that is accepted. It exceeds any possible number of restores; a higher value
/// would overflow the counter.
const EPOCH_MAX: i64 = 1 << 53;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreReport {
    pub manifest: ArchiveManifest,
    /// Backup of the previous database; `None` if there was no database, or a damaged one.
    pub safety_backup: Option<Utf8PathBuf>,
    /// The previous database file, if it was too damaged for a backup.
    pub damaged: Option<Utf8PathBuf>,
    /// Files that were restored.
    pub restored: Vec<Utf8PathBuf>,
    /// Archived transcripts that differ from the existing ones, saved next to them.
    pub conflict_copies: Vec<Utf8PathBuf>,
    /// Epoch of the state after the restore.
    pub epoch: i64,
}

/// Failure to restore an archive.
#[derive(Debug, Error)]
pub enum RestoreError {
    /// The archive is damaged, or was not made by Heeler.
    #[error("{path} cannot be restored, and nothing was changed: {reason}")]
    BadArchive { path: Utf8PathBuf, reason: String },
    /// Another restore is running, or a daemon holds a damaged database.
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Layout(#[from] StateDirError),
    #[error(transparent)]
    Open(#[from] DatabaseOpenError),
    #[error(transparent)]
    Db(#[from] DatabaseError),
    #[error("nothing was restored, because the present state could not be backed up")]
    Backup(#[from] BackupError),
    /// An interrupted rebuild was found and cannot be completed.
    #[error("an interrupted rebuild of the database cannot be completed; nothing was restored")]
    Rebuild(#[source] StagingError),
    #[error("the restored database could not be put in place; run the restore again")]
    Place(#[source] StagingError),
    #[error("cannot {attempt} {path}; the database was not changed, run the restore again")]
    Io {
        attempt: &'static str,
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Restores the state from `file`. Works while a writer is running, which notices it.
///
/// `progress` receives the bytes of the archive that were read and the total. Afterwards every
/// view is due.
pub fn restore_from_file(
    dir: &StateDir,
    file: &Utf8Path,
    now: Timestamp,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<RestoreReport, RestoreError> {
    let dir = &StateDir::create(dir.root())?;
    // Held to the end: it excludes other restores, and no writer accepts the new epoch before it is
    // free.
    let _lock = acquire_writer_lock(
        dir,
        &dir.restore_lock(),
        &LockHolder::this_process("restore", now),
        LOCK_WAIT,
    )?;
    let mut archive = ArchiveReader::open(file)?;
    // A damaged archive must be found before the first change, so everything is read twice.
    let verified = archive.verify(dir, progress)?;
    let new = check_database(file, &verified.database.0, now)?;
    finish_rebuild(dir, now)?;
    // From here on no live writer commits, so the safety backup has all acknowledged changes.
    let present = secure_present(dir, now)?;
    // Files come before the database: no recorded session may lack its transcript.
    let (restored, conflict_copies) = archive.restore_files(dir, &verified, now, progress)?;
    let VerifiedArchive { manifest, database, .. } = verified;
    let fence = if let ExistingDatabase::Fenced { epoch, .. } = present { epoch } else { 0 };
    // Higher than both epochs, so that every open writer notices, also one of the archived state.
    let epoch = fence.max(new.epoch()?).saturating_add(1);
    prepare(&new, epoch)?;
    keep_config_record(&new, &present, dir)?;
    let (safety_backup, damaged) = match present {
        ExistingDatabase::Fenced { backup, .. } => {
            // Through SQLite and not by a rename: open connections would go on writing to the old
            // file.
            copy_content(&new, &mut StateDatabase::writer_of(dir)?)?;
            // The file of a killed daemon would say that the log, which is gone by now, is lost.
            if matches!(LockFile::probe(&dir.lock()), Ok(None)) {
                remove_stale_file(dir);
            }
            (Some(backup), None)
        }
        ExistingDatabase::Missing { lock } => {
            // No process has a database open under this lock, so a rename is safe here.
            place_new(new, &database, |file| staging::place_database(dir, file, now))?;
            drop(lock);
            (None, None)
        }
        ExistingDatabase::Damaged { lock } => {
            let replace = |file: &Utf8Path| staging::replace_database(dir, file, now);
            let trash = place_new(new, &database, replace)?;
            drop(lock);
            (None, Some(trash.join(DATABASE)))
        }
    };
    Ok(RestoreReport { manifest, safety_backup, damaged, restored, conflict_copies, epoch })
}

/// Completes an interrupted rebuild, which would otherwise replace the restored database later.
fn finish_rebuild(dir: &StateDir, now: Timestamp) -> Result<(), RestoreError> {
    if !staging::has_unfinished_rebuild(dir) {
        return Ok(());
    }
    let _lock = lock_state(dir, now)?;
    staging::finish_rebuild(dir).map_err(RestoreError::Rebuild)
}

fn lock_state(dir: &StateDir, now: Timestamp) -> Result<LockFile, LockError> {
    acquire_writer_lock(dir, &dir.lock(), &LockHolder::this_process("restore", now), LOCK_WAIT)
}

/// Closes the archived database, makes it durable, and lets `put` give it its final name.
fn place_new<T>(
    new: StateDatabase,
    file: &TempFileGuard,
    put: impl FnOnce(&Utf8Path) -> Result<T, StagingError>,
) -> Result<T, RestoreError> {
    // A log of its own would stay behind under the temporary name.
    new.disable_wal()?;
    drop(new);
    // The rename must not become durable before the content.
    let synced = File::open(&file.0).and_then(|open| OsDisk.sync(&open));
    synced.map_err(at("sync", &file.0))?;
    put(&file.0).map_err(RestoreError::Place)
}

/// Action for one archived file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RestoreAction {
    /// The file is missing: restore it.
    Restore,
    /// The file exists, and continues the archived one or is not a transcript.
    Keep,
    /// The file exists and differs: save the archived copy next to it.
    SaveCopy,
}

struct VerifiedArchive {
    manifest: ArchiveManifest,
    /// The extracted database.
    database: TempFileGuard,
    actions: HashMap<String, RestoreAction>,
}

struct ArchiveReader<'a> {
    path: &'a Utf8Path,
    file: File,
    bytes: u64,
}

impl<'a> ArchiveReader<'a> {
    fn open(path: &'a Utf8Path) -> Result<ArchiveReader<'a>, RestoreError> {
        let file = File::open(path).map_err(at("open", path))?;
        let bytes = file.metadata().map_err(at("measure", path))?.len();
        Ok(ArchiveReader { path, file, bytes })
    }

    /// Calls `visit` with the name, length and content of every file in the archive.
    fn each(
        &mut self,
        pass: u64,
        progress: &mut dyn FnMut(u64, u64),
        mut visit: impl FnMut(&str, u64, &mut dyn Read) -> Result<(), RestoreError>,
    ) -> Result<(), RestoreError> {
        let path = self.path;
        let total = 2 * self.bytes;
        let before = pass * self.bytes;
        let mut reader = self.reader(|done| progress(before + done, total))?;
        let bad = |reason: String| RestoreError::BadArchive { path: path.to_owned(), reason };
        let mut tar = tar::Archive::new(&mut reader);
        let mut long_name = None;
        // Raw entries, because the library would read a long name into memory without a limit.
        let entries = tar.entries().map_err(|error| bad(error.to_string()))?.raw(true);
        for entry in entries {
            let mut entry = entry.map_err(|error| bad(error.to_string()))?;
            let kind = entry.header().entry_type();
            if kind.is_gnu_longname() && long_name.is_none() {
                long_name = Some(read_long_name(&mut entry).map_err(bad)?);
                continue;
            }
            if !kind.is_file() {
                return Err(bad("it holds something that is not a file".to_owned()));
            }
            let name = long_name.take().unwrap_or_else(|| entry.path_bytes().into_owned());
            let name = String::from_utf8(name).map_err(|error| bad(error.to_string()))?;
            visit(&name, entry.size(), &mut entry)?;
        }
        // Only the end of the stream shows whether gzip's own checksum is right.
        io::copy(&mut reader, &mut io::sink()).map_err(|error| bad(error.to_string()))?;
        Ok(())
    }

    fn reader<'s>(
        &'s mut self,
        on_progress: impl FnMut(u64) + 's,
    ) -> Result<Box<dyn Read + 's>, RestoreError> {
        use std::io::{BufRead as _, Seek as _};
        let path = self.path;
        self.file.rewind().map_err(at("read", path))?;
        let mut reader = BufReader::with_capacity(
            CHUNK,
            ProgressReader { inner: &self.file, done: 0, on_progress },
        );
        // By content, because a person may have renamed the file.
        let is_gzip = reader.fill_buf().map_err(at("read", path))?.starts_with(&[0x1f, 0x8b]);
        Ok(if is_gzip { Box::new(GzDecoder::new(reader)) } else { Box::new(reader) })
    }

    /// Checks all names and hashes and the manifest. Changes nothing.
    fn verify(
        &mut self,
        dir: &StateDir,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<VerifiedArchive, RestoreError> {
        let path = self.path.to_owned();
        let bad = |reason: String| RestoreError::BadArchive { path: path.clone(), reason };
        let database = TempFileGuard::for_target(&dir.database());
        let mut hashes: HashMap<String, (u64, String)> = HashMap::new();
        let mut actions = HashMap::new();
        let mut manifest: Option<ArchiveManifest> = None;
        let free = free_bytes(dir.root()).map_err(at("find the free space of", dir.root()))?;
        let mut needed = 0_u64;
        self.each(0, progress, |name, size, entry| {
            // The manifest is last, so that it can list every file. Data after it is not covered by
            // a hash.
            if manifest.is_some() {
                return Err(bad(format!("`{name}` follows the manifest")));
            }
            if name == MANIFEST {
                manifest = Some(read_manifest(entry).map_err(&bad)?);
                return Ok(());
            }
            let mut entry = HashingReader::new(entry);
            if name == DATABASE {
                needed = needed.saturating_add(size);
                check_space(needed, free).map_err(&bad)?;
                extract(&mut entry, &database.0, &bad)?;
            } else {
                // The path is checked before the content is read: a name must not lead outside.
                let there = checked_path(dir, name).map_err(&bad)?;
                let action = compare(&mut entry, &there, &bad)?;
                needed =
                    needed.saturating_add(if action == RestoreAction::Keep { 0 } else { size });
                // Checked during the reading: the sizes in the manifest come too late to protect
                // the disk.
                check_space(needed, free).map_err(&bad)?;
                actions.insert(name.to_owned(), action);
            }
            let bytes = entry.bytes;
            match hashes.insert(name.to_owned(), (bytes, entry.sha256())) {
                None => Ok(()),
                Some(_) => Err(bad(format!("`{name}` is in it twice"))),
            }
        })?;
        // Checked before the second pass, where it would fail after some files were written.
        check_folders(&hashes).map_err(&bad)?;
        let manifest = manifest.ok_or_else(|| bad("it ends before its manifest".to_owned()))?;
        check_manifest(&manifest, &hashes).map_err(bad)?;
        Ok(VerifiedArchive { manifest, database, actions })
    }

    /// Reads the archive a second time and writes the missing files.
    fn restore_files(
        &mut self,
        dir: &StateDir,
        verified: &VerifiedArchive,
        now: Timestamp,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Vec<Utf8PathBuf>, Vec<Utf8PathBuf>), RestoreError> {
        let (mut restored, mut conflict_copies) = (Vec::new(), Vec::new());
        let path = self.path.to_owned();
        let bad = |reason: String| RestoreError::BadArchive { path: path.clone(), reason };
        let mut expected: HashMap<&str, &str> = HashMap::new();
        for file in &verified.manifest.files {
            expected.insert(&file.path, &file.sha256);
        }
        self.each(1, progress, |name, _, entry| {
            let there = dir.root().join(name);
            let (target, list) = match verified.actions.get(name) {
                Some(RestoreAction::Restore) => (there, &mut restored),
                Some(RestoreAction::SaveCopy) => {
                    (conflict_copy_path(&there, now), &mut conflict_copies)
                }
                Some(RestoreAction::Keep) | None => return Ok(()),
            };
            // The hash is checked again, because the file could have been replaced between the two
            // passes.
            place(entry, &target, expected.get(name).copied().unwrap_or_default(), &bad)?;
            list.push(target);
            Ok(())
        })?;
        Ok((restored, conflict_copies))
    }
}

/// Reader that reports the bytes that pass through it.
struct ProgressReader<R, F> {
    inner: R,
    done: u64,
    on_progress: F,
}

impl<R: Read, F: FnMut(u64)> Read for ProgressReader<R, F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.done += count as u64;
        (self.on_progress)(self.done);
        Ok(count)
    }
}

/// Reads an entry that holds the long name of the next one.
fn read_long_name(entry: &mut tar::Entry<'_, impl Read>) -> Result<Vec<u8>, String> {
    if entry.size() > NAME_BYTES_MAX {
        return Err(format!("a name in it has {} bytes", entry.size()));
    }
    let mut name = Vec::new();
    entry.read_to_end(&mut name).map_err(|error| error.to_string())?;
    // The name ends with a NUL byte.
    if name.last() == Some(&0) {
        name.pop();
    }
    Ok(name)
}

/// Rejects an archive that would fill the disk, before anything is changed.
fn check_space(needed: u64, free: u64) -> Result<(), String> {
    if needed.saturating_add(FREE_BYTES_RESERVE) <= free {
        return Ok(());
    }
    let (needed, free) = (needed >> 20, free >> 20);
    Err(format!("it needs {needed} MiB of disk space plus a reserve, and only {free} MiB are free"))
}

/// Rejects archives in which one name is the directory of another.
fn check_folders(found: &HashMap<String, (u64, String)>) -> Result<(), String> {
    let folders = found.keys().flat_map(|name| name.match_indices('/').map(|(at, _)| &name[..at]));
    match folders.into_iter().find(|folder| found.contains_key(*folder)) {
        None => Ok(()),
        Some(name) => Err(format!("`{name}` is a file and a folder in it")),
    }
}

fn read_manifest(entry: &mut dyn Read) -> Result<ArchiveManifest, String> {
    let mut text = Vec::new();
    entry
        .take(MANIFEST_BYTES_MAX)
        .read_to_end(&mut text)
        .map_err(|error| format!("its manifest cannot be read: {error}"))?;
    let manifest: ArchiveManifest = serde_json::from_slice(&text)
        .map_err(|error| format!("its manifest cannot be read: {error}"))?;
    // Older versions are readable. Newer ones may have fields with a meaning that is unknown here.
    if manifest.version > ARCHIVE_VERSION {
        return Err("it was made by a newer heeler".to_owned());
    }
    Ok(manifest)
}

fn check_manifest(
    manifest: &ArchiveManifest,
    found: &HashMap<String, (u64, String)>,
) -> Result<(), String> {
    let listed: HashSet<&str> = manifest.files.iter().map(|file| file.path.as_str()).collect();
    if let Some(name) = found.keys().find(|name| !listed.contains(name.as_str())) {
        return Err(format!("its manifest does not list `{name}`"));
    }
    for file in &manifest.files {
        match found.get(&file.path) {
            None => return Err(format!("`{}` is missing", file.path)),
            Some((bytes, sha256)) if *bytes == file.bytes && *sha256 == file.sha256 => {}
            Some(_) => return Err(format!("`{}` is damaged", file.path)),
        }
    }
    if listed.contains(DATABASE) { Ok(()) } else { Err("it holds no database".to_owned()) }
}

/// Accepts only paths that Heeler archives.
pub(crate) fn checked_path(dir: &StateDir, name: &str) -> Result<Utf8PathBuf, String> {
    let is_known = name == ARCHIVED_FILE
        || ARCHIVED_FOLDERS
            .iter()
            .any(|folder| name.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')));
    // Names with a leading dot are temporary files and indexes, which no archive contains.
    let is_plain = name.split('/').all(|part| !part.is_empty() && !part.starts_with('.'));
    if !is_known || !is_plain {
        return Err(format!("`{name}` does not belong into a state directory"));
    }
    resolve_inside(dir.root(), name).map_err(|error| error.to_string())
}

fn extract(
    entry: &mut impl Read,
    to: &Utf8Path,
    bad: &dyn Fn(String) -> RestoreError,
) -> Result<(), RestoreError> {
    let mut file = OsDisk.create(to).map_err(at("create", to))?;
    let mut chunk = vec![0; CHUNK];
    loop {
        let count = entry.read(&mut chunk).map_err(|error| bad(error.to_string()))?;
        if count == 0 {
            return OsDisk.sync(&file).map_err(at("sync", to));
        }
        file.write_all(&chunk[..count]).map_err(at("write", to))?;
    }
}

/// Compares an archived file with the existing one. Always reads the entry to its end.
fn compare(
    entry: &mut impl Read,
    there: &Utf8Path,
    bad: &dyn Fn(String) -> RestoreError,
) -> Result<RestoreAction, RestoreError> {
    let mut file = match untrusted_file::open(there) {
        Ok(file) => Some(BufReader::with_capacity(CHUNK, file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(source) => return Err(at("open", there)(source)),
    };
    let mut is_prefix = file.is_some();
    let (mut archived, mut present) = (vec![0; CHUNK], vec![0; CHUNK]);
    loop {
        let count = entry.read(&mut archived).map_err(|error| bad(error.to_string()))?;
        if count == 0 {
            break;
        }
        if let Some(file) = file.as_mut().filter(|_| is_prefix) {
            is_prefix = match file.read_exact(&mut present[..count]) {
                Ok(()) => archived[..count] == present[..count],
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
                Err(source) => return Err(at("read", there)(source)),
            };
        }
    }
    Ok(match file {
        None => RestoreAction::Restore,
        // Other files are views or data that never changes, so the existing one is at least as new.
        Some(_) if is_prefix || there.extension() != Some("jsonl") => RestoreAction::Keep,
        Some(_) => RestoreAction::SaveCopy,
    })
}

fn conflict_copy_path(there: &Utf8Path, now: Timestamp) -> Utf8PathBuf {
    let stamp = now.strftime("%Y-%m-%dT%H-%M-%SZ");
    // Beside the transcript and not in its place, because displayed rows are never changed.
    let mut path = Utf8PathBuf::from(format!("{there}.restored-{stamp}"));
    let mut count = 1;
    while path.symlink_metadata().is_ok() {
        count += 1;
        path = Utf8PathBuf::from(format!("{there}.restored-{stamp}-{count}"));
    }
    path
}

/// Writes a file completely or not at all.
fn place(
    entry: &mut dyn Read,
    to: &Utf8Path,
    sha256: &str,
    bad: &dyn Fn(String) -> RestoreError,
) -> Result<(), RestoreError> {
    let folder = to.parent().expect("every archived file is inside the state directory");
    create_folder(&OsDisk, folder).map_err(|error| RestoreError::Io {
        attempt: "make the folder",
        path: error.path,
        source: error.source,
    })?;
    let draft = TempFileGuard::for_target(to);
    let mut entry = HashingReader::new(entry);
    extract(&mut entry, &draft.0, bad)?;
    if entry.sha256() != sha256 {
        return Err(bad("it changed while it was read".to_owned()));
    }
    match OsDisk.rename_new(&draft.0, to) {
        Ok(()) => {}
        // Another process created the file meanwhile, and it is newer than the archived one.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(source) => return Err(at("put in place", to)(source)),
    }
    OsDisk.sync_folder(folder).map_err(at("sync", folder))
}

/// Opens the archived database, checks it and migrates it.
fn check_database(
    archive: &Utf8Path,
    copy: &Utf8Path,
    now: Timestamp,
) -> Result<StateDatabase, RestoreError> {
    let bad = |reason: String| RestoreError::BadArchive { path: archive.to_owned(), reason };
    // The copy belongs to this process alone, so it can be checked and migrated in place.
    let db = StateDatabase::private(copy)?;
    let faults = db.integrity_faults().map_err(|error| bad(error.to_string()))?;
    if let Some(fault) = faults.first() {
        return Err(bad(format!("its database is damaged: {fault}")));
    }
    let mut version = migrate::check_not_newer(&db.conn, copy).map_err(|error| match error {
        DatabaseOpenError::Newer { found, known, .. } => {
            bad(format!("it was made by a newer heeler (schema {found}, this one knows {known})"))
        }
        other => other.into(),
    })?;
    if version == 0 {
        return Err(bad("its database is empty".to_owned()));
    }
    let epoch = db.epoch().map_err(|error| bad(error.to_string()))?;
    if !(0..=EPOCH_MAX).contains(&epoch) {
        return Err(bad(format!("its epoch {epoch} is out of range")));
    }
    while version < migrate::SCHEMA_VERSION {
        version = migrate::apply_next(&db.conn, migrate::MIGRATIONS, version, now)?;
    }
    Ok(db)
}

/// The database that a restore found.
enum ExistingDatabase {
    /// No database. While the lock is held, no process creates one.
    Missing { lock: LockFile },
    /// A database that no running writer can change any more, and its backup.
    Fenced { epoch: i64, backup: Utf8PathBuf },
    /// An unreadable database. Its whole file must be replaced, so no process may have it open.
    Damaged { lock: LockFile },
}

/// Fences off a running writer and backs up the present database.
///
/// Once the epoch is raised, no change of a running writer is committed. So the backup contains
/// all its changes.
fn secure_present(dir: &StateDir, now: Timestamp) -> Result<ExistingDatabase, RestoreError> {
    let path = dir.database();
    // A restore into a fresh directory must not race with a first start that creates the database.
    if dir.postgres().is_none() && !path.exists() {
        let lock = lock_state(dir, now)?;
        // The previous holder of the lock may have created a database.
        if !path.exists() {
            return Ok(ExistingDatabase::Missing { lock });
        }
    }
    match raise_epoch(dir, now) {
        Ok(epoch) => {
            let backup = backup::take(dir, backup::BEFORE_RESTORE, now)?;
            Ok(ExistingDatabase::Fenced { epoch, backup })
        }
        Err(error) if is_damage(&error) => {
            // A database that cannot be read cannot fence off its writer, so the lock must be free.
            Ok(ExistingDatabase::Damaged { lock: lock_state(dir, now)? })
        }
        Err(error) => Err(error),
    }
}

fn raise_epoch(dir: &StateDir, now: Timestamp) -> Result<i64, RestoreError> {
    let db = StateDatabase::writer_of(dir)?;
    if let Some(location) = dir.postgres() {
        // A restore may be the first use of a database.
        server_store::prepare_server(&db, location, now)?;
    }
    let found = migrate::check_not_newer(&db.conn, &store_name(dir))?;
    if found == 0 {
        return Ok(0);
    }
    // The write lock is taken at the start, so no writer commits between the read and the update. On
    // PostgreSQL, the new term has the same effect.
    db.conn.begin_write()?;
    if let Some(conn) = db.conn.as_postgres() {
        let fence = conn.fence_writer();
        fence.map_err(|source| failed("stop the present writer", source))?;
    }
    // No number of restores reaches this limit, so the row is damaged.
    let epoch = db.epoch()?.checked_add(1).ok_or_else(|| DatabaseError::BadRow {
        table: "meta",
        row: meta::EPOCH.to_owned(),
        reason: "it cannot be incremented".to_owned(),
    })?;
    meta::set(&db.conn, meta::EPOCH, &epoch.to_string())?;
    db.conn.commit()?;
    Ok(epoch)
}

fn is_damage(error: &RestoreError) -> bool {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    let source = match error {
        RestoreError::Open(DatabaseOpenError::Sqlite { source, .. })
        | RestoreError::Db(DatabaseError::Sqlite { source, .. }) => source,
        RestoreError::Db(DatabaseError::BadRow { .. }) => return true,
        _ => return false,
    };
    // A busy disk or a missing permission is not damage: replacing the file would lose data.
    matches!(source.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase))
}

/// Adapts the archived database to the state directory.
fn prepare(new: &StateDatabase, epoch: i64) -> Result<(), RestoreError> {
    meta::set(&new.conn, meta::EPOCH, &epoch.to_string())?;
    // Every view is written again. The existing files show another state, and a publisher of that
    // state may still be running, so none of them counts as an edit of this state.
    views::mark_all_due(&new.conn)?;
    views::clear_published(&new.conn)?;
    // The results of phases after the backup are unknown, so no phase may run again automatically.
    workflows::end_active(&new.conn)?;
    Ok(())
}

/// Keeps the record of what a run may have changed in the config files: they are not restored, and a
/// change that waits for a person still does.
fn keep_config_record(
    new: &StateDatabase,
    present: &ExistingDatabase,
    dir: &StateDir,
) -> Result<(), RestoreError> {
    let record = match present {
        // The archive's own record is all that is known.
        ExistingDatabase::Missing { .. } | ExistingDatabase::Fenced { epoch: 0, .. } => {
            return Ok(());
        }
        ExistingDatabase::Fenced { .. } => {
            meta::ConfigRecordRows::read(&StateDatabase::writer_of(dir)?)?
        }
        ExistingDatabase::Damaged { .. } => meta::ConfigRecordRows::unreadable(),
    };
    record.rows().try_for_each(|(key, value)| Ok(meta::set(&new.conn, key, value)?))
}

fn at(attempt: &'static str, path: &Utf8Path) -> impl FnOnce(io::Error) -> RestoreError {
    move |source| RestoreError::Io { attempt, path: path.to_owned(), source }
}
