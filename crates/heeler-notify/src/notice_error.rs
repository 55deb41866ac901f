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
    /// Status of the HTTP response, if there was one.
    pub status: Option<u16>,
}

impl NoticeSendError {
    pub fn permanent(message: impl Into<String>) -> NoticeSendError {
        let message = message.into();
        NoticeSendError { message, is_transient: false, retry_after: None, status: None }
    }

    pub fn transient(message: impl Into<String>) -> NoticeSendError {
        let message = message.into();
        NoticeSendError { message, is_transient: true, retry_after: None, status: None }
    }

    /// Returns true if the receiver does not exist any more.
    pub fn is_gone(&self) -> bool {
        matches!(self.status, Some(404 | 410))
    }
}

impl From<ChatApiError> for NoticeSendError {
    fn from(error: ChatApiError) -> NoticeSendError {
        NoticeSendError {
            message: error.to_string(),
            is_transient: error.is_transient(),
            retry_after: error.retry_after(),
            status: None,
        }
    }
}
