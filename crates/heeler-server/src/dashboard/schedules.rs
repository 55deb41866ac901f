//! Dashboard page of schedules, as a calendar of two days.

use axum::extract::State;
use heeler_pages::schedules;

use super::page_context::{PageContext, PageResult};
use crate::caller::RequestCaller;
use crate::server_state::SharedServerState;

pub(super) async fn page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    let (now, zone) = (context.frame.now, context.frame.zone.clone());
    context.render(move |records| records.calendar(now, &zone), schedules::page).await
}
