//! `heeler costs`: what the fleet has spent, by the agents' own price figures.

use clap::{Args, ValueEnum};
use heeler_query::costs::CostGrouping;

use crate::cli::GlobalArgs;
use crate::context::{self, CommandContext};
use crate::failure::CommandResult;
use crate::output::{self, OutputTable, SafeText};
use crate::time_argument;

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
    by: CostGroupingArg,
    /// Only what was spent since: a length (7d) or a date; whole days count
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What costs are summed up by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CostGroupingArg {
    Agent,
    Day,
    Model,
}

impl From<CostGroupingArg> for CostGrouping {
    fn from(by: CostGroupingArg) -> CostGrouping {
        match by {
            CostGroupingArg::Agent => CostGrouping::Agent,
            CostGroupingArg::Day => CostGrouping::Day,
            CostGroupingArg::Model => CostGrouping::Model,
        }
    }
}

/// Sums up and prints.
pub(crate) fn run(global: &GlobalArgs, args: &CostsArgs) -> CommandResult {
    let place = CommandContext::find(global)?;
    let since = args
        .since
        .as_deref()
        .map(|text| time_argument::parse_moment(text, context::now()))
        .transpose()?;
    let costs = place.open_records()?.costs(args.by.into(), since)?;
    if args.json {
        return Ok(output::print_json(&costs)?);
    }
    if costs.costs.is_empty() {
        return Ok(output::print_line("nothing spent")?);
    }
    let total: i64 = costs.costs.iter().map(|item| item.micros).sum();
    let mut lines = OutputTable::new(&[&costs.by.as_str().to_uppercase(), "COST", "SHARE"], &[]);
    for item in &costs.costs {
        let share = if total > 0 { item.micros * 100 / total } else { 0 };
        lines.push(vec![
            output::one_line(item.name()).into(),
            dollars(item.cost_usd).into(),
            format!("{share}%").into(),
        ]);
    }
    lines.push(vec![SafeText::from("total"), dollars(costs.total_usd).into(), SafeText::default()]);
    Ok(lines.print()?)
}

/// Returns an amount as people read it.
pub(crate) fn dollars(usd: f64) -> String {
    format!("${usd:.4}")
}
