//! Taking a snapshot: what changed since the last one is read, the rest is known.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};

use camino::Utf8PathBuf;
use heeler_transcript::plain;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use crate::git::Feed;
use crate::import::{Draft, Stream};
use crate::objects;
use crate::oid::{Oid, short_digest};
use crate::read::{Seen, Top};
use crate::snapshot::{Commit, LeftOut, Snapshot, SnapshotName};
use crate::stat::{Cache, Files, Mode, Recorded, Stat, fs_now_ns};
use crate::store::{SnapshotError, Snapshots, Work, io_at};
use crate::walk::{Known, KnownFiles, Tally, Walked, walk};
use crate::work_tree::WorkTree;

/// The largest index that is read: some ten million files.
const INDEX_BYTES_MAX: u64 = 2 << 30;

/// A pointer of Git LFS is shorter than this, and begins so.
const POINTER_BYTES_MAX: u64 = 1024;
const POINTER_BEGIN: &[u8] = b"version https://git-lfs.github.com/spec/";

/// How many threads hash files.
const THREADS_MAX: usize = 4;

impl Snapshots {
    /// Records a work tree as it is now. The name, if taken, then means this snapshot; it may not
    /// lie below another name, as `a/b` does below `a`.
    ///
    /// Snapshots of one work tree wait for each other; those of different ones do not.
    pub fn take(
        &self,
        tree: &WorkTree,
        name: &SnapshotName,
        note: &str,
        now: Timestamp,
    ) -> Result<Snapshot, SnapshotError> {
        let work = self.begin()?;
        let _lock = work.lock_tree(&tree.top)?;
        work.record(tree, Some(name), note, now)
    }
}

/// What the user's index says.
struct Index {
    /// The copy of it; may be missing.
    copy: Utf8PathBuf,
    digest: [u8; 32],
}

/// What `git ls-files` says of a work tree.
#[derive(Default)]
struct Listed {
    known: KnownFiles,
    /// Paths in conflict, with the side that stands for them.
    conflicts: HashMap<Vec<u8>, Side>,
}

/// One of a conflict's versions.
#[derive(Clone, Copy)]
struct Side {
    stage: u8,
    mode: Mode,
    oid: Oid,
}

/// The user's own version in a conflict; the common ancestor is 1, the other side 3.
const STAGE_OURS: u8 = 2;

