//! The database: opening it, and every query on it.
//!
//! Only this module opens `heeler.db`. Each table has a module with its SQL and its rows;
//! column numbers appear nowhere else. The SQL is limited to syntax that both SQLite and
//! PostgreSQL accept. Start at [`StateDatabase`]: both [`crate::StoreReader`] and
//! [`crate::StoreTransaction`] dereference to it.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::str::FromStr;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::parse_iso;
use jiff::Timestamp;
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::types::FromSql;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use thiserror::Error;

pub(crate) mod access;
pub(crate) mod agents;
pub(crate) mod answered_requests;
pub(crate) mod approvals;
pub(crate) mod chat;
pub(crate) mod chat_gaps;
pub(crate) mod connection;
pub(crate) mod counters;
pub(crate) mod database_error;
pub(crate) mod deleted_sessions;
pub(crate) mod dialect;
pub(crate) mod effects;
pub(crate) mod imported_journal;
pub(crate) mod job_list_text;
pub(crate) mod job_marks;
pub(crate) mod jobs;
pub(crate) mod lastlight_tables;
pub(crate) mod meta;
pub(crate) mod migrate;
pub(crate) mod network_grants;
pub(crate) mod notices;
pub(crate) mod open_steps;
pub(crate) mod overrides;
pub(crate) mod permission_rules;
pub(crate) mod phase_history;
pub(crate) mod postgres;
pub(crate) mod postgres_error;
pub(crate) mod push_browsers;
pub(crate) mod queue;
pub(crate) mod runs;
pub(crate) mod schedules;
pub(crate) mod sessions;
pub(crate) mod spending;
pub(crate) mod views;
pub(crate) mod workflow_parts;
pub(crate) mod workflow_run_list;
pub(crate) mod workflows;

pub(crate) use connection::CommitSync;
use connection::{DatabaseConnection, SqlParams, SqlRow};
pub use database_error::DatabaseError;
pub(crate) use database_error::SqliteResultExt;
use postgres::{PostgresAccess, PostgresConnection};

use crate::layout::StateDir;
use crate::store_location::PostgresLocation;

/// Longest wait for another connection's lock.
// A backup or a restore holds SQLite's lock only for a moment.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of prepared statements that a connection caches: more than there are.
pub(crate) const STATEMENTS_MAX: usize = 360;

/// Longest path of a database: SQLite has room for 512 bytes, with `-journal` at the end.
const PATH_BYTES_MAX: usize = 512 - "-journal".len();

/// Longest value of a row: a prompt of the greatest length, as JSON. A state directory may come with a
/// clone, and a column that is computed takes no room in the file.
pub(crate) const VALUE_BYTES_MAX: i32 = 128 << 20;

/// Memory for pages of the one connection that writes.
// A limit makes the memory of a daemon independent of the number of its jobs: the cache fills with
// their rows.
const WRITER_CACHE_KIB: i64 = 2048;

/// Memory for pages of a connection that reads. A daemon keeps several of them open.
const READER_CACHE_KIB: i64 = 1024;

/// Reason given for a column that is NULL where text is required.
const TEXT_MISSING: &str = "a required text is missing";

/// Sorts after every time and every id; the start of a list that is ordered newest first.
// `~` is the last printable ASCII character, and times and ids consist of ASCII.
const SORTS_LAST: &str = "~";

