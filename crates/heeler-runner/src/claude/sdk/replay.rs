//! Replays recorded conversations with the real Claude: its recorded output goes in, and the
//! effects must match the replies of the recording.

use std::fmt::Write as _;
use std::path::PathBuf;

use expect_test::expect_file;

use super::*;

/// Returns the lines of a recording in order: those written to Claude and those written by it.
fn capture(name: &str) -> Vec<(char, Json)> {
    let text = std::fs::read_to_string(captures().join(name)).unwrap();
    let line = |line: &str| {
        let mut parts = line.splitn(3, ' ').skip(1);
        let direction = parts.next().unwrap().chars().next().unwrap();
        let text = parts.next().unwrap_or_default();
        Some((direction, serde_json::from_str(text).ok()?))
    };
    text.lines().filter_map(line).collect()
}

fn captures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/captures")
}

/// Replays a conversation and returns the effects, one per line.
struct SdkCaptureReplay {
    sdk: SdkRuntime,
    trace: String,
    /// Requests of Claude that have no reply yet.
    open: HashMap<String, String>,
    begun: bool,
}

impl SdkCaptureReplay {
    fn record_effects(&mut self, steps: Vec<RuntimeEffect>) {
        for step in steps {
            let line = match step {
                RuntimeEffect::Write(line) => {
                    self.describe_written(&serde_json::from_slice(&line).unwrap())
                }
                RuntimeEffect::Message(message) => match describe_body(&message.body) {
                    Some(line) => line,
                    None => continue,
                },
                RuntimeEffect::Ask { id, kind, tool, .. } => {
                    assert!(self.open.contains_key(&id));
                    format!("ask {} {tool}", kind.as_str())
                }
                RuntimeEffect::Withdraw { ask } => {
                    assert!(self.open.remove(&ask).is_some());
                    "withdraw".to_owned()
                }
                RuntimeEffect::Mcp { server, message, .. } => {
                    format!("mcp {server} {}", message["method"].as_str().unwrap())
                }
                RuntimeEffect::Done => "done".to_owned(),
                other => format!("{other:?}"),
            };
            writeln!(self.trace, "{line}").unwrap();
        }
    }

    fn describe_written(&mut self, line: &Json) -> String {
        match line["type"].as_str().unwrap() {
            "control_response" => {
                let response = &line["response"];
                let id = response["request_id"].as_str().unwrap();
                let asked = self.open.remove(id).expect("only what is open is answered");
                format!("> {asked}: {}", truncate_text(&response["response"].to_string()))
            }
            "control_request" => format!("> {}", truncate_text(&line["request"].to_string())),
            _ => format!("> user {}", truncate_text(&line["message"]["content"].to_string())),
        }
    }

    /// Performs the action of the recorded host.
    fn replay_host_line(&mut self, line: &Json) {
        let steps = match line["type"].as_str().unwrap() {
            "user" if !self.begun => {
                self.begun = true;
                self.sdk.prompt = line["message"]["content"].as_str().unwrap().to_owned();
                self.sdk.begin(uuid_of(line))
            }
            "user" => {
                let text = line["message"]["content"].as_str().unwrap();
                self.sdk.send_message(uuid_of(line), text).unwrap()
            }
            "control_response" => self.replay_answer(&line["response"]),
            _ if line["request"]["subtype"] == "interrupt" => self.sdk.interrupt(),
            _ => return,
        };
        self.record_effects(steps);
    }

    /// Delivers the recorded answer and compares the effects with it.
    fn replay_answer(&mut self, then: &Json) -> Vec<RuntimeEffect> {
        let id = then["request_id"].as_str().unwrap();
        let response = &then["response"];
        let steps = if let Some(reply) = response.get("mcp_response") {
            self.sdk.deliver_mcp_reply(id, reply.clone())
        } else if let Some(answer) = answer_of(then) {
            self.sdk.deliver_answer(id, &answer)
        } else {
            // A hook or a notification: it was answered at once.
            assert!(!self.open.contains_key(id));
            return Vec::new();
        };
        if let [RuntimeEffect::Write(line)] = &steps[..] {
            let line: Json = serde_json::from_slice(line).unwrap();
            for key in ["behavior", "message", "updatedInput", "mcp_response"] {
                if let Some(value) = response.get(key) {
                    assert_eq!(&line["response"]["response"][key], value);
                }
            }
        }
        steps
    }
}

