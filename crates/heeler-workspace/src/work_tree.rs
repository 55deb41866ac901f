//! Finds a user's work tree by reading files, without running git. Start at [`WorkTree::find`].

use std::fs;
use std::io::{self, Read as _};

use camino::{Utf8Path, Utf8PathBuf};
use heeler_transcript::untrusted_file;
use thiserror::Error;

use crate::snapshot::CommitId;

/// Limit on the bytes read of a small file of a repository: `HEAD`, `commondir`, a ref.
const SMALL_BYTES_MAX: u64 = 64 * 1024;

/// Limit on the bytes read of `packed-refs`, `config`, `info/exclude`.
const LARGE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Limit on chained symbolic refs.
const SYMREFS_MAX: usize = 5;

/// Work tree of a git repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkTree {
    /// Top directory, without links in the path.
    pub top: Utf8PathBuf,
    /// Directory with its `HEAD` and index.
    pub git_dir: Utf8PathBuf,
    /// Directory with the objects and refs; for a linked worktree, that of the main one.
    pub common_dir: Utf8PathBuf,
}

/// Reason that a work tree was not found or not understood.
#[derive(Debug, Error)]
pub enum WorkTreeFindError {
    /// A file of the repository could not be read.
    #[error("cannot read {path}")]
    Read {
        path: Utf8PathBuf,
        #[source]
        source: io::Error,
    },
    /// `.git` exists but leads to no repository.
    #[error("{path} is not a git repository: {reason}")]
    Broken {
        /// The `.git` file or directory.
        path: Utf8PathBuf,
        /// Missing part.
        reason: &'static str,
    },
    /// The directory is inside a bare repository: there are no files to record.
    #[error("{path} is a bare git repository; choose a directory with checked-out files")]
    Bare { path: Utf8PathBuf },
    /// The refs are stored in a format that only git itself can read.
    #[error(
        "{path} keeps its refs as reftable, which is not supported; `git refs migrate --ref-format=files` changes that"
    )]
    RefFormat { path: Utf8PathBuf },
}

/// State of `HEAD`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeadState {
    pub(crate) commit: Option<CommitId>,
    pub(crate) branch: Option<String>,
}

impl WorkTree {
    /// Finds the work tree that contains a directory; `None` if there is none.
    pub fn find(folder: &Utf8Path) -> Result<Option<WorkTree>, WorkTreeFindError> {
        // Links are resolved first, because git identifies a work tree by its real path.
        let start = canonicalize(folder)?;
        for top in start.ancestors() {
            let dot_git = top.join(".git");
            // Followed on purpose: git accepts a linked `.git` too.
            match fs::metadata(&dot_git) {
                Ok(found) if found.is_dir() => {
                    // A directory named .git that is not a repository is skipped, as git does.
                    if is_git_dir(&dot_git) {
                        return WorkTree::from_git_dir(top, &dot_git).map(Some);
                    }
                }
                Ok(_) => {
                    return WorkTree::from_git_dir(top, &read_gitdir_file(&dot_git)?).map(Some);
                }
                Err(_) if is_git_dir(top) && top.join("config").is_file() => {
                    return Err(WorkTreeFindError::Bare { path: top.to_owned() });
                }
                Err(_) => {}
            }
        }
        Ok(None)
    }

    fn from_git_dir(top: &Utf8Path, git_dir: &Utf8Path) -> Result<WorkTree, WorkTreeFindError> {
        let git_dir = canonicalize(git_dir)?;
        let common_dir = match read(&git_dir.join("commondir"), SMALL_BYTES_MAX)? {
            // A linked worktree names the main repository relative to its own data.
            Some(text) => canonicalize(&git_dir.join(trimmed(&text)))?,
            None => git_dir.clone(),
        };
        if !common_dir.join("objects").is_dir() {
            return Err(WorkTreeFindError::Broken {
                path: common_dir,
                reason: "it has no objects",
            });
        }
        Ok(WorkTree { top: top.to_owned(), git_dir, common_dir })
    }

