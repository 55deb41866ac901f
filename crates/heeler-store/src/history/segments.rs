//! Positions and numbers of a transcript's messages, read from the end one segment at a time.
//!
//! A segment begins with a row that records the number of messages before it, so only the
//! requested segments are parsed. A transcript without such rows is parsed completely. Start at
//! [`TranscriptSegments`].

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::job_row::{ContentBlock, JobRow, JobRowKind, content_blocks, envelope_content};
use heeler_model::message::parse_row;
use heeler_model::recorder::{BEGINNING_KEY, MessageCounter, PRIOR_COUNTS_KEY, parse_prior_counts};
use heeler_transcript::{
    DiskError, ReverseTranscriptReader, TranscriptEntry, TranscriptRecord, TranscriptScanner,
    validate_id,
};
use memchr::memmem;
use serde::Deserialize;
use serde_json::Value as Json;
use uuid::Uuid;

use super::message::{ForkSafety, HistoryRole, TranscriptSnapshot};
use super::native_chain::uuid;
use crate::json_selector::{JsonSelector, parse_selected};

/// Number of recent messages that are searched for the one that a snapshot names. Prompts may
/// have been sent meanwhile.
const SNAPSHOT_LATE_MAX: usize = 8;

/// Smallest part of a transcript that is searched by bisection; a smaller one is read row by
/// row.
const SKIPPED_BYTES_MIN: u64 = if cfg!(test) { 1024 } else { 1024 * 1024 };

const BLOCK: JsonSelector = JsonSelector::Fields(&[("type", JsonSelector::Scalar)]);

/// Fields of a row that are needed to number and classify it.
const ROW: JsonSelector = JsonSelector::Fields(&[
    ("type", JsonSelector::Scalar),
    ("subtype", JsonSelector::Scalar),
    ("uuid", JsonSelector::Scalar),
    ("isSidechain", JsonSelector::Scalar),
    ("isApiErrorMessage", JsonSelector::Scalar),
    ("parent_tool_use_id", JsonSelector::Scalar),
    (
        "message",
        JsonSelector::Fields(&[
            ("id", JsonSelector::Scalar),
            ("content", JsonSelector::Items(&BLOCK)),
        ]),
    ),
    (PRIOR_COUNTS_KEY, JsonSelector::All),
    ("snapshot", JsonSelector::All),
    ("messageUuid", JsonSelector::Scalar),
    ("sessionId", JsonSelector::Scalar),
]);

/// A message and its position in the transcript.
#[derive(Debug, Clone)]
pub(super) struct MessagePosition {
    pub(super) number: u64,
    pub(super) role: HistoryRole,
    /// Offset of its first row.
    pub(super) start: u64,
    /// Id of its first row. If any row of the message is in the context, this one is.
    pub(super) first: Option<Uuid>,
    /// Id of its last row.
    pub(super) uuid: Option<Uuid>,
    /// End of its turn: after its last row, its result and its snapshot.
    pub(super) end: u64,
    /// End of its last row, or of the last row of its tool results.
    pub(super) rows_end: u64,
    /// Bytes of text in those rows.
    pub(super) bytes: usize,
    pub(super) snapshot: Option<TranscriptSnapshot>,
    calls_tools: bool,
    ends_turn: bool,
}

impl MessagePosition {
    /// Checks that the transcript allows a fork after this message.
    pub(super) fn fork_safety(&self) -> ForkSafety {
        match self {
            MessagePosition { role: HistoryRole::User, .. } => {
                ForkSafety::Unsafe("it is a prompt without its answer")
            }
            MessagePosition { calls_tools: true, .. } => ForkSafety::Unsafe("it calls a tool"),
            MessagePosition { ends_turn: false, .. } => {
                ForkSafety::Unsafe("it does not end a turn")
            }
            MessagePosition { uuid: None, .. } => ForkSafety::Unsafe("it has no id"),
            _ => ForkSafety::Safe,
        }
    }
}

/// The rows between two rows that record message counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct TranscriptSegment {
    start: u64,
    end: u64,
    /// Number of messages before the segment.
    pub(super) messages_before: u64,
    /// True if Heeler wrote the segment; other segments do not record where turns end.
    is_heeler_run: bool,
    /// The last entry that the next segment has from another session.
    forked_at: Option<Uuid>,
}

/// The segments of a transcript, newest first.
pub(super) struct TranscriptSegments<'l> {
    log: &'l Utf8Path,
    lines: ReverseTranscriptReader,
    end: u64,
    forked_at: Option<Uuid>,
    is_done: bool,
}

