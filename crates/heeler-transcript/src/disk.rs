//! The durable file operations of Heeler, behind one small interface.
//!
//! [`DiskBackend`] exists so that tests can fail any operation and replay any power loss;
//! production uses [`OsDisk`]. Only operations that change a disk are here: reads go straight to
//! the file. Start at [`replace_file`].

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};

use camino::{Utf8Path, Utf8PathBuf};
use thiserror::Error;

use crate::line_reader::read_at;
use crate::untrusted_file;

// Transcripts hold everything that an agent reads and prints, so no other user may open them.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// Number of files from which one sync of the whole file system is faster than one for each.
const SYNC_TOGETHER_MIN: usize = 8;

/// Buffer size for copying a file.
const COPY_BLOCK_BYTES: usize = 256 * 1024;

/// Failed file operation and its path.
#[derive(Debug, Error)]
#[error("cannot {action} {path}")]
pub struct DiskError {
    /// Operation as a verb: `sync`, `rename`, `read`.
    pub action: &'static str,
    pub path: Utf8PathBuf,
    #[source]
    pub source: io::Error,
}

impl DiskError {
    /// Returns a closure for `map_err` that adds the action and the path.
    pub(crate) fn at(action: &'static str, path: &Utf8Path) -> impl Fn(io::Error) -> Self + Copy {
        move |source| Self { action, path: path.to_owned(), source }
    }
}

/// Every operation that changes a disk and that a crash can interrupt.
///
/// There are two implementations: [`OsDisk`], and the recording and failing disk of the test kit.
pub trait DiskBackend: fmt::Debug + Send + Sync {
    /// Creates a file that must not exist yet, mode 0600, for reading and appending.
    fn create(&self, path: &Utf8Path) -> io::Result<File>;
    /// Creates a directory that must not exist yet, mode 0700.
    fn create_folder(&self, path: &Utf8Path) -> io::Result<()>;
    /// Makes one `write` call at the end of the file; may write less than requested.
    fn write(&self, file: &File, bytes: &[u8]) -> io::Result<usize>;
    /// Makes one step of a copy: appends up to `len` bytes of `source`, starting at `offset`, to
    /// the file. May copy less than requested; copies nothing at the end of the source.
    fn copy(&self, file: &File, source: &File, offset: u64, len: u64) -> io::Result<u64> {
        copy_through_memory(source, offset, len, |block| self.write(file, block))
    }
    /// Truncates the file to `len` bytes.
    fn truncate(&self, file: &File, len: u64) -> io::Result<()>;
    /// Returns once the file's bytes and length are on stable storage.
    fn sync(&self, file: &File) -> io::Result<()>;
    /// Returns once the bytes and lengths of all these files, which are on the file system of
    /// `folder`, are on stable storage.
    fn sync_all(&self, _folder: &Utf8Path, files: &[&File]) -> io::Result<()> {
        files.iter().try_for_each(|file| self.sync(file))
    }
    /// Renames a file, replacing a file with the new name.
    fn rename(&self, from: &Utf8Path, to: &Utf8Path) -> io::Result<()>;
    /// Renames a file; fails with `AlreadyExists` if the new name is taken.
    fn rename_new(&self, from: &Utf8Path, to: &Utf8Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Utf8Path) -> io::Result<()>;
    /// Returns once the names in the directory are on stable storage.
    fn sync_folder(&self, path: &Utf8Path) -> io::Result<()>;
}

/// The operating system's disk.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsDisk;

impl DiskBackend for OsDisk {
    fn create(&self, path: &Utf8Path) -> io::Result<File> {
        OpenOptions::new().read(true).append(true).create_new(true).mode(FILE_MODE).open(path)
    }

    fn create_folder(&self, path: &Utf8Path) -> io::Result<()> {
        DirBuilder::new().mode(FOLDER_MODE).create(path)
    }

