//! Dashboard page that lists jobs by agent and status.

use axum::extract::State;
use heeler_model::config::ConfigDuration;
use heeler_pages::jobs::{self, JobsView};
use heeler_query::FleetReader;
use heeler_query::jobs::JobListQuery;
use jiff::SignedDuration;
use serde::Deserialize;

use super::page_context::{PageContext, PageResult};
use super::page_params::{empty_if_not_found, non_empty, parse_param};
use crate::caller::RequestCaller;
use crate::extractors::QueryParams;
use crate::problem::ProblemDetails;
use crate::server_state::SharedServerState;

const PAGE_SIZE: usize = 50;

/// Filters of the job list; an invalid value is reported on the page.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct JobsPageParams {
    agent: String,
    status: String,
    since: String,
    before: String,
}

pub(super) async fn page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
    QueryParams(params): QueryParams<JobsPageParams>,
) -> PageResult {
    let visit = PageContext::load(app, &caller).await;
    let agents = visit.agent_names().await?;
    let (view, wanted) =
        build_query(&visit, params, agents).map_err(|problem| visit.page_error(problem))?;
    let question = move |records: &FleetReader| empty_if_not_found(records.jobs(&wanted));
    visit.render(question, move |frame, found| jobs::page(frame, &view, found)).await
}

fn build_query(
    visit: &PageContext,
    params: JobsPageParams,
    agents: Vec<String>,
) -> Result<(JobsView, JobListQuery), ProblemDetails> {
    let JobsPageParams { agent, status, since, before } = params;
    let status = parse_param(&status)?;
    let age = parse_param::<ConfigDuration>(&since)?
        .and_then(|age| SignedDuration::try_from(age.get()).ok());
    let wanted = JobListQuery {
        agent: non_empty(&agent),
        status,
        since: age.and_then(|age| visit.frame.now.checked_sub(age).ok()),
        before: non_empty(&before),
        limit: PAGE_SIZE,
    };
    Ok((JobsView { agent, status, since, before, agents }, wanted))
}
