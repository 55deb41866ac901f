//! A connection to either engine: SQLite or PostgreSQL.
//!
//! The statements, parameters and values are those of rusqlite. The PostgreSQL arm translates them
//! (see [`super::postgres`]), so a table's module does not know its engine. Start at
//! [`DatabaseConnection`].

use rusqlite::types::{FromSql, ToSqlOutput, Type, Value, ValueRef};
use rusqlite::{Connection, ToSql};

use super::database_error::{DatabaseError, SqliteResultExt as _};
use super::dialect::NamedValue;
use super::postgres::{ColumnValue, PostgresConnection};

/// An open connection.
#[derive(Debug)]
pub(crate) enum DatabaseConnection {
    Sqlite(Connection),
    Postgres(Box<PostgresConnection>),
}

/// Durability of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommitSync {
    /// A commit is durable when it returns.
    Durable,
    /// A loss of power may undo the last commits, newest first.
    Unsynced,
}

impl DatabaseConnection {
    /// Returns the SQLite connection; `None` for PostgreSQL.
    pub(crate) fn as_sqlite(&self) -> Option<&Connection> {
        match self {
            DatabaseConnection::Sqlite(conn) => Some(conn),
            DatabaseConnection::Postgres(_) => None,
        }
    }

    /// Returns the SQLite connection, for tests of SQLite alone.
    #[cfg(test)]
    #[track_caller]
    pub(crate) fn sqlite(&self) -> &Connection {
        self.as_sqlite().expect("this test is about SQLite")
    }

    /// Returns the PostgreSQL connection; `None` for SQLite.
    pub(crate) fn as_postgres(&self) -> Option<&PostgresConnection> {
        match self {
            DatabaseConnection::Sqlite(_) => None,
            DatabaseConnection::Postgres(conn) => Some(conn),
        }
    }

    /// Runs statements without parameters.
    pub(crate) fn run_batch(&self, sql: &str, attempt: &'static str) -> Result<(), DatabaseError> {
        match self {
            DatabaseConnection::Sqlite(conn) => conn.execute_batch(sql).attempt(attempt),
            DatabaseConnection::Postgres(conn) => conn.run_batch(sql, attempt),
        }
    }

    /// Sets how the next transactions are committed. A server always waits for its disk.
    pub(crate) fn set_commit_sync(&self, sync: CommitSync) -> Result<(), DatabaseError> {
        let pragma = match (self, sync) {
            (DatabaseConnection::Postgres(_), _) => return Ok(()),
            (DatabaseConnection::Sqlite(_), CommitSync::Durable) => "PRAGMA synchronous = FULL",
            (DatabaseConnection::Sqlite(_), CommitSync::Unsynced) => "PRAGMA synchronous = NORMAL",
        };
        self.run_batch(pragma, "prepare a commit")
    }

    /// Begins a transaction that writes.
    pub(crate) fn begin_write(&self) -> Result<(), DatabaseError> {
        let attempt = "begin a transaction";
        match self {
            // The write lock is taken at once. A later upgrade could fail after commands have run.
            DatabaseConnection::Sqlite(_) => self.run_batch("BEGIN IMMEDIATE", attempt),
            DatabaseConnection::Postgres(_) => self.run_batch("BEGIN", attempt),
        }
    }

    /// Begins a transaction in which all queries see one state of the database.
    pub(crate) fn begin_snapshot(&self) -> Result<(), DatabaseError> {
        let begin = match self {
            DatabaseConnection::Sqlite(_) => "BEGIN",
            DatabaseConnection::Postgres(_) => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        };
        self.run_batch(begin, "begin to read")
    }

    /// Commits. The writer's commit on PostgreSQL fails if another writer has taken over.
    pub(crate) fn commit(&self) -> Result<(), DatabaseError> {
        match self {
            DatabaseConnection::Sqlite(_) => self.run_batch("COMMIT", "commit"),
            DatabaseConnection::Postgres(conn) => conn.commit(),
        }
    }

    pub(crate) fn rollback(&self) -> Result<(), DatabaseError> {
        self.run_batch("ROLLBACK", "undo a transaction")
    }

    /// Returns true if the engine has undone the whole transaction by itself: SQLite does so if the
    /// disk is full or fails, PostgreSQL if the connection is lost.
    pub(crate) fn is_transaction_lost(&self) -> bool {
        match self {
            DatabaseConnection::Sqlite(conn) => conn.is_autocommit(),
            DatabaseConnection::Postgres(conn) => conn.is_closed(),
        }
    }

