//! A job, and rows of its transcript.

use axum::extract::State;
use heeler_model::ApprovalStatus;
use heeler_pages::job::{self, JobView};
use heeler_query::approvals::{ApprovalDetails, ApprovalsWanted};
use heeler_query::rows::RowsWanted;
use heeler_query::{QueryError, Records};
use serde::Deserialize;

use crate::app::App;
use crate::caller::Caller;
use crate::problem::Problem;
use crate::request::{Asked, Named};
use crate::site::{Page, Shown, Visit};

/// How many rows a page begins with, and how many older ones come at once.
const ROWS: u64 = 60;

/// How many of the newest questions are looked through for those of a job.
const ASKS: usize = 100;

pub(super) async fn page(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<String>,
) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    visit.show(move |records| view(records, &id), job::page).await
}

fn view(records: &Records, id: &str) -> Result<JobView, QueryError> {
    let job = records.job(id)?;
    // Behind the job: rows that come meanwhile are shown, and the rest is followed from there.
    let wanted = RowsWanted { limit: ROWS, ..RowsWanted::default() };
    let rows = records.rows(&job.item.id, wanted)?;
    let asks = match job.item.status.is_final() {
        true => Vec::new(),
        false => asks(records, &job.item.id)?,
    };
    Ok(JobView { job, rows, asks })
}

fn asks(records: &Records, job: &str) -> Result<Vec<ApprovalDetails>, QueryError> {
    let status = Some(ApprovalStatus::Pending);
    let wanted = ApprovalsWanted { status, limit: ASKS, ..ApprovalsWanted::default() };
    let asked = records.approvals(&wanted)?.approvals.into_iter();
    let own = asked.filter(|it| it.job_id.as_deref() == Some(job));
    own.map(|it| records.approval(&it.id)).collect()
}

/// Which rows are wanted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RowsParams {
    before: Option<u64>,
    limit: Option<u64>,
}

pub(super) async fn rows(
    State(app): State<App>,
    Named(id): Named<String>,
    Asked(asked): Asked<RowsParams>,
) -> Result<Page, Problem> {
    let limit = asked.limit.unwrap_or(ROWS).clamp(1, ROWS);
    let wanted = RowsWanted { before: asked.before, after: None, limit };
    app.read(move |records| Ok(Page(job::page_of(&records.rows(&id, wanted)?)))).await
}
