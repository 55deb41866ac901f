//! API routes for agents.

use crate::replies::MessageReply;
use axum::extract::State;
use heeler_engine::{AgentChange, DaemonCommand};
use heeler_query::agents::{AgentPage, AgentSummary};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api_routes::ApiRoutes;
use super::path_params::AgentPathParams;
use crate::caller::KeyedCaller;
use crate::encoded_json::{EncodedJsonResult, JsonResult};
use crate::extractors::PathParams;
use crate::server_state::SharedServerState;

pub(super) fn routes() -> ApiRoutes {
    ApiRoutes {
        shared: OpenApiRouter::new().routes(routes!(list)).routes(routes!(show)),
        operate: OpenApiRouter::new()
            .routes(routes!(enable))
            .routes(routes!(disable))
            .routes(routes!(reset))
            .routes(routes!(forget_hosts))
            .routes(routes!(forget_permissions)),
        ..ApiRoutes::default()
    }
}

/// List the agents of the config.
#[utoipa::path(get, path = "/agents", tag = "agents", responses((status = OK, body = AgentPage)))]
async fn list(State(app): State<SharedServerState>) -> EncodedJsonResult<AgentPage> {
    let now = (app.clock)();
    app.read_json(move |records| records.agents(now)).await
}

/// Show one agent.
#[utoipa::path(
    get, path = "/agents/{agent}", tag = "agents", params(AgentPathParams),
    responses((status = OK, body = AgentSummary)),
)]
async fn show(
    State(app): State<SharedServerState>,
    PathParams(it): PathParams<AgentPathParams>,
) -> EncodedJsonResult<AgentSummary> {
    let now = (app.clock)();
    app.read_json(move |records| records.agent(&it.agent, now)).await
}

/// Enable an agent: its jobs start again.
#[utoipa::path(
    post, path = "/agents/{agent}/enable", tag = "agents", params(AgentPathParams),
    responses((status = OK, body = MessageReply)),
)]
async fn enable(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(it): PathParams<AgentPathParams>,
) -> JsonResult<MessageReply> {
    request_agent_change(&app, &caller, it, AgentChange::Enable).await
}

/// Disable an agent: no jobs start; running jobs continue.
#[utoipa::path(
    post, path = "/agents/{agent}/disable", tag = "agents", params(AgentPathParams),
    responses((status = OK, body = MessageReply)),
)]
async fn disable(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(it): PathParams<AgentPathParams>,
) -> JsonResult<MessageReply> {
    request_agent_change(&app, &caller, it, AgentChange::Disable).await
}

/// Clear an agent's failed state after its last job failed.
#[utoipa::path(
    post, path = "/agents/{agent}/reset", tag = "agents", params(AgentPathParams),
    responses((status = OK, body = MessageReply)),
)]
async fn reset(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(it): PathParams<AgentPathParams>,
) -> JsonResult<MessageReply> {
    request_agent_change(&app, &caller, it, AgentChange::Reset).await
}

/// Remove the hosts that people allowed an agent to reach in later runs.
#[utoipa::path(
    post, path = "/agents/{agent}/forget-hosts", tag = "agents", params(AgentPathParams),
    responses((status = OK, body = MessageReply)),
)]
async fn forget_hosts(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(it): PathParams<AgentPathParams>,
) -> JsonResult<MessageReply> {
    request_agent_change(&app, &caller, it, AgentChange::ForgetHosts).await
}

/// Remove the permissions that people gave an agent for all later runs.
#[utoipa::path(
    post, path = "/agents/{agent}/forget-permissions", tag = "agents", params(AgentPathParams),
    responses((status = OK, body = MessageReply)),
)]
async fn forget_permissions(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(it): PathParams<AgentPathParams>,
) -> JsonResult<MessageReply> {
    request_agent_change(&app, &caller, it, AgentChange::ForgetPermissions).await
}

async fn request_agent_change(
    app: &SharedServerState,
    caller: &KeyedCaller,
    it: AgentPathParams,
    change: AgentChange,
) -> JsonResult<MessageReply> {
    let by = caller.caller.name.clone();
    app.request_change(caller, DaemonCommand::Agent { agent: it.agent, change, by }).await
}
