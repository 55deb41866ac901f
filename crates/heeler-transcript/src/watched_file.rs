//! A file that is watched but not read: its changes only wake a follower. Start at [`WatchedFile`].

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::Instant;

use camino::{Utf8Path, Utf8PathBuf};

use crate::disk::folder_of;
use crate::file_watch::{FileWatch, WakeSignal};

/// Number of the watched file in signals; transcripts are numbered from 0.
pub(crate) const WATCHED_FILE: usize = usize::MAX;

/// Watched file, which need not exist yet.
#[derive(Debug)]
pub(crate) struct WatchedFile {
    path: Utf8PathBuf,
    folder_watch: Option<FileWatch>,
    /// The file that had the name at the last renewal.
    open: Option<(File, Option<FileWatch>)>,
    /// Time of the last renewal.
    pub(crate) renewed_at: Instant,
    /// True until the follower's caller has asked.
    pub(crate) is_changed: bool,
}

impl WatchedFile {
    pub(crate) fn new(path: &Utf8Path, signal: &Arc<WakeSignal>) -> WatchedFile {
        let mut watched = WatchedFile {
            path: path.to_owned(),
            folder_watch: None,
            open: None,
            renewed_at: Instant::now(),
            // The caller has not seen the file yet.
            is_changed: true,
        };
        watched.renew(signal);
        watched
    }

    /// Notes a change, and watches the file that has the name now.
    pub(crate) fn renew(&mut self, signal: &Arc<WakeSignal>) {
        (self.renewed_at, self.is_changed) = (Instant::now(), true);
        // The folder is watched before the file is opened, so a file that appears in between causes
        // another renewal.
        if !self.folder_watch.as_ref().is_some_and(FileWatch::is_alive) {
            let name = self.path.file_name().unwrap_or_default();
            self.folder_watch =
                FileWatch::folder(folder_of(&self.path), name, signal, WATCHED_FILE);
        }
        if self.open.as_ref().is_none_or(|(file, _)| !is_at(file, &self.path)) {
            self.open = File::open(&self.path).ok().map(|file| {
                let watch = FileWatch::file(&file, signal, WATCHED_FILE);
                (file, watch)
            });
        }
    }

    /// Returns true if some changes cause no event.
    pub(crate) fn needs_polling(&self) -> bool {
        let is_alive = |watch: &Option<FileWatch>| watch.as_ref().is_some_and(FileWatch::is_alive);
        let is_file_unwatched = self.open.as_ref().is_some_and(|(_, watch)| !is_alive(watch));
        !is_alive(&self.folder_watch) || is_file_unwatched
    }
}

fn is_at(file: &File, path: &Utf8Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), path.metadata()) else { return false };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}
