//! Does the hooks that are on record, beside the dispatcher: hooks of one job one after the other,
//! those of several jobs side by side.
//!
//! One thread looks at the record and gives each job's hooks to a thread of their own. It reads the
//! database and never writes it: what came of a hook is told to whoever does ([`HookOutcome`]).
//! What was told and is not on record yet is remembered, so that it is not done twice; a crash
//! before it is on record has it done again. Nor does a worker that has just started wait for one that
//! was put off by the one before it; attempts are counted all the same. Start at
//! [`HookWorker::start`].

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use heeler_model::chain;
use heeler_model::config::{Agent, Hook};
use heeler_store::{DbError, Effect, Reader, Tx};
use jiff::{SignedDuration, Timestamp};

use super::effects::{HookOrder, KIND, end_of};
use super::{HookAround, HookConfig, HookError, perform, shell};
use crate::fault::{self, FaultPoint};
use crate::fleet::Fleet;

/// How often a hook is tried that may succeed later; then it has failed.
pub const ATTEMPTS_MAX: i64 = 5;
/// How long the second attempt waits; each further one waits twice as long.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
/// The longest wait, also where a server asks for a longer one.
const BACKOFF_MAX: Duration = Duration::from_secs(5 * 60);

/// How many jobs have their hooks done at once; those of others wait.
const JOBS_AT_ONCE: usize = 4;
/// How many effects are looked at, oldest first. Those beyond wait until some are done.
const PAGE: usize = 256;
/// How long to wait for a sign that there is something new.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// How long to wait where the state could not be read.
const TROUBLE_WAIT: Duration = Duration::from_secs(1);
/// How long hooks that are being done may take when the worker ends. A command then goes on by
/// itself and the next worker hears of it; a call is made again.
const STOP_WAIT: Duration = Duration::from_secs(2);
/// What fits into the worker's channel. Signs that there is something new are dropped when it is
/// full, since it then looks anyway; its own threads wait.
const CHANNEL: usize = 64;

/// What came of hooks. Whoever writes the database records each in one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookOutcome {
    /// These are over.
    Finished(Vec<FinishedHook>),
    /// This one is to be tried again.
    Postponed {
        /// The effect.
        id: String,
        /// Why it failed.
        error: String,
        /// Not before.
        until: Timestamp,
    },
}

/// A hook that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedHook {
    /// The effect.
    pub id: String,
    /// Why it failed for good, or was not done.
    pub error: Option<String>,
}

impl HookOutcome {
    /// Records it. Doing so twice changes nothing.
    pub fn record(&self, tx: &mut Tx<'_>, now: Timestamp) -> Result<(), DbError> {
        match self {
            HookOutcome::Postponed { id, error, until } => tx.postpone_effect(id, error, *until),
            HookOutcome::Finished(hooks) => hooks.iter().try_for_each(|hook| {
                match &hook.error {
                    None => tx.finish_effect(&hook.id, now),
                    Some(error) => tx.give_up_effect(&hook.id, error, now),
                }
                .map(|_| ())
            }),
        }
    }
}

/// Does hooks until it is stopped.
#[derive(Debug)]
pub struct HookWorker {
    shared: Arc<Shared>,
    tell: SyncSender<Told>,
    thread: JoinHandle<()>,
}

impl HookWorker {
    /// Starts. `done` is called with what came of hooks, by the worker's thread, which waits for it.
    pub fn start(
        fleet: Fleet,
        config: HookConfig,
        done: Box<dyn Fn(HookOutcome) + Send>,
    ) -> std::io::Result<HookWorker> {
        let (tell, told) = sync_channel(CHANNEL);
        let config = Mutex::new(Arc::new(config));
        let shared = Arc::new(Shared { fleet, config, stop: AtomicBool::new(false) });
        let desk = Desk {
            shared: shared.clone(),
            tell: tell.clone(),
            told,
            done,
            busy: HashSet::new(),
            tried: HashMap::new(),
            is_to_sweep: true,
        };
        let thread = std::thread::Builder::new().name("hooks".to_owned()).spawn(|| desk.work())?;
        Ok(HookWorker { shared, tell, thread })
    }

