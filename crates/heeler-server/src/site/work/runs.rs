//! Runs of workflows.

use axum::extract::State;
use heeler_pages::runs::{self, RunsView};
use heeler_query::runs::{RunDetails, RunsWanted};
use heeler_query::{QueryError, Records};
use serde::Deserialize;

use crate::app::App;
use crate::caller::Caller;
use crate::request::{Asked, Named};
use crate::site::{Shown, Visit, given, word};

/// How many runs a page shows.
const PAGE: usize = 50;

/// Which runs to show.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Params {
    workflow: String,
    status: String,
    before: String,
}

pub(super) async fn page(
    State(app): State<App>,
    caller: Caller,
    Asked(params): Asked<Params>,
) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    let Params { workflow, status, before } = params;
    let status = word(&status).map_err(|problem| visit.no_page(problem))?;
    let wanted = RunsWanted {
        workflow: given(&workflow),
        status,
        since: None,
        before: given(&before),
        limit: PAGE,
    };
    let setup = visit.app.outlook.setup();
    let workflows = setup.loaded.workflows.iter().map(|it| it.workflow.name.to_string());
    let view = RunsView { workflow, status, before, workflows: workflows.collect() };
    let question = move |records: &Records| records.runs(&wanted);
    visit.show(question, move |frame, found| runs::page(frame, &view, found)).await
}

pub(super) async fn one(State(app): State<App>, caller: Caller, Named(id): Named<String>) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    let question = move |records: &Records| -> Result<(RunDetails, Vec<_>), QueryError> {
        Ok((records.run(&id)?, records.run_plan(&id)?))
    };
    visit.show(question, |frame, (run, plan)| runs::one(frame, run, plan.as_slice())).await
}
