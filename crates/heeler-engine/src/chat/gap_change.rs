//! A change of the record of gaps. See [`channel_gap`](super::channel_gap).

use heeler_store::{ChatGapKey, ChatGapMark};

/// A change of the record of gaps.
#[derive(Debug)]
pub(crate) enum ChatGapChange {
    /// A gap whose messages are to be read. It has the marks of earlier gaps that were not read.
    Begin { key: ChatGapKey, marks: Vec<ChatGapMark> },
    /// The messages of a gap are recorded, except those that the platform does not show.
    End { key: ChatGapKey, kept: Vec<ChatGapMark> },
}
