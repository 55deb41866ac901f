//! When a schedule comes due, and what becomes of each due time (promise P3).
//!
//! Arithmetic only: a [`ScheduleTimetable`] knows all due times of a schedule, a [`DueTimeCursor`] which of them are
//! on record, and [`ScheduleTimetable::decide_due`] decides about those that have come due since. Whoever commits
//! its [`DueTimeDecision`] together with the new mark loses none and starts none twice. Start there.

mod rule;
#[cfg(test)]
mod simulation;
#[cfg(test)]
pub(crate) mod tests;

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::config::{MISSED_RUNS_MAX, MissedRunPolicy, OverlapPolicy, ScheduleConfig};
use crate::words::words;
use rule::DueTimeRule;

/// A due time that could not be acted on for this long was missed: nothing was there to start it.
pub const MISSED_AFTER: Duration = Duration::from_secs(60);
/// A clock that is behind the mark by more than this was set back.
pub const CLOCK_SET_BACK_MIN: Duration = Duration::from_secs(60);
/// Due times of a cron expression are counted up to here; a longer span counts as this many.
pub const SKIP_COUNT_MAX: u64 = 100_000;

/// How far a schedule has come. To be kept with what was decided, in one commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueTimeCursor {
    /// Where the grid of an interval begins: at the schedule's first start.
    pub anchor: Timestamp,
    /// Every due time up to here is on record.
    pub through: Timestamp,
}

/// The due times of one schedule.
#[derive(Debug, Clone)]
pub struct ScheduleTimetable {
    rule: DueTimeRule,
    jitter: Duration,
    /// Tells schedules apart, so that their delays differ.
    seed: u64,
    missed: MissedRunPolicy,
    overlap: OverlapPolicy,
}

/// What has been decided about the due times between two marks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueTimeDecision {
    /// To be started, in order. One that is on record as started already, since a clock was set
    /// back, is not started again.
    pub starts: Vec<DueTimeStart>,
    /// Everything else that was due.
    pub skips: Vec<DueTimeSkip>,
    /// Every due time up to its `through` is in this verdict or an earlier one.
    pub cursor: DueTimeCursor,
    /// The old mark, if the clock has been set back behind it.
    pub clock_set_back_from: Option<Timestamp>,
}

/// A due time that gets its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueTimeStart {
    /// When it was due.
    pub due: Timestamp,
    /// Whether it waits for those before it, instead of giving way to them.
    pub must_wait: bool,
}

/// A span of due times that get no run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueTimeSkip {
    /// The first of them.
    pub first: Timestamp,
    /// The last of them.
    pub last: Timestamp,
    /// How many they are; at [`SKIP_COUNT_MAX`] or more.
    pub count: u64,
    /// Why.
    pub reason: SkipReason,
}

words! {
    /// Why a due time got no run.
    pub enum SkipReason ("reason of a skip") {
        /// Nothing was there to start it, and the schedule does not make up for that.
        Missed = "missed",
        /// A later one makes up for it.
        MadeUp = "made_up",
        /// More were missed than are made up for.
        TooMany = "too_many",
        /// The one before it still ran.
        Overlap = "overlap",
        /// There was no money left.
        Budget = "budget",
        /// As many jobs waited as may.
        QueueFull = "queue_full",
        /// The schedule was switched off before it was acted on.
        Disabled = "disabled",
    }
}

impl ScheduleTimetable {
    /// Returns the due times of a schedule; `None` if time does not start it. `key` is its name in
    /// the fleet, `local` the zone of cron expressions that name none.
    pub fn for_schedule(
        schedule: &ScheduleConfig,
        key: &str,
        local: &TimeZone,
    ) -> Option<ScheduleTimetable> {
        Some(ScheduleTimetable {
            rule: DueTimeRule::from_trigger(&schedule.trigger, local)?,
            jitter: schedule.jitter.map_or(Duration::ZERO, |jitter| jitter.get()),
            seed: hash(key.as_bytes()),
            missed: schedule.missed,
            overlap: schedule.overlap,
        })
    }

