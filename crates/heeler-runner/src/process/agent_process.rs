//! The agent's own process: its pipes and its exit status.
//!
//! This process adopts orphans, so it has children that it never started. They are reaped here as
//! they end, and the agent's exit status is kept for [`AgentProcess::wait`]. Start at
//! [`AgentProcess`].

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};
use thiserror::Error;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::signal::unix::{SignalKind, signal};

use super::os::{self, ProcessHandle};
#[cfg(target_os = "linux")]
use super::running_container::ContainerFlags;
#[cfg(target_os = "linux")]
use super::sandbox_control::SandboxControl;

/// The runner's ends of the pipes of a sandboxed agent.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub(super) struct AgentPipes {
    pub(super) stdin: std::process::ChildStdin,
    pub(super) stdout: std::process::ChildStdout,
    pub(super) stderr: std::process::ChildStderr,
}

/// Time that a killed sandbox has to end.
#[cfg(target_os = "linux")]
const SANDBOX_END_WAIT: std::time::Duration = std::time::Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct AgentProcess {
    pub(crate) pid: Pid,
    /// `None` once taken.
    pub(crate) stdin: Option<ChildStdin>,
    /// `None` once taken.
    pub(crate) stdout: Option<ChildStdout>,
    /// `None` once taken.
    pub(crate) stderr: Option<ChildStderr>,
    /// Used for signals: the PID may be reused once the process has ended.
    handle: ProcessHandle,
    children: Arc<ChildExitRegistry>,
    /// Signals that a child has ended: the agent, or an adopted orphan.
    child_ended: tokio::signal::unix::Signal,
    /// Connection to the first process of the agent's sandbox. The process above is then bubblewrap.
    #[cfg(target_os = "linux")]
    sandbox: Option<SandboxControl>,
}

impl AgentProcess {
    /// Starts an agent; one that cannot be watched is ended again. The process that becomes the agent
    /// writes its PID into the pipe `reported_pid`, because it may be a copy of the one that `command`
    /// starts.
    pub(crate) fn start(
        command: &mut Command,
        reported_pid: OwnedFd,
        children: &Arc<ChildExitRegistry>,
    ) -> io::Result<AgentProcess> {
        let (mut child, pid, handle) = children.spawn(command, reported_pid)?;
        let mut pipes = || -> io::Result<_> {
            Ok((
                child.stdin.take().map(ChildStdin::from_std).transpose()?,
                child.stdout.take().map(ChildStdout::from_std).transpose()?,
                child.stderr.take().map(ChildStderr::from_std).transpose()?,
                signal(SignalKind::child())?,
            ))
        };
        // Without its pipes the agent could be neither read nor ended in order.
        let (stdin, stdout, stderr, child_ended) = pipes().inspect_err(|_| {
            let _killed = handle.signal(Signal::KILL);
        })?;
        let children = Arc::clone(children);
        Ok(AgentProcess {
            pid,
            stdin,
            stdout,
            stderr,
            handle,
            children,
            child_ended,
            #[cfg(target_os = "linux")]
            sandbox: None,
        })
    }

    /// Starts bubblewrap for an agent with these pipes. Returns its standard error, too.
    #[cfg(target_os = "linux")]
    pub(super) fn start_sandbox(
        command: &mut Command,
        reported_pid: OwnedFd,
        children: &Arc<ChildExitRegistry>,
        pipes: AgentPipes,
    ) -> io::Result<(AgentProcess, Option<std::process::ChildStderr>)> {
        let (mut child, pid, handle) = children.spawn(command, reported_pid)?;
        let build = || -> io::Result<_> {
            Ok(AgentProcess {
                pid,
                stdin: Some(ChildStdin::from_std(pipes.stdin)?),
                stdout: Some(ChildStdout::from_std(pipes.stdout)?),
                stderr: Some(ChildStderr::from_std(pipes.stderr)?),
                handle,
                children: Arc::clone(children),
                child_ended: signal(SignalKind::child())?,
                sandbox: None,
            })
        };
        // A failure closes the socket of the sandbox, which ends it.
        Ok((build()?, child.stderr.take()))
    }

    /// Describes an agent in a container with this first process, which is no child of this process.
    #[cfg(target_os = "linux")]
    pub(super) fn in_container(
        pid: Pid,
        handle: ProcessHandle,
        children: &Arc<ChildExitRegistry>,
        pipes: AgentPipes,
    ) -> io::Result<AgentProcess> {
        Ok(AgentProcess {
            pid,
            stdin: Some(ChildStdin::from_std(pipes.stdin)?),
            stdout: Some(ChildStdout::from_std(pipes.stdout)?),
            stderr: Some(ChildStderr::from_std(pipes.stderr)?),
            handle,
            children: Arc::clone(children),
            child_ended: signal(SignalKind::child())?,
            sandbox: None,
        })
    }

