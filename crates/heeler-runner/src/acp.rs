//! Agents that speak ACP, the Agent Client Protocol (`runtime: acp`).
//!
//! The protocol is JSON-RPC on the agent's standard input and output. The state machine opens a
//! session, sends prompts, collects the agent's updates into rows and answers its questions.
//! Updates are read loosely, because agents send fields and kinds that no release of the protocol
//! has; so the types of the protocol's own crate would refuse what must be accepted. An agent in a
//! sandbox is offered neither files nor terminals: it uses those of its sandbox. Every request of the
//! agent gets a reply. Start at [`AcpRuntime`].

mod client_requests;
mod errors;
mod opening;
#[cfg(test)]
mod protocol_types;
mod question;
#[cfg(test)]
pub(crate) mod replay;
#[cfg(test)]
mod tests;
mod tool_calls;
mod turn;
mod usage;

use std::collections::{HashMap, VecDeque};

use camino::Utf8PathBuf;
use heeler_config::{ClientTools, KnownAgent, PermissionMode};
use heeler_model::run::{McpServerSpec, QuestionAnswer, SessionStart};
use indexmap::IndexMap;
use rustix::process::Signal;
use serde_json::{Map, Value as Json, json};
use uuid::Uuid;

use crate::client_tools::ClientToolReply;
use crate::json_rpc::{
    INVALID_REQUEST, LOST_OPENING, RpcDialect, RpcError, RpcId, RpcMessage, is_damaged_message,
    parse_rpc_line,
};
use crate::mcp::InjectedMcpAddress;
use crate::native_fork::NativeFork;
use crate::process::LaunchSpec;
use crate::program_policy::{ProgramPolicy, ProgramVerdict};
use crate::program_questions::{AskedAction, ProgramQuestions, QuestionDecision};
use crate::program_rows::{self as rows, CollectedText, StreamedKind, TurnUsage};
use crate::runtime::{AgentRuntime, RuntimeEffect};
use crate::token_budget::TokenBudget;
use client_requests::AcpClientState;
use opening::AcpCapabilities;
use question::{AcpPermissionRequest, AcpQuestion};
use tool_calls::{AcpToolCalls, CALL_PATHS_MAX};

/// Dialect of every message.
const RPC: RpcDialect = RpcDialect::Standard;

/// Inputs of a run known before the agent starts.
pub(crate) struct AcpLaunchOptions {
    pub(crate) launch: LaunchSpec,
    /// Name of the agent in rows.
    pub(crate) agent: String,
    /// Entry of the table, unless the agent is not in it.
    pub(crate) known: Option<&'static KnownAgent>,
    pub(crate) mode: PermissionMode,
    pub(crate) policy: ProgramPolicy,
    /// Services that the agent is offered.
    pub(crate) client_tools: ClientTools,
    pub(crate) system_prompt: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) mcp_servers: IndexMap<String, McpServerSpec>,
    /// Heeler's own servers.
    pub(crate) injected: Vec<InjectedMcpAddress>,
    pub(crate) working_directory: Utf8PathBuf,
    /// Agent's own ID of the session to continue, as an earlier run recorded it.
    pub(crate) native_session: Option<String>,
    /// Fork to make instead of a new session, if the agent offers it.
    pub(crate) fork: Option<NativeFork>,
    pub(crate) budget: TokenBudget,
}

/// Runtime of an agent that speaks ACP.
pub(crate) struct AcpRuntime {
    prompt: String,
    options: AcpLaunchOptions,
    /// Session to open in the next attempt.
    start: AcpSessionStart,
    state: AcpState,
}

/// Session to open.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AcpSessionStart {
    New,
    /// Continue the session with the agent's own ID.
    Load(String),
    /// Continue a session for which no ID is recorded.
    Lost,
    /// Fork or summarize, which no ACP agent is asked for.
    Unsupported,
}

/// Request of the runner that has no reply yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AcpRequest {
    Initialize,
    OpenSession,
    ForkSession,
    LoadSession,
    /// Mode or model of the session.
    Configure,
    Prompt,
}

