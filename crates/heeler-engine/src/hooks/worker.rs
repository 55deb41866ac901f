//! Does the hooks that are on record, beside the dispatcher: hooks of one job one after the other,
//! those of several jobs side by side.
//!
//! One thread looks at the record and gives each job's hooks to a thread of their own. It reads the
//! database and never writes it: what came of a hook is told to whoever does ([`HookOutcome`]).
//! What was told and is not on record yet is remembered, so that it is not done twice; a crash
//! before it is on record has it done again. Nor does a worker that has just started wait for one that
//! was put off by the one before it; attempts are counted all the same. Start at
//! [`HookWorker::start_job_hooks`].

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use heeler_model::config::{AgentConfig, Hook};
use heeler_model::error_chain;
use heeler_store::{DatabaseError, EffectRecord, StoreReader, StoreTransaction};
use jiff::{SignedDuration, Timestamp};

use super::effects::{HOOK_EFFECT_KIND, HookEffectPayload, job_end_id};
use super::{
    HookExecutionContext, HookExecutionError, HookWorkerConfig, command_hook, execute_hook,
};
use crate::fault::{self, FaultPoint};
use crate::fleet::EngineContext;

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
const READ_RETRY_DELAY: Duration = Duration::from_secs(1);
/// How long hooks that are being done may take when the worker ends. A command then goes on by
/// itself and the next worker hears of it; a call is made again.
const STOP_WAIT: Duration = Duration::from_secs(2);
/// What fits into the worker's channel. Signs that there is something new are dropped when it is
/// full, since it then looks anyway; its own threads wait.
const CHANNEL_CAPACITY: usize = 64;

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
    pub fn record(
        &self,
        tx: &mut StoreTransaction<'_>,
        now: Timestamp,
    ) -> Result<(), DatabaseError> {
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
    shared: Arc<HookWorkerState>,
    sender: SyncSender<HookWorkerMessage>,
    thread: JoinHandle<()>,
}

impl HookWorker {
    /// Starts. `done` is called with what came of hooks, by the worker's thread, which waits for it.
    pub fn start(
        fleet: EngineContext,
        config: HookWorkerConfig,
        done: Box<dyn Fn(HookOutcome) + Send>,
    ) -> std::io::Result<HookWorker> {
        let (tell, told) = sync_channel(CHANNEL_CAPACITY);
        let config = Mutex::new(Arc::new(config));
        let shared = Arc::new(HookWorkerState { fleet, config, stop: AtomicBool::new(false) });
        let desk = HookScheduler {
            shared: shared.clone(),
            sender: tell.clone(),
            receiver: told,
            on_outcome: done,
            active_jobs: HashSet::new(),
            unrecorded: HashMap::new(),
            needs_sweep: true,
        };
        let thread = std::thread::Builder::new().name("hooks".to_owned()).spawn(|| desk.run())?;
        Ok(HookWorker { shared, sender: tell, thread })
    }

    /// Says that hooks were recorded. Never waits.
    pub fn wake(&self) {
        // If there is no room, it looks anyway.
        drop(self.sender.try_send(HookWorkerMessage::Wake));
    }

    /// Has hooks done by another config from now on.
    pub fn reload(&self, config: HookWorkerConfig) {
        *self.shared.config.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }

    /// Asks the worker to end. It does within `STOP_WAIT`, and what is not done stays on record.
    ///
    /// Until it [has](Self::has_ended) it tells outcomes, and waits where nobody takes them.
    pub fn request_stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Says whether it has ended, so that nothing more is told.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends the worker. Whoever takes outcomes in another thread goes on doing so meanwhile.
    pub fn stop(self) {
        self.request_stop();
        if self.thread.join().is_err() {
            tracing::error!("the hook worker had panicked; what it had not done stays on record");
        }
    }
}

#[derive(Debug)]
struct HookWorkerState {
    fleet: EngineContext,
    config: Mutex<Arc<HookWorkerConfig>>,
    stop: AtomicBool,
}