    fn write(&self, mut file: &File, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match file.write(bytes) {
                // An interrupted call has not written anything yet.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    #[cfg(target_os = "linux")]
    fn copy(&self, file: &File, source: &File, offset: u64, len: u64) -> io::Result<u64> {
        // The kernel may report 0 bytes both at the end of the source and where it cannot copy.
        match copy_in_kernel(file, source, offset, len) {
            Ok(copied) if copied > 0 => Ok(copied),
            // Not every file system supports this; a write reports any other error as well.
            _ => copy_through_memory(source, offset, len, |block| self.write(file, block)),
        }
    }

    fn truncate(&self, file: &File, len: u64) -> io::Result<()> {
        file.set_len(len)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        // The length is flushed too if it changed, so a synced line cannot lie beyond the file's
        // end.
        file.sync_data()
    }

    fn sync_all(&self, folder: &Utf8Path, files: &[&File]) -> io::Result<()> {
        if files.len() < SYNC_TOGETHER_MIN {
            return files.iter().try_for_each(|file| self.sync(file));
        }
        sync_file_system(folder)
    }

    fn rename(&self, from: &Utf8Path, to: &Utf8Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn rename_new(&self, from: &Utf8Path, to: &Utf8Path) -> io::Result<()> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;
        match renameat_with(CWD, from.as_std_path(), CWD, to.as_std_path(), RenameFlags::NOREPLACE)
        {
            // Not every file system supports this in one step. A hard link refuses a taken name
            // too.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                std::fs::hard_link(from, to)?;
                std::fs::remove_file(from)
            }
            result => Ok(result?),
        }
    }

    fn remove(&self, path: &Utf8Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_folder(&self, path: &Utf8Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

/// Copies through memory: reads a block and writes it.
fn copy_through_memory(
    source: &File,
    offset: u64,
    len: u64,
    write: impl FnOnce(&[u8]) -> io::Result<usize>,
) -> io::Result<u64> {
    // A large copy takes several calls, each with bounded memory.
    let wanted = usize::try_from(len).unwrap_or(usize::MAX).min(COPY_BLOCK_BYTES);
    let mut block = vec![0; wanted];
    match read_at(source, &mut block, offset)? {
        0 => Ok(0),
        read => Ok(write(&block[..read])? as u64),
    }
}

/// Copies inside the kernel, which shares the blocks where the file system can.
#[cfg(target_os = "linux")]
fn copy_in_kernel(file: &File, source: &File, mut offset: u64, len: u64) -> io::Result<u64> {
    use rustix::fs::{OFlags, copy_file_range, fcntl_getfl, fcntl_setfl};
    // The kernel does not copy into a file that is open for appending.
    let flags = fcntl_getfl(file)?;
    fcntl_setfl(file, flags.difference(OFlags::APPEND))?;
    // Without O_APPEND the position must be given: it is the current end of the file.
    let mut end = file.metadata()?.len();
    let wanted = usize::try_from(len).unwrap_or(usize::MAX);
    let copied = copy_file_range(source, Some(&mut offset), file, Some(&mut end), wanted);
    // The flag is restored before any error is returned, because later writes rely on it.
    fcntl_setfl(file, flags)?;
    Ok(copied? as u64)
}

/// Replaces a file so that after any crash it holds either the old bytes or the new ones, complete.
///
/// The bytes go to `.<name>.tmp.<random>` in the same directory, which a crash may leave behind and
/// a failure does not. The new content is durable when this returns.
pub fn replace_file(
    disk: &dyn DiskBackend,
    path: &Utf8Path,
    bytes: &[u8],
) -> Result<(), DiskError> {
    publish(disk, path, PublishMode::Replace, |file| file.write_all(bytes))
}

/// Replaces a file like [`replace_file`]; the new one has these permissions.
pub fn replace_file_with_mode(
    disk: &dyn DiskBackend,
    path: &Utf8Path,
    bytes: &[u8],
    mode: u32,
) -> Result<(), DiskError> {
    publish(disk, path, PublishMode::Replace, |draft| {
        draft.write_all(bytes)?;
        draft.file.set_permissions(Permissions::from_mode(mode))
    })
}

/// Copies the content of `source` into a new file, which appears under its name complete and
/// synced.
///
/// Returns its size in bytes. Fails with `FileTooLarge` above `max` bytes, and with `AlreadyExists`
/// if the name is taken; neither leaves anything behind.
pub fn write_new_file(
    disk: &dyn DiskBackend,
    path: &Utf8Path,
    source: &mut dyn io::Read,
    max: u64,
) -> Result<u64, DiskError> {
    // A partial copy never has the final name, so an existing name proves a complete file.
    let mut copied = 0;
    publish(disk, path, PublishMode::Refuse, |draft| {
        let mut block = vec![0; COPY_BLOCK_BYTES];
        loop {
            let read = match source.read(&mut block) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            copied += read as u64;
            if copied > max {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            draft.write_all(&block[..read])?;
        }
    })?;
    Ok(copied)
}

/// Replaces many files, each like [`replace_file`], with few waits for the disk.
///
/// The files are on one file system. Each has its own result, in the order given. `may_replace` is
/// called with a file's index just before it is replaced; an error leaves that file unchanged.
pub fn replace_files(
    disk: &dyn DiskBackend,
    files: &[(Utf8PathBuf, Vec<u8>)],
    may_replace: &dyn Fn(usize) -> io::Result<()>,
) -> Vec<Result<(), DiskError>> {
    place_files(disk, files, &|_| true, may_replace).sync()
}

/// Replaces many files like [`replace_files`], but leaves it to [`PlacedFiles::sync`] to make them
/// durable.
///
/// Readers always find the old bytes or the new ones, complete. `syncs_first` returns true for the index
/// of a file that a loss of power must not leave incomplete: its bytes are synced before it has its name.
pub fn place_files<'a>(
    disk: &'a dyn DiskBackend,
    files: &'a [(Utf8PathBuf, Vec<u8>)],
    syncs_first: &dyn Fn(usize) -> bool,
    may_replace: &dyn Fn(usize) -> io::Result<()>,
) -> PlacedFiles<'a> {
    let drafts = files
        .iter()
        .map(|(path, bytes)| TempFile::create_with(disk, path, |file| file.write_all(bytes)));
    let mut placed = PlacedFiles { disk, files, drafts: drafts.collect() };
    // These bytes must be stable before the first rename. Otherwise a power loss could leave a name
    // that points to an empty file.
    placed.sync_bytes(syncs_first);
    for (number, draft) in placed.drafts.iter_mut().enumerate() {
        let Ok(file) = draft else { continue };
        let renamed = may_replace(number)
            .map_err(DiskError::at("replace", file.path))
            .and_then(|()| file.publish_as(PublishMode::Replace));
        if let Err(error) = renamed {
            *draft = Err(error);
        }
    }
    placed
}

/// Makes existing files durable, with their names. Each has its own result, in the order of the files.
///
/// The files are on one file system.
pub fn sync_files(disk: &dyn DiskBackend, files: &[Utf8PathBuf]) -> Vec<Result<(), DiskError>> {
    let paths: Vec<&Utf8Path> = files.iter().map(Utf8PathBuf::as_path).collect();
    let opened: Vec<Result<File, DiskError>> = paths
        .iter()
        .map(|path| untrusted_file::open(path).map_err(DiskError::at("open", path)))
        .collect();
    let handles: Vec<&File> = opened.iter().flatten().collect();
    let Some(first) = paths.first().filter(|_| !handles.is_empty()) else {
        return opened.into_iter().map(|file| file.map(drop)).collect();
    };
    let synced = disk.sync_all(folder_of(first), &handles);
    let mut results: Vec<Result<(), DiskError>> = opened
        .into_iter()
        .zip(&paths)
        .map(|(file, path)| match (file, &synced) {
            (Ok(_), Err(error)) => Err(DiskError::at("sync", path)(duplicate_error(error))),
            (file, _) => file.map(drop),
        })
        .collect();
    sync_folders(disk, &paths, &mut results);
    results
}

/// Makes the names of files durable.
fn sync_folders(
    disk: &dyn DiskBackend,
    paths: &[&Utf8Path],
    results: &mut [Result<(), DiskError>],
) {
    let mut folders: Vec<&Utf8Path> = paths.iter().map(|path| folder_of(path)).collect();
    folders.sort_unstable();
    folders.dedup();
    // One sync per folder covers all names in it.
    for folder in folders {
        let Err(error) = disk.sync_folder(folder) else { continue };
        // A power loss may undo a rename, so these files count as failed.
        for (path, result) in paths.iter().zip(results.iter_mut()) {
            if folder_of(path) == folder && result.is_ok() {
                *result = Err(DiskError::at("sync folder", folder)(duplicate_error(&error)));
            }
        }
    }
}

/// Files that have their names and are not durable yet.
pub struct PlacedFiles<'a> {
    disk: &'a dyn DiskBackend,
    files: &'a [(Utf8PathBuf, Vec<u8>)],
    drafts: Vec<Result<TempFile<'a>, DiskError>>,
}

impl PlacedFiles<'_> {
    /// Returns true if the file with this index has its name.
    pub fn is_placed(&self, number: usize) -> bool {
        self.drafts.get(number).is_some_and(Result::is_ok)
    }

    /// Leaves it to a later [`sync_files`] to make the files durable. Each has its own result.
    pub fn leave_unsynced(self) -> Vec<Result<(), DiskError>> {
        self.drafts.into_iter().map(|draft| draft.map(drop)).collect()
    }

    /// Makes the files durable. Each has its own result, in the order of the files.
    pub fn sync(mut self) -> Vec<Result<(), DiskError>> {
        self.sync_bytes(&|_| true);
        let paths: Vec<&Utf8Path> = self.files.iter().map(|(path, _)| path.as_path()).collect();
        let disk = self.disk;
        let mut results = self.leave_unsynced();
        sync_folders(disk, &paths, &mut results);
        results
    }

    /// Makes the bytes of those files durable that are chosen and not durable yet.
    fn sync_bytes(&mut self, is_chosen: &dyn Fn(usize) -> bool) {
        let files = self.drafts.iter_mut().enumerate();
        let files = files.filter(|(number, _)| is_chosen(*number));
        let mut chosen: Vec<&mut Result<TempFile<'_>, DiskError>> = files
            .map(|(_, draft)| draft)
            .filter(|draft| draft.as_ref().is_ok_and(|file| !file.is_synced))
            .collect();
        let handles: Vec<&File> =
            chosen.iter().flat_map(|draft| draft.as_ref()).map(|it| &it.file).collect();
        let Some((first, _)) = self.files.first().filter(|_| !handles.is_empty()) else { return };
        let synced = self.disk.sync_all(folder_of(first), &handles);
        for draft in &mut chosen {
            match (draft.as_mut(), &synced) {
                (Ok(file), Ok(())) => file.is_synced = true,
                (Ok(file), Err(error)) => {
                    **draft = Err(DiskError::at("sync", file.path)(duplicate_error(error)));
                }
                (Err(_), _) => {}
            }
        }
    }
}

/// Copies an error, to report one failure for several files.
fn duplicate_error(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// Returns once all earlier writes to the file system of `folder` are on stable storage: one wait
/// where many new files would need as many.
#[cfg(target_os = "linux")]
pub fn sync_file_system(folder: &Utf8Path) -> io::Result<()> {
    // Since Linux 5.8 `syncfs` reports write errors of the file system too.
    Ok(rustix::fs::syncfs(File::open(folder)?)?)
}

/// Returns once all earlier writes are on their way to stable storage.
#[cfg(not(target_os = "linux"))]
pub fn sync_file_system(_: &Utf8Path) -> io::Result<()> {
    rustix::fs::sync();
    Ok(())
}

/// Returns a new name beside `path` for a file that is being written: `.<name>.tmp.<random>`.
///
/// [`is_temp`] recognizes it, so files that a crash leaves behind can be removed.
pub fn temp_name(path: &Utf8Path) -> Utf8PathBuf {
    let name = path.file_name().unwrap_or("file");
    folder_of(path).join(format!(".{name}.tmp.{:016x}", fastrand::u64(..)))
}

/// Returns true if a file name has the form that [`temp_name`] produces.
pub fn is_temp(name: &str) -> bool {
    // Strict, because a file with a matching name may be deleted.
    let Some((before, random)) = name.rsplit_once(".tmp.") else { return false };
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    before.len() > 1 && before.starts_with('.') && random.len() == 16 && random.bytes().all(is_hex)
}

/// Creates a directory and its missing ancestors, mode 0700, durably.
///
/// Existing directories are left unchanged.
pub fn create_folder(disk: &dyn DiskBackend, path: &Utf8Path) -> Result<(), DiskError> {
    let parent = folder_of(path);
    if path.is_dir() {
        // Its creator may have been killed before the sync; its own parent was synced first.
        return match disk.sync_folder(parent) {
            // Heeler cannot have created anything in an unreadable directory.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            result => result.map_err(DiskError::at("sync folder", parent)),
        };
    }
    // Ancestors are created and synced first, so a durable folder never has a lost parent.
    if parent != path {
        create_folder(disk, parent)?;
    }
    match disk.create_folder(path) {
        // Another process created it meanwhile, and may not have synced the parent yet.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        result => result.map_err(DiskError::at("create folder", path))?,
    }
    disk.sync_folder(parent).map_err(DiskError::at("sync folder", parent))
}

/// Creates a directory, mode 0700, durably, in one that is durable already, such as a directory of
/// an open state directory. This takes one sync; [`create_folder`] also syncs the parent of the
/// parent, whose creator may have been killed.
pub fn create_subfolder(disk: &dyn DiskBackend, path: &Utf8Path) -> Result<(), DiskError> {
    let parent = folder_of(path);
    if !parent.is_dir() {
        return create_folder(disk, path);
    }
    match disk.create_folder(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        result => result.map_err(DiskError::at("create folder", path))?,
    }
    disk.sync_folder(parent).map_err(DiskError::at("sync folder", parent))
}

/// Behaviour of [`publish`] when the final name is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PublishMode {
    Replace,
    Refuse,
}

/// File under its temporary name; dropping it removes it.
pub(crate) struct TempFile<'a> {
    disk: &'a dyn DiskBackend,
    path: &'a Utf8Path,
    /// Empty once the file has its final name.
    temp: Utf8PathBuf,
    file: File,
    /// Its bytes are durable.
    is_synced: bool,
}

