//! Pending changes of each schedule, and the times at which they are reported.
//!
//! Start at [`WatchState`].

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};

use super::folders::{FolderScan, WatchedFolders, resolve_links};
use super::{PathChange, WatchBatch, WatchEvent, WatchSpec, WatchSpecId};

/// Maximum number of paths reported for one change.
pub const CHANGES_REPORTED_MAX: usize = 100;

/// Number of debounce times after which a change is reported even if files still change.
const DEBOUNCES_MAX: u32 = 10;

/// Delay before directories that could not be watched are tried again.
const RETRY_DELAY: Duration = Duration::from_secs(60);

/// State of all watched schedules.
pub(super) struct WatchState {
    folders: WatchedFolders,
    on_event: Box<dyn Fn(WatchEvent) + Send>,
    entries: Vec<WatchEntry>,
    paused: HashSet<WatchSpecId>,
    /// Schedules that are watched again, but only from this time on.
    quiet_until: HashMap<WatchSpecId, Instant>,
}

/// State of one schedule.
struct WatchEntry {
    spec: WatchSpec,
    /// Its directory with links resolved, whether or not it exists.
    root: Utf8PathBuf,
    pending: Option<PendingChanges>,
    trouble: Option<String>,
    try_again_at: Option<Instant>,
    /// True if its directory existed at the last scan.
    is_present: bool,
}

/// Changes that were not reported yet.
struct PendingChanges {
    changed: Vec<Utf8PathBuf>,
    first: Instant,
    last: Instant,
}

impl WatchState {
    pub(super) fn new(folders: WatchedFolders, tell: Box<dyn Fn(WatchEvent) + Send>) -> WatchState {
        let (paused, quiet_until) = (HashSet::new(), HashMap::new());
        WatchState { folders, on_event: tell, entries: Vec::new(), paused, quiet_until }
    }

    /// Applies a batch of events and requests.
    pub(super) fn apply_batch(&mut self, mail: WatchBatch) {
        let now = Instant::now();
        for (id, at) in mail.resumed_specs {
            if let Some(entry) = self.entries.iter_mut().find(|entry| entry.spec.id() == id) {
                // What was seen during the job may be the job's own writes.
                entry.pending = None;
                self.quiet_until.insert(id, at + entry.spec.debounce);
            }
        }
        self.paused = mail.paused;
        for seen in &mail.changes {
            self.handle_change(seen);
        }
        if mail.overflowed {
            // Nothing is known about the lost events, so folders are scanned and everything counts.
            for at in 0..self.entries.len() {
                self.rescan(at, now);
                self.record_change(at, Vec::new(), now);
            }
        }
        if let Some(message) = mail.trouble {
            self.entries
                .iter_mut()
                .for_each(|entry| entry.report_trouble(&message, now, &self.on_event));
        }
        if let Some(specs) = mail.specs {
            self.set_specs(specs, now);
        }
        // A pause that arrived with changes also discards them.
        for entry in self.entries.iter_mut().filter(|entry| self.paused.contains(&entry.spec.id()))
        {
            entry.pending = None;
        }
    }

    fn set_specs(&mut self, specs: Vec<WatchSpec>, now: Instant) {
        let mut old = std::mem::take(&mut self.entries);
        for spec in specs {
            let same = old.iter().position(|entry| entry.spec == spec);
            self.entries.push(match same {
                Some(at) => old.swap_remove(at),
                None => WatchEntry::new(spec),
            });
        }
        let ids: HashSet<WatchSpecId> = self.entries.iter().map(|entry| entry.spec.id()).collect();
        self.quiet_until.retain(|id, _| ids.contains(id));
        let mut kept = HashSet::new();
        for at in 0..self.entries.len() {
            kept.extend(self.rescan(at, now).folders);
        }
        self.folders.retain_only(&kept);
    }

    /// Scans the directories of a schedule again.
    fn rescan(&mut self, at: usize, now: Instant) -> FolderScan {
        let entry = &mut self.entries[at];
        // A link may lead elsewhere since the last scan.
        entry.root = resolve_links(&entry.spec.root);
        let look = self.folders.scan(&entry.spec, &entry.root);
        entry.is_present = look.folders.first() == Some(&entry.root);
        entry.record_scan_outcome(look.trouble.clone(), now, &self.on_event);
        look
    }

