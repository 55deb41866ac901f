//! Differences between two snapshots, or between a snapshot and the current files. Start at
//! [`SnapshotStore::diff`].

use std::io::{self, Read};

use camino::Utf8Path;
use jiff::Timestamp;

use crate::commit::read_commit;
use crate::object_id::short_digest;
use crate::snapshot::{CommitId, Snapshot, SnapshotName};
use crate::snapshot_store::{SnapshotError, SnapshotOperation, SnapshotStore};
use crate::work_tree::WorkTree;

/// Size limit of the patch in a [`SnapshotDiff`].
pub const PATCH_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Target that a snapshot is compared with.
#[derive(Debug, Clone, Copy)]
pub enum DiffTarget<'a> {
    /// Another snapshot, or any commit in this repository.
    Commit(&'a CommitId),
    /// The current files.
    Now(&'a WorkTree),
}

/// Differences between two states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotDiff {
    /// One line per file, and a total.
    pub summary: String,
    /// Unified diff, with the exact bytes of the files.
    pub patch: Vec<u8>,
    /// The patch was cut at [`PATCH_BYTES_MAX`].
    pub cut: bool,
}

impl SnapshotStore {
    /// Finds a snapshot by name.
    pub fn find(&self, name: &SnapshotName) -> Result<Option<Snapshot>, SnapshotError> {
        match self.commit_of(name)? {
            Some(commit) => Ok(Some(self.snapshot(&commit)?)),
            None => Ok(None),
        }
    }

    /// Returns a snapshot by its commit.
    pub fn snapshot(&self, commit: &CommitId) -> Result<Snapshot, SnapshotError> {
        let text = self.begin_shared()?.commit_text(commit)?;
        let none = || SnapshotError::NotASnapshot { commit: commit.to_string() };
        read_commit(commit, &text).ok_or_else(none)
    }

    /// Returns the last recorded state of a work tree, including states recorded for a comparison;
    /// `None` if it is no longer known.
    pub fn last_commit(&self, top: &Utf8Path) -> Result<Option<CommitId>, SnapshotError> {
        let path = self.root.join("kept").join(short_digest(top.as_str()));
        // Under the lock, so that the commit is not pruned between the two reads.
        let work = self.begin_shared()?;
        let commit = self.read_ref(&path)?;
        Ok(commit.filter(|commit| work.commit_text(commit).is_ok()))
    }

    /// Compares a snapshot with another, or with the current files.
    pub fn diff(
        &self,
        from: &CommitId,
        to: DiffTarget<'_>,
        now: Timestamp,
    ) -> Result<SnapshotDiff, SnapshotError> {
        let work = self.begin_shared()?;
        let to = match to {
            DiffTarget::Commit(commit) => commit.clone(),
            DiffTarget::Now(tree) => {
                let _lock = work.lock_tree(&tree.top)?;
                // Without a name: a comparison must not replace a snapshot of the session.
                work.record(tree, None, "for a comparison", now)?.commit
            }
        };
        let summary = work.diff_tree(from, &to, &["--stat=100"])?.0;
        // The patch must be applicable, including binary files.
        let options = ["--patch", "--binary", "--full-index", "--src-prefix=a/", "--dst-prefix=b/"];
        let (patch, cut) = work.diff_tree(from, &to, &options)?;
        Ok(SnapshotDiff { summary: String::from_utf8_lossy(&summary).into_owned(), patch, cut })
    }
}

impl SnapshotOperation<'_> {
    /// Returns the text of a commit in this repository.
    pub(crate) fn commit_text(&self, commit: &CommitId) -> Result<String, SnapshotError> {
        let none = |_| SnapshotError::NotASnapshot { commit: commit.to_string() };
        self.git(&["cat-file", "commit", commit.as_str()])?.text(self.lock_input()).map_err(none)
    }

    fn diff_tree(
        &self,
        from: &CommitId,
        to: &CommitId,
        options: &[&str],
    ) -> Result<(Vec<u8>, bool), SnapshotError> {
        let mut args =
            // No program of the user's config is run, and no color codes are mixed into the patch.
            vec!["diff-tree", "-r", "-M", "--no-ext-diff", "--no-textconv", "--no-color"];
        args.extend(options);
        args.extend([from.as_str(), to.as_str()]);
        let (mut bytes, mut cut) = (Vec::new(), false);
        let mut read = |out: &mut dyn Read| {
            let mut first = out.take(PATCH_BYTES_MAX as u64);
            first.read_to_end(&mut bytes)?;
            // The rest is read too. Git would otherwise fail with a broken pipe.
            cut = io::copy(first.into_inner(), &mut io::sink())? > 0;
            Ok(())
        };
        self.git(&args)?.read(self.lock_input(), &mut read)?;
        Ok((bytes, cut))
    }
}
