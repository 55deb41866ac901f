//! What a snapshot holds of each path: as it was, read again, as it is staged, or nothing.

use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::oid::{Kind, Oid};
use crate::pack::{Pack, TreeEntry};
use crate::read::{Seen, Top};
use crate::snapshot::LeftOut;
use crate::stat::{Cache, Mode, Recorded, Stat};
use crate::store::{SnapshotError, Snapshots, io_at};
use crate::take::Listed;
use crate::walk::{Known, KnownFiles, Tally, Walked};
use crate::work_tree::WorkTree;

/// How many threads hash files.
const THREADS_MAX: usize = 4;

/// What the last snapshot had.
pub(crate) struct Start {
    tree: Oid,
    /// For each path that counts now.
    files: Vec<Option<Recorded>>,
    /// The paths that do not count any more.
    gone: Vec<Vec<u8>>,
}

impl Start {
    /// Compares the paths of then and now, which have the same order.
    pub(crate) fn new(cache: Cache, known: &KnownFiles) -> Start {
        let mut files = vec![None; known.len()];
        let mut gone = Vec::new();
        let mut at = 0;
        for (path, file) in cache.files.iter() {
            while at < known.len() && known.path(at) < path {
                at += 1;
            }
            if at < known.len() && known.path(at) == path {
                files[at] = Some(*file);
            } else {
                gone.push(path.to_vec());
            }
        }
        Start { tree: cache.tree, files, gone }
    }
}

