//! Dashboard pages about work: a job, sessions, workflows, workflow runs, approvals.

mod approvals;
mod job;
mod sessions;
mod workflow_runs;
mod workflows;

use axum::Router;
use axum::routing::get;

use crate::server_state::SharedServerState;

pub(super) fn router() -> Router<SharedServerState> {
    Router::new()
        .route("/jobs/{id}", get(job::page))
        .route("/jobs/{id}/compare", get(job::compare_page))
        .route("/jobs/{id}/rows.html", get(job::rows_fragment))
        .route("/sessions", get(sessions::page))
        .route("/sessions/{id}", get(sessions::session_page))
        .route("/sessions/{id}/messages.html", get(sessions::messages_fragment))
        .route("/sessions/{id}/diff", get(sessions::diff_page))
        .route("/workflows", get(workflows::page))
        .route("/workflows/{name}", get(workflows::workflow_page))
        .route("/runs", get(workflow_runs::page))
        .route("/runs/{id}", get(workflow_runs::workflow_run_page))
        .route("/approvals", get(approvals::page))
        .route("/approvals/{id}", get(approvals::approval_page))
}
