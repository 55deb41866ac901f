//! The file system of a sandbox, as a list of mounts.
//!
//! The whole system is visible and read-only. A few directories are private and empty. Above that,
//! every path has at most one rule, and of two paths the deeper one counts. Paths are canonical, and
//! every file has the same path inside as outside. Start at [`SandboxMounts::build`].

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use heeler_inside::MountCheck;
use heeler_model::run::SandboxSpec;
use thiserror::Error;

use super::git_folder::GitFolder;

/// Directories that are private and empty in every sandbox.
pub(super) const PRIVATE_FOLDERS: [&str; 3] = ["/tmp", "/var/tmp", "/run"];

/// Directories below `/run` that hold the system's programs on some distributions.
const SYSTEM_RUN_FOLDERS: [&str; 3] =
    ["/run/current-system", "/run/booted-system", "/run/opengl-driver"];

/// Files of a git directory from which git runs commands.
const GIT_COMMAND_FILES: [(&str, bool); 2] = [("config", false), ("hooks", true)];

/// Protected directories that are mounted even if they do not exist: Claude's settings, from which it
/// runs commands.
const ABSENT_FOLDERS: [&str; 1] = [".claude"];

/// Maximum number of listening sockets that are hidden.
const SOCKETS_MAX: usize = 512;

/// Reason that the file system of a sandbox cannot be made.
#[derive(Debug, Error)]
pub(crate) enum SandboxMountError {
    #[error("{path} cannot be used in the sandbox; create it, or change `sandbox` in the config")]
    Missing {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{path} is a symbolic link in the working directory, or behind one, so an agent could decide \
         what the sandbox shows there; replace the link by what it leads to"
    )]
    Link { path: Utf8PathBuf },
}

/// Content of the sandbox at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SandboxMount {
    /// An empty directory in memory.
    EmptyFolder,
    /// An empty file that cannot be written.
    EmptyFile,
    /// A file that cannot be opened.
    ClosedFile,
    /// The file or directory, read-only.
    ReadOnly,
    /// The file or directory.
    Writable,
    /// A copy in memory, which is lost at the end of the run.
    PrivateCopy(Vec<u8>),
}

/// Mounts of a sandbox above the read-only system.
#[derive(Debug, Default)]
pub(super) struct SandboxMounts {
    rules: BTreeMap<Utf8PathBuf, SandboxMount>,
}

impl SandboxMounts {
    /// Builds the mounts for a canonical working directory; `more` are directories that the runtime
    /// must write.
    pub(super) fn build(
        spec: &SandboxSpec,
        working_directory: &Utf8Path,
        more: &[Utf8PathBuf],
    ) -> Result<SandboxMounts, SandboxMountError> {
        let mut mounts = SandboxMounts::default();
        for folder in PRIVATE_FOLDERS {
            mounts.rules.insert(folder.into(), SandboxMount::EmptyFolder);
        }
        for folder in SYSTEM_RUN_FOLDERS.map(Utf8Path::new).into_iter().filter(|it| it.exists()) {
            mounts.rules.insert(folder.to_owned(), SandboxMount::ReadOnly);
        }
        mounts.rules.insert(working_directory.to_owned(), SandboxMount::Writable);
        let git = GitFolder::find(working_directory);
        if let Some(git) = &git {
            mounts.rules.insert(git.common.clone(), SandboxMount::Writable);
        }
        for path in &spec.writable {
            mounts.rules.insert(real_path(path, working_directory)?, SandboxMount::Writable);
        }
        for path in &spec.hidden {
            mounts.hide(path);
        }
        // After the hidden directories, so that one of them does not hide what the runtime needs.
        for path in more {
            mounts.rules.insert(path.clone(), SandboxMount::Writable);
        }
        mounts.hide_sockets();
        for path in &spec.readable {
            mounts.rules.insert(real_path(path, working_directory)?, SandboxMount::ReadOnly);
        }
        for path in &spec.protected {
            match path.canonicalize_utf8() {
                Ok(real) => mounts.protect(real),
                Err(_) => mounts.protect_absent(path),
            }
        }
        if let Some(git) = &git {
            mounts.protect_git(git, &spec.writable)?;
        }
        mounts.pin_ancestors();
        Ok(mounts)
    }

