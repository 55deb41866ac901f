//! Decides the snapshot content of each path: unchanged, read again, staged version, or nothing.
//! Start at [`SnapshotPlan`].

use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::file_reader::{FileReadOutcome, WorkTreeRoot};
use crate::object_id::{ObjectId, ObjectKind};
use crate::pack_writer::{PackWriter, TreeEntry};
use crate::snapshot::SnapshotOmission;
use crate::snapshot_cache::{FileStat, GitFileMode, RecordedFile, SnapshotCache};
use crate::snapshot_store::{SnapshotError, SnapshotStore, io_at};
use crate::take_snapshot::GitFileList;
use crate::walk::{GitPathStatus, GitPathStatuses, PathTally, WorkTreeScan};
use crate::work_tree::WorkTree;

/// Limit on threads that hash files.
const THREADS_MAX: usize = 4;

/// Content of the last snapshot.
pub(crate) struct PreviousSnapshot {
    tree: ObjectId,
    /// Recorded file of each current path.
    files: Vec<Option<RecordedFile>>,
    /// Paths that are no longer part of the snapshot.
    removed: Vec<Vec<u8>>,
}

impl PreviousSnapshot {
    /// Compares the previous and the current paths, which have the same order.
    pub(crate) fn new(cache: SnapshotCache, known: &GitPathStatuses) -> PreviousSnapshot {
        let mut files = vec![None; known.len()];
        let mut removed = Vec::new();
        let mut at = 0;
        // Both lists are sorted, so one pass finds the matching paths.
        for (path, file) in cache.files.iter() {
            while at < known.len() && known.path(at) < path {
                at += 1;
            }
            if at < known.len() && known.path(at) == path {
                files[at] = Some(*file);
            } else {
                removed.push(path.to_vec());
            }
        }
        PreviousSnapshot { tree: cache.tree, files, removed }
    }
}

/// Files of the snapshot, and those of them that must still be read.
///
/// Paths are identified by their index in the list of current paths.
pub(crate) struct SnapshotPlan<'a> {
    snapshots: &'a SnapshotStore,
    top: WorkTreeRoot,
    pub(crate) listed: &'a GitFileList,
    previous: Option<&'a PreviousSnapshot>,
    fs_now: i64,
    /// Recorded state of each path.
    pub(crate) files: Vec<Option<RecordedFile>>,
    /// Files with content that git does not have yet.
    unwritten: Vec<(usize, FileStat)>,
    walked: WorkTreeScan,
    sparse: PathTally,
    pub(crate) too_large: Vec<(usize, u64)>,
    /// Those of them with a Git LFS pointer as their staged version.
    pub(crate) lfs: PathTally,
}

