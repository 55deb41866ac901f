//! A private copy of another system's SQLite database.
//!
//! Opening a database alters it (SQLite creates shared memory and may checkpoint the
//! write-ahead log), so the original is only copied, together with its log. Start at
//! [`DatabaseSnapshot`].

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_store::staging::state_files;
use heeler_transcript::{temp_name, untrusted_file};
use rusqlite::limits::Limit;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OpenFlags, Row, Statement};

use super::read::LastLightRow;
use crate::import_error::ImportError;

/// Most attempts to copy a database that keeps changing.
const ATTEMPTS_MAX: u32 = 5;

/// The copy; dropping it deletes it.
pub(crate) struct DatabaseSnapshot {
    // Declared first, so that the database is closed before its directory is removed.
    conn: Connection,
    _folder: TempFolderGuard,
}

impl DatabaseSnapshot {
    /// Copies a database into its own directory in `near`, and opens the copy.
    pub(crate) fn take(
        original: &Utf8Path,
        near: &Utf8Path,
    ) -> Result<DatabaseSnapshot, ImportError> {
        // Beside the target, so that `doctor` finds it after a crash.
        let folder = TempFolderGuard::make(near)?;
        let copy = folder.path.join("copy.db");
        copy_steady(original, &copy, || fingerprint(original))?;
        let unreadable = |source| ImportError::Database { path: original.to_owned(), source };
        let conn = open_copy(&copy).map_err(|error| unreadable(Box::new(error)))?;
        Ok(DatabaseSnapshot { conn, _folder: folder })
    }

    /// Returns the first fault of the database.
    pub(crate) fn damage(&self) -> Option<String> {
        let answer = self.conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0));
        let answer: String = answer.unwrap_or_else(|error| error.to_string());
        (answer != "ok").then_some(answer)
    }

    /// Lists its tables, without SQLite's own.
    pub(crate) fn tables(&self) -> rusqlite::Result<Vec<String>> {
        let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' \
                   AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name";
        self.conn.prepare(sql)?.query_map([], |row| row.get(0))?.collect()
    }

    pub(crate) fn count(&self, table: &str) -> rusqlite::Result<i64> {
        self.conn
            .query_row(&format!("SELECT COUNT(*) FROM {}", quoted(table)), [], |row| row.get(0))
    }

    /// Passes every row of a table to `take`, oldest first; a missing column is NULL.
    ///
    /// Damage ends the table early; the result is then SQLite's message.
    pub(crate) fn each(
        &self,
        table: &str,
        columns: &[&'static str],
        mut take: impl FnMut(LastLightRow) -> Result<(), ImportError>,
    ) -> Result<Option<rusqlite::Error>, ImportError> {
        let names: Arc<[&'static str]> = columns.into();
        let mut statement = match self.select(table, columns) {
            Ok(statement) => statement,
            // A damaged table is reported and does not stop the others.
            Err(error) => return Ok(Some(error)),
        };
        let mut rows = match statement.query([]) {
            Ok(rows) => rows,
            Err(error) => return Ok(Some(error)),
        };
        loop {
            let row = match rows.next() {
                Ok(Some(row)) => values(row, columns.len()),
                Ok(None) => return Ok(None),
                Err(error) => Err(error),
            };
            match row {
                Ok(values) => take(LastLightRow::new(Arc::clone(&names), values))?,
                Err(error) => return Ok(Some(error)),
            }
        }
    }

    fn select(&self, table: &str, columns: &[&str]) -> rusqlite::Result<Statement<'_>> {
        let has = self.columns(table)?;
        let select = columns
            .iter()
            .map(|name| match has.iter().any(|column| column == name) {
                true => quoted(name),
                // The versions of Last Light have different columns.
                false => "NULL".to_owned(),
            })
            .collect::<Vec<_>>()
            .join(", ");
        self.conn.prepare(&format!("SELECT {select} FROM {} ORDER BY rowid", quoted(table)))
    }

    pub(crate) fn columns(&self, table: &str) -> rusqlite::Result<Vec<String>> {
        let sql = "SELECT name FROM pragma_table_info(?1)";
        self.conn.prepare(sql)?.query_map([table], |row| row.get(0))?.collect()
    }
}

/// Longest value of a database. Last Light's own are far below it; a value of zeros takes no room in
/// the file, so a small file could otherwise use up the memory.
const VALUE_BYTES_MAX: i32 = 16 << 20;

/// Opens the copy; SQLite reads the file only with the first query.
#[expect(clippy::disallowed_methods, reason = "the copy is not a database of Heeler")]
fn open_copy(copy: &Utf8Path) -> rusqlite::Result<Connection> {
    // The copy may be written: SQLite replays the log into it.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(copy.as_str(), flags)?;
    // SQLite then fails on a longer value before it is read.
    conn.set_limit(Limit::SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)?;
    conn.query_row("SELECT COUNT(*) FROM sqlite_schema", [], |_| Ok(()))?;
    Ok(conn)
}

/// Copies a database and its log until nothing changes during the copy.
fn copy_steady<T: PartialEq>(
    original: &Utf8Path,
    copy: &Utf8Path,
    fingerprint: impl Fn() -> T,
) -> Result<(), ImportError> {
    for _ in 0..ATTEMPTS_MAX {
        let before = fingerprint();
        copy_file(original, copy)?;
        // The log after the database: a checkpoint in between changes the fingerprint.
        copy_file(&log_of(original), &log_of(copy))?;
        if fingerprint() == before {
            return Ok(());
        }
    }
    Err(ImportError::InUse { path: original.to_owned() })
}

