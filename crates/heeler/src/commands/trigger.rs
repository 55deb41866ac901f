//! `heeler trigger`: gives an agent a job, shows it at work, and exits with its outcome.
//!
//! The daemon runs the job, and one is started if none runs, so that closing the terminal or
//! killing this command loses nothing. Start at [`run`].

mod report;

pub(crate) use report::waits_for_start;

use std::io::{IsTerminal as _, Read as _};
use std::ops::RangeInclusive;
use std::sync::Arc;

use clap::Args;
use heeler_config::{AgentLookupError, PRIORITY_MAX, RuntimeConfig};
use heeler_engine::{CommandReply, DaemonCommand};
use heeler_model::session_choice::SessionChoice;
use heeler_model::{AgentName, ChannelKey, JobId, JobRequest};
use heeler_query::QueryErrorKind;
use serde_json::{Value, json};

use crate::cli::{self, GlobalArgs};
use crate::context::{self, CommandContext};
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::fleet_config;
use crate::job_watch::{
    self, CancelFn, JobEventListener, JobWatchOptions, KeyboardInput, OutputMode, ReviveFn,
};
use crate::output;

/// Longest prompt that is read from standard input.
const PROMPT_BYTES_MAX: u64 = 16 << 20;

/// Valid priorities, as in the config.
const PRIORITIES: RangeInclusive<i64> = -(PRIORITY_MAX as i64)..=PRIORITY_MAX as i64;

/// Help footer of `trigger`.
pub(crate) const EXAMPLES: &str = "Examples:
  heeler trigger coder -p 'Fix the failing test'
  git diff | heeler trigger reviewer -p - > review.md
  heeler trigger coder --session sess-1a2b -p 'And the next one'
  heeler trigger helper --channel slack/C0123/1731.55 -p 'Any news?'
  id=$(heeler trigger coder -p 'Clean up' --detach -q); heeler jobs logs $id -f

The agent's messages go to stdout, its actions to stderr. On a terminal you are asked its questions,
even with `-p -`; elsewhere they are denied. Ctrl-C cancels the job; a second Ctrl-C kills it at once.

Exit codes:
  0    the job succeeded, or was started with --detach
  1    the job failed
  2    the command line or the configuration is invalid
  4    no such agent, schedule or session
  5    refused: the agent is disabled, its budget is spent, or the queue is full
  130  interrupted by Ctrl-C";

/// Help heading of options for the session.
const SESSION: &str = "Session options";
/// Help heading of options for the output.
const OUTPUT: &str = "Output options";

/// Arguments of `trigger`.
#[derive(Args)]
pub(crate) struct TriggerArgs {
    /// Agent name
    #[arg(add = cli::agents())]
    agent: String,
    /// Prompt; `-` reads standard input [default: that of the schedule or agent]
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Use the prompt, session and limits of this schedule
    #[arg(short = 'S', long, value_name = "NAME")]
    schedule: Option<String>,
    /// Session to continue (ID or unique prefix)
    #[arg(
        long, value_name = "ID", help_heading = SESSION, add = cli::sessions(),
        conflicts_with_all = ["fresh", "channel"]
    )]
    session: Option<String>,
    /// Continue in a fork: a new session with the history of --session
    #[arg(
        long, help_heading = SESSION, requires = "session",
        conflicts_with_all = ["fresh", "channel"]
    )]
    fork: bool,
    /// Start a new session
    #[arg(long, help_heading = SESSION)]
    fresh: bool,
    /// Continue the session of this chat channel: PLATFORM/CHANNEL[/THREAD]
    #[arg(
        long, value_name = "CHANNEL", help_heading = SESSION,
        value_parser = clap::value_parser!(ChannelKey)
    )]
    channel: Option<ChannelKey>,
    /// Queue priority, -100 to 100; higher starts first
    ///
    /// It is added to the agent's `priority`.
    #[arg(
        long, value_name = "N", default_value = "0", hide_default_value = true,
        allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(PRIORITIES)
    )]
    priority: i64,
    /// Continue even if the session has external messages, and import them
    #[arg(long, help_heading = SESSION)]
    pub(crate) take_in: bool,
    /// Print the job's ID and return at once; the job continues
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) detach: bool,
    /// Print one JSON document at the end; `result` is the agent's last message
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    /// Also write the output as text to `jobs/JOB/output.log` in the state directory
    #[arg(long, help_heading = OUTPUT)]
    output_file: bool,
    /// No effect: waiting is the default (herdctl's flag)
    #[arg(short = 'w', long, hide = true, conflicts_with = "detach")]
    wait: bool,
    /// The session that was forked for this job, which `--json` prints next to the job.
    #[arg(skip)]
    pub(crate) forked: Option<Value>,
}

