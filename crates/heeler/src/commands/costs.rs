//! `heeler costs`: the fleet's spending, by the prices that agents report. Start at [`run`].

use clap::{Args, ValueEnum};
use heeler_query::costs::CostGrouping;

use crate::context::CommandContext;
use crate::failure::CommandResult;
use crate::global_args::GlobalArgs;
use crate::output::{self, OutputTable, SafeText};
use crate::process_env;
use crate::time_argument;

/// Help footer of `costs`.
pub(crate) const ABOUT: &str = "Examples:
  heeler costs
  heeler costs --by day --since 7d
  heeler costs --by model --json

Costs are as reported by the agents. Days are in this machine's time zone. `budget` in the config
limits spending, and `heeler status` warns when a budget is nearly spent.
Exit codes: 0 printed, 2 invalid time.";

/// Arguments of `costs`.
#[derive(Args)]
pub(crate) struct CostsArgs {
    /// Group costs by this
    #[arg(long, value_name = "GROUP", default_value = "agent")]
    by: CostGroupingArg,
    /// Count costs from the start of this day: an age (7d) or a date
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

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

/// Runs `costs`.
pub(crate) fn run(global: &GlobalArgs, args: &CostsArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    let since = args
        .since
        .as_deref()
        .map(|text| time_argument::parse_moment(text, process_env::now()))
        .transpose()?;
    let records = context.open_records()?;
    let costs = records.costs(args.by.into(), since)?;
    if args.json {
        return Ok(output::print_json(&costs)?);
    }
    if costs.costs.is_empty() {
        return Ok(output::print_line("nothing spent")?);
    }
    // Shares are computed from integers, so that rounding of dollars cannot distort them.
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
    lines.print()?;
    // Costs without a model are those that no agent has reported.
    let by_model = records.costs(CostGrouping::Model, since)?;
    match by_model.costs.iter().find(|item| item.name() == MODEL_UNKNOWN && item.micros > 0) {
        Some(unknown) => Ok(output::print_note(&format!(
            "{} of it was reported by no agent: a run that ended before it reported its cost \
             counts with its whole reservation; heeler jobs show ID says so",
            dollars(unknown.cost_usd)
        ))?),
        None => Ok(()),
    }
}

/// Model of costs that belong to none.
const MODEL_UNKNOWN: &str = "unknown";

/// Formats an amount with four decimals.
pub(crate) fn dollars(usd: f64) -> String {
    format!("${usd:.4}")
}
