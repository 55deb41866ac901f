//! Requests of the scripted agent to its host: permissions, questions, and calls of the host's MCP
//! tools.

use heeler_config::script::ScriptQuestion;
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::agent::ScriptedAgent;
use super::event::{ScriptedStopReason, ScriptedWaitOutcome};
use super::output::merge_objects;
use super::tools::ScriptedToolResult;

/// Decision of a person.
pub(super) enum ScriptedPermissionDecision {
    /// Allowed, possibly with another input.
    Allowed(Option<Json>),
    /// Denied; the turn continues.
    Denied(String),
    /// Denied; the turn stops.
    Interrupted,
}

/// Reply to a request.
enum ScriptedControlResponse {
    Response(Json),
    Failed(String),
    Interrupted,
}

impl ScriptedAgent {
    /// Asks for permission to use a tool. A denial is reported and counted.
    pub(super) fn ask_permission(
        &mut self,
        tool: &str,
        input: &Json,
        id: &str,
    ) -> Result<ScriptedPermissionDecision, ScriptedStopReason> {
        let decision = self.request_permission(tool, input, id)?;
        if !matches!(decision, ScriptedPermissionDecision::Allowed(_)) {
            let denial = json!({"tool_name": tool, "tool_use_id": id, "tool_input": input});
            self.turn.denials.push(denial);
        }
        Ok(decision)
    }

    fn request_permission(
        &mut self,
        tool: &str,
        input: &Json,
        id: &str,
    ) -> Result<ScriptedPermissionDecision, ScriptedStopReason> {
        if !self.settings.can_ask {
            let message = format!("No one can be asked for permission to use {tool}.");
            self.write_system_message(
                "permission_denied",
                json!({
                    "tool_name": tool, "tool_use_id": id, "decision_reason_type": "mode",
                    "message": message,
                }),
            );
            return Ok(ScriptedPermissionDecision::Denied(message));
        }
        let mut request = json!({
            "subtype": "can_use_tool", "tool_name": tool, "display_name": tool, "input": input,
            "permission_suggestions": [], "tool_use_id": id,
        });
        if tool == "AskUserQuestion" {
            merge_objects(&mut request, json!({"requires_user_interaction": true}));
        }
        let response = match self.send_request(request)? {
            ScriptedControlResponse::Response(response) => response,
            ScriptedControlResponse::Interrupted => {
                return Ok(ScriptedPermissionDecision::Interrupted);
            }
            ScriptedControlResponse::Failed(error) => {
                let message = format!("Tool permission request failed: {error}");
                return Ok(ScriptedPermissionDecision::Denied(message));
            }
        };
        Ok(match response["behavior"].as_str() {
            Some("allow") => {
                let changed = &response["updatedInput"];
                ScriptedPermissionDecision::Allowed(changed.is_object().then(|| changed.clone()))
            }
            _ if response["interrupt"] == true => ScriptedPermissionDecision::Interrupted,
            _ => {
                let message = response["message"].as_str().unwrap_or("It was denied.");
                ScriptedPermissionDecision::Denied(message.to_owned())
            }
        })
    }

    /// Asks a person to choose.
    pub(super) fn ask_question(
        &mut self,
        question: &ScriptQuestion,
    ) -> Result<(), ScriptedStopReason> {
        let text = self.variables.expand(&question.text);
        let option = |label: &String| json!({"label": label, "description": ""});
        let options: Vec<_> = question.options.iter().map(option).collect();
        let input = json!({"questions": [{
            "question": text, "header": question.header, "multiSelect": question.multi,
            "options": options,
        }]});
        let tool = "AskUserQuestion";
        let id = self.write_tool_use(tool, &input)?;
        self.variables.answer.clear();
        let outcome = match self.ask_permission(tool, &input, &id)? {
            ScriptedPermissionDecision::Interrupted => return self.reject_tool(&id),
            ScriptedPermissionDecision::Denied(message) => ScriptedToolResult::failure(message),
            ScriptedPermissionDecision::Allowed(changed) => {
                let answer = changed.map_or_else(String::new, |input| extract_answers(&input));
                self.variables.answer.clone_from(&answer);
                let text = format!("Your questions have been answered: \"{text}\"=\"{answer}\".");
                ScriptedToolResult { text, is_error: false }
            }
        };
        self.write_tool_result(&id, &outcome)
    }

