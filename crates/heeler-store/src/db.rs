//! The database: how it is opened, and every question one can ask it.
//!
//! Nothing else opens `heeler.db`. Each table has a module with its SQL and its rows; column
//! numbers appear nowhere else. Start at [`Db`]: a [`crate::Reader`] and a [`crate::Tx`] both
//! are one. The SQL keeps to what SQLite and PostgreSQL both accept.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::str::FromStr;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::from_iso;
use jiff::Timestamp;
use rusqlite::config::DbConfig;
use rusqlite::types::FromSql;
use rusqlite::{Connection, ErrorCode, OpenFlags, Row};
use thiserror::Error;

pub(crate) mod access;
pub(crate) mod agents;
pub(crate) mod approvals;
pub(crate) mod counters;
pub(crate) mod deleted;
pub(crate) mod effects;
pub(crate) mod foreign;
pub(crate) mod jobs;
pub(crate) mod meta;
pub(crate) mod migrate;
pub(crate) mod money;
pub(crate) mod overrides;
pub(crate) mod parts;
pub(crate) mod queue;
pub(crate) mod requests;
pub(crate) mod runs;
pub(crate) mod schedules;
pub(crate) mod sessions;
pub(crate) mod views;
pub(crate) mod workflows;

/// How long a statement waits for another connection's lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// How many prepared statements a connection keeps: more than there are.
pub(crate) const STATEMENTS_MAX: usize = 256;

/// What is wrong with a column that says nothing.
const NO_TEXT: &str = "there is no text where there should be some";

/// Sorts after every time and every id: where a list of newest first begins.
const AFTER_ALL: &str = "~";

/// A question or change that the database did not answer.
#[derive(Debug, Error)]
pub enum DbError {
    /// SQLite refused.
    #[error("cannot {attempt}: {source}")]
    Sqlite {
        /// What was tried.
        attempt: &'static str,
        /// The cause.
        #[source]
        source: rusqlite::Error,
    },
    /// A row holds what none of our versions writes.
    #[error("row `{row}` of table {table} is damaged: {reason}; run `heeler doctor`")]
    BadRow {
        /// The table.
        table: &'static str,
        /// The row's first column.
        row: String,
        /// What is wrong.
        reason: String,
    },
    /// The record changed since it was read.
    #[error("{what} {id} has changed since version {version}; read it again")]
    Stale {
        /// `job`, `session`, `run`.
        what: &'static str,
        /// Which.
        id: String,
        /// The version that the change was decided on.
        version: i64,
    },
    /// There is no such record.
    #[error("there is no {what} {id}")]
    Missing {
        /// `job`, `session`, `run`.
        what: &'static str,
        /// Which.
        id: String,
    },
    /// There already is such a record.
    #[error("there already is a {what} {id}")]
    Exists {
        /// `job`, `session`, `run`.
        what: &'static str,
        /// Which.
        id: String,
    },
}

impl DbError {
    /// Says whether the disk or the database file is full.
    pub fn is_full(&self) -> bool {
        matches!(self, DbError::Sqlite { source, .. } if is_full(source))
    }

    /// Says whether the disk, the file or another process stood in the way, not what was asked for.
    pub fn is_of_storage(&self) -> bool {
        let DbError::Sqlite { source, .. } = self else { return false };
        match source.sqlite_error_code() {
            Some(code) => !matches!(
                code,
                ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig
            ),
            // What is read or bound does not fit.
            None => false,
        }
    }
}

pub(crate) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

