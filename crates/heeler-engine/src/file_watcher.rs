//! Watches the files of all `watch` schedules, in one thread.
//!
//! Each folder that may hold a wanted file has a watch of its own, made before the folder is listed, so
//! nothing that happens in a new folder is missed, and folders that are ignored cost nothing. What is
//! seen is kept in an [`dispatcher`](Inbox) of bounded size; a full one, like an overflow of the kernel's
//! queue, counts as a change of everything. Start at [`FileWatcher`].
//!
//! Nothing is decided here but that files changed: whoever is told starts the job.

mod folders;
mod state;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::AgentName;
use heeler_model::config::{AgentConfig, GlobList, ScheduleConfig, ScheduleTrigger};
use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind};

pub use folders::WATCHED_FOLDERS_MAX;
pub use state::CHANGES_REPORTED_MAX;

use folders::WatchedFolders;
use state::WatchState;

/// The most paths that wait to be looked at; beyond it everything counts as changed.
const INBOX_MAX: usize = 4096;

/// The files that one schedule watches.
#[derive(Debug, Clone, PartialEq)]
pub struct WatchSpec {
    /// The agent.
    pub agent: AgentName,
    /// The schedule.
    pub schedule: String,
    /// The folder that paths are relative to.
    pub root: Utf8PathBuf,
    /// Which files.
    pub paths: GlobList,
    /// Which of them do not count.
    pub ignore: GlobList,
    /// How long they must be at rest.
    pub debounce: Duration,
}

impl WatchSpec {
    /// Returns what a schedule watches, if it does.
    pub fn of(agent: &AgentConfig, schedule: &ScheduleConfig) -> Option<WatchSpec> {
        let ScheduleTrigger::Watch { paths, ignore, debounce } = &schedule.trigger else {
            return None;
        };
        Some(WatchSpec {
            agent: agent.name.clone(),
            schedule: schedule.name.clone(),
            root: agent.working_directory.clone(),
            paths: paths.clone(),
            ignore: ignore.clone(),
            debounce: debounce.get(),
        })
    }

    fn id(&self) -> WatchSpecId {
        (self.agent.clone(), self.schedule.clone())
    }
}

/// Names a schedule: its agent and its own name.
type WatchSpecId = (AgentName, String);

/// What is told of a schedule that watches files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// Its files changed and are at rest.
    Changed {
        /// The agent.
        agent: AgentName,
        /// The schedule.
        schedule: String,
        /// What changed, relative to the working directory, at most [`CHANGES_REPORTED_MAX`]; none if that
        /// is not known.
        changed: Vec<Utf8PathBuf>,
    },
    /// Some of its files cannot be watched. It is tried again by itself, and told once.
    Trouble {
        /// The agent.
        agent: AgentName,
        /// The schedule.
        schedule: String,
        /// Why, and what to do.
        message: String,
    },
}

/// The thread that watches. It ends when this is dropped.
pub struct FileWatcher {
    inbox: Arc<WatchQueue>,
    thread: Option<JoinHandle<()>>,
}

impl FileWatcher {
    /// Starts the thread; it watches nothing yet, and never what is in the state directory.
    ///
    /// `tell` is called in that thread and may wait: what happens meanwhile is kept.
    pub fn start(state_dir: &Utf8Path, tell: Box<dyn Fn(WatchEvent) + Send>) -> FileWatcher {
        FileWatcher::with_limit(state_dir, WATCHED_FOLDERS_MAX, tell)
    }

    fn with_limit(
        state_dir: &Utf8Path,
        folders_max: usize,
        tell: Box<dyn Fn(WatchEvent) + Send>,
    ) -> FileWatcher {
        let inbox = Arc::new(WatchQueue::default());
        let folders = WatchedFolders::new(state_dir, folders_max, inbox.clone());
        let board = WatchState::new(folders, tell);
        let work = inbox.clone();
        let run = move || run_loop(&work, board);
        let thread = std::thread::Builder::new().name("watching".to_owned()).spawn(run);
        if let Err(error) = &thread {
            tracing::error!("cannot start the thread that watches files: {error}");
        }
        FileWatcher { inbox, thread: thread.ok() }
    }

    /// Replaces what is watched. A schedule that stays as it was keeps what it has seen.
    pub fn set_specs(&self, specs: &[WatchSpec]) {
        self.inbox.update(|mail| mail.specs = Some(specs.to_vec()));
    }

    /// Drops what changes for a schedule, and what it had seen, until [`FileWatcher::resume_job`]: a job of it
    /// runs, and must not start itself again by what it writes. What others change meanwhile is
    /// dropped too: who did it cannot be told.
    pub fn pause(&self, agent: &AgentName, schedule: &str) {
        self.inbox.update(|mail| {
            mail.paused.insert((agent.clone(), schedule.to_owned()));
        });
    }

