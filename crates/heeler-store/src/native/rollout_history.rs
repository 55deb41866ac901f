//! The history of a thread of Codex: those lines of its files that are still part of it.
//!
//! A thread of which turns were reverted continues in a new file, and so does a fork. The first line of
//! such a file names another file and the offset up to which that one precedes it. Older versions of
//! Codex instead record in the same file that turns were taken back. Start at [`RolloutHistory`].

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{DiskError, TranscriptEntry, TranscriptScanner};
use serde_json::Value as Json;

use super::rollout_files::find_rollout;
use super::rollout_rows::conversation_rows;

/// Most files of which one history consists. It also ends a circle of files that name each other.
pub(super) const HISTORY_FILES_MAX: usize = 256;

/// A file of a history, up to this offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RolloutPart {
    pub(super) path: Utf8PathBuf,
    pub(super) end: u64,
}

/// Position of a line in a history: number of the part, and offset in its file.
type LinePosition = (usize, u64);

/// Lines of a history, oldest first, without turns that were taken back.
pub(super) struct RolloutHistory {
    lines: HistoryLines,
    taken_back: Vec<Range<LinePosition>>,
}

impl RolloutHistory {
    /// Opens the history that ends with this file.
    pub(super) fn open(file: &Utf8Path) -> Result<RolloutHistory, DiskError> {
        let parts = history_parts(file)?;
        let taken_back = find_taken_back(HistoryLines::new(parts.clone()))?;
        Ok(RolloutHistory { lines: HistoryLines::new(parts), taken_back })
    }
}

impl Iterator for RolloutHistory {
    type Item = Result<Json, DiskError>;

    fn next(&mut self) -> Option<Result<Json, DiskError>> {
        loop {
            match self.lines.next()? {
                Ok((at, _)) if self.taken_back.iter().any(|range| range.contains(&at)) => {}
                Ok((_, line)) => return Some(Ok(line)),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Returns the files of a history, oldest first. The last one is the file itself.
pub(super) fn history_parts(file: &Utf8Path) -> Result<Vec<RolloutPart>, DiskError> {
    let failed = |path: &Utf8Path, source| DiskError { action: "read", path: path.into(), source };
    let length = file.symlink_metadata().map_err(|error| failed(file, error))?.len();
    let mut parts = VecDeque::from([RolloutPart { path: file.to_owned(), end: length }]);
    while let Some(base) = parts.front().map(|part| read_base(&part.path)).transpose()?.flatten() {
        if parts.len() == HISTORY_FILES_MAX {
            let reason = format!("its history has more than {HISTORY_FILES_MAX} files");
            return Err(failed(file, io::Error::other(reason)));
        }
        let (id, end) = base;
        // Without it, the history would begin in the middle.
        let Some(path) = find_rollout(file, &id) else {
            let reason = format!("the file with the earlier history, of {id}, is missing");
            return Err(failed(file, io::Error::other(reason)));
        };
        parts.push_front(RolloutPart { path, end });
    }
    Ok(parts.into())
}

/// Returns the first line of a file.
pub(super) fn read_header(path: &Utf8Path) -> Result<Json, DiskError> {
    for entry in TranscriptScanner::open(path)? {
        let TranscriptEntry::Record(record) = entry? else { continue };
        return Ok(serde_json::from_str(&record.text).unwrap_or_default());
    }
    Ok(Json::Null)
}

/// Returns the ID of the file that precedes this one, and the offset up to which it does.
fn read_base(path: &Utf8Path) -> Result<Option<(String, u64)>, DiskError> {
    let header = read_header(path)?;
    let base = &header["payload"]["history_base"];
    let id = base["thread_id"].as_str().map(str::to_owned);
    Ok(id.zip(base["end_byte_offset"].as_u64()).filter(|_| header["type"] == "session_meta"))
}

/// Returns the lines of turns that were taken back.
fn find_taken_back(lines: HistoryLines) -> Result<Vec<Range<LinePosition>>, DiskError> {
    let mut turns: Vec<LinePosition> = Vec::new();
    let mut taken_back = Vec::new();
    for line in lines {
        let (at, line) = line?;
        let event = &line["payload"];
        if line["type"] == "event_msg" && event["type"] == "thread_rolled_back" {
            let count = usize::try_from(event["num_turns"].as_u64().unwrap_or(0)).ok();
            let kept = turns.len().saturating_sub(count.unwrap_or(usize::MAX));
            taken_back.extend(turns.drain(kept..).next().map(|start| start..at));
        } else if conversation_rows(&line).iter().any(|row| row["message"]["content"].is_string()) {
            // Only a prompt has a text as its content.
            turns.push(at);
        }
    }
    Ok(taken_back)
}

/// Lines of some parts, with their positions.
struct HistoryLines {
    parts: std::iter::Enumerate<std::vec::IntoIter<RolloutPart>>,
    open: Option<(usize, u64, TranscriptScanner)>,
}

impl HistoryLines {
    fn new(parts: Vec<RolloutPart>) -> HistoryLines {
        HistoryLines { parts: parts.into_iter().enumerate(), open: None }
    }
}

impl Iterator for HistoryLines {
    type Item = Result<(LinePosition, Json), DiskError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some((number, end, scan)) = &mut self.open else {
                let (number, part) = self.parts.next()?;
                match TranscriptScanner::open(&part.path) {
                    Ok(scan) => self.open = Some((number, part.end, scan)),
                    Err(error) => return Some(Err(error)),
                }
                continue;
            };
            match scan.next() {
                Some(Ok(TranscriptEntry::Record(record))) if record.offset < *end => {
                    // A line that is no JSON is no message.
                    let Ok(line) = serde_json::from_str(&record.text) else { continue };
                    return Some(Ok(((*number, record.offset), line)));
                }
                Some(Err(error)) => return Some(Err(error)),
                // Damaged lines of another program's file are skipped.
                Some(Ok(entry)) if !matches!(entry, TranscriptEntry::Record(_)) => {}
                Some(Ok(_)) | None => self.open = None,
            }
        }
    }
}
