//! The tables of sessions that move to another host. Start at [`CREATE_MOVES`].

use crate::db::postgres::quote;

/// Time after which a move is given up, so that a host that does not answer blocks no session.
pub const SESSION_MOVE_SECONDS_MAX: u32 = 600;

/// Tables of this module. They are not part of the records: a move changes no file on the source, and
/// after a restore the session is where its last run was.
pub(crate) const CREATE_MOVES: &str = "CREATE TABLE IF NOT EXISTS session_moves (\
    session TEXT NOT NULL PRIMARY KEY, id TEXT NOT NULL, native TEXT NOT NULL, \
    source TEXT NOT NULL, target TEXT NOT NULL, state TEXT NOT NULL, after_run TEXT NOT NULL, \
    begun_by TEXT NOT NULL, created_at TIMESTAMPTZ NOT NULL, until TIMESTAMPTZ NOT NULL, \
    bytes BIGINT NOT NULL, parts BIGINT NOT NULL, attempt TEXT, native_bytes BIGINT, \
    report TEXT, reason TEXT); \
    CREATE INDEX IF NOT EXISTS idx_session_moves_open ON session_moves (state) \
    WHERE state IN ('packing', 'placing', 'placed'); \
    CREATE INDEX IF NOT EXISTS idx_session_moves_native ON session_moves (native); \
    CREATE TABLE IF NOT EXISTS session_move_parts (\
    attempt TEXT NOT NULL, number BIGINT NOT NULL, session TEXT NOT NULL, bytes BYTEA NOT NULL, \
    PRIMARY KEY (attempt, number)); \
    CREATE INDEX IF NOT EXISTS idx_session_move_parts ON session_move_parts (session)";

/// Condition of a move that is not over.
pub(crate) const OPEN_MOVE: &str = "state IN ('packing', 'placing', 'placed')";

/// Condition of a move in which a host has something to do.
pub(crate) fn moves_of(host: &str) -> String {
    let host = quote(host);
    format!("(state = 'packing' AND source = {host}) OR (state = 'placing' AND target = {host})")
}

/// Condition of a move that the leader is to look at.
pub(crate) const DUE_MOVE: &str = "state = 'placed' OR \
    (state IN ('packing', 'placing') AND until < clock_timestamp())";