    fn handle_change(&mut self, seen: &PathChange) {
        if seen.is_removed {
            self.folders.unwatch_below(&seen.path);
        }
        for at in 0..self.entries.len() {
            let entry = &self.entries[at];
            if entry.root.starts_with(&seen.path) {
                // The directory itself or one of its ancestors was created or removed.
                if seen.is_removed || !entry.is_present {
                    let FolderScan { files, .. } = self.rescan(at, seen.at);
                    self.record_unless_paused(at, files, seen.at);
                }
            } else if let Ok(relative) = seen.path.strip_prefix(&entry.root) {
                self.handle_change_in(at, seen, relative);
            }
        }
    }

    /// Applies a change below the directory of a schedule.
    fn handle_change_in(&mut self, at: usize, seen: &PathChange, relative: &Utf8Path) {
        let (path, entry) = (&seen.path, &self.entries[at]);
        let mut changed = Vec::new();
        if self.folders.matches_file(&entry.spec, path, relative) {
            changed.push(relative.to_owned());
        }
        let is_folder = || path.symlink_metadata().is_ok_and(|found| found.is_dir());
        if !seen.is_removed
            && self.folders.may_contain_matches(&entry.spec, path, relative)
            && is_folder()
        {
            let mut look = FolderScan::default();
            self.folders.scan_folder(&entry.spec, &entry.root, path, &mut look);
            // Files may have been written before the new folder was watched.
            changed.extend(look.files);
            if let Some(trouble) = look.trouble {
                self.entries[at].report_trouble(&trouble, seen.at, &self.on_event);
            }
        }
        self.record_unless_paused(at, changed, seen.at);
    }

    fn record_unless_paused(&mut self, at: usize, changed: Vec<Utf8PathBuf>, now: Instant) {
        if !changed.is_empty() {
            self.record_change(at, changed, now);
        }
    }

    /// Records a change of files; an empty list means that the files are unknown.
    fn record_change(&mut self, at: usize, changed: Vec<Utf8PathBuf>, now: Instant) {
        let entry = &mut self.entries[at];
        let id = entry.spec.id();
        if self.paused.contains(&id) || self.quiet_until.get(&id).is_some_and(|until| now < *until)
        {
            return;
        }
        let pending = entry.pending.get_or_insert_with(|| PendingChanges {
            changed: Vec::new(),
            first: now,
            last: now,
        });
        pending.last = now;
        for path in changed {
            if pending.changed.len() < CHANGES_REPORTED_MAX && !pending.changed.contains(&path) {
                pending.changed.push(path);
            }
        }
    }

    /// Reports the changes that are due and returns the time of the next ones.
    pub(super) fn report_due(&mut self, now: Instant) -> Option<Instant> {
        for at in 0..self.entries.len() {
            // The system's limit may have been raised, or folders removed.
            if self.entries[at].try_again_at.is_some_and(|again| again <= now) {
                self.rescan(at, now);
            }
            let entry = &mut self.entries[at];
            if let Some(pending) =
                entry.pending.take_if(|pending| pending.due_at(&entry.spec) <= now)
            {
                (self.on_event)(WatchEvent::Changed {
                    agent: entry.spec.agent.clone(),
                    schedule: entry.spec.schedule.clone(),
                    changed: pending.changed,
                });
            }
        }
        let dues = self.entries.iter().flat_map(|entry| {
            let due = entry.pending.as_ref().map(|pending| pending.due_at(&entry.spec));
            [due, entry.try_again_at]
        });
        dues.flatten().min()
    }
}

impl PendingChanges {
    fn due_at(&self, spec: &WatchSpec) -> Instant {
        let restless = self.first + spec.debounce * DEBOUNCES_MAX;
        (self.last + spec.debounce).min(restless)
    }
}

impl WatchEntry {
    fn new(spec: WatchSpec) -> WatchEntry {
        let root = resolve_links(&spec.root);
        WatchEntry {
            spec,
            root,
            pending: None,
            trouble: None,
            try_again_at: None,
            is_present: false,
        }
    }

    fn record_scan_outcome(
        &mut self,
        trouble: Option<String>,
        now: Instant,
        tell: &dyn Fn(WatchEvent),
    ) {
        match trouble {
            Some(message) => self.report_trouble(&message, now, tell),
            None => (self.trouble, self.try_again_at) = (None, None),
        }
    }

    fn report_trouble(&mut self, message: &str, now: Instant, tell: &dyn Fn(WatchEvent)) {
        self.try_again_at = Some(now + RETRY_DELAY);
        if self.trouble.as_deref() != Some(message) {
            self.trouble = Some(message.to_owned());
            let (agent, schedule) = self.spec.id();
            tell(WatchEvent::Trouble { agent, schedule, message: message.to_owned() });
        }
    }
}
