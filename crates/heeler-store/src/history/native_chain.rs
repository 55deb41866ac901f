//! The entries in an agent's context: the native session file, followed backward from its
//! newest entry.
//!
//! Each entry names its predecessor. Entries that are never reached belong to an abandoned
//! branch, or were compacted. Start at [`NativeEntryChain`].

use std::io;

use camino::Utf8Path;
use heeler_transcript::{DiskError, ReverseTranscriptReader};
use memchr::memmem;
use serde_json::Value as Json;
use uuid::Uuid;

use super::json_fields::{plain_text, top_fields};
use crate::json_selector::{JsonSelector, parse_selected};

/// Types of lines that are part of a conversation.
const KINDS: [&str; 4] = ["user", "assistant", "attachment", "system"];

const ENTRY: JsonSelector = JsonSelector::Fields(&[
    ("type", JsonSelector::Scalar),
    ("uuid", JsonSelector::Scalar),
    ("parentUuid", JsonSelector::Scalar),
    ("isSidechain", JsonSelector::Scalar),
]);

/// Iterator over the entries of the chain, newest first.
pub(crate) struct NativeEntryChain {
    lines: ReverseTranscriptReader,
    /// The next entry to find; `None` before the newest one is found.
    next_uuid: Option<Uuid>,
    has_ended: bool,
}

impl NativeEntryChain {
    /// Begins at the end of the file; `None` if the file does not exist.
    pub(crate) fn open(own: &Utf8Path) -> Result<Option<NativeEntryChain>, DiskError> {
        match ReverseTranscriptReader::open(own) {
            Ok(lines) => Ok(Some(NativeEntryChain { lines, next_uuid: None, has_ended: false })),
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the predecessor of the last returned entry; `None` at the start of the conversation.
    ///
    /// The file is append-only, so an entry always follows the one that it names.
    pub(crate) fn next(&mut self) -> Result<Option<Uuid>, DiskError> {
        while !self.has_ended {
            let Some(line) = self.lines.next_line()? else { break };
            let Some((uuid, before)) = entry(line.bytes) else { continue };
            if self.next_uuid.is_none_or(|wanted| wanted == uuid) {
                (self.next_uuid, self.has_ended) = (before, before.is_none());
                return Ok(Some(uuid));
            }
        }
        self.has_ended = true;
        Ok(None)
    }
}

/// Returns the end of an entry in a native session file; `None` if it is not in the file.
pub(crate) fn end_of_entry(own: &Utf8Path, wanted: Uuid) -> Result<Option<u64>, DiskError> {
    let text = wanted.hyphenated().to_string();
    let finder = memmem::Finder::new(&text);
    let mut lines = ReverseTranscriptReader::open(own)?;
    while let Some(line) = lines.next_line()? {
        if finder.find(line.bytes).is_some() && entry(line.bytes).is_some_and(|it| it.0 == wanted) {
            return Ok(Some(line.offset + line.bytes.len() as u64 + 1));
        }
    }
    Ok(None)
}

/// Reads an entry's id and that of its predecessor.
fn entry(line: &[u8]) -> Option<(Uuid, Option<Uuid>)> {
    match plain_entry(line) {
        Some(entry) => entry,
        None => parsed_entry(line),
    }
}

/// Reads an entry in the form that agents write; `None` if it has another form. This fast path
/// reads most of a long file, so it costs little more than reading the bytes.
fn plain_entry(line: &[u8]) -> Option<Option<(Uuid, Option<Uuid>)>> {
    let names = ["type", "uuid", "parentUuid", "isSidechain"];
    let [kind, uuid, before, is_beside] = top_fields(line, names)?;
    let (kind, uuid, before) = (word(kind)?, word(uuid)?, word(before)?);
    let is_one = KINDS.iter().any(|known| Some(known.as_bytes()) == kind);
    if !is_one || is_beside == Some(b"true") {
        return Some(None);
    }
    let id = |text: Option<&[u8]>| text.and_then(|text| Uuid::try_parse_ascii(text).ok());
    Some(id(uuid).map(|uuid| (uuid, id(before))))
}

/// Returns the text of a raw value, or `Some(None)` if it is not a string; `None` if only a
/// parser can tell.
fn word(value: Option<&[u8]>) -> Option<Option<&[u8]>> {
    match value {
        Some(value) if value.starts_with(b"\"") => plain_text(value).map(Some),
        _ => Some(None),
    }
}

fn parsed_entry(line: &[u8]) -> Option<(Uuid, Option<Uuid>)> {
    let entry = parse_selected(line, &ENTRY)?;
    let is_one = entry["type"].as_str().is_some_and(|kind| KINDS.contains(&kind));
    if !is_one || entry["isSidechain"] == Json::Bool(true) {
        return None;
    }
    Some((uuid(&entry["uuid"])?, uuid(&entry["parentUuid"])))
}

pub(super) fn uuid(value: &Json) -> Option<Uuid> {
    value.as_str().and_then(|text| Uuid::try_parse(text).ok())
}
