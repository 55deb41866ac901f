//! The control protocol, both ways (`runtime: sdk`; the scripted agent speaks it too).
//!
//! Requests of the agent are answered whenever they come, also while an answer to one of ours is
//! awaited: it connects to our MCP servers before it answers anything. None is left without a
//! reply, since the agent would wait for it for ever. Start at [`Sdk`].

#[cfg(test)]
mod replay;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use heeler_model::message::{Body, Message, read_line};
use heeler_model::run::{Answer, SessionStart};
use rustix::process::Signal;
use serde_json::{Map, Value as Json, json};
use uuid::Uuid;

use super::allowed::{Allowed, Refusal};
use super::args::Setup;
use super::progress::Progress;
use super::wire;
use crate::process::Launch;
use crate::runtime::{AskKind, Runtime, Step};

/// Names our first request, and the hook that holds the list of allowed tools.
const INITIALIZE: &str = "heeler-initialize";
const ALLOWED_TOOLS: &str = "allowed_tools";

/// How long Claude waits for the hook. It is answered at once; but while a disk is full nothing is
/// read, and a call that is not answered in time is denied.
const HOOK_TIMEOUT_S: u32 = 24 * 60 * 60;

/// How much of the name of such a tool is told.
const TOOL_NAME_CHARS_MAX: usize = 256;

/// How many calls of tools that may not run are watched at once. An agent that makes more of them
/// is stopped, as if one had run: nobody could tell any more.
const FORBIDDEN_CALLS_MAX: usize = 4096;

/// An agent that speaks the control protocol.
pub(crate) struct Sdk {
    prompt: String,
    launch: Box<dyn Fn(&SessionStart) -> Launch>,
    allowed: Option<Allowed>,
    talk: Talk,
}

/// What is known of one conversation.
#[derive(Default)]
struct Talk {
    /// What waits until the hook that holds the list stands: the prompt, and what was said since.
    held: Option<Vec<(Uuid, String)>>,
    progress: Progress,
    /// What a person was asked, with the input that was shown.
    asks: HashMap<String, Json>,
    /// What our MCP servers were asked.
    calls: HashSet<String>,
    /// Calls of tools that may not run: a success of one of them is an alarm.
    forbidden: HashMap<String, String>,
    /// How many requests were made.
    requests: u64,
}

impl Sdk {
    /// Makes a runtime for any agent that speaks the protocol.
    pub(crate) fn new(prompt: String, launch: Box<dyn Fn(&SessionStart) -> Launch>) -> Sdk {
        Sdk { prompt, launch, allowed: None, talk: Talk::default() }
    }

    /// Makes the runtime for Claude, unless its list of allowed tools cannot be held.
    pub(crate) fn claude(prompt: String, setup: Setup) -> Result<Sdk, Refusal> {
        let allowed = Allowed::of(&setup.brief, &setup.injected)?;
        let listed = allowed.clone();
        let launch = Box::new(move |session: &SessionStart| setup.sdk(listed.as_ref(), session));
        Ok(Sdk { allowed, ..Sdk::new(prompt, launch) })
    }

    fn hooks(&self) -> Json {
        if self.allowed.is_none() {
            return Json::Null;
        }
        let hook = json!({
            "matcher": "", "hookCallbackIds": [ALLOWED_TOOLS], "timeout": HOOK_TIMEOUT_S,
        });
        json!({ "PreToolUse": [hook] })
    }

    /// Takes a request of the agent's.
    fn requested(&mut self, fields: &Map<String, Json>) -> Vec<Step> {
        let Some(id) = fields.get("request_id").and_then(Json::as_str) else {
            return vec![warning("a control request without an id, which nobody can answer")];
        };
        let request = fields.get("request").unwrap_or(&Json::Null);
        match request["subtype"].as_str().unwrap_or_default() {
            "can_use_tool" => self.may(id, request),
            "hook_callback" => self.hook(id, request),
            "mcp_message" => self.mcp(id, request),
            other => {
                let reason = format!("unsupported control request subtype: {other}");
                vec![wire::refuse(id, &reason)]
            }
        }
    }