    /// Calls a tool of the host's MCP servers.
    pub(super) fn call_mcp_tool(
        &mut self,
        server: &str,
        tool: &str,
        input: &Json,
    ) -> Result<Option<ScriptedToolResult>, ScriptedStopReason> {
        // A server expects to be initialized once, before its first call.
        if !self.initialized_servers.iter().any(|known| known == server) {
            let hello = json!({
                "protocolVersion": "2025-11-25", "capabilities": {},
                "clientInfo": {"name": "scripted", "version": env!("CARGO_PKG_VERSION")},
            });
            let greetings = [
                json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}),
                json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            ];
            for message in greetings {
                match self.send_mcp_message(server, message)? {
                    ScriptedControlResponse::Response(_) => {}
                    ScriptedControlResponse::Failed(error) => {
                        return Ok(Some(ScriptedToolResult::failure(error)));
                    }
                    ScriptedControlResponse::Interrupted => return Ok(None),
                }
            }
            self.initialized_servers.push(server.to_owned());
        }
        let params = json!({"name": tool, "arguments": input});
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        Ok(match self.send_mcp_message(server, message)? {
            ScriptedControlResponse::Response(reply) => Some(extract_tool_result(&reply)),
            ScriptedControlResponse::Failed(error) => Some(ScriptedToolResult::failure(error)),
            ScriptedControlResponse::Interrupted => None,
        })
    }

    fn send_mcp_message(
        &mut self,
        server: &str,
        message: Json,
    ) -> Result<ScriptedControlResponse, ScriptedStopReason> {
        let request = json!({"subtype": "mcp_message", "server_name": server, "message": message});
        Ok(match self.send_request(request)? {
            ScriptedControlResponse::Response(response) => {
                ScriptedControlResponse::Response(response["mcp_response"].clone())
            }
            other => other,
        })
    }

    fn send_request(
        &mut self,
        request: Json,
    ) -> Result<ScriptedControlResponse, ScriptedStopReason> {
        let id = Uuid::new_v4().to_string();
        self.output
            .write_line(&json!({"type": "control_request", "request_id": id, "request": request}));
        self.pending = Some(id.clone());
        // After the end of the input no reply can arrive.
        let waited = self.wait(None, |player| player.eof || player.replies.contains_key(&id))?;
        self.pending = None;
        if waited == ScriptedWaitOutcome::Interrupted {
            return Ok(ScriptedControlResponse::Interrupted);
        }
        let Some(reply) = self.replies.remove(&id) else {
            let reason = "AbortError: Tool permission stream closed before response received";
            return Ok(ScriptedControlResponse::Failed(reason.to_owned()));
        };
        Ok(match reply["subtype"].as_str() {
            Some("success") => ScriptedControlResponse::Response(reply["response"].clone()),
            _ => ScriptedControlResponse::Failed(format!(
                "Error: {}",
                reply["error"].as_str().unwrap_or("unknown")
            )),
        })
    }
}

/// Returns the answers contained in a question's input.
fn extract_answers(input: &Json) -> String {
    let text = |answer: &Json| match answer {
        Json::String(text) => text.clone(),
        Json::Array(many) => many.iter().filter_map(Json::as_str).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    };
    let answers = input["answers"].as_object().into_iter().flatten();
    answers.map(|(_, answer)| text(answer)).collect::<Vec<_>>().join(", ")
}

/// Extracts the result of an MCP tool call.
fn extract_tool_result(reply: &Json) -> ScriptedToolResult {
    if let Some(error) = reply.get("error") {
        return ScriptedToolResult::failure(
            error["message"].as_str().unwrap_or("the server failed"),
        );
    }
    let result = &reply["result"];
    let blocks = result["content"].as_array().into_iter().flatten();
    let texts: Vec<_> = blocks.filter_map(|block| block["text"].as_str()).collect();
    ScriptedToolResult { text: texts.join("\n"), is_error: result["isError"] == true }
}
