//! Answered requests by their idempotency keys.

use heeler_model::iso_millis;
use jiff::Timestamp;
use rusqlite::params;

use super::connection::DatabaseConnection;
use super::{ColumnReader, DatabaseError, StateDatabase, execute, query_first, sql};

sql! {
    ANSWERED = "SELECT print, answer FROM requests WHERE asker = ?1 AND name = ?2";
    // A second answer under the same key is an error: the request was executed twice.
    ANSWER = "INSERT INTO requests (asker, name, print, answered_at, answer) \
        VALUES (?1, ?2, ?3, ?4, ?5)";
    // Webhook calls are kept longer.
    FORGET = "DELETE FROM requests WHERE answered_at < ?1 AND substr(asker, 1, 8) <> 'webhook:'";
    FORGET_CALLS = "DELETE FROM requests WHERE answered_at < ?1 AND substr(asker, 1, 8) = 'webhook:'";
}

/// Returns the name under which the calls of a webhook are recorded. No caller with a key of its
/// own can have it: names of callers have no colon.
fn webhook_asker(schedule: &str) -> String {
    format!("webhook:{schedule}")
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnsweredRequestRecord {
    /// Hash that distinguishes it from another request with the same key.
    pub fingerprint: String,
    /// The answer as JSON.
    pub answer: String,
}

impl StateDatabase {
    /// Returns the recorded answer to the request with this key.
    pub fn answered_request(
        &self,
        asker: &str,
        name: &str,
    ) -> Result<Option<AnsweredRequestRecord>, DatabaseError> {
        query_first(&self.conn, ANSWERED, [asker, name], "read an answered request", |row| {
            let mut columns = ColumnReader::new("requests", row);
            Ok(AnsweredRequestRecord { fingerprint: columns.get()?, answer: columns.get()? })
        })
    }
}

impl StateDatabase {
    /// Returns the recorded webhook call with this signature.
    pub fn webhook_call(
        &self,
        schedule: &str,
        mac: &str,
    ) -> Result<Option<AnsweredRequestRecord>, DatabaseError> {
        self.answered_request(&webhook_asker(schedule), mac)
    }
}

pub(crate) fn record_call(
    conn: &DatabaseConnection,
    schedule: &str,
    mac: &str,
    call: &AnsweredRequestRecord,
    at: Timestamp,
) -> Result<(), DatabaseError> {
    answer(conn, &webhook_asker(schedule), mac, call, at)
}

pub(crate) fn forget_calls(
    conn: &DatabaseConnection,
    before: Timestamp,
) -> Result<(), DatabaseError> {
    execute(conn, FORGET_CALLS, [iso_millis(before)], "forget webhook calls").map(|_| ())
}

pub(crate) fn answer(
    conn: &DatabaseConnection,
    asker: &str,
    name: &str,
    request: &AnsweredRequestRecord,
    at: Timestamp,
) -> Result<(), DatabaseError> {
    let params = params![asker, name, request.fingerprint, iso_millis(at), request.answer];
    execute(conn, ANSWER, params, "record an answered request").map(|_| ())
}

pub(crate) fn forget(conn: &DatabaseConnection, before: Timestamp) -> Result<(), DatabaseError> {
    execute(conn, FORGET, [iso_millis(before)], "forget answered requests").map(|_| ())
}
