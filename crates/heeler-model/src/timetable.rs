//! When a schedule comes due, and what becomes of each due time (promise P3).
//!
//! Arithmetic only: a [`Timetable`] knows all due times of a schedule, a [`Mark`] which of them are
//! on record, and [`Timetable::step`] decides about those that have come due since. Whoever commits
//! its [`Verdict`] together with the new mark loses none and starts none twice. Start there.

mod rule;
#[cfg(test)]
mod simulation;
#[cfg(test)]
pub(crate) mod tests;

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::config::{MISSED_RUNS_MAX, Missed, Overlap, Schedule};
use crate::words::words;
use rule::Rule;

/// A due time that could not be acted on for this long was missed: nothing was there to start it.
pub const MISSED_AFTER: Duration = Duration::from_secs(60);
/// A clock that is behind the mark by more than this was set back.
pub const SET_BACK_MIN: Duration = Duration::from_secs(60);
/// Due times of a cron expression are counted up to here; a longer span counts as this many.
pub const COUNTED_MAX: u64 = 100_000;

/// How far a schedule has come. To be kept with what was decided, in one commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Where the grid of an interval begins: at the schedule's first start.
    pub anchor: Timestamp,
    /// Every due time up to here is on record.
    pub through: Timestamp,
}

/// The due times of one schedule.
#[derive(Debug, Clone)]
pub struct Timetable {
    rule: Rule,
    jitter: Duration,
    /// Tells schedules apart, so that their delays differ.
    seed: u64,
    missed: Missed,
    overlap: Overlap,
}

/// What has been decided about the due times between two marks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// To be started, in order. One that is on record as started already, since a clock was set
    /// back, is not started again.
    pub starts: Vec<Start>,
    /// Everything else that was due.
    pub skips: Vec<Skip>,
    /// Every due time up to its `through` is in this verdict or an earlier one.
    pub mark: Mark,
    /// The old mark, if the clock has been set back behind it.
    pub set_back_from: Option<Timestamp>,
}

/// A due time that gets its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// When it was due.
    pub due: Timestamp,
    /// Whether it waits for those before it, instead of giving way to them.
    pub waits: bool,
}

/// A span of due times that get no run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skip {
    /// The first of them.
    pub first: Timestamp,
    /// The last of them.
    pub last: Timestamp,
    /// How many they are; at [`COUNTED_MAX`] or more.
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

impl Timetable {
    /// Returns the due times of a schedule; `None` if time does not start it. `key` is its name in
    /// the fleet, `local` the zone of cron expressions that name none.
    pub fn of(schedule: &Schedule, key: &str, local: &TimeZone) -> Option<Timetable> {
        Some(Timetable {
            rule: Rule::of(&schedule.trigger, local)?,
            jitter: schedule.jitter.map_or(Duration::ZERO, |jitter| jitter.get()),
            seed: hash(key.as_bytes()),
            missed: schedule.missed,
            overlap: schedule.overlap,
        })
    }

    /// Returns the mark of a schedule that is new: an interval is due at once, a cron expression at
    /// its next time.
    pub fn begin(&self, now: Timestamp) -> Mark {
        let anchor = whole_millis(now);
        let through = match self.rule {
            Rule::Every(_) => earlier(anchor, Duration::from_millis(1)),
            Rule::Cron { .. } => anchor,
        };
        Mark { anchor, through }
    }

    /// Returns the next due time that is not on record, and when it is acted on.
    pub fn next(&self, mark: Mark) -> Option<(Timestamp, Timestamp)> {
        let due = self.rule.next_after(mark.anchor, mark.through)?;
        Some((due, self.acted_on(due)))
    }

    /// Decides about everything that has come due. `busy` says that the schedule's last start is
    /// still at work.
    pub fn step(&self, mark: Mark, now: Timestamp, busy: bool) -> Verdict {
        let set_back = mark.through > later(now, SET_BACK_MIN);
        let from = if set_back { Mark { through: whole_millis(now), ..mark } } else { mark };
        let mut verdict = Verdict {
            starts: Vec::new(),
            skips: Vec::new(),
            mark: from,
            set_back_from: set_back.then_some(mark.through),
        };
        let Some(last) = self.last_ready(from, now) else { return verdict };
        let (missed, timely) = self.split(from, last, now);
        verdict.mark.through = last;
        if let Some(missed) = missed {
            self.make_up(&missed, timely.is_empty(), busy, &mut verdict);
        }
        for due in timely {
            self.admit(due, busy, &mut verdict);
        }
        verdict
    }

    /// Returns what was due by now and is not on record, as it is on record of a schedule that is
    /// switched off.
    pub fn leave(&self, mark: Mark, now: Timestamp) -> Option<Skip> {
        let missing = Missing { anchor: mark.anchor, after: mark.through, end: now };
        self.span(&missing, SkipReason::Disabled)
    }

