//! A database that is built under a temporary name and then installed as a whole.
//!
//! A crash leaves either no new database or the complete one. The draft has no side files, so a
//! crash leaves a single temp file, which is removed at the next start. Start at
//! [`DraftDatabase`].

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{DiskBackend as _, OsDisk, temp_name};
use jiff::Timestamp;

use super::{ImportError, atomic_files};
use crate::db::{DatabaseOpenError, SqliteResultExt as _, StateDatabase, migrate};
use crate::layout::StateDir;
use heeler_transcript::untrusted_file;

/// A database under construction; dropping it deletes the file.
pub(crate) struct DraftDatabase {
    /// `None` once it is closed.
    db: Option<StateDatabase>,
    path: Utf8PathBuf,
}

impl DraftDatabase {
    /// Creates a database with the current schema: an empty one, or a copy of `base`.
    pub(crate) fn begin(
        dir: &StateDir,
        base: Option<&Utf8Path>,
        now: Timestamp,
    ) -> Result<DraftDatabase, ImportError> {
        let path = temp_name(&dir.database());
        if let Some(base) = base {
            let opened = untrusted_file::open(base);
            let mut file =
                opened.map_err(|source| ImportError::Open { path: base.to_owned(), source })?;
            atomic_files::copy(&mut file, &path)?;
        }
        let unusable = |error: DatabaseOpenError| ImportError::Database {
            path: path.clone(),
            source: Box::new(error),
        };
        let db = StateDatabase::private(&path).map_err(unusable)?;
        let draft = DraftDatabase { db: Some(db), path: path.clone() };
        let db = draft.db();
        // Only this process uses the file until it is complete, so it needs no journal file and no
        // syncs.
        db.conn
            .execute_batch("PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF;")
            .attempt("prepare a new database")?;
        let mut version = migrate::check_not_newer(&db.conn, &path).map_err(unusable)?;
        while version < migrate::SCHEMA_VERSION {
            version = migrate::apply_next(&db.conn, migrate::MIGRATIONS, version, now)?;
        }
        Ok(draft)
    }

    pub(crate) fn db(&self) -> &StateDatabase {
        self.db.as_ref().expect("only `finish` closes it")
    }

    /// Closes the database, makes it durable, and returns its path. It is no longer deleted on
    /// drop.
    pub(crate) fn finish(mut self) -> Result<Utf8PathBuf, ImportError> {
        self.db = None;
        atomic_files::fault_point()?;
        let failed = |source| ImportError::Write { path: self.path.clone(), source };
        File::open(&self.path).and_then(|file| file.sync_all()).map_err(failed)?;
        Ok(std::mem::take(&mut self.path))
    }
}

impl Drop for DraftDatabase {
    fn drop(&mut self) {
        self.db = None;
        if !self.path.as_str().is_empty() {
            // A file that cannot be removed now is removed at the next start, as after a crash.
            let _removed = std::fs::remove_file(&self.path);
        }
    }
}

/// Renames a file within the state directory, durably.
pub(crate) fn rename(from: &Utf8Path, to: &Utf8Path) -> Result<(), ImportError> {
    atomic_files::fault_point()?;
    let failed = |source| ImportError::Write { path: to.to_owned(), source };
    std::fs::rename(from, to).map_err(failed)?;
    for path in [to, from] {
        sync_folder_of(path)?;
    }
    Ok(())
}

/// Renames like [`rename`], but never replaces an existing file.
pub(crate) fn rename_new(from: &Utf8Path, to: &Utf8Path) -> Result<(), ImportError> {
    atomic_files::fault_point()?;
    let failed = |source| ImportError::Write { path: to.to_owned(), source };
    match OsDisk.rename_new(from, to) {
        // Not every file system supports this rename as one step, so a crash may have left both
        // names.
        Err(_) if is_same_file(from, to) => std::fs::remove_file(from),
        done => done,
    }
    .map_err(failed)?;
    for path in [to, from] {
        sync_folder_of(path)?;
    }
    Ok(())
}

/// Returns true if two paths name the same file, without opening it.
pub(crate) fn is_same_file(one: &Utf8Path, other: &Utf8Path) -> bool {
    let id = |path: &Utf8Path| path.symlink_metadata().map(|meta| (meta.dev(), meta.ino()));
    matches!((id(one), id(other)), (Ok(one), Ok(other)) if one == other)
}

/// Makes the names in a file's directory durable.
pub(crate) fn sync_folder_of(path: &Utf8Path) -> Result<(), ImportError> {
    let folder = path.parent().unwrap_or(path);
    OsDisk
        .sync_folder(folder)
        .map_err(|source| ImportError::Write { path: folder.to_owned(), source })
}
