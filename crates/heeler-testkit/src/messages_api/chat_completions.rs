//! The Chat Completions API of OpenAI, as far as agents use it: as a stream and as a
//! whole.
//!
//! A step may call the tools `sh` and `write`, as in `openai`.

use std::time::Duration;

use axum::response::{IntoResponse as _, Response};
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::event_stream::{PreparedEvent, pieces, stream};
use super::openai;
use super::script::{ModelScriptStep, ModelToolCall, history};

/// Names of shell tools. Their input is `command`.
const SHELL_TOOLS: [&str; 6] =
    ["shell", "developer__shell", "run_shell_command", "run_terminal_command", "bash", "Bash"];

/// Names of tools that write a file, and of their inputs.
const WRITE_TOOLS: [&str; 5] = ["write", "developer__write", "write_file", "create", "Write"];
const PATH_INPUTS: [&str; 3] = ["path", "file_path", "filePath"];
const CONTENT_INPUTS: [&str; 2] = ["content", "file_text"];

/// Returns the conversation of a request in the form of the Messages API.
pub(super) fn messages(body: &Json) -> Json {
    let messages = body["messages"].as_array().into_iter().flatten().map(|message| {
        // A prompt may be beside a reminder in the same message, so its blocks stay apart.
        let texts: Vec<&str> = match &message["content"] {
            Json::String(text) => vec![text],
            content => {
                let blocks = content.as_array().into_iter().flatten();
                blocks.filter_map(|block| block["text"].as_str()).collect()
            }
        };
        let text = texts.join("\n");
        match message["role"].as_str().unwrap_or_default() {
            "tool" => {
                json!({ "role": "user", "content": [{ "type": "tool_result", "content": text }] })
            }
            "assistant" => {
                let calls = message["tool_calls"].as_array().into_iter().flatten();
                let calls = calls.map(|call| {
                    let function = &call["function"];
                    json!({ "type": "tool_use", "name": function["name"],
                        "input": function["arguments"] })
                });
                let text = (!text.is_empty()).then(|| json!({ "type": "text", "text": text }));
                let blocks: Vec<Json> = text.into_iter().chain(calls).collect();
                json!({ "role": "assistant", "content": blocks })
            }
            role => {
                let role = if role == "user" { "user" } else { "system" };
                let blocks = texts.iter().map(|text| json!({ "type": "text", "text": text }));
                json!({ "role": role, "content": blocks.collect::<Vec<_>>() })
            }
        }
    });
    json!({ "messages": messages.collect::<Vec<_>>() })
}

/// Returns the reply to a request without tools, with which an agent makes titles. Such requests take
/// no step of the script.
pub(super) fn side_step(body: &Json) -> Option<ModelScriptStep> {
    let has_tools = body["tools"].as_array().is_some_and(|tools| !tools.is_empty());
    (!has_tools).then(|| ModelScriptStep::text("a title"))
}