fn answer_of(then: &Json) -> Option<QuestionAnswer> {
    let response = &then["response"];
    if then["subtype"] == "error" {
        let message = then["error"].as_str().unwrap().to_owned();
        return Some(QuestionAnswer::Deny { message, interrupt: false });
    }
    match response["behavior"].as_str()? {
        "allow" => Some(QuestionAnswer::Allow { input: response.get("updatedInput").cloned() }),
        _ => Some(QuestionAnswer::Deny {
            message: response["message"].as_str().unwrap().to_owned(),
            interrupt: response["interrupt"] == true,
        }),
    }
}

fn uuid_of(line: &Json) -> Uuid {
    line["uuid"].as_str().map_or(Uuid::nil(), |uuid| uuid.parse().unwrap())
}

fn describe_body(body: &MessageBody) -> Option<String> {
    Some(match body {
        MessageBody::Init(_) => "init".to_owned(),
        MessageBody::Assistant(_) => "assistant".to_owned(),
        MessageBody::User(_) => "user".to_owned(),
        MessageBody::Result(result) => format!("result {:?}", result.terminal_reason),
        MessageBody::Task(task) => format!("{} {:?}", task.subtype, task.status),
        MessageBody::BackgroundTasks { running } => format!("background {}", running.len()),
        MessageBody::CommandLifecycle { state, .. } => format!("message {state}"),
        MessageBody::Unknown { .. } | MessageBody::Malformed { .. } => format!("{body:?}"),
        _ => return None,
    })
}

fn truncate_text(text: &str) -> String {
    text.chars().take(100).collect()
}

#[track_caller]
fn replay(name: &str, allowed: Option<&[&str]>) {
    let brief = heeler_model::run::ClaudeLaunchSpec {
        allowed_tools: allowed.map(|list| list.iter().map(|entry| (*entry).to_owned()).collect()),
        ..Default::default()
    };
    let policy = CallPolicy::from_brief(&brief, &[]).unwrap();
    let launch = |_: &SessionStart| unreachable!("nothing is started");
    let sdk = SdkRuntime { policy, ..SdkRuntime::new(String::new(), Box::new(launch)) };
    let mut replay =
        SdkCaptureReplay { sdk, trace: String::new(), open: HashMap::new(), begun: false };
    for (direction, line) in capture(name) {
        match direction {
            '<' => {
                // Answers to requests that only the recorded host made.
                let mut line = line;
                if line["response"]["request_id"] == "init1" {
                    line["response"]["request_id"] = INITIALIZE.into();
                }
                if line["type"] == "control_request" {
                    let id = line["request_id"].as_str().unwrap().to_owned();
                    let asked = line["request"]["subtype"].as_str().unwrap().to_owned();
                    replay.open.insert(id, asked);
                }
                let steps = replay.sdk.handle_line(line.to_string().as_bytes());
                replay.record_effects(steps);
            }
            '>' => replay.replay_host_line(&line),
            _ => {}
        }
    }
    assert!(replay.open.is_empty(), "left unanswered: {:?}", replay.open);
    expect_file![captures().join(name.replace(".io", ".steps"))].assert_eq(&replay.trace);
}

#[test]
fn permissions_are_asked_and_answered_as_then() {
    replay("40_control_can_use_tool.io", None);
}

#[test]
fn a_running_text_is_interrupted_as_then() {
    replay("42_control_interrupt.io", None);
}

#[test]
fn hooks_are_answered() {
    replay("44_control_hooks.io", Some(&["Write"]));
}

#[test]
fn servers_are_served_as_then() {
    replay("45_control_sdk_mcp.io", None);
}

#[test]
fn a_message_is_steered_into_the_turn_as_then() {
    replay("70c_queue_uuid.io", None);
}

#[test]
fn a_sub_agent_works_as_then() {
    replay("75_subagent.io", None);
}

#[test]
fn a_background_command_is_waited_for() {
    replay("76_bg_bash.io", None);
}

#[test]
fn a_question_is_withdrawn_as_then() {
    replay("86_cancel_request.io", None);
}

#[test]
fn questions_are_asked_and_answered_as_then() {
    replay("87_ask_user.io", None);
}

#[test]
fn turns_follow_each_other_in_the_old_and_the_new_version() {
    replay("30_multi_turn_stream.io", None);
    replay("90_v197_multi.io", None);
}
