//! Numbering of a session's messages, as used by `--at-message` and `messageCount`.

use serde_json::Value as Json;

/// Counts the user and agent messages of a session transcript, row by row.
///
/// The rows of one agent message (which share its ID) count once. Tool results, the messages of
/// sub-agents, and reports of API failures are not counted.
#[derive(Debug, Clone, Default)]
pub struct MessageCounter {
    messages: u64,
    last_id: Option<String>,
}

impl MessageCounter {
    /// Continues after a number of messages.
    pub fn starting_at(messages: u64) -> MessageCounter {
        // The ID of the last message is unknown, which at worst splits that message in two.
        MessageCounter { messages, last_id: None }
    }

    /// Counts a row. Returns true if a message begins with it.
    pub fn count_row(&mut self, row: &Json) -> bool {
        let is_apart = |key: &str| row[key] == Json::Bool(true);
        // Neither is part of the conversation that `--at-message` numbers.
        if is_apart("isSidechain") || is_apart("isApiErrorMessage") {
            return false;
        }
        let message = &row["message"];
        let id = message["id"].as_str();
        let begins = match row["type"].as_str() {
            Some("user") => !is_only_tool_results(&message["content"]),
            // Claude writes one row per block, and all of them have the ID of their message.
            Some("assistant") => id.is_none() || id != self.last_id.as_deref(),
            _ => false,
        };
        // A damaged row without a message must not shift the numbers of all later ones.
        let begins = begins && message.is_object();
        if begins {
            self.messages = self.messages.saturating_add(1);
            self.last_id = id.map(str::to_owned);
        }
        begins
    }

    /// Returns the number of messages, which is also the number of the last one.
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