impl Work<'_> {
    /// Records a work tree whose lock is held, under a name or, for a comparison, none.
    pub(crate) fn record(
        &self,
        tree: &WorkTree,
        name: Option<&SnapshotName>,
        note: &str,
        now: Timestamp,
    ) -> Result<Snapshot, SnapshotError> {
        let root = &self.snapshots.root;
        let fs_now = fs_now_ns(&self.scratch)?;
        let index = self.copy_index(tree)?;
        let head = tree.head()?;
        if tree.common_dir != root.join("repo.git") {
            let theirs = tree.common_dir.join("objects");
            objects::link(&theirs, &self.snapshots.objects(), &root.join("linked"), fs_now)?;
            self.copy_shallow(tree)?;
        }
        let listed = self.list_files(tree, &index)?;
        let tree_key = short_digest(tree.top.as_str());
        let (kept, cached) =
            (root.join("kept").join(&tree_key), root.join("cache").join(&tree_key));
        // A cache whose commit is not the kept one may speak of objects that are gone.
        let kept_commit = self.snapshots.read_ref(&kept)?;
        let cache =
            Cache::read(&cached).filter(|cache| Some(&cache.commit) == kept_commit.as_ref());
        let index_tree = self.index_tree(&index, &listed, cache.as_ref())?;
        let walked = walk(&tree.top, &listed.known)?;
        let start = Start::new(cache, index_tree, &listed);
        let mut plan = Plan::new(self.snapshots, tree, &listed, &start, fs_now)?;
        plan.sort(walked);
        self.tell_pointers(&mut plan)?;
        let draft = Draft { head: &head, index_tree, note, now };
        let stored = self.store(&start, &mut plan, &draft)?;
        if let Some(name) = name {
            self.snapshots.set_ref(&self.snapshots.ref_path(name), &stored.commit)?;
        }
        self.snapshots.set_ref(&kept, &stored.commit)?;
        let cache = Cache {
            commit: stored.commit.clone(),
            tree: stored.tree,
            index: Some((index.digest, index_tree)),
            files: plan.files,
        };
        cache.write(&cached)?;
        let left_out = stored.left_out;
        Ok(Snapshot { commit: stored.commit, base: head.commit, branch: head.branch, left_out })
    }

    fn copy_index(&self, tree: &WorkTree) -> Result<Index, SnapshotError> {
        let copy = self.scratch.join("index");
        let from = tree.git_dir.join("index");
        let bytes = match plain::read(&from, INDEX_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(io_at("read", &from)(error)),
        };
        if !bytes.is_empty() {
            fs::write(&copy, &bytes).map_err(io_at("write", &copy))?;
        }
        // A split index has its larger half beside it.
        for entry in tree.git_dir.read_dir_utf8().map_err(io_at("list", &tree.git_dir))? {
            let entry = entry.map_err(io_at("list", &tree.git_dir))?;
            if entry.file_name().starts_with("sharedindex.") {
                let shared = plain::read(entry.path(), INDEX_BYTES_MAX);
                let shared = shared.map_err(io_at("read", entry.path()))?;
                let to = self.git_dir().join(entry.file_name());
                fs::write(&to, shared).map_err(io_at("write", &to))?;
            }
        }
        Ok(Index { copy, digest: Sha256::digest(&bytes).into() })
    }

    /// Takes over where the history of a shallow clone ends.
    fn copy_shallow(&self, tree: &WorkTree) -> Result<(), SnapshotError> {
        let ours = self.snapshots.root.join("repo.git/shallow");
        let theirs = tree.common_file("shallow")?;
        if theirs.as_deref() == plain::read_text(&ours).ok().as_deref() {
            return Ok(());
        }
        // Ours may hold commits whose parents only an older list calls missing.
        let Some(theirs) = theirs else { return Ok(()) };
        self.snapshots.write("repo.git/shallow", theirs.as_bytes())?;
        let copy = self.git_dir().join("shallow");
        fs::write(&copy, theirs).map_err(io_at("write", &copy))
    }

    /// Asks git which files are tracked, and which are neither that nor ignored.
    fn list_files(&self, tree: &WorkTree, index: &Index) -> Result<Listed, SnapshotError> {
        let excludes = self.scratch.join("exclude");
        let patterns = tree.common_file("info/exclude")?.unwrap_or_default();
        fs::write(&excludes, patterns).map_err(io_at("write", &excludes))?;
        let args = ["ls-files", "-z", "-t", "--cached", "--others", "--stage"];
        let mut git = self.git(&args)?.env("GIT_WORK_TREE", &tree.top).folder(&tree.top);
        git = git.env("GIT_INDEX_FILE", &index.copy);
        git = git.arg("--exclude-per-directory=.gitignore");
        git = git.arg(format!("--exclude-from={excludes}"));
        let apart = self.snapshots.apart.iter();
        for folder in apart.filter_map(|folder| folder.strip_prefix(&tree.top).ok()) {
            git = git.arg(format!("--exclude=/{}/", literal(folder.as_str())));
        }
        let output = git.output(self.feed())?;
        let mut listed = Listed::default();
        for record in output.split(|&byte| byte == 0).filter(|record| !record.is_empty()) {
            listed.add(record);
        }
        Ok(listed)
    }

    /// Returns the tree that the user's index makes.
    fn index_tree(
        &self,
        index: &Index,
        listed: &Listed,
        cache: Option<&Cache>,
    ) -> Result<Oid, SnapshotError> {
        let known = cache.and_then(|cache| cache.index.as_ref());
        if let Some((_, tree)) = known.filter(|(digest, _)| *digest == index.digest) {
            return Ok(*tree);
        }
        if !listed.conflicts.is_empty() {
            self.settle_conflicts(index, listed)?;
        }
        // Objects that a partial clone lacks are those of files that are not on disk either.
        let git = self.git(&["write-tree", "--missing-ok"])?.env("GIT_INDEX_FILE", &index.copy);
        let text = git.text(self.feed())?;
        Oid::parse(text.as_bytes()).ok_or(SnapshotError::NotASnapshot { commit: text })
    }

    /// In the copy of the index, puts one side in place of each conflict.
    fn settle_conflicts(&self, index: &Index, listed: &Listed) -> Result<(), SnapshotError> {
        let git = self.git(&["update-index", "-z", "--index-info"])?;
        let null = self.snapshots.format.null();
        let mut lines = |to: &mut dyn Write| {
            for (path, Side { mode, oid, .. }) in &listed.conflicts {
                write!(to, "0 {null}\t")?;
                to.write_all(path)?;
                write!(to, "\0{} {}\t", mode.digits(), oid.hex())?;
                to.write_all(path)?;
                to.write_all(b"\0")?;
            }
            Ok(())
        };
        let git = git.env("GIT_INDEX_FILE", &index.copy);
        git.output(Feed::Write(&mut lines))?;
        Ok(())
    }

    /// Tells large files of Git LFS from other large files: what is staged of them is a pointer.
    fn tell_pointers(&self, plan: &mut Plan<'_>) -> Result<(), SnapshotError> {
        let staged = |path: &[u8]| plan.files.get(path).map(|file| file.oid.hex());
        let oids: Vec<Option<String>> =
            plan.too_large.iter().map(|(path, _)| staged(path)).collect();
        let sizes =
            self.batch("--batch-check=%(objectname) %(objectsize)", oids.iter().flatten())?;
        let sizes = String::from_utf8_lossy(&sizes).into_owned();
        let is_small = |size: &str| size.parse().is_ok_and(|size: u64| size < POINTER_BYTES_MAX);
        let sized = sizes.lines().filter_map(|line| line.split_once(' '));
        let small = sized.filter(|(_, size)| is_small(size)).map(|(oid, _)| oid.to_owned());
        let mut pointers = Vec::new();
        for oid in small {
            let text = self.batch("--batch=", std::iter::once(&oid))?;
            if text.trim_ascii_start().starts_with(POINTER_BEGIN) {
                pointers.push(oid);
            }
        }
        let mut oids = oids.into_iter();
        let lfs = &mut plan.lfs;
        plan.too_large.retain(|(path, _)| {
            let is_pointer = oids.next().flatten().is_some_and(|oid| pointers.contains(&oid));
            if is_pointer {
                lfs.add(path);
            }
            !is_pointer
        });
        Ok(())
    }

    /// Asks git about objects.
    fn batch<'b>(
        &self,
        how: &str,
        oids: impl Iterator<Item = &'b String>,
    ) -> Result<Vec<u8>, SnapshotError> {
        let oids: Vec<&str> = oids.map(String::as_str).collect();
        if oids.is_empty() {
            return Ok(Vec::new());
        }
        let mut feed = |to: &mut dyn Write| writeln!(to, "{}", oids.join("\n"));
        Ok(self.git(&["cat-file", how])?.output(Feed::Write(&mut feed))?)
    }

    /// Writes what is new as git objects.
    fn store(
        &self,
        start: &Start,
        plan: &mut Plan<'_>,
        draft: &Draft<'_>,
    ) -> Result<Stored, SnapshotError> {
        let git =
            self.git(&["fast-import", "--quiet", "--done", "--force", "--date-format=raw"])?;
        let mut left_out = Vec::new();
        let mut feed = |to: &mut dyn Write| {
            let mut to = io::BufWriter::with_capacity(1 << 16, to);
            let mut stream = Stream::new(&mut to);
            plan.send(&mut stream)?;
            left_out = plan.left_out();
            stream.commits(draft, &left_out, start, &plan.files)?;
            to.flush()
        };
        let mut said = String::new();
        let mut read = |out: &mut dyn Read| out.read_to_string(&mut said).map(|_| ());
        git.read(Feed::Write(&mut feed), &mut read)?;
        let mut lines = said.lines();
        let commit = lines.next().and_then(Commit::parse);
        let tree = lines.next().and_then(|line| line.strip_prefix("040000 tree "));
        let tree = tree.and_then(|line| Oid::parse(line.trim_end().as_bytes()));
        match (commit, tree) {
            (Some(commit), Some(tree)) => Ok(Stored { commit, tree, left_out }),
            _ => Err(SnapshotError::NotASnapshot { commit: said }),
        }
    }
}

