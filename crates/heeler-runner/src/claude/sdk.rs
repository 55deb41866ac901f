//! The control protocol in both directions (`runtime: sdk`; the scripted agent speaks it too).
//!
//! Requests of the agent are answered at any time, also while the runner awaits a reply: the agent
//! connects to the injected MCP servers before it answers anything. Every request gets a reply,
//! because the agent would otherwise wait forever. Start at [`SdkRuntime`].

#[cfg(test)]
mod replay;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use heeler_model::message::{AgentMessage, MessageBody, parse_line};
use heeler_model::permission_grant::PermissionGrant;
use heeler_model::run::{QuestionAnswer, SessionStart};
use rustix::process::Signal;
use serde_json::{Map, Value as Json, json};
use uuid::Uuid;

use super::args::ClaudeLaunchOptions;
use super::call_policy::{CallPolicy, CallVerdict};
use super::control_messages;
use super::progress::ClaudeTurnProgress;
use super::tool_allowlist::AllowedToolsError;
use crate::process::LaunchSpec;
use crate::runtime::{AgentQuestionKind, AgentRuntime, NextTurn, RuntimeEffect};

/// ID of the runner's first request, and of the hook that enforces the policy.
pub(super) const INITIALIZE: &str = "heeler-initialize";
const CALL_HOOK: &str = "allowed_tools";

/// Time that Claude waits for the hook. It is answered at once, but while a disk is full nothing is
/// read, and a call that is not answered in time is denied.
const HOOK_TIMEOUT_S: u32 = 24 * 60 * 60;

/// Limit on the characters shown of a forbidden tool's name.
const TOOL_NAME_CHARS_MAX: usize = 256;

/// Limit on watched calls of forbidden tools. An agent that makes more is stopped as if one had
/// run, because further calls could not be checked.
const FORBIDDEN_CALLS_MAX: usize = 4096;

/// Runtime of an agent that speaks the control protocol.
pub(crate) struct SdkRuntime {
    prompt: String,
    launch: Box<dyn Fn(&SessionStart) -> LaunchSpec>,
    policy: CallPolicy,
    state: SdkRuntimeState,
}

/// State of one conversation.
#[derive(Default)]
struct SdkRuntimeState {
    /// Messages held back until the hook that enforces the policy is registered: the prompt, and
    /// any sent since.
    held_messages: Option<Vec<(Uuid, String)>>,
    /// Request whose reply the held messages wait for.
    held_until: String,
    /// Rules that people have given this process.
    session_rules: Vec<String>,
    progress: ClaudeTurnProgress,
    /// Questions to a person, with the input that was shown and the permission that was offered.
    questions: HashMap<String, (Json, Option<PermissionGrant>)>,
    /// Pending calls of injected MCP servers.
    calls: HashSet<String>,
    /// Calls of forbidden tools: a success of one of them is an alarm.
    forbidden: HashMap<String, String>,
    /// Working directory of the last call that the hook saw.
    cwd: Option<String>,
    /// Number of requests made.
    requests: u64,
}

impl SdkRuntime {
    /// Builds a runtime for any agent that speaks the protocol.
    pub(crate) fn new(
        prompt: String,
        launch: Box<dyn Fn(&SessionStart) -> LaunchSpec>,
    ) -> SdkRuntime {
        SdkRuntime {
            prompt,
            launch,
            policy: CallPolicy::default(),
            state: SdkRuntimeState::default(),
        }
    }

    /// Builds the runtime for Claude; fails if its tool allowlist cannot be enforced.
    pub(crate) fn claude(
        prompt: String,
        setup: ClaudeLaunchOptions,
    ) -> Result<SdkRuntime, AllowedToolsError> {
        let policy = CallPolicy::from_brief(&setup.brief, &setup.injected)?;
        let enforced = policy.clone();
        let launch = Box::new(move |session: &SessionStart| setup.sdk_launch(&enforced, session));
        Ok(SdkRuntime { policy, ..SdkRuntime::new(prompt, launch) })
    }

