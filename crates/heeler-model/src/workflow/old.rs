//! Last Light's expressions, by its rules: one comparison of the value at a path.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::template::{Path, Scope, plain};
use super::translate::is_path;

/// One of Last Light's expressions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OldForm {
    /// `${phase.output}`, or a path with hyphens.
    Value(Path),
    /// `a.b.contains('x')`: only of text and numbers.
    Contains(Path, String),
    /// `a.b == 'x'`, as text.
    Is(Path, String),
    /// `a.b != 'x'`, as text; not if there is no value.
    IsNot(Path, String),
    /// `a.b == true`, `a.b != false` and the like: "true", "yes" and "1" are true.
    Flag(Path, bool),
}

impl OldForm {
    /// Reads one; `None` if it is none.
    pub(super) fn of(text: &str) -> Option<OldForm> {
        let path = |text: &str| -> Option<Path> {
            let text = text.trim();
            is_path(text).then(|| text.split('.').map(str::to_owned).collect())
        };
        if let Some(path) = path(text).filter(|_| text.contains('-')) {
            return Some(OldForm::Value(path));
        }
        if let Some((value, needle)) =
            text.strip_suffix(')').and_then(|it| it.split_once(".contains("))
        {
            return Some(OldForm::Contains(path(value)?, literal(needle)?));
        }
        let (at, negated) = match (text.find("=="), text.find("!=")) {
            (Some(at), None) => (at, false),
            (None, Some(at)) => (at, true),
            _ => return None,
        };
        let path = path(&text[..at])?;
        match (text[at + 2..].trim(), negated) {
            ("true", negated) => Some(OldForm::Flag(path, !negated)),
            ("false", negated) => Some(OldForm::Flag(path, negated)),
            (quoted, false) => Some(OldForm::Is(path, literal(quoted)?)),
            (quoted, true) => Some(OldForm::IsNot(path, literal(quoted)?)),
        }
    }

    /// Returns the path of its value.
    pub(super) fn path(&self) -> &[String] {
        match self {
            OldForm::Value(path)
            | OldForm::Contains(path, _)
            | OldForm::Is(path, _)
            | OldForm::IsNot(path, _)
            | OldForm::Flag(path, _) => path,
        }
    }

    /// Returns its value.
    pub(super) fn evaluate(&self, scope: &Scope<'_>) -> Value {
        let path: Vec<&str> = self.path().iter().map(String::as_str).collect();
        let found = scope.find(&path);
        let holds = match (self, found) {
            (OldForm::Value(_), found) => return found.unwrap_or(Value::UNDEFINED),
            (OldForm::Contains(_, needle), found) => {
                found.is_some_and(|value| is_plain(&value) && plain(&value).contains(needle))
            }
            (OldForm::Is(_, text), found) => found.is_some_and(|value| plain(&value) == *text),
            (OldForm::IsNot(_, text), found) => found.is_some_and(|value| plain(&value) != *text),
            (OldForm::Flag(_, wanted), found) => found.is_some_and(|it| is_flag(&it)) == *wanted,
        };
        Value::from(holds)
    }
}

/// Returns the text within quotes; none if that has such a quote or a backslash in it.
fn literal(text: &str) -> Option<String> {
    let text = text.trim();
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
    (!inner.contains([quote, '\\'])).then(|| inner.to_owned())
}

fn is_plain(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::String | ValueKind::Number)
}

fn is_flag(value: &Value) -> bool {
    match value.as_str() {
        Some(text) => ["true", "yes", "1"].iter().any(|word| text.eq_ignore_ascii_case(word)),
        None => matches!(value.kind(), ValueKind::Bool | ValueKind::Number) && value.is_true(),
    }
}