/// Failure to find a record by a shortened id.
#[derive(Debug, Error)]
pub enum IdLookupError {
    #[error("there is no {what} `{text}`")]
    Unknown {
        what: &'static str,
        /// The text as given.
        text: String,
    },
    #[error("`{text}` may be any of: {}; give more of it", some_of(candidates))]
    Ambiguous {
        /// The text as given.
        text: String,
        /// The first matches: up to 10, plus one if there are more.
        candidates: Vec<String>,
    },
    #[error(transparent)]
    Db(#[from] DatabaseError),
}

/// Most candidates that an ambiguous id lists.
pub(crate) const CANDIDATES_MAX: usize = 10;

fn some_of(candidates: &[String]) -> String {
    // The lookup returns one candidate more than is shown, as a sign that there are more.
    match candidates.get(..CANDIDATES_MAX) {
        Some(named) if named.len() < candidates.len() => format!("{}, …", named.join(", ")),
        _ => candidates.join(", "),
    }
}

/// Failure to open the database.
#[derive(Debug, Error)]
pub enum DatabaseOpenError {
    #[error("there is no database at {path} yet")]
    Missing { path: Utf8PathBuf },
    /// A newer version of Heeler wrote the database.
    #[error(
        "{path} was written by a newer heeler (schema {found}, this one knows {known}); \
         use that version"
    )]
    Newer {
        path: Utf8PathBuf,
        /// Schema version of the database.
        found: i64,
        /// Schema version of this build.
        known: i64,
    },
    /// An older version of Heeler wrote the database, and a reader never migrates.
    #[error(
        "{path} was written by an older heeler (schema {found}, this one needs {known}); \
         `heeler doctor --fix` brings it up to date"
    )]
    Older {
        path: Utf8PathBuf,
        /// Schema version of the database.
        found: i64,
        /// Schema version of this build.
        known: i64,
    },
    /// The medium is read-only and the write-ahead log is not empty.
    #[error(
        "{path} is on a read-only medium and its last changes are still in {path}-wal; \
         copy the state directory to a writable place and use that"
    )]
    ReadOnlyWithLog { path: Utf8PathBuf },
    /// SQLite has a limit of its own for paths.
    #[error(
        "cannot open {path}: its path has {} bytes, and SQLite opens at most {PATH_BYTES_MAX}; name a \
         state directory with a shorter path (--state-dir or HEELER_STATE_DIR)", path.as_str().len()
    )]
    PathTooLong { path: Utf8PathBuf },
    #[error("cannot make {path}")]
    Create {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// The records were moved to a server.
    #[error(
        "the records in {path} were moved to {to}; `heeler migrate store` moves them back, and a copy of \
         the state directory with `store.json` uses them there"
    )]
    Moved { path: Utf8PathBuf, to: String },
    /// The server cannot be reached, or cannot hold a store.
    #[error("cannot use {store}: {reason}")]
    Postgres {
        /// The URL.
        store: String,
        reason: String,
    },
    /// Another host of the fleet has the lead.
    #[error("{holder} leads this fleet; use that host, or stop its daemon first")]
    Led { holder: String },
    #[error("cannot open {path}: {source}")]
    Sqlite {
        path: Utf8PathBuf,
        #[source]
        source: rusqlite::Error,
    },
}

/// An open database connection with all queries.
#[derive(Debug)]
pub struct StateDatabase {
    pub(crate) conn: DatabaseConnection,
}

impl StateDatabase {
    /// Opens the records of a state directory for reading; migrates and changes nothing.
    pub(crate) fn reader_of(dir: &StateDir) -> Result<StateDatabase, DatabaseOpenError> {
        let Some(location) = dir.postgres() else {
            return StateDatabase::open_read_only(&dir.database());
        };
        let db = StateDatabase::connect(location, PostgresAccess::Read)?;
        migrate::check_current(&db.conn, &store_name(dir))?;
        Ok(db)
    }

    /// Opens the records of a state directory for reading, ignoring the schema version; used to copy
    /// them.
    pub(crate) fn any_reader_of(dir: &StateDir) -> Result<StateDatabase, DatabaseOpenError> {
        match dir.postgres() {
            None => StateDatabase::read_any(&dir.database()),
            Some(location) => StateDatabase::connect(location, PostgresAccess::Read),
        }
    }

    /// Opens the records of a state directory for writing, and creates a missing file. The caller
    /// migrates them.
    pub(crate) fn writer_of(dir: &StateDir) -> Result<StateDatabase, DatabaseOpenError> {
        match dir.postgres() {
            None => StateDatabase::open_read_write(&dir.database()),
            Some(location) => StateDatabase::connect(location, PostgresAccess::Write),
        }
    }

