//! Codex through its app server (`runtime: codex`).
//!
//! The app server speaks JSON-RPC on standard input and output. The state machine starts or resumes
//! a thread, runs turns in it, answers approvals, steers a running turn with further messages, and
//! reads token counts and limits of the API. Codex's own sandbox is used only if the run has none of
//! Heeler's. Interrupting a turn leaves its commands running: they end with the run's process tree.
//! Start at [`CodexRuntime`].

mod approvals;
mod items;
mod notifications;
#[cfg(test)]
pub(crate) mod replay;
#[cfg(test)]
mod tests;
mod turn;

use std::collections::{HashMap, VecDeque};

use camino::Utf8PathBuf;
use heeler_config::{PermissionMode, ReasoningEffort};
use heeler_model::message::ID_BYTES_MAX;
use heeler_model::run::{QuestionAnswer, SessionStart};
use indexmap::IndexMap;
use serde_json::{Value as Json, json};
use uuid::Uuid;

use crate::json_rpc::{
    LOST_OPENING, RpcDialect, RpcError, RpcMessage, is_damaged_message, parse_rpc_line,
};
use crate::native_fork::{FORK_SUBTYPE, NativeFork};
use crate::process::{LaunchArg, LaunchSpec};
use crate::program_policy::ProgramPolicy;
use crate::program_questions::ProgramQuestions;
use crate::program_rows::{self as rows, CollectedText, TurnUsage};
use crate::runtime::{AgentRuntime, RuntimeEffect};
use crate::token_budget::TokenBudget;
use approvals::CodexQuestion;
use items::CodexItems;
use turn::CodexLimits;

/// Codex writes no version into its messages.
const RPC: RpcDialect = RpcDialect::Unversioned;

/// Name of the agent in rows, and in the record of a session.
pub(crate) const CODEX_AGENT: &str = "codex";

/// Variable with a key of OpenAI's API. Codex itself reads it with `codex exec` only.
const API_KEY_VARIABLE: &str = "CODEX_API_KEY";

/// Variable with the address of OpenAI's API.
const API_URL_VARIABLE: &str = "OPENAI_BASE_URL";

/// Address of OpenAI's API.
const API_URL: &str = "https://api.openai.com/v1";

/// Returns the arguments of the app server. It reads no key from the environment by itself, so an
/// agent with one gets a provider that does. The arguments hold the name of the variable only. `api_base` is
/// the address of the API in a sandbox with proxied credentials.
pub(crate) fn launch_args(
    env: &IndexMap<String, String>,
    api_base: Option<&str>,
) -> Vec<LaunchArg> {
    let text = |text: &str| LaunchArg::Text(text.to_owned());
    let mut args = Vec::new();
    if env.get(API_KEY_VARIABLE).is_some_and(|key| !key.is_empty()) {
        let own = env.get(API_URL_VARIABLE).map_or(API_URL, String::as_str);
        let url = api_base.unwrap_or(own);
        // A JSON string is a TOML string too.
        let provider = format!(
            "model_providers.openai_api_key={{name=\"OpenAI\",base_url={},env_key=\"{API_KEY_VARIABLE}\",\
             wire_api=\"responses\"}}",
            Json::from(url)
        );
        args.extend([text("-c"), text("model_provider=\"openai_api_key\"")]);
        args.extend([text("-c"), LaunchArg::ConfigText("env", provider)]);
    }
    args.push(text("app-server"));
    args
}

/// Inputs of a run known before Codex starts.
pub(crate) struct CodexLaunchOptions {
    pub(crate) launch: LaunchSpec,
    pub(crate) mode: PermissionMode,
    pub(crate) policy: ProgramPolicy,
    pub(crate) system_prompt: Option<String>,
    pub(crate) model: Option<String>,
    /// Reasoning effort of the model.
    pub(crate) effort: Option<ReasoningEffort>,
    /// MCP servers, as values of Codex's config.
    pub(crate) servers: serde_json::Map<String, Json>,
    pub(crate) working_directory: Utf8PathBuf,
    /// The run has a sandbox of Heeler, so that of Codex is off.
    pub(crate) is_isolated: bool,
    /// Thread to continue, as an earlier run recorded it.
    pub(crate) native_session: Option<String>,
    /// Fork to make instead of a new thread, if Codex still has its source.
    pub(crate) fork: Option<NativeFork>,
    pub(crate) budget: TokenBudget,
}

/// Runtime of Codex.
pub(crate) struct CodexRuntime {
    prompt: String,
    options: CodexLaunchOptions,
    start: CodexThreadStart,
    state: CodexState,
}

