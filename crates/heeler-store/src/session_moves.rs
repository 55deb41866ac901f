//! Sessions that move to another host.
//!
//! The leader inserts a row, the source ships a bundle in parts, the target places its files, and the
//! leader records the end. Each step is one conditional change of the row, so a repeated or late one
//! has no effect. Start at [`StateDatabase::session_move`] and [`HostLink::own_moves`].

use heeler_model::session_move::SessionMoveState;
use heeler_model::{AgentSessionId, NativeSessionPosition, RunId, SessionId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::db::database_error::failed;
use crate::db::postgres::{HOST_CHANNEL, LEAD_CHANNEL, quote};
use crate::db::{DatabaseError, StateDatabase};
use crate::hex::{from_hex, hex};
use crate::host_link::HostLink;
use crate::host_row::{flag, number, text};
use crate::session_move_table::{DUE_MOVE, OPEN_MOVE, SESSION_MOVE_SECONDS_MAX, moves_of};

/// Most bytes of a session that moves to another host.
pub const SESSION_MOVE_BYTES_MAX: u64 = 256 << 20;

/// Most bytes of a part of a bundle.
pub const MOVE_PART_BYTES: usize = 1 << 20;

/// Longest reason for the end of a move that a host may write.
const REASON_CHARS_MAX: usize = 1_000;

/// Most moves that are listed.
const MOVES_MAX: usize = 100;

const COLUMNS: &str = "session, id, native, source, target, state, after_run, bytes, parts, \
    attempt, native_bytes, report, reason, until < clock_timestamp(), \
    GREATEST(CAST(EXTRACT(EPOCH FROM until - clock_timestamp()) AS BIGINT), 0)";

/// Move of a session to another host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionMoveRow {
    pub session: SessionId,
    /// Identifies the move.
    pub id: Uuid,
    pub native: AgentSessionId,
    pub source: String,
    pub target: String,
    pub state: SessionMoveState,
    /// Last run of the session when the move began.
    pub after_run: String,
    /// Bytes of the bundle that are in the database.
    pub bytes: u64,
    /// Number of parts of the bundle, once it is complete.
    pub parts: i64,
    /// Identifies the bundle, once it is complete.
    pub attempt: Option<Uuid>,
    /// Length of the source's native file; `None` unless it is Claude's.
    pub native_bytes: Option<u64>,
    /// Files that the target has placed.
    pub report: Option<SessionMoveReport>,
    /// Reason for which the session stayed on its source.
    pub reason: Option<String>,
    /// True if its time limit is over.
    pub is_overdue: bool,
    /// Seconds until its time limit.
    pub seconds_left: u64,
}

/// Files that the target of a move has placed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionMoveReport {
    /// End of the native file, if it is not that of the source.
    #[serde(default)]
    pub position: Option<NativeSessionPosition>,
}

/// A move that is about to begin.
#[derive(Debug, Clone, Copy)]
pub struct NewSessionMove<'m> {
    pub session: &'m SessionId,
    pub id: Uuid,
    pub native: &'m AgentSessionId,
    pub source: &'m str,
    pub target: &'m str,
    pub after_run: RunId,
    /// The person who asked for it.
    pub by: &'m str,
}

/// A complete bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShippedBundle {
    pub attempt: Uuid,
    pub parts: i64,
    /// Length of the source's native file; `None` unless it is Claude's.
    pub native_bytes: Option<u64>,
}

impl SessionMoveRow {
    /// Returns the host that has the session.
    pub fn host(&self) -> &str {
        match self.state {
            SessionMoveState::Done => &self.target,
            _ => &self.source,
        }
    }

    fn of_row(row: &[Option<String>]) -> Option<SessionMoveRow> {
        let length = |at| text(row, at).and_then(|text| text.parse().ok());
        Some(SessionMoveRow {
            session: text(row, 0)?.parse().ok()?,
            id: text(row, 1)?.parse().ok()?,
            native: text(row, 2)?.parse().ok()?,
            source: text(row, 3)?,
            target: text(row, 4)?,
            state: text(row, 5)?.parse().ok()?,
            after_run: text(row, 6)?,
            bytes: number(row, 7).unsigned_abs(),
            parts: number(row, 8),
            attempt: text(row, 9).and_then(|text| text.parse().ok()),
            native_bytes: length(10),
            report: text(row, 11).and_then(|text| serde_json::from_str(&text).ok()),
            reason: text(row, 12),
            is_overdue: flag(row, 13),
            seconds_left: number(row, 14).unsigned_abs(),
        })
    }
}

impl StateDatabase {
    fn move_query(
        &self,
        attempt: &'static str,
        sql: &str,
    ) -> Result<Vec<Vec<Option<String>>>, DatabaseError> {
        // A fleet with one machine has no moves.
        let Some(conn) = self.conn.as_postgres() else { return Ok(Vec::new()) };
        conn.simple_query(sql).map_err(|source| failed(attempt, source))
    }

