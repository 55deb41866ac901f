//! API routes for the daemon.

use crate::replies::{ConfigReloadReply, DaemonReply, MessageReply};
use axum::Json;
use axum::extract::State;
use heeler_engine::{DaemonCommand, StopMode};
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api_routes::ApiRoutes;
use super::daemon_commands::unexpected_reply;
use crate::caller::KeyedCaller;
use crate::encoded_json::JsonResult;
use crate::extractors::JsonBody;
use crate::server_state::SharedServerState;

pub(super) fn routes() -> ApiRoutes {
    ApiRoutes {
        operate: OpenApiRouter::new().routes(routes!(reload)),
        admin: OpenApiRouter::new().routes(routes!(accept_config)).routes(routes!(stop)),
        ..ApiRoutes::default()
    }
}

/// Reload the config.
#[utoipa::path(
    post, path = "/daemon/reload", tag = "daemon", responses((status = OK, body = ConfigReloadReply)),
)]
async fn reload(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
) -> JsonResult<ConfigReloadReply> {
    match app.send_keyed_command(&caller, DaemonCommand::Reload).await?.into() {
        DaemonReply::Reloaded(reloaded) => Ok(Json(reloaded)),
        other => Err(unexpected_reply(&other)),
    }
}

/// Confirmation of a change of the config.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AcceptConfigBody {
    /// Hash of the change that was shown: `configChange.fingerprint` of the fleet's status.
    fingerprint: String,
}

/// Confirm a change of the config that happened while a job ran, and load it.
#[utoipa::path(
    post, path = "/daemon/accept-config", tag = "daemon", request_body = AcceptConfigBody,
    responses((status = OK, body = ConfigReloadReply)),
)]
async fn accept_config(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    JsonBody(order): JsonBody<AcceptConfigBody>,
) -> JsonResult<ConfigReloadReply> {
    let (fingerprint, by) = (order.fingerprint, caller.caller.name.clone());
    let command = DaemonCommand::AcceptConfig { fingerprint, load: true, by };
    match app.send_keyed_command(&caller, command).await?.into() {
        DaemonReply::Reloaded(reloaded) => Ok(Json(reloaded)),
        other => Err(unexpected_reply(&other)),
    }
}

/// Options for stopping the daemon.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StopDaemonBody {
    /// Treatment of running jobs.
    jobs: StopJobsPolicy,
}

/// Treatment of running jobs when the daemon stops.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
enum StopJobsPolicy {
    /// Wait until they end.
    Wait,
    /// Cancel them.
    Cancel,
    /// Keep them running; the next daemon takes them over.
    Keep,
}

/// Stop the daemon. The reply comes when jobs have ended or been left running.
#[utoipa::path(
    post, path = "/daemon/stop", tag = "daemon", request_body = StopDaemonBody,
    responses((status = OK, body = MessageReply)),
)]
async fn stop(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    JsonBody(order): JsonBody<StopDaemonBody>,
) -> JsonResult<MessageReply> {
    let stopping = match order.jobs {
        StopJobsPolicy::Wait => StopMode::Wait { timeout: None },
        StopJobsPolicy::Cancel => StopMode::Force,
        StopJobsPolicy::Keep => StopMode::KeepJobs,
    };
    app.request_change(&caller, DaemonCommand::Stop(stopping)).await
}
