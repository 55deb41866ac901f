//! Notices to people: the table `notices`.

use heeler_model::iso_millis;
use jiff::Timestamp;
use rusqlite::params;

use super::connection::{DatabaseConnection, SqlRow};
use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_all, query_first, sql};

sql! {
    WAITING = "SELECT id, channel, event, subject, agent, created_at, due_at, in_digest, attempts, \
        last_error, message_id, outcome, ended_at, closed_at, payload FROM notices \
        WHERE ended_at IS NULL ORDER BY created_at, id LIMIT ?1";
    OPEN = "SELECT id, channel, event, subject, agent, created_at, due_at, in_digest, attempts, \
        last_error, message_id, outcome, ended_at, closed_at, payload FROM notices \
        WHERE closed_at IS NULL ORDER BY created_at, id LIMIT ?1";
    NEWEST = "SELECT id, channel, event, subject, agent, created_at, due_at, in_digest, attempts, \
        last_error, message_id, outcome, ended_at, closed_at, payload FROM notices \
        ORDER BY created_at DESC, id DESC LIMIT ?1";
    LAST_WITH_OUTCOME = "SELECT id, channel, event, subject, agent, created_at, due_at, in_digest, \
        attempts, last_error, message_id, outcome, ended_at, closed_at, payload FROM notices \
        WHERE channel = ?1 AND outcome = ?2 ORDER BY ended_at DESC LIMIT 1";
    COUNT_WAITING = "SELECT COUNT(*) FROM (SELECT 1 FROM notices WHERE ended_at IS NULL LIMIT ?1) AS waiting";
    COUNT_SINCE = "SELECT COUNT(*) FROM (SELECT 1 FROM notices \
        WHERE channel = ?1 AND created_at >= ?2 LIMIT ?3) AS found";
    INSERT = "INSERT INTO notices (id, channel, event, subject, agent, created_at, due_at, in_digest, \
        attempts, last_error, message_id, outcome, ended_at, closed_at, payload) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15) \
        ON CONFLICT(id) DO NOTHING";
    // A notice that has ended keeps its first outcome.
    END = "UPDATE notices SET ended_at = ?2, outcome = ?3, last_error = ?4, \
        message_id = COALESCE(?5, message_id), attempts = attempts + 1 \
        WHERE id = ?1 AND ended_at IS NULL";
    POSTPONE = "UPDATE notices SET attempts = attempts + 1, last_error = ?2, due_at = ?3 \
        WHERE id = ?1 AND ended_at IS NULL";
    CLOSE = "UPDATE notices SET closed_at = ?2 WHERE id = ?1 AND closed_at IS NULL";
    PRUNE = "DELETE FROM notices WHERE created_at < ?1 AND ended_at IS NOT NULL \
        AND closed_at IS NOT NULL";
}

/// A notice to people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoticeRecord {
    /// Follows from the event and the channel.
    pub id: String,
    /// Name of the channel in the config; for Web Push with the ID of the browser, behind a slash.
    pub channel: String,
    /// Kind of event.
    pub event: String,
    /// Object of the event.
    pub subject: String,
    /// Agent that is concerned; `None` for the fleet.
    pub agent: Option<String>,
    pub created_at: Timestamp,
    /// Not sent before this time.
    pub due_at: Timestamp,
    /// May be sent together with others.
    pub in_digest: bool,
    /// Number of attempts.
    pub attempts: i64,
    /// Error of the last attempt, or the reason why it was not sent.
    pub last_error: Option<String>,
    /// ID of the message, if its channel gives one.
    pub message_id: Option<String>,
    /// `sent`, `failed` or `dropped`; `None` while it waits.
    pub outcome: Option<String>,
    pub ended_at: Option<Timestamp>,
    /// Time at which nothing was left to do about the subject.
    pub closed_at: Option<Timestamp>,
    /// Content as JSON.
    pub payload: String,
}

impl NoticeRecord {
    /// Returns the name of the channel in the config.
    pub fn channel_name(&self) -> &str {
        self.channel.split('/').next().unwrap_or_default()
    }

    /// Returns the ID of the browser that receives it, if the channel is Web Push.
    pub fn browser(&self) -> Option<&str> {
        self.channel.split_once('/').map(|(_, browser)| browser)
    }
}

/// End of a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoticeEnd<'a> {
    /// `sent`, `failed` or `dropped`.
    pub outcome: &'static str,
    pub reason: Option<&'a str>,
    pub message_id: Option<&'a str>,
}

impl StateDatabase {
    /// Lists the notices that are not sent yet, oldest first.
    pub fn waiting_notices(&self, limit: usize) -> Result<Vec<NoticeRecord>, DatabaseError> {
        query_all(&self.conn, WAITING, [row_limit(limit)], "list waiting notices", read)
    }