    fn may(&mut self, id: &str, request: &Json) -> Vec<Step> {
        let tool = request["tool_name"].as_str().unwrap_or_default();
        let input = &request["input"];
        if let Some(allowed) = &self.allowed
            && !allowed.permits(tool, input)
        {
            let message = allowed.reason(tool);
            return vec![wire::reply(id, json!({ "behavior": "deny", "message": message }))];
        }
        let asks = tool == "AskUserQuestion" || request["requires_user_interaction"] == true;
        let kind = if asks { AskKind::Question } else { AskKind::Permission };
        let (id, tool, input) = (id.to_owned(), tool.to_owned(), input.clone());
        self.talk.asks.insert(id.clone(), input.clone());
        vec![Step::Ask { id, kind, tool, input }]
    }

    /// Answers a hook. An error would let the call run, so there is none, and in doubt it is denied.
    fn hook(&mut self, id: &str, request: &Json) -> Vec<Step> {
        let called = &request["input"];
        let (tool, input) = (called["tool_name"].as_str(), &called["tool_input"]);
        let denied = match (&self.allowed, tool) {
            (None, _) => None,
            (Some(allowed), Some(tool)) if allowed.permits(tool, input) => None,
            (Some(allowed), tool) => Some(allowed.reason(tool.unwrap_or_default())),
        };
        let Some(reason) = denied else {
            // Claude may have completed the input since the call was seen.
            self.talk.forbidden.remove(called["tool_use_id"].as_str().unwrap_or_default());
            return vec![wire::reply(id, json!({}))];
        };
        vec![wire::reply(id, wire::denial(&reason))]
    }

    fn mcp(&mut self, id: &str, request: &Json) -> Vec<Step> {
        let message = &request["message"];
        // A notification gets no answer of its server, but Claude waits for one of ours.
        if message.get("id").is_none() {
            let nothing = json!({ "jsonrpc": "2.0", "result": {} });
            return vec![wire::reply(id, json!({ "mcp_response": nothing }))];
        }
        self.talk.calls.insert(id.to_owned());
        let server = request["server_name"].as_str().unwrap_or_default().to_owned();
        vec![Step::Mcp { call: id.to_owned(), server, message: message.clone() }]
    }

    /// Takes the answer to a request of ours.
    fn replied(&mut self, fields: &Map<String, Json>) -> Vec<Step> {
        let response = fields.get("response").unwrap_or(&Json::Null);
        let failed = response["subtype"] == "error";
        let why = response["error"].as_str().unwrap_or("it does not say why");
        let held = if response["request_id"] == INITIALIZE { self.talk.held.take() } else { None };
        match held {
            Some(_) if failed => {
                let message = format!("Claude cannot hold the list of allowed tools: {why}");
                let error = Body::Error { message, code: None };
                vec![Step::Message(Message::of(error)), Step::CloseInput, Step::Done]
            }
            Some(held) => held.iter().flat_map(|(uuid, text)| self.tell(*uuid, text)).collect(),
            None if failed => vec![warning(&format!("Claude refused a control request: {why}"))],
            None => Vec::new(),
        }
    }

    fn withdrawn(&mut self, fields: &Map<String, Json>) -> Vec<Step> {
        let id = fields.get("request_id").and_then(Json::as_str).unwrap_or_default();
        self.talk.calls.remove(id);
        match self.talk.asks.remove(id) {
            Some(_) => vec![Step::Withdraw { ask: id.to_owned() }],
            None => Vec::new(),
        }
    }

    fn tell(&mut self, uuid: Uuid, text: &str) -> Vec<Step> {
        self.talk.progress.sent(uuid);
        vec![wire::user(uuid, text)]
    }

    fn request(&mut self, request: Json) -> Step {
        self.talk.requests += 1;
        wire::request(&format!("heeler-{}", self.talk.requests), request)
    }

    /// Takes what is not about control.
    fn said(&mut self, message: Message) -> Vec<Step> {
        let alarm = self.watch(&message.body);
        self.talk.progress.message(&message);
        let mut steps = vec![Step::Message(message)];
        if let Some(tool) = alarm {
            let message = format!(
                "Claude ran {tool}, which is not among the allowed tools: this version of Claude \
                 does not hold the list, so the run was stopped"
            );
            steps.push(Step::Message(Message::of(Body::Error { message, code: None })));
            steps.push(Step::Signal(Signal::KILL));
        }
        if self.talk.progress.newly_done() {
            steps.push(Step::Done);
        }
        steps
    }

