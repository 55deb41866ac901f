//! Reason why a daemon does not start: [`DaemonStartFailure`].

use crate::failure::CommandFailure;

/// Reason why a daemon does not run.
pub(super) enum DaemonStartFailure {
    /// Another process writes the state: its description.
    Held(String),
    /// Another host leads the fleet.
    Led,
    Failed(CommandFailure),
}

impl<E: Into<CommandFailure>> From<E> for DaemonStartFailure {
    fn from(error: E) -> DaemonStartFailure {
        DaemonStartFailure::Failed(error.into())
    }
}