    /// Calls `visit` with each row until it returns false or fails.
    pub(crate) fn visit<E: From<DatabaseError>>(
        &self,
        sql: &'static str,
        params: impl SqlParams,
        attempt: &'static str,
        mut visit: impl FnMut(&SqlRow<'_>) -> Result<bool, E>,
    ) -> Result<(), E> {
        match self {
            DatabaseConnection::Sqlite(conn) => {
                // Cached statements are planned once per connection, which was half of the time of
                // a read.
                let mut statement = conn.prepare_cached(sql).attempt(attempt)?;
                let mut rows = statement.query(params).attempt(attempt)?;
                while let Some(row) = rows.next().attempt(attempt)? {
                    if !visit(&SqlRow::Sqlite(row))? {
                        break;
                    }
                }
                Ok(())
            }
            DatabaseConnection::Postgres(conn) => {
                conn.visit(sql, &params.values(attempt)?, attempt, |row| {
                    visit(&SqlRow::Postgres(row))
                })
            }
        }
    }

    /// Runs a prepared change and returns the number of changed rows.
    pub(crate) fn execute(
        &self,
        sql: &'static str,
        params: impl SqlParams,
        attempt: &'static str,
    ) -> Result<usize, DatabaseError> {
        match self {
            DatabaseConnection::Sqlite(conn) => {
                conn.prepare_cached(sql).attempt(attempt)?.execute(params).attempt(attempt)
            }
            DatabaseConnection::Postgres(conn) => {
                conn.execute(sql, &params.values(attempt)?, attempt)
            }
        }
    }
}

/// A row of either engine.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SqlRow<'c> {
    Sqlite(&'c rusqlite::Row<'c>),
    Postgres(&'c tokio_postgres::Row),
}

impl<'c> SqlRow<'c> {
    /// Reads a column, counted from 0.
    pub(crate) fn get<T: FromSql>(&self, at: usize) -> rusqlite::Result<T> {
        match self {
            SqlRow::Sqlite(row) => row.get(at),
            SqlRow::Postgres(_) => {
                let value = self.get_ref(at)?;
                T::column_result(value)
                    .map_err(|error| conversion_failure(at, value.data_type(), error.to_string()))
            }
        }
    }

    /// Reads a column without copying it.
    pub(crate) fn get_ref(&self, at: usize) -> rusqlite::Result<ValueRef<'c>> {
        match self {
            SqlRow::Sqlite(row) => row.get_ref(at),
            SqlRow::Postgres(row) => match row.try_get::<_, ColumnValue<'c>>(at) {
                Ok(ColumnValue(value)) => Ok(value),
                Err(error) => Err(conversion_failure(at, Type::Null, error.to_string())),
            },
        }
    }
}

fn conversion_failure(at: usize, found: Type, reason: String) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(at, found, reason.into())
}

/// Parameters of a statement. rusqlite binds them itself; PostgreSQL gets their values.
pub(crate) trait SqlParams: rusqlite::Params {
    fn values(&self, attempt: &'static str) -> Result<Vec<NamedValue<'_>>, DatabaseError>;
}

/// Returns the value that rusqlite would bind.
fn value_of(param: &dyn ToSql, attempt: &'static str) -> Result<Value, DatabaseError> {
    let unusable = |reason: &str| rusqlite::Error::ToSqlConversionFailure(reason.into());
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| unusable("not UTF-8"));
    let value = param.to_sql().and_then(|output| match output {
        ToSqlOutput::Owned(value) => Ok(value),
        ToSqlOutput::Borrowed(ValueRef::Null) => Ok(Value::Null),
        ToSqlOutput::Borrowed(ValueRef::Integer(number)) => Ok(Value::Integer(number)),
        ToSqlOutput::Borrowed(ValueRef::Real(number)) => Ok(Value::Real(number)),
        ToSqlOutput::Borrowed(ValueRef::Text(bytes)) => text(bytes).map(Value::Text),
        ToSqlOutput::Borrowed(ValueRef::Blob(bytes)) => Ok(Value::Blob(bytes.to_vec())),
        _ => Err(unusable("a value of an unknown kind")),
    });
    value.attempt(attempt)
}

fn numbered<'p>(
    params: impl IntoIterator<Item = &'p dyn ToSql>,
    attempt: &'static str,
) -> Result<Vec<NamedValue<'static>>, DatabaseError> {
    params.into_iter().map(|param| Ok((None, value_of(param, attempt)?))).collect()
}

impl SqlParams for &[&dyn ToSql] {
    fn values(&self, attempt: &'static str) -> Result<Vec<NamedValue<'_>>, DatabaseError> {
        numbered(self.iter().copied(), attempt)
    }
}

impl SqlParams for &[(&str, &dyn ToSql)] {
    fn values(&self, attempt: &'static str) -> Result<Vec<NamedValue<'_>>, DatabaseError> {
        self.iter().map(|(name, param)| Ok((Some(*name), value_of(*param, attempt)?))).collect()
    }
}

impl SqlParams for [&(dyn ToSql + Send + Sync); 0] {
    fn values(&self, _: &'static str) -> Result<Vec<NamedValue<'_>>, DatabaseError> {
        Ok(Vec::new())
    }
}

macro_rules! params_of_length {
    ($($length:literal)+) => {$(
        impl<T: ToSql> SqlParams for [T; $length] {
            fn values(&self, attempt: &'static str) -> Result<Vec<NamedValue<'_>>, DatabaseError> {
                numbered(self.iter().map(|param| param as &dyn ToSql), attempt)
            }
        }
    )+};
}

params_of_length!(1 2 3 4);
