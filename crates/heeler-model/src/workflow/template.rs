//! Text with places that are filled when it is used, and expressions over the same values.
//!
//! A value is put in as it is: whatever it holds, it is never read as a template again. Start at
//! [`Template::parse`] and [`Expression::parse`].

use std::sync::{Arc, LazyLock};

use indexmap::IndexMap;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value};
use serde_json::{Map, Value as Json};
use thiserror::Error;

/// How many steps a template or an expression may take.
const FUEL: u64 = 1_000_000;

static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::empty();
    environment.set_undefined_behavior(UndefinedBehavior::Chainable);
    environment.set_fuel(Some(FUEL));
    environment
});

/// Text that cannot be read as a template or an expression.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct TemplateError {
    /// Why.
    pub message: String,
    /// The line of the text, from 1.
    pub line: Option<usize>,
}

/// A template or an expression whose values do not fit.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("cannot fill in `{text}`: {message}")]
pub struct RenderError {
    /// Its beginning.
    pub text: String,
    /// Why not.
    pub message: String,
}

/// What templates see.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'s> {
    /// What the run was started with: its keys are names of their own, and `inputs` has them all.
    pub context: &'s Json,
    /// What phases have left for each other: `scratch`.
    pub scratch: &'s Map<String, Json>,
    /// What phases said, by their names and `output_var`: `outputs.NAME`, `NAME.output`, and
    /// `${NAME.output}`; by an `output_var` also as a name of its own.
    pub outputs: &'s IndexMap<String, Arc<str>>,
    /// Further names, which come before all others.
    pub more: &'s [(&'s str, Json)],
}

/// Text with places that are filled when it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    source: String,
}

impl Template {
    /// Reads a template.
    pub fn parse(text: &str) -> Result<Template, TemplateError> {
        ENVIRONMENT.template_from_str(text).map_err(fault)?;
        Ok(Template { source: text.to_owned() })
    }

    /// Fills it in.
    pub fn render(&self, scope: &Scope<'_>) -> Result<String, RenderError> {
        let filled = ENVIRONMENT.render_str(&self.source, values(scope));
        filled.map_err(|error| misfit(&self.source, &error))
    }
}

/// An expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    source: String,
}

impl std::fmt::Display for Expression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.source)
    }
}

impl Expression {
    /// Reads an expression.
    pub fn parse(text: &str) -> Result<Expression, TemplateError> {
        ENVIRONMENT.compile_expression(text).map_err(fault)?;
        Ok(Expression { source: text.to_owned() })
    }

    /// Says whether it holds.
    pub fn holds(&self, scope: &Scope<'_>) -> Result<bool, RenderError> {
        self.evaluate(scope).map(|value| value.is_true())
    }

    /// Returns its value.
    pub fn value(&self, scope: &Scope<'_>) -> Result<Json, RenderError> {
        let value = self.evaluate(scope)?;
        serde_json::to_value(&value)
            .map_err(|error| RenderError { text: self.source.clone(), message: error.to_string() })
    }

    fn evaluate(&self, scope: &Scope<'_>) -> Result<Value, RenderError> {
        let expression = ENVIRONMENT.compile_expression(&self.source);
        let value = expression.and_then(|it| it.eval(values(scope)));
        value.map_err(|error| misfit(&self.source, &error))
    }
}

fn values(scope: &Scope<'_>) -> Value {
    let mut all = Map::new();
    if let Json::Object(context) = scope.context {
        all.extend(context.clone());
    }
    all.insert("inputs".to_owned(), scope.context.clone());
    all.insert("scratch".to_owned(), Json::Object(scope.scratch.clone()));
    let outputs = scope.outputs.iter();
    let outputs = outputs.map(|(name, text)| (name.clone(), Json::from(&**text)));
    all.insert("outputs".to_owned(), Json::Object(outputs.collect()));
    all.extend(scope.more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    Value::from(Serde(&all))
}

fn fault(error: minijinja::Error) -> TemplateError {
    TemplateError { message: error.to_string(), line: error.line() }
}

fn misfit(source: &str, error: &minijinja::Error) -> RenderError {
    let end = source.floor_char_boundary(60);
    RenderError { text: source[..end].to_owned(), message: error.to_string() }
}
