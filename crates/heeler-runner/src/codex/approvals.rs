//! Requests of Codex: approvals of commands and of changes of files.

use serde_json::{Value as Json, json};

use heeler_model::run::QuestionAnswer;

use super::items::CodexCall;
use super::{CodexRuntime, RPC};
use crate::json_rpc::{INVALID_REQUEST, METHOD_NOT_FOUND, RpcId};
use crate::program_policy::{ProgramAction, ProgramVerdict};
use crate::program_rows as rows;
use crate::runtime::{AgentQuestionKind, AgentRuntime as _, RuntimeEffect};

/// Limit on open approvals; further ones are declined.
const OPEN_APPROVALS_MAX: usize = 256;

/// Approval that Codex waits for.
pub(super) struct CodexQuestion {
    id: RpcId,
}

/// Decision about an approval, in Codex's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CodexDecision {
    Accept,
    /// The model learns of it, and the turn continues.
    Decline,
    /// The turn ends.
    Cancel,
}

impl CodexDecision {
    fn reply(self, id: &RpcId) -> RuntimeEffect {
        let word = match self {
            CodexDecision::Accept => "accept",
            CodexDecision::Decline => "decline",
            CodexDecision::Cancel => "cancel",
        };
        RPC.reply(id, json!({ "decision": word }))
    }
}

impl CodexRuntime {
    pub(super) fn handle_request(
        &mut self,
        id: RpcId,
        method: &str,
        params: &Json,
    ) -> Vec<RuntimeEffect> {
        match method {
            "item/commandExecution/requestApproval" => {
                self.handle_approval(id, params, ProgramAction::Other)
            }
            "item/fileChange/requestApproval" => {
                self.handle_approval(id, params, ProgramAction::Edit)
            }
            _ => {
                // Codex waits for a reply to every request.
                let reason = format!("Heeler does not offer `{method}`");
                vec![RPC.error_reply(&id, METHOD_NOT_FOUND, &reason)]
            }
        }
    }

    fn handle_approval(
        &mut self,
        id: RpcId,
        params: &Json,
        action: ProgramAction,
    ) -> Vec<RuntimeEffect> {
        let is_known = self.state.questions.contains_key(id.as_str());
        if !self.is_our_thread(params) || is_known || self.state.is_done {
            let reason = "this approval is not about the running thread, or repeats another";
            return vec![RPC.error_reply(&id, INVALID_REQUEST, reason)];
        }
        if self.state.is_ending || self.state.questions.len() >= OPEN_APPROVALS_MAX {
            return vec![CodexDecision::Cancel.reply(&id)];
        }
        let mut effects: Vec<RuntimeEffect> = self.state.text.flush().into_iter().collect();
        let call = self.described_call(params, action);
        // A request for access to a whole directory is a person's decision.
        let asks_for_root = params["grantRoot"].is_string();
        let action = if asks_for_root { ProgramAction::Other } else { action };
        match self.options.policy.decide(action, &call.paths) {
            ProgramVerdict::Allow => effects.push(CodexDecision::Accept.reply(&id)),
            ProgramVerdict::Deny(reason) => {
                effects
                    .push(rows::notice("denied", &format!("{} was denied: {reason}", call.name)));
                effects.push(CodexDecision::Decline.reply(&id));
            }
            ProgramVerdict::AskPerson => {
                effects.push(RuntimeEffect::Ask {
                    id: id.as_str().to_owned(),
                    kind: AgentQuestionKind::Permission,
                    tool: call.name,
                    input: call.input,
                    grant: None,
                });
                let question = CodexQuestion { id };
                self.state.questions.insert(question.id.as_str().to_owned(), question);
            }
        }
        effects
    }

    /// Returns the call that an approval is about: the started item, or what the request tells.
    fn described_call(&self, params: &Json, action: ProgramAction) -> CodexCall {
        let item = params["itemId"].as_str().unwrap_or_default();
        let mut call = match self.state.items.get(item) {
            Some(call) => call.clone(),
            None => CodexCall {
                name: if action == ProgramAction::Edit { "apply_patch" } else { "shell" }
                    .to_owned(),
                input: json!({ "command": params["command"], "cwd": params["cwd"] }),
                paths: Vec::new(),
            },
        };
        for (key, value) in [("reason", &params["reason"]), ("grantRoot", &params["grantRoot"])] {
            if let (Some(text), Json::Object(input)) = (value.as_str(), &mut call.input) {
                input.insert(key.to_owned(), text.into());
            }
        }
        call
    }

    pub(super) fn answer_question(
        &mut self,
        ask: &str,
        answer: &QuestionAnswer,
    ) -> Vec<RuntimeEffect> {
        // Codex may have withdrawn the approval with its turn.
        let Some(question) = self.state.questions.remove(ask) else { return Vec::new() };
        match answer {
            // The event loop refuses an answer that changes the input. No grant is offered, so an
            // answer never holds for later requests.
            QuestionAnswer::Allow { .. }
            | QuestionAnswer::AllowSession
            | QuestionAnswer::AllowAlways => {
                vec![CodexDecision::Accept.reply(&question.id)]
            }
            QuestionAnswer::Deny { interrupt: false, .. } => {
                vec![CodexDecision::Decline.reply(&question.id)]
            }
            QuestionAnswer::Deny { interrupt: true, .. } => {
                let mut effects = vec![CodexDecision::Cancel.reply(&question.id)];
                effects.extend(self.interrupt());
                effects
            }
        }
    }

    /// Cancels every open approval.
    pub(super) fn cancel_questions(&mut self) -> Vec<RuntimeEffect> {
        let mut effects = Vec::new();
        for (ask, question) in self.state.questions.drain() {
            effects.push(CodexDecision::Cancel.reply(&question.id));
            effects.push(RuntimeEffect::Withdraw { ask });
        }
        effects
    }

    /// Withdraws an approval that Codex no longer waits for.
    pub(super) fn handle_resolved(&mut self, params: &Json) -> Vec<RuntimeEffect> {
        let id = params["requestId"].to_string();
        match self.state.questions.remove(&id) {
            Some(_) => vec![RuntimeEffect::Withdraw { ask: id }],
            None => Vec::new(),
        }
    }
}
