//! First page of the dashboard: current activity of the fleet.

use axum::extract::State;
use heeler_pages::overview;
use heeler_query::FleetReader;

use super::page_context::{PageContext, PageResult};
use crate::caller::RequestCaller;
use crate::server_state::SharedServerState;

pub(super) async fn page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    let (now, zone) = (context.frame.now, context.frame.zone.clone());
    let load = move |records: &FleetReader| {
        Ok((records.overview(now, &zone)?, records.charts(now, &zone)?))
    };
    context.render(load, |frame, (now, charts)| overview::page(frame, now, charts)).await
}
