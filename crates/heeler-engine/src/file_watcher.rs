//! Watches the files of all `watch` schedules, in one thread.
//!
//! Each directory that may hold a matching file has its own watch, created before the directory is
//! listed. So no change in a new directory is missed, and ignored directories cost nothing. Events
//! are kept in a bounded [`WatchQueue`]; a full queue, like an overflow of the kernel's queue,
//! counts as a change of everything. This module only reports changes: the dispatcher creates the
//! job. Start at [`FileWatcher`].

mod folders;
mod state;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_config::{AgentConfig, GlobList, ScheduleConfig, ScheduleTrigger};
use heeler_model::AgentName;
use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind};

pub use folders::WATCHED_FOLDERS_MAX;
pub use state::CHANGES_REPORTED_MAX;

use folders::WatchedFolders;
use state::WatchState;

/// Maximum number of queued paths. Beyond it, everything counts as changed.
const INBOX_MAX: usize = 4096;

/// Files that one schedule watches.
#[derive(Debug, Clone, PartialEq)]
pub struct WatchSpec {
    pub agent: AgentName,
    pub schedule: String,
    /// Directory to which paths are relative.
    pub root: Utf8PathBuf,
    /// Patterns of files to watch.
    pub paths: GlobList,
    /// Patterns of files to ignore.
    pub ignore: GlobList,
    /// Time that files must stay unchanged before a change is reported.
    pub debounce: Duration,
}

impl WatchSpec {
    /// Returns the watch of a schedule of type `watch`; `None` for other types.
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

/// Identifies a schedule: agent and schedule name.
type WatchSpecId = (AgentName, String);

/// Event about a schedule's watched files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// Files changed and have stayed unchanged since then for the debounce time.
    Changed {
        agent: AgentName,
        schedule: String,
        /// Changed paths, relative to the working directory, at most [`CHANGES_REPORTED_MAX`].
        /// Empty if they are not known.
        changed: Vec<Utf8PathBuf>,
    },
    /// Some files cannot be watched. The watch is retried automatically and the problem reported
    /// once.
    Trouble {
        agent: AgentName,
        schedule: String,
        /// The problem and its remedy.
        message: String,
    },
}

/// The watching thread. It ends when this is dropped.
pub struct FileWatcher {
    inbox: Arc<WatchQueue>,
    thread: Option<JoinHandle<()>>,
}

impl FileWatcher {
    /// Starts the thread. It watches nothing at first, and never anything in the state directory.
    ///
    /// `tell` is called on that thread and may block; events are kept in the meantime.
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
        // The daemon works without watches, so this is no reason to end it.
        if let Err(error) = &thread {
            tracing::error!("cannot start the thread that watches files: {error}");
        }
        FileWatcher { inbox, thread: thread.ok() }
    }

    /// Replaces the watched files. A schedule that did not change keeps its pending changes.
    pub fn set_specs(&self, specs: &[WatchSpec]) {
        self.inbox.update(|mail| mail.specs = Some(specs.to_vec()));
    }

    /// Discards the pending and further changes of a schedule until [`FileWatcher::resume`]: a job
    /// of the schedule runs, and its own writes must not trigger it again. Changes by others are
    /// discarded too, because their author cannot be determined.
    pub fn pause(&self, agent: &AgentName, schedule: &str) {
        self.inbox.update(|mail| {
            mail.paused.insert((agent.clone(), schedule.to_owned()));
        });
    }

    /// Watches for a schedule again after its debounce time: the job's last writes may be reported
    /// that late.
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

/// Work that waits for the thread.
#[derive(Default)]
struct WatchBatch {
    specs: Option<Vec<WatchSpec>>,
    /// Schedules with discarded changes; this set persists between batches.
    paused: HashSet<WatchSpecId>,
    resumed_specs: Vec<(WatchSpecId, Instant)>,
    changes: Vec<PathChange>,
    /// True if events were lost.
    overflowed: bool,
    /// Problem that the system reported.
    trouble: Option<String>,
    stop: bool,
    /// True if there is anything new.
    is_new: bool,
    /// Senders to notify after the whole batch is applied.
    #[cfg(test)]
    settled: Vec<std::sync::mpsc::Sender<()>>,
}

/// A change of one path.
struct PathChange {
    path: Utf8PathBuf,
    /// True if nothing is at the path any more.
    is_removed: bool,
    at: Instant,
}

/// Queue of kernel events and requests. Producers never wait for the consuming thread.
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

    /// Queues a kernel event.
    fn push_event(&self, event: notify::Result<notify::Event>) {
        match event {
            // The kernel lost events, so every file may have changed.
            Ok(event) if event.need_rescan() => self.update(|mail| mail.overflowed = true),
            Ok(event) => {
                let Some(gone) = classify_change(event.kind) else { return };
                self.update(|mail| event.paths.iter().for_each(|path| mail.push_path(path, gone)));
            }
            Err(error) => {
                self.update(|mail| mail.trouble = Some(folders::watch_error_text(&error)));
            }
        }
    }

    /// Waits for a batch, or until the given time. `None` ends the thread.
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
            // Writing a file gives many events in a row for the same path.
            Some(last) if last.path == path && last.is_removed == gone => last.at = at,
            _ => self.changes.push(PathChange { path, is_removed: gone, at }),
        }
    }
}

/// Returns `None` for events that are no change, else whether the path was removed. Reading a file
/// or changing its permissions is no change.
fn classify_change(kind: EventKind) -> Option<bool> {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => Some(false),
        EventKind::Access(_) | EventKind::Modify(ModifyKind::Metadata(_)) => None,
        EventKind::Modify(ModifyKind::Name(notify::event::RenameMode::From)) => Some(true),
        // Already reported by the separate `From` and `To` events.
        EventKind::Modify(ModifyKind::Name(notify::event::RenameMode::Both)) => None,
        EventKind::Remove(_) => Some(true),
        EventKind::Create(_) | EventKind::Modify(_) => Some(false),
        EventKind::Any | EventKind::Other => Some(false),
    }
}