struct Stored {
    commit: Commit,
    tree: Oid,
    left_out: Vec<LeftOut>,
}

impl Listed {
    /// Reads one record: `? path`, or `H 100644 <id> 0<tab>path`.
    fn add(&mut self, record: &[u8]) -> Option<()> {
        let (tag, rest) = (record.first()?, record.get(2..)?);
        if *tag == b'?' {
            // A folder is a repository of its own; the walk finds it.
            if !rest.ends_with(b"/") {
                self.known.entry(rest.to_vec()).or_insert(Known::Untracked);
            }
            return Some(());
        }
        let tab = rest.iter().position(|&byte| byte == b'\t')?;
        let (fields, path) = (&rest[..tab], rest[tab + 1..].to_vec());
        let mut fields = fields.split(|&byte| byte == b' ');
        let mode = Mode::parse(fields.next()?)?;
        let oid = Oid::parse(fields.next()?)?;
        let stage = fields.next()?.first()?.wrapping_sub(b'0');
        if stage != 0 {
            let side = Side { stage, mode, oid };
            let kept = self.conflicts.entry(path.clone()).or_insert(side);
            if kept.stage != STAGE_OURS {
                *kept = side;
            }
        }
        let known = Known::Tracked { mode, oid, sparse: *tag == b'S' };
        self.known.insert(path, known);
        Some(())
    }
}

