//! Schedules, as a calendar of two days.

use axum::extract::State;
use heeler_pages::schedules;

use super::{Shown, Visit};
use crate::app::App;
use crate::caller::Caller;

pub(super) async fn page(State(app): State<App>, caller: Caller) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    let (now, zone) = (visit.frame.now, visit.frame.zone.clone());
    visit.show(move |records| records.calendar(now, &zone), schedules::page).await
}
