//! The messages of a session, numbered as `--at-message` takes them, and where it can be cut.
//!
//! Reads our log of the session from its end, only as far as it must: rows that count those before
//! them give the numbers. What the model remembers is in the agent's own file, which is walked from
//! its end along the chain of its entries. Both are only read, and may be torn, hostile or gone.
//! Start at [`load_history`].

mod json_fields;
mod native_chain;
mod page;
mod segments;
mod snapshots;

use std::collections::{HashSet, VecDeque};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::DiskError;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value as Json;
use thiserror::Error;
use uuid::Uuid;

pub(crate) use self::native_chain::{NativeEntryChain, end_of_entry};
use self::page::AdjacentMessages;
use self::segments::{MessagePosition, TranscriptSegments};
pub use self::snapshots::{TranscriptSnapshotEntry, snapshots};

/// Who says a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HistoryRole {
    /// Whoever prompts the agent.
    User,
    /// The agent.
    Assistant,
}

/// Whether a session can be forked behind a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkSafety {
    /// It can.
    Safe,
    /// It cannot, and why.
    Unsafe(&'static str),
}

/// A tool that a message calls.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolCall {
    /// The call's own id.
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// What it was given.
    pub input: Json,
    /// What it gave, if that is on record.
    pub result: Option<ToolResult>,
}

/// What a tool gave.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolResult {
    /// As the agent got it: a text or blocks.
    pub content: Json,
    /// Whether it failed.
    #[serde(rename = "isError")]
    pub is_error: bool,
}

/// The state of the files when a turn had ended, as a row of the log notes it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TranscriptSnapshot {
    /// The commit, in hexadecimal.
    pub commit: String,
    /// The commit of the user's that it is based on.
    pub base: Option<String>,
    /// The branch that was checked out.
    pub branch: Option<String>,
    /// The name of its repository's folder in `workspaces`.
    pub repository: String,
    /// The top of the work tree.
    pub top: Utf8PathBuf,
    /// Where the agent worked, relative to the top.
    pub cwd: Utf8PathBuf,
    /// What the snapshot does not hold.
    pub left_out: Vec<Json>,
    /// The other jobs that were at work in the same directory.
    pub others: Vec<String>,
}

/// One message of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryMessage {
    /// Its number, from 1.
    pub number: u64,
    /// Whose it is.
    pub role: HistoryRole,
    /// The id of its last row: where a fork is cut.
    pub uuid: Option<Uuid>,
    /// When its first row was written.
    pub at: Option<Timestamp>,
    /// Its rows as they are stored, without those of tools.
    pub rows: Vec<Json>,
    /// The tools that it calls.
    pub tools: Vec<ToolCall>,
    /// How many of its rows are not here, since a page has an end: [`HISTORY_BYTES_MAX`].
    pub left_out: u64,
    /// Whether a fork can be cut behind it.
    pub fork_safety: ForkSafety,
    /// Whether the agent remembers it; true where that is not known.
    pub in_context: bool,
    /// The state of the files behind it.
    pub snapshot: Option<TranscriptSnapshot>,
}

/// A page of messages.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryPage {
    /// Oldest first.
    pub messages: Vec<HistoryMessage>,
    /// How many the session has.
    pub total: u64,
}

/// Where a fork is cut.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedForkPoint {
    /// The message that was asked for.
    pub requested: Option<u64>,
    /// The message at whose end the cut is.
    pub number: u64,
    /// Its last entry.
    pub uuid: Uuid,
    /// Where its turn ends in our log: behind the entry, its result and its snapshot. No message
    /// begins in between.
    pub end: u64,
    /// The state of the files there.
    pub snapshot: Option<TranscriptSnapshot>,
}

/// A page ends early before a message whose rows would bring it above this size, and of one that is
/// larger by itself the last rows are left out.
pub const HISTORY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Why messages cannot be read.
#[derive(Debug, Error)]
pub enum HistoryError {
    /// A file operation failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Why a session cannot be cut.
#[derive(Debug, Error)]
pub enum ForkPointError {
    /// Its log cannot be read.
    #[error(transparent)]
    Read(#[from] HistoryError),
    /// It has no such message.
    #[error("there is no message {asked}: the session has {total}")]
    NoMessage {
        /// The message that was asked for.
        asked: u64,
        /// How many there are.
        total: u64,
    },
    /// No message up to there ends a turn that the agent remembers.
    #[error(
        "{} cannot be cut off: {reason}; `session show --history` marks where it can",
        where_asked(*asked)
    )]
    NoSafePoint {
        /// The message that was asked for.
        asked: Option<u64>,
        /// Why the last one before it is no place for a cut.
        reason: &'static str,
    },
}

fn where_asked(asked: Option<u64>) -> String {
    match asked {
        Some(asked) => format!("the session up to message {asked}"),
        None => "the session".to_owned(),
    }
}

const NATIVE_FILE_MISSING: ForkSafety =
    ForkSafety::Unsafe("the agent's own record of the session is gone");
const NOT_IN_CONTEXT: ForkSafety = ForkSafety::Unsafe("the agent does not remember it");

/// Returns the last `count` messages before message number `before`; up to the end if left out.
///
/// `own` is the agent's own file of the session, if it keeps one.
pub fn load_history(
    log: &Utf8Path,
    own: Option<&Utf8Path>,
    before: Option<u64>,
    count: usize,
) -> Result<HistoryPage, HistoryError> {
    load_history_page(
        log,
        own,
        before,
        HistoryPageLimits { messages: count, bytes: HISTORY_BYTES_MAX },
    )
}

