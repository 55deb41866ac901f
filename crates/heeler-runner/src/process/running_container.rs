//! The container of an agent that runs, until it is removed. Start at [`RunningContainer`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use heeler_container::ContainerEngine;
use heeler_model::error_chain;
use heeler_transcript::LockFile;
use rustix::process::Signal;

use super::container_body::ContainerOwner;
use super::kept_container::KeptContainerPlan;
use super::os::ProcessHandle;
use crate::egress::ContainerPid;

/// Time that the processes of a container have to end.
const END_TIME_MAX: Duration = Duration::from_secs(10);

/// Container whose first process has started an agent.
#[derive(Debug)]
pub(super) struct RunningContainer {
    pub(super) engine: ContainerEngine,
    pub(super) id: String,
    pub(super) first_process: ProcessHandle,
    /// Set by the report of the first process.
    pub(super) out_of_memory: Arc<AtomicBool>,
    /// Set when the first process is gone without a report.
    pub(super) is_lost: Arc<AtomicBool>,
    pub(super) memory_bytes: u64,
    /// The first process, as the sockets of the run know it.
    pub(super) known_pid: ContainerPid,
    /// Set if the container is kept for the next run of its session.
    pub(super) kept: Option<KeptContainer>,
}

/// Container of a session, locked for this run.
#[derive(Debug)]
pub(super) struct KeptContainer {
    pub(super) plan: KeptContainerPlan,
    pub(super) owner: ContainerOwner,
    pub(super) lock: LockFile,
}

/// Facts about the end of an agent, which its connection and its container share.
#[derive(Debug, Clone, Default)]
pub(super) struct ContainerFlags {
    pub(super) out_of_memory: Arc<AtomicBool>,
    pub(super) is_lost: Arc<AtomicBool>,
}

impl RunningContainer {
    pub(super) fn kill(&self) {
        // It may have ended, or belong to another user; then its connection ends it.
        let _killed = self.first_process.signal(Signal::KILL);
    }

    /// Waits for the end of all processes, and removes the container or keeps it. Returns the reason for which
    /// the container itself ended the agent, if it did.
    pub(super) async fn end(self) -> Option<String> {
        self.known_pid.clear();
        let process = self.first_process;
        let waited = tokio::task::spawn_blocking(move || process.wait(END_TIME_MAX));
        drop(waited.await);
        let ended = match self.kept {
            // The engine removes it by itself when it runs again.
            None => self.engine.remove(&self.id).await,
            Some(KeptContainer { plan, owner, lock }) => {
                let ended = self.engine.kill(&self.id).await;
                drop(lock);
                plan.remove_surplus(&self.engine, &owner).await;
                ended
            }
        };
        if let Err(error) = ended {
            tracing::warn!(error = error_chain(&error), "the container could not be ended");
        }
        if self.out_of_memory.load(Ordering::Relaxed) {
            let limit = self.memory_bytes >> 20;
            return Some(format!(
                "out of memory: the container has {limit} MiB; raise `docker.memory`"
            ));
        }
        self.is_lost.load(Ordering::Relaxed).then(|| {
            "the container was ended from outside: by its engine, which may have been restarted, \
             or by the kernel"
                .to_owned()
        })
    }
}
