//! The daemon itself.

use axum::Json;
use axum::extract::State;
use heeler_engine::{Command, Stopping};
use heeler_query::told::{Done, Reloaded, Told};
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Reply, Routes, unexpected};
use crate::app::App;
use crate::request::{Asker, Given};

pub(super) fn routes() -> Routes {
    Routes {
        operate: OpenApiRouter::new().routes(routes!(reload)),
        admin: OpenApiRouter::new().routes(routes!(stop)),
        ..Routes::default()
    }
}

/// Read the config again.
#[utoipa::path(
    post, path = "/daemon/reload", tag = "daemon", responses((status = OK, body = Reloaded)),
)]
async fn reload(State(app): State<App>, asker: Asker) -> Reply<Reloaded> {
    match app.order(&asker, Command::Reload).await?.into() {
        Told::Reloaded(reloaded) => Ok(Json(reloaded)),
        other => Err(unexpected(&other)),
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

/// End the daemon. The reply comes when jobs are done or left.
#[utoipa::path(
    post, path = "/daemon/stop", tag = "daemon", request_body = StopOrder,
    responses((status = OK, body = Done)),
)]
async fn stop(State(app): State<App>, asker: Asker, Given(order): Given<StopOrder>) -> Reply<Done> {
    let stopping = match order.jobs {
        JobsAtStop::Wait => Stopping::Wait { timeout: None },
        JobsAtStop::Cancel => Stopping::Force,
        JobsAtStop::Keep => Stopping::KeepJobs,
    };
    app.done(&asker, Command::Stop(stopping)).await
}
