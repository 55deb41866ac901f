//! The agent's own process: its pipes and how it ended.
//!
//! This process adopts orphans, so it has children that it never started. They are reaped here as
//! they end, and the agent's exit status is kept for whoever waits for it. Start at [`Agent`].

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::signal::unix::{SignalKind, signal};

/// A running agent.
#[derive(Debug)]
pub(crate) struct Agent {
    /// Its process.
    pub(crate) pid: u32,
    /// What it reads, until somebody takes it.
    pub(crate) stdin: Option<ChildStdin>,
    /// What it says, until somebody takes it.
    pub(crate) stdout: Option<ChildStdout>,
    /// What it complains about, until somebody takes it.
    pub(crate) stderr: Option<ChildStderr>,
    process: Pid,
    /// Readable once the agent has ended.
    pidfd: AsyncFd<OwnedFd>,
    children: Arc<Children>,
    /// Some child has ended: the agent, or an orphan of it.
    child_ended: tokio::signal::unix::Signal,
}

impl Agent {
    pub(crate) fn new(mut child: Child, children: &Arc<Children>) -> io::Result<Agent> {
        let process = Pid::from_child(&child);
        // The number cannot be another process's yet: it is only reaped once it is asked for.
        let pidfd = rustix::process::pidfd_open(process, PidfdFlags::empty())?;
        Ok(Agent {
            pid: child.id(),
            stdin: child.stdin.take().map(ChildStdin::from_std).transpose()?,
            stdout: child.stdout.take().map(ChildStdout::from_std).transpose()?,
            stderr: child.stderr.take().map(ChildStderr::from_std).transpose()?,
            process,
            pidfd: AsyncFd::with_interest(pidfd, Interest::READABLE)?,
            children: Arc::clone(children),
            child_ended: signal(SignalKind::child())?,
        })
    }

    /// Waits until the agent has ended. It may be given up at any time and asked again, also after
    /// the end.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            self.children.reap();
            if let Some(status) = self.children.status(self.process) {
                return Ok(status);
            }
            tokio::select! {
                ended = self.pidfd.readable() => ended?.clear_ready(),
                _ = self.child_ended.recv() => {}
            }
        }
    }

    /// Sends a signal, if the agent has not ended.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Err(error) = rustix::process::pidfd_send_signal(self.pidfd.get_ref(), signal) {
            tracing::debug!(%error, ?signal, "the agent takes no signal");
        }
    }
}

/// The agents that this process has started, with their exit status once they have ended.
#[derive(Debug, Default)]
pub(crate) struct Children(Mutex<HashMap<Pid, Option<ExitStatus>>>);

impl Children {
    /// Starts a child whose status is kept, however soon it ends.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let mut agents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn()?;
        agents.insert(Pid::from_child(&child), None);
        Ok(child)
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

    fn status(&self, pid: Pid) -> Option<ExitStatus> {
        let agents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *agents.get(&pid)?
    }
}