    /// Replaces the rule of a path.
    pub(super) fn set(&mut self, path: Utf8PathBuf, mount: SandboxMount) {
        self.rules.insert(path, mount);
    }

    /// Makes a directory and everything below it read-only, except for these paths.
    pub(super) fn close(&mut self, folder: &Utf8Path, except: &[Utf8PathBuf]) {
        let git = GitFolder::find(folder).map(|git| git.common);
        let is_closed = |path: &Utf8PathBuf| {
            let is_git = git.as_ref().is_some_and(|git| path.starts_with(git));
            (path.starts_with(folder) || is_git) && !except.iter().any(|it| path.starts_with(it))
        };
        let writable = |(path, mount): &(&Utf8PathBuf, &mut SandboxMount)| {
            is_closed(path) && **mount == SandboxMount::Writable
        };
        for (_, mount) in self.rules.iter_mut().filter(writable) {
            *mount = SandboxMount::ReadOnly;
        }
    }

    /// Makes a file visible that is hidden otherwise, such as the agent's program.
    pub(super) fn show(&mut self, path: &Utf8Path) {
        if !self.is_visible(path) {
            self.rules.insert(path.to_owned(), SandboxMount::ReadOnly);
        }
    }

    /// Returns the rules, outer directories before inner ones.
    pub(super) fn rules(&self) -> impl Iterator<Item = (&Utf8Path, &SandboxMount)> {
        self.rules.iter().map(|(path, mount)| (path.as_path(), mount))
    }

    /// Returns what the sandbox must show at paths that another agent may replace meanwhile.
    pub(super) fn checks(&self) -> io::Result<Vec<MountCheck>> {
        let is_bind =
            |mount: &SandboxMount| matches!(mount, SandboxMount::ReadOnly | SandboxMount::Writable);
        let binds = self.rules.iter().filter(|(_, mount)| is_bind(mount));
        binds
            .map(|(path, _)| {
                let found = path.symlink_metadata()?;
                if found.is_symlink() {
                    return Err(io::Error::other(format!("{path} was replaced by a link")));
                }
                let (device, inode) = (found.dev(), found.ino());
                Ok(MountCheck { path: path.to_string(), device, inode })
            })
            .collect()
    }

    /// Returns the rule of the nearest ancestor, or of the path itself.
    fn rule_for(&self, path: &Utf8Path) -> Option<&SandboxMount> {
        path.ancestors().find_map(|path| self.rules.get(path))
    }

    pub(super) fn is_visible(&self, path: &Utf8Path) -> bool {
        let is_hidden = |mount: &SandboxMount| {
            use SandboxMount::{ClosedFile, EmptyFile, EmptyFolder};
            matches!(mount, EmptyFolder | EmptyFile | ClosedFile)
        };
        !self.rule_for(path).is_some_and(is_hidden)
    }

    fn is_writable(&self, path: &Utf8Path) -> bool {
        matches!(self.rule_for(path), Some(SandboxMount::Writable))
    }

    /// Hides a file or directory. One that does not exist needs no rule.
    fn hide(&mut self, path: &Utf8Path) {
        let Ok(real) = path.canonicalize_utf8() else { return };
        // The config lets the agent write exactly this path.
        if self.rules.get(&real) == Some(&SandboxMount::Writable) || !self.is_visible(&real) {
            return;
        }
        let mount = if real.is_dir() { SandboxMount::EmptyFolder } else { SandboxMount::EmptyFile };
        self.rules.insert(real, mount);
    }

    /// Hides the sockets on which processes of the machine listen. A read-only mount does not
    /// prevent a connection.
    fn hide_sockets(&mut self) {
        let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
        for path in listening_sockets(&table).take(SOCKETS_MAX) {
            let is_socket = |path: &Utf8Path| {
                use std::os::unix::fs::FileTypeExt as _;
                path.metadata().is_ok_and(|found| found.file_type().is_socket())
            };
            // Sockets in a directory of the agent belong to its own work.
            if !self.is_writable(path)
                && is_socket(path)
                && let Ok(real) = path.canonicalize_utf8()
                && self.is_visible(&real)
            {
                self.rules.insert(real, SandboxMount::ClosedFile);
            }
        }
    }

