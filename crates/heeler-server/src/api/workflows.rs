//! API routes for workflows and workflow runs.

use crate::replies::{MessageReply, WorkflowRunReply};
use axum::extract::State;
use heeler_engine::{DaemonCommand, WorkflowMode, WorkflowOperation, WorkflowRunRequest};
use heeler_model::workflow::WorkflowRunStatus;
use heeler_model::{TriggerType, WorkflowRunId};
use heeler_query::enum_schemas;
use heeler_query::workflow_runs::{WorkflowRunDetails, WorkflowRunListQuery, WorkflowRunPage};
use heeler_query::workflows::{WorkflowDetails, WorkflowPage};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api_routes::ApiRoutes;
use super::page_limit::{PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, check_limit};
use super::path_params::{IdPathParams, WorkflowPathParams};
use crate::caller::KeyedCaller;
use crate::encoded_json::{EncodedJsonResult, JsonResult};
use crate::extractors::{JsonBody, PathParams, QueryParams};
use crate::problem::ProblemDetails;
use crate::server_state::SharedServerState;

pub(super) fn routes() -> ApiRoutes {
    ApiRoutes {
        shared: OpenApiRouter::new()
            .routes(routes!(list))
            .routes(routes!(show))
            .routes(routes!(runs))
            .routes(routes!(show_run)),
        operate: OpenApiRouter::new()
            .routes(routes!(run))
            .routes(routes!(enable))
            .routes(routes!(disable))
            .routes(routes!(reset))
            .routes(routes!(cancel))
            .routes(routes!(retry)),
        ..ApiRoutes::default()
    }
}

/// List workflows.
#[utoipa::path(
    get, path = "/workflows", tag = "workflows", responses((status = OK, body = WorkflowPage)),
)]
async fn list(State(app): State<SharedServerState>) -> EncodedJsonResult<WorkflowPage> {
    app.read_json(|records| records.workflows()).await
}

/// Show the inputs and phases of a workflow.
#[utoipa::path(
    get, path = "/workflows/{workflow}", tag = "workflows", params(WorkflowPathParams),
    responses((status = OK, body = WorkflowDetails)),
)]
async fn show(
    State(app): State<SharedServerState>,
    PathParams(it): PathParams<WorkflowPathParams>,
) -> EncodedJsonResult<WorkflowDetails> {
    app.read_json(move |records| records.workflow(&it.workflow)).await
}

/// Enable a workflow: runs may start.
#[utoipa::path(
    post, path = "/workflows/{workflow}/enable", tag = "workflows", params(WorkflowPathParams),
    responses((status = OK, body = MessageReply)),
)]
async fn enable(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(it): PathParams<WorkflowPathParams>,
) -> JsonResult<MessageReply> {
    app.request_change(
        &caller,
        workflow_command(&caller, WorkflowOperation::Enable { workflow: it.workflow }),
    )
    .await
}

/// Disable a workflow: no runs start.
#[utoipa::path(
    post, path = "/workflows/{workflow}/disable", tag = "workflows", params(WorkflowPathParams),
    responses((status = OK, body = MessageReply)),
)]
async fn disable(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(it): PathParams<WorkflowPathParams>,
) -> JsonResult<MessageReply> {
    app.request_change(
        &caller,
        workflow_command(&caller, WorkflowOperation::Disable { workflow: it.workflow }),
    )
    .await
}

/// Remove the setting of a workflow that enable or disable made.
#[utoipa::path(
    post, path = "/workflows/{workflow}/reset", tag = "workflows", params(WorkflowPathParams),
    responses((status = OK, body = MessageReply)),
)]
async fn reset(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(it): PathParams<WorkflowPathParams>,
) -> JsonResult<MessageReply> {
    app.request_change(
        &caller,
        workflow_command(&caller, WorkflowOperation::Reset { workflow: it.workflow }),
    )
    .await
}

/// Workflow run to start.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StartWorkflowBody {
    /// Inputs of the workflow. Text is converted to the type of the input.
    #[serde(default)]
    #[schema(value_type = Object)]
    inputs: Map<String, Value>,
    /// Identifies the subject of the run. If a run with the same ID is in progress, that run is
    /// returned.
    #[schema(min_length = 1, max_length = 256)]
    trigger_id: Option<String>,
    /// Call no agents and run no commands; their results are simulated.
    #[serde(default)]
    dry_run: bool,
    /// Workflow run from which recorded results are replayed.
    replay: Option<String>,
}

