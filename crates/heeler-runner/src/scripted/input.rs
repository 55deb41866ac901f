//! Input of the scripted agent: prompts, control requests of its host, and replies to its own.

use serde_json::{Value as Json, json};

use super::agent::ScriptedAgent;
use super::event::ScriptedStopReason;
use super::output::MODEL;
use super::turn_state::ScriptedPrompt;

impl ScriptedAgent {
    /// Handles a line of the standard input.
    pub(super) fn handle_line(&mut self, line: &[u8]) -> Result<(), ScriptedStopReason> {
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        // Claude ends with this message too.
        let Ok(message) = serde_json::from_slice::<Json>(line) else {
            let length = line.len();
            let reason = format!(
                "Error parsing streaming input line (type=unknown, {length} chars): SyntaxError"
            );
            return Err(ScriptedStopReason::Protocol(reason));
        };
        match message["type"].as_str() {
            Some("user") => return self.queue_prompt(&message),
            Some("control_request") => self.handle_control_request(&message),
            Some("control_response") => {
                if let Some(id) = message["response"]["request_id"].as_str() {
                    self.replies.insert(id.to_owned(), message["response"].clone());
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn queue_prompt(&mut self, message: &Json) -> Result<(), ScriptedStopReason> {
        let role = message["message"]["role"].as_str();
        if role != Some("user") {
            let role = role.unwrap_or("undefined");
            let reason = format!("Error: Expected message role 'user', got '{role}'");
            return Err(ScriptedStopReason::Protocol(reason));
        }
        let uuid = message["uuid"].as_str().and_then(|uuid| uuid.parse().ok());
        self.write_lifecycle(uuid, "queued");
        self.queue
            .push_back(ScriptedPrompt { text: content_text(&message["message"]["content"]), uuid });
        Ok(())
    }

    fn handle_control_request(&mut self, message: &Json) {
        let request = &message["request"];
        let mode = "bypassPermissions";
        let reply = match request["subtype"].as_str().unwrap_or_default() {
            "initialize" => json!({
                "commands": [], "agents": [], "models": [{"value": MODEL, "displayName": MODEL}],
                "account": {}, "pid": std::process::id(), "output_style": "default",
                "current_permission_mode": mode, "capabilities": [],
            }),
            "interrupt" if self.ignores_interrupts => return,
            "interrupt" => self.interrupt(),
            "cancel_async_message" => self.cancel_prompt(&request["message_uuid"]),
            "set_permission_mode" => json!({"mode": request["mode"]}),
            "set_model" => json!({"model": request["model"]}),
            "mcp_status" => json!({"mcpServers": []}),
            other => {
                let error = format!("Unsupported control request subtype: {other}");
                let response = json!({
                    "subtype": "error", "request_id": message["request_id"], "error": error,
                    "error_code": "unsupported_request",
                });
                self.output.write_line(&json!({"type": "control_response", "response": response}));
                return;
            }
        };
        let response = json!({
            "subtype": "success", "request_id": message["request_id"], "response": reply,
        });
        self.output.write_line(&json!({"type": "control_response", "response": response}));
    }

    fn interrupt(&mut self) -> Json {
        // Between two turns there is nothing to interrupt.
        self.interrupted = self.turn.is_running;
        // The request would otherwise wait for a person forever.
        if let Some(id) = self.pending.take() {
            self.output.write_line(&json!({"type": "control_cancel_request", "request_id": id}));
        }
        let queued: Vec<_> = self.queue.iter().filter_map(|prompt| prompt.uuid).collect();
        json!({"still_queued": queued})
    }

    /// Removes a message of the user from the queue, if it is still queued.
    fn cancel_prompt(&mut self, uuid: &Json) -> Json {
        let queued =
            |prompt: &ScriptedPrompt| prompt.uuid.is_some_and(|queued| *uuid == json!(queued));
        let found = self.queue.iter().position(queued);
        if let Some(prompt) = found.and_then(|number| self.queue.remove(number)) {
            self.write_lifecycle(prompt.uuid, "cancelled");
        }
        json!({"cancelled": found.is_some()})
    }
}

/// Returns the text of a message, which is a string or a list of blocks.
fn content_text(content: &Json) -> String {
    match content {
        Json::String(text) => text.clone(),
        Json::Array(blocks) => {
            let texts: Vec<_> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}
