//! Config faults and their rendering.
//!
//! A [`ConfigFault`] holds its file, line and column, and renders itself with the source line and a
//! marker. Faults are collected, never returned one at a time; callers receive [`ConfigFaults`].

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use camino::{Utf8Path, Utf8PathBuf};
use thiserror::Error;

use crate::text::is_terminal_control;

/// Maximum number of faults rendered at once; the others are counted.
pub const FAULTS_SHOWN_MAX: usize = 50;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultSeverity {
    /// The config is rejected.
    Error,
    /// The config is accepted, but may not do what its author expects.
    Warning,
}

/// Text of a file as it was read.
#[derive(Debug)]
pub(crate) struct ConfigSource {
    pub(crate) path: Utf8PathBuf,
    pub(crate) text: String,
}

/// One problem at one position.
#[derive(Clone)]
pub struct ConfigFault {
    pub severity: FaultSeverity,
    pub message: String,
    /// Short text of the expected value, shown at the marker.
    pub expected: Option<String>,
    /// Suggested correction.
    pub help: Option<String>,
    pub(crate) source: Arc<ConfigSource>,
    pub(crate) range: Range<usize>,
}

impl ConfigFault {
    pub fn path(&self) -> &Utf8Path {
        &self.source.path
    }

    /// Returns the line number, counted from 1.
    pub fn line(&self) -> usize {
        self.text_before().matches('\n').count() + 1
    }

    /// Returns the column in characters, counted from 1.
    pub fn column(&self) -> usize {
        let before = self.text_before();
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        before[line_start..].chars().count() + 1
    }

    fn text_before(&self) -> &str {
        &self.source.text[..self.range.start]
    }

    /// Returns the line of the fault and the faulty range within it.
    fn marked_line(&self) -> (&str, Range<usize>) {
        let text = &self.source.text;
        let start = self.text_before().rfind('\n').map_or(0, |at| at + 1);
        let end =
            text[self.range.start..].find('\n').map_or(text.len(), |at| self.range.start + at);
        // The line may come from a file with Windows line ends.
        let line = text[start..end].trim_end_matches('\r');
        // The range may begin in the line end, which is not part of the line.
        let within = |at: usize| (at - start).min(line.len());
        (line, within(self.range.start)..within(self.range.end))
    }

    /// Returns position and message in one line. Paths below `base` are relative to it.
    pub fn summary_line(&self, base: &Utf8Path) -> String {
        // Short paths are easier to read, and the same on every machine.
        let path = self.path().strip_prefix(base).unwrap_or(self.path());
        replace_control_chars(&format!(
            "{path}:{}:{}: {}",
            self.line(),
            self.column(),
            self.message
        ))
    }

    /// Renders the fault with its source line and a marker. Paths below `base` are relative to it.
    /// Characters that could control a terminal are shown as `\u{FFFD}`, because a config may come
    /// from an untrusted source.
    pub fn render(&self, style: RenderStyle, base: &Utf8Path) -> String {
        let level = match self.severity {
            FaultSeverity::Error => Level::ERROR,
            FaultSeverity::Warning => Level::WARNING,
        };
        let (line, range) = self.marked_line();
        // Replaced characters have another length, so the marker is computed from them.
        let start = replace_control_chars(&line[..range.start]).len();
        let end = start + replace_control_chars(&line[range.clone()]).len();
        let mut marker = AnnotationKind::Primary.span(start..end);
        if let Some(expected) = &self.expected {
            marker = marker.label(replace_control_chars(expected));
        }
        let path = self.path().strip_prefix(base).unwrap_or(self.path());
        let snippet = Snippet::source(replace_control_chars(line))
            .line_start(self.line())
            .path(replace_control_chars(path.as_str()))
            .annotation(marker);
        let mut group: Group<'_> =
            level.primary_title(replace_control_chars(&self.message)).element(snippet);
        if let Some(help) = &self.help {
            group = group.element(Level::HELP.message(replace_control_chars(help)));
        }
        let renderer = match style {
            RenderStyle::Plain => Renderer::plain(),
            RenderStyle::Coloured => Renderer::styled(),
        };
        renderer.render(&[group])
    }
}

fn replace_control_chars(text: &str) -> String {
    text.chars()
        .map(|c| if is_terminal_control(c) { char::REPLACEMENT_CHARACTER } else { c })
        .collect()
}

impl fmt::Debug for ConfigFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, line, column) = (self.path(), self.line(), self.column());
        write!(f, "{:?} {path}:{line}:{column}: {}", self.severity, self.message)
    }
}

/// Use of colour in rendered faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenderStyle {
    Plain,
    /// With terminal escape sequences.
    Coloured,
}

/// Every fault of one load.
#[derive(Clone, Default, Error)]
#[error("{}", self.summary())]
pub struct ConfigFaults {
    /// Errors first, then warnings; each in order of file and line.
    pub list: Vec<ConfigFault>,
    /// Number of faults discarded because too many were found.
    pub dropped: usize,
}

impl ConfigFaults {
    /// Combines the faults of several loads, errors first.
    pub fn merge(all: impl IntoIterator<Item = ConfigFaults>) -> ConfigFaults {
        let mut list: Vec<ConfigFault> = Vec::new();
        let mut dropped = 0;
        for faults in all {
            list.extend(faults.list);
            dropped += faults.dropped;
        }
        // The sort is stable, so the order within a file stays.
        list.sort_by_key(|fault| fault.severity);
        ConfigFaults { list, dropped }
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the number of faults as text: `2 errors and 1 warning in the config`.
    pub fn summary(&self) -> String {
        let errors =
            self.list.iter().filter(|fault| fault.severity == FaultSeverity::Error).count();
        // The list overflows only with files full of errors, so dropped faults count as errors.
        let errors = errors + self.dropped;
        let counted = |count: usize, word: &str| match count {
            1 => format!("1 {word}"),
            _ => format!("{count} {word}s"),
        };
        match (errors, self.list.len() + self.dropped - errors) {
            (errors, 0) => format!("{} in the config", counted(errors, "error")),
            (0, warnings) => format!("{} in the config", counted(warnings, "warning")),
            (errors, warnings) => format!(
                "{} and {} in the config",
                counted(errors, "error"),
                counted(warnings, "warning")
            ),
        }
    }

    /// Renders up to [`FAULTS_SHOWN_MAX`] faults, separated by blank lines. Paths below `base` are
    /// relative to it.
    pub fn render(&self, style: RenderStyle, base: &Utf8Path) -> String {
        let shown = self.list.iter().take(FAULTS_SHOWN_MAX);
        let mut parts: Vec<String> = shown.map(|fault| fault.render(style, base)).collect();
        // A config full of faults must not fill the terminal.
        let more = self.list.len().saturating_sub(FAULTS_SHOWN_MAX) + self.dropped;
        if more > 0 {
            parts.push(format!("… and {more} more"));
        }
        parts.join("\n\n")
    }
}

impl fmt::Debug for ConfigFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(RenderStyle::Plain, Utf8Path::new("")))
    }
}
