//! What each schedule has seen, and when it is told.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};

use super::folders::{Folders, Look, real};
use super::{Mail, Seen, SpecId, WatchSpec, Watched};

/// The most paths of one change that are told; that there were more does not matter to the job.
pub const CHANGES_TOLD_MAX: usize = 100;

/// Files that are never at rest are told after this many times `debounce`.
const RESTLESS_TIMES: u32 = 10;

/// How long until what could not be watched is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(60);

/// All schedules that watch files.
pub(super) struct Board {
    folders: Folders,
    tell: Box<dyn Fn(Watched) + Send>,
    entries: Vec<Entry>,
    paused: HashSet<SpecId>,
    /// Schedules that are watched for again, but not before this time.
    quiet_until: HashMap<SpecId, Instant>,
}

/// One schedule.
struct Entry {
    spec: WatchSpec,
    /// Its folder, links resolved, whether it is there or not.
    root: Utf8PathBuf,
    pending: Option<Pending>,
    trouble: Option<String>,
    try_again_at: Option<Instant>,
    /// Whether its folder was there at the last look.
    is_there: bool,
}

/// Changes that were not told yet.
struct Pending {
    changed: Vec<Utf8PathBuf>,
    first: Instant,
    last: Instant,
}

impl Board {
    pub(super) fn new(folders: Folders, tell: Box<dyn Fn(Watched) + Send>) -> Board {
        let (paused, quiet_until) = (HashSet::new(), HashMap::new());
        Board { folders, tell, entries: Vec::new(), paused, quiet_until }
    }

    /// Takes in what happened and what is wished for.
    pub(super) fn take(&mut self, mail: Mail) {
        let now = Instant::now();
        for (id, at) in mail.resumed {
            if let Some(entry) = self.entries.iter_mut().find(|entry| entry.spec.id() == id) {
                entry.pending = None;
                self.quiet_until.insert(id, at + entry.spec.debounce);
            }
        }
        self.paused = mail.paused;
        for seen in &mail.seen {
            self.seen(seen);
        }
        if mail.overflowed {
            for at in 0..self.entries.len() {
                self.look(at, now);
                self.note(at, Vec::new(), now);
            }
        }
        if let Some(message) = mail.trouble {
            self.entries.iter_mut().for_each(|entry| entry.report(&message, now, &self.tell));
        }
        if let Some(specs) = mail.specs {
            self.set(specs, now);
        }
        for entry in self.entries.iter_mut().filter(|entry| self.paused.contains(&entry.spec.id()))
        {
            entry.pending = None;
        }
    }

    fn set(&mut self, specs: Vec<WatchSpec>, now: Instant) {
        let mut old = std::mem::take(&mut self.entries);
        for spec in specs {
            let same = old.iter().position(|entry| entry.spec == spec);
            self.entries.push(match same {
                Some(at) => old.swap_remove(at),
                None => Entry::new(spec),
            });
        }
        let ids: HashSet<SpecId> = self.entries.iter().map(|entry| entry.spec.id()).collect();
        self.quiet_until.retain(|id, _| ids.contains(id));
        let mut kept = HashSet::new();
        for at in 0..self.entries.len() {
            kept.extend(self.look(at, now).folders);
        }
        self.folders.keep(&kept);
    }

    /// Looks through the folders of a schedule again.
    fn look(&mut self, at: usize, now: Instant) -> Look {
        let entry = &mut self.entries[at];
        entry.root = real(&entry.spec.root);
        let look = self.folders.look(&entry.spec, &entry.root);
        entry.is_there = look.folders.first() == Some(&entry.root);
        entry.look_outcome(look.trouble.clone(), now, &self.tell);
        look
    }

    fn seen(&mut self, seen: &Seen) {
        if seen.gone {
            self.folders.forget(&seen.path);
        }
        for at in 0..self.entries.len() {
            let entry = &self.entries[at];
            if entry.root.starts_with(&seen.path) {
                // The folder itself, or one above it, came or went.
                if seen.gone || !entry.is_there {
                    let Look { files, .. } = self.look(at, seen.at);
                    self.change(at, files, seen.at);
                }
            } else if let Ok(relative) = seen.path.strip_prefix(&entry.root) {
                self.seen_within(at, seen, relative);
            }
        }
    }

