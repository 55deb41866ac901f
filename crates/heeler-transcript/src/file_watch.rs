//! Wakes followers when files change: one inotify instance and one thread for the whole process.
//!
//! A wake-up is a hint that a file may have changed, never a promise that it did. Where inotify or
//! further watches are unavailable, [`FileWatch`] reports that and the follower polls. Start at
//! [`WakeSignal`].

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

#[cfg(target_os = "linux")]
pub(crate) use inotify::FileWatch;
#[cfg(not(target_os = "linux"))]
pub(crate) use polling::FileWatch;

/// Signal that one follower waits on: files that may have changed, the request to return, and the
/// stop request.
#[derive(Debug, Default)]
pub(crate) struct WakeSignal {
    state: Mutex<WakeState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WakeState {
    files: BTreeSet<usize>,
    interrupted: bool,
    stopped: bool,
}

impl WakeSignal {
    pub(crate) fn wake(&self, file: usize) {
        self.lock().files.insert(file);
        self.changed.notify_all();
    }

    /// Ends the current wait, or the next one.
    pub(crate) fn interrupt(&self) {
        self.lock().interrupted = true;
        self.changed.notify_all();
    }

    /// Returns true if `interrupt` was called since the last call.
    pub(crate) fn take_interrupt(&self) -> bool {
        std::mem::take(&mut self.lock().interrupted)
    }

    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// Returns the files signalled since the last call.
    pub(crate) fn take_changed(&self) -> BTreeSet<usize> {
        std::mem::take(&mut self.lock().files)
    }

