//! Names in a folder that are watched for files that appear, vanish or are written. Start at
//! [`FolderWatch`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};

use crate::file_watch::{FileWatch, WakeSignal};

/// Interval of the looks where changes cause no event.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Watch of some names in a folder. A wake-up is a hint, never a promise that something changed.
#[derive(Debug)]
pub struct FolderWatch {
    folder: Utf8PathBuf,
    names: Vec<String>,
    watches: Vec<Option<FileWatch>>,
    signal: Arc<WakeSignal>,
}

/// Ends the wait of a [`FolderWatch`] for good.
#[derive(Debug, Clone)]
pub struct FolderWatchStopper(Arc<WakeSignal>);

impl FolderWatchStopper {
    pub fn stop(&self) {
        self.0.stop();
    }
}

impl FolderWatch {
    pub fn new(folder: &Utf8Path, names: &[&str]) -> FolderWatch {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let watches = names.iter().map(|_| None).collect();
        let mut watch =
            FolderWatch { folder: folder.to_owned(), names, watches, signal: Arc::default() };
        watch.renew();
        watch
    }

    pub fn stopper(&self) -> FolderWatchStopper {
        FolderWatchStopper(Arc::clone(&self.signal))
    }

    /// Waits for a change, or until `longest` has passed. Returns false once it is stopped.
    pub fn wait(&mut self, longest: Option<Duration>) -> bool {
        let limit = match self.renew() {
            true => longest,
            false => Some(longest.map_or(POLL_INTERVAL, |longest| longest.min(POLL_INTERVAL))),
        };
        self.signal.wait(limit.map(|limit| Instant::now() + limit));
        self.signal.take_changed();
        !self.signal.is_stopped()
    }

    /// Watches what is not watched yet; returns true if everything is.
    fn renew(&mut self) -> bool {
        for (number, name) in self.names.iter().enumerate() {
            if !self.watches[number].as_ref().is_some_and(FileWatch::is_alive) {
                self.watches[number] =
                    FileWatch::every_change(&self.folder, name, &self.signal, number);
            }
        }
        self.watches.iter().all(Option::is_some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_of_a_watched_name_ends_the_wait() {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap();
        let (file, other) = (folder.join("watched"), folder.join("other"));
        let mut watch = FolderWatch::new(folder, &["watched"]);
        let changes: [&dyn Fn() -> std::io::Result<()>; 4] = [
            &|| std::fs::write(&file, "1"),
            &|| std::fs::rename(&file, &other),
            &|| std::fs::rename(&other, &file),
            &|| std::fs::remove_file(&file),
        ];
        for change in changes {
            change().unwrap();
            assert!(watch.wait(None), "it would wait for ever");
        }
        watch.stopper().stop();
        while watch.wait(None) {}
    }
}
