//! The due times themselves: a grid, or a cron expression in a zone.
//!
//! A rule is a set of moments; every question about it is answered from [`Rule::next_after`], so that
//! no two answers disagree about a gap or a repeated hour.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{COUNTED_MAX, earlier};
use crate::config::{CronExpr, Trigger};

/// How far back to look for the latest due times, at first.
const LOOK_BACK: Duration = Duration::from_secs(60 * 60);

/// What makes due times.
#[derive(Debug, Clone)]
pub(super) enum Rule {
    /// A grid with this many milliseconds between two.
    Every(i64),
    /// The clock.
    Cron { expr: CronExpr, zone: TimeZone },
}

impl Rule {
    pub(super) fn of(trigger: &Trigger, local: &TimeZone) -> Option<Rule> {
        match trigger {
            Trigger::Every(period) => Some(Rule::Every(period.get().as_millis() as i64)),
            Trigger::Cron { expr, zone } => {
                let zone = zone.as_ref().map_or(local, |zone| zone.zone());
                Some(Rule::Cron { expr: expr.clone(), zone: zone.clone() })
            }
            Trigger::Watch { .. } | Trigger::Webhook(_) | Trigger::Chat => None,
        }
    }

    /// Returns the first due time after a moment.
    pub(super) fn next_after(&self, anchor: Timestamp, after: Timestamp) -> Option<Timestamp> {
        match self {
            Rule::Every(period) => {
                let passed = after.as_millisecond() - anchor.as_millisecond();
                let next = (passed.div_euclid(*period) + 1).max(0);
                let at = next.checked_mul(*period)?.checked_add(anchor.as_millisecond())?;
                Timestamp::from_millisecond(at).ok()
            }
            Rule::Cron { expr, zone } => {
                expr.next_after(&after.to_zoned(zone.clone())).map(|next| next.timestamp())
            }
        }
    }

    /// Returns the latest due times after `after` and up to `until`, at most so many, in order.
    pub(super) fn latest(
        &self,
        anchor: Timestamp,
        after: Timestamp,
        until: Timestamp,
        most: usize,
    ) -> Vec<Timestamp> {
        let mut back = match self {
            Rule::Every(period) => Duration::from_millis(period.unsigned_abs() * most as u64),
            Rule::Cron { .. } => LOOK_BACK,
        };
        loop {
            let from = earlier(until, back).max(after);
            let mut found = Vec::new();
            let mut at = from;
            while let Some(due) = self.next_after(anchor, at).filter(|&due| due <= until) {
                found.push(due);
                at = due;
            }
            if found.len() >= most || from == after {
                return found.split_off(found.len().saturating_sub(most));
            }
            back = back.saturating_mul(8);
        }
    }

    /// Counts the due times after `after` and up to `until`, one of them.
    pub(super) fn count(&self, anchor: Timestamp, after: Timestamp, until: Timestamp) -> u64 {
        match self {
            Rule::Every(period) => {
                let Some(first) = self.next_after(anchor, after) else { return 0 };
                let span = until.as_millisecond() - first.as_millisecond();
                span.div_euclid(*period).saturating_add(1).max(0) as u64
            }
            Rule::Cron { .. } => {
                let (mut count, mut at) = (0, after);
                while let Some(due) = self.next_after(anchor, at).filter(|&due| due <= until) {
                    (count, at) = (count + 1, due);
                    if count == COUNTED_MAX {
                        break;
                    }
                }
                count
            }
        }
    }
}
