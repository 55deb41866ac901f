//! The single writer of a state directory.
//!
//! [`Store`] holds the directory's lock. Changes go through the queue of its [`StoreWriter`].
//! Start at [`Store::open`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use camino::Utf8PathBuf;
use jiff::Timestamp;
use thiserror::Error;

use crate::backup::{self, BackupError};
use crate::daemon_file::remove_stale_file;
use crate::database_files::{DatabaseFiles, LOG_LOST, is_log_lost};
use crate::db::migrate::{self, SchemaMigration};
use crate::db::postgres::WriterIdentity;
use crate::db::{DatabaseError, DatabaseOpenError, StateDatabase, store_name};
use crate::layout::StateDir;
use crate::lead_lease::LeadLease;
use crate::server_store;
use crate::staging::StagingError;
use crate::staging::database_placement::finish_rebuild;
use crate::store_writer::{OpenDatabase, StoreWriteError, StoreWriter};
use crate::transaction::StoreTransaction;
use crate::views::{self, DueSignal, HandEdits, PublishReport};
use crate::writer_lock::acquire_writer_lock;
use heeler_transcript::{LockError, LockFile, LockHolder};

/// Longest wait for the state lock, which another process may probe for an instant.
const LOCK_WAIT: Duration = Duration::from_millis(200);

