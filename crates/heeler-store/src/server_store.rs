//! A store on a PostgreSQL server: its first use, its one writer, and the marks of records that were
//! moved.
//!
//! The lock of the state directory excludes a second writer on this machine; the row of the writer
//! excludes one on another. Start at [`open_as_writer`].

use std::time::{Duration, Instant};

use heeler_config::StoreUrl;
use jiff::Timestamp;

use crate::db::database_error::failed;
use crate::db::postgres::{
    ClaimPurpose, ClaimRefusal, HOST_LEASE, LEASE, PostgresAccess, PostgresConnection,
    WriterIdentity,
};
use crate::db::postgres_error::PostgresError;
use crate::db::{DatabaseError, DatabaseOpenError, StateDatabase, meta, migrate};
use crate::host_release::check_release;
use crate::layout::StateDir;
use crate::store_location::{HostIdentity, PostgresLocation};

/// Key of the note that the records of a file were moved to a server.
pub(crate) const MOVED_TO: &str = "moved_to";

/// Longest wait for the lease of another process, which may have died.
const CLAIM_WAIT: Duration = LEASE.saturating_add(Duration::from_secs(2));
const CLAIM_PAUSE: Duration = Duration::from_millis(200);

/// Number of the server's lock under which a database is used for the first time.
const FIRST_USE_LOCK: i64 = 0x6865_656c_6572;

fn refusal(location: &PostgresLocation, reason: String) -> DatabaseOpenError {
    DatabaseOpenError::Postgres { store: location.url.to_string(), reason }
}

/// Returns the name of this machine.
pub(crate) fn machine() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the note that the records are in the file of a state directory.
pub(crate) fn file_note(dir: &StateDir) -> String {
    format!("{} ({})", dir.database(), machine())
}

/// Returns the name of a state directory as the holder of the right to write.
pub(crate) fn holder(dir: &StateDir, location: &PostgresLocation) -> String {
    let place = format!("{}:{}", machine(), dir.root());
    match &location.host {
        None => place,
        // Two machines may have the same name, and the directories the same path.
        Some(HostIdentity { name, id }) => format!("host {name} ({place}, {id})"),
    }
}

/// Returns the identity of this process as a writer.
pub(crate) fn identity(dir: &StateDir, location: &PostgresLocation) -> WriterIdentity {
    WriterIdentity {
        fleet: location.fleet.clone(),
        instance: uuid::Uuid::new_v4().to_string(),
        holder: holder(dir, location),
        file: file_note(dir),
        lease: if location.host.is_some() { HOST_LEASE } else { LEASE },
    }
}

/// Connects as the writer. The caller has the lock of the state directory.
pub(crate) fn open_as_writer(
    dir: &StateDir,
    location: &PostgresLocation,
) -> Result<(StateDatabase, WriterIdentity), DatabaseOpenError> {
    finish_move(dir, location);
    let db = StateDatabase::connect(location, PostgresAccess::Write)?;
    if let Some(host) = &location.host {
        // Before the lead: a host of another release may still work with the records.
        check_release(&db, host.name.as_str())
            .map_err(|error| refusal(location, error.to_string()))?;
    }
    claim(dir, location, db, ClaimPurpose::Write)
}

/// Marks the file of a move that was interrupted just before its end.
fn finish_move(dir: &StateDir, location: &PostgresLocation) {
    if !dir.database().exists() {
        return;
    }
    let marked = StateDatabase::open_existing(&dir.database()).map_err(|it| it.to_string());
    let marked = marked.and_then(|db| {
        match db.meta(MOVED_TO).map_err(|it| it.to_string())?.is_some_and(|to| !to.is_empty()) {
            true => Ok(()),
            false => mark_file_moved(&db, &location.url.to_string()).map_err(|it| it.to_string()),
        }
    });
    if let Err(why) = marked {
        // `store.json` decides; the mark is only for other releases.
        tracing::warn!(why, "cannot mark {} as moved", dir.database());
    }
}

/// Connects as the writer that fills a server with the records of the file. Those of an earlier move of
/// the same fleet may be replaced. The server does not count before [`PostgresConnection::end_move`].
pub(crate) fn open_for_move(
    dir: &StateDir,
    location: &PostgresLocation,
    now: Timestamp,
) -> Result<StateDatabase, DatabaseOpenError> {
    let db = StateDatabase::connect(location, PostgresAccess::Write)?;
    prepare_server(&db, location, now).map_err(|error| refusal(location, error.to_string()))?;
    claim(dir, location, db, ClaimPurpose::Fill).map(|(db, _)| db)
}

fn claim(
    dir: &StateDir,
    location: &PostgresLocation,
    db: StateDatabase,
    purpose: ClaimPurpose,
) -> Result<(StateDatabase, WriterIdentity), DatabaseOpenError> {
    let identity = identity(dir, location);
    let fail = |error: PostgresError| refusal(location, error.to_string());
    use_first(&db, location).map_err(|error| refusal(location, error.to_string()))?;
    let conn = db.conn.as_postgres().expect("it was connected");
    if location.host.is_none() && has_hosts(conn).map_err(fail)? {
        let reason = "its fleet has several hosts; start this one by `heeler start --host NAME`";
        return Err(refusal(location, reason.to_owned()));
    }
    let deadline = Instant::now() + CLAIM_WAIT;
    loop {
        match conn.claim(&identity, purpose).map_err(fail)? {
            Ok(()) => return Ok((db, identity)),
            // A host does not wait: it stands by.
            Err(ClaimRefusal::Held { holder }) if location.host.is_some() => {
                return Err(DatabaseOpenError::Led { holder });
            }
            // The lease of a process that died expires.
            Err(ClaimRefusal::Held { .. }) if Instant::now() < deadline => {
                std::thread::sleep(CLAIM_PAUSE);
            }
            Err(refused) => return Err(refusal(location, refused.to_string())),
        }
    }
}