    /// Returns the checked-out commit and branch.
    pub(crate) fn head(&self) -> Result<HeadState, WorkTreeFindError> {
        let path = self.git_dir.join("HEAD");
        let text = read(&path, SMALL_BYTES_MAX)?;
        let text = text.ok_or(WorkTreeFindError::Broken { path, reason: "it has no HEAD" })?;
        let Some(first) = trimmed(&text).strip_prefix("ref:").map(|name| name.trim().to_owned())
        else {
            return Ok(HeadState { commit: CommitId::parse(trimmed(&text)), branch: None });
        };
        // Git writes this name for programs that cannot read the newer ref format.
        if first == "refs/heads/.invalid" {
            return Err(WorkTreeFindError::RefFormat { path: self.common_dir.clone() });
        }
        let branch = first.strip_prefix("refs/heads/").unwrap_or(&first).to_owned();
        Ok(HeadState { commit: self.resolve(first)?, branch: Some(branch) })
    }

    fn resolve(&self, mut name: String) -> Result<Option<CommitId>, WorkTreeFindError> {
        for _ in 0..SYMREFS_MAX {
            // A name that leads out of the repository is not a valid ref.
            if !name.starts_with("refs/") || name.split('/').any(|part| part == "..") {
                return Ok(None);
            }
            // A loose ref wins over a packed one, as in git.
            let Some(text) = read(&self.common_dir.join(&name), SMALL_BYTES_MAX)? else {
                return self.find_packed_ref(&name);
            };
            match trimmed(&text).strip_prefix("ref:") {
                Some(next) => name = next.trim().to_owned(),
                None => return Ok(CommitId::parse(trimmed(&text))),
            }
        }
        Ok(None)
    }

    fn find_packed_ref(&self, name: &str) -> Result<Option<CommitId>, WorkTreeFindError> {
        let text = read(&self.common_dir.join("packed-refs"), LARGE_BYTES_MAX)?;
        let line = text.as_deref().and_then(|text| {
            // The name must follow a space, or `x/main` would match `main`.
            text.lines().find_map(|line| line.strip_suffix(name)?.strip_suffix(' '))
        });
        Ok(line.and_then(CommitId::parse))
    }

    /// Reads a data file of the repository; `None` if it does not exist.
    pub(crate) fn common_file(&self, name: &str) -> Result<Option<String>, WorkTreeFindError> {
        read(&self.common_dir.join(name), LARGE_BYTES_MAX)
    }
}

/// Returns the target of a `.git` file.
fn read_gitdir_file(dot_git: &Utf8Path) -> Result<Utf8PathBuf, WorkTreeFindError> {
    let broken = |reason| WorkTreeFindError::Broken { path: dot_git.to_owned(), reason };
    let text = read(dot_git, SMALL_BYTES_MAX)?.ok_or(broken("it is gone"))?;
    let target = trimmed(&text).strip_prefix("gitdir:").ok_or(broken("it names no gitdir"))?;
    let folder = dot_git.parent().unwrap_or(dot_git).join(target.trim_start());
    if folder.is_dir() { Ok(folder) } else { Err(broken("the directory that it names is missing")) }
}

fn is_git_dir(folder: &Utf8Path) -> bool {
    let has_head = fs::symlink_metadata(folder.join("HEAD")).is_ok();
    let is_whole = folder.join("objects").is_dir() && folder.join("refs").is_dir();
    has_head && (is_whole || folder.join("commondir").is_file())
}

fn canonicalize(path: &Utf8Path) -> Result<Utf8PathBuf, WorkTreeFindError> {
    path.canonicalize_utf8()
        .map_err(|source| WorkTreeFindError::Read { path: path.to_owned(), source })
}

/// Reads a regular file as text, up to `max` bytes; invalid UTF-8 is replaced.
fn read(path: &Utf8Path, max: u64) -> Result<Option<String>, WorkTreeFindError> {
    // A directory of that name is a parent of refs, not a ref.
    if path.is_dir() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    // The repository belongs to the user, so links and pipes in it are not opened.
    match untrusted_file::open(path).and_then(|file| file.take(max).read_to_end(&mut bytes)) {
        Ok(_) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(source) => Err(WorkTreeFindError::Read { path: path.to_owned(), source }),
    }
}

fn is_not_found(error: &io::Error) -> bool {
    // A part of the path may be a file where a folder was expected.
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn trimmed(text: &str) -> &str {
    text.trim_end_matches(['\n', '\r', ' '])
}
