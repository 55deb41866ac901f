//! `heeler jobs`: lists jobs; subcommands act on one job. Start at [`run`].

mod show;
mod why;

use clap::{Args, Subcommand};
use heeler_model::JobStatus;
use heeler_query::jobs::{JobListQuery, JobPage, JobSummary};
use jiff::Timestamp;

use crate::commands::job_text::{
    duration_text, job_summary, marked_status_text, start_text, title_text,
};
use crate::commands::session::fork;
use crate::commands::{cancel, logs, rename, resume};
use crate::context::CommandContext;
use crate::failure::CommandResult;
use crate::global_args::GlobalArgs;
use crate::output::{self, OutputTable};
use crate::process_env;
use crate::shared_args::{self, ListPageArgs};
use crate::time_argument;

pub(crate) use self::show::last_error;

/// Place of the column with hosts in the table of jobs: after the status.
const HOST_COLUMN: usize = 3;

/// Help footer of `jobs cancel`.
pub(crate) const CANCEL: &str = "Examples:
  heeler jobs cancel job-2026-11-15-k3v9q1
  heeler jobs cancel $(heeler jobs -S pending --json | jq -r '.jobs[].id')

A running agent may finish its current step; `--now` kills it at once. A queued job never starts.
Starts a daemon if none runs.
Exit codes: 0 cancelled, 1 did not end in time, 4 not found, 5 already ended.";

/// Arguments of `jobs`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct JobsArgs {
    #[command(subcommand)]
    pub(crate) command: Option<JobsCommand>,
    #[command(flatten)]
    pub(crate) list: JobListArgs,
}

#[derive(Subcommand)]
pub(crate) enum JobsCommand {
    /// Show one job
    Show(show::JobShowArgs),
    /// Show why a job waits, and why its host was chosen
    #[command(after_help = why::WHY)]
    Why(why::JobWhyArgs),
    /// Print the newest rows of a job's transcript
    Logs(JobLogsArgs),
    /// Cancel running or queued jobs
    #[command(after_help = CANCEL)]
    Cancel(cancel::JobCancelArgs),
    /// Continue a failed or interrupted job in its session
    #[command(after_help = resume::RESUME)]
    Resume(resume::JobResumeArgs),
    /// Start a new job with the same agent and prompt
    #[command(after_help = resume::RETRY)]
    Retry(resume::JobRetryArgs),
    /// Give a job a title
    #[command(after_help = rename::OF_JOB)]
    Rename(rename::JobRenameArgs),
    /// Create a new session with a job's history, up to the end of that job
    #[command(after_help = fork::OF_JOB)]
    Fork(fork::JobForkArgs),
}

/// Filters of `jobs`.
#[derive(Args)]
pub(crate) struct JobListArgs {
    /// Show only jobs with this status
    #[arg(short = 'S', long, value_name = "STATUS", value_parser = shared_args::job_status())]
    status: Option<JobStatus>,
    /// Show only jobs with their last run on this host
    #[arg(long, value_name = "NAME", add = shared_args::hosts())]
    host: Option<String>,
    #[command(flatten)]
    pub(crate) page: ListPageArgs,
}

/// Arguments of `jobs logs`.
#[derive(Args)]
pub(crate) struct JobLogsArgs {
    /// Job ID or unique prefix
    #[arg(add = shared_args::jobs())]
    id: String,
    #[command(flatten)]
    pub(crate) how: logs::LogOutputArgs,
}

/// Arguments of herdctl's `job`.
#[derive(Args)]
pub(crate) struct JobArgs {
    #[command(flatten)]
    pub(crate) show: show::JobShowArgs,
    /// Also print the transcript
    #[arg(short = 'L', long)]
    logs: bool,
}

/// Runs `jobs` and its subcommands.
pub(crate) fn run(global: &GlobalArgs, args: &JobsArgs) -> CommandResult {
    match &args.command {
        None => list(global, &args.list),
        Some(JobsCommand::Show(args)) => show::show(global, args),
        Some(JobsCommand::Why(args)) => why::why(global, args),
        Some(JobsCommand::Logs(args)) => logs::print_job_log(global, &args.id, &args.how),
        Some(JobsCommand::Cancel(args)) => cancel::run(global, args),
        Some(JobsCommand::Resume(args)) => resume::resume(global, args),
        Some(JobsCommand::Retry(args)) => resume::retry(global, args),
        Some(JobsCommand::Rename(args)) => rename::job(global, args),
        Some(JobsCommand::Fork(args)) => fork::fork_job(global, args),
    }
}

