//! Which folders have a watch: looking through them, and for those that are not there yet.

use std::collections::HashSet;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use notify::{ErrorKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use rustix::io::Errno;

use super::{WatchQueue, WatchSpec};

/// The most folders that are watched, by all schedules together; what is left out is told as trouble.
pub const WATCHED_FOLDERS_MAX: usize = 100_000;

/// The folders that have a watch.
pub(super) struct WatchedFolders {
    /// Made when something is to be watched.
    watcher: Option<RecommendedWatcher>,
    inbox: Arc<WatchQueue>,
    state_dir: Utf8PathBuf,
    folders_max: usize,
    watched: HashSet<Utf8PathBuf>,
}

/// Whether a folder is there to be watched.
enum FolderPresence {
    Present,
    Missing,
}

/// What one look through the folders of a schedule came to.
#[derive(Default)]
pub(super) struct FolderScan {
    /// Files that the schedule wants, relative to its folder.
    pub(super) files: Vec<Utf8PathBuf>,
    /// Folders that must keep their watch.
    pub(super) folders: Vec<Utf8PathBuf>,
    /// What could not be watched, and why.
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

    /// Ends the watches of a path that is gone and of all below it. Those of a folder that was moved
    /// away would else go on under its old name.
    pub(super) fn unwatch_below(&mut self, path: &Utf8Path) {
        if self.watched.contains(path) {
            self.unwatch_where(|folder| folder.starts_with(path));
        }
    }

    /// Ends the watches of all folders but these.
    pub(super) fn retain_only(&mut self, folders: &HashSet<Utf8PathBuf>) {
        self.unwatch_where(|folder| !folders.contains(folder));
    }

    fn unwatch_where(&mut self, is_over: impl Fn(&Utf8PathBuf) -> bool) {
        for folder in self.watched.extract_if(is_over) {
            if let Some(watcher) = &mut self.watcher {
                // It may have ended by itself with its folder.
                let _outcome = watcher.unwatch(folder.as_std_path());
            }
        }
    }

    /// Looks through all folders of a schedule and watches them; where its own folder is not there,
    /// the nearest one above is watched instead.
    pub(super) fn scan(&mut self, spec: &WatchSpec, root: &Utf8Path) -> FolderScan {
        let mut look = FolderScan::default();
        let mut above = root.to_owned();
        while !root.is_dir() {
            while !above.is_dir() && above.pop() {}
            match self.watch_folder(&above) {
                Ok(FolderPresence::Present) => {}
                Ok(FolderPresence::Missing) => continue,
                Err(reason) => {
                    look.trouble = Some(reason);
                    return look;
                }
            }
            // Made while we looked: once there is a watch, whatever comes later is told.
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

    /// Looks through one folder of a schedule and those below it.
    pub(super) fn scan_folder(
        &mut self,
        spec: &WatchSpec,
        root: &Utf8Path,
        folder: &Utf8Path,
        look: &mut FolderScan,
    ) {
        let mut open = vec![folder.to_owned()];
        while let Some(folder) = open.pop() {
            // The watch comes first: what is made after it is told, what was before is listed.
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
        // A folder that is gone by now was told as gone.
        let Ok(entries) = folder.read_dir_utf8() else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(relative) = path.strip_prefix(root) else { continue };
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if self.may_contain_matches(spec, path, relative) {
                    open.push(path.to_owned());
                }
            } else if self.matches_file(spec, path, relative) {
                look.files.push(relative.to_owned());
            }
        }
    }

    /// Says whether a schedule wants a file.
    pub(super) fn matches_file(
        &self,
        spec: &WatchSpec,
        path: &Utf8Path,
        relative: &Utf8Path,
    ) -> bool {
        !self.is_ignored(spec, path, relative) && spec.paths.is_match(relative)
    }

    /// Says whether a schedule may want something in a folder.
    pub(super) fn may_contain_matches(
        &self,
        spec: &WatchSpec,
        path: &Utf8Path,
        relative: &Utf8Path,
    ) -> bool {
        !self.is_ignored(spec, path, relative) && spec.paths.may_match_within(relative)
    }

    fn is_ignored(&self, spec: &WatchSpec, path: &Utf8Path, relative: &Utf8Path) -> bool {
        path.starts_with(&self.state_dir)
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
        let watcher = match &mut self.watcher {
            Some(watcher) => watcher,
            None => {
                let inbox = self.inbox.clone();
                let made = notify::recommended_watcher(move |event| inbox.push_event(event));
                self.watcher.insert(made.map_err(|error| watch_error_text(&error))?)
            }
        };
        match watcher.watch(folder.as_std_path(), RecursiveMode::NonRecursive) {
            Ok(()) => {
                self.watched.insert(folder.to_owned());
                Ok(FolderPresence::Present)
            }
            // Gone again before it was watched.
            Err(_) if !folder.is_dir() => Ok(FolderPresence::Missing),
            Err(error) => Err(format!("cannot watch {folder}: {}", watch_error_text(&error))),
        }
    }
}

/// Says why something cannot be watched, and what to do.
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

/// Resolves the links of a path as far as it exists.
pub(super) fn resolve_links(path: &Utf8Path) -> Utf8PathBuf {
    for above in path.ancestors() {
        if let Ok(found) = above.canonicalize_utf8() {
            let rest = path.strip_prefix(above).expect("an ancestor is a prefix");
            return if rest.as_str().is_empty() { found } else { found.join(rest) };
        }
    }
    path.to_owned()
}
