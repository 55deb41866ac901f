//! Templates and expressions of workflows.
//!
//! A value is inserted literally: its content is never parsed as a template. Only the values that a
//! template names are prepared for it. Start at [`WorkflowTemplate::parse`] and
//! [`WorkflowExpression::parse`].

use std::fmt;
use std::io::{self, Write};
use std::sync::LazyLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value};
use serde_json::Value as Json;

use super::last_light::LastLightExpression;
use super::scan;
use super::shell_quoting;
use super::template_error::{TemplateParseError, TemplateRenderError};
use super::template_scope::{TemplateScope, ValuePath};
use super::template_value::{RawShellValue, json, value_text};
use super::translate::{TemplateSlot, TemplateTarget, TranslatedTemplate, output_name, translate};

/// Most steps that a template or an expression may execute.
const FUEL: u64 = 1_000_000;
/// Largest output of a template, in bytes.
pub const RENDERED_BYTES_MAX: usize = 8 << 20;
/// Longest slug, in characters.
const SLUG_CHARS_MAX: usize = 40;

static TEXT: LazyLock<Environment<'static>> = LazyLock::new(|| environment(write_text));
static SHELL: LazyLock<Environment<'static>> = LazyLock::new(|| environment(write_shell_word));

/// Text with placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowTemplate {
    /// Literal text before the template.
    prefix: String,
    text: String,
    target: TemplateTarget,
    translated: TranslatedTemplate,
    names: Vec<ValuePath>,
}

impl WorkflowTemplate {
    pub fn parse(text: &str) -> Result<WorkflowTemplate, TemplateParseError> {
        WorkflowTemplate::parse_for_target(text, TemplateTarget::Text)
    }

    /// Parses the template of a shell command. Inserted values are quoted for `/bin/sh`. A
    /// placeholder where quoting is impossible is an error; `| raw` inserts a value unquoted.
    pub fn parse_shell(text: &str) -> Result<WorkflowTemplate, TemplateParseError> {
        WorkflowTemplate::parse_for_target(text, TemplateTarget::Shell)
    }

    fn parse_for_target(
        text: &str,
        target: TemplateTarget,
    ) -> Result<WorkflowTemplate, TemplateParseError> {
        let translated = translate(text, target)?;
        let parsed =
            TEXT.template_from_str(&translated.source).map_err(|error| parse_error(&error))?;
        // Only these values are prepared for rendering: a run may have thousands of outputs.
        let names = paths(parsed.undeclared_variables(true));
        for (at, code) in &translated.code {
            // The position is in the text as written, since the translation has other lines.
            let line = Some(text[..*at].matches('\n').count() + 1);
            check_called_names(code).map_err(|message| TemplateParseError { message, line })?;
        }
        Ok(WorkflowTemplate {
            prefix: String::new(),
            text: text.to_owned(),
            target,
            translated,
            names,
        })
    }

    /// Adds literal text before the template.
    pub(super) fn with_prefix(self, before: String) -> WorkflowTemplate {
        WorkflowTemplate { prefix: before, ..self }
    }

    /// Returns the template as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn render(&self, scope: &TemplateScope<'_>) -> Result<String, TemplateRenderError> {
        let environment = match self.target {
            TemplateTarget::Text => &*TEXT,
            TemplateTarget::Shell => &*SHELL,
        };
        let misfit = |error: Error| render_error(&self.text, &error);
        // Compiled again each time: a compiled template borrows its source.
        let template = environment.template_from_str(&self.translated.source).map_err(misfit)?;
        let values = scope.values(&self.names, &self.translated.slots);
        let mut out = BoundedRenderBuffer(self.prefix.clone().into_bytes());
        match template.render_captured_to(values, &mut out) {
            // The engine writes only texts, so this replaces nothing.
            Ok(_) => Ok(String::from_utf8_lossy(&out.0).into_owned()),
            // The engine wraps the writer's error, so the size tells which failure it was.
            Err(_) if out.0.len() > RENDERED_BYTES_MAX => Err(TemplateRenderError {
                text: excerpt(&self.text),
                message: format!("the result exceeds {RENDERED_BYTES_MAX} bytes"),
            }),
            Err(error) => Err(misfit(error)),
        }
    }

    /// Returns the values that the template names.
    pub(super) fn references(&self) -> Vec<ValuePath> {
        let slots = self.translated.slots.iter().filter_map(|slot| match slot {
            TemplateSlot::Path(path) => Some(path.clone()),
            TemplateSlot::Output(name) => Some(vec!["outputs".to_owned(), name.clone()]),
            TemplateSlot::BranchUrl(_) | TemplateSlot::ArtifactUrl(_) => None,
        });
        let code = self.translated.code.iter().flat_map(|(_, code)| scan::bracketed_names(code));
        // Slots are named below by what they stand for.
        let names = self.names.iter().filter(|path| !path[0].starts_with("_slot")).cloned();
        names.chain(slots).chain(code).collect()
    }
}