    fn select_moves(&self, condition: &str) -> Result<Vec<SessionMoveRow>, DatabaseError> {
        let attempt = "read the moves of sessions";
        let is_there =
            self.move_query(attempt, "SELECT to_regclass('session_moves') IS NOT NULL")?;
        if !is_there.first().is_some_and(|row| flag(row, 0)) {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT {COLUMNS} FROM session_moves WHERE {condition} \
             ORDER BY created_at DESC, session LIMIT {MOVES_MAX}"
        );
        let rows = self.move_query(attempt, &sql)?;
        Ok(rows.iter().filter_map(|row| SessionMoveRow::of_row(row)).collect())
    }

    /// Returns the last move of a session.
    pub fn session_move(
        &self,
        session: &SessionId,
    ) -> Result<Option<SessionMoveRow>, DatabaseError> {
        Ok(self.select_moves(&format!("session = {}", quote(session.as_str())))?.pop())
    }

    /// Returns the last move of a session by its native ID.
    pub fn native_session_move(
        &self,
        native: &AgentSessionId,
    ) -> Result<Option<SessionMoveRow>, DatabaseError> {
        Ok(self.select_moves(&format!("native = {}", quote(native.as_str())))?.into_iter().next())
    }

    /// Lists the open moves from or to a host, newest first.
    pub fn moves_of_host(&self, host: &str) -> Result<Vec<SessionMoveRow>, DatabaseError> {
        let host = quote(host);
        self.select_moves(&format!("{OPEN_MOVE} AND (source = {host} OR target = {host})"))
    }

    /// Lists the moves that the leader is to look at.
    pub fn due_moves(&self) -> Result<Vec<SessionMoveRow>, DatabaseError> {
        self.select_moves(DUE_MOVE)
    }

    /// Records a move, unless the session has an open one. Part of the writer's transaction.
    pub(crate) fn begin_session_move(&self, new: &NewSessionMove<'_>) -> Result<(), DatabaseError> {
        let NewSessionMove { session, id, native, source, target, after_run, by } = *new;
        let sql = format!(
            "INSERT INTO session_moves AS known (session, id, native, source, target, state, \
             after_run, begun_by, created_at, until, bytes, parts) VALUES ({}, {}, {}, {}, {}, \
             'packing', {}, {}, clock_timestamp(), \
             clock_timestamp() + interval '{SESSION_MOVE_SECONDS_MAX} seconds', 0, 0) \
             ON CONFLICT (session) DO UPDATE SET id = excluded.id, native = excluded.native, \
             source = excluded.source, target = excluded.target, state = excluded.state, \
             after_run = excluded.after_run, begun_by = excluded.begun_by, \
             created_at = excluded.created_at, until = excluded.until, bytes = 0, parts = 0, \
             attempt = NULL, native_bytes = NULL, report = NULL, reason = NULL \
             WHERE NOT known.{OPEN_MOVE}; NOTIFY {HOST_CHANNEL}",
            quote(session.as_str()),
            quote(&id.to_string()),
            quote(native.as_str()),
            quote(source),
            quote(target),
            quote(&after_run.to_string()),
            quote(by),
        );
        self.move_query("begin the move of a session", &sql).map(drop)
    }

    /// Ends an open move: the session stays on its source. Part of the writer's transaction.
    pub(crate) fn end_session_move(&self, id: Uuid, reason: &str) -> Result<(), DatabaseError> {
        self.move_query("end the move of a session", &end_sql(id, OPEN_MOVE, reason)).map(drop)
    }

    /// Records that a session is on the target, which ships its transcript (`log`) from now on. Returns
    /// false if the target has not placed it. Part of the writer's transaction.
    pub(crate) fn finish_session_move(
        &self,
        moved: &SessionMoveRow,
        log: &str,
    ) -> Result<bool, DatabaseError> {
        let (id, session) = (quote(&moved.id.to_string()), quote(moved.session.as_str()));
        let sql = format!(
            "UPDATE session_moves SET state = 'done' WHERE id = {id} AND state = 'placed' \
             RETURNING 1"
        );
        let attempt = "record the move of a session";
        if self.move_query(attempt, &sql)?.is_empty() {
            return Ok(false);
        }
        let target = quote(&moved.target);
        let sql = format!(
            "UPDATE shared_files SET host = {target}, taken_at = length \
             WHERE path = {} AND host <> {target}; \
             DELETE FROM session_move_parts WHERE session = {session}",
            quote(log)
        );
        self.move_query(attempt, &sql)?;
        Ok(true)
    }
}