/// Thread to open.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CodexThreadStart {
    New,
    Resume(String),
    /// Continue a thread for which no ID is recorded.
    Lost,
    /// Fork or summarize, which Codex is not asked for.
    Unsupported,
}

/// Request of the runner that has no reply yet.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CodexRequest {
    Initialize,
    OpenThread,
    StartTurn,
    /// Message for a running turn.
    Steer(String),
    Interrupt,
}

/// State of one conversation.
#[derive(Default)]
struct CodexState {
    requests_sent: u64,
    pending: HashMap<u64, CodexRequest>,
    version: Option<String>,
    thread: Option<String>,
    model: Option<String>,
    /// A turn was requested and has not ended.
    has_turn: bool,
    /// ID of the running turn, once Codex has told it.
    turn: Option<String>,
    queued: VecDeque<String>,
    is_ending: bool,
    is_done: bool,
    text: CollectedText,
    items: CodexItems,
    questions: ProgramQuestions<CodexQuestion>,
    usage: Option<TurnUsage>,
    /// Reason that the running turn is the last one: the budget is spent.
    exhaustion: Option<String>,
    /// Total of the thread at the last report, which tells whether a report is new.
    usage_total: Json,
    limits: CodexLimits,
}

impl CodexRuntime {
    pub(crate) fn new(prompt: String, options: CodexLaunchOptions) -> CodexRuntime {
        CodexRuntime { prompt, options, start: CodexThreadStart::New, state: CodexState::default() }
    }

    fn send(&mut self, request: CodexRequest, method: &str, params: Json) -> RuntimeEffect {
        self.state.requests_sent += 1;
        let id = self.state.requests_sent;
        self.state.pending.insert(id, request);
        RPC.request(id, method, params)
    }

    /// Ends the run with an error that no further prompt can change.
    fn give_up(&mut self, message: &str, code: Option<&str>) -> Vec<RuntimeEffect> {
        if self.state.is_done {
            return Vec::new();
        }
        let mut effects: Vec<RuntimeEffect> = self.state.text.flush().into_iter().collect();
        effects.extend(self.state.items.close_all("Codex gave up"));
        effects.push(rows::fatal_error(message, code));
        effects.extend(self.finish());
        effects
    }

    /// Returns a row, and gives up if the thread is not open: the row may be its reply, for which
    /// the run would wait.
    fn with_lost_opening(&mut self, row: RuntimeEffect) -> Vec<RuntimeEffect> {
        let mut effects = vec![row];
        if self.is_opening() {
            effects.extend(self.give_up(LOST_OPENING, None));
        }
        effects
    }

    fn finish(&mut self) -> Vec<RuntimeEffect> {
        self.state.is_done = true;
        // With an open approval, Codex does not exit at the end of its input.
        let mut effects = self.state.questions.withdraw_all();
        effects.push(RuntimeEffect::Done);
        effects
    }

    /// Starts the next turn; ends the conversation if there is nothing left to say.
    fn next_turn(&mut self) -> Vec<RuntimeEffect> {
        let is_steering =
            self.state.pending.values().any(|request| matches!(request, CodexRequest::Steer(_)));
        if self.state.has_turn || self.state.is_done || is_steering {
            return Vec::new();
        }
        let Some(text) = self.state.queued.pop_front() else { return self.finish() };
        self.state.has_turn = true;
        let version = self.state.version.as_deref();
        let model = self.state.model.as_deref();
        let init = rows::turn_init(CODEX_AGENT, version, model, self.options.mode);
        let mut params = json!({
            "threadId": self.state.thread, "input": [{ "type": "text", "text": text }],
        });
        if let Some(effort) = self.options.effort {
            // Codex knows no level above `xhigh`.
            params["effort"] = effort.min(ReasoningEffort::Xhigh).as_str().into();
        }
        vec![init, self.send(CodexRequest::StartTurn, "turn/start", params)]
    }

    /// Returns the approval policy and the sandbox of Codex for the permission mode.
    fn policies(&self) -> (&'static str, &'static str) {
        let sandbox =
            if self.options.is_isolated { "danger-full-access" } else { "workspace-write" };
        match self.options.mode {
            PermissionMode::BypassPermissions => ("never", "danger-full-access"),
            PermissionMode::Plan => ("never", "read-only"),
            PermissionMode::Default
            | PermissionMode::AcceptEdits
            | PermissionMode::DontAsk
            | PermissionMode::Auto
            | PermissionMode::Delegate => ("untrusted", sandbox),
        }
    }

