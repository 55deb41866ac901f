//! Workflows.

use axum::extract::State;
use heeler_pages::workflows;

use crate::app::App;
use crate::caller::Caller;
use crate::request::Named;
use crate::site::{Page, Shown, Visit};

pub(super) async fn page(State(app): State<App>, caller: Caller) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    let found = visit.read(|records| records.workflows()).await?;
    Ok(Page(workflows::page(&visit.frame, &found)))
}

pub(super) async fn one(
    State(app): State<App>,
    caller: Caller,
    Named(name): Named<String>,
) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    let found = visit.read(move |records| records.workflow(&name)).await?;
    Ok(Page(workflows::one(&visit.frame, &found)))
}
