//! What a file of claude's tells about its session.

use camino::Utf8PathBuf;
use heeler_model::record::MessageCount;
use heeler_model::{from_iso, message};
use heeler_transcript::{DiskError, Entry, LinesBack, Record, Scan};
use serde_json::Value as Json;
use uuid::Uuid;

use super::{Found, NativeSession};
use crate::skim::{Keep, skim};

/// How much of a large file's beginning is read for a list: beside what was asked first it holds the
/// system prompt and the tools.
const HEAD_BYTES_MAX: u64 = 1024 * 1024;
/// How much of its end.
const TAIL_BYTES_MAX: u64 = 1024 * 1024;
/// How long a title is, in characters.
const TITLE_CHARS_MAX: usize = 200;

const BLOCK: Keep = Keep::Fields(&[("type", Keep::Word)]);

const LINE: Keep = Keep::Fields(&[
    ("type", Keep::Word),
    ("uuid", Keep::Word),
    ("isMeta", Keep::Word),
    ("isSidechain", Keep::Word),
    ("isApiErrorMessage", Keep::Word),
    ("timestamp", Keep::Word),
    ("cwd", Keep::Word),
    ("gitBranch", Keep::Word),
    ("version", Keep::Word),
    (
        "message",
        Keep::Fields(&[
            ("id", Keep::Word),
            ("content", Keep::Items(&BLOCK)),
            (
                "usage",
                Keep::Fields(&[
                    ("input_tokens", Keep::Word),
                    ("cache_read_input_tokens", Keep::Word),
                    ("cache_creation_input_tokens", Keep::Word),
                    ("output_tokens", Keep::Word),
                ]),
            ),
        ]),
    ),
]);

/// Reads all of a file.
pub(super) fn whole(file: &Found) -> Result<NativeSession, DiskError> {
    let mut facts = Facts::of(file)?;
    facts.read_from_start(u64::MAX)?;
    Ok(facts.finish())
}

/// Reads the beginning and the end of a file.
pub(super) fn brief(file: &Found) -> Result<NativeSession, DiskError> {
    let mut facts = Facts::of(file)?;
    let read = facts.read_from_start(HEAD_BYTES_MAX)?;
    let all = facts.session.bytes;
    if read < all {
        facts.read_from_end(all.saturating_sub(TAIL_BYTES_MAX).max(read))?;
        // Floating point would not be more right.
        let messages = u128::from(facts.count.messages()) * u128::from(all) / u128::from(read);
        facts.session.messages = u64::try_from(messages).unwrap_or(u64::MAX);
        facts.session.is_estimate = true;
    }
    Ok(facts.finish())
}

struct Facts {
    session: NativeSession,
    count: MessageCount,
}

impl Facts {
    fn of(file: &Found) -> Result<Facts, DiskError> {
        let path = file.path.clone();
        let found = path.symlink_metadata();
        let bytes = match found {
            Ok(found) => found.len(),
            Err(source) => return Err(DiskError { action: "read", path, source }),
        };
        let last_at = jiff::Timestamp::try_from(file.used).ok();
        let session = NativeSession {
            id: file.id.clone(),
            path,
            cwd: None,
            title: None,
            first_at: None,
            last_at,
            messages: 0,
            is_estimate: false,
            tokens: 0,
            bytes,
            git_branch: None,
            version: None,
            last: None,
        };
        Ok(Facts { session, count: MessageCount::default() })
    }

    /// Reads whole lines up to about so many bytes; returns how many there were.
    fn read_from_start(&mut self, most: u64) -> Result<u64, DiskError> {
        let path = self.session.path.clone();
        let mut end = 0;
        for entry in Scan::open(&path)? {
            let Entry::Record(record) = entry? else { continue };
            self.line(&record);
            end = record.next;
            if end >= most {
                return Ok(end);
            }
        }
        self.session.messages = self.count.messages();
        Ok(self.session.bytes.max(end))
    }

    /// Reads lines from the end until what the newest say is known.
    fn read_from_end(&mut self, start: u64) -> Result<(), DiskError> {
        let head = std::mem::take(&mut self.session.tokens);
        (self.session.last, self.session.git_branch) = (None, None);
        let mut last_at = None;
        let mut lines = LinesBack::open(&self.session.path)?;
        while let Some(line) = lines.next_line()?.filter(|line| line.offset >= start) {
            let Some(row) = skim(line.bytes, &LINE) else { continue };
            let session = &mut self.session;
            last_at = last_at.or_else(|| time(&row));
            session.last = session.last.or_else(|| entry_of(&row));
            let branch = session.git_branch.take();
            session.git_branch = branch.or_else(|| word(&row["gitBranch"]));
            session.tokens = tokens(&row).unwrap_or(0);
            if session.tokens > 0 && session.last.is_some() {
                break;
            }
        }
        if self.session.tokens == 0 {
            self.session.tokens = head;
        }
        self.session.last_at = last_at.or(self.session.last_at);
        Ok(())
    }

    fn line(&mut self, record: &Record) {
        let Some(row) = skim(record.text.as_bytes(), &LINE) else { return };
        let begins = self.count.row(&row);
        let session = &mut self.session;
        if let Some(at) = time(&row) {
            session.first_at = session.first_at.or(Some(at));
            session.last_at = Some(at);
        }
        session.last = entry_of(&row).or(session.last);
        session.tokens = tokens(&row).unwrap_or(session.tokens);
        if session.cwd.is_none() {
            // A relative one would mean another place for everybody who reads it.
            let cwd = word(&row["cwd"]).map(Utf8PathBuf::from);
            session.cwd = cwd.filter(|cwd| cwd.is_absolute());
        }
        session.git_branch = word(&row["gitBranch"]).or(session.git_branch.take());
        session.version = word(&row["version"]).or(session.version.take());
        if begins && session.title.is_none() && row["type"] == "user" && row["isMeta"] != true {
            session.title = title(&record.text);
        }
    }

    fn finish(self) -> NativeSession {
        self.session
    }
}

fn word(value: &Json) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn time(row: &Json) -> Option<jiff::Timestamp> {
    row["timestamp"].as_str().and_then(from_iso)
}

/// Returns the id of a line that is part of the conversation.
fn entry_of(row: &Json) -> Option<Uuid> {
    let is_one = matches!(row["type"].as_str(), Some("user" | "assistant" | "attachment"));
    let id = row["uuid"].as_str().filter(|_| is_one && row["isSidechain"] != true)?;
    Uuid::try_parse(id).ok()
}

/// Returns what a reply says of the context's size.
fn tokens(row: &Json) -> Option<u64> {
    if row["type"] != "assistant" || row["isSidechain"] == true {
        return None;
    }
    let usage = row["message"]["usage"].as_object()?;
    let all = usage.values().filter_map(Json::as_u64).fold(0, u64::saturating_add);
    (all > 0).then_some(all)
}

/// Returns what a prompt asks, on one line. What the program itself put there is no title.
fn title(line: &str) -> Option<String> {
    let row = message::read_row(line)?;
    let text = match &row["message"]["content"] {
        Json::String(text) => text.as_str(),
        Json::Array(blocks) => blocks.iter().find_map(|block| block["text"].as_str())?,
        _ => return None,
    };
    let mut words = text.split_whitespace().peekable();
    if words.peek().is_none_or(|word| word.starts_with('<')) {
        return None;
    }
    let line = words.collect::<Vec<_>>().join(" ");
    Some(line.chars().take(TITLE_CHARS_MAX).collect())
}