    fn open_thread(&mut self) -> RuntimeEffect {
        let (approvals, sandbox) = self.policies();
        let mut params = json!({
            "cwd": self.options.working_directory,
            "approvalPolicy": approvals,
            "sandbox": sandbox,
        });
        if let Some(model) = &self.options.model {
            params["model"] = model.as_str().into();
        }
        if let Some(system) = &self.options.system_prompt {
            params["developerInstructions"] = system.as_str().into();
        }
        if !self.options.servers.is_empty() {
            params["config"] = Json::Object(self.options.servers.clone());
        }
        let method = match &self.start {
            CodexThreadStart::Resume(thread) => {
                params["threadId"] = thread.as_str().into();
                // Heeler has the history itself, and a long one would exceed the limit of a line.
                params["excludeTurns"] = true.into();
                "thread/resume"
            }
            _ => match &self.options.fork {
                Some(fork) => {
                    params["threadId"] = fork.point.session.as_str().into();
                    params["lastTurnId"] = fork.point.turn.as_deref().into();
                    params["excludeTurns"] = true.into();
                    "thread/fork"
                }
                None => "thread/start",
            },
        };
        self.send(CodexRequest::OpenThread, method, params)
    }

    /// Begins a new thread with the conversation as text, because Codex cannot fork the old one.
    fn open_without_fork(&mut self, fork: &NativeFork, reason: &str) -> Vec<RuntimeEffect> {
        if let Some(prompt) = self.state.queued.front_mut() {
            prompt.clone_from(&self.prompt);
        }
        let text = format!(
            "Codex cannot fork its thread {}: {reason}; the agent gets the conversation as text",
            fork.point.session
        );
        vec![rows::notice(FORK_SUBTYPE, &text), self.open_thread()]
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
        match (request, result) {
            (CodexRequest::Initialize, Ok(reply)) => {
                self.state.version = find_version(&reply);
                vec![RPC.notification("initialized", Json::Null), self.open_thread()]
            }
            (CodexRequest::Initialize, Err(error)) => {
                self.give_up(&format!("Codex cannot be initialized: {}", error.message), None)
            }
            (CodexRequest::OpenThread, Ok(reply)) => self.handle_thread_opened(&reply),
            (CodexRequest::OpenThread, Err(error)) => match &self.start {
                CodexThreadStart::Resume(thread) => {
                    let message = format!("cannot resume thread {thread}: {}", error.message);
                    self.give_up(&message, Some("session_not_found"))
                }
                _ => match self.options.fork.take() {
                    Some(fork) => self.open_without_fork(&fork, &error.message),
                    None => {
                        let message = format!("Codex cannot start a thread: {}", error.message);
                        self.give_up(&message, None)
                    }
                },
            },
            (CodexRequest::StartTurn, Ok(reply)) => {
                self.set_turn(reply["turn"]["id"].as_str().unwrap_or_default())
            }
            (CodexRequest::StartTurn, Err(error)) => {
                self.give_up(&format!("Codex cannot start a turn: {}", error.message), None)
            }
            (CodexRequest::Steer(_), Ok(_)) => self.next_turn_after_steering(),
            (CodexRequest::Steer(text), Err(_)) => {
                // The turn ended before the message reached it, so the message gets its own turn.
                if !self.state.is_ending && self.state.exhaustion.is_none() {
                    self.state.queued.push_back(text);
                }
                self.next_turn_after_steering()
            }
            // The end of the turn tells whether the interrupt had an effect.
            (CodexRequest::Interrupt, _) => Vec::new(),
        }
    }

    /// Continues if the turn ended while a message for it had no reply.
    fn next_turn_after_steering(&mut self) -> Vec<RuntimeEffect> {
        match self.state.has_turn {
            true => Vec::new(),
            false => self.next_turn(),
        }
    }

    fn handle_thread_opened(&mut self, reply: &Json) -> Vec<RuntimeEffect> {
        let thread = reply["thread"]["id"].as_str().unwrap_or_default().to_owned();
        if thread.is_empty() || thread.len() > ID_BYTES_MAX {
            return self.give_up("Codex started a thread without a usable ID", None);
        }
        self.state.model = reply["model"].as_str().map(str::to_owned);
        let mut effects = vec![rows::native_session(CODEX_AGENT, &thread)];
        if self.start == CodexThreadStart::New
            && let Some(fork) = &self.options.fork
        {
            let text = format!("Codex forked its own thread {}", fork.point.session);
            effects.push(rows::notice(FORK_SUBTYPE, &text));
        }
        self.options.native_session = Some(thread.clone());
        self.state.thread = Some(thread);
        effects.extend(self.next_turn());
        effects
    }