impl HookWorkerState {
    fn config(&self) -> Arc<HookWorkerConfig> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
enum HookWorkerMessage {
    /// There may be something new.
    Wake,
    /// A hook was tried so many times, with this outcome.
    Attempted { outcome: HookOutcome, attempts: i64 },
    /// Nothing more is being done for this job.
    JobDone { job: String },
}

/// What is known of a hook that is not on record yet.
#[derive(Debug, Clone, Copy)]
struct UnrecordedAttempt {
    attempts: i64,
    /// `None`: it is over.
    until: Option<Timestamp>,
}

/// The worker's thread.
struct HookScheduler {
    shared: Arc<HookWorkerState>,
    sender: SyncSender<HookWorkerMessage>,
    receiver: Receiver<HookWorkerMessage>,
    on_outcome: Box<dyn Fn(HookOutcome) + Send>,
    /// Jobs whose hooks are being done.
    active_jobs: HashSet<String>,
    unrecorded: HashMap<String, UnrecordedAttempt>,
    /// Whether folders may be there that nobody needs.
    needs_sweep: bool,
}

impl HookScheduler {
    fn run(mut self) {
        while !self.shared.is_stopping() {
            let wait = self.start_due_hooks();
            if let Ok(told) = self.receiver.recv_timeout(wait) {
                self.handle_message(told);
            }
            while let Ok(told) = self.receiver.try_recv() {
                self.handle_message(told);
            }
        }
        let deadline = Instant::now() + STOP_WAIT;
        while !self.active_jobs.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.receiver.recv_timeout(left) {
                Ok(told) => self.handle_message(told),
                Err(_) => return,
            }
        }
    }

    fn handle_message(&mut self, told: HookWorkerMessage) {
        match told {
            HookWorkerMessage::Wake => {}
            HookWorkerMessage::JobDone { job } => {
                self.active_jobs.remove(&job);
            }
            HookWorkerMessage::Attempted { outcome, attempts } => {
                match &outcome {
                    HookOutcome::Finished(hooks) => hooks.iter().for_each(|hook| {
                        self.unrecorded
                            .insert(hook.id.clone(), UnrecordedAttempt { attempts, until: None });
                    }),
                    HookOutcome::Postponed { id, until, .. } => {
                        self.unrecorded.insert(
                            id.clone(),
                            UnrecordedAttempt { attempts, until: Some(*until) },
                        );
                    }
                }
                (self.on_outcome)(outcome);
            }
        }
    }

    /// Starts what is due, and returns how long there is nothing to do.
    fn start_due_hooks(&mut self) -> Duration {
        let undone = match self.load_pending_effects() {
            Ok(undone) => undone,
            Err(reason) => {
                tracing::warn!(%reason, "cannot read which hooks are to be done");
                return READ_RETRY_DELAY;
            }
        };
        let now = (self.shared.fleet.now)();
        let HookPlan { ready, next } = plan_hooks(undone, &self.active_jobs, &self.unrecorded, now);
        for (job, effects) in ready {
            self.start_job_hooks(job, effects);
        }
        let wait = next.map(|next| next.duration_since(now));
        let wait = wait.map(|wait| Duration::try_from(wait).unwrap_or_default());
        wait.map_or(LOOK_EVERY, |wait| wait.min(LOOK_EVERY))
    }

    /// Reads what is on record and forgets what need not be remembered any more.
    fn load_pending_effects(&mut self) -> Result<Vec<EffectRecord>, String> {
        let reader =
            StoreReader::open(&self.shared.fleet.dir).map_err(|error| error_chain(&error))?;
        let undone = reader.pending_effects(PAGE).map_err(|error| error_chain(&error))?;
        let is_all = undone.len() < PAGE;
        let hooks: Vec<EffectRecord> =
            undone.into_iter().filter(|it| it.kind == HOOK_EFFECT_KIND).collect();
        if is_all {
            let ids: HashSet<&str> = hooks.iter().map(|it| it.id.as_str()).collect();
            let before = self.unrecorded.len();
            self.unrecorded.retain(|id, _| ids.contains(id.as_str()));
            if self.needs_sweep || self.unrecorded.len() < before {
                self.needs_sweep = false;
                self.remove_finished_folders(&ids);
            }
        }
        Ok(hooks)
    }

