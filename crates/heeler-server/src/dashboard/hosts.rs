//! Dashboard page of hosts.

use axum::extract::State;
use heeler_pages::hosts;

use super::page_context::{PageContext, PageResult};
use crate::caller::RequestCaller;
use crate::server_state::SharedServerState;

pub(super) async fn page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    context.render(|records| records.hosts(), hosts::page).await
}
