//! What a list shows of a session, from the ends of its files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use camino::Utf8Path;
use heeler_model::from_iso;
use heeler_transcript::{LockFile, plain, resolve_inside, tail};
use jiff::Timestamp;
use serde_json::Value as Json;

use super::{Found, JSON, Listed, Named, lock_name};
use crate::about::Counted;
use crate::book::{count_on, read_entry, seam, unended};
use crate::sheet::Sheet;
use crate::{Entry, Role};

/// The largest session file that is read for a list; only an inline transcript makes it so large. Of a
/// larger one the list tells no more than the name and the time.
pub(super) const SHEET_BYTES_MAX: u64 = 16 << 20;
/// How much of a transcript is counted for a list, beyond what is known from the last save.
const COUNT_BYTES_MAX: u64 = 64 << 20;
/// How much of a transcript's beginning and end is looked at for the first and the last words.
const HEAD_BYTES: usize = 16 << 10;
const TAIL_BYTES: usize = 64 << 10;
/// How much is shown of what was said.
const WORDS_CHARS_MAX: usize = 200;

/// Looks at a session.
pub(super) fn glance(own: &Utf8Path, named: &Named) -> Listed {
    let found = &named.found;
    let mut listed = Listed {
        id: found.id.clone(),
        agent: None,
        folder: None,
        created: None,
        updated: named.updated,
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
    if path.symlink_metadata().is_ok_and(|it| it.is_file() && it.len() > SHEET_BYTES_MAX) {
        return Ok(());
    }
    let (_, sheet) = super::read_sheet(found);
    let sheet = sheet?;
    listed.agent = sheet.about.agent.clone().or_else(|| text(&sheet, &["agent", "agentName"]));
    let folder = || text(&sheet, &["cwd", "workingDirectory", "projectRoot", "workspace"]);
    listed.folder = sheet.about.folder.clone().or_else(|| folder().map(Into::into));
    let created = || moment(&sheet.foreign(&["createdAt", "created_at", "startedAt"])?);
    listed.created = sheet.about.created_at.or_else(created);
    let path = resolve_inside(&found.folder, &sheet.transcript).map_err(|error| words(&error))?;
    let seam = seam(&path, &sheet).map_err(|error| words(&error))?;
    let until = seam.map_or(u64::MAX, |seam| seam.bytes);
    let counted = sheet.about.counted.unwrap_or_default();
    let counted =
        count_on(&path, counted, until, COUNT_BYTES_MAX).map_err(|error| words(&error))?;
    let inline = seam.map_or(&[][..], |seam| &sheet.inline[seam.entries..]);
    // An entry that lacks only its newline will get it.
    let is_longer = |it: &Counted| path.metadata().is_ok_and(|found| found.len() > it.bytes);
    let is_unended = inline.is_empty()
        && counted.as_ref().is_some_and(is_longer)
        && tail(&path, 0).is_ok_and(|page| unended(&path, &page, TAIL_BYTES).is_some());
    let beyond = inline.len() as u64 + u64::from(is_unended);
    listed.messages = counted.map(|counted| counted.entries + beyond);
    let ends = Ends::read(&path, listed).map_err(|error| error.to_string())?;
    let inline = || inline.iter().map(|line| read_entry(line));
    listed.first = ends.first.or_else(|| first_words(inline()));
    listed.last = last_words(inline()).or(ends.last);
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
        let mut ends = Ends::default();
        // Mostly a little is enough.
        for share in [16, 1] {
            if ends.first.is_none() {
                ends.first = first_words(entries(&read_at(&file, 0, HEAD_BYTES / share)?));
            }
            if ends.last.is_none() {
                ends.last = last_in(&file, meta.len(), TAIL_BYTES / share)?;
            }
        }
        Ok(ends)
    }
}

/// Returns what was said last in the last bytes of a file.
fn last_in(file: &File, end: u64, len: usize) -> io::Result<Option<String>> {
    let from = end.saturating_sub(len as u64);
    let tail = read_at(file, from, len)?;
    // The first line of it may be the end of one.
    let whole = if from == 0 { Some(0) } else { memchr::memchr(b'\n', &tail) };
    Ok(whole.and_then(|at| last_words(entries(&tail[at..]))))
}

fn read_at(file: &File, from: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let read = file.read_at(&mut bytes, from)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Returns the entries of the whole lines of a piece of a file. None is read before it is asked for: most
/// of them never are.
fn entries(bytes: &[u8]) -> impl DoubleEndedIterator<Item = Entry> {
    let lines = bytes.split(|byte| *byte == b'\n').filter_map(|line| str::from_utf8(line).ok());
    lines.filter(|line| serde_json::from_str::<serde::de::IgnoredAny>(line).is_ok()).map(read_entry)
}

fn first_words(mut entries: impl Iterator<Item = Entry>) -> Option<String> {
    entries.find(|entry| entry.role == Role::User).as_ref().map(words)
}

fn last_words(entries: impl DoubleEndedIterator<Item = Entry>) -> Option<String> {
    entries.rev().find(Entry::is_message).as_ref().map(words)
}

fn words(entry: &Entry) -> String {
    let text = entry.text();
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    line.trim().chars().take(WORDS_CHARS_MAX).collect()
}

pub(super) fn written(meta: &std::fs::Metadata) -> Timestamp {
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
