//! Collection of faults while config is read.
//!
//! A [`ConfigReader`] owns the loaded sources and the faults found. Reading continues after a
//! fault: a function that cannot produce a value reports the fault here and returns `None`.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};

use crate::fault::{ConfigFault, ConfigFaults, ConfigSource, FaultSeverity};
use crate::work_access::WorkSourceAccess;

/// Function that returns the text of a file.
pub type FileReader<'a> = dyn Fn(&Utf8Path) -> io::Result<String> + 'a;

/// Byte range in one of the reader's sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SourceSpan {
    pub(crate) file: usize,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// Dialect of a config file. Unknown keys are errors in Heeler's dialect and warnings in herdctl's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigDialect {
    /// `heeler.yaml` and the files it references.
    Heeler,
    /// `herdctl.yaml` and the files it references.
    Herdctl,
}

impl ConfigDialect {
    /// Returns the dialect that the name of the fleet file implies.
    pub fn from_file_name(path: &Utf8Path) -> ConfigDialect {
        // The extension may be `.yaml` or `.yml`.
        match path.file_stem() {
            Some("herdctl") => ConfigDialect::Herdctl,
            _ => ConfigDialect::Heeler,
        }
    }
}

/// Collects sources and faults. Source 0 is text that is in no file, such as defaults.
#[derive(Debug)]
pub(crate) struct ConfigReader {
    pub(crate) dialect: ConfigDialect,
    home: Option<Utf8PathBuf>,
    sources: Vec<Arc<ConfigSource>>,
    faults: Vec<ConfigFault>,
    /// The last fault beyond [`FAULTS_KEPT_MAX`], and the number of such faults.
    overflow: (Option<ConfigFault>, usize),
    error_count: usize,
    /// Access to GitHub, once the root fleet is read.
    pub(crate) work_access: WorkSourceAccess,
}

/// Maximum number of stored faults; further ones are only counted.
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
            work_access: WorkSourceAccess::default(),
        }
    }

    pub(crate) fn add_source(&mut self, path: &Utf8Path, text: String) -> usize {
        self.sources.push(Arc::new(ConfigSource { path: path.to_owned(), text }));
        self.sources.len() - 1
    }

    pub(crate) fn source(&self, file: usize) -> Arc<ConfigSource> {
        Arc::clone(&self.sources[file])
    }

    /// Resolves a path written at `at`: relative to the directory of its file; `~` is HOME.
    pub(crate) fn resolve(&self, at: SourceSpan, path: &str) -> Utf8PathBuf {
        // Only `~/`: other users' directories are not looked up.
        let expanded = match (path.strip_prefix('~'), &self.home) {
            (Some(""), Some(home)) => home.clone(),
            (Some(rest), Some(home)) if rest.starts_with('/') => home.join(&rest[1..]),
            _ => Utf8PathBuf::from(path),
        };
        let folder = self.sources[at.file].path.parent().unwrap_or(Utf8Path::new(""));
        // Normalized, so that the same file has one path, however it is written.
        normalize_path(&folder.join(expanded))
    }

    /// Returns the number of reported errors, including duplicates.
    pub(crate) fn error_count(&self) -> usize {
        self.error_count
    }

    pub(crate) fn error(&mut self, at: SourceSpan, message: String) -> &mut ConfigFault {
        // Duplicates count too, since callers compare the number before and after a value.
        self.error_count += 1;
        self.report(FaultSeverity::Error, at, message)
    }

    pub(crate) fn warn(&mut self, at: SourceSpan, message: String) -> &mut ConfigFault {
        self.report(FaultSeverity::Warning, at, message)
    }

    /// Returns a fault without recording it, for a check that is possible only after the load.
    pub(crate) fn later_error(&self, at: SourceSpan, message: String) -> ConfigFault {
        let source = self.source(at.file);
        let range = clip_to_first_line(&source.text, at.start..at.end);
        let severity = FaultSeverity::Error;
        ConfigFault { severity, message, expected: None, help: None, source, range }
    }

    /// Records a fault, ignoring duplicates: merged defaults are read again for each agent that
    /// inherits them.
    fn report(
        &mut self,
        severity: FaultSeverity,
        at: SourceSpan,
        message: String,
    ) -> &mut ConfigFault {
        let source = self.source(at.file);
        let range = clip_to_first_line(&source.text, at.start..at.end);
        // A search suffices, because the list is limited.
        let known = self.faults.iter().position(|fault| {
            fault.message == message && fault.range == range && Arc::ptr_eq(&fault.source, &source)
        });
        if let Some(index) = known {
            return &mut self.faults[index];
        }
        let fault = ConfigFault { severity, message, expected: None, help: None, source, range };
        // Beyond the limit the last fault is kept only so that callers can complete it.
        if self.faults.len() == FAULTS_KEPT_MAX {
            self.overflow.1 += 1;
            return self.overflow.0.insert(fault);
        }
        self.faults.push(fault);
        let last = self.faults.len() - 1;
        &mut self.faults[last]
    }

    /// Returns every fault, errors first and in order of file and position, and the files that were
    /// read.
    pub(crate) fn finish(self) -> (ConfigFaults, Vec<Utf8PathBuf>) {
        let order = |fault: &ConfigFault| {
            let file = self.sources.iter().position(|known| Arc::ptr_eq(known, &fault.source));
            (fault.severity, file, fault.range.start)
        };
        let mut list = self.faults.clone();
        list.sort_by_key(order);
        // The first source is in no file.
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

/// Cuts a range to its first line, within the text and at character boundaries.
fn clip_to_first_line(text: &str, range: Range<usize>) -> Range<usize> {
    let border = |mut at: usize| {
        at = at.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let (start, end) = (border(range.start), border(range.end));
    // A fault that spans lines is shown by its first line.
    let line = text[start..].find('\n').map_or(text.len(), |at| start + at);
    start..end.min(line).max(start)
}

/// Removes `.` and `..` lexically, without access to the file system.
pub(crate) fn normalize_path(path: &Utf8Path) -> Utf8PathBuf {
    let mut out = Utf8PathBuf::new();
    for part in path.components() {
        match part.as_str() {
            "." => {}
            ".." if out.file_name().is_some_and(|name| name != "..") => {
                out.pop();
            }
            // Above the root there is nothing, as for the file system.
            ".." if out.as_str() == "/" => {}
            // A leading `..` of a relative path cannot be resolved without the file system.
            name => out.push(name),
        }
    }
    match out.as_str() {
        // An empty path is not valid for the file system.
        "" => Utf8PathBuf::from("."),
        _ => out,
    }
}
