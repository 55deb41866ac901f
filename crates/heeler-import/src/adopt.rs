//! Adopts a `.herdctl/` directory as a state directory, in place.
//!
//! Nothing of herdctl's is changed until the database is complete and in place. Before a file
//! is rewritten for the first time, its original is copied to `.before-heeler/`. Start at
//! [`adopt`].

use std::io;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_store::staging::{DraftDatabase, finish_rebuild, refuse_foreign_rebuild, state_files};
use heeler_store::{StateDatabase, StateDir, StateDirError, acquire_writer_lock, doctor};
use heeler_transcript::{LockError, LockHolder, resolve_inside};
use jiff::Timestamp;
use thiserror::Error;

use crate::herdctl::{HerdctlImport, ImportPurpose, running_herdctl};
use crate::import_error::ImportError;
use crate::report::{ImportItemKind, ImportReport};
use crate::source::ImportSource;

/// Directory of the files as they were before the adoption.
const ORIGINALS_FOLDER: &str = ".before-heeler";

/// Longest wait for the lock, because another command may be adopting the same directory.
const LOCK_WAIT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdoptionReport {
    /// Imported records by kind, and those that could not be read.
    pub report: ImportReport,
    /// Number of jobs that herdctl had left unfinished; they are marked as interrupted.
    pub interrupted: u64,
    /// Number of files copied to `.before-heeler/`.
    pub originals_kept: usize,
}

/// Failure to adopt a directory. Nothing was changed in it.
#[derive(Debug, Error)]
pub enum AdoptError {
    /// herdctl is running in the directory.
    #[error("herdctl (process {pid}) is running on {dir}; stop it first: `herdctl stop`")]
    HerdctlRunning {
        dir: Utf8PathBuf,
        /// Process id of herdctl.
        pid: u32,
    },
    #[error(
        "{dir} is read-only, so its herdctl state cannot be adopted; make it writable, or copy it \
         with `heeler import herdctl`"
    )]
    ReadOnly {
        dir: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// Another process holds the directory's lock.
    #[error("cannot adopt the herdctl state in {dir} now")]
    Locked {
        dir: Utf8PathBuf,
        /// Names the holder.
        #[source]
        source: LockError,
    },
    #[error(transparent)]
    Layout(#[from] StateDirError),
    #[error("the herdctl state in {dir} was not adopted; nothing was changed")]
    Build {
        dir: Utf8PathBuf,
        #[source]
        source: ImportError,
    },
}

/// Adopts a directory; `None` if another process has adopted it meanwhile.
pub fn adopt(root: &Utf8Path, now: Timestamp) -> Result<Option<AdoptionReport>, AdoptError> {
    // herdctl takes no lock, so its process is looked up before Heeler takes its own.
    if let Some(pid) = running_herdctl(root) {
        return Err(AdoptError::HerdctlRunning { dir: root.to_owned(), pid });
    }
    let dir = StateDir::open(root)?;
    let holder = LockHolder::this_process("adopt", now);
    let hold = |path: &Utf8Path| {
        acquire_writer_lock(&dir, path, &holder, LOCK_WAIT).map_err(|error| lock_error(&dir, error))
    };
    // From here on no other process can become the writer.
    let _lock = hold(&dir.lock())?;
    // A running restore writes files before the database exists.
    let _no_restore = hold(&dir.restore_lock())?;
    let failed = |source| AdoptError::Build { dir: dir.root().to_owned(), source };
    // A marker in a directory that never had a database was planted there.
    refuse_foreign_rebuild(&dir).map_err(|error| failed(error.into()))?;
    finish_rebuild(&dir).map_err(|error| failed(error.into()))?;
    // Another command adopted the directory while this one waited for the lock.
    if dir.has_database() {
        return Ok(None);
    }
    // Folders are created only now, so that a refused adoption changes nothing.
    StateDir::create(root)?;
    build(&dir, now).map(Some).map_err(failed)
}

fn lock_error(dir: &StateDir, error: LockError) -> AdoptError {
    let dir = dir.root().to_owned();
    match error {
        LockError::Io { source, .. }
            if matches!(
                source.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            AdoptError::ReadOnly { dir, source }
        }
        source => AdoptError::Locked { dir, source },
    }
}

fn build(dir: &StateDir, now: Timestamp) -> Result<AdoptionReport, ImportError> {
    let source = ImportSource::open(dir.root())?;
    let draft = DraftDatabase::begin(dir, None, now)?;
    let target = draft.target();
    let mut herdctl = HerdctlImport::new(&source, &target, ImportPurpose::TakeOver, now);
    herdctl.run()?;
    let (report, interrupted) = (herdctl.report, herdctl.interrupted);
    // Copied before the database is in place, because the first writer publishes views.
    let originals_kept = copy_originals(dir, draft.db(), &source)?;
    // The copies must be durable before a file is rewritten.
    state_files::sync(dir.root())?;
    // The last step: until here the directory is herdctl's.
    draft.install(now)?;
    // Files of herdctl may be readable by other users.
    doctor::restrict_all_permissions(dir);
    Ok(AdoptionReport { report, interrupted, originals_kept })
}

/// Copies the files that will be rewritten: due views, and those that the next job changes.
fn copy_originals(
    dir: &StateDir,
    db: &StateDatabase,
    source: &ImportSource,
) -> Result<usize, ImportError> {
    let mut files = vec!["state.yaml".to_owned()];
    let mut report = ImportReport::default();
    let sessions = source.names("sessions", ImportItemKind::Session, &mut report);
    files.extend(
        sessions
            .iter()
            .filter(|name| name.ends_with(".json"))
            .map(|name| format!("sessions/{name}")),
    );
    let mut after = String::new();
    loop {
        let due = db.due_views(&after, 1000)?;
        let Some(last) = due.last() else { break };
        after.clone_from(&last.path);
        files.extend(due.into_iter().map(|view| view.path));
    }
    files.sort_unstable();
    files.dedup();
    let mut copied = 0;
    for file in files {
        let to = resolve_inside(dir.root(), &format!("{ORIGINALS_FOLDER}/{file}"))
            .map_err(|source| ImportError::Blocked { source })?;
        // A copy of an earlier adoption is older, and so closer to herdctl's original.
        let is_copied = to.metadata().is_ok_and(|meta| meta.len() > 0);
        if is_copied || !source.has(&file) {
            continue;
        }
        // A file that cannot be read is not rewritten either.
        let Ok(mut from) = source.file(&file) else { continue };
        state_files::create_folder(to.parent().expect("a kept file lies in a folder"))?;
        state_files::copy(&mut from, &to)?;
        copied += 1;
    }
    Ok(copied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_cannot_be_written_is_called_read_only() {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(temp.path()).unwrap();
        let dir = StateDir::open(root).unwrap();
        for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem] {
            let error = LockError::Io { attempt: "open", path: dir.lock(), source: kind.into() };
            assert!(matches!(lock_error(&dir, error), AdoptError::ReadOnly { .. }));
        }
        let error = LockError::Held { path: dir.lock(), holder: None };
        assert!(matches!(lock_error(&dir, error), AdoptError::Locked { .. }));
    }
}