    /// Says that hooks were recorded. Never waits.
    pub fn wake(&self) {
        // If there is no room, it looks anyway.
        drop(self.tell.try_send(Told::Look));
    }

    /// Has hooks done by another config from now on.
    pub fn reload(&self, config: HookConfig) {
        *self.shared.config.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }

    /// Asks the worker to end. It does within `STOP_WAIT`, and what is not done stays on record.
    ///
    /// Until it [has](Self::has_ended) it tells outcomes, and waits where nobody takes them.
    pub fn ask_to_end(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Says whether it has ended, so that nothing more is told.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends the worker. Whoever takes outcomes in another thread goes on doing so meanwhile.
    pub fn stop(self) {
        self.ask_to_end();
        if self.thread.join().is_err() {
            tracing::error!("the hook worker had panicked; what it had not done stays on record");
        }
    }
}

#[derive(Debug)]
struct Shared {
    fleet: Fleet,
    config: Mutex<Arc<HookConfig>>,
    stop: AtomicBool,
}

impl Shared {
    fn config(&self) -> Arc<HookConfig> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
enum Told {
    /// There may be something new.
    Look,
    /// A hook was tried so many times, with this outcome.
    Tried { outcome: HookOutcome, attempts: i64 },
    /// Nothing more is being done for this job.
    Over { job: String },
}

/// What is known of a hook that is not on record yet.
#[derive(Debug, Clone, Copy)]
struct Tried {
    attempts: i64,
    /// `None`: it is over.
    until: Option<Timestamp>,
}

/// The worker's thread.
struct Desk {
    shared: Arc<Shared>,
    tell: SyncSender<Told>,
    told: Receiver<Told>,
    done: Box<dyn Fn(HookOutcome) + Send>,
    /// Jobs whose hooks are being done.
    busy: HashSet<String>,
    tried: HashMap<String, Tried>,
    /// Whether folders may be there that nobody needs.
    is_to_sweep: bool,
}

impl Desk {
    fn work(mut self) {
        while !self.shared.is_stopping() {
            let wait = self.look();
            if let Ok(told) = self.told.recv_timeout(wait) {
                self.take(told);
            }
            while let Ok(told) = self.told.try_recv() {
                self.take(told);
            }
        }
        let deadline = Instant::now() + STOP_WAIT;
        while !self.busy.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.told.recv_timeout(left) {
                Ok(told) => self.take(told),
                Err(_) => return,
            }
        }
    }

    fn take(&mut self, told: Told) {
        match told {
            Told::Look => {}
            Told::Over { job } => {
                self.busy.remove(&job);
            }
            Told::Tried { outcome, attempts } => {
                match &outcome {
                    HookOutcome::Finished(hooks) => hooks.iter().for_each(|hook| {
                        self.tried.insert(hook.id.clone(), Tried { attempts, until: None });
                    }),
                    HookOutcome::Postponed { id, until, .. } => {
                        self.tried.insert(id.clone(), Tried { attempts, until: Some(*until) });
                    }
                }
                (self.done)(outcome);
            }
        }
    }

    /// Starts what is due, and returns how long there is nothing to do.
    fn look(&mut self) -> Duration {
        let undone = match self.undone() {
            Ok(undone) => undone,
            Err(reason) => {
                tracing::warn!(%reason, "cannot read which hooks are to be done");
                return TROUBLE_WAIT;
            }
        };
        let now = (self.shared.fleet.now)();
        let Plan { ready, next } = plan(undone, &self.busy, &self.tried, now);
        for (job, effects) in ready {
            self.start(job, effects);
        }
        let wait = next.map(|next| next.duration_since(now));
        let wait = wait.map(|wait| Duration::try_from(wait).unwrap_or_default());
        wait.map_or(LOOK_EVERY, |wait| wait.min(LOOK_EVERY))
    }

