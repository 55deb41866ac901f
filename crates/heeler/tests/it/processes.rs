//! Processes that tests have started: signalled only if they are still those, and cleaned up after.

use std::path::Path;

use heeler_model::run::RunStartRecord;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Sends a signal to a process of which `is_it` says that it is the one. It is held first, so that
/// its number cannot become another's meanwhile. Returns whether it was there.
pub(crate) fn signal_if(pid: Pid, signal: Signal, is_it: impl FnOnce() -> bool) -> bool {
    let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    is_it() && pidfd_send_signal(&held, signal).is_ok()
}

/// Takes away the control groups of the runs in a folder of theirs, and nobody else's: what is left
/// in them is killed.
pub(crate) fn remove_groups(runs: &Path) {
    for entry in std::fs::read_dir(runs).into_iter().flatten().flatten() {
        let started = std::fs::read(entry.path().join("started.json")).unwrap_or_default();
        let Ok(started) = serde_json::from_slice::<RunStartRecord>(&started) else { continue };
        let Some(group) = started.cgroup else { continue };
        if group.file_name() != Some(format!("heeler-{}", started.run).as_str()) {
            continue;
        }
        // Most are gone with their run.
        drop(std::fs::write(group.join("cgroup.kill"), "1"));
        drop(std::fs::remove_dir(&group));
    }
}