/// What the next snapshot is written as a difference from.
pub(crate) struct Start {
    pub(crate) tree: Oid,
    pub(crate) files: Files,
}

impl Start {
    /// The last snapshot, or else the user's index.
    fn new(cache: Option<Cache>, index_tree: Oid, listed: &Listed) -> Start {
        if let Some(cache) = cache {
            return Start { tree: cache.tree, files: cache.files };
        }
        let tracked = listed.known.iter().filter_map(|(path, known)| match known {
            Known::Tracked { mode, oid, .. } => {
                let side = listed.conflicts.get(path);
                let (mode, oid) = side.map_or((*mode, *oid), |side| (side.mode, side.oid));
                Some((path.clone(), Recorded { mode, oid, stat: None }))
            }
            Known::Untracked => None,
        });
        Start { tree: index_tree, files: tracked.collect() }
    }
}

/// Which files the snapshot has, and which of them are still to be read.
struct Plan<'a> {
    snapshots: &'a Snapshots,
    top: Top,
    listed: &'a Listed,
    start: &'a Start,
    fs_now: i128,
    files: Files,
    /// What git does not have yet.
    unsent: Vec<(Vec<u8>, Stat)>,
    walked: Walked,
    sparse: Tally,
    too_large: Vec<(Vec<u8>, u64)>,
    /// Those of them whose staged version is a pointer of Git LFS.
    lfs: Tally,
}

