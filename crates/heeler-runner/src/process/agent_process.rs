//! The agent's own process: its pipes and how it ended.
//!
//! This process adopts orphans, so it has children that it never started. They are reaped here as
//! they end, and the agent's exit status is kept for whoever waits for it. Start at [`AgentProcess`].

use std::collections::HashMap;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, WaitOptions};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::signal::unix::{SignalKind, signal};

use super::os::{self, ProcessHandle};

/// A running agent.
#[derive(Debug)]
pub(crate) struct AgentProcess {
    pub(crate) pid: Pid,
    /// What it reads, until somebody takes it.
    pub(crate) stdin: Option<ChildStdin>,
    /// What it says, until somebody takes it.
    pub(crate) stdout: Option<ChildStdout>,
    /// What it complains about, until somebody takes it.
    pub(crate) stderr: Option<ChildStderr>,
    /// For signals: its number may be another's once it has ended.
    handle: ProcessHandle,
    children: Arc<ChildExitRegistry>,
    /// Some child has ended: the agent, or an orphan of it.
    child_ended: tokio::signal::unix::Signal,
}

impl AgentProcess {
    /// Starts an agent; one that cannot be watched is ended again.
    pub(crate) fn start(
        command: &mut Command,
        children: &Arc<ChildExitRegistry>,
    ) -> io::Result<AgentProcess> {
        let (mut child, handle) = children.spawn(command)?;
        let mut pipes = || -> io::Result<_> {
            Ok((
                child.stdin.take().map(ChildStdin::from_std).transpose()?,
                child.stdout.take().map(ChildStdout::from_std).transpose()?,
                child.stderr.take().map(ChildStderr::from_std).transpose()?,
                signal(SignalKind::child())?,
            ))
        };
        let (stdin, stdout, stderr, child_ended) = pipes().inspect_err(|_| {
            let _killed = handle.signal(Signal::KILL);
        })?;
        let pid = Pid::from_child(&child);
        let children = Arc::clone(children);
        Ok(AgentProcess { pid, stdin, stdout, stderr, handle, children, child_ended })
    }

    /// Waits until the agent has ended. It may be given up at any time and asked again, also after
    /// the end.
    pub(crate) async fn wait(&mut self) -> ExitStatus {
        loop {
            if let Some(status) = self.exit_status() {
                return status;
            }
            // What ends between the look above and here is remembered for this call.
            self.child_ended.recv().await;
        }
    }

    /// Returns how the agent ended, if it has.
    pub(crate) fn exit_status(&self) -> Option<ExitStatus> {
        self.children.reap();
        self.children.status(self.pid)
    }

    /// Sends a signal, if the agent has not ended.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Err(error) = self.handle.signal(signal) {
            tracing::debug!(%error, ?signal, "the agent takes no signal");
        }
    }
}

/// The agents that this process has started, with their exit status once they have ended.
#[derive(Debug, Default)]
pub(crate) struct ChildExitRegistry(Mutex<HashMap<Pid, Option<ExitStatus>>>);

impl ChildExitRegistry {
    /// Starts a child whose status is kept, however soon it ends.
    fn spawn(&self, command: &mut Command) -> io::Result<(Child, ProcessHandle)> {
        let mut agents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut child = command.spawn()?;
        let pid = Pid::from_child(&child);
        // Nobody reaps it while we have the lock, so the number is still its own.
        match ProcessHandle::open(pid) {
            Ok(handle) => {
                agents.insert(pid, None);
                Ok((child, handle))
            }
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error.into())
            }
        }
    }

    /// Takes note of every child that has ended, orphans that were adopted included.
    pub(crate) fn reap(&self) {
        let mut agents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            // The number of an agent that has ended may since be an orphan's.
            if let Some(kept @ None) = agents.get_mut(&pid) {
                *kept = Some(ExitStatus::from_raw(status.as_raw()));
            }
        }
    }

    /// Ends the agents' process groups, where that is all that can be done.
    pub(crate) fn end_groups(&self) {
        let agents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        agents.keys().for_each(|&agent| os::end_group(agent));
    }

    fn status(&self, pid: Pid) -> Option<ExitStatus> {
        let agents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *agents.get(&pid)?
    }
}
