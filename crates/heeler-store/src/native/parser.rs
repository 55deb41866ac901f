//! Parser of claude's session files.

use camino::Utf8PathBuf;
use heeler_model::recorder::MessageCounter;
use heeler_model::{message, parse_iso};
use heeler_transcript::{
    DiskError, ReverseTranscriptReader, TranscriptEntry, TranscriptRecord, TranscriptScanner,
};
use serde_json::Value as Json;
use uuid::Uuid;

use super::{NativeSession, NativeSessionCandidate};
use crate::json_selector::{JsonSelector, parse_selected};

/// Bytes read from the beginning of a large file for a list: it holds the first prompt, the
/// system prompt and the tools.
pub(super) const HEAD_BYTES_MAX: u64 = 1024 * 1024;
/// Bytes read from its end.
pub(super) const TAIL_BYTES_MAX: u64 = 1024 * 1024;
/// Longest title, in characters.
const TITLE_CHARS_MAX: usize = 200;

// Only the kind of a block decides about messages, so its text is not built.
const BLOCK: JsonSelector = JsonSelector::Fields(&[("type", JsonSelector::Scalar)]);

const LINE: JsonSelector = JsonSelector::Fields(&[
    ("type", JsonSelector::Scalar),
    ("uuid", JsonSelector::Scalar),
    ("isMeta", JsonSelector::Scalar),
    ("isSidechain", JsonSelector::Scalar),
    ("isApiErrorMessage", JsonSelector::Scalar),
    ("timestamp", JsonSelector::Scalar),
    ("cwd", JsonSelector::Scalar),
    ("gitBranch", JsonSelector::Scalar),
    ("version", JsonSelector::Scalar),
    (
        "message",
        JsonSelector::Fields(&[
            ("id", JsonSelector::Scalar),
            ("content", JsonSelector::Items(&BLOCK)),
            (
                "usage",
                JsonSelector::Fields(&[
                    ("input_tokens", JsonSelector::Scalar),
                    ("cache_read_input_tokens", JsonSelector::Scalar),
                    ("cache_creation_input_tokens", JsonSelector::Scalar),
                    ("output_tokens", JsonSelector::Scalar),
                ]),
            ),
        ]),
    ),
]);

/// Reads the whole file.
pub(super) fn read_full(file: &NativeSessionCandidate) -> Result<NativeSession, DiskError> {
    let mut parser = NativeSessionParser::of(file)?;
    parser.read_from_start(u64::MAX)?;
    Ok(parser.finish())
}

/// Reads the beginning and the end of a file.
pub(super) fn read_summary(file: &NativeSessionCandidate) -> Result<NativeSession, DiskError> {
    let mut parser = NativeSessionParser::of(file)?;
    let read = parser.read_from_start(HEAD_BYTES_MAX)?;
    let all = parser.session.bytes;
    if read < all {
        parser.read_from_end(all.saturating_sub(TAIL_BYTES_MAX).max(read))?;
        // It is an estimate, so integer arithmetic is precise enough.
        let messages = u128::from(parser.count.messages()) * u128::from(all) / u128::from(read);
        parser.session.messages = u64::try_from(messages).unwrap_or(u64::MAX);
        parser.session.is_estimate = true;
    }
    Ok(parser.finish())
}

struct NativeSessionParser {
    session: NativeSession,
    count: MessageCounter,
}

impl NativeSessionParser {
    fn of(file: &NativeSessionCandidate) -> Result<NativeSessionParser, DiskError> {
        let session = NativeSession::unread(file)?;
        Ok(NativeSessionParser { session, count: MessageCounter::default() })
    }

    /// Reads complete lines up to about `most` bytes; returns the number of bytes read.
    fn read_from_start(&mut self, most: u64) -> Result<u64, DiskError> {
        let path = self.session.path.clone();
        let mut end = 0;
        for entry in TranscriptScanner::open(&path)? {
            // Damaged lines of another program's file are skipped.
            let TranscriptEntry::Record(record) = entry? else { continue };
            self.line(&record);
            end = record.next;
            // At least one line is read, however long it is.
            if end >= most {
                return Ok(end);
            }
        }
        // All of the file was read, so the count is exact.
        self.session.messages = self.count.messages();
        Ok(self.session.bytes.max(end))
    }