    /// Returns the last due time that can be acted on by now. None is acted on before those that
    /// were due earlier, whatever their delays.
    fn last_ready(&self, mark: Mark, now: Timestamp) -> Option<Timestamp> {
        let surely = earlier(now, self.jitter);
        let mut last = self.rule.latest(mark.anchor, mark.through, surely, 1).pop();
        loop {
            let after = last.unwrap_or(mark.through);
            match self.rule.next_after(mark.anchor, after) {
                Some(due) if self.acted_on(due) <= now => last = Some(due),
                _ => return last,
            }
        }
    }

    /// Tells those that were missed, as a span, from those that are acted on in time.
    fn split(
        &self,
        mark: Mark,
        last: Timestamp,
        now: Timestamp,
    ) -> (Option<Missing>, Vec<Timestamp>) {
        let limit = earlier(now, MISSED_AFTER);
        let mut timely = Vec::new();
        let mut after = self
            .rule
            .latest(mark.anchor, mark.through, earlier(limit, self.jitter).min(last), 1)
            .pop()
            .unwrap_or(mark.through);
        let mut ready = Timestamp::MIN;
        while let Some(due) = self.rule.next_after(mark.anchor, after).filter(|&due| due <= last) {
            // One that had to wait for those before it was not missed.
            ready = ready.max(self.acted_on(due));
            if ready >= limit {
                timely.push(due);
            }
            after = due;
        }
        let end = match timely.first() {
            Some(&first) => self.rule.latest(mark.anchor, mark.through, earlier(first, TICK), 1),
            None => vec![last],
        };
        let missing =
            end.last().map(|&end| Missing { anchor: mark.anchor, after: mark.through, end });
        (missing, timely)
    }

    /// Decides about those that were missed.
    fn make_up(&self, missing: &Missing, alone: bool, busy: bool, verdict: &mut Verdict) {
        match self.missed {
            Missed::Skip => verdict.skips.extend(self.span(missing, SkipReason::Missed)),
            // One that is timely makes up for them as well.
            Missed::RunOnce if !alone => {
                verdict.skips.extend(self.span(missing, SkipReason::MadeUp));
            }
            Missed::RunOnce => {
                let before = Missing { end: earlier(missing.end, TICK), ..*missing };
                verdict.skips.extend(self.span(&before, SkipReason::MadeUp));
                self.admit(missing.end, busy, verdict);
            }
            Missed::RunAll => {
                let most = MISSED_RUNS_MAX as usize;
                let dues = self.rule.latest(missing.anchor, missing.after, missing.end, most);
                if let Some(&first) = dues.first() {
                    let before = Missing { end: earlier(first, TICK), ..*missing };
                    verdict.skips.extend(self.span(&before, SkipReason::TooMany));
                }
                verdict.starts.extend(dues.into_iter().map(|due| Start { due, waits: true }));
            }
        }
    }

    /// Starts one that is due, unless it gives way.
    fn admit(&self, due: Timestamp, busy: bool, verdict: &mut Verdict) {
        let occupied = busy || !verdict.starts.is_empty();
        match self.overlap {
            Overlap::Queue => verdict.starts.push(Start { due, waits: true }),
            Overlap::Skip if !occupied => verdict.starts.push(Start { due, waits: false }),
            Overlap::Skip => match verdict.skips.last_mut() {
                Some(skip) if skip.reason == SkipReason::Overlap => {
                    (skip.last, skip.count) = (due, skip.count + 1);
                }
                _ => verdict.skips.push(Skip {
                    first: due,
                    last: due,
                    count: 1,
                    reason: SkipReason::Overlap,
                }),
            },
        }
    }

    fn span(&self, missing: &Missing, reason: SkipReason) -> Option<Skip> {
        let first = self.rule.next_after(missing.anchor, missing.after)?;
        let last = self.rule.latest(missing.anchor, missing.after, missing.end, 1).pop()?;
        let count = self.rule.count(missing.anchor, missing.after, last);
        Some(Skip { first, last, count, reason })
    }

    /// Returns when a due time is acted on: later by its share of the jitter, the same each time.
    fn acted_on(&self, due: Timestamp) -> Timestamp {
        let most = self.jitter.as_millis() as u64;
        if most == 0 {
            return due;
        }
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.seed.to_le_bytes());
        bytes[8..].copy_from_slice(&due.as_millisecond().to_le_bytes());
        later(due, Duration::from_millis(hash(&bytes) % (most + 1)))
    }
}

/// Those due after `after` and up to `end`.
struct Missing {
    anchor: Timestamp,
    after: Timestamp,
    end: Timestamp,
}

/// Due times lie on whole milliseconds.
const TICK: Duration = Duration::from_millis(1);

fn whole_millis(at: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(at.as_millisecond()).expect("it was a timestamp before")
}

fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

fn earlier(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_sub(by).unwrap_or(Timestamp::MIN)
}

/// FNV-1a: the same on every machine and in every release, which marks on disk rely on.
fn hash(bytes: &[u8]) -> u64 {
    let fold = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold);
    // Its low bits depend on the last byte alone.
    hash ^ (hash >> 32)
}
