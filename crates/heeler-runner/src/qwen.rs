//! Qwen Code through its dialect of Claude's control protocol (`runtime: qwen`).
//!
//! The lines have Claude's form, and Heeler uses them in a different way: Qwen Code has no hook before
//! a call, reports totals of the session instead of tokens of the turn, denies a question by itself
//! after some minutes, and exits without a result at its limit of turns. So the runtime sends one
//! message at a time, answers questions by the policy that agents besides Claude share, and builds
//! rows of its own. Start at [`QwenRuntime`].

mod calls;
mod questions;
#[cfg(test)]
pub(crate) mod replay;
#[cfg(test)]
mod tests;
mod turn;

use std::collections::{HashMap, VecDeque};

use heeler_config::{PermissionMode, ReasoningEffort};
use heeler_model::message::{AgentMessage, ID_BYTES_MAX, MessageBody, parse_line};
use heeler_model::run::{QuestionAnswer, SessionStart};
use serde_json::{Map, Value as Json, json};
use uuid::Uuid;

use crate::claude::control_messages;
use crate::json_rpc::{LOST_OPENING, is_damaged_message};
use crate::process::{LaunchArg, LaunchSpec};
use crate::program_policy::ProgramPolicy;
use crate::program_rows::{self as rows, CollectedText, TurnUsage};
use crate::runtime::{AgentRuntime, RuntimeEffect};
use crate::token_budget::TokenBudget;
use calls::QwenCalls;
use questions::QwenQuestion;

/// Name of the agent in rows, and in the record of a session.
pub(crate) const QWEN_AGENT: &str = "qwen";

/// ID of the first request.
const INITIALIZE: &str = "heeler-initialize";

/// Time that Qwen Code waits for an answer before it denies an action itself. It accepts no longer
/// one.
const ANSWER_TIME_MS: u64 = 600_000;

/// Exit code of Qwen Code at its limit of turns.
const MAX_TURNS_EXIT: i32 = 53;

/// Inputs of a run known before Qwen Code starts.
pub(crate) struct QwenLaunchOptions {
    /// Program with the arguments of the config; those of the protocol follow them.
    pub(crate) launch: LaunchSpec,
    pub(crate) mode: PermissionMode,
    pub(crate) policy: ProgramPolicy,
    pub(crate) system_prompt: Option<String>,
    pub(crate) model: Option<String>,
    /// Reasoning effort of the model.
    pub(crate) effort: Option<ReasoningEffort>,
    /// Limit of model requests for one message.
    pub(crate) max_turns: Option<u32>,
    /// MCP servers, in the form of Qwen Code's settings.
    pub(crate) servers: Map<String, Json>,
    /// Session to continue, as an earlier run recorded it.
    pub(crate) native_session: Option<String>,
    /// Tokens of that session, as the last result of it reports them.
    pub(crate) session_usage: Option<TurnUsage>,
    pub(crate) budget: TokenBudget,
}

/// Runtime of Qwen Code.
pub(crate) struct QwenRuntime {
    prompt: String,
    options: QwenLaunchOptions,
    start: QwenSessionStart,
    state: QwenState,
}

/// Session to open.
#[derive(Debug, Clone, PartialEq, Eq)]
enum QwenSessionStart {
    New,
    Resume(String),
    /// Continue a session for which no ID is recorded.
    Lost,
    /// Fork or summarize, which Qwen Code is not asked for.
    Unsupported,
}

/// Turn that Qwen Code works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QwenTurn {
    /// Turn of a message.
    Message,
    /// Turn that the end of a background task began.
    Notification,
}

/// State of one conversation.
#[derive(Default)]
struct QwenState {
    requests_sent: u64,
    /// Qwen Code has accepted its settings.
    is_ready: bool,
    version: Option<String>,
    model: Option<String>,
    queued: VecDeque<(Uuid, String)>,
    /// A message was sent that has no result.
    awaits_result: bool,
    turn: Option<QwenTurn>,
    /// A background task reported its end, which begins a turn.
    is_notified: bool,
    /// The running turn was interrupted by a person's answer.
    is_interrupted: bool,
    is_ending: bool,
    is_done: bool,
    text: CollectedText,
    /// Text that may be the report of an API failure; the result tells.
    error_text: Option<String>,
    calls: QwenCalls,
    questions: HashMap<String, QwenQuestion>,
    /// Tokens of the requests that the running turn shows.
    turn_usage: Option<TurnUsage>,
    /// Tokens of the session at the last result.
    session_usage: Option<TurnUsage>,
}

