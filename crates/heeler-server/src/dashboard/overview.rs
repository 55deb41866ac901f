//! First page of the dashboard: current activity of the fleet.

use axum::extract::State;
use heeler_engine::{CommandReply, DaemonCommand};
use heeler_pages::{PageFrame, overview};
use heeler_query::FleetReader;
use heeler_query::charts::FleetCharts;
use heeler_query::chat_links::ChatLinkSummary;
use heeler_query::config_change::ConfigChangeSummary;
use heeler_query::overview::FleetOverview;

use super::page_context::{PageContext, PageResult};
use crate::caller::RequestCaller;
use crate::server_state::SharedServerState;

pub(super) async fn page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
) -> PageResult {
    // A page without the change and the links is better than none.
    let (change, chats) = match app.send_command(&caller, DaemonCommand::Status).await {
        Ok(CommandReply::Status(status)) => (status.held_change, status.chats),
        _ => (None, Vec::new()),
    };
    let change = change.as_ref().map(ConfigChangeSummary::from);
    let chats: Vec<ChatLinkSummary> = chats.iter().map(ChatLinkSummary::from).collect();
    let context = PageContext::load(app, &caller).await;
    let (now, zone) = (context.frame.now, context.frame.zone.clone());
    let load = move |records: &FleetReader| {
        Ok((records.overview(now, &zone)?, records.charts(now, &zone)?))
    };
    let render = move |frame: &PageFrame, (now, charts): &(FleetOverview, FleetCharts)| {
        overview::page(frame, now, charts, change.as_ref(), &chats)
    };
    context.render(load, render).await
}
