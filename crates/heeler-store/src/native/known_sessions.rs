//! Native sessions that runs of Heeler opened.

use std::io;

use camino::{Utf8DirEntry, Utf8Path};
use heeler_model::job_row::{JobRow, JobRowKind};
use heeler_model::message::parse_row;
use heeler_model::{AgentSessionId, NATIVE_AGENT_KEY, NATIVE_SESSION_KEY, NATIVE_SESSION_SUBTYPE};
use heeler_transcript::{DiskError, ReverseRecordReader, TranscriptEntry, TranscriptScanner};
use memchr::memmem;

use super::program::NATIVE_FILES_MAX;
use crate::layout::StateDir;

/// Returns true if a transcript of the fleet records that a run opened this native session. Only
/// Codex records it itself.
pub fn is_opened_by_run(dir: &StateDir, id: &AgentSessionId) -> Result<bool, DiskError> {
    let finder = memmem::Finder::new(id.as_str());
    let projects = dir.projects().read_dir_utf8().into_iter().flatten();
    for project in projects.filter_map(Result::ok).take(NATIVE_FILES_MAX) {
        let files = project.path().read_dir_utf8().into_iter().flatten().filter_map(Result::ok);
        let is_transcript = |file: &Utf8DirEntry| {
            let is_file = file.file_type().is_ok_and(|kind| kind.is_file());
            is_file && file.path().extension() == Some("jsonl")
        };
        for file in files.filter(is_transcript) {
            let entries = match TranscriptScanner::open(file.path()) {
                // It was moved to the trash meanwhile.
                Err(error) if error.source.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            for entry in entries {
                let TranscriptEntry::Record(record) = entry? else { continue };
                // Searching the text is much cheaper than parsing each row.
                if finder.find(record.text.as_bytes()).is_some() && names(&record.text, id) {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

/// Returns the agent program and the native session that the last run of a transcript used, as the run
/// recorded them. `None` for Claude's sessions, and if the ID cannot be part of a path.
pub fn last_opened(log: &Utf8Path) -> Result<Option<(String, AgentSessionId)>, DiskError> {
    let finder = memmem::Finder::new(NATIVE_SESSION_KEY);
    let mut records = ReverseRecordReader::open(log);
    while let Some(record) = records.next_record()? {
        if finder.find(record.text.as_bytes()).is_none() {
            continue;
        }
        let Some(row) = parse_opening_row(&record.text) else { continue };
        let row = row.as_json();
        let agent = row[NATIVE_AGENT_KEY].as_str().map(str::to_owned);
        let id = row[NATIVE_SESSION_KEY].as_str().and_then(|id| id.parse().ok());
        return Ok(agent.zip(id));
    }
    Ok(None)
}

fn names(text: &str, id: &AgentSessionId) -> bool {
    parse_opening_row(text).is_some_and(|row| row.as_json()[NATIVE_SESSION_KEY] == id.as_str())
}

/// Reads the row with which a run records the native session. Other rows may contain its ID too, in the
/// text of an agent.
fn parse_opening_row(text: &str) -> Option<JobRow> {
    let row = parse_row(text).map(JobRow::new)?;
    let is_opening = row.kind() == (JobRowKind::System { subtype: NATIVE_SESSION_SUBTYPE });
    is_opening.then_some(row)
}
