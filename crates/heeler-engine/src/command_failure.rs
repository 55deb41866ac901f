//! Failure of a command inside the dispatcher's transaction.

use heeler_store::DatabaseError;

use crate::command::{DaemonCommandError, DispatcherStoppedError};

/// Failure of a command inside the dispatcher's transaction.
#[derive(Debug)]
pub(crate) enum CommandFailure {
    /// The command is refused. The refusal is its reply, and the transaction continues.
    Refused(DaemonCommandError),
    /// The database failed. This undoes the command.
    Database(DatabaseError),
}

impl From<DaemonCommandError> for CommandFailure {
    fn from(refused: DaemonCommandError) -> CommandFailure {
        CommandFailure::Refused(refused)
    }
}

impl From<DatabaseError> for CommandFailure {
    fn from(error: DatabaseError) -> CommandFailure {
        CommandFailure::Database(error)
    }
}

impl From<DispatcherStoppedError> for CommandFailure {
    fn from(stopped: DispatcherStoppedError) -> CommandFailure {
        CommandFailure::Refused(stopped.into())
    }
}
