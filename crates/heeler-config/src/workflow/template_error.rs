//! Errors of templates and expressions.

use thiserror::Error;

/// Error for a text that is not a template or expression.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct TemplateParseError {
    pub message: String,
    /// Line of the text, from 1.
    pub line: Option<usize>,
}

/// Error in the evaluation of a template or expression.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("cannot render `{text}`: {message}")]
pub struct TemplateRenderError {
    /// Beginning of its text.
    pub text: String,
    pub message: String,
}