/// State of one conversation.
#[derive(Default)]
struct AcpState {
    requests_sent: u64,
    pending: HashMap<u64, AcpRequest>,
    capabilities: AcpCapabilities,
    /// Agent's own ID of the session.
    session: Option<String>,
    /// Model, as the agent reports it.
    model: Option<String>,
    /// Requests that configure the session before the first prompt.
    settings: VecDeque<(&'static str, Json)>,
    /// The session is a fork that the agent made.
    is_forked: bool,
    /// The session is open and configured.
    is_ready: bool,
    /// Messages that wait for a turn.
    queued: VecDeque<String>,
    /// A prompt was sent in this attempt.
    has_prompted: bool,
    /// An action of the running turn was denied.
    has_denied: bool,
    /// The running turn has a text or a tool call.
    has_replied: bool,
    is_ending: bool,
    is_done: bool,
    text: CollectedText,
    calls: AcpToolCalls,
    questions: ProgramQuestions<AcpQuestion>,
    client: AcpClientState,
    /// Cost of the session, as the agent reports it.
    session_cost_usd: Option<f64>,
    /// Token counts of the session, for an agent that reports totals.
    usage_total: Option<TurnUsage>,
    /// Token counts that arrived with parts of the text: the sum of the turn's requests.
    chunk_usage: Option<TurnUsage>,
}

impl AcpRuntime {
    pub(crate) fn new(prompt: String, options: AcpLaunchOptions) -> AcpRuntime {
        AcpRuntime { prompt, options, start: AcpSessionStart::New, state: AcpState::default() }
    }

    fn send(&mut self, request: AcpRequest, method: &str, params: Json) -> RuntimeEffect {
        self.state.requests_sent += 1;
        let id = self.state.requests_sent;
        self.state.pending.insert(id, request);
        RPC.request(id, method, params)
    }

    fn is_pending(&self, request: AcpRequest) -> bool {
        self.state.pending.values().any(|pending| *pending == request)
    }

    /// Ends the run with an error that no further prompt can change.
    fn give_up(&mut self, message: &str, code: Option<&str>) -> Vec<RuntimeEffect> {
        if self.state.is_done {
            return Vec::new();
        }
        let mut effects: Vec<RuntimeEffect> = self.state.text.flush().into_iter().collect();
        effects.extend(self.state.calls.close_all("the agent gave up"));
        effects.push(rows::fatal_error(message, code));
        effects.extend(self.finish());
        effects
    }

    /// Returns a row, and gives up if the session is not open: the row may be its reply, for which
    /// the run would wait.
    fn with_lost_opening(&mut self, row: RuntimeEffect) -> Vec<RuntimeEffect> {
        let mut effects = vec![row];
        if self.is_opening() {
            effects.extend(self.give_up(LOST_OPENING, None));
        }
        effects
    }

    /// Ends the conversation.
    fn finish(&mut self) -> Vec<RuntimeEffect> {
        self.state.is_done = true;
        let mut effects = self.state.questions.withdraw_all();
        effects.push(RuntimeEffect::Done);
        if self.options.known.is_some_and(|known| !known.exits_at_end_of_input) {
            effects.push(RuntimeEffect::Signal(Signal::TERM));
        }
        effects
    }

    /// Sends the next message if no turn is running; ends the conversation if there is none.
    fn next_turn(&mut self) -> Vec<RuntimeEffect> {
        if !self.state.is_ready || self.is_pending(AcpRequest::Prompt) || self.state.is_done {
            return Vec::new();
        }
        let Some(text) = self.state.queued.pop_front() else { return self.finish() };
        let mut blocks = Vec::new();
        // ACP has no system prompt, so the instructions precede the first prompt of the run.
        if !std::mem::replace(&mut self.state.has_prompted, true)
            && let Some(system) = &self.options.system_prompt
        {
            blocks.push(json!({ "type": "text", "text": system }));
        }
        blocks.push(json!({ "type": "text", "text": text }));
        (self.state.has_denied, self.state.has_replied) = (false, false);
        self.state.calls.forget_finished();
        self.state.client.begin_turn();
        let session = self.state.session.clone().unwrap_or_default();
        let version = self.state.capabilities.version.as_deref();
        let model = self.state.model.as_deref();
        let init = rows::turn_init(&self.options.agent, version, model, self.options.mode);
        let params = json!({ "sessionId": session, "prompt": blocks });
        vec![init, self.send(AcpRequest::Prompt, "session/prompt", params)]
    }

