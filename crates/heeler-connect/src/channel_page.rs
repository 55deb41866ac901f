//! A page of the messages of a channel, as the platform lists them.

use serde_json::Value as Json;

/// Messages that were read with one call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChannelPage {
    pub messages: Vec<Json>,
    /// Where the next page begins; `None` for the last one.
    pub next: Option<String>,
}