impl<'a> SnapshotPlan<'a> {
    pub(crate) fn new(
        snapshots: &'a SnapshotStore,
        tree: &WorkTree,
        listed: &'a GitFileList,
        start: Option<&'a PreviousSnapshot>,
        fs_now: i64,
    ) -> Result<SnapshotPlan<'a>, SnapshotError> {
        let top = WorkTreeRoot::open(&tree.top).map_err(io_at("open", &tree.top))?;
        Ok(SnapshotPlan {
            snapshots,
            top,
            listed,
            previous: start,
            fs_now,
            files: vec![None; listed.statuses.len()],
            unwritten: Vec::new(),
            walked: WorkTreeScan::default(),
            sparse: PathTally::default(),
            too_large: Vec::new(),
            lfs: PathTally::default(),
        })
    }

    /// Decides the recorded state of every file.
    pub(crate) fn classify_files(&mut self, mut walked: WorkTreeScan) {
        let found = std::mem::take(&mut walked.stats);
        self.walked = walked;
        let (mut count, mut bytes) = (0, 0);
        let mut unsure = Vec::new();
        for (at, stat) in found.into_iter().enumerate() {
            let Some(stat) = stat else { continue };
            // Tracked files are limited only in size, and only if git lacks their content.
            if *self.listed.statuses.value(at) == GitPathStatus::Untracked {
                if stat.size > self.snapshots.limits.file_bytes_max
                    || count >= self.snapshots.limits.untracked_files_max
                    || bytes + stat.size > self.snapshots.limits.untracked_bytes_max
                {
                    self.skip_too_large(at, stat.size);
                    continue;
                }
                count += 1;
                bytes += stat.size;
            }
            match self.previous_file(at) {
                // Unchanged since the last snapshot, so it is not read again.
                Some(old) if old.stat == Some(stat) => self.files[at] = Some(old),
                _ => unsure.push((at, stat)),
            }
        }
        self.hash_files(unsure);
        // After the hashing, so that a file which was read is not replaced by its staged version.
        self.carry_over();
    }

    /// Returns the last snapshot's state of a path.
    fn previous_file(&self, at: usize) -> Option<RecordedFile> {
        self.previous.and_then(|start| start.files[at])
    }

    /// Hashes files to find those that git has already.
    fn hash_files(&mut self, unsure: Vec<(usize, FileStat)>) {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let (top, known, format) = (&self.top, &self.listed.statuses, self.snapshots.format);
        let next = AtomicUsize::new(0);
        let hash_some = || {
            let mut done = Vec::new();
            // The threads take files one by one, because their sizes differ widely.
            while let Some((at, stat)) = unsure.get(next.fetch_add(1, Ordering::Relaxed)) {
                done.push((*at, stat, top.hash_file(known.path(*at), stat, format)));
            }
            done
        };
        let hashed: Vec<_> = std::thread::scope(|scope| {
            // A thread is worth its start only for several files.
            let count = threads.min(THREADS_MAX).min(unsure.len().div_ceil(16));
            let spawned: Vec<_> = (1..count).map(|_| scope.spawn(hash_some)).collect();
            let mut all = hash_some();
            for thread in spawned {
                all.extend(thread.join().expect("hashing does not panic"));
            }
            all
        });
        for (at, stat, seen) in hashed {
            self.record_hash(at, stat, seen);
        }
    }

    fn record_hash(&mut self, at: usize, stat: &FileStat, seen: FileReadOutcome<ObjectId>) {
        let (oid, stat) = match seen {
            FileReadOutcome::Read(oid, stat_read) => (oid, stat_read.unwrap_or(*stat)),
            FileReadOutcome::Missing => return,
            FileReadOutcome::Denied => return self.skip_unreadable(at),
        };
        // The file may have become a pipe or a device since the walk.
        let Some(mode) = stat.git_mode() else { return };
        let in_index = match self.listed.statuses.value(at) {
            // `git add --intent-to-add` lists a file as empty although git does not have its
            // content.
            GitPathStatus::Tracked { oid: tracked, .. } => *tracked == oid && stat.size > 0,
            GitPathStatus::Untracked => false,
        };
        let is_there = in_index || self.previous_file(at).is_some_and(|old| old.oid == oid);
        if is_there {
            // Without its stat the file is read again next time, which is always correct.
            let stat = stat.is_settled(self.fs_now).then_some(stat);
            self.files[at] = Some(RecordedFile { mode, oid, stat });
        } else if stat.size > self.snapshots.limits.file_bytes_max {
            self.skip_too_large(at, stat.size);
        } else {
            self.unwritten.push((at, stat));
        }
    }

    /// Keeps the staged version of a tracked file that cannot be recorded from disk.
    fn keep_staged(&mut self, at: usize) {
        if let GitPathStatus::Tracked { mode, oid, .. } = *self.listed.statuses.value(at) {
            self.files[at] = Some(RecordedFile { mode, oid, stat: None });
        }
    }

    fn skip_too_large(&mut self, at: usize, size: u64) {
        // The staged version is recorded instead, so that the file is not missing from the
        // snapshot.
        self.too_large.push((at, size));
        self.keep_staged(at);
    }

    fn skip_unreadable(&mut self, at: usize) {
        self.walked.unreadable.add(self.listed.statuses.path(at));
        self.keep_staged(at);
    }

    /// Keeps the index entries of submodules, and of paths in directories that cannot or must not
    /// be read.
    fn carry_over(&mut self) {
        let unseen =
            self.walked.nested_repositories.iter().chain(&self.walked.unreadable_directories);
        // With a slash, so that a folder does not match names that only begin like it.
        let unseen: Vec<Vec<u8>> = unseen.map(|path| with_slash(path)).collect();
        for (at, (path, known)) in self.listed.statuses.iter().enumerate() {
            let GitPathStatus::Tracked { mode, oid, sparse } = *known else { continue };
            if self.files[at].is_some() {
                continue;
            }
            if mode == GitFileMode::Submodule
                || unseen.iter().any(|folder| path.starts_with(folder))
            {
                self.files[at] = Some(RecordedFile { mode, oid, stat: None });
            } else if sparse {
                self.sparse.add(path);
            }
        }
    }

    /// Adds the content that git does not have to a pack.
    pub(crate) fn write_objects(&mut self, pack: &mut PackWriter) -> io::Result<()> {
        // Read a second time, because the content of all new files would not fit in memory.
        for (at, seen) in std::mem::take(&mut self.unwritten) {
            let max = self.snapshots.limits.file_bytes_max;
            match self.top.read_bytes(self.listed.statuses.path(at), &seen, max) {
                FileReadOutcome::Read(bytes, stat) => {
                    // The mode of the second read counts, since its content is the one that is
                    // stored.
                    let Some(mode) = stat.unwrap_or(seen).git_mode() else { continue };
                    let oid = pack.add(ObjectKind::Blob, &bytes)?;
                    let stat = stat.filter(|stat| stat.is_settled(self.fs_now));
                    self.files[at] = Some(RecordedFile { mode, oid, stat });
                }
                FileReadOutcome::Missing => {}
                FileReadOutcome::Denied => self.skip_unreadable(at),
            }
        }
        Ok(())
    }

    /// Returns all recorded files, sorted by path.
    pub(crate) fn recorded(&self) -> impl Iterator<Item = (&[u8], &RecordedFile)> {
        let paths = self.listed.statuses.iter().map(|(path, _)| path);
        paths.zip(&self.files).filter_map(|(path, file)| Some((path, file.as_ref()?)))
    }

    /// Returns true if the last snapshot's cache has the same files, in the same state.
    pub(crate) fn has_same_files(&self) -> bool {
        self.previous.is_some_and(|last| last.removed.is_empty() && last.files == self.files)
    }

    /// Adds the trees that git does not have to a pack; returns the root tree.
    pub(crate) fn write_trees(&self, pack: &mut PackWriter) -> io::Result<ObjectId> {
        let files: Vec<TreeEntry<'_>> =
            self.recorded().map(|(path, file)| (path, file.mode, file.oid)).collect();
        let Some(start) = self.previous else { return pack.write_trees(&files, None) };
        let same = |file: &Option<RecordedFile>| file.map(|file| (file.mode, file.oid));
        let both = start.files.iter().zip(&self.files).enumerate();
        let differing = both.filter(|(_, (old, new))| same(old) != same(new));
        let mut changed: Vec<&[u8]> =
            differing.map(|(at, _)| self.listed.statuses.path(at)).collect();
        changed.extend(start.removed.iter().map(Vec::as_slice));
        changed.sort_unstable();
        // Equal trees have equal ids, so an unchanged work tree writes no tree at all.
        if changed.is_empty() { Ok(start.tree) } else { pack.write_trees(&files, Some(&changed)) }
    }

    pub(crate) fn take_omissions(&mut self) -> Vec<SnapshotOmission> {
        let walked = std::mem::take(&mut self.walked);
        let text = |path: Vec<u8>| String::from_utf8_lossy(&path).into_owned();
        let mut left_out: Vec<SnapshotOmission> = walked
            .nested_repositories
            .into_iter()
            .map(|path| SnapshotOmission::NestedRepository { path: text(path) })
            .collect();
        let submodules = walked.submodules.into_iter();
        left_out.extend(submodules.map(|path| SnapshotOmission::Submodule { path: text(path) }));
        let to = &mut left_out;
        walked.ignored.add_to(to, |count, examples| SnapshotOmission::Ignored { count, examples });
        walked
            .empty
            .add_to(to, |count, examples| SnapshotOmission::EmptyFolder { count, examples });
        walked
            .unreadable
            .add_to(to, |count, examples| SnapshotOmission::Unreadable { count, examples });
        walked.special.add_to(to, |count, examples| SnapshotOmission::Special { count, examples });
        std::mem::take(&mut self.lfs)
            .add_to(to, |count, examples| SnapshotOmission::Lfs { count, examples });
        let sparse = std::mem::take(&mut self.sparse);
        sparse.add_to(to, |count, examples| SnapshotOmission::NotCheckedOut { count, examples });
        let mut conflicts = PathTally::default();
        self.listed.conflicts.keys().for_each(|path| conflicts.add(path));
        conflicts.add_to(to, |count, examples| SnapshotOmission::Conflict { count, examples });
        let bytes = self.too_large.iter().map(|(_, size)| size).sum();
        let mut large = PathTally::default();
        self.too_large.iter().for_each(|(at, _)| large.add(self.listed.statuses.path(*at)));
        if large.count > 0 {
            to.push(SnapshotOmission::TooLarge {
                count: large.count,
                bytes,
                examples: large.examples,
            });
        }
        left_out
    }
}

fn with_slash(path: &[u8]) -> Vec<u8> {
    [path, b"/"].concat()
}
