//! Executes recorded hooks outside the dispatcher: hooks of one job in order, those of several jobs
//! concurrently.
//!
//! One thread reads the pending effects and starts one thread per job. It never writes the
//! database: outcomes are reported as [`HookOutcome`]. Outcomes that are reported but not recorded
//! yet are remembered, so that no hook is executed twice; after a crash a hook without a recorded
//! outcome is executed again. A new worker does not wait for the retry time of hooks that its
//! predecessor postponed, but their attempts still count. Start at [`HookWorker::start`].

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use camino::Utf8Path;
use heeler_config::{AgentConfig, Hook};
use heeler_model::error_chain;
use heeler_model::hook::{HOOK_EFFECT_KIND, HookEffectPayload};
use heeler_store::{DatabaseError, EffectRecord, StoreReader, StoreTransaction};
use jiff::{SignedDuration, Timestamp};

use super::effects::job_end_id;
use super::{
    HookExecutionContext, HookExecutionError, HookResultKey, HookWorkerConfig, command_hook,
    execute_hook,
};
use crate::fault::{self, FaultPoint};
use crate::fleet::EngineContext;

/// Maximum number of attempts of a hook that may succeed later.
pub const ATTEMPTS_MAX: i64 = 5;
/// Delay before the second attempt. Each further delay is twice as long.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
/// Longest delay, also if a server asks for a longer one.
const BACKOFF_MAX: Duration = Duration::from_secs(5 * 60);

/// Number of jobs with hooks that are executed concurrently.
const JOBS_AT_ONCE: usize = 4;
/// Number of effects that are read, oldest first. Further ones wait until some are done.
const PAGE: usize = 256;
/// Interval between searches for pending hooks without a wake-up.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Delay after the state could not be read.
const READ_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Time for active hooks to finish when the worker ends. After that a command continues on its own
/// and the next worker collects its result; an HTTP request is sent again.
const STOP_WAIT: Duration = Duration::from_secs(2);
/// Capacity of the worker's channel. Wake-ups are dropped when it is full, since the worker then
/// searches anyway; its own threads wait.
const CHANNEL_CAPACITY: usize = 64;

