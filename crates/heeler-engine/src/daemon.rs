//! The daemon: the only process that changes a fleet's state, from taking the lock to its exit.
//!
//! Start at [`Daemon::open`].

use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use heeler_model::{RunId, error_chain, iso_millis};
use heeler_store::{
    DaemonFile, DatabaseError, HostFacts, STARTED_AT, STOPPED_AT, StateFileKeeper, Store,
    StoreReader, StoreWriteError, ViewPublisher,
};

use crate::access::{self, ApiTokenError};
use crate::command::DaemonMode;
use crate::containers::start_container_sweep;
use crate::daemon_handle::DaemonHandle;
use crate::daemon_open::{DaemonOpenError, refuse_held_change};
use crate::dispatch::{DaemonExit, DeferredWork, Dispatcher, DispatcherState, SetupLoader};
use crate::dispatch_input::DispatchInput;
use crate::executor::EffectExecutor;
use crate::fleet::EngineContext;
use crate::fleet_monitor::FleetMonitor;
use crate::hooks::{HookResultKey, HookWorker};
use crate::hosts::LeaderDuty;
use crate::recovery::{self, RunFolderCheck};
use crate::watchdog::RunnerWatchdog;

/// Options of a daemon.
pub struct DaemonOptions {
    pub fleet: EngineContext,
    /// Function that reads the config.
    pub load: SetupLoader,
    /// Lifetime of the daemon.
    pub mode: DaemonMode,
    /// Number of clients that wait for a reply. The daemon does not exit while there are any.
    pub clients: Arc<AtomicUsize>,
    /// Version of this program.
    pub version: String,
    /// Time to wait for another process that writes the state directory.
    pub lock_timeout: Duration,
    /// Time after which a runner that does not reply counts as hung; [`crate::RUNNER_SILENCE_MAX`]
    /// except in tests.
    pub silence_max: Duration,
    /// Facts for the other hosts of the fleet, if it has several.
    pub host: Option<HostFacts>,
}

/// A daemon that holds the state directory and is ready to run.
pub struct Daemon {
    dispatcher: Dispatcher,
    handle: DaemonHandle,
    snapshot: FleetMonitor,
    store: Arc<Store>,
    publisher: ViewPublisher,
    watchdog: RunnerWatchdog,
    /// Set if the fleet has several hosts.
    leader_duty: Option<LeaderDuty>,
    file_keeper: Option<StateFileKeeper>,
}

