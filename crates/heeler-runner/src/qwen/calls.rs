//! Calls of tools that have no result yet, so that each call gets one.

use heeler_model::message::ID_BYTES_MAX;
use indexmap::IndexMap;
use serde_json::Value as Json;

use super::with_parent;
use crate::program_rows as rows;
use crate::runtime::RuntimeEffect;

/// Limit on open calls. Beyond it the oldest one is closed without a result.
const OPEN_CALLS_MAX: usize = 4096;

/// Open calls by their IDs, with the call of the sub-agent that made them.
#[derive(Debug, Default)]
pub(super) struct QwenCalls {
    open: IndexMap<String, Option<String>>,
}

impl QwenCalls {
    /// Records the call of a content block. A block without a usable ID is not a call.
    pub(super) fn start(&mut self, block: &Json, parent: Option<&str>) -> Vec<RuntimeEffect> {
        let id = block["id"].as_str().unwrap_or_default();
        if id.is_empty() || id.len() > ID_BYTES_MAX || self.open.contains_key(id) {
            return vec![rows::unknown_message("a call without an ID of its own", block)];
        }
        let mut effects = Vec::new();
        if self.open.len() >= OPEN_CALLS_MAX
            && let Some((oldest, parent)) = self.open.shift_remove_index(0)
        {
            let result = rows::tool_result(&oldest, "too many calls are open", true);
            effects.push(with_parent(result, parent.as_deref()));
        }
        let name = block["name"].as_str().unwrap_or_default();
        effects.push(with_parent(rows::tool_use(id, name, block["input"].clone()), parent));
        self.open.insert(id.to_owned(), parent.map(str::to_owned));
        effects
    }

    /// Records the result of a content block.
    pub(super) fn complete(&mut self, block: &Json) -> RuntimeEffect {
        let id = block["tool_use_id"].as_str().unwrap_or_default();
        let Some(parent) = self.open.shift_remove(id) else {
            return rows::unknown_message("a result without a call", block);
        };
        let text = heeler_model::message::content_text(&block["content"]);
        let result = rows::tool_result(id, &text, block["is_error"] == true);
        with_parent(result, parent.as_deref())
    }

    /// Gives every open call a result.
    pub(super) fn close_all(&mut self, reason: &str) -> Vec<RuntimeEffect> {
        let open = std::mem::take(&mut self.open);
        let close = |(id, parent): (String, Option<String>)| {
            with_parent(rows::tool_result(&id, reason, true), parent.as_deref())
        };
        open.into_iter().map(close).collect()
    }

    pub(super) fn has_open(&self) -> bool {
        !self.open.is_empty()
    }
}
