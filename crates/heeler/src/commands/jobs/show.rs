//! `heeler jobs show`: prints all details of one job, as text or JSON. Start at [`show`].

use clap::Args;
use heeler_model::run::{ErrorClass, RunError};
use heeler_model::{JobId, job_row};
use heeler_query::jobs::{
    FailedHookSummary, JobDetails, JobFile, RunSummary, UsageSummary, load_runs,
};
use heeler_store::{StateDir, StoreReader};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::commands::job_text::{duration_text, status_text};
use crate::context::CommandContext;
use crate::failure::CommandResult;
use crate::global_args::GlobalArgs;
use crate::output::{self, SafeText};
use crate::process_env;
use crate::shared_args;

/// Characters of a prompt that are shown.
const PROMPT_CHARS_MAX: usize = 2_000;
/// Lines of a prompt that are shown.
const PROMPT_LINES_MAX: usize = 20;

/// Arguments of `jobs show`.
#[derive(Args)]
pub(crate) struct JobShowArgs {
    /// Job ID or unique prefix
    #[arg(add = shared_args::jobs())]
    pub(super) id: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Returns the error of a job's last run, with a remedy that names the run's folder.
pub(crate) fn last_error(
    reader: &StoreReader,
    dir: &StateDir,
    job: &JobId,
) -> CommandResult<Option<RunError>> {
    Ok(load_runs(reader, dir, job)?.pop().and_then(|last| last.fault))
}

pub(super) fn show(global: &GlobalArgs, args: &JobShowArgs) -> CommandResult {
    let now = process_env::now();
    let context = CommandContext::find(global)?;
    // Fails with a better message than an empty reader would: there is no state at all.
    drop(context.reader_for("job", &args.id)?);
    let job = context.open_records()?.job(&args.id)?;
    match args.json {
        true => Ok(output::print_json(&json!({ "job": job }))?),
        false => print(&job, now),
    }
}

fn print(job: &JobDetails, now: Timestamp) -> CommandResult {
    let error = job.runs.last().and_then(|last| last.fault.as_ref());
    // A cancellation is no error that needs a remedy.
    let error = error.filter(|error| error.class != ErrorClass::Cancelled);
    let item = &job.item;
    let text = |text: &Option<String>| text.as_deref().map(SafeText::from);
    let when = |at: Timestamp| {
        format!("{} ({})", heeler_model::iso_millis(at), output::relative_time(at, now))
    };
    // "completed (completed)" would say nothing.
    let reason = item.exit_reason.filter(|reason| reason.as_str() != item.status.as_str());
    let status = match reason {
        Some(reason) => status_text(item.status, item.dead).append(format!(" ({reason})")),
        None if job.is_pulling() => {
            status_text(item.status, item.dead).append(" (pulling the image of its container)")
        }
        None => status_text(item.status, item.dead),
    };
    // A job may have only one recorded time, which would be printed twice.
    let asked = item.started_at.is_none_or(|at| at != item.asked_at);
    let fields: [(&str, Option<SafeText>); 32] = [
        ("job", Some(item.id.as_str().into())),
        ("agent", Some(item.agent.as_str().into())),
        ("status", Some(status)),
        ("denied", item.denied.as_deref().map(|tools| denied_text(tools).into())),
        ("host", text(&item.host)),
        ("interrupted", job.interrupted.then(|| "yes, by a crash".into())),
        ("trigger", Some(item.trigger_type.as_str().into())),
        ("schedule", text(&item.schedule)),
        ("parent", text(&job.parent)),
        ("workflow", workflow(job).map(SafeText::from)),
        ("requested", asked.then(|| when(item.asked_at).into())),
        ("waiting", wait_reason(job, now).map(SafeText::from)),
        ("started", item.started_at.map(when).map(SafeText::from)),
        ("finished", item.finished_at.map(when).map(SafeText::from)),
        ("took", duration_text(item).map(SafeText::from)),
        ("cost", cost_text(job).map(SafeText::from)),
        ("tokens", tokens(&job.usage).map(SafeText::from)),
        ("models", models(&job.usage).map(SafeText::from)),
        ("session", text(&job.session)),
        ("forked from", text(&job.forked_from)),
        ("origin", text(&job.origin)),
        ("transcript", text(&job.output_file)),
        ("as text", text(&job.text_file)),
        ("files", (!job.files.is_empty()).then(|| file_list(&job.files).into())),
        ("runs", (job.runs.len() > 1).then(|| runs(&job.runs).into())),
        ("summary", text(&item.summary)),
        ("error", text(&job.error)),
        ("error class", error.map(|error| error_class_text(error, now).into())),
        ("fix", error.map(|error| error.cure.as_str().into())),
        (
            "failed hooks",
            (!job.failed_hooks.is_empty()).then(|| hook_list(&job.failed_hooks).into()),
        ),
        ("prompt by", text(&job.prompt_by)),
        ("prompt", job.prompt.as_deref().map(|prompt| prompt_excerpt(prompt, &item.id).into())),
    ];
    for (name, value) in fields {
        output::print_field(name, value)?;
    }
    Ok(())
}

/// Returns the cost, or the reason why it is not known.
fn cost_text(job: &JobDetails) -> Option<String> {
    let is_unknown = job.item.status.is_final() && job.item.cost_usd.is_none();
    match is_unknown && job.interrupted {
        true => Some(format!(
            "unknown: the run ended before its agent reported a cost, so its whole reservation \
             counts toward the budgets; if you know it: heeler costs set {} USD",
            job.item.id
        )),
        false => output::format_price(job.item.cost_usd),
    }
}

/// Says which tools the agent was denied, and how that is changed.
fn denied_text(tools: &str) -> String {
    format!(
        "{}: the agent was not allowed to use this, and may have left work undone\n\
         to be asked: approvals: interactive; to allow it: permission_mode or Claude's settings",
        output::one_line(tools)
    )
}

/// Returns the reason why a job waits.
fn wait_reason(job: &JobDetails, now: Timestamp) -> Option<String> {
    let mut text = output::one_line(job.waits.as_ref()?);
    if let Some(at) = job.not_before.filter(|at| *at > now) {
        text.push_str(&format!(", not before {}", heeler_model::iso_millis(at)));
    }
    if let Some(at) = job.expires_at {
        text.push_str(&format!("\nexpires {}", output::due_text(at, now)));
    }
    // A reason such as "the agent is busy" would mislead while nothing can start.
    if !job.has_daemon {
        text.push_str("\nno daemon is running to start it: heeler start -d");
    }
    Some(text)
}

/// Returns the phase and the workflow run that a job belongs to.
fn workflow(job: &JobDetails) -> Option<String> {
    let run = job.workflow_run_id.as_deref()?;
    // For a workflow's job the skill is `workflow:phase`; others have no colon.
    let part = Some(&job.skill).filter(|skill| skill.contains(':'));
    let part = part.map(|part| format!("{}, ", output::one_line(part))).unwrap_or_default();
    Some(format!("{part}{}", output::one_line(run)))
}

fn file_list(files: &[JobFile]) -> String {
    let line = |file: &JobFile| format!("{} ({})", file.path, output::format_size(file.bytes));
    files.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn hook_list(hooks: &[FailedHookSummary]) -> String {
    let line = |hook: &FailedHookSummary| {
        let again = if hook.given_up { "" } else { " (will be retried)" };
        format!("{}: {}{again}", output::one_line(&hook.name), output::one_line(&hook.error))
    };
    hooks.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the beginning of a prompt, and the command that shows the rest.
fn prompt_excerpt(prompt: &str, id: &str) -> String {
    let lines = prompt.char_indices().filter(|(_, letter)| *letter == '\n').map(|(at, _)| at);
    let end = lines.skip(PROMPT_LINES_MAX - 1).chain([prompt.len()]).next();
    // Whichever limit comes first: a prompt may be one very long line.
    let by_chars = prompt.char_indices().nth(PROMPT_CHARS_MAX).map(|(at, _)| at);
    let end = end.into_iter().chain(by_chars).min().unwrap_or(prompt.len());
    match prompt[end..].trim().is_empty() {
        true => prompt.trim_end().to_owned(),
        false => {
            let more = output::group_thousands(prompt[end..].chars().count() as u64);
            format!("{}…\n({more} more chars: heeler jobs show {id} --json)", &prompt[..end])
        }
    }
}

fn tokens(usage: &UsageSummary) -> Option<String> {
    match (usage.input_tokens, usage.output_tokens) {
        (None, None) => None,
        (read, written) => Some(format!("{} in, {} out", read.unwrap_or(0), written.unwrap_or(0))),
    }
}

/// Returns the usage of each model, as reported by the agent.
fn models(usage: &UsageSummary) -> Option<String> {
    let number =
        // Claude reports camel case; records of other programs have snake case.
        |value: &Value, names: [&str; 2]| names.iter().find_map(|name| value[name].as_f64());
    let lines = usage.per_model.iter().map(|(model, usage)| {
        let cost = output::format_price(number(usage, ["costUSD", "cost_usd"]))
            .map(|cost| format!(", {cost}"));
        let read = number(usage, ["inputTokens", "input_tokens"]).unwrap_or(0.0);
        let written = number(usage, ["outputTokens", "output_tokens"]).unwrap_or(0.0);
        format!("{model}: {read} in, {written} out{}", cost.unwrap_or_default())
    });
    let lines: Vec<String> = lines.collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn runs(attempts: &[RunSummary]) -> String {
    let line = |run: &RunSummary| format!("{} {} {}", run.attempt, run.id, run.status);
    attempts.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the error class, and the chance that a retry succeeds.
fn error_class_text(error: &RunError, now: Timestamp) -> String {
    let again = match (error.recoverable, error.retry_after_ms, error.resets_at) {
        // Times of a reset are meaningless if a retry cannot succeed.
        (false, ..) => "a retry would fail too".to_owned(),
        (true, _, Some(at)) => format!("retry {}", output::relative_time(at, now)),
        (true, Some(wait), None) => {
            let wait = i64::try_from(wait).unwrap_or(i64::MAX);
            format!("retry after {}", job_row::format_duration(wait))
        }
        (true, None, None) => "a retry may succeed".to_owned(),
    };
    let messages = output::pluralize(error.messages_received, "message");
    format!("{}: {again}; {messages} received", error.class)
}
