//! Result of a message of a chat to a running job.

/// Result of an attempt to send a message to a running job.
#[derive(Debug, Clone)]
pub(crate) struct SaidMessageResult {
    /// ID of the effect.
    pub(crate) effect: String,
    /// True if the run has taken the message.
    pub(crate) is_taken: bool,
}
