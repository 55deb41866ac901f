//! All time-based schedules of a fleet, ordered by their next due time.
//!
//! The calendar holds a [`ScheduleTimetable`] and a [`DueTimeCursor`] per schedule. The caller
//! commits each decision and then passes its cursor to [`ScheduleCalendar::commit_cursor`]; a
//! decision that was not committed comes due again. Start at [`ScheduleCalendar::decide_due`].

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use jiff::Timestamp;

use crate::timetable::{CLOCK_SET_BACK_MIN, DueTimeCursor, DueTimeDecision, ScheduleTimetable};

/// Identity of a schedule within the fleet.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScheduleKey {
    /// Qualified name of the agent.
    pub agent: String,
    /// Name of the schedule within its agent.
    pub schedule: String,
}

impl fmt::Display for ScheduleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.agent, self.schedule)
    }
}

impl ScheduleKey {
    /// Returns the trigger ID of the workflow runs that the schedule starts.
    pub fn workflow_trigger_id(&self) -> String {
        format!("schedule:{self}")
    }
}

/// Time-based schedules of a fleet.
#[derive(Debug, Clone, Default)]
pub struct ScheduleCalendar {
    entries: HashMap<ScheduleKey, CalendarEntry>,
    /// Time at which each schedule must be examined, earliest first.
    wake_times: BTreeSet<(Timestamp, ScheduleKey)>,
    /// Latest cursor, except for schedules that wake immediately. A clock behind it was set back.
    latest_cursor: Timestamp,
}

#[derive(Debug, Clone)]
struct CalendarEntry {
    timetable: ScheduleTimetable,
    cursor: DueTimeCursor,
    /// Next due time, and the time at which it is acted on.
    next_due: Option<(Timestamp, Timestamp)>,
    /// Time at which the schedule must be examined.
    wake_at: Option<Timestamp>,
}

/// Wake time of a schedule that must be examined immediately, at any clock time.
const WAKE_NOW: Timestamp = Timestamp::MIN;

impl ScheduleCalendar {
    /// Adds or replaces a schedule.
    pub fn insert(
        &mut self,
        key: ScheduleKey,
        table: ScheduleTimetable,
        mark: DueTimeCursor,
        now: Timestamp,
    ) {
        // A schedule that is replaced must not leave its old wake-up behind.
        self.remove(&key);
        self.entries.insert(
            key.clone(),
            CalendarEntry { timetable: table, cursor: mark, next_due: None, wake_at: None },
        );
        self.update_wake_time(&key, now);
    }

    pub fn remove(&mut self, key: &ScheduleKey) {
        if let Some(CalendarEntry { wake_at: Some(wake), .. }) = self.entries.remove(key) {
            self.wake_times.remove(&(wake, key.clone()));
        }
    }

    /// Returns the earliest time at which a schedule must be examined.
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.wake_times.first().map(|(at, _)| *at)
    }

    /// Returns the next due time of a schedule, and the time at which it is acted on.
    pub fn next_due(&self, key: &ScheduleKey) -> Option<(Timestamp, Timestamp)> {
        self.entries.get(key)?.next_due
    }

    /// Returns true if a decision may be needed. Call this at least every 30 seconds: it is the
    /// only detection of a clock that was set back.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.is_clock_set_back(now) || self.wake_at().is_some_and(|at| at <= now)
    }

    /// Decides about at most `limit` due schedules, earliest first. `busy` returns true while the
    /// last job of a schedule is unfinished.
    pub fn decide_due(
        &mut self,
        now: Timestamp,
        limit: usize,
        busy: impl Fn(&ScheduleKey) -> bool,
    ) -> Vec<(ScheduleKey, DueTimeDecision)> {
        // First, because the wake-ups below were computed with the old clock.
        self.handle_clock_set_back(now);
        // Ordered by time, so the most overdue schedules come first if there are too many.
        let ready = self.wake_times.iter().take_while(|(at, _)| *at <= now).take(limit);
        ready
            .filter_map(|(_, key)| {
                let entry = self.entries.get(key)?;
                Some((key.clone(), entry.timetable.decide_due(entry.cursor, now, busy(key))))
            })
            .collect()
    }

    /// Advances a schedule to the cursor of a committed decision.
    pub fn commit_cursor(&mut self, key: &ScheduleKey, mark: DueTimeCursor, now: Timestamp) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.cursor = mark;
            self.update_wake_time(key, now);
        }
    }

    /// Wakes every schedule with a cursor ahead of a clock that was set back.
    fn handle_clock_set_back(&mut self, now: Timestamp) {
        if !self.is_clock_set_back(now) {
            return;
        }
        // Only schedules that are ahead need a decision; the others continue as they are.
        let (ahead, others): (Vec<_>, Vec<_>) =
            self.entries.iter().partition(|(_, entry)| is_ahead_of_clock(entry.cursor, now));
        // Without the schedules ahead, so that the same step back is not detected again.
        self.latest_cursor =
            others.iter().map(|(_, entry)| entry.cursor.through).max().unwrap_or(Timestamp::MIN);
        let ahead: Vec<ScheduleKey> = ahead.into_iter().map(|(key, _)| key.clone()).collect();
        ahead.iter().for_each(|key| self.update_wake_time(key, now));
    }

    fn is_clock_set_back(&self, now: Timestamp) -> bool {
        minus_set_back_tolerance(self.latest_cursor) > now
    }

    fn update_wake_time(&mut self, key: &ScheduleKey, now: Timestamp) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        // The set is ordered by the old time, so the entry must leave before it changes.
        if let Some(wake) = entry.wake_at.take() {
            self.wake_times.remove(&(wake, key.clone()));
        }
        entry.next_due = entry.timetable.next_due(entry.cursor);
        // The timetable decides what a step back means, so the schedule is due at once.
        entry.wake_at = if is_ahead_of_clock(entry.cursor, now) {
            Some(WAKE_NOW)
        } else {
            // Cursors ahead of the clock are left out; they would hide a further step back.
            self.latest_cursor = self.latest_cursor.max(entry.cursor.through);
            entry.next_due.map(|(_, acted_on)| acted_on)
        };
        if let Some(wake) = entry.wake_at {
            self.wake_times.insert((wake, key.clone()));
        }
    }
}

fn is_ahead_of_clock(mark: DueTimeCursor, now: Timestamp) -> bool {
    minus_set_back_tolerance(mark.through) > now
}

fn minus_set_back_tolerance(at: Timestamp) -> Timestamp {
    at.checked_sub(CLOCK_SET_BACK_MIN).unwrap_or(Timestamp::MIN)
}
