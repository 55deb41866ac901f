//! API routes for schedules.

use crate::replies::{DaemonReply, JobReply, MessageReply, WorkflowRunReply};
use axum::Json;
use axum::extract::State;
use heeler_engine::{CommandReply, DaemonCommand, ScheduleChange};
use heeler_query::schedules::{ScheduleDetails, SchedulePage};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api_routes::ApiRoutes;
use super::daemon_commands::unexpected_reply;
use super::path_params::SchedulePathParams;
use crate::caller::KeyedCaller;
use crate::encoded_json::{EncodedJsonResult, JsonResult};
use crate::extractors::{JsonBody, PathParams, QueryParams};
use crate::server_state::SharedServerState;

pub(super) fn routes() -> ApiRoutes {
    ApiRoutes {
        shared: OpenApiRouter::new().routes(routes!(list)).routes(routes!(show)),
        operate: OpenApiRouter::new()
            .routes(routes!(set))
            .routes(routes!(enable))
            .routes(routes!(disable))
            .routes(routes!(reset))
            .routes(routes!(trigger)),
        ..ApiRoutes::default()
    }
}

/// Filters of the schedule list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ScheduleListParams {
    /// Only schedules of this agent.
    agent: Option<String>,
}

/// List schedules with their times, next due times and manual changes.
#[utoipa::path(
    get, path = "/schedules", tag = "schedules", params(ScheduleListParams),
    responses((status = OK, body = SchedulePage)),
)]
async fn list(
    State(app): State<SharedServerState>,
    QueryParams(params): QueryParams<ScheduleListParams>,
) -> EncodedJsonResult<SchedulePage> {
    app.read_json(move |records| records.schedules(params.agent.as_deref())).await
}

/// Show one schedule, with its recent due times and the reasons for skipped ones.
#[utoipa::path(
    get, path = "/schedules/{agent}/{schedule}", tag = "schedules", params(SchedulePathParams),
    responses((status = OK, body = ScheduleDetails)),
)]
async fn show(
    State(app): State<SharedServerState>,
    PathParams(it): PathParams<SchedulePathParams>,
) -> EncodedJsonResult<ScheduleDetails> {
    app.read_json(move |records| records.schedule(&it.agent, &it.schedule)).await
}

/// New time of a schedule.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SetScheduleBody {
    /// An interval such as `30m`, or a cron expression such as `0 9 * * mon-fri`.
    #[schema(min_length = 1, max_length = 256)]
    when: String,
}

/// Override the time that the config gives a schedule.
#[utoipa::path(
    put, path = "/schedules/{agent}/{schedule}", tag = "schedules", params(SchedulePathParams),
    request_body = SetScheduleBody, responses((status = OK, body = MessageReply)),
)]
async fn set(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(it): PathParams<SchedulePathParams>,
    JsonBody(order): JsonBody<SetScheduleBody>,
) -> JsonResult<MessageReply> {
    request_schedule_change(&app, &caller, it, ScheduleChange::Set { text: order.when }).await
}

/// Enable a schedule, regardless of the config.
#[utoipa::path(
    post, path = "/schedules/{agent}/{schedule}/enable", tag = "schedules", params(SchedulePathParams),
    responses((status = OK, body = MessageReply)),
)]
async fn enable(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(it): PathParams<SchedulePathParams>,
) -> JsonResult<MessageReply> {
    request_schedule_change(&app, &caller, it, ScheduleChange::Enable).await
}

/// Disable a schedule, regardless of the config.
#[utoipa::path(
    post, path = "/schedules/{agent}/{schedule}/disable", tag = "schedules", params(SchedulePathParams),
    responses((status = OK, body = MessageReply)),
)]
async fn disable(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(it): PathParams<SchedulePathParams>,
) -> JsonResult<MessageReply> {
    request_schedule_change(&app, &caller, it, ScheduleChange::Disable).await
}

/// Remove the overrides of a schedule; the config applies again.
#[utoipa::path(
    post, path = "/schedules/{agent}/{schedule}/reset", tag = "schedules", params(SchedulePathParams),
    responses((status = OK, body = MessageReply)),
)]
async fn reset(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(it): PathParams<SchedulePathParams>,
) -> JsonResult<MessageReply> {
    request_schedule_change(&app, &caller, it, ScheduleChange::Reset).await
}

/// Job or workflow run that a schedule started.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum TriggerScheduleResponse {
    /// Job.
    Job(JobReply),
    /// Workflow run.
    Run(WorkflowRunReply),
}

/// Run a schedule now; its due times do not change.
#[utoipa::path(
    post, path = "/schedules/{agent}/{schedule}/trigger", tag = "schedules", params(SchedulePathParams),
    responses((status = OK, body = TriggerScheduleResponse)),
)]
async fn trigger(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(it): PathParams<SchedulePathParams>,
) -> JsonResult<TriggerScheduleResponse> {
    match send_schedule_command(&app, &caller, it, ScheduleChange::Trigger).await?.into() {
        DaemonReply::Job(job) => Ok(Json(TriggerScheduleResponse::Job(job))),
        DaemonReply::Run(run) => Ok(Json(TriggerScheduleResponse::Run(run))),
        other => Err(unexpected_reply(&other)),
    }
}

async fn send_schedule_command(
    app: &SharedServerState,
    caller: &KeyedCaller,
    it: SchedulePathParams,
    change: ScheduleChange,
) -> Result<CommandReply, crate::problem::ProblemDetails> {
    let SchedulePathParams { agent, schedule } = it;
    let by = caller.caller.name.clone();
    Ok(app
        .send_keyed_command(caller, DaemonCommand::Schedule { agent, schedule, change, by })
        .await?)
}

async fn request_schedule_change(
    app: &SharedServerState,
    caller: &KeyedCaller,
    it: SchedulePathParams,
    change: ScheduleChange,
) -> JsonResult<MessageReply> {
    match send_schedule_command(app, caller, it, change).await?.into() {
        DaemonReply::Done(done) => Ok(Json(done)),
        other => Err(unexpected_reply(&other)),
    }
}
