//! Requests that were answered, by the names that their askers gave them.

use heeler_model::iso_millis;
use jiff::Timestamp;
use rusqlite::{Connection, params};

use super::{Columns, Db, DbError, execute, first, sql};

sql! {
    ANSWERED = "SELECT print, answer FROM requests WHERE asker = ?1 AND name = ?2";
    ANSWER = "INSERT INTO requests (asker, name, print, answered_at, answer) \
        VALUES (?1, ?2, ?3, ?4, ?5)";
    FORGET = "DELETE FROM requests WHERE answered_at < ?1";
}

/// A request that was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnsweredRequest {
    /// Tells it from another under the same name.
    pub print: String,
    /// The answer, JSON.
    pub answer: String,
}

impl Db {
    /// Returns what was answered to a request of this name.
    pub fn answered_request(
        &self,
        asker: &str,
        name: &str,
    ) -> Result<Option<AnsweredRequest>, DbError> {
        first(&self.conn, ANSWERED, [asker, name], "read an answered request", |row| {
            let mut columns = Columns::new("requests", row);
            Ok(AnsweredRequest { print: columns.get()?, answer: columns.get()? })
        })
    }
}

pub(crate) fn answer(
    conn: &Connection,
    asker: &str,
    name: &str,
    request: &AnsweredRequest,
    at: Timestamp,
) -> Result<(), DbError> {
    let params = params![asker, name, request.print, iso_millis(at), request.answer];
    execute(conn, ANSWER, params, "record an answered request").map(|_| ())
}

pub(crate) fn forget(conn: &Connection, before: Timestamp) -> Result<(), DbError> {
    execute(conn, FORGET, [iso_millis(before)], "forget answered requests").map(|_| ())
}
