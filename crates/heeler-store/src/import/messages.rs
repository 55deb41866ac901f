//! How many messages a session's log holds, as `--at-message` counts them.

use camino::Utf8Path;
use heeler_transcript::{DiskError, Entry, Scan};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: Option<String>,
    message: Option<Message>,
}

#[derive(Deserialize)]
struct Message {
    id: Option<String>,
    content: Option<Value>,
}

/// Counts the user and assistant messages of a log in the Claude envelope.
///
/// The lines of one assistant message (they share its id) count as one; tool results and lines that
/// cannot be read count as none.
pub(crate) fn count(log: &Utf8Path) -> Result<i64, DiskError> {
    let mut messages = 0;
    let mut last_id = None;
    for entry in Scan::open(log)? {
        let Entry::Record(record) = entry? else { continue };
        let Ok(Line { kind: Some(kind), message: Some(message) }) =
            serde_json::from_str(&record.text)
        else {
            continue;
        };
        let counts = match kind.as_str() {
            "user" => !only_tool_results(message.content.as_ref()),
            "assistant" => message.id.is_none() || message.id != last_id,
            _ => false,
        };
        if counts {
            messages += 1;
            last_id = message.id;
        }
    }
    Ok(messages)
}

fn only_tool_results(content: Option<&Value>) -> bool {
    let Some(Value::Array(blocks)) = content else { return content.is_none() };
    blocks.iter().all(|block| block["type"] == "tool_result")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_one_message_count_once_and_tool_results_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let log = Utf8Path::from_path(dir.path()).unwrap().join("log.jsonl");
        let lines = [
            r#"{"type":"user","message":{"role":"user","content":"hello"}}"#,
            r#"{"type":"assistant","message":{"id":"m1","content":[{"type":"text"}]}}"#,
            r#"{"type":"assistant","message":{"id":"m1","content":[{"type":"tool_use"}]}}"#,
            r#"{"type":"user","message":{"content":[{"type":"tool_result"}]}}"#,
            "garbage",
            r#"{"type":"assistant","message":{"content":[{"type":"text"}]}}"#,
            r#"{"type":"result","subtype":"success"}"#,
            r#"{"type":"user","message":{"content":"torn"#,
        ];
        std::fs::write(&log, lines.join("\n")).unwrap();
        assert_eq!(count(&log).unwrap(), 3);
    }
}
