//! Messages of a native session as lines of a transcript, without secrets. Start at [`NativeRows`].

use std::collections::VecDeque;
use std::io::{self, Read};

use heeler_model::native_session_row;
use heeler_model::recorder::remove_heeler_keys;
use heeler_transcript::{DiskError, TranscriptEntry, TranscriptScanner};
use serde_json::Value as Json;

use super::chat_history::{CHAT_BYTES_MAX, check_size, read_messages};
use super::chat_rows::message_rows;
use super::rollout_history::RolloutHistory;
use super::rollout_rows::conversation_rows;
use super::{DisplayRedactor, NativeProgram, NativeSession};

/// Types of rows in Claude's file that are messages; the others are its internal records.
const CONVERSATION_ROW_TYPES: [&str; 2] = ["user", "assistant"];

/// Reads a native session as the lines of a transcript, without secrets.
pub struct NativeRows {
    lines: NativeLines,
    cleaner: DisplayRedactor,
    pending_bytes: VecDeque<u8>,
    /// Rows after the last line of the file.
    last_rows: Vec<Json>,
}

/// Lines of a program's own files.
enum NativeLines {
    Claude(TranscriptScanner),
    Codex(RolloutHistory),
    /// Messages of a program that changes earlier ones, so that the file is read as a whole.
    Chat(NativeProgram, std::vec::IntoIter<Json>),
}

impl NativeLines {
    fn open(session: &NativeSession) -> Result<NativeLines, DiskError> {
        match session.program {
            NativeProgram::Claude => {
                TranscriptScanner::open(&session.path).map(NativeLines::Claude)
            }
            NativeProgram::Codex => RolloutHistory::open(&session.path).map(NativeLines::Codex),
            program @ (NativeProgram::Qwen
            | NativeProgram::Gemini
            | NativeProgram::Copilot
            | NativeProgram::Kimi
            | NativeProgram::Grok) => {
                check_size(session)?;
                let messages = read_messages(program, &session.path, CHAT_BYTES_MAX)?;
                Ok(NativeLines::Chat(program, messages.into_iter()))
            }
        }
    }

    /// Returns the rows of the next line; `None` after the last one.
    fn next_rows(&mut self) -> Option<Result<Vec<Json>, DiskError>> {
        let rows = match self {
            NativeLines::Codex(lines) => lines.next()?.map(|line| conversation_rows(&line)),
            NativeLines::Chat(program, messages) => Ok(message_rows(*program, &messages.next()?)),
            NativeLines::Claude(lines) => lines.next()?.map(|entry| {
                // Other lines are not messages, and neither is one that is no JSON.
                let TranscriptEntry::Record(record) = entry else { return Vec::new() };
                let line = serde_json::from_str::<Json>(&record.text).ok();
                let is_message = |line: &Json| {
                    line["type"].as_str().is_some_and(|it| CONVERSATION_ROW_TYPES.contains(&it))
                };
                line.into_iter().filter(is_message).collect()
            }),
        };
        Some(rows)
    }
}

impl NativeRows {
    pub fn open(
        session: &NativeSession,
        cleaner: DisplayRedactor,
    ) -> Result<NativeRows, DiskError> {
        let last_rows = match session.program {
            // Claude's ID of the session is Heeler's too.
            NativeProgram::Claude => Vec::new(),
            program => vec![native_session_row(program.as_str(), session.id.as_str())],
        };
        Ok(NativeRows {
            lines: NativeLines::open(session)?,
            cleaner,
            pending_bytes: VecDeque::new(),
            last_rows,
        })
    }

    fn push(&mut self, row: &Json) {
        self.pending_bytes.extend(row.to_string().as_bytes());
        self.pending_bytes.push_back(b'\n');
    }

    fn push_rows(&mut self, rows: Vec<Json>) {
        for mut row in rows {
            // Only Heeler may write its own keys; foreign ones could forge counts.
            remove_heeler_keys(&mut row);
            self.cleaner.json(&mut row);
            self.push(&row);
        }
    }
}

impl Read for NativeRows {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.pending_bytes.is_empty() {
            match self.lines.next_rows() {
                Some(Err(error)) => return Err(error.source),
                Some(Ok(rows)) => self.push_rows(rows),
                None => match self.last_rows.pop() {
                    Some(row) => self.push(&row),
                    None => return Ok(0),
                },
            }
        }
        self.pending_bytes.read(buffer)
    }
}
