//! History of a conversation in the format of agents-fleet: one entry per line.

use std::collections::VecDeque;

use camino::Utf8Path;
use heeler_model::parse_foreign_time;
use heeler_transcript::{TranscriptEntry, TranscriptScanner};
use serde_json::{Value as Json, json};

use super::message::{ForkSafety, HistoryError, HistoryMessage, HistoryRole, ToolCall, ToolResult};
use super::{HISTORY_BYTES_MAX, HistoryPage};

/// Ending of such a transcript.
const SUFFIX: &str = ".ndjson";

const NO_FORK: ForkSafety =
    ForkSafety::Unsafe("it is a conversation: heeler --resume continues it, and /fork forks it");

/// Returns true if a transcript has the format of agents-fleet.
pub fn is_conversation_log(log: &Utf8Path) -> bool {
    log.as_str().ends_with(SUFFIX)
}

/// Returns the last `count` entries before entry number `before`, or the last of all. Each entry is
/// a message: the programs count them so.
pub fn load_conversation_history(
    log: &Utf8Path,
    before: Option<u64>,
    count: usize,
) -> Result<HistoryPage, HistoryError> {
    let (mut total, mut bytes) = (0_u64, 0);
    let mut kept: VecDeque<(u64, String)> = VecDeque::new();
    for entry in TranscriptScanner::open(log)? {
        // A torn line is no message.
        let TranscriptEntry::Record(record) = entry? else { continue };
        total += 1;
        if before.is_none_or(|before| total < before) {
            bytes += record.text.len();
            kept.push_back((total, record.text));
            while kept.len() > count || (bytes > HISTORY_BYTES_MAX && kept.len() > 1) {
                bytes -= kept.pop_front().map_or(0, |(_, line)| line.len());
            }
        }
    }
    let messages = kept.into_iter().map(|(number, line)| {
        let entry = serde_json::from_str(&line).unwrap_or(Json::Null);
        read_message(number, &entry)
    });
    Ok(HistoryPage { messages: messages.collect(), total })
}

fn read_message(number: u64, entry: &Json) -> HistoryMessage {
    let role = entry["role"].as_str().unwrap_or_default();
    let at = ["at", "timestamp", "ts"].iter().find_map(|key| entry[*key].as_str());
    let tools = (role == "tool").then(|| read_tool(entry));
    let content = match (role, &tools) {
        ("user" | "assistant", _) => entry["content"].clone(),
        (_, Some(tool)) => json!([{ "type": "tool_use", "name": tool.name, "input": tool.input }]),
        // The API has no such role, so the text names it.
        (role, None) => {
            let text = entry["content"].as_str().map(str::to_owned);
            json!(format!("[{role}] {}", text.unwrap_or_else(|| entry["content"].to_string())))
        }
    };
    let speaker = if role == "user" { HistoryRole::User } else { HistoryRole::Assistant };
    let word = if role == "user" { "user" } else { "assistant" };
    HistoryMessage {
        number,
        role: speaker,
        uuid: None,
        at: at.and_then(parse_foreign_time),
        rows: vec![json!({ "type": word, "message": { "role": word, "content": content } })],
        tools: tools.into_iter().collect(),
        left_out: 0,
        fork_safety: NO_FORK,
        in_context: true,
        snapshot: None,
    }
}

fn read_tool(entry: &Json) -> ToolCall {
    let result = (!entry["content"].is_null())
        .then(|| ToolResult { content: entry["content"].clone(), is_error: false });
    ToolCall {
        id: None,
        name: entry["name"].as_str().unwrap_or("tool").to_owned(),
        input: entry["args"].clone(),
        result,
    }
}
