//! Lines of Codex's session files as rows of a transcript. Start at [`conversation_rows`].

use serde_json::{Value as Json, json};
use uuid::Uuid;

/// Returns the rows for a line of a rollout, in the form that Heeler's transcripts have: prompts,
/// replies, calls of tools and their results. Other lines are Codex's own records.
pub(super) fn conversation_rows(line: &Json) -> Vec<Json> {
    let item = &line["payload"];
    if line["type"] != "response_item" {
        return Vec::new();
    }
    let said = |block: Json| ("assistant", json!([block]));
    let content = match item["type"].as_str().unwrap_or_default() {
        "message" => match (item["role"].as_str(), message_text(item)) {
            (Some("assistant"), Some(text)) => Some(said(json!({ "type": "text", "text": text }))),
            (Some("user"), Some(text)) if is_prompt(item, &text) => Some(("user", text.into())),
            _ => None,
        },
        "reasoning" => {
            let summary = texts(&item["summary"]).join("\n\n");
            let thought = json!({ "type": "thinking", "thinking": summary });
            (!summary.is_empty()).then(|| said(thought))
        }
        "function_call" | "custom_tool_call" => {
            let given = [&item["arguments"], &item["input"]].into_iter().find_map(Json::as_str);
            let given = given.unwrap_or_default();
            // Arguments of a function are JSON, the input of another tool is any text.
            let input = serde_json::from_str(given).ok().filter(Json::is_object);
            let input = input.unwrap_or_else(|| json!({ "input": given }));
            let id = item["call_id"].as_str();
            id.map(|id| {
                said(json!({ "type": "tool_use", "id": id, "name": item["name"], "input": input }))
            })
        }
        "function_call_output" | "custom_tool_call_output" => {
            let output = match &item["output"] {
                Json::String(text) => text.clone(),
                other => texts(other).join("\n"),
            };
            item["call_id"].as_str().map(|id| {
                let result = json!({ "type": "tool_result", "tool_use_id": id, "content": output });
                ("user", json!([result]))
            })
        }
        _ => None,
    };
    let row = content.map(|(role, content)| {
        json!({
            "type": role, "uuid": Uuid::new_v4(), "timestamp": line["timestamp"],
            "message": { "role": role, "content": content },
        })
    });
    row.into_iter().collect()
}

/// Returns the texts of content blocks.
fn texts(blocks: &Json) -> Vec<&str> {
    let blocks = blocks.as_array().map_or(&[][..], Vec::as_slice);
    blocks.iter().filter_map(|block| block["text"].as_str()).collect()
}

fn message_text(item: &Json) -> Option<String> {
    let text = texts(&item["content"]).join("\n");
    (!text.is_empty()).then_some(text)
}

/// Returns true if a person wrote the message. Codex sends the model its own notes as messages of
/// the user; newer versions mark them, and all of them are in tags.
fn is_prompt(item: &Json, text: &str) -> bool {
    let kinds = &item["internal_chat_message_metadata_passthrough"]["content_item_kinds"];
    match kinds.as_array() {
        Some(kinds) => kinds.iter().filter_map(Json::as_str).any(|kind| kind.starts_with("user.")),
        None => !text.starts_with('<') && !text.starts_with("# AGENTS.md instructions"),
    }
}
