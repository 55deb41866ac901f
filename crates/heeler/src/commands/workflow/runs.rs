//! `heeler workflow runs`: lists workflow runs. Start at [`run`].

use std::collections::HashSet;
use std::num::NonZeroU32;

use anstyle::AnsiColor;
use clap::Args;
use heeler_model::workflow::WorkflowRunStatus;
use heeler_model::{ApprovalStatus, job_row};
use heeler_query::approvals::ApprovalListQuery;
use heeler_query::workflow_runs::{WorkflowRunListQuery, WorkflowRunPage, WorkflowRunSummary};
use jiff::Timestamp;

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::CommandResult;
use crate::global_args::GlobalArgs;
use crate::output::{self, OutputTable, SafeText};
use crate::process_env;
use crate::shared_args;
use crate::time_argument;

/// Help footer of `workflow runs`.
pub(super) const ABOUT: &str = "Examples:
  heeler workflow runs
  heeler workflow runs build --status failed --since 7d
  heeler workflow runs --status paused --json    # runs that wait for an answer
  heeler workflow runs --repo acme/app           # runs about one repository

Exit codes: 0 listed, 2 invalid time, 4 no such run.";

/// Note on a run that needs a daemon while none runs.
pub(super) const NO_DAEMON: &str = "no daemon is running; it continues with `heeler start -d`";

/// Open questions that are read to mark the runs that asked them.
const ASKED_MAX: usize = 1_000;
/// Default of `--number`.
const LIMIT: &str = "20";

/// Arguments of `workflow runs`.
#[derive(Args)]
pub(crate) struct WorkflowRunsArgs {
    /// Show only runs of this workflow
    #[arg(value_name = "NAME", add = shared_args::workflows())]
    workflow: Option<String>,
    /// Show only runs with this status
    #[arg(short = 'S', long, value_name = "STATUS", value_parser = shared_args::run_status())]
    status: Option<WorkflowRunStatus>,
    /// Show only runs newer than this: an age (2h, 7d) or a date
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    /// Show only runs about this repository
    #[arg(long, value_name = "OWNER/NAME")]
    repo: Option<String>,
    /// Show only runs with this trigger ID, such as acme/app#7
    #[arg(long, value_name = "ID")]
    trigger_id: Option<String>,
    /// Show entries older than this ID (for the next page)
    #[arg(long, value_name = "ID", add = shared_args::workflow_runs())]
    before: Option<String>,
    /// Number of entries to show
    #[arg(
        short = 'n', short_alias = 'l', long = "number", alias = "limit", value_name = "N",
        default_value = LIMIT
    )]
    limit: NonZeroU32,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `workflow runs`.
pub(super) fn run(global: &GlobalArgs, args: &WorkflowRunsArgs) -> CommandResult {
    let now = process_env::now();
    let context = CommandContext::find(global)?;
    let since =
        args.since.as_deref().map(|text| time_argument::parse_moment(text, now)).transpose()?;
    let wanted = WorkflowRunListQuery {
        workflow: args.workflow.clone(),
        status: args.status,
        since,
        repo: args.repo.clone(),
        trigger_id: args.trigger_id.clone(),
        before: args.before.clone(),
        limit: args.limit.get() as usize,
    };
    let records = context.open_records()?;
    let page = records.workflow_runs(&wanted)?;
    if args.json {
        return Ok(output::print_json(&page)?);
    }
    let status = Some(ApprovalStatus::Pending);
    let pending = ApprovalListQuery { status, limit: ASKED_MAX, ..ApprovalListQuery::default() };
    let pending = records.approvals(&pending)?.approvals;
    // An agent's question does not pause its run, so the status alone does not show it.
    let asking = pending.into_iter().map(|it| it.workflow_run_id).collect();
    print(&context, &page, &asking, args, now)
}