impl<'a> TempFile<'a> {
    /// Creates a file beside `path` and calls `fill` to write it.
    fn create_with(
        disk: &'a dyn DiskBackend,
        path: &'a Utf8Path,
        fill: impl FnOnce(&mut TempFile<'_>) -> io::Result<()>,
    ) -> Result<TempFile<'a>, DiskError> {
        // Checked first: a path such as `..` names no file that could be replaced.
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput.into());
        name.map_err(DiskError::at("write", path))?;
        let temp = temp_name(path);
        let file = disk.create(&temp).map_err(DiskError::at("create", &temp))?;
        let mut draft = TempFile { disk, path, temp, file, is_synced: false };
        fill(&mut draft).map_err(DiskError::at("write", &draft.temp))?;
        Ok(draft)
    }

    pub(crate) fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.disk.write(&self.file, bytes)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => bytes = &bytes[written..],
            }
        }
        Ok(())
    }

    /// Copies the first `len` bytes of a file.
    pub(crate) fn copy_from(&mut self, source: &File, len: u64) -> io::Result<()> {
        let mut at = 0;
        while at < len {
            match self.disk.copy(&self.file, source, at, len - at)? {
                // The source is shorter than promised: a copy with fewer lines must not be
                // published.
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                copied => at += copied,
            }
        }
        Ok(())
    }

    /// Renames the file to its final name.
    fn publish_as(&mut self, taken: PublishMode) -> Result<(), DiskError> {
        let rename = if taken == PublishMode::Replace {
            DiskBackend::rename
        } else {
            DiskBackend::rename_new
        };
        rename(self.disk, &self.temp, self.path)
            .map_err(DiskError::at("put in place", self.path))?;
        // The drop must not remove the file under its old name any more.
        self.temp = Utf8PathBuf::new();
        Ok(())
    }
}

