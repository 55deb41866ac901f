//! The real disk, with a test's own behaviour in some of its calls.
//!
//! Start at [`HookedDisk`].

use std::fs::File;
use std::io;
use std::ops::Deref;

use camino::Utf8Path;
use heeler_transcript::{DiskBackend, OsDisk};

/// A test's behaviour in calls of a disk. Each method may fail, hang or count the call.
pub trait DiskHook: std::fmt::Debug + Send + Sync {
    /// Called before a file is created.
    fn before_create(&self, _path: &Utf8Path) -> io::Result<()> {
        Ok(())
    }
    /// Called after a file was created.
    fn after_create(&self, _path: &Utf8Path) -> io::Result<()> {
        Ok(())
    }
    /// Called before bytes are written.
    fn before_write(&self, _file: &File, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }
    /// Called instead of a sync.
    fn sync(&self, file: &File) -> io::Result<()> {
        OsDisk.sync(file)
    }
}

/// The real disk, with a test's behaviour in its calls.
#[derive(Debug, Default)]
pub struct HookedDisk<H>(pub H);

impl<H> Deref for HookedDisk<H> {
    type Target = H;

    fn deref(&self) -> &H {
        &self.0
    }
}

impl<H: DiskHook> DiskBackend for HookedDisk<H> {
    fn create(&self, path: &Utf8Path) -> io::Result<File> {
        self.before_create(path)?;
        let file = OsDisk.create(path)?;
        self.after_create(path)?;
        Ok(file)
    }

    fn create_folder(&self, path: &Utf8Path) -> io::Result<()> {
        OsDisk.create_folder(path)
    }

    fn write(&self, file: &File, bytes: &[u8]) -> io::Result<usize> {
        self.before_write(file, bytes)?;
        OsDisk.write(file, bytes)
    }

    fn truncate(&self, file: &File, len: u64) -> io::Result<()> {
        OsDisk.truncate(file, len)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.0.sync(file)
    }

    fn rename(&self, from: &Utf8Path, to: &Utf8Path) -> io::Result<()> {
        OsDisk.rename(from, to)
    }

    fn rename_new(&self, from: &Utf8Path, to: &Utf8Path) -> io::Result<()> {
        OsDisk.rename_new(from, to)
    }

    fn remove(&self, path: &Utf8Path) -> io::Result<()> {
        OsDisk.remove(path)
    }

    fn sync_folder(&self, path: &Utf8Path) -> io::Result<()> {
        OsDisk.sync_folder(path)
    }
}
