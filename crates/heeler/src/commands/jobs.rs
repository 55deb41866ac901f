//! `heeler jobs`: the list, and its verbs.

mod show;

use clap::{Args, Subcommand};
use heeler_model::JobStatus;
use heeler_query::jobs::{JobItem, JobPage, JobsWanted};
use jiff::Timestamp;

use crate::cli::{self, Global, Page};
use crate::commands::session::fork;
use crate::commands::{cancel, logs, resume};
use crate::failure::Outcome;
use crate::output::{self, Lines, Text};
use crate::place::{self, Place};
use crate::since;

pub(crate) use self::show::last_error;

/// What the help of `jobs cancel` shows at its end.
pub(crate) const CANCEL: &str = "Examples:
  heeler jobs cancel job-2026-11-15-k3v9q1
  heeler jobs cancel $(heeler jobs -S pending --json | jq -r '.jobs[].id')

A job that runs may finish what it is at; `--now` ends it at once. One that waits never starts.
Starts a daemon if none runs.
Exit codes: 0 cancelled, 1 it did not end, 4 not found, 5 it has ended already.";

/// Arguments of `jobs`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct JobsArgs {
    #[command(subcommand)]
    pub(crate) command: Option<JobsCommand>,
    #[command(flatten)]
    pub(crate) list: ListArgs,
}

#[derive(Subcommand)]
pub(crate) enum JobsCommand {
    /// Show one job
    Show(show::ShowArgs),
    /// Print the newest lines of a job's transcript
    Logs(LogsArgs),
    /// End running jobs, or take waiting ones out of the queue
    #[command(after_help = CANCEL)]
    Cancel(cancel::CancelArgs),
    /// Let a job that failed or was cut off go on in its session
    #[command(after_help = resume::RESUME)]
    Resume(resume::ResumeArgs),
    /// Ask for the same again, as a new job
    #[command(after_help = resume::RETRY)]
    Retry(resume::RetryArgs),
    /// Make a new session with the history of a job's, up to the job's end
    #[command(after_help = fork::OF_JOB)]
    Fork(fork::JobForkArgs),
}

/// Which jobs to list.
#[derive(Args)]
pub(crate) struct ListArgs {
    /// Only those in this state
    #[arg(short = 'S', long, value_name = "STATUS", value_parser = cli::job_status())]
    status: Option<JobStatus>,
    #[command(flatten)]
    pub(crate) page: Page,
}

/// Arguments of `jobs logs`.
#[derive(Args)]
pub(crate) struct LogsArgs {
    /// The job's id; a beginning will do while it is unique
    #[arg(add = cli::jobs())]
    id: String,
    #[command(flatten)]
    pub(crate) how: logs::How,
}

/// Arguments of herdctl's `job`.
#[derive(Args)]
pub(crate) struct JobArgs {
    #[command(flatten)]
    pub(crate) show: show::ShowArgs,
    /// Print its transcript too
    #[arg(short = 'L', long)]
    logs: bool,
}

/// Runs `jobs` and its verbs.
pub(crate) fn run(global: &Global, args: &JobsArgs) -> Outcome {
    match &args.command {
        None => list(global, &args.list),
        Some(JobsCommand::Show(args)) => show::show(global, args),
        Some(JobsCommand::Logs(args)) => logs::of_job(global, &args.id, &args.how),
        Some(JobsCommand::Cancel(args)) => cancel::run(global, args),
        Some(JobsCommand::Resume(args)) => resume::resume(global, args),
        Some(JobsCommand::Retry(args)) => resume::retry(global, args),
        Some(JobsCommand::Fork(args)) => fork::of_job(global, args),
    }
}

/// Runs herdctl's `job ID [--logs]`.
pub(crate) fn run_job(global: &Global, args: &JobArgs) -> Outcome {
    if args.logs && args.show.json {
        return logs::of_job(global, &args.show.id, &logs::How::raw());
    }
    show::show(global, &args.show)?;
    if args.logs {
        output::line("")?;
        logs::of_job(global, &args.show.id, &logs::How::default())?;
    }
    Ok(())
}

fn list(global: &Global, args: &ListArgs) -> Outcome {
    let now = place::now();
    let place = Place::find(global)?;
    let since = args.page.since.as_deref().map(|text| since::moment(text, now)).transpose()?;
    let limit = args.page.limit.get() as usize;
    let wanted = JobsWanted {
        agent: args.page.agent.clone(),
        status: args.status,
        since,
        before: args.page.before.clone(),
        limit,
    };
    print_list(&place, &place.records()?.jobs(&wanted)?, args, now)
}

/// Says when a job began to run, or else since when it is asked for.
pub(crate) fn begun(job: &JobItem, now: Timestamp) -> String {
    match job.started_at {
        Some(at) => output::relative(at, now),
        None => format!("asked {}", output::relative(job.asked_at, now)),
    }
}

/// Returns one line on what a job did; where it failed, why.
pub(crate) fn account(job: &JobItem) -> String {
    output::one_line(job.error.as_ref().or(job.summary.as_ref()).map_or("", String::as_str))
}

fn print_list(place: &Place, page: &JobPage, args: &ListArgs, now: Timestamp) -> Outcome {
    if args.page.json {
        return Ok(output::json(page)?);
    }
    let (jobs, total) = (&page.jobs, page.total);
    let status = args.status.map(JobStatus::as_str);
    let Some(last) = jobs.last() else {
        return Ok(output::line(args.page.nothing("jobs", status, place))?);
    };
    let mut lines = Lines::new(
        &["ID", "AGENT", "STATUS", "TRIGGER", "STARTED", "TOOK", "SUMMARY"],
        &["AGENT", "TRIGGER", "SUMMARY"],
    );
    for job in jobs {
        lines.push(vec![
            job.id.as_str().into(),
            output::one_line(&job.agent).into(),
            status_text(job.status, job.dead),
            trigger(job).into(),
            begun(job, now).into(),
            took(job).unwrap_or_default().into(),
            account(job).into(),
        ]);
    }
    lines.print()?;
    if jobs.iter().any(|job| job.dead) {
        output::note(
            "dead: the record says running, but no process runs it; `heeler start` or `heeler doctor --fix` settles it",
        )?;
    }
    if total > jobs.len() as i64 {
        let (shown, total) = (jobs.len(), output::grouped(total.unsigned_abs()));
        let next = args.page.next("jobs", status, &last.id);
        let older = format!("showing {shown} of {total}; older: {next}");
        output::note(&older)?;
    }
    Ok(())
}

/// Returns what started a job: the schedule by its name, or something else that took its settings.
fn trigger(job: &JobItem) -> String {
    let kind = job.trigger_type.as_str();
    output::one_line(&match (&job.schedule, kind) {
        (Some(name), "schedule" | "cron") => name.clone(),
        (Some(name), _) => format!("{kind} ({name})"),
        (None, _) => kind.to_owned(),
    })
}

/// Returns how long a job ran.
fn took(job: &JobItem) -> Option<String> {
    job.duration_seconds.map(|seconds| output::duration((seconds * 1e3).round() as i64))
}

/// Returns a status in its colour.
pub(crate) fn status_text(status: JobStatus, dead: bool) -> Text {
    let (word, style) = match dead {
        true => ("dead", output::status_style(JobStatus::Failed)),
        false => (status.as_str(), output::status_style(status)),
    };
    Text::styled(style, word)
}