/// Expression of a workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowExpression {
    text: String,
    form: ExpressionForm,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ExpressionForm {
    LastLight(LastLightExpression),
    Native { source: String, names: Vec<ValuePath> },
}

impl fmt::Display for WorkflowExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl WorkflowExpression {
    /// Returns an expression that always holds, with a text that says why.
    pub(super) fn always(text: String) -> WorkflowExpression {
        let form = ExpressionForm::Native { source: "true".to_owned(), names: Vec::new() };
        WorkflowExpression { text, form }
    }

    /// Parses an expression in Last Light's form, or else in Heeler's. Surrounding `{{ }}` or `${
    /// }` are optional.
    pub fn parse(text: &str) -> Result<WorkflowExpression, TemplateParseError> {
        let trimmed = text.trim();
        let inner = trimmed.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}"));
        let source = inner.unwrap_or(trimmed).trim();
        let text = text.to_owned();
        // Ten is the length of `${` and `.output}` without the name.
        if let Some(name) = output_name(source).filter(|name| source.len() == name.len() + 10) {
            let path = vec!["outputs".to_owned(), name.to_owned()];
            return Ok(WorkflowExpression {
                text,
                form: ExpressionForm::LastLight(LastLightExpression::Value(path)),
            });
        }
        // First in Last Light's form, because the same text has other rules there.
        if let Some(old) = LastLightExpression::parse(source) {
            return Ok(WorkflowExpression { text, form: ExpressionForm::LastLight(old) });
        }
        let parsed = TEXT.compile_expression(source).map_err(|error| parse_error(&error))?;
        // A wrong name would otherwise fail the run in the middle.
        check_called_names(source).map_err(|message| TemplateParseError { message, line: None })?;
        let names = paths(parsed.undeclared_variables(true));
        Ok(WorkflowExpression {
            text,
            form: ExpressionForm::Native { source: source.to_owned(), names },
        })
    }

    /// Evaluates the expression as a condition.
    pub fn is_true(&self, scope: &TemplateScope<'_>) -> Result<bool, TemplateRenderError> {
        self.evaluate(scope).map(|value| value.is_true())
    }

    pub fn value(&self, scope: &TemplateScope<'_>) -> Result<Json, TemplateRenderError> {
        let value = self.evaluate(scope)?;
        serde_json::to_value(&value).map_err(|error| TemplateRenderError {
            text: excerpt(&self.text),
            message: error.to_string(),
        })
    }

    fn evaluate(&self, scope: &TemplateScope<'_>) -> Result<Value, TemplateRenderError> {
        match &self.form {
            ExpressionForm::LastLight(form) => Ok(form.evaluate(scope)),
            ExpressionForm::Native { source, names } => {
                let expression = TEXT.compile_expression(source);
                let value = expression.and_then(|it| it.eval(scope.values(names, &[])));
                value.map_err(|error| render_error(&self.text, &error))
            }
        }
    }

    /// Returns the values that the expression names.
    pub(super) fn references(&self) -> Vec<ValuePath> {
        match &self.form {
            ExpressionForm::LastLight(form) => vec![form.path().to_vec()],
            ExpressionForm::Native { source, names } => {
                names.iter().cloned().chain(scan::bracketed_names(source)).collect()
            }
        }
    }
}

