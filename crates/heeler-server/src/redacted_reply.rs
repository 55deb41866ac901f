//! Mark of replies that are redacted where their data is read.

/// Mark of a reply that is redacted already.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RedactedReply;
