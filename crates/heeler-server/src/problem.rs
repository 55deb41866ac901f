//! What went wrong with a request, as `application/problem+json`.

use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use heeler_engine::{Refused, RefusedKind, Stopped};
use heeler_model::chain;
use heeler_query::{QueryError, QueryErrorKind};
use serde::Serialize;
use utoipa::ToSchema;

/// What went wrong with a request (RFC 9457).
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// The kind of problem, in a word that programs may rely on: `not-found`, `busy`, `not-allowed`,
    /// `usage`, `trouble`, `ending`, `unauthenticated`, `too-many`, …
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// The status code in words.
    pub(crate) title: &'static str,
    /// The status code.
    pub(crate) status: u16,
    /// What went wrong, for people.
    pub(crate) detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
    /// After how many seconds it may be tried again.
    #[serde(skip)]
    pub(crate) retry_after: Option<u64>,
}

impl Problem {
    /// Makes one.
    pub(crate) fn new(code: StatusCode, kind: &'static str, detail: impl Into<String>) -> Problem {
        let title = code.canonical_reason().unwrap_or("Error");
        Problem {
            kind,
            title,
            status: code.as_u16(),
            detail: detail.into(),
            hint: None,
            retry_after: None,
        }
    }

    /// Says that a request makes no sense.
    pub(crate) fn usage(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "usage", detail)
    }

    /// Says that there is no such thing.
    pub(crate) fn not_found(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "not-found", detail)
    }

    /// Says that it is our fault.
    pub(crate) fn trouble(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "trouble", detail)
    }

    fn maybe_hint(mut self, hint: Option<&str>) -> Problem {
        self.hint = hint.map(str::to_owned);
        self
    }

    /// Says when it may be tried again.
    pub(crate) fn retry_after(mut self, wait: Duration) -> Problem {
        self.retry_after = Some(wait.as_secs());
        self
    }

    /// Says what to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Problem {
        self.hint = Some(hint.into());
        self
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Problem {
        let (code, kind) = match refused.kind {
            // Nothing was done, so it may be tried again.
            _ if refused == Refused::from(Stopped) => (StatusCode::SERVICE_UNAVAILABLE, "ending"),
            RefusedKind::NotFound => (StatusCode::NOT_FOUND, "not-found"),
            RefusedKind::Busy => (StatusCode::CONFLICT, "busy"),
            RefusedKind::Conflict => (StatusCode::CONFLICT, "key-reused"),
            RefusedKind::NotAllowed => (StatusCode::FORBIDDEN, "not-allowed"),
            RefusedKind::Usage => (StatusCode::BAD_REQUEST, "usage"),
            RefusedKind::Trouble => (StatusCode::INTERNAL_SERVER_ERROR, "trouble"),
        };
        Problem { hint: refused.hint, ..Problem::new(code, kind, refused.message) }
    }
}

impl From<QueryError> for Problem {
    fn from(error: QueryError) -> Problem {
        let error = match error {
            QueryError::Daemon(refused) => return Problem::from(refused),
            error => error,
        };
        match error.kind() {
            QueryErrorKind::NotFound => {
                Problem::not_found(error.to_string()).maybe_hint(error.hint())
            }
            QueryErrorKind::Usage => Problem::usage(error.to_string()),
            QueryErrorKind::Refused => {
                Problem::new(StatusCode::CONFLICT, "refused", error.to_string())
                    .maybe_hint(error.hint())
            }
            QueryErrorKind::Trouble => {
                let why = chain(&error);
                tracing::error!(why, "cannot read the state");
                Problem::trouble(why).hint("heeler doctor")
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let code = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).expect("a problem is JSON");
        let kind = HeaderValue::from_static("application/problem+json");
        let mut response = (code, [(CONTENT_TYPE, kind)], body).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
