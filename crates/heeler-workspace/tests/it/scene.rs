//! A user's repository, our folder beside it, and files read back as plain data.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};
use heeler_workspace::{Snapshot, SnapshotName, SnapshotStore, WorkTree};
use jiff::Timestamp;

/// What a path is: content and, for a file, whether it may be executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
    File(Vec<u8>, bool),
    Link(Vec<u8>),
}

pub(crate) type Items = BTreeMap<Vec<u8>, Item>;

pub(crate) struct Scene {
    _temp: tempfile::TempDir,
    pub(crate) root: Utf8PathBuf,
    pub(crate) repo: Utf8PathBuf,
    pub(crate) dir: Utf8PathBuf,
}

impl Scene {
    /// A repository with one commit of `README` in it.
    pub(crate) fn new() -> Scene {
        let scene = Scene::empty(&[]);
        scene.write("README", "read me\n");
        scene.git(&["add", "-A"]);
        scene.git(&["commit", "-qm", "first"]);
        scene
    }

    /// A repository without a commit.
    pub(crate) fn empty(init: &[&str]) -> Scene {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(temp.path()).unwrap().canonicalize_utf8().unwrap();
        let (repo, dir) = (root.join("repo"), root.join("state/workspaces"));
        fs::create_dir(&repo).unwrap();
        git(&root, &[&["init", "-q", "-b", "main", "repo"], init].concat());
        Scene { _temp: temp, root, repo, dir }
    }

    pub(crate) fn git(&self, args: &[&str]) -> String {
        git(&self.repo, args)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.repo.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn tree(&self) -> WorkTree {
        WorkTree::find(&self.repo).unwrap().unwrap()
    }

    pub(crate) fn open(&self) -> SnapshotStore {
        SnapshotStore::open(&self.dir, &self.tree()).unwrap()
    }

    pub(crate) fn take(&self, text: &str) -> Snapshot {
        self.open().take(&self.tree(), &name(text), "a note", now()).unwrap()
    }

    /// Makes a worktree of a snapshot and reads it.
    pub(crate) fn restored(&self, snapshot: &Snapshot) -> Items {
        items(&self.fork(snapshot).top)
    }

    pub(crate) fn fork(&self, snapshot: &Snapshot) -> WorkTree {
        let at = self.root.join(format!("forks/{:x}", fastrand::u64(..)));
        self.open().add_worktree(&snapshot.commit, &at).unwrap()
    }
}

pub(crate) fn now() -> Timestamp {
    "2026-11-15T12:00:00Z".parse().unwrap()
}

pub(crate) fn name(text: &str) -> SnapshotName {
    SnapshotName::parse(text).unwrap()
}

/// Runs git as a user would, with nobody's settings.
pub(crate) fn git(folder: &Utf8Path, args: &[&str]) -> String {
    let output = git_command(folder).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "git {args:?}: {said}");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

pub(crate) fn git_command(folder: &Utf8Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(folder);
    for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("GIT_")) {
        command.env_remove(key);
    }
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "user");
        command.env(format!("GIT_{who}_EMAIL"), "user@localhost");
    }
    command
}

/// Reads every file below a folder but the topmost `.git`.
pub(crate) fn items(top: &Utf8Path) -> Items {
    let mut items = Items::new();
    let mut folders = vec![top.as_std_path().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(top).unwrap().as_os_str().as_bytes().to_vec();
            let found = fs::symlink_metadata(&path).unwrap();
            if name == b".git" {
            } else if found.is_dir() {
                folders.push(path);
            } else if found.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                items.insert(name, Item::Link(target.as_os_str().as_bytes().to_vec()));
            } else if found.is_file() {
                let is_executable = found.permissions().mode() & 0o100 != 0;
                items.insert(name, Item::File(fs::read(&path).unwrap(), is_executable));
            }
        }
    }
    items
}

pub(crate) fn names(items: &Items) -> Vec<String> {
    items.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

/// Every path below a folder with its bytes, mode and times of change.
pub(crate) fn listing(folder: &Utf8Path) -> BTreeMap<String, (u32, i64, i64, Vec<u8>)> {
    use std::os::unix::fs::MetadataExt as _;
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir_utf8().unwrap() {
            let path = entry.unwrap().into_path();
            let stat = fs::symlink_metadata(&path).unwrap();
            if stat.is_dir() {
                folders.push(path.clone());
            }
            let bytes = if stat.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            found.insert(path.into(), (stat.mode(), stat.mtime(), stat.mtime_nsec(), bytes));
        }
    }
    found
}

pub(crate) fn odd(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

/// Does something on a thread to which permissions apply, whoever runs the tests: also root's.
pub(crate) fn as_anybody<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            #[cfg(target_os = "linux")]
            {
                use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
                let mut sets = capabilities(None).unwrap();
                let all = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
                sets.effective.remove(all);
                set_capabilities(None, sets).unwrap();
            }
            act()
        });
        thread.join().unwrap()
    })
}