    fn handle_reply(
        &mut self,
        id: Option<u64>,
        result: Result<Json, RpcError>,
    ) -> Vec<RuntimeEffect> {
        let request = id.and_then(|id| self.state.pending.remove(&id));
        let Some(request) = request else {
            let text = match result {
                Ok(result) => result,
                Err(error) => error.message.into(),
            };
            let unknown = rows::unknown_message("a reply to no request", &text);
            return self.with_lost_opening(unknown);
        };
        if self.state.is_done {
            return Vec::new();
        }
        match request {
            AcpRequest::Initialize => self.handle_initialized(result),
            AcpRequest::OpenSession => self.handle_session_opened(result),
            AcpRequest::ForkSession => self.handle_session_forked(result),
            AcpRequest::LoadSession => self.handle_session_loaded(result),
            AcpRequest::Configure => self.handle_configured(result),
            AcpRequest::Prompt => self.handle_turn_end(result),
        }
    }

    fn handle_request(&mut self, id: RpcId, method: &str, params: &Json) -> Vec<RuntimeEffect> {
        match method {
            "session/request_permission" => self.handle_permission_request(id, params),
            _ => self.handle_client_request(id, method, params),
        }
    }

    fn handle_permission_request(&mut self, id: RpcId, params: &Json) -> Vec<RuntimeEffect> {
        let is_ours = self.is_our_session(params) && !self.state.questions.contains(&id);
        if !is_ours || !self.state.questions.has_room() || self.state.is_done {
            let reason = "this question is not about the running session, or repeats another";
            return vec![RPC.error_reply(&id, INVALID_REQUEST, reason)];
        }
        let call = params["toolCall"]["toolCallId"].as_str().unwrap_or_default().to_owned();
        let mut effects: Vec<RuntimeEffect> = self.state.text.flush().into_iter().collect();
        effects.extend(self.state.calls.update_asked(&params["toolCall"]));
        let described = self.state.calls.describe(&call, &params["toolCall"]);
        let verdict = match self.state.is_ending {
            true => ProgramVerdict::Deny("the run is being ended".to_owned()),
            false if described.paths.len() >= CALL_PATHS_MAX => {
                ProgramVerdict::Deny(format!("it names {CALL_PATHS_MAX} files or more"))
            }
            false => self.options.policy.decide(described.action, &described.paths),
        };
        let action = AskedAction { name: described.name.clone(), input: described.input.clone() };
        let question = AcpPermissionRequest::new(id, call, described, &params["options"]);
        let question = AcpQuestion::Permission(question);
        let decision = self.state.questions.decide(question, action, verdict);
        effects.extend(self.apply_decision(decision));
        effects
    }

    fn apply_decision(&mut self, decision: QuestionDecision<AcpQuestion>) -> Vec<RuntimeEffect> {
        // The protocol has no words for the reason, so the row of the call tells it.
        if let Some((question, reason)) = &decision.denied {
            if let AcpQuestion::Permission(permission) = question {
                self.state.calls.record_denial(permission.call(), reason);
            }
            self.state.has_denied = true;
        }
        if let Some(AcpQuestion::Permission(permission)) = &decision.allowed {
            // The agent may have changed the call since the question was asked.
            let described = permission.described();
            let paths = described.paths.iter().map(|path| self.options.policy.absolute(path));
            let paths = paths.collect();
            self.state.client.add_permission(described.action, &described.input, paths);
        }
        let mut effects = decision.effects;
        if decision.ends_turn {
            effects.extend(self.interrupt());
        }
        effects
    }

    fn is_our_session(&self, params: &Json) -> bool {
        self.state.session.as_deref() == params["sessionId"].as_str()
            && self.state.session.is_some()
    }

    fn handle_notification(&mut self, method: &str, params: &Json) -> Vec<RuntimeEffect> {
        match method {
            "session/update" => self.handle_update(params),
            // Extensions of one agent begin with an underscore; they are its own business.
            _ if method.starts_with('_') || method.starts_with("$/") => Vec::new(),
            _ => vec![rows::unknown_message(method, params)],
        }
    }

