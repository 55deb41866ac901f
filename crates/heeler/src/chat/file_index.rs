//! Files for completion after `@`: a list of the agent's directory without ignored files, searched
//! by parts of names. Start at [`FileIndex`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use ignore::WalkBuilder;

/// Most paths in the list; further ones are found by typing their folder.
const INDEXED_PATHS_MAX: usize = 50_000;
/// Entries of a folder that are examined for completion.
const FOLDER_ENTRIES_MAX: usize = 10_000;
/// Most completions.
const COMPLETIONS_MAX: usize = 100;
/// Age from which the list is read again, in the background.
const INDEX_AGE_MAX: Duration = Duration::from_secs(10);
/// Folders that are never listed.
const EXCLUDED_FOLDERS: [&str; 2] = [".git", ".heeler"];

/// List of files, which threads keep up to date.
#[derive(Clone)]
pub(crate) struct FileIndex {
    root: Utf8PathBuf,
    list: Arc<Mutex<FileList>>,
}

#[derive(Default)]
struct FileList {
    paths: Arc<Vec<String>>,
    listed_at: Option<Instant>,
    is_listing: bool,
}

impl FileIndex {
    /// Starts to list the files of a directory.
    pub(crate) fn start(root: Utf8PathBuf) -> FileIndex {
        let index = FileIndex { root, list: Arc::default() };
        index.refresh();
        index
    }

    fn lock(&self) -> MutexGuard<'_, FileList> {
        // A panic of a listing thread must not end the screen.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists the files again in the background, if the list is old.
    fn refresh(&self) {
        let mut list = self.lock();
        let is_fresh = list.listed_at.is_some_and(|at| at.elapsed() < INDEX_AGE_MAX);
        if list.is_listing || is_fresh {
            return;
        }
        list.is_listing = true;
        drop(list);
        let index = self.clone();
        std::thread::spawn(move || {
            let paths = Arc::new(list_files(&index.root));
            let mut list = index.lock();
            *list = FileList { paths, listed_at: Some(Instant::now()), is_listing: false };
        });
    }

    /// Returns the paths that complete a text: those that begin with it, then those that contain its
    /// characters in order. Ignored files are offered only if nothing else matches.
    pub(crate) fn complete(&self, typed: &str) -> Vec<String> {
        self.refresh();
        let paths = Arc::clone(&self.lock().paths);
        let is_in_next_folder = |path: &&String| {
            let rest = path.strip_prefix(typed).map(|rest| rest.trim_end_matches('/'));
            rest.is_some_and(|rest| !rest.is_empty() && !rest.contains('/'))
        };
        let mut found: Vec<String> = paths.iter().filter(is_in_next_folder).cloned().collect();
        found.sort();
        if !typed.is_empty() && !typed.ends_with('/') {
            let fuzzy = find_fuzzy(&paths, typed).into_iter().filter(|path| !found.contains(path));
            let fuzzy: Vec<String> = fuzzy.collect();
            found.extend(fuzzy);
        }
        // The list may not be complete yet, or the path leads out of it.
        if found.is_empty() {
            found = complete_prefix(&self.root, typed);
        }
        found.truncate(COMPLETIONS_MAX);
        found
    }
}

/// Lists files and folders, relative to the root; folders end with a slash.
fn list_files(root: &Utf8Path) -> Vec<String> {
    let walk = WalkBuilder::new(root)
        .hidden(false)
        // Files are ignored as in a repository, also where there is none.
        .require_git(false)
        .filter_entry(|entry| {
            entry.file_name().to_str().is_none_or(|name| !EXCLUDED_FOLDERS.contains(&name))
        })
        .build();
    let path = |entry: ignore::DirEntry| {
        let path = entry.path().strip_prefix(root).ok()?.to_str()?;
        let slash = if entry.file_type()?.is_dir() { "/" } else { "" };
        (!path.is_empty()).then(|| format!("{path}{slash}"))
    };
    walk.flatten().filter_map(path).take(INDEXED_PATHS_MAX).collect()
}

/// Returns the paths that begin with a text, sorted.
fn complete_prefix(root: &Utf8Path, typed: &str) -> Vec<String> {
    let (folder, start) =
        typed.rsplit_once('/').map_or(("", typed), |(folder, start)| (folder, start));
    // An absolute path replaces the root.
    let absolute = if typed.starts_with('/') { Utf8PathBuf::from("/") } else { root.to_owned() };
    let mut names: Vec<String> = std::fs::read_dir(absolute.join(folder))
        .into_iter()
        .flatten()
        // This runs at a keystroke, so a huge folder must not block the screen.
        .take(FOLDER_ENTRIES_MAX)
        .flatten()
        // A name that is not UTF-8 cannot be typed either.
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let is_hidden = name.starts_with('.') && !start.starts_with('.');
            let slash = if entry.file_type().is_ok_and(|it| it.is_dir()) { "/" } else { "" };
            let before = if typed.contains('/') { format!("{folder}/") } else { String::new() };
            (name.starts_with(start) && !is_hidden).then(|| format!("{before}{name}{slash}"))
        })
        .collect();
    names.sort();
    names
}

