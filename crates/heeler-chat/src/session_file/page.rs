//! Reading a transcript backwards from its end, in pages, regardless of its size.
//!
//! A transcript consists of its file and, until the first write, the inline entries that only an
//! older format of the session has.

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::JobId;
use heeler_transcript::{
    LINE_BYTES_MAX, PageBoundary, RawLine, ReverseTranscriptReader, TranscriptFaultKind,
    TranscriptPage, TranscriptRecord, read_range, resolve_inside, untrusted_file,
};
use memchr::memmem;
use serde_json::{Map, Value as Json};
use uuid::Uuid;

use super::records::{is_missing, read_records};
use super::{SessionFile, SessionFileError};
use crate::{ChatSpeaker, ConversationEntry, EntryRole};

/// Position in a transcript: the beginning of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryCursor(EntryPosition);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryPosition {
    /// Before this offset of the transcript file.
    Offset(u64),
    /// Before this entry of those that were only inline when the session was opened.
    Inline(usize),
}

/// Consecutive entries of a transcript, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub struct EntryPage {
    pub entries: Vec<ConversationEntry>,
    /// Beginning of the page; the previous page ends there.
    pub cursor: EntryCursor,
    /// There are older entries.
    pub has_more: bool,
}

impl SessionFile {
    /// Returns the last `count` entries before a cursor, or before the end.
    ///
    /// The result may be shorter although there are more entries: a page has a size limit.
    pub fn entries_before(
        &self,
        of: &ChatSpeaker,
        before: Option<EntryCursor>,
        count: usize,
    ) -> Result<EntryPage, SessionFileError> {
        let path = self.transcript_path_of(of)?;
        let inline = self.inline_entries(of);
        let at = match before.map(|cursor| self.resolve_cursor(of, cursor)) {
            Some(EntryPosition::Offset(offset)) => {
                return self.page_from_file(&path, Some(offset), count);
            }
            None if inline.is_empty() => return self.page_from_file(&path, None, count),
            Some(EntryPosition::Inline(at)) => at.min(inline.len()),
            None => inline.len(),
        };
        let start = at.saturating_sub(count);
        let entries: Vec<ConversationEntry> =
            inline[start..at].iter().map(|line| parse_entry(line)).collect();
        let boundary = self.file_end(of);
        if entries.len() == count {
            let has_more = start > 0 || boundary > 0;
            return Ok(EntryPage {
                entries,
                cursor: EntryCursor(EntryPosition::Inline(start)),
                has_more,
            });
        }
        let mut page = self.page_from_file(&path, Some(boundary), count - entries.len())?;
        page.entries.extend(entries);
        Ok(page)
    }

    /// Returns the current position of a cursor: inline entries may have moved to the transcript
    /// file.
    fn resolve_cursor(&self, of: &ChatSpeaker, cursor: EntryCursor) -> EntryPosition {
        match cursor {
            EntryCursor(EntryPosition::Inline(at)) if self.inline_entries(of).is_empty() => {
                let end = self.adopted_offsets.last().copied().unwrap_or(u64::MAX);
                EntryPosition::Offset(self.adopted_offsets.get(at).copied().unwrap_or(end))
            }
            EntryCursor(position) => position,
        }
    }

    /// Returns the end of the transcript file's part; entries after it are inline too.
    pub(super) fn file_end(&self, of: &ChatSpeaker) -> u64 {
        match (of, self.inline_boundary) {
            (ChatSpeaker::Coordinator, Some(boundary)) => boundary.bytes,
            _ => u64::MAX,
        }
    }

    /// Returns the cursor that is `entries` entries after another.
    pub fn cursor_after(
        &self,
        of: &ChatSpeaker,
        cursor: EntryCursor,
        entries: usize,
    ) -> Result<EntryCursor, SessionFileError> {
        let mut end = match self.resolve_cursor(of, cursor) {
            EntryPosition::Inline(at) => {
                return Ok(EntryCursor(EntryPosition::Inline(at + entries)));
            }
            EntryPosition::Offset(offset) => offset,
        };
        let boundary = self.file_end(of);
        let mut passed = 0;
        for record in read_records(&self.transcript_path_of(of)?, end)?.take(entries) {
            let record = record?;
            // The array has the entries from here on, so the cursor continues there.
            if record.offset >= boundary {
                return Ok(EntryCursor(EntryPosition::Inline(entries - passed)));
            }
            (passed, end) = (passed + 1, record.next);
        }
        let is_inline = passed < entries && !self.inline_entries(of).is_empty();
        Ok(EntryCursor(if is_inline {
            EntryPosition::Inline(entries - passed)
        } else {
            EntryPosition::Offset(end)
        }))
    }

