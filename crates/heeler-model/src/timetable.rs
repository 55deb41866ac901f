//! Due times of a schedule, and the decision about each of them (promise P3).
//!
//! Arithmetic only. A [`ScheduleTimetable`] computes the due times of a schedule, a
//! [`DueTimeCursor`] records which of them are decided, and [`ScheduleTimetable::decide_due`]
//! decides about those since then. If the [`DueTimeDecision`] and its cursor are committed
//! together, no due time is lost and none starts twice. Start at [`ScheduleTimetable::decide_due`].

mod rule;
#[cfg(test)]
mod simulation;
#[cfg(test)]
pub(crate) mod tests;

use std::time::Duration;

use heeler_config::{MISSED_RUNS_MAX, MissedRunPolicy, OverlapPolicy, ScheduleConfig, words};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use rule::DueTimeRule;

/// A due time is missed if it could not be acted on for this long: no daemon was running.
pub const MISSED_AFTER: Duration = Duration::from_secs(60);
/// A due time that could not be acted on for this long is also missed if a later one has come since.
/// Otherwise a daemon that was stopped or suspended for a minute would start all of them at once.
pub const SUPERSEDED_AFTER: Duration = Duration::from_secs(5);
/// A clock that is behind the cursor by more than this was set back.
pub const CLOCK_SET_BACK_MIN: Duration = Duration::from_secs(60);
/// Upper bound when counting due times of a cron expression. A longer span counts as this many.
pub const SKIP_COUNT_MAX: u64 = 100_000;

/// Progress of a schedule. Must be committed together with the decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueTimeCursor {
    /// Origin of an interval's grid: the first start of the schedule.
    pub anchor: Timestamp,
    /// Every due time up to this one is recorded.
    pub through: Timestamp,
}

/// Due times of one schedule.
#[derive(Debug, Clone)]
pub struct ScheduleTimetable {
    rule: DueTimeRule,
    jitter: Duration,
    /// Differs between schedules, so that their jitter differs.
    seed: u64,
    missed: MissedRunPolicy,
    overlap: OverlapPolicy,
}

/// Decision about the due times between two cursors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueTimeDecision {
    /// Due times to start, in order. A due time that is already recorded as started, because the
    /// clock was set back, must not start again.
    pub starts: Vec<DueTimeStart>,
    /// All other due times.
    pub skips: Vec<DueTimeSkip>,
    /// Every due time up to `through` is in this decision or an earlier one.
    pub cursor: DueTimeCursor,
    /// Previous cursor, if the clock was set back behind it.
    pub clock_set_back_from: Option<Timestamp>,
}

/// Due time that creates a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueTimeStart {
    pub due: Timestamp,
    /// True if the job waits for earlier ones instead of being skipped.
    pub must_wait: bool,
}

/// Span of due times that create no job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueTimeSkip {
    /// First due time of the span.
    pub first: Timestamp,
    /// Last due time of the span.
    pub last: Timestamp,
    /// Number of due times. [`SKIP_COUNT_MAX`] means that many or more.
    pub count: u64,
    pub reason: SkipReason,
}

words! {
    /// Reason why a due time created no job.
    pub enum SkipReason ("reason of a skip") {
        /// No daemon was running, and the schedule does not catch up.
        Missed = "missed",
        /// A later due time makes up for it.
        MadeUp = "made_up",
        /// More were missed than the schedule catches up on.
        TooMany = "too_many",
        /// The previous job was still running.
        Overlap = "overlap",
        /// The budget was used up.
        Budget = "budget",
        /// The queue was full.
        QueueFull = "queue_full",
        /// The schedule was disabled before the due time was acted on.
        Disabled = "disabled",
        /// A search found nothing new.
        NothingFound = "nothing_found",
        /// A search failed.
        Unreachable = "unreachable",
    }
}

impl ScheduleTimetable {
    /// Returns the timetable of a schedule, or `None` if it is not time-based. `key` is its name in
    /// the fleet. `local` is the time zone of cron expressions that name none.
    pub fn for_schedule(
        schedule: &ScheduleConfig,
        key: &str,
        local: &TimeZone,
    ) -> Option<ScheduleTimetable> {
        Some(ScheduleTimetable {
            rule: DueTimeRule::from_trigger(&schedule.trigger, local)?,
            jitter: schedule.jitter.map_or(Duration::ZERO, |jitter| jitter.get()),
            // The name in the fleet differs between schedules, so that they do not all start at
            // once.
            seed: hash(key.as_bytes()),
            missed: schedule.missed,
            overlap: schedule.overlap,
        })
    }

