//! Work that the dispatcher must return to later.
//!
//! Start at [`DeferredWork`].

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use heeler_model::RunId;
use heeler_model::config_change::{ConfigContent, HeldConfigChange};
use jiff::Timestamp;

use super::event::DispatchEvent;
use super::watch_registry::WatchRegistry;
use crate::chat::ChatLinks;
use crate::command::{ReplyCallback, StopMode};
use crate::config_files::ConfigFileStamps;

/// Work that the dispatcher must return to later.
#[derive(Default)]
pub(crate) struct DeferredWork {
    /// Time at which the current turn of the loop began.
    pub(super) turn_began_at: Option<Timestamp>,
    pub(super) stop: Option<StopProgress>,
    /// The last failed commit, until one succeeds.
    pub(super) failed_commit: Option<FailedCommit>,
    /// Runs that could not be settled, with the time of the next attempt.
    pub(super) unsettled: Vec<(Instant, RunId)>,
    pub(super) faults: HashMap<RunId, String>,
    /// Set while there is no space for the files of new runs.
    pub(super) full_disk: Option<FullDisk>,
    /// Next time to move files of old jobs to the trash.
    pub(super) retention_at: Option<Instant>,
    /// The last schedule that had its old due times pruned.
    pub(super) pruned_schedule: Option<(String, String)>,
    /// Next time to search for expired sessions.
    pub(super) expire_at: Option<Instant>,
    /// Next check whether agents can still change the config files.
    pub(super) config_check: Option<ConfigCheck>,
    /// The last comparison of the config files.
    pub(super) held_change: Option<HeldChangeCache>,
    /// Connections to chat platforms.
    pub(super) chat_links: ChatLinks,
    /// Messages of chats that are being sent to their runs, by the IDs of their effects.
    pub(super) said_messages: HashSet<String>,
    /// True for platform and account if the last notice says that the chat platform is down.
    pub(super) links_down: HashMap<(String, String), bool>,
    /// Dropped after the dispatcher's input channel: once that is closed, the watcher cannot block
    /// on it.
    pub(super) watches: WatchRegistry,
}

/// Time of the next check whether agents can still change the config files.
pub(super) struct ConfigCheck {
    pub(super) at: Instant,
    pub(super) delay: Duration,
}

/// The last comparison of the config files with the loaded ones. It need not be repeated while the
/// files are the same: each status report asks for it, and an agent can make files large.
pub(super) struct HeldChangeCache {
    /// Hash of the loaded files.
    pub(super) baseline: String,
    /// State of the loaded files and of those in `listed`, before they were read.
    pub(super) stamps: ConfigFileStamps,
    /// The files on disk.
    pub(super) listed: ConfigContent,
    pub(super) change: Option<HeldConfigChange>,
}

/// Progress of a stop command.
pub(super) struct StopProgress {
    pub(super) mode: StopMode,
    pub(super) deadline: Option<Instant>,
    pub(super) has_cancelled_jobs: bool,
    /// Number of jobs that were cancelled.
    pub(super) cancelled_count: usize,
    pub(super) replies: Vec<ReplyCallback>,
}

/// State of a disk without space for the files of new runs. Changes of existing files may succeed.
pub(super) struct FullDisk {
    /// Time of the next check.
    pub(super) check_at: Instant,
    pub(super) why: String,
}

/// A commit that failed, with the work to repeat.
pub(super) struct FailedCommit {
    /// Time of the next attempt.
    pub(super) retry_at: Instant,
    /// The cause, if it is known.
    pub(super) why: Option<String>,
    /// Runs that must be settled again.
    pub(super) runs: Vec<RunId>,
    /// Events that their senders will not repeat.
    pub(super) events: Vec<DispatchEvent>,
}
