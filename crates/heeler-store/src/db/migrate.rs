//! Schema versions. Migrations are only added, never edited; readers run none.

use camino::Utf8Path;
use heeler_model::iso_millis;
use jiff::Timestamp;
use rusqlite::{Connection, params};

use super::connection::DatabaseConnection;
use super::{DatabaseError, DatabaseOpenError, SqliteResultExt as _, dialect, query_first};

/// A migration: its name and its SQL.
pub(crate) type SchemaMigration = (&'static str, &'static str);

/// All migrations in order; a migration's version is its position, counted from 1.
pub(crate) const MIGRATIONS: &[SchemaMigration] = &[
    ("base", include_str!("../../migrations/001_base.sql")),
    ("results", include_str!("../../migrations/002_results.sql")),
    ("daemon", include_str!("../../migrations/003_daemon.sql")),
    ("sessions", include_str!("../../migrations/004_sessions.sql")),
    ("workflows", include_str!("../../migrations/005_workflows.sql")),
    ("access", include_str!("../../migrations/006_access.sql")),
    ("requests", include_str!("../../migrations/007_requests.sql")),
    ("run_keys", include_str!("../../migrations/008_run_keys.sql")),
    ("run_subjects", include_str!("../../migrations/009_run_subjects.sql")),
    ("job_marks", include_str!("../../migrations/010_job_marks.sql")),
    ("chat", include_str!("../../migrations/011_chat.sql")),
    ("network_grants", include_str!("../../migrations/012_network_grants.sql")),
    ("notices", include_str!("../../migrations/013_notices.sql")),
    ("permission_rules", include_str!("../../migrations/014_permission_rules.sql")),
    ("run_terms", include_str!("../../migrations/015_run_terms.sql")),
    ("chat_gaps", include_str!("../../migrations/016_chat_gaps.sql")),
    ("job_hosts", include_str!("../../migrations/017_job_hosts.sql")),
    ("push_browsers", include_str!("../../migrations/018_push_browsers.sql")),
    ("placed_views", include_str!("../../migrations/019_placed_views.sql")),
];

/// The schema version of this build.
pub(crate) const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;

const CREATE: &str = "CREATE TABLE IF NOT EXISTS schema_migration \
    (version BIGINT NOT NULL PRIMARY KEY, name TEXT NOT NULL, applied_at TEXT NOT NULL)";
const IS_THERE_POSTGRES: &str =
    "SELECT CASE WHEN to_regclass('schema_migration') IS NULL THEN 0 ELSE 1 END";
const IS_THERE: &str = "SELECT COUNT(*) FROM sqlite_schema WHERE name = 'schema_migration'";
const VERSION: &str = "SELECT COALESCE(MAX(version), 0) FROM schema_migration";
const RECORD: &str = "INSERT INTO schema_migration (version, name, applied_at) VALUES (?1, ?2, ?3)";

/// Migrations that change existing rows in other ways on PostgreSQL. The first fleets there had no rows
/// of a schema before 15.
pub(crate) const POSTGRES_FORMS: [SchemaMigration; 2] = [
    ("job_marks", include_str!("../../migrations/postgres/010_job_marks.sql")),
    ("job_hosts", include_str!("../../migrations/postgres/017_job_hosts.sql")),
];

/// Returns the schema version; 0 for an empty database.
pub(crate) fn version(conn: &DatabaseConnection) -> Result<i64, DatabaseError> {
    let attempt = "read the schema version";
    if let Some(conn) = conn.as_sqlite() {
        return sqlite_version(conn).attempt(attempt);
    }
    let number =
        |sql| query_first(conn, sql, [], attempt, |row| row.get::<i64>(0).attempt(attempt));
    match number(IS_THERE_POSTGRES)? {
        Some(1) => Ok(number(VERSION)?.unwrap_or(0)),
        _ => Ok(0),
    }
}

/// Returns the schema version of a file.
pub(crate) fn sqlite_version(conn: &Connection) -> rusqlite::Result<i64> {
    // A database whose creator died has no tables at all.
    let there: i64 = conn.query_row(IS_THERE, [], |row| row.get(0))?;
    if there == 0 { Ok(0) } else { conn.query_row(VERSION, [], |row| row.get(0)) }
}

/// Returns the SQL of a migration for an engine.
fn sql_for(conn: &DatabaseConnection, (name, sql): SchemaMigration) -> String {
    if conn.as_sqlite().is_some() {
        return sql.to_owned();
    }
    let own = POSTGRES_FORMS.iter().find(|(known, _)| *known == name);
    dialect::adapt(own.map_or(sql, |(_, own)| own))
}

/// Rejects a schema of any other version.
pub(crate) fn check_current(
    conn: &DatabaseConnection,
    path: &Utf8Path,
) -> Result<(), DatabaseOpenError> {
    let found = check_not_newer(conn, path)?;
    match found {
        SCHEMA_VERSION => Ok(()),
        // Readers treat a database without schema like a missing one.
        0 => Err(DatabaseOpenError::Missing { path: path.to_owned() }),
        _ => Err(DatabaseOpenError::Older { path: path.to_owned(), found, known: SCHEMA_VERSION }),
    }
}

/// Rejects a newer schema, and returns the version found.
pub(crate) fn check_not_newer(
    conn: &DatabaseConnection,
    path: &Utf8Path,
) -> Result<i64, DatabaseOpenError> {
    let found = version(conn).map_err(|error| match error {
        DatabaseError::Sqlite { source, .. } => super::sqlite(path, source),
        other => DatabaseOpenError::Postgres { store: path.to_string(), reason: other.to_string() },
    })?;
    if found > SCHEMA_VERSION {
        return Err(DatabaseOpenError::Newer {
            path: path.to_owned(),
            found,
            known: SCHEMA_VERSION,
        });
    }
    Ok(found)
}

/// Applies the migration after version `found` in its own transaction; returns the new version.
pub(crate) fn apply_next(
    conn: &DatabaseConnection,
    steps: &[SchemaMigration],
    found: i64,
    now: Timestamp,
) -> Result<i64, DatabaseError> {
    let place = usize::try_from(found).expect("a version is a count");
    let (name, _) = steps[place];
    let next = found + 1;
    let attempt = "bring the database up to date";
    let begin = match conn {
        // Exclusive, so that no reader sees half of a migration.
        DatabaseConnection::Sqlite(_) => "BEGIN EXCLUSIVE",
        DatabaseConnection::Postgres(_) => "BEGIN",
    };
    conn.run_batch(begin, "begin a migration")?;
    let applied = conn
        .run_batch(CREATE, attempt)
        .and_then(|()| conn.run_batch(&sql_for(conn, steps[place]), attempt))
        .and_then(|()| conn.execute(RECORD, params![next, name, iso_millis(now)], attempt))
        // The version is recorded in the same transaction, so a crash repeats or skips nothing.
        .and_then(|_| conn.commit());
    if let Err(error) = applied {
        // The rollback fails only if no transaction is open; then there is nothing to undo.
        let _undone = conn.rollback();
        return Err(match error {
            DatabaseError::Sqlite { source, .. } => DatabaseError::Sqlite { attempt, source },
            other => other,
        });
    }
    Ok(next)
}
