//! Dashboard page that lists jobs by agent and status.

use axum::extract::State;
use heeler_config::ConfigDuration;
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
    host: String,
    before: String,
}

pub(super) async fn page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
    QueryParams(params): QueryParams<JobsPageParams>,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    let agents = context.agent_names().await?;
    let hosts = context.read(|records| records.hosts()).await?;
    let hosts = hosts.hosts.into_iter().map(|host| host.name).collect();
    let (view, query) =
        build_query(&context, params).map_err(|problem| context.page_error(problem))?;
    let view = JobsView { agents, hosts, ..view };
    let load = move |records: &FleetReader| empty_if_not_found(records.jobs(&query));
    context.render(load, move |frame, found| jobs::page(frame, &view, found)).await
}

fn build_query(
    context: &PageContext,
    params: JobsPageParams,
) -> Result<(JobsView, JobListQuery), ProblemDetails> {
    let JobsPageParams { agent, status, since, host, before } = params;
    let status = parse_param(&status)?;
    let age = parse_param::<ConfigDuration>(&since)?
        .and_then(|age| SignedDuration::try_from(age.get()).ok());
    let query = JobListQuery {
        agent: non_empty(&agent),
        status,
        // An age that reaches beyond all time is no limit.
        since: age.and_then(|age| context.frame.now.checked_sub(age).ok()),
        host: non_empty(&host),
        before: non_empty(&before),
        limit: PAGE_SIZE,
    };
    Ok((JobsView { agent, status, since, host, before, ..JobsView::default() }, query))
}
