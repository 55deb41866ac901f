//! Requests of Codex: approvals of commands and of changes of files.

use serde_json::{Value as Json, json};

use heeler_model::run::QuestionAnswer;

use super::items::CodexCall;
use super::{CodexRuntime, RPC};
use crate::json_rpc::{INVALID_REQUEST, METHOD_NOT_FOUND, RpcId};
use crate::program_policy::ProgramAction;
use crate::program_questions::{AskedAction, ProgramQuestion, QuestionReply};
use crate::runtime::{AgentRuntime as _, RuntimeEffect};

/// Approval that Codex waits for.
pub(super) struct CodexQuestion {
    id: RpcId,
}

impl ProgramQuestion for CodexQuestion {
    fn id(&self) -> &RpcId {
        &self.id
    }

    fn reply(&self, reply: QuestionReply) -> RuntimeEffect {
        let word = match reply {
            QuestionReply::Allow => "accept",
            // The model learns of it, and the turn continues.
            QuestionReply::Deny => "decline",
            // The turn ends.
            QuestionReply::DenyAndEnd | QuestionReply::Withdraw => "cancel",
        };
        RPC.reply(&self.id, json!({ "decision": word }))
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
        let is_known = self.state.questions.contains(&id);
        if !self.is_our_thread(params) || is_known || self.state.is_done {
            let reason = "this approval is not about the running thread, or repeats another";
            return vec![RPC.error_reply(&id, INVALID_REQUEST, reason)];
        }
        let question = CodexQuestion { id };
        if self.state.is_ending || !self.state.questions.has_room() {
            return vec![question.reply(QuestionReply::Withdraw)];
        }
        let mut effects: Vec<RuntimeEffect> = self.state.text.flush().into_iter().collect();
        let call = self.described_call(params, action);
        // A request for access to a whole directory is a person's decision.
        let asks_for_root = params["grantRoot"].is_string();
        let action = if asks_for_root { ProgramAction::Other } else { action };
        let verdict = self.options.policy.decide(action, &call.paths);
        let asked = AskedAction { name: call.name, input: call.input };
        effects.extend(self.state.questions.decide(question, asked, verdict).effects);
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
        let Some(decision) = self.state.questions.answer(ask, answer) else { return Vec::new() };
        let mut effects = decision.effects;
        if decision.ends_turn {
            effects.extend(self.interrupt());
        }
        effects
    }

    /// Withdraws an approval that Codex no longer waits for.
    pub(super) fn handle_resolved(&mut self, params: &Json) -> Vec<RuntimeEffect> {
        let id = params["requestId"].to_string();
        self.state.questions.forget(&id).into_iter().collect()
    }
}
