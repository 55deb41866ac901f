//! Takes a snapshot: reads only the files that changed since the last one. Start at
//! [`SnapshotStore::take`].

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::CStr;
use std::io::{self, Write};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::untrusted_file;
use jiff::Timestamp;

use crate::commit::SnapshotCommitDraft;
use crate::git_command::GitInput;
use crate::object_id::{ObjectId, short_digest};
use crate::objects;
use crate::pack_writer::PackWriter;
use crate::path_map::PathMap;
use crate::snapshot::{CommitId, Snapshot, SnapshotName, SnapshotOmission};
use crate::snapshot_cache::{
    ContentDigest, GitFileMode, IndexState, SnapshotCache, SnapshotCacheHeader, checksum, encode,
    fs_now_ns,
};
use crate::snapshot_plan::{PreviousSnapshot, SnapshotPlan};
use crate::snapshot_store::{SnapshotError, SnapshotOperation, SnapshotStore, io_at, write_file};
use crate::walk::{GitPathStatus, GitPathStatuses};
use crate::work_tree::WorkTree;

/// Size limit of an index that is read: about ten million files.
const INDEX_BYTES_MAX: u64 = 2 << 30;

/// Size limit and prefix of a Git LFS pointer.
const POINTER_BYTES_MAX: u64 = 1024;
const POINTER_BEGIN: &[u8] = b"version https://git-lfs.github.com/spec/";

impl SnapshotStore {
    /// Records the current state of a work tree. An existing name then refers to this snapshot; a
    /// name must not be below another name, as `a/b` is below `a`.
    ///
    /// Snapshots of one work tree wait for each other; those of different ones do not.
    pub fn take(
        &self,
        tree: &WorkTree,
        name: &SnapshotName,
        note: &str,
        now: Timestamp,
    ) -> Result<Snapshot, SnapshotError> {
        // Shared, so that snapshots run side by side. Only pruning is excluded.
        let work = self.begin_shared()?;
        // Two snapshots of one work tree would replace each other's cache.
        let _lock = work.lock_tree(&tree.top)?;
        work.record(tree, Some(name), note, now)
    }
}

/// Content of the user's index. A copy of it is written for the first git process that reads it; most
/// snapshots need none.
pub(crate) struct IndexCopy {
    bytes: Vec<u8>,
    /// Larger halves of a split index, with their paths beside the copy.
    shared: Vec<(Utf8PathBuf, Vec<u8>)>,
    /// Path of the copy. An empty index has none.
    copy: Utf8PathBuf,
    is_written: Cell<bool>,
    pub(crate) state: IndexState,
}

impl IndexCopy {
    /// Returns the path of the copy.
    pub(crate) fn path(&self) -> Result<&Utf8Path, SnapshotError> {
        if !self.is_written.replace(true) {
            let index = (!self.bytes.is_empty()).then_some((&self.copy, &self.bytes));
            for (to, bytes) in index.into_iter().chain(self.shared.iter().map(|it| (&it.0, &it.1)))
            {
                write_file(to, bytes).map_err(io_at("write", to))?;
            }
        }
        Ok(&self.copy)
    }
}

/// Output of `git ls-files` for a work tree.
pub(crate) struct GitFileList {
    pub(crate) statuses: GitPathStatuses,
    /// Paths in conflict, with the side that represents them.
    pub(crate) conflicts: HashMap<Vec<u8>, ConflictSide>,
}

/// One of a conflict's versions.
#[derive(Clone, Copy)]
pub(crate) struct ConflictSide {
    stage: u8,
    mode: GitFileMode,
    oid: ObjectId,
}

/// Index stage of the user's own version in a conflict; the common ancestor is 1, the other side 3.
const STAGE_OURS: u8 = 2;

