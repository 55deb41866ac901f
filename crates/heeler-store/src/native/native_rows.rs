//! Messages of a native session as lines of a transcript, without secrets. Start at [`NativeRows`].

use std::collections::VecDeque;
use std::io::{self, Read};

use heeler_model::native_session_row;
use heeler_model::recorder::remove_heeler_keys;
use heeler_transcript::{DiskError, TranscriptEntry, TranscriptScanner};
use serde_json::Value as Json;

use super::{DisplayRedactor, NativeProgram, NativeSession, codex_rollout};

/// Types of rows in Claude's file that are messages; the others are its internal records.
const CONVERSATION_ROW_TYPES: [&str; 2] = ["user", "assistant"];

/// Reads a native session as the lines of a transcript, without secrets.
pub struct NativeRows {
    scan: TranscriptScanner,
    program: NativeProgram,
    cleaner: DisplayRedactor,
    pending_bytes: VecDeque<u8>,
    /// Rows after the last line of the file.
    last_rows: Vec<Json>,
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
            scan: TranscriptScanner::open(&session.path)?,
            program: session.program,
            cleaner,
            pending_bytes: VecDeque::new(),
            last_rows,
        })
    }

    fn push(&mut self, row: &Json) {
        self.pending_bytes.extend(row.to_string().as_bytes());
        self.pending_bytes.push_back(b'\n');
    }

    fn push_line(&mut self, text: &str) {
        // A line that is no JSON is no message.
        let Ok(line) = serde_json::from_str::<Json>(text) else { return };
        let rows = match self.program {
            NativeProgram::Codex => codex_rollout::conversation_rows(&line),
            NativeProgram::Claude => {
                let kind = line["type"].as_str();
                let is_message = kind.is_some_and(|word| CONVERSATION_ROW_TYPES.contains(&word));
                if is_message { vec![line] } else { Vec::new() }
            }
        };
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
            match self.scan.next() {
                Some(Err(error)) => return Err(error.source),
                Some(Ok(TranscriptEntry::Record(record))) => self.push_line(&record.text),
                // Other lines are not messages.
                Some(Ok(_)) => {}
                None => match self.last_rows.pop() {
                    Some(row) => self.push(&row),
                    None => return Ok(0),
                },
            }
        }
        self.pending_bytes.read(buffer)
    }
}
