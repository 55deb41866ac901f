//! The environment variable that marks every process of a run.
//!
//! `/proc/<pid>/environ` shows the environment that a process was started with: a process that has
//! the marker at its start can drop it only by executing itself again. Start at [`has_marker`].

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use heeler_model::RunId;
use rustix::process::Pid;

/// Variable with the ID of the run that a process belongs to. It is removed when a runner is
/// started.
pub(super) const MARKER: &str = "HEELER_RUN";

/// Returns true if a process was started with the marker of a run. Returns false if the process has
/// ended or cannot be inspected.
pub(super) fn has_marker(pid: Pid, run: RunId) -> bool {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    find_marker(&environ).is_some_and(|marker| marker == run.to_string().as_bytes())
}

/// Returns the run in the marker of a process.
pub(super) fn run_of_process(pid: Pid) -> Option<RunId> {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    std::str::from_utf8(find_marker(&environ)?).ok()?.parse().ok()
}

/// Returns the run in the marker of this process.
fn own_marker() -> Option<String> {
    // Others see the environment at the start of this process, so that one counts here too.
    let environ = std::fs::read("/proc/self/environ").ok()?;
    Some(String::from_utf8_lossy(find_marker(&environ)?).into_owned())
}

fn find_marker(environ: &[u8]) -> Option<&[u8]> {
    let mut variables = environ.split(|&byte| byte == 0);
    variables.find_map(|variable| variable.strip_prefix(MARKER.as_bytes())?.strip_prefix(b"="))
}

/// Executes this program again without the marker of another run, if it has one: that run would
/// otherwise end this process with itself. Must be called before anything else. Returns if there is
/// no marker, or with the error that prevented the restart.
pub fn restart_without_marker() -> io::Result<()> {
    if own_marker().is_none() {
        return Ok(());
    }
    Err(restart_process())
}

/// Executes this program again in this process, with the same arguments. Returns only on failure.
#[expect(clippy::disallowed_methods, reason = "this process becomes itself, without the marker")]
pub fn restart_process() -> io::Error {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let mut again = match std::env::current_exe() {
        Ok(program) => Command::new(program),
        Err(error) => return error,
    };
    again.arg0(name).args(arguments).env_remove(MARKER).exec()
}
