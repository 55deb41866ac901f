//! Walks a work tree: the state of every relevant file, and the other files found.
//!
//! Git decides which files are relevant (it knows the ignore rules); the walk examines each of
//! them, follows no link, enters no other repository, and records why the rest is omitted. Start at
//! [`walk`].

use std::ffi::OsStr;
use std::num::NonZero;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use camino::Utf8Path;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode as FsMode, OFlags, fstat, openat, statat};
use rustix::io::Errno;

use crate::listing_cache::{IGNORE_FILE, IgnoredFolders, UnlistedKind, UnlistedNames};
use crate::object_id::ObjectId;
use crate::path_map::PathMap;
use crate::snapshot::{EXAMPLES_MAX, SnapshotOmission};
use crate::snapshot_cache::{FileStat, GitFileMode};
use crate::snapshot_store::{SnapshotError, io_at};

/// Depth limit of directories; deeper ones count as unreadable. Paths are limited to 4,096 bytes
/// anyway.
const DEPTH_MAX: usize = 1000;

/// Limit on threads that examine files.
const THREADS_MAX: usize = 4;

/// Number of files for which a further thread is started.
const PATHS_PER_THREAD_MIN: usize = 2_000;

/// Git's status of a relevant path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GitPathStatus {
    /// In the user's index.
    Tracked { mode: GitFileMode, oid: ObjectId, sparse: bool },
    /// Neither in the index nor ignored.
    Untracked,
}

/// Relevant paths with their status.
pub(crate) type GitPathStatuses = PathMap<GitPathStatus>;

/// Result of a walk.
#[derive(Debug, Default)]
pub(crate) struct WorkTreeScan {
    /// Current state of each relevant path.
    pub(crate) stats: Vec<Option<FileStat>>,
    /// Directories that are repositories of their own, without the trailing slash.
    pub(crate) nested_repositories: Vec<Vec<u8>>,
    /// Directories that could not be read.
    pub(crate) unreadable_directories: Vec<Vec<u8>>,
    pub(crate) submodules: Vec<Vec<u8>>,
    pub(crate) ignored: PathTally,
    pub(crate) empty: PathTally,
    pub(crate) unreadable: PathTally,
    pub(crate) special: PathTally,
    /// Names that git did not list.
    pub(crate) names: UnlistedNames,
}

/// Number of paths, and some examples.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct PathTally {
    pub(crate) count: u64,
    pub(crate) examples: Vec<String>,
}

impl WorkTreeScan {
    /// Adds the result for another part of the work tree, except for the states of its files.
    fn append(&mut self, part: WorkTreeScan) {
        self.nested_repositories.extend(part.nested_repositories);
        self.unreadable_directories.extend(part.unreadable_directories);
        self.submodules.extend(part.submodules);
        self.ignored.append(part.ignored);
        self.empty.append(part.empty);
        self.unreadable.append(part.unreadable);
        self.special.append(part.special);
        self.names.append(part.names);
    }
}

impl PathTally {
    fn append(&mut self, other: PathTally) {
        self.count += other.count;
        let room = EXAMPLES_MAX.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.into_iter().take(room));
    }

    pub(crate) fn add(&mut self, path: &[u8]) {
        self.count += 1;
        // A few examples are enough for a message; the count tells the rest.
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(String::from_utf8_lossy(path).into_owned());
        }
    }

    /// Adds the tally to the omissions, unless it is empty.
    pub(crate) fn add_to(
        self,
        to: &mut Vec<SnapshotOmission>,
        kind: fn(u64, Vec<String>) -> SnapshotOmission,
    ) {
        if self.count > 0 {
            to.push(kind(self.count, self.examples));
        }
    }
}

/// Examines a work tree; `fs_now` is a time of its file system before git listed the known paths.
pub(crate) fn walk(
    top: &Utf8Path,
    known: &GitPathStatuses,
    fs_now: i64,
) -> Result<WorkTreeScan, SnapshotError> {
    // The descriptors of folders are used from here on: a renamed folder cannot lead elsewhere.
    let folder = openat(CWD, top.as_std_path(), folder_flags(), FsMode::empty());
    let folder = folder.map_err(|errno| io_at("read", top)(errno.into()))?;
    let listed = DirectoryListing::new(folder);
    let listed = listed.map_err(|errno| io_at("read", top)(errno.into()))?;
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    // A thread is worth its start only for many files.
    let threads = cores.min(THREADS_MAX).min(1 + known.len() / PATHS_PER_THREAD_MIN);
    Ok(walk_entries(&listed, known, fs_now, threads))
}

