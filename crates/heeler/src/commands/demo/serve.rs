//! `heeler demo --serve`: a small living fleet on the dashboard, until Ctrl-C.

use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::commands::workflow;
use crate::failure::{CommandFailure, CommandResult, FailureCode};

use super::{DemoContext, say, tell};

/// Where the fleet is in the demo's folder.
const FLEET_FOLDER: &str = "living";

/// How often it is looked whether Ctrl-C was pressed.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A fleet in which something goes on.
const FLEET: [(&str, &str); 2] = [
    ("heeler.yaml", include_str!("living/heeler.yaml")),
    ("workflows/each-minute.yaml", include_str!("living/minutely.yaml")),
];

/// Serves the fleet until Ctrl-C; then nothing of it is left, unless the user named its folder.
pub(super) fn run(stage: &DemoContext, is_temporary: bool) -> CommandResult {
    stage.write(FLEET_FOLDER, &FLEET)?;
    let example = workflow::files_of("build").iter().filter(|(name, _)| *name != "heeler.yaml");
    stage.write(FLEET_FOLDER, &example.copied().collect::<Vec<_>>())?;
    // A daemon in the background does not hear Ctrl-C.
    let served = start(stage).and_then(|link| {
        tell("A small fleet lives here: scripted agents, a schedule each few seconds, and a workflow that asks you.")?;
        say(format!("\n  {link}\n"))?;
        let after = match is_temporary {
            true => "leaves nothing behind".to_owned(),
            false => format!("leaves what it did in {}", stage.folder),
        };
        say(format!("The link logs you in, once. Ctrl-C ends the fleet and {after}."))?;
        while !stage.interrupted.load(Ordering::Relaxed) {
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    });
    let ended = stop(stage);
    if is_temporary {
        std::fs::remove_dir_all(&stage.folder)?;
    }
    served.and(ended)
}

/// Starts the daemon and returns a link to its dashboard.
fn start(stage: &DemoContext) -> CommandResult<String> {
    let mut start = stage.command(FLEET_FOLDER, &["start", "-d", "-q"]);
    let started = start.env_remove("HEELER_NO_WEB").stdout(Stdio::null()).status()?;
    super::check_status(&["start", "-d"], started)?;
    let said = stage.command(FLEET_FOLDER, &["open", "--print"]).output()?;
    if !said.status.success() {
        let why = String::from_utf8_lossy(&said.stderr).into_owned();
        return Err(CommandFailure::message(FailureCode::Failed, why));
    }
    let said = String::from_utf8_lossy(&said.stdout);
    let link = said.split_whitespace().find(|word| word.starts_with("http"));
    let missing = || CommandFailure::message(FailureCode::Bug, "there is no link");
    link.map(str::to_owned).ok_or_else(missing)
}

/// Ends the daemon and its jobs.
fn stop(stage: &DemoContext) -> CommandResult {
    let stop = ["stop", "--force"];
    let said =
        stage.command(FLEET_FOLDER, &stop).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    super::check_status(&stop, said)
}
