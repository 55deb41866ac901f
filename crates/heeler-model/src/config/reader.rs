//! The one place where faults are collected while config is read.
//!
//! A [`Reader`] owns the loaded sources and the faults found so far. Reading goes on after a
//! fault: a function that cannot give a value says so here and returns `None`.

use std::ops::Range;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};

use super::fault::{Fault, Faults, Severity, Source};

/// A byte range in one of the reader's sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pos {
    pub(crate) file: usize,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// Whose rules a file follows: unknown keys are errors in ours, warnings in herdctl's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `heeler.yaml` and the files it names.
    Heeler,
    /// `herdctl.yaml` and the files it names.
    Herdctl,
}

impl Dialect {
    /// Tells the dialect by the name of the fleet file.
    pub fn of(path: &Utf8Path) -> Dialect {
        match path.file_stem() {
            Some("herdctl") => Dialect::Herdctl,
            _ => Dialect::Heeler,
        }
    }
}

/// Collects sources and faults. Text that no file holds, such as defaults, is source 0.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) dialect: Dialect,
    home: Option<Utf8PathBuf>,
    sources: Vec<Arc<Source>>,
    faults: Vec<Fault>,
    /// The last fault beyond [`FAULTS_KEPT_MAX`], and how many there were.
    spilled: (Option<Fault>, usize),
    errors_seen: usize,
}

/// The most faults that are kept; further ones are only counted.
const FAULTS_KEPT_MAX: usize = 1000;

impl Reader {
    pub(crate) fn new(dialect: Dialect, home: Option<&str>) -> Reader {
        let built_in = Source { path: Utf8PathBuf::from("<built in>"), text: String::new() };
        let home = home.map(Utf8PathBuf::from);
        Reader {
            dialect,
            home,
            sources: vec![Arc::new(built_in)],
            faults: Vec::new(),
            spilled: (None, 0),
            errors_seen: 0,
        }
    }

    pub(crate) fn add_source(&mut self, path: &Utf8Path, text: String) -> usize {
        self.sources.push(Arc::new(Source { path: path.to_owned(), text }));
        self.sources.len() - 1
    }

    pub(crate) fn source(&self, file: usize) -> Arc<Source> {
        Arc::clone(&self.sources[file])
    }

    /// Resolves a path as written at `at`: relative to the folder of its file, `~` is HOME.
    pub(crate) fn resolve(&self, at: Pos, path: &str) -> Utf8PathBuf {
        let expanded = match (path.strip_prefix('~'), &self.home) {
            (Some(""), Some(home)) => home.clone(),
            (Some(rest), Some(home)) if rest.starts_with('/') => home.join(&rest[1..]),
            _ => Utf8PathBuf::from(path),
        };
        let folder = self.sources[at.file].path.parent().unwrap_or(Utf8Path::new(""));
        tidy(&folder.join(expanded))
    }

    /// Counts the errors reported so far, also those that were known already.
    pub(crate) fn errors_seen(&self) -> usize {
        self.errors_seen
    }

    pub(crate) fn error(&mut self, at: Pos, message: String) -> &mut Fault {
        self.errors_seen += 1;
        self.report(Severity::Error, at, message)
    }

    pub(crate) fn warn(&mut self, at: Pos, message: String) -> &mut Fault {
        self.report(Severity::Warning, at, message)
    }

    /// Records a fault once: merged defaults are read again with each agent that has them.
    fn report(&mut self, severity: Severity, at: Pos, message: String) -> &mut Fault {
        let source = self.source(at.file);
        let range = first_line(&source.text, at.start..at.end);
        let known = self.faults.iter().position(|fault| {
            fault.message == message && fault.range == range && Arc::ptr_eq(&fault.source, &source)
        });
        if let Some(index) = known {
            return &mut self.faults[index];
        }
        let fault = Fault { severity, message, expected: None, help: None, source, range };
        if self.faults.len() == FAULTS_KEPT_MAX {
            self.spilled.1 += 1;
            return self.spilled.0.insert(fault);
        }
        self.faults.push(fault);
        let last = self.faults.len() - 1;
        &mut self.faults[last]
    }

    /// Ends the reading: every fault, errors first, each kind by file and place.
    pub(crate) fn finish(self) -> (Faults, Vec<Utf8PathBuf>) {
        let order = |fault: &Fault| {
            let file = self.sources.iter().position(|known| Arc::ptr_eq(known, &fault.source));
            (fault.severity, file, fault.range.start)
        };
        let mut list = self.faults.clone();
        list.sort_by_key(order);
        let files = self.sources[1..].iter().map(|source| source.path.clone()).collect();
        (Faults { list, dropped: self.spilled.1 }, files)
    }
}

impl Fault {
    pub(crate) fn expected(&mut self, what: impl Into<String>) -> &mut Fault {
        self.expected = Some(what.into());
        self
    }

    pub(crate) fn help(&mut self, what: impl Into<String>) -> &mut Fault {
        self.help = Some(what.into());
        self
    }
}

/// Cuts a range to its first line, within the text and at character borders.
fn first_line(text: &str, range: Range<usize>) -> Range<usize> {
    let border = |mut at: usize| {
        at = at.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let (start, end) = (border(range.start), border(range.end));
    let line = text[start..].find('\n').map_or(text.len(), |at| start + at);
    start..end.min(line).max(start)
}

/// Removes `.` and `..` by the text of the path alone: nothing is read from disk.
pub(crate) fn tidy(path: &Utf8Path) -> Utf8PathBuf {
    let mut out = Utf8PathBuf::new();
    for part in path.components() {
        match part.as_str() {
            "." => {}
            ".." if out.file_name().is_some_and(|name| name != "..") => {
                out.pop();
            }
            ".." if out.as_str() == "/" => {}
            name => out.push(name),
        }
    }
    match out.as_str() {
        "" => Utf8PathBuf::from("."),
        _ => out,
    }
}

/// Returns the candidate nearest to `word`, when it is near enough to be a slip of the hand.
pub fn did_you_mean<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let scored =
        candidates.map(|candidate| (nearness(&word, &candidate.to_lowercase()), candidate));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 >= NEARNESS_MIN).then_some(best.1)
}

/// Says how alike two words are, 0 to 1. One slip in a short word counts for little there.
fn nearness(word: &str, candidate: &str) -> f64 {
    let one_slip = word.len() >= 3 && strsim::osa_distance(word, candidate) <= 1;
    strsim::jaro_winkler(word, candidate).max(if one_slip { ONE_SLIP } else { 0.0 })
}

/// How alike two words count that differ by one slip.
const ONE_SLIP: f64 = 0.9;

/// How alike two words must be (0 to 1) to propose one for the other.
const NEARNESS_MIN: f64 = 0.82;
