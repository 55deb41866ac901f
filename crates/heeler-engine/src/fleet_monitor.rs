//! What others see of a daemon without asking its dispatcher: what it works by, and that something has
//! changed. Start at [`FleetMonitor`].

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use heeler_model::RunId;

use crate::setup::DaemonSetup;

/// What a commit was about.
#[derive(Debug)]
pub struct CommitNotice {
    /// How long it took.
    pub duration: Duration,
    /// The runs whose ends it has on record.
    pub ended_runs: Vec<RunId>,
}

/// Told after each commit; it must not wait for anything.
type CommitListener = Box<dyn Fn(&CommitNotice) + Send>;

/// A view of a daemon that costs its dispatcher nothing.
#[derive(Clone)]
pub struct FleetMonitor {
    setup: Arc<RwLock<Arc<DaemonSetup>>>,
    listeners: Arc<Mutex<Vec<CommitListener>>>,
}

impl FleetMonitor {
    /// Begins with what a daemon works by.
    pub fn new(setup: Arc<DaemonSetup>) -> FleetMonitor {
        FleetMonitor { setup: Arc::new(RwLock::new(setup)), listeners: Arc::default() }
    }

    /// Returns what the daemon works by now.
    pub fn setup(&self) -> Arc<DaemonSetup> {
        Arc::clone(&self.setup.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has somebody told after each commit from now on, in the dispatcher's own thread.
    pub fn on_commit(&self, listener: impl Fn(&CommitNotice) + Send + 'static) {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(listener));
    }

    pub(crate) fn replace_setup(&self, setup: Arc<DaemonSetup>) {
        *self.setup.write().unwrap_or_else(PoisonError::into_inner) = setup;
    }

    pub(crate) fn notify_listeners(&self, change: &CommitNotice) {
        for tell in &*self.listeners.lock().unwrap_or_else(PoisonError::into_inner) {
            tell(change);
        }
    }
}

impl fmt::Debug for FleetMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outlook")
    }
}
