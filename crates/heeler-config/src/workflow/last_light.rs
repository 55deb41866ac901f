//! Last Light's expressions, evaluated by its rules: one comparison of the value at a path.
//!
//! Start at [`LastLightExpression::parse`].

use minijinja::Value;
use minijinja::value::ValueKind;

use super::template_scope::{TemplateScope, ValuePath};
use super::template_value::value_text;
use super::translate::is_path;

/// Expression of Last Light.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LastLightExpression {
    /// `${phase.output}`, or a path with hyphens.
    Value(ValuePath),
    /// `a.b.contains('x')`; false unless the value is text or a number.
    Contains(ValuePath, String),
    /// `a.b == 'x'`, compared as text.
    Equals(ValuePath, String),
    /// `a.b != 'x'`, compared as text; false if there is no value.
    NotEquals(ValuePath, String),
    /// `a.b == true`, `a.b != false` and so on. "true", "yes" and "1" are true.
    Boolean(ValuePath, bool),
}

impl LastLightExpression {
    /// Parses an expression. Returns `None` if the text is not in Last Light's form.
    pub(super) fn parse(text: &str) -> Option<LastLightExpression> {
        let path = |text: &str| -> Option<ValuePath> {
            let text = text.trim();
            is_path(text).then(|| text.split('.').map(str::to_owned).collect())
        };
        // Without a hyphen minijinja reads the same path, and more forms around it.
        if let Some(path) = path(text).filter(|_| text.contains('-')) {
            return Some(LastLightExpression::Value(path));
        }
        if let Some((value, needle)) =
            text.strip_suffix(')').and_then(|it| it.split_once(".contains("))
        {
            return Some(LastLightExpression::Contains(path(value)?, literal(needle)?));
        }
        // Two operators are an expression of minijinja's.
        let (at, negated) = match (text.find("=="), text.find("!=")) {
            (Some(at), None) => (at, false),
            (None, Some(at)) => (at, true),
            _ => return None,
        };
        let path = path(&text[..at])?;
        match (text[at + 2..].trim(), negated) {
            ("true", negated) => Some(LastLightExpression::Boolean(path, !negated)),
            ("false", negated) => Some(LastLightExpression::Boolean(path, negated)),
            (quoted, false) => Some(LastLightExpression::Equals(path, literal(quoted)?)),
            (quoted, true) => Some(LastLightExpression::NotEquals(path, literal(quoted)?)),
        }
    }

    /// Returns the path of the value.
    pub(super) fn path(&self) -> &[String] {
        match self {
            LastLightExpression::Value(path)
            | LastLightExpression::Contains(path, _)
            | LastLightExpression::Equals(path, _)
            | LastLightExpression::NotEquals(path, _)
            | LastLightExpression::Boolean(path, _) => path,
        }
    }

    pub(super) fn evaluate(&self, scope: &TemplateScope<'_>) -> Value {
        let path: Vec<&str> = self.path().iter().map(String::as_str).collect();
        let found = scope.find(&path);
        let holds = match (self, found) {
            (LastLightExpression::Value(_), found) => return found.unwrap_or(Value::UNDEFINED),
            (LastLightExpression::Contains(_, needle), found) => {
                // Last Light searches only texts and numbers; a list never contains anything.
                found.is_some_and(|value| is_plain(&value) && value_text(&value).contains(needle))
            }
            (LastLightExpression::Equals(_, text), found) => {
                found.is_some_and(|value| value_text(&value) == *text)
            }
            (LastLightExpression::NotEquals(_, text), found) => {
                // A missing value is unequal to nothing, as in Last Light.
                found.is_some_and(|value| value_text(&value) != *text)
            }
            (LastLightExpression::Boolean(_, wanted), found) => {
                // A missing value is false, so it equals `false`.
                found.is_some_and(|it| is_flag(&it)) == *wanted
            }
        };
        Value::from(holds)
    }
}

/// Returns the text within quotes. `None` if it contains that quote or a backslash.
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
