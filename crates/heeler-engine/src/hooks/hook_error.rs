//! Failures of hooks. Start at [`HookExecutionError`].

use std::time::Duration;

use heeler_model::error_chain;
use thiserror::Error;

/// Failure of a hook. The texts hold no secrets: they are logged and recorded.
#[derive(Debug, Error)]
pub(crate) enum HookExecutionError {
    /// A retry would fail the same way.
    #[error("{0}")]
    Permanent(String),
    /// A retry may succeed.
    #[error("{message}")]
    Transient {
        message: String,
        /// Delay requested by the remote side.
        after: Option<Duration>,
    },
    /// The worker is ending. A started command continues, and the next worker collects its result.
    #[error("the daemon ends")]
    Stopped,
}

impl HookExecutionError {
    pub(super) fn transient(message: impl Into<String>) -> HookExecutionError {
        HookExecutionError::Transient { message: message.into(), after: None }
    }
}

pub(super) fn transient_error(error: impl std::error::Error) -> HookExecutionError {
    HookExecutionError::transient(error_chain(&error))
}
