//! Summary of a session for a list, from the beginning and end of its files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use camino::Utf8Path;
use heeler_model::parse_iso;
use heeler_transcript::{LockFile, read_tail, resolve_inside, untrusted_file};
use jiff::Timestamp;
use serde_json::Value as Json;

use super::session_file_entry::{
    JSON, SessionFileEntry, SessionFileRef, SessionFileSummary, lock_name, read_metadata,
};
use crate::conversation_state::EntryCount;
use crate::session_file::{
    count_entries_from, find_inline_boundary, parse_entry, unterminated_record,
};
use crate::session_metadata::SessionMetadata;
use crate::{ConversationEntry, EntryRole};

/// Largest session file that is read for a list; only an inline transcript makes it so large. A
/// larger one is listed with name and time only.
pub(super) const METADATA_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a transcript that are counted for a list, in addition to the count of the last save.
const COUNT_BYTES_MAX: u64 = 64 << 20;
/// Bytes at the beginning and end of a transcript that are searched for the first and the last
/// message.
const HEAD_BYTES: usize = 16 << 10;
const TAIL_BYTES: usize = 64 << 10;
/// Characters of a message in a list.
const EXCERPT_CHARS_MAX: usize = 200;

pub(super) fn summarize(heeler_folder: &Utf8Path, named: &SessionFileEntry) -> SessionFileSummary {
    let found = &named.file;
    let mut listed = SessionFileSummary {
        id: found.id.clone(),
        agent: None,
        folder: None,
        created: None,
        updated: named.updated,
        messages: None,
        first_message: None,
        last_message: None,
        is_foreign: found.is_foreign,
        opened_by: lock_holder(heeler_folder, &found.id),
        fault: None,
    };
    // One unreadable session must not hide the others.
    if let Err(fault) = fill_summary(found, &mut listed) {
        listed.fault = Some(fault);
    }
    listed
}

fn fill_summary(found: &SessionFileRef, listed: &mut SessionFileSummary) -> Result<(), String> {
    let chain = |error: &dyn std::error::Error| heeler_model::error_chain(error);
    let path = found.folder.join(format!("{}{JSON}", found.id));
    if path.symlink_metadata().is_ok_and(|it| it.is_file() && it.len() > METADATA_BYTES_MAX) {
        return Ok(());
    }
    let (_, metadata) = read_metadata(found);
    let metadata = metadata?;
    // The keys of other programs are not documented, so the usual names are tried.
    listed.agent =
        metadata.state.agent.clone().or_else(|| foreign_text(&metadata, &["agent", "agentName"]));
    let folder =
        || foreign_text(&metadata, &["cwd", "workingDirectory", "projectRoot", "workspace"]);
    listed.folder = metadata.state.folder.clone().or_else(|| folder().map(Into::into));
    let created =
        || parse_timestamp(&metadata.foreign_value(&["createdAt", "created_at", "startedAt"])?);
    listed.created = metadata.state.created_at.or_else(created);
    let path =
        resolve_inside(&found.folder, &metadata.transcript).map_err(|error| chain(&error))?;
    let boundary = find_inline_boundary(&path, &metadata).map_err(|error| chain(&error))?;
    // Entries behind the boundary are counted in the array.
    let until = boundary.map_or(u64::MAX, |boundary| boundary.bytes);
    let counted = metadata.state.counted.unwrap_or_default();
    let counted = count_entries_from(&path, counted, until, COUNT_BYTES_MAX)
        .map_err(|error| chain(&error))?;
    let inline = boundary.map_or(&[][..], |boundary| &metadata.inline[boundary.entries..]);
    // An entry that lacks only its newline counts: opening the session adds the newline.
    let is_longer = |it: &EntryCount| path.metadata().is_ok_and(|found| found.len() > it.bytes);
    let is_unended = inline.is_empty()
        && counted.as_ref().is_some_and(is_longer)
        && read_tail(&path, 0)
            .is_ok_and(|page| unterminated_record(&path, &page, TAIL_BYTES).is_some());
    let beyond = inline.len() as u64 + u64::from(is_unended);
    listed.messages = counted.map(|counted| counted.entries + beyond);
    let ends = TranscriptPreview::read(&path, listed).map_err(|error| error.to_string())?;
    let inline = || inline.iter().map(|line| parse_entry(line));
    // The inline entries come after those of the file.
    listed.first_message = ends.first.or_else(|| first_user_text(inline()));
    listed.last_message = last_message_text(inline()).or(ends.last);
    Ok(())
}

