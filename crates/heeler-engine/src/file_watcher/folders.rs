//! Directories with a watch: scanning them, and waiting for those that do not exist yet.
//!
//! Start at [`WatchedFolders`].

use std::collections::HashSet;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use notify::{ErrorKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use rustix::io::Errno;

use super::{WatchQueue, WatchSpec};

/// Maximum number of watched directories, for all schedules together. An excess is reported as
/// [`super::WatchEvent::Trouble`].
pub const WATCHED_FOLDERS_MAX: usize = 100_000;

pub(super) struct WatchedFolders {
    /// Created with the first watch.
    watcher: Option<RecommendedWatcher>,
    inbox: Arc<WatchQueue>,
    state_dir: Utf8PathBuf,
    folders_max: usize,
    watched: HashSet<Utf8PathBuf>,
}

enum FolderPresence {
    Present,
    Missing,
}

/// Result of scanning the directories of a schedule.
#[derive(Default)]
pub(super) struct FolderScan {
    /// Matching files, relative to the schedule's directory.
    pub(super) files: Vec<Utf8PathBuf>,
    /// Directories that must keep their watch.
    pub(super) folders: Vec<Utf8PathBuf>,
    /// Problem with directories that could not be watched.
    pub(super) trouble: Option<String>,
}

impl WatchedFolders {
    pub(super) fn new(
        state_dir: &Utf8Path,
        folders_max: usize,
        inbox: Arc<WatchQueue>,
    ) -> WatchedFolders {
        let (state_dir, watched) = (resolve_links(state_dir), HashSet::new());
        WatchedFolders { watcher: None, inbox, state_dir, folders_max, watched }
    }

    /// Removes the watches of a path that no longer exists and of everything below it. Watches of a
    /// directory that was moved away would otherwise continue under its old name.
    pub(super) fn unwatch_below(&mut self, path: &Utf8Path) {
        if self.watched.contains(path) {
            self.unwatch_where(|folder| folder.starts_with(path));
        }
    }

    /// Removes the watches of all other directories.
    pub(super) fn retain_only(&mut self, folders: &HashSet<Utf8PathBuf>) {
        self.unwatch_where(|folder| !folders.contains(folder));
    }

    fn unwatch_where(&mut self, is_over: impl Fn(&Utf8PathBuf) -> bool) {
        for folder in self.watched.extract_if(is_over) {
            if let Some(watcher) = &mut self.watcher {
                // The kernel removes the watch of a removed directory, so this may fail.
                let _outcome = watcher.unwatch(folder.as_std_path());
            }
        }
    }

    /// Scans and watches all directories of a schedule. If its own directory does not exist, its
    /// nearest existing ancestor is watched instead.
    pub(super) fn scan(&mut self, spec: &WatchSpec, root: &Utf8Path) -> FolderScan {
        let mut look = FolderScan::default();
        let mut above = root.to_owned();
        while !root.is_dir() {
            // The loop ends at the root of the file system, which always exists.
            while !above.is_dir() && above.pop() {}
            match self.watch_folder(&above) {
                Ok(FolderPresence::Present) => {}
                Ok(FolderPresence::Missing) => continue,
                Err(reason) => {
                    look.trouble = Some(reason);
                    return look;
                }
            }
            // The directory may have been created in the meantime. Changes after the watch was
            // added are reported.
            let next = root.ancestors().take_while(|path| *path != above).last();
            if !next.is_some_and(Utf8Path::is_dir) {
                look.folders.push(above);
                return look;
            }
            above = root.to_owned();
        }
        self.scan_folder(spec, root, root, &mut look);
        look
    }

    /// Scans one directory of a schedule and those below it.
    pub(super) fn scan_folder(
        &mut self,
        spec: &WatchSpec,
        root: &Utf8Path,
        folder: &Utf8Path,
        look: &mut FolderScan,
    ) {
        let mut open = vec![folder.to_owned()];
        while let Some(folder) = open.pop() {
            // Watch before listing: later files are reported, earlier ones are listed.
            match self.watch_folder(&folder) {
                Ok(FolderPresence::Present) => {
                    self.list_folder(spec, root, &folder, look, &mut open);
                    look.folders.push(folder);
                }
                Ok(FolderPresence::Missing) => {}
                Err(reason) => {
                    look.trouble.get_or_insert(reason);
                }
            }
        }
    }

    fn list_folder(
        &self,
        spec: &WatchSpec,
        root: &Utf8Path,
        folder: &Utf8Path,
        look: &mut FolderScan,
        open: &mut Vec<Utf8PathBuf>,
    ) {
        // The removal of a directory that no longer exists was reported.
        let Ok(entries) = folder.read_dir_utf8() else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(relative) = path.strip_prefix(root) else { continue };
            // Links to folders are not followed: they may lead into a circle.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if self.may_contain_matches(spec, path, relative) {
                    open.push(path.to_owned());
                }
            } else if self.matches_file(spec, path, relative) {
                look.files.push(relative.to_owned());
            }
        }
    }

    /// Returns true if a schedule watches the file.
    pub(super) fn matches_file(
        &self,
        spec: &WatchSpec,
        path: &Utf8Path,
        relative: &Utf8Path,
    ) -> bool {
        !self.is_ignored(spec, path, relative) && spec.paths.is_match(relative)
    }

    /// Returns true if the directory may contain files that a schedule watches.
    pub(super) fn may_contain_matches(
        &self,
        spec: &WatchSpec,
        path: &Utf8Path,
        relative: &Utf8Path,
    ) -> bool {
        !self.is_ignored(spec, path, relative) && spec.paths.may_match_within(relative)
    }

    fn is_ignored(&self, spec: &WatchSpec, path: &Utf8Path, relative: &Utf8Path) -> bool {
        // Heeler's own writes must not trigger jobs.
        path.starts_with(&self.state_dir)
            // Git writes here with nearly every command, even when it only reads.
            || relative.components().any(|part| part.as_str() == ".git")
            || spec.ignore.is_match(relative)
    }

    fn watch_folder(&mut self, folder: &Utf8Path) -> Result<FolderPresence, String> {
        if self.watched.contains(folder) {
            return Ok(FolderPresence::Present);
        }
        if self.watched.len() >= self.folders_max {
            return Err(format!(
                "there are more than {} folders to watch: narrow `paths`, or name some in `ignore`",
                self.folders_max
            ));
        }
        // Fleets without such schedules need no inotify instance.
        let watcher = match &mut self.watcher {
            Some(watcher) => watcher,
            None => {
                let inbox = self.inbox.clone();
                let made = notify::recommended_watcher(move |event| inbox.push_event(event));
                self.watcher.insert(made.map_err(|error| watch_error_text(&error))?)
            }
        };
        // The library's recursive mode would also watch ignored folders.
        match watcher.watch(folder.as_std_path(), RecursiveMode::NonRecursive) {
            Ok(()) => {
                self.watched.insert(folder.to_owned());
                Ok(FolderPresence::Present)
            }
            // It was removed before it could be watched.
            Err(_) if !folder.is_dir() => Ok(FolderPresence::Missing),
            Err(error) => Err(format!("cannot watch {folder}: {}", watch_error_text(&error))),
        }
    }
}

/// Describes a watch error and its remedy.
pub(super) fn watch_error_text(error: &notify::Error) -> String {
    match &error.kind {
        ErrorKind::MaxFilesWatch => {
            "the system allows no more watches: raise fs.inotify.max_user_watches, narrow `paths`, or \
             name folders in `ignore`"
                .to_owned()
        }
        ErrorKind::Io(error) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
            "the system allows no more watchers: raise fs.inotify.max_user_instances".to_owned()
        }
        ErrorKind::Io(error) => error.to_string(),
        _ => error.to_string(),
    }
}

/// Resolves the links of the existing part of a path.
pub(super) fn resolve_links(path: &Utf8Path) -> Utf8PathBuf {
    for above in path.ancestors() {
        if let Ok(found) = above.canonicalize_utf8() {
            let rest = path.strip_prefix(above).expect("an ancestor is a prefix");
            return if rest.as_str().is_empty() { found } else { found.join(rest) };
        }
    }
    path.to_owned()
}