    /// Returns the mark of a schedule that is new: an interval is due at once, a cron expression at
    /// its next time.
    pub fn initial_cursor(&self, now: Timestamp) -> DueTimeCursor {
        let anchor = round_to_millis(now);
        let through = match self.rule {
            DueTimeRule::Every(_) => saturating_sub(anchor, Duration::from_millis(1)),
            DueTimeRule::Cron { .. } => anchor,
        };
        DueTimeCursor { anchor, through }
    }

    /// Returns the next due time that is not on record, and when it is acted on.
    pub fn next_due(&self, mark: DueTimeCursor) -> Option<(Timestamp, Timestamp)> {
        let due = self.rule.next_after(mark.anchor, mark.through)?;
        Some((due, self.time_with_jitter(due)))
    }

    /// Decides about everything that has come due. `busy` says that the schedule's last start is
    /// still at work.
    pub fn decide_due(&self, mark: DueTimeCursor, now: Timestamp, busy: bool) -> DueTimeDecision {
        let set_back = mark.through > saturating_add(now, CLOCK_SET_BACK_MIN);
        let from =
            if set_back { DueTimeCursor { through: round_to_millis(now), ..mark } } else { mark };
        let mut verdict = DueTimeDecision {
            starts: Vec::new(),
            skips: Vec::new(),
            cursor: from,
            clock_set_back_from: set_back.then_some(mark.through),
        };
        let Some(last) = self.last_ready(from, now) else { return verdict };
        let (missed, timely) = self.split_missed(from, last, now);
        verdict.cursor.through = last;
        if let Some(missed) = missed {
            self.decide_missed(&missed, timely.is_empty(), busy, &mut verdict);
        }
        for due in timely {
            self.start_or_skip(due, busy, &mut verdict);
        }
        verdict
    }

    /// Returns what was due by now and is not on record, as it is on record of a schedule that is
    /// switched off.
    pub fn skip_disabled(&self, mark: DueTimeCursor, now: Timestamp) -> Option<DueTimeSkip> {
        let missing = MissedSpan { anchor: mark.anchor, after: mark.through, end: now };
        self.skip_span(&missing, SkipReason::Disabled)
    }

    /// Returns the last due time that can be acted on by now. None is acted on before those that
    /// were due earlier, whatever their delays.
    fn last_ready(&self, mark: DueTimeCursor, now: Timestamp) -> Option<Timestamp> {
        let surely = saturating_sub(now, self.jitter);
        let mut last = self.rule.latest(mark.anchor, mark.through, surely, 1).pop();
        loop {
            let after = last.unwrap_or(mark.through);
            match self.rule.next_after(mark.anchor, after) {
                Some(due) if self.time_with_jitter(due) <= now => last = Some(due),
                _ => return last,
            }
        }
    }

    /// Tells those that were missed, as a span, from those that are acted on in time.
    fn split_missed(
        &self,
        mark: DueTimeCursor,
        last: Timestamp,
        now: Timestamp,
    ) -> (Option<MissedSpan>, Vec<Timestamp>) {
        let limit = saturating_sub(now, MISSED_AFTER);
        let mut timely = Vec::new();
        let mut after = self
            .rule
            .latest(mark.anchor, mark.through, saturating_sub(limit, self.jitter).min(last), 1)
            .pop()
            .unwrap_or(mark.through);
        let mut ready = Timestamp::MIN;
        while let Some(due) = self.rule.next_after(mark.anchor, after).filter(|&due| due <= last) {
            // One that had to wait for those before it was not missed.
            ready = ready.max(self.time_with_jitter(due));
            if ready >= limit {
                timely.push(due);
            }
            after = due;
        }
        let end = match timely.first() {
            Some(&first) => {
                self.rule.latest(mark.anchor, mark.through, saturating_sub(first, TICK), 1)
            }
            None => vec![last],
        };
        let missing =
            end.last().map(|&end| MissedSpan { anchor: mark.anchor, after: mark.through, end });
        (missing, timely)
    }

