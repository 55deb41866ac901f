//! `heeler stop`: ends the daemon. What becomes of the jobs that run is the user's choice.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use clap::Args;
use heeler_engine::{CommandReply, DaemonCommand, StopMode};
use heeler_model::config::ConfigDuration;
use heeler_server::{DaemonClient, DaemonClientError};
use serde_json::json;

use crate::cli::GlobalArgs;
use crate::context::{self, CommandContext};
use crate::daemon;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::job_watch;
use crate::output;

/// What the help shows at its end.
pub(crate) const ABOUT: &str = "Jobs that run are waited for; nothing new starts meanwhile. What waits in the queue stays there.
Ctrl-C only ends the waiting: the daemon goes on stopping.
Exit codes: 0 stopped, 3 no daemon runs, 130 interrupted.";

/// How often it is looked at what is still waited for.
const TICK: Duration = Duration::from_millis(500);

/// Arguments of `stop`.
#[derive(Args)]
pub(crate) struct StopArgs {
    /// Cancel the jobs that have not ended after so long, such as `10m`
    #[arg(long, value_name = "DURATION")]
    timeout: Option<ConfigDuration>,
    /// Cancel the jobs that run
    #[arg(long, conflicts_with_all = ["timeout", "keep_jobs"])]
    force: bool,
    /// Let the jobs run on without a daemon; the next one takes them over
    #[arg(long, conflicts_with = "timeout")]
    keep_jobs: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Stops the daemon.
pub(crate) fn run(global: &GlobalArgs, args: &StopArgs) -> CommandResult {
    let place = CommandContext::find(global)?;
    // Whoever wants none is not told to start one.
    let client = daemon::connect_required(&place)
        .map_err(|failure| CommandFailure { hint: None, ..failure })?;
    let pid = client.daemon_info().pid;
    let stopping = match args {
        StopArgs { force: true, .. } => StopMode::Force,
        StopArgs { keep_jobs: true, .. } => StopMode::KeepJobs,
        StopArgs { timeout, .. } => StopMode::Wait { timeout: timeout.map(ConfigDuration::get) },
    };
    let quiet = args.json || global.quiet;
    job_watch::on_interrupt(move || interrupted(quiet))?;
    let message = stop(&place, client, stopping, quiet)?;
    match args.json {
        true => Ok(output::print_json(&json!({ "pid": pid, "message": message }))?),
        false => Ok(output::print_line(message)?),
    }
}

/// Stops a daemon, telling what it waits for, and returns once it is gone, with what it said.
pub(crate) fn stop(
    place: &CommandContext,
    mut client: DaemonClient,
    stopping: StopMode,
    quiet: bool,
) -> CommandResult<String> {
    let pid = client.daemon_info().pid;
    let (tell, told) = sync_channel(1);
    std::thread::spawn(move || {
        // Where nobody waits any more there is nobody to tell.
        drop(tell.send(client.send_command(&DaemonCommand::Stop(stopping), None)));
    });
    let mut shown = Vec::new();
    let answer = loop {
        match told.recv_timeout(TICK) {
            Ok(answer) => break answer,
            Err(RecvTimeoutError::Timeout) if quiet => {}
            Err(RecvTimeoutError::Timeout) => show_waiting(place, &mut shown)?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(CommandFailure::message(
                    FailureCode::Bug,
                    "nobody waits for the daemon",
                ));
            }
        }
    };
    let message = match answer {
        Ok(CommandReply::Done { message }) => message,
        // Another command was faster, or somebody killed it.
        Ok(_) | Err(DaemonClientError::Ending | DaemonClientError::Io { .. }) => {
            format!("the daemon (process {pid}) has ended")
        }
        Err(error) => return Err(error.into()),
    };
    daemon::wait_for_exit(place, pid)?;
    Ok(message)
}

/// Says which jobs are waited for, when that is different from what was said last.
fn show_waiting(place: &CommandContext, shown: &mut Vec<String>) -> CommandResult {
    let Some(reader) = place.open_reader()? else { return Ok(()) };
    let now = context::now();
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

/// Ends the waiting, not the stopping.
fn interrupted(quiet: bool) {
    if !quiet {
        // The process ends whether or not this can be said.
        drop(output::print_note(
            "the daemon goes on stopping: it ends when its jobs have\n  \
             heeler stop --force      to cancel them\n  \
             heeler stop --keep-jobs  to let them run on without it",
        ));
    }
    std::process::exit(FailureCode::Interrupted as i32);
}
