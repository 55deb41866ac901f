//! The page to read and try the API.

use axum::extract::State;
use heeler_pages::api_docs;

use super::{Page, Shown, Visit};
use crate::api;
use crate::app::App;
use crate::caller::Caller;

pub(super) async fn page(State(app): State<App>, caller: Caller) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    Ok(Page(api_docs::page(&visit.frame, api::description())))
}
