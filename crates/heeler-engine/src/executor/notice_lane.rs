//! Sending of recorded notices, one message at a time for each channel.
//!
//! The threads never write the database: results go to the dispatcher. The next notice of a channel is
//! sent only after the result of the last one is recorded, so the notices of a channel stay in order and
//! none is sent twice by one daemon. Start at [`NoticeLane::run`].

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heeler_model::error_chain;
use heeler_store::{NoticeRecord, StoreReader};
use indexmap::IndexMap;
use jiff::{SignedDuration, Timestamp};

use crate::daemon_handle::DaemonHandle;
use crate::dispatch_input::DispatchInput;
use crate::fault::{self, FaultPoint};
use crate::fleet::EngineContext;
use crate::notices::{NoticeAttempt, attempt_notice};
use crate::setup::DaemonSetup;
use crate::thread_pool::{PoolQueue, PoolShutdown, ThreadPool};
use crate::work_limits::WorkSlots;

/// Number of channels that are used at the same time.
const CHANNELS_AT_ONCE: usize = 4;

/// Most waiting notices that are read at once. It is larger than the number that may wait.
const PAGE: usize = 2_000;

/// Most notices in one message.
const DIGEST_MAX: usize = 200;

/// Delay after the notices could not be read.
const READ_RETRY_DELAY: SignedDuration = SignedDuration::from_secs(5);

/// Threads and progress of notices.
#[derive(Debug)]
pub(super) struct NoticeLane {
    /// Reads what waits, and never sends, so that no channel delays it.
    reader: ThreadPool,
    senders: ThreadPool,
    fleet: EngineContext,
    dispatcher: DaemonHandle,
    /// A pass reads the notices when it starts, so one that waits is enough.
    passes: WorkSlots,
    progress: Arc<Mutex<NoticeProgress>>,
}

#[derive(Debug, Default)]
struct NoticeProgress {
    /// Channels with an attempt in progress.
    busy: HashSet<String>,
    /// The last attempt of each channel: its notices, each with the number of attempts before it. Until
    /// its result is recorded, the notices still have these numbers.
    attempted: HashMap<String, Vec<(String, i64)>>,
    /// Time at which the next notice is due.
    wake_at: Option<Timestamp>,
}

impl NoticeLane {
    pub(super) fn new(fleet: EngineContext, dispatcher: DaemonHandle) -> io::Result<NoticeLane> {
        // A call may take a minute. The next daemon repeats it.
        let abandon = PoolShutdown::Abandon;
        Ok(NoticeLane {
            reader: ThreadPool::new("heeler-notices", 1, abandon)?,
            senders: ThreadPool::new("heeler-notify", CHANNELS_AT_ONCE, abandon)?,
            fleet,
            dispatcher,
            passes: WorkSlots::new(1),
            progress: Arc::default(),
        })
    }
}

impl NoticeLane {
    /// Sends the recorded notices that are due.
    pub(super) fn run(&self, setup: Arc<DaemonSetup>) {
        let Some(claim) = self.passes.claim() else { return };
        let pass = NoticePass {
            progress: Arc::clone(&self.progress),
            senders: self.senders.queue(),
            fleet: self.fleet.clone(),
            dispatcher: self.dispatcher.clone(),
            setup,
        };
        self.reader.submit(move || {
            // A notice that is committed from here on needs a pass of its own.
            drop(claim);
            pass.run();
        });
    }

    /// Returns true once if a notice has become due.
    pub(super) fn take_due(&self) -> bool {
        let now = (self.fleet.now)();
        lock(&self.progress).wake_at.take_if(|at| *at <= now).is_some()
    }

    /// Returns the time at which the next notice is due.
    pub(super) fn due_at(&self) -> Option<Timestamp> {
        lock(&self.progress).wake_at
    }
}

/// One look at the recorded notices.
struct NoticePass {
    progress: Arc<Mutex<NoticeProgress>>,
    senders: PoolQueue,
    fleet: EngineContext,
    dispatcher: DaemonHandle,
    setup: Arc<DaemonSetup>,
}

impl NoticePass {
    fn run(&self) {
        self.start_attempts();
        // The dispatcher may sleep already, until a later time.
        if lock(&self.progress).wake_at.is_some() {
            send(&self.dispatcher, DispatchInput::NoticePlanned);
        }
    }

    /// Starts an attempt for each channel with a notice that is due, and notes when the next one is due.
    fn start_attempts(&self) {
        let now = (self.fleet.now)();
        let reader = StoreReader::open(&self.fleet.dir).map_err(|error| error_chain(&error));
        let waiting = reader
            .and_then(|reader| reader.waiting_notices(PAGE).map_err(|error| error_chain(&error)));
        let mut progress = lock(&self.progress);
        let waiting = match waiting {
            Ok(waiting) => waiting,
            Err(reason) => {
                tracing::warn!(reason, "cannot read the notices");
                let again = now.checked_add(READ_RETRY_DELAY).unwrap_or(Timestamp::MAX);
                progress.wake_at = Some(again);
                return;
            }
        };
        let mut channels: IndexMap<String, Vec<NoticeRecord>> = IndexMap::new();
        for record in waiting {
            channels.entry(record.channel.clone()).or_default().push(record);
        }
        progress.wake_at = None;
        progress.attempted.retain(|channel, _| channels.contains_key(channel));
        for (channel, records) in channels {
            if progress.is_occupied(&channel, &records) {
                continue;
            }
            match next_message(records, now) {
                Ok(records) => {
                    let attempts = records.iter().map(|it| (it.id.clone(), it.attempts)).collect();
                    progress.attempted.insert(channel.clone(), attempts);
                    progress.busy.insert(channel.clone());
                    self.submit(NoticeAttempt { channel, records });
                }
                Err(due_at) => {
                    let next = progress.wake_at.into_iter().chain(due_at).min();
                    progress.wake_at = next;
                }
            }
        }
    }

