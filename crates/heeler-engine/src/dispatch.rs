//! The dispatcher: one loop that owns time and every change of a fleet's state.
//!
//! Commands, what became of runs, and time come in; each turn decides about all that is there in one
//! transaction, and only then acts: what was not committed never happened, and what was committed is
//! acted on again by the next daemon if this one dies. Nothing here waits for an agent, a disk that
//! is slow to settle a run, or a client. Start at [`Dispatcher::run`].

mod asking;
mod board;
mod due;
mod ended;
mod ending;
mod orders;
mod spawned;
mod status;
mod turn;
mod watches;

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use heeler_model::{JobId, RunId, Wanted, chain};
use heeler_store::{DbError, Reader, Store};
use jiff::Timestamp;

pub(crate) use board::{Board, Stage};

use crate::command::{Answer, Command, DaemonMode, Gone, Input, Refused, RefusedKind, Reply};
use crate::fault::{self, FaultPoint};
use crate::fleet::Fleet;
use crate::hands::Hands;
use crate::hooks::{HookOutcome, HookWorker};
use crate::request::JobRequest;
use crate::setup::Setup;
use crate::start::Begun;
use ending::Stop;
use turn::Turn;
use watches::Watches;

/// The longest sleep: a clock that jumps is noticed after this at the latest.
const SLEEP_MAX: Duration = Duration::from_secs(30);

/// How many inputs are taken into one transaction.
const INPUTS_PER_TURN: usize = 256;

/// How long the dispatcher waits after a commit failed; nothing new starts meanwhile.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// How long until a run is tried to be settled again that could not be.
const SETTLE_AGAIN: Duration = Duration::from_secs(5);

/// How often a daemon that ends when it is idle looks whether it is.
const IDLE_LOOK: Duration = Duration::from_millis(50);

/// How long config files must be at rest before they are read again.
const CONFIG_AT_REST: Duration = Duration::from_millis(500);

/// How often files of old jobs are put away.
const PUT_AWAY_EVERY: Duration = Duration::from_secs(10 * 60);

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
    /// A schedule fires that time does not start.
    Fired { wanted: Box<Wanted>, changed: Vec<Utf8PathBuf> },
    /// The config was read again.
    Setup(Arc<Setup>),
}

impl Task {
    /// Returns the run that has ended, if it is about one.
    fn ended_run(&self) -> Option<RunId> {
        match self {
            Task::Ended(gone) => Some(gone.result.run),
            _ => None,
        }
    }
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
    /// Do the hooks that are on record.
    WakeHooks,
    /// Ask a run to end.
    Cancel { run: RunId, now: bool, by: String },
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
    stop: Option<Stop>,
    /// Runs whose result could not be recorded, and when that is tried again.
    failed: Option<(Instant, Vec<RunId>)>,
    /// Runs that could not be settled, and when that is tried again.
    unsettled: Vec<(Instant, RunId)>,
    pub(crate) faults: HashMap<RunId, String>,
    /// When files of old jobs are put away next.
    put_away_at: Option<Instant>,
    /// After `inputs`: once those are gone, it waits for nobody.
    watches: Watches,
}

impl Dispatcher {
    /// Makes a dispatcher of what a daemon has opened.
    pub(crate) fn new(parts: Parts) -> Dispatcher {
        let Parts {
            fleet,
            store,
            inputs,
            hands,
            hooks,
            board,
            load,
            mode,
            since,
            version,
            clients,
        } = parts;
        Dispatcher {
            fleet,
            store,
            inputs,
            hands,
            hooks,
            board,
            load,
            mode,
            since,
            version,
            clients,
            watches: Watches::default(),
            stop: None,
            failed: None,
            unsettled: Vec::new(),
            faults: HashMap::new(),
            put_away_at: None,
        }
    }

    /// Works until it is stopped, or until nothing is left to do.
    pub(crate) fn run(mut self) -> Ended {
        let ended = self.work();
        self.end_hooks();
        ended
    }

    fn work(&mut self) -> Ended {
        // Whatever an earlier daemon left goes on.
        let setup = Arc::clone(&self.board().setup);
        self.commit(vec![(Task::Setup(setup), None)]);
        let left: Vec<RunId> = self.board().live.keys().copied().collect();
        left.into_iter().for_each(|run| self.hands.take_over(run));
        self.admit();
        self.watch();
        loop {
            if let Some(ended) = self.end() {
                return ended;
            }
            let inputs = self.wait();
            let tasks = inputs.into_iter().filter_map(|input| self.sort(input)).collect();
            self.try_again();
            self.commit(tasks);
            self.admit();
            self.put_away();
            self.watch();
        }
    }

    /// Has files watched that schedules wait for.
    fn watch(&mut self) {
        if self.keeps_schedules() {
            let board = Arc::clone(&self.board);
            let board = board.lock().unwrap_or_else(PoisonError::into_inner);
            self.watches.update(&board, self.fleet.dir.root(), self.hands.inbox());
        }
    }

