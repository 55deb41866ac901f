//! The dispatcher: one loop that owns time and every change of a fleet's state.
//!
//! Commands, what became of runs, and time come in; each turn decides about all that is there in one
//! transaction, and only then acts: what was not committed never happened, and what was committed is
//! acted on again by the next daemon if this one dies. Nothing here waits for an agent, a disk that
//! is slow to settle a run, or a client. Start at [`Dispatcher::run`].

mod access;
mod approvals;
mod asking;
mod board;
mod committing;
mod due;
mod ended;
mod ending;
mod once;
mod orders;
mod parts;
mod spawned;
mod status;
mod turn;
mod watches;
mod webhook;
mod workflows;

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_model::{ApprovalId, JobId, RunId, Wanted, chain};
use heeler_store::{DbError, Reader, Store, WriteError};
use jiff::{SignedDuration, Timestamp};

pub(crate) use asking::not_at_work;
pub(crate) use board::{Board, Stage};
pub use due::{read_rule, rule_text};
pub use once::{REQUESTS_KEPT, answered};
pub use orders::GO_ON;
pub use webhook::{CallSecret, Webhook};

use crate::asks::RunAsks;
use crate::cancel;
use crate::command::{Command, DaemonMode, Gone, Input, Owed, Refused};
use crate::fault::{self, FaultPoint};
use crate::fleet::Fleet;
use crate::hands::Hands;
use crate::hooks::{HookOutcome, HookWorker};
use crate::outlook::Outlook;
use crate::request::JobRequest;
use crate::sessions::{self, Change};
use crate::setup::Setup;
use crate::start::Begun;
use committing::Failed;
use ending::Stop;
use watches::Watches;

/// The longest sleep: a clock that jumps is noticed after this at the latest.
const SLEEP_MAX: Duration = Duration::from_secs(30);

/// How many inputs are taken into one transaction.
const INPUTS_PER_TURN: usize = 256;

/// How often a daemon that ends when it is idle looks whether it is.
const IDLE_LOOK: Duration = Duration::from_millis(50);

/// How long config files must be at rest before they are read again.
const CONFIG_AT_REST: Duration = Duration::from_millis(500);

/// How often sessions are looked through for expired ones.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);

/// How often files of old jobs are put away.
const PUT_AWAY_EVERY: Duration = Duration::from_secs(10 * 60);

/// How long it is kept what became of due times; the newest of each schedule stays.
const DUE_TIMES_KEPT: SignedDuration = SignedDuration::from_hours(90 * 24);

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
    Ended(Box<Gone>),
    /// What came of hooks.
    Hook(HookOutcome),
    /// A run asks something, or was answered.
    Questions { run: RunId, asks: Box<RunAsks>, delivered: Option<ApprovalId> },
    /// A schedule fires that time does not start.
    Fired { wanted: Box<Wanted>, changed: Vec<Utf8PathBuf> },
    /// The config was read again, with these changes if somebody wants to hear of them.
    Setup { setup: Arc<Setup>, changes: Option<Vec<String>> },
    /// Sessions are changed.
    Session { change: Box<Change>, by: String },
    /// Sessions that were not used for too long are put aside.
    Expire,
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
    Launch { begun: Box<Begun>, request: Box<JobRequest> },
    /// Work by another config from now on.
    TakeSetup(Arc<Setup>),
    /// Do the hooks that are on record.
    WakeHooks,
    /// Ask a run to end.
    Cancel { run: RunId, now: bool, by: String },
    /// Bring the files of sessions to where the record says.
    MoveSessions,
    /// Write a line to an agent's log.
    Log { agent: String, text: String },
}

/// How a daemon ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was told to.
    Stopped,
    /// Nothing was left to do.
    Idle,
    /// Its state directory was removed, moved or replaced.
    Lost,
}

/// The loop.
pub(crate) struct Dispatcher {
    pub(crate) fleet: Fleet,
    pub(crate) store: Arc<Store>,
    pub(crate) inputs: Receiver<Input>,
    pub(crate) hands: Hands,
    pub(crate) hooks: HookWorker,
    pub(crate) board: Arc<Mutex<Board>>,
    pub(crate) load: Loader,
    pub(crate) mode: DaemonMode,
    pub(crate) since: Timestamp,
    pub(crate) version: String,
    /// How many clients wait for an answer.
    pub(crate) clients: Arc<AtomicUsize>,
    pub(crate) outlook: Outlook,
    pub(crate) pending: Pending,
}

