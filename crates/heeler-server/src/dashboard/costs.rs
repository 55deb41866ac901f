//! Dashboard page of costs.

use axum::extract::State;
use heeler_engine::{CommandReply, DaemonCommand};
use heeler_pages::costs::{self, CostsView};
use heeler_query::FleetReader;
use heeler_query::costs::CostGrouping;
use heeler_query::fleet::BudgetSummary;
use jiff::SignedDuration;

use super::page_context::{PageContext, PageResult};
use crate::caller::RequestCaller;
use crate::server_state::SharedServerState;

/// Days of the page.
const DAYS: usize = 30;

pub(super) async fn page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
) -> PageResult {
    let budgets = match app.send_command(&caller, DaemonCommand::Status).await {
        Ok(CommandReply::Status(status)) => {
            Ok(status.budgets.iter().map(BudgetSummary::from).collect())
        }
        Ok(_) => Err("unexpected reply".to_owned()),
        // A page without budgets is better than none.
        Err(refused) => Err(refused.message),
    };
    let context = PageContext::load(app, &caller).await;
    let (now, zone) = (context.frame.now, context.frame.zone.clone());
    let load = move |records: &FleetReader| {
        // The current day is one of them.
        let since = now.checked_sub(SignedDuration::from_hours(24 * (DAYS as i64 - 1))).ok();
        Ok(CostsView {
            days: records.fleet_daily_costs(DAYS, now, &zone)?,
            agents: records.costs(CostGrouping::Agent, since)?,
            models: records.costs(CostGrouping::Model, since)?,
            budgets,
        })
    };
    context.render(load, costs::page).await
}