/// Failure to open a store.
#[derive(Debug, Error)]
pub enum StoreOpenError {
    /// Another process is the writer, or the lock file is unusable.
    #[error("cannot become the writer of {dir}")]
    Lock {
        dir: Utf8PathBuf,
        /// Names the holder.
        #[source]
        source: LockError,
    },
    /// A restore is running.
    #[error("a restore of {dir} is under way; try again when it has ended")]
    Restoring { dir: Utf8PathBuf },
    #[error(transparent)]
    Open(#[from] DatabaseOpenError),
    #[error(transparent)]
    Db(#[from] DatabaseError),
    /// The backup before a migration failed, so nothing was migrated.
    #[error("the database was not migrated, because its backup failed")]
    Backup(#[source] BackupError),
    /// An interrupted rebuild cannot be completed.
    #[error("an interrupted rebuild of the database cannot be completed")]
    Rebuild(#[source] StagingError),
    #[error("cannot start the writer's thread")]
    Thread(#[source] std::io::Error),
}

/// A store, and the findings from opening it.
#[derive(Debug)]
pub struct OpenedStore {
    pub store: Store,
    /// Changes that people made in the views since they were published.
    pub hand_edits: HandEdits,
    /// Schema version before a migration; 0 if the database was created.
    pub migrated_from: Option<i64>,
    /// Number of temp files removed, which a crash had left.
    pub temp_files_removed: usize,
}

#[derive(Debug)]
pub struct Store {
    writer: StoreWriter,
    publishing: Mutex<()>,
}

impl Store {
    /// Becomes the writer: takes the lock, migrates, removes temp files, applies hand edits,
    /// publishes.
    ///
    /// `command` identifies this process to others that are refused meanwhile.
    pub fn open(
        dir: &StateDir,
        command: &str,
        now: Timestamp,
    ) -> Result<OpenedStore, StoreOpenError> {
        let lock = acquire_writer_lock(
            dir,
            &dir.lock(),
            &LockHolder::this_process(command, now),
            LOCK_WAIT,
        )
        .map_err(|source| StoreOpenError::Lock { dir: dir.root().to_owned(), source })?;
        // A restore may be replacing the database at this moment.
        refuse_while_restoring(dir)?;
        // Before the database is opened: the rebuild replaces the file.
        finish_rebuild(dir).map_err(StoreOpenError::Rebuild)?;
        if dir.postgres().is_none() && is_log_lost(dir) {
            tracing::warn!("{} is gone: {LOG_LOST}", format!("{}-wal", dir.database()));
        }
        // No other writer is alive under the lock, so temporary files are leftovers.
        let removed = views::remove_temp_files(dir, now);
        let (open, writer) = open_database(dir)?;
        let migrated_from = apply_migrations(dir, &open.db, migrate::MIGRATIONS, now)?;
        let epoch = epoch_outside_restore(dir, &open.db)?;
        // Its log has been read, so the next loss of a log is another one.
        remove_stale_file(dir);
        let writer = StoreWriter::start(dir.clone(), lock, open, writer, epoch)
            .map_err(StoreOpenError::Thread)?;
        let store = Store { writer, publishing: Mutex::default() };

        // Views are a convenience. An unreadable one must not keep the fleet from starting.
        let hand_edits = store.apply_hand_edits(now).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the views that were edited by hand");
            HandEdits::default()
        });
        // A crash may have left views due. They are published before the first change.
        if let Err(error) = store.publish_views(now) {
            tracing::warn!(%error, "cannot publish the views that were due");
        }
        Ok(OpenedStore { store, hand_edits, migrated_from, temp_files_removed: removed })
    }

    pub fn dir(&self) -> &StateDir {
        self.writer.dir()
    }

    /// Returns the name of this process as the writer of a server; `None` for a file.
    pub fn writer_instance(&self) -> Option<&str> {
        self.writer.instance()
    }

    /// Loses this lead if the database lacks commits of this process. Leaves the renewal of the lease to
    /// the thread that renews the lead, if there is one, as long as it does so.
    pub fn leave_renewal_to(&self, lead: LeadLease) {
        self.writer.leave_renewal_to(lead);
    }

    /// Returns true if the directory was not removed, moved or replaced.
    ///
    /// If it was, another process may be the writer of the directory at this path. Nothing there is
    /// touched.
    pub fn is_directory_intact(&self) -> bool {
        self.writer.is_directory_intact()
    }

    /// Writes the database back if its files were deleted or replaced since they were opened: only
    /// the open connection has their content. A change does the same before it is acknowledged.
    pub fn check_database(&self) -> Result<(), StoreWriteError<DatabaseError>> {
        match self.writer.is_database_intact() {
            true => Ok(()),
            false => self.write(|_| Ok(())),
        }
    }

    /// Returns the reason that lost files of the database could not be written back yet.
    pub fn database_fault(&self) -> Option<String> {
        self.writer.database_fault()
    }

    /// Runs a change on the writer's thread and returns its result once it is committed.
    ///
    /// The caller waits while the queue is full. A command must not call this function: it would
    /// wait for its own end.
    pub fn write<T, E, F>(&self, work: F) -> Result<T, StoreWriteError<E>>
    where
        F: FnOnce(&mut StoreTransaction<'_>) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        self.writer.write(work)
    }

    #[cfg(test)]
    pub(crate) fn writer(&self) -> &StoreWriter {
        &self.writer
    }

    /// Accepts that the state was restored. Anything read before is void; writes work again.
    ///
    /// Refused while the restore is running.
    pub fn accept_restore(&self) -> Result<i64, StoreOpenError> {
        let epoch = epoch_outside_restore(
            self.dir(),
            // A reader checks the schema too: the restored database may come from another release.
            &StateDatabase::reader_of(self.dir())?,
        )?;
        self.writer.set_epoch(epoch);
        Ok(epoch)
    }

    /// Applies the changes that people made in the views by hand, and returns them.
    pub fn apply_hand_edits(&self, now: Timestamp) -> Result<HandEdits, views::PublishError> {
        // Two publications at once would take each other's files for hand edits.
        let _one_at_a_time = self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        views::apply_hand_edits(&self.writer, now)
    }

    /// Writes every due view. Writes nothing if the directory was moved or replaced.
    pub fn publish_views(&self, now: Timestamp) -> Result<PublishReport, views::PublishError> {
        let _one_at_a_time = self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        // The directory at this path may belong to another writer by now.
        match self.is_directory_intact() {
            true => views::publish(&self.writer, now),
            false => Ok(PublishReport::default()),
        }
    }

    /// Writes the files of those views that are due. They stay due until
    /// [`Store::publish_views`] makes them durable.
    pub(crate) fn publish_some_views(
        &self,
        paths: &[String],
        now: Timestamp,
    ) -> Result<PublishReport, views::PublishError> {
        let _one_at_a_time = self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        match self.is_directory_intact() {
            true => views::publish_some(&self.writer, paths, now),
            false => Ok(PublishReport::default()),
        }
    }

    /// Records the views that [`Store::publish_some_views`] has put in place.
    pub(crate) fn record_placed_views(
        &self,
        report: &mut PublishReport,
    ) -> Result<(), views::PublishError> {
        views::record_placed(&self.writer, std::mem::take(&mut report.placed))
    }

    /// Takes today's backup of the database unless it exists; returns the path of a new backup.
    pub fn backup_daily(&self, now: Timestamp) -> Result<Option<Utf8PathBuf>, BackupError> {
        backup::take_daily_backup(self.dir(), now)
    }

    pub(crate) fn due(&self) -> &Arc<DueSignal> {
        self.writer.due()
    }
}

/// Opens the database for writing. Refuses a newer schema, and a file whose records were moved to a
/// server.
fn open_database(dir: &StateDir) -> Result<(OpenDatabase, Option<WriterIdentity>), StoreOpenError> {
    let Some(location) = dir.postgres() else {
        // Before the database is opened: a file that replaces it meanwhile is noticed.
        let files = DatabaseFiles::of_database(&dir.database());
        let db = StateDatabase::open_read_write(&dir.database())?;
        // A newer schema is refused before anything is written to it.
        let found = migrate::check_not_newer(&db.conn, &dir.database())?;
        if found > 0 {
            server_store::refuse_moved(dir, &db)?;
        }
        return Ok((OpenDatabase { db, files }, None));
    };
    let (db, identity) = server_store::open_as_writer(dir, location)?;
    migrate::check_not_newer(&db.conn, &store_name(dir))?;
    Ok((OpenDatabase { db, files: DatabaseFiles::of_server() }, Some(identity)))
}

/// Returns the epoch to write under.
///
/// The epoch is read before the restore lock is probed. A restore that raised it earlier and is
/// still running is seen by the probe; one that begins later raises it again. In the other
/// order, a restore could begin in between, and this writer would mistake its fence for the
/// epoch.
fn epoch_outside_restore(dir: &StateDir, db: &StateDatabase) -> Result<i64, StoreOpenError> {
    let epoch = db.epoch()?;
    refuse_while_restoring(dir)?;
    Ok(epoch)
}

fn refuse_while_restoring(dir: &StateDir) -> Result<(), StoreOpenError> {
    let root = || dir.root().to_owned();
    match LockFile::probe(&dir.restore_lock()) {
        Ok(None) => Ok(()),
        Ok(Some(_)) => Err(StoreOpenError::Restoring { dir: root() }),
        Err(source) => Err(StoreOpenError::Lock { dir: root(), source }),
    }
}

/// Applies the missing migrations, each after a backup; returns the previous version if it
/// changed.
pub(crate) fn apply_migrations(
    dir: &StateDir,
    db: &StateDatabase,
    steps: &[SchemaMigration],
    now: Timestamp,
) -> Result<Option<i64>, StoreOpenError> {
    let found = db.schema_version()?;
    let mut version = found;
    // Each migration is committed with its version, so a crash continues at the next one.
    while usize::try_from(version).is_ok_and(|version| version < steps.len()) {
        // A new database needs no backup.
        if found > 0 {
            let label = format!("{}{}", backup::BEFORE_SCHEMA, version + 1);
            backup::take(dir, &label, now).map_err(StoreOpenError::Backup)?;
        }
        version = migrate::apply_next(&db.conn, steps, version, now)?;
    }
    Ok((found < version).then_some(found))
}
