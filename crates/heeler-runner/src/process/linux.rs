//! Linux-only process facilities: process handles, adoption of orphans, in-memory files.

use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

/// Handle of a process that stays valid when its PID is reused.
#[derive(Debug)]
pub(super) struct ProcessHandle(OwnedFd);

impl ProcessHandle {
    pub(super) fn open(pid: Pid) -> Result<ProcessHandle, Errno> {
        rustix::process::pidfd_open(pid, PidfdFlags::empty()).map(ProcessHandle)
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<(), Errno> {
        rustix::process::pidfd_send_signal(&self.0, signal)
    }

    /// Waits until the process has ended, up to `at_most`.
    pub(super) fn wait(&self, at_most: Duration) {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        // The caller scans again in any case, so the result does not matter.
        let _ended = poll(&mut fds, Timespec::try_from(at_most).ok().as_ref());
    }
}

/// Makes this process the parent of its descendants' orphans.
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Makes the kernel send SIGTERM to this process when the thread that started it ends. For use
/// after a fork.
pub(super) fn end_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?)
}

/// Returns an in-memory file that is sealed against changes.
pub(crate) fn memory_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = std::fs::File::from(rustix::fs::memfd_create("heeler", flags)?);
    // This leaves the position at the end, but opening `/dev/fd/N` begins at the start on Linux.
    file.write_all(bytes)?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// Does nothing: on Linux the scanner finds every process.
pub(super) fn end_group(_: Pid) {}