/// Examines the topmost folder. Several threads take its entries one by one.
fn walk_entries(
    listed: &DirectoryListing,
    known: &GitPathStatuses,
    fs_now: i64,
    threads: usize,
) -> WorkTreeScan {
    let mut scan = WorkTreeScan { stats: vec![None; known.len()], ..WorkTreeScan::default() };
    listed.add_state(&mut scan.names, fs_now);
    let Ok(folder) = listed.folder.fd() else { return scan };
    // The repository's own data is never part of a snapshot.
    let entries: Vec<_> = listed.iter().filter(|(name, _)| *name != b".git").collect();
    let next = AtomicUsize::new(0);
    let walk_some = || {
        let mut parts = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(entry) = entries.get(number) else { return parts };
            let mut walk = WorkTreeWalker::new(known, fs_now);
            walk.visit_entry(folder, *entry, &mut entry.0.to_vec(), &(0..known.len()), 0);
            parts.push((number, walk));
        }
    };
    let mut parts = std::thread::scope(|scope| {
        let spawned: Vec<_> = (1..threads).map(|_| scope.spawn(walk_some)).collect();
        let mut parts = walk_some();
        for thread in spawned {
            parts.extend(thread.join().expect("the walk does not panic"));
        }
        parts
    });
    // In the order of the entries, so that the examples do not depend on the threads.
    parts.sort_by_key(|(number, _)| *number);
    for (_, WorkTreeWalker { found, scan: part, .. }) in parts {
        found.into_iter().for_each(|(at, stat)| scan.stats[at] = Some(stat));
        scan.append(part);
    }
    scan
}

/// Adds the names in folders without a listed file, except for those that git ignores as a whole.
pub(crate) fn add_skipped_names(
    top: &Utf8Path,
    names: &mut UnlistedNames,
    ignored: &IgnoredFolders,
    fs_now: i64,
) {
    for folder in std::mem::take(&mut names.skipped_folders) {
        match ignored.contains(&folder) {
            true => names.add(&folder, UnlistedKind::IgnoredFolder),
            false => {
                names.add(&folder, UnlistedKind::Folder);
                add_names_below(top, &folder, names, fs_now);
            }
        }
    }
}

fn add_names_below(top: &Utf8Path, path: &[u8], names: &mut UnlistedNames, fs_now: i64) {
    let full_path = top.as_std_path().join(OsStr::from_bytes(path));
    let opened = openat(CWD, full_path, folder_flags(), FsMode::empty());
    let Ok(listed) = opened.and_then(DirectoryListing::new) else {
        return names.add(path, UnlistedKind::UnreadableFolder);
    };
    if listed.iter().any(|(name, _)| name == b".git") {
        return names.add(path, UnlistedKind::NestedRepository);
    }
    listed.add_state(names, fs_now);
    let Ok(folder) = listed.folder.fd() else { return };
    for (name, kind) in listed.iter() {
        // With so many names git runs each time, so the others are not needed.
        if names.is_full() {
            return;
        }
        let path = [path, b"/", name].concat();
        names.add(&path, kind.into());
        add_rules(folder, name, &path, names, fs_now);
        if kind == FileType::Directory {
            add_names_below(top, &path, names, fs_now);
        }
    }
}

struct WorkTreeWalker<'a> {
    statuses: &'a GitPathStatuses,
    /// Current state of relevant paths.
    found: Vec<(usize, FileStat)>,
    /// The rest of the result.
    scan: WorkTreeScan,
    fs_now: i64,
    /// True in a folder without relevant paths.
    is_skipping: bool,
}

/// Open directory with its entries.
struct DirectoryListing {
    folder: Dir,
    names: Vec<u8>,
    entries: Vec<(Range<usize>, FileType)>,
}

impl<'a> WorkTreeWalker<'a> {
    fn new(statuses: &'a GitPathStatuses, fs_now: i64) -> WorkTreeWalker<'a> {
        let (found, scan) = (Vec::new(), WorkTreeScan::default());
        WorkTreeWalker { statuses, found, scan, fs_now, is_skipping: false }
    }

    /// Examines a directory; `path` is empty or ends with a slash, and `within` is the range of
    /// relevant paths below it.
    fn walk_directory(
        &mut self,
        listed: &DirectoryListing,
        path: &mut Vec<u8>,
        within: &Range<usize>,
        depth: usize,
    ) {
        let Ok(folder) = listed.folder.fd() else { return };
        let length = path.len();
        listed.add_state(&mut self.scan.names, self.fs_now);
        for (name, kind) in listed.iter().filter(|(name, _)| *name != b".git") {
            path.extend_from_slice(name);
            self.visit_entry(folder, (name, kind), path, within, depth);
            path.truncate(length);
        }
    }

    fn visit_entry(
        &mut self,
        folder: BorrowedFd<'_>,
        (name, kind): (&[u8], FileType),
        path: &mut Vec<u8>,
        within: &Range<usize>,
        depth: usize,
    ) {
        add_rules(folder, name, path, &mut self.scan.names, self.fs_now);
        let at = self.statuses.find(within, path);
        match (kind, at) {
            (FileType::Directory, _) => {
                let known = at.map(|at| self.statuses.value(at));
                if matches!(
                    known,
                    Some(GitPathStatus::Tracked { mode: GitFileMode::Submodule, .. })
                ) {
                    self.scan.submodules.push(path.clone());
                } else {
                    self.walk_subdirectory(folder, name, path, within, depth + 1);
                }
            }
            (FileType::RegularFile | FileType::Symlink, Some(at)) => {
                match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => self.found.push((at, FileStat::from_os(&stat))),
                    // The file was removed since it was listed, so it is not part of this moment.
                    Err(Errno::NOENT) => {}
                    Err(_) => self.scan.unreadable.add(path),
                }
            }
            // Git lists every file that is neither ignored nor tracked, so this one is ignored.
            (FileType::RegularFile | FileType::Symlink, None) => {
                self.scan.names.add(path, UnlistedKind::File);
                self.scan.ignored.add(path);
            }
            _ => {
                self.scan.names.add(path, UnlistedKind::Special);
                self.scan.special.add(path);
            }
        }
    }

