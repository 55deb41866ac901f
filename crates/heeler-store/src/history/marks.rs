//! Where the messages of a log are, and what their numbers are: from the end, a run at a time.
//!
//! A run begins with a row that says how many messages there were before it, so that only the runs
//! that are asked for are parsed. Of a log without such rows, all of it is. Start at [`Runs`].

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::message::read_row;
use heeler_model::record::{BEFORE_KEY, BEGINNING_KEY, MessageCount, counted_before};
use heeler_transcript::{DiskError, Entry, LinesBack, Record, Scan, checked_id};
use memchr::memmem;
use serde::Deserialize;
use serde_json::Value as Json;
use uuid::Uuid;

use super::chain::uuid;
use super::{Cut, Role, SnapshotNote};
use crate::skim::{Keep, skim};

/// How many messages back the one is looked for that a snapshot names: prompts may have been sent
/// meanwhile.
const SNAPSHOT_LATE_MAX: usize = 8;

/// Less of a log than this is walked.
const SKIPPED_BYTES_MIN: u64 = if cfg!(test) { 1024 } else { 1024 * 1024 };

const BLOCK: Keep = Keep::Fields(&[("type", Keep::Word)]);

/// What is needed of a row to number and mark it.
const ROW: Keep = Keep::Fields(&[
    ("type", Keep::Word),
    ("subtype", Keep::Word),
    ("uuid", Keep::Word),
    ("isSidechain", Keep::Word),
    ("isApiErrorMessage", Keep::Word),
    ("parent_tool_use_id", Keep::Word),
    ("message", Keep::Fields(&[("id", Keep::Word), ("content", Keep::Items(&BLOCK))])),
    (BEFORE_KEY, Keep::All),
    ("snapshot", Keep::All),
    ("messageUuid", Keep::Word),
    ("sessionId", Keep::Word),
]);

/// A message and where it stands.
#[derive(Debug, Clone)]
pub(super) struct Mark {
    pub(super) number: u64,
    pub(super) role: Role,
    /// Where its first row is.
    pub(super) start: u64,
    /// Its first row's id: whoever remembers any row of it remembers that.
    pub(super) first: Option<Uuid>,
    /// Its last row's id.
    pub(super) uuid: Option<Uuid>,
    /// Where its turn ends: behind its last row, its result and its snapshot.
    pub(super) end: u64,
    /// The end of its last row, or of the last one of its tools.
    pub(super) until: u64,
    /// How much text those rows have.
    pub(super) bytes: usize,
    pub(super) snapshot: Option<SnapshotNote>,
    calls_tools: bool,
    is_turns_end: bool,
}

impl Mark {
    /// Says whether our log allows a cut behind it.
    pub(super) fn cut(&self) -> Cut {
        match self {
            Mark { role: Role::User, .. } => Cut::Unsafe("it is a prompt without its answer"),
            Mark { calls_tools: true, .. } => Cut::Unsafe("it calls a tool"),
            Mark { is_turns_end: false, .. } => Cut::Unsafe("it does not end a turn"),
            Mark { uuid: None, .. } => Cut::Unsafe("it has no id"),
            _ => Cut::Safe,
        }
    }
}

/// The rows between two that count those before them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    start: u64,
    end: u64,
    /// How many messages are before it.
    pub(super) before: u64,
    /// Whether it is one of ours: others do not say where their turns end.
    is_ours: bool,
    /// The last entry of what the next run has from another session.
    forked_at: Option<Uuid>,
}

/// The runs of a log, newest first.
pub(super) struct Runs<'l> {
    log: &'l Utf8Path,
    lines: LinesBack,
    end: u64,
    forked_at: Option<Uuid>,
    is_done: bool,
}