impl QwenRuntime {
    pub(crate) fn new(prompt: String, options: QwenLaunchOptions) -> QwenRuntime {
        QwenRuntime { prompt, options, start: QwenSessionStart::New, state: QwenState::default() }
    }

    /// Returns the options of the protocol and of the session.
    fn protocol_args(&self) -> Vec<LaunchArg> {
        let text = |text: &str| LaunchArg::Text(text.to_owned());
        let mut args: Vec<LaunchArg> = ["--input-format", "--output-format"]
            .into_iter()
            .flat_map(|option| [text(option), text("stream-json")])
            .collect();
        args.push(text("--include-partial-messages"));
        args.extend([text("--approval-mode"), text(self.approval_mode())]);
        // A value may begin with a dash, so it is part of its option.
        if let QwenSessionStart::Resume(id) = &self.start {
            args.push(LaunchArg::Text(format!("--resume={id}")));
        }
        if let Some(model) = &self.options.model {
            args.push(LaunchArg::ConfigText("model", format!("--model={model}")));
        }
        if let Some(prompt) = &self.options.system_prompt {
            let option = format!("--append-system-prompt={prompt}");
            args.push(LaunchArg::ConfigText("system_prompt", option));
        }
        if let Some(turns) = self.options.max_turns {
            args.push(LaunchArg::Text(format!("--max-session-turns={turns}")));
        }
        args
    }