    /// Removes the folders of events that are done.
    fn remove_finished_folders(&self, undone: &HashSet<&str>) {
        let Ok(entries) = self.shared.fleet.dir.hooks().read_dir_utf8() else { return };
        for entry in entries.flatten().filter(|entry| !undone.contains(entry.file_name())) {
            if let Err(error) = command_hook::remove_event_folder(&self.shared.fleet, entry.path())
            {
                tracing::warn!("cannot clear up after a hook: {error}");
            }
        }
    }

    fn start_job_hooks(&mut self, job: String, effects: Vec<EffectRecord>) {
        let tried = |effect: &EffectRecord| {
            self.unrecorded.get(&effect.id).map_or(0, |tried| tried.attempts)
        };
        let effects = effects.into_iter().map(|effect| {
            let attempts = effect.attempts.max(tried(&effect));
            EffectRecord { attempts, ..effect }
        });
        let hand = HookThread {
            shared: self.shared.clone(),
            sender: self.sender.clone(),
            job: job.clone(),
        };
        let effects: Vec<EffectRecord> = effects.collect();
        let thread = std::thread::Builder::new().name("hook".to_owned());
        match thread.spawn(move || hand.run_hooks(&effects)) {
            Ok(_) => drop(self.active_jobs.insert(job)),
            Err(error) => tracing::warn!(%error, "cannot start a thread for hooks"),
        }
    }
}

struct HookPlan {
    /// Jobs whose next hook is due, with all that follow it; as many as there is room for.
    ready: Vec<(String, Vec<EffectRecord>)>,
    /// When the next of the others is.
    next: Option<Timestamp>,
}

