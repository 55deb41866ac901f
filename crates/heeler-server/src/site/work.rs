//! What the fleet works at: a job, sessions, workflows and their runs, what people are asked.

mod approvals;
mod job;
mod runs;
mod sessions;
mod workflows;

use axum::Router;
use axum::routing::get;
use serde::Deserialize;

use crate::app::App;

/// Returns the routes of these pages.
pub(super) fn router() -> Router<App> {
    Router::new()
        .route("/jobs/{id}", get(job::page))
        .route("/jobs/{id}/rows.html", get(job::rows))
        .route("/sessions", get(sessions::page))
        .route("/sessions/{id}", get(sessions::one))
        .route("/sessions/{id}/messages.html", get(sessions::messages))
        .route("/sessions/{id}/diff", get(sessions::diff))
        .route("/workflows", get(workflows::page))
        .route("/workflows/{name}", get(workflows::one))
        .route("/runs", get(runs::page))
        .route("/runs/{id}", get(runs::one))
        .route("/approvals", get(approvals::page))
        .route("/approvals/{id}", get(approvals::one))
}

/// Where a transcript is looked at: what is older than a row or message, or its end.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    before: Option<u64>,
}