    /// Has files of old jobs put away, now and then.
    fn put_away(&mut self) {
        let due = self.put_away_at.is_none_or(|at| Instant::now() >= at);
        if due && self.keeps_schedules() {
            self.put_away_at = Some(Instant::now() + PUT_AWAY_EVERY);
            self.hands.put_away();
        }
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keeps_schedules(&self) -> bool {
        self.mode == DaemonMode::Permanent && self.stop.is_none()
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
        let due = board.wake_at(now, self.keeps_schedules()).filter(|_| self.failed.is_none());
        let until_due =
            due.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
        let until = |at: Instant| at.saturating_duration_since(Instant::now());
        let again = self.failed.as_ref().map(|(at, _)| until(*at));
        let stop = self.stop.as_ref().and_then(|stop| stop.deadline).map(until);
        let idle =
            (self.mode == DaemonMode::UntilIdle && board.live.is_empty()).then_some(IDLE_LOOK);
        let unsettled = self.unsettled.iter().map(|(at, _)| until(*at)).min();
        let all = [until_due, again, stop, idle, unsettled];
        all.into_iter().flatten().fold(SLEEP_MAX, Duration::min)
    }

    /// Deals with what needs no transaction; returns what does.
    fn sort(&mut self, input: Input) -> Option<(Task, Option<Reply>)> {
        match input {
            Input::Asked { command, by_run, reply } => match self.permitted(command, by_run) {
                Ok(command) => self.sort_command(command, reply),
                Err(refused) => {
                    reply(Err(refused));
                    None
                }
            },
            Input::Prepared { prepared, reply } => Some((Task::Prepared(prepared), reply)),
            Input::Ended(gone) => {
                self.faults.remove(&gone.result.run);
                Some((Task::Ended(gone), None))
            }
            Input::Hook(outcome) => Some((Task::Hook(outcome), None)),
            Input::Unsettled { run, why } => {
                self.unsettled(run, why);
                None
            }
            Input::Fired { wanted, changed } => {
                self.keeps_schedules().then_some((Task::Fired { wanted, changed }, None))
            }
        }
    }

    /// Notes that it cannot be found out or recorded now how a run ended. It is tried again.
    fn unsettled(&mut self, run: RunId, why: String) {
        tracing::warn!(%run, why, "a run cannot be settled yet");
        self.faults.insert(run, format!("run {run} cannot be settled yet: {why}"));
        self.unsettled.push((Instant::now() + SETTLE_AGAIN, run));
    }

    /// Does tasks, and what is due, in one transaction, then what follows from it.
    fn commit(&mut self, tasks: Vec<(Task, Option<Reply>)>) {
        let now = (self.fleet.now)();
        if tasks.is_empty() && !self.has_due(now) {
            return;
        }
        let (tasks, replies): (Vec<Task>, Vec<Option<Reply>>) = tasks.into_iter().unzip();
        let runs: Vec<Option<RunId>> = tasks.iter().map(Task::ended_run).collect();
        let (board, dir) = (Arc::clone(&self.board), self.fleet.dir.clone());
        let keeps_schedules = self.keeps_schedules();
        let (fires, is_stopping) = (keeps_schedules && self.failed.is_none(), self.stop.is_some());
        fault::reach(FaultPoint::BeforeCommit);
        let done = self.store.write(move |tx| {
            let mut board = board.lock().unwrap_or_else(PoisonError::into_inner);
            let day = board::day_of(&board.setup, now);
            if day != board.ledger.day() {
                board.ledger.turn_to(day, tx.spent_by_agent(day)?);
            }
            let mut work = Work { board: &mut board, dir: &dir, now, keeps_schedules, is_stopping };
            let mut outcomes = Vec::new();
            let mut deeds = Vec::new();
            for task in tasks {
                let (outcome, more) = work.attempt(tx, |turn| turn.take(task))?;
                outcomes.push(outcome);
                deeds.extend(more);
            }
            let due = if fires { work.board.due(now) } else { Vec::new() };
            for (key, verdict) in due {
                // One that is refused stands in no other's way.
                let (_, more) = work.attempt(tx, |turn| {
                    turn.fire(&key, &verdict)?;
                    Ok(Ok(None))
                })?;
                deeds.extend(more);
            }
            let (_, more) = work.attempt(tx, |turn| {
                turn.expire()?;
                turn.unpark()?;
                Ok(Ok(None))
            })?;
            deeds.extend(more);
            let is_stale = board.is_stale;
            Ok::<_, DbError>((outcomes, deeds, is_stale))
        });
        fault::reach(FaultPoint::AfterCommit);
        match done {
            Ok((outcomes, deeds, is_stale)) => {
                if is_stale {
                    self.read_anew();
                }
                for ((reply, outcome), run) in replies.into_iter().zip(outcomes).zip(runs) {
                    if let (Err(refused), Some(run)) = (&outcome, run) {
                        self.unsettled(run, refused.message.clone());
                    }
                    let Some(reply) = reply else { continue };
                    let nothing = || Answer::Done { message: String::new() };
                    reply(outcome.map(|answer| answer.unwrap_or_else(nothing)));
                }
                deeds.into_iter().for_each(|deed| self.act(deed));
            }
            Err(error) => {
                let why = chain(&error);
                tracing::error!(why, "the state cannot be saved: nothing new starts");
                let message = format!("the state cannot be saved: {why}");
                let refused = Refused::new(RefusedKind::Trouble, message).hint("heeler doctor");
                replies.into_iter().flatten().for_each(|reply| reply(Err(refused.clone())));
                self.put_off(runs.into_iter().flatten().collect());
                self.read_anew();
            }
        }
    }

    /// Says whether time brings something that is to be written.
    fn has_due(&self, now: Timestamp) -> bool {
        let board = self.board();
        let is_due = |at: Option<Timestamp>| at.is_some_and(|at| at <= now);
        let schedules = self.keeps_schedules() && board.calendar.is_due(now);
        // What waits for money may start on a new day.
        let is_new_day = board::day_of(&board.setup, now) != board.ledger.day();
        let mut queue = board.queue();
        schedules
            || is_new_day
            || queue.any(|asked| is_due(asked.row.expires_at))
            || board.parked.values().any(|parked| parked.until <= now)
    }

    /// Reads everything anew, since what is known may not be what is on record.
    fn read_anew(&mut self) {
        let (setup, now) = (Arc::clone(&self.board().setup), (self.fleet.now)());
        let read = Reader::open(&self.fleet.dir).map_err(|error| chain(&error));
        let read = read.and_then(|reader| {
            Board::load(&reader, Arc::clone(&setup), now).map_err(|error| chain(&error))
        });
        match read {
            Ok(mut board) => {
                let mut old = self.board();
                board.remember(&old);
                *old = board;
            }
            Err(why) => tracing::error!(why, "the state cannot be read"),
        }
        self.put_off(Vec::new());
    }

    /// Lets nothing new start for a moment, then tries again.
    fn put_off(&mut self, runs: Vec<RunId>) {
        let (at, waiting) =
            self.failed.get_or_insert_with(|| (Instant::now() + AFTER_FAILURE, Vec::new()));
        *at = (*at).max(Instant::now());
        waiting.extend(runs);
    }

    fn try_again(&mut self) {
        let now = Instant::now();
        let (due, later) =
            std::mem::take(&mut self.unsettled).into_iter().partition(|it| it.0 <= now);
        self.unsettled = later;
        let due: Vec<(Instant, RunId)> = due;
        due.into_iter().for_each(|(_, run)| self.hands.take_over(run));
        if self.failed.as_ref().is_none_or(|(at, _)| *at > Instant::now()) {
            return;
        }
        let Some((_, runs)) = self.failed.take() else { return };
        let setup = Arc::clone(&self.board().setup);
        self.commit(vec![(Task::Setup(setup), None)]);
        runs.into_iter().for_each(|run| self.hands.take_over(run));
    }

    /// Lets the jobs start whose turn it is.
    fn admit(&mut self) {
        if self.stop.is_some() || self.failed.is_some() {
            return;
        }
        let now = (self.fleet.now)();
        let mut board = self.board();
        let waiting: Vec<JobId> = board
            .queue()
            .filter(|asked| asked.row.not_before.is_none_or(|at| at <= now))
            .map(|asked| asked.row.job.clone())
            .collect();
        let mut admitted = Vec::new();
        for job in waiting {
            let Some(asked) = board.asked.get(&job) else { continue };
            let Some(agent) = board.setup.agent(asked.wanted.agent.as_str()) else { continue };
            if board.hindrance(agent, now).is_none() {
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
            Deed::WakeHooks => {
                fault::reach(FaultPoint::BeforeHooks);
                self.hooks.wake();
            }
            Deed::Log { agent, text } => self.hands.log(agent, text),
        }
    }
}

/// What a dispatcher is made of.
pub(crate) struct Parts {
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
    pub(crate) clients: Arc<AtomicUsize>,
}

/// Where tasks are done, one after the other.
struct Work<'w> {
    board: &'w mut Board,
    dir: &'w heeler_store::StateDir,
    now: Timestamp,
    keeps_schedules: bool,
    is_stopping: bool,
}

impl Work<'_> {
    /// Does a part that may fail by itself. What the board then knows is to be read anew.
    fn attempt(
        &mut self,
        tx: &mut heeler_store::Tx<'_>,
        part: impl FnOnce(&mut Turn<'_, '_>) -> Result<turn::Outcome, DbError>,
    ) -> Result<(turn::Outcome, Vec<Deed>), DbError> {
        let Work { dir, now, keeps_schedules, is_stopping, .. } = *self;
        let board = &mut *self.board;
        let done = tx.attempt(|tx| {
            let deeds = Vec::new();
            let mut turn = Turn { tx, board, dir, now, keeps_schedules, is_stopping, deeds };
            let outcome = part(&mut turn)?;
            Ok::<_, DbError>((outcome, turn.deeds))
        });
        match done {
            Err(error) if !error.is_of_storage() => {
                let why = chain(&error);
                tracing::error!(why, "a change was refused by the database");
                self.board.is_stale = true;
                Ok((Err(Refused::new(RefusedKind::Trouble, why).hint("heeler doctor")), Vec::new()))
            }
            done => done,
        }
    }
}