/// What a dispatcher has to come back to.
#[derive(Default)]
pub(crate) struct Pending {
    stop: Option<Stop>,
    /// What could not be recorded, while that is so.
    failed: Option<Failed>,
    /// Runs that could not be settled, and when that is tried again.
    unsettled: Vec<(Instant, RunId)>,
    faults: HashMap<RunId, String>,
    /// When files of old jobs are put away next.
    put_away_at: Option<Instant>,
    /// The schedule whose old due times were forgotten last.
    forgotten: Option<(String, String)>,
    /// When sessions are looked through next for expired ones.
    expire_at: Option<Instant>,
    /// Dropped after the dispatcher's inputs: once those are gone, it waits for nobody.
    watches: Watches,
}

impl Dispatcher {
    /// Works until it is stopped, or until nothing is left to do.
    pub(crate) fn run(mut self) -> Ended {
        let ended = self.work();
        match ended {
            Ended::Stopped | Ended::Idle => self.end_hooks(),
            // There is no record any more that would say what of them was done.
            Ended::Lost => self.hooks.ask_to_end(),
        }
        ended
    }

    fn work(&mut self) -> Ended {
        // Whatever an earlier daemon left goes on.
        let setup = Arc::clone(&self.board().setup);
        self.commit(vec![(Task::Setup { setup, changes: None }, None)]);
        let left: Vec<RunId> = self.board().live.keys().copied().collect();
        self.hands.take_over_all(left);
        self.cancel_as_wished();
        self.hands.move_sessions();
        self.admit();
        self.watch();
        loop {
            if let Some(ended) = self.end() {
                return ended;
            }
            let inputs = self.wait();
            // Whoever asked is told that nobody answers.
            if !self.store.is_in_place() {
                return Ended::Lost;
            }
            let tasks = inputs.into_iter().filter_map(|input| self.sort(input)).collect();
            self.try_again();
            self.commit(tasks);
            self.admit();
            self.put_away();
            self.expire();
            self.watch();
        }
    }

    /// Asks runs to end whose wish is on record: an earlier daemon may have died before it did.
    fn cancel_as_wished(&self) {
        let wishes = Reader::open(&self.fleet.dir).map_err(|error| chain(&error));
        let wishes = wishes.and_then(|reader| cancel::wishes(&reader).map_err(|it| chain(&it)));
        match wishes {
            Ok(wishes) => {
                for (run, wish) in wishes {
                    self.hands.cancel(run, wish.now, wish.by);
                }
            }
            Err(why) => tracing::error!(why, "cannot read which jobs are to be cancelled"),
        }
    }

    /// Has files watched that schedules wait for.
    fn watch(&mut self) {
        if self.keeps_schedules() {
            let board = Arc::clone(&self.board);
            let board = board.lock().unwrap_or_else(PoisonError::into_inner);
            self.pending.watches.update(&board, self.fleet.dir.root(), self.hands.inbox());
        }
    }

    /// Has files of old jobs put away and old due times forgotten, now and then.
    fn put_away(&mut self) {
        let due = self.pending.put_away_at.is_none_or(|at| Instant::now() >= at);
        if due && self.keeps_schedules() {
            self.pending.put_away_at = Some(Instant::now() + PUT_AWAY_EVERY);
            self.hands.put_away();
            self.forget_due_times();
        }
    }

    /// Forgets what became of due times long ago, of some schedules at a time.
    fn forget_due_times(&mut self) {
        let Ok(before) = (self.fleet.now)().checked_sub(DUE_TIMES_KEPT) else { return };
        let after = self.pending.forgotten.take();
        let pruned: Result<_, WriteError<DbError>> =
            self.store.write(move |tx| tx.prune_due_times(after, before));
        match pruned {
            Ok(last) => self.pending.forgotten = last,
            // It is no loss, and the next commit tells of it.
            Err(error) => tracing::debug!(reason = chain(&error), "old due times are kept"),
        }
    }

