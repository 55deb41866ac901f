//! Moves the records of a fleet from `heeler.db` to a PostgreSQL server, and back.
//!
//! A move may be interrupted at any time and repeated: the target is filled in one transaction, or as
//! a file that gets its name when it is complete. `store.json` decides which side counts, and changes
//! in one step. The source is kept, with a note that its records were moved. A server has this note until
//! `store.json` names it: hosts that know the server are refused until then. Start at
//! [`move_to_postgres`].

use std::time::Duration;

use heeler_config::StoreUrl;
use heeler_transcript::{LockError, LockFile, LockHolder, temp_name};
use jiff::Timestamp;
use thiserror::Error;

use crate::backup::{self, BackupError};
use crate::db::database_error::failed;
use crate::db::{DatabaseError, DatabaseOpenError, StateDatabase, meta};
use crate::layout::{StateDir, StateDirError};
use crate::server_store;
use crate::staging::{self, StagingError};
use crate::store::{Store, StoreOpenError};
use crate::store_location::PostgresLocation;
use crate::table_copy::{self, TableSummary};
use crate::writer_lock::acquire_writer_lock;

const LOCK_WAIT: Duration = Duration::from_millis(200);

/// Key of the fleet's ID in a file. It makes a repeated move recognize its own target.
const FLEET_ID: &str = "fleet_id";

/// Failure to move the records. The source still counts.
#[derive(Debug, Error)]
pub enum MoveError {
    /// A daemon is running, or another process writes.
    #[error("the records cannot be moved while another process uses them; stop the daemon first")]
    Locked(#[source] LockError),
    #[error(transparent)]
    Layout(#[from] StateDirError),
    #[error(transparent)]
    Open(#[from] DatabaseOpenError),
    #[error(transparent)]
    Store(#[from] StoreOpenError),
    #[error(transparent)]
    Db(#[from] DatabaseError),
    #[error(transparent)]
    Copy(#[from] BackupError),
    #[error("the copy could not be put in place; run the command again")]
    Place(#[source] StagingError),
    #[error("{0}")]
    Refused(String),
}

/// Result of a move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoveReport {
    /// Location of the records before, as text.
    pub from: String,
    pub to: String,
    /// Tables that were copied and verified.
    pub tables: Vec<TableSummary>,
}

fn lock(dir: &StateDir, now: Timestamp) -> Result<[LockFile; 2], MoveError> {
    let holder = LockHolder::this_process("migrate store", now);
    let take = |path: &camino::Utf8Path| {
        acquire_writer_lock(dir, path, &holder, LOCK_WAIT).map_err(MoveError::Locked)
    };
    Ok([take(&dir.lock())?, take(&dir.restore_lock())?])
}

/// Moves the records from `heeler.db` to a server.
pub fn move_to_postgres(
    dir: &StateDir,
    url: &StoreUrl,
    now: Timestamp,
) -> Result<MoveReport, MoveError> {
    if let Some(location) = dir.postgres() {
        let text = format!("the records are on {} already", location.url);
        return Err(MoveError::Refused(text));
    }
    if !dir.database().exists() {
        let text = format!("there are no records in {}", dir.root());
        return Err(MoveError::Refused(text));
    }
    // Brings the schema up to date, and completes what a crash has left.
    drop(Store::open(dir, "migrate store", now)?);
    let _locks = lock(dir, now)?;
    let file = StateDatabase::open_existing(&dir.database())?;
    let fleet = match file.meta(FLEET_ID)? {
        Some(fleet) => fleet,
        None => {
            let fleet = PostgresLocation::for_new_fleet(url.clone()).fleet;
            meta::set(&file.conn, FLEET_ID, &fleet)?;
            fleet
        }
    };
    let location = PostgresLocation { url: url.clone(), fleet, host: None };
    let target = server_store::open_for_move(dir, &location, now)?;
    let tables = table_copy::replace_content(&file, &target)?;
    // From here on the server counts. It had a mark until now: another host that knows the server
    // must not write there while the file counts.
    let moved = location.write(dir)?;
    target.conn.as_postgres().expect("it is a server").end_move();
    server_store::mark_file_moved(&file, &location.url.to_string())?;
    let (from, to) = (moved.database().to_string(), location.url.to_string());
    Ok(MoveReport { from, to, tables })
}

/// Moves the records from a server to `heeler.db`.
pub fn move_to_sqlite(dir: &StateDir, now: Timestamp) -> Result<MoveReport, MoveError> {
    let Some(location) = dir.postgres().cloned() else {
        let text = format!("the records are in {} already", dir.database());
        return Err(MoveError::Refused(text));
    };
    let _locks = lock(dir, now)?;
    staging::finish_rebuild(dir).map_err(MoveError::Place)?;
    // As the writer: no daemon on another machine changes the records meanwhile.
    let (source, _identity) = server_store::open_as_writer(dir, &location)?;
    server_store::prepare_server(&source, &location, now)?;
    let draft = temp_name(&dir.database());
    backup::save_copy(&source, &draft)?;
    let copy = StateDatabase::private(&draft)?;
    // A later move recognizes the server by it.
    meta::set(&copy.conn, FLEET_ID, &location.fleet)?;
    // The copy was verified when it was made; this reads what is on disk.
    let tables = table_copy::summarize(&copy)?;
    drop(copy);
    // The file that was moved to the server before goes to the trash.
    match dir.database().exists() {
        true => staging::replace_database(dir, &draft, now).map(drop),
        false => staging::place_database(dir, &draft, now),
    }
    .map_err(MoveError::Place)?;
    let conn = source.conn.as_postgres().expect("it is a server");
    conn.mark_moved(&server_store::file_note(dir))
        .map_err(|source| failed("mark the moved records", source))?;
    if location.host.is_some() {
        // A file has no hosts. Those of the server notice that the records were moved.
        conn.run_batch("DELETE FROM hosts", "forget the hosts")?;
    }
    // From here on the file counts.
    let moved = PostgresLocation::remove(dir)?;
    let (from, to) = (location.url.to_string(), moved.database().to_string());
    Ok(MoveReport { from, to, tables })
}
