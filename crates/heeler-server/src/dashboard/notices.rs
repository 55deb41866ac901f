//! Dashboard page of notices.

use axum::extract::State;
use heeler_pages::notices;

use super::page_context::{PageContext, PageResult};
use crate::caller::RequestCaller;
use crate::server_state::SharedServerState;

pub(super) async fn page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    let page = |frame: &heeler_pages::PageFrame, found: &Vec<_>| notices::page(frame, found);
    context.render(|records| records.notices(), page).await
}
