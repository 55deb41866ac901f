//! The daemon itself.

use axum::Json;
use axum::extract::State;
use heeler_engine::{Answer, Command, Stopping};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Reply, Routes};
use crate::app::App;
use crate::caller::Caller;
use crate::problem::Problem;
use crate::request::Given;

pub(super) fn routes() -> Routes {
    Routes {
        read: OpenApiRouter::new(),
        operate: OpenApiRouter::new().routes(routes!(reload)),
        admin: OpenApiRouter::new().routes(routes!(stop)),
    }
}

/// What reading the config again changed.
#[derive(Debug, Serialize, ToSchema)]
struct Reloaded {
    /// One line for each change.
    changes: Vec<String>,
}

/// Read the config again.
#[utoipa::path(
    post, path = "/daemon/reload", tag = "daemon",
    responses((status = OK, body = Reloaded), (status = "default", body = Problem)),
)]
async fn reload(State(app): State<App>, caller: Caller) -> Reply<Reloaded> {
    match app.ask(&caller, Command::Reload).await? {
        Answer::Reloaded { changes } => Ok(Json(Reloaded { changes })),
        other => Err(Problem::trouble(format!("the daemon answered something else: {other:?}"))),
    }
}

/// How to end the daemon.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StopOrder {
    /// What becomes of the jobs that run.
    jobs: JobsAtStop,
}

/// What becomes of the jobs that run when the daemon ends.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
enum JobsAtStop {
    /// They are waited for.
    Wait,
    /// They are cancelled.
    Cancel,
    /// They go on; the next daemon takes them over.
    Keep,
}

/// What was done.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Done {
    /// In words.
    pub(super) message: String,
}

/// End the daemon. The reply comes when jobs are done or left.
#[utoipa::path(
    post, path = "/daemon/stop", tag = "daemon", request_body = StopOrder,
    responses((status = OK, body = Done), (status = "default", body = Problem)),
)]
async fn stop(
    State(app): State<App>,
    caller: Caller,
    Given(order): Given<StopOrder>,
) -> Reply<Done> {
    let stopping = match order.jobs {
        JobsAtStop::Wait => Stopping::Wait { timeout: None },
        JobsAtStop::Cancel => Stopping::Force,
        JobsAtStop::Keep => Stopping::KeepJobs,
    };
    match app.ask(&caller, Command::Stop(stopping)).await? {
        Answer::Done { message } => Ok(Json(Done { message })),
        other => Err(Problem::trouble(format!("the daemon answered something else: {other:?}"))),
    }
}