/// How much a page holds.
#[derive(Debug, Clone, Copy)]
struct HistoryPageLimits {
    messages: usize,
    bytes: usize,
}

fn load_history_page(
    log: &Utf8Path,
    own: Option<&Utf8Path>,
    before: Option<u64>,
    room: HistoryPageLimits,
) -> Result<HistoryPage, HistoryError> {
    let mut runs = TranscriptSegments::open(log)?;
    let mut total = None;
    let mut marks = VecDeque::new();
    let mut behind = None;
    while let Some(run) = runs.next()? {
        // Of runs that are behind the page, only the newest is parsed: for the number of messages.
        if total.is_some()
            && before.is_some_and(|before| run.messages_before.saturating_add(1) >= before)
        {
            continue;
        }
        let mut found = runs.message_positions(&run)?;
        if total.is_none() {
            total = Some(found.last().map_or(run.messages_before, |mark| mark.number));
            before.map_or(Ok(()), |before| runs.skip_from(before.saturating_sub(1)))?;
        }
        if let Some(before) = before {
            let end = found.partition_point(|mark| mark.number < before);
            behind = found.drain(end..).next().or(behind);
        }
        found.into_iter().rev().for_each(|mark| marks.push_front(mark));
        if marks.len() >= room.messages {
            break;
        }
    }
    let mut older = Vec::from(marks);
    let page = older.split_off(page_start(&older, room));
    let mut messages = page::read(log, &page, room.bytes)?;
    if let Some(own) = own {
        let around = AdjacentMessages { older: &older, next: behind.as_ref() };
        page::mark_context(own, &mut messages, &around)?;
    }
    Ok(HistoryPage { messages, total: total.unwrap_or(0) })
}

/// Returns from which message on there is room for all.
fn page_start(marks: &[MessagePosition], room: HistoryPageLimits) -> usize {
    let first = marks.len().saturating_sub(room.messages);
    let mut bytes = 0;
    let fits = |mark: &&MessagePosition| {
        let is_first = bytes == 0;
        bytes += mark.bytes;
        is_first || bytes <= room.bytes
    };
    marks.len() - marks[first..].iter().rev().take_while(fits).count()
}

/// Finds where to cut for a fork at a message: behind it, or behind the nearest one before it where
/// that is safe; the last safe one if `at` is left out.
pub fn find_fork_point(
    log: &Utf8Path,
    own: Option<&Utf8Path>,
    at: Option<u64>,
) -> Result<ResolvedForkPoint, ForkPointError> {
    let mut memory = NativeContext::open(own)?;
    let mut runs = TranscriptSegments::open(log).map_err(HistoryError::from)?;
    let mut is_newest = true;
    let mut reason = None;
    while let Some(run) = runs.next().map_err(HistoryError::from)? {
        let can_hold_it = at.is_none_or(|at| run.messages_before < at);
        if !is_newest && !can_hold_it {
            continue;
        }
        let marks = runs.message_positions(&run).map_err(HistoryError::from)?;
        if is_newest {
            let total = marks.last().map_or(run.messages_before, |mark| mark.number);
            if let Some(asked) = at.filter(|&at| at == 0 || at > total) {
                return Err(ForkPointError::NoMessage { asked, total });
            }
            at.map_or(Ok(()), |at| runs.skip_from(at)).map_err(HistoryError::from)?;
            is_newest = false;
        }
        for mark in marks.into_iter().rev().filter(|mark| at.is_none_or(|at| mark.number <= at)) {
            match (memory.fork_safety_at(&mark)?, mark.uuid) {
                (ForkSafety::Safe, Some(uuid)) => {
                    let MessagePosition { number, end, snapshot, .. } = mark;
                    return Ok(ResolvedForkPoint { requested: at, number, uuid, end, snapshot });
                }
                (ForkSafety::Unsafe(why), _) => reason = reason.or(Some(why)),
                (ForkSafety::Safe, None) => {}
            }
        }
    }
    Err(ForkPointError::NoSafePoint { asked: at, reason: reason.unwrap_or("it has no messages") })
}

/// What the agent remembers, as far as that was asked for.
enum NativeContext {
    /// Nobody knows.
    Unknown,
    /// Nothing.
    Missing,
    /// These entries, and those that the chain has yet to show.
    Loaded(Box<NativeEntryChain>, HashSet<Uuid>),
}

impl NativeContext {
    fn open(own: Option<&Utf8Path>) -> Result<NativeContext, HistoryError> {
        let Some(own) = own else { return Ok(NativeContext::Unknown) };
        let chain = NativeEntryChain::open(own)?;
        Ok(chain.map_or(NativeContext::Missing, |chain| {
            NativeContext::Loaded(Box::new(chain), HashSet::new())
        }))
    }

    /// Says whether a cut behind a message is safe.
    fn fork_safety_at(&mut self, mark: &MessagePosition) -> Result<ForkSafety, HistoryError> {
        let (ForkSafety::Safe, Some(uuid)) = (mark.fork_safety(), mark.uuid) else {
            return Ok(mark.fork_safety());
        };
        match self {
            NativeContext::Unknown => Ok(ForkSafety::Safe),
            NativeContext::Missing => Ok(NATIVE_FILE_MISSING),
            NativeContext::Loaded(chain, met) => {
                while !met.contains(&uuid) {
                    let Some(entry) = chain.next()? else { return Ok(NOT_IN_CONTEXT) };
                    met.insert(entry);
                }
                Ok(ForkSafety::Safe)
            }
        }
    }
}

#[cfg(test)]
mod tests;
