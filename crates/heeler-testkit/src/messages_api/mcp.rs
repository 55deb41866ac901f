//! An MCP server at `/mcp` of the fake API, so that tests see which requests and headers reach
//! one.
//!
//! It has one tool, `add`, which adds `a` and `b`.

use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value as Json, json};

/// Answers one message.
pub(super) fn reply(message: &Json) -> Response {
    let id = &message["id"];
    if id.is_null() {
        return StatusCode::ACCEPTED.into_response();
    }
    let reply = match message["method"].as_str() {
        Some("initialize") => Ok(json!({
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "adder", "version": "1"},
        })),
        Some("tools/list") => Ok(json!({"tools": [tool()]})),
        Some("tools/call") => {
            let given = |name: &str| message["params"]["arguments"][name].as_i64().unwrap_or(0);
            // Gemini CLI takes a text that is only a number for structured content, and refuses it.
            let sum = format!("the sum is {}", given("a") + given("b"));
            Ok(json!({"content": [{"type": "text", "text": sum}]}))
        }
        other => Err(json!({"code": -32601, "message": format!("no method {other:?}")})),
    };
    let (key, value) = match reply {
        Ok(result) => ("result", result),
        Err(error) => ("error", error),
    };
    axum::Json(json!({"jsonrpc": "2.0", "id": id, key: value})).into_response()
}

fn tool() -> Json {
    let number = json!({"type": "integer"});
    let schema = json!({"type": "object", "properties": {"a": number, "b": number}});
    json!({"name": "add", "description": "Adds two numbers.", "inputSchema": schema})
}
