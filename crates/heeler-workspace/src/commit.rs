//! The two commits of a snapshot.
//!
//! The first commit's tree is the user's index, the second's is the work tree. The second has the
//! user's `HEAD` as its first parent and the first commit as its last; the last line of its message
//! holds the remaining metadata.

use std::io;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::object_id::{ObjectId, ObjectKind};
use crate::pack_writer::PackWriter;
use crate::snapshot::{CommitId, Snapshot, SnapshotOmission};
use crate::snapshot_cache::ContentDigest;
use crate::work_tree::HeadState;

/// Start of the last line of a snapshot's message.
const METADATA_PREFIX: &str = "Heeler: ";

/// Committer of the commits. A neutral name: they are never attributed to a person.
const COMMITTER: &str = "heeler <heeler@localhost>";

/// Content of the commits.
pub(crate) struct SnapshotCommitDraft<'a> {
    pub(crate) head: &'a HeadState,
    pub(crate) index_tree: ObjectId,
    pub(crate) note: &'a str,
    pub(crate) now: Timestamp,
}

#[derive(Serialize, Deserialize)]
struct SnapshotCommitMetadata {
    base: Option<CommitId>,
    branch: Option<String>,
    left_out: Vec<SnapshotOmission>,
}

impl SnapshotCommitDraft<'_> {
    /// Returns a digest of everything that the commits record, except for the time and the note.
    pub(crate) fn content_digest(
        &self,
        tree: ObjectId,
        left_out: &[SnapshotOmission],
    ) -> io::Result<ContentDigest> {
        let meta = self.metadata(left_out)?;
        let text = format!("{}\n{}\n{meta}", tree.hex(), self.index_tree.hex());
        Ok(Sha256::digest(text.as_bytes()).into())
    }

    fn metadata(&self, left_out: &[SnapshotOmission]) -> io::Result<String> {
        let meta = SnapshotCommitMetadata {
            base: self.head.commit.clone(),
            branch: self.head.branch.clone(),
            left_out: left_out.to_vec(),
        };
        Ok(serde_json::to_string(&meta)?)
    }

    /// Adds both commits to a pack; returns the second.
    pub(crate) fn write(
        &self,
        pack: &mut PackWriter,
        tree: ObjectId,
        left_out: &[SnapshotOmission],
    ) -> io::Result<CommitId> {
        let base = self.head.commit.as_ref();
        let meta = self.metadata(left_out)?;
        let staged = self.commit(pack, self.index_tree, &[base], "what was staged\n")?;
        let message = format!("{}\n\n{METADATA_PREFIX}{meta}\n", self.note);
        self.commit(pack, tree, &[base, Some(&staged)], &message)
    }

    fn commit(
        &self,
        pack: &mut PackWriter,
        tree: ObjectId,
        parents: &[Option<&CommitId>],
        message: &str,
    ) -> io::Result<CommitId> {
        let mut text = format!("tree {}\n", tree.hex());
        for parent in parents.iter().flatten() {
            text.push_str(&format!("parent {parent}\n"));
        }
        // Git accepts no time before 1970.
        let seconds = self.now.as_second().max(0);
        for role in ["author", "committer"] {
            text.push_str(&format!("{role} {COMMITTER} {seconds} +0000\n"));
        }
        // Git ends a message at a zero byte.
        text.push_str(&format!("\n{}", message.replace('\0', "\u{fffd}")));
        let oid = pack.add(ObjectKind::Commit, text.as_bytes())?;
        Ok(CommitId::parse(&oid.hex()).expect("an object id is a commit id"))
    }
}

/// Parses a snapshot from the text of its commit; `None` if the commit is not a snapshot.
pub(crate) fn read_commit(commit: &CommitId, text: &str) -> Option<Snapshot> {
    // The last line, because the note above it may contain anything.
    let line = text.trim_end().lines().next_back()?.strip_prefix(METADATA_PREFIX)?;
    let SnapshotCommitMetadata { base, branch, left_out } = serde_json::from_str(line).ok()?;
    Some(Snapshot { commit: commit.clone(), base, branch, omissions: left_out })
}

/// Returns the tree of a commit.
pub(crate) fn parse_tree(text: &str) -> Option<ObjectId> {
    ObjectId::parse(text.lines().next()?.strip_prefix("tree ")?.as_bytes())
}

/// Returns the commit that holds the staged files: the last parent.
pub(crate) fn parse_staged_commit(text: &str) -> Option<CommitId> {
    let parents = text.lines().take_while(|line| !line.is_empty());
    // A commit without a base has the staged one as its only parent.
    parents.filter_map(|line| line.strip_prefix("parent ")).last().and_then(CommitId::parse)
}
