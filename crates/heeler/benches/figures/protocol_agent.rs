//! The agent for measuring, in the protocols of Codex and of ACP agents: replies to the requests of the
//! runner, and speaks during its turn.

use std::io::{BufRead as _, BufWriter, Write};
use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::agent::moment;

/// Text of the agent's turn.
#[derive(Clone, Copy)]
pub(crate) enum SpokenTurn {
    /// The time, so often, with a pause before each.
    Times { count: u64, pause: Duration },
    /// Texts of so many bytes, as fast as they are read.
    Texts { count: u64, bytes: usize },
}

impl SpokenTurn {
    /// Calls `say` for each text.
    pub(crate) fn speak(self, mut say: impl FnMut(u64, &str)) {
        match self {
            SpokenTurn::Times { count, pause } => (0..count).for_each(|number| {
                std::thread::sleep(pause);
                say(number, &moment().as_nanos().to_string());
            }),
            SpokenTurn::Texts { count, bytes } => {
                let text = "x".repeat(bytes);
                (0..count).for_each(|number| say(number, &text));
            }
        }
    }
}

/// Is an agent that speaks ACP.
pub(crate) fn play_acp(turn: SpokenTurn) {
    serve(|out, request| match request["method"].as_str() {
        Some("initialize") => Some(json!({ "protocolVersion": 1, "agentCapabilities": {} })),
        Some("session/new") => Some(json!({ "sessionId": "s" })),
        Some("session/prompt") => {
            turn.speak(|number, text| {
                let content = json!({ "type": "text", "text": text });
                update(
                    out,
                    json!({ "sessionUpdate": "agent_message_chunk",
                    "messageId": number.to_string(), "content": content }),
                );
                // A text becomes a row when something else follows it.
                if matches!(turn, SpokenTurn::Times { .. }) {
                    update(out, json!({ "sessionUpdate": "plan", "entries": [] }));
                    drop(out.flush());
                }
            });
            Some(json!({ "stopReason": "end_turn" }))
        }
        _ => None,
    });
}

fn update(out: &mut impl Write, update: Json) {
    let params = json!({ "sessionId": "s", "update": update });
    say(out, &json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }));
}

/// Is Codex.
pub(crate) fn play_codex(turn: SpokenTurn) {
    serve(|out, request| match request["method"].as_str() {
        Some("initialize") => Some(json!({ "userAgent": "bench" })),
        Some("thread/start") => Some(json!({ "thread": { "id": "t" }, "model": "clock" })),
        Some("turn/start") => {
            let begun = json!({ "turn": { "id": "u", "status": "inProgress" } });
            say(out, &json!({ "id": request["id"], "result": begun }));
            turn.speak(|number, text| {
                let item =
                    json!({ "type": "agentMessage", "id": number.to_string(), "text": text });
                let params = json!({ "threadId": "t", "turnId": "u", "item": item });
                say(out, &json!({ "method": "item/completed", "params": params }));
                if matches!(turn, SpokenTurn::Times { .. }) {
                    drop(out.flush());
                }
            });
            let ended = json!({ "id": "u", "status": "completed", "error": null });
            let params = json!({ "threadId": "t", "turn": ended });
            say(out, &json!({ "method": "turn/completed", "params": params }));
            None
        }
        _ => None,
    });
}

/// Replies to each request of the runner, until the runner closes the input.
fn serve(mut reply: impl FnMut(&mut BufWriter<std::io::Stdout>, &Json) -> Option<Json>) {
    let mut out = BufWriter::new(std::io::stdout());
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let request: Json = serde_json::from_str(&line).expect("the runner sends JSON");
        if let Some(result) = reply(&mut out, &request) {
            say(&mut out, &json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }));
        }
        drop(out.flush());
    }
}

fn say(out: &mut impl Write, line: &Json) {
    // A runner that does not read any more has ended the measurement.
    drop(writeln!(out, "{line}"));
}