    /// Reads what is on record and forgets what need not be remembered any more.
    fn undone(&mut self) -> Result<Vec<Effect>, String> {
        let reader = Reader::open(&self.shared.fleet.dir).map_err(|error| chain(&error))?;
        let undone = reader.undone_effects(PAGE).map_err(|error| chain(&error))?;
        let is_all = undone.len() < PAGE;
        let hooks: Vec<Effect> = undone.into_iter().filter(|it| it.kind == KIND).collect();
        if is_all {
            let ids: HashSet<&str> = hooks.iter().map(|it| it.id.as_str()).collect();
            let before = self.tried.len();
            self.tried.retain(|id, _| ids.contains(id.as_str()));
            if self.is_to_sweep || self.tried.len() < before {
                self.is_to_sweep = false;
                self.sweep(&ids);
            }
        }
        Ok(hooks)
    }

    /// Removes the folders of events that are done.
    fn sweep(&self, undone: &HashSet<&str>) {
        let Ok(entries) = self.shared.fleet.dir.hooks().read_dir_utf8() else { return };
        for entry in entries.flatten().filter(|entry| !undone.contains(entry.file_name())) {
            if let Err(error) = shell::remove(&self.shared.fleet, entry.path()) {
                tracing::warn!("cannot clear up after a hook: {error}");
            }
        }
    }

    fn start(&mut self, job: String, effects: Vec<Effect>) {
        let tried = |effect: &Effect| self.tried.get(&effect.id).map_or(0, |tried| tried.attempts);
        let effects = effects.into_iter().map(|effect| {
            let attempts = effect.attempts.max(tried(&effect));
            Effect { attempts, ..effect }
        });
        let hand = Hand { shared: self.shared.clone(), tell: self.tell.clone(), job: job.clone() };
        let effects: Vec<Effect> = effects.collect();
        let thread = std::thread::Builder::new().name("hook".to_owned());
        match thread.spawn(move || hand.work(&effects)) {
            Ok(_) => drop(self.busy.insert(job)),
            Err(error) => tracing::warn!(%error, "cannot start a thread for hooks"),
        }
    }
}

struct Plan {
    /// Jobs whose next hook is due, with all that follow it; as many as there is room for.
    ready: Vec<(String, Vec<Effect>)>,
    /// When the next of the others is.
    next: Option<Timestamp>,
}

/// Chooses what is done now. Hooks of a job are done in their order, so those after one that waits
/// wait as well.
fn plan(
    undone: Vec<Effect>,
    busy: &HashSet<String>,
    tried: &HashMap<String, Tried>,
    now: Timestamp,
) -> Plan {
    let is_over = |effect: &Effect| tried.get(&effect.id).is_some_and(|it| it.until.is_none());
    let mut jobs: Vec<(String, Vec<Effect>)> = Vec::new();
    for effect in undone.into_iter().filter(|it| !busy.contains(&it.key) && !is_over(it)) {
        match jobs.iter_mut().find(|(job, _)| *job == effect.key) {
            Some((_, effects)) => effects.push(effect),
            None => jobs.push((effect.key.clone(), vec![effect])),
        }
    }
    let mut plan = Plan { ready: Vec::new(), next: None };
    for (job, effects) in jobs {
        match effects.first().and_then(|first| tried.get(&first.id)?.until) {
            Some(until) if until > now => {
                plan.next = Some(plan.next.map_or(until, |next| next.min(until)));
            }
            _ => plan.ready.push((job, effects)),
        }
    }
    plan.ready.truncate(JOBS_AT_ONCE.saturating_sub(busy.len()));
    plan
}

/// A thread that does the hooks of one job.
struct Hand {
    shared: Arc<Shared>,
    tell: SyncSender<Told>,
    job: String,
}

impl Drop for Hand {
    fn drop(&mut self) {
        // Nobody listens once the worker has ended.
        drop(self.tell.send(Told::Over { job: std::mem::take(&mut self.job) }));
    }
}

/// What came of one attempt.
enum Attempt {
    Done,
    /// It is over: the hooks after it are done all the same, or not.
    Failed {
        error: String,
        stops: bool,
    },
    Again {
        error: String,
        after: Option<Duration>,
    },
    Stopped,
}

impl Hand {
    fn work(self, effects: &[Effect]) {
        let mut left = effects;
        while let Some((effect, after)) = left.split_first() {
            if self.shared.is_stopping() {
                return;
            }
            let attempts = effect.attempts + 1;
            left = after;
            let finished = match self.attempt(effect) {
                Attempt::Stopped => return,
                Attempt::Again { error, after } => {
                    return self.say(postponed(effect, error, after, &self.shared.fleet), attempts);
                }
                Attempt::Done => vec![finished(effect, None)],
                Attempt::Failed { error, stops } => {
                    tracing::warn!(job = %effect.key, event = %effect.id, "a hook failed: {error}");
                    let same = after.iter().take_while(|it| stops && end_of(it) == end_of(effect));
                    let same = same.count();
                    left = &after[same..];
                    let why =
                        "not done: a hook before it failed that has `continue_on_error: false`";
                    let first = finished(effect, Some(error));
                    let others = after[..same].iter().map(|it| finished(it, Some(why.to_owned())));
                    std::iter::once(first).chain(others).collect()
                }
            };
            self.say(HookOutcome::Finished(finished), attempts);
        }
    }

