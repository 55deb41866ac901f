//! Content of the files that decide what a fleet runs, and a change of it that waits for a person.
//!
//! Start at [`ConfigContent`]; [`HeldConfigChange`] is what a person is shown.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::JobId;
use crate::redact::SecretRedactor;

/// Largest text that is kept to show a difference later. Of a larger file only the change is shown.
pub const SHOWN_TEXT_BYTES_MAX: usize = 64 << 10;

/// Largest amount of text that is kept of all files together.
pub const SHOWN_TEXTS_BYTES_MAX: usize = 1 << 20;

/// Largest product of two numbers of lines that are compared line by line.
const COMPARED_LINES_MAX: usize = 1 << 20;

/// Content of all files that decided a config, by path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigContent {
    pub files: BTreeMap<Utf8PathBuf, ConfigFileContent>,
}

/// Content of one file, or the names in a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigFileContent {
    pub kind: ConfigFileKind,
    /// SHA-256 of the content, or the reason for which it cannot be read.
    pub digest: String,
    /// The text, if it may be shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// Kind of a config file, which decides how it is read and shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfigFileKind {
    /// Its text is shown.
    Text,
    /// Its text is never shown or stored.
    Secret,
    /// A folder with workflows, by their names.
    WorkflowFolder,
    /// A folder with the files of a skill, by their names.
    SkillFolder,
}

/// Digest of a file that does not exist.
const ABSENT: &str = "absent";

impl ConfigFileContent {
    /// Returns the content of a file that was read.
    pub fn of_bytes(kind: ConfigFileKind, bytes: &[u8]) -> ConfigFileContent {
        let is_shown = kind != ConfigFileKind::Secret && bytes.len() <= SHOWN_TEXT_BYTES_MAX;
        let text = is_shown.then(|| String::from_utf8(bytes.to_vec()).ok()).flatten();
        ConfigFileContent { kind, digest: hex_digest(bytes), text }
    }

    /// Returns the content of a file that does not exist.
    pub fn absent(kind: ConfigFileKind) -> ConfigFileContent {
        ConfigFileContent { kind, digest: ABSENT.to_owned(), text: None }
    }

    /// Returns the content of a file that cannot be read.
    pub fn unreadable(kind: ConfigFileKind, why: &str) -> ConfigFileContent {
        ConfigFileContent { kind, digest: format!("unreadable: {why}"), text: None }
    }

    fn is_absent(&self) -> bool {
        self.digest == ABSENT
    }
}

impl ConfigContent {
    /// Returns a hash of all paths and contents.
    pub fn fingerprint(&self) -> String {
        let mut hashed = Vec::new();
        for (path, file) in &self.files {
            // Digests have one length, so no two sets give the same bytes.
            hashed.extend(hex_digest(path.as_str().as_bytes()).bytes());
            hashed.extend(hex_digest(file.digest.as_bytes()).bytes());
        }
        hex_digest(&hashed)
    }

    /// Returns true if every file of `other` is in this content too.
    pub fn covers(&self, other: &ConfigContent) -> bool {
        other.files.iter().all(|(path, file)| self.has(path, file))
    }

    /// Returns true if both contents name the same files, and each has one content.
    pub fn is_same(&self, other: &ConfigContent) -> bool {
        self.files.len() == other.files.len()
            && self.covers(other)
            && self.files.keys().eq(other.files.keys())
    }

    /// Returns true if a file has this content here. A file that neither exists nor is known here
    /// decides nothing: an earlier release has not looked for it.
    pub fn has(&self, path: &Utf8Path, file: &ConfigFileContent) -> bool {
        self.files.get(path).map_or(file.is_absent(), |known| known.digest == file.digest)
    }

    /// Returns the content without secrets, for storage and display. Texts beyond
    /// [`SHOWN_TEXTS_BYTES_MAX`] are left out.
    #[must_use]
    pub fn redacted(&self, redactor: &SecretRedactor) -> ConfigContent {
        let mut content = self.clone();
        let mut left = SHOWN_TEXTS_BYTES_MAX;
        for file in content.files.values_mut() {
            let text = file.text.take().filter(|text| text.len() <= left);
            left -= text.as_ref().map_or(0, String::len);
            file.text = text.map(|text| redactor.redact_text(&text).into_owned());
        }
        content
    }

    /// Lists the files of `after` that differ from this content.
    pub fn changes_to(&self, after: &ConfigContent) -> Vec<ChangedConfigFile> {
        let changed = after.files.iter().filter(|(path, file)| !self.has(path, file));
        changed.map(|(path, file)| changed_file(path, self.files.get(path), file)).collect()
    }
}

