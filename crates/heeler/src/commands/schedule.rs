//! `heeler schedule`: lists, shows and changes schedules.
//!
//! Lists are read from the config and the database; changes are requests to the daemon. Start at
//! [`run`].

use std::fs::File;
use std::io::Read as _;

use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args, Subcommand};
use heeler_config::ScheduleTrigger;
use heeler_engine::{DaemonCommand, ScheduleChange, WEBHOOK_BYTES_MAX, WebhookCall};
use heeler_model::ScheduleStatus;
use heeler_model::timetable::SkipReason;
use heeler_query::schedules::{ScheduleDetails, ScheduleOverrideSummary, ScheduleSummary};
use jiff::Timestamp;
use serde_json::json;

use crate::commands::status::StateWriterInfo;
use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::global_args::GlobalArgs;
use crate::output::{self, OutputTable, SafeText};
use crate::process_env;
use crate::shared_args;

/// Help footer of `schedule list`.
const LIST: &str = "Examples:
  heeler schedule list
  heeler schedule list coder --json

Exit codes: 0 listed, 4 no such agent.";

/// Help footer of `schedule enable`, `disable` and `reset`.
const CHANGE: &str = "Examples:
  heeler schedule disable coder nightly
  heeler schedule reset coder nightly

Each change is recorded with its author and time. `heeler schedule reset` undoes all changes. Starts a
temporary daemon if none runs.
Exit codes: 0 changed, 4 not found.";

#[derive(Subcommand)]
pub(crate) enum ScheduleCommand {
    /// List schedules with their times, next run and manual changes
    #[command(after_help = LIST)]
    List(ScheduleListArgs),
    /// Show one schedule with its latest jobs and skipped due times
    #[command(
        after_help = "Example:\n  heeler schedule show coder nightly\n\nExit codes: 0 shown, 4 not found."
    )]
    Show(ScheduleTargetArgs),
    /// Enable a schedule, overriding the config
    #[command(after_help = CHANGE)]
    Enable(ScheduleTargetArgs),
    /// Disable a schedule, overriding the config
    #[command(after_help = CHANGE)]
    Disable(ScheduleTargetArgs),
    /// Run a schedule now
    #[command(
        after_help = "Examples:\n  heeler schedule trigger coder nightly\n  heeler schedule trigger coder push --payload event.json\n\nThe job runs in the background; starts a daemon if none runs. The schedule's times do not change.\n--payload is for schedules of type `webhook`. The rules for a received webhook then apply: a disabled
schedule starts no job, and `overlap` decides if an earlier job is still active.\nExit codes: 0 running or queued, 2 the payload cannot be sent, 4 not found, 5 refused."
    )]
    Trigger(ScheduleTriggerArgs),
    /// Change a schedule's times, overriding the config
    #[command(
        after_help = "Examples:\n  heeler schedule set coder nightly '0 3 * * *'\n  heeler schedule set coder nightly 30m\n\n`heeler schedule reset` undoes this. Starts a temporary daemon if none runs.\nExit codes: 0 set, 2 invalid time, 4 not found, 5 the schedule is of type `watch`."
    )]
    Set(ScheduleSetArgs),
    /// Remove all manual changes of a schedule
    #[command(after_help = CHANGE)]
    Reset(ScheduleTargetArgs),
}