    /// Connects to a PostgreSQL server.
    pub(crate) fn connect(
        location: &PostgresLocation,
        access: PostgresAccess,
    ) -> Result<StateDatabase, DatabaseOpenError> {
        let refused = |reason: String| DatabaseOpenError::Postgres {
            store: location.url.to_string(),
            reason,
        };
        let password = location.password().map_err(refused)?;
        let mut conn = PostgresConnection::connect(&location.url, password.as_deref(), access)
            .map_err(|error| refused(error.to_string()))?;
        conn.host = location.host.as_ref().map(|host| host.name.to_string());
        Ok(StateDatabase { conn: DatabaseConnection::Postgres(Box::new(conn)) })
    }

    /// Opens for reading; migrates and changes nothing.
    pub(crate) fn open_read_only(path: &Utf8Path) -> Result<StateDatabase, DatabaseOpenError> {
        let db = StateDatabase::read_any(path)?;
        migrate::check_current(&db.conn, path)?;
        Ok(db)
    }

    /// Opens for writing and creates a missing file. The caller migrates it.
    pub(crate) fn open_read_write(path: &Utf8Path) -> Result<StateDatabase, DatabaseOpenError> {
        check_length(path)?;
        create_private(path)?;
        // A link could lead to a database of another fleet, so SQLite must not follow it.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let conn = connect(path, path.as_str(), flags)?;
        // The log is truncated after a checkpoint, because a reader without a running writer must
        // first read all of it.
        // Undo data of savepoints stays in memory: a temporary file could not be created while the
        // file system has no inodes, and would be a copy of records outside of the state directory.
        let pragmas = "PRAGMA temp_store = MEMORY; PRAGMA journal_mode = WAL; \
                       PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; \
                       PRAGMA wal_autocheckpoint = 1000; PRAGMA journal_size_limit = 4194304";
        run_pragmas(&conn, pragmas)
            .and_then(|()| limit_cache(&conn, WRITER_CACHE_KIB))
            .map_err(|source| sqlite(path, source))?;
        Ok(StateDatabase { conn: DatabaseConnection::Sqlite(conn) })
    }

    /// Opens for writing like [`StateDatabase::open_read_write`], but creates nothing.
    pub(crate) fn open_existing(path: &Utf8Path) -> Result<StateDatabase, DatabaseOpenError> {
        match path.exists() {
            true => StateDatabase::open_read_write(path),
            false => Err(DatabaseOpenError::Missing { path: path.to_owned() }),
        }
    }

    /// Opens for reading, ignoring the schema version; used to copy a database.
    pub(crate) fn read_any(path: &Utf8Path) -> Result<StateDatabase, DatabaseOpenError> {
        // Checked here, because SQLite reports a missing file only as "cannot open".
        if !path.exists() {
            return Err(DatabaseOpenError::Missing { path: path.to_owned() });
        }
        Ok(StateDatabase { conn: DatabaseConnection::Sqlite(read_connection(path)?) })
    }

