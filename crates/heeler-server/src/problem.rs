//! Problem of a request, as `application/problem+json`.

use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use heeler_engine::{DaemonCommandError, DaemonCommandErrorKind, DispatcherStoppedError};
use heeler_model::error_chain;
use heeler_query::{QueryError, QueryErrorKind};
use serde::Serialize;
use utoipa::ToSchema;

/// Problem of a request (RFC 9457).
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct ProblemDetails {
    /// Kind of problem, stable for programs: `not-found`, `busy`, `not-allowed`, `usage`,
    /// `trouble`, `ending`, `unauthenticated`, `too-many`, …
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// Reason phrase of the status code.
    pub(crate) title: &'static str,
    /// HTTP status code.
    pub(crate) status: u16,
    /// Explanation for people.
    pub(crate) detail: String,
    /// Suggested action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
    /// Seconds after which to retry.
    #[serde(skip)]
    pub(crate) retry_after: Option<u64>,
}

impl ProblemDetails {
    pub(crate) fn new(
        code: StatusCode,
        kind: &'static str,
        detail: impl Into<String>,
    ) -> ProblemDetails {
        let title = code.canonical_reason().unwrap_or("Error");
        ProblemDetails {
            kind,
            title,
            status: code.as_u16(),
            detail: detail.into(),
            hint: None,
            retry_after: None,
        }
    }

    /// Returns a problem for an invalid request.
    pub(crate) fn bad_request(detail: impl Into<String>) -> ProblemDetails {
        ProblemDetails::new(StatusCode::BAD_REQUEST, "usage", detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> ProblemDetails {
        ProblemDetails::new(StatusCode::NOT_FOUND, "not-found", detail)
    }

    pub(crate) fn internal_error(detail: impl Into<String>) -> ProblemDetails {
        ProblemDetails::new(StatusCode::INTERNAL_SERVER_ERROR, "trouble", detail)
    }

    fn with_optional_hint(mut self, hint: Option<&str>) -> ProblemDetails {
        self.hint = hint.map(str::to_owned);
        self
    }

    /// Adds the time after which to retry.
    pub(crate) fn with_retry_after(mut self, wait: Duration) -> ProblemDetails {
        self.retry_after = Some(wait.as_secs());
        self
    }

    /// Adds a suggested action.
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> ProblemDetails {
        self.hint = Some(hint.into());
        self
    }
}

impl From<DaemonCommandError> for ProblemDetails {
    fn from(refused: DaemonCommandError) -> ProblemDetails {
        let (code, kind) = match refused.kind {
            // The command was not executed, so it may be retried.
            _ if refused == DaemonCommandError::from(DispatcherStoppedError) => {
                (StatusCode::SERVICE_UNAVAILABLE, "ending")
            }
            DaemonCommandErrorKind::NotFound => (StatusCode::NOT_FOUND, "not-found"),
            DaemonCommandErrorKind::Busy => (StatusCode::CONFLICT, "busy"),
            DaemonCommandErrorKind::Conflict => (StatusCode::CONFLICT, "key-reused"),
            DaemonCommandErrorKind::NotAllowed => (StatusCode::FORBIDDEN, "not-allowed"),
            DaemonCommandErrorKind::Unconfirmed => (StatusCode::CONFLICT, "unconfirmed"),
            DaemonCommandErrorKind::Usage => (StatusCode::BAD_REQUEST, "usage"),
            DaemonCommandErrorKind::Trouble => (StatusCode::INTERNAL_SERVER_ERROR, "trouble"),
        };
        ProblemDetails { hint: refused.hint, ..ProblemDetails::new(code, kind, refused.message) }
    }
}

impl From<QueryError> for ProblemDetails {
    fn from(error: QueryError) -> ProblemDetails {
        match error.kind() {
            QueryErrorKind::NotFound => {
                ProblemDetails::not_found(error.to_string()).with_optional_hint(error.hint())
            }
            QueryErrorKind::Usage => ProblemDetails::bad_request(error.to_string()),
            QueryErrorKind::Refused => {
                ProblemDetails::new(StatusCode::CONFLICT, "refused", error.to_string())
                    .with_optional_hint(error.hint())
            }
            QueryErrorKind::Internal => {
                let why = error_chain(&error);
                tracing::error!(why, "cannot read the state");
                ProblemDetails::internal_error(why).with_hint("heeler doctor")
            }
        }
    }
}

impl IntoResponse for ProblemDetails {
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
