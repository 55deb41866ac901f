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
use heeler_store::{EffectRecord, PooledReader, StoreReader};
use jiff::{SignedDuration, Timestamp};

use super::{EffectExecutor, ExecutorContext};
use crate::chat::{
    ChatPost, ChatPostAction, ChatPostOutcome, ChatPostResult, PostContext, execute_post,
    post_effect_kind,
};
use crate::dispatch_input::DispatchInput;
use crate::fault::{self, FaultPoint};
use crate::github::GithubConnections;
use crate::thread_pool::{PoolShutdown, ThreadPool};
use crate::work_limits::WorkSlots;

/// Number of posts that are read at once, oldest first.
const PAGE: usize = 256;

/// Delay after the posts could not be read.
const READ_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Delay between two pages.
const PAGE_DELAY: Duration = Duration::from_millis(100);

/// Delay until the result of a post is expected on record.
const RECORD_DELAY: Duration = Duration::from_millis(50);

/// Time by which the clocks of hosts may differ. A post that another host may have made is looked for.
const HOST_CLOCK_DIFFERENCE_MAX: SignedDuration = SignedDuration::from_mins(10);

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
    /// State of the posts that were attempted, by effect.
    attempted: HashMap<String, AttemptState>,
    /// Time of the next pass, if the last one left posts.
    pass_at: Option<Instant>,
    /// Time of the first pass. An earlier daemon may have made the posts that are older.
    first_pass_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy)]
enum AttemptState {
    /// It has ended, and its result is on the way to the database.
    Unrecorded,
    /// It is attempted again at this time.
    RetryAt(Instant),
    /// It cannot be read. A newer release may have recorded it; it stays for that release.
    Unreadable,
}

impl AttemptState {
    fn retry_at(self) -> Option<Instant> {
        match self {
            AttemptState::RetryAt(at) => Some(at),
            AttemptState::Unrecorded | AttemptState::Unreadable => None,
        }
    }
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
    fn start_pass(&self, shared: &Arc<ExecutorContext>, connections: &Arc<GithubConnections>) {
        let Some(claim) = self.passes.claim() else { return };
        let pass = PostPass {
            platform: self.platform,
            progress: Arc::clone(&self.progress),
            shared: Arc::clone(shared),
            connections: Arc::clone(connections),
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
        progress.attempted.retain(|_, state| state.retry_at().is_none_or(|at| at > now));
        let is_pass_due = progress.pass_at.take_if(|at| *at <= now).is_some();
        is_pass_due || progress.attempted.len() < before
    }

    fn retry_at(&self) -> Option<Instant> {
        let progress = lock(&self.progress);
        let attempts = progress.attempted.values().filter_map(|state| state.retry_at());
        attempts.chain(progress.pass_at).min()
    }
}

impl EffectExecutor {
    /// Makes the recorded posts.
    pub(crate) fn run_chat_posts(&self) {
        let connections = self.github.connections();
        self.chat.0.iter().for_each(|lane| lane.start_pass(&self.shared, &connections));
    }

    /// Makes the posts again that failed earlier and are due.
    pub(crate) fn retry_chat_posts(&self) {
        let now = Instant::now();
        let due = self.chat.0.iter().filter(|lane| lane.take_due(now));
        let connections = self.github.connections();
        due.for_each(|lane| lane.start_pass(&self.shared, &connections));
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
    connections: Arc<GithubConnections>,
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
        // Conversations with a post whose result is on the way to the database.
        let mut unrecorded: HashSet<String> = HashSet::new();
        for effect in pending {
            let attempted = lock(&self.progress).attempted.get(&effect.id).copied();
            match attempted {
                Some(AttemptState::Unrecorded) => {
                    unrecorded.insert(effect.key);
                    continue;
                }
                Some(AttemptState::Unreadable) => continue,
                Some(AttemptState::RetryAt(until)) if until > Instant::now() => {
                    waiting.insert(effect.key);
                    continue;
                }
                _ if waiting.contains(&effect.key) => continue,
                _ => {}
            }
            let Some(post) = self.read_post(&effect) else { continue };
            // It edits the message whose ID that result records.
            let is_early = matches!(post.action, ChatPostAction::Close { .. })
                && unrecorded.contains(&effect.key);
            if is_early {
                lock(&self.progress).pass_at.get_or_insert(Instant::now() + RECORD_DELAY);
                waiting.insert(effect.key);
            } else if self.attempt(&reader, &effect, post) {
                unrecorded.insert(effect.key);
            } else {
                waiting.insert(effect.key);
            }
        }
        if is_full_page {
            // Posts beyond the page have not been looked at.
            lock(&self.progress).pass_at.get_or_insert(Instant::now() + PAGE_DELAY);
        }
    }

    /// Reads the recorded posts, and forgets attempts whose results are recorded by now.
    fn load_posts(&self) -> Result<(PooledReader<'_>, Vec<EffectRecord>), String> {
        let reader = self.shared.readers.reader().map_err(|error| error_chain(&error))?;
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

    /// Returns the post of an effect if it can be read.
    fn read_post(&self, effect: &EffectRecord) -> Option<ChatPost> {
        serde_json::from_str(&effect.payload)
            .inspect_err(|error| {
                tracing::warn!(post = effect.id, %error, "a post cannot be read");
                let mut progress = lock(&self.progress);
                progress.attempted.insert(effect.id.clone(), AttemptState::Unreadable);
            })
            .ok()
    }

    /// Returns the time by which the clock of the daemon that recorded a post may differ from this one.
    fn clock_difference(&self) -> SignedDuration {
        match self.shared.fleet.dir.host() {
            Some(_) => HOST_CLOCK_DIFFERENCE_MAX,
            None => SignedDuration::ZERO,
        }
    }

    /// Makes a post; returns false if it is tried again later.
    fn attempt(&self, reader: &StoreReader, effect: &EffectRecord, post: ChatPost) -> bool {
        let now = self.shared.fleet.now;
        let first_pass_at = lock(&self.progress).first_pass_at;
        let is_own = first_pass_at.is_some_and(|at| {
            effect.created_at > at.checked_add(self.clock_difference()).unwrap_or(at)
        });
        let is_first = effect.attempts == 0 && is_own;
        let (setup, dir) = (self.shared.setup(), &self.shared.fleet.dir);
        let context =
            PostContext { setup: &setup, db: reader, connections: &self.connections, dir, now };
        let outcome = execute_post(&context, (effect, &post), is_first);
        fault::reach(FaultPoint::ChatPosted);
        let state = match &outcome {
            ChatPostOutcome::Postponed { until, .. } => {
                let delay = Duration::try_from(until.duration_since(now())).unwrap_or_default();
                AttemptState::RetryAt(Instant::now() + delay)
            }
            ChatPostOutcome::Posted(_) | ChatPostOutcome::Failed(_) => AttemptState::Unrecorded,
        };
        // Remembered first: the result may be recorded only after the next pass.
        lock(&self.progress).attempted.insert(effect.id.clone(), state);
        let result = ChatPostResult { effect: effect.id.clone(), post, outcome };
        self.shared.send_input(DispatchInput::ChatPostAttempted(Box::new(result)));
        matches!(state, AttemptState::Unrecorded)
    }
}

fn lock(progress: &Mutex<PostProgress>) -> MutexGuard<'_, PostProgress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}