impl Drop for TempFile<'_> {
    fn drop(&mut self) {
        if !self.temp.as_str().is_empty() {
            // The first error is the one to report; a remaining temporary file is removed later.
            drop(self.disk.remove(&self.temp));
        }
    }
}

/// Calls `fill` to write a temporary file, then syncs it and renames it to its final name.
pub(crate) fn publish(
    disk: &dyn DiskBackend,
    path: &Utf8Path,
    taken: PublishMode,
    fill: impl FnOnce(&mut TempFile<'_>) -> io::Result<()>,
) -> Result<(), DiskError> {
    let mut draft = TempFile::create_with(disk, path, fill)?;
    // The bytes are synced before the rename and the name after it. In any other order a power loss
    // could leave the final name with partial content.
    disk.sync(&draft.file).map_err(DiskError::at("sync", &draft.temp))?;
    draft.publish_as(taken)?;
    let folder = folder_of(path);
    disk.sync_folder(folder).map_err(DiskError::at("sync folder", folder))
}

/// Returns the directory that holds `path`.
pub(crate) fn folder_of(path: &Utf8Path) -> &Utf8Path {
    match path.parent() {
        // The parent of a bare file name is the current directory, which an empty path cannot open.
        Some(parent) if parent.as_str().is_empty() => Utf8Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Utf8PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::try_from(temp.path().to_owned()).unwrap();
        (temp, path)
    }

    fn mode(path: &Utf8Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_replaced_file_holds_the_new_bytes_and_no_temp_file_remains() {
        let (_temp, folder) = folder();
        let path = folder.join("state.yaml");
        replace_file(&OsDisk, &path, b"old").unwrap();
        replace_file(&OsDisk, &path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn a_placed_file_is_whole_and_private_and_never_replaces_another() {
        let (_temp, folder) = folder();
        let path = folder.join("report.pdf");
        let bytes = vec![7; COPY_BLOCK_BYTES + 1];
        let len = bytes.len() as u64;
        assert_eq!(write_new_file(&OsDisk, &path, &mut &bytes[..], len).unwrap(), len);
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        assert_eq!(mode(&path), 0o600);
        let kind = |path, max| {
            write_new_file(&OsDisk, path, &mut &bytes[..], max).unwrap_err().source.kind()
        };
        assert_eq!(kind(&path, len), io::ErrorKind::AlreadyExists);
        assert_eq!(kind(&folder.join("other"), len - 1), io::ErrorKind::FileTooLarge);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn what_is_copied_goes_to_the_end_in_the_kernel_and_by_hand() {
        let (_temp, folder) = folder();
        let source = folder.join("source");
        let bytes: Vec<u8> = (0..COPY_BLOCK_BYTES + 7).map(|at| at as u8).collect();
        std::fs::write(&source, &bytes).unwrap();
        let source = File::open(source).unwrap();
        let copy = |name: &str, file: &File, offset, len| match name {
            "in-kernel" => OsDisk.copy(file, &source, offset, len).unwrap(),
            _ => copy_through_memory(&source, offset, len, |block| OsDisk.write(file, block))
                .unwrap(),
        };
        for name in ["in-kernel", "by-hand"] {
            let path = folder.join(name);
            let file = OsDisk.create(&path).unwrap();
            OsDisk.write(&file, b"<").unwrap();
            let (mut at, end) = (1, bytes.len() as u64);
            while at < end {
                at += copy(name, &file, at, end - at);
            }
            assert_eq!(copy(name, &file, end, 9), 0, "{name}: the source has ended");
            OsDisk.write(&file, b">").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), [b"<", &bytes[1..], b">"].concat(), "{name}");
        }
    }

    #[test]
    fn created_folders_are_private_and_existing_ones_are_left_alone() {
        let (_temp, folder) = folder();
        create_folder(&OsDisk, &folder.join("a/b")).unwrap();
        create_folder(&OsDisk, &folder.join("a/b")).unwrap();
        assert_eq!((mode(&folder.join("a")), mode(&folder.join("a/b"))), (0o700, 0o700));
    }

    #[test]
    fn only_our_temp_files_are_recognised() {
        assert!(is_temp(temp_name(Utf8Path::new("a/state.yaml")).file_name().unwrap()));
        for name in [
            "state.yaml.tmp.0123456789abcdef",
            ".state.yaml.tmp.0123",
            ".state.yaml.tmp.0123456789ABCDEF",
            ".tmp.0123456789abcdef",
            ".state.yaml.swp",
        ] {
            assert!(!is_temp(name), "{name}");
        }
    }

    #[test]
    fn a_rename_to_a_taken_name_is_refused() {
        let (_temp, folder) = folder();
        std::fs::write(folder.join("a"), "a").unwrap();
        std::fs::write(folder.join("b"), "b").unwrap();
        let error = OsDisk.rename_new(&folder.join("a"), &folder.join("b")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(folder.join("b")).unwrap(), b"b");
    }

    #[test]
    fn a_file_without_a_name_is_refused() {
        let error = replace_file(&OsDisk, Utf8Path::new("/"), b"").unwrap_err();
        assert_eq!(error.to_string(), "cannot write /");
    }
}
