//! The entries that an agent remembers: its own file, walked from the newest one back.
//!
//! Each entry names the one before it. What no such walk meets was left behind by a branch, or
//! summed up. Start at [`Chain`].

use std::io;

use camino::Utf8Path;
use heeler_transcript::{DiskError, LinesBack};
use memchr::memmem;
use serde_json::Value as Json;
use uuid::Uuid;

use crate::skim::{Keep, skim};

/// The lines that are part of a conversation.
const KINDS: [&str; 4] = ["user", "assistant", "attachment", "system"];

const ENTRY: Keep = Keep::Fields(&[
    ("type", Keep::Word),
    ("uuid", Keep::Word),
    ("parentUuid", Keep::Word),
    ("isSidechain", Keep::Word),
]);

/// A walk along the entries, newest first.
pub(crate) struct Chain {
    lines: LinesBack,
    /// The entry that is looked for; `None` before the newest one is found.
    wanted: Option<Uuid>,
    has_ended: bool,
}

impl Chain {
    /// Begins at the end of the file; `None` if there is no such file.
    pub(crate) fn open(own: &Utf8Path) -> Result<Option<Chain>, DiskError> {
        match LinesBack::open(own) {
            Ok(lines) => Ok(Some(Chain { lines, wanted: None, has_ended: false })),
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the entry before the last one returned; `None` where the conversation begins.
    ///
    /// An entry stands behind the one that it names, since the file only grows.
    pub(crate) fn next(&mut self) -> Result<Option<Uuid>, DiskError> {
        let wanted = self.wanted.map(|uuid| uuid.hyphenated().to_string());
        let finder = wanted.as_deref().map(memmem::Finder::new);
        while !self.has_ended {
            let Some(line) = self.lines.next_line()? else { break };
            // Most lines need not be parsed.
            if finder.as_ref().is_some_and(|finder| finder.find(line.bytes).is_none()) {
                continue;
            }
            let Some((uuid, before)) = entry(line.bytes) else { continue };
            if self.wanted.is_none_or(|wanted| wanted == uuid) {
                (self.wanted, self.has_ended) = (before, before.is_none());
                return Ok(Some(uuid));
            }
        }
        self.has_ended = true;
        Ok(None)
    }
}

/// Returns where an entry ends in an agent's own file; `None` if it is not in it.
pub(crate) fn end_of_entry(own: &Utf8Path, wanted: Uuid) -> Result<Option<u64>, DiskError> {
    let text = wanted.hyphenated().to_string();
    let finder = memmem::Finder::new(&text);
    let mut lines = LinesBack::open(own)?;
    while let Some(line) = lines.next_line()? {
        if finder.find(line.bytes).is_some() && entry(line.bytes).is_some_and(|it| it.0 == wanted) {
            return Ok(Some(line.offset + line.bytes.len() as u64 + 1));
        }
    }
    Ok(None)
}

/// Reads an entry's id and that of the one before it.
fn entry(line: &[u8]) -> Option<(Uuid, Option<Uuid>)> {
    let entry = skim(line, &ENTRY)?;
    let is_one = entry["type"].as_str().is_some_and(|kind| KINDS.contains(&kind));
    if !is_one || entry["isSidechain"] == Json::Bool(true) {
        return None;
    }
    Some((uuid(&entry["uuid"])?, uuid(&entry["parentUuid"])))
}

/// Reads an id.
pub(super) fn uuid(value: &Json) -> Option<Uuid> {
    value.as_str().and_then(|text| Uuid::try_parse(text).ok())
}
