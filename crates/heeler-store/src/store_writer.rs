//! The writer's thread of a store, and the queue to it.
//!
//! The thread drains a bounded queue and commits the queued commands in one transaction. In SQLite
//! the first one is undone with the transaction; the others have savepoints. A caller gets its result
//! only after COMMIT. A command that fails or panics undoes only itself. A failed COMMIT fails all its
//! callers, and the connection is reopened. If the database's files were deleted or replaced, the
//! connection is the only one that has their content: it writes them back before the next reply. Start
//! at [`StoreWriter`].

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use camino::Utf8Path;
use heeler_model::error_chain;
use heeler_transcript::LockFile;
use thiserror::Error;

use crate::database_files::{self, DatabaseFiles};
use crate::db::database_error::failed;
use crate::db::postgres::{PostgresConnection, WriterIdentity};
use crate::db::postgres_error::PostgresError;
use crate::db::{CommitSync, DatabaseError, DatabaseOpenError, StateDatabase};
use crate::layout::StateDir;
use crate::lead_lease::LeadLease;
use crate::reader_pool::{PooledReader, ReaderPool};
use crate::server_store;
use crate::transaction::StoreTransaction;
use crate::views::{DueSignal, PlainStateHash};

/// Most commands in the queue; a caller that finds it full waits.
// A full queue slows its callers down and bounds the memory of waiting commands.
const QUEUE_MAX: usize = 256;

/// Most commands in one transaction, so that the first one does not wait indefinitely.
const BATCH_MAX: usize = 512;

/// Rest of a lead at which its renewal by another thread is late, so that the writer renews it. The writer
/// looks every second.
const LATE_RENEWAL: Duration = Duration::from_millis(1500);

/// Failure of a change.
#[derive(Debug, Error)]
pub enum StoreWriteError<E> {
    /// The command returned an error; none of its changes was kept.
    #[error("{0}")]
    Refused(E),
    /// The transaction could not be committed; none of its changes is visible.
    #[error("the change was not saved")]
    NotSaved(#[source] Arc<DatabaseError>),
    /// The state was restored from a backup since it was last read.
    #[error("the state was restored from a backup; read it again, then accept the restore")]
    Restored,
    /// The command panicked; none of its changes was kept.
    #[error("internal error while changing the state: {0}")]
    Panicked(String),
    #[error("the store is closed")]
    Closed,
}

/// The queue to the writer's thread. Dropping it ends the thread; the lock is released after it.
#[derive(Debug)]
pub(crate) struct StoreWriter {
    dir: StateDir,
    queue: Option<SyncSender<Box<dyn WriteCommand>>>,
    thread: Option<JoinHandle<()>>,
    epoch: Arc<AtomicI64>,
    due: Arc<DueSignal>,
    health: Arc<DatabaseHealth>,
    /// Readers of the views, which do not block the writer's thread.
    readers: ReaderPool,
    plain_state: PlainStateHash,
    /// Set when the store is closed: a thread that waits for a server gives up.
    closing: Arc<AtomicBool>,
    /// The lead of this process. Another thread renews it.
    lead: Arc<OnceLock<LeadLease>>,
    /// This process as the writer of a server.
    instance: Option<String>,
    /// Held until the thread has ended.
    lock: Arc<LockFile>,
}

/// Readers that stay open for the views: they are published one round at a time.
const VIEW_READERS_MAX: usize = 1;

/// State of the open database's files, for other threads.
#[derive(Debug, Default)]
struct DatabaseHealth {
    files: Mutex<Option<DatabaseFiles>>,
    /// Reason that lost files could not be written back, or that the server cannot be reached.
    fault: Mutex<Option<String>>,
}

impl DatabaseHealth {
    fn set_files(&self, files: &DatabaseFiles) {
        let mut known = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref() != Some(files) {
            *known = Some(files.clone());
        }
    }

