//! The first page: what the fleet does now.

use axum::extract::State;
use heeler_pages::overview;

use super::{Page, Shown, Visit};
use crate::app::App;
use crate::caller::Caller;

pub(super) async fn page(State(app): State<App>, caller: Caller) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    let (now, zone) = (visit.frame.now, visit.frame.zone.clone());
    let (now_data, charts) = visit
        .read(move |records| Ok((records.overview(now, &zone)?, records.charts(now, &zone)?)))
        .await?;
    Ok(Page(overview::page(&visit.frame, &now_data, &charts)))
}