    /// Protects a canonical path where the agent could write it otherwise.
    fn protect(&mut self, path: Utf8PathBuf) {
        if self.is_writable(&path) && self.rules.get(&path) != Some(&SandboxMount::Writable) {
            self.rules.insert(path, SandboxMount::ReadOnly);
        }
    }

    /// Prevents that the agent makes a protected directory that does not exist. The mount leaves an
    /// empty directory behind, which means nothing to Claude. An empty file would mean something, so
    /// for a new file the agents that load it check it.
    fn protect_absent(&mut self, path: &Utf8Path) {
        if !ABSENT_FOLDERS.iter().any(|name| path.file_name() == Some(name))
            || path.symlink_metadata().is_ok()
        {
            return;
        }
        let Some(folder) = path.parent().and_then(|it| it.canonicalize_utf8().ok()) else { return };
        let path = folder.join(path.file_name().unwrap_or_default());
        if self.is_writable(&path) {
            self.set(path, SandboxMount::EmptyFolder);
        }
    }

    /// Protects the files of a git directory from which git runs commands, unless the config lets
    /// the agent write them.
    fn protect_git(
        &mut self,
        git: &GitFolder,
        writable: &[Utf8PathBuf],
    ) -> Result<(), SandboxMountError> {
        if let Some(link) = &git.link {
            self.protect(link.clone());
        }
        for (name, is_folder) in GIT_COMMAND_FILES {
            let path = git.common.join(name);
            if !self.is_writable(&path) || writable.contains(&path) {
                continue;
            }
            match path.symlink_metadata() {
                Ok(found) if found.is_symlink() => return Err(SandboxMountError::Link { path }),
                Ok(_) => self.protect(path),
                // The agent could make it. Git takes an empty one for none.
                Err(_) if is_folder => self.set(path, SandboxMount::EmptyFolder),
                Err(_) => self.set(path, SandboxMount::EmptyFile),
            }
        }
        Ok(())
    }

    /// Makes a mount of every writable directory above a rule. The agent can move a directory that
    /// contains a mount, and put another one in its place, but no directory that is one.
    fn pin_ancestors(&mut self) {
        let paths: Vec<Utf8PathBuf> = self.rules.keys().cloned().collect();
        for path in paths {
            let above: Vec<Utf8PathBuf> = path
                .ancestors()
                .skip(1)
                .take_while(|it| !self.rules.contains_key(*it))
                .map(Utf8Path::to_owned)
                .collect();
            for folder in above.into_iter().filter(|it| self.is_writable(it)).collect::<Vec<_>>() {
                self.rules.insert(folder, SandboxMount::Writable);
            }
        }
    }
}

/// Returns the canonical form of a configured path. Agents can make links in the working directory,
/// also to something hidden in there, so no part of the path below it may be one.
fn real_path(path: &Utf8Path, work: &Utf8Path) -> Result<Utf8PathBuf, SandboxMountError> {
    let real = path
        .canonicalize_utf8()
        .map_err(|source| SandboxMountError::Missing { path: path.to_owned(), source })?;
    let plain = without_parent_names(path);
    // The config may name the working directory through another link.
    let is_work = |it: &&Utf8Path| it.canonicalize_utf8().is_ok_and(|it| it == work);
    let inner = plain.ancestors().find(is_work).and_then(|base| plain.strip_prefix(base).ok());
    match inner {
        Some(inner) if real != work.join(inner) => {
            Err(SandboxMountError::Link { path: path.to_owned() })
        }
        // Behind a link, `..` leads elsewhere than the text says.
        None if real.starts_with(work) => Err(SandboxMountError::Link { path: path.to_owned() }),
        _ => Ok(real),
    }
}

/// Resolves `..` by the text alone.
fn without_parent_names(path: &Utf8Path) -> Utf8PathBuf {
    let mut plain = Utf8PathBuf::new();
    for part in path.components() {
        match part {
            Utf8Component::ParentDir => {
                plain.pop();
            }
            Utf8Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// Returns the paths of listening sockets in the kernel's list.
fn listening_sockets(table: &str) -> impl Iterator<Item = &Utf8Path> {
    table.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        // The flags are the fourth column, the path is the eighth. Abstract names begin with `@`.
        let is_listening = fields.nth(3)? == "00010000";
        let path = fields.nth(3)?;
        (is_listening && path.starts_with('/')).then(|| Utf8Path::new(path))
    })
}

#[cfg(test)]
mod tests;
