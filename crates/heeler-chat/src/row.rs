//! Conversion of job rows to conversation entries.

use heeler_model::{JobId, parse_iso};
use serde_json::{Map, Value as Json};

use crate::{ConversationEntry, EntryRole, EntrySource};

/// Text of the entry for a turn that a person interrupted.
pub(crate) const INTERRUPTED: &str = "interrupted";
/// Prefixes of entries for a failed run, and for a failed job without an error row.
const ERROR_PREFIX: &str = "error: ";
pub(crate) const FAILED_PREFIX: &str = "failed: ";

/// Treatment of prompts in a job's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PromptHandling {
    /// Skip them: the transcript has them from before they were sent.
    Skip,
    /// Include them: they have another origin.
    Include,
}

/// Returns the entry for a row; `None` if the row has no content for a reader.
pub(crate) fn entry_from_row(
    job: &JobId,
    at: u64,
    row: &Json,
    prompts: PromptHandling,
) -> Option<ConversationEntry> {
    let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
    // The tool result reports the work of a sub-agent.
    if !row["parent_tool_use_id"].is_null() {
        return None;
    }
    let (role, content, name, args) = match row["type"].as_str()? {
        "assistant" if row["content"].is_string() => {
            (EntryRole::Assistant, text("content"), None, None)
        }
        "tool_use" => {
            let args = Some(row["input"].clone());
            (EntryRole::Tool, String::new(), Some(text("tool_name")), args)
        }
        "tool_result" if row["tool_use_id"].is_string() => {
            (EntryRole::Tool, result_text(row), row["tool_name"].as_str().map(str::to_owned), None)
        }
        "error" if row["code"] == "cancelled" => {
            (EntryRole::System, INTERRUPTED.to_owned(), None, None)
        }
        "error" => (EntryRole::System, format!("{ERROR_PREFIX}{}", text("message")), None, None),
        "system" => match row["subtype"].as_str()? {
            "user_input" if prompts == PromptHandling::Include => {
                (EntryRole::User, text("content"), None, None)
            }
            "progress" | "file_sent" | "denied" | "tasks_added" | "task_finished" => {
                (EntryRole::System, text("content"), None, None)
            }
            _ => return None,
        },
        _ => return None,
    };
    let mut other = Map::new();
    // The native session has the same UUID: it is a possible fork point.
    if let Some(uuid) = row["uuid"].as_str() {
        other.insert("uuid".to_owned(), uuid.into());
    }
    if row["success"] == Json::Bool(false) {
        other.insert("isError".to_owned(), Json::Bool(true));
    }
    if let Some(took) = row["duration_ms"].as_u64() {
        other.insert("durationMs".to_owned(), took.into());
    }
    let is_call = role == EntryRole::Tool && args.is_some();
    Some(ConversationEntry {
        role,
        content: if is_call { Json::Null } else { Json::String(content) },
        name,
        args,
        at: row["timestamp"].as_str().and_then(parse_iso),
        turn: None,
        source: Some(EntrySource { job: job.clone(), row: at }),
        call: row["tool_use_id"].as_str().map(str::to_owned),
        other,
    })
}

/// Returns true if an entry reports that a turn failed or was interrupted.
pub(crate) fn is_failure_notice(entry: &ConversationEntry) -> bool {
    let text = entry.text();
    entry.role == EntryRole::System
        && (text == INTERRUPTED
            || text.starts_with(ERROR_PREFIX)
            || text.starts_with(FAILED_PREFIX))
}

fn result_text(row: &Json) -> String {
    let said = if row["error"].is_null() { &row["result"] } else { &row["error"] };
    match said {
        Json::String(text) => text.clone(),
        Json::Null => String::new(),
        Json::Array(blocks) => {
            let texts = blocks.iter().filter_map(|block| block["text"].as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(row: Json, expected: &str) {
        let job = "job-2026-01-02-abc123".parse().unwrap();
        let entry = entry_from_row(&job, 7, &row, PromptHandling::Skip);
        let told = entry.map(|entry| serde_json::to_string(&entry).unwrap()).unwrap_or_default();
        assert_eq!(told, expected);
    }

    #[test]
    fn what_is_said_and_done_is_in_the_documented_shape_and_knows_its_row() {
        let source = r#""job":"job-2026-01-02-abc123","row":7"#;
        check(
            json!({"type": "assistant", "content": "Hi."}),
            &format!(r#"{{"role":"assistant","content":"Hi.",{source}}}"#),
        );
        check(
            json!({"type": "tool_use", "tool_name": "view", "input": {"path": "a"}, "tool_use_id": "t1"}),
            &format!(
                r#"{{"role":"tool","name":"view","args":{{"path":"a"}},{source},"call":"t1"}}"#
            ),
        );
        check(
            json!({"type": "tool_result", "tool_use_id": "t1", "error": "gone", "success": false}),
            &format!(r#"{{"role":"tool","content":"gone",{source},"call":"t1","isError":true}}"#),
        );
        check(
            json!({"type": "error", "message": "no login"}),
            &format!(r#"{{"role":"system","content":"error: no login",{source}}}"#),
        );
        check(
            json!({"type": "error", "message": "cancelled by ann", "code": "cancelled"}),
            &format!(r#"{{"role":"system","content":"interrupted",{source}}}"#),
        );
    }

    #[test]
    fn what_a_reader_knows_or_does_not_need_is_left_out() {
        check(json!({"type": "system", "subtype": "user_input", "content": "Do it."}), "");
        check(json!({"type": "system", "subtype": "init"}), "");
        check(json!({"type": "tool_result", "subtype": "success", "result": "Hi"}), "");
        check(json!({"type": "assistant", "content": "x", "parent_tool_use_id": "t"}), "");
        check(json!("no row"), "");
    }

    #[test]
    fn an_entry_is_read_as_it_was_written_with_what_others_put_there() {
        let line = r#"{"role":"critic","content":["a",1],"mood":"bad"}"#;
        let entry: ConversationEntry = serde_json::from_str(line).unwrap();
        assert_eq!(entry.role, EntryRole::Other("critic".to_owned()));
        assert_eq!(entry.text(), r#"["a",1]"#);
        assert_eq!(serde_json::to_string(&entry).unwrap(), line);
    }
}
