//! `heeler costs`: the fleet's spending, by the prices that agents report. Start at [`run`].

use clap::{Args, Subcommand, ValueEnum};
use heeler_engine::DaemonCommand;
use heeler_model::format_usd;
use heeler_query::costs::CostGrouping;

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::CommandResult;
use crate::global_args::GlobalArgs;
use crate::output::{self, OutputTable, SafeText};
use crate::process_env;
use crate::shared_args;
use crate::time_argument;

/// Help footer of `costs`.
pub(crate) const ABOUT: &str = "Examples:
  heeler costs
  heeler costs --by day --since 7d
  heeler costs --by model --json
  heeler costs set job-2026-01-19-abc123 0.42

Costs are as reported by the agents. Days are in this machine's time zone. `budget` in the config
limits spending, and `heeler status` warns when a budget is nearly spent.
Exit codes: 0 printed, 2 invalid time.";

/// Help footer of `costs set`.
const ABOUT_SET: &str = "Examples:
  heeler costs set job-2026-01-19-abc123 0.42
  heeler costs set abc123 0

A run that ends before its agent reports a cost counts with its whole reservation, so that no agent
can spend more than its budget. If you know the cost, for example from the provider's console, set
it: the budgets have the rest again. The amount is the cost of the whole job. You may set it again.
Agents cannot use this command.
Exit codes: 0 set, 2 invalid amount, 4 no such job, 5 the cost is known or the job has not ended.";

/// Arguments of `costs`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct CostsArgs {
    #[command(subcommand)]
    command: Option<CostsCommand>,
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

#[derive(Subcommand)]
enum CostsCommand {
    /// Set the cost of a job whose agent reported none
    #[command(after_help = ABOUT_SET)]
    Set(CostSetArgs),
}

#[derive(Args)]
struct CostSetArgs {
    /// Job ID or unique prefix
    #[arg(value_name = "ID", add = shared_args::jobs())]
    id: String,
    /// Cost of the job in US dollars
    #[arg(value_name = "USD", value_parser = parse_cost)]
    usd: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Highest cost that a job can have, in dollars.
const COST_MAX: f64 = 1e6;

fn parse_cost(text: &str) -> Result<f64, String> {
    let usd = text.strip_prefix('$').unwrap_or(text).parse::<f64>();
    let usd = usd.map_err(|_| "it is not an amount, such as 0.42".to_owned())?;
    match (0.0..=COST_MAX).contains(&usd) {
        true => Ok(usd),
        false => Err(format!("it must be between 0 and {COST_MAX}")),
    }
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
    if let Some(CostsCommand::Set(args)) = &args.command {
        return set(&context, args);
    }
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
            format_usd(item.cost_usd).into(),
            format!("{share}%").into(),
        ]);
    }
    lines.push(vec![
        SafeText::from("total"),
        format_usd(costs.total_usd).into(),
        SafeText::default(),
    ]);
    lines.print()?;
    // Costs without a model are those that no agent has reported.
    let by_model = records.costs(CostGrouping::Model, since)?;
    match by_model.costs.iter().find(|item| item.name() == MODEL_UNKNOWN && item.micros > 0) {
        Some(unknown) => Ok(output::print_note(&format!(
            "{} of it was reported by no agent: a run that ended before it reported its cost \
             counts with its whole reservation; heeler jobs show ID says so, and heeler costs set ID USD \
             replaces it",
            format_usd(unknown.cost_usd)
        ))?),
        None => Ok(()),
    }
}

/// Runs `costs set`.
fn set(context: &CommandContext, args: &CostSetArgs) -> CommandResult {
    context.migrate_database()?;
    let reader = context.reader_for("job", &args.id)?;
    let job = reader.find_job(&args.id)?.head.id;
    drop(reader);
    let micros = heeler_model::fleet::micros(args.usd);
    let command = DaemonCommand::SetJobCost { job, micros, by: context.caller_name() };
    daemon::print_answer(&daemon::request(context, &command)?, args.json)
}

/// Model of costs that belong to none.
const MODEL_UNKNOWN: &str = "unknown";
