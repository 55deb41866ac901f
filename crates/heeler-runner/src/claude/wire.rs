//! The lines that are written to an agent that speaks the control protocol.

use serde_json::{Value as Json, json};
use uuid::Uuid;

use crate::runtime::Step;

/// A message of the user's.
pub(super) fn user(uuid: Uuid, text: &str) -> Step {
    line(&json!({
        "type": "user",
        "message": { "role": "user", "content": text },
        "parent_tool_use_id": null,
        "session_id": "",
        "uuid": uuid,
    }))
}

/// A request of ours.
pub(super) fn request(id: &str, request: Json) -> Step {
    line(&json!({ "type": "control_request", "request_id": id, "request": request }))
}

/// An answer.
pub(super) fn reply(id: &str, response: Json) -> Step {
    let response = json!({ "subtype": "success", "request_id": id, "response": response });
    line(&json!({ "type": "control_response", "response": response }))
}

/// An answer to what cannot be answered. To a permission request it is a denial; a hook would let
/// the call run.
pub(super) fn refuse(id: &str, reason: &str) -> Step {
    let response = json!({ "subtype": "error", "request_id": id, "error": reason });
    line(&json!({ "type": "control_response", "response": response }))
}

/// The answer of a hook that does not let a call run.
pub(super) fn denial(reason: &str) -> Json {
    json!({ "hookSpecificOutput": {
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": reason,
    } })
}

/// Refuses a request that cannot be read but for its id, so that the agent does not wait for ever.
pub(super) fn refuse_unread(unread: &[u8]) -> Option<Step> {
    let text = String::from_utf8_lossy(unread);
    text.contains("\"control_request\"").then_some(())?;
    let (_, rest) = text.split_once("\"request_id\"")?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    let (id, _) = rest.split_once('"')?;
    let reason = "this request could not be read";
    if text.contains("\"hook_callback\"") {
        return Some(reply(id, denial(reason)));
    }
    Some(refuse(id, reason))
}

fn line(value: &Json) -> Step {
    let mut bytes = value.to_string().into_bytes();
    bytes.push(b'\n');
    Step::Write(bytes)
}
