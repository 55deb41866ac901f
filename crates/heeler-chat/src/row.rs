//! Conversion of job rows to conversation entries.

use heeler_model::JobId;
use heeler_model::file_edit::PATCH_KEY;
use heeler_model::job_row::{JobRow, JobRowKind};
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
    row: &JobRow,
    prompts: PromptHandling,
) -> Option<ConversationEntry> {
    // The tool result reports the work of a sub-agent.
    if row.sub_agent_call().is_some() {
        return None;
    }
    let content = || row.text("content").unwrap_or_default().to_owned();
    let (role, content, name, args) = match row.kind() {
        JobRowKind::Assistant => {
            (EntryRole::Assistant, row.text("content")?.to_owned(), None, None)
        }
        JobRowKind::ToolCall { tool, input } => {
            (EntryRole::Tool, String::new(), Some(tool.to_owned()), Some(input.clone()))
        }
        JobRowKind::ToolResult(result) => {
            row.call_id()?;
            (EntryRole::Tool, result.output(), result.tool.map(str::to_owned), None)
        }
        JobRowKind::System { subtype: "compact_boundary" } => {
            (EntryRole::System, describe_compaction(row), None, None)
        }
        JobRowKind::Error { code: Some("cancelled"), .. } => {
            (EntryRole::System, INTERRUPTED.to_owned(), None, None)
        }
        JobRowKind::Error { message, .. } => {
            (EntryRole::System, format!("{ERROR_PREFIX}{message}"), None, None)
        }
        JobRowKind::System { subtype: "user_input" } if prompts == PromptHandling::Include => {
            (EntryRole::User, content(), None, None)
        }
        JobRowKind::System {
            subtype: "progress" | "file_sent" | "denied" | "tasks_added" | "task_finished",
        } => (EntryRole::System, content(), None, None),
        _ => return None,
    };
    let mut other = Map::new();
    // The native session has the same UUID: it is a possible fork point.
    if let Some(uuid) = row.text("uuid") {
        other.insert("uuid".to_owned(), uuid.into());
    }
    if matches!(row.kind(), JobRowKind::ToolResult(result) if result.failed) {
        other.insert("isError".to_owned(), Json::Bool(true));
    }
    if let Some(patch) = row.as_json().get(PATCH_KEY) {
        other.insert(PATCH_KEY.to_owned(), patch.clone());
    }
    if let Some(took) = row.number("duration_ms") {
        other.insert("durationMs".to_owned(), took.into());
    }
    let is_call = role == EntryRole::Tool && args.is_some();
    Some(ConversationEntry {
        role,
        content: if is_call { Json::Null } else { Json::String(content) },
        name,
        args,
        at: row.written_at(),
        turn: None,
        source: Some(EntrySource { job: job.clone(), row: at }),
        call: row.call_id().map(str::to_owned),
        other,
    })
}

/// Returns the text about a context that was replaced by a summary.
fn describe_compaction(row: &JobRow) -> String {
    let tokens = row.as_json()["compact_metadata"]["pre_tokens"].as_u64();
    match tokens {
        Some(tokens) => format!("the context was replaced by a summary; it had {tokens} tokens"),
        None => "the context was replaced by a summary".to_owned(),
    }
}

/// Returns true if an entry reports that a turn failed or was interrupted.
pub(crate) fn is_failure_notice(entry: &ConversationEntry) -> bool {
    let text = entry.text();
    entry.role == EntryRole::System
        && (text == INTERRUPTED
            || text.starts_with(ERROR_PREFIX)
            || text.starts_with(FAILED_PREFIX))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(row: Json, expected: &str) {
        let job = "job-2026-01-02-abc123".parse().unwrap();
        let entry = entry_from_row(&job, 7, &JobRow::new(row), PromptHandling::Skip);
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
    fn a_compaction_is_told() {
        check(
            json!({"type": "system", "subtype": "compact_boundary", "compact_metadata": {"pre_tokens": 1234}}),
            r#"{"role":"system","content":"the context was replaced by a summary; it had 1234 tokens","job":"job-2026-01-02-abc123","row":7}"#,
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
