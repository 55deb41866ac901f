//! Reads files of a work tree that other processes may be changing. Start at [`WorkTreeRoot`].

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;

use camino::Utf8Path;
use rustix::fs::{CWD, Mode as FsMode, OFlags, fstat, openat, readlinkat};
use rustix::io::Errno;

use crate::object_id::{ObjectFormat, ObjectHasher, ObjectId, ObjectKind};
use crate::snapshot_cache::{FileStat, GitFileMode};

/// Limit on repeated reads of a file that changes meanwhile.
const ATTEMPTS_MAX: usize = 3;

/// Buffer size for hashing a file.
const BLOCK_BYTES: usize = 256 * 1024;

/// Top directory of a work tree, held open.
pub(crate) struct WorkTreeRoot(OwnedFd);

/// Result of reading a file.
pub(crate) enum FileReadOutcome<T> {
    /// Content, and the file's `stat`; `None` if the file kept changing.
    Read(T, Option<FileStat>),
    /// The file is gone, or is no longer a regular file.
    Missing,
    /// Permission denied.
    Denied,
}

impl WorkTreeRoot {
    pub(crate) fn open(top: &Utf8Path) -> io::Result<WorkTreeRoot> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(WorkTreeRoot(openat(CWD, top.as_std_path(), flags, FsMode::empty())?))
    }

    /// Returns the git object ID of a file's content, reading it in blocks.
    pub(crate) fn hash_file(
        &self,
        path: &[u8],
        seen: &FileStat,
        format: ObjectFormat,
    ) -> FileReadOutcome<ObjectId> {
        if seen.git_mode() == Some(GitFileMode::Link) {
            return match self.read_link(path, seen) {
                FileReadOutcome::Read(target, stat) => FileReadOutcome::Read(
                    ObjectHasher::hash_object(format, ObjectKind::Blob, &target),
                    stat,
                ),
                FileReadOutcome::Missing => FileReadOutcome::Missing,
                FileReadOutcome::Denied => FileReadOutcome::Denied,
            };
        }
        self.read_until_stable(path, |file, stat| {
            let mut hash = ObjectHasher::begin(format, ObjectKind::Blob, stat.size);
            // One byte more than the file, so that its end is found without another read.
            let mut block = vec![0; BLOCK_BYTES.min(stat.size as usize + 1)];
            let mut read = 0;
            loop {
                match file.read(&mut block) {
                    Ok(0) => break,
                    Ok(count) => {
                        hash.update(&block[..count]);
                        read += count as u64;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            // The ID contains the size, so with a wrong size it matches no object.
            Ok((hash.finish(), read == stat.size))
        })
    }

    /// Returns a file's content; refuses a file that has grown past `max`.
    pub(crate) fn read_bytes(
        &self,
        path: &[u8],
        seen: &FileStat,
        max: u64,
    ) -> FileReadOutcome<Vec<u8>> {
        if seen.git_mode() == Some(GitFileMode::Link) {
            return self.read_link(path, seen);
        }
        self.read_until_stable(path, |file, stat| {
            let mut bytes = Vec::with_capacity(stat.size.min(max) as usize + 1);
            file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
            let fits = bytes.len() as u64 <= max;
            Ok((bytes, fits))
        })
    }

    /// Opens a file without following links: a directory in the path may have become one, too.
    #[cfg(target_os = "linux")]
    fn open_file(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        use rustix::fs::{ResolveFlags, openat2};
        match openat2(&self.0, path, flags, FsMode::empty(), ResolveFlags::NO_SYMLINKS) {
            // An old kernel, or a container that blocks the system call.
            // The last component is still protected by NOFOLLOW.
            Err(Errno::NOSYS | Errno::PERM) => openat(&self.0, path, flags, FsMode::empty()),
            result => result,
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn open_file(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        openat(&self.0, path, flags, FsMode::empty())
    }

    fn read_link(&self, path: &[u8], seen: &FileStat) -> FileReadOutcome<Vec<u8>> {
        match readlinkat(&self.0, path, Vec::new()) {
            // A link has no content that could change in place.
            Ok(target) => FileReadOutcome::Read(target.into_bytes(), Some(*seen)),
            Err(Errno::ACCESS) => FileReadOutcome::Denied,
            Err(_) => FileReadOutcome::Missing,
        }
    }

    /// Reads a file until it is the same before and after.
    fn read_until_stable<T>(
        &self,
        path: &[u8],
        read: impl Fn(&mut File, &FileStat) -> io::Result<(T, bool)>,
    ) -> FileReadOutcome<T> {
        let mut last = None;
        for _ in 0..ATTEMPTS_MAX {
            // Opening a pipe in the file's place must not block.
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let opened = match self.open_file(path, flags) {
                Ok(opened) => opened,
                Err(Errno::ACCESS | Errno::PERM) => return FileReadOutcome::Denied,
                Err(_) => return FileReadOutcome::Missing,
            };
            let Ok(before) = fstat(&opened).map(|stat| FileStat::from_os(&stat)) else {
                return FileReadOutcome::Denied;
            };
            // The path may name another file by now.
            if !matches!(before.git_mode(), Some(GitFileMode::File | GitFileMode::Executable)) {
                return FileReadOutcome::Missing;
            }
            let mut file = File::from(opened);
            let Ok((value, whole)) = read(&mut file, &before) else {
                return FileReadOutcome::Denied;
            };
            let after = fstat(&file).map(|stat| FileStat::from_os(&stat));
            if whole && after == Ok(before) {
                return FileReadOutcome::Read(value, Some(before));
            }
            // A complete read of a changing file is better than none, but it is not cached.
            last = whole.then_some(value).or(last);
        }
        last.map_or(FileReadOutcome::Denied, |value| FileReadOutcome::Read(value, None))
    }
}
