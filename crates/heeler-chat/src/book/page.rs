//! Reading a transcript from its tail, a page at a time, whatever its size.
//!
//! A transcript is its own file and then, until something is written, the entries that only an older
//! form of the session has, inline in the JSON file.

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::JobId;
use heeler_transcript::{
    Before, Entry as Line, FaultKind, LinesBack, Page, RawLine, Record, Scan, plain, range,
    resolve_inside,
};
use memchr::memmem;
use serde_json::{Map, Value as Json};

use super::{Book, BookError, is_missing};
use crate::{Entry, Role, Speaker};

/// A place in a transcript: where a page begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(Spot);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spot {
    /// Before the byte of the transcript's own file.
    Offset(u64),
    /// Before the entry of those that were only inline when the session was opened.
    Inline(usize),
}

/// Consecutive entries of a transcript, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub struct EntryPage {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Where they begin: the page before ends there.
    pub mark: Mark,
    /// Whether there are older ones.
    pub has_more: bool,
}

impl Book {
    /// Returns the last `count` entries before a mark, or of all if none is given.
    ///
    /// Fewer than asked for may come although there are more: a page has a largest size.
    pub fn older(
        &self,
        of: &Speaker,
        before: Option<Mark>,
        count: usize,
    ) -> Result<EntryPage, BookError> {
        let path = self.path_of(of)?;
        let inline = self.inline(of);
        let spot = match before {
            Some(Mark(Spot::Inline(at))) if inline.is_empty() => {
                Some(Spot::Offset(self.adopted.get(at).copied().unwrap_or(u64::MAX)))
            }
            Some(Mark(spot)) => Some(spot),
            None if inline.is_empty() => None,
            None => Some(Spot::Inline(inline.len())),
        };
        let end = match spot {
            Some(Spot::Inline(at)) => {
                let at = at.min(inline.len());
                let start = at.saturating_sub(count);
                let seam = self.pending.map_or(0, |seam| seam.bytes);
                let entries: Vec<Entry> =
                    inline[start..at].iter().map(|line| read_entry(line)).collect();
                if start > 0 || entries.len() == count {
                    let has_more = start > 0 || seam > 0;
                    return Ok(EntryPage { entries, mark: Mark(Spot::Inline(start)), has_more });
                }
                let mut page = self.file_page(&path, Some(seam), count - entries.len())?;
                page.entries.extend(entries);
                return Ok(page);
            }
            Some(Spot::Offset(offset)) => Some(offset),
            None => None,
        };
        self.file_page(&path, end, count)
    }

    /// Returns the mark that is so many entries behind another.
    pub fn later(&self, of: &Speaker, mark: Mark, entries: usize) -> Result<Mark, BookError> {
        let offset = match mark {
            Mark(Spot::Inline(at)) => return Ok(Mark(Spot::Inline(at + entries))),
            Mark(Spot::Offset(offset)) => offset,
        };
        let lines = Scan::open_at(&self.path_of(of)?, offset).map_err(BookError::Disk)?;
        let mut end = offset;
        let records = lines.filter_map(|line| match line {
            Ok(Line::Record(record)) => Some(record.next),
            _ => None,
        });
        records.take(entries).for_each(|next| end = next);
        Ok(Mark(Spot::Offset(end)))
    }

    /// Returns the last row of a job that a transcript has an entry of.
    pub fn last_source(&self, of: &Speaker, job: &JobId) -> Result<Option<u64>, BookError> {
        if let Some(row) = self.last_rows.get(&(of.clone(), job.clone())) {
            return Ok(Some(*row));
        }
        let row_of = |text: &str| {
            let source = read_entry(text).source?;
            (source.job == *job).then_some(source.row)
        };
        if let Some(row) = self.inline(of).iter().rev().find_map(|line| row_of(line)) {
            return Ok(Some(row));
        }
        let before = self.pending.filter(|_| *of == Speaker::Coordinator);
        let mut lines = match LinesBack::open_before(
            &self.path_of(of)?,
            before.map_or(u64::MAX, |seam| seam.bytes),
        ) {
            Ok(lines) => lines,
            Err(error) if is_missing(&error.source) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // Most lines are another job's: only those that name this one are read.
        let named = memmem::Finder::new(job.as_str());
        let row_in =
            |line: RawLine<'_>| line.records().iter().rev().find_map(|record| row_of(&record.text));
        while let Some(line) = lines.next_line()? {
            if named.find(line.bytes).is_some()
                && let Some(row) = row_in(line)
            {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    /// Returns the entries that only the JSON file has.
    pub(super) fn inline(&self, of: &Speaker) -> &[String] {
        match (of, self.pending) {
            (Speaker::Coordinator, Some(seam)) => &self.sheet.inline[seam.entries..],
            _ => &[],
        }
    }

    pub(super) fn path_of(&self, of: &Speaker) -> Result<Utf8PathBuf, BookError> {
        match of {
            Speaker::Coordinator => self.transcript(),
            Speaker::Worker(name) => {
                heeler_transcript::checked_id(name)?;
                let file = self.place.worker(&self.worker_file(name));
                Ok(resolve_inside(self.place.folder(), &file)?)
            }
        }
    }

    fn file_page(
        &self,
        path: &Utf8Path,
        end: Option<u64>,
        count: usize,
    ) -> Result<EntryPage, BookError> {
        let page = range(path, end.map_or(Before::End, Before::Offset), count);
        let mut page = match page {
            Ok(page) => page,
            Err(error) if is_missing(&error.source) => {
                Page { records: Vec::new(), faults: Vec::new(), start: 0, end: 0 }
            }
            Err(error) => return Err(error.into()),
        };
        if end.is_none() && self.place.foreign.is_some() {
            page.records.extend(unended(path, &page));
        }
        let entries = page.records.iter().map(|record| read_entry(&record.text)).collect();
        Ok(EntryPage { entries, mark: Mark(Spot::Offset(page.start)), has_more: page.start > 0 })
    }
}

/// Returns the last line of a file that lacks nothing but its newline. Ours get it when they are opened;
/// another program's file is not touched.
fn unended(path: &Utf8Path, page: &Page) -> Option<Record> {
    let torn = page.faults.iter().find(|fault| fault.kind == FaultKind::TornTail)?;
    let len = usize::try_from(torn.len).ok()?;
    if len > heeler_transcript::LINE_BYTES_MAX {
        return None;
    }
    let mut bytes = vec![0; len];
    let file = plain::open(path).ok()?;
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, torn.offset).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    serde_json::from_str::<Map<String, Json>>(&text).ok()?;
    Some(Record { offset: torn.offset, next: torn.offset + torn.len, text })
}

/// Reads an entry, whoever has written it: what is not as we know it is kept beside.
pub(crate) fn read_entry(text: &str) -> Entry {
    if let Ok(entry) = serde_json::from_str(text) {
        return entry;
    }
    let mut other: Map<String, Json> = serde_json::from_str(text).unwrap_or_default();
    let role = match other.get("role") {
        Some(Json::String(role)) => Role::Other(role.clone()),
        _ => Role::Other("unknown".to_owned()),
    };
    let role = serde_json::from_value(other.remove("role").unwrap_or(Json::Null)).unwrap_or(role);
    let content = other.remove("content").unwrap_or(Json::Null);
    let name = other.get("name").and_then(Json::as_str).map(str::to_owned);
    let args = other.remove("args");
    let (at, turn, source, call) = (None, None, None, None);
    Entry { role, content, name, args, at, turn, source, call, other }
}
