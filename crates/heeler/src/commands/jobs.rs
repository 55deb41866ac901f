//! `heeler jobs`: the list, one job with its runs, its transcript.

use camino::Utf8PathBuf;
use clap::{Args, Subcommand};
use heeler_model::run::{ErrorClass, RunError, RunResult};
use heeler_model::{Job, JobHead, JobId, JobStatus, SessionId, TriggerType};
use heeler_store::{JobCursor, JobFilter, Queued, Reader, Run, SentFile, StateDir};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::{self, Global, Page};
use crate::commands::session::fork;
use crate::commands::{cancel, logs, resume};
use crate::daemon;
use crate::failure::Outcome;
use crate::output::{self, Lines, Text};
use crate::place::{self, Place};
use crate::since;

/// How much of a prompt is shown.
const PROMPT_CHARS_MAX: usize = 2_000;
/// How many lines of a prompt are shown.
const PROMPT_LINES_MAX: usize = 20;

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
    Show(ShowArgs),
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
    #[command(after_help = fork::ABOUT)]
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

/// Arguments of `jobs show`.
#[derive(Args)]
pub(crate) struct ShowArgs {
    /// The job's id; a beginning will do while it is unique
    #[arg(add = cli::jobs())]
    id: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
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
    pub(crate) show: ShowArgs,
    /// Print its transcript too
    #[arg(short = 'L', long)]
    logs: bool,
}