/// Says what was tried when SQLite refused.
pub(crate) trait Attempt<T> {
    fn attempt(self, attempt: &'static str) -> Result<T, DbError>;
}

impl<T> Attempt<T> for rusqlite::Result<T> {
    fn attempt(self, attempt: &'static str) -> Result<T, DbError> {
        self.map_err(|source| DbError::Sqlite { attempt, source })
    }
}

/// Why a shortened id names no record.
#[derive(Debug, Error)]
pub enum LookupError {
    /// Nothing starts with it.
    #[error("there is no {what} `{text}`")]
    Unknown {
        /// `job` or `session`.
        what: &'static str,
        /// The text as given.
        text: String,
    },
    /// Several records start with it.
    #[error("`{text}` may be any of: {}; give more of it", some_of(candidates))]
    Ambiguous {
        /// The text as given.
        text: String,
        /// The first of them; one more than are named if there are more.
        candidates: Vec<String>,
    },
    /// The database did not answer.
    #[error(transparent)]
    Db(#[from] DbError),
}

/// The most candidates that an ambiguous id lists.
pub(crate) const CANDIDATES_MAX: usize = 10;

fn some_of(candidates: &[String]) -> String {
    match candidates.get(..CANDIDATES_MAX) {
        Some(named) if named.len() < candidates.len() => format!("{}, …", named.join(", ")),
        _ => candidates.join(", "),
    }
}

/// Why the database could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is none yet.
    #[error("there is no database at {path} yet")]
    Missing {
        /// Where it was expected.
        path: Utf8PathBuf,
    },
    /// A newer Heeler wrote it.
    #[error(
        "{path} was written by a newer heeler (schema {found}, this one knows {known}); \
         use that version"
    )]
    Newer {
        /// The database.
        path: Utf8PathBuf,
        /// Its schema.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// An older Heeler wrote it, and a reader migrates nothing.
    #[error(
        "{path} was written by an older heeler (schema {found}, this one needs {known}); \
         `heeler doctor --fix` brings it up to date"
    )]
    Older {
        /// The database.
        path: Utf8PathBuf,
        /// Its schema.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// It cannot be read where it is.
    #[error(
        "{path} is on a read-only medium and its last changes are still in {path}-wal; \
         copy the state directory to a writable place and use that"
    )]
    ReadOnlyWithLog {
        /// The database.
        path: Utf8PathBuf,
    },
    /// It could not be made.
    #[error("cannot make {path}")]
    Create {
        /// The database.
        path: Utf8PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// SQLite refused.
    #[error("cannot open {path}: {source}")]
    Sqlite {
        /// The database.
        path: Utf8PathBuf,
        /// The cause.
        #[source]
        source: rusqlite::Error,
    },
}

/// An open connection, and every question one can ask it.
#[derive(Debug)]
pub struct Db {
    pub(crate) conn: Connection,
}

impl Db {
    /// Opens for reading; migrates nothing, changes nothing.
    pub(crate) fn read(path: &Utf8Path) -> Result<Db, OpenError> {
        let db = Db::read_any(path)?;
        migrate::check_current(&db.conn, path)?;
        Ok(db)
    }

