//! `heeler jobs`: the list, and its verbs.

mod show;

use clap::{Args, Subcommand};
use heeler_model::{Job, JobHead, JobStatus, TriggerType};
use heeler_store::{JobCursor, JobFilter, Reader};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::{self, Global, Page};
use crate::commands::session::fork;
use crate::commands::{cancel, logs, resume};
use crate::failure::Outcome;
use crate::output::{self, Lines, Text};
use crate::place::{self, Place};
use crate::since;

pub(crate) use self::show::{full_json, last_error};

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
    let Some(reader) = place.reader()? else { return print_list(&place, &[], 0, args, now) };
    let agent =
        args.page.agent.as_deref().map(|name| place.known_agent(&reader, name)).transpose()?;
    let filter = JobFilter { agent, status: args.status, since };
    let before = match &args.page.before {
        None => None,
        Some(id) => Some(JobCursor::after(&reader.find_job(id)?.head)),
    };
    let heads = reader.jobs(&filter, before.as_ref(), limit)?;
    let total = reader.count_jobs(&filter)?;
    let shown: Vec<Shown> =
        heads.into_iter().map(|head| Shown::of(head, &reader, &place)).collect::<Outcome<_>>()?;
    drop(reader);
    print_list(&place, &shown, total, args, now)
}

/// A job as a list shows it.
pub(crate) struct Shown {
    pub(crate) head: JobHead,
    /// It is `running` by the record, and no process runs it.
    pub(crate) dead: bool,
    /// When it began to run.
    pub(crate) started: Option<Timestamp>,
    /// What it did, or why it failed.
    pub(crate) account: String,
}

impl Shown {
    pub(crate) fn of(head: JobHead, reader: &Reader, place: &Place) -> Outcome<Shown> {
        let dead = head.status == JobStatus::Running && reader.is_dead(&place.dir()?, &head.id)?;
        let account = account(reader, &head)?;
        let started = reader.job(&head.id)?.as_ref().and_then(started);
        Ok(Shown { head, dead, started, account })
    }

    /// Returns what programs get of it in a list.
    pub(crate) fn to_json(&self) -> Value {
        head_json(&self.head, self.started, self.dead)
    }

    /// Says when it began to run, or else since when it is asked for.
    pub(crate) fn since(&self, now: Timestamp) -> String {
        match self.started {
            Some(at) => output::relative(at, now),
            None => format!("asked {}", output::relative(self.head.started_at, now)),
        }
    }
}

/// Returns when a job began to run; the records of other programs know one time only.
fn started(job: &Job) -> Option<Timestamp> {
    job.run_started_at.or_else(|| job.origin.as_ref().map(|_| job.head.started_at))
}

fn print_list(
    place: &Place,
    jobs: &[Shown],
    total: i64,
    args: &ListArgs,
    now: Timestamp,
) -> Outcome {
    if args.page.json {
        let jobs: Vec<Value> = jobs.iter().map(Shown::to_json).collect();
        let limit = args.page.limit;
        return Ok(output::json(&json!({ "jobs": jobs, "total": total, "limit": limit }))?);
    }
    let status = args.status.map(JobStatus::as_str);
    let Some(last) = jobs.last() else {
        return Ok(output::line(args.page.nothing("jobs", status, place))?);
    };
    let mut lines = Lines::new(
        &["ID", "AGENT", "STATUS", "TRIGGER", "STARTED", "TOOK", "SUMMARY"],
        &["AGENT", "TRIGGER", "SUMMARY"],
    );
    for shown @ Shown { head, dead, account, .. } in jobs {
        lines.push(vec![
            head.id.as_str().into(),
            output::one_line(&head.agent).into(),
            status_text(head.status, *dead),
            trigger(head).into(),
            shown.since(now).into(),
            head.duration_ms.map(output::duration).unwrap_or_default().into(),
            account.as_str().into(),
        ]);
    }
    lines.print()?;
    if jobs.iter().any(|shown| shown.dead) {
        output::note(
            "dead: the record says running, but no process runs it; `heeler start` or `heeler doctor --fix` settles it",
        )?;
    }
    if total > jobs.len() as i64 {
        let (shown, total) = (jobs.len(), output::grouped(total.unsigned_abs()));
        let next = args.page.next("jobs", status, last.head.id.as_str());
        let older = format!("showing {shown} of {total}; older: {next}");
        output::note(&older)?;
    }
    Ok(())
}

/// Returns what started a job: the schedule by its name, or something else that took its settings.
fn trigger(head: &JobHead) -> String {
    let kind = head.trigger_type.as_str();
    output::one_line(&match (&head.schedule, &head.trigger_type) {
        (Some(name), TriggerType::Schedule | TriggerType::Cron) => name.clone(),
        (Some(name), _) => format!("{kind} ({name})"),
        (None, _) => kind.to_owned(),
    })
}

/// Returns one line on what a job did; where it failed, why.
fn account(reader: &Reader, head: &JobHead) -> Outcome<String> {
    let error = match head.status {
        JobStatus::Failed => reader.job_error(&head.id)?,
        _ => None,
    };
    Ok(output::one_line(error.as_ref().or(head.summary.as_ref()).map_or("", String::as_str)))
}

/// Returns a status in its colour.
pub(crate) fn status_text(status: JobStatus, dead: bool) -> Text {
    let (word, style) = match dead {
        true => ("dead", output::status_style(JobStatus::Failed)),
        false => (status.as_str(), output::status_style(status)),
    };
    Text::styled(style, word)
}

fn head_json(head: &JobHead, started_at: Option<Timestamp>, dead: bool) -> Value {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Head<'a> {
        id: &'a str,
        agent: &'a str,
        schedule: Option<&'a str>,
        status: JobStatus,
        dead: bool,
        trigger_type: &'a str,
        asked_at: Timestamp,
        started_at: Option<Timestamp>,
        finished_at: Option<Timestamp>,
        duration_seconds: Option<f64>,
        exit_reason: Option<heeler_model::ExitReason>,
        cost_usd: Option<f64>,
        session_id: Option<&'a str>,
        summary: Option<&'a str>,
    }
    json!(Head {
        id: head.id.as_str(),
        agent: &head.agent,
        schedule: head.schedule.as_deref(),
        status: head.status,
        dead,
        trigger_type: head.trigger_type.as_str(),
        asked_at: head.started_at,
        started_at,
        finished_at: head.finished_at,
        duration_seconds: head.duration_ms.map(|ms| ms as f64 / 1_000.0),
        exit_reason: head.exit_reason,
        cost_usd: head.cost_usd,
        session_id: head.session_id.as_ref().map(|id| id.as_str()),
        summary: head.summary.as_deref(),
    })
}