/// Arguments of `schedule list`.
#[derive(Args)]
pub(crate) struct ScheduleListArgs {
    /// Show only this agent's schedules
    #[arg(add = shared_args::agents())]
    agent: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `schedule trigger`.
#[derive(Args)]
pub(crate) struct ScheduleTriggerArgs {
    #[command(flatten)]
    one: ScheduleTargetArgs,
    /// Send this file as a webhook payload; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    payload: Option<Utf8PathBuf>,
    /// Webhook delivery ID; an ID that was received before starts no job
    #[arg(long, value_name = "NAME", requires = "payload")]
    delivery: Option<String>,
}

/// Arguments of `schedule show`, `enable`, `disable` and `reset`.
#[derive(Args)]
pub(crate) struct ScheduleTargetArgs {
    /// Agent name
    #[arg(add = shared_args::agents())]
    agent: String,
    /// Schedule name
    schedule: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `schedule set`.
#[derive(Args)]
pub(crate) struct ScheduleSetArgs {
    /// Agent name
    #[arg(add = shared_args::agents())]
    agent: String,
    /// Schedule name
    schedule: String,
    /// Interval such as `30m`, or a cron expression
    #[arg(value_name = "WHEN")]
    text: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `schedule` and its subcommands.
pub(crate) fn run(global: &GlobalArgs, command: &ScheduleCommand) -> CommandResult {
    match command {
        ScheduleCommand::List(args) => list(global, args),
        ScheduleCommand::Show(args) => show(global, args),
        ScheduleCommand::Enable(args) => change(global, args, ScheduleChange::Enable),
        ScheduleCommand::Disable(args) => change(global, args, ScheduleChange::Disable),
        ScheduleCommand::Trigger(args) => match &args.payload {
            Some(file) => call_webhook(global, args, file),
            None => change(global, &args.one, ScheduleChange::Trigger),
        },
        ScheduleCommand::Reset(args) => change(global, args, ScheduleChange::Reset),
        ScheduleCommand::Set(ScheduleSetArgs { agent, schedule, text, json }) => {
            let args = ScheduleTargetArgs {
                agent: agent.clone(),
                schedule: schedule.clone(),
                json: *json,
            };
            refuse_watch(&CommandContext::find(global)?, &args)?;
            change(global, &args, ScheduleChange::Set { text: text.clone() })
        }
    }
}

/// Refuses times for a schedule of type `watch`; the daemon checks everything else.
fn refuse_watch(context: &CommandContext, args: &ScheduleTargetArgs) -> CommandResult {
    // The daemon may use an earlier, valid config, so it decides.
    let Ok(loaded) = fleet_config::load(context) else { return Ok(()) };
    let Ok(agent) = loaded.find_agent(&args.agent) else { return Ok(()) };
    let found = agent.schedules.iter().find(|it| it.name == args.schedule);
    let Some(ScheduleTrigger::Watch { .. }) = found.map(|it| &it.trigger) else { return Ok(()) };
    let message =
        format!("`{}` of `{}` is started by file changes, not by time", args.schedule, agent.name);
    Err(CommandFailure::message(FailureCode::Refused, message)
        .hint("heeler config edit changes its `paths`"))
}

fn change(global: &GlobalArgs, args: &ScheduleTargetArgs, change: ScheduleChange) -> CommandResult {
    let context = CommandContext::find(global)?;
    let command = DaemonCommand::Schedule {
        agent: args.agent.clone(),
        schedule: args.schedule.clone(),
        change,
        by: context.caller_name(),
    };
    daemon::print_answer(&daemon::request(&context, &command)?, args.json)
}

fn call_webhook(global: &GlobalArgs, args: &ScheduleTriggerArgs, file: &Utf8Path) -> CommandResult {
    let payload = read_payload(file)?;
    let ScheduleTargetArgs { agent, schedule, json } = &args.one;
    let (agent, schedule, delivery) = (agent.clone(), schedule.clone(), args.delivery.clone());
    let command = DaemonCommand::Webhook(Box::new(WebhookCall {
        agent,
        schedule,
        payload,
        delivery,
        mac: None,
        workflow: None,
    }));
    daemon::print_answer(&daemon::request(&CommandContext::find(global)?, &command)?, *json)
}

/// Reads the payload of a webhook.
fn read_payload(file: &Utf8Path) -> CommandResult<String> {
    let name = if file == "-" { "standard input" } else { file.as_str() };
    let usage = |why: String| {
        CommandFailure::message(FailureCode::Usage, format!("cannot send {name}: {why}"))
    };
    let mut bytes = Vec::new();
    // One byte more tells a payload of exactly this size from a longer one.
    let most = WEBHOOK_BYTES_MAX as u64 + 1;
    let read = match file.as_str() {
        "-" => std::io::stdin().lock().take(most).read_to_end(&mut bytes),
        _ => File::open(file).and_then(|file| file.take(most).read_to_end(&mut bytes)),
    };
    read.map_err(|error| usage(error.to_string()))?;
    if bytes.len() > WEBHOOK_BYTES_MAX {
        return Err(usage(format!("it is longer than {WEBHOOK_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| usage("it is not UTF-8 text".to_owned()))
}

/// Returns the schedule's status as a word.
fn status(it: &ScheduleSummary) -> &'static str {
    match it.status {
        ScheduleStatus::Running => "running",
        // A running job is shown before this, because it goes on although its agent is disabled.
        _ if it.agent_disabled => "agent disabled",
        _ if !it.enabled => "disabled",
        _ => "enabled",
    }
}

fn list(global: &GlobalArgs, args: &ScheduleListArgs) -> CommandResult {
    let now = process_env::now();
    let context = CommandContext::find(global)?;
    let writer = StateWriterInfo::find(&context)?;
    let records = context.open_records_with(Some(fleet_config::load(&context)?))?;
    let page = records.schedules(args.agent.as_deref())?;
    if args.json {
        return Ok(output::print_json(&page)?);
    }
    let shown = &page.schedules;
    match &args.agent {
        Some(agent) if shown.is_empty() => {
            return Ok(output::print_line(format!("{agent} has no schedule"))?);
        }
        None if shown.is_empty() => return Ok(output::print_line("no agent has a schedule")?),
        _ => {}
    }
    if let Some(warning) = writer.warning() {
        output::print_line(warning)?;
    }
    let headings =
        ["AGENT", "SCHEDULE", "WHEN", "STATUS", "NEXT", "LAST RUN", "CHANGED", "WORKFLOW"];
    // Few fleets schedule workflows, so the column is shown only if needed.
    let is_needed = shown.iter().any(|it| it.workflow.is_some());
    let columns = headings.len() - usize::from(!is_needed);
    let mut lines = OutputTable::new(&headings[..columns], &["WHEN", "CHANGED", "WORKFLOW"]);
    for it in shown {
        let mut cells: Vec<SafeText> = vec![
            output::one_line(&it.agent).into(),
            output::one_line(&it.name).into(),
            output::one_line(&it.when).into(),
            status(it).into(),
            it.next_run_at.map(|at| output::due_text(at, now)).unwrap_or_default().into(),
            it.last_run_at.map(|at| output::relative_time(at, now)).unwrap_or_default().into(),
            it.changed
                .as_ref()
                .map(|changed| changed_by_text(changed, now))
                .unwrap_or_default()
                .into(),
            it.workflow.as_deref().unwrap_or_default().into(),
        ];
        // The last cell belongs to the column that may be left out.
        cells.truncate(columns);
        lines.push(cells);
    }
    Ok(lines.print()?)
}

/// Formats the author and time of a manual change.
fn changed_by_text(changed: &ScheduleOverrideSummary, now: Timestamp) -> String {
    let what = match (changed.enabled, &changed.when) {
        (false, _) => "disabled",
        (true, Some(_)) => "set",
        (true, None) => "enabled",
    };
    let by = output::one_line(&changed.by);
    format!("{what} by {by} {}", output::relative_time(changed.at, now))
}

fn show(global: &GlobalArgs, args: &ScheduleTargetArgs) -> CommandResult {
    let now = process_env::now();
    let context = CommandContext::find(global)?;
    let records = context.open_records_with(Some(fleet_config::load(&context)?))?;
    let it = records.schedule(&args.agent, &args.schedule)?;
    match args.json {
        true => Ok(output::print_json(&json!({ "schedule": it }))?),
        false => print(&it, now),
    }
}

fn print(it: &ScheduleDetails, now: Timestamp) -> CommandResult {
    let moment = |at: Timestamp| {
        format!("{} ({})", heeler_model::iso_millis(at), output::relative_time(at, now))
    };
    let ScheduleDetails { item, prompt, starts, skips, .. } = it;
    let text = |text: &Option<String>| text.as_deref().map(SafeText::from);
    // Shown only if a person has changed it.
    let configured = Some(&item.configured).filter(|text| **text != item.when);
    let fields: [(&str, Option<SafeText>); 11] = [
        ("agent", Some(item.agent.as_str().into())),
        ("schedule", Some(item.name.as_str().into())),
        ("workflow", text(&item.workflow)),
        ("when", Some(output::one_line(&item.when).into())),
        ("in config", configured.map(|text| text.as_str().into())),
        ("status", Some(status(item).into())),
        ("changed", item.changed.as_ref().map(|changed| changed_by_text(changed, now).into())),
        ("next", item.next_run_at.map(|at| moment(at).into())),
        ("last run", item.last_run_at.map(|at| moment(at).into())),
        ("last error", text(&item.last_error)),
        ("prompt", prompt.as_deref().map(|it| output::truncate_chars(it, 200).into())),
    ];
    for (name, value) in fields {
        output::print_field(name, value)?;
    }
    if !starts.is_empty() {
        output::print_line("\nStarted")?;
    }
    for start in starts {
        output::print_line(format!("  {}  {}", moment(start.due_at), start.job))?;
    }
    if !skips.is_empty() {
        output::print_line("\nSkipped")?;
    }
    for skip in skips {
        let (first, last) = (moment(skip.first_due_at), moment(skip.last_due_at));
        let times = match skip.count {
            1 => first,
            count => format!("{count} times from {first} to {last}"),
        };
        output::print_line(format!("  {times}: {}", skip_reason_text(skip.reason)))?;
    }
    Ok(())
}

/// Explains why due times got no run.
fn skip_reason_text(reason: SkipReason) -> &'static str {
    match reason {
        SkipReason::Missed => "no daemon was running, and `missed: skip` does not catch up",
        SkipReason::MadeUp => "no daemon was running; a later run caught up",
        SkipReason::TooMany => "no daemon was running, and too many times were missed",
        SkipReason::Overlap => "the previous run had not ended",
        SkipReason::Budget => "the budget was spent",
        SkipReason::QueueFull => "the queue was full",
        SkipReason::Disabled => "the agent was disabled",
        SkipReason::NothingFound => "the search on GitHub found nothing new",
        SkipReason::Unreachable => "the search on GitHub failed; the log has the reason",
    }
}
