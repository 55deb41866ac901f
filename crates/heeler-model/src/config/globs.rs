//! Patterns of paths as config writes them: `src/**/*.rs`.
//!
//! A list of them is checked and compiled when config is read; what is watched asks [`Globs::fits`].

use std::fmt;

use camino::{Utf8Path, Utf8PathBuf};
use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use serde_json::{Value as Json, json};

use super::reader::Reader;
use super::shape::Shape;
use super::value::{Value, expected, literal, parse_text};
use super::yaml::{Kind, Node};

/// The most patterns of one list.
pub const GLOBS_MAX: usize = 100;

/// A list of patterns for paths below some folder.
#[derive(Clone)]
pub struct Globs {
    written: Vec<String>,
    set: GlobSet,
    reaches: Vec<Reach>,
}

/// How far below the folder a pattern can reach.
#[derive(Clone)]
struct Reach {
    /// The folders that it names without any wildcard.
    start: Utf8PathBuf,
    /// The deepest level it names itself; `None` if it goes through any number of folders.
    levels: Option<usize>,
}

impl Globs {
    /// Returns the patterns as they were written.
    pub fn patterns(&self) -> &[String] {
        &self.written
    }

    /// Returns what fits these names and nothing else.
    pub fn of_names<'n>(names: impl IntoIterator<Item = &'n str>) -> Globs {
        let named = |name: &str| {
            let pattern = globset::escape(name);
            let glob = Glob::new(&pattern).expect("an escaped name is a pattern");
            (pattern, glob)
        };
        Globs::of(names.into_iter().map(named).collect()).expect("names are not too much")
    }

    /// Returns what fits files whose names end in `.` and one of these, in any folder.
    pub fn of_endings(endings: &[&str]) -> Globs {
        let ending = |ending: &&str| {
            let pattern = format!("**/*.{}", globset::escape(ending));
            let glob = Glob::new(&pattern).expect("an ending is a pattern");
            (pattern, glob)
        };
        Globs::of(endings.iter().map(ending).collect()).expect("endings are not too much")
    }

    /// Says whether a relative path, or a folder it is in, fits any of the patterns.
    pub fn fits(&self, path: &Utf8Path) -> bool {
        let mut folders = path.ancestors().filter(|path| !path.as_str().is_empty());
        folders.any(|path| self.set.is_match(path))
    }

    /// Says whether anything within a relative folder may fit: whether one who looks for what does
    /// must look there.
    pub fn reach_into(&self, folder: &Utf8Path) -> bool {
        let deep = folder.components().count();
        let mut reaches = self.reaches.iter();
        self.fits(folder)
            || reaches.any(|Reach { start, levels }| {
                let on_the_way = folder.starts_with(start) || start.starts_with(folder);
                on_the_way && levels.is_none_or(|levels| deep < levels)
            })
    }

    fn of(globs: Vec<(String, Glob)>) -> Result<Globs, globset::Error> {
        let mut set = GlobSetBuilder::new();
        let (written, globs): (Vec<String>, Vec<Glob>) = globs.into_iter().unzip();
        for glob in globs {
            set.add(glob);
        }
        let reaches = written.iter().map(|pattern| reach(pattern)).collect();
        Ok(Globs { written, set: set.build()?, reaches })
    }
}

/// No pattern at all, which nothing fits.
impl Default for Globs {
    fn default() -> Globs {
        Globs { written: Vec::new(), set: GlobSet::empty(), reaches: Vec::new() }
    }
}

impl PartialEq for Globs {
    fn eq(&self, other: &Globs) -> bool {
        self.written == other.written
    }
}

impl fmt::Debug for Globs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Globs").field(&self.written).finish()
    }
}

/// Returns a pattern without what says nothing: `./` before it, `/` behind it.
fn bare(pattern: &str) -> &str {
    pattern.trim_start_matches("./").trim_end_matches('/')
}

fn reach(pattern: &str) -> Reach {
    let parts: Vec<&str> = bare(pattern).split('/').collect();
    let plain = |part: &&&str| !part.contains(['*', '?', '[', '{', '\\']);
    let start: Utf8PathBuf = parts.iter().take_while(plain).collect();
    // Alternatives may hold separators.
    let any_depth = pattern.contains("**") || pattern.contains('{');
    Reach { start, levels: (!any_depth).then_some(parts.len()) }
}

/// Reads one pattern. A `/` at its end says that a folder is meant; what fits a folder stands for
/// all in it anyway.
fn parse(text: &str) -> Result<Glob, String> {
    let pattern = bare(text);
    if pattern.is_empty() {
        return Err("it is empty; `**` is everything".to_owned());
    }
    if pattern.starts_with('/') || text.starts_with('/') {
        return Err("it is not relative to the working directory".to_owned());
    }
    if pattern.split('/').any(|part| part == "..") {
        return Err("it leads out of the working directory".to_owned());
    }
    // `*` stays within a folder, as in a shell; `**` goes through them.
    let glob = GlobBuilder::new(pattern).literal_separator(true).build();
    glob.map_err(|error| error.kind().to_string())
}

impl Value for Globs {
    fn shape() -> Shape {
        let item = Shape::Format { what: "a glob", example: "`src/**/*.rs`", pattern: None };
        Shape::List(Box::new(item))
    }

    fn read(node: &Node, reader: &mut Reader) -> Option<Globs> {
        let Kind::List(items) = &node.kind else {
            return expected(reader, node, "a list of globs");
        };
        if items.len() > GLOBS_MAX {
            return expected(reader, node, &format!("a list of at most {GLOBS_MAX} globs"));
        }
        let read = |item: &Node, reader: &mut Reader| {
            let form = ("a glob", "`src/**/*.rs`");
            parse_text(item, reader, form, |text| Ok((text.to_owned(), parse(text)?)))
        };
        let globs: Vec<(String, Glob)> =
            items.iter().filter_map(|item| read(item, reader)).collect();
        match Globs::of(globs) {
            Ok(globs) => Some(globs),
            Err(error) => {
                let message = format!("these globs are too much together: {error}");
                reader.error(node.at, message).expected("expected fewer or shorter globs");
                None
            }
        }
    }

    fn show(&self) -> Json {
        self.written.iter().map(|glob| json!(literal(glob))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn globs(patterns: &[&str]) -> Globs {
        let parsed = patterns.iter().map(|text| ((*text).to_owned(), parse(text).unwrap()));
        Globs::of(parsed.collect()).unwrap()
    }

    #[track_caller]
    fn check(pattern: &str, fit: &[&str], other: &[&str]) {
        let globs = globs(&[pattern]);
        let fits = |path: &&&str| globs.fits(Utf8Path::new(path));
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
            assert!(parse(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn one_looks_only_where_something_may_fit() {
        #[track_caller]
        fn check(pattern: &str, look: &[&str], not: &[&str]) {
            let globs = globs(&[pattern]);
            let reached = |folder: &&&str| globs.reach_into(Utf8Path::new(folder));
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
        let globs = Globs::of_names(["a*.yaml", "[b].yaml"]);
        assert!(globs.fits("a*.yaml".into()) && globs.fits("[b].yaml".into()));
        assert!(!globs.fits("ab.yaml".into()) && !globs.fits("b.yaml".into()));
    }

    #[test]
    fn nothing_fits_an_empty_list() {
        assert!(!Globs::default().fits(Utf8Path::new("a")));
    }
}