    /// Reads lines from the end until the newest values of all fields are known.
    fn read_from_end(&mut self, start: u64) -> Result<(), DiskError> {
        // The newest reply reports the size of the context. That of the beginning is only a
        // fallback.
        let head = std::mem::take(&mut self.session.tokens);
        // The values of the beginning are older than any that follow.
        (self.session.last_entry, self.session.git_branch) = (None, None);
        let mut last_at = None;
        let mut lines = ReverseTranscriptReader::open(&self.session.path)?;
        while let Some(line) = lines.next_line()?.filter(|line| line.offset >= start) {
            let Some(row) = parse_selected(line.bytes, &LINE) else { continue };
            let session = &mut self.session;
            // Read backwards, so the first value that is found is the newest.
            last_at = last_at.or_else(|| time(&row));
            session.last_entry = session.last_entry.or_else(|| entry_of(&row));
            let branch = session.git_branch.take();
            session.git_branch = branch.or_else(|| non_empty_text(&row["gitBranch"]));
            session.tokens = tokens(&row).unwrap_or(0);
            if session.tokens > 0 && session.last_entry.is_some() {
                break;
            }
        }
        if self.session.tokens == 0 {
            self.session.tokens = head;
        }
        self.session.last_at = last_at.or(self.session.last_at);
        Ok(())
    }

    fn line(&mut self, record: &TranscriptRecord) {
        let Some(row) = parse_selected(record.text.as_bytes(), &LINE) else { return };
        let begins = self.count.count_row(&row);
        let session = &mut self.session;
        if let Some(at) = time(&row) {
            session.first_at = session.first_at.or(Some(at));
            session.last_at = Some(at);
        }
        // The last valid entry wins, because a file may end in lines that are not messages.
        session.last_entry = entry_of(&row).or(session.last_entry);
        session.tokens = tokens(&row).unwrap_or(session.tokens);
        if session.cwd.is_none() {
            // A relative path would depend on the reader's working directory.
            let cwd = non_empty_text(&row["cwd"]).map(Utf8PathBuf::from);
            session.cwd = cwd.filter(|cwd| cwd.is_absolute());
        }
        session.git_branch = non_empty_text(&row["gitBranch"]).or(session.git_branch.take());
        session.version = non_empty_text(&row["version"]).or(session.version.take());
        // Claude inserts messages of its own (`isMeta`), which a person would not recognize.
        if begins && session.title.is_none() && row["type"] == "user" && row["isMeta"] != true {
            // Only the one line with the title is parsed completely.
            session.title = message::parse_row(&record.text).and_then(|row| one_line_title(&row));
        }
    }

    fn finish(self) -> NativeSession {
        self.session
    }
}

fn non_empty_text(value: &Json) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn time(row: &Json) -> Option<jiff::Timestamp> {
    row["timestamp"].as_str().and_then(parse_iso)
}

/// Returns the id of a line that is part of the conversation.
fn entry_of(row: &Json) -> Option<Uuid> {
    let is_one = matches!(row["type"].as_str(), Some("user" | "assistant" | "attachment"));
    // Side chains are conversations of sub-agents and not part of the session.
    let id = row["uuid"].as_str().filter(|_| is_one && row["isSidechain"] != true)?;
    Uuid::try_parse(id).ok()
}

/// Returns the context size that a reply reports.
fn tokens(row: &Json) -> Option<u64> {
    if row["type"] != "assistant" || row["isSidechain"] == true {
        return None;
    }
    let usage = row["message"]["usage"].as_object()?;
    // Cached input is part of the context too, so all figures are added.
    let all = usage.values().filter_map(Json::as_u64).fold(0, u64::saturating_add);
    (all > 0).then_some(all)
}

/// Returns the text of a prompt on one line. Text that the program itself inserted is not a
/// title.
pub(super) fn one_line_title(row: &Json) -> Option<String> {
    let text = match &row["message"]["content"] {
        Json::String(text) => text.as_str(),
        Json::Array(blocks) => blocks.iter().find_map(|block| block["text"].as_str())?,
        _ => return None,
    };
    let mut words = text.split_whitespace().peekable();
    // Claude wraps its own texts in tags, such as `<command-name>`.
    if words.peek().is_none_or(|word| word.starts_with('<')) {
        return None;
    }
    let line = words.collect::<Vec<_>>().join(" ");
    Some(line.chars().take(TITLE_CHARS_MAX).collect())
}