impl SnapshotOperation<'_> {
    /// Records a work tree with its lock held, under a name, or without one for a comparison.
    pub(crate) fn record(
        &self,
        tree: &WorkTree,
        name: Option<&SnapshotName>,
        note: &str,
        now: Timestamp,
    ) -> Result<Snapshot, SnapshotError> {
        let root = &self.snapshots.root;
        // Taken before any file is examined: a file that changes later is then not settled.
        let fs_now = fs_now_ns(&self.scratch)?;
        // The user's index may be replaced at any moment, so git works on a copy.
        let index = self.read_index(tree)?;
        let head = tree.head()?;
        // A worktree of Heeler already has its objects here.
        if tree.common_dir != root.join("repo.git") {
            let user_objects = tree.common_dir.join("objects");
            // Before git runs: it needs the objects that the index names.
            objects::link_objects(
                &user_objects,
                &self.snapshots.objects(),
                &root.join("linked"),
                fs_now,
            )?;
            self.copy_shallow(tree)?;
        }
        let tree_key = short_digest(tree.top.as_str());
        let (last_path, cache_path) =
            (root.join("kept").join(&tree_key), root.join("cache").join(&tree_key));
        let last_commit = self.snapshots.read_ref(&last_path)?;
        // Both take long in a large repository and do not depend on each other.
        let (found, cache) = std::thread::scope(|scope| {
            let cache = scope.spawn(|| SnapshotCache::read(&cache_path));
            let found = self.find_files(tree, &index, fs_now);
            (found, cache.join().expect("reading does not panic"))
        });
        let (listed, walked) = found?;
        // A cache for another commit than the kept one may refer to pruned objects.
        let cache = cache.filter(|cache| Some(&cache.commit) == last_commit.as_ref());
        let index_tree = self.index_tree(&index, &listed, cache.as_ref())?;
        let last = cache.as_ref().map(|cache| LastSnapshot {
            commit: cache.commit.clone(),
            content: cache.content,
            index: cache.index,
        });
        let start = cache.map(|cache| PreviousSnapshot::new(cache, &listed.statuses));
        let mut plan = SnapshotPlan::new(self.snapshots, tree, &listed, start.as_ref(), fs_now)?;
        plan.classify_files(walked);
        self.find_lfs_pointers(&mut plan)?;
        let draft = SnapshotCommitDraft { head: &head, index_tree, note, now };
        let stored = self
            .store_objects(&mut plan, &draft, last.as_ref())
            .map_err(io_at("store objects in", root))?;
        if let Some(name) = name {
            // The name comes after the objects, which `store_objects` has synced.
            self.snapshots.set_ref(&self.snapshots.ref_path(name), &stored.commit)?;
        }
        let (index, content) = (Some((index.state, index_tree)), Some(stored.content));
        let is_cached = !stored.is_new && last.is_some_and(|last| last.index == index);
        // The cache of an unchanged work tree says the same already.
        if !is_cached || !plan.has_same_files() {
            let head_of_cache =
                SnapshotCacheHeader { commit: &stored.commit, tree: stored.tree, index, content };
            let cache = encode(&head_of_cache, plan.recorded());
            // After the name: without it the next snapshot only reads more files.
            self.record_last_snapshot(&tree.top, &head_of_cache, &cache)?;
        }
        if stored.is_new {
            // A failed merge of packs is no reason to fail the snapshot.
            let _unused = self.merge_packs();
        }
        let left_out = stored.omissions;
        Ok(Snapshot {
            commit: stored.commit,
            base: head.commit,
            branch: head.branch,
            omissions: left_out,
        })
    }

    fn read_index(&self, tree: &WorkTree) -> Result<IndexCopy, SnapshotError> {
        let copy = self.scratch.join("index");
        let from = tree.git_dir.join("index");
        let bytes = match untrusted_file::read(&from, INDEX_BYTES_MAX) {
            Ok(bytes) => bytes,
            // A repository without any staged file has no index.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(io_at("read", &from)(error)),
        };
        let mut shared = Vec::new();
        // A split index keeps its larger half in a second file.
        for entry in tree.git_dir.read_dir_utf8().map_err(io_at("list", &tree.git_dir))? {
            let entry = entry.map_err(io_at("list", &tree.git_dir))?;
            if entry.file_name().starts_with("sharedindex.") {
                let half = untrusted_file::read(entry.path(), INDEX_BYTES_MAX);
                let half = half.map_err(io_at("read", entry.path()))?;
                shared.push((self.git_dir().join(entry.file_name()), half));
            }
        }
        let state = index_state(&bytes);
        Ok(IndexCopy { bytes, shared, copy, is_written: Cell::new(false), state })
    }

    /// Copies the boundary of a shallow clone's history.
    fn copy_shallow(&self, tree: &WorkTree) -> Result<(), SnapshotError> {
        let path = self.snapshots.root.join("repo.git/shallow");
        let user_shallow = tree.common_file("shallow")?;
        if user_shallow.as_deref() == untrusted_file::read_text(&path).ok().as_deref() {
            return Ok(());
        }
        // Heeler's repository may hold commits with parents that only an older list marks as
        // missing.
        let Some(user_shallow) = user_shallow else { return Ok(()) };
        self.snapshots.write("repo.git/shallow", user_shallow.as_bytes())?;
        let copy = self.git_dir().join("shallow");
        write_file(&copy, user_shallow.as_bytes()).map_err(io_at("write", &copy))
    }

    /// Returns the tree that the user's index produces.
    fn index_tree(
        &self,
        index: &IndexCopy,
        listed: &GitFileList,
        cache: Option<&SnapshotCache>,
    ) -> Result<ObjectId, SnapshotError> {
        let known = cache.and_then(|cache| cache.index.as_ref());
        // The same index gives the same tree, so git need not run.
        if let Some((_, tree)) = known.filter(|(state, _)| *state == index.state) {
            return Ok(*tree);
        }
        // `write-tree` refuses an index with conflicts.
        if !listed.conflicts.is_empty() {
            self.resolve_conflicts(index, listed)?;
        }
        // Objects that a partial clone lacks belong to files that are not on disk either.
        let git = self.git(&["write-tree", "--missing-ok"])?.env("GIT_INDEX_FILE", index.path()?);
        let text = git.text(self.lock_input())?;
        ObjectId::parse(text.as_bytes()).ok_or(SnapshotError::NotASnapshot { commit: text })
    }

    /// Replaces each conflict in the copy of the index by one side.
    fn resolve_conflicts(
        &self,
        index: &IndexCopy,
        listed: &GitFileList,
    ) -> Result<(), SnapshotError> {
        let git = self.git(&["update-index", "-z", "--index-info"])?;
        let null = self.snapshots.format.null();
        let mut lines = |to: &mut dyn Write| {
            for (path, ConflictSide { mode, oid, .. }) in &listed.conflicts {
                // The first line removes all stages of the path, and the second adds one side.
                write!(to, "0 {null}\t")?;
                to.write_all(path)?;
                write!(to, "\0{} {}\t", mode.digits(), oid.hex())?;
                to.write_all(path)?;
                to.write_all(b"\0")?;
            }
            Ok(())
        };
        let git = git.env("GIT_INDEX_FILE", index.path()?);
        git.output(GitInput::Write(&mut lines))?;
        Ok(())
    }

    /// Distinguishes large files of Git LFS from other large files: their staged version is a
    /// pointer.
    fn find_lfs_pointers(&self, plan: &mut SnapshotPlan<'_>) -> Result<(), SnapshotError> {
        let staged = |at: usize| plan.files[at].map(|file| file.oid.hex());
        // Only large files are checked, because small ones are recorded with their content.
        let oids: Vec<Option<String>> = plan.too_large.iter().map(|(at, _)| staged(*at)).collect();
        let sizes =
            self.run_batch("--batch-check=%(objectname) %(objectsize)", oids.iter().flatten())?;
        let sizes = String::from_utf8_lossy(&sizes).into_owned();
        let is_small = |size: &str| size.parse().is_ok_and(|size: u64| size < POINTER_BYTES_MAX);
        let sized = sizes.lines().filter_map(|line| line.split_once(' '));
        let small = sized.filter(|(_, size)| is_small(size)).map(|(oid, _)| oid.to_owned());
        let mut pointers = Vec::new();
        for oid in small {
            // Pointers are few, so one process each is acceptable.
            let text = self.run_batch("--batch=", std::iter::once(&oid))?;
            if text.trim_ascii_start().starts_with(POINTER_BEGIN) {
                pointers.push(oid);
            }
        }
        let mut oids = oids.into_iter();
        let (lfs, known) = (&mut plan.lfs, &plan.listed.statuses);
        plan.too_large.retain(|(at, _)| {
            let is_pointer = oids.next().flatten().is_some_and(|oid| pointers.contains(&oid));
            if is_pointer {
                lfs.add(known.path(*at));
            }
            !is_pointer
        });
        Ok(())
    }

    /// Runs a git batch command on objects.
    fn run_batch<'b>(
        &self,
        mode: &str,
        oids: impl Iterator<Item = &'b String>,
    ) -> Result<Vec<u8>, SnapshotError> {
        let oids: Vec<&str> = oids.map(String::as_str).collect();
        if oids.is_empty() {
            return Ok(Vec::new());
        }
        let mut feed = |to: &mut dyn Write| writeln!(to, "{}", oids.join("\n"));
        Ok(self.git(&["cat-file", mode])?.output(GitInput::Write(&mut feed))?)
    }

    /// Writes new content as git objects. Without new content, the last snapshot is this one too.
    fn store_objects(
        &self,
        plan: &mut SnapshotPlan<'_>,
        draft: &SnapshotCommitDraft<'_>,
        last: Option<&LastSnapshot>,
    ) -> io::Result<StoredSnapshot> {
        let mut pack = PackWriter::new(&self.scratch, self.snapshots.format)?;
        plan.write_objects(&mut pack)?;
        let left_out = plan.take_omissions();
        let tree = plan.write_trees(&mut pack)?;
        let content = draft.content_digest(tree, &left_out)?;
        if let Some(last) = last.filter(|last| last.content == Some(content)) {
            let commit = last.commit.clone();
            return Ok(StoredSnapshot {
                commit,
                tree,
                omissions: left_out,
                content,
                is_new: false,
            });
        }
        let commit = draft.write(&mut pack, tree, &left_out)?;
        // Synced when this returns, so the name that follows never refers to a missing object.
        pack.finish(&self.snapshots.objects().join("pack"), &self.snapshots.root.join("packs"))?;
        Ok(StoredSnapshot { commit, tree, omissions: left_out, content, is_new: true })
    }
}