    /// Opens a database file that no other process uses, such as a snapshot or a copy.
    pub(crate) fn private(path: &Utf8Path) -> Result<StateDatabase, DatabaseOpenError> {
        create_private(path)?;
        let conn = connect(path, path.as_str(), OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        // No write-ahead log: a snapshot must be one complete file.
        run_pragmas(&conn, "PRAGMA foreign_keys = ON;").map_err(|source| sqlite(path, source))?;
        Ok(StateDatabase { conn: DatabaseConnection::Sqlite(conn) })
    }

    /// Creates an empty in-memory database.
    pub(crate) fn in_memory(now: Timestamp) -> Result<StateDatabase, DatabaseError> {
        let conn = Connection::open_in_memory().attempt("make an empty database")?;
        let conn = DatabaseConnection::Sqlite(conn);
        let mut version = 0;
        // The migrations create the schema here too, so there is only one definition of it.
        while version < migrate::SCHEMA_VERSION {
            version = migrate::apply_next(&conn, migrate::MIGRATIONS, version, now)?;
        }
        Ok(StateDatabase { conn })
    }

    /// Lets the close of this connection neither checkpoint nor delete side files: they may belong
    /// to another database by then.
    pub(crate) fn abandon_files(&self) -> Result<(), DatabaseError> {
        let Some(conn) = self.conn.as_sqlite() else { return Ok(()) };
        let is_set = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        is_set.map(drop).attempt("keep the side files")
    }

    /// Turns the write-ahead log off, so that the database is one complete file.
    pub(crate) fn disable_wal(&self) -> Result<(), DatabaseError> {
        let Some(conn) = self.conn.as_sqlite() else { return Ok(()) };
        run_pragmas(conn, "PRAGMA journal_mode = DELETE").attempt("leave WAL mode")
    }

    /// Runs SQLite's integrity check; an empty result means that the file is sound. PostgreSQL has
    /// tools of its own for that.
    pub fn integrity_faults(&self) -> Result<Vec<String>, DatabaseError> {
        let attempt = "check the database";
        let Some(conn) = self.conn.as_sqlite() else { return Ok(Vec::new()) };
        let mut statement = conn.prepare("PRAGMA integrity_check").attempt(attempt)?;
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).attempt(attempt)?;
        let faults = rows.collect::<Result<Vec<_>, _>>().attempt(attempt)?;
        Ok(faults.into_iter().filter(|line| line != "ok").collect())
    }

    /// Lists rows with a dangling foreign key, as `table: row id`. PostgreSQL never has any.
    pub fn foreign_key_faults(&self) -> Result<Vec<String>, DatabaseError> {
        let attempt = "check the foreign keys";
        let Some(conn) = self.conn.as_sqlite() else { return Ok(Vec::new()) };
        let mut statement = conn.prepare("PRAGMA foreign_key_check").attempt(attempt)?;
        let rows = statement
            .query_map([], |row| {
                let rowid = row.get::<_, Option<i64>>(1)?.unwrap_or_default();
                Ok(format!("{}: row {rowid}", row.get::<_, String>(0)?))
            })
            .attempt(attempt)?;
        rows.collect::<Result<Vec<_>, _>>().attempt(attempt)
    }

    pub fn schema_version(&self) -> Result<i64, DatabaseError> {
        migrate::version(&self.conn)
    }

    /// Returns true if the connection to a server is lost.
    pub(crate) fn is_closed(&self) -> bool {
        self.conn.as_postgres().is_some_and(PostgresConnection::is_closed)
    }
}

/// Returns the name of a state directory's records for messages.
pub(crate) fn store_name(dir: &StateDir) -> Utf8PathBuf {
    dir.postgres().map_or_else(|| dir.database(), |location| location.url.to_string().into())
}

/// Runs pragmas, including those that return a row.
fn run_pragmas(conn: &Connection, pragmas: &str) -> rusqlite::Result<()> {
    for pragma in pragmas.split(';').map(str::trim).filter(|text| !text.is_empty()) {
        conn.query_row(pragma, [], |_| Ok(())).or_else(|error| match error {
            // Pragmas that set a value return a row or not, depending on the pragma.
            rusqlite::Error::QueryReturnedNoRows => Ok(()),
            other => Err(other),
        })?;
    }
    Ok(())
}

/// Limits the memory for pages of a connection.
fn limit_cache(conn: &Connection, kib: i64) -> rusqlite::Result<()> {
    // A negative number is a size in KiB, a positive one a number of pages.
    conn.pragma_update(None, "cache_size", -kib)
}

fn check_length(path: &Utf8Path) -> Result<(), DatabaseOpenError> {
    match path.as_str().len() <= PATH_BYTES_MAX {
        true => Ok(()),
        false => Err(DatabaseOpenError::PathTooLong { path: path.to_owned() }),
    }
}

