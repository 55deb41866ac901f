//! Failures of PostgreSQL.

use std::time::Duration;

use thiserror::Error;
use tokio_postgres::error::SqlState;

/// Longest wait for the reply to one statement. A server that does not answer for so long counts as
/// lost.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(120);

/// Failure of a statement on PostgreSQL.
#[derive(Debug, Error)]
pub enum PostgresError {
    /// The server refused the statement, or the connection is lost.
    #[error("{}", describe(.0))]
    Client(#[from] tokio_postgres::Error),
    #[error("PostgreSQL did not answer for {} seconds", REPLY_TIMEOUT.as_secs())]
    NoReply,
    /// The connection was lost while a commit was under way.
    #[error("the connection to PostgreSQL was lost during a commit; its outcome is not known yet")]
    OutcomeUnknown,
    /// Another writer has taken over, or the state was restored.
    #[error("another process has become the writer of this database; {0}")]
    Fenced(String),
    /// The server is behind this writer, as a replica that became the primary without the last changes.
    #[error(
        "the database lacks the last changes, as after a fail-over to a replica without them; this \
         daemon reads all records again"
    )]
    CommitsLost,
    #[error("{0}")]
    Unusable(String),
}

impl PostgresError {
    fn state(&self) -> Option<&SqlState> {
        match self {
            PostgresError::Client(error) => error.code(),
            _ => None,
        }
    }

    /// Returns true if the server's disk is full.
    pub(crate) fn is_full(&self) -> bool {
        self.state() == Some(&SqlState::DISK_FULL)
    }

    /// Returns true if the content of the statement caused the failure: it would fail again.
    pub(crate) fn is_refusal(&self) -> bool {
        // 22: a value does not fit; 23: a constraint; 25P02: an earlier statement of the same change
        // was refused; 54: a limit of the server, such as the size of an index entry.
        self.state().is_some_and(|state| {
            let code = state.code();
            ["22", "23", "54"].iter().any(|class| code.starts_with(class))
                || *state == SqlState::IN_FAILED_SQL_TRANSACTION
        })
    }
}

/// Describes a failure with the server's own message.
fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(error) => {
            let detail = error.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
            format!("PostgreSQL: {}{detail} ({})", error.message(), error.code().code())
        }
        None => {
            let mut text = error.to_string();
            let mut source = std::error::Error::source(error);
            while let Some(cause) = source {
                text.push_str(&format!(": {cause}"));
                source = cause.source();
            }
            format!("PostgreSQL: {text}")
        }
    }
}
