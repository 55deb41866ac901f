//! `heeler demo --serve`: runs a small fleet with a dashboard until Ctrl-C, SIGTERM or a hang-up.
//! Start at [`run`].

use std::os::unix::fs::MetadataExt as _;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{LockFile, LockHolder};

use crate::commands::workflow;
use crate::failure::{CommandFailure, CommandResult, FailureCode};
use crate::process_env;

use super::FOLDER_PREFIX;
use super::demo_context::{DemoContext, check_status, print_heading, print_text};

/// Folder of the fleet in the demo's folder.
const FLEET_FOLDER: &str = "living";

const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Fleet with a frequent schedule.
const FLEET: [(&str, &str); 2] = [
    ("heeler.yaml", include_str!("living/heeler.yaml")),
    ("workflows/each-minute.yaml", include_str!("living/minutely.yaml")),
];

/// Lock file in a temporary folder, held while its demo lives.
const LOCK_NAME: &str = "demo.lock";
const LOCK_WAIT: Duration = Duration::from_secs(1);

fn lock(folder: &Utf8Path, wait: Duration) -> CommandResult<LockFile> {
    let holder = LockHolder::this_process("demo --serve", process_env::now());
    let lock = LockFile::acquire(&folder.join(LOCK_NAME), &holder, wait);
    Ok(lock.map_err(anyhow::Error::from)?)
}

/// Ends the fleets of demos that were killed, and deletes their temporary folders.
pub(super) fn remove_leftovers(program: &Utf8Path) -> CommandResult {
    let Ok(temp) = Utf8PathBuf::from_path_buf(process_env::temp_dir()) else { return Ok(()) };
    for entry in temp.read_dir_utf8().into_iter().flatten().flatten() {
        let folder = entry.path();
        if !entry.file_name().starts_with(FOLDER_PREFIX) || !is_own_folder(folder) {
            continue;
        }
        // The demo lives, or the folder is that of a demo that keeps its files.
        let Ok(_lock) = lock(folder, Duration::ZERO) else { continue };
        let interrupted = Arc::default();
        let (program, folder) = (program.to_owned(), folder.to_owned());
        let demo = DemoContext { program, folder, interrupted };
        // Fails if no daemon runs any more.
        drop(stop(&demo));
        std::fs::remove_dir_all(&demo.folder)?;
    }
    Ok(())
}

/// Returns true for a folder of a served demo that only this user can enter.
fn is_own_folder(folder: &Utf8Path) -> bool {
    let is_own = folder.symlink_metadata().is_ok_and(|found| {
        let user = rustix::process::geteuid().as_raw();
        found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0
    });
    is_own && folder.join(LOCK_NAME).exists()
}

/// Serves the fleet until Ctrl-C, then deletes it unless the user named its folder.
pub(super) fn run(demo: &DemoContext, is_temporary: bool) -> CommandResult {
    // Held until this process ends: a free lock tells the next demo that this one was killed.
    let _lock = match is_temporary {
        true => Some(lock(&demo.folder, LOCK_WAIT)?),
        false => None,
    };
    demo.write(FLEET_FOLDER, &FLEET)?;
    demo.add_sandbox(FLEET_FOLDER)?;
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