    /// Returns Qwen Code's own mode for the permission mode. In its mode `default` it asks, and the
    /// policy answers.
    fn approval_mode(&self) -> &'static str {
        match self.options.mode {
            PermissionMode::BypassPermissions => "yolo",
            PermissionMode::Plan => "plan",
            PermissionMode::Auto => "auto",
            PermissionMode::Default
            | PermissionMode::AcceptEdits
            | PermissionMode::DontAsk
            | PermissionMode::Delegate => "default",
        }
    }

    fn make_request(&mut self, request: Json) -> RuntimeEffect {
        self.state.requests_sent += 1;
        control_messages::control_request(&format!("heeler-{}", self.state.requests_sent), request)
    }

    fn interrupt_turn(&mut self) -> RuntimeEffect {
        self.make_request(json!({ "subtype": "interrupt" }))
    }

    /// Ends the run with an error that no further prompt can change.
    fn give_up(&mut self, message: &str, code: Option<&str>) -> Vec<RuntimeEffect> {
        if self.state.is_done {
            return Vec::new();
        }
        let mut effects: Vec<RuntimeEffect> = self.state.text.flush().into_iter().collect();
        effects.extend(self.state.calls.close_all("Qwen Code gave up"));
        effects.push(rows::fatal_error(message, code));
        effects.extend(self.finish());
        effects
    }

    fn finish(&mut self) -> Vec<RuntimeEffect> {
        self.state.is_done = true;
        let mut effects = self.withdraw_questions();
        effects.push(RuntimeEffect::Done);
        effects
    }

    /// Sends the next message; ends the conversation if there is nothing left to say.
    fn next_turn(&mut self) -> Vec<RuntimeEffect> {
        if self.state.awaits_result || self.state.turn.is_some() || self.state.is_done {
            return Vec::new();
        }
        let Some((uuid, text)) = self.state.queued.pop_front() else { return self.finish() };
        self.state.awaits_result = true;
        vec![control_messages::user_message(uuid, &text)]
    }

    /// Handles the reply to a request of the runner.
    fn handle_reply(&mut self, fields: &Map<String, Json>) -> Vec<RuntimeEffect> {
        let response = fields.get("response").unwrap_or(&Json::Null);
        let failure = (response["subtype"] != "success")
            .then(|| response["error"].as_str().unwrap_or("it did not say why").to_owned());
        let is_first = response["request_id"] == INITIALIZE && !self.state.is_ready;
        // Until the settings are accepted, there is no other request that it could be a reply to.
        if !is_first && self.is_opening() {
            return self.give_up(LOST_OPENING, None);
        }
        match (is_first && !self.state.is_done, failure) {
            (true, Some(why)) => {
                self.give_up(&format!("Qwen Code cannot be initialized: {why}"), None)
            }
            (true, None) => self.handle_initialized(&response["response"]),
            // The end of the turn tells whether an interrupt had an effect.
            (false, _) => Vec::new(),
        }
    }

    fn handle_initialized(&mut self, reply: &Json) -> Vec<RuntimeEffect> {
        let id = reply["session_id"].as_str().unwrap_or_default();
        if id.is_empty() || id.len() > ID_BYTES_MAX {
            return self.give_up("Qwen Code opened a session without a usable ID", None);
        }
        if let QwenSessionStart::Resume(wanted) = &self.start
            && wanted != id
        {
            let message = format!("cannot resume session {wanted}: Qwen Code opened another one");
            return self.give_up(&message, Some("session_not_found"));
        }
        // Without questions it would run what the mode does not allow.
        if reply["capabilities"]["can_handle_can_use_tool"] != true {
            let message = "this version of Qwen Code does not ask before it acts: install the \
                           tested version (`heeler doctor agents`)";
            return self.give_up(message, None);
        }
        let effort = &reply["effort_status"];
        if self.options.effort.is_some() && effort["applied"] != true {
            let why = effort["reason"].as_str().unwrap_or("it did not say why");
            let message = format!("Qwen Code does not apply the key `effort`: {why}");
            return self.give_up(&message, None);
        }
        self.state.is_ready = true;
        let mut effects = vec![rows::native_session(QWEN_AGENT, id)];
        self.options.native_session = Some(id.to_owned());
        effects.extend(self.next_turn());
        effects
    }

    /// Handles a request of Qwen Code.
    fn handle_request(&mut self, fields: &Map<String, Json>) -> Vec<RuntimeEffect> {
        let Some(id) = fields.get("request_id").and_then(Json::as_str) else {
            let request = Json::Object(fields.clone());
            return vec![rows::unknown_message("a control request without an ID", &request)];
        };
        let request = fields.get("request").unwrap_or(&Json::Null);
        match request["subtype"].as_str().unwrap_or_default() {
            "can_use_tool" => self.handle_question(id, request),
            other => {
                let reason = format!("unsupported control request subtype: {other}");
                vec![control_messages::error_response(id, &reason)]
            }
        }
    }
}

impl AgentRuntime for QwenRuntime {
    fn launch_spec(&mut self, session: &SessionStart) -> LaunchSpec {
        self.start = match session {
            SessionStart::Fresh { .. } => QwenSessionStart::New,
            SessionStart::Resume { .. } => match &self.options.native_session {
                Some(id) => QwenSessionStart::Resume(id.clone()),
                None => QwenSessionStart::Lost,
            },
            SessionStart::Fork { .. } | SessionStart::Continue { .. } => {
                QwenSessionStart::Unsupported
            }
        };
        let mut launch = self.options.launch.clone();
        launch.args.extend(self.protocol_args());
        launch
    }

    fn begin(&mut self, uuid: Uuid) -> Vec<RuntimeEffect> {
        self.state = QwenState::default();
        match self.start {
            QwenSessionStart::Lost => {
                let message = "no session found: no session of Qwen Code belongs to this session";
                return self.give_up(message, Some("session_not_found"));
            }
            QwenSessionStart::Unsupported => {
                return self.give_up("this runtime cannot fork or summarize a session", None);
            }
            QwenSessionStart::New => self.state.session_usage = Some(TurnUsage::default()),
            QwenSessionStart::Resume(_) => self.state.session_usage = self.options.session_usage,
        }
        self.state.queued.push_back((uuid, self.prompt.clone()));
        let mut request = json!({
            "subtype": "initialize", "hooks": null, "timeout": { "canUseTool": ANSWER_TIME_MS },
        });
        if !self.options.servers.is_empty() {
            request["mcpServers"] = Json::Object(self.options.servers.clone());
        }
        if let Some(effort) = self.options.effort {
            request["effort"] = effort.as_str().into();
        }
        vec![control_messages::control_request(INITIALIZE, request)]
    }

