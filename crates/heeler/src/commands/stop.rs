//! `heeler stop`: ends the daemon. What becomes of the jobs that run is the user's choice.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use clap::Args;
use heeler_engine::{Answer, Command, Stopping};
use heeler_model::config::Period;
use heeler_server::{Client, ClientError};
use serde_json::json;

use crate::cli::Global;
use crate::daemon;
use crate::failure::{Code, Failure, Outcome};
use crate::live;
use crate::output;
use crate::place::{self, Place};

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
    timeout: Option<Period>,
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
pub(crate) fn run(global: &Global, args: &StopArgs) -> Outcome {
    let place = Place::find(global)?;
    // Whoever wants none is not told to start one.
    let client = daemon::require(&place).map_err(|failure| Failure { hint: None, ..failure })?;
    let pid = client.hello().pid;
    let stopping = match args {
        StopArgs { force: true, .. } => Stopping::Force,
        StopArgs { keep_jobs: true, .. } => Stopping::KeepJobs,
        StopArgs { timeout, .. } => Stopping::Wait { timeout: timeout.map(Period::get) },
    };
    let quiet = args.json || global.quiet;
    live::on_interrupt(move || interrupted(quiet))?;
    let message = stop(&place, client, stopping, quiet)?;
    match args.json {
        true => Ok(output::json(&json!({ "pid": pid, "message": message }))?),
        false => Ok(output::line(message)?),
    }
}

/// Stops a daemon, telling what it waits for, and returns once it is gone, with what it said.
pub(crate) fn stop(
    place: &Place,
    mut client: Client,
    stopping: Stopping,
    quiet: bool,
) -> Outcome<String> {
    let pid = client.hello().pid;
    let (tell, told) = sync_channel(1);
    std::thread::spawn(move || {
        // Where nobody waits any more there is nobody to tell.
        drop(tell.send(client.ask(&Command::Stop(stopping), None)));
    });
    let mut shown = Vec::new();
    let answer = loop {
        match told.recv_timeout(TICK) {
            Ok(answer) => break answer,
            Err(RecvTimeoutError::Timeout) if quiet => {}
            Err(RecvTimeoutError::Timeout) => show_waiting(place, &mut shown)?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::message(Code::Bug, "nobody waits for the daemon"));
            }
        }
    };
    let message = match answer {
        Ok(Answer::Done { message }) => message,
        // Another command was faster, or somebody killed it.
        Ok(_) | Err(ClientError::Ending | ClientError::Io { .. }) => {
            format!("the daemon (process {pid}) has ended")
        }
        Err(error) => return Err(error.into()),
    };
    daemon::wait_gone(place, pid)?;
    Ok(message)
}

/// Says which jobs are waited for, when that is different from what was said last.
fn show_waiting(place: &Place, shown: &mut Vec<String>) -> Outcome {
    let Some(reader) = place.reader()? else { return Ok(()) };
    let now = place::now();
    let running = reader.running_jobs()?;
    let ids: Vec<String> = running.iter().map(|head| head.id.to_string()).collect();
    if *shown == ids || ids.is_empty() {
        return Ok(());
    }
    *shown = ids;
    let jobs = output::counted(running.len() as u64, "job");
    output::note(&format!("waiting for {jobs} (Ctrl-C to stop waiting):"))?;
    for head in &running {
        let since = output::relative(head.started_at, now);
        let agent = output::one_line(&head.agent);
        output::note(&format!("  {} {agent}, started {since}", head.id))?;
    }
    Ok(())
}

/// Ends the waiting, not the stopping.
fn interrupted(quiet: bool) {
    if !quiet {
        // The process ends whether or not this can be said.
        drop(output::note(
            "the daemon goes on stopping: it ends when its jobs have\n  \
             heeler stop --force      to cancel them\n  \
             heeler stop --keep-jobs  to let them run on without it",
        ));
    }
    std::process::exit(Code::Interrupted as i32);
}
