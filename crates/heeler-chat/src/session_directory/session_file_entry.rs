//! Session files by name, and what a list shows of them.

use camino::Utf8PathBuf;
use heeler_transcript::{resolve_inside, validate_id};
use jiff::Timestamp;

use crate::session_metadata::SessionMetadata;

/// Suffix of session files.
pub(super) const JSON: &str = ".json";

/// Session in a list.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionFileSummary {
    pub id: String,
    /// Agent that the person talked to.
    pub agent: Option<String>,
    /// Working directory of the person.
    pub folder: Option<Utf8PathBuf>,
    /// Creation time, if the file has one.
    pub created: Option<Timestamp>,
    /// Time of the last write to its files.
    pub updated: Timestamp,
    /// Number of entries; `None` if counting would take long.
    pub messages: Option<u64>,
    /// First message of the person.
    pub first_message: Option<String>,
    /// Last message.
    pub last_message: Option<String>,
    /// The session belongs to another program until it is written.
    pub is_foreign: bool,
    /// Process that has it open.
    pub opened_by: Option<String>,
    /// Reason for which it cannot be opened.
    pub fault: Option<String>,
}

impl SessionFileSummary {
    /// Returns the number of entries as text.
    pub fn entry_count_label(&self) -> String {
        match self.messages {
            None => "… entries".to_owned(),
            Some(1) => "1 entry".to_owned(),
            Some(count) => format!("{count} entries"),
        }
    }
}

/// Location of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionFileRef {
    /// Complete ID.
    pub id: String,
    /// The session belongs to another program until it is written.
    pub is_foreign: bool,
    /// Directory that contains it.
    pub(super) folder: Utf8PathBuf,
}

/// Session whose content was not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionFileEntry {
    pub file: SessionFileRef,
    /// Time of the last write to its files.
    pub updated: Timestamp,
}

/// Reads a session file; the error is the reason as text.
pub(super) fn read_metadata(
    found: &SessionFileRef,
) -> (Utf8PathBuf, Result<SessionMetadata, String>) {
    let name = format!("{}{JSON}", found.id);
    let read = || {
        // The ID comes from a person or from a file name, and becomes part of a path.
        validate_id(&found.id).map_err(|error| error.to_string())?;
        let path = resolve_inside(&found.folder, &name).map_err(|error| error.to_string())?;
        let text = heeler_transcript::untrusted_file::read_text(&path)
            .map_err(|error| error.to_string())?;
        SessionMetadata::read(&found.id, &text)
    };
    (found.folder.join(&name), read())
}

pub(super) fn lock_name(id: &str) -> String {
    format!("{id}.lock")
}
