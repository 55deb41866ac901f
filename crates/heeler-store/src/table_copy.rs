//! Copies all records from one engine to the other: for backups, restores and moves.
//!
//! The copy is one transaction of the target, and reads one state of the source. It is verified before
//! it is committed: both sides have the same number of rows with the same content. Start at
//! [`replace_content`].

use jiff::Timestamp;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, ToSql};
use sha2::{Digest as _, Sha256};

use crate::db::connection::{DatabaseConnection, SqlRow};
use crate::db::database_error::failed;
use crate::db::postgres::{PostgresConnection, without_nul};
use crate::db::postgres_error::PostgresError;
use crate::db::{DatabaseError, SqliteResultExt as _, StateDatabase, migrate};

/// Bytes of rows that are sent at once.
const PORTION_BYTES: usize = 256 * 1024;

const ATTEMPT: &str = "copy the records";

/// Number and hash of the rows of a table. The order of the rows does not matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSummary {
    pub table: String,
    pub rows: u64,
    /// Sum of the hashes of the rows.
    pub hash: u128,
}

impl TableSummary {
    fn new(table: &str) -> TableSummary {
        TableSummary { table: table.to_owned(), rows: 0, hash: 0 }
    }

    fn add(&mut self, row: &[Value]) {
        let mut hash = Sha256::new();
        for value in row {
            // Kind and length first, so that no two rows have the same bytes.
            match value {
                Value::Null => hash.update([0]),
                Value::Integer(number) => {
                    hash.update([1]);
                    hash.update(number.to_le_bytes());
                }
                Value::Real(number) => {
                    hash.update([2]);
                    hash.update(number.to_bits().to_le_bytes());
                }
                Value::Text(text) => {
                    hash.update([3]);
                    hash.update(text.len().to_le_bytes());
                    hash.update(text);
                }
                Value::Blob(bytes) => {
                    hash.update([4]);
                    hash.update(bytes.len().to_le_bytes());
                    hash.update(bytes);
                }
            }
        }
        let digest = hash.finalize();
        let mut first = [0; 16];
        first.copy_from_slice(&digest[..16]);
        self.rows += 1;
        self.hash = self.hash.wrapping_add(u128::from_le_bytes(first));
    }
}

/// A table and its columns.
struct CopiedTable {
    name: String,
    columns: Vec<String>,
}

impl CopiedTable {
    fn select(&self) -> String {
        format!("SELECT {} FROM {}", self.columns.join(", "), self.name)
    }
}

/// Replaces all records of `to` with those of `from`, which is of the other engine. Returns what was
/// copied.
pub(crate) fn replace_content(
    from: &StateDatabase,
    to: &StateDatabase,
) -> Result<Vec<TableSummary>, DatabaseError> {
    from.conn.begin_snapshot()?;
    let copied = copy_all(from, to);
    // Nothing was written there.
    from.conn.rollback()?;
    copied
}

/// Counts and hashes all records of a file.
pub(crate) fn summarize(db: &StateDatabase) -> Result<Vec<TableSummary>, DatabaseError> {
    let sqlite = db.conn.as_sqlite().ok_or_else(|| refused("it is no file".to_owned()))?;
    let tables = tables(sqlite).attempt(ATTEMPT)?;
    tables.iter().map(|table| summarize_table(db, table)).collect()
}

fn summarize_table(db: &StateDatabase, table: &CopiedTable) -> Result<TableSummary, DatabaseError> {
    let mut found = TableSummary::new(&table.name);
    visit_rows(db, table, |row| {
        found.add(&row);
        Ok(())
    })?;
    Ok(found)
}

fn copy_all(from: &StateDatabase, to: &StateDatabase) -> Result<Vec<TableSummary>, DatabaseError> {
    let version = from.schema_version()?;
    match &to.conn {
        DatabaseConnection::Sqlite(_) => {
            let mut present = to.schema_version()?;
            while present < version {
                // The time is only a note, and the one of the copy is as good as any.
                let now = Timestamp::UNIX_EPOCH;
                present = migrate::apply_next(&to.conn, migrate::MIGRATIONS, present, now)?;
            }
        }
        DatabaseConnection::Postgres(_) => {}
    }
    let present = to.schema_version()?;
    if present != version {
        return Err(refused(format!("the source has schema {version}, the target {present}")));
    }
    let sqlite = from.conn.as_sqlite().or(to.conn.as_sqlite());
    let sqlite = sqlite.ok_or_else(|| refused("no side is a file".to_owned()))?;
    let tables = tables(sqlite).attempt(ATTEMPT)?;
    to.conn.begin_write()?;
    let copied = copy_tables(from, to, &tables).and_then(|copied| {
        to.conn.commit()?;
        Ok(copied)
    });
    if copied.is_err() {
        // The rollback fails only if no transaction is open; then there is nothing to undo.
        let _undone = to.conn.rollback();
    }
    copied
}

fn refused(reason: String) -> DatabaseError {
    failed(ATTEMPT, PostgresError::Unusable(reason))
}

fn copy_tables(
    from: &StateDatabase,
    to: &StateDatabase,
    tables: &[CopiedTable],
) -> Result<Vec<TableSummary>, DatabaseError> {
    // Tables that refer to others come last, so they are emptied first.
    for table in tables.iter().rev() {
        to.conn.run_batch(&format!("DELETE FROM {}", table.name), ATTEMPT)?;
    }
    let mut copied = Vec::new();
    for table in tables {
        let sent = match &to.conn {
            DatabaseConnection::Sqlite(to) => insert_rows(from, to, table)?,
            DatabaseConnection::Postgres(to) => send_rows(from, to, table)?,
        };
        let found = summarize_table(to, table)?;
        if found != sent {
            return Err(refused(format!(
                "the copy of table {} differs: {} rows were sent, {} arrived",
                table.name, sent.rows, found.rows
            )));
        }
        copied.push(sent);
    }
    if let Some(conn) = to.conn.as_postgres() {
        // The next message gets a number after those that were copied.
        conn.run_batch(
            "SELECT setval(pg_get_serial_sequence('messaging_messages', 'id'), \
             (SELECT COALESCE(MAX(id), 0) + 1 FROM messaging_messages), false)",
            ATTEMPT,
        )?;
    }
    Ok(copied)
}

