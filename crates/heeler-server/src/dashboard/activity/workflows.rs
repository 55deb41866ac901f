//! Dashboard pages of workflows.

use axum::extract::State;
use heeler_pages::workflows;

use crate::caller::RequestCaller;
use crate::dashboard::page_context::{PageContext, PageResult};
use crate::extractors::PathParams;
use crate::server_state::SharedServerState;

pub(super) async fn page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    context.render(|records| records.workflows(), workflows::page).await
}

pub(super) async fn workflow_page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
    PathParams(name): PathParams<String>,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    context.render(move |records| records.workflow(&name), workflows::workflow_page).await
}
