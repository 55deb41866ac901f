//! The fields of the dispatcher. Other files of this module implement its work.

use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heeler_store::Store;
use jiff::Timestamp;

use super::deferred_work::DeferredWork;
use super::dispatcher_state::DispatcherState;
use crate::command::DaemonMode;
use crate::dispatch_input::DispatchInput;
use crate::executor::EffectExecutor;
use crate::fleet::EngineContext;
use crate::fleet_monitor::FleetMonitor;
use crate::hooks::HookWorker;
use crate::setup::DaemonSetup;

/// Function that reads the config.
pub type SetupLoader = Box<dyn FnMut() -> Result<DaemonSetup, String> + Send>;

/// Reason for a daemon's exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DaemonExit {
    /// A `stop` command.
    Stopped,
    /// Nothing was left to do.
    Idle,
    /// Its state directory was removed, moved or replaced.
    StateLost,
    /// Another host of the fleet has the lead, or the database lacks commits of this process.
    LeadLost,
}

/// State of the event loop.
pub(crate) struct Dispatcher {
    pub(crate) fleet: EngineContext,
    pub(crate) store: Arc<Store>,
    pub(crate) inputs: Receiver<DispatchInput>,
    pub(crate) executor: EffectExecutor,
    pub(crate) hooks: HookWorker,
    pub(crate) state: Arc<Mutex<DispatcherState>>,
    pub(crate) load: SetupLoader,
    pub(crate) mode: DaemonMode,
    pub(crate) since: Timestamp,
    pub(crate) version: String,
    /// Number of clients that wait for a reply.
    pub(crate) clients: Arc<AtomicUsize>,
    pub(crate) snapshot: FleetMonitor,
    pub(crate) deferred: DeferredWork,
}

impl Dispatcher {
    pub(super) fn state(&self) -> MutexGuard<'_, DispatcherState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn runs_schedules(&self) -> bool {
        self.mode == DaemonMode::Permanent && self.deferred.stop.is_none()
    }
}