impl TriggerArgs {
    /// Returns arguments that continue a session.
    pub(crate) fn in_session(
        agent: &str,
        session: &str,
        prompt: Option<String>,
        json: bool,
    ) -> TriggerArgs {
        TriggerArgs {
            agent: agent.to_owned(),
            prompt,
            schedule: None,
            session: Some(session.to_owned()),
            fork: false,
            fresh: false,
            channel: None,
            priority: 0,
            take_in: false,
            detach: false,
            json,
            output_file: false,
            wait: false,
            forked: None,
        }
    }
}

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
    let place = CommandContext::find(global)?;
    let came = trigger_once(global, args, &place, prompt.clone(), args.take_in)?;
    if !came.session_moved || !std::io::stdin().is_terminal() || args.prompt.as_deref() == Some("-")
    {
        return came.outcome;
    }
    match output::confirm("Import those messages, and continue?", false)? {
        true => trigger_once(global, args, &place, prompt, true)?.outcome,
        false => came.outcome,
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
    place: &CommandContext,
    prompt: Option<String>,
    take_in: bool,
) -> CommandResult<TriggerOutcome> {
    let TriggeredAgent { agent, is_command } = find_agent(place, &args.agent)?;
    place.migrate_database()?;
    let session = session_choice(place, args, &agent)?;
    let keyboard = keyboard(global, args);
    let wanted = JobRequest {
        prompt,
        schedule: args.schedule.clone(),
        session,
        channel: args.channel.as_ref().map(ToString::to_string),
        take_in,
        output_file: args.output_file,
        attended: keyboard.is_some(),
        priority: args.priority,
        ..JobRequest::new(agent.clone())
    };
    // From here on, Ctrl-C cancels the job.
    let mut listener = JobEventListener::new()?;
    let (job, waits) =
        match listener.request_job(place, DaemonCommand::Trigger(Box::new(wanted)))? {
            CommandReply::Job { job, waits, .. } => (job, waits),
            other => return Err(daemon::unexpected(&other)),
        };
    let engine = context::engine_fleet(&place.state_dir, &place.env)?;
    tracing::info!("the job's transcript is {}", engine.dir.job_transcript(&job));
    if args.detach {
        let outcome = print_detached(global, args, &job, waits.as_deref());
        return Ok(TriggerOutcome { outcome, session_moved: false });
    }
    let show = if args.json || global.quiet { OutputMode::Nothing } else { OutputMode::All };
    let (agent, term) = (agent.as_str(), place.env.get("TERM").map(String::as_str));
    let (cancel, revive) = (cancel_fn(place, &job), revive_fn(place, &job));
    let watch = JobWatchOptions {
        answered_by: place.caller_name(),
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
    };
    let seen = job_watch::watch(&watch, listener)?;
    let job = report::wait_for_record(place, &engine, &watch.job, &seen)?;
    let moved_on = watch.keyboard.is_some() && report::is_session_moved(&engine, &job)?;
    let outcome = report::report(global, args, place, &engine, &job, &seen);
    Ok(TriggerOutcome { outcome, session_moved: moved_on })
}