    fn hooks(&self) -> Json {
        if !self.policy.is_restrictive() {
            return Json::Null;
        }
        // An empty matcher makes Claude call the hook for every tool.
        let hook = json!({
            "matcher": "", "hookCallbackIds": [CALL_HOOK], "timeout": HOOK_TIMEOUT_S,
        });
        json!({ "PreToolUse": [hook] })
    }

    /// Handles a request of the agent.
    fn handle_request(&mut self, fields: &Map<String, Json>) -> Vec<RuntimeEffect> {
        let Some(id) = fields.get("request_id").and_then(Json::as_str) else {
            return vec![warning("a control request without an ID, which cannot be answered")];
        };
        let request = fields.get("request").unwrap_or(&Json::Null);
        match request["subtype"].as_str().unwrap_or_default() {
            "can_use_tool" => self.handle_permission_request(id, request),
            "hook_callback" => self.handle_hook(id, request),
            "mcp_message" => self.handle_mcp_message(id, request),
            other => {
                // Claude waits for a reply to every request, also to one of a later version.
                let reason = format!("unsupported control request subtype: {other}");
                vec![control_messages::error_response(id, &reason)]
            }
        }
    }

    fn handle_permission_request(&mut self, id: &str, request: &Json) -> Vec<RuntimeEffect> {
        let tool = request["tool_name"].as_str().unwrap_or_default();
        let input = &request["input"];
        // A person cannot allow what the config forbids.
        let cwd = self.state.cwd.as_deref();
        if let CallVerdict::Deny(message) = self.policy.verdict(tool, input, cwd) {
            return vec![control_messages::success_response(
                id,
                json!({ "behavior": "deny", "message": message }),
            )];
        }
        let asks = tool == "AskUserQuestion" || request["requires_user_interaction"] == true;
        let kind = if asks { AgentQuestionKind::Question } else { AgentQuestionKind::Permission };
        let (id, tool, input) = (id.to_owned(), tool.to_owned(), input.clone());
        // A review asks about each action, so no permission lasts longer than a request.
        let grant = match self.policy.has_review() {
            true => None,
            false => PermissionGrant::from_suggestions(&request["permission_suggestions"]),
        };
        self.state.questions.insert(id.clone(), (input.clone(), grant.clone()));
        vec![RuntimeEffect::Ask { id, kind, tool, input, grant }]
    }

    /// Answers a hook. An error would let the call run, so it never returns one, and it denies in
    /// doubt.
    fn handle_hook(&mut self, id: &str, request: &Json) -> Vec<RuntimeEffect> {
        let called = &request["input"];
        let (tool, input) = (called["tool_name"].as_str(), &called["tool_input"]);
        // A request for permission follows its hook, and does not name the directory.
        self.state.cwd = called["cwd"].as_str().map(str::to_owned);
        let verdict = match tool {
            Some(tool) => self.policy.verdict(tool, input, self.state.cwd.as_deref()),
            None => self.policy.verdict_without_name(),
        };
        if !matches!(verdict, CallVerdict::Deny(_)) {
            // Claude may have completed the input since the call was seen.
            self.state.forbidden.remove(called["tool_use_id"].as_str().unwrap_or_default());
        }
        let reply = match verdict {
            CallVerdict::Deny(reason) => control_messages::hook_denial(&reason),
            CallVerdict::AskPerson => control_messages::hook_question(),
            CallVerdict::Pass => json!({}),
        };
        vec![control_messages::success_response(id, reply)]
    }

    fn handle_mcp_message(&mut self, id: &str, request: &Json) -> Vec<RuntimeEffect> {
        let message = &request["message"];
        // An MCP server does not answer a notification, but Claude expects a control response.
        if message.get("id").is_none() {
            let nothing = json!({ "jsonrpc": "2.0", "result": {} });
            return vec![control_messages::success_response(
                id,
                json!({ "mcp_response": nothing }),
            )];
        }
        self.state.calls.insert(id.to_owned());
        let server = request["server_name"].as_str().unwrap_or_default().to_owned();
        vec![RuntimeEffect::Mcp { call: id.to_owned(), server, message: message.clone() }]
    }

