//! Which rows of a session log are messages, as `--at-message` and `messageCount` number them.

use serde_json::Value as Json;

/// Counts the user and assistant messages of a session log, row by row.
///
/// The rows of one assistant message (they share its id) count as one. Tool results are not
/// messages, nor is what a sub-agent and its task say to each other, nor a report that the API
/// failed.
#[derive(Debug, Clone, Default)]
pub struct MessageCounter {
    messages: u64,
    last_id: Option<String>,
}

impl MessageCounter {
    /// Goes on after so many.
    pub fn starting_at(messages: u64) -> MessageCounter {
        MessageCounter { messages, last_id: None }
    }

    /// Takes the next row and says whether a message begins with it.
    pub fn count_row(&mut self, row: &Json) -> bool {
        let is_apart = |key: &str| row[key] == Json::Bool(true);
        if is_apart("isSidechain") || is_apart("isApiErrorMessage") {
            return false;
        }
        let message = &row["message"];
        let id = message["id"].as_str();
        let begins = match row["type"].as_str() {
            Some("user") => !is_only_tool_results(&message["content"]),
            Some("assistant") => id.is_none() || id != self.last_id.as_deref(),
            _ => false,
        };
        let begins = begins && message.is_object();
        if begins {
            self.messages = self.messages.saturating_add(1);
            self.last_id = id.map(str::to_owned);
        }
        begins
    }

    /// Returns how many there were, which is also the number of the last one.
    pub fn messages(&self) -> u64 {
        self.messages
    }
}

fn is_only_tool_results(content: &Json) -> bool {
    match content {
        Json::Array(blocks) => blocks.iter().all(|block| block["type"] == "tool_result"),
        content => content.is_null(),
    }
}