    fn handle_update(&mut self, params: &Json) -> Vec<RuntimeEffect> {
        // While a session is loaded, the agent repeats its history, which Heeler has already.
        if self.is_pending(AcpRequest::LoadSession) || self.is_pending(AcpRequest::ForkSession) {
            return Vec::new();
        }
        let update = &params["update"];
        let kind = update["sessionUpdate"].as_str().unwrap_or_default();
        if is_quiet(kind) {
            return Vec::new();
        }
        if !self.is_our_session(params) {
            // An agent may send updates of a new session before it tells the ID.
            let is_opening = self.is_pending(AcpRequest::OpenSession);
            let unknown = rows::unknown_message("an update of another session", params);
            return if is_opening && kind == "usage_update" { Vec::new() } else { vec![unknown] };
        }
        // After the last turn an agent may still send titles of its calls. A row of the model would begin
        // another turn, which has no end.
        if self.state.is_done {
            let is_known = kind == "tool_call_update" && self.state.calls.is_finished(update);
            let late = rows::unknown_message("an update after the last turn", update);
            return if is_known || kind == "usage_update" { Vec::new() } else { vec![late] };
        }
        self.state.has_replied |= matches!(kind, "agent_message_chunk" | "tool_call");
        match kind {
            "agent_message_chunk" => self.handle_chunk(StreamedKind::Text, update),
            "agent_thought_chunk" => self.handle_chunk(StreamedKind::Thinking, update),
            // The runner has recorded the prompt itself.
            "user_message_chunk" => Vec::new(),
            "tool_call" | "tool_call_update" => {
                let mut effects: Vec<RuntimeEffect> = self.state.text.flush().into_iter().collect();
                effects.extend(self.state.calls.update(update));
                effects
            }
            "usage_update" => {
                let cost = &update["cost"];
                let is_usd = cost["currency"].as_str().is_none_or(|currency| currency == "USD");
                if let Some(amount) = cost["amount"].as_f64().filter(|_| is_usd) {
                    self.state.session_cost_usd = Some(amount);
                }
                Vec::new()
            }
            "plan" => {
                let mut effects: Vec<RuntimeEffect> = self.state.text.flush().into_iter().collect();
                effects.push(rows::plan(update));
                effects
            }
            "notice" => self.event("agent_notice", update),
            "compaction_update" | "compaction_summary_chunk" => self.event("compaction", update),
            _ => vec![rows::unknown_message(kind, update)],
        }
    }

    fn event(&mut self, subtype: &'static str, update: &Json) -> Vec<RuntimeEffect> {
        let mut effects: Vec<RuntimeEffect> = self.state.text.flush().into_iter().collect();
        let fields = Map::from_iter([("update".to_owned(), update.clone())]);
        effects.push(rows::system_event(subtype, fields));
        effects
    }

    fn handle_chunk(&mut self, kind: StreamedKind, update: &Json) -> Vec<RuntimeEffect> {
        // One part for each request has counts.
        if let Some(usage) = usage::parse_usage(&update["_meta"]["usage"]) {
            self.state.chunk_usage = Some(self.state.chunk_usage.unwrap_or_default().plus(usage));
        }
        let content = &update["content"];
        match content["text"].as_str() {
            Some(text) if self.options.known.is_some_and(|known| known.is_mode_notice(text)) => {
                Vec::new()
            }
            Some(text) => self.state.text.push(kind, update["messageId"].as_str(), text),
            None => vec![rows::unknown_message("content that is not text", update)],
        }
    }
}

/// Returns true for an update that says nothing which a transcript needs.
fn is_quiet(kind: &str) -> bool {
    matches!(
        kind,
        "available_commands_update"
            | "config_option_update"
            | "current_mode_update"
            | "session_info_update"
    )
}

impl AgentRuntime for AcpRuntime {
    fn launch_spec(&mut self, session: &SessionStart) -> LaunchSpec {
        self.start = match session {
            SessionStart::Fresh { .. } => AcpSessionStart::New,
            SessionStart::Resume { .. } => match &self.options.native_session {
                Some(id) => AcpSessionStart::Load(id.clone()),
                None => AcpSessionStart::Lost,
            },
            SessionStart::Fork { .. } | SessionStart::Continue { .. } => {
                AcpSessionStart::Unsupported
            }
        };
        self.options.launch.clone()
    }

