//! `output.log`: a job's rows as readable text, written only on request.
//!
//! It owns no state: it is derived from rows after they are written, and text that the disk does
//! not accept is omitted. Start at [`JobOutputLog`].

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;

use camino::Utf8Path;
use heeler_model::is_terminal_control;
use heeler_model::job_row::{JobRow, JobRowKind, block_text, value_text};
use heeler_transcript::{DiskError, OsDisk, create_folder, untrusted_file};

#[derive(Debug)]
pub(crate) struct JobOutputLog(File);

impl JobOutputLog {
    /// Opens the file for appending and creates it if it is missing.
    pub(crate) fn open(path: &Utf8Path) -> Result<JobOutputLog, DiskError> {
        if let Some(folder) = path.parent() {
            create_folder(&OsDisk, folder)?;
        }
        let mut options = File::options();
        // Rows may quote anything that the agent has read, so only the owner may read them.
        options.append(true).create(true).mode(0o600);
        let opened = untrusted_file::open_with(&mut options, path);
        let failed = |source| DiskError { action: "open", path: path.to_owned(), source };
        Ok(JobOutputLog(opened.map_err(failed)?))
    }

    /// Appends a row of the job transcript, given in its written form.
    pub(crate) fn append_row(&mut self, line: &[u8]) {
        let Ok(row) = JobRow::parse(line) else { return };
        // Text of an agent must not control the terminal of a person who displays the file.
        let mut text = format_row(&row).replace(is_terminal_control, "\u{FFFD}");
        text.push('\n');
        // The transcript is authoritative; a failure of this file must not stop an agent.
        drop(self.0.write_all(text.as_bytes()));
    }
}

fn format_row(row: &JobRow) -> String {
    let at = row.text("timestamp").unwrap_or("-");
    let content = || row.content().map(block_text).unwrap_or_default();
    let (speaker, text) = match row.kind() {
        JobRowKind::System { subtype: "" } => ("system".to_owned(), content()),
        JobRowKind::System { subtype } => (subtype.to_owned(), content()),
        JobRowKind::ToolCall { tool: "", input } => ("tool ?".to_owned(), value_text(input)),
        JobRowKind::ToolCall { tool, input } => (format!("tool {tool}"), value_text(input)),
        // The rows before have the text of the turn.
        JobRowKind::TurnResult(turn) => {
            // Claude reports an error of the API with the subtype `success`.
            let text = match (turn.error, turn.subtype) {
                (Some(error), "success") => format!("failed: {error}"),
                (Some(error), subtype) => format!("{subtype}: {error}"),
                (None, subtype) => subtype.to_owned(),
            };
            ("result".to_owned(), text)
        }
        JobRowKind::ToolResult(result) => {
            let speaker = if result.failed { "tool failed" } else { "tool result" };
            (speaker.to_owned(), result.output())
        }
        JobRowKind::Error { message, .. } => ("error".to_owned(), message.to_owned()),
        JobRowKind::Assistant => ("assistant".to_owned(), content()),
        JobRowKind::User => ("user".to_owned(), content()),
        JobRowKind::Other(kind) => (kind.to_owned(), content()),
    };
    if text.is_empty() { format!("[{at}] {speaker}") } else { format!("[{at}] {speaker}: {text}") }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_become_lines_that_a_person_can_read_and_that_steer_no_terminal() {
        let temp = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(temp.path()).unwrap().join("job-1/output.log");
        let mut output = JobOutputLog::open(&path).unwrap();
        for row in [
            json!({"type": "system", "subtype": "init", "timestamp": "T1"}),
            json!({"type": "assistant", "content": "hi\u{1b}[2J", "timestamp": "T2"}),
            json!({"type": "tool_use", "tool_name": "Bash", "input": {"command": "ls"}, "timestamp": "T3"}),
            json!({"type": "tool_result", "result": "total 1", "success": true, "timestamp": "T4"}),
            json!({"type": "tool_result", "result": "no", "success": false, "timestamp": "T5"}),
            json!({"type": "tool_result", "error": "exit code 1", "success": false, "timestamp": "T5"}),
            json!({"type": "tool_result", "subtype": "success", "result": "hi", "timestamp": "T6"}),
            json!({"type": "tool_result", "subtype": "success", "error": "API Error: 500", "is_error": true, "timestamp": "T6"}),
            json!({"type": "error", "message": "broken", "timestamp": "T6"}),
        ] {
            output.append_row(row.to_string().as_bytes());
        }
        drop(output);
        JobOutputLog::open(&path).unwrap().append_row(b"{}");
        expect![[r#"
            [T1] init
            [T2] assistant: hi�[2J
            [T3] tool Bash: {"command":"ls"}
            [T4] tool result: total 1
            [T5] tool failed: no
            [T5] tool failed: exit code 1
            [T6] result: success
            [T6] result: failed: API Error: 500
            [T6] error: broken
            [-] row
        "#]]
        .assert_eq(&std::fs::read_to_string(&path).unwrap());
    }
}
