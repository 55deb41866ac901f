//! Path patterns in config values: `src/**/*.rs`.
//!
//! A [`GlobList`] is checked and compiled when config is read. File watchers use
//! [`GlobList::is_match`].

use std::fmt;

use camino::{Utf8Path, Utf8PathBuf};
use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use serde_json::{Value as Json, json};

use crate::reader::ConfigReader;
use crate::shape::ValueShape;
use crate::value::{ConfigValue, escape_variables, parse_text, report_expected};
use crate::yaml::{YamlKind, YamlNode};

/// Maximum number of patterns in one list.
pub const GLOBS_MAX: usize = 100;

/// List of patterns for paths relative to a directory.
#[derive(Clone)]
pub struct GlobList {
    patterns: Vec<String>,
    set: GlobSet,
    extents: Vec<GlobExtent>,
}

/// Directories that a pattern can match.
#[derive(Clone)]
struct GlobExtent {
    /// Leading path components without wildcards.
    prefix: Utf8PathBuf,
    /// Deepest level the pattern can match by itself; `None` if it spans any number of directories.
    depth_max: Option<usize>,
}

impl GlobList {
    /// Returns the patterns as written.
    pub fn patterns(&self) -> &[String] {
        &self.patterns
    }

    /// Returns a list that matches exactly these names.
    pub fn from_names<'n>(names: impl IntoIterator<Item = &'n str>) -> GlobList {
        let named = |name: &str| {
            let pattern = globset::escape(name);
            let glob = Glob::new(&pattern).expect("an escaped name is a pattern");
            (pattern, glob)
        };
        GlobList::compile(names.into_iter().map(named).collect()).expect("names are not too much")
    }

    /// Returns a list that matches files with one of these extensions, in any directory.
    pub fn from_extensions(endings: &[&str]) -> GlobList {
        let ending = |ending: &&str| {
            let pattern = format!("**/*.{}", globset::escape(ending));
            let glob = Glob::new(&pattern).expect("an ending is a pattern");
            (pattern, glob)
        };
        GlobList::compile(endings.iter().map(ending).collect()).expect("endings are not too much")
    }

    /// Returns true if a relative path, or one of its parent directories, matches a pattern.
    pub fn is_match(&self, path: &Utf8Path) -> bool {
        // A pattern that matches a directory includes everything in it.
        let mut folders = path.ancestors().filter(|path| !path.as_str().is_empty());
        folders.any(|path| self.set.is_match(path))
    }

    /// Returns true if a path within the relative directory `folder` may match, so that a search
    /// must enter it.
    pub fn may_match_within(&self, folder: &Utf8Path) -> bool {
        let deep = folder.components().count();
        let mut reaches = self.extents.iter();
        self.is_match(folder)
            || reaches.any(|GlobExtent { prefix: start, depth_max: levels }| {
                // Directories above the fixed part must be entered to reach it.
                let on_the_way = folder.starts_with(start) || start.starts_with(folder);
                on_the_way && levels.is_none_or(|levels| deep < levels)
            })
    }

    fn compile(globs: Vec<(String, Glob)>) -> Result<GlobList, globset::Error> {
        let mut set = GlobSetBuilder::new();
        let (written, globs): (Vec<String>, Vec<Glob>) = globs.into_iter().unzip();
        for glob in globs {
            set.add(glob);
        }
        let reaches = written.iter().map(|pattern| pattern_extent(pattern)).collect();
        Ok(GlobList { patterns: written, set: set.build()?, extents: reaches })
    }
}

/// An empty list, which matches nothing.
impl Default for GlobList {
    fn default() -> GlobList {
        GlobList { patterns: Vec::new(), set: GlobSet::empty(), extents: Vec::new() }
    }
}

impl PartialEq for GlobList {
    fn eq(&self, other: &GlobList) -> bool {
        self.patterns == other.patterns
    }
}

impl fmt::Debug for GlobList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Globs").field(&self.patterns).finish()
    }
}

/// Removes a leading `./` and a trailing `/`, which do not change the meaning.
fn trim_pattern(pattern: &str) -> &str {
    pattern.trim_start_matches("./").trim_end_matches('/')
}

fn pattern_extent(pattern: &str) -> GlobExtent {
    let parts: Vec<&str> = trim_pattern(pattern).split('/').collect();
    // A backslash escapes a wildcard, so the part is not what it seems.
    let plain = |part: &&&str| !part.contains(['*', '?', '[', '{', '\\']);
    let start: Utf8PathBuf = parts.iter().take_while(plain).collect();
    // Alternatives (`{a,b/c}`) may contain separators, so the depth is unknown.
    let any_depth = pattern.contains("**") || pattern.contains('{');
    GlobExtent { prefix: start, depth_max: (!any_depth).then_some(parts.len()) }
}

