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
    /// Computes the cost of a run. If the run reported no cost, the whole reservation counts. The
    /// cost counts on the day of the reservation, not on the day the run ended.
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
            spent: match result.cost.usd {
                Some(usd) => micros(usd),
                // The cost is unknown; counting nothing would let a budget be exceeded (P8).
                None => reserved.unwrap_or(0),
            },
        }
    }
}

/// Converts dollars to millionths.
pub fn micros(usd: f64) -> i64 {
    // The cast saturates, and NaN becomes 0.
    (usd * 1e6).round().max(0.0) as i64
}
