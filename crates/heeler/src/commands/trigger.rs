//! `heeler trigger`: gives an agent a job, shows it at work, and exits with its outcome.
//!
//! The daemon runs the job, and one is started if none runs, so that closing the terminal or
//! killing this command loses nothing. Start at [`run`].

mod report;
mod trigger_args;

use std::io::{IsTerminal as _, Read as _};
use std::sync::Arc;

use heeler_config::{AgentLookupError, RuntimeConfig};
use heeler_engine::{CommandReply, DaemonCommand};
use heeler_model::session_choice::SessionChoice;
use heeler_model::{AgentName, JobId, JobRequest};
use heeler_query::QueryErrorKind;
use serde_json::json;

pub(crate) use self::trigger_args::{EXAMPLES, TriggerArgs};
use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::global_args::GlobalArgs;
use crate::job_watch::{
    self, CancelFn, JobEventListener, JobWatchOptions, KeyboardInput, OutputMode, ReviveFn,
};
use crate::output;
use crate::process_env;
use crate::terminal_markdown::TerminalMarkdown;
use crate::text_file;

/// Longest prompt that is read from standard input.
const PROMPT_BYTES_MAX: u64 = 16 << 20;

/// Runs `trigger`. If the session has external messages, asks at the terminal whether to import
/// them, and tries again.
pub(crate) fn run(global: &GlobalArgs, args: &TriggerArgs) -> CommandResult {
    run_with(global, args, read_prompt(args.prompt.as_deref())?)
}

/// Runs `trigger` with a prompt that was read already.
pub(crate) fn run_with(
    global: &GlobalArgs,
    args: &TriggerArgs,
    prompt: Option<String>,
) -> CommandResult {
    let context = CommandContext::find(global)?;
    // External messages are detected only when the run starts, so it has to be tried first.
    let first = trigger_once(global, args, &context, prompt.clone(), args.take_in)?;
    // The question needs a person, and standard input that was not used up by the prompt.
    if !first.session_moved
        || !std::io::stdin().is_terminal()
        || args.prompt.as_deref() == Some("-")
    {
        return first.outcome;
    }
    match output::confirm("Import those messages, and continue?", false)? {
        true => trigger_once(global, args, &context, prompt, true)?.outcome,
        false => first.outcome,
    }
}

/// Outcome of a watched job.
struct TriggerOutcome {
    outcome: CommandResult,
    /// True if the job did not start because its session has external messages, and a user is
    /// present.
    session_moved: bool,
}

fn trigger_once(
    global: &GlobalArgs,
    args: &TriggerArgs,
    context: &CommandContext,
    prompt: Option<String>,
    take_in: bool,
) -> CommandResult<TriggerOutcome> {
    // Checked here too, so that a misspelled name does not start a daemon.
    let TriggeredAgent { agent, is_command } = find_agent(context, &args.agent)?;
    context.migrate_database()?;
    let session = session_choice(context, args, &agent)?;
    // Without output, a person could not see what is asked.
    let is_asking = !args.json && !args.detach && !global.quiet;
    let is_stdin_used = args.prompt.as_deref() == Some("-");
    let keyboard = is_asking.then(|| KeyboardInput::find(is_stdin_used)).flatten();
    let wanted = JobRequest {
        prompt,
        schedule: args.schedule.clone(),
        session,
        channel: args.channel.as_ref().map(ToString::to_string),
        take_in,
        output_file: args.output_file,
        // The runner asks only if someone can answer; otherwise it denies at once.
        attended: keyboard.is_some(),
        priority: args.priority,
        ..JobRequest::new(agent.clone())
    };
    // From here on, Ctrl-C cancels the job.
    let mut listener = JobEventListener::new()?;
    let (job, waits) =
        match listener.request_job(context, DaemonCommand::Trigger(Box::new(wanted)))? {
            // Only a webhook is answered with a known job.
            CommandReply::Job { job, waits, .. } => (job, waits),
            other => return Err(daemon::unexpected(&other)),
        };
    let engine = process_env::engine_fleet(&context.state_dir, &context.env)?;
    tracing::info!("the job's transcript is {}", engine.dir.job_transcript(&job));
    if args.detach {
        let outcome = print_detached(global, args, &job, waits.as_deref());
        return Ok(TriggerOutcome { outcome, session_moved: false });
    }
    let show = if args.json || global.quiet { OutputMode::Nothing } else { OutputMode::All };
    let (agent, term) = (agent.as_str(), context.env.get("TERM").map(String::as_str));
    let (cancel, revive) = (cancel_fn(context, &job), revive_fn(context, &job));
    let watch = JobWatchOptions {
        answered_by: context.caller_name(),
        fleet: &engine,
        agent,
        job,
        wait_reason: waits,
        cancel,
        revive,
        keyboard,
        output_mode: show,
        is_command,
        term,
        // The output of a command is no markdown.
        markdown: TerminalMarkdown::find(&context.env).filter(|_| !is_command),
    };
    let seen = job_watch::watch(&watch, listener)?;
    // The watch may end before the job does: its daemon died, or Ctrl-C was pressed three times.
    let job = report::wait_for_record(context, &watch.job, &seen)?;
    let moved_on = watch.keyboard.is_some() && report::is_session_moved(&engine, &job)?;
    let outcome = report::report(global, args, context, &engine, &job, &seen);
    Ok(TriggerOutcome { outcome, session_moved: moved_on })
}

