//! Counts the messages in a session's transcript, as `--at-message` does.

use camino::Utf8Path;
use heeler_model::recorder::MessageCounter;
use heeler_transcript::{DiskError, TranscriptEntry, TranscriptScanner};

/// Counts the user and assistant messages of a transcript in Claude's format; unreadable lines
/// do not count.
pub(crate) fn count_messages(log: &Utf8Path) -> Result<i64, DiskError> {
    let mut count = MessageCounter::default();
    for entry in TranscriptScanner::open(log)? {
        let TranscriptEntry::Record(record) = entry? else { continue };
        if let Ok(row) = serde_json::from_str(&record.text) {
            count.count_row(&row);
        }
    }
    Ok(i64::try_from(count.messages()).unwrap_or(i64::MAX))
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
            r#"{"type":"user","isSidechain":true,"message":{"content":"a sub-agent's task"}}"#,
            r#"{"type":"assistant","isApiErrorMessage":true,"message":{"content":[{"type":"text"}]}}"#,
            "garbage",
            r#"{"type":"assistant","message":{"content":[{"type":"text"}]}}"#,
            r#"{"type":"result","subtype":"success"}"#,
            r#"{"type":"user","message":{"content":"torn"#,
        ];
        std::fs::write(&log, lines.join("\n")).unwrap();
        assert_eq!(count_messages(&log).unwrap(), 3);
    }
}
