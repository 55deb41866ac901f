//! Query parameters of dashboard pages.

use heeler_query::QueryError;
use serde::Deserialize;

use crate::problem::ProblemDetails;

/// Query parameter of a transcript: show the rows or messages before this one, or the end.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TranscriptPageParams {
    pub(super) before: Option<u64>,
}

/// Replaces "not found" by an empty list, for a filter that names an unknown agent.
pub(super) fn empty_if_not_found<T: Default>(
    found: Result<T, QueryError>,
) -> Result<T, QueryError> {
    match found {
        Err(QueryError::NotFound { .. }) => Ok(T::default()),
        found => found,
    }
}

/// Returns the text unless it is empty.
pub(super) fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Parses a query parameter; empty text is `None`.
pub(super) fn parse_param<T: std::str::FromStr<Err: std::fmt::Display>>(
    text: &str,
) -> Result<Option<T>, ProblemDetails> {
    let parsed = non_empty(text).map(|text| text.parse());
    parsed.transpose().map_err(|error: T::Err| ProblemDetails::bad_request(error.to_string()))
}
