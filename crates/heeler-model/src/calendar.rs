//! All schedules of a fleet that time starts, and which of them is due next.
//!
//! It holds a [`ScheduleTimetable`] and a [`Mark`] for each, and wakes nobody for what is not due. Whoever
//! asks what is due commits the verdicts and then [accepts](Calendar::accept) their marks: what was
//! not committed is due again. Start at [`ScheduleCalendar::decide_due`].

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use jiff::Timestamp;

use crate::timetable::{CLOCK_SET_BACK_MIN, DueTimeCursor, DueTimeDecision, ScheduleTimetable};

/// Names a schedule in the fleet.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScheduleKey {
    /// The agent's qualified name.
    pub agent: String,
    /// The schedule's own name.
    pub schedule: String,
}

impl fmt::Display for ScheduleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.agent, self.schedule)
    }
}

/// The schedules of a fleet.
#[derive(Debug, Clone, Default)]
pub struct ScheduleCalendar {
    entries: HashMap<ScheduleKey, CalendarEntry>,
    /// When each is to be looked at, earliest first.
    wake_times: BTreeSet<(Timestamp, ScheduleKey)>,
    /// No mark lies after this but those of schedules that are looked at at once: a clock that is
    /// behind it was set back.
    latest_cursor: Timestamp,
}

#[derive(Debug, Clone)]
struct CalendarEntry {
    timetable: ScheduleTimetable,
    cursor: DueTimeCursor,
    /// When it is next due, and acted on.
    next_due: Option<(Timestamp, Timestamp)>,
    /// When it is looked at.
    wake_at: Option<Timestamp>,
}

/// Looked at at once, whatever the clock says.
const WAKE_NOW: Timestamp = Timestamp::MIN;

impl ScheduleCalendar {
    /// Adds a schedule, or replaces it.
    pub fn insert(
        &mut self,
        key: ScheduleKey,
        table: ScheduleTimetable,
        mark: DueTimeCursor,
        now: Timestamp,
    ) {
        self.remove(&key);
        self.entries.insert(
            key.clone(),
            CalendarEntry { timetable: table, cursor: mark, next_due: None, wake_at: None },
        );
        self.update_wake_time(&key, now);
    }

    /// Takes a schedule away.
    pub fn remove(&mut self, key: &ScheduleKey) {
        if let Some(CalendarEntry { wake_at: Some(wake), .. }) = self.entries.remove(key) {
            self.wake_times.remove(&(wake, key.clone()));
        }
    }

    /// Returns when something is to be looked at next.
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.wake_times.first().map(|(at, _)| *at)
    }

    /// Returns when a schedule is next due, and acted on.
    pub fn next_due(&self, key: &ScheduleKey) -> Option<(Timestamp, Timestamp)> {
        self.entries.get(key)?.next_due
    }

    /// Says whether there may be something to decide. To be asked at least every half minute, since
    /// nothing else tells of a clock that was set back.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.is_clock_set_back(now) || self.wake_at().is_some_and(|at| at <= now)
    }

    /// Decides about everything that is due, at most `limit` schedules, earliest first. `busy` says
    /// that a schedule's last start is still at work.
    pub fn decide_due(
        &mut self,
        now: Timestamp,
        limit: usize,
        busy: impl Fn(&ScheduleKey) -> bool,
    ) -> Vec<(ScheduleKey, DueTimeDecision)> {
        self.handle_clock_set_back(now);
        let ready = self.wake_times.iter().take_while(|(at, _)| *at <= now).take(limit);
        ready
            .filter_map(|(_, key)| {
                let entry = self.entries.get(key)?;
                Some((key.clone(), entry.timetable.decide_due(entry.cursor, now, busy(key))))
            })
            .collect()
    }

    /// Takes over the mark of a verdict that is committed.
    pub fn commit_cursor(&mut self, key: &ScheduleKey, mark: DueTimeCursor, now: Timestamp) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.cursor = mark;
            self.update_wake_time(key, now);
        }
    }

    /// Looks at every schedule at once whose mark lies ahead of a clock that was set back.
    fn handle_clock_set_back(&mut self, now: Timestamp) {
        if !self.is_clock_set_back(now) {
            return;
        }
        let (ahead, others): (Vec<_>, Vec<_>) =
            self.entries.iter().partition(|(_, entry)| is_ahead_of_clock(entry.cursor, now));
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
        if let Some(wake) = entry.wake_at.take() {
            self.wake_times.remove(&(wake, key.clone()));
        }
        entry.next_due = entry.timetable.next_due(entry.cursor);
        entry.wake_at = if is_ahead_of_clock(entry.cursor, now) {
            Some(WAKE_NOW)
        } else {
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
