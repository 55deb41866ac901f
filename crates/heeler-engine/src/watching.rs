//! Watches the files of all `watch` schedules, in one thread.
//!
//! Each folder that may hold a wanted file has a watch of its own, made before the folder is listed, so
//! nothing that happens in a new folder is missed, and folders that are ignored cost nothing. What is
//! seen is kept in an [`inbox`](Inbox) of bounded size; a full one, like an overflow of the kernel's
//! queue, counts as a change of everything. Start at [`Watching`].
//!
//! Nothing is decided here but that files changed: whoever is told starts the job.

mod board;
mod folders;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_model::AgentName;
use heeler_model::config::{Agent, Globs, Schedule, Trigger};
use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind};

pub use board::CHANGES_TOLD_MAX;
pub use folders::WATCHED_FOLDERS_MAX;

use board::Board;
use folders::Folders;

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
    pub paths: Globs,
    /// Which of them do not count.
    pub ignore: Globs,
    /// How long they must be at rest.
    pub debounce: Duration,
}

impl WatchSpec {
    /// Returns what a schedule watches, if it does.
    pub fn of(agent: &Agent, schedule: &Schedule) -> Option<WatchSpec> {
        let Trigger::Watch { paths, ignore, debounce } = &schedule.trigger else { return None };
        Some(WatchSpec {
            agent: agent.name.clone(),
            schedule: schedule.name.clone(),
            root: agent.working_directory.clone(),
            paths: paths.clone(),
            ignore: ignore.clone(),
            debounce: debounce.get(),
        })
    }

    fn id(&self) -> SpecId {
        (self.agent.clone(), self.schedule.clone())
    }
}

/// Names a schedule: its agent and its own name.
type SpecId = (AgentName, String);

/// What is told of a schedule that watches files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watched {
    /// Its files changed and are at rest.
    Changed {
        /// The agent.
        agent: AgentName,
        /// The schedule.
        schedule: String,
        /// What changed, relative to the working directory, at most [`CHANGES_TOLD_MAX`]; none if that
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
pub struct Watching {
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
}

impl Watching {
    /// Starts the thread; it watches nothing yet, and never what is in the state directory.
    ///
    /// `tell` is called in that thread and may wait: what happens meanwhile is kept.
    pub fn start(state_dir: &Utf8Path, tell: Box<dyn Fn(Watched) + Send>) -> Watching {
        Watching::with_limit(state_dir, WATCHED_FOLDERS_MAX, tell)
    }

    fn with_limit(
        state_dir: &Utf8Path,
        folders_max: usize,
        tell: Box<dyn Fn(Watched) + Send>,
    ) -> Watching {
        let inbox = Arc::new(Inbox::default());
        let folders = Folders::new(state_dir, folders_max, inbox.clone());
        let board = Board::new(folders, tell);
        let work = inbox.clone();
        let run = move || run(&work, board);
        let thread = std::thread::Builder::new().name("watching".to_owned()).spawn(run);
        if let Err(error) = &thread {
            tracing::error!("cannot start the thread that watches files: {error}");
        }
        Watching { inbox, thread: thread.ok() }
    }

    /// Replaces what is watched. A schedule that stays as it was keeps what it has seen.
    pub fn set(&self, specs: &[WatchSpec]) {
        self.inbox.put(|mail| mail.specs = Some(specs.to_vec()));
    }

    /// Drops what changes for a schedule, and what it had seen, until [`Watching::resume`]: a job of it
    /// runs, and must not start itself again by what it writes. What others change meanwhile is
    /// dropped too: who did it cannot be told.
    pub fn pause(&self, agent: &AgentName, schedule: &str) {
        self.inbox.put(|mail| {
            mail.paused.insert((agent.clone(), schedule.to_owned()));
        });
    }

    /// Watches for a schedule again, from the time on that its `debounce` has passed: what the job
    /// wrote last may be seen that late.
    pub fn resume(&self, agent: &AgentName, schedule: &str) {
        self.inbox.put(|mail| {
            let id = (agent.clone(), schedule.to_owned());
            if mail.paused.remove(&id) {
                mail.resumed.push((id, Instant::now()));
            }
        });
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.inbox.put(|mail| mail.stop = true);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

fn run(inbox: &Inbox, mut board: Board) {
    let mut next = None;
    while let Some(mail) = inbox.wait(next) {
        #[cfg(test)]
        let settled = mail.settled.clone();
        board.take(mail);
        next = board.tell_due(Instant::now());
        #[cfg(test)]
        settled.iter().for_each(|waiting| waiting.send(()).unwrap_or_default());
    }
}

/// What waits for the thread.
#[derive(Default)]
struct Mail {
    specs: Option<Vec<WatchSpec>>,
    /// Schedules whose changes are dropped: a state, kept from one mail to the next.
    paused: HashSet<SpecId>,
    resumed: Vec<(SpecId, Instant)>,
    seen: Vec<Seen>,
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
struct Seen {
    path: Utf8PathBuf,
    /// Whether the path is gone from where it was.
    gone: bool,
    at: Instant,
}

/// Where the kernel's events and our own wishes meet. Nobody who puts something in ever waits for the
/// thread that takes it out.
#[derive(Default)]
struct Inbox {
    mail: Mutex<Mail>,
    arrived: Condvar,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, change: impl FnOnce(&mut Mail)) {
        let mut mail = self.lock();
        change(&mut mail);
        mail.is_new = true;
        self.arrived.notify_all();
    }

    /// Takes an event of the kernel in.
    fn event(&self, event: notify::Result<notify::Event>) {
        match event {
            Ok(event) if event.need_rescan() => self.put(|mail| mail.overflowed = true),
            Ok(event) => {
                let Some(gone) = is_change(event.kind) else { return };
                self.put(|mail| event.paths.iter().for_each(|path| mail.add(path, gone)));
            }
            Err(error) => self.put(|mail| mail.trouble = Some(folders::reason(&error))),
        }
    }

    /// Waits for something new, or until the time has come. `None` ends the thread.
    fn wait(&self, until: Option<Instant>) -> Option<Mail> {
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
        let taken = std::mem::replace(&mut *mail, Mail { paused, ..Mail::default() });
        (!taken.stop).then_some(taken)
    }
}

impl Mail {
    fn add(&mut self, path: &std::path::Path, gone: bool) {
        if self.seen.len() >= INBOX_MAX {
            self.overflowed = true;
            return;
        }
        let path = Utf8PathBuf::from(path.to_string_lossy().into_owned());
        let at = Instant::now();
        match self.seen.last_mut() {
            Some(last) if last.path == path && last.gone == gone => last.at = at,
            _ => self.seen.push(Seen { path, gone, at }),
        }
    }
}

/// Says whether an event is a change, and then whether something is gone by it. That a file was read,
/// or has other permissions, is no change of it.
fn is_change(kind: EventKind) -> Option<bool> {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => Some(false),
        EventKind::Access(_) | EventKind::Modify(ModifyKind::Metadata(_)) => None,
        EventKind::Modify(ModifyKind::Name(notify::event::RenameMode::From)) => Some(true),
        // Told by `From` and `To` already.
        EventKind::Modify(ModifyKind::Name(notify::event::RenameMode::Both)) => None,
        EventKind::Remove(_) => Some(true),
        EventKind::Create(_) | EventKind::Modify(_) => Some(false),
        EventKind::Any | EventKind::Other => Some(false),
    }
}
