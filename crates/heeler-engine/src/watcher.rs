//! Runners that are alive: one thread waits for all of them, by their process descriptors.
//!
//! Whether a runner is a child of ours or one that an earlier daemon left makes no difference. What
//! it did is in its folder; this only tells that it has ended. Start at [`Watcher`].

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use camino::Utf8Path;
use heeler_model::RunId;
use heeler_model::run::file;
use heeler_transcript::LockFile;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// How many ends are taken at a time.
const ENDS_MAX: usize = 64;

/// Waits for runners to end.
#[derive(Debug, Clone)]
pub(crate) struct Watcher {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    epoll: OwnedFd,
    watched: Mutex<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    last: u64,
    runners: HashMap<u64, Runner>,
}

#[derive(Debug)]
struct Runner {
    run: RunId,
    /// Closing it ends the watch.
    _process: OwnedFd,
    /// A child of ours is to be reaped.
    child: Option<Child>,
}

impl Watcher {
    /// Starts the thread; `ended` hears of each runner that has ended, once.
    pub(crate) fn start(ended: impl Fn(RunId) + Send + 'static) -> io::Result<Watcher> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let shared = Arc::new(Shared { epoll, watched: Mutex::default() });
        let watcher = Watcher { shared: Arc::clone(&shared) };
        std::thread::Builder::new()
            .name("heeler-watch".to_owned())
            .spawn(move || watch(&shared, ended))?;
        Ok(watcher)
    }

    /// Watches a runner that was just started.
    pub(crate) fn add(&self, run: RunId, child: Child) -> io::Result<()> {
        let pid = Pid::from_raw(child.id().cast_signed());
        let pid = pid.ok_or_else(|| io::Error::other("a child has a process number"))?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        self.insert(Runner { run, _process: process, child: Some(child) })
    }

    /// Watches the runner of a folder that another daemon started; says whether there is one.
    pub(crate) fn attach(&self, run: RunId, folder: &Utf8Path) -> io::Result<bool> {
        let lock = folder.join(file::LOCK);
        let holder = || LockFile::probe(&lock).ok().flatten().and_then(|held| held.holder);
        let Some(pid) = holder().and_then(|it| Pid::from_raw(it.pid.cast_signed())) else {
            return Ok(false);
        };
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(false) };
        // Looked at again after it was opened: else the number may be another process's by now.
        if holder().is_none_or(|it| it.pid.cast_signed() != pid.as_raw_nonzero().get()) {
            return Ok(false);
        }
        self.insert(Runner { run, _process: process, child: None }).map(|()| true)
    }

    fn insert(&self, runner: Runner) -> io::Result<()> {
        let mut watched = self.shared.lock();
        watched.last += 1;
        let token = watched.last;
        let data = EventData::new_u64(token);
        // A process descriptor is readable when the process has ended, also if it has already.
        epoll::add(&self.shared.epoll, &runner._process, data, EventFlags::IN)?;
        watched.runners.insert(token, runner);
        Ok(())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn watch(shared: &Shared, ended: impl Fn(RunId)) {
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
            let gone = shared.lock().runners.remove(&event.data.u64());
            let Some(mut gone) = gone else { continue };
            if let Some(child) = &mut gone.child {
                // It has ended: this does not wait.
                let _status = child.wait();
            }
            ended(gone.run);
        }
    }
}
