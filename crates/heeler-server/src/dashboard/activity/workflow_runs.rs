//! Dashboard pages of workflow runs.

use axum::extract::State;
use heeler_pages::workflow_runs::{self, WorkflowRunsView};
use heeler_query::workflow_runs::{WorkflowRunDetails, WorkflowRunListQuery};
use heeler_query::{FleetReader, QueryError};
use serde::Deserialize;

use crate::caller::RequestCaller;
use crate::dashboard::page_context::{PageContext, PageResult};
use crate::dashboard::page_params::{non_empty, parse_param};
use crate::extractors::{PathParams, QueryParams};
use crate::server_state::SharedServerState;

const PAGE_SIZE: usize = 50;

/// Filters of the workflow run list.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WorkflowRunsPageParams {
    workflow: String,
    status: String,
    repo: String,
    trigger: String,
    before: String,
}

pub(super) async fn page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
    QueryParams(params): QueryParams<WorkflowRunsPageParams>,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    let WorkflowRunsPageParams { workflow, status, repo, trigger, before } = params;
    let status = parse_param(&status).map_err(|problem| context.page_error(problem))?;
    let query = WorkflowRunListQuery {
        workflow: non_empty(&workflow),
        status,
        since: None,
        repo: non_empty(&repo),
        trigger_id: non_empty(&trigger),
        before: non_empty(&before),
        limit: PAGE_SIZE,
    };
    let setup = context.app.fleet_monitor.setup();
    let workflows = setup.loaded.workflows.iter().map(|it| it.workflow.name.to_string());
    let workflows = workflows.collect();
    let view = WorkflowRunsView { workflow, status, repo, trigger, before, workflows };
    let load = move |records: &FleetReader| records.workflow_runs(&query);
    context.render(load, move |frame, found| workflow_runs::page(frame, &view, found)).await
}

pub(super) async fn workflow_run_page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
    PathParams(id): PathParams<String>,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    let load = move |records: &FleetReader| -> Result<(WorkflowRunDetails, Vec<_>), QueryError> {
        Ok((records.workflow_run(&id)?, records.workflow_run_phases(&id)?))
    };
    context
        .render(load, |frame, (run, plan)| {
            workflow_runs::workflow_run_page(frame, run, plan.as_slice())
        })
        .await
}