/// Reads the values of a row; text that is not UTF-8 is converted lossily.
fn values(row: &Row<'_>, count: usize) -> rusqlite::Result<Vec<Value>> {
    (0..count)
        .map(|at| {
            Ok(match row.get_ref(at)? {
                ValueRef::Text(bytes) => Value::Text(String::from_utf8_lossy(bytes).into_owned()),
                ValueRef::Null => Value::Null,
                ValueRef::Integer(number) => Value::Integer(number),
                ValueRef::Real(number) => Value::Real(number),
                ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
            })
        })
        .collect()
}

fn quoted(name: &str) -> String {
    // Names come from the source and may contain quotes.
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Returns a value that changes whenever the database is written.
fn fingerprint(database: &Utf8Path) -> Vec<Option<(u64, u64, i64, i64)>> {
    [database.to_owned(), log_of(database)]
        .iter()
        .map(|path| {
            let meta = fs::metadata(path).ok()?;
            Some((meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec()))
        })
        .collect()
}

fn log_of(database: &Utf8Path) -> Utf8PathBuf {
    Utf8PathBuf::from(format!("{database}-wal"))
}

/// Copies a file; a missing write-ahead log has no copy.
fn copy_file(from: &Utf8Path, to: &Utf8Path) -> Result<(), ImportError> {
    match untrusted_file::open(from) {
        Ok(mut file) => Ok(state_files::copy(&mut file, to)?),
        Err(error)
            if error.kind() == std::io::ErrorKind::NotFound && from.as_str().ends_with("-wal") =>
        {
            // A log of an earlier attempt does not belong to this copy.
            match fs::remove_file(to) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(ImportError::Write { path: to.to_owned(), source: error })
                }
                _ => Ok(()),
            }
        }
        Err(source) => Err(ImportError::Open { path: from.to_owned(), source }),
    }
}

struct TempFolderGuard {
    path: Utf8PathBuf,
}

impl TempFolderGuard {
    /// Creates a directory in `near`. An existing one was left by a crash, because its creator held
    /// the same lock.
    fn make(near: &Utf8Path) -> Result<TempFolderGuard, ImportError> {
        let entries = near.read_dir_utf8().into_iter().flatten().flatten();
        for left in entries.filter(|entry| entry.file_name().starts_with(".import.tmp.")) {
            // A leftover is harmless, and `doctor` finds it.
            let _removed = fs::remove_dir_all(left.path());
        }
        let path = temp_name(&near.join("import"));
        state_files::create_folder(&path)?;
        Ok(TempFolderGuard { path })
    }
}

impl Drop for TempFolderGuard {
    fn drop(&mut self) {
        // A directory that cannot be removed now is removed by `doctor`, as after a crash.
        let _removed = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Copies a file that changes during the first `changes` copies.
    fn copy_changing(changes: u32) -> Result<(), ImportError> {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(temp.path()).unwrap();
        fs::write(root.join("a.db"), "x").unwrap();
        let selected = Cell::new(0);
        copy_steady(&root.join("a.db"), &root.join("b.db"), || {
            selected.set(selected.get() + 1);
            // The fingerprint is taken before and after each copy.
            if selected.get() <= 2 * changes { selected.get() } else { 0 }
        })
    }

    #[test]
    fn a_database_that_keeps_changing_is_refused() {
        assert!(copy_changing(ATTEMPTS_MAX - 1).is_ok());
        let error = copy_changing(ATTEMPTS_MAX).unwrap_err();
        assert!(matches!(error, ImportError::InUse { .. }), "{error}");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test makes a database of another system")]
    fn a_small_file_with_a_huge_value_is_refused_before_the_value_is_read() {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(temp.path()).unwrap();
        let original = root.join("a.db");
        let conn = Connection::open(&original).unwrap();
        conn.execute_batch("CREATE TABLE t (id, value)").unwrap();
        // A value at the limit is read; the row of a longer one is an error.
        let insert = "INSERT INTO t VALUES (1, zeroblob(?1))";
        conn.execute(insert, [VALUE_BYTES_MAX - 64]).unwrap();
        let read = || {
            let copy = DatabaseSnapshot::take(&original, root).unwrap();
            let count: rusqlite::Result<usize> = copy.conn.query_row(
                "SELECT value FROM t WHERE length(value) > 0 ORDER BY rowid DESC",
                [],
                |row| Ok(row.get_ref(0)?.as_blob().unwrap().len()),
            );
            count
        };
        assert_eq!(read().unwrap(), (VALUE_BYTES_MAX - 64) as usize);
        conn.execute(insert, [VALUE_BYTES_MAX + 1]).unwrap();
        let error = read().unwrap_err().to_string();
        assert!(error.contains("too big"), "{error}");
    }

    #[test]
    fn a_write_to_the_log_changes_the_fingerprint() {
        let temp = tempfile::tempdir().unwrap();
        let database = Utf8Path::from_path(temp.path()).unwrap().join("a.db");
        fs::write(&database, "x").unwrap();
        let before = fingerprint(&database);
        fs::write(log_of(&database), "y").unwrap();
        assert_ne!(fingerprint(&database), before);
    }
}
