//! `heeler demo --serve`: runs a small fleet with a dashboard until Ctrl-C. Start at [`run`].

use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::commands::workflow;
use crate::failure::{CommandFailure, CommandResult, FailureCode};

use super::demo_context::{DemoContext, check_status, print_heading, print_text};

/// Folder of the fleet in the demo's folder.
const FLEET_FOLDER: &str = "living";

const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Fleet with a frequent schedule.
const FLEET: [(&str, &str); 2] = [
    ("heeler.yaml", include_str!("living/heeler.yaml")),
    ("workflows/each-minute.yaml", include_str!("living/minutely.yaml")),
];

/// Serves the fleet until Ctrl-C, then deletes it unless the user named its folder.
pub(super) fn run(demo: &DemoContext, is_temporary: bool) -> CommandResult {
    demo.write(FLEET_FOLDER, &FLEET)?;
    // The example's own `heeler.yaml` would replace that of this fleet.
    let example = workflow::files_of("build").iter().filter(|(name, _)| *name != "heeler.yaml");
    demo.write(FLEET_FOLDER, &example.copied().collect::<Vec<_>>())?;
    // A background daemon does not receive Ctrl-C, so `stop` below must end it.
    let served = start(demo).and_then(|link| {
        print_heading("A small fleet runs here: scripted agents, a schedule every few seconds, and a workflow that asks you.")?;
        print_text(format!("\n  {link}\n"))?;
        let after = match is_temporary {
            true => "leaves nothing behind".to_owned(),
            false => format!("keeps its files in {}", demo.folder),
        };
        print_text(format!("The link logs you in and works once. Ctrl-C ends the fleet and {after}."))?;
        while !demo.interrupted.load(Ordering::Relaxed) {
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    });
    // Also after a failed start, which may have left a daemon.
    let ended = stop(demo);
    // Only after the daemon has ended: it would write to the folder again.
    if is_temporary {
        std::fs::remove_dir_all(&demo.folder)?;
    }
    served.and(ended)
}

/// Starts the daemon and returns a link to its dashboard.
fn start(demo: &DemoContext) -> CommandResult<String> {
    let mut start = demo.command(FLEET_FOLDER, &["start", "-d", "-q"]);
    // The demo is about the dashboard, whatever the user has set for other fleets.
    let started = start.env_remove("HEELER_NO_WEB").stdout(Stdio::null()).status()?;
    check_status(&["start", "-d"], started)?;
    let output = demo.command(FLEET_FOLDER, &["open", "--print"]).output()?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(CommandFailure::message(FailureCode::Failed, why));
    }
    let output = String::from_utf8_lossy(&output.stdout);
    let link = output.split_whitespace().find(|word| word.starts_with("http"));
    let missing =
        || CommandFailure::message(FailureCode::Bug, "`heeler open --print` printed no link");
    link.map(str::to_owned).ok_or_else(missing)
}

/// Stops the daemon and its jobs.
fn stop(demo: &DemoContext) -> CommandResult {
    let stop = ["stop", "--force"];
    let status =
        demo.command(FLEET_FOLDER, &stop).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    check_status(&stop, status)
}