struct StoredSnapshot {
    commit: CommitId,
    tree: ObjectId,
    omissions: Vec<SnapshotOmission>,
    content: ContentDigest,
    /// False if it is the last snapshot.
    is_new: bool,
}

/// What the cache says about the last snapshot, besides its files.
struct LastSnapshot {
    commit: CommitId,
    content: Option<ContentDigest>,
    index: Option<(IndexState, ObjectId)>,
}

impl GitFileList {
    /// Parses records such as `? path` and `H 100644 <id> 0<tab>path`, each terminated by a zero
    /// byte.
    pub(crate) fn new(output: Vec<u8>) -> GitFileList {
        let mut conflicts = HashMap::new();
        // About the length of a record, which saves growing the list for large repositories.
        let mut rows = Vec::with_capacity(output.len() / 80);
        let mut start = 0;
        while let Ok(record) = CStr::from_bytes_until_nul(&output[start..]) {
            let record = record.to_bytes();
            let end = start + record.len();
            if let Some((path, known)) = read_record(record, &mut conflicts) {
                rows.push((end - path..end, known));
            }
            start = end + 1;
        }
        GitFileList { statuses: PathMap::new(output, rows), conflicts }
    }
}

fn index_state(index: &[u8]) -> IndexState {
    let mut state = [0; 32];
    state[..8].copy_from_slice(&(index.len() as u64).to_le_bytes());
    state[8..12].copy_from_slice(&checksum(index).to_le_bytes());
    // The index ends with a digest of its content, which a checksum alone would not replace.
    if let Some(digest) = index.last_chunk::<20>() {
        state[12..].copy_from_slice(digest);
    }
    state
}

