//! `heeler restart`: another daemon takes over, and no job notices.

use clap::Args;
use heeler_engine::{Answer, Command, DaemonMode, Stopping};
use serde_json::json;

use crate::cli::Global;
use crate::commands::stop;
use crate::daemon::{self, Readiness};
use crate::failure::{Code, Failure, Outcome};
use crate::fleet;
use crate::output;
use crate::place::Place;

/// What the help shows at its end.
pub(crate) const ABOUT: &str = "Jobs run on meanwhile, and the new daemon takes them over: this is how to upgrade. The new daemon
runs in the background with the environment of this command. One that systemd started is to be
restarted by systemd: `systemctl --user restart heeler`, which keeps jobs too.
Exit codes: 0 restarted, 2 a fault in the config (nothing was stopped), 3 no daemon runs.";

/// Arguments of `restart`.
#[derive(Args)]
pub(crate) struct RestartArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Restarts the daemon.
pub(crate) fn run(global: &Global, args: &RestartArgs) -> Outcome {
    let mut place = Place::find(global)?;
    let mut client = daemon::require(&place)?;
    let Answer::Status(status) = client.ask(&Command::Status, None)? else {
        return Err(Failure::message(Code::Bug, "the daemon answered something else"));
    };
    // It may have been started with another config than the one that is found from here.
    place.config = Some(status.config);
    // Nothing is stopped that could not be started again.
    fleet::print_faulty(&place, &fleet::load(&place)?)?;
    stop::stop(&place, client, Stopping::KeepJobs, true)?;
    let pid = match status.mode {
        DaemonMode::Permanent => daemon::start_permanent(&place)?,
        mode @ DaemonMode::UntilIdle => match daemon::launch(&place, mode)? {
            Readiness::Ready { pid } => pid,
            Readiness::Held { holder } => return Err(daemon::second(&place, &holder)),
            Readiness::Failed { message, .. } => {
                return Err(Failure::message(Code::Failed, message).hint("heeler start -d"));
            }
        },
    };
    let version = env!("CARGO_PKG_VERSION");
    if args.json {
        return Ok(output::json(&json!({ "pid": pid, "version": version }))?);
    }
    let kept = match status.running.len() as u64 {
        0 => String::new(),
        jobs => format!("; {} kept", output::counted(jobs, "running job")),
    };
    Ok(output::line(format!("restarted: heeler {version}, process {pid}{kept}"))?)
}
