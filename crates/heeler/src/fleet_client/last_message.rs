//! Finds the last message of an agent at the end of a job's transcript. Start at [`last_message`].

use camino::Utf8Path;
use heeler_model::error_chain;
use heeler_model::job_row::{JobRow, JobRowKind};
use heeler_transcript::{PageBoundary, read_range};

/// Rows that are read at a time.
const PAGE_ROWS: usize = 100;

/// Rows that are searched; an agent that is silent for longer counts as silent.
const ROWS_MAX: usize = 10_000;

/// Returns the agent's last message, or `None` if there is none yet.
pub(super) fn last_message(log: &Utf8Path) -> Result<Option<String>, String> {
    // A queued job has no transcript yet.
    if !log.exists() {
        return Ok(None);
    }
    let mut before = PageBoundary::End;
    for _ in 0..ROWS_MAX / PAGE_ROWS {
        let page = read_range(log, before, PAGE_ROWS).map_err(|error| error_chain(&error))?;
        let message = page.records.iter().rev().find_map(|record| message_text(&record.text));
        // Pages are read backwards, so the first hit is the newest message.
        if message.is_some() || page.start == 0 {
            return Ok(message);
        }
        before = PageBoundary::Offset(page.start);
    }
    Ok(None)
}

/// Returns the text of a row if it is a message of the agent itself.
fn message_text(row: &str) -> Option<String> {
    let row = JobRow::parse(row.as_bytes()).ok()?;
    // Messages of sub-agents and rows in which the runner reports a failure do not count.
    let is_said = row.kind() == JobRowKind::Assistant
        && row.sub_agent_call().is_none()
        && row.as_json()["failure"].is_null();
    let text = row.text("content").filter(|text| is_said && !text.trim().is_empty())?;
    Some(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_the_agents_own_however_much_came_after_them() {
        let folder = tempfile::tempdir().unwrap();
        let log = Utf8Path::from_path(folder.path()).unwrap().join("job.jsonl");
        assert_eq!(last_message(&log), Ok(None));
        let mut rows = String::from(
            "{\"type\":\"assistant\",\"content\":\"first\"}\n{\"type\":\"assistant\",\"content\":\"last\"}\n\
             {\"type\":\"assistant\",\"content\":\"of a helper\",\"parent_tool_use_id\":\"t\"}\n",
        );
        rows += &"{\"type\":\"system\",\"content\":\"noise\"}\n".repeat(3 * PAGE_ROWS);
        std::fs::write(&log, &rows).unwrap();
        assert_eq!(last_message(&log), Ok(Some("last".to_owned())));
        std::fs::write(&log, "{\"type\":\"system\"}\n").unwrap();
        assert_eq!(last_message(&log), Ok(None));
    }
}
