//! State of a chat platform in the last notice about it.

use jiff::Timestamp;

/// Chat platform that cannot be reached, or can be again.
#[derive(Debug, Clone)]
pub(crate) struct LinkNotice {
    pub(crate) platform: String,
    pub(crate) account: String,
    /// Start of the failure; `None` if the link is connected.
    pub(crate) down_since: Option<Timestamp>,
    pub(crate) problem: String,
}
