//! Items of a Codex turn: texts, thoughts, commands, changes of files and calls of MCP tools, as rows.
//!
//! A call becomes a row when it starts and another when it completes. Start at [`CodexItems`].

use heeler_model::message::ID_BYTES_MAX;
use indexmap::IndexMap;
use serde_json::{Map, Value as Json, json};

use crate::program_rows::{self as rows, CollectedText};
use crate::runtime::RuntimeEffect;

/// Limit on open items. Beyond it the oldest one is closed without a result.
const OPEN_ITEMS_MAX: usize = 4096;

/// Limit on the output of a command in its row; the rest is left out, and the row says so.
const ITEM_OUTPUT_BYTES_MAX: usize = 1 << 20;

/// Open items that are tool calls, by Codex's ID.
#[derive(Debug, Default)]
pub(super) struct CodexItems {
    open: IndexMap<String, CodexCall>,
}

/// Tool call of Codex.
#[derive(Debug, Clone)]
pub(super) struct CodexCall {
    pub(super) name: String,
    pub(super) input: Json,
    /// Files that the call changes.
    pub(super) paths: Vec<String>,
}

impl CodexItems {
    pub(super) fn start(&mut self, item: &Json) -> Vec<RuntimeEffect> {
        let (Some(id), Some(call)) = (item_id(item), read_call(item)) else { return Vec::new() };
        if self.open.contains_key(id) {
            return Vec::new();
        }
        let mut effects = Vec::new();
        if self.open.len() >= OPEN_ITEMS_MAX
            && let Some((oldest, _)) = self.open.shift_remove_index(0)
        {
            effects.push(rows::tool_result(&oldest, "too many calls are open", true));
        }
        effects.push(rows::tool_use(id, &call.name, call.input.clone()));
        self.open.insert(id.to_owned(), call);
        effects
    }

    pub(super) fn complete(&mut self, item: &Json, text: &mut CollectedText) -> Vec<RuntimeEffect> {
        match item["type"].as_str().unwrap_or_default() {
            "userMessage" => Vec::new(),
            "agentMessage" => text.complete(item["text"].as_str().unwrap_or_default()),
            "reasoning" => {
                let parts = |key: &str| -> Vec<&str> {
                    let parts = item[key].as_array().map_or(&[][..], Vec::as_slice);
                    parts.iter().filter_map(Json::as_str).collect()
                };
                let summary = parts("summary");
                let thought =
                    if summary.is_empty() { parts("content") } else { summary }.join("\n");
                match thought.trim().is_empty() {
                    true => Vec::new(),
                    false => {
                        vec![rows::assistant(json!({ "type": "thinking", "thinking": thought }))]
                    }
                }
            }
            _ if read_call(item).is_some() && item_id(item).is_some() => self.complete_call(item),
            _ => {
                let fields = Map::from_iter([("item".to_owned(), item.clone())]);
                vec![rows::system_event("codex_item", fields)]
            }
        }
    }

    fn complete_call(&mut self, item: &Json) -> Vec<RuntimeEffect> {
        let Some(id) = item_id(item) else { return Vec::new() };
        // A call that never started is shown as a whole.
        let mut effects = self.start(item);
        self.open.shift_remove(id);
        let status = item["status"].as_str().unwrap_or_default();
        let has_failed =
            status != "completed" || item["exitCode"].as_i64().is_some_and(|it| it != 0);
        effects.push(rows::tool_result(id, &describe_outcome(item, status), has_failed));
        effects
    }

    /// Returns an open call.
    pub(super) fn get(&self, id: &str) -> Option<&CodexCall> {
        self.open.get(id)
    }

    pub(super) fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    pub(super) fn close_all(&mut self, reason: &str) -> Vec<RuntimeEffect> {
        let open = std::mem::take(&mut self.open);
        open.keys().map(|id| rows::tool_result(id, reason, true)).collect()
    }
}

fn item_id(item: &Json) -> Option<&str> {
    item["id"].as_str().filter(|id| !id.is_empty() && id.len() <= ID_BYTES_MAX)
}

/// Reads an item that is a tool call.
fn read_call(item: &Json) -> Option<CodexCall> {
    let call = |name: &str, input: Json| {
        Some(CodexCall { name: name.to_owned(), input, paths: Vec::new() })
    };
    match item["type"].as_str()? {
        "commandExecution" => {
            call("shell", json!({ "command": item["command"], "cwd": item["cwd"] }))
        }
        "fileChange" => {
            let changes = item["changes"].as_array().map_or(&[][..], Vec::as_slice);
            let paths = changes.iter().flat_map(|change| {
                [&change["path"], &change["kind"]["move_path"]].into_iter().filter_map(Json::as_str)
            });
            Some(CodexCall {
                name: "apply_patch".to_owned(),
                paths: paths.map(str::to_owned).collect(),
                input: json!({ "changes": item["changes"] }),
            })
        }
        "mcpToolCall" => {
            let word = |key: &str| item[key].as_str().unwrap_or_default();
            let name = format!("mcp__{}__{}", word("server"), word("tool"));
            call(&name[..name.floor_char_boundary(ID_BYTES_MAX)], item["arguments"].clone())
        }
        "webSearch" => call("web_search", json!({ "query": item["query"] })),
        _ => None,
    }
}

fn describe_outcome(item: &Json, status: &str) -> String {
    let mut text = match item["type"].as_str().unwrap_or_default() {
        "commandExecution" => item["aggregatedOutput"].as_str().unwrap_or_default().to_owned(),
        "mcpToolCall" => describe_tool_result(item),
        _ => String::new(),
    };
    if text.len() > ITEM_OUTPUT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(ITEM_OUTPUT_BYTES_MAX));
        text.push_str("\n[the rest of the output is left out]");
    }
    match (text.is_empty(), status, item["exitCode"].as_i64()) {
        (_, "declined", _) => "denied".to_owned(),
        (_, "completed", Some(code)) if code != 0 => format!("{text}\nexit code {code}"),
        (true, "failed", Some(code)) => format!("exit code {code}"),
        (true, status, _) => status.to_owned(),
        (false, _, _) => text,
    }
}

fn describe_tool_result(item: &Json) -> String {
    if let Some(message) = item["error"]["message"].as_str() {
        return message.to_owned();
    }
    let content = item["result"]["content"].as_array().map_or(&[][..], Vec::as_slice);
    let texts: Vec<&str> = content.iter().filter_map(|block| block["text"].as_str()).collect();
    match texts.is_empty() && !item["result"].is_null() {
        true => item["result"].to_string(),
        false => texts.join("\n"),
    }
}