/// Which files the snapshot has, and which of them are still to be read.
///
/// Paths are named by their number in the list of those that count.
pub(crate) struct Plan<'a> {
    snapshots: &'a Snapshots,
    top: Top,
    pub(crate) listed: &'a Listed,
    start: Option<&'a Start>,
    fs_now: i64,
    /// What is recorded of each path.
    pub(crate) files: Vec<Option<Recorded>>,
    /// What git does not have yet.
    unsent: Vec<(usize, Stat)>,
    walked: Walked,
    sparse: Tally,
    pub(crate) too_large: Vec<(usize, u64)>,
    /// Those of them whose staged version is a pointer of Git LFS.
    pub(crate) lfs: Tally,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(
        snapshots: &'a Snapshots,
        tree: &WorkTree,
        listed: &'a Listed,
        start: Option<&'a Start>,
        fs_now: i64,
    ) -> Result<Plan<'a>, SnapshotError> {
        let top = Top::open(&tree.top).map_err(io_at("open", &tree.top))?;
        Ok(Plan {
            snapshots,
            top,
            listed,
            start,
            fs_now,
            files: vec![None; listed.known.len()],
            unsent: Vec::new(),
            walked: Walked::default(),
            sparse: Tally::default(),
            too_large: Vec::new(),
            lfs: Tally::default(),
        })
    }

    /// Decides for every file what is recorded of it.
    pub(crate) fn sort(&mut self, mut walked: Walked) {
        let found = std::mem::take(&mut walked.stats);
        self.walked = walked;
        let (mut count, mut bytes) = (0, 0);
        let mut unsure = Vec::new();
        for (at, stat) in found.into_iter().enumerate() {
            let Some(stat) = stat else { continue };
            if *self.listed.known.value(at) == Known::Untracked {
                if stat.size > self.snapshots.limits.file_bytes_max
                    || count >= self.snapshots.limits.untracked_files_max
                    || bytes + stat.size > self.snapshots.limits.untracked_bytes_max
                {
                    self.too_large(at, stat.size);
                    continue;
                }
                count += 1;
                bytes += stat.size;
            }
            match self.old(at) {
                Some(old) if old.stat == Some(stat) => self.files[at] = Some(old),
                _ => unsure.push((at, stat)),
            }
        }
        self.hash(unsure);
        self.carry_over();
    }

    /// Returns what the last snapshot had of a path.
    fn old(&self, at: usize) -> Option<Recorded> {
        self.start.and_then(|start| start.files[at])
    }

    /// Reads files to see whether git has them already.
    fn hash(&mut self, unsure: Vec<(usize, Stat)>) {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let (top, known, format) = (&self.top, &self.listed.known, self.snapshots.format);
        let next = AtomicUsize::new(0);
        let hash_some = || {
            let mut done = Vec::new();
            while let Some((at, stat)) = unsure.get(next.fetch_add(1, Ordering::Relaxed)) {
                done.push((*at, stat, top.hash(known.path(*at), stat, format)));
            }
            done
        };
        let hashed: Vec<_> = std::thread::scope(|scope| {
            let count = threads.min(THREADS_MAX).min(unsure.len().div_ceil(16));
            let spawned: Vec<_> = (1..count).map(|_| scope.spawn(hash_some)).collect();
            let mut all = hash_some();
            for thread in spawned {
                all.extend(thread.join().expect("hashing does not panic"));
            }
            all
        });
        for (at, stat, seen) in hashed {
            self.hashed(at, stat, seen);
        }
    }

    fn hashed(&mut self, at: usize, stat: &Stat, seen: Seen<Oid>) {
        let (oid, stat) = match seen {
            Seen::Read(oid, stat_read) => (oid, stat_read.unwrap_or(*stat)),
            Seen::Gone => return,
            Seen::Refused => return self.unreadable(at),
        };
        let Some(mode) = stat.git_mode() else { return };
        let in_index = match self.listed.known.value(at) {
            // A file that is only meant to be added is listed as empty, and not in git.
            Known::Tracked { oid: tracked, .. } => *tracked == oid && stat.size > 0,
            Known::Untracked => false,
        };
        let is_there = in_index || self.old(at).is_some_and(|old| old.oid == oid);
        if is_there {
            let stat = stat.is_settled(self.fs_now).then_some(stat);
            self.files[at] = Some(Recorded { mode, oid, stat });
        } else if stat.size > self.snapshots.limits.file_bytes_max {
            self.too_large(at, stat.size);
        } else {
            self.unsent.push((at, stat));
        }
    }

    /// Keeps the staged version of what is tracked but cannot be recorded as it is on disk.
    fn keep_staged(&mut self, at: usize) {
        if let Known::Tracked { mode, oid, .. } = *self.listed.known.value(at) {
            self.files[at] = Some(Recorded { mode, oid, stat: None });
        }
    }

    fn too_large(&mut self, at: usize, size: u64) {
        self.too_large.push((at, size));
        self.keep_staged(at);
    }

    fn unreadable(&mut self, at: usize) {
        self.walked.unreadable.add(self.listed.known.path(at));
        self.keep_staged(at);
    }

    /// Keeps submodules, and what lies where we cannot or do not look, as the index has them.
    fn carry_over(&mut self) {
        let unseen = self.walked.nested.iter().chain(&self.walked.closed);
        let unseen: Vec<Vec<u8>> = unseen.map(|path| slashed(path)).collect();
        for (at, (path, known)) in self.listed.known.iter().enumerate() {
            let Known::Tracked { mode, oid, sparse } = *known else { continue };
            if self.files[at].is_some() {
                continue;
            }
            if mode == Mode::Submodule || unseen.iter().any(|folder| path.starts_with(folder)) {
                self.files[at] = Some(Recorded { mode, oid, stat: None });
            } else if sparse {
                self.sparse.add(path);
            }
        }
    }

    /// Puts what git does not have into a pack.
    pub(crate) fn send(&mut self, pack: &mut Pack) -> io::Result<()> {
        for (at, seen) in std::mem::take(&mut self.unsent) {
            let max = self.snapshots.limits.file_bytes_max;
            match self.top.bytes(self.listed.known.path(at), &seen, max) {
                Seen::Read(bytes, stat) => {
                    let Some(mode) = stat.unwrap_or(seen).git_mode() else { continue };
                    let oid = pack.add(Kind::Blob, &bytes)?;
                    let stat = stat.filter(|stat| stat.is_settled(self.fs_now));
                    self.files[at] = Some(Recorded { mode, oid, stat });
                }
                Seen::Gone => {}
                Seen::Refused => self.unreadable(at),
            }
        }
        Ok(())
    }

    /// Returns all that is recorded, in the order of the paths.
    pub(crate) fn recorded(&self) -> impl Iterator<Item = (&[u8], &Recorded)> {
        let paths = self.listed.known.iter().map(|(path, _)| path);
        paths.zip(&self.files).filter_map(|(path, file)| Some((path, file.as_ref()?)))
    }

    /// Puts the trees that git does not have into a pack; returns the topmost one.
    pub(crate) fn write_trees(&self, pack: &mut Pack) -> io::Result<Oid> {
        let files: Vec<TreeEntry<'_>> =
            self.recorded().map(|(path, file)| (path, file.mode, file.oid)).collect();
        let Some(start) = self.start else { return pack.trees(&files, None) };
        let same = |file: &Option<Recorded>| file.map(|file| (file.mode, file.oid));
        let both = start.files.iter().zip(&self.files).enumerate();
        let differing = both.filter(|(_, (old, new))| same(old) != same(new));
        let mut changed: Vec<&[u8]> = differing.map(|(at, _)| self.listed.known.path(at)).collect();
        changed.extend(start.gone.iter().map(Vec::as_slice));
        changed.sort_unstable();
        if changed.is_empty() { Ok(start.tree) } else { pack.trees(&files, Some(&changed)) }
    }

    pub(crate) fn left_out(&mut self) -> Vec<LeftOut> {
        let walked = std::mem::take(&mut self.walked);
        let text = |path: Vec<u8>| String::from_utf8_lossy(&path).into_owned();
        let mut left_out: Vec<LeftOut> = walked
            .nested
            .into_iter()
            .map(|path| LeftOut::NestedRepository { path: text(path) })
            .collect();
        let submodules = walked.submodules.into_iter();
        left_out.extend(submodules.map(|path| LeftOut::Submodule { path: text(path) }));
        let to = &mut left_out;
        walked.ignored.said(to, |count, examples| LeftOut::Ignored { count, examples });
        walked.empty.said(to, |count, examples| LeftOut::EmptyFolder { count, examples });
        walked.unreadable.said(to, |count, examples| LeftOut::Unreadable { count, examples });
        walked.special.said(to, |count, examples| LeftOut::Special { count, examples });
        std::mem::take(&mut self.lfs).said(to, |count, examples| LeftOut::Lfs { count, examples });
        let sparse = std::mem::take(&mut self.sparse);
        sparse.said(to, |count, examples| LeftOut::NotCheckedOut { count, examples });
        let mut conflicts = Tally::default();
        self.listed.conflicts.keys().for_each(|path| conflicts.add(path));
        conflicts.said(to, |count, examples| LeftOut::Conflict { count, examples });
        let bytes = self.too_large.iter().map(|(_, size)| size).sum();
        let mut large = Tally::default();
        self.too_large.iter().for_each(|(at, _)| large.add(self.listed.known.path(*at)));
        if large.count > 0 {
            to.push(LeftOut::TooLarge { count: large.count, bytes, examples: large.examples });
        }
        left_out
    }
}

fn slashed(path: &[u8]) -> Vec<u8> {
    [path, b"/"].concat()
}