    fn walk_subdirectory(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        path: &mut Vec<u8>,
        within: &Range<usize>,
        depth: usize,
    ) {
        let opened = openat(folder, name, folder_flags(), FsMode::empty());
        let listed = match opened.and_then(DirectoryListing::new) {
            Ok(listed) if depth <= DEPTH_MAX => listed,
            Err(Errno::NOENT) => return,
            _ => {
                self.scan.names.add(path, UnlistedKind::UnreadableFolder);
                self.scan.unreadable_directories.push(path.clone());
                return self.scan.unreadable.add(path);
            }
        };
        // Files of a nested repository belong to that repository.
        if listed.iter().any(|(name, _)| name == b".git") {
            self.scan.names.add(path, UnlistedKind::NestedRepository);
            return self.scan.nested_repositories.push(path.clone());
        }
        let length = path.len();
        path.push(b'/');
        let within = self.statuses.with_prefix(within, path);
        if within.is_empty() {
            let was_skipping = std::mem::replace(&mut self.is_skipping, true);
            if !was_skipping {
                self.scan.names.skipped_folders.push(path[..length].to_vec());
            }
            self.classify_skipped_directory(&listed, path, depth);
            self.is_skipping = was_skipping;
        } else {
            self.walk_directory(&listed, path, &within, depth);
        }
        path.truncate(length);
    }

    /// Records why nothing in a directory is relevant: it leads to a nested repository, is ignored,
    /// or is empty.
    fn classify_skipped_directory(
        &mut self,
        listed: &DirectoryListing,
        path: &mut Vec<u8>,
        depth: usize,
    ) {
        let itself = &path[..path.len() - 1];
        // A file in a folder without relevant paths is ignored, and so is its folder.
        if listed.iter().any(|(_, kind)| kind != FileType::Directory) {
            return self.scan.ignored.add(itself);
        }
        if listed.entries.is_empty() {
            return self.scan.empty.add(itself);
        }
        let Ok(folder) = listed.folder.fd() else { return };
        let length = path.len();
        // Only folders are left, and one of them may be a nested repository.
        for (name, _) in listed.iter() {
            path.extend_from_slice(name);
            self.walk_subdirectory(folder, name, path, &(0..0), depth + 1);
            path.truncate(length);
        }
    }
}

fn folder_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

impl DirectoryListing {
    fn new(folder: OwnedFd) -> Result<DirectoryListing, Errno> {
        let mut listed =
            DirectoryListing { folder: Dir::new(folder)?, names: Vec::new(), entries: Vec::new() };
        while let Some(entry) = listed.folder.read() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let mut kind = entry.file_type();
            if kind == FileType::Unknown {
                // Not every file system returns the type with the name.
                let stat = statat(listed.folder.fd()?, name, AtFlags::SYMLINK_NOFOLLOW)?;
                kind = FileType::from_raw_mode(stat.st_mode);
            }
            let start = listed.names.len();
            listed.names.extend_from_slice(name);
            listed.entries.push((start..listed.names.len(), kind));
        }
        Ok(listed)
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], FileType)> {
        self.entries.iter().map(|(range, kind)| (&self.names[range.clone()], *kind))
    }

    /// Considers the time of the folder's last change.
    fn add_state(&self, names: &mut UnlistedNames, fs_now: i64) {
        if let Ok(stat) = self.folder.fd().and_then(fstat) {
            names.add_folder_state(&FileStat::from_os(&stat), fs_now);
        }
    }
}

/// Adds the state of an entry if it has ignore rules. One that is gone has changed the folder.
fn add_rules(
    folder: BorrowedFd<'_>,
    name: &[u8],
    path: &[u8],
    names: &mut UnlistedNames,
    fs_now: i64,
) {
    if name == IGNORE_FILE
        && let Ok(stat) = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
    {
        names.add_rules(path, &FileStat::from_os(&stat), fs_now);
    }
}
