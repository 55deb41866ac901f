//! Workflows.

use axum::extract::State;
use heeler_pages::workflows;

use crate::app::App;
use crate::caller::Caller;
use crate::request::Named;
use crate::site::{Shown, Visit};

pub(super) async fn page(State(app): State<App>, caller: Caller) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    visit.show(|records| records.workflows(), workflows::page).await
}

pub(super) async fn one(
    State(app): State<App>,
    caller: Caller,
    Named(name): Named<String>,
) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    visit.show(move |records| records.workflow(&name), workflows::one).await
}
