//! Messages of people to running agents of other hosts.
//!
//! The leader inserts a row, and the host of the run delivers it once by its ID and answers. The table is
//! not part of the records: a restore must not deliver old messages. Start at
//! [`HostLink::send_run_message`].

use heeler_model::{JobId, RunId};
use uuid::Uuid;

use crate::db::database_error::failed;
use crate::db::postgres::{HOST_CHANNEL, quote};
use crate::db::postgres_error::PostgresError;
use crate::db::{DatabaseError, StateDatabase};
use crate::host_link::{HOST_MESSAGE_BYTES_MAX, HostLink};
use crate::host_row::{flag, text};
use crate::run_message_table::{MESSAGE_AGE_MAX_SECONDS, open_messages_of};

/// Most messages that a host reads at once.
const MESSAGES_AT_ONCE: usize = 16;

/// A message to a running agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunMessage {
    /// Identifies the message, also for the runner.
    pub id: Uuid,
    pub run: RunId,
    pub job: JobId,
    pub text: String,
}

/// Progress of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunMessageState {
    /// The host has not answered.
    Open,
    /// The agent has the message.
    Taken,
    /// The run has ended, or its agent takes no messages.
    Refused,
    /// There is no such message.
    Missing,
}

impl HostLink {
    /// Sends a message to the host of a run. A repeated message has no effect.
    pub fn send_run_message(&self, message: &RunMessage) -> Result<(), DatabaseError> {
        let attempt = "send a message to another host";
        if message.text.len() > HOST_MESSAGE_BYTES_MAX {
            let why = format!("it is longer than {HOST_MESSAGE_BYTES_MAX} bytes");
            return Err(failed(attempt, PostgresError::Unusable(why)));
        }
        let (id, run) = (quote(&message.id.to_string()), quote(&message.run.to_string()));
        let sql = format!(
            "DELETE FROM run_messages WHERE \
             created_at < clock_timestamp() - interval '{MESSAGE_AGE_MAX_SECONDS} seconds'; \
             INSERT INTO run_messages (id, run, job, host, body, created_at) \
             SELECT {id}, id, {}, host, {}, clock_timestamp() FROM runs \
             WHERE id = {run} AND committed = 0 ON CONFLICT (id) DO NOTHING; NOTIFY {HOST_CHANNEL}",
            quote(message.job.as_str()),
            quote(&message.text),
        );
        self.query(attempt, &sql).map(drop)
    }

    /// Reads messages for runs of this host, oldest first.
    pub fn run_messages(&self) -> Result<Vec<RunMessage>, DatabaseError> {
        let sql = format!(
            "SELECT id, run, job, body FROM run_messages WHERE {} ORDER BY created_at, id \
             LIMIT {MESSAGES_AT_ONCE}",
            open_messages_of(self.host_name())
        );
        let one = |row: &Vec<Option<String>>| {
            Some(RunMessage {
                id: text(row, 0)?.parse().ok()?,
                run: text(row, 1)?.parse().ok()?,
                job: text(row, 2)?.parse().ok()?,
                text: text(row, 3)?,
            })
        };
        Ok(self.query("read messages", &sql)?.iter().filter_map(one).collect())
    }

    /// Answers a message of this host. The first answer counts.
    pub fn answer_run_message(&self, id: Uuid, is_taken: bool) -> Result<(), DatabaseError> {
        let sql = format!(
            "UPDATE run_messages SET is_taken = {is_taken} \
             WHERE id = {} AND host = {} AND is_taken IS NULL",
            quote(&id.to_string()),
            quote(self.host_name())
        );
        self.query("answer a message", &sql).map(drop)
    }

    /// Removes a message; returns its state before.
    pub fn forget_run_message(&self, id: Uuid) -> Result<RunMessageState, DatabaseError> {
        let id = quote(&id.to_string());
        let sql = format!("DELETE FROM run_messages WHERE id = {id} RETURNING is_taken");
        Ok(state_of(&self.query("forget a message", &sql)?))
    }
}

fn state_of(rows: &[Vec<Option<String>>]) -> RunMessageState {
    let Some(row) = rows.first() else { return RunMessageState::Missing };
    match text(row, 0) {
        None => RunMessageState::Open,
        Some(_) if flag(row, 0) => RunMessageState::Taken,
        Some(_) => RunMessageState::Refused,
    }
}

impl StateDatabase {
    /// Returns the progress of a message.
    pub fn run_message_state(&self, id: Uuid) -> Result<RunMessageState, DatabaseError> {
        let Some(conn) = self.conn.as_postgres() else { return Ok(RunMessageState::Missing) };
        let id = quote(&id.to_string());
        let sql = format!("SELECT is_taken FROM run_messages WHERE id = {id}");
        let rows = conn.simple_query(&sql).map_err(|source| failed("read an answer", source))?;
        Ok(state_of(&rows))
    }
}
