//! Execution of recorded posts, on one thread for each chat platform.
//!
//! The threads never write the database: results go to the dispatcher. A post whose result is not
//! recorded yet is remembered, so that it is not made again. Posts of one conversation are made in
//! order: those after a postponed one wait too. Start at [`EffectExecutor::run_chat_posts`].

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heeler_connect::ChatPlatform;
use heeler_model::error_chain;
use heeler_store::{EffectRecord, StoreReader};
use jiff::Timestamp;

use super::{EffectExecutor, ExecutorContext};
use crate::chat::{ChatPost, ChatPostOutcome, ChatPostResult, execute_post, post_effect_kind};
use crate::dispatch_input::DispatchInput;
use crate::fault::{self, FaultPoint};
use crate::thread_pool::{PoolShutdown, ThreadPool};
use crate::work_limits::WorkSlots;

/// Number of posts that are read at once, oldest first.
const PAGE: usize = 256;

/// Delay after the posts could not be read.
const READ_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Threads and progress of the posts.
#[derive(Debug)]
pub(super) struct ChatLanes(Vec<ChatLane>);

#[derive(Debug)]
struct ChatLane {
    platform: ChatPlatform,
    pool: ThreadPool,
    /// A pass reads the posts when it starts, so one that waits is enough.
    passes: WorkSlots,
    progress: Arc<Mutex<PostProgress>>,
}

/// Attempts that are not recorded yet, or that are repeated later.
#[derive(Debug, Default)]
struct PostProgress {
    /// Time of the next attempt, by effect; `None` if the post has ended.
    attempted: HashMap<String, Option<Instant>>,
    /// Time of the next pass, if the last one left posts.
    pass_at: Option<Instant>,
    /// Time of the first pass. An earlier daemon may have made the posts that are older.
    first_pass_at: Option<Timestamp>,
}

impl ChatLanes {
    pub(super) fn new() -> io::Result<ChatLanes> {
        let lane = |platform: &ChatPlatform| {
            // A call may take a minute. The next daemon repeats it.
            let pool = ThreadPool::new("heeler-chat", 1, PoolShutdown::Abandon)?;
            let (passes, progress) = (WorkSlots::new(1), Arc::default());
            Ok(ChatLane { platform: *platform, pool, passes, progress })
        };
        Ok(ChatLanes(ChatPlatform::ALL.iter().map(lane).collect::<io::Result<_>>()?))
    }
}

impl ChatLane {
    fn start_pass(&self, shared: &Arc<ExecutorContext>) {
        let Some(claim) = self.passes.claim() else { return };
        let pass = PostPass {
            platform: self.platform,
            progress: Arc::clone(&self.progress),
            shared: Arc::clone(shared),
        };
        self.pool.submit(move || {
            // A post that is committed from here on needs a pass of its own.
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
    /// Makes the recorded posts.
    pub(crate) fn run_chat_posts(&self) {
        self.chat.0.iter().for_each(|lane| lane.start_pass(&self.shared));
    }

    /// Makes the posts again that failed earlier and are due.
    pub(crate) fn retry_chat_posts(&self) {
        let now = Instant::now();
        let due = self.chat.0.iter().filter(|lane| lane.take_due(now));
        due.for_each(|lane| lane.start_pass(&self.shared));
    }

    /// Returns the time of the next attempt at a post that failed.
    pub(crate) fn chat_retry_at(&self) -> Option<Instant> {
        self.chat.0.iter().filter_map(ChatLane::retry_at).min()
    }
}

/// One look at the recorded posts of a platform.
struct PostPass {
    platform: ChatPlatform,
    progress: Arc<Mutex<PostProgress>>,
    shared: Arc<ExecutorContext>,
}

impl PostPass {
    fn run(&self) {
        let (reader, pending) = match self.load_posts() {
            Ok(loaded) => loaded,
            Err(reason) => {
                tracing::warn!(reason, "cannot read the posts to chats");
                lock(&self.progress).pass_at = Some(Instant::now() + READ_RETRY_DELAY);
                return;
            }
        };
        let is_full_page = pending.len() == PAGE;
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
            if !self.attempt(&reader, &effect) {
                waiting.insert(effect.key);
            }
        }
        if is_full_page {
            // Posts beyond the page have not been looked at.
            lock(&self.progress).pass_at.get_or_insert(Instant::now() + Duration::from_millis(100));
        }
    }

    /// Reads the recorded posts, and forgets attempts whose results are recorded by now.
    fn load_posts(&self) -> Result<(StoreReader, Vec<EffectRecord>), String> {
        let reader =
            StoreReader::open(&self.shared.fleet.dir).map_err(|error| error_chain(&error))?;
        let pending = reader.pending_effects_of_kind(post_effect_kind(self.platform), PAGE);
        let pending = pending.map_err(|error| error_chain(&error))?;
        let mut progress = lock(&self.progress);
        progress.pass_at = None;
        progress.first_pass_at.get_or_insert_with(self.shared.fleet.now);
        // On a full page a missing post may just be on a later page.
        if pending.len() < PAGE {
            let ids: HashSet<&str> = pending.iter().map(|it| it.id.as_str()).collect();
            progress.attempted.retain(|id, _| ids.contains(id.as_str()));
        }
        drop(progress);
        Ok((reader, pending))
    }

    /// Makes a post; returns false if it is tried again later.
    fn attempt(&self, reader: &StoreReader, effect: &EffectRecord) -> bool {
        let now = self.shared.fleet.now;
        let post = match serde_json::from_str::<ChatPost>(&effect.payload) {
            Ok(post) => post,
            // A newer release may have recorded it; it stays for that release.
            Err(error) => {
                tracing::warn!(post = effect.id, %error, "a post cannot be read");
                lock(&self.progress).attempted.insert(effect.id.clone(), None);
                return true;
            }
        };
        let first_pass_at = lock(&self.progress).first_pass_at;
        let is_own = first_pass_at.is_some_and(|at| effect.created_at > at);
        let is_first = effect.attempts == 0 && is_own;
        let setup = self.shared.setup();
        let outcome = execute_post(&setup, reader, (effect, &post), is_first, now);
        fault::reach(FaultPoint::ChatPosted);
        let next = match &outcome {
            ChatPostOutcome::Postponed { until, .. } => {
                let delay = Duration::try_from(until.duration_since(now())).unwrap_or_default();
                Some(Instant::now() + delay)
            }
            ChatPostOutcome::Posted(_) | ChatPostOutcome::Failed(_) => None,
        };
        // Remembered first: the result may be recorded only after the next pass.
        lock(&self.progress).attempted.insert(effect.id.clone(), next);
        let result = ChatPostResult { effect: effect.id.clone(), post, outcome };
        self.shared.send_input(DispatchInput::ChatPostAttempted(Box::new(result)));
        next.is_none()
    }
}

fn lock(progress: &Mutex<PostProgress>) -> MutexGuard<'_, PostProgress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}