fn end_sql(id: Uuid, condition: &str, reason: &str) -> String {
    let reason: String = reason.chars().take(REASON_CHARS_MAX).collect();
    format!(
        "WITH ended AS (UPDATE session_moves SET state = 'ended', reason = {} \
         WHERE id = {} AND {condition} RETURNING session) \
         DELETE FROM session_move_parts WHERE session IN (SELECT session FROM ended)",
        quote(&reason),
        quote(&id.to_string())
    )
}

impl HostLink {
    /// Lists the moves in which this host has something to do, oldest first.
    pub fn own_moves(&self) -> Result<Vec<SessionMoveRow>, DatabaseError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM session_moves WHERE {} ORDER BY created_at, session \
             LIMIT {MOVES_MAX}",
            moves_of(self.host_name())
        );
        let rows = self.query("read the moves of sessions", &sql)?;
        Ok(rows.iter().filter_map(|row| SessionMoveRow::of_row(row)).collect())
    }

    /// Ships a part of a bundle. `number` counts from 0. Returns false if the move is over.
    pub fn send_move_part(
        &self,
        moved: &SessionMoveRow,
        attempt: Uuid,
        number: i64,
        bytes: &[u8],
    ) -> Result<bool, DatabaseError> {
        let (id, session) = (quote(&moved.id.to_string()), quote(moved.session.as_str()));
        let attempt = quote(&attempt.to_string());
        let counted = match number {
            // Another attempt of this host was interrupted.
            0 => bytes.len().to_string(),
            _ => format!("bytes + {}", bytes.len()),
        };
        let forget = match number {
            0 => format!("DELETE FROM session_move_parts WHERE session = {session}; "),
            _ => String::new(),
        };
        let sql = format!(
            "{forget}WITH allowed AS (UPDATE session_moves SET bytes = {counted} WHERE id = {id} \
             AND state = 'packing' AND source = {} RETURNING 1) \
             INSERT INTO session_move_parts (attempt, number, session, bytes) \
             SELECT {attempt}, {number}, {session}, decode('{}', 'hex') FROM allowed \
             ON CONFLICT (attempt, number) DO NOTHING RETURNING 1",
            quote(self.host_name()),
            hex(bytes)
        );
        Ok(!self.query("ship a session", &sql)?.is_empty())
    }

    /// Records that a bundle is complete. Returns false if the move is over.
    pub fn finish_packing(
        &self,
        moved: &SessionMoveRow,
        bundle: &ShippedBundle,
    ) -> Result<bool, DatabaseError> {
        let length = bundle.native_bytes.map_or_else(|| "NULL".to_owned(), |it| it.to_string());
        let sql = format!(
            "UPDATE session_moves SET state = 'placing', attempt = {}, parts = {}, \
             native_bytes = {length} WHERE id = {} AND state = 'packing' AND source = {} \
             RETURNING 1; NOTIFY {HOST_CHANNEL}; NOTIFY {LEAD_CHANNEL}",
            quote(&bundle.attempt.to_string()),
            bundle.parts,
            quote(&moved.id.to_string()),
            quote(self.host_name()),
        );
        Ok(!self.query("record a shipped session", &sql)?.is_empty())
    }

    /// Reads a part of a bundle.
    pub fn move_part(&self, attempt: Uuid, number: i64) -> Result<Option<Vec<u8>>, DatabaseError> {
        let sql = format!(
            "SELECT encode(bytes, 'hex') FROM session_move_parts WHERE attempt = {} AND number = \
             {number}",
            quote(&attempt.to_string())
        );
        let rows = self.query("read a shipped session", &sql)?;
        Ok(rows.first().and_then(|row| text(row, 0)).map(|text| from_hex(&text)))
    }

    /// Records that this host has placed a session. Returns false if the move is over.
    pub fn finish_placing(
        &self,
        moved: &SessionMoveRow,
        report: &SessionMoveReport,
    ) -> Result<bool, DatabaseError> {
        let report = serde_json::to_string(report).expect("a report is JSON");
        let sql = format!(
            "UPDATE session_moves SET state = 'placed', report = {} WHERE id = {} \
             AND state = 'placing' AND target = {} RETURNING 1; NOTIFY {LEAD_CHANNEL}",
            quote(&report),
            quote(&moved.id.to_string()),
            quote(self.host_name()),
        );
        Ok(!self.query("record a placed session", &sql)?.is_empty())
    }

    /// Ends a move for which this host cannot do its part. The session stays on its source.
    pub fn refuse_move(&self, moved: &SessionMoveRow, reason: &str) -> Result<(), DatabaseError> {
        let condition = format!("({})", moves_of(self.host_name()));
        self.query("end the move of a session", &end_sql(moved.id, &condition, reason)).map(drop)
    }
}
