//! Worktrees of Heeler's repository, created from snapshots.
//!
//! A worktree is created under a temporary name and renamed when it is complete. To git it is a
//! linked worktree of `repo.git`, locked, so that `git worktree prune` does not remove it. Start at
//! [`SnapshotStore::add_worktree`].

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{OsDisk, create_folder, sync_file_system, untrusted_file};
use jiff::Timestamp;

use crate::commit::{parse_staged_commit, parse_tree, read_commit};
use crate::git_command::GitCommand;
use crate::object_id::{ObjectId, short_digest};
use crate::path_map::PathMap;
use crate::pending_folder::PendingFolder;
use crate::snapshot::{CommitId, Snapshot, SnapshotName, SnapshotOmission};
use crate::snapshot_cache::{GitFileMode, RecordedFile, SnapshotCacheHeader, encode, fs_now_ns};
use crate::snapshot_store::{
    SnapshotError, SnapshotOperation, SnapshotStore, entries, io_at, remove_folder, write_file,
};
use crate::walk::{GitPathStatus, walk};
use crate::work_tree::WorkTree;

/// Policy for files that no snapshot can hold when a worktree is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnrecordedPolicy {
    /// Refuse to remove the worktree if there are any, except ignored files and empty directories.
    Keep,
    /// Discard them.
    Discard,
}

impl SnapshotStore {
    /// Creates a worktree of Heeler's repository with the files of a snapshot, byte for byte.
    ///
    /// `HEAD` is detached at the snapshot's base, and the staged files are staged again, so that
    /// `git status` reports the same as when the snapshot was taken.
    pub fn add_worktree(
        &self,
        snapshot: &CommitId,
        at: &Utf8Path,
    ) -> Result<WorkTree, SnapshotError> {
        let work = self.begin_shared()?;
        let at = prepare_path(at)?;
        // Before the check, so that two callers cannot create the same worktree.
        let _lock = work.lock_tree(&at)?;
        if fs::symlink_metadata(&at).is_ok() {
            return Err(SnapshotError::Taken { at });
        }
        let text = work.commit_text(snapshot)?;
        let none = || SnapshotError::NotASnapshot { commit: snapshot.to_string() };
        let recorded = read_commit(snapshot, &text).ok_or_else(none)?;
        let staged = parse_staged_commit(&text).ok_or_else(none)?;
        let tree = parse_tree(&text).ok_or_else(none)?;
        let draft = PendingFolder::new(self, &at)?;
        // Under the temporary name: a crash must not leave a partial worktree.
        work.check_out(snapshot, &draft.path)?;
        work.register_worktree(&recorded, &staged, &draft.path, &at)?;
        work.cache_contents((snapshot, tree), &draft.path, &at)?;
        // The caller is told that it exists, and a record may name it: a power loss must not lose
        // its files.
        sync_file_system(&draft.path).map_err(io_at("sync", &draft.path))?;
        fs::rename(&draft.path, &at).map_err(io_at("make", &at))?;
        let folder = at.parent().expect("it was placed in a folder");
        File::open(folder).and_then(|it| it.sync_all()).map_err(io_at("sync", folder))?;
        // The note is removed last. Until then the next opening would remove the folder.
        draft.done()?;
        WorkTree::find(&at)?.ok_or(SnapshotError::NotAWorktree { at })
    }