    /// Handles the reply to a request of the runner.
    fn handle_reply(&mut self, fields: &Map<String, Json>) -> Vec<RuntimeEffect> {
        let response = fields.get("response").unwrap_or(&Json::Null);
        let failed = response["subtype"] == "error";
        let why = response["error"].as_str().unwrap_or("it gave no reason");
        let is_awaited = response["request_id"] == self.state.held_until.as_str();
        let held = if is_awaited { self.state.held_messages.take() } else { None };
        match held {
            // Without the hook the policy would not be enforced, so the prompt is never sent.
            Some(_) if failed => {
                let message = format!("Claude cannot enforce the rules of this agent: {why}");
                let error = MessageBody::Error { message, code: None };
                vec![
                    RuntimeEffect::Message(AgentMessage::from_body(error)),
                    RuntimeEffect::CloseInput,
                    RuntimeEffect::Done,
                ]
            }
            Some(held) => {
                held.iter().flat_map(|(uuid, text)| self.send_user_message(*uuid, text)).collect()
            }
            None if failed => vec![warning(&format!("Claude refused a control request: {why}"))],
            None => Vec::new(),
        }
    }

    fn handle_cancellation(&mut self, fields: &Map<String, Json>) -> Vec<RuntimeEffect> {
        let id = fields.get("request_id").and_then(Json::as_str).unwrap_or_default();
        // A request that Claude withdrew must not be answered any more.
        self.state.calls.remove(id);
        match self.state.questions.remove(id) {
            Some(_) => vec![RuntimeEffect::Withdraw { ask: id.to_owned() }],
            None => Vec::new(),
        }
    }

    fn send_user_message(&mut self, uuid: Uuid, text: &str) -> Vec<RuntimeEffect> {
        self.state.progress.record_sent(uuid);
        vec![control_messages::user_message(uuid, text)]
    }

    fn make_request(&mut self, request: Json) -> RuntimeEffect {
        self.state.requests += 1;
        control_messages::control_request(&format!("heeler-{}", self.state.requests), request)
    }

    /// Handles a message that is not part of the control protocol.
    fn handle_message(&mut self, message: AgentMessage) -> Vec<RuntimeEffect> {
        let alarm = self.find_forbidden_call(&message.body);
        self.state.progress.handle_message(&message);
        // The row of the message precedes the reason for the kill.
        let mut steps = vec![RuntimeEffect::Message(message)];
        if let Some(tool) = alarm {
            let message = format!(
                "Claude ran {tool}, which this agent's rules forbid: this version of Claude does \
                 not enforce them, so the run was stopped"
            );
            steps.push(RuntimeEffect::Message(AgentMessage::from_body(MessageBody::Error {
                message,
                code: None,
            })));
            // The call has run already; only a kill prevents the next one.
            steps.push(RuntimeEffect::Signal(Signal::KILL));
        }
        if self.state.progress.take_done() {
            steps.push(RuntimeEffect::Done);
        }
        steps
    }

