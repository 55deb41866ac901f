//! Restores the files of a snapshot in the work tree itself. Start at [`SnapshotStore::restore`].
//!
//! Only files that differ between the current state and the snapshot are touched, and the current
//! state is recorded first. A file that does not have its recorded content when its turn comes is kept
//! and reported: the user may be editing it, or no snapshot holds it. The index, `HEAD` and branches of
//! the user's repository are not changed.

use std::io::{self, BufRead, BufReader, Read, Write};

use camino::Utf8Path;
use heeler_transcript::sync_file_system;
use jiff::Timestamp;

use crate::git_command::GitInput;
use crate::object_id::ObjectId;
use crate::pending_folder::PendingFolder;
use crate::restore_step::{RestoreStep, RestoreTarget, is_writable_path};
use crate::snapshot::{CommitId, Snapshot, SnapshotName};
use crate::snapshot_cache::GitFileMode;
use crate::snapshot_store::{SnapshotError, SnapshotOperation, SnapshotStore, io_at};
use crate::work_tree::WorkTree;

/// Length limit of a line by which `git cat-file --batch` announces an object.
const HEADER_BYTES_MAX: u64 = 256;

/// Size limit of the target of a link.
const LINK_BYTES_MAX: u64 = 4096;

/// Extent of a restoration.
#[derive(Debug, Clone, Copy)]
pub enum RestoreMode<'a> {
    /// Change the files. The state before is recorded under this name.
    Restore(&'a SnapshotName),
    /// Change nothing, and return the planned changes.
    DryRun,
}

/// Result of a restoration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRestoration {
    /// State before the restoration. Restoring it undoes this one.
    pub before: Snapshot,
    /// Files that differ, in the order of their paths.
    pub files: Vec<RestoredFile>,
}

/// File that differs from the snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoredFile {
    /// Path below the top directory; bytes that are not UTF-8 are replaced.
    pub path: String,
    pub action: RestoredFileAction,
}

/// Change of a file by a restoration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestoredFileAction {
    /// The file did not exist, and has been created.
    Created,
    /// The file has its former content or permissions again.
    Replaced,
    /// The file does not exist in the snapshot, and has been removed.
    Removed,
    /// The file is as it was, for this reason.
    Kept(String),
}

impl SnapshotStore {
    /// Restores the files of a snapshot in a work tree.
    ///
    /// No agent may be working in it. A crash leaves each file in its old or its new state; a second
    /// call completes the rest.
    pub fn restore(
        &self,
        tree: &WorkTree,
        to: &CommitId,
        mode: RestoreMode<'_>,
        now: Timestamp,
    ) -> Result<FileRestoration, SnapshotError> {
        let work = self.begin_shared()?;
        // No other snapshot of this work tree may see it half restored.
        let _lock = work.lock_tree(&tree.top)?;
        let (name, note) = match mode {
            RestoreMode::Restore(name) => (Some(name), "before its files were restored"),
            RestoreMode::DryRun => (None, "for a comparison"),
        };
        // Recorded first, so that nothing is lost.
        let before = work.record(tree, name, note, now)?;
        let mut steps = work.restore_steps(&before.commit, to)?;
        for step in &mut steps {
            self.refuse_foreign_path(&tree.top, step);
        }
        if let RestoreMode::Restore(_) = mode
            && steps.iter().any(RestoreStep::is_pending)
        {
            work.restore_files(tree, &mut steps)?;
        }
        let files = steps.into_iter().map(RestoreStep::into_file).collect();
        Ok(FileRestoration { before, files })
    }

    /// Keeps a path that no snapshot of this work tree can contain. A snapshot may have been imported
    /// from elsewhere.
    fn refuse_foreign_path(&self, top: &Utf8Path, step: &mut RestoreStep) {
        if !is_writable_path(&step.path) {
            step.keep("the path is not valid in a work tree");
        } else if self.excluded.iter().any(|folder| step.is_below(top, folder)) {
            step.keep("Heeler's own files are not restored");
        } else if step.is_submodule() {
            step.keep("it is a submodule, of which only the commit is recorded");
        }
    }
}

