//! Walking a work tree: the state of every file that counts, and what is there besides.
//!
//! Git says which files count (it knows the ignore rules); the walk looks at each of them, follows no
//! link, enters no other repository, and says why the rest is left out.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};

use camino::Utf8Path;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode as FsMode, OFlags, openat, statat};
use rustix::io::Errno;

use crate::oid::Oid;
use crate::snapshot::{EXAMPLES_MAX, LeftOut};
use crate::stat::{Mode, Stat};
use crate::store::{SnapshotError, io_at};

/// How deep folders may lie in each other; what is below is unreadable. Paths end at 4,096 bytes anyway.
const DEPTH_MAX: usize = 1000;

/// What git knows of a path that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// It is in the user's index.
    Tracked { mode: Mode, oid: Oid, sparse: bool },
    /// It is neither there nor ignored.
    Untracked,
}

/// The paths that count.
pub(crate) type KnownFiles = HashMap<Vec<u8>, Known>;

/// What the walk saw.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    /// The files that count, as they are.
    pub(crate) files: Vec<(Vec<u8>, Stat)>,
    /// Folders that are repositories of their own, without the slash.
    pub(crate) nested: Vec<Vec<u8>>,
    /// Folders that may not be read.
    pub(crate) closed: Vec<Vec<u8>>,
    pub(crate) submodules: Vec<Vec<u8>>,
    pub(crate) ignored: Tally,
    pub(crate) empty: Tally,
    pub(crate) unreadable: Tally,
    pub(crate) special: Tally,
}

/// How many, and some of them.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) count: u64,
    pub(crate) examples: Vec<String>,
}

impl Tally {
    pub(crate) fn add(&mut self, path: &[u8]) {
        self.count += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(String::from_utf8_lossy(path).into_owned());
        }
    }

    /// Puts it among what was left out, if there is any.
    pub(crate) fn said(self, to: &mut Vec<LeftOut>, kind: fn(u64, Vec<String>) -> LeftOut) {
        if self.count > 0 {
            to.push(kind(self.count, self.examples));
        }
    }
}

/// Walks a work tree.
pub(crate) fn walk(top: &Utf8Path, known: &KnownFiles) -> Result<Walked, SnapshotError> {
    let folder = openat(CWD, top.as_std_path(), folder_flags(), FsMode::empty());
    let folder = folder.map_err(|errno| io_at("read", top)(errno.into()))?;
    let mut walk = Walk { known, live: live_folders(known), walked: Walked::default() };
    let entries = list(&folder).map_err(|errno| io_at("read", top)(errno.into()))?;
    walk.folder(&folder, entries, &mut Vec::new(), 0);
    Ok(walk.walked)
}

/// Every folder with a file that counts somewhere below.
fn live_folders(known: &KnownFiles) -> HashSet<&[u8]> {
    let mut live = HashSet::new();
    for path in known.keys() {
        let mut rest = path.as_slice();
        while let Some(slash) = rest.iter().rposition(|&byte| byte == b'/') {
            rest = &rest[..slash];
            if !live.insert(rest) {
                break;
            }
        }
    }
    live
}

struct Walk<'a> {
    known: &'a KnownFiles,
    live: HashSet<&'a [u8]>,
    walked: Walked,
}

struct Entry {
    name: Vec<u8>,
    kind: FileType,
}

impl Walk<'_> {
    fn folder(&mut self, folder: &OwnedFd, entries: Vec<Entry>, path: &mut Vec<u8>, depth: usize) {
        let length = path.len();
        for entry in entries.into_iter().filter(|entry| entry.name != b".git") {
            if length > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(&entry.name);
            self.entry(folder, &entry, path, depth);
            path.truncate(length);
        }
    }

    fn entry(&mut self, folder: &OwnedFd, entry: &Entry, path: &mut Vec<u8>, depth: usize) {
        let known = self.known.get(path.as_slice());
        match entry.kind {
            FileType::Directory => {
                if matches!(known, Some(Known::Tracked { mode: Mode::Submodule, .. })) {
                    self.walked.submodules.push(path.clone());
                } else {
                    self.below(folder, entry, path, depth + 1);
                }
            }
            FileType::RegularFile | FileType::Symlink if known.is_some() => {
                match statat(folder, entry.name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => self.walked.files.push((path.clone(), Stat::of(&stat))),
                    Err(Errno::NOENT) => {}
                    Err(_) => self.walked.unreadable.add(path),
                }
            }
            FileType::RegularFile | FileType::Symlink => self.walked.ignored.add(path),
            _ => self.walked.special.add(path),
        }
    }

    fn below(&mut self, folder: &OwnedFd, entry: &Entry, path: &mut Vec<u8>, depth: usize) {
        let opened = openat(folder, entry.name.as_slice(), folder_flags(), FsMode::empty());
        let listed = opened.and_then(|below| list(&below).map(|entries| (below, entries)));
        let (below, entries) = match listed {
            Ok(listed) if depth <= DEPTH_MAX => listed,
            Err(Errno::NOENT) => return,
            _ => {
                self.walked.closed.push(path.clone());
                return self.walked.unreadable.add(path);
            }
        };
        if entries.iter().any(|entry| entry.name == b".git") {
            self.walked.nested.push(path.clone());
        } else if self.live.contains(path.as_slice()) {
            self.folder(&below, entries, path, depth);
        } else {
            self.dead(&below, &entries, path, depth);
        }
    }

    /// Says why nothing in a folder counts: it is a nested repository's parent, ignored, or empty.
    fn dead(&mut self, folder: &OwnedFd, entries: &[Entry], path: &mut Vec<u8>, depth: usize) {
        if entries.iter().any(|entry| entry.kind != FileType::Directory) {
            return self.walked.ignored.add(path);
        }
        if entries.is_empty() {
            return self.walked.empty.add(path);
        }
        let length = path.len();
        for entry in entries {
            path.push(b'/');
            path.extend_from_slice(&entry.name);
            self.below(folder, entry, path, depth + 1);
            path.truncate(length);
        }
    }
}

fn folder_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

fn list(folder: impl AsFd) -> Result<Vec<Entry>, Errno> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let mut kind = entry.file_type();
        if kind == FileType::Unknown {
            // Not every file system says it with the name.
            let stat = statat(&folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
            kind = FileType::from_raw_mode(stat.st_mode);
        }
        entries.push(Entry { name: name.to_vec(), kind });
    }
    Ok(entries)
}