impl<'a> Plan<'a> {
    fn new(
        snapshots: &'a Snapshots,
        tree: &WorkTree,
        listed: &'a Listed,
        start: &'a Start,
        fs_now: i128,
    ) -> Result<Plan<'a>, SnapshotError> {
        let top = Top::open(&tree.top).map_err(io_at("open", &tree.top))?;
        Ok(Plan {
            snapshots,
            top,
            listed,
            start,
            fs_now,
            files: Files::new(),
            unsent: Vec::new(),
            walked: Walked::default(),
            sparse: Tally::default(),
            too_large: Vec::new(),
            lfs: Tally::default(),
        })
    }

    /// Decides for every file what is recorded of it.
    fn sort(&mut self, mut walked: Walked) {
        let mut found = std::mem::take(&mut walked.files);
        found.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        self.walked = walked;
        let (mut count, mut bytes) = (0, 0);
        let mut unsure = Vec::new();
        for (path, stat) in found {
            let Some(known) = self.listed.known.get(&path) else { continue };
            if *known == Known::Untracked {
                if stat.size > self.snapshots.limits.file_bytes_max
                    || count >= self.snapshots.limits.untracked_files_max
                    || bytes + stat.size > self.snapshots.limits.untracked_bytes_max
                {
                    self.too_large(&path, stat.size);
                    continue;
                }
                count += 1;
                bytes += stat.size;
            }
            match self.start.files.get(&path) {
                Some(old) if old.stat == Some(stat) => {
                    self.files.insert(path, *old);
                }
                _ => unsure.push((path, stat)),
            }
        }
        self.hash(unsure);
        self.carry_over();
    }

    /// Reads files to see whether git has them already.
    fn hash(&mut self, unsure: Vec<(Vec<u8>, Stat)>) {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let (top, format) = (&self.top, self.snapshots.format);
        let next = AtomicUsize::new(0);
        let hash_some = || {
            let mut done = Vec::new();
            while let Some((path, stat)) = unsure.get(next.fetch_add(1, Ordering::Relaxed)) {
                done.push((path, stat, top.hash(path, stat, format)));
            }
            done
        };
        let hashed: Vec<_> = std::thread::scope(|scope| {
            let count = threads.min(THREADS_MAX).min(unsure.len().div_ceil(16));
            let spawned: Vec<_> = (1..count).map(|_| scope.spawn(hash_some)).collect();
            let mut all = hash_some();
            for thread in spawned {
                all.extend(thread.join().expect("hashing does not panic"));
            }
            all
        });
        for (path, stat, seen) in hashed {
            self.hashed(path, stat, seen);
        }
    }

    fn hashed(&mut self, path: &[u8], stat: &Stat, seen: Seen<Oid>) {
        let (oid, stat) = match seen {
            Seen::Read(oid, stat_read) => (oid, stat_read.unwrap_or(*stat)),
            Seen::Gone => return,
            Seen::Refused => return self.unreadable(path),
        };
        let Some(mode) = stat.git_mode() else { return };
        let in_index = match self.listed.known.get(path) {
            Some(Known::Tracked { oid: tracked, .. }) => *tracked == oid,
            _ => false,
        };
        let is_there = in_index || self.start.files.get(path).is_some_and(|old| old.oid == oid);
        if is_there {
            let stat = stat.is_settled(self.fs_now).then_some(stat);
            self.files.insert(path.to_vec(), Recorded { mode, oid, stat });
        } else if stat.size > self.snapshots.limits.file_bytes_max {
            self.too_large(path, stat.size);
        } else {
            self.unsent.push((path.to_vec(), stat));
        }
    }

    /// Keeps the staged version of what is tracked but cannot be recorded as it is on disk.
    fn keep_staged(&mut self, path: &[u8]) {
        if let Some(Known::Tracked { mode, oid, .. }) = self.listed.known.get(path) {
            let staged = Recorded { mode: *mode, oid: *oid, stat: None };
            self.files.insert(path.to_vec(), staged);
        }
    }

    fn too_large(&mut self, path: &[u8], size: u64) {
        self.too_large.push((path.to_vec(), size));
        self.keep_staged(path);
    }

    fn unreadable(&mut self, path: &[u8]) {
        self.walked.unreadable.add(path);
        self.keep_staged(path);
    }

    /// Keeps submodules, and what lies where we cannot or do not look, as the index has them.
    fn carry_over(&mut self) {
        let unseen = self.walked.nested.iter().chain(&self.walked.closed);
        let unseen: Vec<Vec<u8>> = unseen.map(|path| slashed(path)).collect();
        for (path, known) in &self.listed.known {
            let Known::Tracked { mode, oid, sparse } = *known else { continue };
            if self.files.contains_key(path) {
                continue;
            }
            if mode == Mode::Submodule || unseen.iter().any(|folder| path.starts_with(folder)) {
                self.files.insert(path.clone(), Recorded { mode, oid, stat: None });
            } else if sparse {
                self.sparse.add(path);
            }
        }
    }

    /// Sends git what it does not have.
    fn send(&mut self, stream: &mut Stream<'_>) -> io::Result<()> {
        for (path, seen) in std::mem::take(&mut self.unsent) {
            let max = self.snapshots.limits.file_bytes_max;
            match self.top.bytes(&path, &seen, max) {
                Seen::Read(bytes, stat) => {
                    let oid = stream.blob(self.snapshots.format, &bytes)?;
                    let stat_now = stat.unwrap_or(seen);
                    let Some(mode) = stat_now.git_mode() else { continue };
                    let stat = stat.filter(|stat| stat.is_settled(self.fs_now));
                    self.files.insert(path, Recorded { mode, oid, stat });
                }
                Seen::Gone => {}
                Seen::Refused => self.unreadable(&path),
            }
        }
        Ok(())
    }

    fn left_out(&mut self) -> Vec<LeftOut> {
        let walked = std::mem::take(&mut self.walked);
        let text = |path: Vec<u8>| String::from_utf8_lossy(&path).into_owned();
        let mut left_out: Vec<LeftOut> = walked
            .nested
            .into_iter()
            .map(|path| LeftOut::NestedRepository { path: text(path) })
            .collect();
        let submodules = walked.submodules.into_iter();
        left_out.extend(submodules.map(|path| LeftOut::Submodule { path: text(path) }));
        let to = &mut left_out;
        walked.ignored.said(to, |count, examples| LeftOut::Ignored { count, examples });
        walked.empty.said(to, |count, examples| LeftOut::EmptyFolder { count, examples });
        walked.unreadable.said(to, |count, examples| LeftOut::Unreadable { count, examples });
        walked.special.said(to, |count, examples| LeftOut::Special { count, examples });
        std::mem::take(&mut self.lfs).said(to, |count, examples| LeftOut::Lfs { count, examples });
        let sparse = std::mem::take(&mut self.sparse);
        sparse.said(to, |count, examples| LeftOut::NotCheckedOut { count, examples });
        let mut conflicts = Tally::default();
        self.listed.conflicts.keys().for_each(|path| conflicts.add(path));
        conflicts.said(to, |count, examples| LeftOut::Conflict { count, examples });
        let bytes = self.too_large.iter().map(|(_, size)| size).sum();
        let mut large = Tally::default();
        self.too_large.iter().for_each(|(path, _)| large.add(path));
        if large.count > 0 {
            to.push(LeftOut::TooLarge { count: large.count, bytes, examples: large.examples });
        }
        left_out
    }
}

fn slashed(path: &[u8]) -> Vec<u8> {
    [path, b"/"].concat()
}

/// Returns a pattern that means this path and no other.
fn literal(path: &str) -> String {
    path.chars()
        .flat_map(|letter| {
            let is_special = matches!(letter, '*' | '?' | '[' | '\\' | ' ' | '!' | '#');
            is_special.then_some('\\').into_iter().chain([letter])
        })
        .collect()
}
