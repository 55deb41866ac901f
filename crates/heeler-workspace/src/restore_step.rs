//! One changed file of a restoration, and the work tree in which it is restored. Start at
//! [`RestoreStep`] and [`RestoreTarget`].
//!
//! Agents can write the work tree. So each directory is opened below its parent without following
//! links, and files appear by a rename.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use camino::Utf8Path;
use rustix::fs::{
    AtFlags, CWD, Dir, Mode as FsMode, OFlags, fchmod, mkdirat, openat, renameat, statat,
    symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::file_reader::{FileReadOutcome, WorkTreeRoot};
use crate::object_id::{ObjectFormat, ObjectId};
use crate::restore::{RestoredFile, RestoredFileAction};
use crate::snapshot_cache::{FileStat, GitFileMode};

/// Name of the file that is being written, in the directory for drafts.
const DRAFT: &str = "next";

/// Depth limit of empty directories that give way to a file.
const EMPTY_DEPTH_MAX: usize = 100;

/// State of a path in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RecordedState {
    mode: GitFileMode,
    oid: ObjectId,
}

/// File that differs between the current state and the snapshot.
#[derive(Debug)]
pub(crate) struct RestoreStep {
    pub(crate) path: Vec<u8>,
    /// Recorded current state; `None` if the file does not exist.
    from: Option<RecordedState>,
    /// State in the snapshot; `None` if the file does not exist there.
    to: Option<RecordedState>,
    kept: Option<String>,
}

impl RestoreStep {
    /// Parses a record of `git diff-tree --raw -z`: `:100644 100755 <oid> <oid> M`, and the path.
    pub(crate) fn parse(line: &[u8], path: &[u8]) -> Option<RestoreStep> {
        let mut fields = line.strip_prefix(b":")?.split(|&byte| byte == b' ');
        let (old_mode, new_mode) = (fields.next()?, fields.next()?);
        let (old, new) = (fields.next()?, fields.next()?);
        let state = |mode: &[u8], oid: &[u8]| match mode {
            b"000000" => Some(None),
            _ => Some(Some(RecordedState {
                mode: GitFileMode::parse(mode)?,
                oid: ObjectId::parse(oid)?,
            })),
        };
        let (from, to) = (state(old_mode, old)?, state(new_mode, new)?);
        Some(RestoreStep { path: path.to_owned(), from, to, kept: None })
    }

    pub(crate) fn keep(&mut self, why: impl Into<String>) {
        self.kept = Some(why.into());
    }

    /// Returns true if nothing forbids the change.
    pub(crate) fn is_pending(&self) -> bool {
        self.kept.is_none()
    }

    pub(crate) fn is_removal(&self) -> bool {
        self.is_pending() && self.to.is_none()
    }

    pub(crate) fn is_write(&self) -> bool {
        self.is_pending() && self.to.is_some()
    }

    pub(crate) fn is_submodule(&self) -> bool {
        [self.from, self.to].into_iter().flatten().any(|it| it.mode == GitFileMode::Submodule)
    }

    /// Returns true if the path is a directory or below it.
    pub(crate) fn is_below(&self, top: &Utf8Path, folder: &Utf8Path) -> bool {
        top.as_std_path().join(OsStr::from_bytes(&self.path)).starts_with(folder)
    }

    /// Returns the object with the content to write.
    pub(crate) fn content(&self) -> Option<ObjectId> {
        self.to.map(|to| to.oid)
    }

    /// Returns the mode to write.
    pub(crate) fn mode(&self) -> Option<GitFileMode> {
        self.to.map(|to| to.mode)
    }

    pub(crate) fn into_file(self) -> RestoredFile {
        let action = match (self.kept, self.from, self.to) {
            (Some(why), ..) => RestoredFileAction::Kept(why),
            (None, None, _) => RestoredFileAction::Created,
            (None, Some(_), Some(_)) => RestoredFileAction::Replaced,
            (None, Some(_), None) => RestoredFileAction::Removed,
        };
        RestoredFile { path: String::from_utf8_lossy(&self.path).into_owned(), action }
    }
}