/// A change of config files that happened while a run was alive, and that no person has confirmed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldConfigChange {
    /// Hash of the content that is shown, which a person confirms.
    pub fingerprint: String,
    /// Jobs with runs that were alive meanwhile.
    pub jobs: Vec<JobId>,
    pub files: Vec<ChangedConfigFile>,
}

impl HeldConfigChange {
    /// Describes the change in one line, without its content.
    pub fn summary(&self) -> String {
        let files: Vec<&str> = self.files.iter().map(|file| file.path.as_str()).collect();
        let jobs: Vec<&str> = self.jobs.iter().map(JobId::as_str).collect();
        let jobs = match jobs.is_empty() {
            true => "a job".to_owned(),
            false => jobs.join(", "),
        };
        format!("not loaded, because it changed while {jobs} ran: {}", files.join(", "))
    }
}

/// A changed file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedConfigFile {
    pub path: Utf8PathBuf,
    pub change: ConfigFileChange,
    /// Removed lines begin with `- `, added lines with `+ `. Empty if the text is not shown.
    pub lines: Vec<String>,
}

/// Kind of a file's change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfigFileChange {
    Added,
    Removed,
    Changed,
}

impl ConfigFileChange {
    pub fn as_str(self) -> &'static str {
        match self {
            ConfigFileChange::Added => "added",
            ConfigFileChange::Removed => "removed",
            ConfigFileChange::Changed => "changed",
        }
    }
}

fn changed_file(
    path: &Utf8Path,
    before: Option<&ConfigFileContent>,
    after: &ConfigFileContent,
) -> ChangedConfigFile {
    let is_new = before.is_none_or(ConfigFileContent::is_absent);
    let change = match (is_new, after.is_absent()) {
        (true, _) => ConfigFileChange::Added,
        (false, true) => ConfigFileChange::Removed,
        (false, false) => ConfigFileChange::Changed,
    };
    let text_of = |file: Option<&ConfigFileContent>| match file {
        None => Some(String::new()),
        Some(file) if file.is_absent() && file.kind != ConfigFileKind::Secret => {
            Some(String::new())
        }
        Some(file) => file.text.clone(),
    };
    // Without both texts there is no difference to show.
    let lines = match (text_of(before), text_of(Some(after))) {
        (Some(before), Some(after)) => diff_lines(&before, &after),
        _ => Vec::new(),
    };
    ChangedConfigFile { path: path.to_owned(), change, lines }
}

/// Returns the removed and added lines between two texts, in order.
fn diff_lines(before: &str, after: &str) -> Vec<String> {
    let (old, new) = (split_lines(before), split_lines(after));
    let prefix = old.iter().zip(&new).take_while(|(one, two)| one == two).count();
    let (old, new) = (&old[prefix..], &new[prefix..]);
    let suffix = old.iter().rev().zip(new.iter().rev()).take_while(|(one, two)| one == two).count();
    let (old, new) = (&old[..old.len() - suffix], &new[..new.len() - suffix]);
    let (removed, added) = (|line: &&str| format!("- {line}"), |line: &&str| format!("+ {line}"));
    if old.len().saturating_mul(new.len()) > COMPARED_LINES_MAX {
        return old.iter().map(removed).chain(new.iter().map(added)).collect();
    }
    let common = common_lengths(old, new);
    let (mut lines, mut at, mut to) = (Vec::new(), 0, 0);
    while at < old.len() || to < new.len() {
        if at < old.len() && to < new.len() && old[at] == new[to] {
            (at, to) = (at + 1, to + 1);
        } else if to == new.len() || (at < old.len() && common[at + 1][to] >= common[at][to + 1]) {
            lines.push(removed(&old[at]));
            at += 1;
        } else {
            lines.push(added(&new[to]));
            to += 1;
        }
    }
    lines
}

/// Splits a text by line feeds alone: a carriage return is a change that must be visible.
fn split_lines(text: &str) -> Vec<&str> {
    if text.is_empty() { Vec::new() } else { text.split('\n').collect() }
}

/// Returns the lengths of the longest common subsequences of all ends of two lists.
fn common_lengths(old: &[&str], new: &[&str]) -> Vec<Vec<u32>> {
    let mut common = vec![vec![0; new.len() + 1]; old.len() + 1];
    for at in (0..old.len()).rev() {
        for to in (0..new.len()).rev() {
            common[at][to] = match old[at] == new[to] {
                true => common[at + 1][to + 1] + 1,
                false => common[at + 1][to].max(common[at][to + 1]),
            };
        }
    }
    common
}