/// Returns a function that starts a daemon again if the job's daemon dies. A queued job of a fleet
/// that a person stopped stays queued.
fn revive_fn(place: &CommandContext, job: &JobId) -> ReviveFn {
    let (place, job) = (place.clone(), job.clone());
    Arc::new(move || {
        let told = |failure: CommandFailure| format!("{:#}", failure.error);
        if report::waits_for_start(&place, &job).map_err(told)? {
            return Err("the fleet was stopped: the job waits until `heeler start`".to_owned());
        }
        daemon::connect_or_start(&place).map(drop).map_err(told)
    })
}

/// Returns the function that Ctrl-C calls.
fn cancel_fn(place: &CommandContext, job: &JobId) -> CancelFn {
    let (place, job) = (place.clone(), job.clone());
    Arc::new(move |now| {
        let command = DaemonCommand::Cancel { job: job.clone(), now, by: "Ctrl-C".to_owned() };
        match daemon::request(&place, &command) {
            // The job ended before the request arrived.
            Err(failure) if failure.code == FailureCode::Refused => Ok(()),
            Err(failure) => Err(format!("{:#}", failure.error)),
            Ok(_) => Ok(()),
        }
    })
}

/// Returns the keyboard for answers, if a person is at a terminal. If standard input holds the
/// prompt, the terminal itself is opened.
fn keyboard(global: &GlobalArgs, args: &TriggerArgs) -> Option<KeyboardInput> {
    let is_shown = std::io::stderr().is_terminal();
    if !is_shown || args.json || args.detach || global.quiet {
        return None;
    }
    let found = match args.prompt.as_deref() {
        Some("-") => KeyboardInput::from_terminal(),
        _ if std::io::stdin().is_terminal() => KeyboardInput::from_stdin(),
        _ => return None,
    };
    found.inspect_err(|error| tracing::debug!(%error, "no terminal to ask questions on")).ok()
}

/// Agent that receives the job.
struct TriggeredAgent {
    agent: AgentName,
    is_command: bool,
}

/// Finds the agent in the config. If the config is invalid now, but a permanent daemon runs with an
/// earlier one, the daemon decides.
fn find_agent(place: &CommandContext, name: &str) -> CommandResult<TriggeredAgent> {
    let loaded =
        match fleet_config::try_load(place, place.config_file()?, &fleet_config::read_text)? {
            Ok(loaded) => loaded,
            Err(faults) if daemon::is_permanent(place)? => {
                let summary = faults.summary();
                output::print_note(&format!(
                    "{summary}; the daemon uses the config that it loaded earlier"
                ))?;
                let agent =
                    name.parse().map_err(|error| CommandFailure::new(FailureCode::Usage, error))?;
                return Ok(TriggeredAgent { agent, is_command: false });
            }
            Err(_) => fleet_config::load(place)?,
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
    place: &CommandContext,
    args: &TriggerArgs,
    agent: &AgentName,
) -> CommandResult<SessionChoice> {
    let Some(text) = &args.session else {
        return Ok(if args.fresh { SessionChoice::Fresh } else { SessionChoice::Usual });
    };
    place.open_records()?.session_choice(text, args.fork).map_err(|error| match error.kind() {
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
    Ok(text.trim_end().to_owned())
}

fn print_detached(
    global: &GlobalArgs,
    args: &TriggerArgs,
    job: &JobId,
    waits: Option<&str>,
) -> CommandResult {
    let status = if waits.is_some() { "pending" } else { "running" };
    if args.json {
        let mut told = json!({ "job": { "id": job, "status": status, "waits": waits } });
        if let Some(fork) = &args.forked {
            told["fork"] = fork.clone();
        }
        return Ok(output::print_json(&told)?);
    }
    output::print_line(job.as_str())?;
    if !global.quiet {
        let waits = waits.map(|why| format!("queued: {why}; ")).unwrap_or_default();
        // The job runs even if this note cannot be written.
        drop(output::print_note(&format!("{waits}follow it: heeler jobs logs {job} -f")));
    }
    Ok(())
}