    fn fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_fault(&self, fault: Option<String>) {
        let mut known = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        if *known == fault {
            return;
        }
        match &fault {
            Some(why) => tracing::error!(why, "the database cannot be used; nothing is saved"),
            None => tracing::info!("the database can be used again"),
        }
        *known = fault;
    }
}

impl StoreWriter {
    /// Starts the thread, which writes under `epoch`.
    pub(crate) fn start(
        dir: StateDir,
        lock: LockFile,
        db: OpenDatabase,
        identity: Option<WriterIdentity>,
        epoch: i64,
    ) -> std::io::Result<StoreWriter> {
        let epoch = Arc::new(AtomicI64::new(epoch));
        let due = Arc::new(DueSignal::default());
        let (queue, commands) = sync_channel(QUEUE_MAX);
        // Shared with the thread, so that the lock outlives every write.
        let lock = Arc::new(lock);
        let health = Arc::<DatabaseHealth>::default();
        let closing = Arc::<AtomicBool>::default();
        let lead = Arc::<OnceLock<LeadLease>>::default();
        let instance = identity.as_ref().map(|identity| identity.instance.clone());
        let writer = WriterThread {
            dir: dir.clone(),
            lock: Arc::clone(&lock),
            db: Some(db),
            epoch: Arc::clone(&epoch),
            due: Arc::clone(&due),
            health: Arc::clone(&health),
            identity,
            known_commits: 0,
            closing: Arc::clone(&closing),
            lead: Arc::clone(&lead),
            commands,
            held_back: None,
        };
        let thread =
            std::thread::Builder::new().name("heeler-store".to_owned()).spawn(|| writer.run())?;
        let (queue, thread) = (Some(queue), Some(thread));
        let readers = ReaderPool::new(dir.clone(), VIEW_READERS_MAX);
        let plain_state = PlainStateHash::default();
        Ok(StoreWriter {
            dir,
            queue,
            thread,
            epoch,
            due,
            health,
            readers,
            plain_state,
            closing,
            lead,
            instance,
            lock,
        })
    }

    pub(crate) fn dir(&self) -> &StateDir {
        &self.dir
    }

    /// Returns a reader of the database.
    pub(crate) fn reader(&self) -> Result<PooledReader<'_>, DatabaseOpenError> {
        self.readers.reader()
    }

    pub(crate) fn plain_state(&self) -> &PlainStateHash {
        &self.plain_state
    }

    /// Returns true if the directory was not removed, moved or replaced.
    pub(crate) fn is_directory_intact(&self) -> bool {
        self.lock.is_intact()
    }

    /// Returns true if no file of the open database was deleted or replaced.
    pub(crate) fn is_database_intact(&self) -> bool {
        let files = self.health.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.as_ref().is_none_or(DatabaseFiles::is_intact)
    }

    /// Returns the reason that lost files could not be written back yet.
    pub(crate) fn database_fault(&self) -> Option<String> {
        self.health.fault()
    }

    /// Returns the name of this process as the writer of a server.
    pub(crate) fn instance(&self) -> Option<&str> {
        self.instance.as_deref()
    }

    pub(crate) fn leave_renewal_to(&self, lead: LeadLease) {
        // A writer leads once.
        let _known = self.lead.set(lead);
    }

    pub(crate) fn due(&self) -> &Arc<DueSignal> {
        &self.due
    }

    /// Sets the epoch under which the thread writes.
    pub(crate) fn set_epoch(&self, epoch: i64) {
        self.epoch.store(epoch, Ordering::SeqCst);
    }

    /// Runs a change on the writer's thread and returns its result once it is committed.
    pub(crate) fn write<T, E, F>(&self, work: F) -> Result<T, StoreWriteError<E>>
    where
        F: FnOnce(&mut StoreTransaction<'_>) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        self.queue_write(work, CommitSync::Durable)
    }

    /// Runs a change like [`StoreWriter::write`], but does not wait for the disk. A loss of power may
    /// undo the change, together with all that follow it; the end of the process does not.
    pub(crate) fn write_unsynced<T, E, F>(&self, work: F) -> Result<T, StoreWriteError<E>>
    where
        F: FnOnce(&mut StoreTransaction<'_>) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        self.queue_write(work, CommitSync::Unsynced)
    }

    fn queue_write<T, E, F>(&self, work: F, sync: CommitSync) -> Result<T, StoreWriteError<E>>
    where
        F: FnOnce(&mut StoreTransaction<'_>) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        // Room for one reply, so the writer's thread never waits for a caller.
        let (reply, answer) = sync_channel(1);
        let command = Box::new(PendingWrite { work: Some(work), result: None, reply, sync });
        let queue = self.queue.as_ref().expect("only drop takes the queue");
        // The send blocks while the queue is full.
        queue.send(command).map_err(|_| StoreWriteError::Closed)?;
        answer.recv().unwrap_or(Err(StoreWriteError::Closed))
    }
}

