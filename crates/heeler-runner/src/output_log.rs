//! `output.log`: a job's rows as readable text, written only on request.
//!
//! It owns no state: it is derived from rows after they are written, and text that the disk does
//! not accept is omitted. Start at [`JobOutputLog`].

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;

use camino::Utf8Path;
use heeler_model::is_terminal_control;
use heeler_transcript::{DiskError, OsDisk, create_folder, untrusted_file};
use serde_json::Value as Json;

#[derive(Debug)]
pub(crate) struct JobOutputLog(File);

impl JobOutputLog {
    /// Opens the file for appending and creates it if it is missing.
    pub(crate) fn open(path: &Utf8Path) -> Result<JobOutputLog, DiskError> {
        if let Some(folder) = path.parent() {
            create_folder(&OsDisk, folder)?;
        }
        let mut options = File::options();
        options.append(true).create(true).mode(0o600);
        let opened = untrusted_file::open_with(&mut options, path);
        let failed = |source| DiskError { action: "open", path: path.to_owned(), source };
        Ok(JobOutputLog(opened.map_err(failed)?))
    }

    /// Appends a row of the job transcript, given in its written form.
    pub(crate) fn append_row(&mut self, line: &[u8]) {
        let Ok(row) = serde_json::from_slice::<Json>(line) else { return };
        let mut text = format_row(&row).replace(is_terminal_control, "\u{FFFD}");
        text.push('\n');
        // The transcript is authoritative; a failure of this file must not stop an agent.
        drop(self.0.write_all(text.as_bytes()));
    }
}

fn format_row(row: &Json) -> String {
    let at = row["timestamp"].as_str().unwrap_or("-");
    let kind = row["type"].as_str().unwrap_or("row");
    let (who, text) = match kind {
        "system" => {
            let subtype = row["subtype"].as_str().unwrap_or(kind);
            (subtype.to_owned(), plain_text(&row["content"]))
        }
        "tool_use" => {
            let tool = row["tool_name"].as_str().unwrap_or("?");
            (format!("tool {tool}"), plain_text(&row["input"]))
        }
        // The end of a turn; its text is in the rows before.
        "tool_result" if row["subtype"].is_string() && row["tool_use_id"].is_null() => {
            let (subtype, error) = (plain_text(&row["subtype"]), plain_text(&row["error"]));
            let error = if error.is_empty() { error } else { format!(": {error}") };
            ("result".to_owned(), subtype + &error)
        }
        "tool_result" => {
            let failed = row["success"] == Json::Bool(false);
            let who = if failed { "tool failed" } else { "tool result" };
            let said = [&row["error"], &row["result"]].map(plain_text);
            (who.to_owned(), said.into_iter().find(|text| !text.is_empty()).unwrap_or_default())
        }
        "error" => (kind.to_owned(), plain_text(&row["message"])),
        _ => (kind.to_owned(), plain_text(&row["content"])),
    };
    if text.is_empty() { format!("[{at}] {who}") } else { format!("[{at}] {who}: {text}") }
}

fn plain_text(value: &Json) -> String {
    match value {
        Json::Null => String::new(),
        Json::String(text) => text.clone(),
        value => value.to_string(),
    }
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
            [T6] error: broken
            [-] row
        "#]]
        .assert_eq(&std::fs::read_to_string(&path).unwrap());
    }
}