fn hex_digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(files: &[(&str, ConfigFileKind, &str)]) -> ConfigContent {
        let file = |(path, kind, text): &(&str, ConfigFileKind, &str)| {
            (Utf8PathBuf::from(*path), ConfigFileContent::of_bytes(*kind, text.as_bytes()))
        };
        ConfigContent { files: files.iter().map(file).collect() }
    }

    #[test]
    fn a_change_names_the_lines_that_came_and_went() {
        let before = content(&[("/a", ConfigFileKind::Text, "1\n2\n3\n4\n5\n")]);
        let after = content(&[("/a", ConfigFileKind::Text, "1\nx\n3\n5\n6\n")]);
        let changes = before.changes_to(&after);
        assert_eq!(changes[0].lines, ["- 2", "+ x", "- 4", "+ 6"]);
        assert_eq!(changes[0].change, ConfigFileChange::Changed);
        assert!(before.covers(&before) && !before.covers(&after));
        assert_ne!(before.fingerprint(), after.fingerprint());
    }

    #[test]
    fn a_line_end_is_a_change_too() {
        assert_eq!(diff_lines("a\nb\n", "a\r\nb\n"), ["- a", "+ a\r"]);
        assert_eq!(diff_lines("a\n", "a"), ["- "]);
        assert_eq!(diff_lines("", ""), Vec::<String>::new());
    }

    #[test]
    fn files_that_come_and_go_are_changes() {
        let (none, one) = (ConfigContent::default(), content(&[("/a", ConfigFileKind::Text, "1")]));
        let gone = ConfigContent {
            files: [("/a".into(), ConfigFileContent::absent(ConfigFileKind::Text))].into(),
        };
        let shown = |before: &ConfigContent, after: &ConfigContent| {
            let change = before.changes_to(after).remove(0);
            (change.change, change.lines)
        };
        assert_eq!(shown(&none, &one), (ConfigFileChange::Added, vec!["+ 1".to_owned()]));
        assert_eq!(shown(&gone, &one), (ConfigFileChange::Added, vec!["+ 1".to_owned()]));
        assert_eq!(shown(&one, &gone), (ConfigFileChange::Removed, vec!["- 1".to_owned()]));
        assert!(!none.covers(&one), "content that nobody has seen");
        assert!(none.covers(&gone), "nothing is there, and nobody looked before");
        assert!(!none.is_same(&gone) && gone.is_same(&gone) && !gone.is_same(&one));
    }

    #[test]
    fn secrets_are_neither_kept_nor_shown() {
        let before = content(&[("/.env", ConfigFileKind::Secret, "KEY=one-secret-value")]);
        let after = content(&[("/.env", ConfigFileKind::Secret, "KEY=two-secret-value")]);
        assert!(!serde_json::to_string(&before).unwrap().contains("secret-value"));
        assert_eq!(before.changes_to(&after)[0].lines, Vec::<String>::new());
        let redactor = SecretRedactor::new(&["token-4711-abcdef".to_owned()]);
        let text = content(&[("/a", ConfigFileKind::Text, "x: token-4711-abcdef")]);
        let stored = serde_json::to_string(&text.redacted(&redactor)).unwrap();
        assert!(!stored.contains("4711"), "{stored}");
        assert!(text.covers(&text.redacted(&redactor)), "the digest stays that of the file");
    }

    #[test]
    fn a_large_file_is_compared_but_not_kept() {
        let large = "x\n".repeat(SHOWN_TEXT_BYTES_MAX);
        let (before, after) = (
            content(&[("/a", ConfigFileKind::Text, &large)]),
            content(&[("/a", ConfigFileKind::Text, &format!("{large}y"))]),
        );
        assert_eq!(before.files.values().next().unwrap().text, None);
        let part = "x".repeat(SHOWN_TEXT_BYTES_MAX);
        let paths: Vec<String> = (0..20).map(|number| format!("/{number:02}")).collect();
        let parts: Vec<_> =
            paths.iter().map(|path| (path.as_str(), ConfigFileKind::Text, part.as_str())).collect();
        let many = content(&parts).redacted(&SecretRedactor::new(&[]));
        let kept = many.files.values().filter(|file| file.text.is_some()).count();
        assert_eq!(kept, SHOWN_TEXTS_BYTES_MAX / SHOWN_TEXT_BYTES_MAX);
        assert_eq!(before.changes_to(&after)[0].lines, Vec::<String>::new());
    }
}