    /// Takes in a change below the folder of a schedule.
    fn seen_within(&mut self, at: usize, seen: &Seen, relative: &Utf8Path) {
        let (path, entry) = (&seen.path, &self.entries[at]);
        let mut changed = Vec::new();
        if self.folders.is_wanted(&entry.spec, path, relative) {
            changed.push(relative.to_owned());
        }
        let is_folder = || path.symlink_metadata().is_ok_and(|found| found.is_dir());
        if !seen.gone && self.folders.is_looked_into(&entry.spec, path, relative) && is_folder() {
            let mut look = Look::default();
            self.folders.look_in(&entry.spec, &entry.root, path, &mut look);
            changed.extend(look.files);
            if let Some(trouble) = look.trouble {
                self.entries[at].report(&trouble, seen.at, &self.tell);
            }
        }
        self.change(at, changed, seen.at);
    }

    fn change(&mut self, at: usize, changed: Vec<Utf8PathBuf>, now: Instant) {
        if !changed.is_empty() {
            self.note(at, changed, now);
        }
    }

    /// Notes a change of some files, or of nobody knows which.
    fn note(&mut self, at: usize, changed: Vec<Utf8PathBuf>, now: Instant) {
        let entry = &mut self.entries[at];
        let id = entry.spec.id();
        if self.paused.contains(&id) || self.quiet_until.get(&id).is_some_and(|until| now < *until)
        {
            return;
        }
        let pending = entry.pending.get_or_insert_with(|| Pending {
            changed: Vec::new(),
            first: now,
            last: now,
        });
        pending.last = now;
        for path in changed {
            if pending.changed.len() < CHANGES_TOLD_MAX && !pending.changed.contains(&path) {
                pending.changed.push(path);
            }
        }
    }

    /// Tells what is due and returns when the next may be.
    pub(super) fn tell_due(&mut self, now: Instant) -> Option<Instant> {
        for at in 0..self.entries.len() {
            if self.entries[at].try_again_at.is_some_and(|again| again <= now) {
                self.look(at, now);
            }
            let entry = &mut self.entries[at];
            if let Some(pending) = entry.pending.take_if(|pending| pending.due(&entry.spec) <= now)
            {
                (self.tell)(Watched::Changed {
                    agent: entry.spec.agent.clone(),
                    schedule: entry.spec.schedule.clone(),
                    changed: pending.changed,
                });
            }
        }
        let dues = self.entries.iter().flat_map(|entry| {
            let due = entry.pending.as_ref().map(|pending| pending.due(&entry.spec));
            [due, entry.try_again_at]
        });
        dues.flatten().min()
    }
}

impl Pending {
    fn due(&self, spec: &WatchSpec) -> Instant {
        let restless = self.first + spec.debounce * RESTLESS_TIMES;
        (self.last + spec.debounce).min(restless)
    }
}

impl Entry {
    fn new(spec: WatchSpec) -> Entry {
        let root = real(&spec.root);
        Entry { spec, root, pending: None, trouble: None, try_again_at: None, is_there: false }
    }

    fn look_outcome(&mut self, trouble: Option<String>, now: Instant, tell: &dyn Fn(Watched)) {
        match trouble {
            Some(message) => self.report(&message, now, tell),
            None => (self.trouble, self.try_again_at) = (None, None),
        }
    }

    fn report(&mut self, message: &str, now: Instant, tell: &dyn Fn(Watched)) {
        self.try_again_at = Some(now + TRY_AGAIN);
        if self.trouble.as_deref() != Some(message) {
            self.trouble = Some(message.to_owned());
            let (agent, schedule) = self.spec.id();
            tell(Watched::Trouble { agent, schedule, message: message.to_owned() });
        }
    }
}