impl SnapshotOperation<'_> {
    /// Returns the differences between two snapshots, sorted by path.
    fn restore_steps(
        &self,
        from: &CommitId,
        to: &CommitId,
    ) -> Result<Vec<RestoreStep>, SnapshotError> {
        // A commit outside of this repository must be told apart from a failure of git.
        self.commit_text(to)?;
        let args = ["diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames"];
        let git = self.git(&[&args[..], &[from.as_str(), to.as_str()]].concat())?;
        let listed = git.output(self.lock_input())?;
        let mut steps = Vec::new();
        let mut fields = listed.split(|&byte| byte == 0);
        while let (Some(line), Some(path)) = (fields.next(), fields.next()) {
            let step = RestoreStep::parse(line, path);
            let unknown = || io_at("compare", &self.scratch)(io::ErrorKind::InvalidData.into());
            steps.push(step.ok_or_else(unknown)?);
        }
        steps.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Ok(steps)
    }

    fn restore_files(
        &self,
        tree: &WorkTree,
        steps: &mut [RestoreStep],
    ) -> Result<(), SnapshotError> {
        let format = self.snapshots.format;
        // In the work tree, because a rename needs the same file system.
        let drafts = PendingFolder::new(self.snapshots, &tree.top.join("restored"))?;
        let target = RestoreTarget::open(&tree.top, &drafts.path, format);
        let target = target.map_err(io_at("open", &tree.top))?;
        // Removals come first, because a file may take the place of a directory. The deepest path comes
        // first, so that the directory is empty by then.
        for step in steps.iter_mut().rev().filter(|step| step.is_removal()) {
            target.remove(step);
        }
        let mut writes: Vec<&mut RestoreStep> =
            steps.iter_mut().filter(|step| step.is_write()).collect();
        let wanted: String =
            writes.iter().filter_map(|step| step.content()).map(|oid| oid.hex() + "\n").collect();
        let mut feed = |to: &mut dyn Write| to.write_all(wanted.as_bytes());
        let mut read = |out: &mut dyn Read| {
            let mut out = BufReader::new(out);
            writes.iter_mut().try_for_each(|step| write_next(&mut out, &target, step))
        };
        self.git(&["cat-file", "--batch"])?.read(GitInput::Write(&mut feed), &mut read)?;
        // The directory for drafts is removed with its note when it is dropped.
        sync_file_system(&tree.top).map_err(io_at("sync", &tree.top))
    }
}

/// Reads the next object of `git cat-file --batch`, and writes it to the path of a step.
fn write_next(
    out: &mut impl BufRead,
    target: &RestoreTarget,
    step: &mut RestoreStep,
) -> io::Result<()> {
    let mut header = Vec::new();
    out.by_ref().take(HEADER_BYTES_MAX).read_until(b'\n', &mut header)?;
    let header = String::from_utf8_lossy(&header).trim_end().to_owned();
    // `<oid> blob <size>`, or `<oid> missing`.
    let mut words = header.split(' ');
    let oid = words.next().and_then(|oid| ObjectId::parse(oid.as_bytes()));
    let (kind, size) = (words.next(), words.next().and_then(|size| size.parse::<u64>().ok()));
    let (Some("blob"), Some(size)) = (kind, size) else {
        step.keep("its content is missing in the snapshot");
        return match kind {
            Some("missing") => Ok(()),
            _ => Err(io::Error::other(format!("git answered {header:?}"))),
        };
    };
    if oid != step.content() {
        return Err(io::Error::other("git returned another object"));
    }
    let mut content = out.by_ref().take(size);
    if step.mode() == Some(GitFileMode::Link) {
        if size > LINK_BYTES_MAX {
            step.keep("the target of the link is too long");
        } else {
            let mut link = Vec::new();
            content.read_to_end(&mut link)?;
            target.write_link(step, &link);
        }
    } else {
        target.write_file(step, &mut content);
    }
    // The rest of a file that was kept, and the line feed behind the content.
    io::copy(&mut content, &mut io::sink())?;
    out.read_exact(&mut [0])
}
