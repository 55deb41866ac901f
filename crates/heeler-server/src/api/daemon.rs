//! The daemon itself.

use axum::Json;
use axum::extract::State;
use heeler_engine::{DaemonCommand, StopMode};
use heeler_query::replies::{ConfigReloadReply, DaemonReply, MessageReply};
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{ApiRoutes, JsonResult, unexpected_reply};
use crate::extractors::{JsonBody, KeyedCaller};
use crate::server_state::SharedServerState;

pub(super) fn routes() -> ApiRoutes {
    ApiRoutes {
        operate: OpenApiRouter::new().routes(routes!(reload)),
        admin: OpenApiRouter::new().routes(routes!(stop)),
        ..ApiRoutes::default()
    }
}

/// Read the config again.
#[utoipa::path(
    post, path = "/daemon/reload", tag = "daemon", responses((status = OK, body = ConfigReloadReply)),
)]
async fn reload(
    State(app): State<SharedServerState>,
    asker: KeyedCaller,
) -> JsonResult<ConfigReloadReply> {
    match app.send_keyed_command(&asker, DaemonCommand::Reload).await?.into() {
        DaemonReply::Reloaded(reloaded) => Ok(Json(reloaded)),
        other => Err(unexpected_reply(&other)),
    }
}

/// How to end the daemon.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StopDaemonBody {
    /// What becomes of the jobs that run.
    jobs: StopJobsPolicy,
}

/// What becomes of the jobs that run when the daemon ends.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
enum StopJobsPolicy {
    /// They are waited for.
    Wait,
    /// They are cancelled.
    Cancel,
    /// They go on; the next daemon takes them over.
    Keep,
}

/// End the daemon. The reply comes when jobs are done or left.
#[utoipa::path(
    post, path = "/daemon/stop", tag = "daemon", request_body = StopDaemonBody,
    responses((status = OK, body = MessageReply)),
)]
async fn stop(
    State(app): State<SharedServerState>,
    asker: KeyedCaller,
    JsonBody(order): JsonBody<StopDaemonBody>,
) -> JsonResult<MessageReply> {
    let stopping = match order.jobs {
        StopJobsPolicy::Wait => StopMode::Wait { timeout: None },
        StopJobsPolicy::Cancel => StopMode::Force,
        StopJobsPolicy::Keep => StopMode::KeepJobs,
    };
    app.request_change(&asker, DaemonCommand::Stop(stopping)).await
}