    /// Opens for writing, making the file where it is missing. The caller migrates it.
    pub(crate) fn write(path: &Utf8Path) -> Result<Db, OpenError> {
        create_private(path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let conn = connect(path, path.as_str(), flags)?;
        // The log is cut back to what a checkpoint leaves: a reader that finds no writer alive
        // first reads all of it.
        let pragmas = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
                       PRAGMA foreign_keys = ON; PRAGMA wal_autocheckpoint = 1000; \
                       PRAGMA journal_size_limit = 4194304";
        run_pragmas(&conn, pragmas).map_err(|source| sqlite(path, source))?;
        Ok(Db { conn })
    }

    /// Opens for reading whatever its schema is: for copies.
    pub(crate) fn read_any(path: &Utf8Path) -> Result<Db, OpenError> {
        if !path.exists() {
            return Err(OpenError::Missing { path: path.to_owned() });
        }
        Ok(Db { conn: read_connection(path)? })
    }

    /// Opens a database file of ours that nobody else uses: a snapshot, a copy.
    pub(crate) fn private(path: &Utf8Path) -> Result<Db, OpenError> {
        create_private(path)?;
        let conn = connect(path, path.as_str(), OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        run_pragmas(&conn, "PRAGMA foreign_keys = ON;").map_err(|source| sqlite(path, source))?;
        Ok(Db { conn })
    }

    /// Makes an empty database that is nowhere but here.
    pub(crate) fn of_nothing(now: Timestamp) -> Result<Db, DbError> {
        let conn = Connection::open_in_memory().attempt("make an empty database")?;
        let mut version = 0;
        while version < migrate::SCHEMA_VERSION {
            version = migrate::apply_next(&conn, migrate::MIGRATIONS, version, now)?;
        }
        Ok(Db { conn })
    }

    /// Makes the file whole without a write-ahead log beside it.
    pub(crate) fn leave_wal(&self) -> Result<(), DbError> {
        run_pragmas(&self.conn, "PRAGMA journal_mode = DELETE").attempt("end the write-ahead log")
    }

    /// Runs SQLite's own check; an empty answer means that the file is sound.
    pub fn integrity_faults(&self) -> Result<Vec<String>, DbError> {
        let attempt = "check the database";
        let mut statement = self.conn.prepare("PRAGMA integrity_check").attempt(attempt)?;
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).attempt(attempt)?;
        let faults = rows.collect::<Result<Vec<_>, _>>().attempt(attempt)?;
        Ok(faults.into_iter().filter(|line| line != "ok").collect())
    }

    /// Lists rows whose foreign key points nowhere, as `table: row id`.
    pub fn foreign_key_faults(&self) -> Result<Vec<String>, DbError> {
        let attempt = "check the foreign keys";
        let mut statement = self.conn.prepare("PRAGMA foreign_key_check").attempt(attempt)?;
        let rows = statement
            .query_map([], |row| {
                let rowid = row.get::<_, Option<i64>>(1)?.unwrap_or_default();
                Ok(format!("{}: row {rowid}", row.get::<_, String>(0)?))
            })
            .attempt(attempt)?;
        rows.collect::<Result<Vec<_>, _>>().attempt(attempt)
    }

    /// Returns the schema's version.
    pub fn schema_version(&self) -> Result<i64, DbError> {
        migrate::version(&self.conn).attempt("read the schema version")
    }
}

/// Runs pragmas; those that answer with a row are fine too.
fn run_pragmas(conn: &Connection, pragmas: &str) -> rusqlite::Result<()> {
    for pragma in pragmas.split(';').map(str::trim).filter(|text| !text.is_empty()) {
        conn.query_row(pragma, [], |_| Ok(())).or_else(|error| match error {
            rusqlite::Error::QueryReturnedNoRows => Ok(()),
            other => Err(other),
        })?;
    }
    Ok(())
}

fn read_connection(path: &Utf8Path) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let open = |uri: &str| -> Result<Connection, OpenError> {
        let conn = connect(path, uri, flags)?;
        // SQLite looks at the file with the first question only.
        run_pragmas(&conn, "PRAGMA query_only = ON")
            .and_then(|()| migrate::version(&conn))
            .map_err(|source| sqlite(path, source))?;
        Ok(conn)
    };
    let uri = file_uri(path);
    match open(&uri) {
        Err(OpenError::Sqlite { source, .. }) if cannot_share(&source) => {
            // A write-ahead log needs shared memory beside the file. Where that cannot be made,
            // nobody can be writing either; but a log that is not empty must not be ignored.
            let log = Utf8PathBuf::from(format!("{path}-wal"));
            if std::fs::metadata(&log).is_ok_and(|found| found.len() > 0) {
                return Err(OpenError::ReadOnlyWithLog { path: path.to_owned() });
            }
            open(&format!("{uri}?immutable=1"))
        }
        other => other,
    }
}

fn cannot_share(error: &rusqlite::Error) -> bool {
    use ErrorCode::{CannotOpen, ReadOnly};
    matches!(error.sqlite_error_code(), Some(CannotOpen | ReadOnly))
}

fn file_uri(path: &Utf8Path) -> String {
    let mut uri = String::from("file:");
    for byte in path.as_str().bytes() {
        match byte {
            b'%' | b'?' | b'#' | 0x80.. => uri.push_str(&format!("%{byte:02x}")),
            _ => uri.push(char::from(byte)),
        }
    }
    uri
}

#[expect(clippy::disallowed_methods, reason = "the one place that opens a database")]
fn connect(path: &Utf8Path, name: &str, flags: OpenFlags) -> Result<Connection, OpenError> {
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(name, flags).map_err(|source| sqlite(path, source))?;
    conn.busy_timeout(BUSY_TIMEOUT).map_err(|source| sqlite(path, source))?;
    // Else SQLite plans most statements again whenever they are given other values.
    let is_planned_once = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true);
    is_planned_once.map_err(|source| sqlite(path, source))?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    Ok(conn)
}

/// Makes the file for its owner only; SQLite gives its side files the same permissions.
///
/// An existing file is not even opened: closing it would drop SQLite's locks in this process.
fn create_private(path: &Utf8Path) -> Result<(), OpenError> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(OpenError::Create { path: path.to_owned(), source }),
    }
}

fn sqlite(path: &Utf8Path, source: rusqlite::Error) -> OpenError {
    OpenError::Sqlite { path: path.to_owned(), source }
}

