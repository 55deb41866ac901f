//! Dashboard pages of a job and of a comparison with another job, and rows of its transcript.

use axum::extract::State;
use heeler_model::ApprovalStatus;
use heeler_pages::job::{self, JobView};
use heeler_pages::job_compare::{self, JobComparisonView};
use heeler_query::approvals::{ApprovalDetails, ApprovalListQuery};
use heeler_query::jobs::JobListQuery;
use heeler_query::rows::RowListQuery;
use heeler_query::{FleetReader, QueryError};
use serde::Deserialize;

use crate::caller::RequestCaller;
use crate::dashboard::page_context::{HtmlPage, PageContext, PageResult};
use crate::dashboard::page_params::{TranscriptPageParams, empty_if_not_found};
use crate::expensive_reads::ExpensiveReadKind;
use crate::extractors::{PathParams, QueryParams};
use crate::problem::ProblemDetails;
use crate::server_state::SharedServerState;

/// Rows shown at first, and loaded at a time.
const ROWS_PER_PAGE: u64 = 60;

/// Jobs of the agent that a comparison offers.
const CANDIDATES_MAX: usize = 20;

/// Newest approvals that are searched for those of a job.
const APPROVALS_SEARCHED: usize = 100;

pub(super) async fn page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
    PathParams(id): PathParams<String>,
    QueryParams(params): QueryParams<TranscriptPageParams>,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    context.render(move |records| load_view(records, &id, params.before), job::page).await
}

fn load_view(records: &FleetReader, id: &str, before: Option<u64>) -> Result<JobView, QueryError> {
    let job = records.job(id)?;
    // Read after the job: rows written meanwhile are included, and the stream continues from there.
    let query = RowListQuery { before, limit: ROWS_PER_PAGE, ..RowListQuery::default() };
    let rows = records.rows(&job.item.id, query)?;
    // After the end of a job no agent waits for an answer.
    let asks = match job.item.status.is_final() {
        true => Vec::new(),
        false => pending_approvals(records, &job.item.id)?,
    };
    Ok(JobView { job, rows, pending_approvals: asks })
}

fn pending_approvals(records: &FleetReader, job: &str) -> Result<Vec<ApprovalDetails>, QueryError> {
    let status = Some(ApprovalStatus::Pending);
    let query =
        ApprovalListQuery { status, limit: APPROVALS_SEARCHED, ..ApprovalListQuery::default() };
    let approvals = records.approvals(&query)?.approvals.into_iter();
    let of_job = approvals.filter(|it| it.job_id.as_deref() == Some(job));
    of_job.map(|it| records.approval(&it.id)).collect()
}

/// Range of rows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JobRowsFragmentParams {
    before: Option<u64>,
    limit: Option<u64>,
}

pub(super) async fn rows_fragment(
    State(app): State<SharedServerState>,
    PathParams(id): PathParams<String>,
    QueryParams(params): QueryParams<JobRowsFragmentParams>,
) -> Result<HtmlPage, ProblemDetails> {
    let limit = params.limit.unwrap_or(ROWS_PER_PAGE).clamp(1, ROWS_PER_PAGE);
    let query = RowListQuery { before: params.before, after: None, limit };
    app.read(move |records| Ok(HtmlPage(job::rows_fragment(&records.rows(&id, query)?)))).await
}

/// The other job of a comparison.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct JobComparisonParams {
    with: String,
}

pub(super) async fn compare_page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
    PathParams(id): PathParams<String>,
    QueryParams(params): QueryParams<JobComparisonParams>,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    let frame = context.frame.clone();
    let load = move |records: &FleetReader| {
        let view = load_comparison(records, &id, params.with.trim())?;
        Ok(HtmlPage(job_compare::page(&frame, &view)))
    };
    // It reads long transcripts, so only a few run at once.
    let page = context.app.read_expensive(ExpensiveReadKind::Search, load).await;
    page.map_err(|problem| context.page_error(problem))
}

fn load_comparison(
    records: &FleetReader,
    id: &str,
    with: &str,
) -> Result<JobComparisonView, QueryError> {
    let job = records.compared_job(id)?;
    let other = (!with.is_empty()).then(|| records.compared_job(with)).transpose()?;
    let agent = Some(job.job.item.agent.clone());
    let query = JobListQuery { agent, limit: CANDIDATES_MAX, ..JobListQuery::default() };
    // The agent may have been removed from the config.
    let candidates = empty_if_not_found(records.jobs(&query))?.jobs;
    Ok(JobComparisonView { job, other, candidates })
}