impl<'l> TranscriptSegments<'l> {
    pub(super) fn open(log: &'l Utf8Path) -> Result<TranscriptSegments<'l>, DiskError> {
        TranscriptSegments::open_before(log, u64::MAX)
    }

    fn open_before(log: &'l Utf8Path, end: u64) -> Result<TranscriptSegments<'l>, DiskError> {
        let lines = ReverseTranscriptReader::open_before(log, end)?;
        Ok(TranscriptSegments { log, lines, end, forked_at: None, is_done: false })
    }

    /// Skips segments with at least `messages` messages before them, by bisection: the counts of a
    /// transcript only grow. Never reads more than a linear walk would.
    pub(super) fn skip_from(&mut self, messages: u64) -> Result<(), DiskError> {
        let mut low = 0;
        while !self.is_done && self.end - low > SKIPPED_BYTES_MIN && self.end < u64::MAX {
            let middle = low + (self.end - low) / 2;
            let mut runs = TranscriptSegments::open_before(self.log, middle)?;
            match runs.next_count(low)? {
                Some((_, before)) if before >= messages => *self = runs,
                _ => low = middle,
            }
        }
        Ok(())
    }

    /// Returns the segment before the last one returned. Its rows are not parsed.
    pub(super) fn next(&mut self) -> Result<Option<TranscriptSegment>, DiskError> {
        if self.is_done {
            return Ok(None);
        }
        let (end, forked_at) = (self.end, self.forked_at.take());
        if let Some((start, before)) = self.next_count(0)? {
            return Ok(Some(TranscriptSegment {
                start,
                end,
                messages_before: before,
                is_heeler_run: true,
                forked_at,
            }));
        }
        self.is_done = true;
        Ok((end > 0).then_some(TranscriptSegment {
            start: 0,
            end,
            messages_before: 0,
            is_heeler_run: false,
            forked_at,
        }))
    }

    /// Searches backward for the next row, at or after `low`, that records a count; returns its
    /// offset and the count.
    fn next_count(&mut self, low: u64) -> Result<Option<(u64, u64)>, DiskError> {
        let needle = format!("\"{PRIOR_COUNTS_KEY}\"");
        let counts = memmem::Finder::new(&needle);
        while let Some(line) = self.lines.next_line()?.filter(|line| line.offset >= low) {
            if counts.find(line.bytes).is_none() {
                continue;
            }
            for record in line.records().iter().rev() {
                let Some(row) = parse_row(&record.text) else { continue };
                let Some(counted) = parse_prior_counts(&row) else { continue };
                (self.end, self.is_done) = (line.offset, line.offset == 0);
                self.forked_at = uuid(&row["forkedFrom"]["messageUuid"]);
                return Ok(Some((line.offset, counted.messages)));
            }
        }
        Ok(None)
    }

    /// Finds the messages of a segment.
    pub(super) fn message_positions(
        &self,
        run: &TranscriptSegment,
    ) -> Result<Vec<MessagePosition>, DiskError> {
        let mut walk = SegmentParser {
            count: MessageCounter::starting_at(run.messages_before),
            positions: Vec::new(),
        };
        for entry in TranscriptScanner::open_at(self.log, run.start)? {
            // Damaged lines were reported when the transcript was repaired.
            let TranscriptEntry::Record(record) = entry? else { continue };
            if record.offset >= run.end {
                break;
            }
            walk.record(&record);
        }
        let mut marks = walk.positions;
        if let Some(last) = marks.last_mut()
            && run.forked_at.is_some()
            && run.forked_at == last.uuid
        {
            last.ends_turn = true;
        }
        if !run.is_heeler_run {
            // The next prompt ends a turn.
            let mut next = HistoryRole::User;
            for mark in marks.iter_mut().rev() {
                mark.ends_turn |= next == HistoryRole::User;
                next = mark.role;
            }
        }
        Ok(marks)
    }
}

/// Numbers the rows of a segment.
struct SegmentParser {
    count: MessageCounter,
    positions: Vec<MessagePosition>,
}

impl SegmentParser {
    fn record(&mut self, record: &TranscriptRecord) {
        let Some(row) = snapshot_row(&record.text) else { return };
        if self.count.count_row(row.as_json()) {
            self.begin(record, &row);
            return;
        }
        let Some(last) = self.positions.last_mut() else { return };
        match RowRelation::read(&row) {
            RowRelation::Message => last.add_row(record, &row),
            RowRelation::ToolResults => last.grows(record),
            RowRelation::TurnEnd => (last.ends_turn, last.end) = (true, record.next),
            RowRelation::Snapshot => self.snapshot(record, &row),
            RowRelation::Error => last.rows_end = record.next,
            RowRelation::Unrelated => {}
        }
    }

    fn begin(&mut self, record: &TranscriptRecord, row: &JobRow) {
        let is_user = row.kind() == JobRowKind::User;
        let mut mark = MessagePosition {
            number: self.count.messages(),
            role: if is_user { HistoryRole::User } else { HistoryRole::Assistant },
            start: record.offset,
            first: row.uuid(),
            uuid: None,
            end: record.next,
            rows_end: record.next,
            bytes: 0,
            snapshot: None,
            calls_tools: false,
            ends_turn: false,
        };
        mark.add_row(record, row);
        self.positions.push(mark);
    }

    fn snapshot(&mut self, record: &TranscriptRecord, row: &JobRow) {
        // The snapshot before the first turn belongs to no message.
        if is_initial_snapshot(row) {
            return;
        }
        let Some(note) = read_snapshot(&row.as_json()["snapshot"]) else { return };
        let named = uuid(&row.as_json()["messageUuid"]);
        let recent = self.positions.len().saturating_sub(SNAPSHOT_LATE_MAX);
        let mut recent = self.positions[recent..].iter_mut().rev().enumerate();
        let found = recent.find(|(_, mark)| named.is_none() || mark.uuid == named);
        let Some((behind, mark)) = found else { return };
        mark.snapshot = Some(note);
        if behind == 0 {
            mark.end = record.next;
        }
    }
}

impl MessagePosition {
    /// Adds a row of the message.
    fn add_row(&mut self, record: &TranscriptRecord, row: &JobRow) {
        self.grows(record);
        self.uuid = row.uuid();
        self.end = record.next;
        self.ends_turn = false;
        let blocks = content_blocks(envelope_content(row.as_json()));
        self.calls_tools |= blocks.iter().any(|it| matches!(it, ContentBlock::ToolCall { .. }));
    }

    fn grows(&mut self, record: &TranscriptRecord) {
        self.rows_end = record.next;
        self.bytes += record.text.len();
    }
}

/// Parses the fields that are needed of a row.
pub(super) fn snapshot_row(text: &str) -> Option<JobRow> {
    parse_selected(text.as_bytes(), &ROW).map(JobRow::new)
}

/// Classifies a row that does not begin a message.
pub(super) fn row_relation(text: &str) -> RowRelation {
    snapshot_row(text).map_or(RowRelation::Unrelated, |row| RowRelation::read(&row))
}

/// Relation of a row that does not begin a message to the message before it.
pub(super) enum RowRelation {
    /// Part of the message.
    Message,
    /// Results of the message's tool calls.
    ToolResults,
    /// The end of its turn.
    TurnEnd,
    /// Snapshot of the files at the end of the turn.
    Snapshot,
    /// Failure that was reported after the message.
    Error,
    /// Not part of the conversation.
    Unrelated,
}

impl RowRelation {
    pub(super) fn read(row: &JobRow) -> RowRelation {
        match row.kind() {
            JobRowKind::Assistant if row.is_reported_error() => RowRelation::Error,
            _ if row.is_aside() => RowRelation::Unrelated,
            JobRowKind::Assistant if row.has_envelope() => RowRelation::Message,
            JobRowKind::User => RowRelation::ToolResults,
            JobRowKind::TurnResult(_) => RowRelation::TurnEnd,
            JobRowKind::System { subtype: "snapshot" } => RowRelation::Snapshot,
            _ => RowRelation::Unrelated,
        }
    }
}

/// Returns true if a snapshot shows the files before the first turn.
pub(super) fn is_initial_snapshot(row: &JobRow) -> bool {
    row.as_json()["snapshot"][BEGINNING_KEY] == Json::Bool(true)
}

/// A snapshot in the format of a transcript row.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawTranscriptSnapshot {
    commit: String,
    base: Option<String>,
    branch: Option<String>,
    repository: String,
    top: Utf8PathBuf,
    #[serde(default)]
    cwd: Utf8PathBuf,
    #[serde(default)]
    left_out: Vec<Json>,
    #[serde(default)]
    others: Vec<String>,
}

/// Reads a snapshot. One with an invalid commit id or directory name comes from foreign state
/// and is rejected.
pub(super) fn read_snapshot(value: &Json) -> Option<TranscriptSnapshot> {
    let raw = RawTranscriptSnapshot::deserialize(value).ok()?;
    let is_commit = |text: &str| {
        matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let is_sound = is_commit(&raw.commit)
        && raw.base.as_deref().is_none_or(is_commit)
        && validate_id(&raw.repository).is_ok();
    is_sound.then_some(TranscriptSnapshot {
        commit: raw.commit,
        base: raw.base,
        branch: raw.branch,
        repository: raw.repository,
        top: raw.top,
        cwd: raw.cwd,
        left_out: raw.left_out,
        others: raw.others,
    })
}
