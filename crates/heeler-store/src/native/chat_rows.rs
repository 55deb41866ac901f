//! Messages of the programs besides Claude Code and Codex as rows of a transcript. Start at [`message_rows`].

use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::NativeProgram;

/// Beginning of the message with which Gemini CLI describes the directory to the model.
const GEMINI_CONTEXT: &str = "<session_context>";

/// Returns the rows for a message, in the form that Heeler's transcripts have: prompts, replies, calls
/// of tools and their results. Other messages are the program's own.
pub(super) fn message_rows(program: NativeProgram, message: &Json) -> Vec<Json> {
    let contents = match program {
        NativeProgram::Gemini => gemini_contents(message),
        NativeProgram::Copilot | NativeProgram::Kimi | NativeProgram::Grok => {
            folder_contents(message).into_iter().collect()
        }
        _ => qwen_contents(message).into_iter().collect(),
    };
    let row = |(role, content): (&str, Json)| {
        json!({
            "type": role, "uuid": Uuid::new_v4(), "timestamp": message["timestamp"],
            "message": { "role": role, "content": content },
        })
    };
    contents.into_iter().map(row).collect()
}

/// Returns the size of the context in tokens, as the message reports it.
pub(super) fn context_tokens(message: &Json) -> Option<u64> {
    let counts = [&message["tokens"]["total"], &message["usageMetadata"]["totalTokenCount"]];
    counts.into_iter().find_map(Json::as_u64).filter(|tokens| *tokens > 0)
}

/// Returns the content of a message that has the form of a transcript's already.
fn folder_contents(message: &Json) -> Option<(&'static str, Json)> {
    let role = match message["role"].as_str()? {
        "assistant" => "assistant",
        _ => "user",
    };
    Some((role, message["content"].clone()))
}

fn qwen_contents(message: &Json) -> Option<(&'static str, Json)> {
    let parts = list(&message["message"]["parts"]);
    match message["type"].as_str()? {
        // Notes of the program to the model have another origin.
        "user" if message["provenance"].as_str().is_none_or(|it| it == "real_user") => {
            let text = texts(parts);
            (!text.is_empty()).then_some(("user", text.into()))
        }
        "assistant" => {
            let blocks: Vec<Json> = parts.iter().filter_map(model_block).collect();
            (!blocks.is_empty()).then_some(("assistant", blocks.into()))
        }
        "tool_result" => {
            let blocks: Vec<Json> = parts.iter().filter_map(result_block).collect();
            (!blocks.is_empty()).then_some(("user", blocks.into()))
        }
        _ => None,
    }
}

fn gemini_contents(message: &Json) -> Vec<(&'static str, Json)> {
    let text = match &message["content"] {
        Json::String(text) => text.clone(),
        parts => texts(list(parts)),
    };
    match message["type"].as_str() {
        Some("user") if !text.is_empty() && !text.starts_with(GEMINI_CONTEXT) => {
            vec![("user", text.into())]
        }
        Some("gemini") => {
            let thoughts = list(&message["thoughts"]).iter().filter_map(thought_block);
            let said = (!text.is_empty()).then(|| json!({ "type": "text", "text": text }));
            let calls = list(&message["toolCalls"]);
            let blocks: Vec<Json> =
                thoughts.chain(said).chain(calls.iter().filter_map(call_block)).collect();
            let results: Vec<Json> = calls.iter().filter_map(call_result).collect();
            let rows = [("assistant", blocks), ("user", results)].into_iter();
            rows.filter(|(_, it)| !it.is_empty()).map(|(role, it)| (role, it.into())).collect()
        }
        // Notes to the person, and results, which the calls contain too.
        _ => Vec::new(),
    }
}

fn list(value: &Json) -> &[Json] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn texts(parts: &[Json]) -> String {
    let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    texts.join("\n")
}

fn model_block(part: &Json) -> Option<Json> {
    let call = &part["functionCall"];
    if let Some(id) = call["id"].as_str() {
        let (name, input) = (&call["name"], &call["args"]);
        return Some(json!({ "type": "tool_use", "id": id, "name": name, "input": input }));
    }
    let text = part["text"].as_str().filter(|text| !text.is_empty())?;
    Some(match part["thought"] == true {
        true => json!({ "type": "thinking", "thinking": text }),
        false => json!({ "type": "text", "text": text }),
    })
}

fn thought_block(thought: &Json) -> Option<Json> {
    let text = |key: &str| thought[key].as_str().filter(|text| !text.is_empty());
    let texts: Vec<&str> = ["subject", "description"].into_iter().filter_map(text).collect();
    (!texts.is_empty()).then(|| json!({ "type": "thinking", "thinking": texts.join("\n") }))
}

fn call_block(call: &Json) -> Option<Json> {
    let id = call["id"].as_str()?;
    Some(json!({ "type": "tool_use", "id": id, "name": call["name"], "input": call["args"] }))
}

/// Returns the result of a call of Gemini CLI, which the call contains.
fn call_result(call: &Json) -> Option<Json> {
    let id = call["id"].as_str()?;
    let outputs: Vec<String> = list(&call["result"]).iter().map(response_text).collect();
    let is_error = call["status"] != "success";
    let content = outputs.join("\n");
    Some(json!({
        "type": "tool_result", "tool_use_id": id, "content": content, "is_error": is_error,
    }))
}

fn result_block(part: &Json) -> Option<Json> {
    let id = part["functionResponse"]["id"].as_str()?;
    let is_error = part["functionResponse"]["response"]["error"].is_string();
    let content = response_text(part);
    Some(json!({
        "type": "tool_result", "tool_use_id": id, "content": content, "is_error": is_error,
    }))
}

fn response_text(part: &Json) -> String {
    let response = &part["functionResponse"]["response"];
    let text = [&response["output"], &response["error"]].into_iter().find_map(Json::as_str);
    text.unwrap_or_default().to_owned()
}
