//! Heeler's repository for the snapshots of one user repository's work trees.
//!
//! `<dir>/<key>/` has `repo.git` with the objects, to which Heeler's worktrees belong; `refs/`, the
//! names of snapshots, one file each; `cache/` and `kept/`, the last snapshot of each work tree;
//! `tmp/`, data of operations in progress. Git runs with a `GIT_DIR` under `tmp/` that is created
//! for the call: its locks vanish with it, and no agent can have written into its config. Start at
//! [`SnapshotStore`].

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::{
    DiskError, NameError, OsDisk, create_folder, is_temp, replace_file, resolve_inside, temp_name,
    untrusted_file,
};
use thiserror::Error;

use crate::git_command::{GitCommand, GitError};
use crate::lock::{self, LockMode};
use crate::object_id::{ObjectFormat, short_digest};
use crate::repository_config::{
    ATTRIBUTES, COPIED_SETTINGS, PARTIAL_CLONE_CONFIG, parse_object_format, repository_config,
};
use crate::snapshot::{CommitId, SnapshotName, SnapshotOmission};
use crate::snapshot_cache::SnapshotCacheHeader;
use crate::work_tree::{WorkTree, WorkTreeFindError};

/// Directories of a repository of Heeler.
const FOLDERS: [&str; 10] = [
    "repo.git/objects/info",
    "repo.git/objects/pack",
    "repo.git/refs/heads",
    "repo.git/info",
    "refs",
    "cache",
    "kept",
    "locks",
    "pending",
    "tmp",
];

/// Directories in it that are created when they are needed.
const LAZY_FOLDERS: [&str; 2] = ["packs", "repo.git/worktrees"];

/// File mode: only the owner may read Heeler's files.
pub(crate) const FILE_MODE: u32 = 0o600;

/// Limit on the bytes read of a small file of Heeler.
const SMALL_BYTES_MAX: u64 = 64 * 1024;