/// First and last message of a transcript file.
#[derive(Default)]
struct TranscriptPreview {
    first: Option<String>,
    last: Option<String>,
}

impl TranscriptPreview {
    fn read(path: &Utf8Path, listed: &mut SessionFileSummary) -> io::Result<TranscriptPreview> {
        let file = match untrusted_file::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A session without a message has no transcript yet.
                return Ok(TranscriptPreview::default());
            }
            Err(error) => return Err(error),
        };
        let meta = file.metadata()?;
        listed.updated = listed.updated.max(modified_at(&meta));
        let mut ends = TranscriptPreview::default();
        // A small part is enough in most cases.
        for share in [16, 1] {
            if ends.first.is_none() {
                ends.first = first_user_text(entries(&read_at(&file, 0, HEAD_BYTES / share)?));
            }
            if ends.last.is_none() {
                ends.last = last_message_in(&file, meta.len(), TAIL_BYTES / share)?;
            }
        }
        Ok(ends)
    }
}

/// Returns the last message in the last bytes of a file.
fn last_message_in(file: &File, end: u64, len: usize) -> io::Result<Option<String>> {
    let from = end.saturating_sub(len as u64);
    let tail = read_at(file, from, len)?;
    // The first line may be incomplete.
    let first_line = if from == 0 { Some(0) } else { memchr::memchr(b'\n', &tail) };
    Ok(first_line.and_then(|at| last_message_text(entries(&tail[at..]))))
}

fn read_at(file: &File, from: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let read = file.read_at(&mut bytes, from)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Returns the entries of the complete lines of a chunk. They are parsed lazily: most are never
/// needed.
fn entries(bytes: &[u8]) -> impl DoubleEndedIterator<Item = ConversationEntry> {
    // The chunk may end within a line, and another program may have left a torn one.
    let lines = bytes.split(|byte| *byte == b'\n').filter_map(|line| str::from_utf8(line).ok());
    lines
        .filter(|line| serde_json::from_str::<serde::de::IgnoredAny>(line).is_ok())
        .map(parse_entry)
}

fn first_user_text(mut entries: impl Iterator<Item = ConversationEntry>) -> Option<String> {
    entries.find(|entry| entry.role == EntryRole::User).as_ref().map(excerpt)
}

fn last_message_text(
    entries: impl DoubleEndedIterator<Item = ConversationEntry>,
) -> Option<String> {
    entries.rev().find(ConversationEntry::is_message).as_ref().map(excerpt)
}

fn excerpt(entry: &ConversationEntry) -> String {
    let text = entry.text();
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    line.trim().chars().take(EXCERPT_CHARS_MAX).collect()
}

pub(super) fn modified_at(meta: &std::fs::Metadata) -> Timestamp {
    let at = meta.modified().ok().and_then(|at| Timestamp::try_from(at).ok());
    at.unwrap_or(Timestamp::UNIX_EPOCH)
}

fn foreign_text(metadata: &SessionMetadata, keys: &[&str]) -> Option<String> {
    metadata.foreign_value(keys)?.as_str().map(str::to_owned)
}

/// Parses a time: ISO text, or milliseconds since 1970.
fn parse_timestamp(value: &Json) -> Option<Timestamp> {
    match value {
        Json::String(text) => parse_iso(text),
        Json::Number(number) => Timestamp::from_millisecond(number.as_i64()?).ok(),
        _ => None,
    }
}

fn lock_holder(heeler_folder: &Utf8Path, id: &str) -> Option<String> {
    // An unreadable lock is no reason to hide the session.
    let state = LockFile::probe(&heeler_folder.join(lock_name(id))).ok()??;
    Some(state.holder.map_or("another process".to_owned(), |holder| holder.to_string()))
}