/// Start a workflow run. The reply does not wait for its end.
#[utoipa::path(
    post, path = "/workflows/{workflow}/runs", tag = "workflows", params(WorkflowPathParams),
    request_body = StartWorkflowBody, responses((status = OK, body = WorkflowRunReply)),
)]
async fn run(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(it): PathParams<WorkflowPathParams>,
    JsonBody(order): JsonBody<StartWorkflowBody>,
) -> JsonResult<WorkflowRunReply> {
    let StartWorkflowBody { mut inputs, trigger_id, dry_run, replay } = order;
    let mode = match (replay, dry_run) {
        (Some(_), true) => {
            return Err(ProblemDetails::bad_request("dryRun and replay exclude each other"));
        }
        (Some(id), false) => {
            let row =
                app.read(move |records| Ok(records.reader()?.find_workflow_run(&id)?)).await?;
            // The inputs of the original run apply unless they are overridden.
            if let Value::Object(before) = row.context {
                for (key, value) in before {
                    inputs.entry(key).or_insert(value);
                }
            }
            WorkflowMode::Replay { run: row.head.id }
        }
        (None, true) => WorkflowMode::Dry,
        (None, false) => WorkflowMode::Real,
    };
    let request = WorkflowRunRequest {
        workflow: it.workflow,
        inputs,
        trigger_id,
        trigger: TriggerType::Api,
        mode,
        subject: None,
    };
    app.request_workflow_run(&caller, workflow_command(&caller, WorkflowOperation::Run(request)))
        .await
}

fn workflow_command(caller: &KeyedCaller, order: WorkflowOperation) -> DaemonCommand {
    DaemonCommand::Workflow { order, by: caller.caller.name.clone() }
}

/// Filters of the workflow run list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WorkflowRunListParams {
    /// Only runs of this workflow.
    workflow: Option<String>,
    /// Only runs with this status.
    #[param(value_type = Option<enum_schemas::RunStatus>)]
    status: Option<WorkflowRunStatus>,
    /// Only runs started since this time.
    since: Option<Timestamp>,
    /// Only runs about this repository: `owner/name`.
    repo: Option<String>,
    /// Only runs with this trigger ID, such as `owner/name#7`.
    trigger_id: Option<String>,
    /// Only runs older than this one: `next` of the previous page.
    before: Option<String>,
    /// Runs per page; default 20.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
}

/// List workflow runs, newest first.
#[utoipa::path(
    get, path = "/runs", tag = "runs", params(WorkflowRunListParams), responses((status = OK, body = WorkflowRunPage)),
)]
async fn runs(
    State(app): State<SharedServerState>,
    QueryParams(params): QueryParams<WorkflowRunListParams>,
) -> EncodedJsonResult<WorkflowRunPage> {
    let limit = check_limit(params.limit, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)?;
    let WorkflowRunListParams { workflow, status, since, before, repo, trigger_id, .. } = params;
    let query = WorkflowRunListQuery { workflow, status, since, before, repo, trigger_id, limit };
    app.read_json(move |records| records.workflow_runs(&query)).await
}

/// Show one workflow run: phases, approvals and events.
#[utoipa::path(
    get, path = "/runs/{id}", tag = "runs", params(IdPathParams), responses((status = OK, body = WorkflowRunDetails)),
)]
async fn show_run(
    State(app): State<SharedServerState>,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
) -> EncodedJsonResult<WorkflowRunDetails> {
    app.read_json(move |records| records.workflow_run(&id)).await
}

/// Options for cancelling a workflow run.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CancelWorkflowRunBody {
    /// Stop agents immediately; by default they may finish their current step.
    #[serde(default)]
    now: bool,
}

/// Cancel a workflow run.
#[utoipa::path(
    post, path = "/runs/{id}/cancel", tag = "runs", params(IdPathParams), request_body = CancelWorkflowRunBody,
    responses((status = OK, body = WorkflowRunReply)),
)]
async fn cancel(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    JsonBody(order): JsonBody<CancelWorkflowRunBody>,
) -> JsonResult<WorkflowRunReply> {
    let run = find_workflow_run(&app, id).await?;
    app.request_workflow_run(
        &caller,
        workflow_command(&caller, WorkflowOperation::Cancel { run, now: order.now }),
    )
    .await
}

/// Options for retrying a workflow run.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RetryWorkflowRunBody {
    /// Also repeat this phase and all phases that depend on it.
    from: Option<String>,
}

/// Continue a workflow run that has ended: failed phases are repeated.
#[utoipa::path(
    post, path = "/runs/{id}/retry", tag = "runs", params(IdPathParams), request_body = RetryWorkflowRunBody,
    responses((status = OK, body = WorkflowRunReply)),
)]
async fn retry(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    JsonBody(order): JsonBody<RetryWorkflowRunBody>,
) -> JsonResult<WorkflowRunReply> {
    let run = find_workflow_run(&app, id).await?;
    app.request_workflow_run(
        &caller,
        workflow_command(&caller, WorkflowOperation::Retry { run, from: order.from }),
    )
    .await
}

/// Finds a workflow run by a unique prefix of its ID.
async fn find_workflow_run(
    app: &SharedServerState,
    id: String,
) -> Result<WorkflowRunId, ProblemDetails> {
    app.read(move |records| Ok(records.reader()?.find_workflow_run(&id)?.head.id)).await
}
