//! Builders for the lines written to an agent that speaks the control protocol.

use serde_json::{Value as Json, json};
use uuid::Uuid;

use crate::runtime::RuntimeEffect;

pub(crate) fn user_message(uuid: Uuid, text: &str) -> RuntimeEffect {
    write_line(&json!({
        "type": "user",
        "message": { "role": "user", "content": text },
        "parent_tool_use_id": null,
        "session_id": "",
        "uuid": uuid,
    }))
}

/// Builds a request of the runner.
pub(crate) fn control_request(id: &str, request: Json) -> RuntimeEffect {
    write_line(&json!({ "type": "control_request", "request_id": id, "request": request }))
}

pub(crate) fn success_response(id: &str, response: Json) -> RuntimeEffect {
    let response = json!({ "subtype": "success", "request_id": id, "response": response });
    write_line(&json!({ "type": "control_response", "response": response }))
}

/// Builds an error reply to a request that cannot be answered. For a permission request it means a
/// denial; for a hook it would let the call run.
pub(crate) fn error_response(id: &str, reason: &str) -> RuntimeEffect {
    let response = json!({ "subtype": "error", "request_id": id, "error": reason });
    write_line(&json!({ "type": "control_response", "response": response }))
}

/// Builds the reply of a hook that denies a call.
pub(super) fn hook_denial(reason: &str) -> Json {
    json!({ "hookSpecificOutput": {
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": reason,
    } })
}

/// Builds the reply of a hook that makes Claude ask for permission, whatever its own rules say.
pub(super) fn hook_question() -> Json {
    json!({ "hookSpecificOutput": {
        "hookEventName": "PreToolUse",
        "permissionDecision": "ask",
        "permissionDecisionReason": "a person reviews each action of this agent",
    } })
}

/// Refuses a request of which only the ID can be parsed, so that the agent does not wait forever.
pub(crate) fn refuse_unparsed(unread: &[u8]) -> Option<RuntimeEffect> {
    let text = String::from_utf8_lossy(unread);
    // The line is not valid JSON, so it can only be searched as text.
    text.contains("\"control_request\"").then_some(())?;
    let (_, rest) = text.split_once("\"request_id\"")?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    let (id, _) = rest.split_once('"')?;
    let reason = "this request could not be read";
    // Claude would run the call if the hook answered with an error.
    if text.contains("\"hook_callback\"") {
        return Some(success_response(id, hook_denial(reason)));
    }
    Some(error_response(id, reason))
}

fn write_line(value: &Json) -> RuntimeEffect {
    let mut bytes = value.to_string().into_bytes();
    bytes.push(b'\n');
    RuntimeEffect::Write(bytes)
}
