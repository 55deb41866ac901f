//! The git directory of a working directory, as far as a sandbox may trust it.
//!
//! An agent can write `.git` in its working directory, and the next run of any agent there makes
//! mounts of what it says. Therefore a link to another place counts only if that place, which the
//! agent could not write, names this working directory too. Start at [`GitFolder::find`].

use camino::{Utf8Path, Utf8PathBuf};

/// Length of a `.git` file beyond which it is none.
const GIT_FILE_BYTES_MAX: u64 = 8 << 10;

/// Git directory of a working directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GitFolder {
    /// The directory that holds objects, references, hooks and config.
    pub(super) common: Utf8PathBuf,
    /// The file `.git` of a worktree.
    pub(super) link: Option<Utf8PathBuf>,
}

impl GitFolder {
    /// Finds the git directory of a canonical path or of its nearest ancestor that has one.
    pub(super) fn find(working_directory: &Utf8Path) -> Option<GitFolder> {
        working_directory.ancestors().find_map(GitFolder::of_root)
    }

    fn of_root(root: &Utf8Path) -> Option<GitFolder> {
        let entry = root.join(".git");
        let found = entry.symlink_metadata().ok()?;
        if found.is_dir() {
            return is_repository(&entry).then_some(GitFolder { common: entry, link: None });
        }
        // A symbolic link is not followed: an agent may have made it.
        if !found.is_file() || found.len() > GIT_FILE_BYTES_MAX {
            return None;
        }
        let text = std::fs::read_to_string(&entry).ok()?;
        let folder = root.join(text.strip_prefix("gitdir:")?.trim()).canonicalize_utf8().ok()?;
        let worktrees = folder.parent().filter(|it| it.file_name() == Some("worktrees"))?;
        let common = worktrees.parent()?.to_owned();
        // Git records here to which working directory the worktree belongs.
        let back = std::fs::read_to_string(folder.join("gitdir")).ok()?;
        let back = folder.join(back.trim()).canonicalize_utf8().ok()?;
        (back == entry && is_repository(&common)).then_some(GitFolder { common, link: Some(entry) })
    }
}

fn is_repository(folder: &Utf8Path) -> bool {
    let is_folder = |name: &str| folder.join(name).symlink_metadata().is_ok_and(|it| it.is_dir());
    folder.join("HEAD").symlink_metadata().is_ok() && is_folder("objects") && is_folder("refs")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(folder: &Utf8Path) {
        for name in ["objects", "refs"] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
        }
        std::fs::write(folder.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    }

    #[test]
    fn a_git_file_counts_only_if_the_other_side_agrees() {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(temp.path()).unwrap().canonicalize_utf8().unwrap();
        let (main, work) = (root.join("main/.git"), root.join("work"));
        repository(&main);
        repository(&root.join("victim/.git"));
        let own = main.join("worktrees/work");
        std::fs::create_dir_all(&own).unwrap();
        std::fs::create_dir_all(work.join("sub")).unwrap();
        std::fs::write(work.join(".git"), format!("gitdir: {own}\n")).unwrap();
        assert_eq!(GitFolder::find(&work), None, "nothing names the working directory");
        std::fs::write(own.join("gitdir"), format!("{work}/.git\n")).unwrap();
        let found = GitFolder { common: main.clone(), link: Some(work.join(".git")) };
        assert_eq!(GitFolder::find(&work.join("sub")), Some(found));
        // The agent makes a worktree of its own that claims to belong to another repository.
        let fake = work.join("worktrees/x");
        std::fs::create_dir_all(&fake).unwrap();
        std::fs::write(fake.join("gitdir"), format!("{work}/.git\n")).unwrap();
        std::fs::write(fake.join("commondir"), format!("{root}/victim/.git\n")).unwrap();
        std::fs::write(work.join(".git"), format!("gitdir: {fake}\n")).unwrap();
        assert_eq!(GitFolder::find(&work), None);
        for target in [root.join("victim/.git"), root.join("victim")] {
            std::fs::write(work.join(".git"), format!("gitdir: {target}\n")).unwrap();
            assert_eq!(GitFolder::find(&work), None, "{target}");
        }
        std::fs::remove_file(work.join(".git")).unwrap();
        std::os::unix::fs::symlink(root.join("victim/.git"), work.join(".git")).unwrap();
        assert_eq!(GitFolder::find(&work), None, "a link is not followed");
    }
}
