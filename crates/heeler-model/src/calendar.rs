//! All schedules of a fleet that time starts, and which of them is due next.
//!
//! It holds a [`Timetable`] and a [`Mark`] for each, and wakes nobody for what is not due. Whoever
//! asks what is due commits the verdicts and then [accepts](Calendar::accept) their marks: what was
//! not committed is due again. Start at [`Calendar::due`].

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use jiff::Timestamp;

use crate::timetable::{Mark, SET_BACK_MIN, Timetable, Verdict};

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
pub struct Calendar {
    entries: HashMap<ScheduleKey, Entry>,
    /// When each is to be looked at, earliest first.
    wakes: BTreeSet<(Timestamp, ScheduleKey)>,
    /// No mark lies after this but those of schedules that are looked at at once: a clock that is
    /// behind it was set back.
    marked_until: Timestamp,
}

#[derive(Debug, Clone)]
struct Entry {
    table: Timetable,
    mark: Mark,
    /// When it is next due, and acted on.
    next: Option<(Timestamp, Timestamp)>,
    /// When it is looked at.
    wake: Option<Timestamp>,
}

/// Looked at at once, whatever the clock says.
const AT_ONCE: Timestamp = Timestamp::MIN;

impl Calendar {
    /// Adds a schedule, or replaces it.
    pub fn put(&mut self, key: ScheduleKey, table: Timetable, mark: Mark, now: Timestamp) {
        self.remove(&key);
        self.entries.insert(key.clone(), Entry { table, mark, next: None, wake: None });
        self.plan(&key, now);
    }

    /// Takes a schedule away.
    pub fn remove(&mut self, key: &ScheduleKey) {
        if let Some(Entry { wake: Some(wake), .. }) = self.entries.remove(key) {
            self.wakes.remove(&(wake, key.clone()));
        }
    }

    /// Returns when something is to be looked at next.
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.wakes.first().map(|(at, _)| *at)
    }

    /// Returns when a schedule is next due, and acted on.
    pub fn next(&self, key: &ScheduleKey) -> Option<(Timestamp, Timestamp)> {
        self.entries.get(key)?.next
    }

    /// Says whether there may be something to decide. To be asked at least every half minute, since
    /// nothing else tells of a clock that was set back.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.is_set_back(now) || self.wake_at().is_some_and(|at| at <= now)
    }

    /// Decides about everything that is due, at most `limit` schedules, earliest first. `busy` says
    /// that a schedule's last start is still at work.
    pub fn due(
        &mut self,
        now: Timestamp,
        limit: usize,
        busy: impl Fn(&ScheduleKey) -> bool,
    ) -> Vec<(ScheduleKey, Verdict)> {
        self.notice_set_back(now);
        let ready = self.wakes.iter().take_while(|(at, _)| *at <= now).take(limit);
        ready
            .filter_map(|(_, key)| {
                let entry = self.entries.get(key)?;
                Some((key.clone(), entry.table.step(entry.mark, now, busy(key))))
            })
            .collect()
    }

    /// Takes over the mark of a verdict that is committed.
    pub fn accept(&mut self, key: &ScheduleKey, mark: Mark, now: Timestamp) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.mark = mark;
            self.plan(key, now);
        }
    }

    /// Looks at every schedule at once whose mark lies ahead of a clock that was set back.
    fn notice_set_back(&mut self, now: Timestamp) {
        if !self.is_set_back(now) {
            return;
        }
        let (ahead, others): (Vec<_>, Vec<_>) =
            self.entries.iter().partition(|(_, entry)| is_ahead(entry.mark, now));
        self.marked_until =
            others.iter().map(|(_, entry)| entry.mark.through).max().unwrap_or(Timestamp::MIN);
        let ahead: Vec<ScheduleKey> = ahead.into_iter().map(|(key, _)| key.clone()).collect();
        ahead.iter().for_each(|key| self.plan(key, now));
    }

    fn is_set_back(&self, now: Timestamp) -> bool {
        earlier(self.marked_until) > now
    }

    fn plan(&mut self, key: &ScheduleKey, now: Timestamp) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if let Some(wake) = entry.wake.take() {
            self.wakes.remove(&(wake, key.clone()));
        }
        entry.next = entry.table.next(entry.mark);
        entry.wake = if is_ahead(entry.mark, now) {
            Some(AT_ONCE)
        } else {
            self.marked_until = self.marked_until.max(entry.mark.through);
            entry.next.map(|(_, acted_on)| acted_on)
        };
        if let Some(wake) = entry.wake {
            self.wakes.insert((wake, key.clone()));
        }
    }
}

fn is_ahead(mark: Mark, now: Timestamp) -> bool {
    earlier(mark.through) > now
}

fn earlier(at: Timestamp) -> Timestamp {
    at.checked_sub(SET_BACK_MIN).unwrap_or(Timestamp::MIN)
}