    fn begin(&mut self, _uuid: Uuid) -> Vec<RuntimeEffect> {
        let streams_input = self.options.known.is_some_and(|known| known.streams_input);
        self.state = AcpState { calls: AcpToolCalls::new(streams_input), ..AcpState::default() };
        match self.start {
            AcpSessionStart::Lost => {
                let message = format!(
                    "no session found: {} has none that belongs to this one",
                    self.options.agent
                );
                return self.give_up(&message, Some("session_not_found"));
            }
            AcpSessionStart::Unsupported => {
                return self.give_up("this runtime cannot fork or summarize a session", None);
            }
            AcpSessionStart::New | AcpSessionStart::Load(_) => {}
        }
        let fork = self.options.fork.as_ref().filter(|_| self.start == AcpSessionStart::New);
        let prompt = fork.map_or(&self.prompt, |fork| &fork.prompt).clone();
        self.state.queued.push_back(prompt);
        vec![self.initialize()]
    }

    fn handle_line(&mut self, line: &[u8]) -> Vec<RuntimeEffect> {
        match parse_rpc_line(line) {
            Ok(RpcMessage::Request { id, method, params }) => {
                self.handle_request(id, &method, &params)
            }
            Ok(RpcMessage::Notification { method, params }) => {
                self.handle_notification(&method, &params)
            }
            Ok(RpcMessage::Reply { id, result }) => self.handle_reply(id, result),
            Err(message) if is_damaged_message(line) => {
                self.with_lost_opening(RuntimeEffect::Message(*message))
            }
            Err(message) => vec![RuntimeEffect::Message(*message)],
        }
    }

    fn handle_oversized_line(&mut self) -> Vec<RuntimeEffect> {
        // It may have been the reply for which the run waits, so the run would never end.
        self.give_up("the agent sent a message that is too long to be read", None)
    }

    fn send_message(&mut self, _uuid: Uuid, text: &str) -> Option<Vec<RuntimeEffect>> {
        if self.state.is_done || self.state.is_ending {
            return None;
        }
        // ACP has no message for a running turn: it waits for the turn's end.
        self.state.queued.push_back(text.to_owned());
        Some(Vec::new())
    }

    fn accepts_changed_input(&self) -> bool {
        false
    }

    fn deliver_answer(&mut self, ask: &str, answer: &QuestionAnswer) -> Vec<RuntimeEffect> {
        let decision = self.state.questions.answer(ask, answer);
        decision.map_or_else(Vec::new, |decision| self.apply_decision(decision))
    }

    fn deliver_client_reply(&mut self, call: &RpcId, reply: ClientToolReply) -> Vec<RuntimeEffect> {
        self.reply_to_client_request(call, reply)
    }

    fn interrupt(&mut self) -> Vec<RuntimeEffect> {
        self.state.is_ending = true;
        self.state.queued.clear();
        if self.state.is_done {
            return vec![RuntimeEffect::CloseInput];
        }
        // Without a turn there is nothing to cancel, and no reply would tell the end.
        if !self.is_pending(AcpRequest::Prompt) {
            let mut effects = vec![RuntimeEffect::CloseInput];
            effects.extend(self.finish());
            return effects;
        }
        let session = self.state.session.clone().unwrap_or_default();
        let mut effects = vec![RPC.notification("session/cancel", json!({ "sessionId": session }))];
        // The protocol requires an answer to each question of a cancelled turn.
        effects.extend(self.state.questions.withdraw_all());
        effects
    }

    fn is_opening(&self) -> bool {
        !self.state.is_ready && !self.state.is_done
    }

    fn waits_for_tool(&self) -> bool {
        self.state.calls.has_running()
    }

    fn handle_exit(&mut self, _code: Option<i32>) -> Vec<RuntimeEffect> {
        // Text that people have seen is recorded, even if the agent died in the middle of it.
        let mut effects: Vec<RuntimeEffect> = self.state.text.flush().into_iter().collect();
        effects.extend(self.state.calls.close_all("the agent ended"));
        effects
    }
}

/// Records the ID under which a later attempt of this run finds the session.
impl AcpRuntime {
    fn set_session(&mut self, id: &str) -> RuntimeEffect {
        self.state.session = Some(id.to_owned());
        self.options.native_session = Some(id.to_owned());
        rows::native_session(&self.options.agent, id)
    }
}