/// Returns true if a path stays in the work tree and outside of its repository.
pub(crate) fn is_writable_path(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/')
        .all(|name| !matches!(name, b"" | b"." | b"..") && !name.eq_ignore_ascii_case(b".git"))
}

/// Work tree in which files are restored.
pub(crate) struct RestoreTarget {
    reader: WorkTreeRoot,
    top: OwnedFd,
    drafts: OwnedFd,
    format: ObjectFormat,
}

/// Reason that a step was not executed.
enum RestoreFault {
    Kept(&'static str),
    Failed(io::Error),
}

impl From<Errno> for RestoreFault {
    fn from(errno: Errno) -> RestoreFault {
        RestoreFault::Failed(errno.into())
    }
}

impl From<io::Error> for RestoreFault {
    fn from(error: io::Error) -> RestoreFault {
        RestoreFault::Failed(error)
    }
}

/// The recorded state is no longer that of the file.
const CHANGED: RestoreFault = RestoreFault::Kept(
    "its content is not the recorded one: it changed meanwhile, or no snapshot holds it",
);

/// A directory or a file is in the place of the other.
const IN_THE_WAY: RestoreFault =
    RestoreFault::Kept("something that no snapshot holds is in its place");

impl RestoreTarget {
    pub(crate) fn open(
        top: &Utf8Path,
        drafts: &Utf8Path,
        format: ObjectFormat,
    ) -> io::Result<RestoreTarget> {
        let reader = WorkTreeRoot::open(top)?;
        let open = |path: &Path| openat(CWD, path, folder_flags(), FsMode::empty());
        let (top, drafts) = (open(top.as_std_path())?, open(drafts.as_std_path())?);
        Ok(RestoreTarget { reader, top, drafts, format })
    }

    /// Removes the file of a step, and the directories that this leaves empty.
    pub(crate) fn remove(&self, step: &mut RestoreStep) {
        let removed = (|| {
            let (folder, name) = self.open_parent(&step.path, false)?;
            self.require_recorded_state(step, &folder, name)?;
            unlinkat(&folder, name, AtFlags::empty())?;
            self.remove_empty_folders(&step.path);
            Ok(())
        })();
        note_fault(step, removed);
    }

    /// Writes the regular file of a step.
    pub(crate) fn write_file(&self, step: &mut RestoreStep, content: &mut dyn Read) {
        let written = (|| {
            let (folder, name) = self.open_parent(&step.path, true)?;
            self.require_recorded_state(step, &folder, name)?;
            let is_executable = step.mode() == Some(GitFileMode::Executable);
            // The umask applies, as for a file that git creates.
            let mode = FsMode::from_raw_mode(if is_executable { 0o777 } else { 0o666 });
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            self.remove_draft()?;
            let mut file = File::from(openat(&self.drafts, DRAFT, flags, mode)?);
            io::copy(content, &mut file)?;
            if let Some(old) =
                stat(&folder, name)?.filter(|old| old.git_mode() != Some(GitFileMode::Link))
            {
                fchmod(&file, FsMode::from_raw_mode(permissions(old.mode, is_executable)))?;
            }
            self.place_draft(&folder, name)
        })();
        note_fault(step, written);
    }

    /// Creates the symbolic link of a step.
    pub(crate) fn write_link(&self, step: &mut RestoreStep, link: &[u8]) {
        let written = (|| {
            let (folder, name) = self.open_parent(&step.path, true)?;
            self.require_recorded_state(step, &folder, name)?;
            self.remove_draft()?;
            symlinkat(link, &self.drafts, DRAFT)?;
            self.place_draft(&folder, name)
        })();
        note_fault(step, written);
    }