impl<'l> Runs<'l> {
    pub(super) fn of(log: &'l Utf8Path) -> Result<Runs<'l>, DiskError> {
        Runs::before(log, u64::MAX)
    }

    fn before(log: &'l Utf8Path, end: u64) -> Result<Runs<'l>, DiskError> {
        let lines = LinesBack::open_before(log, end)?;
        Ok(Runs { log, lines, end, forked_at: None, is_done: false })
    }

    /// Passes over runs that have so many messages before them, or more: by halves, since the counts of a
    /// log only grow. At most as much is read as by walking.
    pub(super) fn skip_from(&mut self, messages: u64) -> Result<(), DiskError> {
        let mut low = 0;
        while !self.is_done && self.end - low > SKIPPED_BYTES_MIN && self.end < u64::MAX {
            let middle = low + (self.end - low) / 2;
            let mut runs = Runs::before(self.log, middle)?;
            match runs.next_count(low)? {
                Some((_, before)) if before >= messages => *self = runs,
                _ => low = middle,
            }
        }
        Ok(())
    }

    /// Returns the run before the last one returned. Its rows are not parsed.
    pub(super) fn next(&mut self) -> Result<Option<Run>, DiskError> {
        if self.is_done {
            return Ok(None);
        }
        let (end, forked_at) = (self.end, self.forked_at.take());
        if let Some((start, before)) = self.next_count(0)? {
            return Ok(Some(Run { start, end, before, is_ours: true, forked_at }));
        }
        self.is_done = true;
        Ok((end > 0).then_some(Run { start: 0, end, before: 0, is_ours: false, forked_at }))
    }

    /// Walks back to the next row at or behind `low` that counts; returns where it is, and its count.
    fn next_count(&mut self, low: u64) -> Result<Option<(u64, u64)>, DiskError> {
        let needle = format!("\"{BEFORE_KEY}\"");
        let counts = memmem::Finder::new(&needle);
        while let Some(line) = self.lines.next_line()?.filter(|line| line.offset >= low) {
            if counts.find(line.bytes).is_none() {
                continue;
            }
            for record in line.records().iter().rev() {
                let Some(row) = read_row(&record.text) else { continue };
                let Some(counted) = counted_before(&row) else { continue };
                (self.end, self.is_done) = (line.offset, line.offset == 0);
                self.forked_at = uuid(&row["forkedFrom"]["messageUuid"]);
                return Ok(Some((line.offset, counted.messages)));
            }
        }
        Ok(None)
    }

    /// Finds the messages of a run.
    pub(super) fn marks(&self, run: &Run) -> Result<Vec<Mark>, DiskError> {
        let mut walk = Walk { count: MessageCount::after(run.before), marks: Vec::new() };
        for entry in Scan::open_at(self.log, run.start)? {
            // What is no record was reported when the log was repaired.
            let Entry::Record(record) = entry? else { continue };
            if record.offset >= run.end {
                break;
            }
            walk.record(&record);
        }
        let mut marks = walk.marks;
        if let Some(last) = marks.last_mut()
            && run.forked_at.is_some()
            && run.forked_at == last.uuid
        {
            last.is_turns_end = true;
        }
        if !run.is_ours {
            // A turn is over when the next prompt comes.
            let mut next = Role::User;
            for mark in marks.iter_mut().rev() {
                mark.is_turns_end |= next == Role::User;
                next = mark.role;
            }
        }
        Ok(marks)
    }
}

/// Numbers the rows of a run.
struct Walk {
    count: MessageCount,
    marks: Vec<Mark>,
}

impl Walk {
    fn record(&mut self, record: &Record) {
        let Some(row) = skim(record.text.as_bytes(), &ROW) else { return };
        if self.count.row(&row) {
            self.begin(record, &row);
            return;
        }
        let Some(last) = self.marks.last_mut() else { return };
        match PartOf::read(&row) {
            PartOf::Message => last.goes_on(record, &row),
            PartOf::Tools => last.grows(record),
            PartOf::End => (last.is_turns_end, last.end) = (true, record.next),
            PartOf::Snapshot => self.snapshot(record, &row),
            PartOf::Nothing => {}
        }
    }

    fn begin(&mut self, record: &Record, row: &Json) {
        let is_user = row["type"] == "user";
        let mut mark = Mark {
            number: self.count.messages(),
            role: if is_user { Role::User } else { Role::Assistant },
            start: record.offset,
            first: uuid(&row["uuid"]),
            uuid: None,
            end: record.next,
            until: record.next,
            bytes: 0,
            snapshot: None,
            calls_tools: false,
            is_turns_end: false,
        };
        mark.goes_on(record, row);
        self.marks.push(mark);
    }

    fn snapshot(&mut self, record: &Record, row: &Json) {
        // What the files were before the first turn is behind no message.
        if is_beginning(row) {
            return;
        }
        let Some(note) = read_snapshot(&row["snapshot"]) else { return };
        let named = uuid(&row["messageUuid"]);
        let recent = self.marks.len().saturating_sub(SNAPSHOT_LATE_MAX);
        let mut recent = self.marks[recent..].iter_mut().rev().enumerate();
        let found = recent.find(|(_, mark)| named.is_none() || mark.uuid == named);
        let Some((behind, mark)) = found else { return };
        mark.snapshot = Some(note);
        if behind == 0 {
            mark.end = record.next;
        }
    }
}

impl Mark {
    /// Takes a row of the message.
    fn goes_on(&mut self, record: &Record, row: &Json) {
        self.grows(record);
        self.uuid = uuid(&row["uuid"]);
        self.end = record.next;
        self.is_turns_end = false;
        let blocks = row["message"]["content"].as_array().map_or(&[][..], Vec::as_slice);
        self.calls_tools |= blocks.iter().any(|block| block["type"] == "tool_use");
    }

    fn grows(&mut self, record: &Record) {
        self.until = record.next;
        self.bytes += record.text.len();
    }
}

/// Reads what is needed of a row.
pub(super) fn snapshot_row(text: &str) -> Option<Json> {
    skim(text.as_bytes(), &ROW)
}

/// Says what a row that begins no message is part of.
pub(super) fn part_of(text: &str) -> PartOf {
    skim(text.as_bytes(), &ROW).map_or(PartOf::Nothing, |row| PartOf::read(&row))
}

/// What a row that begins no message is part of.
pub(super) enum PartOf {
    /// The message before it.
    Message,
    /// What the message's tools gave.
    Tools,
    /// The end of its turn.
    End,
    /// The state of the files at that end.
    Snapshot,
    /// Something beside the conversation.
    Nothing,
}

impl PartOf {
    pub(super) fn read(row: &Json) -> PartOf {
        let is_apart = |key: &str| row[key] == Json::Bool(true);
        if is_apart("isSidechain")
            || is_apart("isApiErrorMessage")
            || !row["parent_tool_use_id"].is_null()
        {
            return PartOf::Nothing;
        }
        match (row["type"].as_str(), row["subtype"].as_str()) {
            (Some("assistant"), _) if row["message"].is_object() => PartOf::Message,
            (Some("user"), _) => PartOf::Tools,
            (Some("result"), _) => PartOf::End,
            (Some("system"), Some("snapshot")) => PartOf::Snapshot,
            _ => PartOf::Nothing,
        }
    }
}

/// Says whether a snapshot is of the files before the first turn.
pub(super) fn is_beginning(row: &Json) -> bool {
    row["snapshot"][BEGINNING_KEY] == Json::Bool(true)
}

/// A snapshot as a row has it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSnapshot {
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
pub(super) fn read_snapshot(value: &Json) -> Option<SnapshotNote> {
    let raw = RawSnapshot::deserialize(value).ok()?;
    let is_commit = |text: &str| {
        matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let is_sound = is_commit(&raw.commit)
        && raw.base.as_deref().is_none_or(is_commit)
        && checked_id(&raw.repository).is_ok();
    is_sound.then_some(SnapshotNote {
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
