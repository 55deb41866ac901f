//! Messages of Qwen Code: the course of a turn, its tokens and its errors.

use heeler_model::message::{AgentMessage, AssistantMessage, MessageBody, TurnResult, UserMessage};
use serde_json::{Map, Value as Json};

use super::{QWEN_AGENT, QwenRuntime, QwenTurn, with_parent};
use crate::program_rows::{
    self as rows, StreamedKind, TurnEnd, TurnUsage, api_error_code, find_http_status,
};
use crate::runtime::RuntimeEffect;

/// Beginning of a text that reports a failure of the API.
const API_ERROR: &str = "[API Error: ";

impl QwenRuntime {
    pub(super) fn handle_message(&mut self, message: AgentMessage) -> Vec<RuntimeEffect> {
        let parent = message.parent_tool_use_id.as_deref();
        match &message.body {
            MessageBody::Init(_) => self.handle_turn_begin(&message.fields),
            // Parts of a sub-agent's text are not the agent's.
            MessageBody::Delta { text } if parent.is_none() => {
                self.state.text.push(StreamedKind::Text, None, text)
            }
            MessageBody::Assistant(said) => self.handle_assistant(said, parent),
            MessageBody::User(input) => self.handle_user(input),
            MessageBody::Result(result) => self.handle_result(result, &message.fields),
            MessageBody::Task(task) => {
                // Within a turn, the model gets to know of it in that turn.
                self.state.is_notified |= task.is_finished() && self.state.turn.is_none();
                vec![RuntimeEffect::Message(message)]
            }
            // The words of the agent do not decide about the run.
            MessageBody::System { subtype } => {
                let mut fields = message.fields.clone();
                fields.insert("event".to_owned(), subtype.as_str().into());
                vec![rows::system_event("agent_notice", fields)]
            }
            MessageBody::Error { message: text, .. } => {
                vec![rows::unknown_message("error", &text.as_str().into())]
            }
            _ => vec![RuntimeEffect::Message(message)],
        }
    }

    fn handle_turn_begin(&mut self, fields: &Map<String, Json>) -> Vec<RuntimeEffect> {
        let text = |key: &str| fields.get(key).and_then(Json::as_str).map(str::to_owned);
        self.state.version = text("qwen_code_version");
        self.state.model = text("model");
        let is_notified = std::mem::take(&mut self.state.is_notified);
        let turn = match self.state.awaits_result && !is_notified {
            true => QwenTurn::Message,
            false => QwenTurn::Notification,
        };
        self.state.turn = Some(turn);
        let (version, model) = (self.state.version.as_deref(), self.state.model.as_deref());
        let mut effects = vec![rows::turn_init(QWEN_AGENT, version, model, self.options.mode)];
        if self.state.is_ending {
            effects.push(self.interrupt_turn());
        }
        effects
    }

    fn handle_assistant(
        &mut self,
        said: &AssistantMessage,
        parent: Option<&str>,
    ) -> Vec<RuntimeEffect> {
        if let Some(usage) = said.message.get("usage").and_then(read_usage) {
            let sum = self.state.turn_usage.unwrap_or_default();
            self.state.turn_usage = Some(sum.plus(usage));
        }
        let blocks = said.message.get("content").and_then(Json::as_array);
        let mut effects = self.flush_error_text();
        for block in blocks.into_iter().flatten() {
            effects.extend(self.handle_block(block, parent));
        }
        effects
    }

    fn handle_block(&mut self, block: &Json, parent: Option<&str>) -> Vec<RuntimeEffect> {
        let text = |key: &str| block[key].as_str().unwrap_or_default();
        match (text("type"), parent) {
            // The result tells whether the text is the model's.
            ("text", None) if text("text").starts_with(API_ERROR) => {
                let mut effects = self.flush_error_text();
                // The parts that arrived before are the model's.
                effects.extend(self.state.text.flush_before(text("text")));
                self.state.error_text = Some(text("text").to_owned());
                effects
            }
            ("text", None) => self.state.text.complete(text("text")),
            ("text" | "thinking", _) if text(text("type")).trim().is_empty() => Vec::new(),
            ("text" | "thinking", parent) => {
                vec![with_parent(rows::assistant(block.clone()), parent)]
            }
            ("tool_use", parent) => {
                let mut effects: Vec<RuntimeEffect> = self.state.text.flush().into_iter().collect();
                effects.extend(self.state.calls.start(block, parent));
                effects
            }
            _ => vec![rows::unknown_message("a content block", block)],
        }
    }

    /// Returns the text that began like an error, because the agent continued after it.
    fn flush_error_text(&mut self) -> Vec<RuntimeEffect> {
        let text = self.state.error_text.take();
        text.map(|text| self.state.text.complete(&text)).unwrap_or_default()
    }

    fn handle_user(&mut self, input: &UserMessage) -> Vec<RuntimeEffect> {
        let content = input.message.get("content").unwrap_or(&Json::Null);
        let mut effects = Vec::new();
        for block in content.as_array().into_iter().flatten() {
            if block["type"] == "tool_result" {
                let call = block["tool_use_id"].as_str().unwrap_or_default();
                effects.extend(self.close_question_of(call));
                effects.push(self.state.calls.complete(block));
            }
        }
        // Qwen Code shows its own notices as messages of the user.
        let text = heeler_model::message::content_text(content);
        if !text.trim().is_empty() {
            effects.push(rows::notice("agent_notice", &text));
        }
        effects
    }