/// Runs `jobs` and its verbs.
pub(crate) fn run(global: &Global, args: &JobsArgs) -> Outcome {
    match &args.command {
        None => list(global, &args.list),
        Some(JobsCommand::Show(args)) => show(global, args),
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
    show(global, &args.show)?;
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

/// An attempt at a job, with how it ended once that is on record.
struct Attempt {
    run: Run,
    result: Option<RunResult>,
}

impl Attempt {
    /// Returns what went wrong, with a cure that names the run's folder.
    fn error(&self, dir: &StateDir) -> Option<RunError> {
        let mut error = self.result.as_ref()?.error.clone()?;
        error.cure = error.cure.replace("the run's folder", dir.run(self.run.id).as_str());
        Some(error)
    }
}

fn attempts(reader: &Reader, job: &JobId) -> Outcome<Vec<Attempt>> {
    let runs = reader.runs_of_job(job)?.into_iter();
    runs.map(|run| {
        let result = reader.run_result(run.id)?;
        Ok(Attempt { run, result })
    })
    .collect()
}

/// Returns what went wrong in the last run of a job, with a cure that names the run's folder.
pub(crate) fn last_error(
    reader: &Reader,
    dir: &StateDir,
    job: &JobId,
) -> Outcome<Option<RunError>> {
    Ok(attempts(reader, job)?.pop().and_then(|last| last.error(dir)))
}

fn show(global: &Global, args: &ShowArgs) -> Outcome {
    let now = place::now();
    let place = Place::find(global)?;
    let reader = place.reader_for("job", &args.id)?;
    let job = reader.find_job(&args.id)?;
    let details = Details::read(&job, &reader, &place)?;
    drop(reader);
    if args.json {
        return Ok(output::json(&json!({ "job": details.to_json() }))?);
    }
    details.print(&place.dir()?, now)
}

/// Returns all that programs get of one job.
pub(crate) fn full_json(job: &Job, reader: &Reader, place: &Place) -> Outcome<Value> {
    Ok(Details::read(job, reader, place)?.to_json())
}

/// All that is known of one job.
struct Details<'j> {
    job: &'j Job,
    /// It is `running` by the record, and no process runs it.
    dead: bool,
    /// Our id of its session.
    session: Option<SessionId>,
    log: Option<Utf8PathBuf>,
    /// Its rows as text, where that was asked for.
    text: Option<Utf8PathBuf>,
    attempts: Vec<Attempt>,
    /// What its agent handed over.
    files: Vec<SentFile>,
    /// Its place in the queue, while it waits.
    queued: Option<Queued>,
    /// Whether a daemon is there that will start it.
    has_daemon: bool,
}

impl Details<'_> {
    fn read<'j>(job: &'j Job, reader: &Reader, place: &Place) -> Outcome<Details<'j>> {
        let (dir, id) = (place.dir()?, &job.head.id);
        let session = match &job.head.session_id {
            Some(id) => reader.session_by_agent_id(id)?,
            None => None,
        };
        Ok(Details {
            job,
            dead: job.head.status == JobStatus::Running && reader.is_dead(&dir, id)?,
            session: session.map(|session| session.id),
            log: place.log_path(reader, &job.head)?,
            text: Some(dir.text_of(id)).filter(|path| path.is_file()),
            attempts: attempts(reader, id)?,
            files: dir.sent_files(id),
            queued: match job.head.status {
                JobStatus::Pending => reader.queued(id)?,
                _ => None,
            },
            has_daemon: daemon::writer(place)?.is_some(),
        })
    }

    fn to_json(&self) -> Value {
        let Details { job, dead, session, log, text, attempts, files, queued, .. } = self;
        let mut value = head_json(&job.head, started(job), *dead);
        let last = attempts.last().and_then(|attempt| attempt.result.as_ref());
        let rest = json!({
            "prompt": job.prompt,
            "error": job.error,
            "errorDetails": last.and_then(|result| result.error.as_ref()).map(error_json),
            "stopReason": job.stop_reason,
            "interrupted": job.interrupted,
            "restartCount": job.restart_count,
            "forkedFrom": job.forked_from,
            "skill": job.skill,
            "triggerId": job.trigger_id,
            "parent": parent(job),
            "waits": queued.as_ref().map(|row| &row.reason),
            "notBefore": queued.as_ref().and_then(|row| row.not_before),
            "expiresAt": queued.as_ref().and_then(|row| row.expires_at),
            "repo": job.repo,
            "issueNumber": job.issue_number,
            "workflowRunId": job.workflow_run_id,
            "workingDirectory": job.working_directory,
            "outputFile": log,
            "textFile": text,
            "files": files.iter().map(file_json).collect::<Vec<_>>(),
            "session": session,
            "origin": job.origin,
            "runs": attempts.iter().map(run_json).collect::<Vec<_>>(),
            "usage": {
                "numTurns": job.usage.num_turns,
                "apiDurationMs": job.usage.api_duration_ms,
                "inputTokens": job.usage.input_tokens,
                "cacheCreationInputTokens": job.usage.cache_creation_input_tokens,
                "cacheReadInputTokens": job.usage.cache_read_input_tokens,
                "outputTokens": job.usage.output_tokens,
                "perModel": job.usage.per_model,
            },
        });
        if let (Value::Object(value), Value::Object(rest)) = (&mut value, rest) {
            value.extend(rest);
        }
        value
    }

    fn print(&self, dir: &StateDir, now: Timestamp) -> Outcome {
        let Details { job, dead, session, log, text, attempts, files, .. } = self;
        let error = attempts.last().and_then(|last| last.error(dir));
        // That somebody cancelled it is no fault to be cured.
        let error = error.as_ref().filter(|error| error.class != ErrorClass::Cancelled);
        let path = |path: &Option<Utf8PathBuf>| path.as_ref().map(|path| path.as_str().into());
        let head = &job.head;
        let when = |at: Timestamp| {
            format!("{} ({})", heeler_model::iso_millis(at), output::relative(at, now))
        };
        let reason = head.exit_reason.filter(|reason| reason.as_str() != head.status.as_str());
        let status = match reason {
            Some(reason) => status_text(head.status, *dead).then(format!(" ({reason})")),
            None => status_text(head.status, *dead),
        };
        let asked = started(job).is_none_or(|at| at != head.started_at);
        let fields: [(&str, Option<Text>); 27] = [
            ("job", Some(head.id.as_str().into())),
            ("agent", Some(head.agent.as_str().into())),
            ("status", Some(status)),
            ("interrupted", job.interrupted.then(|| "yes: cut off by a crash".into())),
            ("trigger", Some(head.trigger_type.as_str().into())),
            ("schedule", head.schedule.as_deref().map(Text::from)),
            ("parent", parent(job).map(Text::from)),
            ("asked", asked.then(|| when(head.started_at).into())),
            ("waits", self.waits(now).map(Text::from)),
            ("started", started(job).map(when).map(Text::from)),
            ("finished", head.finished_at.map(when).map(Text::from)),
            ("took", head.duration_ms.map(output::duration).map(Text::from)),
            ("cost", output::price(head.cost_usd).map(Text::from)),
            ("tokens", tokens(job).map(Text::from)),
            ("models", models(job).map(Text::from)),
            ("session", session.as_ref().map(|id| id.as_str().into())),
            ("forked from", job.forked_from.as_ref().map(|id| id.as_str().into())),
            ("origin", job.origin.as_deref().map(Text::from)),
            ("transcript", path(log)),
            ("as text", path(text)),
            ("files", (!files.is_empty()).then(|| file_list(files).into())),
            ("runs", (attempts.len() > 1).then(|| runs(attempts).into())),
            ("summary", head.summary.as_deref().map(Text::from)),
            ("error", job.error.as_deref().map(Text::from)),
            ("error class", error.map(|error| class(error, now).into())),
            ("cure", error.map(|error| error.cure.as_str().into())),
            ("prompt", job.prompt.as_deref().map(|prompt| beginning(prompt, head).into())),
        ];
        for (name, value) in fields {
            output::field(name, value)?;
        }
        Ok(())
    }

    /// Says why it waits.
    fn waits(&self, now: Timestamp) -> Option<String> {
        let row = self.queued.as_ref()?;
        let mut text = output::one_line(&row.reason);
        if let Some(at) = row.not_before.filter(|at| *at > now) {
            text.push_str(&format!(", not before {}", heeler_model::iso_millis(at)));
        }
        if let Some(at) = row.expires_at {
            text.push_str(&format!("\ngiven up {}", output::upcoming(at, now)));
        }
        if !self.has_daemon {
            text.push_str("\nno daemon runs, so nobody starts it: heeler start -d");
        }
        Some(text)
    }
}

