//! The effect of a run's end on the budgets.

use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::run::RunResult;

/// Effect of a run's end on the budgets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetSettlement {
    /// Reserved amount, which is released.
    pub released: Option<i64>,
    /// Day on which the cost counts.
    pub day: Date,
    /// Cost in millionths of a dollar.
    pub spent: i64,
}

impl BudgetSettlement {
    /// Computes the cost of a run. If the run reported no cost, or its runner died, the whole
    /// reservation counts. The cost counts on the day of the reservation, not on the day the run ended.
    pub fn of_result(
        result: &RunResult,
        reservation: Option<(Date, i64)>,
        zone: &TimeZone,
    ) -> BudgetSettlement {
        let reserved = reservation.map(|(_, micros)| micros);
        BudgetSettlement {
            released: reserved,
            day: reservation
                .map_or_else(|| result.finished_at.to_zoned(zone.clone()).date(), |(day, _)| day),
            spent: spent_micros(result, reserved.unwrap_or(0)),
        }
    }
}

fn spent_micros(result: &RunResult, reserved: i64) -> i64 {
    let told = result.cost.usd.map(micros);
    match &result.settled {
        // The files of a run with a dead runner are no proof: its agent can write them. A smaller
        // amount than the reservation would let an agent kill its runner to spend more (P8).
        Some(settled) => {
            let least = settled.spent_usd_min.map_or(0, micros);
            told.unwrap_or(0).max(least).max(reserved)
        }
        // If the cost is unknown, counting nothing would let a budget be exceeded.
        None => told.unwrap_or(reserved),
    }
}

/// Converts dollars to millionths.
pub fn micros(usd: f64) -> i64 {
    // The cast saturates, and NaN becomes 0.
    (usd * 1e6).round().max(0.0) as i64
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::run::{RunCost, RunRecovery};
    use crate::{JobId, RunId};

    #[test]
    fn the_whole_reservation_counts_if_the_cost_is_unknown_or_the_runner_died() {
        let now = Timestamp::UNIX_EPOCH;
        let (run, job) = (RunId::mint(now, [1; 10]), JobId::mint(now, 7));
        let spent = |usd: Option<f64>, settled: Option<Option<f64>>, reserved: Option<i64>| {
            let cost = RunCost { usd, ..RunCost::default() };
            let settled = settled
                .map(|spent_usd_min| RunRecovery { spent_usd_min, ..RunRecovery::default() });
            let base = RunResult::never_started(run, job.clone(), "", now);
            let result = RunResult { cost, settled, ..base };
            let reservation = reserved.map(|micros| (Date::MIN, micros));
            BudgetSettlement::of_result(&result, reservation, &TimeZone::UTC).spent
        };
        assert_eq!(spent(Some(0.25), None, Some(900_000)), 250_000);
        assert_eq!(spent(None, None, Some(900_000)), 900_000);
        assert_eq!(spent(None, None, None), 0);
        for forged in [Some(0.0), Some(-1.0), Some(f64::NAN), None] {
            assert_eq!(spent(forged, Some(None), Some(900_000)), 900_000);
            assert_eq!(spent(forged, Some(forged), Some(900_000)), 900_000);
        }
        assert_eq!(spent(None, Some(Some(1.5)), Some(900_000)), 1_500_000);
        assert_eq!(spent(Some(0.25), Some(None), None), 250_000);
    }
}