    /// Lists the existing worktrees of this repository.
    pub fn worktrees(&self) -> Result<Vec<Utf8PathBuf>, SnapshotError> {
        let admin = self.root.join("repo.git/worktrees");
        let mut found = Vec::new();
        for id in entries(&admin)? {
            let Ok(text) = untrusted_file::read_text(&admin.join(&id).join("gitdir")) else {
                continue;
            };
            let at = Utf8Path::new(text.trim_end()).parent().unwrap_or(Utf8Path::new(""));
            // A moved or copied worktree has an entry too, but names another place.
            if self.admin_dir(at).is_ok_and(|admin| admin.file_name() == Some(&id)) {
                found.push(at.to_owned());
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Records a worktree of Heeler under `name`, then removes it. Returns that snapshot.
    ///
    /// No process may be working in it: files written after the snapshot are removed with the
    /// directory.
    pub fn remove_worktree(
        &self,
        at: &Utf8Path,
        name: &SnapshotName,
        unrecorded: UnrecordedPolicy,
        now: Timestamp,
    ) -> Result<Snapshot, SnapshotError> {
        let work = self.begin_shared()?;
        let at = prepare_path(at)?;
        let _lock = work.lock_tree(&at)?;
        let admin = self.admin_dir(&at)?;
        let none = || SnapshotError::NotAWorktree { at: at.clone() };
        let tree = WorkTree::find(&at)?.filter(|tree| tree.top == at).ok_or_else(none)?;
        // Recorded first, so that no change of the agent is lost with the folder.
        let snapshot = work.record(&tree, Some(name), "before its worktree was removed", now)?;
        let lost: Vec<SnapshotOmission> =
            snapshot.omissions.iter().filter(|left| would_lose(left)).cloned().collect();
        if unrecorded == UnrecordedPolicy::Keep && !lost.is_empty() {
            return Err(SnapshotError::WouldLose { at, left_out: lost });
        }
        let trash = PendingFolder::new(self, &at)?;
        // The rename makes the worktree disappear at once. Removing many files takes time.
        fs::rename(&at, &trash.path).map_err(io_at("remove", &at))?;
        remove_folder(&admin)?;
        remove_folder(&trash.path)?;
        trash.done()?;
        let key = short_digest(at.as_str());
        let files = [("cache", &key), ("kept", &key)].map(|(to, key)| self.root.join(to).join(key));
        for file in files.into_iter().chain([self.listing_path(&at)]) {
            match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(io_at("remove", &file)(error));
                }
                _ => {}
            }
        }
        Ok(snapshot)
    }

    /// Returns git's administrative directory of a worktree of Heeler. An agent can write the file
    /// that names it, so the directory must name the worktree in turn.
    fn admin_dir(&self, at: &Utf8Path) -> Result<Utf8PathBuf, SnapshotError> {
        let none = || SnapshotError::NotAWorktree { at: at.to_owned() };
        let text = untrusted_file::read_text(&at.join(".git")).map_err(|_| none())?;
        let admin = Utf8PathBuf::from(text.strip_prefix("gitdir: ").ok_or_else(none)?.trim_end());
        let admin_root = self.root.join("repo.git/worktrees");
        let is_below = |name: &str| admin == admin_root.join(name) && !matches!(name, "." | "..");
        let named = untrusted_file::read_text(&admin.join("gitdir"));
        let is_mutual = named.is_ok_and(|named| named.trim_end() == at.join(".git").as_str());
        match admin.file_name().is_some_and(is_below) && is_mutual {
            true => Ok(admin),
            false => Err(none()),
        }
    }
}

/// Returns true if removing a directory would lose work: ignored files can be regenerated, the rest
/// cannot.
fn would_lose(left: &SnapshotOmission) -> bool {
    match left {
        SnapshotOmission::Ignored { .. }
        | SnapshotOmission::EmptyFolder { .. }
        | SnapshotOmission::NotCheckedOut { .. }
        | SnapshotOmission::Special { .. }
        | SnapshotOmission::Conflict { .. } => false,
        SnapshotOmission::NestedRepository { .. }
        | SnapshotOmission::Submodule { .. }
        | SnapshotOmission::Lfs { .. }
        | SnapshotOmission::TooLarge { .. }
        | SnapshotOmission::Unreadable { .. } => true,
    }
}

/// Creates the parent directory and returns the path without links.
fn prepare_path(at: &Utf8Path) -> Result<Utf8PathBuf, SnapshotError> {
    let (Some(folder), Some(name)) = (at.parent(), at.file_name()) else {
        return Err(SnapshotError::Taken { at: at.to_owned() });
    };
    create_folder(&OsDisk, folder)?;
    // Git records the path without links, and the comparison is by text.
    Ok(folder.canonicalize_utf8().map_err(io_at("find", folder))?.join(name))
}

impl SnapshotOperation<'_> {
    /// Fills a directory with the files of a commit.
    fn check_out(&self, commit: &CommitId, to: &Utf8Path) -> Result<(), SnapshotError> {
        // All processors, because a checkout writes many small files.
        let workers = ["-c", "checkout.workers=0", "-c", "core.symlinks=true"];
        let args = ["read-tree", "--reset", "-u", commit.as_str()];
        let git = self.git(&[&workers[..], &args[..]].concat())?;
        self.with_index(git).env("GIT_WORK_TREE", to).folder(to).output(self.lock_input())?;
        Ok(())
    }

    fn with_index(&self, git: GitCommand) -> GitCommand {
        git.env("GIT_INDEX_FILE", self.scratch.join("index"))
    }

