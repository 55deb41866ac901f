//! Directory outside Heeler's repository, removed at the next opening if a crash leaves it behind. Start
//! at [`PendingFolder`].

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::temp_name;

use crate::snapshot_store::{SnapshotError, SnapshotStore, io_at};

/// Directory outside Heeler's repository that must not outlive a crash: a note records it.
pub(crate) struct PendingFolder {
    pub(crate) path: Utf8PathBuf,
    note: Utf8PathBuf,
}

impl PendingFolder {
    /// Creates the directory beside `at`.
    pub(crate) fn new(
        snapshots: &SnapshotStore,
        at: &Utf8Path,
    ) -> Result<PendingFolder, SnapshotError> {
        let path = temp_name(at);
        let name = format!("pending/{:016x}", fastrand::u64(..));
        // The note is durable before the folder exists, or a crash would leave an unknown folder.
        snapshots.write(&name, path.as_str().as_bytes())?;
        let pending = PendingFolder { path, note: snapshots.root.join(name) };
        let made = DirBuilder::new().mode(0o700).create(&pending.path);
        made.map_err(io_at("make", &pending.path))?;
        Ok(pending)
    }

    /// Ends the pending state: the directory has become permanent, or is gone.
    pub(crate) fn done(self) -> Result<(), SnapshotError> {
        fs::remove_file(&self.note).map_err(io_at("remove", &self.note))
    }
}

impl Drop for PendingFolder {
    fn drop(&mut self) {
        // After a success both are gone; leftovers of a failure are removed at the next opening.
        if fs::remove_dir_all(&self.path).is_ok() {
            let _unused = fs::remove_file(&self.note);
        }
    }
}