/// Returns the reply for a step.
pub(super) async fn reply(mut step: ModelScriptStep, body: &Json, number: usize) -> Response {
    if let Some(ms) = step.hang_ms {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
    if let Some(status) = step.status {
        return openai::error(status, &step, number);
    }
    if step.echo {
        step.text = Some(history(&messages(body)).join("\n"));
    }
    if step.is_cut() && step.text.is_none() {
        (step.text, step.piece) = (Some("partial ".repeat(40)), Some(8));
    }
    let calls: Vec<Json> = step.tools.iter().map(|tool| call(tool, body)).collect();
    let finish = if calls.is_empty() { "stop" } else { "tool_calls" };
    let count = |key: &str, usual: u64| {
        step.usage.as_ref().and_then(|usage| usage[key].as_u64()).unwrap_or(usual)
    };
    let (input, output) = (count("input", 100), count("output", 20));
    let usage = json!({ "prompt_tokens": input, "completion_tokens": output,
        "total_tokens": input + output,
        "prompt_tokens_details": { "cached_tokens": count("cached", 0) } });
    let id = format!("chatcmpl-{}", Uuid::new_v4().simple());
    if body["stream"] != true {
        let mut message = json!({ "role": "assistant", "content": step.text });
        if !calls.is_empty() {
            message["tool_calls"] = json!(calls);
        }
        return axum::Json(
            json!({ "id": id, "object": "chat.completion", "created": 1_700_000_000,
            "model": body["model"], "usage": usage,
            "choices": [{ "index": 0, "message": message, "finish_reason": finish }] }),
        )
        .into_response();
    }
    let chunk = |choices: Json, usage: Json| {
        json!({ "id": id, "object": "chat.completion.chunk", "created": 1_700_000_000,
            "model": body["model"], "choices": choices, "usage": usage })
    };
    let delta = |delta: Json, finish: Option<&str>| {
        let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
        chunk(json!([choice]), Json::Null)
    };
    let mut events = Vec::new();
    let mut event =
        |data: &Json, is_piece: bool| events.push(PreparedEvent::data(&data.to_string(), is_piece));
    event(&delta(json!({ "role": "assistant", "content": "" }), None), false);
    if let Some(thinking) = &step.thinking {
        event(&delta(json!({ "reasoning_content": thinking }), None), true);
    }
    for piece in pieces(step.text.as_deref().unwrap_or_default(), &step) {
        event(&delta(json!({ "content": piece }), None), true);
    }
    for (index, call) in calls.iter().enumerate() {
        let mut call = call.clone();
        call["index"] = index.into();
        event(&delta(json!({ "tool_calls": [call] }), None), true);
    }
    event(&delta(json!({}), Some(finish)), false);
    event(&chunk(json!([]), usage), false);
    events.push(PreparedEvent::data("[DONE]", false));
    stream(step, events)
}

/// Returns the call of the offered tool that a call of the script stands for.
fn call(tool: &ModelToolCall, body: &Json) -> Json {
    let tools = body["tools"].as_array().into_iter().flatten();
    let names: Vec<&str> = tools.filter_map(|tool| tool["function"]["name"].as_str()).collect();
    let (name, input) = match tool.name.as_str() {
        "sh" => {
            let name = offered_tool(&names, &SHELL_TOOLS);
            let mut input = json!({ "command": tool.input["command"] });
            let declared = declared_inputs(body, name);
            if declared["description"].is_object() {
                input["description"] = "Runs a command".into();
            }
            if declared["is_background"].is_object() {
                input["is_background"] = false.into();
            }
            (name, input)
        }
        "write" => {
            let name = offered_tool(&names, &WRITE_TOOLS);
            let declared = declared_inputs(body, name);
            let input = |names: &[&'static str]| {
                let found = names.iter().find(|name| declared[**name].is_object());
                found.or(names.first()).copied().unwrap_or_default()
            };
            let (path, content) = (input(&PATH_INPUTS), input(&CONTENT_INPUTS));
            (name, json!({ path: tool.input["path"], content: tool.input["content"] }))
        }
        // Agents put the name of the MCP server before the name of its tool.
        name => {
            let suffix = format!("_{name}");
            let found =
                names.iter().find(|offered| **offered == name || offered.ends_with(&suffix));
            (found.copied().unwrap_or(name), tool.input.clone())
        }
    };
    let id = format!("call_{}", &Uuid::new_v4().simple().to_string()[..16]);
    let function = json!({ "name": name, "arguments": input.to_string() });
    json!({ "id": id, "type": "function", "function": function })
}

/// Returns the first of these tools that the request offers.
fn offered_tool(names: &[&str], known: &[&'static str]) -> &'static str {
    let found = known.iter().find(|name| names.contains(name));
    found.or(known.first()).copied().unwrap_or_default()
}

/// Returns the inputs of a tool, as the request declares them.
fn declared_inputs<'b>(body: &'b Json, name: &str) -> &'b Json {
    let mut tools = body["tools"].as_array().into_iter().flatten();
    let found = tools.find(|tool| tool["function"]["name"] == name);
    found.map_or(&Json::Null, |tool| &tool["function"]["parameters"]["properties"])
}
