//! Inputs of a run's execution. Start at [`RunExecutor`].

use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::run::RunSpec;
use heeler_transcript::{DiskBackend, OsDisk};
use jiff::Timestamp;

use super::DaemonLink;
use super::host::RunnerHost;
use crate::deadlines::OPENING_TIME_MAX;
use crate::event_loop::{COMPANION_WAIT_MAX, SNAPSHOT_TIME_MAX};
use crate::line_reader::LineLimits;
use crate::memory::available_memory;
use crate::native_session;
use crate::runtime::AgentRuntime;
use crate::runtime_context::{RuntimeContext, build_runtime};

/// Dependencies that tests replace.
pub(crate) struct RunnerDependencies {
    /// Backend for transcript writes.
    pub(crate) disk: Arc<dyn DiskBackend>,
    pub(crate) lines: LineLimits,
    /// Time limit of a working directory snapshot.
    pub(crate) snapshot_time_max: Duration,
    /// Constructor of the runtime.
    pub(crate) runtime: fn(&RuntimeContext<'_>) -> Result<Box<dyn AgentRuntime>, String>,
    /// Longest time for which the end of a turn waits for other processes of an agent that may stay.
    pub(crate) companion_wait_max: Duration,
    /// Time that an agent may take to open its session.
    pub(crate) opening_time_max: Duration,
    /// Memory of the machine that programs can get.
    pub(crate) available_memory: fn() -> Option<u64>,
}

impl Default for RunnerDependencies {
    fn default() -> RunnerDependencies {
        RunnerDependencies {
            disk: Arc::new(OsDisk),
            lines: LineLimits::default(),
            snapshot_time_max: SNAPSHOT_TIME_MAX,
            runtime: build_runtime,
            companion_wait_max: COMPANION_WAIT_MAX,
            opening_time_max: OPENING_TIME_MAX,
            available_memory,
        }
    }
}

/// Inputs of a run and the state of its execution.
pub(crate) struct RunExecutor<'o> {
    pub(crate) dir: &'o Utf8Path,
    pub(crate) spec: &'o RunSpec,
    pub(crate) host: &'o RunnerHost,
    pub(crate) dependencies: &'o RunnerDependencies,
    pub(crate) started_at: Timestamp,
    /// Connection to the daemon, if later runs may be executed by this process.
    pub(crate) link: Option<&'o DaemonLink>,
}

impl RunExecutor<'_> {
    /// Returns the directory of the agent's native sessions.
    pub(crate) fn native_sessions_folder(&self) -> Option<Utf8PathBuf> {
        native_session::sessions_folder(self.spec, &self.host.brief.env)
    }
}