    /// Returns the cursor of a new schedule. An interval is due immediately, a cron expression at
    /// its next time.
    pub fn initial_cursor(&self, now: Timestamp) -> DueTimeCursor {
        let anchor = round_to_millis(now);
        let through = match self.rule {
            // One millisecond before its own anchor, so the first due time is not behind the
            // cursor.
            DueTimeRule::Every(_) => saturating_sub(anchor, Duration::from_millis(1)),
            DueTimeRule::Cron { .. } => anchor,
        };
        DueTimeCursor { anchor, through }
    }

    /// Returns the first unrecorded due time, and the time at which it is acted on.
    pub fn next_due(&self, mark: DueTimeCursor) -> Option<(Timestamp, Timestamp)> {
        let due = self.rule.next_after(mark.anchor, mark.through)?;
        Some((due, self.time_with_jitter(due)))
    }

    /// Decides about all due times until now. `busy` is true while the last job of the schedule is
    /// unfinished.
    pub fn decide_due(&self, mark: DueTimeCursor, now: Timestamp, busy: bool) -> DueTimeDecision {
        // A small step back is normal for a synchronized clock, and its due times are not decided
        // again.
        let set_back = mark.through > saturating_add(now, CLOCK_SET_BACK_MIN);
        // The cursor moves back too, or the schedule would stay silent until the clock catches up.
        let from = if set_back { self.cursor_after_set_back(mark, now) } else { mark };
        let mut verdict = DueTimeDecision {
            starts: Vec::new(),
            skips: Vec::new(),
            cursor: from,
            clock_set_back_from: set_back.then_some(mark.through),
        };
        let Some(last) = self.last_ready(from, now) else { return verdict };
        let (missed, timely) = self.split_missed(from, last, now);
        // The cursor moves even if everything is skipped: each due time is decided once.
        verdict.cursor.through = last;
        if let Some(missed) = missed {
            // Missed ones come first, so the decision lists due times in order.
            self.decide_missed(&missed, timely.is_empty(), busy, &mut verdict);
        }
        // Each start makes the schedule busy for those that follow.
        for due in timely {
            self.start_or_skip(due, busy, &mut verdict);
        }
        verdict
    }

    /// Returns the cursor of a schedule after the clock was set back. An interval gets a new grid, one
    /// period from now: the due times of the old grid have jobs already or begin later. The times of
    /// a cron expression are fixed, so those that have no job yet follow.
    fn cursor_after_set_back(&self, mark: DueTimeCursor, now: Timestamp) -> DueTimeCursor {
        let through = round_to_millis(now);
        let DueTimeRule::Every(period) = self.rule else {
            return DueTimeCursor { through, ..mark };
        };
        let apart = through.as_millisecond() - mark.anchor.as_millisecond();
        // The same grid would give the same due times.
        let anchor = match apart.rem_euclid(period) {
            0 => saturating_add(through, TICK),
            _ => through,
        };
        DueTimeCursor { anchor, through: anchor }
    }

    /// Returns the unrecorded due times until now as a skip, for a disabled schedule.
    pub fn skip_disabled(&self, mark: DueTimeCursor, now: Timestamp) -> Option<DueTimeSkip> {
        // The span ends now, whatever the jitter: a disabled schedule does not act on it later.
        let missing = MissedSpan { anchor: mark.anchor, after: mark.through, end: now };
        self.skip_span(&missing, SkipReason::Disabled)
    }

    /// Returns the last due time that can be acted on by now. Due times are acted on in order,
    /// regardless of their jitter.
    fn last_ready(&self, mark: DueTimeCursor, now: Timestamp) -> Option<Timestamp> {
        // Whatever their jitter, due times up to here can be acted on. Only the rest is walked.
        let surely = saturating_sub(now, self.jitter);
        let mut last = self.rule.latest(mark.anchor, mark.through, surely, 1).pop();
        loop {
            let after = last.unwrap_or(mark.through);
            match self.rule.next_after(mark.anchor, after) {
                // The walk ends at the first one that is not ready, so a later one never overtakes
                // it.
                Some(due) if self.time_with_jitter(due) <= now => last = Some(due),
                _ => return last,
            }
        }
    }

