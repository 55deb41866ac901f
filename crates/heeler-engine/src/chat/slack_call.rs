//! Calls of Slack, as the server passes them on.
//!
//! Start at [`SlackCall`].

use serde_json::Value as Json;

use crate::command::PendingReply;

/// Kind of a call of Slack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlackCallKind {
    Event,
    Interaction,
    Command,
}

impl SlackCallKind {
    /// Returns the kind of an envelope with the same payload.
    pub(super) fn envelope(self) -> &'static str {
        match self {
            SlackCallKind::Event => "events_api",
            SlackCallKind::Interaction => "interactive",
            SlackCallKind::Command => "slash_commands",
        }
    }
}

/// A call of Slack with a verified signature.
#[derive(Debug, Clone, PartialEq)]
pub struct SlackCall {
    /// ID of the app.
    pub account: String,
    pub kind: SlackCallKind,
    pub payload: Json,
}

/// A call with its caller, who waits for the commit.
pub(crate) struct WaitingSlackCall {
    pub(crate) call: SlackCall,
    pub(crate) pending: PendingReply,
}