/// Declares a table's SQL: one constant per statement, and the list that the tests walk.
macro_rules! sql {
    ($($name:ident = $text:expr;)+) => {
        $(const $name: &str = $text;)+
        #[cfg(test)]
        pub(crate) const ALL_SQL: &[(&str, &str)] = &[$((stringify!($name), $name),)+];
    };
}
pub(crate) use sql;

/// Reads a row's columns from left to right, as its SELECT names them.
pub(crate) struct Columns<'r, 'c> {
    table: &'static str,
    row: &'r Row<'c>,
    at: usize,
}

impl<'r, 'c> Columns<'r, 'c> {
    pub(crate) fn new(table: &'static str, row: &'r Row<'c>) -> Columns<'r, 'c> {
        Columns { table, row, at: 0 }
    }

    pub(crate) fn get<T: FromSql>(&mut self) -> Result<T, DbError> {
        let at = self.at;
        self.at += 1;
        self.row.get(at).map_err(|error| self.bad(error.to_string()))
    }

    pub(crate) fn flag(&mut self) -> Result<bool, DbError> {
        Ok(self.get::<i64>()? != 0)
    }

    /// A number that counts something.
    pub(crate) fn count(&mut self) -> Result<u64, DbError> {
        Ok(self.maybe_count()?.unwrap_or(0))
    }

    pub(crate) fn maybe_count(&mut self) -> Result<Option<u64>, DbError> {
        let number: Option<i64> = self.get()?;
        let read = |number| u64::try_from(number).map_err(|_| self.bad(format!("{number} < 0")));
        number.map(read).transpose()
    }

    /// Text that is read where it lies.
    fn text(&mut self) -> Result<Option<&'r str>, DbError> {
        let at = self.at;
        self.at += 1;
        let value = self.row.get_ref(at).map_err(|error| self.bad(error.to_string()))?;
        value.as_str_or_null().map_err(|error| self.bad(error.to_string()))
    }

    /// A word, an id: whatever is parsed from text.
    pub(crate) fn word<T: FromStr<Err: ToString>>(&mut self) -> Result<T, DbError> {
        self.maybe_word()?.ok_or_else(|| self.bad(NO_TEXT.to_owned()))
    }

    pub(crate) fn maybe_word<T: FromStr<Err: ToString>>(&mut self) -> Result<Option<T>, DbError> {
        let text = self.text()?.map(str::parse).transpose();
        text.map_err(|error: T::Err| self.bad(error.to_string()))
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp, DbError> {
        self.maybe_time()?.ok_or_else(|| self.bad(NO_TEXT.to_owned()))
    }

    pub(crate) fn maybe_time(&mut self) -> Result<Option<Timestamp>, DbError> {
        let Some(text) = self.text()? else { return Ok(None) };
        from_iso(text).map(Some).ok_or_else(|| self.bad(format!("`{text}` is not a time")))
    }

    pub(crate) fn bad(&self, reason: String) -> DbError {
        let row = self.row.get::<_, String>(0).unwrap_or_else(|_| "?".to_owned());
        DbError::BadRow { table: self.table, row, reason }
    }
}

/// A count as SQL has it.
pub(crate) fn integer(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Collects the rows of a prepared query.
pub(crate) fn collect<T>(
    conn: &Connection,
    sql: &'static str,
    params: impl rusqlite::Params,
    attempt: &'static str,
    mut read: impl FnMut(&Row<'_>) -> Result<T, DbError>,
) -> Result<Vec<T>, DbError> {
    let mut statement = conn.prepare_cached(sql).attempt(attempt)?;
    let mut rows = statement.query(params).attempt(attempt)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().attempt(attempt)? {
        found.push(read(row)?);
    }
    Ok(found)
}

/// Returns the first row of a prepared query.
pub(crate) fn first<T>(
    conn: &Connection,
    sql: &'static str,
    params: impl rusqlite::Params,
    attempt: &'static str,
    read: impl FnOnce(&Row<'_>) -> Result<T, DbError>,
) -> Result<Option<T>, DbError> {
    let mut statement = conn.prepare_cached(sql).attempt(attempt)?;
    let mut rows = statement.query(params).attempt(attempt)?;
    rows.next().attempt(attempt)?.map(read).transpose()
}

/// Runs a prepared change and returns how many rows it touched.
pub(crate) fn execute(
    conn: &Connection,
    sql: &'static str,
    params: impl rusqlite::Params,
    attempt: &'static str,
) -> Result<usize, DbError> {
    conn.prepare_cached(sql).attempt(attempt)?.execute(params).attempt(attempt)
}