    /// Detects a forbidden tool that ran. The hook should have prevented it, but a later version of
    /// Claude may behave differently. Returns the tool's name.
    fn find_forbidden_call(&mut self, body: &MessageBody) -> Option<String> {
        if !self.policy.is_restrictive() {
            return None;
        }
        let content = match body {
            MessageBody::Assistant(reply) => reply.message.get("content"),
            MessageBody::User(input) => input.message.get("content"),
            _ => None,
        };
        for block in content.and_then(Json::as_array).into_iter().flatten() {
            let id = |key: &str| block[key].as_str().unwrap_or_default();
            // A relative path counts as forbidden until the hook has seen its directory.
            let is_denied = |tool: &str| {
                matches!(self.policy.verdict(tool, &block["input"], None), CallVerdict::Deny(_))
            };
            if block["type"] == "tool_use" && is_denied(id("name")) {
                let tool: String = id("name").chars().take(TOOL_NAME_CHARS_MAX).collect();
                // A call that is not watched could run unnoticed.
                if self.state.forbidden.len() >= FORBIDDEN_CALLS_MAX {
                    return Some(tool);
                }
                self.state.forbidden.insert(id("id").to_owned(), tool);
            }
            if block["type"] == "tool_result"
                && let Some(tool) = self.state.forbidden.remove(id("tool_use_id"))
                // A denied call has an error as its result, so any other result means that it ran.
                && block["is_error"] != true
            {
                return Some(tool);
            }
        }
        None
    }
}

impl AgentRuntime for SdkRuntime {
    fn launch_spec(&mut self, session: &SessionStart) -> LaunchSpec {
        (self.launch)(session)
    }

    fn begin(&mut self, uuid: Uuid) -> Vec<RuntimeEffect> {
        self.state = SdkRuntimeState::default();
        let hooks = self.hooks();
        let request = json!({ "subtype": "initialize", "hooks": hooks });
        let mut steps = vec![control_messages::control_request(INITIALIZE, request)];
        // Claude could call a tool before the hook exists, so the prompt waits for the reply.
        if self.policy.is_restrictive() {
            self.state.held_messages = Some(vec![(uuid, self.prompt.clone())]);
            self.state.held_until = INITIALIZE.to_owned();
        } else {
            // The clone ends the borrow of the prompt, because the call needs the whole runtime.
            steps.extend(self.send_user_message(uuid, &self.prompt.clone()));
        }
        steps
    }

    fn handle_line(&mut self, line: &[u8]) -> Vec<RuntimeEffect> {
        let message = parse_line(line);
        match &message.body {
            MessageBody::Unknown { kind, .. } => match kind.as_str() {
                "control_request" => self.handle_request(&message.fields),
                "control_response" => self.handle_reply(&message.fields),
                "control_cancel_request" => self.handle_cancellation(&message.fields),
                _ => self.handle_message(message),
            },
            MessageBody::Malformed { .. } => {
                let reply = control_messages::refuse_unparsed(line);
                reply.into_iter().chain([RuntimeEffect::Message(message)]).collect()
            }
            _ => self.handle_message(message),
        }
    }

    fn send_message(&mut self, uuid: Uuid, text: &str) -> Option<Vec<RuntimeEffect>> {
        Some(match &mut self.state.held_messages {
            Some(held) => {
                held.push((uuid, text.to_owned()));
                Vec::new()
            }
            None => self.send_user_message(uuid, text),
        })
    }

    fn deliver_answer(&mut self, ask: &str, answer: &QuestionAnswer) -> Vec<RuntimeEffect> {
        // Claude may have withdrawn the question, which must not be answered then.
        let Some((shown, grant)) = self.state.questions.remove(ask) else { return Vec::new() };
        let response = match answer {
            // The rules are kept by Heeler, not in Claude's settings.
            QuestionAnswer::AllowSession | QuestionAnswer::AllowAlways => {
                let grant = grant.unwrap_or_default();
                self.state.session_rules.extend(grant.allow.iter().map(ToString::to_string));
                let updates = grant.to_updates();
                json!({ "behavior": "allow", "updatedInput": shown, "updatedPermissions": updates })
            }
            QuestionAnswer::Allow { input } => {
                // An allowed call runs with the input in the reply, so an unchanged one is sent
                // back.
                let input = input.as_ref().unwrap_or(&shown);
                json!({ "behavior": "allow", "updatedInput": input })
            }
            QuestionAnswer::Deny { message, interrupt } => {
                json!({ "behavior": "deny", "message": message, "interrupt": interrupt })
            }
        };
        vec![control_messages::success_response(ask, response)]
    }

