//! Effects: actions that follow from committed changes. Each is performed at least once.

use heeler_model::hook::JOB_END_EFFECT_KIND;
use heeler_model::{Job, JobId, iso_millis};
use jiff::Timestamp;
use rusqlite::params;

use super::connection::{DatabaseConnection, SqlRow};
use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_all, query_first, sql};

sql! {
    UNDONE = "SELECT id, kind, key, payload, created_at, attempts, last_error FROM effects \
        WHERE done_at IS NULL ORDER BY created_at, id LIMIT ?1";
    UNDONE_OF_KIND = "SELECT id, kind, key, payload, created_at, attempts, last_error FROM effects \
        WHERE done_at IS NULL AND kind = ?1 ORDER BY created_at, id LIMIT ?2";
    COUNT_OF_KIND = "SELECT COUNT(*) FROM (SELECT 1 FROM effects \
        WHERE done_at IS NULL AND kind = ?1 LIMIT ?2) AS pending";
    // Effects without a due time come first. The expression must match the index word for word.
    DUE = "SELECT id, kind, key, payload, created_at, attempts, last_error FROM effects \
        WHERE done_at IS NULL AND COALESCE(due_at, '') <= ?1 \
        ORDER BY COALESCE(due_at, ''), created_at, id LIMIT ?2";
    NEXT = "SELECT id, due_at FROM effects WHERE done_at IS NULL \
        ORDER BY COALESCE(due_at, ''), created_at, id LIMIT 1";
    // Ids of hooks start with the job's id and a dot. `/` (0x2F) is the character after `.` (0x2E).
    FAILED = "SELECT id, kind, key, payload, created_at, attempts, last_error, \
        done_at IS NOT NULL FROM effects \
        WHERE id > ?1 || '.' AND id < ?1 || '/' AND kind = ?2 AND last_error IS NOT NULL ORDER BY id";
    INSERT = "INSERT INTO effects (id, kind, key, payload, created_at, attempts, last_error) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT(id) DO NOTHING";
    // Only the payload: the number of attempts must not start again.
    PUT = "INSERT INTO effects (id, kind, key, payload, created_at, attempts, last_error) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT(id) DO UPDATE SET \
        payload = excluded.payload";
    // An effect that was done or given up keeps its first result.
    FINISH = "UPDATE effects SET done_at = ?2, attempts = attempts + 1, last_error = NULL \
        WHERE id = ?1 AND done_at IS NULL";
    GIVE_UP = "UPDATE effects SET done_at = ?2, attempts = attempts + 1, last_error = ?3 \
        WHERE id = ?1 AND done_at IS NULL";
    FAIL = "UPDATE effects SET attempts = attempts + 1, last_error = ?2 \
        WHERE id = ?1 AND done_at IS NULL";
    POSTPONE = "UPDATE effects SET attempts = attempts + 1, last_error = ?2, due_at = ?3 \
        WHERE id = ?1 AND done_at IS NULL";
}

/// An action that follows from a committed change, such as a hook or a notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectRecord {
    /// The event's id. It stays the same if the effect is performed twice.
    pub id: String,
    /// Kind of action.
    pub kind: String,
    /// Object of the action.
    pub key: String,
    /// Details as JSON.
    pub payload: String,
    pub created_at: Timestamp,
    /// Number of attempts.
    pub attempts: i64,
    /// Error of the last attempt.
    pub last_error: Option<String>,
}

impl EffectRecord {
    /// Creates the effect of a job's end that is recorded without a config: the next daemon selects
    /// the hooks.
    pub fn job_end(job: &Job, now: Timestamp) -> EffectRecord {
        let at = job.head.finished_at.unwrap_or(now).as_millisecond();
        EffectRecord {
            id: format!("{}.{at}.end", job.head.id),
            kind: JOB_END_EFFECT_KIND.to_owned(),
            key: job.head.id.to_string(),
            payload: "{}".to_owned(),
            created_at: now,
            attempts: 0,
            last_error: None,
        }
    }
}

