//! History of a conversation in the format of agents-fleet: one entry per line.

use std::collections::VecDeque;

use camino::Utf8Path;
use heeler_model::parse_foreign_time;
use heeler_transcript::{TranscriptEntry, TranscriptScanner};
use serde::Deserialize;
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
        // An entry of another shape is shown without content.
        read_message(number, serde_json::from_str(&line).unwrap_or_default())
    });
    Ok(HistoryPage { messages: messages.collect(), total })
}

/// Entry of a conversation. Programs name its time differently.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ConversationLine {
    role: String,
    content: Json,
    name: Option<String>,
    args: Json,
    #[serde(alias = "timestamp", alias = "ts")]
    at: Json,
}

fn read_message(number: u64, entry: ConversationLine) -> HistoryMessage {
    let ConversationLine { role, content, name, args, at } = entry;
    let (word, speaker) = match role.as_str() {
        "user" => ("user", HistoryRole::User),
        _ => ("assistant", HistoryRole::Assistant),
    };
    let mut tools = Vec::new();
    let shown = match role.as_str() {
        "user" | "assistant" => content,
        "tool" => {
            let result = (!content.is_null()).then_some(ToolResult { content, is_error: false });
            let name = name.unwrap_or_else(|| "tool".to_owned());
            let block = json!([{ "type": "tool_use", "name": name, "input": args }]);
            tools.push(ToolCall { id: None, name, input: args, result });
            block
        }
        // The API has no such role, so the text names it.
        role => match content {
            Json::String(text) => json!(format!("[{role}] {text}")),
            other => json!(format!("[{role}] {other}")),
        },
    };
    HistoryMessage {
        number,
        role: speaker,
        uuid: None,
        at: at.as_str().and_then(parse_foreign_time),
        rows: vec![json!({ "type": word, "message": { "role": word, "content": shown } })],
        tools,
        errors: Vec::new(),
        left_out: 0,
        fork_safety: NO_FORK,
        in_context: true,
        snapshot: None,
    }
}