fn print(
    context: &CommandContext,
    page: &WorkflowRunPage,
    asking: &HashSet<String>,
    args: &WorkflowRunsArgs,
    now: Timestamp,
) -> CommandResult {
    if page.runs.is_empty() {
        let is_filtered = args.workflow.is_some()
            || args.status.is_some()
            || args.since.is_some()
            || args.repo.is_some()
            || args.trigger_id.is_some();
        return Ok(output::print_line(match (is_filtered, &args.before) {
            (true, _) => "no runs match".to_owned(),
            (false, Some(id)) => format!("no runs before {id}"),
            (false, None) => format!("no workflow has run yet in {}", context.state_dir),
        })?);
    }
    let mut lines = OutputTable::new(
        &["ID", "WORKFLOW", "STATUS", "PHASE", "STARTED", "TOOK", "COST", "ABOUT"],
        &["WORKFLOW", "PHASE", "ABOUT"],
    )
    // IDs of runs do not name their workflow.
    .keep_column("WORKFLOW");
    for run in &page.runs {
        lines.push(vec![
            output::id_cell(run.id.as_str()),
            output::one_line(&run.workflow).into(),
            match run.status == WorkflowRunStatus::Running && asking.contains(&run.id) {
                true => outcome(run.status, run.mode.as_deref()).append(", open question"),
                false => outcome(run.status, run.mode.as_deref()),
            },
            output::one_line(&run.current_phase).into(),
            output::relative_time(run.started_at, now).into(),
            duration_text(run.started_at, run.finished_at).unwrap_or_default().into(),
            output::format_price(Some(run.cost_usd)).unwrap_or_default().into(),
            run_subject(run).into(),
        ]);
    }
    lines.print()?;
    let needs_daemon = |run: &WorkflowRunSummary| needs_daemon(run.status, run.origin.as_deref());
    if page.runs.iter().any(needs_daemon) && daemon::find_writer(context)?.is_none() {
        output::print_note(&format!("running or queued: {NO_DAEMON}"))?;
    }
    if let Some(older) = &page.next {
        let (shown, total) = (page.runs.len(), output::group_thousands(page.total.unsigned_abs()));
        output::print_note(&format!("showing {shown} of {total}; older: {}", next(args, older)))?;
    }
    Ok(())
}

/// Returns true if a run needs a daemon to continue. A paused run waits for people, and an imported
/// run is only a record.
pub(super) fn needs_daemon(status: WorkflowRunStatus, origin: Option<&str>) -> bool {
    matches!(status, WorkflowRunStatus::Running | WorkflowRunStatus::Queued) && origin.is_none()
}

/// Returns a run's error, or else its trigger ID.
fn run_subject(run: &WorkflowRunSummary) -> String {
    let trigger = Some(&run.trigger_id).filter(|id| **id != run.id);
    run.error.as_ref().or(trigger).map(|text| output::one_line(text)).unwrap_or_default()
}

fn next(args: &WorkflowRunsArgs, before: &str) -> String {
    let limit = args.limit.to_string();
    let options = [
        ("--status", args.status.map(WorkflowRunStatus::as_str)),
        ("--since", args.since.as_deref()),
        ("--repo", args.repo.as_deref()),
        ("--trigger-id", args.trigger_id.as_deref()),
        ("--number", Some(limit.as_str()).filter(|limit| *limit != LIMIT)),
        ("--before", Some(before)),
    ];
    let options = options.iter().filter_map(|(name, value)| Some(format!(" {name} {}", (*value)?)));
    let name = args.workflow.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
    format!("heeler workflow runs{name}{}", options.collect::<String>())
}

/// Returns the duration of a run that has ended.
pub(super) fn duration_text(began: Timestamp, ended: Option<Timestamp>) -> Option<String> {
    // A run in progress has no duration here: the list would be outdated at once.
    let took = ended?.duration_since(began).as_millis();
    i64::try_from(took).ok().map(job_row::format_duration)
}

/// Formats an amount in millionths of a dollar; returns `None` for zero.
pub(super) fn cost(micros: i64) -> Option<String> {
    output::format_price(Some(micros as f64 / 1e6))
}

/// Returns a status in its colour.
pub(super) fn status_text(status: WorkflowRunStatus) -> SafeText {
    let color = match status {
        WorkflowRunStatus::Queued => AnsiColor::Blue,
        WorkflowRunStatus::Running => AnsiColor::Cyan,
        WorkflowRunStatus::Paused => AnsiColor::Magenta,
        WorkflowRunStatus::Succeeded => AnsiColor::Green,
        WorkflowRunStatus::Failed => AnsiColor::Red,
        WorkflowRunStatus::Cancelled => AnsiColor::Yellow,
    };
    SafeText::styled(color.on_default(), status.as_str())
}

/// Returns the status of a run, marked if it was simulated.
pub(crate) fn outcome(status: WorkflowRunStatus, mode: Option<&str>) -> SafeText {
    status_text(status).append(mode_suffix(mode))
}

/// Returns the mark of a simulated run.
pub(super) fn mode_suffix(mode: Option<&str>) -> &'static str {
    match mode {
        None => "",
        Some(mode) if mode.starts_with("replay:") => " (replay)",
        Some(_) => " (dry run)",
    }
}
