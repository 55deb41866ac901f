//! Reads the workspace's own source text: files, type definitions, comments.
//!
//! A line scanner, not a parser: it relies on rustfmt's layout. Start at [`sources`].

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::shell::workspace_root;

/// One Rust file below `crates/*/src`.
pub(crate) struct SourceFile {
    /// Relative to the workspace root.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

/// One `struct`, `enum`, `union`, `trait` or module-level `type`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TypeDefinition {
    pub(crate) name: String,
    /// Relative to the workspace root.
    pub(crate) path: PathBuf,
    pub(crate) line: usize,
}

/// Returns every Rust file below `crates/*/src` that ships: no tests, benches or test helpers.
pub(crate) fn sources() -> Result<Vec<SourceFile>> {
    let root = workspace_root()?;
    let mut files = Vec::new();
    let mut directories = vec![root.join("crates")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let path = entry?.path();
            if path.is_dir() {
                directories.push(path);
            } else if is_shipped(path.strip_prefix(&root)?) {
                let text = std::fs::read_to_string(&path)?;
                files.push(SourceFile { path: path.strip_prefix(&root)?.to_owned(), text });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn is_shipped(path: &Path) -> bool {
    let names: Vec<_> = path.iter().map(|name| name.to_string_lossy()).collect();
    let is_test = |name: &str| {
        name == "tests" || name == "tests.rs" || name == "examples" || name == "heeler-testkit"
    };
    path.extension().is_some_and(|extension| extension == "rs")
        && names.iter().any(|name| name == "src")
        && !names.iter().any(|name| is_test(name))
}

impl SourceFile {
    /// Returns the lines before the file's own test module.
    pub(crate) fn shipped_lines(&self) -> impl Iterator<Item = &str> {
        let mut lines = self.text.lines().peekable();
        std::iter::from_fn(move || {
            let line = lines.next()?;
            // A test module in a file of its own is only declared here.
            let next = lines.peek().copied().unwrap_or_default();
            (!(line.starts_with("#[cfg(test)]") && next.ends_with('{'))).then_some(line)
        })
    }

    pub(crate) fn type_definitions(&self) -> Vec<TypeDefinition> {
        self.shipped_lines()
            .enumerate()
            .filter_map(|(index, line)| {
                let name = defined_type(line)?;
                Some(TypeDefinition { name, path: self.path.clone(), line: index + 1 })
            })
            .collect()
    }

    /// Returns the text of each doc comment, one string for consecutive lines.
    pub(crate) fn doc_comments(&self) -> Vec<String> {
        let mut comments: Vec<String> = Vec::new();
        let mut continues = false;
        for line in self.shipped_lines() {
            let line = line.trim_start();
            let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
            if let Some(text) = text {
                match comments.last_mut().filter(|_| continues) {
                    Some(comment) => comment.push_str(text),
                    None => comments.push(text.to_owned()),
                }
            }
            continues = text.is_some();
        }
        comments
    }
}

/// Returns the name of the type that a line defines. An indented `type` is an associated type,
/// which shares its name with the trait's on purpose.
fn defined_type(line: &str) -> Option<String> {
    let code = line.trim_start();
    let indented = code.len() < line.len();
    let code = match code.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.strip_prefix(' ')?,
        None => code,
    };
    let (keyword, rest) = code.split_once(' ')?;
    let is_definition = matches!(keyword, "struct" | "enum" | "union" | "trait")
        || (keyword == "type" && !indented);
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    let name = &rest[..end];
    (is_definition && name.starts_with(|c: char| c.is_ascii_uppercase())).then(|| name.to_owned())
}

/// Returns true if a type name is one word, such as `Job` or `Http`.
pub(crate) fn is_one_word(name: &str) -> bool {
    name.chars().skip_while(char::is_ascii_uppercase).all(|c| !c.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::{defined_type, is_one_word};

    #[test]
    fn definitions_are_found_by_their_keyword() {
        let name = |line| defined_type(line);
        assert_eq!(name("pub(crate) struct JobRow<'a> {").as_deref(), Some("JobRow"));
        assert_eq!(name("    pub enum Scope (\"scope\") {").as_deref(), Some("Scope"));
        assert_eq!(name("pub type Reply = ();").as_deref(), Some("Reply"));
        assert_eq!(name("    type Item = u8;"), None, "an associated type");
        assert_eq!(name("let struct_name = 1;"), None);
    }

    #[test]
    fn words_of_a_name_begin_with_capitals() {
        assert!(is_one_word("Job") && is_one_word("URL"));
        assert!(!is_one_word("JobRow"));
    }
}
