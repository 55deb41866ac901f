//! The thread that keeps the files of a running daemon in place. Start at [`StateFileKeeper`].

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use heeler_transcript::{FolderWatch, FolderWatchStopper};

use crate::daemon_file::DaemonFile;
use crate::store::Store;

/// Names of the files that are watched.
const WATCHED_NAMES: [&str; 4] = ["heeler.db", "heeler.db-wal", "heeler.db-shm", "daemon.json"];

/// Delay before a failed repair is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A thread that notices at once that the database or `daemon.json` was deleted or replaced, and
/// writes it back, until it is dropped.
#[derive(Debug)]
pub struct StateFileKeeper {
    stopper: FolderWatchStopper,
    thread: Option<JoinHandle<()>>,
}

impl StateFileKeeper {
    /// Starts the thread; `file` is the content that `daemon.json` must have.
    pub fn start(store: Arc<Store>, file: DaemonFile) -> std::io::Result<StateFileKeeper> {
        let mut watch = FolderWatch::new(store.dir().root(), &WATCHED_NAMES);
        let stopper = watch.stopper();
        let builder = std::thread::Builder::new().name("heeler-keeper".to_owned());
        let thread = builder.spawn(move || {
            // Once before the first wait: a file may have been lost before the watch began.
            while watch.wait(if keep_files(&store, &file) { None } else { Some(RETRY_INTERVAL) }) {}
        })?;
        Ok(StateFileKeeper { stopper, thread: Some(thread) })
    }
}

impl Drop for StateFileKeeper {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that keeps the daemon's files panicked");
        }
    }
}

/// Writes back what is lost; returns true if nothing must be tried again.
fn keep_files(store: &Store, file: &DaemonFile) -> bool {
    // The directory at this path may belong to another daemon by now. The dispatcher ends then.
    if !store.is_directory_intact() {
        return true;
    }
    // The writer has logged the reason of a failure.
    let is_database_there = store.check_database().is_ok();
    let is_file_there = match DaemonFile::read(store.dir()) {
        Ok(Some(found)) if found == *file => true,
        _ => rewrite(store, file),
    };
    is_database_there && is_file_there
}

fn rewrite(store: &Store, file: &DaemonFile) -> bool {
    match file.write(store.dir()) {
        Ok(()) => {
            tracing::warn!("daemon.json was deleted or changed, and was written again");
            true
        }
        Err(error) => {
            tracing::debug!(%error, "daemon.json was deleted or changed, and cannot be written");
            false
        }
    }
}
