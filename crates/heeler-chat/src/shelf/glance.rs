//! What a list shows of a session, from the ends of its files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use camino::Utf8Path;
use heeler_model::from_iso;
use heeler_transcript::{LockFile, plain, resolve_inside};
use jiff::Timestamp;
use serde_json::Value as Json;

use super::{Found, JSON, Listed, lock_name};
use crate::book::{count_on, read_entry, seam};
use crate::sheet::Sheet;
use crate::{Entry, Role};

/// The largest session file that is read for a list; only an inline transcript makes it so large. Of a
/// larger one the list tells no more than the name and the time.
const SHEET_BYTES_MAX: u64 = 16 << 20;
/// How much of a transcript is counted for a list, beyond what is known from the last save.
const COUNT_BYTES_MAX: u64 = 64 << 20;
/// How much of a transcript's beginning and end is looked at for the first and the last words.
const HEAD_BYTES: usize = 16 << 10;
const TAIL_BYTES: usize = 64 << 10;
/// How much is shown of what was said.
const WORDS_CHARS_MAX: usize = 200;

/// Looks at a session.
pub(super) fn glance(own: &Utf8Path, found: &Found) -> Listed {
    let mut listed = Listed {
        id: found.id.clone(),
        agent: None,
        folder: None,
        created: None,
        updated: Timestamp::UNIX_EPOCH,
        messages: None,
        first: None,
        last: None,
        is_foreign: found.is_foreign,
        is_open_by: open_by(own, &found.id),
        fault: None,
    };
    if let Err(fault) = look(found, &mut listed) {
        listed.fault = Some(fault);
    }
    listed
}

fn look(found: &Found, listed: &mut Listed) -> Result<(), String> {
    let words = |error: &dyn std::error::Error| heeler_model::chain(error);
    let path = found.folder.join(format!("{}{JSON}", found.id));
    if let Ok(meta) = path.symlink_metadata() {
        listed.updated = written(&meta);
        if meta.is_file() && meta.len() > SHEET_BYTES_MAX {
            return Ok(());
        }
    }
    let (_, sheet) = super::read_sheet(found);
    let sheet = sheet?;
    listed.agent = sheet.about.agent.clone().or_else(|| text(&sheet, &["agent", "agentName"]));
    let folder = || text(&sheet, &["cwd", "workingDirectory", "projectRoot", "workspace"]);
    listed.folder = sheet.about.folder.clone().or_else(|| folder().map(Into::into));
    let created = || moment(&sheet.foreign(&["createdAt", "created_at", "startedAt"])?);
    listed.created = sheet.about.created_at.or_else(created);
    let path = resolve_inside(&found.folder, &sheet.transcript).map_err(|error| words(&error))?;
    let counted = sheet.about.counted.unwrap_or_default();
    let counted = count_on(&path, counted, COUNT_BYTES_MAX).map_err(|error| words(&error))?;
    let seam = seam(&path, &sheet).map_err(|error| words(&error))?;
    let inline = seam.map_or(&[][..], |seam| &sheet.inline[seam.entries..]);
    listed.messages = counted.map(|counted| counted.entries + inline.len() as u64);
    let ends = Ends::read(&path, listed).map_err(|error| error.to_string())?;
    let inline: Vec<Entry> = inline.iter().map(|line| read_entry(line)).collect();
    listed.first = ends.first.or_else(|| first_words(inline.iter()));
    listed.last = last_words(inline.iter()).or(ends.last);
    Ok(())
}

/// What is said first and last in a transcript's own file.
#[derive(Default)]
struct Ends {
    first: Option<String>,
    last: Option<String>,
}

impl Ends {
    fn read(path: &Utf8Path, listed: &mut Listed) -> io::Result<Ends> {
        let file = match plain::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Ends::default()),
            Err(error) => return Err(error),
        };
        let meta = file.metadata()?;
        listed.updated = listed.updated.max(written(&meta));
        let head = entries(&read_at(&file, 0, HEAD_BYTES)?);
        let from = meta.len().saturating_sub(TAIL_BYTES as u64);
        let tail = read_at(&file, from, TAIL_BYTES)?;
        // The first line of it may be the end of one.
        let whole = if from == 0 { Some(0) } else { memchr::memchr(b'\n', &tail) };
        let tail = whole.map_or(Vec::new(), |at| entries(&tail[at..]));
        Ok(Ends { first: first_words(head.iter()), last: last_words(tail.iter()) })
    }
}

fn read_at(file: &File, from: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let read = file.read_at(&mut bytes, from)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Returns the entries of the whole lines of a piece of a file.
fn entries(bytes: &[u8]) -> Vec<Entry> {
    let lines = bytes.split(|byte| *byte == b'\n').filter_map(|line| str::from_utf8(line).ok());
    lines
        .filter(|line| serde_json::from_str::<serde::de::IgnoredAny>(line).is_ok())
        .map(read_entry)
        .collect()
}

fn first_words<'a>(mut entries: impl Iterator<Item = &'a Entry>) -> Option<String> {
    entries.find(|entry| entry.role == Role::User).map(words)
}

fn last_words<'a>(entries: impl DoubleEndedIterator<Item = &'a Entry>) -> Option<String> {
    entries.rev().find(|entry| entry.is_message()).map(words)
}

fn words(entry: &Entry) -> String {
    let text = entry.text();
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    line.trim().chars().take(WORDS_CHARS_MAX).collect()
}

fn written(meta: &std::fs::Metadata) -> Timestamp {
    let at = meta.modified().ok().and_then(|at| Timestamp::try_from(at).ok());
    at.unwrap_or(Timestamp::UNIX_EPOCH)
}

fn text(sheet: &Sheet, keys: &[&str]) -> Option<String> {
    sheet.foreign(keys)?.as_str().map(str::to_owned)
}

/// Reads a moment: ISO text, or milliseconds as JavaScript counts them.
fn moment(value: &Json) -> Option<Timestamp> {
    match value {
        Json::String(text) => from_iso(text),
        Json::Number(number) => Timestamp::from_millisecond(number.as_i64()?).ok(),
        _ => None,
    }
}

fn open_by(own: &Utf8Path, id: &str) -> Option<String> {
    let state = LockFile::probe(&own.join(lock_name(id))).ok()??;
    Some(state.holder.map_or("another process".to_owned(), |holder| holder.to_string()))
}
