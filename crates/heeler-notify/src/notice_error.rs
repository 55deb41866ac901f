//! Failures to send a notice.

use std::time::Duration;

use heeler_connect::ChatApiError;
use thiserror::Error;

/// A notice was not sent, or it is not known whether it was. The text holds no address and no secret.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct NoticeSendError {
    pub message: String,
    /// True if the same notice may be accepted later.
    pub is_transient: bool,
    /// Pause that the receiver demands.
    pub retry_after: Option<Duration>,
}

impl NoticeSendError {
    pub fn permanent(message: impl Into<String>) -> NoticeSendError {
        NoticeSendError { message: message.into(), is_transient: false, retry_after: None }
    }

    pub fn transient(message: impl Into<String>) -> NoticeSendError {
        NoticeSendError { message: message.into(), is_transient: true, retry_after: None }
    }
}

impl From<ChatApiError> for NoticeSendError {
    fn from(error: ChatApiError) -> NoticeSendError {
        NoticeSendError {
            message: error.to_string(),
            is_transient: error.is_transient(),
            retry_after: error.retry_after(),
        }
    }
}