fn read_connection(path: &Utf8Path) -> Result<Connection, DatabaseOpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let open = |uri: &str| -> Result<Connection, DatabaseOpenError> {
        let conn = connect(path, uri, flags)?;
        // SQLite reads the file only with the first query.
        run_pragmas(&conn, "PRAGMA query_only = ON")
            .and_then(|()| limit_cache(&conn, READER_CACHE_KIB))
            .and_then(|()| migrate::sqlite_version(&conn))
            .map_err(|source| sqlite(path, source))?;
        Ok(conn)
    };
    let uri = file_uri(path);
    match open(&uri) {
        Err(DatabaseOpenError::Sqlite { source, .. }) if cannot_share(&source) => {
            // A write-ahead log needs a shared-memory file next to the database. If that cannot be
            // created, no process can be writing either. But a non-empty log must not be ignored.
            let log = Utf8PathBuf::from(format!("{path}-wal"));
            if std::fs::metadata(&log).is_ok_and(|found| found.len() > 0) {
                return Err(DatabaseOpenError::ReadOnlyWithLog { path: path.to_owned() });
            }
            // `immutable` skips all locks, which is safe only because no process can write here.
            open(&format!("{uri}?immutable=1"))
        }
        other => other,
    }
}

fn cannot_share(error: &rusqlite::Error) -> bool {
    // A read-only medium gives one code or the other, depending on the files that exist.
    use ErrorCode::{CannotOpen, ReadOnly};
    matches!(error.sqlite_error_code(), Some(CannotOpen | ReadOnly))
}

fn file_uri(path: &Utf8Path) -> String {
    let mut uri = String::from("file:");
    for byte in path.as_str().bytes() {
        match byte {
            // SQLite decodes these characters in a URI, so a path that contains them must be
            // escaped.
            b'%' | b'?' | b'#' | 0x80.. => uri.push_str(&format!("%{byte:02x}")),
            _ => uri.push(char::from(byte)),
        }
    }
    uri
}

#[expect(clippy::disallowed_methods, reason = "the one place that opens a database")]
fn connect(path: &Utf8Path, name: &str, flags: OpenFlags) -> Result<Connection, DatabaseOpenError> {
    // A connection belongs to one thread at a time, so SQLite's own mutex is not needed.
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(name, flags).map_err(|source| sqlite(path, source))?;
    conn.busy_timeout(BUSY_TIMEOUT).map_err(|source| sqlite(path, source))?;
    // Without this, SQLite plans most statements again whenever they are bound to other values.
    // SQLite then fails on a longer value before it is in memory.
    let is_limited = conn.set_limit(Limit::SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX);
    is_limited.map_err(|source| sqlite(path, source))?;
    let is_planned_once = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true);
    is_planned_once.map_err(|source| sqlite(path, source))?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    Ok(conn)
}

/// Creates the file with permissions for the owner only; SQLite gives its side files the same.
///
/// An existing file is not even opened: closing it would drop SQLite's locks in this process.
fn create_private(path: &Utf8Path) -> Result<(), DatabaseOpenError> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        // Another process may have created it meanwhile, with the same mode.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(DatabaseOpenError::Create { path: path.to_owned(), source }),
    }
}

fn sqlite(path: &Utf8Path, source: rusqlite::Error) -> DatabaseOpenError {
    DatabaseOpenError::Sqlite { path: path.to_owned(), source }
}

/// Declares a table's SQL: one constant per statement, and the list that the tests iterate
/// over.
// The tests read the plan of every listed statement, so no query can be left out.
macro_rules! sql {
    ($($name:ident = $text:expr;)+) => {
        $(const $name: &str = $text;)+
        #[cfg(test)]
        pub(crate) const ALL_SQL: &[(&str, &str)] = &[$((stringify!($name), $name),)+];
    };
}
pub(crate) use sql;

/// Reads a row's columns from left to right, in the order of the SELECT.
pub(crate) struct ColumnReader<'r, 'c> {
    table: &'static str,
    row: &'r SqlRow<'c>,
    index: usize,
}

impl<'r, 'c> ColumnReader<'r, 'c> {
    pub(crate) fn new(table: &'static str, row: &'r SqlRow<'c>) -> ColumnReader<'r, 'c> {
        ColumnReader { table, row, index: 0 }
    }

    pub(crate) fn get<T: FromSql>(&mut self) -> Result<T, DatabaseError> {
        let at = self.index;
        self.index += 1;
        self.row.get(at).map_err(|error| self.bad(error.to_string()))
    }