    /// Splits due times into a span of missed ones and a list of timely ones.
    fn split_missed(
        &self,
        mark: DueTimeCursor,
        last: Timestamp,
        now: Timestamp,
    ) -> (Option<MissedSpan>, Vec<Timestamp>) {
        let limit = saturating_sub(now, MISSED_AFTER);
        let superseded = saturating_sub(now, SUPERSEDED_AFTER);
        let (mut timely, mut late) = (Vec::new(), None);
        // Everything up to here was missed for certain; only the rest needs to be looked at.
        let mut after = self
            .rule
            .latest(mark.anchor, mark.through, saturating_sub(limit, self.jitter).min(last), 1)
            .pop()
            .unwrap_or(mark.through);
        let mut ready = Timestamp::MIN;
        while let Some(due) = self.rule.next_after(mark.anchor, after).filter(|&due| due <= last) {
            // A due time that had to wait for earlier ones was not missed.
            ready = ready.max(self.time_with_jitter(due));
            if ready >= superseded {
                timely.push(due);
            } else if ready >= limit {
                late = Some(due);
            }
            after = due;
        }
        // A due time that is late still starts if no other has followed it.
        if timely.is_empty() {
            timely.extend(late);
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

    /// Decides about missed due times.
    fn decide_missed(
        &self,
        missing: &MissedSpan,
        alone: bool,
        busy: bool,
        verdict: &mut DueTimeDecision,
    ) {
        match self.missed {
            MissedRunPolicy::Skip => {
                verdict.skips.extend(self.skip_span(missing, SkipReason::Missed));
            }
            // The timely due time makes up for the missed ones.
            MissedRunPolicy::RunOnce if !alone => {
                verdict.skips.extend(self.skip_span(missing, SkipReason::MadeUp));
            }
            MissedRunPolicy::RunOnce => {
                // A tick less, because the span includes its end, which is started.
                let before = MissedSpan { end: saturating_sub(missing.end, TICK), ..*missing };
                verdict.skips.extend(self.skip_span(&before, SkipReason::MadeUp));
                self.start_or_skip(missing.end, busy, verdict);
            }
            MissedRunPolicy::RunAll => {
                let most = MISSED_RUNS_MAX as usize;
                // Of too many missed due times the latest are the relevant ones.
                let dues = self.rule.latest(missing.anchor, missing.after, missing.end, most);
                if let Some(&first) = dues.first() {
                    let before = MissedSpan { end: saturating_sub(first, TICK), ..*missing };
                    verdict.skips.extend(self.skip_span(&before, SkipReason::TooMany));
                }
                // They may queue although the overlap policy skips: the person asked for all of
                // them.
                verdict
                    .starts
                    .extend(dues.into_iter().map(|due| DueTimeStart { due, must_wait: true }));
            }
        }
    }

    /// Starts a due time, unless the overlap policy skips it.
    fn start_or_skip(&self, due: Timestamp, busy: bool, verdict: &mut DueTimeDecision) {
        // A start of this decision occupies the schedule just as a job in progress does.
        let occupied = busy || !verdict.starts.is_empty();
        match self.overlap {
            OverlapPolicy::Queue => verdict.starts.push(DueTimeStart { due, must_wait: true }),
            OverlapPolicy::Skip if !occupied => {
                verdict.starts.push(DueTimeStart { due, must_wait: false });
            }
            // One record for a span, since a slow job may overlap with thousands of due times.
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
        // A span without due times is no skip and gets no record.
        let first = self.rule.next_after(missing.anchor, missing.after)?;
        let last = self.rule.latest(missing.anchor, missing.after, missing.end, 1).pop()?;
        let count = self.rule.count(missing.anchor, missing.after, last);
        Some(DueTimeSkip { first, last, count, reason })
    }

    /// Returns the time at which a due time is acted on: delayed by jitter that is always the same.
    fn time_with_jitter(&self, due: Timestamp) -> Timestamp {
        // A jitter is limited by the config, so its milliseconds fit.
        let most = self.jitter.as_millis() as u64;
        if most == 0 {
            return due;
        }
        // The seed keeps two schedules with the same due time apart.
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.seed.to_le_bytes());
        bytes[8..].copy_from_slice(&due.as_millisecond().to_le_bytes());
        saturating_add(due, Duration::from_millis(hash(&bytes) % (most + 1)))
    }
}

/// Due times after `after` and up to `end`.
struct MissedSpan {
    anchor: Timestamp,
    after: Timestamp,
    end: Timestamp,
}

/// Resolution of due times: whole milliseconds.
const TICK: Duration = Duration::from_millis(1);

fn round_to_millis(at: Timestamp) -> Timestamp {
    // Due times are stored in milliseconds; a finer cursor would not equal its stored form.
    Timestamp::from_millisecond(at.as_millisecond()).expect("it was a timestamp before")
}

fn saturating_add(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

fn saturating_sub(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_sub(by).unwrap_or(Timestamp::MIN)
}

/// FNV-1a hash. Stored cursors rely on it being the same on every machine and in every release.
fn hash(bytes: &[u8]) -> u64 {
    let fold = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold);
    // The low bits of FNV-1a are weak, so mix in the high ones.
    hash ^ (hash >> 32)
}