/// Reason that a snapshot operation failed.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// Git could not be run, or failed.
    #[error(transparent)]
    Git(#[from] GitError),
    /// The work tree's repository could not be read.
    #[error(transparent)]
    Find(#[from] WorkTreeFindError),
    /// A file of Heeler could not be written durably.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A part of a repository of Heeler is a link.
    #[error(transparent)]
    Link(#[from] NameError),
    /// Another file could not be used.
    #[error("cannot {attempt} {path}")]
    Io {
        /// Operation that failed.
        attempt: &'static str,
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// Heeler has no such repository.
    #[error("there is no snapshot repository {key} in {dir}")]
    NoRepository {
        /// Directory that was searched.
        dir: Utf8PathBuf,
        /// Key of the repository.
        key: String,
    },
    /// The commit is not a snapshot of this repository.
    #[error("{commit} is not a snapshot in this repository")]
    NotASnapshot { commit: String },
    /// The path for a worktree is taken.
    #[error("{at} already exists; choose another path")]
    Taken { at: Utf8PathBuf },
    /// The directory is not a worktree of Heeler.
    #[error("{at} is not a worktree of Heeler")]
    NotAWorktree { at: Utf8PathBuf },
    /// Removing the worktree would lose files that no snapshot can hold.
    #[error(
        "{at} holds files that a snapshot cannot keep; move them away or allow discarding them: {}",
        format_omissions(left_out)
    )]
    WouldLose {
        at: Utf8PathBuf,
        /// Files that would be lost. The snapshot of the rest has been taken.
        left_out: Vec<SnapshotOmission>,
    },
    /// The input is not an export of Heeler, or is damaged.
    #[error("the export cannot be imported: {reason}")]
    BadExport { reason: String },
    /// An export cannot be written.
    #[error("cannot write the snapshots")]
    Export(#[source] io::Error),
}

fn format_omissions(left_out: &[SnapshotOmission]) -> String {
    left_out.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Size limit of a file in a snapshot, unless git already has the same content.
pub const FILE_BYTES_MAX: u64 = 100 * 1024 * 1024;

/// Limit on untracked files in a snapshot.
pub const UNTRACKED_FILES_MAX: usize = 50_000;

/// Limit on the total bytes of untracked files in a snapshot.
pub const UNTRACKED_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Limits of a snapshot. Files above them are reported as [`SnapshotOmission::TooLarge`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotLimits {
    /// Size limit of a file that git does not have already with the same content.
    pub file_bytes_max: u64,
    /// Limit on the number of untracked files.
    pub untracked_files_max: usize,
    /// Limit on the total bytes of untracked files.
    pub untracked_bytes_max: u64,
}

impl Default for SnapshotLimits {
    fn default() -> SnapshotLimits {
        SnapshotLimits {
            file_bytes_max: FILE_BYTES_MAX,
            untracked_files_max: UNTRACKED_FILES_MAX,
            untracked_bytes_max: UNTRACKED_BYTES_MAX,
        }
    }
}

/// Returns a closure for `map_err` that adds the operation and the path.
pub(crate) fn io_at(
    attempt: &'static str,
    path: &Utf8Path,
) -> impl Fn(io::Error) -> SnapshotError + Copy {
    move |source| SnapshotError::Io { attempt, path: path.to_owned(), source }
}

/// Snapshots of one user repository's work trees.
#[derive(Debug, Clone)]
pub struct SnapshotStore {
    pub(crate) root: Utf8PathBuf,
    pub(crate) limits: SnapshotLimits,
    pub(crate) format: ObjectFormat,
    /// Directories that are never recorded: Heeler's own, and those that the caller names.
    pub(crate) excluded: Vec<Utf8PathBuf>,
}

impl SnapshotStore {
    /// Opens the snapshots of a work tree's repository under `dir`, and creates their repository if
    /// it is missing.
    ///
    /// A worktree of Heeler belongs to the repository that it was created in.
    pub fn open(dir: &Utf8Path, tree: &WorkTree) -> Result<SnapshotStore, SnapshotError> {
        create_folder(&OsDisk, dir)?;
        let dir = dir.canonicalize_utf8().map_err(io_at("find", dir))?;
        if let Some(key) = own_repository_key(&dir, &tree.common_dir) {
            let snapshots = SnapshotStore::open_key(&dir, key)?;
            // A killed process may have left data of its operation. No other code would remove it.
            snapshots.remove_leftovers()?;
            return Ok(snapshots);
        }
        let config = tree.common_file("config")?.unwrap_or_default();
        // Read by Heeler and not by git: no git process may read the config of a user's repository.
        let format = parse_object_format(&config);
        // A repository created again in the same place may use another hash algorithm.
        let suffix = if format == ObjectFormat::Sha256 { "-sha256" } else { "" };
        let key = format!("{}{suffix}", short_digest(tree.common_dir.as_str()));
        let snapshots = SnapshotStore::open_or_create(&dir, &key, format, |snapshots| {
            snapshots.copy_settings(&config)?;
            let excludes = tree.common_file("info/exclude")?.unwrap_or_default();
            // Ignore rules of the repository are copied once. Snapshots read the current ones each
            // time.
            snapshots.write("repo.git/info/exclude", excludes.as_bytes())?;
            snapshots.write("origin", tree.common_dir.as_str().as_bytes())
        })?;
        snapshots.remove_leftovers()?;
        Ok(snapshots)
    }

    /// Opens a repository of Heeler by its key; the user's may be gone.
    pub fn open_key(dir: &Utf8Path, key: &str) -> Result<SnapshotStore, SnapshotError> {
        let none = || SnapshotError::NoRepository { dir: dir.to_owned(), key: key.to_owned() };
        // The key comes from a record, which may be foreign, and becomes part of a path.
        if !is_key(key) {
            return Err(none());
        }
        let dir = dir.canonicalize_utf8().map_err(|_| none())?;
        let root = dir.join(key);
        if !root.join("repo.git").is_dir() {
            return Err(none());
        }
        // A state directory may come with a clone, so nothing is written through a link.
        refuse_links(&root)?;
        let config = untrusted_file::read_text(&root.join("repo.git/config"));
        let format =
            if config.is_ok_and(|config| parse_object_format(&config) == ObjectFormat::Sha256) {
                ObjectFormat::Sha256
            } else {
                ObjectFormat::Sha1
            };
        Ok(SnapshotStore { root, limits: SnapshotLimits::default(), format, excluded: vec![dir] })
    }

    /// Returns the keys of Heeler's repositories under `dir`.
    pub fn keys(dir: &Utf8Path) -> Result<Vec<String>, SnapshotError> {
        let mut keys: Vec<String> = entries(dir)?
            .into_iter()
            .filter(|name| is_key(name) && dir.join(name).join("repo.git").is_dir())
            .collect();
        keys.sort_unstable();
        Ok(keys)
    }

    /// Returns the key of this repository, unique in its directory.
    pub fn key(&self) -> &str {
        self.root.file_name().expect("a root is a key joined to a folder")
    }

    /// Returns the user's repository that this one was created for; it may be gone.
    pub fn origin(&self) -> Option<Utf8PathBuf> {
        untrusted_file::read_text(&self.root.join("origin")).ok().map(Utf8PathBuf::from)
    }

    /// Replaces the default limits.
    #[must_use]
    pub fn with_limits(mut self, limits: SnapshotLimits) -> SnapshotStore {
        self.limits = limits;
        self
    }

    /// Excludes directories from snapshots although they are in a work tree: the state directory.
    #[must_use]
    pub fn excluding(mut self, folders: &[Utf8PathBuf]) -> SnapshotStore {
        self.excluded.extend(folders.iter().filter_map(|folder| folder.canonicalize_utf8().ok()));
        self
    }

    /// Returns the commit of a name.
    pub fn commit_of(&self, name: &SnapshotName) -> Result<Option<CommitId>, SnapshotError> {
        self.read_ref(&self.ref_path(name))
    }

    /// Lists the names that are `prefix` or below it, all with `None`, with their commits.
    pub fn list(
        &self,
        prefix: Option<&SnapshotName>,
    ) -> Result<Vec<(SnapshotName, CommitId)>, SnapshotError> {
        let mut found = Vec::new();
        let mut names: Vec<String> = match prefix {
            Some(prefix) => vec![prefix.to_string()],
            None => entries(&self.root.join("refs"))?,
        };
        while let Some(text) = names.pop() {
            let Ok(name) = SnapshotName::parse(&text) else { continue };
            let path = self.ref_path(&name);
            if path.is_dir() {
                // A name is a file or a folder, never both, so no commit is missed here.
                names.extend(entries(&path)?.into_iter().map(|part| format!("{text}/{part}")));
            } else if let Some(commit) = self.read_ref(&path)? {
                found.push((name, commit));
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Removes names. [`SnapshotStore::prune`] frees the space.
    pub fn forget(&self, names: &[SnapshotName]) -> Result<(), SnapshotError> {
        for name in names {
            let path = self.ref_path(name);
            match fs::remove_file(&path) {
                // Another process may have removed the name; the result is the same.
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(io_at("remove", &path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn objects(&self) -> Utf8PathBuf {
        self.root.join("repo.git/objects")
    }

    pub(crate) fn ref_path(&self, name: &SnapshotName) -> Utf8PathBuf {
        self.root.join("refs").join(name.as_str())
    }

    pub(crate) fn set_ref(&self, path: &Utf8Path, commit: &CommitId) -> Result<(), SnapshotError> {
        if let Some(folder) = path.parent() {
            create_folder(&OsDisk, folder)?;
        }
        // Synced before the caller records the snapshot, so a record never names a missing
        // snapshot.
        Ok(replace_file(&OsDisk, path, format!("{commit}\n").as_bytes())?)
    }

    pub(crate) fn read_ref(&self, path: &Utf8Path) -> Result<Option<CommitId>, SnapshotError> {
        match untrusted_file::read(path, SMALL_BYTES_MAX) {
            Ok(bytes) => Ok(CommitId::parse(String::from_utf8_lossy(&bytes).trim_end())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            // The path is a parent of other names.
            Err(_) if path.is_dir() => Ok(None),
            Err(error) => Err(io_at("read", path)(error)),
        }
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), SnapshotError> {
        Ok(replace_file(&OsDisk, &self.root.join(name), bytes)?)
    }

    fn lock_path(&self) -> Utf8PathBuf {
        // Beside the folder and not in it: the lock must exist before the repository does.
        Utf8PathBuf::from(format!("{}.lock", self.root))
    }

    /// Begins an operation that may run beside others; pruning is excluded meanwhile.
    pub(crate) fn begin_shared(&self) -> Result<SnapshotOperation<'_>, SnapshotError> {
        SnapshotOperation::new(self, lock::acquire(&self.lock_path(), LockMode::Shared)?)
    }

    /// Begins an operation that excludes all others.
    pub(crate) fn begin_exclusive(&self) -> Result<SnapshotOperation<'_>, SnapshotError> {
        let lock = lock::acquire(&self.lock_path(), LockMode::Exclusive)?;
        self.remove_unlocked_leftovers()?;
        SnapshotOperation::new(self, lock)
    }

    /// Removes the leftovers of a crash, unless an operation is in progress.
    pub(crate) fn remove_leftovers(&self) -> Result<(), SnapshotError> {
        let is_clean = entries(&self.root.join("tmp"))?.is_empty()
            && entries(&self.root.join("pending"))?.is_empty();
        if is_clean {
            return Ok(());
        }
        // A live operation owns these files. The next opening tries again.
        match lock::try_acquire(&self.lock_path(), LockMode::Exclusive)? {
            Some(_lock) => self.remove_unlocked_leftovers(),
            None => Ok(()),
        }
    }

    /// Removes leftovers, with the exclusive lock held.
    fn remove_unlocked_leftovers(&self) -> Result<(), SnapshotError> {
        let pending = self.root.join("pending");
        for name in entries(&pending)? {
            let note = pending.join(&name);
            let path = Utf8PathBuf::from(untrusted_file::read_text(&note).unwrap_or_default());
            // Heeler wrote the note, but only a path named like a temporary file is removed.
            if path.file_name().is_some_and(is_temp) {
                remove_folder(&path)?;
            }
            // The note goes last, so that a crash in between repeats the removal.
            fs::remove_file(&note).map_err(io_at("remove", &note))?;
        }
        let tmp = self.root.join("tmp");
        entries(&tmp)?.iter().try_for_each(|name| remove_folder(&tmp.join(name)))
    }

    /// Opens a repository of Heeler and creates it if it is missing: it appears complete or not at
    /// all.
    pub(crate) fn open_or_create(
        dir: &Utf8Path,
        key: &str,
        format: ObjectFormat,
        fill: impl FnOnce(&SnapshotStore) -> Result<(), SnapshotError>,
    ) -> Result<SnapshotStore, SnapshotError> {
        let root = dir.join(key);
        if root.is_dir() {
            return SnapshotStore::open_key(dir, key);
        }
        let limits = SnapshotLimits::default();
        let made =
            SnapshotStore { root: root.clone(), limits, format, excluded: vec![dir.to_owned()] };
        let _lock = lock::acquire(&made.lock_path(), LockMode::Exclusive)?;
        // Another process may have created it while this one waited for the lock.
        if root.is_dir() {
            return SnapshotStore::open_key(dir, key);
        }
        // The lock is held, so these drafts belong to processes that died.
        let stale = format!(".{key}.tmp.");
        for name in entries(dir)?.iter().filter(|name| name.starts_with(&stale)) {
            remove_folder(&dir.join(name))?;
        }
        let draft = SnapshotStore { root: temp_name(&root), ..made.clone() };
        draft.create_layout()?;
        fill(&draft)?;
        // Each file was synced when it was written, so the complete folder can appear at once.
        fs::rename(&draft.root, &root).map_err(io_at("make", &root))?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(io_at("sync", dir))?;
        Ok(made)
    }

    fn create_layout(&self) -> Result<(), SnapshotError> {
        for folder in FOLDERS {
            create_folder(&OsDisk, &self.root.join(folder))?;
        }
        self.write("repo.git/HEAD", b"ref: refs/heads/main\n")?;
        self.write("repo.git/config", repository_config(self.format, true).as_bytes())
    }

    /// Copies the harmless settings of the user's repository.
    fn copy_settings(&self, user_config: &str) -> Result<(), SnapshotError> {
        let copy = self.root.join("tmp/config");
        // Git reads a copy: no git process reads the config of a user's repository.
        write_file(&copy, user_config.as_bytes()).map_err(io_at("write", &copy))?;
        let work = SnapshotOperation::new(
            self,
            lock::acquire(&self.root.join("locks/config"), LockMode::Shared)?,
        )?;
        let git = work.git(&["config", "--no-includes", "--list", "-z", "--file"])?;
        let listed = match git.arg(&copy).text(work.lock_input()) {
            Ok(listed) => listed,
            // A config that git itself cannot read provides no settings.
            Err(GitError::Failed { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let mut config = repository_config(self.format, true);
        for (key, value) in listed.split('\0').filter_map(|line| line.split_once('\n')) {
            // A control character could end the line and begin another setting.
            if COPIED_SETTINGS.contains(&key) && !value.contains(char::is_control) {
                let (section, name) = key.split_once('.').unwrap_or((key, ""));
                let value = value.replace('\\', "\\\\").replace('"', "\\\"");
                config.push_str(&format!("[{section}]\n\t{name} = \"{value}\"\n"));
            }
        }
        drop(work);
        fs::remove_file(&copy).map_err(io_at("remove", &copy))?;
        self.write("repo.git/config", config.as_bytes())
    }
}

/// Operation in progress: a lock, and a temporary directory that is removed at its end.
pub(crate) struct SnapshotOperation<'a> {
    pub(crate) snapshots: &'a SnapshotStore,
    pub(crate) lock: File,
    pub(crate) scratch: Utf8PathBuf,
}

impl<'a> SnapshotOperation<'a> {
    fn new(
        snapshots: &'a SnapshotStore,
        lock: File,
    ) -> Result<SnapshotOperation<'a>, SnapshotError> {
        let scratch = snapshots.root.join(format!("tmp/{:016x}", fastrand::u64(..)));
        let git = scratch.join("git");
        let work = SnapshotOperation { snapshots, lock, scratch };
        let mut folders = DirBuilder::new();
        folders.recursive(true).mode(0o700);
        for folder in ["refs", "info"] {
            let folder = git.join(folder);
            folders.create(&folder).map_err(io_at("make", &folder))?;
        }
        let mut config = repository_config(snapshots.format, false);
        let packs = entries(&snapshots.objects().join("pack"))?;
        // A pack of a partial clone refers to objects that do not exist here.
        if packs.iter().any(|name| name.ends_with(".promisor")) {
            config.push_str(PARTIAL_CLONE_CONFIG);
        }
        let files = [
            // A branch that does not exist: no command may resolve HEAD to a commit.
            ("HEAD", "ref: refs/heads/none\n"),
            ("config", &config),
            ("info/attributes", ATTRIBUTES),
        ];
        for (name, text) in files {
            let path = git.join(name);
            write_file(&path, text.as_bytes()).map_err(io_at("write", &path))?;
        }
        let shallow = snapshots.root.join("repo.git/shallow");
        // Git must know where the history ends, or it fails at a missing parent.
        match fs::copy(&shallow, git.join("shallow")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(io_at("copy", &shallow)(error))
            }
            _ => Ok(work),
        }
    }

    /// Acquires the lock of one work tree.
    pub(crate) fn lock_tree(&self, top: &Utf8Path) -> Result<File, SnapshotError> {
        // By work tree: snapshots of different work trees do not wait for each other.
        let path = self.snapshots.root.join("locks").join(short_digest(top.as_str()));
        lock::acquire(&path, LockMode::Exclusive)
    }

    /// Records the last snapshot of a work tree: the commit, protected against pruning, and its
    /// cache.
    ///
    /// Nothing is synced: a power loss can only lose or damage the starting point of the next
    /// snapshot.
    pub(crate) fn record_last_snapshot(
        &self,
        top: &Utf8Path,
        head: &SnapshotCacheHeader<'_>,
        cache: &[u8],
    ) -> Result<(), SnapshotError> {
        let root = &self.snapshots.root;
        let key = short_digest(top.as_str());
        let commit = format!("{}\n", head.commit);
        // The commit before its cache: a cache of another commit is ignored, a commit without one
        // is not.
        for (folder, bytes) in [("kept", commit.as_bytes()), ("cache", cache)] {
            let (draft, path) = (self.scratch.join(folder), root.join(folder).join(&key));
            let written = write_file(&draft, bytes).and_then(|()| fs::rename(&draft, &path));
            written.map_err(io_at("write", &path))?;
        }
        Ok(())
    }

    pub(crate) fn git_dir(&self) -> Utf8PathBuf {
        self.scratch.join("git")
    }

    /// Prepares a git command on Heeler's objects.
    pub(crate) fn git(&self, args: &[&str]) -> Result<GitCommand, GitError> {
        GitCommand::new(&self.git_dir(), &self.snapshots.objects(), args)
    }

    /// Returns the input for a git command that reads nothing.
    pub(crate) fn lock_input(&self) -> crate::git_command::GitInput<'_> {
        crate::git_command::GitInput::HoldLock(&self.lock)
    }
}

impl Drop for SnapshotOperation<'_> {
    fn drop(&mut self) {
        // Remaining files are removed at the next opening.
        let _unused = fs::remove_dir_all(&self.scratch);
    }
}

/// Refuses a repository with a part that is a link: it may have come with a foreign state
/// directory, and nothing may be written outside.
fn refuse_links(root: &Utf8Path) -> Result<(), SnapshotError> {
    let (folder, key) = (root.parent().unwrap_or(root), root.file_name().unwrap_or_default());
    for name in FOLDERS.iter().chain(&LAZY_FOLDERS) {
        resolve_inside(folder, &format!("{key}/{name}"))?;
    }
    Ok(())
}

/// Returns the key of Heeler's repository that this directory belongs to.
fn own_repository_key<'a>(dir: &Utf8Path, common_dir: &'a Utf8Path) -> Option<&'a str> {
    let root = common_dir.strip_prefix(dir).ok()?.parent()?;
    let key = root.file_name().filter(|key| is_key(key))?;
    (dir.join(key).join("repo.git") == common_dir).then_some(key)
}

pub(crate) fn is_key(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    !text.is_empty() && text.len() <= 100 && text.bytes().all(plain)
}

/// Writes a file that only the owner may read, regardless of the umask.
pub(crate) fn write_file(path: &Utf8Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::options();
    file.write(true).create(true).truncate(true).mode(FILE_MODE);
    file.open(path)?.write_all(bytes)
}

/// Returns the names in a directory; none if it does not exist.
pub(crate) fn entries(folder: &Utf8Path) -> Result<Vec<String>, SnapshotError> {
    let listed = match folder.read_dir_utf8() {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_at("list", folder)(error)),
    };
    let name = |entry: io::Result<camino::Utf8DirEntry>| {
        entry.map(|entry| entry.file_name().to_owned()).map_err(io_at("list", folder))
    };
    listed.map(name).collect()
}

/// Removes a directory and its content, if it exists. Directories without write permission are made
/// writable first.
pub(crate) fn remove_folder(path: &Utf8Path) -> Result<(), SnapshotError> {
    let removed = match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            // A checked-out directory may have been made read-only by an agent.
            make_writable(path.as_std_path()).and_then(|()| fs::remove_dir_all(path))
        }
        result => result,
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(io_at("remove", path)),
    }
}

fn make_writable(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            make_writable(&entry.path())?;
        }
    }
    Ok(())
}
