//! Questions of Qwen Code: permissions, which the policy or a person decides, and questions of the
//! model, which a person answers.

use heeler_config::PermissionMode;
use heeler_model::question;
use heeler_model::run::QuestionAnswer;
use serde_json::{Map, Value as Json, json};

use super::QwenRuntime;
use crate::claude::control_messages;
use crate::program_policy::{ProgramAction, ProgramVerdict};
use crate::program_questions::OPEN_QUESTIONS_MAX;
use crate::program_rows as rows;
use crate::runtime::{AgentQuestionKind, RuntimeEffect};

/// Tool with which the model asks a person.
const QUESTION_TOOL: &str = "ask_user_question";

/// Tools that change files, and name them in their input.
const EDIT_TOOLS: [&str; 4] = ["edit", "write_file", "notebook_edit", "replace"];

/// Tools that only read.
const READ_TOOLS: [&str; 6] =
    ["read_file", "read_many_files", "list_directory", "grep_search", "glob", "zoom_image"];

/// Keys under which tools receive the path of a file.
const PATH_KEYS: [&str; 4] = ["file_path", "absolute_path", "notebook_path", "path"];

/// Question that waits for a person.
#[derive(Debug)]
pub(super) struct QwenQuestion {
    /// Call that it is about.
    call: String,
    kind: AgentQuestionKind,
    input: Json,
}

impl QwenRuntime {
    /// Answers a question by the policy, or asks a person.
    pub(super) fn handle_question(&mut self, id: &str, request: &Json) -> Vec<RuntimeEffect> {
        if self.state.is_done || self.state.is_ending {
            return vec![control_messages::error_response(id, "the run is ending")];
        }
        if self.state.questions.contains_key(id) {
            return vec![control_messages::error_response(id, "the question is open already")];
        }
        let tool = request["tool_name"].as_str().unwrap_or_default();
        let input = request["input"].clone();
        let kind = match tool == QUESTION_TOOL {
            true => AgentQuestionKind::Question,
            false => AgentQuestionKind::Permission,
        };
        let verdict = match (kind, self.options.mode) {
            // Without an answer of a person it has no effect, so no mode allows it.
            (AgentQuestionKind::Question, mode) if mode != PermissionMode::DontAsk => {
                ProgramVerdict::AskPerson
            }
            _ => self.options.policy.decide(action_of(tool), &paths_of(tool, &input)),
        };
        match verdict {
            ProgramVerdict::Allow => vec![allow(id, &input)],
            ProgramVerdict::Deny(reason) => {
                let note = format!("{tool} was denied: {reason}");
                vec![rows::notice("denied", &note), deny(id, &reason)]
            }
            ProgramVerdict::AskPerson if self.state.questions.len() >= OPEN_QUESTIONS_MAX => {
                vec![control_messages::error_response(id, "too many questions are open")]
            }
            ProgramVerdict::AskPerson => {
                let call = request["tool_use_id"].as_str().unwrap_or_default().to_owned();
                let question = QwenQuestion { call, kind, input: input.clone() };
                self.state.questions.insert(id.to_owned(), question);
                let (id, tool) = (id.to_owned(), tool.to_owned());
                vec![RuntimeEffect::Ask { id, kind, tool, input, grant: None }]
            }
        }
    }

    /// Replies to an open question with a person's answer.
    pub(super) fn answer_question(
        &mut self,
        ask: &str,
        answer: &QuestionAnswer,
    ) -> Vec<RuntimeEffect> {
        let Some(QwenQuestion { kind, input, .. }) = self.state.questions.remove(ask) else {
            return Vec::new();
        };
        match answer {
            QuestionAnswer::Allow { input: Some(changed) } => match kind {
                AgentQuestionKind::Question => vec![allow(ask, &with_numbered_answers(changed))],
                AgentQuestionKind::Permission => vec![allow(ask, changed)],
            },
            // No grant is offered, so an answer never holds for later requests.
            QuestionAnswer::Allow { input: None }
            | QuestionAnswer::AllowSession
            | QuestionAnswer::AllowAlways => vec![allow(ask, &input)],
            QuestionAnswer::Deny { message, interrupt } => {
                let mut effects = vec![deny(ask, message)];
                if *interrupt && self.state.turn.is_some() {
                    self.state.is_interrupted = true;
                    effects.push(self.interrupt_turn());
                }
                effects
            }
        }
    }

    /// Closes the question about a call that has a result: Qwen Code no longer waits for the answer.
    pub(super) fn close_question_of(&mut self, call: &str) -> Vec<RuntimeEffect> {
        let about = |question: &QwenQuestion| question.call == call && !call.is_empty();
        let questions = &mut self.state.questions;
        let asks: Vec<String> = questions
            .iter()
            .filter(|(_, question)| about(question))
            .map(|(ask, _)| ask.clone())
            .collect();
        asks.into_iter()
            .map(|ask| {
                questions.remove(&ask);
                RuntimeEffect::Withdraw { ask }
            })
            .collect()
    }

    /// Denies and closes every open question.
    pub(super) fn withdraw_questions(&mut self) -> Vec<RuntimeEffect> {
        let open = self.state.questions.drain();
        open.flat_map(|(ask, _)| [deny(&ask, "the turn ends"), RuntimeEffect::Withdraw { ask }])
            .collect()
    }
}

fn action_of(tool: &str) -> ProgramAction {
    match tool {
        tool if EDIT_TOOLS.contains(&tool) => ProgramAction::Edit,
        tool if READ_TOOLS.contains(&tool) => ProgramAction::Read,
        _ => ProgramAction::Other,
    }
}

fn paths_of(tool: &str, input: &Json) -> Vec<String> {
    match action_of(tool) {
        // The words of a command are not paths.
        ProgramAction::Other => Vec::new(),
        ProgramAction::Edit | ProgramAction::Read => {
            PATH_KEYS.iter().filter_map(|key| input[*key].as_str()).map(str::to_owned).collect()
        }
    }
}

/// Returns the input with the answers keyed by the number of the question, as Qwen Code expects them.
/// Heeler keys them by the text of the question.
fn with_numbered_answers(input: &Json) -> Json {
    let mut numbered = Map::new();
    for (number, asked) in question::questions(input).iter().enumerate() {
        let answer = asked["question"].as_str().map(|text| &input["answers"][text]);
        match answer {
            None | Some(Json::Null) => {}
            Some(answer) => {
                numbered.insert(number.to_string(), answer.clone());
            }
        }
    }
    let mut input = input.clone();
    if input.is_object() {
        input["answers"] = Json::Object(numbered);
    }
    input
}

fn allow(id: &str, input: &Json) -> RuntimeEffect {
    // An allowed call runs with the input in the reply.
    control_messages::success_response(id, json!({ "behavior": "allow", "updatedInput": input }))
}

fn deny(id: &str, message: &str) -> RuntimeEffect {
    control_messages::success_response(id, json!({ "behavior": "deny", "message": message }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_keyed_by_the_number_of_the_question() {
        let input = json!({
            "questions": [{ "question": "A?" }, { "question": "B?" }, { "question": "C?" }],
            "answers": { "A?": "x", "C?": "z" },
        });
        assert_eq!(with_numbered_answers(&input)["answers"], json!({ "0": "x", "2": "z" }));
        assert_eq!(with_numbered_answers(&json!("text")), json!("text"));
        assert_eq!(with_numbered_answers(&json!({}))["answers"], json!({}));
    }
}
