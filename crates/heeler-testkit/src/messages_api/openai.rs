//! The Responses API of OpenAI, as far as Codex uses it: `POST /v1/responses`, always as a stream.
//!
//! A step may call the tools `sh` and `write`: they stand for whichever shell and write tool the
//! request offers, with `{"command": …}` and `{"path": …, "content": …}`.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::event_stream::{PreparedEvent, pieces, stream};
use super::script::{ModelScriptStep, ModelToolCall, history};

/// Returns the conversation of a request in the form of the Messages API.
pub(super) fn messages(body: &Json) -> Json {
    let mut messages: Vec<Json> = Vec::new();
    for item in body["input"].as_array().into_iter().flatten() {
        let kind = item["type"].as_str().unwrap_or("message");
        let (role, block) = match kind {
            "message" => {
                let texts = item["content"].as_array().into_iter().flatten();
                let text: Vec<&str> = texts.filter_map(|block| block["text"].as_str()).collect();
                let role = item["role"].as_str();
                let role = role.filter(|role| matches!(*role, "user" | "assistant"));
                let role = role.unwrap_or("system");
                (role, json!({ "type": "text", "text": text.join("\n") }))
            }
            kind if kind.ends_with("_call") => {
                let input =
                    [&item["arguments"], &item["input"]].into_iter().find(|it| !it.is_null());
                let block = json!({ "type": "tool_use", "name": item["name"], "input": input });
                ("assistant", block)
            }
            kind if kind.ends_with("_output") => {
                ("user", json!({ "type": "tool_result", "content": item["output"] }))
            }
            _ => continue,
        };
        // The parts of one reply are items of their own.
        match messages.last_mut() {
            Some(last) if last["role"] == role && role == "assistant" => {
                last["content"].as_array_mut().unwrap().push(block);
            }
            _ => messages.push(json!({ "role": role, "content": [block] })),
        }
    }
    json!({ "messages": messages })
}