impl Drop for StoreWriter {
    fn drop(&mut self) {
        // Before the writer's connection: the last one that is closed empties the write-ahead log,
        // which a reader cannot do.
        self.readers.close_idle();
        self.closing.store(true, Ordering::SeqCst);
        // The thread ends when the queue is closed; the lock is released after it.
        self.queue = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the writer's thread panicked");
        }
    }
}

/// A command for the writer's thread.
trait WriteCommand: Send {
    fn sync(&self) -> CommitSync;
    /// Executes the command; decides between keeping and undoing its changes.
    fn run(&mut self, tx: &mut StoreTransaction<'_>) -> SavepointAction;
    /// Sends the result to the caller.
    fn answer(self: Box<Self>, outcome: &BatchCommitOutcome);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SavepointAction {
    Release,
    Rollback,
}

/// Result of a transaction.
enum BatchCommitOutcome {
    Committed,
    NotSaved(Arc<DatabaseError>),
    Restored,
}

struct PendingWrite<T, E, F> {
    work: Option<F>,
    result: Option<Result<T, StoreWriteError<E>>>,
    reply: SyncSender<Result<T, StoreWriteError<E>>>,
    sync: CommitSync,
}

impl<T, E, F> WriteCommand for PendingWrite<T, E, F>
where
    F: FnOnce(&mut StoreTransaction<'_>) -> Result<T, E> + Send,
    T: Send,
    E: Send,
{
    fn sync(&self) -> CommitSync {
        self.sync
    }

    fn run(&mut self, tx: &mut StoreTransaction<'_>) -> SavepointAction {
        let work = self.work.take().expect("a command runs once");
        // A panic must not end the thread, on which all later changes depend.
        let result = match catch_unwind(AssertUnwindSafe(|| work(tx))) {
            Ok(result) => result.map_err(StoreWriteError::Refused),
            Err(payload) => Err(StoreWriteError::Panicked(panic_message(&*payload))),
        };
        let keep =
            if result.is_ok() { SavepointAction::Release } else { SavepointAction::Rollback };
        self.result = Some(result);
        keep
    }

    fn answer(self: Box<Self>, outcome: &BatchCommitOutcome) {
        let answer = match (self.result, outcome) {
            // The command's own error is correct regardless of the transaction's result.
            (Some(Err(error)), _) => Err(error),
            (_, BatchCommitOutcome::NotSaved(error)) => {
                Err(StoreWriteError::NotSaved(Arc::clone(error)))
            }
            (_, BatchCommitOutcome::Restored) => Err(StoreWriteError::Restored),
            (Some(Ok(value)), BatchCommitOutcome::Committed) => Ok(value),
            (None, BatchCommitOutcome::Committed) => Err(StoreWriteError::Closed),
        };
        // The send fails if the caller no longer waits; then no answer is needed.
        drop(self.reply.send(answer));
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".to_owned())
}

/// A database connection, and the identity of its files.
#[derive(Debug)]
pub(crate) struct OpenDatabase {
    pub(crate) db: StateDatabase,
    pub(crate) files: DatabaseFiles,
}

/// The only thread that writes to the database.
struct WriterThread {
    dir: StateDir,
    lock: Arc<LockFile>,
    /// `None` after a failure, until the database can be reopened.
    db: Option<OpenDatabase>,
    epoch: Arc<AtomicI64>,
    due: Arc<DueSignal>,
    health: Arc<DatabaseHealth>,
    /// Set for a database on a server.
    identity: Option<WriterIdentity>,
    /// Number of commits of which this process knows, on any of its connections to a server.
    known_commits: i64,
    closing: Arc<AtomicBool>,
    lead: Arc<OnceLock<LeadLease>>,
    commands: Receiver<Box<dyn WriteCommand>>,
    /// A command that was taken from the queue and needs a transaction of its own.
    held_back: Option<Box<dyn WriteCommand>>,
}

impl WriterThread {
    fn run(mut self) {
        while let Some(first) = self.next_command() {
            let mut batch = Vec::new();
            let outcome = self.transact(first, &mut batch);
            self.note_outcome(&outcome);
            // Replies are sent only now: an acknowledged change is durable.
            for command in batch {
                command.answer(&outcome);
            }
        }
        if let Some(conn) = self.db.as_ref().and_then(|open| open.db.conn.as_postgres()) {
            conn.release_claim();
        }
        // The last chance: afterwards no process has the content of lost files. In a directory that
        // was moved, they are still there.
        if self.lock.is_intact()
            && let Err(error) = self.write_back_if_lost()
        {
            tracing::error!(%error, "the last changes are lost");
        }
    }

    /// Waits for a command; `None` when the store is closed. Renews the lease of a server meanwhile.
    fn next_command(&mut self) -> Option<Box<dyn WriteCommand>> {
        if let Some(command) = self.held_back.take() {
            return Some(command);
        }
        let Some(renewal) = self.identity.as_ref().map(WriterIdentity::renewal) else {
            return self.commands.recv().ok();
        };
        loop {
            match self.commands.recv_timeout(renewal) {
                Ok(command) => return Some(command),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if self.is_lead_renewed() => {}
                Err(RecvTimeoutError::Timeout) => self.renew_lease(),
            }
        }
    }

    /// Returns true if another thread renews the lease, and the server can be reached.
    fn is_lead_renewed(&self) -> bool {
        self.lead.get().is_some_and(|lead| lead.is_renewed_for(LATE_RENEWAL))
            && self.db.as_ref().is_some_and(|open| !open.db.is_closed())
            && self.health.fault().is_none()
    }

    /// Shows that this process is alive; reconnects to a server that was lost.
    fn renew_lease(&mut self) {
        let renewed = self.connect().and_then(|db| {
            let conn = db.conn.as_postgres().expect("only a server has a lease");
            conn.renew_lease().map_err(|source| failed("renew the lease", source))
        });
        match renewed {
            Ok(true) => self.health.set_fault(None),
            // The next commit finds out by whom.
            Ok(false) => self.close(),
            Err(error) => {
                self.close();
                self.health.set_fault(Some(error_chain(&error)));
            }
        }
    }

    /// Returns the open database; reopens it if a failure closed it.
    fn connect(&mut self) -> Result<&StateDatabase, DatabaseError> {
        if self.db.as_ref().is_none_or(|open| open.db.is_closed()) {
            self.close();
            let reopened = self.reopen();
            if reopened.as_ref().is_err_and(DatabaseError::has_lost_commits)
                && let Some(lead) = self.lead.get()
            {
                // What this process knows is ahead of the records: it must begin again.
                lead.lose();
            }
            self.db = Some(reopened?);
        }
        Ok(&self.db.as_ref().expect("it was reopened").db)
    }

    /// Drops the connection, and remembers the number of its commits.
    fn close(&mut self) {
        let closed = self.db.take();
        let conn = closed.as_ref().and_then(|open| open.db.conn.as_postgres());
        let known = conn.and_then(PostgresConnection::known_commits).unwrap_or_default();
        self.known_commits = self.known_commits.max(known);
    }

    fn reopen(&self) -> Result<OpenDatabase, DatabaseError> {
        match &self.identity {
            None => reopen(&self.dir.database(), &self.lock),
            Some(identity) => {
                if !self.lock.is_intact() {
                    return Err(cannot_open("reopen the database", DIRECTORY_LOST.to_owned()));
                }
                let db = server_store::reopen_as_writer(&self.dir, identity, self.known_commits)?;
                Ok(OpenDatabase { db, files: DatabaseFiles::of_server() })
            }
        }
    }

    /// Finds out if a commit with a lost reply has happened. Waits for the server: a wrong answer would
    /// lose a change or repeat it.
    fn resolve_commit(&mut self) -> Result<(), DatabaseError> {
        self.close();
        let before = self.known_commits;
        let unknown = || failed("commit", PostgresError::OutcomeUnknown);
        loop {
            match self.connect() {
                Ok(db) => {
                    let now = db.conn.as_postgres().and_then(PostgresConnection::known_commits);
                    let is_committed = now.is_some_and(|now| now > before);
                    tracing::warn!(
                        is_committed,
                        "the reply to a commit was lost; the database has it"
                    );
                    return if is_committed { Ok(()) } else { Err(not_committed()) };
                }
                Err(error) if error.is_fence() => return Err(error),
                Err(error) => self.health.set_fault(Some(format!(
                    "the outcome of the last change is not known until the server is back: {}",
                    error_chain(&error)
                ))),
            }
            if self.closing.load(Ordering::SeqCst) {
                return Err(unknown());
            }
            std::thread::sleep(RECONNECT_PAUSE);
        }
    }

    /// Closes the connection after a failure, and tells the other threads about its files.
    fn note_outcome(&mut self, outcome: &BatchCommitOutcome) {
        if let BatchCommitOutcome::Committed = outcome {
            self.health.set_fault(None);
            return;
        }
        match &self.db {
            // Only this connection has the content, so it is kept.
            Some(open) if !open.files.is_intact() => {
                if !open.db.conn.is_transaction_lost()
                    && let Err(error) = open.db.conn.rollback()
                {
                    tracing::error!(%error, "cannot undo a failed change");
                }
            }
            // The state of the connection after a failed commit is unknown, so it is reopened.
            _ => self.close(),
        }
        if let BatchCommitOutcome::NotSaved(error) = outcome
            && (matches!(**error, DatabaseError::FilesLost { .. })
                || (self.identity.is_some() && error.is_storage_failure()))
        {
            self.health.set_fault(Some(error.to_string()));
        }
    }

    /// Writes the database back if its files were deleted or replaced.
    fn write_back_if_lost(&mut self) -> Result<(), DatabaseError> {
        let Some(open) = &mut self.db else { return Ok(()) };
        if open.files.is_intact() && open.files.identify_side_files(&open.db)? {
            return Ok(());
        }
        // Another process may be the writer of a new directory at this path.
        if !self.lock.is_intact() {
            return Err(cannot_open("write to the database", DIRECTORY_LOST.to_owned()));
        }
        let (db, files) = database_files::write_back(&self.dir, &open.db)?;
        self.db = Some(OpenDatabase { db, files });
        Ok(())
    }

    /// Runs the queued commands in one transaction; afterwards `batch` holds every command taken.
    fn transact(
        &mut self,
        first: Box<dyn WriteCommand>,
        batch: &mut Vec<Box<dyn WriteCommand>>,
    ) -> BatchCommitOutcome {
        let sync = first.sync();
        if let Err(outcome) = self.begin(sync) {
            // Without a transaction no further commands are taken, but this one needs its reply.
            batch.push(first);
            return outcome;
        }
        let mut marked = false;
        let mut next = Some(first);
        while let Some(mut command) = next {
            let ran = self.run_one(command.as_mut(), batch.is_empty(), sync);
            batch.push(command);
            match ran {
                Ok(has_marked) => marked |= has_marked,
                Err(outcome) => return outcome,
            }
            let has_room = batch.len() < BATCH_MAX;
            // Commands that arrived meanwhile join the transaction, so many callers share one sync.
            next = if has_room { self.commands.try_recv().ok() } else { None };
            if sync == CommitSync::Unsynced {
                self.held_back = next.take_if(|it| it.sync() == CommitSync::Durable);
            }
        }
        let db = &self.db.as_ref().expect("a transaction has begun").db;
        let committed = match db.conn.commit() {
            Err(error) if error.is_outcome_unknown() => self.resolve_commit(),
            committed => committed,
        };
        // A change that is only in deleted files is not saved.
        match committed.and_then(|()| self.write_back_if_lost()) {
            Ok(()) => {
                // The publisher reads through its own connection, so it must not be woken before
                // the commit.
                if marked {
                    self.due.signal();
                }
                // The write-ahead log itself is no sign: it grows before its content is visible.
                self.lock.announce_change();
                BatchCommitOutcome::Committed
            }
            Err(error) => BatchCommitOutcome::NotSaved(Arc::new(error)),
        }
    }

    /// Runs a command of a transaction, and undoes its changes if it fails. Returns true if it has
    /// marked a view. An error means that the whole transaction is lost.
    ///
    /// In SQLite the first command has no savepoint: it is undone with the transaction, and another one
    /// begins. SQLite keeps the old pages of an open savepoint in a list, which it follows at the end of
    /// each savepoint within it. A large command with many parts would take quadratic time. PostgreSQL
    /// has no such list, and its savepoint notices a failed statement that the command has ignored.
    fn run_one(
        &mut self,
        command: &mut dyn WriteCommand,
        is_first: bool,
        sync: CommitSync,
    ) -> Result<bool, BatchCommitOutcome> {
        let not_saved = |error| BatchCommitOutcome::NotSaved(Arc::new(error));
        let db = &self.db.as_ref().expect("a transaction has begun").db;
        let has_savepoint = !is_first || db.conn.as_postgres().is_some();
        if has_savepoint {
            db.conn.run_batch("SAVEPOINT command", "begin a change").map_err(not_saved)?;
        }
        let mut tx = StoreTransaction::new(db, &self.dir);
        let keep = command.run(&mut tx);
        let marked = tx.has_marked();
        check_transaction(db).map_err(not_saved)?;
        match (keep, has_savepoint) {
            (SavepointAction::Release, false) => {}
            (SavepointAction::Release, true) => {
                db.conn.run_batch("RELEASE command", "end a change").map_err(not_saved)?;
            }
            (SavepointAction::Rollback, false) => {
                db.conn.rollback().map_err(not_saved)?;
                self.begin(sync)?;
            }
            (SavepointAction::Rollback, true) => {
                let undo = "ROLLBACK TO command; RELEASE command";
                db.conn.run_batch(undo, "end a change").map_err(not_saved)?;
            }
        }
        // A command that was undone has marked no view.
        Ok(marked && keep == SavepointAction::Release)
    }

    /// Begins a transaction; reopens the database if a failure closed it.
    fn begin(&mut self, sync: CommitSync) -> Result<(), BatchCommitOutcome> {
        let not_saved = |error| BatchCommitOutcome::NotSaved(Arc::new(error));
        self.connect().map_err(not_saved)?;
        self.write_back_if_lost().map_err(not_saved)?;
        let OpenDatabase { db, files } = self.db.as_ref().expect("it was reopened");
        db.conn.set_commit_sync(sync).map_err(not_saved)?;
        db.conn.begin_write().map_err(not_saved)?;
        // Read within the transaction, so a restore cannot raise the epoch between check and commit.
        let found = db.epoch().map_err(not_saved)?;
        self.health.set_files(files);
        match found == self.epoch.load(Ordering::SeqCst) {
            true => Ok(()),
            false => Err(BatchCommitOutcome::Restored),
        }
    }
}

/// Fails if the database has undone the whole transaction by itself.
fn check_transaction(db: &StateDatabase) -> Result<(), DatabaseError> {
    if !db.conn.is_transaction_lost() {
        return Ok(());
    }
    if db.conn.as_postgres().is_some() {
        let lost = PostgresError::Unusable("the connection was lost".to_owned());
        return Err(failed("change the database", lost));
    }
    // SQLite rolls back the whole transaction when the disk is full or fails.
    let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
    let text = "the disk is full or failing, and the transaction was undone".to_owned();
    let source = rusqlite::Error::SqliteFailure(full, Some(text));
    Err(DatabaseError::Sqlite { attempt: "change the database", source })
}

/// Interval between attempts to reach a server.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

fn not_committed() -> DatabaseError {
    let why = "the connection was lost before the change was saved".to_owned();
    failed("commit", PostgresError::Unusable(why))
}

const DIRECTORY_LOST: &str = "the state directory was removed, moved or replaced";

fn cannot_open(attempt: &'static str, why: String) -> DatabaseError {
    let cannot = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN);
    let source = rusqlite::Error::SqliteFailure(cannot, Some(why));
    DatabaseError::Sqlite { attempt, source }
}

fn reopen(path: &Utf8Path, lock: &LockFile) -> Result<OpenDatabase, DatabaseError> {
    let cannot = |why: String| cannot_open("reopen the database", why);
    // Another process may be the writer of a new directory at this path.
    if !lock.is_intact() {
        return Err(cannot(DIRECTORY_LOST.to_owned()));
    }
    let files = DatabaseFiles::of_database(path);
    // A missing database is not created: an empty one would hide the loss.
    let db = StateDatabase::open_existing(path).map_err(|error| cannot(error.to_string()))?;
    Ok(OpenDatabase { db, files })
}