    pub(crate) fn flag(&mut self) -> Result<bool, DatabaseError> {
        Ok(self.get::<i64>()? != 0)
    }

    /// Reads a non-negative integer.
    pub(crate) fn count(&mut self) -> Result<u64, DatabaseError> {
        Ok(self.optional_count()?.unwrap_or(0))
    }

    pub(crate) fn optional_count(&mut self) -> Result<Option<u64>, DatabaseError> {
        let number: Option<i64> = self.get()?;
        let read = |number| u64::try_from(number).map_err(|_| self.bad(format!("{number} < 0")));
        number.map(read).transpose()
    }

    /// Reads text without copying it.
    fn text(&mut self) -> Result<Option<&'r str>, DatabaseError> {
        let at = self.index;
        self.index += 1;
        let value = self.row.get_ref(at).map_err(|error| self.bad(error.to_string()))?;
        value.as_str_or_null().map_err(|error| self.bad(error.to_string()))
    }

    /// Reads text that must be there, without copying it.
    fn required_text(&mut self) -> Result<&'r str, DatabaseError> {
        self.text()?.ok_or_else(|| self.bad(TEXT_MISSING.to_owned()))
    }

    /// Reads a value that is parsed from text, such as an id.
    pub(crate) fn parsed<T: FromStr<Err: ToString>>(&mut self) -> Result<T, DatabaseError> {
        self.optional_parsed()?.ok_or_else(|| self.bad(TEXT_MISSING.to_owned()))
    }

    pub(crate) fn optional_parsed<T: FromStr<Err: ToString>>(
        &mut self,
    ) -> Result<Option<T>, DatabaseError> {
        let text = self.text()?.map(str::parse).transpose();
        text.map_err(|error: T::Err| self.bad(error.to_string()))
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp, DatabaseError> {
        self.optional_time()?.ok_or_else(|| self.bad(TEXT_MISSING.to_owned()))
    }

    pub(crate) fn optional_time(&mut self) -> Result<Option<Timestamp>, DatabaseError> {
        let Some(text) = self.text()? else { return Ok(None) };
        parse_iso(text).map(Some).ok_or_else(|| self.bad(format!("`{text}` is not a time")))
    }

    pub(crate) fn bad(&self, reason: String) -> DatabaseError {
        // The first column names the row in the error, and damage may have changed its type.
        let row = self.row.get::<String>(0).unwrap_or_else(|_| "?".to_owned());
        DatabaseError::BadRow { table: self.table, row, reason }
    }
}

/// Converts a count to an SQL integer.
pub(crate) fn integer(count: u64) -> i64 {
    // No count reaches this limit; a saturated value is better than a failed change.
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(crate) fn query_all<T>(
    conn: &DatabaseConnection,
    sql: &'static str,
    params: impl SqlParams,
    attempt: &'static str,
    mut read: impl FnMut(&SqlRow<'_>) -> Result<T, DatabaseError>,
) -> Result<Vec<T>, DatabaseError> {
    let mut found = Vec::new();
    conn.visit(sql, params, attempt, |row| {
        found.push(read(row)?);
        Ok::<_, DatabaseError>(true)
    })?;
    Ok(found)
}

pub(crate) fn query_first<T>(
    conn: &DatabaseConnection,
    sql: &'static str,
    params: impl SqlParams,
    attempt: &'static str,
    read: impl FnOnce(&SqlRow<'_>) -> Result<T, DatabaseError>,
) -> Result<Option<T>, DatabaseError> {
    let (mut found, mut read) = (None, Some(read));
    conn.visit(sql, params, attempt, |row| {
        found = read.take().map(|read| read(row)).transpose()?;
        Ok::<_, DatabaseError>(false)
    })?;
    Ok(found)
}

/// Runs a prepared change and returns the number of changed rows.
pub(crate) fn execute(
    conn: &DatabaseConnection,
    sql: &'static str,
    params: impl SqlParams,
    attempt: &'static str,
) -> Result<usize, DatabaseError> {
    conn.execute(sql, params, attempt)
}
