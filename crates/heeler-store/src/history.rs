//! The messages of a session, numbered as `--at-message` takes them, and where it can be cut.
//!
//! Reads our log of the session from its end, only as far as it must: rows that count those before
//! them give the numbers. What the model remembers is in the agent's own file, which is walked from
//! its end along the chain of its entries. Both are only read, and may be torn, hostile or gone.
//! Start at [`history`].

mod chain;
mod fields;
mod marks;
mod page;
mod snapshots;

use std::collections::{HashSet, VecDeque};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::DiskError;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value as Json;
use thiserror::Error;
use uuid::Uuid;

pub(crate) use self::chain::{Chain, end_of_entry};
use self::marks::{Mark, Runs};
use self::page::Around;
pub use self::snapshots::{NotedSnapshot, snapshots};

/// Who says a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Whoever prompts the agent.
    User,
    /// The agent.
    Assistant,
}

/// Whether a session can be forked behind a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
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
pub struct SnapshotNote {
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
    pub role: Role,
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
    pub cut: Cut,
    /// Whether the agent remembers it; true where that is not known.
    pub in_context: bool,
    /// The state of the files behind it.
    pub snapshot: Option<SnapshotNote>,
}

/// A page of messages.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    /// Oldest first.
    pub messages: Vec<HistoryMessage>,
    /// How many the session has.
    pub total: u64,
}

/// Where a fork is cut.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundCut {
    /// The message that was asked for.
    pub asked: Option<u64>,
    /// The message at whose end the cut is.
    pub number: u64,
    /// Its last entry.
    pub uuid: Uuid,
    /// Where its turn ends in our log: behind the entry, its result and its snapshot. No message
    /// begins in between.
    pub end: u64,
    /// The state of the files there.
    pub snapshot: Option<SnapshotNote>,
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
pub enum CutError {
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
    NoneSafe {
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

const GONE: Cut = Cut::Unsafe("the agent's own record of the session is gone");
const FORGOTTEN: Cut = Cut::Unsafe("the agent does not remember it");

/// Returns the last `count` messages before message number `before`; up to the end if left out.
///
/// `own` is the agent's own file of the session, if it keeps one.
pub fn history(
    log: &Utf8Path,
    own: Option<&Utf8Path>,
    before: Option<u64>,
    count: usize,
) -> Result<History, HistoryError> {
    read_history(log, own, before, Room { messages: count, bytes: HISTORY_BYTES_MAX })
}

/// How much a page holds.
#[derive(Debug, Clone, Copy)]
struct Room {
    messages: usize,
    bytes: usize,
}

fn read_history(
    log: &Utf8Path,
    own: Option<&Utf8Path>,
    before: Option<u64>,
    room: Room,
) -> Result<History, HistoryError> {
    let mut runs = Runs::of(log)?;
    let mut total = None;
    let mut marks = VecDeque::new();
    let mut behind = None;
    while let Some(run) = runs.next()? {
        // Of runs that are behind the page, only the newest is parsed: for the number of messages.
        if total.is_some() && before.is_some_and(|before| run.before.saturating_add(1) >= before) {
            continue;
        }
        let mut found = runs.marks(&run)?;
        if total.is_none() {
            total = Some(found.last().map_or(run.before, |mark| mark.number));
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
        let around = Around { older: &older, behind: behind.as_ref() };
        page::compare(own, &mut messages, &around)?;
    }
    Ok(History { messages, total: total.unwrap_or(0) })
}

/// Returns from which message on there is room for all.
fn page_start(marks: &[Mark], room: Room) -> usize {
    let first = marks.len().saturating_sub(room.messages);
    let mut bytes = 0;
    let fits = |mark: &&Mark| {
        let is_first = bytes == 0;
        bytes += mark.bytes;
        is_first || bytes <= room.bytes
    };
    marks.len() - marks[first..].iter().rev().take_while(fits).count()
}

/// Finds where to cut for a fork at a message: behind it, or behind the nearest one before it where
/// that is safe; the last safe one if `at` is left out.
pub fn find_cut(
    log: &Utf8Path,
    own: Option<&Utf8Path>,
    at: Option<u64>,
) -> Result<FoundCut, CutError> {
    let mut memory = Memory::open(own)?;
    let mut runs = Runs::of(log).map_err(HistoryError::from)?;
    let mut is_newest = true;
    let mut reason = None;
    while let Some(run) = runs.next().map_err(HistoryError::from)? {
        let can_hold_it = at.is_none_or(|at| run.before < at);
        if !is_newest && !can_hold_it {
            continue;
        }
        let marks = runs.marks(&run).map_err(HistoryError::from)?;
        if is_newest {
            let total = marks.last().map_or(run.before, |mark| mark.number);
            if let Some(asked) = at.filter(|&at| at == 0 || at > total) {
                return Err(CutError::NoMessage { asked, total });
            }
            at.map_or(Ok(()), |at| runs.skip_from(at)).map_err(HistoryError::from)?;
            is_newest = false;
        }
        for mark in marks.into_iter().rev().filter(|mark| at.is_none_or(|at| mark.number <= at)) {
            match (memory.allows(&mark)?, mark.uuid) {
                (Cut::Safe, Some(uuid)) => {
                    let Mark { number, end, snapshot, .. } = mark;
                    return Ok(FoundCut { asked: at, number, uuid, end, snapshot });
                }
                (Cut::Unsafe(why), _) => reason = reason.or(Some(why)),
                (Cut::Safe, None) => {}
            }
        }
    }
    Err(CutError::NoneSafe { asked: at, reason: reason.unwrap_or("it has no messages") })
}

/// What the agent remembers, as far as that was asked for.
enum Memory {
    /// Nobody knows.
    Unknown,
    /// Nothing.
    Gone,
    /// These entries, and those that the chain has yet to show.
    Known(Box<Chain>, HashSet<Uuid>),
}

impl Memory {
    fn open(own: Option<&Utf8Path>) -> Result<Memory, HistoryError> {
        let Some(own) = own else { return Ok(Memory::Unknown) };
        let chain = Chain::open(own)?;
        Ok(chain.map_or(Memory::Gone, |chain| Memory::Known(Box::new(chain), HashSet::new())))
    }

    /// Says whether a cut behind a message is safe.
    fn allows(&mut self, mark: &Mark) -> Result<Cut, HistoryError> {
        let (Cut::Safe, Some(uuid)) = (mark.cut(), mark.uuid) else { return Ok(mark.cut()) };
        match self {
            Memory::Unknown => Ok(Cut::Safe),
            Memory::Gone => Ok(GONE),
            Memory::Known(chain, met) => {
                while !met.contains(&uuid) {
                    let Some(entry) = chain.next()? else { return Ok(FORGOTTEN) };
                    met.insert(entry);
                }
                Ok(Cut::Safe)
            }
        }
    }
}

#[cfg(test)]
mod tests;
