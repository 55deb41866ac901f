//! What people are asked.

use axum::extract::State;
use heeler_model::ApprovalStatus;
use heeler_pages::Frame;
use heeler_pages::approvals::{self, ApprovalsView};
use heeler_query::approvals::{ApprovalDetails, ApprovalPage, ApprovalsWanted};
use heeler_query::{QueryError, Records};
use serde::Deserialize;

use crate::app::App;
use crate::caller::Caller;
use crate::request::{Asked, Named};
use crate::site::{Shown, Visit, given, word};

/// How many questions that wait are shown whole.
const WAITING: usize = 25;

/// How many that were answered a page shows.
const PAGE: usize = 30;

/// What of the history to show.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Params {
    status: String,
    before: String,
}

/// What the page shows.
struct Inbox {
    waiting: Vec<ApprovalDetails>,
    waiting_total: i64,
    past: ApprovalPage,
}

impl Inbox {
    fn read(records: &Records, wanted: ApprovalsWanted) -> Result<Inbox, QueryError> {
        let status = Some(ApprovalStatus::Pending);
        let open = ApprovalsWanted { status, limit: WAITING, ..ApprovalsWanted::default() };
        let open = records.approvals(&open)?;
        let waiting = open.approvals.iter().map(|it| records.approval(&it.id));
        let waiting = waiting.collect::<Result<_, _>>()?;
        let mut past = records.approvals(&wanted)?;
        past.approvals.retain(|it| it.status != ApprovalStatus::Pending);
        Ok(Inbox { waiting, waiting_total: open.total, past })
    }
}

pub(super) async fn page(
    State(app): State<App>,
    caller: Caller,
    Asked(params): Asked<Params>,
) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    let Params { status, before } = params;
    let status = word(&status).map_err(|problem| visit.no_page(problem))?;
    let wanted = ApprovalsWanted { status, run: None, before: given(&before), limit: PAGE };
    let view = ApprovalsView { status, before };
    let render = move |frame: &Frame, inbox: &Inbox| {
        let Inbox { waiting, waiting_total, past } = inbox;
        approvals::page(frame, &view, waiting, *waiting_total, past)
    };
    visit.show(move |records| Inbox::read(records, wanted), render).await
}

pub(super) async fn one(State(app): State<App>, caller: Caller, Named(id): Named<String>) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    visit.show(move |records| records.approval(&id), approvals::one).await
}