/// Returns true if a daemon of several hosts has used the database.
fn has_hosts(conn: &PostgresConnection) -> Result<bool, PostgresError> {
    let is_true = |rows: Vec<Vec<Option<String>>>| {
        rows.first().and_then(|row| row.first()).is_some_and(|it| it.as_deref() == Some("t"))
    };
    if !is_true(conn.simple_query("SELECT to_regclass('hosts') IS NOT NULL")?) {
        return Ok(false);
    }
    Ok(is_true(conn.simple_query("SELECT EXISTS (SELECT 1 FROM hosts)")?))
}

/// Connects again as the same writer, which knows of so many commits.
pub(crate) fn reopen_as_writer(
    dir: &StateDir,
    identity: &WriterIdentity,
    known_commits: i64,
) -> Result<StateDatabase, DatabaseError> {
    let unusable = |reason: String| failed("reopen the database", PostgresError::Unusable(reason));
    let location = dir.postgres().ok_or_else(|| unusable("it is no server".to_owned()))?;
    let db = StateDatabase::connect(location, PostgresAccess::Write)
        .map_err(|error| unusable(error.to_string()))?;
    let conn = db.conn.as_postgres().expect("it was connected");
    conn.reclaim(identity, known_commits)
        .map_err(|source| failed("reopen the database", source))?;
    Ok(db)
}

/// Makes a database the one of a fleet, if it belongs to none yet.
pub(crate) fn use_first(
    db: &StateDatabase,
    location: &PostgresLocation,
) -> Result<(), DatabaseError> {
    let attempt = "prepare the database";
    let fail = |source| failed(attempt, source);
    let conn = db.conn.as_postgres().expect("only a server is prepared");
    if conn.owner().map_err(fail)?.is_some() {
        return Ok(());
    }
    // Two fleets may begin to use it at the same time. The lock ends with the transaction.
    let lock = format!("BEGIN; SELECT pg_advisory_xact_lock({FIRST_USE_LOCK})");
    conn.run_batch(&lock, attempt)?;
    let done = conn.create_writer_row(&location.fleet).map_err(fail);
    let done = done.and_then(|()| conn.run_batch("COMMIT", attempt));
    if done.is_err() {
        // The rollback fails only if the connection is lost; then the server undoes it.
        let _undone = db.conn.rollback();
    }
    done
}

/// Makes a database ready for records: of this fleet, and with the present schema.
pub(crate) fn prepare_server(
    db: &StateDatabase,
    location: &PostgresLocation,
    now: Timestamp,
) -> Result<(), DatabaseError> {
    use_first(db, location)?;
    let conn = db.conn.as_postgres().expect("only a server is prepared");
    let owner = conn.owner().map_err(|source| failed("read the owner of the database", source))?;
    if owner.as_ref() != Some(&location.fleet) {
        let holder = "another state directory".to_owned();
        let refused = ClaimRefusal::OtherFleet { fleet: owner.unwrap_or_default(), holder };
        let refused = PostgresError::Unusable(refused.to_string());
        return Err(failed("use the database", refused));
    }
    let mut version = db.schema_version()?;
    while version < migrate::SCHEMA_VERSION {
        version = migrate::apply_next(&db.conn, migrate::MIGRATIONS, version, now)?;
    }
    Ok(())
}

/// Returns the fleet that the database at a URL belongs to; `None` for an empty database.
pub fn fleet_at(url: &StoreUrl) -> Result<Option<String>, DatabaseOpenError> {
    let location = PostgresLocation::for_new_fleet(url.clone());
    let db = StateDatabase::connect(&location, PostgresAccess::Read)?;
    let conn = db.conn.as_postgres().expect("it was connected");
    conn.owner().map_err(|error| refusal(&location, error.to_string()))
}

/// Returns true if the database at a location belongs to the fleet.
pub fn holds_fleet(location: &PostgresLocation) -> Result<bool, DatabaseOpenError> {
    let db = StateDatabase::connect(location, PostgresAccess::Read)?;
    let conn = db.conn.as_postgres().expect("it was connected");
    let owner = conn.owner().map_err(|error| refusal(location, error.to_string()))?;
    Ok(owner.as_ref() == Some(&location.fleet))
}

/// Refuses a file whose records were moved to a server.
pub(crate) fn refuse_moved(dir: &StateDir, db: &StateDatabase) -> Result<(), DatabaseOpenError> {
    let moved = db.meta(MOVED_TO).ok().flatten().filter(|to| !to.is_empty());
    match moved {
        None => Ok(()),
        Some(to) => Err(DatabaseOpenError::Moved { path: dir.database(), to }),
    }
}

/// Notes in a file that its records were moved.
pub(crate) fn mark_file_moved(db: &StateDatabase, to: &str) -> Result<(), DatabaseError> {
    meta::set(&db.conn, MOVED_TO, to)
}