    fn handle_result(
        &mut self,
        result: &TurnResult,
        fields: &Map<String, Json>,
    ) -> Vec<RuntimeEffect> {
        let turn = match (self.state.turn.take(), self.state.awaits_result) {
            (Some(turn), _) => turn,
            // A message that cannot be worked on has a result and no turn.
            (None, true) => QwenTurn::Message,
            (None, false) => {
                let fields = Json::Object(fields.clone());
                return vec![rows::unknown_message("a result without a turn", &fields)];
            }
        };
        if turn == QwenTurn::Message {
            self.state.awaits_result = false;
        }
        let is_interrupted = std::mem::take(&mut self.state.is_interrupted) || self.state.is_ending;
        let mut effects: Vec<RuntimeEffect> = Vec::new();
        let error_text = self.state.error_text.take();
        if let Some(text) = error_text.filter(|_| !result.is_error) {
            effects.extend(self.state.text.complete(&text));
        }
        effects.extend(self.state.text.flush());
        let reason = if is_interrupted { "interrupted" } else { "no result was reported" };
        effects.extend(self.state.calls.close_all(reason));
        effects.extend(self.withdraw_questions());
        effects.extend(self.end_turn(result, fields, is_interrupted));
        self.state.text.set_last("");
        effects.extend(self.next_turn());
        effects
    }

    /// Returns the rows of the end of a turn.
    fn end_turn(
        &mut self,
        result: &TurnResult,
        fields: &Map<String, Json>,
        is_interrupted: bool,
    ) -> Vec<RuntimeEffect> {
        let usage = self.take_usage(fields.get("usage").and_then(read_usage));
        let estimated_usd = self.options.budget.add_turn(usage.as_ref());
        let exhaustion = self.options.budget.exhaustion(None);
        if exhaustion.is_some() {
            self.state.queued.clear();
        }
        let model = self.state.model.clone();
        let end = TurnEnd {
            usage,
            estimated_usd,
            session_usage: self.state.session_usage,
            model: model.as_deref(),
            ..TurnEnd::default()
        };
        if is_interrupted {
            return vec![rows::turn_result(&TurnEnd {
                is_error: true,
                text: "the turn was interrupted",
                terminal_reason: Some("aborted_tools"),
                ..end
            })];
        }
        if result.is_error {
            return failed(&error_message(result, fields), end);
        }
        if let Some(reason) = exhaustion {
            return vec![rows::budget_end(&reason, end)];
        }
        let text = result.text.as_deref().unwrap_or(self.state.text.last()).to_owned();
        vec![rows::turn_result(&TurnEnd { text: &text, stop_reason: Some("end_turn"), ..end })]
    }

    /// Returns the tokens of the turn. Qwen Code reports the total of the session, which also counts
    /// the requests that it does not show. Without an earlier total, the shown requests count.
    fn take_usage(&mut self, total: Option<TurnUsage>) -> Option<TurnUsage> {
        let shown = self.state.turn_usage.take();
        let Some(total) = total else { return shown };
        let earlier = self.state.session_usage.replace(total);
        let increase = earlier.map(|earlier| total.since(earlier));
        match (increase, shown) {
            // A total that was reset would hide requests.
            (Some(increase), Some(shown)) => Some(increase.at_least(shown)),
            (increase, shown) => increase.or(shown),
        }
    }

    /// Returns the result of a turn that Qwen Code ended at its limit, without a result of its own.
    pub(super) fn max_turns_result(&mut self) -> Vec<RuntimeEffect> {
        if self.state.turn.take().is_none() || self.state.is_ending {
            return Vec::new();
        }
        let usage = self.take_usage(None);
        let estimated_usd = self.options.budget.add_turn(usage.as_ref());
        // The next run counts from here.
        let session_usage =
            self.state.session_usage.zip(usage).map(|(total, turn)| total.plus(turn));
        let turns = self.options.max_turns.unwrap_or_default();
        vec![rows::turn_result(&TurnEnd {
            is_error: true,
            text: &format!("the agent reached its limit of {turns} turns"),
            terminal_reason: Some("max_turns"),
            usage,
            session_usage,
            estimated_usd,
            model: self.state.model.as_deref(),
            ..TurnEnd::default()
        })]
    }
}

fn failed(message: &str, end: TurnEnd<'_>) -> Vec<RuntimeEffect> {
    let status = find_http_status(message);
    let code = api_error_code(status);
    vec![
        rows::api_error(message, status, code),
        rows::turn_result(&TurnEnd {
            is_error: true,
            text: message,
            terminal_reason: Some("api_error"),
            status,
            code,
            ..end
        }),
    ]
}

fn error_message(result: &TurnResult, fields: &Map<String, Json>) -> String {
    let error = fields.get("error").and_then(|error| error["message"].as_str());
    let text = error.or(result.text.as_deref()).filter(|text| !text.is_empty());
    text.unwrap_or("the turn failed, and Qwen Code did not say why").to_owned()
}

/// Reads token counts. Qwen Code counts cached tokens as input.
fn read_usage(usage: &Json) -> Option<TurnUsage> {
    let count = |key: &str| usage[key].as_u64();
    let cache_read = count("cache_read_input_tokens").unwrap_or(0);
    Some(TurnUsage {
        input: count("input_tokens")?.saturating_sub(cache_read),
        cache_read,
        cache_write: count("cache_creation_input_tokens").unwrap_or(0),
        output: count("output_tokens")?,
    })
}