    fn interrupt(&mut self) -> Vec<RuntimeEffect> {
        // Claude has received no message yet, so there is no turn to interrupt.
        if self.state.held_messages.take().is_some() {
            return vec![RuntimeEffect::CloseInput, RuntimeEffect::Done];
        }
        // Queued messages would otherwise run after the interrupt.
        let queued = self.state.progress.request_end();
        let mut steps: Vec<RuntimeEffect> = queued
            .into_iter()
            .map(|uuid| json!({ "subtype": "cancel_async_message", "message_uuid": uuid }))
            .map(|request| self.make_request(request))
            .collect();
        steps.push(self.make_request(json!({ "subtype": "interrupt" })));
        // Between two turns no result follows, from which the end would be noticed otherwise.
        if self.state.progress.take_done() {
            steps.push(RuntimeEffect::Done);
        }
        steps
    }

    fn deliver_mcp_reply(&mut self, call: &str, reply: Json) -> Vec<RuntimeEffect> {
        // Claude gave up the call meanwhile and expects no reply.
        if !self.state.calls.remove(call) {
            return Vec::new();
        }
        vec![control_messages::success_response(call, json!({ "mcp_response": reply }))]
    }

    fn can_stay(&self) -> bool {
        let SdkRuntimeState { held_messages, questions, calls, forbidden, progress, .. } =
            &self.state;
        held_messages.is_none()
            && questions.is_empty()
            && calls.is_empty()
            && forbidden.is_empty()
            && progress.is_idle()
    }

    fn handle_idle_line(&mut self, line: &[u8]) -> bool {
        let message = parse_line(line);
        let is_quiet = match &message.body {
            MessageBody::Ignored { kind } if kind == "session_state_changed" => {
                message.fields.get("state").is_some_and(|state| state == "idle")
            }
            MessageBody::Ignored { kind } => {
                matches!(
                    kind.as_str(),
                    "blank" | "keep_alive" | "ui_invalidate" | "session_title_changed"
                )
            }
            MessageBody::CommandLifecycle { state, .. } => state == "completed",
            MessageBody::BackgroundTasks { running } => running.is_empty(),
            // The reply to a request of the turn that has ended.
            MessageBody::Unknown { kind, .. } => kind == "control_response",
            _ => false,
        };
        if is_quiet {
            self.state.progress.handle_message(&message);
        }
        is_quiet
    }

    fn session_rules(&self) -> &[String] {
        &self.state.session_rules
    }

    fn begin_next_turn(&mut self, uuid: Uuid, turn: &NextTurn) -> Vec<RuntimeEffect> {
        self.prompt.clone_from(&turn.prompt);
        let mode = turn.permission_mode.as_ref();
        let mode = mode.map(|mode| json!({ "subtype": "set_permission_mode", "mode": mode }));
        let model = turn.model.as_ref();
        let model = model.map(|model| json!({ "subtype": "set_model", "model": model }));
        let mut steps = Vec::new();
        for request in [mode, model].into_iter().flatten() {
            steps.push(self.make_request(request));
        }
        if steps.is_empty() {
            return self.send_user_message(uuid, &turn.prompt);
        }
        // Claude must not begin before it has confirmed the settings of this turn.
        self.state.held_until = format!("heeler-{}", self.state.requests);
        self.state.held_messages = Some(vec![(uuid, turn.prompt.clone())]);
        steps
    }

    fn is_opening(&self) -> bool {
        self.state.held_messages.is_some()
    }

    fn waits_for_tool(&self) -> bool {
        self.state.progress.waits_for_tool()
    }
}

fn warning(text: &str) -> RuntimeEffect {
    let (kind, text) = ("control".to_owned(), text.to_owned());
    RuntimeEffect::Message(AgentMessage::from_body(MessageBody::Unknown { kind, text }))
}
