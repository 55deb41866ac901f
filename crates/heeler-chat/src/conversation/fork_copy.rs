//! Copy of the session in which a fork continues.

use crate::background::StoppableThread;
use crate::{ConversationEntry, SessionFile};

/// Copy in progress.
pub(super) struct ConversationFork {
    /// Draft; it becomes a session when it is saved.
    pub(super) copy: SessionFile,
    /// Returns the message at which the copy ends, if it is not the last.
    pub(super) work: StoppableThread<Result<Option<ConversationEntry>, String>>,
}

impl ConversationFork {
    pub(super) fn is_done(&self) -> bool {
        self.work.is_done()
    }
}
