//! Failures of calls to chat platforms.

use std::time::Duration;

use thiserror::Error;

/// A call failed. No variant contains the token.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ChatApiError {
    /// The platform does not accept the token.
    #[error("{platform} does not accept the token in {variable}: {said}")]
    Unauthorized { platform: &'static str, variable: String, said: String },
    /// Another program uses the same token.
    #[error("{platform} refused to {attempt}: {said}")]
    Conflict { platform: &'static str, attempt: &'static str, said: String },
    /// Too many calls.
    #[error("{platform} limits the calls: {attempt} again in {} s", .retry_after.as_secs())]
    RateLimited { platform: &'static str, attempt: &'static str, retry_after: Duration },
    /// The platform refused the call.
    #[error("{platform} refused to {attempt}: {said}")]
    Refused { platform: &'static str, attempt: &'static str, said: String },
    /// The call may have been executed.
    #[error("cannot {attempt}: {reason}")]
    Unreachable { attempt: &'static str, reason: String },
}

impl ChatApiError {
    /// Returns true if the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            ChatApiError::RateLimited { .. }
                | ChatApiError::Unreachable { .. }
                | ChatApiError::Conflict { .. }
        )
    }

    /// Returns the pause that the platform demands.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            ChatApiError::RateLimited { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }
}
