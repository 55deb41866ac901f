//! The one place where faults are collected while config is read.
//!
//! A [`ConfigReader`] owns the loaded sources and the faults found so far. Reading goes on after a
//! fault: a function that cannot give a value says so here and returns `None`.

use std::ops::Range;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};

use super::fault::{ConfigFault, ConfigFaults, ConfigSource, FaultSeverity};

/// A byte range in one of the reader's sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SourceSpan {
    pub(crate) file: usize,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// Whose rules a file follows: unknown keys are errors in ours, warnings in herdctl's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigDialect {
    /// `heeler.yaml` and the files it names.
    Heeler,
    /// `herdctl.yaml` and the files it names.
    Herdctl,
}

impl ConfigDialect {
    /// Tells the dialect by the name of the fleet file.
    pub fn from_file_name(path: &Utf8Path) -> ConfigDialect {
        match path.file_stem() {
            Some("herdctl") => ConfigDialect::Herdctl,
            _ => ConfigDialect::Heeler,
        }
    }
}

/// Collects sources and faults. Text that no file holds, such as defaults, is source 0.
#[derive(Debug)]
pub(crate) struct ConfigReader {
    pub(crate) dialect: ConfigDialect,
    home: Option<Utf8PathBuf>,
    sources: Vec<Arc<ConfigSource>>,
    faults: Vec<ConfigFault>,
    /// The last fault beyond [`FAULTS_KEPT_MAX`], and how many there were.
    overflow: (Option<ConfigFault>, usize),
    error_count: usize,
}

/// The most faults that are kept; further ones are only counted.
const FAULTS_KEPT_MAX: usize = 1000;

impl ConfigReader {
    pub(crate) fn new(dialect: ConfigDialect, home: Option<&str>) -> ConfigReader {
        let built_in = ConfigSource { path: Utf8PathBuf::from("<built in>"), text: String::new() };
        let home = home.map(Utf8PathBuf::from);
        ConfigReader {
            dialect,
            home,
            sources: vec![Arc::new(built_in)],
            faults: Vec::new(),
            overflow: (None, 0),
            error_count: 0,
        }
    }

    pub(crate) fn add_source(&mut self, path: &Utf8Path, text: String) -> usize {
        self.sources.push(Arc::new(ConfigSource { path: path.to_owned(), text }));
        self.sources.len() - 1
    }

    pub(crate) fn source(&self, file: usize) -> Arc<ConfigSource> {
        Arc::clone(&self.sources[file])
    }

    /// Resolves a path as written at `at`: relative to the folder of its file, `~` is HOME.
    pub(crate) fn resolve(&self, at: SourceSpan, path: &str) -> Utf8PathBuf {
        let expanded = match (path.strip_prefix('~'), &self.home) {
            (Some(""), Some(home)) => home.clone(),
            (Some(rest), Some(home)) if rest.starts_with('/') => home.join(&rest[1..]),
            _ => Utf8PathBuf::from(path),
        };
        let folder = self.sources[at.file].path.parent().unwrap_or(Utf8Path::new(""));
        normalize_path(&folder.join(expanded))
    }

    /// Counts the errors reported so far, also those that were known already.
    pub(crate) fn error_count(&self) -> usize {
        self.error_count
    }

    pub(crate) fn error(&mut self, at: SourceSpan, message: String) -> &mut ConfigFault {
        self.error_count += 1;
        self.report(FaultSeverity::Error, at, message)
    }

    pub(crate) fn warn(&mut self, at: SourceSpan, message: String) -> &mut ConfigFault {
        self.report(FaultSeverity::Warning, at, message)
    }

    /// Records a fault once: merged defaults are read again with each agent that has them.
    fn report(
        &mut self,
        severity: FaultSeverity,
        at: SourceSpan,
        message: String,
    ) -> &mut ConfigFault {
        let source = self.source(at.file);
        let range = clip_to_first_line(&source.text, at.start..at.end);
        let known = self.faults.iter().position(|fault| {
            fault.message == message && fault.range == range && Arc::ptr_eq(&fault.source, &source)
        });
        if let Some(index) = known {
            return &mut self.faults[index];
        }
        let fault = ConfigFault { severity, message, expected: None, help: None, source, range };
        if self.faults.len() == FAULTS_KEPT_MAX {
            self.overflow.1 += 1;
            return self.overflow.0.insert(fault);
        }
        self.faults.push(fault);
        let last = self.faults.len() - 1;
        &mut self.faults[last]
    }

    /// Ends the reading: every fault, errors first, each kind by file and place.
    pub(crate) fn finish(self) -> (ConfigFaults, Vec<Utf8PathBuf>) {
        let order = |fault: &ConfigFault| {
            let file = self.sources.iter().position(|known| Arc::ptr_eq(known, &fault.source));
            (fault.severity, file, fault.range.start)
        };
        let mut list = self.faults.clone();
        list.sort_by_key(order);
        let files = self.sources[1..].iter().map(|source| source.path.clone()).collect();
        (ConfigFaults { list, dropped: self.overflow.1 }, files)
    }
}

impl ConfigFault {
    pub(crate) fn expected(&mut self, what: impl Into<String>) -> &mut ConfigFault {
        self.expected = Some(what.into());
        self
    }

    pub(crate) fn help(&mut self, what: impl Into<String>) -> &mut ConfigFault {
        self.help = Some(what.into());
        self
    }
}

/// Cuts a range to its first line, within the text and at character borders.
fn clip_to_first_line(text: &str, range: Range<usize>) -> Range<usize> {
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
pub(crate) fn normalize_path(path: &Utf8Path) -> Utf8PathBuf {
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
        candidates.map(|candidate| (similarity(&word, &candidate.to_lowercase()), candidate));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 >= SIMILARITY_MIN).then_some(best.1)
}

/// Says how alike two words are, 0 to 1. One slip in a short word counts for little there.
fn similarity(word: &str, candidate: &str) -> f64 {
    let one_slip = word.len() >= 3 && strsim::osa_distance(word, candidate) <= 1;
    strsim::jaro_winkler(word, candidate).max(if one_slip { ONE_TYPO_SIMILARITY } else { 0.0 })
}

/// How alike two words count that differ by one slip.
const ONE_TYPO_SIMILARITY: f64 = 0.9;

/// How alike two words must be (0 to 1) to propose one for the other.
const SIMILARITY_MIN: f64 = 0.82;