    /// Connects the process with the sandbox in which it has started the agent.
    #[cfg(target_os = "linux")]
    pub(super) fn attach_control(
        &mut self,
        runner: std::os::unix::net::UnixStream,
        container: Option<ContainerFlags>,
    ) -> io::Result<()> {
        self.sandbox = Some(SandboxControl::new(runner, container)?);
        Ok(())
    }

    /// Kills bubblewrap, and with it every process of the sandbox. Returns when it is dead.
    #[cfg(target_os = "linux")]
    pub(super) fn kill_sandbox(&self) {
        self.signal(Signal::KILL);
        self.handle.wait(SANDBOX_END_WAIT);
        self.children.reap();
    }

    /// Waits until the agent has ended. Cancel-safe; may be called again, also after the end.
    pub(crate) async fn wait(&mut self) -> ExitStatus {
        loop {
            // The agent may have ended before its signal was listened for, so its status is checked
            // first.
            if let Some(status) = self.exit_status() {
                return status;
            }
            // A child that ends between the check above and here is remembered for this call.
            #[cfg(target_os = "linux")]
            if let Some(sandbox) = &self.sandbox {
                tokio::select! {
                    _ = self.child_ended.recv() => {}
                    () = sandbox.changed() => {}
                }
                continue;
            }
            self.child_ended.recv().await;
        }
    }

    /// Returns the agent's exit status, if it has ended.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.children.reap();
        // Looked up first: a sandbox that has ended has reported everything before.
        let status = self.children.status(self.pid);
        #[cfg(target_os = "linux")]
        if let Some(sandbox) = &mut self.sandbox {
            return sandbox.exit_status().or(status);
        }
        status
    }

    /// Sends a signal, unless the agent has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        #[cfg(target_os = "linux")]
        if let Some(sandbox) = &self.sandbox {
            if let Err(error) = sandbox.signal(signal) {
                tracing::debug!(%error, ?signal, "the agent could not be signalled");
            }
            return;
        }
        if let Err(error) = self.handle.signal(signal) {
            tracing::debug!(%error, ?signal, "the agent could not be signalled");
        }
    }
}

/// Agents started by this process, with their exit status once they have ended.
#[derive(Debug, Default)]
pub(crate) struct ChildExitRegistry(Mutex<HashMap<Pid, Option<ExitStatus>>>);

impl ChildExitRegistry {
    /// Starts a child; its status is kept even if it ends at once.
    fn spawn(
        &self,
        command: &mut Command,
        reported_pid: OwnedFd,
    ) -> io::Result<(Child, Pid, ProcessHandle)> {
        // The lock is held across the start, so `reap` cannot drop the status of a child it does
        // not know.
        let mut agents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn()?;
        // The child is not reaped while the lock is held, so the PID is still its own.
        let pid = read_pid(reported_pid)?;
        match ProcessHandle::open(pid) {
            Ok(handle) => {
                agents.insert(pid, None);
                Ok((child, pid, handle))
            }
            Err(error) => {
                rustix::process::kill_process(pid, Signal::KILL)?;
                rustix::process::waitpid(Some(pid), WaitOptions::empty())?;
                Err(error.into())
            }
        }
    }

    /// Reaps every child that has ended, adopted orphans included. Returns true if this process has
    /// no child left.
    pub(crate) fn reap(&self) -> bool {
        // The map is whole after every step, so a panic elsewhere does not make it unusable.
        let mut agents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match rustix::process::wait(WaitOptions::NOHANG.union(os::ALL_CHILDREN)) {
                Ok(Some((pid, status))) => {
                    // The PID of an agent that has ended may have been reused by an orphan.
                    if let Some(kept @ None) = agents.get_mut(&pid) {
                        *kept = Some(ExitStatus::from_raw(status.as_raw()));
                    }
                }
                Ok(None) => return false,
                Err(error) => return error == Errno::CHILD,
            }
        }
    }

    /// Ends the agents' process groups, on systems that offer nothing better.
    pub(crate) fn end_groups(&self) {
        let agents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        agents.keys().for_each(|&agent| os::end_group(agent));
    }

    fn status(&self, pid: Pid) -> Option<ExitStatus> {
        let agents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *agents.get(&pid)?
    }
}

/// A signal from outside ended a process before it executed its program. The program has done nothing,
/// and nothing is wrong with it.
#[derive(Debug, Error)]
#[error("it was killed while it was being started")]
pub(crate) struct KilledAtStart;

/// Reads the PID that the new agent wrote before it executed its program. This process has the other
/// end of the pipe too, so the pipe must not block.
fn read_pid(pipe: OwnedFd) -> io::Result<Pid> {
    let mut bytes = [0; size_of::<i32>()];
    File::from(pipe).read_exact(&mut bytes).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::other(KilledAtStart),
        _ => error,
    })?;
    Pid::from_raw(i32::from_ne_bytes(bytes)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
