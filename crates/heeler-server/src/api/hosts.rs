//! API routes for the machines of a fleet with several hosts.

use crate::replies::MessageReply;
use axum::extract::State;
use heeler_engine::{DaemonCommand, HostDrain};
use heeler_query::hosts::HostList;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api_routes::ApiRoutes;
use super::path_params::HostPathParams;
use crate::caller::KeyedCaller;
use crate::encoded_json::{EncodedJsonResult, JsonResult};
use crate::extractors::PathParams;
use crate::server_state::SharedServerState;

pub(super) fn routes() -> ApiRoutes {
    ApiRoutes {
        read: OpenApiRouter::new().routes(routes!(hosts)),
        operate: OpenApiRouter::new().routes(routes!(drain_host)).routes(routes!(undo_host_drain)),
        ..ApiRoutes::default()
    }
}

/// List the hosts of the fleet. A fleet with one machine has none.
#[utoipa::path(get, path = "/hosts", tag = "fleet", responses((status = OK, body = HostList)))]
async fn hosts(State(app): State<SharedServerState>) -> EncodedJsonResult<HostList> {
    app.read_json(|records| records.hosts()).await
}

/// Drain a host: it gets no new runs; its runs continue.
#[utoipa::path(
    post, path = "/hosts/{host}/drain", tag = "fleet", params(HostPathParams),
    responses((status = OK, body = MessageReply)),
)]
async fn drain_host(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(it): PathParams<HostPathParams>,
) -> JsonResult<MessageReply> {
    request_drain(&app, &caller, it, HostDrain::Begin).await
}

/// Undo the drain of a host: it gets new runs again.
#[utoipa::path(
    post, path = "/hosts/{host}/undo-drain", tag = "fleet", params(HostPathParams),
    responses((status = OK, body = MessageReply)),
)]
async fn undo_host_drain(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(it): PathParams<HostPathParams>,
) -> JsonResult<MessageReply> {
    request_drain(&app, &caller, it, HostDrain::Undo).await
}

async fn request_drain(
    app: &SharedServerState,
    caller: &KeyedCaller,
    it: HostPathParams,
    change: HostDrain,
) -> JsonResult<MessageReply> {
    let by = caller.caller.name.clone();
    app.request_change(caller, DaemonCommand::DrainHost { host: it.host, change, by }).await
}
