//! Where the messages of a log are, and what their numbers are: from the end, a run at a time.
//!
//! A run begins with a row that says how many messages there were before it, so that only the runs
//! that are asked for are parsed. Of a log without such rows, all of it is. Start at [`TranscriptSegments`].

use camino::{Utf8Path, Utf8PathBuf};
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

use super::native_chain::uuid;
use super::{ForkSafety, HistoryRole, TranscriptSnapshot};
use crate::json_selector::{JsonSelector, parse_selected};

/// How many messages back the one is looked for that a snapshot names: prompts may have been sent
/// meanwhile.
const SNAPSHOT_LATE_MAX: usize = 8;

/// Less of a log than this is walked.
const SKIPPED_BYTES_MIN: u64 = if cfg!(test) { 1024 } else { 1024 * 1024 };

const BLOCK: JsonSelector = JsonSelector::Fields(&[("type", JsonSelector::Scalar)]);

/// What is needed of a row to number and mark it.
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

/// A message and where it stands.
#[derive(Debug, Clone)]
pub(super) struct MessagePosition {
    pub(super) number: u64,
    pub(super) role: HistoryRole,
    /// Where its first row is.
    pub(super) start: u64,
    /// Its first row's id: whoever remembers any row of it remembers that.
    pub(super) first: Option<Uuid>,
    /// Its last row's id.
    pub(super) uuid: Option<Uuid>,
    /// Where its turn ends: behind its last row, its result and its snapshot.
    pub(super) end: u64,
    /// The end of its last row, or of the last one of its tools.
    pub(super) rows_end: u64,
    /// How much text those rows have.
    pub(super) bytes: usize,
    pub(super) snapshot: Option<TranscriptSnapshot>,
    calls_tools: bool,
    ends_turn: bool,
}

impl MessagePosition {
    /// Says whether our log allows a cut behind it.
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

/// The rows between two that count those before them.
#[derive(Debug, Clone, Copy)]
pub(super) struct TranscriptSegment {
    start: u64,
    end: u64,
    /// How many messages are before it.
    pub(super) messages_before: u64,
    /// Whether it is one of ours: others do not say where their turns end.
    is_heeler_run: bool,
    /// The last entry of what the next run has from another session.
    forked_at: Option<Uuid>,
}

/// The runs of a log, newest first.
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

    /// Passes over runs that have so many messages before them, or more: by halves, since the counts of a
    /// log only grow. At most as much is read as by walking.
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

    /// Returns the run before the last one returned. Its rows are not parsed.
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

    /// Walks back to the next row at or behind `low` that counts; returns where it is, and its count.
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

    /// Finds the messages of a run.
    pub(super) fn message_positions(
        &self,
        run: &TranscriptSegment,
    ) -> Result<Vec<MessagePosition>, DiskError> {
        let mut walk = SegmentParser {
            count: MessageCounter::starting_at(run.messages_before),
            positions: Vec::new(),
        };
        for entry in TranscriptScanner::open_at(self.log, run.start)? {
            // What is no record was reported when the log was repaired.
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
            // A turn is over when the next prompt comes.
            let mut next = HistoryRole::User;
            for mark in marks.iter_mut().rev() {
                mark.ends_turn |= next == HistoryRole::User;
                next = mark.role;
            }
        }
        Ok(marks)
    }
}

/// Numbers the rows of a run.
struct SegmentParser {
    count: MessageCounter,
    positions: Vec<MessagePosition>,
}

impl SegmentParser {
    fn record(&mut self, record: &TranscriptRecord) {
        let Some(row) = parse_selected(record.text.as_bytes(), &ROW) else { return };
        if self.count.count_row(&row) {
            self.begin(record, &row);
            return;
        }
        let Some(last) = self.positions.last_mut() else { return };
        match RowRelation::read(&row) {
            RowRelation::Message => last.add_row(record, &row),
            RowRelation::ToolResults => last.grows(record),
            RowRelation::TurnEnd => (last.ends_turn, last.end) = (true, record.next),
            RowRelation::Snapshot => self.snapshot(record, &row),
            RowRelation::Unrelated => {}
        }
    }

    fn begin(&mut self, record: &TranscriptRecord, row: &Json) {
        let is_user = row["type"] == "user";
        let mut mark = MessagePosition {
            number: self.count.messages(),
            role: if is_user { HistoryRole::User } else { HistoryRole::Assistant },
            start: record.offset,
            first: uuid(&row["uuid"]),
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

    fn snapshot(&mut self, record: &TranscriptRecord, row: &Json) {
        // What the files were before the first turn is behind no message.
        if is_initial_snapshot(row) {
            return;
        }
        let Some(note) = read_snapshot(&row["snapshot"]) else { return };
        let named = uuid(&row["messageUuid"]);
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
    /// Takes a row of the message.
    fn add_row(&mut self, record: &TranscriptRecord, row: &Json) {
        self.grows(record);
        self.uuid = uuid(&row["uuid"]);
        self.end = record.next;
        self.ends_turn = false;
        let blocks = row["message"]["content"].as_array().map_or(&[][..], Vec::as_slice);
        self.calls_tools |= blocks.iter().any(|block| block["type"] == "tool_use");
    }

    fn grows(&mut self, record: &TranscriptRecord) {
        self.rows_end = record.next;
        self.bytes += record.text.len();
    }
}

/// Reads what is needed of a row.
pub(super) fn snapshot_row(text: &str) -> Option<Json> {
    parse_selected(text.as_bytes(), &ROW)
}

/// Says what a row that begins no message is part of.
pub(super) fn row_relation(text: &str) -> RowRelation {
    parse_selected(text.as_bytes(), &ROW)
        .map_or(RowRelation::Unrelated, |row| RowRelation::read(&row))
}

/// What a row that begins no message is part of.
pub(super) enum RowRelation {
    /// The message before it.
    Message,
    /// What the message's tools gave.
    ToolResults,
    /// The end of its turn.
    TurnEnd,
    /// The state of the files at that end.
    Snapshot,
    /// Something beside the conversation.
    Unrelated,
}

impl RowRelation {
    pub(super) fn read(row: &Json) -> RowRelation {
        let is_apart = |key: &str| row[key] == Json::Bool(true);
        if is_apart("isSidechain")
            || is_apart("isApiErrorMessage")
            || !row["parent_tool_use_id"].is_null()
        {
            return RowRelation::Unrelated;
        }
        match (row["type"].as_str(), row["subtype"].as_str()) {
            (Some("assistant"), _) if row["message"].is_object() => RowRelation::Message,
            (Some("user"), _) => RowRelation::ToolResults,
            (Some("result"), _) => RowRelation::TurnEnd,
            (Some("system"), Some("snapshot")) => RowRelation::Snapshot,
            _ => RowRelation::Unrelated,
        }
    }
}

/// Says whether a snapshot is of the files before the first turn.
pub(super) fn is_initial_snapshot(row: &Json) -> bool {
    row["snapshot"][BEGINNING_KEY] == Json::Bool(true)
}

/// A snapshot as a row has it.
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

/// Reads a snapshot. One whose names cannot be those of a commit and of a folder came with somebody
/// else's state.
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