impl Daemon {
    /// Takes the lock of the state directory; reads config and state.
    #[expect(clippy::too_many_lines, reason = "it starts the parts of a daemon in their order")]
    pub fn open(settings: DaemonOptions) -> Result<Daemon, DaemonOpenError> {
        let DaemonOptions {
            fleet,
            mut load,
            mode,
            clients,
            version,
            lock_timeout: patience,
            silence_max: unheard_max,
            host,
        } = settings;
        let setup = Arc::new(load().map_err(DaemonOpenError::Config)?);
        let store = Arc::new(fleet.open_writer("start", patience)?);
        store.leave_renewal_to(fleet.lead.clone());
        refuse_held_change(&fleet, &setup)?;
        // The records are completed before the state is loaded, which trusts them.
        recovery::complete_records(&fleet, &store, RunFolderCheck::WhenDue)?;
        let since = (fleet.now)();
        let hook_key = HookResultKey::new();
        let recorded_key = hook_key.clone();
        let started = store.write(move |tx| {
            tx.set_meta(STARTED_AT, &iso_millis(since))?;
            recorded_key.record(tx)?;
            match mode {
                // Starting the fleet ends an earlier stop. A daemon for one command does not count
                // as a start.
                DaemonMode::Permanent => tx.set_meta(STOPPED_AT, ""),
                DaemonMode::UntilIdle => Ok(()),
            }
        });
        started.map_err(|error: StoreWriteError<_>| DaemonOpenError::Write(error_chain(&error)))?;
        let reader = StoreReader::open(&fleet.dir)
            .map_err(|error| DaemonOpenError::Read(error_chain(&error)))?;
        let read = |error: DatabaseError| DaemonOpenError::Read(error_chain(&error));
        let mut board = DispatcherState::load(&reader, Arc::clone(&setup), since).map_err(read)?;
        // A person stopped the fleet: jobs that were queued then wait until a person starts it
        // again.
        if reader.meta(STOPPED_AT).map_err(read)?.is_some_and(|at| !at.is_empty()) {
            board.fleet.hold_queue();
        }
        drop(reader);
        let (handle, inputs) = DaemonHandle::channel(fleet.hook_grants.clone());
        let inbox = handle.clone();
        let done = move |outcome| {
            // If the dispatcher has stopped, the effect stays recorded and the next daemon executes
            // it.
            let _stopped = inbox.send_input(DispatchInput::HookOutcome(outcome));
        };
        let hooks = HookWorker::start(fleet.clone(), setup.hook_config(), hook_key, Box::new(done));
        let hooks = hooks.map_err(DaemonOpenError::Thread)?;
        let outlook = FleetMonitor::new(Arc::clone(&setup));
        start_container_sweep(&fleet, &setup).map_err(DaemonOpenError::Thread)?;
        let hands = EffectExecutor::new(fleet.clone(), handle.clone(), setup);
        let hands = hands.map_err(DaemonOpenError::Thread)?;
        let clock = fleet.now;
        let publisher =
            ViewPublisher::start(Arc::clone(&store), clock).map_err(DaemonOpenError::Thread)?;
        let board = Arc::new(Mutex::new(board));
        let (known, dir) = (Arc::clone(&board), fleet.dir.clone());
        let live = move || {
            let board = known.lock().unwrap_or_else(PoisonError::into_inner);
            // The runners of other hosts are theirs.
            let is_here = |run: &RunId| dir.host().is_none() || dir.run(*run).exists();
            board.fleet.runs().keys().copied().filter(is_here).collect()
        };
        let pulse = RunnerWatchdog::start(fleet.clone(), unheard_max, live)
            .map_err(DaemonOpenError::Thread)?;
        let leader_duty = match (host, store.writer_instance()) {
            (Some(facts), Some(instance)) => {
                let instance = instance.to_owned();
                let dispatcher = (handle.clone(), outlook.clone());
                Some(LeaderDuty::start(fleet.clone(), instance, facts, dispatcher)?)
            }
            _ => None,
        };
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
        let (snapshot, watchdog, file_keeper) = (outlook, pulse, None);
        Ok(Daemon {
            dispatcher,
            handle,
            snapshot,
            store,
            publisher,
            watchdog,
            leader_duty,
            file_keeper,
        })
    }

    /// Keeps the database and `daemon.json`, which has this content, in place while the daemon runs.
    pub fn keep_files(&mut self, file: &DaemonFile) -> io::Result<()> {
        self.file_keeper = Some(StateFileKeeper::start(Arc::clone(&self.store), file.clone())?);
        Ok(())
    }

    /// Returns a handle for sending commands.
    pub fn handle(&self) -> DaemonHandle {
        self.handle.clone()
    }

    /// Returns the view of the daemon's state that needs no command.
    pub fn snapshot(&self) -> FleetMonitor {
        self.snapshot.clone()
    }

    /// Revokes the token of the file `api-token`, and removes the file. Returns true if there was
    /// one.
    pub fn retire_api_token(&self) -> Result<bool, ApiTokenError> {
        let fleet = &self.dispatcher.fleet;
        access::retire_api_token(&fleet.dir, &self.store, (fleet.now)())
    }

    /// Makes sure that the file `api-token` holds a valid token.
    pub fn ensure_api_token(&self) -> Result<(), ApiTokenError> {
        let fleet = &self.dispatcher.fleet;
        access::ensure_api_token(&fleet.dir, &self.store, (fleet.now)())
    }

    /// Runs until the daemon is stopped, has nothing left to do, or loses its state directory.
    /// `at_end` is called before the lock is released, and not at all if another process already
    /// owns the state directory.
    pub fn run(self, at_end: impl FnOnce()) -> DaemonExit {
        let Daemon {
            dispatcher,
            handle,
            store,
            publisher,
            watchdog: pulse,
            leader_duty,
            file_keeper,
            ..
        } = self;
        drop(handle);
        let ended = dispatcher.run();
        // Replies wait for their views. `at_end` ends the server, which must send them first.
        store.wait_for_callbacks();
        drop(pulse);
        // `at_end` removes the daemon's file, which must not be written again.
        drop(file_keeper);
        if ended != DaemonExit::StateLost {
            at_end();
        }
        // Write the last views before the lock is released.
        drop(publisher);
        // Keeps the lead until nothing is left to write.
        drop(leader_duty);
        drop(store);
        ended
    }
}