/// Returns the reply for a step.
pub(super) async fn reply(mut step: ModelScriptStep, body: &Json, number: usize) -> Response {
    if let Some(ms) = step.hang_ms {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
    if let Some(status) = step.status {
        return error(status, &step, number);
    }
    if step.echo {
        step.text = Some(history(&messages(body)).join("\n"));
    }
    if step.is_cut() && step.text.is_none() {
        (step.text, step.piece) = (Some("partial ".repeat(40)), Some(8));
    }
    let items = output_items(&step, body);
    let count = |key: &str, usual: u64| {
        step.usage.as_ref().and_then(|usage| usage[key].as_u64()).unwrap_or(usual)
    };
    let (input, output) = (count("input", 100), count("output", 20));
    let usage = json!({
        "input_tokens": input, "input_tokens_details": { "cached_tokens": count("cached", 0) },
        "output_tokens": output, "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": input + output,
    });
    let id = format!("resp_{}", Uuid::new_v4().simple());
    let base = json!({ "id": id, "object": "response", "created_at": 1_700_000_000,
        "status": "in_progress", "model": body["model"], "output": [], "error": null });
    let mut whole = base.clone();
    (whole["status"], whole["usage"]) = (json!("completed"), usage);
    whole["output"] = json!(items);
    let mut events = Vec::new();
    let mut event = |name: &str, mut data: Json, is_piece: bool| {
        data["type"] = json!(name);
        data["sequence_number"] = json!(events.len());
        events.push(PreparedEvent::named(name, &data, is_piece));
    };
    event("response.created", json!({ "response": base }), false);
    for (index, item) in items.iter().enumerate() {
        write_item(index, item, &step, &mut event);
    }
    event("response.completed", json!({ "response": whole }), false);
    let headers = step.headers.clone();
    with_headers(stream(step, events), &headers)
}

pub(super) fn error(status: u16, step: &ModelScriptStep, number: usize) -> Response {
    let (kind, code) = match status {
        401 => ("invalid_request_error", Some("invalid_api_key")),
        429 => ("requests", Some("rate_limit_exceeded")),
        500.. => ("server_error", None),
        _ => ("invalid_request_error", None),
    };
    let message = step.message.clone().unwrap_or_else(|| format!("mock says {status}"));
    let kind = step.error_type.as_deref().unwrap_or(kind);
    let error = json!({ "message": message, "type": kind, "param": null, "code": code,
        "resets_at": step.resets_at });
    let status = StatusCode::from_u16(status).unwrap();
    let id = [("x-request-id", format!("req_mock{number}"))];
    let reply = (status, id, axum::Json(json!({ "error": error }))).into_response();
    with_headers(reply, &step.headers)
}

fn with_headers(mut reply: Response, headers: &[(String, String)]) -> Response {
    for (name, value) in headers {
        let name: axum::http::HeaderName = name.parse().unwrap();
        reply.headers_mut().insert(name, value.parse().unwrap());
    }
    reply
}

fn output_items(step: &ModelScriptStep, body: &Json) -> Vec<Json> {
    let id = |prefix: &str| format!("{prefix}_{}", &Uuid::new_v4().simple().to_string()[..16]);
    let mut items = Vec::new();
    if let Some(thinking) = &step.thinking {
        let summary = json!([{ "type": "summary_text", "text": thinking }]);
        items.push(json!({ "type": "reasoning", "id": id("rs"), "summary": summary,
            "encrypted_content": "ZW5j" }));
    }
    if let Some(text) = &step.text {
        let content = json!([{ "type": "output_text", "text": text, "annotations": [] }]);
        items.push(json!({ "type": "message", "id": id("msg"), "role": "assistant",
            "status": "completed", "content": content }));
    }
    for tool in &step.tools {
        items.push(match offered_tool(tool, body) {
            OfferedTool::Function(name, input) => {
                // Codex names the tools of MCP servers by server and tool.
                let (space, name) = match name.split_once("::") {
                    Some((space, name)) => (Some(space), name),
                    None => (None, name.as_str()),
                };
                let mut call = json!({ "type": "function_call", "id": id("fc"),
                    "call_id": id("call"), "name": name, "arguments": input.to_string(),
                    "status": "completed" });
                if let Some(space) = space {
                    call["namespace"] = space.into();
                }
                call
            }
            OfferedTool::Text(name, input) => json!({ "type": "custom_tool_call", "id": id("ctc"),
                "call_id": id("call"), "name": name, "input": input, "status": "completed" }),
        });
    }
    items
}

/// Tool of a request.
enum OfferedTool {
    /// Its input is JSON.
    Function(String, Json),
    /// Its input is a text.
    Text(String, String),
}

/// Returns the tool of the request that a call of the script stands for.
fn offered_tool(tool: &ModelToolCall, body: &Json) -> OfferedTool {
    let tools = body["tools"].as_array().into_iter().flatten();
    let names: Vec<&str> = tools.filter_map(|tool| tool["name"].as_str()).collect();
    let command = &tool.input["command"];
    let text = |key: &str| tool.input[key].as_str().unwrap_or_default();
    match tool.name.as_str() {
        "sh" if names.contains(&"exec_command") => {
            let mut input = json!({ "cmd": command });
            // A script may ask to run the command outside of Codex's sandbox.
            for key in ["sandbox_permissions", "justification"] {
                if tool.input[key].is_string() {
                    input[key] = tool.input[key].clone();
                }
            }
            OfferedTool::Function("exec_command".to_owned(), input)
        }
        "sh" => OfferedTool::Function("shell_command".to_owned(), json!({ "command": command })),
        "write" => {
            let (path, content) = (text("path"), text("content"));
            let lines: String = content.lines().map(|line| format!("+{line}\n")).collect();
            let patch = format!("*** Begin Patch\n*** Add File: {path}\n{lines}*** End Patch");
            OfferedTool::Text("apply_patch".to_owned(), patch)
        }
        name => OfferedTool::Function(name.to_owned(), tool.input.clone()),
    }
}

fn write_item(
    index: usize,
    item: &Json,
    step: &ModelScriptStep,
    event: &mut impl FnMut(&str, Json, bool),
) {
    let id = &item["id"];
    let kind = item["type"].as_str().unwrap_or_default();
    let (key, delta, content) = match kind {
        "message" => ("content", "response.output_text.delta", &item["content"][0]["text"]),
        "reasoning" => {
            ("summary", "response.reasoning_summary_text.delta", &item["summary"][0]["text"])
        }
        "function_call" => {
            ("arguments", "response.function_call_arguments.delta", &item["arguments"])
        }
        _ => ("input", "response.custom_tool_call_input.delta", &item["input"]),
    };
    let mut added = item.clone();
    added[key] = if item[key].is_array() { json!([]) } else { json!("") };
    event("response.output_item.added", json!({ "output_index": index, "item": added }), false);
    let place = json!({ "item_id": id, "output_index": index, "content_index": 0,
        "summary_index": 0 });
    match kind {
        "message" => {
            let mut part = place.clone();
            part["part"] = json!({ "type": "output_text", "text": "", "annotations": [] });
            event("response.content_part.added", part, false);
        }
        "reasoning" => {
            let mut part = place.clone();
            part["part"] = json!({ "type": "summary_text", "text": "" });
            event("response.reasoning_summary_part.added", part, false);
        }
        _ => {}
    }
    for piece in pieces(content.as_str().unwrap_or_default(), step) {
        let mut data = place.clone();
        data["delta"] = json!(piece);
        event(delta, data, true);
    }
    event("response.output_item.done", json!({ "output_index": index, "item": item }), false);
}
