//! Which views are due, and what was last published: the table `views`.

use heeler_model::iso_millis;
use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_all, query_first, sql};

macro_rules! columns {
    () => {
        "path, generation, sha256, pending_sha256, subject"
    };
}

sql! {
    MARK = "INSERT INTO views (path) VALUES (?1) \
        ON CONFLICT(path) DO UPDATE SET generation = views.generation + 1";
    MARK_ALL = "UPDATE views SET generation = generation + 1";
    DUE = concat!("SELECT ", columns!(), " FROM views WHERE generation <> published_generation \
        AND path > ?1 ORDER BY path LIMIT ?2");
    VIEW = concat!("SELECT ", columns!(), " FROM views WHERE path = ?1");
    ANNOUNCE = "UPDATE views SET pending_sha256 = ?2, sha256 = COALESCE(?3, sha256) WHERE path = ?1";
    FORGET_ALL = "UPDATE views SET sha256 = NULL, pending_sha256 = NULL";
    PUBLISHED = "UPDATE views SET sha256 = ?3, pending_sha256 = NULL, subject = ?4, \
        published_at = ?5, published_generation = ?2 WHERE path = ?1";
    ADOPT = "INSERT INTO views (path, generation, published_generation, sha256, published_at) \
        VALUES (?1, 1, 1, ?2, ?3) ON CONFLICT(path) DO UPDATE SET sha256 = excluded.sha256, \
        pending_sha256 = NULL, published_generation = views.generation, \
        published_at = excluded.published_at";
    ALL_PATHS = "SELECT path FROM views WHERE path > ?1 ORDER BY path LIMIT ?2";
}

/// What is known of a view's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewRow {
    /// The file, relative to the state directory.
    pub path: String,
    /// Grows with each change of what it shows.
    pub generation: i64,
    /// The hash of what was last published; `None` until then, and after the file was taken away.
    pub sha256: Option<String>,
    /// The hash of what may have been published when a crash came between.
    pub pending_sha256: Option<String>,
    /// What the published file was about: the session, for an agent's own.
    pub subject: Option<String>,
}

impl ViewRow {
    /// Says whether a file with this hash is ours.
    pub fn is_published_hash(&self, sha256: &str) -> bool {
        [&self.sha256, &self.pending_sha256].into_iter().flatten().any(|known| known == sha256)
    }
}

impl StateDatabase {
    /// Returns what is known of a view's file.
    pub fn view(&self, path: &str) -> Result<Option<ViewRow>, DatabaseError> {
        query_first(&self.conn, VIEW, [path], "read a view's record", read)
    }

    /// Lists views whose file is behind the database, by path, after `after`.
    pub fn due_views(&self, after: &str, limit: usize) -> Result<Vec<ViewRow>, DatabaseError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        query_all(&self.conn, DUE, params![after, limit], "list due views", read)
    }

    /// Lists the paths of all views, after `after`.
    pub fn view_paths(&self, after: &str, limit: usize) -> Result<Vec<String>, DatabaseError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        query_all(&self.conn, ALL_PATHS, params![after, limit], "list views", |row| {
            ColumnReader::new("views", row).get()
        })
    }
}

fn read(row: &Row<'_>) -> Result<ViewRow, DatabaseError> {
    let mut columns = ColumnReader::new("views", row);
    Ok(ViewRow {
        path: columns.get()?,
        generation: columns.get()?,
        sha256: columns.get()?,
        pending_sha256: columns.get()?,
        subject: columns.get()?,
    })
}

/// Marks a view as due.
pub(crate) fn mark_due(conn: &Connection, path: &str) -> Result<(), DatabaseError> {
    execute(conn, MARK, [path], "mark a view").map(|_| ())
}

/// Marks every view as due.
pub(crate) fn mark_all_due(conn: &Connection) -> Result<(), DatabaseError> {
    execute(conn, MARK_ALL, [], "mark all views").map(|_| ())
}

/// Records what is about to be published.
///
/// `present` is the hash of the file that is there, if it is ours: it may be one that was announced
/// and never recorded, and must stay known as ours until it is replaced.
pub(crate) fn record_pending(
    conn: &Connection,
    path: &str,
    sha256: Option<&str>,
    present: Option<&str>,
) -> Result<(), DatabaseError> {
    execute(conn, ANNOUNCE, params![path, sha256, present], "announce a view").map(|_| ())
}

/// Takes no file for one of ours any more: what was never published was not edited since.
pub(crate) fn clear_published(conn: &Connection) -> Result<(), DatabaseError> {
    execute(conn, FORGET_ALL, [], "forget the published views").map(|_| ())
}

/// Records what was published; the view stays due if it has changed since.
pub(crate) fn record_published(
    conn: &Connection,
    row: &ViewRow,
    sha256: Option<&str>,
    subject: Option<&str>,
    now: Timestamp,
) -> Result<(), DatabaseError> {
    let params = params![row.path, row.generation, sha256, subject, iso_millis(now)];
    execute(conn, PUBLISHED, params, "record a published view").map(|_| ())
}

/// Takes a file that is already there as published.
pub(crate) fn record_existing(
    conn: &Connection,
    path: &str,
    sha256: &str,
    now: Timestamp,
) -> Result<(), DatabaseError> {
    execute(conn, ADOPT, params![path, sha256, iso_millis(now)], "adopt a view").map(|_| ())
}