    /// Looks whether a tool ran that may not: the hook should have seen to it, but a later version
    /// of Claude may think otherwise. Returns that tool.
    fn watch(&mut self, body: &Body) -> Option<String> {
        let allowed = self.allowed.as_ref()?;
        let content = match body {
            Body::Assistant(said) => said.message.get("content"),
            Body::User(told) => told.message.get("content"),
            _ => None,
        };
        for block in content.and_then(Json::as_array).into_iter().flatten() {
            let id = |key: &str| block[key].as_str().unwrap_or_default();
            if block["type"] == "tool_use" && !allowed.permits(id("name"), &block["input"]) {
                let tool: String = id("name").chars().take(TOOL_NAME_CHARS_MAX).collect();
                if self.talk.forbidden.len() >= FORBIDDEN_CALLS_MAX {
                    return Some(tool);
                }
                self.talk.forbidden.insert(id("id").to_owned(), tool);
            }
            if block["type"] == "tool_result"
                && let Some(tool) = self.talk.forbidden.remove(id("tool_use_id"))
                && block["is_error"] != true
            {
                return Some(tool);
            }
        }
        None
    }
}

impl Runtime for Sdk {
    fn launch(&self, session: &SessionStart) -> Launch {
        (self.launch)(session)
    }

    fn begin(&mut self, uuid: Uuid) -> Vec<Step> {
        self.talk = Talk::default();
        let hooks = self.hooks();
        let request = json!({ "subtype": "initialize", "hooks": hooks });
        let mut steps = vec![wire::request(INITIALIZE, request)];
        if self.allowed.is_some() {
            self.talk.held = Some(vec![(uuid, self.prompt.clone())]);
        } else {
            steps.extend(self.tell(uuid, &self.prompt.clone()));
        }
        steps
    }

    fn line(&mut self, line: &[u8]) -> Vec<Step> {
        let message = read_line(line);
        match &message.body {
            Body::Unknown { kind, .. } => match kind.as_str() {
                "control_request" => self.requested(&message.fields),
                "control_response" => self.replied(&message.fields),
                "control_cancel_request" => self.withdrawn(&message.fields),
                _ => self.said(message),
            },
            Body::Malformed { .. } => {
                let reply = wire::refuse_unread(line);
                reply.into_iter().chain([Step::Message(message)]).collect()
            }
            _ => self.said(message),
        }
    }

    fn say(&mut self, uuid: Uuid, text: &str) -> Option<Vec<Step>> {
        Some(match &mut self.talk.held {
            Some(held) => {
                held.push((uuid, text.to_owned()));
                Vec::new()
            }
            None => self.tell(uuid, text),
        })
    }

    fn answer(&mut self, ask: &str, answer: &Answer) -> Vec<Step> {
        let Some(shown) = self.talk.asks.remove(ask) else { return Vec::new() };
        let response = match answer {
            Answer::Allow { input } => {
                let input = input.as_ref().unwrap_or(&shown);
                json!({ "behavior": "allow", "updatedInput": input })
            }
            Answer::Deny { message, interrupt } => {
                json!({ "behavior": "deny", "message": message, "interrupt": interrupt })
            }
        };
        vec![wire::reply(ask, response)]
    }

    fn interrupt(&mut self) -> Vec<Step> {
        if self.talk.held.take().is_some() {
            return vec![Step::CloseInput, Step::Done];
        }
        // What is queued would run by itself after the interrupt.
        let queued = self.talk.progress.end();
        let mut steps: Vec<Step> = queued
            .into_iter()
            .map(|uuid| json!({ "subtype": "cancel_async_message", "message_uuid": uuid }))
            .map(|request| self.request(request))
            .collect();
        steps.push(self.request(json!({ "subtype": "interrupt" })));
        if self.talk.progress.newly_done() {
            steps.push(Step::Done);
        }
        steps
    }

    fn mcp_reply(&mut self, call: &str, reply: Json) -> Vec<Step> {
        if !self.talk.calls.remove(call) {
            return Vec::new();
        }
        vec![wire::reply(call, json!({ "mcp_response": reply }))]
    }

    fn waits_for_tool(&self) -> bool {
        self.talk.progress.waits_for_tool()
    }
}

fn warning(text: &str) -> Step {
    let (kind, text) = ("control".to_owned(), text.to_owned());
    Step::Message(Message::of(Body::Unknown { kind, text }))
}
