//! Failure of a command inside the dispatcher's transaction.

use heeler_store::DatabaseError;

use crate::command::{DaemonCommandError, DispatcherStoppedError};

/// Failure of a command inside the dispatcher's transaction.
#[derive(Debug)]
pub(crate) enum DispatchFailure {
    /// The command is refused. The refusal is its reply, and the transaction continues.
    Refused(DaemonCommandError),
    /// The database failed. This undoes the command.
    Database(DatabaseError),
}

impl From<DaemonCommandError> for DispatchFailure {
    fn from(refused: DaemonCommandError) -> DispatchFailure {
        DispatchFailure::Refused(refused)
    }
}

impl From<DatabaseError> for DispatchFailure {
    fn from(error: DatabaseError) -> DispatchFailure {
        DispatchFailure::Database(error)
    }
}

impl From<DispatcherStoppedError> for DispatchFailure {
    fn from(stopped: DispatcherStoppedError) -> DispatchFailure {
        DispatchFailure::Refused(stopped.into())
    }
}
