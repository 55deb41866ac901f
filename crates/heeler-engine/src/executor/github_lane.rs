//! Execution of recorded tasks on GitHub, on one thread for searches and one for posts.
//!
//! The threads never write the database: results go to the dispatcher. A task whose result is not
//! recorded yet is remembered, so that it is not executed again. Start at
//! [`EffectExecutor::run_github_tasks`].

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heeler_model::error_chain;
use heeler_store::EffectRecord;

use super::delivery_fetch::DeliveryFetch;
use super::{EffectExecutor, ExecutorContext};
use crate::dispatch_input::DispatchInput;
use crate::fault::{self, FaultPoint};
use crate::github::{
    GithubConnections, GithubLane, GithubTask, GithubTaskOutcome, GithubTaskResult, execute_task,
};
use crate::thread_pool::{PoolShutdown, ThreadPool};
use crate::work_limits::WorkSlots;

/// Number of tasks that are read at once, oldest first.
const PAGE: usize = 256;

/// Delay after the tasks could not be read.
const READ_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Threads and progress of the tasks on GitHub.
#[derive(Debug)]
pub(super) struct GithubLanes {
    searches: LaneThread,
    posts: LaneThread,
    connections: Arc<GithubConnections>,
    deliveries: Arc<DeliveryFetch>,
}

#[derive(Debug)]
struct LaneThread {
    lane: GithubLane,
    pool: ThreadPool,
    /// A pass reads the tasks when it starts, so one that waits is enough.
    passes: WorkSlots,
    progress: Arc<Mutex<LaneProgress>>,
}

/// Attempts that are not recorded yet, or that are repeated later.
#[derive(Debug, Default)]
struct LaneProgress {
    /// Time of the next attempt, by effect; `None` if the task has ended.
    attempted: HashMap<String, Option<Instant>>,
    /// Time of the next pass, if the last one could not read the tasks.
    pass_at: Option<Instant>,
}

impl GithubLanes {
    pub(super) fn new() -> io::Result<GithubLanes> {
        Ok(GithubLanes {
            searches: LaneThread::new(GithubLane::Search, "heeler-search")?,
            posts: LaneThread::new(GithubLane::Post, "heeler-post")?,
            connections: Arc::default(),
            deliveries: Arc::default(),
        })
    }

    pub(super) fn connections(&self) -> Arc<GithubConnections> {
        Arc::clone(&self.connections)
    }

    pub(super) fn delivery_fetch(&self) -> Arc<DeliveryFetch> {
        Arc::clone(&self.deliveries)
    }

    /// Executes work on the thread of searches.
    pub(super) fn submit_search(&self, work: impl FnOnce() + Send + 'static) {
        self.searches.pool.submit(work);
    }

    fn all(&self) -> [&LaneThread; 2] {
        [&self.searches, &self.posts]
    }
}

impl LaneThread {
    fn new(lane: GithubLane, name: &'static str) -> io::Result<LaneThread> {
        // A call may take minutes. The next daemon repeats it.
        let pool = ThreadPool::new(name, 1, PoolShutdown::Abandon)?;
        Ok(LaneThread { lane, pool, passes: WorkSlots::new(1), progress: Arc::default() })
    }

    fn start_pass(&self, shared: &Arc<ExecutorContext>, connections: &Arc<GithubConnections>) {
        let Some(claim) = self.passes.claim() else { return };
        let pass = LanePass {
            lane: self.lane,
            progress: Arc::clone(&self.progress),
            shared: Arc::clone(shared),
            connections: Arc::clone(connections),
        };
        self.pool.submit(move || {
            // A task that is committed from here on needs a pass of its own.
            drop(claim);
            pass.run();
        });
    }

    /// Forgets the attempts that are due again, so that the next pass repeats them. Returns true if
    /// there were any.
    fn take_due(&self, now: Instant) -> bool {
        let mut progress = lock(&self.progress);
        let before = progress.attempted.len();
        progress.attempted.retain(|_, next| next.is_none_or(|at| at > now));
        let is_pass_due = progress.pass_at.take_if(|at| *at <= now).is_some();
        is_pass_due || progress.attempted.len() < before
    }

    fn retry_at(&self) -> Option<Instant> {
        let progress = lock(&self.progress);
        let attempts = progress.attempted.values().flatten().copied();
        attempts.chain(progress.pass_at).min()
    }
}

impl EffectExecutor {
    /// Executes the recorded tasks.
    pub(crate) fn run_github_tasks(&self) {
        for lane in self.github.all() {
            lane.start_pass(&self.shared, &self.github.connections);
        }
    }

