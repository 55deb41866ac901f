//! Dashboard page that documents the API and sends test requests.

use axum::extract::State;
use heeler_pages::api_docs;

use super::page_context::{HtmlPage, PageContext, PageResult};
use crate::api;
use crate::caller::RequestCaller;
use crate::server_state::SharedServerState;

pub(super) async fn page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    Ok(HtmlPage(api_docs::page(&context.frame, api::openapi_json())))
}
