//! What the player asks its host: may it, which one, and calls of MCP tools that the host offers.

use heeler_model::script::Question;
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::player::{Player, Stop, Waited, merge};
use super::tools::Outcome;

/// What a person decided.
pub(super) enum Decision {
    /// Do it, perhaps with another input.
    Allowed(Option<Json>),
    /// Do not, and go on.
    Denied(String),
    /// Do not, and stop.
    Interrupted,
}

/// What came back for a request.
enum Answer {
    Response(Json),
    Failed(String),
    Interrupted,
}

impl Player {
    /// Asks whether a tool may be used. A refusal is told and counted.
    pub(super) fn ask(&mut self, tool: &str, input: &Json, id: &str) -> Result<Decision, Stop> {
        let decision = self.decide(tool, input, id)?;
        if !matches!(decision, Decision::Allowed(_)) {
            let denial = json!({"tool_name": tool, "tool_use_id": id, "tool_input": input});
            self.turn.denials.push(denial);
        }
        Ok(decision)
    }

    fn decide(&mut self, tool: &str, input: &Json, id: &str) -> Result<Decision, Stop> {
        if !self.setting.asks {
            let message = format!("Nobody can be asked whether {tool} may be used.");
            self.system(
                "permission_denied",
                json!({
                    "tool_name": tool, "tool_use_id": id, "decision_reason_type": "mode",
                    "message": message,
                }),
            );
            return Ok(Decision::Denied(message));
        }
        let mut request = json!({
            "subtype": "can_use_tool", "tool_name": tool, "display_name": tool, "input": input,
            "permission_suggestions": [], "tool_use_id": id,
        });
        if tool == "AskUserQuestion" {
            merge(&mut request, json!({"requires_user_interaction": true}));
        }
        let response = match self.request(request)? {
            Answer::Response(response) => response,
            Answer::Interrupted => return Ok(Decision::Interrupted),
            Answer::Failed(error) => {
                let message = format!("Tool permission request failed: {error}");
                return Ok(Decision::Denied(message));
            }
        };
        Ok(match response["behavior"].as_str() {
            Some("allow") => {
                let changed = &response["updatedInput"];
                Decision::Allowed(changed.is_object().then(|| changed.clone()))
            }
            _ if response["interrupt"] == true => Decision::Interrupted,
            _ => {
                let message = response["message"].as_str().unwrap_or("It was denied.");
                Decision::Denied(message.to_owned())
            }
        })
    }

    /// Asks a person to choose.
    pub(super) fn ask_question(&mut self, question: &Question) -> Result<(), Stop> {
        let text = self.words.fill(&question.text);
        let option = |label: &String| json!({"label": label, "description": ""});
        let options: Vec<_> = question.options.iter().map(option).collect();
        let input = json!({"questions": [{
            "question": text, "header": question.header, "multiSelect": question.multi,
            "options": options,
        }]});
        let tool = "AskUserQuestion";
        let id = self.tool_use(tool, &input)?;
        self.words.answer.clear();
        let outcome = match self.ask(tool, &input, &id)? {
            Decision::Interrupted => return self.rejected(&id),
            Decision::Denied(message) => Outcome::bad(message),
            Decision::Allowed(changed) => {
                let answer = changed.map_or_else(String::new, |input| answer_in(&input));
                self.words.answer.clone_from(&answer);
                let text = format!("Your questions have been answered: \"{text}\"=\"{answer}\".");
                Outcome { text, fails: false }
            }
        };
        self.tool_result(&id, &outcome)
    }

    /// Calls a tool of an MCP server that the host offers.
    pub(super) fn call(
        &mut self,
        server: &str,
        tool: &str,
        input: &Json,
    ) -> Result<Option<Outcome>, Stop> {
        if !self.greeted.iter().any(|known| known == server) {
            let hello = json!({
                "protocolVersion": "2025-11-25", "capabilities": {},
                "clientInfo": {"name": "scripted", "version": env!("CARGO_PKG_VERSION")},
            });
            let greetings = [
                json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}),
                json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            ];
            for message in greetings {
                match self.mcp(server, message)? {
                    Answer::Response(_) => {}
                    Answer::Failed(error) => return Ok(Some(Outcome::bad(error))),
                    Answer::Interrupted => return Ok(None),
                }
            }
            self.greeted.push(server.to_owned());
        }
        let params = json!({"name": tool, "arguments": input});
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        Ok(match self.mcp(server, message)? {
            Answer::Response(reply) => Some(result_in(&reply)),
            Answer::Failed(error) => Some(Outcome::bad(error)),
            Answer::Interrupted => None,
        })
    }

    fn mcp(&mut self, server: &str, message: Json) -> Result<Answer, Stop> {
        let request = json!({"subtype": "mcp_message", "server_name": server, "message": message});
        Ok(match self.request(request)? {
            Answer::Response(response) => Answer::Response(response["mcp_response"].clone()),
            other => other,
        })
    }

    /// Sends a request and waits for its reply.
    fn request(&mut self, request: Json) -> Result<Answer, Stop> {
        let id = Uuid::new_v4().to_string();
        self.wire.line(&json!({"type": "control_request", "request_id": id, "request": request}));
        self.pending = Some(id.clone());
        let waited = self.wait(None, |player| player.eof || player.replies.contains_key(&id))?;
        self.pending = None;
        if waited == Waited::Interrupted {
            return Ok(Answer::Interrupted);
        }
        let Some(reply) = self.replies.remove(&id) else {
            let reason = "AbortError: Tool permission stream closed before response received";
            return Ok(Answer::Failed(reason.to_owned()));
        };
        Ok(match reply["subtype"].as_str() {
            Some("success") => Answer::Response(reply["response"].clone()),
            _ => Answer::Failed(format!("Error: {}", reply["error"].as_str().unwrap_or("unknown"))),
        })
    }
}

/// Returns the answers that were put into a question.
fn answer_in(input: &Json) -> String {
    let text = |answer: &Json| match answer {
        Json::String(text) => text.clone(),
        Json::Array(many) => many.iter().filter_map(Json::as_str).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    };
    let answers = input["answers"].as_object().into_iter().flatten();
    answers.map(|(_, answer)| text(answer)).collect::<Vec<_>>().join(", ")
}

/// Returns what a tool of an MCP server gave back.
fn result_in(reply: &Json) -> Outcome {
    if let Some(error) = reply.get("error") {
        return Outcome::bad(error["message"].as_str().unwrap_or("the server failed"));
    }
    let result = &reply["result"];
    let blocks = result["content"].as_array().into_iter().flatten();
    let texts: Vec<_> = blocks.filter_map(|block| block["text"].as_str()).collect();
    Outcome { text: texts.join("\n"), fails: result["isError"] == true }
}
