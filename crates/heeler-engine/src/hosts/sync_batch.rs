//! Makes many files durable with one wait.
//!
//! The files of a batch are noted while they are read or written, and made durable together by
//! [`SyncBatch::finish`]: a few one by one, many by one sync of their file system. As a
//! [`DiskBackend`], it only notes what is to be synced: the bytes are durable once `finish` has returned.
//! Start at [`SyncBatch::add`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Mutex, OnceLock, PoisonError};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{DiskBackend, OsDisk};

/// Most files of a file system that are synced one by one. One sync of the file system takes as long as a
/// few of them, but also writes what other programs have changed there.
const SYNC_ALONE_MAX: usize = 16;

/// First version of Linux that reports failed writes when a file system is synced.
const LINUX_REPORTS: (u32, u32) = (5, 8);

/// Files that are to be made durable.
#[derive(Debug, Default)]
pub(super) struct SyncBatch {
    pending: Mutex<PendingSyncs>,
}

#[derive(Debug, Default)]
struct PendingSyncs {
    /// By the number of the device.
    devices: BTreeMap<u64, DeviceSyncs>,
    /// Folders that are among the files.
    folders: BTreeSet<Utf8PathBuf>,
}

#[derive(Debug, Default)]
struct DeviceSyncs {
    /// With the number of the inode, in the order in which they were noted. Not more than are synced one by
    /// one: each keeps a file open.
    files: Vec<(u64, File)>,
    /// There are more.
    is_many: bool,
}

impl SyncBatch {
    /// Notes a file or folder, which may be closed then.
    pub(super) fn add(&self, file: &File) -> io::Result<()> {
        let found = file.metadata()?;
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let device = pending.devices.entry(found.dev()).or_default();
        if device.is_many || device.files.iter().any(|(inode, _)| *inode == found.ino()) {
            return Ok(());
        }
        if device.files.len() < SYNC_ALONE_MAX {
            device.files.push((found.ino(), file.try_clone()?));
            return Ok(());
        }
        match can_sync_together() {
            true => device.is_many = true,
            false => sync_alone(file)?,
        }
        Ok(())
    }

    /// Returns once all noted files are on stable storage.
    pub(super) fn finish(&self) -> io::Result<()> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, device) in std::mem::take(&mut *pending).devices {
            match device.files.first() {
                // It was opened before the first write of the batch, so the kernel reports each failure since
                // then.
                Some((_, first)) if device.is_many => sync_file_system_of(first)?,
                _ => device.files.iter().try_for_each(|(_, file)| sync_alone(file))?,
            }
        }
        Ok(())
    }
}

fn sync_alone(file: &File) -> io::Result<()> {
    match file.metadata()?.is_dir() {
        true => file.sync_all(),
        false => file.sync_data(),
    }
}

/// Returns true if a sync of a file system reports failures.
fn can_sync_together() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let release = rustix::system::uname();
        cfg!(target_os = "linux") && reports_failures(&release.release().to_string_lossy())
    })
}

/// Returns true for a release of Linux that reports failed writes of a file system.
fn reports_failures(release: &str) -> bool {
    let mut numbers = release.split(|char: char| !char.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= LINUX_REPORTS,
        _ => false,
    }
}

#[cfg(target_os = "linux")]
fn sync_file_system_of(file: &File) -> io::Result<()> {
    Ok(rustix::fs::syncfs(file)?)
}

#[cfg(not(target_os = "linux"))]
fn sync_file_system_of(_: &File) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

impl DiskBackend for SyncBatch {
    fn create(&self, path: &Utf8Path) -> io::Result<File> {
        OsDisk.create(path)
    }

    fn create_folder(&self, path: &Utf8Path) -> io::Result<()> {
        OsDisk.create_folder(path)
    }

    fn write(&self, file: &File, bytes: &[u8]) -> io::Result<usize> {
        OsDisk.write(file, bytes)
    }

    fn truncate(&self, file: &File, len: u64) -> io::Result<()> {
        // The bytes may have been saved elsewhere.
        self.finish()?;
        OsDisk.truncate(file, len)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.add(file)
    }

    fn rename(&self, from: &Utf8Path, to: &Utf8Path) -> io::Result<()> {
        // A name must not be durable before its bytes.
        self.finish()?;
        OsDisk.rename(from, to)
    }

    fn rename_new(&self, from: &Utf8Path, to: &Utf8Path) -> io::Result<()> {
        self.finish()?;
        OsDisk.rename_new(from, to)
    }

    fn remove(&self, path: &Utf8Path) -> io::Result<()> {
        OsDisk.remove(path)
    }

    fn sync_folder(&self, path: &Utf8Path) -> io::Result<()> {
        let is_new = {
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            pending.folders.insert(path.to_owned())
        };
        match is_new {
            true => self.add(&File::open(path)?),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_that_report_failures_sync_a_file_system() {
        for (release, is_so) in [
            ("5.8.0", true),
            ("5.10.0-35-amd64", true),
            ("6.18.44-x", true),
            ("5.7.19", false),
            ("4.19.0", false),
            ("24.1", true),
            ("", false),
            ("unknown", false),
        ] {
            assert_eq!(reports_failures(release), is_so, "{release}");
        }
    }

    #[test]
    fn few_files_are_synced_alone_and_many_keep_few_open() {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temp.path().to_owned()).unwrap();
        let batch = SyncBatch::default();
        let noted = || {
            let pending = batch.pending.lock().unwrap();
            let device = pending.devices.values().next();
            device.map(|device| (device.files.len(), device.is_many))
        };
        for number in 0..SYNC_ALONE_MAX + 9 {
            let file = batch.create(&root.join(number.to_string())).unwrap();
            batch.write(&file, b"row").unwrap();
            for _ in 0..2 {
                batch.sync(&file).unwrap();
            }
            let open = (number + 1).min(SYNC_ALONE_MAX);
            assert_eq!(noted(), Some((open, can_sync_together() && number >= SYNC_ALONE_MAX)));
        }
        batch.finish().unwrap();
        assert_eq!(noted(), None);
        for _ in 0..2 {
            batch.sync_folder(&root).unwrap();
        }
        assert_eq!(noted(), Some((1, false)));
        // A rename is preceded by a sync.
        batch.rename(&root.join("1"), &root.join("one")).unwrap();
        assert_eq!(noted(), None);
        batch.sync_folder(&root).unwrap();
        assert_eq!(noted(), Some((1, false)), "the new name needs a sync");
    }
}
