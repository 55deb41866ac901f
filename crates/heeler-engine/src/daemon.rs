//! A daemon: the one process that changes a fleet's state, from its lock to its end.
//!
//! Start at [`Daemon::open_file`].

use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use heeler_model::{error_chain, iso_millis};
use heeler_store::{
    DatabaseError, STARTED_AT, STOPPED_AT, Store, StoreReader, StoreWriteError, ViewPublisher,
};
use thiserror::Error;

use crate::access::{self, ApiTokenError};
use crate::command::{DaemonHandle, DaemonMode, DispatchInput};
use crate::dispatch::{DaemonExit, DeferredWork, Dispatcher, FleetState, SetupLoader};
use crate::executor::EffectExecutor;
use crate::fleet::{EngineContext, StateOpenError};
use crate::fleet_monitor::FleetMonitor;
use crate::hooks::HookWorker;
use crate::recovery::{self, RecoveryError, RunFolderCheck};
use crate::watchdog::RunnerWatchdog;

/// What a daemon is started with.
pub struct DaemonOptions {
    /// The fleet.
    pub fleet: EngineContext,
    /// Reads the config.
    pub load: SetupLoader,
    /// How long it stays.
    pub mode: DaemonMode,
    /// How many clients wait for an answer; it does not end under them.
    pub clients: Arc<AtomicUsize>,
    /// Our version.
    pub version: String,
    /// How long it waits for another process that writes the state.
    pub lock_timeout: Duration,
    /// How long a runner may not answer; [`crate::RUNNER_SILENCE_MAX`] but for tests.
    pub silence_max: Duration,
}

/// Why a daemon was not started.
#[derive(Debug, Error)]
pub enum DaemonOpenError {
    /// The state is another process's, or cannot be opened.
    #[error(transparent)]
    Open(#[from] StateOpenError),
    /// The config has faults.
    #[error("{0}")]
    Config(String),
    /// The state cannot be read.
    #[error("cannot read the state: {0}")]
    Read(String),
    /// The state cannot be written.
    #[error("cannot write the state: {0}")]
    Write(String),
    /// What an earlier process left cannot be sorted out.
    #[error(transparent)]
    Recover(#[from] RecoveryError),
    /// A thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// A daemon that holds the state and is about to work.
pub struct Daemon {
    dispatcher: Dispatcher,
    handle: DaemonHandle,
    snapshot: FleetMonitor,
    store: Arc<Store>,
    publisher: ViewPublisher,
    watchdog: RunnerWatchdog,
}

impl Daemon {
    /// Becomes the writer of the state, reads config and state.
    pub fn open(settings: DaemonOptions) -> Result<Daemon, DaemonOpenError> {
        let DaemonOptions {
            fleet,
            mut load,
            mode,
            clients,
            version,
            lock_timeout: patience,
            silence_max: unheard_max,
        } = settings;
        let setup = Arc::new(load().map_err(DaemonOpenError::Config)?);
        let store = Arc::new(fleet.open_writer("start", patience)?);
        recovery::complete_records(&fleet, &store, RunFolderCheck::WhenDue)?;
        let since = (fleet.now)();
        let started = store.write(move |tx| {
            tx.set_meta(STARTED_AT, &iso_millis(since))?;
            match mode {
                DaemonMode::Permanent => tx.set_meta(STOPPED_AT, ""),
                DaemonMode::UntilIdle => Ok(()),
            }
        });
        started.map_err(|error: StoreWriteError<_>| DaemonOpenError::Write(error_chain(&error)))?;
        let reader = StoreReader::open(&fleet.dir)
            .map_err(|error| DaemonOpenError::Read(error_chain(&error)))?;
        let read = |error: DatabaseError| DaemonOpenError::Read(error_chain(&error));
        let mut board = FleetState::load(&reader, Arc::clone(&setup), since).map_err(read)?;
        // A person stopped the fleet: what waited then waits until a person starts it.
        if reader.meta(STOPPED_AT).map_err(read)?.is_some_and(|at| !at.is_empty()) {
            board.hold_queue();
        }
        drop(reader);
        let (handle, inputs) = DaemonHandle::channel();
        let inbox = handle.clone();
        let done = move |outcome| {
            // Nobody hears it any more: it stays on record.
            let _stopped = inbox.send_input(DispatchInput::HookOutcome(outcome));
        };
        let hooks = HookWorker::start(fleet.clone(), setup.hook_config(), Box::new(done));
        let hooks = hooks.map_err(DaemonOpenError::Thread)?;
        let outlook = FleetMonitor::new(Arc::clone(&setup));
        let hands = EffectExecutor::new(fleet.clone(), handle.clone(), setup);
        let hands = hands.map_err(DaemonOpenError::Thread)?;
        let clock = fleet.now;
        let publisher =
            ViewPublisher::start(Arc::clone(&store), clock).map_err(DaemonOpenError::Thread)?;
        let board = Arc::new(Mutex::new(board));
        let known = Arc::clone(&board);
        let live = move || {
            let board = known.lock().unwrap_or_else(PoisonError::into_inner);
            board.unfinished_runs.keys().copied().collect()
        };
        let pulse = RunnerWatchdog::start(fleet.clone(), unheard_max, live)
            .map_err(DaemonOpenError::Thread)?;
        let dispatcher = Dispatcher {
            fleet,
            store: Arc::clone(&store),
            inputs,
            executor: hands,
            hooks,
            state: board,
            load,
            mode,
            since,
            version,
            clients,
            snapshot: outlook.clone(),
            deferred: DeferredWork::default(),
        };
        Ok(Daemon { dispatcher, handle, snapshot: outlook, store, publisher, watchdog: pulse })
    }

    /// Returns a way to it.
    pub fn handle(&self) -> DaemonHandle {
        self.handle.clone()
    }

    /// Returns what can be seen of it without asking.
    pub fn snapshot(&self) -> FleetMonitor {
        self.snapshot.clone()
    }

    /// Makes sure that the file `api-token` holds a token that counts.
    pub fn ensure_api_token(&self) -> Result<(), ApiTokenError> {
        let fleet = &self.dispatcher.fleet;
        access::ensure_api_token(&fleet.dir, &self.store, (fleet.now)())
    }

    /// Works until it is stopped, or until nothing is left to do, or until its state is gone.
    /// `at_end` is called before the state may be another's, and not if it is already.
    pub fn run(self, at_end: impl FnOnce()) -> DaemonExit {
        let Daemon { dispatcher, handle, store, publisher, watchdog: pulse, .. } = self;
        drop(handle);
        let ended = dispatcher.run();
        drop(pulse);
        if ended != DaemonExit::StateLost {
            at_end();
        }
        // Views are written before the state is another's.
        drop(publisher);
        drop(store);
        ended
    }
}
