//! `heeler stop`: ends the daemon. The user chooses whether running jobs finish, are cancelled or
//! keep running. Start at [`run`].

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use clap::Args;
use heeler_config::ConfigDuration;
use heeler_engine::{CommandReply, DaemonCommand, StopMode};
use heeler_server::{DaemonClient, DaemonClientError};
use serde_json::json;

use crate::context::CommandContext;
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::global_args::GlobalArgs;
use crate::job_watch;
use crate::output;
use crate::process_env;

/// Help footer of `stop`.
pub(crate) const ABOUT: &str = "The daemon starts no new jobs, waits for running jobs, and then ends. Queued jobs stay in the queue.
Ctrl-C only ends this command: the daemon still stops.
Exit codes: 0 stopped, 3 no daemon runs, 130 interrupted.";

/// Interval between checks of the jobs that are still running.
const TICK: Duration = Duration::from_millis(500);

/// Arguments of `stop`.
#[derive(Args)]
pub(crate) struct StopArgs {
    /// Cancel jobs that have not ended after this time: `10m`, or a number of seconds
    #[arg(short, long, value_name = "DURATION", value_parser = parse_timeout)]
    timeout: Option<ConfigDuration>,
    /// Cancel running jobs
    #[arg(short, long, conflicts_with_all = ["timeout", "keep_jobs"])]
    force: bool,
    /// Let running jobs continue without a daemon; the next daemon takes over
    #[arg(long, conflicts_with = "timeout")]
    keep_jobs: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses a duration. A plain number means seconds, as with herdctl.
fn parse_timeout(text: &str) -> Result<ConfigDuration, String> {
    let parsed = match text.parse::<u64>() {
        Ok(0) => Err("it must be longer than zero; `--force` cancels jobs at once"),
        Ok(seconds) => ConfigDuration::from_millis(seconds.saturating_mul(1000)),
        Err(_) => text.parse(),
    };
    parsed.map_err(str::to_owned)
}

/// Runs `stop`.
pub(crate) fn run(global: &GlobalArgs, args: &StopArgs) -> CommandResult {
    let context = CommandContext::find(global)?;
    // The usual hint, to start a daemon, makes no sense here.
    let client = daemon::connect_required(&context)
        .map_err(|failure| CommandFailure { hint: None, ..failure })?;
    let pid = client.daemon_info().pid;
    let stopping = match args {
        StopArgs { force: true, .. } => StopMode::Force,
        StopArgs { keep_jobs: true, .. } => StopMode::KeepJobs,
        StopArgs { timeout, .. } => StopMode::Wait { timeout: timeout.map(ConfigDuration::get) },
    };
    let quiet = args.json || global.quiet;
    // Ctrl-C must say that the daemon still stops; without it the user could believe the opposite.
    job_watch::on_interrupt(move || interrupted(quiet))?;
    let message = stop(&context, client, stopping, quiet)?;
    match args.json {
        true => Ok(output::print_json(&json!({ "pid": pid, "message": message }))?),
        false => Ok(output::print_line(message)?),
    }
}

/// Stops a daemon, prints the jobs it waits for, and returns its answer once it has ended.
pub(crate) fn stop(
    context: &CommandContext,
    mut client: DaemonClient,
    stopping: StopMode,
    quiet: bool,
) -> CommandResult<String> {
    let pid = client.daemon_info().pid;
    // The request waits for jobs without a limit, so a thread sends it and this one reports.
    let (sender, receiver) = sync_channel(1);
    std::thread::spawn(move || {
        // Fails only if this function has returned.
        drop(sender.send(client.send_command(&DaemonCommand::Stop(stopping), None)));
    });
    let mut shown = Vec::new();
    let answer = loop {
        match receiver.recv_timeout(TICK) {
            Ok(answer) => break answer,
            Err(RecvTimeoutError::Timeout) if quiet => {}
            Err(RecvTimeoutError::Timeout) => show_waiting(context, &mut shown)?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(CommandFailure::message(
                    FailureCode::Bug,
                    "the thread that waits for the daemon ended",
                ));
            }
        }
    };
    let message = match answer {
        Ok(CommandReply::Done { message }) => message,
        // Another command stopped it first, or it was killed.
        Ok(_) | Err(DaemonClientError::Ending | DaemonClientError::Io { .. }) => {
            format!("the daemon (process {pid}) has ended")
        }
        Err(error) => return Err(error.into()),
    };
    // The reply comes before the lock is released, and the next command may need it.
    daemon::wait_for_exit(context, pid)?;
    Ok(message)
}

/// Prints the jobs that the daemon waits for, if they have changed.
fn show_waiting(context: &CommandContext, shown: &mut Vec<String>) -> CommandResult {
    // Read from the database: the connection to the daemon is in use by the request.
    let Some(reader) = context.open_reader()? else { return Ok(()) };
    let now = process_env::now();
    let running = reader.running_jobs()?;
    let ids: Vec<String> = running.iter().map(|head| head.id.to_string()).collect();
    if *shown == ids || ids.is_empty() {
        return Ok(());
    }
    *shown = ids;
    let jobs = output::pluralize(running.len() as u64, "job");
    output::print_note(&format!("waiting for {jobs} (Ctrl-C to stop waiting):"))?;
    for head in &running {
        let since = output::relative_time(head.started_at, now);
        let agent = output::one_line(&head.agent);
        output::print_note(&format!("  {} {agent}, started {since}", head.id))?;
    }
    Ok(())
}

/// Ends this command; the daemon still stops.
fn interrupted(quiet: bool) {
    if !quiet {
        // The process must end even if this note cannot be written.
        drop(output::print_note(
            "the daemon is still stopping: it ends after its jobs\n  \
             heeler stop --force      to cancel them\n  \
             heeler stop --keep-jobs  to end it now and let them continue",
        ));
    }
    std::process::exit(FailureCode::Interrupted as i32);
}
