//! Publication state of views: the table `views`.

use heeler_model::iso_millis;
use jiff::Timestamp;
use rusqlite::params;

use super::connection::{DatabaseConnection, SqlRow};
use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_all, query_first, sql};

macro_rules! columns {
    () => {
        "path, generation, sha256, pending_sha256, subject"
    };
}

sql! {
    // The generation counts changes, so a change during a publication is not lost.
    MARK = "INSERT INTO views (path) VALUES (?1) \
        ON CONFLICT(path) DO UPDATE SET generation = views.generation + 1";
    MARK_ALL = "UPDATE views SET generation = generation + 1";
    DUE = concat!("SELECT ", columns!(), " FROM views WHERE generation <> published_generation \
        AND path > ?1 ORDER BY path LIMIT ?2");
    DUE_VIEW = concat!("SELECT ", columns!(), " FROM views WHERE path = ?1 \
        AND generation <> published_generation");
    // Generations only grow, so a later file shows this change too.
    IS_IN_PLACE = "SELECT published_generation >= ?2 OR placed_generation >= ?2 FROM views \
        WHERE path = ?1";
    PLACED = "UPDATE views SET placed_generation = ?2 WHERE path = ?1 AND placed_generation < ?2";
    VIEW = concat!("SELECT ", columns!(), " FROM views WHERE path = ?1");
    // The hash of the present file stays known until the new one is in place.
    ANNOUNCE = "UPDATE views SET pending_sha256 = ?2, sha256 = COALESCE(?3, sha256) WHERE path = ?1";
    FORGET_ALL = "UPDATE views SET sha256 = NULL, pending_sha256 = NULL";
    // The generation is the one that was rendered, so a later change keeps the view due.
    PUBLISHED = "UPDATE views SET sha256 = ?3, pending_sha256 = NULL, subject = ?4, \
        published_at = ?5, published_generation = ?2 WHERE path = ?1";
    // A file of herdctl counts as published, so it is not taken for a hand edit.
    ADOPT = "INSERT INTO views (path, generation, published_generation, sha256, published_at) \
        VALUES (?1, 1, 1, ?2, ?3) ON CONFLICT(path) DO UPDATE SET sha256 = excluded.sha256, \
        pending_sha256 = NULL, published_generation = views.generation, \
        published_at = excluded.published_at";
    ALL_PATHS = "SELECT path FROM views WHERE path > ?1 ORDER BY path LIMIT ?2";
}

/// Publication state of a view's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewRow {
    /// Path relative to the state directory.
    pub path: String,
    /// Incremented by each change of the view's content.
    pub generation: i64,
    /// Hash of the last published content; `None` until then, and after the file was removed.
    pub sha256: Option<String>,
    /// Hash of content that may have been published before a crash.
    pub pending_sha256: Option<String>,
    /// The subject of the published file: the session, for an agent's session view.
    pub subject: Option<String>,
}

impl ViewRow {
    /// Returns true if Heeler published a file with this hash.
    pub fn is_published_hash(&self, sha256: &str) -> bool {
        // After a crash it is unknown which of the two is on disk.
        [&self.sha256, &self.pending_sha256].into_iter().flatten().any(|known| known == sha256)
    }
}

impl StateDatabase {
    pub fn view(&self, path: &str) -> Result<Option<ViewRow>, DatabaseError> {
        query_first(&self.conn, VIEW, [path], "read a view's record", read)
    }

    /// Returns a view's record if the view is due.
    pub fn due_view(&self, path: &str) -> Result<Option<ViewRow>, DatabaseError> {
        query_first(&self.conn, DUE_VIEW, [path], "read a due view's record", read)
    }

    /// Returns true if the file shows this generation of a view, or a later one.
    pub fn is_view_in_place(&self, path: &str, generation: i64) -> Result<bool, DatabaseError> {
        let values = params![path, generation];
        let found: Option<bool> =
            query_first(&self.conn, IS_IN_PLACE, values, "read a view's generation", |row| {
                ColumnReader::new("views", row).get()
            })?;
        // A view without a record has nothing to publish.
        Ok(found.unwrap_or(true))
    }

    /// Lists due views by path, after `after`.
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

fn read(row: &SqlRow<'_>) -> Result<ViewRow, DatabaseError> {
    let mut columns = ColumnReader::new("views", row);
    Ok(ViewRow {
        path: columns.get()?,
        generation: columns.get()?,
        sha256: columns.get()?,
        pending_sha256: columns.get()?,
        subject: columns.get()?,
    })
}

pub(crate) fn mark_due(conn: &DatabaseConnection, path: &str) -> Result<(), DatabaseError> {
    execute(conn, MARK, [path], "mark a view").map(|_| ())
}

pub(crate) fn mark_all_due(conn: &DatabaseConnection) -> Result<(), DatabaseError> {
    execute(conn, MARK_ALL, [], "mark all views").map(|_| ())
}

/// Records the hash of the content that is about to be published.
///
/// `present` is the hash of the existing file if Heeler wrote it. Its publication may have been
/// announced and never recorded, so it must remain known until it is replaced.
pub(crate) fn record_pending(
    conn: &DatabaseConnection,
    path: &str,
    sha256: Option<&str>,
    present: Option<&str>,
) -> Result<(), DatabaseError> {
    execute(conn, ANNOUNCE, params![path, sha256, present], "announce a view").map(|_| ())
}

/// Records that the file of a due view is in place, although it may not be durable yet.
pub(crate) fn record_placed(conn: &DatabaseConnection, row: &ViewRow) -> Result<(), DatabaseError> {
    execute(conn, PLACED, params![row.path, row.generation], "record a placed view").map(|_| ())
}

/// Forgets every published hash. A file that was never published does not count as edited by
/// hand.
pub(crate) fn clear_published(conn: &DatabaseConnection) -> Result<(), DatabaseError> {
    execute(conn, FORGET_ALL, [], "forget the published views").map(|_| ())
}

/// Records the published hash; the view stays due if it has changed since.
pub(crate) fn record_published(
    conn: &DatabaseConnection,
    row: &ViewRow,
    sha256: Option<&str>,
    subject: Option<&str>,
    now: Timestamp,
) -> Result<(), DatabaseError> {
    let params = params![row.path, row.generation, sha256, subject, iso_millis(now)];
    execute(conn, PUBLISHED, params, "record a published view").map(|_| ())
}

/// Records an existing file as published.
pub(crate) fn record_existing(
    conn: &DatabaseConnection,
    path: &str,
    sha256: &str,
    now: Timestamp,
) -> Result<(), DatabaseError> {
    execute(conn, ADOPT, params![path, sha256, iso_millis(now)], "adopt a view").map(|_| ())
}