    /// Makes a directory a linked worktree of `repo.git`.
    fn register_worktree(
        &self,
        recorded: &Snapshot,
        staged: &CommitId,
        draft: &Utf8Path,
        at: &Utf8Path,
    ) -> Result<(), SnapshotError> {
        // The index is set to the staged tree; the entries of unchanged files keep their cached
        // `stat`.
        self.with_index(self.git(&["read-tree", "-m", staged.as_str()])?)
            .output(self.lock_input())?;
        let name: String = at
            .file_name()
            .unwrap_or_default()
            .chars()
            .filter(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_'))
            .take(40)
            .collect();
        let id = format!("{name}-{}", short_digest(at.as_str()));
        let repo = self.snapshots.root.join("repo.git");
        let admin = repo.join("worktrees").join(&id);
        // Detached, because the user's branches do not exist here. Without a commit HEAD names the
        // unborn branch.
        let head = match (&recorded.base, &recorded.branch) {
            (Some(base), _) => format!("{base}\n"),
            (None, branch) => {
                format!("ref: refs/heads/{}\n", branch.as_deref().unwrap_or("main"))
            }
        };
        let folder = self.scratch.join("admin");
        DirBuilder::new().mode(0o700).create(&folder).map_err(io_at("make", &folder))?;
        let files = [
            (folder.join("HEAD"), head),
            (folder.join("commondir"), "../..\n".to_owned()),
            (folder.join("gitdir"), format!("{at}/.git\n")),
            (folder.join("locked"), "kept by heeler\n".to_owned()),
            (draft.join(".git"), format!("gitdir: {admin}\n")),
        ];
        for (path, text) in files {
            write_file(&path, text.as_bytes()).map_err(io_at("write", &path))?;
        }
        let index = folder.join("index");
        fs::rename(self.scratch.join("index"), &index).map_err(io_at("make", &index))?;
        for name in entries(&folder)?.iter().map(String::as_str).chain([""]) {
            let path = folder.join(name);
            // The name that follows must not become durable before the content.
            File::open(&path).and_then(|file| file.sync_all()).map_err(io_at("sync", &path))?;
        }
        create_folder(&OsDisk, &repo.join("worktrees"))?;
        // An existing directory belongs to a worktree that is gone.
        remove_folder(&admin)?;
        fs::rename(&folder, &admin).map_err(io_at("make", &admin))
    }

    /// Records the content of a new worktree in the cache, so that its first snapshot reads only
    /// changed files.
    fn cache_contents(
        &self,
        (commit, tree): (&CommitId, ObjectId),
        draft: &Utf8Path,
        at: &Utf8Path,
    ) -> Result<(), SnapshotError> {
        let fs_now = fs_now_ns(&self.scratch)?;
        let git = self.git(&["ls-tree", "-r", "-z", "--full-tree", commit.as_str()])?;
        let listed = git.output(self.lock_input())?;
        let (mut rows, mut start) = (Vec::new(), 0);
        for line in listed.split(|&byte| byte == 0) {
            let end = start + line.len();
            if let Some((path, known)) = parse_tree_line(line) {
                rows.push((end - path..end, known));
            }
            start = end + 1;
        }
        let known = PathMap::new(listed, rows);
        let stats = walk(draft, &known, fs_now)?.stats;
        let mut files = Vec::with_capacity(known.len());
        for ((path, known), stat) in known.iter().zip(stats) {
            let GitPathStatus::Tracked { mode, oid, .. } = *known else { continue };
            // A file that was written just now could change without a visible sign.
            let stat = stat.filter(|stat| stat.is_settled(fs_now));
            files.push((path, RecordedFile { mode, oid, stat }));
        }
        let head = SnapshotCacheHeader { commit, tree, index: None, content: None };
        let files = files.iter().map(|(path, file)| (*path, file));
        self.record_last_snapshot(at, &head, &encode(&head, files))
    }
}

/// Parses a line of `git ls-tree`, `100644 blob <id><tab>path`: the length of the path, and its
/// status.
fn parse_tree_line(line: &[u8]) -> Option<(usize, GitPathStatus)> {
    let tab = line.iter().position(|&byte| byte == b'\t')?;
    let mut fields = line[..tab].split(|&byte| byte == b' ');
    let mode = GitFileMode::parse(fields.next()?)?;
    let oid = ObjectId::parse(fields.nth(1)?)?;
    Some((line.len() - tab - 1, GitPathStatus::Tracked { mode, oid, sparse: false }))
}
