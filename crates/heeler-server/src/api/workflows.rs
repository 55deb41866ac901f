//! Workflows and their runs.

use axum::extract::State;
use heeler_engine::{DaemonCommand, WorkflowMode, WorkflowOperation, WorkflowRunRequest};
use heeler_model::workflow::WorkflowRunStatus;
use heeler_model::{TriggerType, WorkflowRunId};
use heeler_query::enum_schemas;
use heeler_query::replies::{MessageReply, WorkflowRunReply};
use heeler_query::workflow_runs::{WorkflowRunDetails, WorkflowRunListQuery, WorkflowRunPage};
use heeler_query::workflows::{WorkflowDetails, WorkflowPage};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::path_params::{IdPathParams, WorkflowPathParams};
use super::{
    ApiRoutes, EncodedJsonResult, JsonResult, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, check_limit,
};
use crate::extractors::{JsonBody, KeyedCaller, PathParams, QueryParams};
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

/// Show what a workflow asks for and does.
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

/// Let runs of a workflow start.
#[utoipa::path(
    post, path = "/workflows/{workflow}/enable", tag = "workflows", params(WorkflowPathParams),
    responses((status = OK, body = MessageReply)),
)]
async fn enable(
    State(app): State<SharedServerState>,
    asker: KeyedCaller,
    PathParams(it): PathParams<WorkflowPathParams>,
) -> JsonResult<MessageReply> {
    app.request_change(
        &asker,
        workflow_command(&asker, WorkflowOperation::Enable { workflow: it.workflow }),
    )
    .await
}

/// Do not let runs of a workflow start.
#[utoipa::path(
    post, path = "/workflows/{workflow}/disable", tag = "workflows", params(WorkflowPathParams),
    responses((status = OK, body = MessageReply)),
)]
async fn disable(
    State(app): State<SharedServerState>,
    asker: KeyedCaller,
    PathParams(it): PathParams<WorkflowPathParams>,
) -> JsonResult<MessageReply> {
    app.request_change(
        &asker,
        workflow_command(&asker, WorkflowOperation::Disable { workflow: it.workflow }),
    )
    .await
}

/// A run that is wanted.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StartWorkflowBody {
    /// What the workflow is given; text counts as what the input is.
    #[serde(default)]
    #[schema(value_type = Object)]
    inputs: Map<String, Value>,
    /// What it is about: while a run about the same goes on, that is the answer.
    #[schema(min_length = 1, max_length = 256)]
    trigger_id: Option<String>,
    /// Ask no agent and run no command: what would be said is made up.
    #[serde(default)]
    dry_run: bool,
    /// Say again what was said in this run.
    replay: Option<String>,
}

/// Run a workflow; the reply does not wait for its end.
#[utoipa::path(
    post, path = "/workflows/{workflow}/runs", tag = "workflows", params(WorkflowPathParams),
    request_body = StartWorkflowBody, responses((status = OK, body = WorkflowRunReply)),
)]
async fn run(
    State(app): State<SharedServerState>,
    asker: KeyedCaller,
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
            // What it was given then, unless something else is given now.
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
    let wanted = WorkflowRunRequest {
        workflow: it.workflow,
        inputs,
        trigger_id,
        trigger: TriggerType::Manual,
        mode,
    };
    app.request_workflow_run(&asker, workflow_command(&asker, WorkflowOperation::Run(wanted))).await
}

fn workflow_command(asker: &KeyedCaller, order: WorkflowOperation) -> DaemonCommand {
    DaemonCommand::Workflow { order, by: asker.caller.name.clone() }
}

/// Which runs to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WorkflowRunListParams {
    /// Only those of this workflow.
    workflow: Option<String>,
    /// Only those in this state.
    #[param(value_type = Option<enum_schemas::RunStatus>)]
    status: Option<WorkflowRunStatus>,
    /// Only those that began since then.
    since: Option<Timestamp>,
    /// Those older than this one: `next` of the page before.
    before: Option<String>,
    /// How many; 20 if left out.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
}

/// List runs of workflows, newest first.
#[utoipa::path(
    get, path = "/runs", tag = "runs", params(WorkflowRunListParams), responses((status = OK, body = WorkflowRunPage)),
)]
async fn runs(
    State(app): State<SharedServerState>,
    QueryParams(asked): QueryParams<WorkflowRunListParams>,
) -> EncodedJsonResult<WorkflowRunPage> {
    let limit = check_limit(asked.limit, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)?;
    let WorkflowRunListParams { workflow, status, since, before, .. } = asked;
    let wanted = WorkflowRunListQuery { workflow, status, since, before, limit };
    app.read_json(move |records| records.workflow_runs(&wanted)).await
}

/// Show one run: its phases, what people were asked, what happened.
#[utoipa::path(
    get, path = "/runs/{id}", tag = "runs", params(IdPathParams), responses((status = OK, body = WorkflowRunDetails)),
)]
async fn show_run(
    State(app): State<SharedServerState>,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
) -> EncodedJsonResult<WorkflowRunDetails> {
    app.read_json(move |records| records.workflow_run(&id)).await
}

/// How to end a run.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CancelWorkflowRunBody {
    /// End its agents at once; else they may finish what they are at.
    #[serde(default)]
    now: bool,
}

/// End a run.
#[utoipa::path(
    post, path = "/runs/{id}/cancel", tag = "runs", params(IdPathParams), request_body = CancelWorkflowRunBody,
    responses((status = OK, body = WorkflowRunReply)),
)]
async fn cancel(
    State(app): State<SharedServerState>,
    asker: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    JsonBody(order): JsonBody<CancelWorkflowRunBody>,
) -> JsonResult<WorkflowRunReply> {
    let run = find_workflow_run(&app, id).await?;
    app.request_workflow_run(
        &asker,
        workflow_command(&asker, WorkflowOperation::Cancel { run, now: order.now }),
    )
    .await
}

/// How to let a run go on.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RetryWorkflowRunBody {
    /// Do this phase anew too, and all that waits for it.
    from: Option<String>,
}

/// Let a run go on that has ended: what has failed is done anew.
#[utoipa::path(
    post, path = "/runs/{id}/retry", tag = "runs", params(IdPathParams), request_body = RetryWorkflowRunBody,
    responses((status = OK, body = WorkflowRunReply)),
)]
async fn retry(
    State(app): State<SharedServerState>,
    asker: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    JsonBody(order): JsonBody<RetryWorkflowRunBody>,
) -> JsonResult<WorkflowRunReply> {
    let run = find_workflow_run(&app, id).await?;
    app.request_workflow_run(
        &asker,
        workflow_command(&asker, WorkflowOperation::Retry { run, from: order.from }),
    )
    .await
}

/// Finds a run by a beginning of its id.
async fn find_workflow_run(
    app: &SharedServerState,
    id: String,
) -> Result<WorkflowRunId, ProblemDetails> {
    app.read(move |records| Ok(records.reader()?.find_workflow_run(&id)?.head.id)).await
}
