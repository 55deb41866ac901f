//! Dashboard page that edits config files, for viewers with the scope `admin`.

use axum::extract::State;
use heeler_pages::config_editor;

use super::page_context::{HtmlPage, PageContext, PageResult};
use crate::caller::{AccessScope, RequestCaller};
use crate::server_state::SharedServerState;

pub(super) async fn page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    // The page itself shows nothing, but every request of it would be refused.
    caller.require_scope(AccessScope::Admin).map_err(|problem| context.page_error(problem))?;
    Ok(HtmlPage(config_editor::page(&context.frame)))
}