    fn say(&self, outcome: HookOutcome, attempts: i64) {
        // Nobody listens once the worker has ended: it is done again.
        drop(self.tell.send(Told::Tried { outcome, attempts }));
    }

    fn attempt(&self, effect: &Effect) -> Attempt {
        let config = self.shared.config();
        let (order, agent, hook) = match find(effect, &config) {
            Ok(found) => found,
            Err(error) => return Attempt::Failed { error, stops: false },
        };
        let Shared { fleet, stop, .. } = &*self.shared;
        let around = HookAround { fleet, config: &config, agent, stop };
        let done = catch_unwind(AssertUnwindSafe(|| perform(hook, &order.context, &around)));
        fault::reach(FaultPoint::HookDone);
        let is_last = effect.attempts + 1 >= ATTEMPTS_MAX;
        let stops = !hook.continue_on_error;
        match done.unwrap_or_else(|_| Err(HookError::Lasting("internal error".to_owned()))) {
            Ok(()) => {
                tracing::info!(job = %effect.key, event = %effect.id, "a hook is done");
                Attempt::Done
            }
            Err(HookError::Stopped) => Attempt::Stopped,
            Err(HookError::Passing { message: error, after }) if !is_last => {
                Attempt::Again { error, after }
            }
            Err(HookError::Passing { message, .. }) => {
                let error = format!("{message}; it was tried {ATTEMPTS_MAX} times");
                Attempt::Failed { error, stops }
            }
            Err(HookError::Lasting(error)) => Attempt::Failed { error, stops },
        }
    }
}

/// Looks the hook of an effect up in the config, which may have changed since.
fn find<'c>(
    effect: &Effect,
    config: &'c HookConfig,
) -> Result<(HookOrder, &'c Agent, &'c Hook), String> {
    let order: HookOrder = serde_json::from_str(&effect.payload)
        .map_err(|_| "not done: its record cannot be understood".to_owned())?;
    let agent = config.loaded.agent(&order.agent);
    let gone = |what: &str| format!("not done: the config has no such {what} any more");
    let agent = agent.ok_or_else(|| gone("agent"))?;
    let hook = agent.hooks.find(order.place, order.name.as_deref());
    let hook = hook.ok_or_else(|| gone("hook"))?;
    Ok((order, agent, hook))
}

fn finished(effect: &Effect, error: Option<String>) -> FinishedHook {
    FinishedHook { id: effect.id.clone(), error }
}

fn postponed(
    effect: &Effect,
    error: String,
    after: Option<Duration>,
    fleet: &Fleet,
) -> HookOutcome {
    let wait = backoff(effect.attempts, after);
    let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
    let now = (fleet.now)();
    let until = now.checked_add(wait).unwrap_or(now);
    tracing::info!(job = %effect.key, event = %effect.id, %until, "a hook is tried again: {error}");
    HookOutcome::Postponed { id: effect.id.clone(), error, until }
}

/// Returns how long to wait after so many attempts before the one that just failed.
fn backoff(before: i64, asked: Option<Duration>) -> Duration {
    let doublings = u32::try_from(before).unwrap_or(0).min(16);
    let own = BACKOFF_FIRST.saturating_mul(1 << doublings);
    own.max(asked.unwrap_or_default()).min(BACKOFF_MAX)
}

#[cfg(test)]
mod tests;