    /// Records the ID of the running turn, and interrupts the turn if the run is being ended.
    fn set_turn(&mut self, id: &str) -> Vec<RuntimeEffect> {
        if id.is_empty() || id.len() > ID_BYTES_MAX || !self.state.has_turn {
            return Vec::new();
        }
        let is_new = self.state.turn.as_deref() != Some(id);
        self.state.turn = Some(id.to_owned());
        match is_new && self.state.is_ending {
            true => self.interrupt_turn().into_iter().collect(),
            false => Vec::new(),
        }
    }

    fn interrupt_turn(&mut self) -> Option<RuntimeEffect> {
        let (thread, turn) = (self.state.thread.clone()?, self.state.turn.clone()?);
        let params = json!({ "threadId": thread, "turnId": turn });
        Some(self.send(CodexRequest::Interrupt, "turn/interrupt", params))
    }

    /// Returns true if a notification or request is about the run's thread.
    fn is_our_thread(&self, params: &Json) -> bool {
        self.state.thread.is_some() && self.state.thread.as_deref() == params["threadId"].as_str()
    }
}

impl AgentRuntime for CodexRuntime {
    fn launch_spec(&mut self, session: &SessionStart) -> LaunchSpec {
        self.start = match session {
            SessionStart::Fresh { .. } => CodexThreadStart::New,
            SessionStart::Resume { .. } => match &self.options.native_session {
                Some(thread) => CodexThreadStart::Resume(thread.clone()),
                None => CodexThreadStart::Lost,
            },
            SessionStart::Fork { .. } | SessionStart::Continue { .. } => {
                CodexThreadStart::Unsupported
            }
        };
        self.options.launch.clone()
    }

    fn begin(&mut self, _uuid: Uuid) -> Vec<RuntimeEffect> {
        self.state = CodexState::default();
        match self.start {
            CodexThreadStart::Lost => {
                let message = "no session found: no thread of Codex belongs to this session";
                return self.give_up(message, Some("session_not_found"));
            }
            CodexThreadStart::Unsupported => {
                return self.give_up("this runtime cannot fork or summarize a session", None);
            }
            CodexThreadStart::New | CodexThreadStart::Resume(_) => {}
        }
        let fork = self.options.fork.as_ref().filter(|_| self.start == CodexThreadStart::New);
        let prompt = fork.map_or(&self.prompt, |fork| &fork.prompt).clone();
        self.state.queued.push_back(prompt);
        let params = json!({
            "clientInfo": {
                "name": "heeler", "title": "Heeler", "version": env!("CARGO_PKG_VERSION"),
            },
            "capabilities": { "experimentalApi": true },
        });
        vec![self.send(CodexRequest::Initialize, "initialize", params)]
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
        // It may have been the end of the turn, for which the run would wait for ever.
        self.give_up("Codex sent a message that is too long to be read", None)
    }

    fn send_message(&mut self, _uuid: Uuid, text: &str) -> Option<Vec<RuntimeEffect>> {
        if self.state.is_done || self.state.is_ending || self.state.exhaustion.is_some() {
            return None;
        }
        let (Some(thread), Some(turn)) = (&self.state.thread, &self.state.turn) else {
            self.state.queued.push_back(text.to_owned());
            return Some(Vec::new());
        };
        let params = json!({
            "threadId": thread, "expectedTurnId": turn,
            "input": [{ "type": "text", "text": text }],
        });
        Some(vec![self.send(CodexRequest::Steer(text.to_owned()), "turn/steer", params)])
    }

    fn accepts_changed_input(&self) -> bool {
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
        if !self.state.has_turn {
            let mut effects = vec![RuntimeEffect::CloseInput];
            effects.extend(self.finish());
            return effects;
        }
        let mut effects = self.state.questions.withdraw_all();
        effects.extend(self.interrupt_turn());
        // The turn has no ID yet, and the interrupt follows once Codex tells it. Without any effect
        // the event loop would end the process at once.
        if effects.is_empty() {
            effects.push(rows::nothing());
        }
        effects
    }

    fn is_opening(&self) -> bool {
        self.state.thread.is_none() && !self.state.is_done
    }

    fn waits_for_tool(&self) -> bool {
        self.state.items.has_open()
    }

    fn handle_exit(&mut self, _code: Option<i32>) -> Vec<RuntimeEffect> {
        // Text that people have seen is recorded, even if Codex died in the middle of it.
        let mut effects: Vec<RuntimeEffect> = self.state.text.flush().into_iter().collect();
        effects.extend(self.state.items.close_all("Codex ended"));
        effects
    }
}

/// Returns the version in the user agent: `heeler/0.166.0 (Debian …)`.
fn find_version(reply: &Json) -> Option<String> {
    let (_, version) = reply["userAgent"].as_str()?.split_once('/')?;
    version.split_whitespace().next().map(str::to_owned)
}