    /// Puts sessions aside that were not used for too long, now and then. Whether one is resumed is
    /// decided by its age in any case; this is for those who look.
    fn expire(&mut self) {
        if self.pending.expire_at.is_some_and(|at| Instant::now() < at)
            || self.pending.stop.is_some()
        {
            return;
        }
        self.pending.expire_at = Some(Instant::now() + EXPIRE_EVERY);
        let (setup, now) = (Arc::clone(&self.board().setup), (self.fleet.now)());
        let reader = Reader::open(&self.fleet.dir).ok();
        let (loaded, most) = (&setup.loaded, sessions::EXPIRED_MAX);
        let expired = reader.and_then(|it| sessions::expired(&it, loaded, now, most).ok());
        if expired.is_some_and(|expired| !expired.is_empty()) {
            self.commit(vec![(Task::Expire, None)]);
        }
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keeps_schedules(&self) -> bool {
        self.mode == DaemonMode::Permanent && self.pending.stop.is_none()
    }

    /// Waits until something comes in or is due, and takes all that is there.
    fn wait(&mut self) -> Vec<Input> {
        let mut inputs = match self.inputs.recv_timeout(self.patience()) {
            Ok(input) => vec![input],
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Vec::new(),
        };
        while inputs.len() < INPUTS_PER_TURN
            && let Ok(input) = self.inputs.try_recv()
        {
            inputs.push(input);
        }
        inputs
    }

    fn patience(&self) -> Duration {
        let now = (self.fleet.now)();
        let board = self.board();
        let due =
            board.wake_at(now, self.keeps_schedules()).filter(|_| self.pending.failed.is_none());
        let until_due =
            due.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
        let until = |at: Instant| at.saturating_duration_since(Instant::now());
        let again = self.pending.failed.as_ref().map(|failed| until(failed.again));
        let stop = self.pending.stop.as_ref().and_then(|stop| stop.deadline).map(until);
        let idle =
            (self.mode == DaemonMode::UntilIdle && board.live.is_empty()).then_some(IDLE_LOOK);
        let unsettled = self.pending.unsettled.iter().map(|(at, _)| until(*at)).min();
        let all = [until_due, again, stop, idle, unsettled];
        all.into_iter().flatten().fold(SLEEP_MAX, Duration::min)
    }

    /// Deals with what needs no transaction; returns what does.
    fn sort(&mut self, input: Input) -> Option<(Task, Option<Owed>)> {
        match input {
            Input::Asked { command, by, owed } => match self.permitted(command, by) {
                Ok(command) => self.sort_command(command, owed),
                Err(refused) => {
                    owed.tell(Err(refused));
                    None
                }
            },
            Input::Prepared { prepared, owed } => Some((Task::Prepared(prepared), owed)),
            Input::Ended(gone) => {
                self.pending.faults.remove(&gone.result.run);
                Some((Task::Ended(gone), None))
            }
            Input::Hook(outcome) => Some((Task::Hook(outcome), None)),
            Input::Session { change, by, owed } => Some((Task::Session { change, by }, Some(owed))),
            Input::Questions { run, asks, delivered } => {
                fault::reach(FaultPoint::QuestionSeen);
                Some((Task::Questions { run, asks, delivered }, None))
            }
            Input::Unsettled { run, why, again } => {
                self.unsettled(run, why, again);
                None
            }
            Input::Fired { wanted, changed } => {
                fault::reach(FaultPoint::Fired);
                self.keeps_schedules().then_some((Task::Fired { wanted, changed }, None))
            }
        }
    }

    /// Notes that it cannot be found out or recorded now how a run ended. It is tried again.
    fn unsettled(&mut self, run: RunId, why: Option<String>, again: Duration) {
        if let Some(why) = why {
            tracing::warn!(%run, why, "a run cannot be settled yet");
            self.pending.faults.insert(run, format!("run {run} cannot be settled yet: {why}"));
        }
        self.pending.unsettled.push((Instant::now() + again, run));
    }

    /// Lets the jobs start whose turn it is.
    fn admit(&mut self) {
        if self.pending.stop.is_some() || self.pending.failed.is_some() {
            return;
        }
        let now = (self.fleet.now)();
        let mut board = self.board();
        let waiting: Vec<JobId> = board
            .queue()
            .filter(|asked| asked.row.not_before.is_none_or(|at| at <= now))
            .filter(|asked| !board.held.contains(&asked.row.job))
            .map(|asked| asked.row.job.clone())
            .collect();
        let mut admitted = Vec::new();
        for job in waiting {
            let Some(asked) = board.asked.get(&job) else { continue };
            let setup = Arc::clone(&board.setup);
            let Ok(agent) = setup.agent_for(&asked.wanted) else { continue };
            if board.hindrance(&agent, now).is_none() && !board.is_behind(asked) {
                admitted.push((job.clone(), asked.wanted.clone()));
                board.set_stage(&job, Stage::Preparing);
            }
        }
        drop(board);
        for (job, wanted) in admitted {
            self.hands.prepare(Some(job), wanted, None);
        }
    }

    fn act(&mut self, deed: Deed) {
        match deed {
            Deed::Launch { begun, request } => self.hands.launch(*begun, request),
            Deed::Cancel { run, now, by } => self.hands.cancel(run, now, by),
            Deed::TakeSetup(setup) => {
                self.hooks.reload(setup.hooks());
                self.outlook.take_setup(Arc::clone(&setup));
                self.hands.take_setup(setup);
            }
            Deed::WakeHooks => {
                fault::reach(FaultPoint::BeforeHooks);
                self.hooks.wake();
            }
            Deed::MoveSessions => self.hands.move_sessions(),
            Deed::Log { agent, text } => self.hands.log(agent, text),
        }
    }
}