/// Runs herdctl's `job ID [--logs]`.
pub(crate) fn run_job(global: &GlobalArgs, args: &JobArgs) -> CommandResult {
    // Two JSON documents on one output could not be parsed.
    if args.logs && args.show.json {
        return logs::print_job_log(
            global,
            &args.show.id,
            &logs::LogOutputArgs::all_rows_as_json(),
        );
    }
    show::show(global, &args.show)?;
    if args.logs {
        output::print_line("")?;
        logs::print_job_log(global, &args.show.id, &logs::LogOutputArgs::default())?;
    }
    Ok(())
}

fn list(global: &GlobalArgs, args: &JobListArgs) -> CommandResult {
    let now = process_env::now();
    let context = CommandContext::find(global)?;
    let since = args
        .page
        .since
        .as_deref()
        .map(|text| time_argument::parse_moment(text, now))
        .transpose()?;
    let limit = args.page.limit.get() as usize;
    let wanted = JobListQuery {
        agent: args.page.agent.clone(),
        status: args.status,
        since,
        host: args.host.clone(),
        before: args.page.before.clone(),
        limit,
    };
    print_list(&context, &context.open_records()?.jobs(&wanted)?, args, now)
}

fn print_list(
    context: &CommandContext,
    page: &JobPage,
    args: &JobListArgs,
    now: Timestamp,
) -> CommandResult {
    if args.page.json {
        return Ok(output::print_json(page)?);
    }
    let (jobs, total) = (&page.jobs, page.total);
    let status = args.status.map(JobStatus::as_str);
    if jobs.is_empty() {
        let filter = status.or(args.host.as_deref());
        return Ok(output::print_line(args.page.empty_list_note("jobs", filter, context))?);
    }
    job_table(jobs, now).print()?;
    if jobs.iter().any(|job| job.denied.is_some()) {
        output::print_note(
            "denied: the agent was not allowed to use a tool; `heeler jobs show ID` names it",
        )?;
    }
    // The word alone does not say what to do.
    if jobs.iter().any(|job| job.dead) {
        output::print_note(
            "dead: the record says running, but no process runs it; `heeler start` or `heeler doctor --fix` settles it",
        )?;
    }
    // The total counts all pages, so it does not say whether another one follows.
    if let Some(next) = &page.next {
        let (shown, total) = (jobs.len(), output::group_thousands(total.unsigned_abs()));
        let command =
            format!("jobs{}", shared_args::write_options(&[("--host", args.host.as_deref())]));
        let next = args.page.next_page_command(&command, status, next);
        let older = format!("showing {shown} of {total}; older: {next}");
        output::print_note(&older)?;
    }
    Ok(())
}

/// Returns the table of jobs. Only a fleet with several hosts has a column for them.
fn job_table(jobs: &[JobSummary], now: Timestamp) -> OutputTable {
    let has_hosts = jobs.iter().any(|job| job.host.is_some());
    let mut headings =
        vec!["ID", "AGENT", "STATUS", "TRIGGER", "STARTED", "TOOK", "PROMPT", "SUMMARY"];
    if has_hosts {
        headings.insert(HOST_COLUMN, "HOST");
    }
    let mut lines = OutputTable::new(&headings, &["AGENT", "HOST", "TRIGGER", "PROMPT", "SUMMARY"]);
    for job in jobs {
        let mut cells = vec![
            output::id_cell(job.id.as_str()),
            output::one_line(&job.agent).into(),
            marked_status_text(job),
            trigger(job).into(),
            start_text(job, now).into(),
            duration_text(job).unwrap_or_default().into(),
            title_text(job).into(),
            job_summary(job).into(),
        ];
        if has_hosts {
            let host = job.host.as_deref().unwrap_or("-");
            cells.insert(HOST_COLUMN, output::one_line(host).into());
        }
        lines.push(cells);
    }
    lines
}

/// Returns the schedule's name for a scheduled job, otherwise the trigger type.
fn trigger(job: &JobSummary) -> String {
    let kind = job.trigger_type.as_str();
    output::one_line(&match (&job.schedule, kind) {
        (Some(name), "schedule" | "cron") => name.clone(),
        (Some(name), _) => format!("{kind} ({name})"),
        (None, _) => kind.to_owned(),
    })
}