    /// Returns the last row of a job for which a transcript has an entry.
    pub fn last_recorded_row(
        &self,
        of: &ChatSpeaker,
        job: &JobId,
    ) -> Result<Option<u64>, SessionFileError> {
        // The search below reads backwards, which takes long for a job without rows.
        if let Some(row) = self.last_rows.get(&(of.clone(), job.clone())) {
            return Ok(Some(*row));
        }
        let row_of = |text: &str| {
            let source = parse_entry(text).source?;
            (source.job == *job).then_some(source.row)
        };
        // The inline entries are the newest ones.
        if let Some(row) = self.inline_entries(of).iter().rev().find_map(|line| row_of(line)) {
            return Ok(Some(row));
        }
        let mut lines = match ReverseTranscriptReader::open_before(
            &self.transcript_path_of(of)?,
            self.file_end(of),
        ) {
            Ok(lines) => lines,
            Err(error) if is_missing(&error.source) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // Most lines belong to other jobs: only those that mention this one are parsed.
        let named = memmem::Finder::new(job.as_str());
        let row_in =
            |line: RawLine<'_>| line.records().iter().rev().find_map(|record| row_of(&record.text));
        let turn = self.turn_of(job);
        let prompt = turn.map(|turn| memmem::Finder::new(&turn.to_string()).into_owned());
        let is_prompt_in = |line: RawLine<'_>| {
            line.records().iter().any(|record| parse_entry(&record.text).turn == turn)
        };
        while let Some(line) = lines.next_line()? {
            if named.find(line.bytes).is_some()
                && let Some(row) = row_in(line)
            {
                return Ok(Some(row));
            }
            // The prompt of a job precedes all of its rows.
            if prompt.as_ref().is_some_and(|it| it.find(line.bytes).is_some()) && is_prompt_in(line)
            {
                break;
            }
        }
        Ok(None)
    }

    /// Returns the turn of a job, if it is recorded.
    fn turn_of(&self, job: &JobId) -> Option<Uuid> {
        let mut turns = self.state().turns.iter();
        turns.find(|turn| turn.job.as_ref() == Some(job)).map(|turn| turn.turn)
    }

    /// Returns the entries that only the JSON file has.
    pub(super) fn inline_entries(&self, of: &ChatSpeaker) -> &[String] {
        match (of, self.inline_boundary) {
            (ChatSpeaker::Coordinator, Some(boundary)) => &self.metadata.inline[boundary.entries..],
            _ => &[],
        }
    }

    pub(super) fn transcript_path_of(
        &self,
        of: &ChatSpeaker,
    ) -> Result<Utf8PathBuf, SessionFileError> {
        match of {
            ChatSpeaker::Coordinator => self.transcript_path(),
            ChatSpeaker::Worker(name) => {
                heeler_transcript::validate_id(name)?;
                let file = self.location.worker_file_path(&self.worker_file(name));
                Ok(resolve_inside(self.location.folder(), &file)?)
            }
        }
    }

    fn page_from_file(
        &self,
        path: &Utf8Path,
        end: Option<u64>,
        count: usize,
    ) -> Result<EntryPage, SessionFileError> {
        let page = read_range(path, end.map_or(PageBoundary::End, PageBoundary::Offset), count);
        let mut page = match page {
            Ok(page) => page,
            Err(error) if is_missing(&error.source) => {
                TranscriptPage { records: Vec::new(), faults: Vec::new(), start: 0, end: 0 }
            }
            Err(error) => return Err(error.into()),
        };
        if end.is_none() && self.location.foreign.is_some() {
            page.records.extend(unterminated_record(path, &page, LINE_BYTES_MAX));
        }
        let entries = page.records.iter().map(|record| parse_entry(&record.text)).collect();
        Ok(EntryPage {
            entries,
            cursor: EntryCursor(EntryPosition::Offset(page.start)),
            has_more: page.start > 0,
        })
    }
}

/// Returns the last line of a file if it lacks only its newline. Heeler's own files are repaired
/// when they are opened; files of other programs are not modified.
pub(crate) fn unterminated_record(
    path: &Utf8Path,
    page: &TranscriptPage,
    bytes_max: usize,
) -> Option<TranscriptRecord> {
    let torn = page.faults.iter().find(|fault| fault.kind == TranscriptFaultKind::TornTail)?;
    let len = usize::try_from(torn.len).ok().filter(|len| *len <= bytes_max)?;
    let mut bytes = vec![0; len];
    let file = untrusted_file::open(path).ok()?;
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, torn.offset).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    // A complete object is an entry; a number may be the beginning of a longer one.
    serde_json::from_str::<Map<String, Json>>(&text).ok()?;
    Some(TranscriptRecord { offset: torn.offset, next: torn.offset + torn.len, text })
}

/// Parses an entry of any program; unknown or malformed keys are kept in `other`.
pub(crate) fn parse_entry(text: &str) -> ConversationEntry {
    if let Ok(entry) = serde_json::from_str(text) {
        return entry;
    }
    let mut other: Map<String, Json> = serde_json::from_str(text).unwrap_or_default();
    let role = match other.get("role") {
        Some(Json::String(role)) => EntryRole::Other(role.clone()),
        _ => EntryRole::Other("unknown".to_owned()),
    };
    let role = serde_json::from_value(other.remove("role").unwrap_or(Json::Null)).unwrap_or(role);
    let content = other.remove("content").unwrap_or(Json::Null);
    let name = other.get("name").and_then(Json::as_str).map(str::to_owned);
    let args = other.remove("args");
    let (at, turn, source, call) = (None, None, None, None);
    ConversationEntry { role, content, name, args, at, turn, source, call, other }
}
