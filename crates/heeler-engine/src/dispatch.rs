//! The dispatcher: one loop that owns time and every change of a fleet's state.
//!
//! Commands, what became of runs, and time come in; each turn decides about all that is there in one
//! transaction, and only then acts: what was not committed never happened, and what was committed is
//! acted on again by the next daemon if this one dies. Nothing here waits for an agent, a disk that
//! is slow to settle a run, or a client. Start at [`Dispatcher::run`].

mod board;
mod due;
mod ended;
mod orders;
mod status;
mod turn;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heeler_model::run::RunResult;
use heeler_model::{Job, JobId, RunId, Wanted, chain};
use heeler_store::{DbError, Reader, Store};
use jiff::Timestamp;

pub(crate) use board::{Board, Stage};

use crate::command::{
    Answer, Command, DaemonMode, Handle, Input, Refused, RefusedKind, Reply, ScheduleChange,
    Stopping,
};
use crate::crew::Crew;
use crate::fleet::Fleet;
use crate::hands::Hands;
use crate::request::JobRequest;
use crate::setup::Setup;
use crate::start::Begun;
use turn::Turn;

/// The longest sleep: a clock that jumps is noticed after this at the latest.
const SLEEP_MAX: Duration = Duration::from_secs(30);

/// How many inputs are taken into one transaction.
const INPUTS_PER_TURN: usize = 256;

/// How long the dispatcher waits after a commit failed; nothing new starts meanwhile.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// How often a daemon that ends when it is idle looks whether it is.
const IDLE_LOOK: Duration = Duration::from_millis(50);

/// Reads the config.
pub type Loader = Box<dyn FnMut() -> Result<Setup, String> + Send>;

/// Something that is decided about inside a transaction.
#[derive(Debug)]
pub(crate) enum Task {
    /// What a person asked.
    Order(Command),
    /// A run can be started.
    Prepared(Box<Prepared>),
    /// A run has ended.
    Ended(Box<RunResult>),
    /// A schedule fires that time does not start.
    Fired { wanted: Wanted },
    /// The config was read again.
    Setup(Arc<Setup>),
}

/// A job whose run can be started, or cannot.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// The job; a new one if there is none yet.
    pub(crate) job: Option<JobId>,
    pub(crate) wanted: Wanted,
    pub(crate) request: Result<Box<JobRequest>, Refused>,
}

/// What is done after a commit.
pub(crate) enum Deed {
    /// Start the runner of a run that is on record.
    Launch { begun: Begun, request: Box<JobRequest> },
    /// Ask a run to end.
    Cancel { run: RunId, now: bool, by: String },
    /// Tell those who want to know that a job is over.
    Over { job: Box<Job>, output: Option<String> },
}

/// How a daemon ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was told to.
    Stopped,
    /// Nothing was left to do.
    Idle,
}

/// How a stop goes on.
struct Stop {
    how: Stopping,
    deadline: Option<Instant>,
    has_cancelled: bool,
    replies: Vec<Reply>,
}

/// The loop.
pub(crate) struct Dispatcher {
    pub(crate) fleet: Fleet,
    pub(crate) store: Arc<Store>,
    pub(crate) inputs: Receiver<Input>,
    pub(crate) hands: Hands,
    pub(crate) board: Arc<Mutex<Board>>,
    pub(crate) load: Loader,
    pub(crate) mode: DaemonMode,
    pub(crate) since: Timestamp,
    pub(crate) version: String,
    /// How many clients wait for an answer.
    pub(crate) clients: Arc<AtomicUsize>,
    /// What was typed, as it was: the database has it without secrets.
    prompts: HashMap<JobId, String>,
    stop: Option<Stop>,
    /// Runs whose result could not be recorded, and when that is tried again.
    failed: Option<(Instant, Vec<RunId>)>,
    pub(crate) faults: HashMap<RunId, String>,
}