/// Chooses what is done now. Hooks of a job are done in their order, so those after one that waits
/// wait as well.
fn plan_hooks(
    undone: Vec<EffectRecord>,
    busy: &HashSet<String>,
    tried: &HashMap<String, UnrecordedAttempt>,
    now: Timestamp,
) -> HookPlan {
    let is_over =
        |effect: &EffectRecord| tried.get(&effect.id).is_some_and(|it| it.until.is_none());
    let mut jobs: Vec<(String, Vec<EffectRecord>)> = Vec::new();
    for effect in undone.into_iter().filter(|it| !busy.contains(&it.key) && !is_over(it)) {
        match jobs.iter_mut().find(|(job, _)| *job == effect.key) {
            Some((_, effects)) => effects.push(effect),
            None => jobs.push((effect.key.clone(), vec![effect])),
        }
    }
    let mut plan = HookPlan { ready: Vec::new(), next: None };
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
struct HookThread {
    shared: Arc<HookWorkerState>,
    sender: SyncSender<HookWorkerMessage>,
    job: String,
}

impl Drop for HookThread {
    fn drop(&mut self) {
        // Nobody listens once the worker has ended.
        drop(self.sender.send(HookWorkerMessage::JobDone { job: std::mem::take(&mut self.job) }));
    }
}

/// What came of one attempt.
enum HookAttemptOutcome {
    Done,
    /// It is over: the hooks after it are done all the same, or not.
    Failed {
        error: String,
        skips_rest: bool,
    },
    Retry {
        error: String,
        after: Option<Duration>,
    },
    Stopped,
}

impl HookThread {
    fn run_hooks(self, effects: &[EffectRecord]) {
        let mut left = effects;
        while let Some((effect, after)) = left.split_first() {
            if self.shared.is_stopping() {
                return;
            }
            let attempts = effect.attempts + 1;
            left = after;
            let finished = match self.attempt(effect) {
                HookAttemptOutcome::Stopped => return,
                HookAttemptOutcome::Retry { error, after } => {
                    return self.report_outcome(
                        postponed_outcome(effect, error, after, &self.shared.fleet),
                        attempts,
                    );
                }
                HookAttemptOutcome::Done => vec![finished_hook(effect, None)],
                HookAttemptOutcome::Failed { error, skips_rest: stops } => {
                    tracing::warn!(job = %effect.key, event = %effect.id, "a hook failed: {error}");
                    let same =
                        after.iter().take_while(|it| stops && job_end_id(it) == job_end_id(effect));
                    let same = same.count();
                    left = &after[same..];
                    let why =
                        "not done: a hook before it failed that has `continue_on_error: false`";
                    let first = finished_hook(effect, Some(error));
                    let others =
                        after[..same].iter().map(|it| finished_hook(it, Some(why.to_owned())));
                    std::iter::once(first).chain(others).collect()
                }
            };
            self.report_outcome(HookOutcome::Finished(finished), attempts);
        }
    }

    fn report_outcome(&self, outcome: HookOutcome, attempts: i64) {
        // Nobody listens once the worker has ended: it is done again.
        drop(self.sender.send(HookWorkerMessage::Attempted { outcome, attempts }));
    }

    fn attempt(&self, effect: &EffectRecord) -> HookAttemptOutcome {
        let config = self.shared.config();
        let (order, agent, hook) = match find_hook(effect, &config) {
            Ok(found) => found,
            Err(error) => return HookAttemptOutcome::Failed { error, skips_rest: false },
        };
        let HookWorkerState { fleet, stop, .. } = &*self.shared;
        let around = HookExecutionContext { fleet, config: &config, agent, stop };
        let done = catch_unwind(AssertUnwindSafe(|| execute_hook(hook, &order.context, &around)));
        fault::reach(FaultPoint::HookDone);
        let is_last = effect.attempts + 1 >= ATTEMPTS_MAX;
        let stops = !hook.continue_on_error;
        match done
            .unwrap_or_else(|_| Err(HookExecutionError::Permanent("internal error".to_owned())))
        {
            Ok(()) => {
                tracing::info!(job = %effect.key, event = %effect.id, "a hook is done");
                HookAttemptOutcome::Done
            }
            Err(HookExecutionError::Stopped) => HookAttemptOutcome::Stopped,
            Err(HookExecutionError::Transient { message: error, after }) if !is_last => {
                HookAttemptOutcome::Retry { error, after }
            }
            Err(HookExecutionError::Transient { message, .. }) => {
                let error = format!("{message}; it was tried {ATTEMPTS_MAX} times");
                HookAttemptOutcome::Failed { error, skips_rest: stops }
            }
            Err(HookExecutionError::Permanent(error)) => {
                HookAttemptOutcome::Failed { error, skips_rest: stops }
            }
        }
    }
}

/// Looks the hook of an effect up in the config, which may have changed since.
fn find_hook<'c>(
    effect: &EffectRecord,
    config: &'c HookWorkerConfig,
) -> Result<(HookEffectPayload, &'c AgentConfig, &'c Hook), String> {
    let order: HookEffectPayload = serde_json::from_str(&effect.payload)
        .map_err(|_| "not done: its record cannot be understood".to_owned())?;
    let agent = config.loaded.agent(&order.agent);
    let gone = |what: &str| format!("not done: the config has no such {what} any more");
    let agent = agent.ok_or_else(|| gone("agent"))?;
    let hook = agent.hooks.find(order.place, order.name.as_deref());
    let hook = hook.ok_or_else(|| gone("hook"))?;
    Ok((order, agent, hook))
}

fn finished_hook(effect: &EffectRecord, error: Option<String>) -> FinishedHook {
    FinishedHook { id: effect.id.clone(), error }
}

fn postponed_outcome(
    effect: &EffectRecord,
    error: String,
    after: Option<Duration>,
    fleet: &EngineContext,
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