/// Outcome of hooks. The writer of the database records each in one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookOutcome {
    /// These hooks are finished.
    Finished(Vec<FinishedHook>),
    /// This hook will be retried.
    Postponed {
        /// ID of the effect.
        id: String,
        error: String,
        /// Earliest time of the next attempt.
        until: Timestamp,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedHook {
    /// ID of the effect.
    pub id: String,
    /// Reason for which it failed finally or was skipped.
    pub error: Option<String>,
}

impl HookOutcome {
    /// Records the outcome. Recording it twice changes nothing.
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

/// Handle to the hook worker.
#[derive(Debug)]
pub struct HookWorker {
    shared: Arc<HookWorkerState>,
    sender: SyncSender<HookWorkerMessage>,
    thread: JoinHandle<()>,
}

impl HookWorker {
    /// Starts the worker. `key` must be on record. `done` is called with each outcome on the worker's
    /// thread, which waits for it.
    pub fn start(
        fleet: EngineContext,
        config: HookWorkerConfig,
        key: HookResultKey,
        done: Box<dyn Fn(HookOutcome) + Send>,
    ) -> std::io::Result<HookWorker> {
        let (tell, told) = sync_channel(CHANNEL_CAPACITY);
        let config = Mutex::new(Arc::new(config));
        // The flag also reaches hooks that are being executed.
        let shared = Arc::new(HookWorkerState { fleet, config, key, stop: AtomicBool::new(false) });
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

    /// Notifies the worker of recorded hooks. Never blocks.
    pub fn wake(&self) {
        // If the channel is full, the worker searches anyway.
        drop(self.sender.try_send(HookWorkerMessage::Wake));
    }

    /// Replaces the config of the worker.
    pub fn reload(&self, config: HookWorkerConfig) {
        *self.shared.config.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }

    /// Asks the worker to end. It ends within `STOP_WAIT`; unfinished hooks stay recorded.
    ///
    /// Until it [has ended](Self::has_ended) it reports outcomes, and waits if they are not
    /// received.
    pub fn request_stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Returns true if the worker has ended and reports no more outcomes.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends the worker and waits for it. Outcomes must be received on another thread in the
    /// meantime.
    pub fn stop(self) {
        self.request_stop();
        if self.thread.join().is_err() {
            tracing::error!("the hook worker had panicked; unfinished hooks stay recorded");
        }
    }
}

#[derive(Debug)]
struct HookWorkerState {
    fleet: EngineContext,
    config: Mutex<Arc<HookWorkerConfig>>,
    key: HookResultKey,
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
    /// Pending hooks may have been recorded.
    Wake,
    /// A hook was attempted; `attempts` is the number so far.
    Attempted { outcome: HookOutcome, attempts: i64 },
    /// The thread of this job has ended.
    JobDone { job: String },
}

/// An attempt that was reported but is not recorded yet.
#[derive(Debug, Clone, Copy)]
struct UnrecordedAttempt {
    attempts: i64,
    /// Time of the next attempt; `None` if the hook is finished.
    until: Option<Timestamp>,
}

/// State of the worker's thread.
struct HookScheduler {
    shared: Arc<HookWorkerState>,
    sender: SyncSender<HookWorkerMessage>,
    receiver: Receiver<HookWorkerMessage>,
    on_outcome: Box<dyn Fn(HookOutcome) + Send>,
    /// Jobs with hooks that are being executed.
    active_jobs: HashSet<String>,
    unrecorded: HashMap<String, UnrecordedAttempt>,
    /// True if directories of finished events may exist.
    needs_sweep: bool,
}

impl HookScheduler {
    fn run(mut self) {
        while !self.shared.is_stopping() {
            let wait = self.start_due_hooks();
            // A disconnect is impossible, because this worker holds a sender itself.
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
                    // This is remembered first: the outcome may be recorded only after the next
                    // search.
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

    /// Starts the hooks that are due, and returns the time until the next search.
    fn start_due_hooks(&mut self) -> Duration {
        let undone = match self.load_pending_effects() {
            Ok(undone) => undone,
            Err(reason) => {
                tracing::warn!(%reason, "cannot read the pending hooks");
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

    /// Reads the pending effects and forgets attempts that are recorded by now.
    fn load_pending_effects(&mut self) -> Result<Vec<EffectRecord>, String> {
        let reader =
            StoreReader::open(&self.shared.fleet.dir).map_err(|error| error_chain(&error))?;
        // Only hooks: effects of other kinds may fill a page for hours.
        let hooks = reader.pending_effects_of_kind(HOOK_EFFECT_KIND, PAGE);
        let hooks: Vec<EffectRecord> = hooks.map_err(|error| error_chain(&error))?;
        // On a full page a missing effect may just be on a later page.
        let is_all = hooks.len() < PAGE;
        if is_all {
            let ids: HashSet<&str> = hooks.iter().map(|it| it.id.as_str()).collect();
            let before = self.unrecorded.len();
            self.unrecorded.retain(|id, _| ids.contains(id.as_str()));
            // A folder stays until its outcome is recorded: without the record a crash would need
            // it.
            if self.needs_sweep || self.unrecorded.len() < before {
                self.needs_sweep = !self.remove_finished_folders(&ids);
            }
        }
        Ok(hooks)
    }

    /// Removes the directories of finished events. Returns false if one is still in use, or cannot
    /// be removed now: the next search tries again.
    fn remove_finished_folders(&self, undone: &HashSet<&str>) -> bool {
        let Ok(entries) = self.shared.fleet.dir.hooks().read_dir_utf8() else { return true };
        let mut removed_all = true;
        for entry in entries.flatten().filter(|entry| !undone.contains(entry.file_name())) {
            match command_hook::remove_event_folder(&self.shared.fleet, entry.path()) {
                Ok(removed) => removed_all &= removed,
                Err(error) => {
                    tracing::warn!("cannot remove the directory of a hook: {error}");
                    removed_all = false;
                }
            }
        }
        removed_all
    }

    fn start_job_hooks(&mut self, job: String, effects: Vec<EffectRecord>) {
        let tried = |effect: &EffectRecord| {
            self.unrecorded.get(&effect.id).map_or(0, |tried| tried.attempts)
        };
        let effects = effects.into_iter().map(|effect| {
            // The row may not have the last attempts yet.
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
            // The thread reports its own end, so its handle is not needed.
            Ok(_) => drop(self.active_jobs.insert(job)),
            Err(error) => tracing::warn!(%error, "cannot start a thread for hooks"),
        }
    }
}

struct HookPlan {
    /// Jobs with a hook that is due, with their following hooks; at most as many as there is
    /// capacity for.
    ready: Vec<(String, Vec<EffectRecord>)>,
    /// Time at which the next of the other hooks is due.
    next: Option<Timestamp>,
}

/// Selects the hooks to execute now. Hooks of a job are executed in order, so those after a
/// postponed one wait too.
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
    // The others are started when a job is done, which wakes the worker.
    plan.ready.truncate(JOBS_AT_ONCE.saturating_sub(busy.len()));
    plan
}

/// A thread that executes the hooks of one job.
struct HookThread {
    shared: Arc<HookWorkerState>,
    sender: SyncSender<HookWorkerMessage>,
    job: String,
}

impl Drop for HookThread {
    fn drop(&mut self) {
        // Sending fails once the worker has ended, which is fine.
        drop(self.sender.send(HookWorkerMessage::JobDone { job: std::mem::take(&mut self.job) }));
    }
}

/// Outcome of one attempt.
enum HookAttemptOutcome {
    Done,
    /// It failed finally; `skips_rest` is true if the job's following hooks are skipped.
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
            // Hooks that have not started are left to the next worker.
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
                        // A resumed job has several ends, and a failure skips only hooks of the
                        // same end.
                        after.iter().take_while(|it| stops && job_end_id(it) == job_end_id(effect));
                    let same = same.count();
                    left = &after[same..];
                    let why = "skipped: an earlier hook with `continue_on_error: false` failed";
                    let first = finished_hook(effect, Some(error));
                    let others =
                        after[..same].iter().map(|it| finished_hook(it, Some(why.to_owned())));
                    std::iter::once(first).chain(others).collect()
                }
            };
            // All are reported as one outcome, so a crash cannot execute the skipped ones.
            self.report_outcome(HookOutcome::Finished(finished), attempts);
        }
    }

    fn report_outcome(&self, outcome: HookOutcome, attempts: i64) {
        // Sending fails once the worker has ended. The next worker then executes the hook again.
        drop(self.sender.send(HookWorkerMessage::Attempted { outcome, attempts }));
    }

    fn attempt(&self, effect: &EffectRecord) -> HookAttemptOutcome {
        // The config is read for each attempt, so a corrected hook is used at once.
        let config = self.shared.config();
        let (order, agent, hook) = match find_hook(effect, &config) {
            Ok(found) => found,
            // The hook no longer exists, so its `continue_on_error` is unknown.
            Err(error) => return HookAttemptOutcome::Failed { error, skips_rest: false },
        };
        let HookWorkerState { fleet, key, stop, .. } = &*self.shared;
        let around = HookExecutionContext { fleet, config: &config, agent, key, stop };
        // A panic must not end the thread before the outcome is reported.
        let done = catch_unwind(AssertUnwindSafe(|| execute_hook(hook, &order.context, &around)));
        fault::reach(FaultPoint::HookDone);
        // A hook waits for space as long as it takes.
        let is_last = effect.attempts + 1 >= ATTEMPTS_MAX && !is_disk_full(fleet.dir.root());
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

/// Returns true if a disk has no space for another block or another file.
fn is_disk_full(path: &Utf8Path) -> bool {
    rustix::fs::statvfs(path.as_std_path())
        // Some file systems have no limit of files, and report a total of 0.
        .is_ok_and(|stat| stat.f_bavail == 0 || (stat.f_files > 0 && stat.f_favail == 0))
}

/// Finds the hook of an effect in the current config, which may have changed.
fn find_hook<'c>(
    effect: &EffectRecord,
    config: &'c HookWorkerConfig,
) -> Result<(HookEffectPayload, &'c AgentConfig, &'c Hook), String> {
    let order: HookEffectPayload = serde_json::from_str(&effect.payload)
        .map_err(|_| "skipped: its record cannot be parsed".to_owned())?;
    let agent = config.loaded.agent(&order.agent);
    let gone = |what: &str| format!("skipped: the config has no such {what} any more");
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
    // A delay beyond the last timestamp is not waited for.
    let until = now.checked_add(wait).unwrap_or(now);
    tracing::info!(job = %effect.key, event = %effect.id, %until, "retrying a hook: {error}");
    HookOutcome::Postponed { id: effect.id.clone(), error, until }
}

/// Returns the delay before the next attempt. `before` is the number of attempts before the one
/// that just failed.
fn backoff(before: i64, asked: Option<Duration>) -> Duration {
    // The bound keeps the shift below from overflowing.
    let doublings = u32::try_from(before).unwrap_or(0).min(16);
    let own = BACKOFF_FIRST.saturating_mul(1 << doublings);
    own.max(asked.unwrap_or_default()).min(BACKOFF_MAX)
}

#[cfg(test)]
mod tests;
