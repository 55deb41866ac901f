//! State of a scripted agent's turn: its prompt, its text, its background commands.

use std::time::Instant;

use heeler_config::script::ScriptStep;
use serde_json::Value as Json;
use uuid::Uuid;

use super::commands::ScriptedCommandHandle;
use super::session::ScriptedSpending;

/// State of one turn.
#[derive(Default)]
pub(super) struct ScriptedTurn {
    pub(super) is_running: bool,
    /// Last text written.
    pub(super) text: String,
    /// Number of tool rounds: after each, a model would be called again.
    pub(super) tool_rounds: u32,
    pub(super) denials: Vec<Json>,
    /// Messages of the user that joined this turn while a tool ran.
    pub(super) steered: Vec<Uuid>,
    pub(super) began: Option<Instant>,
    /// Cost and usage of this process before the turn.
    pub(super) spent_before: ScriptedSpending,
}

/// Assistant message that may get further blocks.
pub(super) struct ScriptedPartialMessage {
    pub(super) id: String,
    pub(super) blocks: u64,
    pub(super) has_text: bool,
}

/// Queued message of the user.
pub(super) struct ScriptedPrompt {
    pub(super) text: String,
    pub(super) uuid: Option<Uuid>,
}

/// Command that runs in the background.
pub(super) struct ScriptedBackgroundTask {
    pub(super) id: String,
    pub(super) tool_use_id: String,
    pub(super) command: String,
    pub(super) running: ScriptedCommandHandle,
    pub(super) then: Vec<ScriptStep>,
}
