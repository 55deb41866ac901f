//! A database that is built under a temporary name and then installed as a whole.
//!
//! A crash leaves either no new database or the complete one. The draft has no side files, so a
//! crash leaves a single temp file, which is removed at the next start. Start at
//! [`DraftDatabase`].

use std::fs::File;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{temp_name, untrusted_file};
use jiff::Timestamp;

use super::database_placement::{place_database, replace_database};
use super::error::StagingError;
use super::record_target::RecordTarget;
use super::state_files;
use crate::db::{DatabaseOpenError, StateDatabase, migrate};
use crate::layout::StateDir;

/// A database under construction; dropping it deletes the file.
pub struct DraftDatabase {
    dir: StateDir,
    /// `None` once it is closed.
    db: Option<StateDatabase>,
    path: Utf8PathBuf,
}

impl DraftDatabase {
    /// Creates a database with the current schema: an empty one, or a copy of `base`.
    pub fn begin(
        dir: &StateDir,
        base: Option<&Utf8Path>,
        now: Timestamp,
    ) -> Result<DraftDatabase, StagingError> {
        let path = temp_name(&dir.database());
        if let Some(base) = base {
            // A backup may come with a cloned repository, so it is opened like a foreign file.
            let opened = untrusted_file::open(base);
            let mut file =
                opened.map_err(|source| StagingError::Open { path: base.to_owned(), source })?;
            // A copy, so that a damaged rebuild cannot harm its backup.
            state_files::copy(&mut file, &path)?;
        }
        let unusable = |error: DatabaseOpenError| StagingError::Database {
            path: path.clone(),
            source: Box::new(error),
        };
        let db = StateDatabase::private(&path).map_err(unusable)?;
        let draft = DraftDatabase { dir: dir.clone(), db: Some(db), path: path.clone() };
        let db = draft.db();
        // Only this process uses the file until it is complete, so it needs no journal file and no
        // syncs.
        db.conn.run_batch(
            "PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF;",
            "prepare a new database",
        )?;
        let mut version = migrate::check_not_newer(&db.conn, &path).map_err(unusable)?;
        while version < migrate::SCHEMA_VERSION {
            version = migrate::apply_next(&db.conn, migrate::MIGRATIONS, version, now)?;
        }
        Ok(draft)
    }

    pub fn db(&self) -> &StateDatabase {
        self.db.as_ref().expect("only `finish` closes it")
    }

    /// Returns the target that inserts records into this draft.
    pub fn target(&self) -> RecordTarget<'_> {
        RecordTarget::draft(&self.dir, self.db())
    }

    /// Installs the draft where there is no database. The caller holds the directory's lock.
    pub fn install(self, now: Timestamp) -> Result<(), StagingError> {
        let dir = self.dir.clone();
        place_database(&dir, &self.finish()?, now)
    }

    /// Replaces the database with the draft, and returns the trash directory that now holds the
    /// old one. The caller holds the directory's lock.
    pub fn replace(self, now: Timestamp) -> Result<Utf8PathBuf, StagingError> {
        let dir = self.dir.clone();
        replace_database(&dir, &self.finish()?, now)
    }

    /// Closes the database, makes it durable, and returns its path. It is no longer deleted on
    /// drop.
    fn finish(mut self) -> Result<Utf8PathBuf, StagingError> {
        // SQLite must have closed the file before it is synced as a plain one.
        self.db = None;
        state_files::fault_point()?;
        let failed = |source| StagingError::Write { path: self.path.clone(), source };
        // The draft was written without syncs, so this one makes all of it durable.
        File::open(&self.path).and_then(|file| file.sync_all()).map_err(failed)?;
        Ok(std::mem::take(&mut self.path))
    }
}

impl Drop for DraftDatabase {
    fn drop(&mut self) {
        // The file is closed before it is removed.
        self.db = None;
        if !self.path.as_str().is_empty() {
            // A file that cannot be removed now is removed at the next start, as after a crash.
            let _removed = std::fs::remove_file(&self.path);
        }
    }
}
