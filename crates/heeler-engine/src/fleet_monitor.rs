//! View of a running daemon that does not involve the dispatcher: the current config, and notices
//! of commits.
//!
//! Start at [`FleetMonitor`].

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use heeler_model::RunId;

use crate::setup::DaemonSetup;

/// Notice of a commit.
#[derive(Debug)]
pub struct CommitNotice {
    /// Duration of the commit.
    pub duration: Duration,
    /// Runs with an end that this commit recorded.
    pub ended_runs: Vec<RunId>,
}

/// Called after each commit. It must not block.
type CommitListener = Box<dyn Fn(&CommitNotice) + Send>;

/// Handle to a daemon's config and commit notices, without cost to its dispatcher.
#[derive(Clone)]
pub struct FleetMonitor {
    setup: Arc<RwLock<Arc<DaemonSetup>>>,
    listeners: Arc<Mutex<Vec<CommitListener>>>,
}

impl FleetMonitor {
    /// Creates a monitor with the initial config.
    pub fn new(setup: Arc<DaemonSetup>) -> FleetMonitor {
        FleetMonitor { setup: Arc::new(RwLock::new(setup)), listeners: Arc::default() }
    }

    /// Returns the current config.
    pub fn setup(&self) -> Arc<DaemonSetup> {
        Arc::clone(&self.setup.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Registers a listener that is called after each commit, on the dispatcher's thread.
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
