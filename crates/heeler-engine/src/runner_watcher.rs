//! Waits for live runners, by their process descriptors, and for new questions, by the directories
//! that hold them, in one thread.
//!
//! It treats children of this process and runners of an earlier daemon alike. It only reports that
//! a runner has ended or has asked; the content is in the run directory. Start at
//! [`RunnerWatcher`].

use std::collections::{HashMap, HashSet};
use std::fs::DirBuilder;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use camino::Utf8Path;
use heeler_model::RunId;
use heeler_model::run::file;
use heeler_transcript::LockFile;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fs::inotify;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::run_questions;

/// Event key of the question watches. Keys of runners start at 1.
const QUESTIONS: u64 = 0;

/// Maximum number of events taken at a time.
const ENDS_MAX: usize = 64;

/// Reports when runners end or ask questions.
#[derive(Debug, Clone)]
pub(crate) struct RunnerWatcher {
    shared: Arc<RunnerWatcherState>,
}

#[derive(Debug)]
struct RunnerWatcherState {
    epoll: OwnedFd,
    /// Reports new files in question directories.
    inotify: OwnedFd,
    registry: Mutex<RunnerRegistry>,
}

#[derive(Debug, Default)]
struct RunnerRegistry {
    last_id: u64,
    runners: HashMap<u64, WatchedRunner>,
    /// Runs with watched questions, by inotify watch number.
    question_watches: HashMap<i32, RunId>,
}

#[derive(Debug)]
struct WatchedRunner {
    run: RunId,
    /// Closing it ends the watch.
    _process: OwnedFd,
    /// Child process to reap, if the runner is one.
    child: Option<Child>,
}

impl RunnerWatcher {
    /// Starts the thread. `ended` is called once for each runner that has ended; `asked` is called
    /// for each run that may have asked a question or received an answer.
    pub(crate) fn start(
        ended: impl Fn(RunId) + Send + 'static,
        asked: impl Fn(RunId) + Send + 'static,
    ) -> io::Result<RunnerWatcher> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let inotify = inotify::init(flags)?;
        epoll::add(&epoll, &inotify, EventData::new_u64(QUESTIONS), EventFlags::IN)?;
        let shared = Arc::new(RunnerWatcherState { epoll, inotify, registry: Mutex::default() });
        let watcher = RunnerWatcher { shared: Arc::clone(&shared) };
        std::thread::Builder::new()
            .name("heeler-watch".to_owned())
            .spawn(move || run_loop(&shared, ended, asked))?;
        Ok(watcher)
    }

    /// Watches a runner that was just started.
    pub(crate) fn add(&self, run: RunId, child: Child) -> io::Result<()> {
        let pid = Pid::from_raw(child.id().cast_signed());
        let pid = pid.ok_or_else(|| io::Error::other("a child has a process number"))?;
        // A child that is not reaped keeps its id, so this is the right process.
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        self.insert(WatchedRunner { run, _process: process, child: Some(child) })
    }

    /// Watches the runner that another daemon started for a run directory; returns false if there
    /// is none.
    pub(crate) fn attach(&self, run: RunId, folder: &Utf8Path) -> io::Result<bool> {
        let lock = folder.join(file::LOCK);
        let holder = || LockFile::probe(&lock).ok().flatten().and_then(|held| held.holder);
        let Some(pid) = holder().and_then(|it| Pid::from_raw(it.pid.cast_signed())) else {
            return Ok(false);
        };
        // The runner has ended meanwhile, so there is nothing to watch.
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(false) };
        // Check again after opening: the process ID could have been reused in between.
        if holder().is_none_or(|it| it.pid.cast_signed() != pid.as_raw_nonzero().get()) {
            return Ok(false);
        }
        self.insert(WatchedRunner { run, _process: process, child: None }).map(|()| true)
    }

    /// Watches the questions of a run while its runner is watched.
    pub(crate) fn watch_questions(&self, run: RunId, folder: &Utf8Path) -> io::Result<()> {
        let asks = folder.join(run_questions::QUESTIONS_FOLDER);
        match DirBuilder::new().mode(0o700).create(&asks) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // The lock is held until the watch is registered, so no event finds an unknown number.
        let mut watched = self.shared.lock();
        // Questions appear by rename, so a file is complete when it is reported.
        let flags = inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::ONLYDIR;
        let number = inotify::add_watch(&self.shared.inotify, asks.as_std_path(), flags)?;
        watched.question_watches.insert(number, run);
        // If the runner has ended in the meantime, nothing else would remove the watch.
        if !watched.runners.values().any(|runner| runner.run == run) {
            self.shared.unwatch_questions(&mut watched, run);
        }
        Ok(())
    }

    fn insert(&self, runner: WatchedRunner) -> io::Result<()> {
        let mut watched = self.shared.lock();
        // Ids are not reused, so a late event cannot concern another runner.
        watched.last_id += 1;
        let token = watched.last_id;
        let data = EventData::new_u64(token);
        // A process descriptor is readable once the process has ended, even if that was before.
        epoll::add(&self.shared.epoll, &runner._process, data, EventFlags::IN)?;
        watched.runners.insert(token, runner);
        Ok(())
    }
}

impl RunnerWatcherState {
    fn lock(&self) -> MutexGuard<'_, RunnerRegistry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unwatch_questions(&self, watched: &mut RunnerRegistry, run: RunId) {
        watched.question_watches.retain(|&number, of| {
            if *of == run {
                // The watch no longer exists if its directory was removed.
                let _gone = inotify::remove_watch(&self.inotify, number);
            }
            *of != run
        });
    }

    /// Returns the runs with new files in their question directories.
    fn runs_with_new_questions(&self) -> HashSet<RunId> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut numbers = HashSet::new();
        let mut is_all = false;
        // The reader returns an error when there are no more events.
        while let Ok(event) = events.next() {
            // The kernel lost events, so every run may have asked.
            is_all |= event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW);
            numbers.insert(event.wd());
        }
        let watched = self.lock();
        let asking = watched.question_watches.iter();
        asking
            .filter(|(number, _)| is_all || numbers.contains(number))
            .map(|(_, &run)| run)
            .collect()
    }
}

fn run_loop(shared: &RunnerWatcherState, ended: impl Fn(RunId), asked: impl Fn(RunId)) {
    let mut events = Vec::with_capacity(ENDS_MAX);
    loop {
        events.clear();
        match epoll::wait(&shared.epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "cannot wait for runners any more");
                return;
            }
        }
        for event in &events {
            if event.data.u64() == QUESTIONS {
                shared.runs_with_new_questions().into_iter().for_each(&asked);
                continue;
            }
            let gone = {
                let mut watched = shared.lock();
                let gone = watched.runners.remove(&event.data.u64());
                if let Some(gone) = &gone {
                    shared.unwatch_questions(&mut watched, gone.run);
                }
                gone
            };
            let Some(mut gone) = gone else { continue };
            // Runners of an earlier daemon are no children, and are reaped by another process.
            if let Some(child) = &mut gone.child {
                // The process has ended, so this does not block.
                let _status = child.wait();
            }
            ended(gone.run);
        }
    }
}
