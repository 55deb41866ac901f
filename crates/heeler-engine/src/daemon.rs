//! A daemon: the one process that changes a fleet's state, from its lock to its end.
//!
//! Start at [`Daemon::open`].

use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use heeler_model::{chain, iso_millis};
use heeler_store::{DbError, Publisher, Reader, STARTED_AT, STOPPED_AT, Store, WriteError};
use thiserror::Error;

use crate::access::{self, ApiTokenError};
use crate::command::{DaemonMode, Handle, Input};
use crate::dispatch::{Board, Dispatcher, Ended, Loader, Pending};
use crate::fleet::{Fleet, OpenError};
use crate::hands::Hands;
use crate::hooks::HookWorker;
use crate::outlook::Outlook;
use crate::pulse::Pulse;
use crate::recover::{self, Compare, RecoverError};

/// What a daemon is started with.
pub struct Settings {
    /// The fleet.
    pub fleet: Fleet,
    /// Reads the config.
    pub load: Loader,
    /// How long it stays.
    pub mode: DaemonMode,
    /// How many clients wait for an answer; it does not end under them.
    pub clients: Arc<AtomicUsize>,
    /// Our version.
    pub version: String,
    /// How long it waits for another process that writes the state.
    pub patience: Duration,
    /// How long a runner may not answer; [`crate::UNHEARD_MAX`] but for tests.
    pub unheard_max: Duration,
}

/// Why a daemon was not started.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// The state is another process's, or cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
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
    Recover(#[from] RecoverError),
    /// A thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// A daemon that holds the state and is about to work.
pub struct Daemon {
    dispatcher: Dispatcher,
    handle: Handle,
    outlook: Outlook,
    store: Arc<Store>,
    publisher: Publisher,
    pulse: Pulse,
}

impl Daemon {
    /// Becomes the writer of the state, reads config and state.
    pub fn open(settings: Settings) -> Result<Daemon, DaemonError> {
        let Settings { fleet, mut load, mode, clients, version, patience, unheard_max } = settings;
        let setup = Arc::new(load().map_err(DaemonError::Config)?);
        let store = Arc::new(fleet.writer("start", patience)?);
        recover::prepare(&fleet, &store, Compare::WhenDue)?;
        let since = (fleet.now)();
        let started = store.write(move |tx| {
            tx.set_meta(STARTED_AT, &iso_millis(since))?;
            match mode {
                DaemonMode::Permanent => tx.set_meta(STOPPED_AT, ""),
                DaemonMode::UntilIdle => Ok(()),
            }
        });
        started.map_err(|error: WriteError<_>| DaemonError::Write(chain(&error)))?;
        let reader = Reader::open(&fleet.dir).map_err(|error| DaemonError::Read(chain(&error)))?;
        let read = |error: DbError| DaemonError::Read(chain(&error));
        let mut board = Board::load(&reader, Arc::clone(&setup), since).map_err(read)?;
        // A person stopped the fleet: what waited then waits until a person starts it.
        if reader.meta(STOPPED_AT).map_err(read)?.is_some_and(|at| !at.is_empty()) {
            board.hold_queue();
        }
        drop(reader);
        let (handle, inputs) = Handle::channel();
        let inbox = handle.clone();
        let done = move |outcome| {
            // Nobody hears it any more: it stays on record.
            let _stopped = inbox.input(Input::Hook(outcome));
        };
        let hooks = HookWorker::start(fleet.clone(), setup.hooks(), Box::new(done));
        let hooks = hooks.map_err(DaemonError::Thread)?;
        let outlook = Outlook::new(Arc::clone(&setup));
        let hands = Hands::new(fleet.clone(), handle.clone(), setup);
        let hands = hands.map_err(DaemonError::Thread)?;
        let clock = fleet.now;
        let publisher = Publisher::start(Arc::clone(&store), clock).map_err(DaemonError::Thread)?;
        let board = Arc::new(Mutex::new(board));
        let known = Arc::clone(&board);
        let live = move || {
            let board = known.lock().unwrap_or_else(PoisonError::into_inner);
            board.live.keys().copied().collect()
        };
        let pulse = Pulse::start(fleet.clone(), unheard_max, live).map_err(DaemonError::Thread)?;
        let dispatcher = Dispatcher {
            fleet,
            store: Arc::clone(&store),
            inputs,
            hands,
            hooks,
            board,
            load,
            mode,
            since,
            version,
            clients,
            outlook: outlook.clone(),
            pending: Pending::default(),
        };
        Ok(Daemon { dispatcher, handle, outlook, store, publisher, pulse })
    }

    /// Returns a way to it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Returns what can be seen of it without asking.
    pub fn outlook(&self) -> Outlook {
        self.outlook.clone()
    }

    /// Makes sure that the file `api-token` holds a token that counts.
    pub fn keep_api_token(&self) -> Result<(), ApiTokenError> {
        let fleet = &self.dispatcher.fleet;
        access::keep_api_token(&fleet.dir, &self.store, (fleet.now)())
    }

    /// Works until it is stopped, or until nothing is left to do, or until its state is gone.
    /// `at_end` is called before the state may be another's, and not if it is already.
    pub fn run(self, at_end: impl FnOnce()) -> Ended {
        let Daemon { dispatcher, handle, store, publisher, pulse, .. } = self;
        drop(handle);
        let ended = dispatcher.run();
        drop(pulse);
        if ended != Ended::Lost {
            at_end();
        }
        // Views are written before the state is another's.
        drop(publisher);
        drop(store);
        ended
    }
}
