//! Replays captured output of Claude Code for the checks that hold for the captures of every agent.
//! The exact effects of a conversation are tested beside [`SdkRuntime`].

use heeler_model::outcome::AgentProcessExit;
use heeler_model::run::{ClaudeLaunchSpec, QuestionAnswer, SessionStart};
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::sdk::INITIALIZE;
use super::{ClaudeCliRuntime, ClaudeLaunchOptions, SdkRuntime};
use crate::protocol_replay::{RecordedLine, ReplayedConversation, RuntimeTrace};
use crate::runtime::AgentRuntime as _;

/// Replays the output of a run with one prompt.
pub(crate) fn replay_output(
    lines: &[RecordedLine],
    exit: &AgentProcessExit,
) -> ReplayedConversation {
    let setup = ClaudeLaunchOptions {
        brief: ClaudeLaunchSpec::default(),
        limits: Default::default(),
        mcp: json!({}),
        injected: Vec::new(),
        long_running: false,
    };
    let mut cli = ClaudeCliRuntime::new("hello".to_owned(), setup).unwrap();
    let begin = cli.begin(Uuid::nil());
    let mut trace = RuntimeTrace::new(&mut cli);
    trace.record(begin);
    lines.iter().filter(|line| line.is_agents).for_each(|line| trace.feed_text(&line.text));
    // Claude's rows are kept as they are, also that of a call without a result.
    ReplayedConversation { faults: Vec::new(), ..trace.finish(exit) }
}

/// Replays a conversation with the control protocol.
pub(crate) fn replay_control(
    lines: &[RecordedLine],
    exit: &AgentProcessExit,
) -> ReplayedConversation {
    let is_message = |line: &&RecordedLine| !line.is_agents && line.message["type"] == "user";
    let prompt = lines.iter().find(is_message).map_or("", |line| content(&line.message));
    let launch = |_: &SessionStart| unreachable!("nothing is started");
    let mut sdk = SdkRuntime::new(prompt.to_owned(), Box::new(launch));
    let mut trace = RuntimeTrace::new(&mut sdk);
    let mut has_begun = false;
    for line in lines {
        let message = &line.message;
        match (line.is_agents, message["type"].as_str()) {
            (true, None) => trace.feed_text(&line.text),
            (true, Some(_)) => {
                let mut message = message.clone();
                // The reply to the first request of the recorded client.
                if message["response"]["request_id"] == "init1" {
                    message["response"]["request_id"] = INITIALIZE.into();
                }
                trace.feed(&message);
            }
            (false, Some("user")) => {
                let uuid = message["uuid"].as_str().and_then(|uuid| uuid.parse().ok());
                let uuid = uuid.unwrap_or(Uuid::nil());
                let effects = match std::mem::replace(&mut has_begun, true) {
                    false => trace.runtime.begin(uuid),
                    true => trace.runtime.send_message(uuid, content(message)).unwrap_or_default(),
                };
                trace.record(effects);
            }
            (false, Some("control_response")) => replay_answer(&mut trace, &message["response"]),
            (false, _) if message["request"]["subtype"] == "interrupt" => trace.interrupt(),
            (false, _) => {}
        }
    }
    let mut replayed = trace.finish(exit);
    replayed.faults.retain(|fault| fault.starts_with("no reply"));
    replayed
}

fn content(message: &Json) -> &str {
    message["message"]["content"].as_str().unwrap_or_default()
}

/// Delivers a recorded answer to a question, or the reply of a server.
fn replay_answer(trace: &mut RuntimeTrace<'_>, then: &Json) {
    let id = then["request_id"].as_str().unwrap_or_default();
    let response = &then["response"];
    if let Some(reply) = response.get("mcp_response") {
        let effects = trace.runtime.deliver_mcp_reply(id, reply.clone());
        trace.record(effects);
    } else if trace.questions.iter().any(|open| open == id) {
        let answer = match response["behavior"] == "allow" {
            true => QuestionAnswer::Allow { input: response.get("updatedInput").cloned() },
            false => QuestionAnswer::Deny { message: "no".to_owned(), interrupt: false },
        };
        trace.answer(id, &answer);
    }
}