/// Returns the length of a record's path, and its status.
fn read_record(
    record: &[u8],
    conflicts: &mut HashMap<Vec<u8>, ConflictSide>,
) -> Option<(usize, GitPathStatus)> {
    let (tag, rest) = (record.first()?, record.get(2..)?);
    if *tag == b'?' {
        // An untracked directory is a repository of its own; the walk finds it.
        return (!rest.ends_with(b"/")).then_some((rest.len(), GitPathStatus::Untracked));
    }
    // Mode, ID and stage have a fixed length, except that IDs have one of two lengths.
    let tab = [49, 73].into_iter().find(|at| rest.get(*at) == Some(&b'\t'))?;
    let (fields, path) = (&rest[..tab], &rest[tab + 1..]);
    let mode = GitFileMode::parse(&fields[..6])?;
    let oid = ObjectId::parse(&fields[7..tab - 2])?;
    let stage = fields[tab - 1].wrapping_sub(b'0');
    if stage != 0 {
        let side = ConflictSide { stage, mode, oid };
        let chosen = conflicts.entry(path.to_vec()).or_insert(side);
        // The user's own side represents the file, as in their work tree before the merge.
        if chosen.stage != STAGE_OURS {
            *chosen = side;
        }
    }
    // `S` marks a file that a sparse checkout leaves out.
    Some((path.len(), GitPathStatus::Tracked { mode, oid, sparse: *tag == b'S' }))
}
