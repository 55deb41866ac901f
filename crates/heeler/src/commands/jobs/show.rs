//! `heeler jobs show`: all that is known of one job, for people and for programs.

use camino::Utf8PathBuf;
use clap::Args;
use heeler_engine::hooks::{FailedHook, failed_hooks};
use heeler_model::run::{ErrorClass, RunError, RunResult};
use heeler_model::{Job, JobHead, JobId, JobStatus, SessionId, TriggerType};
use heeler_store::{Queued, Reader, Run, SentFile, StateDir};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{head_json, started, status_text};
use crate::cli::{self, Global};
use crate::daemon;
use crate::failure::Outcome;
use crate::output::{self, Text};
use crate::place::{self, Place};

/// How much of a prompt is shown.
const PROMPT_CHARS_MAX: usize = 2_000;
/// How many lines of a prompt are shown.
const PROMPT_LINES_MAX: usize = 20;

/// Arguments of `jobs show`.
#[derive(Args)]
pub(crate) struct ShowArgs {
    /// The job's id; a beginning will do while it is unique
    #[arg(add = cli::jobs())]
    pub(super) id: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
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

/// Shows one job.
pub(super) fn show(global: &Global, args: &ShowArgs) -> Outcome {
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
    hooks: Vec<FailedHook>,
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
            hooks: failed_hooks(reader, id)?,
            queued: match job.head.status {
                JobStatus::Pending => reader.queued(id)?,
                _ => None,
            },
            has_daemon: daemon::writer(place)?.is_some(),
        })
    }

    fn to_json(&self) -> Value {
        let Details { job, dead, session, log, text, attempts, files, hooks, queued, .. } = self;
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
            "phase": job.phase,
            "part": job.part.map(|part| part.to_string()),
            "decision": job.decision,
            "workingDirectory": job.working_directory,
            "outputFile": log,
            "textFile": text,
            "files": files.iter().map(file_json).collect::<Vec<_>>(),
            "failedHooks": hooks.iter().map(hook_json).collect::<Vec<_>>(),
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
        let Details { job, dead, session, log, text, attempts, files, hooks, .. } = self;
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
        let fields: [(&str, Option<Text>); 29] = [
            ("job", Some(head.id.as_str().into())),
            ("agent", Some(head.agent.as_str().into())),
            ("status", Some(status)),
            ("interrupted", job.interrupted.then(|| "yes: cut off by a crash".into())),
            ("trigger", Some(head.trigger_type.as_str().into())),
            ("schedule", head.schedule.as_deref().map(Text::from)),
            ("parent", parent(job).map(Text::from)),
            ("workflow", workflow(job).map(Text::from)),
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
            ("failed hooks", (!hooks.is_empty()).then(|| hook_list(hooks).into())),
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

/// Returns the workflow, the phase and the run that a job is a part of.
fn workflow(job: &Job) -> Option<String> {
    let run = job.workflow_run_id.as_deref()?;
    let part = Some(&job.skill).filter(|skill| skill.contains(':'));
    let part = part.map(|part| format!("{}, ", output::one_line(part))).unwrap_or_default();
    Some(format!("{part}{}", output::one_line(run)))
}

fn file_json(file: &SentFile) -> Value {
    json!({ "name": file.name, "bytes": file.bytes, "path": file.path })
}

fn file_list(files: &[SentFile]) -> String {
    let line = |file: &SentFile| format!("{} ({})", file.path, output::size(file.bytes));
    files.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn hook_json(hook: &FailedHook) -> Value {
    let FailedHook { name, event, error, attempts, is_over } = hook;
    json!({
        "name": name, "eventId": event, "error": error, "attempts": attempts, "givenUp": is_over,
    })
}

fn hook_list(hooks: &[FailedHook]) -> String {
    let line = |hook: &FailedHook| {
        let again = if hook.is_over { "" } else { " (it is tried again)" };
        format!("{}: {}{again}", output::one_line(&hook.name), output::one_line(&hook.error))
    };
    hooks.iter().map(line).collect::<Vec<_>>().join("\n")
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