    /// Executes the tasks again that failed earlier and are due.
    pub(crate) fn retry_github_tasks(&self) {
        let now = Instant::now();
        if self.github.deliveries.take_due(now) {
            self.fetch_missed_deliveries();
        }
        for lane in self.github.all() {
            // Taken out first: the dispatcher would not sleep while a due attempt waits for its pass.
            if lane.take_due(now) {
                lane.start_pass(&self.shared, &self.github.connections);
            }
        }
    }

    /// Returns the time of the next attempt at a task that failed.
    pub(crate) fn github_retry_at(&self) -> Option<Instant> {
        let tasks = self.github.all().into_iter().filter_map(LaneThread::retry_at);
        tasks.chain(self.github.deliveries.retry_at()).min()
    }
}

/// One look at the recorded tasks of a lane.
struct LanePass {
    lane: GithubLane,
    progress: Arc<Mutex<LaneProgress>>,
    shared: Arc<ExecutorContext>,
    connections: Arc<GithubConnections>,
}

impl LanePass {
    fn run(&self) {
        let pending = match self.load_tasks() {
            Ok(pending) => pending,
            Err(reason) => {
                tracing::warn!(reason, "cannot read the tasks on GitHub");
                lock(&self.progress).pass_at = Some(Instant::now() + READ_RETRY_DELAY);
                return;
            }
        };
        // Tasks of one object are executed in order, so those after a postponed one wait too.
        let mut waiting: HashSet<String> = HashSet::new();
        for effect in pending {
            let attempted = lock(&self.progress).attempted.get(&effect.id).copied();
            match attempted {
                // Its result is on the way to the database.
                Some(None) => continue,
                Some(Some(until)) if until > Instant::now() => {
                    waiting.insert(effect.key);
                    continue;
                }
                _ if waiting.contains(&effect.key) => continue,
                _ => {}
            }
            if self.attempt(&effect) == AttemptEnd::Postponed {
                waiting.insert(effect.key);
            }
        }
    }

    /// Reads the recorded tasks, and forgets attempts whose results are recorded by now.
    fn load_tasks(&self) -> Result<Vec<EffectRecord>, String> {
        let reader = self.shared.readers.reader().map_err(|error| error_chain(&error))?;
        let pending = reader.pending_effects_of_kind(self.lane.effect_kind(), PAGE);
        let pending = pending.map_err(|error| error_chain(&error))?;
        let mut progress = lock(&self.progress);
        progress.pass_at = None;
        // On a full page a missing task may just be on a later page.
        if pending.len() < PAGE {
            let ids: HashSet<&str> = pending.iter().map(|it| it.id.as_str()).collect();
            progress.attempted.retain(|id, _| ids.contains(id.as_str()));
        }
        Ok(pending)
    }

    fn attempt(&self, effect: &EffectRecord) -> AttemptEnd {
        let now = self.shared.fleet.now;
        let (task, outcome) = match serde_json::from_str::<GithubTask>(&effect.payload) {
            Ok(task) => {
                let setup = self.shared.setup();
                let connection = self.connections.get(&setup, now);
                let connection = connection.as_deref().map_err(String::as_str);
                let outcome = execute_task(&setup, connection, effect, &task, now());
                (task, outcome)
            }
            // A newer release may have recorded it; it stays for that release.
            Err(error) => {
                tracing::warn!(task = effect.id, %error, "a task on GitHub cannot be read");
                lock(&self.progress).attempted.insert(effect.id.clone(), None);
                return AttemptEnd::Ended;
            }
        };
        fault::reach(FaultPoint::GithubActed);
        let (next, end) = match &outcome {
            GithubTaskOutcome::Postponed { until, .. } => {
                let delay = Duration::try_from(until.duration_since(now())).unwrap_or_default();
                (Some(Instant::now() + delay), AttemptEnd::Postponed)
            }
            _ => (None, AttemptEnd::Ended),
        };
        // Remembered first: the result may be recorded only after the next pass.
        lock(&self.progress).attempted.insert(effect.id.clone(), next);
        let result = GithubTaskResult { effect: effect.id.clone(), task, outcome };
        self.shared.send_input(DispatchInput::GithubTaskAttempted(Box::new(result)));
        end
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AttemptEnd {
    Ended,
    Postponed,
}

fn lock(progress: &Mutex<LaneProgress>) -> MutexGuard<'_, LaneProgress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}