    /// Sleeps until a file is signalled, the follower is interrupted or stopped, or the time is
    /// reached.
    pub(crate) fn wait(&self, until: Option<Instant>) {
        // A state that is set before the wait begins is seen here, so no wake-up is lost.
        let mut state = self.lock();
        while state.files.is_empty() && !state.interrupted && !state.stopped {
            // Computed again in each round, because a spurious wake-up must not extend the wait.
            state = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return,
                Some(left) => {
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, WakeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(target_os = "linux")]
mod inotify {
    use std::collections::HashMap;
    use std::ffi::CString;
    use std::fs::File;
    use std::mem::MaybeUninit;
    use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
    use std::thread;

    use camino::Utf8Path;
    use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
    use rustix::io::Errno;

    use super::WakeSignal;

    // One instance per process: the kernel limits their number per user, often to 128.
    static INOTIFY_HUB: OnceLock<Option<Arc<InotifyHub>>> = OnceLock::new();

    /// Inotify instance of the process, and the listeners of each watch.
    struct InotifyHub {
        inotify: OwnedFd,
        /// Held while a watch is added, so that no event arrives before its listener.
        listeners: Mutex<HashMap<i32, Vec<WatchListener>>>,
    }

    struct WatchListener {
        signal: Arc<WakeSignal>,
        file: usize,
        /// Only events for this name in the directory matter.
        name: Option<CString>,
        alive: Arc<AtomicBool>,
    }

    /// Watch that signals changes of a file or directory until it is dropped.
    #[derive(Debug)]
    pub(crate) struct FileWatch {
        descriptor: i32,
        alive: Arc<AtomicBool>,
    }

    impl FileWatch {
        /// Watches an open file, independent of its current name. `None` if it cannot be watched.
        pub(crate) fn file(opened: &File, signal: &Arc<WakeSignal>, file: usize) -> Option<Self> {
            // ATTRIB reports an unlinked file: its link count changes while the follower has it
            // open.
            let flags = WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::MOVE_SELF;
            // By descriptor: another file may have taken the name since this one was opened.
            let path = format!("/proc/self/fd/{}", opened.as_raw_fd());
            Self::add(&path, flags, signal, file, None)
        }

        /// Watches a directory for files that appear under this name. `None` if it cannot be
        /// watched.
        pub(crate) fn folder(
            folder: &Utf8Path,
            name: &str,
            signal: &Arc<WakeSignal>,
            file: usize,
        ) -> Option<Self> {
            let flags = WatchFlags::CREATE
                | WatchFlags::MOVED_TO
                | WatchFlags::MOVE_SELF
                | WatchFlags::ONLYDIR;
            Self::add(folder.as_str(), flags, signal, file, Some(CString::new(name).ok()?))
        }

        /// Watches a directory for every change of this name. `None` if it cannot be watched.
        pub(crate) fn every_change(
            folder: &Utf8Path,
            name: &str,
            signal: &Arc<WakeSignal>,
            file: usize,
        ) -> Option<Self> {
            let flags = WatchFlags::CREATE
                | WatchFlags::CLOSE_WRITE
                | WatchFlags::DELETE
                | WatchFlags::MOVED_FROM
                | WatchFlags::MOVED_TO
                | WatchFlags::MOVE_SELF
                | WatchFlags::ONLYDIR;
            Self::add(folder.as_str(), flags, signal, file, Some(CString::new(name).ok()?))
        }

        fn add(
            path: &str,
            flags: WatchFlags,
            signal: &Arc<WakeSignal>,
            file: usize,
            name: Option<CString>,
        ) -> Option<Self> {
            let hub = INOTIFY_HUB.get_or_init(InotifyHub::start).as_ref()?;
            let mut listeners = hub.lock();
            // Another listener of the same directory may need other events.
            let flags = flags | WatchFlags::MASK_ADD;
            let descriptor = inotify::add_watch(&hub.inotify, path, flags).ok()?;
            let alive = Arc::new(AtomicBool::new(true));
            let listener =
                WatchListener { signal: Arc::clone(signal), file, name, alive: Arc::clone(&alive) };
            listeners.entry(descriptor).or_default().push(listener);
            Some(Self { descriptor, alive })
        }

        /// Returns true while events are delivered.
        pub(crate) fn is_alive(&self) -> bool {
            self.alive.load(Ordering::SeqCst)
        }
    }

    impl Drop for FileWatch {
        fn drop(&mut self) {
            let Some(Some(hub)) = INOTIFY_HUB.get() else { return };
            let mut listeners = hub.lock();
            let Some(of_watch) = listeners.get_mut(&self.descriptor) else { return };
            // The kernel returns the same descriptor for every watch of one file, so others may use
            // it.
            of_watch.retain(|listener| !Arc::ptr_eq(&listener.alive, &self.alive));
            if of_watch.is_empty() {
                listeners.remove(&self.descriptor);
                // This fails if the watch is gone already, which is fine.
                inotify::remove_watch(&hub.inotify, self.descriptor).ok();
            }
        }
    }

    impl InotifyHub {
        fn start() -> Option<Arc<Self>> {
            let inotify = inotify::init(CreateFlags::CLOEXEC).ok()?;
            let hub = Arc::new(Self { inotify, listeners: Mutex::default() });
            let of_thread = Arc::clone(&hub);
            let builder = thread::Builder::new().name("transcript-watch".to_owned());
            builder.spawn(move || of_thread.run()).ok()?;
            Some(hub)
        }

        fn run(&self) {
            let mut buf = [MaybeUninit::uninit(); 16 * 1024];
            let mut events = inotify::Reader::new(self.inotify.as_fd(), &mut buf);
            loop {
                match events.next() {
                    Ok(event) => self.dispatch(&event),
                    Err(Errno::INTR) => {}
                    Err(_) => break,
                }
            }
            // No more events will arrive: the followers poll from now on.
            for listener in self.lock().values().flatten() {
                listener.alive.store(false, Ordering::SeqCst);
                listener.signal.wake(listener.file);
            }
        }

        fn dispatch(&self, event: &inotify::Event<'_>) {
            let mut listeners = self.lock();
            let kind = event.events();
            // Events were dropped and it is unknown for which files, so every file is read again.
            if kind.contains(ReadFlags::QUEUE_OVERFLOW) {
                for listener in listeners.values().flatten() {
                    listener.signal.wake(listener.file);
                }
                return;
            }
            let gone = kind.contains(ReadFlags::IGNORED);
            for listener in listeners.get(&event.wd()).into_iter().flatten() {
                // A moved directory is no longer the one at its path.
                let moved = kind.contains(ReadFlags::MOVE_SELF) && listener.name.is_some();
                if gone || moved {
                    // The follower notices this at its next read, watches again, and polls until
                    // then.
                    listener.alive.store(false, Ordering::SeqCst);
                } else if listener.name.is_some() && listener.name.as_deref() != event.file_name() {
                    continue;
                }
                listener.signal.wake(listener.file);
            }
            if gone {
                listeners.remove(&event.wd());
            }
        }

        fn lock(&self) -> MutexGuard<'_, HashMap<i32, Vec<WatchListener>>> {
            self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}

/// Fallback for systems without inotify: everything is polled.
#[cfg(not(target_os = "linux"))]
mod polling {
    use std::fs::File;
    use std::sync::Arc;

    use camino::Utf8Path;

    use super::WakeSignal;

    #[derive(Debug)]
    pub(crate) enum FileWatch {}

    impl FileWatch {
        pub(crate) fn file(_: &File, _: &Arc<WakeSignal>, _: usize) -> Option<Self> {
            None
        }

        pub(crate) fn folder(_: &Utf8Path, _: &str, _: &Arc<WakeSignal>, _: usize) -> Option<Self> {
            None
        }

        pub(crate) fn every_change(
            _: &Utf8Path,
            _: &str,
            _: &Arc<WakeSignal>,
            _: usize,
        ) -> Option<Self> {
            None
        }

        pub(crate) fn is_alive(&self) -> bool {
            match *self {}
        }
    }
}
