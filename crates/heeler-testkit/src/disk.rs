//! A simulated disk that fails on demand and records the operations that a power loss could
//! undo.
//!
//! [`SimDisk`] also performs every operation on real files, so readers and locks behave as in
//! production. It must be used for one directory, and nothing else may use that directory at
//! the same time.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Mutex, MutexGuard};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{DiskBackend, OsDisk};

/// Fault of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimulatedFault {
    /// The disk is full.
    Full,
    /// The device fails.
    Broken,
    /// A write takes half of the bytes; other calls work.
    Short,
    /// A write takes half of the bytes and reports a device failure; other calls report one too.
    Torn,
}

impl SimulatedFault {
    pub const ALL: [Self; 4] = [Self::Full, Self::Broken, Self::Short, Self::Torn];

    fn error(self) -> Option<io::Error> {
        match self {
            Self::Full => Some(io::ErrorKind::StorageFull.into()),
            // EIO has no `ErrorKind` of its own.
            Self::Broken | Self::Torn => Some(io::Error::from_raw_os_error(5)),
            Self::Short => None,
        }
    }
}

/// Identifies a file independently of its name.
pub(crate) type FileId = usize;

/// A recorded operation. Paths are relative to the root.
#[derive(Debug, Clone)]
pub(crate) enum DiskOperation {
    Create { file: FileId, path: Utf8PathBuf },
    CreateFolder { path: Utf8PathBuf },
    Write { file: FileId, bytes: Vec<u8> },
    Truncate { file: FileId, len: u64 },
    Sync { file: FileId },
    Rename { from: Utf8PathBuf, to: Utf8PathBuf },
    Remove { path: Utf8PathBuf },
    SyncFolder { path: Utf8PathBuf },
    Mark(u64),
}

/// The directory at the start of the recording, all of it on stable storage.
#[derive(Debug, Default, Clone)]
pub(crate) struct InitialTree {
    pub(crate) folders: Vec<Utf8PathBuf>,
    pub(crate) files: Vec<(Utf8PathBuf, Vec<u8>)>,
}

/// A disk that fails on demand and records the operations that a power loss could undo.
#[derive(Debug)]
pub struct SimDisk {
    root: Utf8PathBuf,
    pub(crate) initial: InitialTree,
    state: Mutex<SimDiskState>,
}

#[derive(Debug, Default)]
struct SimDiskState {
    ops: Vec<DiskOperation>,
    /// The file of each inode.
    files: HashMap<u64, FileId>,
    files_made: usize,
    calls: usize,
    /// The calls that fail, and their fault.
    fault: Option<(std::ops::Range<usize>, SimulatedFault)>,
}

impl SimDisk {
    /// Simulates the disk that holds `root`; its present content counts as synced.
    pub fn new(root: &Utf8Path) -> Self {
        let mut before = InitialTree::default();
        let mut state = SimDiskState::default();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in folder.read_dir_utf8().unwrap() {
                let path = entry.unwrap().into_path();
                let name = path.strip_prefix(root).unwrap().to_owned();
                if path.is_dir() {
                    before.folders.push(name);
                    folders.push(path);
                } else {
                    let id = before.files.len();
                    state.files.insert(path.metadata().unwrap().ino(), id);
                    before.files.push((name, std::fs::read(&path).unwrap()));
                }
            }
        }
        state.files_made = before.files.len();
        Self { root: root.to_owned(), initial: before, state: Mutex::new(state) }
    }

    /// Makes only the call with this number fail, counted from 0.
    pub fn fail_at(&self, call: usize, trouble: SimulatedFault) {
        self.lock().fault = Some((call..call + 1, trouble));
    }

    /// Makes the call with this number and all later ones fail, until [`SimDisk::clear_faults`].
    pub fn fail_from(&self, call: usize, trouble: SimulatedFault) {
        self.lock().fault = Some((call..usize::MAX, trouble));
    }

    pub fn clear_faults(&self) {
        self.lock().fault = None;
    }

    /// Returns the number of calls that change the disk.
    pub fn calls(&self) -> usize {
        self.lock().calls
    }

    /// Records that the code under test has made a promise: see `CrashState::marks`.
    pub fn mark(&self, mark: u64) {
        self.lock().ops.push(DiskOperation::Mark(mark));
    }

    pub(crate) fn ops(&self) -> Vec<DiskOperation> {
        self.lock().ops.clone()
    }

    fn lock(&self) -> MutexGuard<'_, SimDiskState> {
        self.state.lock().unwrap()
    }

    /// Counts a call and returns its fault, if it must fail.
    fn begin(&self) -> (MutexGuard<'_, SimDiskState>, Option<SimulatedFault>) {
        let mut state = self.lock();
        let call = state.calls;
        state.calls += 1;
        let trouble = state.fault.clone().filter(|(calls, _)| calls.contains(&call));
        (state, trouble.map(|(_, trouble)| trouble))
    }

    /// Performs a call that either works or fails, and records it if it worked.
    fn call<T>(
        &self,
        act: impl FnOnce() -> io::Result<T>,
        record: impl FnOnce(&mut SimDiskState, &T) -> DiskOperation,
    ) -> io::Result<T> {
        let (mut state, trouble) = self.begin();
        if let Some(error) = trouble.and_then(SimulatedFault::error) {
            return Err(error);
        }
        let done = act()?;
        let op = record(&mut state, &done);
        state.ops.push(op);
        Ok(done)
    }

    fn relative_path(&self, path: &Utf8Path) -> Utf8PathBuf {
        path.strip_prefix(&self.root).expect("the disk is used for its own folder").to_owned()
    }

    fn rename_by(
        &self,
        from: &Utf8Path,
        to: &Utf8Path,
        rename: fn(&OsDisk, &Utf8Path, &Utf8Path) -> io::Result<()>,
    ) -> io::Result<()> {
        assert_eq!(from.parent(), to.parent(), "renames stay in their folder");
        let op =
            DiskOperation::Rename { from: self.relative_path(from), to: self.relative_path(to) };
        self.call(|| rename(&OsDisk, from, to), |_, ()| op)
    }
}

