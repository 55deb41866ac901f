//! Dashboard page of settings: caller, health, costs, config.

use axum::extract::State;
use heeler_pages::settings::{self, SettingsView};
use heeler_query::config::EffectiveConfig;
use heeler_query::costs::CostGrouping;
use heeler_query::health::HealthReport;
use heeler_query::{FleetReader, QueryError};
use jiff::{SignedDuration, Timestamp};

use super::page_context::{PageContext, PageResult};
use crate::api::browsers;
use crate::caller::RequestCaller;
use crate::server_state::SharedServerState;

/// Period of the cost report.
const COST_PERIOD: SignedDuration = SignedDuration::from_hours(24 * 30);

pub(super) async fn page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    let now = context.frame.now;
    let is_admin = context.frame.can_administer();
    let health =
        context.app.examine_state_dir().await.map_err(|problem| context.page_error(problem))?;
    let owner = browsers::owner_filter(&caller);
    let load =
        move |records: &FleetReader| load_view(records, &health, (is_admin, owner.as_deref()), now);
    context.render(load, settings::page).await
}

fn load_view(
    records: &FleetReader,
    health: &HealthReport,
    (is_admin, owner): (bool, Option<&str>),
    now: Timestamp,
) -> Result<SettingsView, QueryError> {
    // Only administrators may see who else has access.
    let access = match is_admin {
        true => Some((records.tokens(now)?, records.users()?)),
        false => None,
    };
    Ok(SettingsView {
        // A config that cannot be shown must not hide the other settings.
        config: EffectiveConfig::of(&records.context()).map_err(|error| error.to_string()),
        health: health.clone(),
        costs: records.costs(CostGrouping::Agent, now.checked_sub(COST_PERIOD).ok())?,
        access,
        browsers: records.browsers(owner)?,
        state_dir: records.dir().root().to_string(),
    })
}