/// Returns the job whose agent asked for this one.
fn parent(job: &Job) -> Option<&str> {
    let is_spawned = job.head.trigger_type == TriggerType::Spawned;
    Some(job.trigger_id.as_str()).filter(|id| is_spawned && !id.is_empty())
}

fn file_json(file: &SentFile) -> Value {
    json!({ "name": file.name, "bytes": file.bytes, "path": file.path })
}

fn file_list(files: &[SentFile]) -> String {
    let line = |file: &SentFile| format!("{} ({})", file.path, output::size(file.bytes));
    files.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the beginning of a prompt, and where the rest is.
fn beginning(prompt: &str, head: &JobHead) -> String {
    let lines = prompt.char_indices().filter(|(_, letter)| *letter == '\n').map(|(at, _)| at);
    let end = lines.skip(PROMPT_LINES_MAX - 1).chain([prompt.len()]).next();
    let by_chars = prompt.char_indices().nth(PROMPT_CHARS_MAX).map(|(at, _)| at);
    let end = end.into_iter().chain(by_chars).min().unwrap_or(prompt.len());
    match prompt[end..].trim().is_empty() {
        true => prompt.trim_end().to_owned(),
        false => {
            let (id, more) = (&head.id, output::grouped(prompt[end..].chars().count() as u64));
            format!("{}…\n({more} more chars: heeler jobs show {id} --json)", &prompt[..end])
        }
    }
}

fn error_json(error: &RunError) -> Value {
    json!({
        "class": error.class,
        "message": error.message,
        "recoverable": error.recoverable,
        "retryAfterMs": error.retry_after_ms,
        "resetsAt": error.resets_at,
        "messagesReceived": error.messages_received,
        "cure": error.cure,
    })
}

fn run_json(Attempt { run, result }: &Attempt) -> Value {
    let error = result.as_ref().and_then(|result| result.error.as_ref());
    json!({
        "id": run.id,
        "attempt": run.attempt,
        "status": run.status,
        "createdAt": run.created_at,
        "startedAt": run.started_at,
        "finishedAt": run.finished_at,
        "committed": run.committed,
        "exitReason": result.as_ref().map(|result| result.exit_reason),
        "exitCode": result.as_ref().and_then(|result| result.exit_code),
        "costUsd": result.as_ref().and_then(|result| result.cost.usd),
        "sessionId": result.as_ref().and_then(|result| Some(&result.session.as_ref()?.id)),
        "error": error.map(error_json),
    })
}

fn tokens(job: &Job) -> Option<String> {
    match (job.usage.input_tokens, job.usage.output_tokens) {
        (None, None) => None,
        (read, written) => Some(format!("{} in, {} out", read.unwrap_or(0), written.unwrap_or(0))),
    }
}

/// Returns what each model cost, in the words of the agent that reported it.
fn models(job: &Job) -> Option<String> {
    let number =
        |value: &Value, names: [&str; 2]| names.iter().find_map(|name| value[name].as_f64());
    let lines = job.usage.per_model.iter().map(|(model, usage)| {
        let cost =
            output::price(number(usage, ["costUSD", "cost_usd"])).map(|cost| format!(", {cost}"));
        let read = number(usage, ["inputTokens", "input_tokens"]).unwrap_or(0.0);
        let written = number(usage, ["outputTokens", "output_tokens"]).unwrap_or(0.0);
        format!("{model}: {read} in, {written} out{}", cost.unwrap_or_default())
    });
    let lines: Vec<String> = lines.collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn runs(attempts: &[Attempt]) -> String {
    let line = |Attempt { run, .. }: &Attempt| format!("{} {} {}", run.attempt, run.id, run.status);
    attempts.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns what kind of failure it was, and whether the same again may succeed.
fn class(error: &RunError, now: Timestamp) -> String {
    let again = match (error.recoverable, error.retry_after_ms, error.resets_at) {
        (false, ..) => "the same again would fail".to_owned(),
        (true, _, Some(at)) => format!("try again {}", output::relative(at, now)),
        (true, Some(wait), None) => {
            let wait = i64::try_from(wait).unwrap_or(i64::MAX);
            format!("try again after {}", output::duration(wait))
        }
        (true, None, None) => "the same again may succeed".to_owned(),
    };
    let messages = output::counted(error.messages_received, "message");
    format!("{}: {again}; {messages} received", error.class)
}
