//! The last turn, found in the transcript, with the point before it.

use heeler_model::AgentSessionId;
use uuid::Uuid;

/// Turn that can be taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TurnToUndo {
    /// First line of its prompt.
    pub(super) prompt: String,
    /// Last entry before the turn, with its native session if known; `None` if it was the first turn.
    pub(super) before: Option<(Option<AgentSessionId>, Uuid)>,
}