    /// Lists the notices with a subject about which something is left to do, oldest first.
    pub fn open_notices(&self, limit: usize) -> Result<Vec<NoticeRecord>, DatabaseError> {
        query_all(&self.conn, OPEN, [row_limit(limit)], "list open notices", read)
    }

    /// Lists the newest notices, newest first.
    pub fn newest_notices(&self, limit: usize) -> Result<Vec<NoticeRecord>, DatabaseError> {
        query_all(&self.conn, NEWEST, [row_limit(limit)], "list notices", read)
    }

    /// Returns the notice of a channel that ended last with an outcome.
    pub fn last_notice(
        &self,
        channel: &str,
        outcome: &str,
    ) -> Result<Option<NoticeRecord>, DatabaseError> {
        let params = params![channel, outcome];
        query_first(&self.conn, LAST_WITH_OUTCOME, params, "read the last notice", read)
    }

    /// Returns the number of notices that wait, counted up to a limit.
    pub fn count_waiting_notices(&self, limit: usize) -> Result<usize, DatabaseError> {
        let count = query_first(
            &self.conn,
            COUNT_WAITING,
            [row_limit(limit)],
            "count waiting notices",
            read_count,
        )?;
        Ok(usize::try_from(count.unwrap_or(0)).unwrap_or(usize::MAX))
    }

    /// Returns the number of notices of a channel since a time, counted up to a limit.
    pub fn count_notices_since(
        &self,
        channel: &str,
        since: Timestamp,
        limit: usize,
    ) -> Result<usize, DatabaseError> {
        let params = params![channel, iso_millis(since), row_limit(limit)];
        let count = query_first(&self.conn, COUNT_SINCE, params, "count notices", read_count)?;
        Ok(usize::try_from(count.unwrap_or(0)).unwrap_or(usize::MAX))
    }
}

fn row_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn read_count(row: &SqlRow<'_>) -> Result<i64, DatabaseError> {
    ColumnReader::new("notices", row).get()
}

fn read(row: &SqlRow<'_>) -> Result<NoticeRecord, DatabaseError> {
    let mut columns = ColumnReader::new("notices", row);
    Ok(NoticeRecord {
        id: columns.get()?,
        channel: columns.get()?,
        event: columns.get()?,
        subject: columns.get()?,
        agent: columns.get()?,
        created_at: columns.time()?,
        due_at: columns.time()?,
        in_digest: columns.flag()?,
        attempts: columns.get()?,
        last_error: columns.get()?,
        message_id: columns.get()?,
        outcome: columns.get()?,
        ended_at: columns.optional_time()?,
        closed_at: columns.optional_time()?,
        payload: columns.get()?,
    })
}

/// Inserts; returns true if the ID was new.
pub(crate) fn insert(
    conn: &DatabaseConnection,
    notice: &NoticeRecord,
) -> Result<bool, DatabaseError> {
    let params = params![
        notice.id,
        notice.channel,
        notice.event,
        notice.subject,
        notice.agent,
        iso_millis(notice.created_at),
        iso_millis(notice.due_at),
        i64::from(notice.in_digest),
        notice.attempts,
        notice.last_error,
        notice.message_id,
        notice.outcome,
        notice.ended_at.map(iso_millis),
        notice.closed_at.map(iso_millis),
        notice.payload,
    ];
    Ok(execute(conn, INSERT, params, "insert a notice")? == 1)
}

/// Records the end of a notice; returns true if it waited.
pub(crate) fn end(
    conn: &DatabaseConnection,
    id: &str,
    end: NoticeEnd<'_>,
    now: Timestamp,
) -> Result<bool, DatabaseError> {
    let NoticeEnd { outcome, reason, message_id } = end;
    let params = params![id, iso_millis(now), outcome, reason, message_id];
    Ok(execute(conn, END, params, "end a notice")? == 1)
}

pub(crate) fn postpone(
    conn: &DatabaseConnection,
    id: &str,
    error: &str,
    until: Timestamp,
) -> Result<(), DatabaseError> {
    let params = params![id, error, iso_millis(until)];
    execute(conn, POSTPONE, params, "postpone a notice").map(|_| ())
}

pub(crate) fn close(
    conn: &DatabaseConnection,
    id: &str,
    now: Timestamp,
) -> Result<(), DatabaseError> {
    execute(conn, CLOSE, params![id, iso_millis(now)], "close a notice").map(|_| ())
}

pub(crate) fn prune(conn: &DatabaseConnection, before: Timestamp) -> Result<(), DatabaseError> {
    execute(conn, PRUNE, params![iso_millis(before)], "remove old notices").map(|_| ())
}
