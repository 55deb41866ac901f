//! Connections to chat platforms, as the daemon reports them.

use heeler_model::daemon_status::ChatLinkStatus;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

/// Connection to a chat platform as one bot.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChatLinkSummary {
    /// Chat platform, such as `telegram`.
    pub platform: String,
    /// Public ID of the bot.
    pub account: String,
    /// State: `connecting`, `connected` or `failed`.
    pub state: String,
    /// Time since which it has this state.
    pub since: Timestamp,
    /// Time of the last event.
    pub last_event_at: Option<Timestamp>,
    /// Time from the receipt of the last recorded event to its commit, in milliseconds.
    pub record_ms: Option<u64>,
    /// Number of calls that the platform refused because of its limits, since the daemon started.
    pub rate_limits: u64,
    /// Reason of a failure.
    pub problem: Option<String>,
}

impl From<&ChatLinkStatus> for ChatLinkSummary {
    fn from(link: &ChatLinkStatus) -> ChatLinkSummary {
        ChatLinkSummary {
            platform: link.platform.clone(),
            account: link.account.clone(),
            state: link.state.to_string(),
            since: link.since,
            last_event_at: link.last_event_at,
            record_ms: link.record_ms,
            rate_limits: link.rate_limits,
            problem: link.problem.clone(),
        }
    }
}
