//! The Gemini API, as far as Gemini CLI uses it: content as a whole and as a stream, and token counts.
//!
//! A step may call the tools `sh` and `write`, as in `openai`.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value as Json, json};
use uuid::Uuid;

use super::event_stream::{PreparedEvent, pieces, stream};
use super::script::{ModelScriptStep, history};

/// Returns the conversation of a request in the form of the Messages API.
pub(super) fn messages(body: &Json) -> Json {
    let contents = body["contents"].as_array().into_iter().flatten();
    let messages = contents.map(|content| {
        let role = if content["role"] == "model" { "assistant" } else { "user" };
        let parts = content["parts"].as_array().into_iter().flatten();
        let blocks: Vec<Json> = parts.filter_map(block).collect();
        json!({ "role": role, "content": blocks })
    });
    json!({ "messages": messages.collect::<Vec<_>>() })
}

fn block(part: &Json) -> Option<Json> {
    let (call, response) = (&part["functionCall"], &part["functionResponse"]);
    if call.is_object() {
        return Some(json!({ "type": "tool_use", "name": call["name"], "input": call["args"] }));
    }
    if response.is_object() {
        return Some(json!({ "type": "tool_result", "content": response["response"] }));
    }
    let text = part["text"].as_str().filter(|_| part["thought"] != true)?;
    Some(json!({ "type": "text", "text": text }))
}

/// Returns the smallest reply to a request for JSON without tools, with which the agent chooses a
/// model or checks who speaks next. Such requests take no step of the script.
pub(super) fn side_step(body: &Json) -> Option<ModelScriptStep> {
    let config = &body["generationConfig"];
    let schema = [&config["responseSchema"], &config["responseJsonSchema"]];
    let schema = schema.into_iter().find(|schema| schema.is_object())?;
    let has_tools = body["tools"].as_array().is_some_and(|tools| !tools.is_empty());
    (!has_tools).then(|| ModelScriptStep::text(&smallest_value(schema).to_string()))
}

fn smallest_value(schema: &Json) -> Json {
    if let Some(value) = schema["enum"].get(0) {
        return value.clone();
    }
    match schema["type"].as_str().unwrap_or("object").to_lowercase().as_str() {
        "object" => {
            let properties = schema["properties"].as_object().into_iter().flatten();
            let fields = properties.map(|(name, schema)| (name.clone(), smallest_value(schema)));
            Json::Object(fields.collect::<Map<_, _>>())
        }
        "array" => json!([]),
        "integer" | "number" => json!(1),
        "boolean" => json!(false),
        _ => json!("mock"),
    }
}

/// Returns the reply for a step.
pub(super) async fn reply(mut step: ModelScriptStep, body: &Json, is_stream: bool) -> Response {
    if let Some(ms) = step.hang_ms {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
    if let Some(status) = step.status {
        return error(status, &step);
    }
    if step.echo {
        step.text = Some(history(&messages(body)).join("\n"));
    }
    if step.is_cut() && step.text.is_none() {
        (step.text, step.piece) = (Some("partial ".repeat(40)), Some(8));
    }
    let mut parts: Vec<Json> = Vec::new();
    parts.extend(step.thinking.iter().map(|text| json!({ "text": text, "thought": true })));
    let text = step.text.clone().unwrap_or_default();
    parts.extend(pieces(&text, &step).into_iter().map(|piece| json!({ "text": piece })));
    parts.extend(step.tools.iter().map(|tool| {
        let (name, args) = match tool.name.as_str() {
            "sh" => {
                let command = &tool.input["command"];
                ("run_shell_command", json!({ "command": command, "description": "mock" }))
            }
            "write" => {
                let (path, content) = (&tool.input["path"], &tool.input["content"]);
                ("write_file", json!({ "file_path": path, "content": content }))
            }
            name => (name, tool.input.clone()),
        };
        let id = format!("fc_{}", &Uuid::new_v4().simple().to_string()[..12]);
        let call = json!({ "name": name, "args": args, "id": id });
        json!({ "functionCall": call, "thoughtSignature": "c2ln" })
    }));
    if parts.is_empty() {
        parts.push(json!({ "text": "" }));
    }
    let count = |key: &str, usual: u64| {
        step.usage.as_ref().and_then(|usage| usage[key].as_u64()).unwrap_or(usual)
    };
    let (input, output, cached) = (count("input", 100), count("output", 20), count("cached", 0));
    let whole = |parts: Vec<Json>, is_last: bool| {
        let mut candidate = json!({ "content": { "role": "model", "parts": parts }, "index": 0 });
        if is_last {
            candidate["finishReason"] = json!("STOP");
        }
        json!({ "candidates": [candidate], "modelVersion": "mock", "responseId": "resp-mock",
            "usageMetadata": { "promptTokenCount": input, "candidatesTokenCount": output,
                "cachedContentTokenCount": cached, "totalTokenCount": input + output } })
    };
    if !is_stream {
        return axum::Json(whole(parts, true)).into_response();
    }
    let last = parts.len() - 1;
    let events = parts.into_iter().enumerate();
    let events = events
        .map(|(at, part)| PreparedEvent::unnamed(&whole(vec![part], at == last), true))
        .collect();
    stream(step, events)
}

fn error(status: u16, step: &ModelScriptStep) -> Response {
    let name = match status {
        400 => "INVALID_ARGUMENT",
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        429 => "RESOURCE_EXHAUSTED",
        503 => "UNAVAILABLE",
        _ => "INTERNAL",
    };
    let message = step.message.clone().unwrap_or_else(|| format!("mock says {status}"));
    let error = json!({ "error": { "code": status, "message": message, "status": name } });
    (StatusCode::from_u16(status).unwrap(), axum::Json(error)).into_response()
}
