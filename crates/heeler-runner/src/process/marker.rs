//! The variable that every process of a run carries.
//!
//! `/proc/<pid>/environ` shows the environment that a process was started with: one that has the
//! marker at its start cannot shed it but by starting itself anew. Start at [`has_marker`].

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use heeler_model::RunId;
use rustix::process::Pid;

/// The variable that names the run that a process belongs to. Whoever starts a runner removes it.
pub(super) const MARKER: &str = "HEELER_RUN";

/// Says whether a process was started with the marker of a run. One that has ended, or that we may
/// not look at, was not.
pub(super) fn has_marker(pid: Pid, run: RunId) -> bool {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    find_marker(&environ).is_some_and(|marker| marker == run.to_string().as_bytes())
}

/// Returns the run whose marker a process was started with.
pub(super) fn run_of_process(pid: Pid) -> Option<RunId> {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    std::str::from_utf8(find_marker(&environ)?).ok()?.parse().ok()
}

/// Returns the run whose marker this process was started with.
fn own_marker() -> Option<String> {
    let environ = std::fs::read("/proc/self/environ").ok()?;
    Some(String::from_utf8_lossy(find_marker(&environ)?).into_owned())
}

fn find_marker(environ: &[u8]) -> Option<&[u8]> {
    let mut variables = environ.split(|&byte| byte == 0);
    variables.find_map(|variable| variable.strip_prefix(MARKER.as_bytes())?.strip_prefix(b"="))
}

/// Starts this program anew without the marker of another run, if it was started with one: that run
/// would end us with itself. To be called before anything else is done; returns if there is nothing
/// to shed, or with the reason why it cannot be shed.
#[expect(clippy::disallowed_methods, reason = "this process becomes itself, without the marker")]
pub fn restart_without_marker() -> io::Result<()> {
    if own_marker().is_none() {
        return Ok(());
    }
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let mut again = Command::new(std::env::current_exe()?);
    Err(again.arg0(name).args(arguments).env_remove(MARKER).exec())
}
