//! `heeler costs`: what the fleet has spent, by the agents' own price figures.

use clap::{Args, ValueEnum};
use heeler_store::Spent;
use indexmap::IndexMap;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use crate::cli::Global;
use crate::failure::Outcome;
use crate::output::{self, Lines, Text};
use crate::place::{self, Place};
use crate::since;

/// What the help shows at its end.
pub(crate) const ABOUT: &str = "Examples:
  heeler costs
  heeler costs --by day --since 7d
  heeler costs --by model --json

What agents say they cost; days are those of this machine's time zone. `budget` in the config limits
it, and `heeler status` tells when one is nearly spent.
Exit codes: 0 summed up, 2 no such time.";

/// Arguments of `costs`.
#[derive(Args)]
pub(crate) struct CostsArgs {
    /// What to sum up by
    #[arg(long, value_name = "WHAT", default_value = "agent")]
    by: By,
    /// Only what was spent since: a length (7d) or a date; whole days count
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What costs are summed up by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    Agent,
    Day,
    Model,
}

impl By {
    fn word(self) -> &'static str {
        match self {
            By::Agent => "agent",
            By::Day => "day",
            By::Model => "model",
        }
    }

    fn key(self, spent: &Spent) -> String {
        match self {
            By::Agent => spent.agent.clone(),
            By::Day => spent.day.to_string(),
            By::Model => spent.model.clone(),
        }
    }
}

/// Sums up and prints.
pub(crate) fn run(global: &Global, args: &CostsArgs) -> Outcome {
    let place = Place::find(global)?;
    let since = args.since.as_deref().map(|text| since::moment(text, place::now())).transpose()?;
    let since = since.map(|at| at.to_zoned(TimeZone::system()).date());
    let rows = match place.reader()? {
        Some(reader) => reader.spending(since)?,
        None => Vec::new(),
    };
    let sums = sum_up(&rows, args.by);
    let total: i64 = rows.iter().map(|spent| spent.micros).sum();
    if args.json {
        return Ok(output::json(&to_json(&sums, total, args.by))?);
    }
    if sums.is_empty() {
        return Ok(output::line("nothing spent")?);
    }
    let mut lines = Lines::new(&[&args.by.word().to_uppercase(), "COST", "SHARE"], &[]);
    for (key, micros) in &sums {
        let share = if total > 0 { micros * 100 / total } else { 0 };
        lines.push(vec![
            output::one_line(key).into(),
            dollars(*micros).into(),
            format!("{share}%").into(),
        ]);
    }
    lines.push(vec![Text::from("total"), dollars(total).into(), Text::default()]);
    Ok(lines.print()?)
}

/// Adds up what has the same key: days in their order, everything else by what it cost.
fn sum_up(rows: &[Spent], by: By) -> Vec<(String, i64)> {
    let mut sums: IndexMap<String, i64> = IndexMap::new();
    for spent in rows {
        *sums.entry(by.key(spent)).or_default() += spent.micros;
    }
    let mut sums: Vec<(String, i64)> = sums.into_iter().collect();
    match by {
        By::Day => sums.sort(),
        By::Agent | By::Model => {
            sums.sort_by(|(name, spent), (other, more)| more.cmp(spent).then(name.cmp(other)));
        }
    }
    sums
}

/// Returns millionths of a dollar as people read them.
pub(crate) fn dollars(micros: i64) -> String {
    format!("${:.4}", micros as f64 / 1e6)
}

fn to_json(sums: &[(String, i64)], total: i64, by: By) -> Value {
    let usd = |micros: i64| micros as f64 / 1e6;
    let costs: Vec<Value> = sums
        .iter()
        .map(|(key, micros)| json!({ by.word(): key, "costUsd": usd(*micros) }))
        .collect();
    json!({ "by": by.word(), "costs": costs, "totalUsd": usd(total) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spent(day: &str, agent: &str, model: &str, micros: i64) -> Spent {
        let (agent, model) = (agent.to_owned(), model.to_owned());
        Spent { day: day.parse().unwrap(), agent, model, micros }
    }

    #[test]
    fn days_come_in_order_and_everything_else_by_what_it_cost() {
        let rows = [
            spent("2026-11-15", "b", "opus", 3),
            spent("2026-11-14", "a", "opus", 1),
            spent("2026-11-14", "b", "haiku", 4),
        ];
        let by = |by| sum_up(&rows, by).into_iter().collect::<Vec<_>>();
        assert_eq!(by(By::Agent), [("b".to_owned(), 7), ("a".to_owned(), 1)]);
        assert_eq!(by(By::Day), [("2026-11-14".to_owned(), 5), ("2026-11-15".to_owned(), 3)]);
        assert_eq!(by(By::Model), [("haiku".to_owned(), 4), ("opus".to_owned(), 4)]);
    }
}