    fn submit(&self, attempt: NoticeAttempt) {
        let (progress, setup) = (Arc::clone(&self.progress), Arc::clone(&self.setup));
        let (fleet, dispatcher) = (self.fleet.clone(), self.dispatcher.clone());
        self.senders.submit(move || {
            // A panic must not leave the channel occupied.
            let busy = BusyGuard { progress: &progress, channel: &attempt.channel };
            let reader = match StoreReader::open(&fleet.dir) {
                Ok(reader) => reader,
                Err(error) => {
                    tracing::warn!(reason = error_chain(&error), "cannot read the notices");
                    let again = (fleet.now)().checked_add(READ_RETRY_DELAY);
                    let mut progress = lock(&progress);
                    // Nothing was sent, so the attempt does not count.
                    progress.attempted.remove(&attempt.channel);
                    progress.wake_at = Some(again.unwrap_or(Timestamp::MAX));
                    drop(progress);
                    send(&dispatcher, DispatchInput::NoticePlanned);
                    return;
                }
            };
            let result = attempt_notice(&setup, &reader, &attempt, fleet.now);
            fault::reach(FaultPoint::NoticeSent);
            // Before the result is passed on: its commit looks for the next notice of the channel.
            drop(busy);
            send(&dispatcher, DispatchInput::NoticeAttempted(Box::new(result)));
        });
    }
}

impl NoticeProgress {
    /// Returns true if an attempt of a channel is in progress, or its result is not recorded yet.
    fn is_occupied(&self, channel: &str, records: &[NoticeRecord]) -> bool {
        let unrecorded = self.attempted.get(channel).is_some_and(|attempted| {
            let is_same = |it: &NoticeRecord| {
                attempted.iter().any(|(id, attempts)| *id == it.id && *attempts == it.attempts)
            };
            records.iter().any(is_same)
        });
        unrecorded || self.busy.contains(channel)
    }
}

/// Returns the notices of a channel's next message, or the time at which one is due.
fn next_message(
    records: Vec<NoticeRecord>,
    now: Timestamp,
) -> Result<Vec<NoticeRecord>, Option<Timestamp>> {
    // A notice that failed holds those after it, so that they stay in order.
    if let Some(failed) = records.iter().find(|it| it.attempts > 0 && it.due_at > now) {
        return Err(Some(failed.due_at));
    }
    let Some(at) = records.iter().position(|record| record.due_at <= now) else {
        return Err(records.iter().map(|record| record.due_at).min());
    };
    if !records[at].in_digest {
        return Ok(vec![records[at].clone()]);
    }
    // With the first notice of a digest all others are sent too.
    Ok(records.into_iter().filter(|record| record.in_digest).take(DIGEST_MAX).collect())
}

struct BusyGuard<'g> {
    progress: &'g Mutex<NoticeProgress>,
    channel: &'g str,
}

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        lock(self.progress).busy.remove(self.channel);
    }
}

/// Sends an input. If the dispatcher has stopped, the next daemon sends the notice again.
fn send(dispatcher: &DaemonHandle, input: DispatchInput) {
    let _stopped = dispatcher.send_input(input);
}

fn lock(progress: &Mutex<NoticeProgress>) -> MutexGuard<'_, NoticeProgress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &str, due: i64, in_digest: bool, attempts: i64) -> NoticeRecord {
        NoticeRecord {
            id: id.to_owned(),
            channel: "phone".to_owned(),
            event: "failed".to_owned(),
            subject: id.to_owned(),
            agent: None,
            created_at: Timestamp::UNIX_EPOCH,
            due_at: Timestamp::from_second(due).unwrap(),
            in_digest,
            attempts,
            last_error: None,
            message_id: None,
            outcome: None,
            ended_at: None,
            closed_at: None,
            payload: String::new(),
        }
    }

    fn next(records: &[NoticeRecord], now: i64) -> Result<Vec<String>, Option<i64>> {
        let found = next_message(records.to_vec(), Timestamp::from_second(now).unwrap());
        found
            .map(|records| records.into_iter().map(|record| record.id).collect())
            .map_err(|at| at.map(Timestamp::as_second))
    }

    #[test]
    fn notices_of_a_channel_are_sent_in_order() {
        let waiting = [record("a", 1, false, 0), record("b", 1, false, 0)];
        assert_eq!(next(&waiting, 5), Ok(vec!["a".to_owned()]));
        // One that failed holds the next one until it is tried again.
        let waiting = [record("a", 9, false, 1), record("b", 1, false, 0)];
        assert_eq!(next(&waiting, 5), Err(Some(9)));
        assert_eq!(next(&waiting, 9), Ok(vec!["a".to_owned()]));
        // One of which the time has not come holds no other.
        let waiting = [record("a", 9, false, 0), record("b", 1, false, 0)];
        assert_eq!(next(&waiting, 5), Ok(vec!["b".to_owned()]));
        assert_eq!(next(&waiting[..1], 5), Err(Some(9)));
        assert_eq!(next(&[], 5), Err(None));
    }

    #[test]
    fn a_digest_has_all_notices_that_are_collected() {
        let waiting = [record("a", 5, true, 0), record("b", 7, false, 0), record("c", 60, true, 0)];
        assert_eq!(next(&waiting, 4), Err(Some(5)));
        assert_eq!(next(&waiting, 5), Ok(vec!["a".to_owned(), "c".to_owned()]));
        let many: Vec<_> =
            (0..DIGEST_MAX + 1).map(|n| record(&n.to_string(), 1, true, 0)).collect();
        assert_eq!(next(&many, 5).unwrap().len(), DIGEST_MAX);
    }
}
