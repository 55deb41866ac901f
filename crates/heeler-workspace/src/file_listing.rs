//! Finds the files of a work tree: git's list of them, and their state. Start at
//! [`SnapshotOperation::find_files`].

use std::fs;
use std::io::Write;

use camino::{Utf8Path, Utf8PathBuf};

use crate::git_command::{GitCommand, GitInput, program_identity};
use crate::listing_cache::{CachedListing, IgnoredFolders, ListingKey};
use crate::object_id::short_digest;
use crate::snapshot_cache::IndexState;
use crate::snapshot_store::{SnapshotError, SnapshotOperation, SnapshotStore, io_at, write_file};
use crate::take_snapshot::{GitFileList, IndexCopy};
use crate::walk::{WorkTreeScan, add_skipped_names, walk};
use crate::work_tree::WorkTree;

/// Name that the rules of [`SnapshotOperation::ignored_folders`] ignore: git fails if it ignores none
/// of the names that it is asked about.
const IGNORED_PROBE: &str = ".heeler-ignored-probe";

/// Ignore rules that are not in the work tree.
struct IgnoreRules {
    /// Patterns of the repository, which its clones do not have.
    patterns: String,
    /// Folders of Heeler, as patterns.
    folders: Vec<String>,
}

impl IgnoreRules {
    fn listing_key(&self, index: &IndexState) -> ListingKey {
        let git = program_identity();
        let mut rules: Vec<&[u8]> = vec![&git, self.patterns.as_bytes()];
        rules.extend(self.folders.iter().map(|folder| folder.as_bytes()));
        ListingKey::new(index, &rules)
    }
}

impl SnapshotOperation<'_> {
    /// Returns the files of a work tree with their state. Git runs only if its last list may be out of
    /// date; `fs_now` is the current time of the file system.
    pub(crate) fn find_files(
        &self,
        tree: &WorkTree,
        index: &IndexCopy,
        fs_now: i64,
    ) -> Result<(GitFileList, WorkTreeScan), SnapshotError> {
        let rules = self.ignore_rules(tree)?;
        let key = rules.listing_key(&index.state);
        let path = self.snapshots.listing_path(&tree.top);
        if let Some(mut cached) = CachedListing::read(&path, key) {
            let listed = GitFileList::new(std::mem::take(&mut cached.output));
            let mut walked = walk(&tree.top, &listed.statuses, fs_now)?;
            add_skipped_names(&tree.top, &mut walked.names, &cached.ignored_folders, fs_now);
            if cached.is_current(&mut walked.names) {
                return Ok((listed, walked));
            }
        }
        let output = self.list_files(tree, index, &rules)?;
        let listed = GitFileList::new(output.clone());
        let mut walked = walk(&tree.top, &listed.statuses, fs_now)?;
        let skipped = &walked.names.skipped_folders;
        // Without an answer no folder counts as ignored, and their names are compared.
        let ignored = self.ignored_folders(tree, index, &rules, skipped).unwrap_or_default();
        let mut names = std::mem::take(&mut walked.names);
        add_skipped_names(&tree.top, &mut names, &ignored, fs_now);
        if let Some(listing) = CachedListing::new(key, names, ignored, output) {
            let draft = self.scratch.join("list");
            let written = write_file(&draft, &listing.encode());
            written.and_then(|()| fs::rename(&draft, &path)).map_err(io_at("write", &path))?;
        }
        Ok((listed, walked))
    }

    fn ignore_rules(&self, tree: &WorkTree) -> Result<IgnoreRules, SnapshotError> {
        let patterns = tree.common_file("info/exclude")?.unwrap_or_default();
        let excluded = self.snapshots.excluded.iter();
        // The state directory may be inside the work tree, and a snapshot must not contain itself.
        let folders = excluded.filter_map(|folder| folder.strip_prefix(&tree.top).ok());
        let folders = folders.map(|folder| format!("/{}/", literal_pathspec(folder.as_str())));
        Ok(IgnoreRules { patterns, folders: folders.collect() })
    }

    fn git_in_tree(
        &self,
        tree: &WorkTree,
        index: &IndexCopy,
        args: &[&str],
    ) -> Result<GitCommand, SnapshotError> {
        let git = self.git(args)?.env("GIT_WORK_TREE", &tree.top).folder(&tree.top);
        Ok(git.env("GIT_INDEX_FILE", index.path()?))
    }

    /// Asks git for the tracked files, and for those neither tracked nor ignored.
    fn list_files(
        &self,
        tree: &WorkTree,
        index: &IndexCopy,
        rules: &IgnoreRules,
    ) -> Result<Vec<u8>, SnapshotError> {
        let excludes = self.scratch.join("exclude");
        write_file(&excludes, rules.patterns.as_bytes()).map_err(io_at("write", &excludes))?;
        let args = ["ls-files", "-z", "-t", "--cached", "--others", "--stage"];
        let mut git = self.git_in_tree(tree, index, &args)?;
        // The user's global excludes are not used: the result must not depend on their config.
        git = git.arg("--exclude-per-directory=.gitignore");
        git = git.arg(format!("--exclude-from={excludes}"));
        for folder in &rules.folders {
            git = git.arg(format!("--exclude={folder}"));
        }
        Ok(git.output(self.lock_input())?)
    }

    /// Asks git which of these folders it ignores as a whole.
    fn ignored_folders(
        &self,
        tree: &WorkTree,
        index: &IndexCopy,
        rules: &IgnoreRules,
        folders: &[Vec<u8>],
    ) -> Result<IgnoredFolders, SnapshotError> {
        if folders.is_empty() {
            return Ok(IgnoredFolders::new());
        }
        let excludes = self.git_dir().join("info/exclude");
        let all = format!("{}\n{}\n/{IGNORED_PROBE}\n", rules.patterns, rules.folders.join("\n"));
        write_file(&excludes, all.as_bytes()).map_err(io_at("write", &excludes))?;
        let git =
            self.git_in_tree(tree, index, &["check-ignore", "-z", "--stdin", "--no-index"])?;
        // This command refuses to take all paths literally. None of these begins with a colon, which
        // would be special.
        let git = git.env("GIT_LITERAL_PATHSPECS", "0");
        let mut feed = |to: &mut dyn Write| {
            write!(to, "./{IGNORED_PROBE}\0")?;
            folders.iter().try_for_each(|folder| {
                to.write_all(b"./")?;
                to.write_all(folder)?;
                to.write_all(b"\0")
            })
        };
        let output = git.output(GitInput::Write(&mut feed))?;
        let ignored = output.split(|&byte| byte == 0);
        Ok(ignored.filter_map(|path| Some(path.strip_prefix(b"./")?.to_vec())).collect())
    }
}

impl SnapshotStore {
    /// Returns the path of a work tree's cached list.
    pub(crate) fn listing_path(&self, top: &Utf8Path) -> Utf8PathBuf {
        self.root.join("cache").join(format!("{}.list", short_digest(top.as_str())))
    }
}

/// Returns a pathspec that matches this path and no other.
fn literal_pathspec(path: &str) -> String {
    path.chars()
        .flat_map(|letter| {
            // A leading `!` or `#` and a trailing space are special too.
            let is_special = matches!(letter, '*' | '?' | '[' | '\\' | ' ' | '!' | '#');
            is_special.then_some('\\').into_iter().chain([letter])
        })
        .collect()
}
