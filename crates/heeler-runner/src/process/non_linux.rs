//! Substitutes for the Linux-only process facilities. Untested: it builds on macOS.
//!
//! A process is known by its PID alone, orphans go to init, and only the agent's own process group
//! is ended with it.

use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};

/// Container that is ready to be created: none is here.
pub(crate) enum PreparedContainer {}

/// Process identified by its PID.
#[derive(Debug)]
pub(super) struct ProcessHandle(Pid);

impl ProcessHandle {
    pub(super) fn open(pid: Pid) -> Result<ProcessHandle, Errno> {
        rustix::process::test_kill_process(pid)?;
        Ok(ProcessHandle(pid))
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<(), Errno> {
        rustix::process::kill_process(self.0, signal)
    }

    pub(super) fn has_ended(&self) -> bool {
        rustix::process::test_kill_process(self.0).is_err()
    }

    pub(super) fn wait(&self, at_most: Duration) {
        // Nothing reports the end of a foreign process here, so the caller looks again soon.
        std::thread::sleep(at_most.min(Duration::from_millis(10)));
    }
}

/// No option of a wait.
pub(super) const ALL_CHILDREN: WaitOptions = WaitOptions::empty();

pub(super) fn adopt_orphans() -> io::Result<bool> {
    Ok(false)
}

pub(super) fn continue_in_cgroup(_: &OwnedFd) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn end_with_parent() -> io::Result<()> {
    Ok(())
}

/// Returns an unlinked temporary file.
pub(crate) fn memory_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    let path = std::env::temp_dir().join(format!(".heeler-{:032x}", fastrand::u128(..)));
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    // The file loses its name before it has content, so no other process can open it.
    std::fs::remove_file(&path)?;
    file.write_all(bytes)?;
    Ok(file.into())
}

/// Ends the process group that an agent leads.
pub(super) fn end_group(agent: Pid) {
    // An error means that the group is gone already, or belongs to another user.
    let _ended = rustix::process::kill_process_group(agent, Signal::KILL);
}

/// Rules for the files of an agent. This system has none.
pub(super) enum FileRules {}

/// Limits of an agent's processes. This system offers none.
pub(super) struct AgentConfinement;

impl AgentConfinement {
    pub(super) fn prepare(_files: Option<FileRules>) -> AgentConfinement {
        AgentConfinement
    }

    pub(super) fn apply(&mut self) -> io::Result<()> {
        Ok(())
    }
}