/// Returns the best matches of a text, best first.
fn find_fuzzy(paths: &[String], typed: &str) -> Vec<String> {
    let pattern: Vec<char> = typed.to_lowercase().chars().collect();
    let mut scored: Vec<(i64, &String)> =
        paths.iter().filter_map(|path| Some((fuzzy_score(path, &pattern)?, path))).collect();
    // Among equals, short paths first.
    scored.sort_by_key(|(score, path)| (-score, path.len(), path.as_str()));
    scored.into_iter().take(COMPLETIONS_MAX).map(|(_, path)| path.clone()).collect()
}

/// Returns how well a path matches; `None` if it lacks a character of the pattern.
fn fuzzy_score(path: &str, pattern: &[char]) -> Option<i64> {
    let name = path.trim_end_matches('/').rfind('/').map_or(0, |at| at + 1);
    // A match within the name counts more than one spread over folders.
    let in_name = subsequence_score(&path[name..], pattern).map(|score| score + 20);
    in_name.into_iter().chain(subsequence_score(path, pattern)).max()
}

fn subsequence_score(text: &str, pattern: &[char]) -> Option<i64> {
    let mut left = pattern.iter().peekable();
    let (mut score, mut before, mut was_match) = (0, '/', false);
    for c in text.chars() {
        let is_match = left.peek().is_some_and(|next| c.to_lowercase().eq([**next]));
        if is_match {
            left.next();
            let begins_word =
                !before.is_alphanumeric() || (before.is_lowercase() && c.is_uppercase());
            score += 1 + if was_match { 8 } else { 0 } + if begins_word { 6 } else { 0 };
        }
        (was_match, before) = (is_match, c);
    }
    left.peek().is_none().then_some(score)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(files: &[&str]) -> (tempfile::TempDir, FileIndex) {
        let temp = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temp.path().to_owned()).unwrap();
        for file in files {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        std::fs::write(root.join(".gitignore"), "target/\n*.log\n").unwrap();
        let index = FileIndex::start(root);
        let until = Instant::now() + Duration::from_secs(60);
        while index.lock().listed_at.is_none() {
            assert!(Instant::now() < until, "the files are not listed");
            std::thread::sleep(Duration::from_millis(5));
        }
        (temp, index)
    }

    #[test]
    fn a_part_of_a_name_finds_a_file_anywhere_but_no_ignored_one() {
        let (_temp, index) = index(&[
            "repo/src/cart.ts",
            "repo/src/cart.test.ts",
            "repo/chart/art.ts",
            "target/cart.o",
            "cart.log",
            ".github/workflows/cart.yml",
            ".git/cart",
        ]);
        let found = index.complete("cart");
        assert_eq!(found[0], "repo/src/cart.ts", "{found:?}");
        assert!(!found.contains(&"cart.log".to_owned()), "{found:?}");
        assert_eq!(index.complete("cart.lo"), ["cart.log"], "nothing else matches");
        assert!(found.contains(&".github/workflows/cart.yml".to_owned()), "{found:?}");
        assert!(!found.iter().any(|path| path.contains("target") || path.contains(".git/")));
        assert_eq!(index.complete("rsct")[0], "repo/src/cart.ts");
        assert_eq!(index.complete("zzz"), Vec::<String>::new());
    }

    #[test]
    fn folders_are_completed_step_by_step() {
        let (_temp, index) = index(&["src/main.rs", "src/lib.rs", "Cargo.toml"]);
        assert_eq!(index.complete(""), [".gitignore", "Cargo.toml", "src/"]);
        assert_eq!(index.complete("src/"), ["src/lib.rs", "src/main.rs"]);
        assert_eq!(index.complete("src/m")[0], "src/main.rs");
        assert_eq!(index.complete("/proc/self/statu")[0], "/proc/self/status");
    }

    #[test]
    fn words_and_runs_count_more_than_scattered_letters() {
        let paths = ["a/m/a/i/n.rs", "domain.rs", "src/main.rs"].map(str::to_owned);
        assert_eq!(find_fuzzy(&paths, "main")[0], "src/main.rs");
        assert_eq!(find_fuzzy(&paths, "MAIN").len(), 3);
        assert!(subsequence_score("abc", &['c', 'b']).is_none(), "the order counts");
    }
}
