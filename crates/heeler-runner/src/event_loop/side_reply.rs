//! Output of an agent that is asked something outside the conversation. Start at [`SideReply`].

use heeler_model::message::{AgentMessage, MessageBody};

/// Output of an agent outside the conversation.
#[derive(Debug, Default)]
pub(crate) struct SideReply {
    /// Last text block.
    pub(crate) text: String,
}

impl SideReply {
    pub(super) fn record_message(&mut self, message: &AgentMessage) {
        // The text of an API error must not pass for a summary.
        let text = match &message.body {
            MessageBody::Assistant(reply) if reply.api_error.is_none() => reply.text(),
            MessageBody::Result(result) if !result.is_error => {
                result.text.clone().unwrap_or_default()
            }
            _ => return,
        };
        // Text of a sub-agent is not the agent's own reply.
        if message.parent_tool_use_id.is_none() && !text.trim().is_empty() {
            self.text = text;
        }
    }
}
