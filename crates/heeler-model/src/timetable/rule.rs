//! Rule that generates due times: a grid, or a cron expression in a time zone.
//!
//! Every method except the grid's arithmetic builds on [`DueTimeRule::next_after`], so that no two
//! answers disagree about a gap or a repeated hour.

use std::time::Duration;

use heeler_config::{CronExpr, ScheduleTrigger};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{SKIP_COUNT_MAX, saturating_sub};

/// Initial span that is searched backwards for the latest due times.
const LOOKBACK_INITIAL: Duration = Duration::from_secs(60 * 60);

/// Set of due times.
#[derive(Debug, Clone)]
pub(super) enum DueTimeRule {
    /// Grid with this many milliseconds between due times.
    Every(i64),
    Cron {
        expr: CronExpr,
        zone: TimeZone,
    },
}

impl DueTimeRule {
    pub(super) fn from_trigger(trigger: &ScheduleTrigger, local: &TimeZone) -> Option<DueTimeRule> {
        match trigger {
            ScheduleTrigger::Interval(period) => {
                // The config limits a period to years, so its milliseconds fit.
                Some(DueTimeRule::Every(period.get().as_millis() as i64))
            }
            ScheduleTrigger::Cron { expr, zone } => {
                let zone = zone.as_ref().map_or(local, |zone| zone.zone());
                Some(DueTimeRule::Cron { expr: expr.clone(), zone: zone.clone() })
            }
            // These are fired by an event, not by time.
            ScheduleTrigger::Watch { .. } | ScheduleTrigger::Webhook(_) | ScheduleTrigger::Chat => {
                None
            }
        }
    }

    /// Returns the first due time after a moment.
    pub(super) fn next_after(&self, anchor: Timestamp, after: Timestamp) -> Option<Timestamp> {
        match self {
            DueTimeRule::Every(period) => {
                let passed = after.as_millisecond() - anchor.as_millisecond();
                // Never before the anchor, even if the clock was set back behind it.
                let next = (passed.div_euclid(*period) + 1).max(0);
                // A grid that leaves the range of time has no further due times.
                let at = next.checked_mul(*period)?.checked_add(anchor.as_millisecond())?;
                Timestamp::from_millisecond(at).ok()
            }
            DueTimeRule::Cron { expr, zone } => {
                // Computed in the zone, so a change of daylight saving time is the cron
                // expression's concern.
                expr.next_after(&after.to_zoned(zone.clone())).map(|next| next.timestamp())
            }
        }
    }

    /// Returns the latest due times after `after` and up to `until`, at most `most`, in order.
    pub(super) fn latest(
        &self,
        anchor: Timestamp,
        after: Timestamp,
        until: Timestamp,
        most: usize,
    ) -> Vec<Timestamp> {
        let mut back = match self {
            DueTimeRule::Every(period) => {
                // The grid is regular, so the first search finds all of them.
                Duration::from_millis(period.unsigned_abs() * most as u64)
            }
            // Cron expressions can only be walked forwards, so the search begins shortly before the
            // end.
            DueTimeRule::Cron { .. } => LOOKBACK_INITIAL,
        };
        loop {
            let from = saturating_sub(until, back).max(after);
            let mut found = Vec::new();
            let mut at = from;
            while let Some(due) = self.next_after(anchor, at).filter(|&due| due <= until) {
                found.push(due);
                at = due;
            }
            // A search that began at `after` has seen everything there is.
            if found.len() >= most || from == after {
                return found.split_off(found.len().saturating_sub(most));
            }
            // A sparse expression may fire once a year, so the span grows quickly.
            back = back.saturating_mul(8);
        }
    }

    /// Counts the due times after `after` and up to `until`, which must be a due time.
    pub(super) fn count(&self, anchor: Timestamp, after: Timestamp, until: Timestamp) -> u64 {
        match self {
            DueTimeRule::Every(period) => {
                let Some(first) = self.next_after(anchor, after) else { return 0 };
                let span = until.as_millisecond() - first.as_millisecond();
                span.div_euclid(*period).saturating_add(1).max(0) as u64
            }
            DueTimeRule::Cron { .. } => {
                let (mut count, mut at) = (0, after);
                while let Some(due) = self.next_after(anchor, at).filter(|&due| due <= until) {
                    (count, at) = (count + 1, due);
                    // A cron expression of each second over years would take long to count.
                    if count == SKIP_COUNT_MAX {
                        break;
                    }
                }
                count
            }
        }
    }
}