    /// Decides about those that were missed.
    fn decide_missed(
        &self,
        missing: &MissedSpan,
        alone: bool,
        busy: bool,
        verdict: &mut DueTimeDecision,
    ) {
        match self.missed {
            MissedRunPolicy::Skip => {
                verdict.skips.extend(self.skip_span(missing, SkipReason::Missed))
            }
            // One that is timely makes up for them as well.
            MissedRunPolicy::RunOnce if !alone => {
                verdict.skips.extend(self.skip_span(missing, SkipReason::MadeUp));
            }
            MissedRunPolicy::RunOnce => {
                let before = MissedSpan { end: saturating_sub(missing.end, TICK), ..*missing };
                verdict.skips.extend(self.skip_span(&before, SkipReason::MadeUp));
                self.start_or_skip(missing.end, busy, verdict);
            }
            MissedRunPolicy::RunAll => {
                let most = MISSED_RUNS_MAX as usize;
                let dues = self.rule.latest(missing.anchor, missing.after, missing.end, most);
                if let Some(&first) = dues.first() {
                    let before = MissedSpan { end: saturating_sub(first, TICK), ..*missing };
                    verdict.skips.extend(self.skip_span(&before, SkipReason::TooMany));
                }
                verdict
                    .starts
                    .extend(dues.into_iter().map(|due| DueTimeStart { due, must_wait: true }));
            }
        }
    }

    /// Starts one that is due, unless it gives way.
    fn start_or_skip(&self, due: Timestamp, busy: bool, verdict: &mut DueTimeDecision) {
        let occupied = busy || !verdict.starts.is_empty();
        match self.overlap {
            OverlapPolicy::Queue => verdict.starts.push(DueTimeStart { due, must_wait: true }),
            OverlapPolicy::Skip if !occupied => {
                verdict.starts.push(DueTimeStart { due, must_wait: false })
            }
            OverlapPolicy::Skip => match verdict.skips.last_mut() {
                Some(skip) if skip.reason == SkipReason::Overlap => {
                    (skip.last, skip.count) = (due, skip.count + 1);
                }
                _ => verdict.skips.push(DueTimeSkip {
                    first: due,
                    last: due,
                    count: 1,
                    reason: SkipReason::Overlap,
                }),
            },
        }
    }

    fn skip_span(&self, missing: &MissedSpan, reason: SkipReason) -> Option<DueTimeSkip> {
        let first = self.rule.next_after(missing.anchor, missing.after)?;
        let last = self.rule.latest(missing.anchor, missing.after, missing.end, 1).pop()?;
        let count = self.rule.count(missing.anchor, missing.after, last);
        Some(DueTimeSkip { first, last, count, reason })
    }

    /// Returns when a due time is acted on: later by its share of the jitter, the same each time.
    fn time_with_jitter(&self, due: Timestamp) -> Timestamp {
        let most = self.jitter.as_millis() as u64;
        if most == 0 {
            return due;
        }
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.seed.to_le_bytes());
        bytes[8..].copy_from_slice(&due.as_millisecond().to_le_bytes());
        saturating_add(due, Duration::from_millis(hash(&bytes) % (most + 1)))
    }
}

/// Those due after `after` and up to `end`.
struct MissedSpan {
    anchor: Timestamp,
    after: Timestamp,
    end: Timestamp,
}

/// Due times lie on whole milliseconds.
const TICK: Duration = Duration::from_millis(1);

fn round_to_millis(at: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(at.as_millisecond()).expect("it was a timestamp before")
}

fn saturating_add(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

fn saturating_sub(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_sub(by).unwrap_or(Timestamp::MIN)
}

/// FNV-1a: the same on every machine and in every release, which marks on disk rely on.
fn hash(bytes: &[u8]) -> u64 {
    let fold = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold);
    // Its low bits depend on the last byte alone.
    hash ^ (hash >> 32)
}
