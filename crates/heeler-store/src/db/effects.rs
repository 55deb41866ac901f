//! Effects: what must still happen because of what was committed. Each happens at least once.

use heeler_model::{JobId, iso_millis};
use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_all, query_first, sql};

sql! {
    UNDONE = "SELECT id, kind, key, payload, created_at, attempts, last_error FROM effects \
        WHERE done_at IS NULL ORDER BY created_at, id LIMIT ?1";
    // What is due at once comes first. The expression is the index's, word for word.
    DUE = "SELECT id, kind, key, payload, created_at, attempts, last_error FROM effects \
        WHERE done_at IS NULL AND COALESCE(due_at, '') <= ?1 \
        ORDER BY COALESCE(due_at, ''), created_at, id LIMIT ?2";
    NEXT = "SELECT id, due_at FROM effects WHERE done_at IS NULL \
        ORDER BY COALESCE(due_at, ''), created_at, id LIMIT 1";
    // Ids of hooks begin with their job's: all between `job.` and what follows the dot.
    FAILED = "SELECT id, kind, key, payload, created_at, attempts, last_error, \
        done_at IS NOT NULL FROM effects \
        WHERE id > ?1 || '.' AND id < ?1 || '/' AND kind = ?2 AND last_error IS NOT NULL ORDER BY id";
    INSERT = "INSERT INTO effects (id, kind, key, payload, created_at, attempts, last_error) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT(id) DO NOTHING";
    PUT = "INSERT INTO effects (id, kind, key, payload, created_at, attempts, last_error) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT(id) DO UPDATE SET \
        payload = excluded.payload";
    FINISH = "UPDATE effects SET done_at = ?2, attempts = attempts + 1, last_error = NULL \
        WHERE id = ?1 AND done_at IS NULL";
    GIVE_UP = "UPDATE effects SET done_at = ?2, attempts = attempts + 1, last_error = ?3 \
        WHERE id = ?1 AND done_at IS NULL";
    FAIL = "UPDATE effects SET attempts = attempts + 1, last_error = ?2 \
        WHERE id = ?1 AND done_at IS NULL";
    POSTPONE = "UPDATE effects SET attempts = attempts + 1, last_error = ?2, due_at = ?3 \
        WHERE id = ?1 AND done_at IS NULL";
}

/// Something to be done because of a committed change: a hook, a notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectRecord {
    /// The event's id; whoever acts on it twice sees the same one.
    pub id: String,
    /// What is to be done.
    pub kind: String,
    /// On what.
    pub key: String,
    /// The details, JSON.
    pub payload: String,
    /// When it was decided.
    pub created_at: Timestamp,
    /// How often it was tried.
    pub attempts: i64,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
}

impl StateDatabase {
    /// Lists what is still to be done, oldest first.
    pub fn pending_effects(&self, limit: usize) -> Result<Vec<EffectRecord>, DatabaseError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        query_all(&self.conn, UNDONE, [limit], "list undone effects", read)
    }

    /// Lists what is to be done by now: what was never put off, oldest first, then the rest.
    pub fn due_effects(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<EffectRecord>, DatabaseError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        query_all(&self.conn, DUE, params![iso_millis(now), limit], "list due effects", read)
    }

    /// Lists the effects of a kind that follow from a job and failed, each with whether it was given
    /// up; else it is tried again.
    pub fn failed_effects(
        &self,
        job: &JobId,
        kind: &str,
    ) -> Result<Vec<(EffectRecord, bool)>, DatabaseError> {
        let params = params![job.as_str(), kind];
        query_all(&self.conn, FAILED, params, "list failed effects", |row| {
            let mut columns = ColumnReader::new("effects", row);
            Ok((read_next(&mut columns)?, columns.flag()?))
        })
    }

    /// Returns when something is next to be done; the epoch stands for at once.
    pub fn next_effect_at(&self) -> Result<Option<Timestamp>, DatabaseError> {
        query_first(&self.conn, NEXT, [], "look for the next effect", |row| {
            let mut columns = ColumnReader::new("effects", row);
            let _id: String = columns.get()?;
            Ok(columns.optional_time()?.unwrap_or(Timestamp::UNIX_EPOCH))
        })
    }
}

fn read(row: &Row<'_>) -> Result<EffectRecord, DatabaseError> {
    read_next(&mut ColumnReader::new("effects", row))
}

fn read_next(columns: &mut ColumnReader<'_, '_>) -> Result<EffectRecord, DatabaseError> {
    Ok(EffectRecord {
        id: columns.get()?,
        kind: columns.get()?,
        key: columns.get()?,
        payload: columns.get()?,
        created_at: columns.time()?,
        attempts: columns.get()?,
        last_error: columns.get()?,
    })
}

/// Inserts and says whether the id was new.
pub(crate) fn insert(conn: &Connection, effect: &EffectRecord) -> Result<bool, DatabaseError> {
    let EffectRecord { id, kind, key, payload, created_at, attempts, last_error } = effect;
    let params = params![id, kind, key, payload, iso_millis(*created_at), attempts, last_error];
    Ok(execute(conn, INSERT, params, "insert an effect")? == 1)
}

/// Inserts, or replaces the payload of what is there.
pub(crate) fn put(conn: &Connection, effect: &EffectRecord) -> Result<(), DatabaseError> {
    let EffectRecord { id, kind, key, payload, created_at, attempts, last_error } = effect;
    let params = params![id, kind, key, payload, iso_millis(*created_at), attempts, last_error];
    execute(conn, PUT, params, "write an effect").map(|_| ())
}

/// Marks as done and says whether it was not yet.
pub(crate) fn finish(conn: &Connection, id: &str, now: Timestamp) -> Result<bool, DatabaseError> {
    Ok(execute(conn, FINISH, params![id, iso_millis(now)], "finish an effect")? == 1)
}

/// Marks as done with the reason why it never will be, and says whether it was not yet.
pub(crate) fn give_up(
    conn: &Connection,
    id: &str,
    error: &str,
    now: Timestamp,
) -> Result<bool, DatabaseError> {
    let params = params![id, iso_millis(now), error];
    Ok(execute(conn, GIVE_UP, params, "give an effect up")? == 1)
}

pub(crate) fn fail(conn: &Connection, id: &str, error: &str) -> Result<(), DatabaseError> {
    execute(conn, FAIL, params![id, error], "record a failed effect").map(|_| ())
}

pub(crate) fn postpone(
    conn: &Connection,
    id: &str,
    error: &str,
    until: Timestamp,
) -> Result<(), DatabaseError> {
    let params = params![id, error, iso_millis(until)];
    execute(conn, POSTPONE, params, "put off an effect").map(|_| ())
}
