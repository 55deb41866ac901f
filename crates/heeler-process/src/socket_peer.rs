//! Process at the other end of a unix socket. Start at [`SocketPeerProcess::of`].

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use camino::Utf8Path;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::agent_descent::is_own_process_marked;
use crate::origin::{ProcessOrigin, has_mark, parent_pid};

/// Number of attempts to inspect a process whose ancestors change.
const INSPECTIONS_MAX: usize = 5;

/// Process that connected a unix socket, or that listens on it.
///
/// The kernel names it by its PID at that time. The process may have ended since, and another may
/// have its PID. The kernel's descriptor of the process detects that. Kernels before 6.5 offer none,
/// and are believed.
#[derive(Debug)]
pub struct SocketPeerProcess {
    pub pid: u32,
    pub user: u32,
    process: Option<OwnedFd>,
}

impl SocketPeerProcess {
    /// Returns the process at the other end of a socket; an error if it has ended.
    #[cfg(target_os = "linux")]
    pub fn of(socket: impl AsFd) -> io::Result<SocketPeerProcess> {
        let peer = rustix::net::sockopt::socket_peercred(socket.as_fd())?;
        let process = match open_peer(socket.as_fd()) {
            Ok(process) => Some(process),
            Err(error) if is_option_missing(&error) => None,
            Err(error) => return Err(error),
        };
        let pid = peer.pid.as_raw_nonzero().get().cast_unsigned();
        Ok(SocketPeerProcess { pid, user: peer.uid.as_raw(), process })
    }

    /// Fails: this system does not name the process.
    #[cfg(not(target_os = "linux"))]
    pub fn of(_: impl AsFd) -> io::Result<SocketPeerProcess> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns the facts about the process, or `None` if it has ended or cannot be inspected.
    pub fn inspect(&self) -> Option<ProcessOrigin> {
        // An ancestor that ends meanwhile cannot be inspected; the next attempt finds its successor.
        let mut attempts = (0..INSPECTIONS_MAX).take_while(|_| self.is_alive());
        let origin = attempts.find_map(|_| ProcessOrigin::inspect(self.pid, self.user))?;
        // Checked last: a process that lives now is the one that was inspected.
        self.is_alive().then_some(origin)
    }

    /// Returns true if the process is this one or descends from it, by at most `depth` generations.
    pub fn is_near_descendant(&self, depth: usize) -> bool {
        let own = std::process::id();
        let lineage = std::iter::successors(Some(self.pid), |pid| parent_pid(*pid));
        // Checked last: a process that lives now is the one whose parents were read.
        lineage.take(depth + 1).any(|pid| pid == own) && self.is_alive()
    }

    /// Returns true if the process is the runner of a run; an error if it has ended or cannot be
    /// inspected. A process of an agent that poses as a runner is below its own runner, or carries
    /// the mark of agents.
    pub fn is_runner_of(&self, run_dir: &Utf8Path) -> io::Result<bool> {
        let unknown = || io::Error::other(format!("process {} cannot be inspected", self.pid));
        let origin = self.inspect().ok_or_else(unknown)?;
        Ok(origin.runner_pid == Some(self.pid)
            && !origin.is_marked
            && origin.runner_dir.is_some_and(|dir| is_same_folder(&dir, run_dir)))
    }

    /// Returns true if the process carries the mark of agents, or cannot be inspected. This reads one
    /// file, and is only a hint: other sandboxes set the same mark. Always false where the mark tells
    /// nothing.
    pub fn is_marked(&self) -> bool {
        !is_own_process_marked() && has_mark(self.pid) != Some(false)
    }

    /// Returns true if the process has ended. Without the kernel's descriptor that is unknown.
    pub fn has_ended(&self) -> bool {
        !self.is_alive()
    }

    fn is_alive(&self) -> bool {
        let Some(process) = &self.process else { return true };
        // The descriptor of a process is readable once the process has ended.
        let mut events = [PollFd::new(process, PollFlags::IN)];
        poll(&mut events, Some(&Timespec::default())) == Ok(0)
    }
}

/// Returns true if two paths lead to the same folder.
fn is_same_folder(one: &Utf8Path, other: &Utf8Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;

    let identity = |path: &Utf8Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    identity(one).is_some_and(|found| Some(found) == identity(other))
}

#[cfg(target_os = "linux")]
fn is_option_missing(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOPROTOOPT)
}

/// Opens a descriptor of the process at the other end of a socket.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "no library in use offers this socket option")]
fn open_peer(socket: std::os::fd::BorrowedFd<'_>) -> io::Result<OwnedFd> {
    use std::os::fd::{AsRawFd as _, FromRawFd as _};

    let mut process: libc::c_int = -1;
    let mut length = libc::socklen_t::try_from(size_of_val(&process)).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes to `process`, which is that long.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut process).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel opened this descriptor for this call, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(process) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn a_peer_that_has_ended_is_nobody() {
        let temp = tempfile::tempdir().unwrap();
        let socket = temp.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let own = UnixStream::connect(&socket).unwrap();
        let peer = SocketPeerProcess::of(&listener.accept().unwrap().0).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert!(peer.inspect().is_some() && peer.is_alive());
        drop(own);
        // Python connects, passes its end on to a child and ends; the child keeps it open until the
        // other end is closed.
        let connect = "import os,socket,sys\ns=socket.socket(socket.AF_UNIX)\n\
                       s.connect(sys.argv[1])\nif os.fork()==0:\n s.recv(1)";
        #[expect(clippy::disallowed_methods, reason = "the test needs a peer that ends")]
        let mut parent = std::process::Command::new("python3")
            .args(["-c", connect, socket.to_str().unwrap()])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let (stream, _) = listener.accept().unwrap();
        let before = SocketPeerProcess::of(&stream);
        parent.wait().unwrap();
        // The socket is still open, and the process that connected it is gone.
        if let Ok(peer) = before {
            assert!(!peer.is_alive() && peer.inspect().is_none());
        }
        let after = SocketPeerProcess::of(&stream);
        assert!(after.is_err() || after.is_ok_and(|peer| !peer.is_alive()));
    }

    #[test]
    fn a_process_descends_from_itself_and_its_parents() {
        let peer = |pid| SocketPeerProcess { pid, user: 0, process: None };
        assert!(peer(std::process::id()).is_near_descendant(0));
        #[expect(clippy::disallowed_methods, reason = "the test needs a child")]
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        assert!(peer(child.id()).is_near_descendant(1));
        assert!(!peer(child.id()).is_near_descendant(0), "it is too far away");
        assert!(!peer(1).is_near_descendant(9), "the first process has no parent");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!peer(child.id()).is_near_descendant(1), "it has ended");
    }

    #[test]
    fn only_a_runner_is_the_runner_of_a_run() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = SocketPeerProcess::of(&one).unwrap();
        assert!(!peer.is_runner_of(Utf8Path::new("/")).unwrap(), "this process is no runner");
    }
}