    /// Opens the directory of a path, without following links.
    fn open_parent<'a>(
        &self,
        path: &'a [u8],
        create: bool,
    ) -> Result<(OwnedFd, &'a OsStr), RestoreFault> {
        let mut names: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
        let last = OsStr::from_bytes(names.pop().unwrap_or_default());
        let mut folder = self.top.try_clone()?;
        for name in names {
            let name = OsStr::from_bytes(name);
            if create {
                match mkdirat(&folder, name, FsMode::from_raw_mode(0o777)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            folder = match openat(&folder, name, folder_flags(), FsMode::empty()) {
                Ok(folder) => folder,
                Err(Errno::NOTDIR | Errno::LOOP) => return Err(IN_THE_WAY),
                Err(Errno::NOENT) => return Err(CHANGED),
                Err(errno) => return Err(errno.into()),
            };
            if statat(&folder, ".git", AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                return Err(RestoreFault::Kept("its directory is a repository of its own"));
            }
        }
        Ok((folder, last))
    }

    /// Makes sure that the file has its recorded state, so that no unrecorded content is lost.
    fn require_recorded_state(
        &self,
        step: &RestoreStep,
        folder: &OwnedFd,
        name: &OsStr,
    ) -> Result<(), RestoreFault> {
        let found = stat(folder, name)?;
        let (Some(from), Some(found)) = (step.from, found) else {
            return match (step.from, found) {
                (None, None) => Ok(()),
                // No snapshot holds empty directories, so they give way.
                (None, Some(found)) if found.git_mode().is_none() => {
                    remove_empty_tree(folder, name, 0).map_err(|_| IN_THE_WAY)
                }
                _ => Err(CHANGED),
            };
        };
        if found.git_mode() != Some(from.mode) {
            return Err(CHANGED);
        }
        match self.reader.hash_file(&step.path, &found, self.format) {
            FileReadOutcome::Read(oid, Some(_)) if oid == from.oid => Ok(()),
            _ => Err(CHANGED),
        }
    }

    fn remove_draft(&self) -> Result<(), Errno> {
        match unlinkat(&self.drafts, DRAFT, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    fn place_draft(&self, folder: &OwnedFd, name: &OsStr) -> Result<(), RestoreFault> {
        match renameat(&self.drafts, DRAFT, folder, name) {
            Ok(()) => Ok(()),
            Err(Errno::ISDIR | Errno::NOTEMPTY | Errno::EXIST) => Err(IN_THE_WAY),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes the directories of a removed file that are empty, the deepest first.
    fn remove_empty_folders(&self, path: &[u8]) {
        let mut path = path;
        while let Some(slash) = path.iter().rposition(|&byte| byte == b'/') {
            path = &path[..slash];
            let Ok((folder, name)) = self.open_parent(path, false) else { return };
            // A directory that is not empty stays, and so do those above it.
            if unlinkat(&folder, name, AtFlags::REMOVEDIR).is_err() {
                return;
            }
        }
    }
}

/// Removes a directory that holds nothing but empty directories.
fn remove_empty_tree(folder: &OwnedFd, name: &OsStr, depth: usize) -> Result<(), Errno> {
    if depth > EMPTY_DEPTH_MAX {
        return Err(Errno::NOTEMPTY);
    }
    let opened = openat(folder, name, folder_flags(), FsMode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::read_from(&opened)? {
        let entry = entry?;
        match entry.file_name().to_bytes() {
            b"." | b".." => {}
            name => names.push(name.to_owned()),
        }
    }
    for name in names {
        remove_empty_tree(&opened, OsStr::from_bytes(&name), depth + 1)?;
    }
    unlinkat(folder, name, AtFlags::REMOVEDIR)
}

fn stat(folder: &OwnedFd, name: &OsStr) -> Result<Option<FileStat>, Errno> {
    match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileStat::from_os(&stat))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Returns the permissions of the former file, with or without those to execute it.
fn permissions(old: u32, is_executable: bool) -> u32 {
    let old = old & 0o777;
    match is_executable {
        true => old | (old & 0o444) >> 2,
        false => old & !0o111,
    }
}

fn note_fault(step: &mut RestoreStep, result: Result<(), RestoreFault>) {
    match result {
        Ok(()) => {}
        Err(RestoreFault::Kept(why)) => step.keep(why),
        Err(RestoreFault::Failed(error)) => step.keep(error.to_string()),
    }
}

fn folder_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}
