//! Walks a work tree: the state of every relevant file, and the other files found.
//!
//! Git decides which files are relevant (it knows the ignore rules); the walk examines each of
//! them, follows no link, enters no other repository, and records why the rest is omitted. Start at
//! [`walk`].

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use camino::Utf8Path;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode as FsMode, OFlags, openat, statat};
use rustix::io::Errno;

use crate::object_id::ObjectId;
use crate::path_map::PathMap;
use crate::snapshot::{EXAMPLES_MAX, SnapshotOmission};
use crate::snapshot_cache::{FileStat, GitFileMode};
use crate::snapshot_store::{SnapshotError, io_at};

/// Depth limit of directories; deeper ones count as unreadable. Paths are limited to 4,096 bytes
/// anyway.
const DEPTH_MAX: usize = 1000;

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
}

/// Number of paths, and some examples.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct PathTally {
    pub(crate) count: u64,
    pub(crate) examples: Vec<String>,
}

impl PathTally {
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

pub(crate) fn walk(top: &Utf8Path, known: &GitPathStatuses) -> Result<WorkTreeScan, SnapshotError> {
    // The descriptors of folders are used from here on: a renamed folder cannot lead elsewhere.
    let folder = openat(CWD, top.as_std_path(), folder_flags(), FsMode::empty());
    let folder = folder.map_err(|errno| io_at("read", top)(errno.into()))?;
    let stats = vec![None; known.len()];
    let mut walk =
        WorkTreeWalker { statuses: known, scan: WorkTreeScan { stats, ..WorkTreeScan::default() } };
    let listed = DirectoryListing::new(folder);
    let listed = listed.map_err(|errno| io_at("read", top)(errno.into()))?;
    walk.walk_directory(&listed, &mut Vec::new(), &(0..known.len()), 0);
    Ok(walk.scan)
}

struct WorkTreeWalker<'a> {
    statuses: &'a GitPathStatuses,
    scan: WorkTreeScan,
}

/// Open directory with its entries.
struct DirectoryListing {
    folder: Dir,
    names: Vec<u8>,
    entries: Vec<(Range<usize>, FileType)>,
}

impl WorkTreeWalker<'_> {
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
        // The repository's own data is never part of a snapshot.
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
                    Ok(stat) => self.scan.stats[at] = Some(FileStat::from_os(&stat)),
                    // The file was removed since it was listed, so it is not part of this moment.
                    Err(Errno::NOENT) => {}
                    Err(_) => self.scan.unreadable.add(path),
                }
            }
            // Git lists every file that is neither ignored nor tracked, so this one is ignored.
            (FileType::RegularFile | FileType::Symlink, None) => self.scan.ignored.add(path),
            _ => self.scan.special.add(path),
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
                self.scan.unreadable_directories.push(path.clone());
                return self.scan.unreadable.add(path);
            }
        };
        // Files of a nested repository belong to that repository.
        if listed.iter().any(|(name, _)| name == b".git") {
            return self.scan.nested_repositories.push(path.clone());
        }
        let length = path.len();
        path.push(b'/');
        let within = self.statuses.with_prefix(within, path);
        if within.is_empty() {
            self.classify_skipped_directory(&listed, path, depth);
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
}
