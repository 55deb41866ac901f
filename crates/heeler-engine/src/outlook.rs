//! What others see of a daemon without asking its dispatcher: what it works by, and that something has
//! changed. Start at [`Outlook`].

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use heeler_model::RunId;

use crate::setup::Setup;

/// What a commit was about.
#[derive(Debug)]
pub struct Change {
    /// How long it took.
    pub took: Duration,
    /// The runs whose ends it has on record.
    pub ended: Vec<RunId>,
}

/// Told after each commit; it must not wait for anything.
type Listener = Box<dyn Fn(&Change) + Send>;

/// A view of a daemon that costs its dispatcher nothing.
#[derive(Clone)]
pub struct Outlook {
    setup: Arc<RwLock<Arc<Setup>>>,
    listeners: Arc<Mutex<Vec<Listener>>>,
}

impl Outlook {
    /// Begins with what a daemon works by.
    pub fn new(setup: Arc<Setup>) -> Outlook {
        Outlook { setup: Arc::new(RwLock::new(setup)), listeners: Arc::default() }
    }

    /// Returns what the daemon works by now.
    pub fn setup(&self) -> Arc<Setup> {
        Arc::clone(&self.setup.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has somebody told after each commit from now on, in the dispatcher's own thread.
    pub fn on_change(&self, listener: impl Fn(&Change) + Send + 'static) {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(listener));
    }

    pub(crate) fn take_setup(&self, setup: Arc<Setup>) {
        *self.setup.write().unwrap_or_else(PoisonError::into_inner) = setup;
    }

    pub(crate) fn changed(&self, change: &Change) {
        for tell in &*self.listeners.lock().unwrap_or_else(PoisonError::into_inner) {
            tell(change);
        }
    }
}

impl fmt::Debug for Outlook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outlook")
    }
}
