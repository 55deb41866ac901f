//! Linux-only process facilities: process handles, adoption of orphans, in-memory files.

use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

pub(crate) use super::container::PreparedContainer;

/// Number of fields of `struct clone_args`, each of 64 bits, and the indexes of the used ones.
const CLONE_ARGUMENTS: usize = 11;
const CLONE_FLAGS: usize = 0;
const CLONE_CGROUP: usize = 10;
const CLONE_PARENT: u64 = 0x8000;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

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

    /// Returns true if the process has ended.
    pub(super) fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Waits until the process has ended, up to `at_most`.
    pub(super) fn wait(&self, at_most: Duration) {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        // The caller scans again in any case, so the result does not matter.
        let _ended = poll(&mut fds, Timespec::try_from(at_most).ok().as_ref());
    }
}

/// Option of a wait: includes children that were created to end without a signal (`__WALL`).
pub(super) const ALL_CHILDREN: WaitOptions = WaitOptions::from_bits_retain(0x4000_0000);

/// Makes this process the parent of its descendants' orphans. Returns true if it is.
pub(super) fn adopt_orphans() -> io::Result<bool> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(true)
}

/// Continues in a copy of this process that the kernel creates within a cgroup, and ends this
/// process. The copy has the same parent. For use after a fork: allocates nothing.
///
/// Fails on kernels before 5.7 and where a system call filter forbids it, as in many containers.
#[expect(unsafe_code, reason = "no library offers this system call")]
pub(super) fn continue_in_cgroup(folder: &OwnedFd) -> io::Result<()> {
    // `struct clone_args` of the kernel. The exit signal stays zero: with the same parent it is that
    // of this process.
    let mut arguments = [0_u64; CLONE_ARGUMENTS];
    arguments[CLONE_FLAGS] = CLONE_INTO_CGROUP | CLONE_PARENT;
    arguments[CLONE_CGROUP] = u64::try_from(folder.as_raw_fd()).map_err(io::Error::other)?;
    // SAFETY: the arguments are valid for this call. Without `CLONE_VM` the copy has its own memory,
    // and this process has one thread, because it was just forked itself.
    match unsafe { libc::syscall(libc::SYS_clone3, arguments.as_ptr(), size_of_val(&arguments)) } {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the call only ends this process; handlers of the runner's exit are not run.
        _ => unsafe { libc::_exit(0) },
    }
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
