//! The messages of a session, numbered as `--at-message` expects, and the points at which it
//! can be forked.
//!
//! Reads the session's transcript from its end, and only as far as necessary: numbers come from
//! rows that record how many messages precede them. The model's context is in the native
//! session file, which is followed from its end along the chain of entries. Both files are read
//! only, and may be torn, hostile or missing. Start at [`load_history`].

mod conversation;
mod json_fields;
mod message;
mod native_chain;
mod page;
mod segments;
mod snapshots;

use std::collections::{HashSet, VecDeque};

use camino::Utf8Path;
use thiserror::Error;
use uuid::Uuid;

pub use self::conversation::{is_conversation_log, load_conversation_history};
pub use self::message::{
    ForkSafety, HistoryError, HistoryMessage, HistoryRole, ToolCall, ToolResult, TranscriptSnapshot,
};
use self::message::{NATIVE_FILE_MISSING, NOT_IN_CONTEXT};
pub(crate) use self::native_chain::{NativeEntryChain, end_of_entry};
use self::page::AdjacentMessages;
use self::segments::{MessagePosition, TranscriptSegments};
pub use self::snapshots::{TranscriptSnapshotEntry, snapshots};

#[derive(Debug, Clone, PartialEq)]
pub struct HistoryPage {
    pub messages: Vec<HistoryMessage>,
    /// Number of messages in the session.
    pub total: u64,
}

/// The point at which a session is forked.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedForkPoint {
    /// The message that was requested.
    pub requested: Option<u64>,
    /// The message after which the session is cut.
    pub number: u64,
    /// Id of that message's last entry.
    pub uuid: Uuid,
    /// Offset in the transcript at which the turn ends: after the entry, its result and its
    /// snapshot. No message begins in between.
    pub end: u64,
    /// Snapshot of the files at that point.
    pub snapshot: Option<TranscriptSnapshot>,
}

/// Size limit of a page. A page ends before a message that would exceed it; if one message
/// alone exceeds it, its last rows are omitted.
pub const HISTORY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Failure to find a fork point.
#[derive(Debug, Error)]
pub enum ForkPointError {
    #[error(transparent)]
    Read(#[from] HistoryError),
    #[error("there is no message {asked}: the session has {total}")]
    NoMessage {
        asked: u64,
        /// Number of messages in the session.
        total: u64,
    },
    /// No message up to the requested one ends a turn that is in the agent's context.
    #[error(
        "{} cannot be forked: {reason}; `session show --history` marks the possible fork points",
        where_asked(*asked)
    )]
    NoSafePoint {
        asked: Option<u64>,
        /// Reason why the last candidate is not a valid fork point.
        reason: &'static str,
    },
}

fn where_asked(asked: Option<u64>) -> String {
    match asked {
        Some(asked) => format!("the session up to message {asked}"),
        None => "the session".to_owned(),
    }
}

/// Returns the last `count` messages before message number `before`, or the last of all if
/// `before` is `None`.
///
/// `own` is the native session file, if the agent keeps one.
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

/// Limits of a page.
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
        // Of the segments after the page, only the newest is parsed, to get the total number of
        // messages.
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

/// Returns the index of the first message from which all later ones fit on the page.
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

/// Finds the fork point for a message: after it, or after the nearest earlier message that is
/// safe. Without `at`, it is the last safe message.
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

/// The agent's context, loaded on demand.
enum NativeContext {
    /// No native session file was given.
    Unknown,
    /// The native session file does not exist.
    Missing,
    /// The rest of the chain, and the entries read from it.
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

    /// Checks that the session can be forked after a message.
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