type TemplateValueWriter = fn(&mut Output<'_>, &Value) -> Result<(), Error>;

fn environment(write: TemplateValueWriter) -> Environment<'static> {
    let mut environment = Environment::new();
    // A missing value renders as nothing, at any depth.
    environment.set_undefined_behavior(UndefinedBehavior::Chainable);
    // Templates may come from a repository, so a loop in one must end.
    environment.set_fuel(Some(FUEL));
    // Debug information of the engine would show values.
    environment.set_debug(false);
    // A prompt or a command may depend on its last line end.
    let syntax = SyntaxConfig::builder().keep_trailing_newline(true).build();
    environment.set_syntax(syntax.expect("the usual delimiters are legal"));
    environment.set_formatter(move |out: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value| {
        write(out, value)
    });
    environment.set_unknown_method_callback(|_, value, method, arguments| {
        match (method, arguments) {
            // Last Light's only method.
            ("contains", [needle]) => {
                Ok(Value::from(value_text(value).contains(&value_text(needle))))
            }
            _ => Err(Error::new(ErrorKind::UnknownMethod, format!("there is no `.{method}()`"))),
        }
    });
    environment.add_filter("slugify", |value: Value| slugify(&value_text(&value)));
    environment.add_filter("json", |value: Value| json(&value));
    environment.add_filter("raw", |value: Value| Value::from_object(RawShellValue(value)));
    // These concern HTML, and debugging of minijinja itself.
    for name in ["safe", "escape", "e"] {
        environment.remove_filter(name);
    }
    environment.remove_global("debug");
    environment
}

fn write_text(out: &mut Output<'_>, value: &Value) -> Result<(), Error> {
    Ok(out.write_str(&value_text(value))?)
}

/// Writes a value as a quoted shell word.
fn write_shell_word(out: &mut Output<'_>, value: &Value) -> Result<(), Error> {
    let text = value_text(value);
    // A NUL would cut the command off at this place.
    if text.contains('\0') {
        return Err(Error::new(ErrorKind::InvalidOperation, "a command cannot hold a NUL"));
    }
    match value.downcast_object_ref::<RawShellValue>() {
        // Only the filter creates this type, so no value can pretend to be raw.
        Some(_) => Ok(out.write_str(&text)?),
        None => Ok(out.write_str(&shell_quoting::quote_shell(&text))?),
    }
}

fn slugify(text: &str) -> String {
    let mut slug = String::new();
    for c in text.to_lowercase().chars() {
        match c.is_ascii_alphanumeric() {
            true => slug.push(c),
            false if slug.is_empty() || slug.ends_with('-') => {}
            false => slug.push('-'),
        }
    }
    // Cut after the conversion, so the slug has full length.
    let slug: String = slug.chars().take(SLUG_CHARS_MAX).collect();
    slug.trim_end_matches('-').to_owned()
}

/// Checks that all filters, tests and functions exist. The engine would report them only on use.
fn check_called_names(code: &str) -> Result<(), String> {
    for (kind, name) in scan::called_names(code) {
        let (what, probe, unknown) = match kind {
            scan::ExpressionWord::Filter => {
                ("filter", format!("0|{name}"), ErrorKind::UnknownFilter)
            }
            scan::ExpressionWord::Test => ("test", format!("0 is {name}"), ErrorKind::UnknownTest),
            scan::ExpressionWord::Function => {
                ("function", format!("{name}()"), ErrorKind::UnknownFunction)
            }
        };
        // Evaluated with nothing: only the kind of the error matters.
        let probed = TEXT.compile_expression(&probe).and_then(|probe| probe.eval(()));
        if probed.is_err_and(|error| error.kind() == unknown) {
            return Err(format!("there is no {what} `{name}`"));
        }
    }
    Ok(())
}

fn paths(names: impl IntoIterator<Item = String>) -> Vec<ValuePath> {
    let mut paths: Vec<ValuePath> =
        names.into_iter().map(|name| name.split('.').map(str::to_owned).collect()).collect();
    // Sorted, because the engine returns a set, and messages must not vary.
    paths.sort();
    paths
}

/// Buffer that fails beyond [`RENDERED_BYTES_MAX`].
struct BoundedRenderBuffer(Vec<u8>);

impl Write for BoundedRenderBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Extended first: the length tells the caller that the limit was the reason.
        self.0.extend_from_slice(bytes);
        match self.0.len() > RENDERED_BYTES_MAX {
            true => Err(io::Error::other("too long")),
            false => Ok(bytes.len()),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn parse_error(error: &Error) -> TemplateParseError {
    TemplateParseError { message: error_reason(error), line: error.line() }
}

fn render_error(text: &str, error: &Error) -> TemplateRenderError {
    TemplateRenderError { text: excerpt(text), message: error_reason(error) }
}

fn error_reason(error: &Error) -> String {
    let reason = match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => return format!("it takes more than {FUEL} steps"),
        (ErrorKind::SyntaxError, Some(detail)) => detail.to_owned(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    };
    // People do not know the names of slots.
    reason.replace("_slot", "value ")
}

fn excerpt(text: &str) -> String {
    text[..text.floor_char_boundary(60)].to_owned()
}

#[cfg(test)]
mod tests;