impl SimDiskState {
    fn id(&self, file: &File) -> FileId {
        self.files[&file.metadata().unwrap().ino()]
    }
}

impl DiskBackend for SimDisk {
    fn create(&self, path: &Utf8Path) -> io::Result<File> {
        self.call(
            || OsDisk.create(path),
            |state, file| {
                let id = state.files_made;
                state.files_made += 1;
                // The inode of a removed file may be reused: then it is another file.
                state.files.insert(file.metadata().unwrap().ino(), id);
                DiskOperation::Create { file: id, path: self.relative_path(path) }
            },
        )
    }

    fn create_folder(&self, path: &Utf8Path) -> io::Result<()> {
        let op = DiskOperation::CreateFolder { path: self.relative_path(path) };
        self.call(|| OsDisk.create_folder(path), |_, ()| op)
    }

    fn write(&self, file: &File, bytes: &[u8]) -> io::Result<usize> {
        let (mut state, trouble) = self.begin();
        let half = &bytes[..bytes.len() / 2];
        let (taken, result) = match trouble {
            None => (bytes, Ok(bytes.len())),
            Some(SimulatedFault::Short) => (half, Ok(half.len())),
            Some(SimulatedFault::Torn) => (half, Err(io::Error::from_raw_os_error(5))),
            Some(trouble) => (&[][..], Err(trouble.error().expect("only a short write has none"))),
        };
        assert_eq!(OsDisk.write(file, taken)?, taken.len(), "the real disk is full");
        let op = DiskOperation::Write { file: state.id(file), bytes: taken.to_owned() };
        state.ops.push(op);
        result
    }

    fn truncate(&self, file: &File, len: u64) -> io::Result<()> {
        self.call(
            || OsDisk.truncate(file, len),
            |state, ()| DiskOperation::Truncate { file: state.id(file), len },
        )
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        // A real sync would cost milliseconds and prove nothing.
        self.call(|| Ok(()), |state, ()| DiskOperation::Sync { file: state.id(file) })
    }

    fn rename(&self, from: &Utf8Path, to: &Utf8Path) -> io::Result<()> {
        self.rename_by(from, to, OsDisk::rename)
    }

    fn rename_new(&self, from: &Utf8Path, to: &Utf8Path) -> io::Result<()> {
        self.rename_by(from, to, OsDisk::rename_new)
    }

    fn remove(&self, path: &Utf8Path) -> io::Result<()> {
        let op = DiskOperation::Remove { path: self.relative_path(path) };
        self.call(|| OsDisk.remove(path), |_, ()| op)
    }

    fn sync_folder(&self, path: &Utf8Path) -> io::Result<()> {
        // Files outside the root never change.
        let Ok(path) = path.strip_prefix(&self.root) else { return Ok(()) };
        self.call(|| Ok(()), |_, ()| DiskOperation::SyncFolder { path: path.to_owned() })
    }
}