/// Parses one pattern. A trailing `/` marks a directory; it is ignored, because a pattern that
/// matches a directory includes everything in it anyway.
fn parse_glob(text: &str) -> Result<Glob, String> {
    let pattern = trim_pattern(text);
    if pattern.is_empty() {
        return Err("it is empty; `**` is everything".to_owned());
    }
    // Paths are compared relative to the working directory, so it could never match.
    if pattern.starts_with('/') || text.starts_with('/') {
        return Err("it is not relative to the working directory".to_owned());
    }
    // Only the working directory is watched.
    if pattern.split('/').any(|part| part == "..") {
        return Err("it leads out of the working directory".to_owned());
    }
    // `*` does not match `/`, as in a shell; `**` does.
    let glob = GlobBuilder::new(pattern).literal_separator(true).build();
    glob.map_err(|error| error.kind().to_string())
}

impl ConfigValue for GlobList {
    fn shape() -> ValueShape {
        let item = ValueShape::Format { what: "a glob", example: "`src/**/*.rs`", pattern: None };
        ValueShape::List(Box::new(item))
    }

    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<GlobList> {
        let YamlKind::List(items) = &node.kind else {
            return report_expected(reader, node, "a list of globs");
        };
        // Every change of a file is compared with each of them.
        if items.len() > GLOBS_MAX {
            return report_expected(reader, node, &format!("a list of at most {GLOBS_MAX} globs"));
        }
        let read = |item: &YamlNode, reader: &mut ConfigReader| {
            let form = ("a glob", "`src/**/*.rs`");
            parse_text(item, reader, form, |text| Ok((text.to_owned(), parse_glob(text)?)))
        };
        let globs: Vec<(String, Glob)> =
            items.iter().filter_map(|item| read(item, reader)).collect();
        // Patterns are compiled once, as a watcher uses them for every event.
        match GlobList::compile(globs) {
            Ok(globs) => Some(globs),
            Err(error) => {
                let message = format!("these globs are too large in total: {error}");
                reader.error(node.at, message).expected("expected fewer or shorter globs");
                None
            }
        }
    }

    fn show(&self) -> Json {
        self.patterns.iter().map(|glob| json!(escape_variables(glob))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn globs(patterns: &[&str]) -> GlobList {
        let parsed = patterns.iter().map(|text| ((*text).to_owned(), parse_glob(text).unwrap()));
        GlobList::compile(parsed.collect()).unwrap()
    }

    #[track_caller]
    fn check(pattern: &str, fit: &[&str], other: &[&str]) {
        let globs = globs(&[pattern]);
        let fits = |path: &&&str| globs.is_match(Utf8Path::new(path));
        assert_eq!(fit.iter().find(|path| !fits(path)), None, "{pattern}");
        assert_eq!(other.iter().find(fits), None, "{pattern}");
    }

    #[test]
    fn a_star_stays_in_its_folder_and_two_go_through() {
        check("src/*.rs", &["src/a.rs"], &["src/b/a.rs", "a.rs", "src/a.rsx"]);
        check("src/**/*.rs", &["src/a.rs", "src/b/c/a.rs"], &["a.rs", "lib/src/a.rs"]);
        check("**/*.rs", &["a.rs", "b/c/a.rs"], &["a.txt"]);
        check("*.{rs,toml}", &["a.rs", "b.toml"], &["c.md", "src/a.rs"]);
        check("**", &["a", "b/c", ".hidden/x"], &[]);
    }

    #[test]
    fn a_folder_stands_for_everything_in_it() {
        check("src", &["src", "src/a", "src/a/b.rs"], &["srcs/a", "a/src"]);
        check("./src/", &["src/a"], &["a"]);
        check("**/target", &["target/x", "a/target/b/c"], &["a/targets/b"]);
    }

    #[test]
    fn no_pattern_leads_out_of_the_folder() {
        for pattern in ["", "./", "/etc", "../x", "a/../b", ".//etc"] {
            assert!(parse_glob(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn one_looks_only_where_something_may_fit() {
        #[track_caller]
        fn check(pattern: &str, look: &[&str], not: &[&str]) {
            let globs = globs(&[pattern]);
            let reached = |folder: &&&str| globs.may_match_within(Utf8Path::new(folder));
            assert_eq!(look.iter().find(|folder| !reached(folder)), None, "{pattern}");
            assert_eq!(not.iter().find(reached), None, "{pattern}");
        }
        check("src/**/*.rs", &["", "src", "src/a/b"], &["target", "srcs"]);
        check("*.md", &[""], &["node_modules", "docs/a"]);
        check("docs/*.md", &["", "docs"], &["docs/a", "src"]);
        check("a/b", &["", "a", "a/b", "a/b/c/d"], &["a/c", "b"]);
        check("**/*.rs", &["", "a/b/c"], &[]);
        check("x/{a/b,c}/*.rs", &["x", "x/a", "x/a/b", "x/q"], &["y"]);
        check("?/[ab]/c", &["", "q", "q/a", "q/a/c", "q/a/c/d"], &["q/a/d"]);
    }

    #[test]
    fn names_are_no_patterns() {
        let globs = GlobList::from_names(["a*.yaml", "[b].yaml"]);
        assert!(globs.is_match("a*.yaml".into()) && globs.is_match("[b].yaml".into()));
        assert!(!globs.is_match("ab.yaml".into()) && !globs.is_match("b.yaml".into()));
    }

    #[test]
    fn nothing_fits_an_empty_list() {
        assert!(!GlobList::default().is_match(Utf8Path::new("a")));
    }
}
