//! Native sessions that runs of Heeler opened.

use std::io;

use camino::Utf8DirEntry;
use heeler_model::job_row::{JobRow, JobRowKind};
use heeler_model::message::parse_row;
use heeler_model::{AgentSessionId, NATIVE_SESSION_KEY, NATIVE_SESSION_SUBTYPE};
use heeler_transcript::{DiskError, TranscriptEntry, TranscriptScanner};
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

/// Returns true for the row with which a run records the native session. Other rows may contain the ID
/// too, in the text of an agent.
fn names(text: &str, id: &AgentSessionId) -> bool {
    parse_row(text).map(JobRow::new).is_some_and(|row| {
        row.kind() == (JobRowKind::System { subtype: NATIVE_SESSION_SUBTYPE })
            && row.as_json()[NATIVE_SESSION_KEY] == id.as_str()
    })
}