    fn handle_line(&mut self, line: &[u8]) -> Vec<RuntimeEffect> {
        let message = parse_line(line);
        match &message.body {
            MessageBody::Unknown { kind, .. } => match kind.as_str() {
                "control_request" => self.handle_request(&message.fields),
                "control_response" => self.handle_reply(&message.fields),
                _ => vec![RuntimeEffect::Message(message)],
            },
            MessageBody::Malformed { .. } => {
                let reply = control_messages::refuse_unparsed(line);
                let mut effects: Vec<RuntimeEffect> =
                    reply.into_iter().chain([RuntimeEffect::Message(message)]).collect();
                // It may be the reply to the first request, for which the run would wait.
                if self.is_opening() && is_damaged_message(line) {
                    effects.extend(self.give_up(LOST_OPENING, None));
                }
                effects
            }
            _ => self.handle_message(message),
        }
    }

    fn handle_oversized_line(&mut self) -> Vec<RuntimeEffect> {
        // It may have been the end of the turn, for which the run would wait for ever.
        self.give_up("Qwen Code sent a message that is too long to be read", None)
    }

    fn send_message(&mut self, uuid: Uuid, text: &str) -> Option<Vec<RuntimeEffect>> {
        if self.state.is_done || self.state.is_ending {
            return None;
        }
        // Qwen Code would queue it too, but then its turn could not be told from others.
        self.state.queued.push_back((uuid, text.to_owned()));
        Some(if self.state.is_ready { self.next_turn() } else { Vec::new() })
    }

    fn accepts_changed_input(&self) -> bool {
        // It accepts one, and then runs the original.
        false
    }

    fn deliver_answer(&mut self, ask: &str, answer: &QuestionAnswer) -> Vec<RuntimeEffect> {
        self.answer_question(ask, answer)
    }

    fn interrupt(&mut self) -> Vec<RuntimeEffect> {
        self.state.is_ending = true;
        self.state.queued.clear();
        if self.state.is_done {
            return vec![RuntimeEffect::CloseInput];
        }
        // Without a turn no end of one would follow.
        if !self.state.awaits_result && self.state.turn.is_none() {
            let mut effects = vec![RuntimeEffect::CloseInput];
            effects.extend(self.finish());
            return effects;
        }
        let mut effects = self.withdraw_questions();
        match self.state.turn {
            Some(_) => effects.push(self.interrupt_turn()),
            // An interrupt before the turn has no effect, so it follows once the turn begins. Without
            // any effect the event loop would end the process at once.
            None => effects.push(rows::nothing()),
        }
        effects
    }

    fn is_opening(&self) -> bool {
        !self.state.is_ready && !self.state.is_done
    }

    fn waits_for_tool(&self) -> bool {
        self.state.calls.has_open()
    }

    fn handle_exit(&mut self, code: Option<i32>) -> Vec<RuntimeEffect> {
        // Text that people have seen is recorded, even if Qwen Code died in the middle of it.
        let mut effects: Vec<RuntimeEffect> = self.state.text.flush().into_iter().collect();
        effects.extend(self.state.calls.close_all("Qwen Code ended"));
        if code == Some(MAX_TURNS_EXIT) && self.options.max_turns.is_some() {
            effects.extend(self.max_turns_result());
        }
        effects
    }
}

/// Marks a message of a sub-agent with the call that it works for.
fn with_parent(mut effect: RuntimeEffect, parent: Option<&str>) -> RuntimeEffect {
    if let RuntimeEffect::Message(AgentMessage { parent_tool_use_id, .. }) = &mut effect {
        *parent_tool_use_id = parent.map(str::to_owned);
    }
    effect
}