impl StateDatabase {
    /// Lists the pending effects, oldest first.
    pub fn pending_effects(&self, limit: usize) -> Result<Vec<EffectRecord>, DatabaseError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        query_all(&self.conn, UNDONE, [limit], "list undone effects", read)
    }

    /// Lists the pending effects of a kind, oldest first.
    pub fn pending_effects_of_kind(
        &self,
        kind: &str,
        limit: usize,
    ) -> Result<Vec<EffectRecord>, DatabaseError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        query_all(&self.conn, UNDONE_OF_KIND, params![kind, limit], "list undone effects", read)
    }

    /// Returns the number of pending effects of a kind, counted up to a limit.
    pub fn count_pending_effects(&self, kind: &str, limit: usize) -> Result<usize, DatabaseError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let count = query_first(
            &self.conn,
            COUNT_OF_KIND,
            params![kind, limit],
            "count undone effects",
            |row| ColumnReader::new("effects", row).get::<i64>(),
        )?;
        Ok(usize::try_from(count.unwrap_or(0)).unwrap_or(usize::MAX))
    }

    /// Lists the effects that are due: those never postponed first, oldest first, then the others.
    pub fn due_effects(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<EffectRecord>, DatabaseError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        query_all(&self.conn, DUE, params![iso_millis(now), limit], "list due effects", read)
    }

    /// Lists the failed effects of a kind that follow from a job. The flag is true if the effect
    /// was given up; otherwise it is retried.
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

    /// Returns the time of the next effect; the Unix epoch means immediately.
    pub fn next_effect_at(&self) -> Result<Option<Timestamp>, DatabaseError> {
        query_first(&self.conn, NEXT, [], "look for the next effect", |row| {
            let mut columns = ColumnReader::new("effects", row);
            // The id is first in the row, for the message about a damaged one.
            let _id: String = columns.get()?;
            Ok(columns.optional_time()?.unwrap_or(Timestamp::UNIX_EPOCH))
        })
    }
}

fn read(row: &SqlRow<'_>) -> Result<EffectRecord, DatabaseError> {
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

/// Inserts; returns true if the id was new.
pub(crate) fn insert(
    conn: &DatabaseConnection,
    effect: &EffectRecord,
) -> Result<bool, DatabaseError> {
    let EffectRecord { id, kind, key, payload, created_at, attempts, last_error } = effect;
    let params = params![id, kind, key, payload, iso_millis(*created_at), attempts, last_error];
    Ok(execute(conn, INSERT, params, "insert an effect")? == 1)
}

/// Inserts, or replaces the payload of an existing effect.
pub(crate) fn put(conn: &DatabaseConnection, effect: &EffectRecord) -> Result<(), DatabaseError> {
    let EffectRecord { id, kind, key, payload, created_at, attempts, last_error } = effect;
    let params = params![id, kind, key, payload, iso_millis(*created_at), attempts, last_error];
    execute(conn, PUT, params, "write an effect").map(|_| ())
}

/// Marks an effect as done; returns true if it was pending.
pub(crate) fn finish(
    conn: &DatabaseConnection,
    id: &str,
    now: Timestamp,
) -> Result<bool, DatabaseError> {
    Ok(execute(conn, FINISH, params![id, iso_millis(now)], "finish an effect")? == 1)
}

/// Marks an effect as given up, with the reason; returns true if it was pending.
pub(crate) fn give_up(
    conn: &DatabaseConnection,
    id: &str,
    error: &str,
    now: Timestamp,
) -> Result<bool, DatabaseError> {
    let params = params![id, iso_millis(now), error];
    Ok(execute(conn, GIVE_UP, params, "give an effect up")? == 1)
}

pub(crate) fn fail(conn: &DatabaseConnection, id: &str, error: &str) -> Result<(), DatabaseError> {
    execute(conn, FAIL, params![id, error], "record a failed effect").map(|_| ())
}

pub(crate) fn postpone(
    conn: &DatabaseConnection,
    id: &str,
    error: &str,
    until: Timestamp,
) -> Result<(), DatabaseError> {
    let params = params![id, error, iso_millis(until)];
    execute(conn, POSTPONE, params, "postpone an effect").map(|_| ())
}
