//! The first page: what the fleet does now.

use axum::extract::State;
use heeler_pages::overview;
use heeler_query::Records;

use super::{Shown, Visit};
use crate::app::App;
use crate::caller::Caller;

pub(super) async fn page(State(app): State<App>, caller: Caller) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    let (now, zone) = (visit.frame.now, visit.frame.zone.clone());
    let question =
        move |records: &Records| Ok((records.overview(now, &zone)?, records.charts(now, &zone)?));
    visit.show(question, |frame, (now, charts)| overview::page(frame, now, charts)).await
}