    /// Watches for a schedule again, from the time on that its `debounce` has passed: what the job
    /// wrote last may be seen that late.
    pub fn resume(&self, agent: &AgentName, schedule: &str) {
        self.inbox.update(|mail| {
            let id = (agent.clone(), schedule.to_owned());
            if mail.paused.remove(&id) {
                mail.resumed_specs.push((id, Instant::now()));
            }
        });
    }
}

impl Drop for FileWatcher {
    fn drop(&mut self) {
        self.inbox.update(|mail| mail.stop = true);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

fn run_loop(inbox: &WatchQueue, mut board: WatchState) {
    let mut next = None;
    while let Some(mail) = inbox.wait_for_batch(next) {
        #[cfg(test)]
        let settled = mail.settled.clone();
        board.apply_batch(mail);
        next = board.report_due(Instant::now());
        #[cfg(test)]
        settled.iter().for_each(|waiting| waiting.send(()).unwrap_or_default());
    }
}

/// What waits for the thread.
#[derive(Default)]
struct WatchBatch {
    specs: Option<Vec<WatchSpec>>,
    /// Schedules whose changes are dropped: a state, kept from one mail to the next.
    paused: HashSet<WatchSpecId>,
    resumed_specs: Vec<(WatchSpecId, Instant)>,
    changes: Vec<PathChange>,
    /// Whether more happened than was kept.
    overflowed: bool,
    /// Trouble that the system reported by itself.
    trouble: Option<String>,
    stop: bool,
    /// Whether there is anything new.
    is_new: bool,
    /// Those who wait until all of this was taken in.
    #[cfg(test)]
    settled: Vec<std::sync::mpsc::Sender<()>>,
}

/// A change of one path.
struct PathChange {
    path: Utf8PathBuf,
    /// Whether the path is gone from where it was.
    is_removed: bool,
    at: Instant,
}

/// Where the kernel's events and our own wishes meet. Nobody who puts something in ever waits for the
/// thread that takes it out.
#[derive(Default)]
struct WatchQueue {
    batch: Mutex<WatchBatch>,
    arrived: Condvar,
}

impl WatchQueue {
    fn lock(&self) -> MutexGuard<'_, WatchBatch> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut WatchBatch)) {
        let mut mail = self.lock();
        change(&mut mail);
        mail.is_new = true;
        self.arrived.notify_all();
    }

    /// Takes an event of the kernel in.
    fn push_event(&self, event: notify::Result<notify::Event>) {
        match event {
            Ok(event) if event.need_rescan() => self.update(|mail| mail.overflowed = true),
            Ok(event) => {
                let Some(gone) = classify_change(event.kind) else { return };
                self.update(|mail| event.paths.iter().for_each(|path| mail.push_path(path, gone)));
            }
            Err(error) => {
                self.update(|mail| mail.trouble = Some(folders::watch_error_text(&error)))
            }
        }
    }

    /// Waits for something new, or until the time has come. `None` ends the thread.
    fn wait_for_batch(&self, until: Option<Instant>) -> Option<WatchBatch> {
        let mut mail = self.lock();
        while !mail.is_new {
            mail = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => self.arrived.wait(mail).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => break,
                Some(left) => {
                    let waited = self.arrived.wait_timeout(mail, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        let paused = mail.paused.clone();
        let taken = std::mem::replace(&mut *mail, WatchBatch { paused, ..WatchBatch::default() });
        (!taken.stop).then_some(taken)
    }
}

impl WatchBatch {
    fn push_path(&mut self, path: &std::path::Path, gone: bool) {
        if self.changes.len() >= INBOX_MAX {
            self.overflowed = true;
            return;
        }
        let path = Utf8PathBuf::from(path.to_string_lossy().into_owned());
        let at = Instant::now();
        match self.changes.last_mut() {
            Some(last) if last.path == path && last.is_removed == gone => last.at = at,
            _ => self.changes.push(PathChange { path, is_removed: gone, at }),
        }
    }
}

/// Says whether an event is a change, and then whether something is gone by it. That a file was read,
/// or has other permissions, is no change of it.
fn classify_change(kind: EventKind) -> Option<bool> {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => Some(false),
        EventKind::Access(_) | EventKind::Modify(ModifyKind::Metadata(_)) => None,
        EventKind::Modify(ModifyKind::Name(notify::event::RenameMode::From)) => Some(true),
        // Told by `Context` and `CursorMotion` already.
        EventKind::Modify(ModifyKind::Name(notify::event::RenameMode::Both)) => None,
        EventKind::Remove(_) => Some(true),
        EventKind::Create(_) | EventKind::Modify(_) => Some(false),
        EventKind::Any | EventKind::Other => Some(false),
    }
}