/// Lists the tables with records; those with foreign keys come last.
fn tables(sqlite: &Connection) -> rusqlite::Result<Vec<CopiedTable>> {
    let names = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' \
        AND name <> 'schema_migration' ORDER BY \
        (SELECT COUNT(*) FROM pragma_foreign_key_list(sqlite_schema.name)) > 0, rowid";
    let columns = "SELECT name FROM pragma_table_info(?1) ORDER BY cid";
    let mut statement = sqlite.prepare(names)?;
    let names: Vec<String> =
        statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let table = |name: String| {
        let mut statement = sqlite.prepare_cached(columns)?;
        let columns = statement.query_map([&name], |row| row.get(0))?;
        let columns = columns.collect::<rusqlite::Result<_>>()?;
        Ok(CopiedTable { name, columns })
    };
    names.into_iter().map(table).collect()
}

/// Calls `visit` with the values of each row. Text is as PostgreSQL stores it.
fn visit_rows(
    db: &StateDatabase,
    table: &CopiedTable,
    mut visit: impl FnMut(Vec<Value>) -> Result<(), DatabaseError>,
) -> Result<(), DatabaseError> {
    let count = table.columns.len();
    match &db.conn {
        DatabaseConnection::Sqlite(conn) => {
            let mut statement = conn.prepare(&table.select()).attempt(ATTEMPT)?;
            let mut rows = statement.query([]).attempt(ATTEMPT)?;
            while let Some(row) = rows.next().attempt(ATTEMPT)? {
                visit(row_values(&table.name, SqlRow::Sqlite(row), count)?)?;
            }
            Ok(())
        }
        DatabaseConnection::Postgres(conn) => conn.visit_once(&table.select(), ATTEMPT, |row| {
            visit(row_values(&table.name, SqlRow::Postgres(row), count)?)?;
            Ok::<_, DatabaseError>(true)
        }),
    }
}

fn row_values(table: &str, row: SqlRow<'_>, count: usize) -> Result<Vec<Value>, DatabaseError> {
    let value = |at| {
        Ok(match row.get_ref(at).attempt(ATTEMPT)? {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(number) => Value::Integer(number),
            ValueRef::Real(number) => Value::Real(number),
            ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
            ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Value::Text(without_nul(text).into_owned()),
                Err(_) => return Err(refused(format!("a row of table {table} is not UTF-8"))),
            },
        })
    };
    (0..count).map(value).collect()
}

fn insert_rows(
    from: &StateDatabase,
    to: &Connection,
    table: &CopiedTable,
) -> Result<TableSummary, DatabaseError> {
    let marks: Vec<String> = (1..=table.columns.len()).map(|at| format!("?{at}")).collect();
    let columns = table.columns.join(", ");
    let sql = format!("INSERT INTO {} ({columns}) VALUES ({})", table.name, marks.join(", "));
    let mut statement = to.prepare(&sql).attempt(ATTEMPT)?;
    let mut sent = TableSummary::new(&table.name);
    visit_rows(from, table, |row| {
        sent.add(&row);
        let params: Vec<&dyn ToSql> = row.iter().map(|value| value as &dyn ToSql).collect();
        statement.execute(params.as_slice()).map(drop).attempt(ATTEMPT)
    })?;
    Ok(sent)
}

fn send_rows(
    from: &StateDatabase,
    to: &PostgresConnection,
    table: &CopiedTable,
) -> Result<TableSummary, DatabaseError> {
    let mut sent = TableSummary::new(&table.name);
    let mut portion = Vec::new();
    let copy = format!("COPY {} ({}) FROM STDIN", table.name, table.columns.join(", "));
    let mut copy = to.begin_copy(&copy)?;
    visit_rows(from, table, |row| {
        sent.add(&row);
        write_row(&row, &mut portion);
        if portion.len() < PORTION_BYTES {
            return Ok(());
        }
        copy.send(std::mem::take(&mut portion))
    })?;
    copy.send(portion)?;
    copy.finish()?;
    Ok(sent)
}

/// Writes a row in the text format of `COPY`.
fn write_row(row: &[Value], to: &mut Vec<u8>) {
    for (at, value) in row.iter().enumerate() {
        if at > 0 {
            to.push(b'\t');
        }
        match value {
            Value::Null => to.extend_from_slice(b"\\N"),
            Value::Integer(number) => to.extend_from_slice(number.to_string().as_bytes()),
            // The shortest text that is read back as the same number.
            Value::Real(number) => to.extend_from_slice(format!("{number:?}").as_bytes()),
            Value::Text(text) => write_text(text, to),
            Value::Blob(bytes) => {
                to.extend_from_slice(b"\\\\x");
                bytes
                    .iter()
                    .for_each(|byte| to.extend_from_slice(format!("{byte:02x}").as_bytes()));
            }
        }
    }
    to.push(b'\n');
}

fn write_text(text: &str, to: &mut Vec<u8>) {
    for byte in text.bytes() {
        match byte {
            b'\\' => to.extend_from_slice(b"\\\\"),
            b'\t' => to.extend_from_slice(b"\\t"),
            b'\n' => to.extend_from_slice(b"\\n"),
            b'\r' => to.extend_from_slice(b"\\r"),
            other => to.push(other),
        }
    }
}