/// Returns a function that starts a daemon again if the job's daemon dies.
fn revive_fn(context: &CommandContext, job: &JobId) -> ReviveFn {
    let (context, job) = (context.clone(), job.clone());
    Arc::new(move || {
        // Runs in a thread of the watch, so it needs copies of its own.
        daemon::revive_job(&context, &job).map_err(|failure| format!("{:#}", failure.error))
    })
}

/// Returns the function that Ctrl-C calls.
fn cancel_fn(context: &CommandContext, job: &JobId) -> CancelFn {
    let (context, job) = (context.clone(), job.clone());
    Arc::new(move |now| {
        let command = DaemonCommand::Cancel { job: job.clone(), now, by: "Ctrl-C".to_owned() };
        daemon::request_cancel(&context, &command)
    })
}

/// Agent that receives the job.
struct TriggeredAgent {
    agent: AgentName,
    is_command: bool,
}

/// Finds the agent in the config. If the config is invalid now, but a permanent daemon runs with an
/// earlier one, the daemon decides.
fn find_agent(context: &CommandContext, name: &str) -> CommandResult<TriggeredAgent> {
    let loaded =
        match fleet_config::try_load(context, context.config_file()?, &text_file::read_text)? {
            Ok(loaded) => loaded,
            // A temporary daemon would give way to a new one, which could not start.
            Err(faults) if daemon::is_permanent(context)? => {
                let summary = faults.summary();
                output::print_note(&format!(
                    "{summary}; the daemon uses the config that it loaded earlier"
                ))?;
                let agent =
                    name.parse().map_err(|error| CommandFailure::new(FailureCode::Usage, error))?;
                // The runtime is unknown; of a command, only the last output is the answer then.
                return Ok(TriggeredAgent { agent, is_command: false });
            }
            // Fails again with the same faults, and prints them.
            Err(_) => fleet_config::load(context)?,
        };
    let agent = loaded.find_agent(name).map_err(|error| match &error {
        AgentLookupError::Unknown { nearest, .. } => {
            let hint = match nearest {
                Some(near) => format!("heeler trigger {near}"),
                None => "heeler status lists all agents".to_owned(),
            };
            CommandFailure::new(FailureCode::NotFound, error).hint(hint)
        }
        AgentLookupError::Ambiguous { .. } => CommandFailure::new(FailureCode::Usage, error),
    })?;
    let is_command = matches!(agent.runtime, RuntimeConfig::Command { .. });
    Ok(TriggeredAgent { agent: agent.name.clone(), is_command })
}

/// Returns the session that the options select.
fn session_choice(
    context: &CommandContext,
    args: &TriggerArgs,
    agent: &AgentName,
) -> CommandResult<SessionChoice> {
    let Some(text) = &args.session else {
        return Ok(if args.fresh { SessionChoice::Fresh } else { SessionChoice::Usual });
    };
    context.open_records()?.session_choice(text, args.fork).map_err(|error| match error.kind() {
        QueryErrorKind::Usage => {
            CommandFailure::from(error).hint(format!("heeler session list --agent {agent}"))
        }
        QueryErrorKind::NotFound => {
            CommandFailure::message(FailureCode::NotFound, format!("there is no session `{text}`"))
                .hint("heeler session list")
        }
        _ => error.into(),
    })
}

/// Reads the prompt, if one is given; `-` reads standard input. An empty prompt is an error.
pub(crate) fn read_prompt(given: Option<&str>) -> CommandResult<Option<String>> {
    let prompt = match given {
        None => return Ok(None),
        Some("-") => read_stdin()?,
        Some(text) => text.to_owned(),
    };
    // An empty variable in a script would otherwise start the agent's default prompt.
    match prompt.trim().is_empty() {
        false => Ok(Some(prompt)),
        true => {
            let whose = if given == Some("-") { "on standard input " } else { "" };
            let hint = "-p 'Fix the failing test', or no -p for the default prompt";
            let message = format!("the prompt {whose}is empty");
            Err(CommandFailure::message(FailureCode::Usage, message).hint(hint))
        }
    }
}

fn read_stdin() -> CommandResult<String> {
    let mut bytes = Vec::new();
    // One byte more tells a prompt of exactly this size from a longer one.
    std::io::stdin().lock().take(PROMPT_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > PROMPT_BYTES_MAX {
        let message = format!("the prompt is longer than {PROMPT_BYTES_MAX} bytes");
        return Err(CommandFailure::message(FailureCode::Usage, message));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let message = format!("the prompt on standard input is not UTF-8 (at byte {at})");
        CommandFailure::message(FailureCode::Usage, message).hint("iconv -t UTF-8 converts it")
    })?;
    // Piped text ends with a newline that no one typed.
    Ok(text.trim_end().to_owned())
}

fn print_detached(
    global: &GlobalArgs,
    args: &TriggerArgs,
    job: &JobId,
    waits: Option<&str>,
) -> CommandResult {
    // The job may have started since; the daemon's answer is what the command reports.
    let status = if waits.is_some() { "pending" } else { "running" };
    if args.json {
        let mut document = json!({ "job": { "id": job, "status": status, "waits": waits } });
        if let Some(fork) = &args.forked {
            document["fork"] = fork.clone();
        }
        return Ok(output::print_json(&document)?);
    }
    output::print_line(job.as_str())?;
    if !global.quiet {
        let waits = waits.map(|why| format!("queued: {why}; ")).unwrap_or_default();
        // The job runs even if this note cannot be written.
        drop(output::print_note(&format!("{waits}follow it: heeler jobs logs {job} -f")));
    }
    Ok(())
}
