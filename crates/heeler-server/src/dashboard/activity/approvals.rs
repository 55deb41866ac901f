//! Dashboard pages of approvals.

use axum::extract::State;
use heeler_model::ApprovalStatus;
use heeler_pages::PageFrame;
use heeler_pages::approvals::{self, ApprovalsView};
use heeler_query::approvals::{ApprovalDetails, ApprovalListQuery, ApprovalPage};
use heeler_query::{FleetReader, QueryError};
use serde::Deserialize;

use crate::caller::RequestCaller;
use crate::dashboard::page_context::{PageContext, PageResult};
use crate::dashboard::page_params::{non_empty, parse_param};
use crate::extractors::{PathParams, QueryParams};
use crate::server_state::SharedServerState;

/// Pending questions shown in full.
const PENDING_SHOWN: usize = 25;

/// Answered questions per page.
const PAGE_SIZE: usize = 30;

/// Filters of the history.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ApprovalsPageParams {
    status: String,
    before: String,
}

/// Data of the page.
struct ApprovalsPageData {
    waiting: Vec<ApprovalDetails>,
    waiting_total: i64,
    past: ApprovalPage,
}

impl ApprovalsPageData {
    fn read(
        records: &FleetReader,
        query: ApprovalListQuery,
    ) -> Result<ApprovalsPageData, QueryError> {
        let status = Some(ApprovalStatus::Pending);
        let open =
            ApprovalListQuery { status, limit: PENDING_SHOWN, ..ApprovalListQuery::default() };
        let open = records.approvals(&open)?;
        let waiting = open.approvals.iter().map(|it| records.approval(&it.id));
        let waiting = waiting.collect::<Result<_, _>>()?;
        let mut past = records.approvals(&query)?;
        // Pending questions are shown above the history already.
        past.approvals.retain(|it| it.status != ApprovalStatus::Pending);
        Ok(ApprovalsPageData { waiting, waiting_total: open.total, past })
    }
}

pub(super) async fn page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
    QueryParams(params): QueryParams<ApprovalsPageParams>,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    let ApprovalsPageParams { status, before } = params;
    let status = parse_param(&status).map_err(|problem| context.page_error(problem))?;
    let query =
        ApprovalListQuery { status, run: None, before: non_empty(&before), limit: PAGE_SIZE };
    let view = ApprovalsView { status, before };
    let render = move |frame: &PageFrame, inbox: &ApprovalsPageData| {
        let ApprovalsPageData { waiting, waiting_total, past } = inbox;
        approvals::page(frame, &view, waiting, *waiting_total, past)
    };
    context.render(move |records| ApprovalsPageData::read(records, query), render).await
}

pub(super) async fn approval_page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
    PathParams(id): PathParams<String>,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    context.render(move |records| records.approval(&id), approvals::approval_page).await
}
