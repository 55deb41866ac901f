//! Money spent by the fleet, as reported by the agents.

use heeler_store::DailySpendRecord;
use indexmap::IndexMap;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::agents::micros_to_usd;
use crate::{FleetReader, QueryError};

/// Grouping of costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, serde::Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum CostGrouping {
    /// By agent.
    Agent,
    /// By day in the fleet's time zone.
    Day,
    /// By model.
    Model,
}

impl CostGrouping {
    pub fn as_str(self) -> &'static str {
        match self {
            CostGrouping::Agent => "agent",
            CostGrouping::Day => "day",
            CostGrouping::Model => "model",
        }
    }

    fn key(self, spent: &DailySpendRecord) -> String {
        match self {
            CostGrouping::Agent => spent.agent.clone(),
            CostGrouping::Day => spent.day.to_string(),
            CostGrouping::Model => spent.model.clone(),
        }
    }
}

/// Money spent.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CostReport {
    /// Grouping of the costs.
    pub by: CostGrouping,
    /// Costs per group: days in chronological order, other groups by cost.
    pub costs: Vec<CostSummary>,
    /// Total, in US dollars.
    pub total_usd: f64,
}

/// Money spent by one agent, on one day or on one model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CostSummary {
    /// Name of the agent, if grouped by agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Day, if grouped by day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub day: Option<String>,
    /// Model, if grouped by model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Cost in US dollars.
    pub cost_usd: f64,
    /// Cost in millionths of a US dollar.
    #[serde(skip)]
    pub micros: i64,
}

impl CostSummary {
    fn of(by: CostGrouping, name: String, micros: i64) -> CostSummary {
        let sum = CostSummary { cost_usd: micros_to_usd(micros), micros, ..CostSummary::default() };
        match by {
            CostGrouping::Agent => CostSummary { agent: Some(name), ..sum },
            CostGrouping::Day => CostSummary { day: Some(name), ..sum },
            CostGrouping::Model => CostSummary { model: Some(name), ..sum },
        }
    }

    /// Returns the name of the agent, the day or the model.
    pub fn name(&self) -> &str {
        // Only the field of the grouping is set.
        let name = self.agent.as_ref().or(self.day.as_ref()).or(self.model.as_ref());
        name.map_or("", String::as_str)
    }
}

/// Adds up rows with the same key.
fn sum_costs(rows: &[DailySpendRecord], by: CostGrouping) -> Vec<CostSummary> {
    let mut sums: IndexMap<String, i64> = IndexMap::new();
    for spent in rows {
        // Integers, so that the sums are exact.
        *sums.entry(by.key(spent)).or_default() += spent.micros;
    }
    let mut sums: Vec<(String, i64)> = sums.into_iter().collect();
    match by {
        // Days are ISO dates, so the order by text is the order by time.
        CostGrouping::Day => sums.sort(),
        CostGrouping::Agent | CostGrouping::Model => {
            sums.sort_by(|(name, spent), (other, more)| more.cmp(spent).then(name.cmp(other)));
        }
    }
    sums.into_iter().map(|(name, micros)| CostSummary::of(by, name, micros)).collect()
}

impl FleetReader {
    /// Returns the costs since the day of `since`, or all costs.
    pub fn costs(
        &self,
        by: CostGrouping,
        since: Option<Timestamp>,
    ) -> Result<CostReport, QueryError> {
        let known = self.context();
        // Spending is recorded by day of the fleet's time zone, so the time is rounded to a day.
        let rows = self.reader()?.daily_spend_since(since.map(|at| known.today(at)))?;
        let total: i64 = rows.iter().map(|spent| spent.micros).sum();
        Ok(CostReport { by, costs: sum_costs(&rows, by), total_usd: micros_to_usd(total) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spent(day: &str, agent: &str, model: &str, micros: i64) -> DailySpendRecord {
        let (agent, model) = (agent.to_owned(), model.to_owned());
        DailySpendRecord { day: day.parse().unwrap(), agent, model, micros }
    }

    #[test]
    fn days_come_in_order_and_everything_else_by_what_it_cost() {
        let rows = [
            spent("2026-11-15", "b", "opus", 3),
            spent("2026-11-14", "a", "opus", 1),
            spent("2026-11-14", "b", "haiku", 4),
        ];
        let by = |by| {
            let sums = sum_costs(&rows, by).into_iter();
            sums.map(|item| (item.name().to_owned(), item.micros)).collect::<Vec<_>>()
        };
        assert_eq!(by(CostGrouping::Agent), [("b".to_owned(), 7), ("a".to_owned(), 1)]);
        assert_eq!(
            by(CostGrouping::Day),
            [("2026-11-14".to_owned(), 5), ("2026-11-15".to_owned(), 3)]
        );
        assert_eq!(by(CostGrouping::Model), [("haiku".to_owned(), 4), ("opus".to_owned(), 4)]);
        let item = serde_json::to_value(&sum_costs(&rows, CostGrouping::Agent)[1]).unwrap();
        assert_eq!(item, serde_json::json!({ "agent": "a", "costUsd": 0.000001 }));
    }
}
