//! Workflows and their runs.

use axum::extract::State;
use heeler_engine::{Command, WorkflowMode, WorkflowOrder, WorkflowWanted};
use heeler_model::workflow::CourseStatus;
use heeler_model::{TriggerType, WorkflowRunId};
use heeler_query::runs::{RunDetails, RunPage, RunsWanted};
use heeler_query::told::{Done, RunTold};
use heeler_query::words;
use heeler_query::workflows::{WorkflowDetails, WorkflowPage};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::paths::{ById, ByWorkflow};
use super::{PAGE, PAGE_MAX, Reply, Routes, Shown, limit};
use crate::app::App;
use crate::problem::Problem;
use crate::request::{Asked, Asker, Given, Named};

pub(super) fn routes() -> Routes {
    Routes {
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
        ..Routes::default()
    }
}

/// List workflows.
#[utoipa::path(
    get, path = "/workflows", tag = "workflows", responses((status = OK, body = WorkflowPage)),
)]
async fn list(State(app): State<App>) -> Shown<WorkflowPage> {
    app.tell(|records| records.workflows()).await
}

/// Show what a workflow asks for and does.
#[utoipa::path(
    get, path = "/workflows/{workflow}", tag = "workflows", params(ByWorkflow),
    responses((status = OK, body = WorkflowDetails)),
)]
async fn show(State(app): State<App>, Named(it): Named<ByWorkflow>) -> Shown<WorkflowDetails> {
    app.tell(move |records| records.workflow(&it.workflow)).await
}

/// Let runs of a workflow start.
#[utoipa::path(
    post, path = "/workflows/{workflow}/enable", tag = "workflows", params(ByWorkflow),
    responses((status = OK, body = Done)),
)]
async fn enable(State(app): State<App>, asker: Asker, Named(it): Named<ByWorkflow>) -> Reply<Done> {
    app.done(&asker, asked(&asker, WorkflowOrder::Enable { workflow: it.workflow })).await
}

/// Do not let runs of a workflow start.
#[utoipa::path(
    post, path = "/workflows/{workflow}/disable", tag = "workflows", params(ByWorkflow),
    responses((status = OK, body = Done)),
)]
async fn disable(
    State(app): State<App>,
    asker: Asker,
    Named(it): Named<ByWorkflow>,
) -> Reply<Done> {
    app.done(&asker, asked(&asker, WorkflowOrder::Disable { workflow: it.workflow })).await
}

/// A run that is wanted.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RunOrder {
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
    post, path = "/workflows/{workflow}/runs", tag = "workflows", params(ByWorkflow),
    request_body = RunOrder, responses((status = OK, body = RunTold)),
)]
async fn run(
    State(app): State<App>,
    asker: Asker,
    Named(it): Named<ByWorkflow>,
    Given(order): Given<RunOrder>,
) -> Reply<RunTold> {
    let RunOrder { mut inputs, trigger_id, dry_run, replay } = order;
    let mode = match (replay, dry_run) {
        (Some(_), true) => return Err(Problem::usage("dryRun and replay exclude each other")),
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
    let wanted = WorkflowWanted {
        workflow: it.workflow,
        inputs,
        trigger_id,
        trigger: TriggerType::Manual,
        mode,
    };
    app.run(&asker, asked(&asker, WorkflowOrder::Run(wanted))).await
}

fn asked(asker: &Asker, order: WorkflowOrder) -> Command {
    Command::Workflow { order, by: asker.caller.by.clone() }
}

/// Which runs to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RunsParams {
    /// Only those of this workflow.
    workflow: Option<String>,
    /// Only those in this state.
    #[param(value_type = Option<words::RunStatus>)]
    status: Option<CourseStatus>,
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
    get, path = "/runs", tag = "runs", params(RunsParams), responses((status = OK, body = RunPage)),
)]
async fn runs(State(app): State<App>, Asked(asked): Asked<RunsParams>) -> Shown<RunPage> {
    let limit = limit(asked.limit, PAGE, PAGE_MAX)?;
    let RunsParams { workflow, status, since, before, .. } = asked;
    let wanted = RunsWanted { workflow, status, since, before, limit };
    app.tell(move |records| records.runs(&wanted)).await
}

/// Show one run: its phases, what people were asked, what happened.
#[utoipa::path(
    get, path = "/runs/{id}", tag = "runs", params(ById), responses((status = OK, body = RunDetails)),
)]
async fn show_run(State(app): State<App>, Named(ById { id }): Named<ById>) -> Shown<RunDetails> {
    app.tell(move |records| records.run(&id)).await
}

/// How to end a run.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RunCancelOrder {
    /// End its agents at once; else they may finish what they are at.
    #[serde(default)]
    now: bool,
}

/// End a run.
#[utoipa::path(
    post, path = "/runs/{id}/cancel", tag = "runs", params(ById), request_body = RunCancelOrder,
    responses((status = OK, body = RunTold)),
)]
async fn cancel(
    State(app): State<App>,
    asker: Asker,
    Named(ById { id }): Named<ById>,
    Given(order): Given<RunCancelOrder>,
) -> Reply<RunTold> {
    let run = find(&app, id).await?;
    app.run(&asker, asked(&asker, WorkflowOrder::Cancel { run, now: order.now })).await
}

/// How to let a run go on.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RunRetryOrder {
    /// Do this phase anew too, and all that waits for it.
    from: Option<String>,
}

/// Let a run go on that has ended: what has failed is done anew.
#[utoipa::path(
    post, path = "/runs/{id}/retry", tag = "runs", params(ById), request_body = RunRetryOrder,
    responses((status = OK, body = RunTold)),
)]
async fn retry(
    State(app): State<App>,
    asker: Asker,
    Named(ById { id }): Named<ById>,
    Given(order): Given<RunRetryOrder>,
) -> Reply<RunTold> {
    let run = find(&app, id).await?;
    app.run(&asker, asked(&asker, WorkflowOrder::Retry { run, from: order.from })).await
}

/// Finds a run by a beginning of its id.
async fn find(app: &App, id: String) -> Result<WorkflowRunId, Problem> {
    app.read(move |records| Ok(records.reader()?.find_workflow_run(&id)?.head.id)).await
}
