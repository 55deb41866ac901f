//! Settings: who you are, health, money, the config.

use axum::extract::State;
use heeler_pages::settings::{self, SettingsView};
use heeler_query::config::ConfigShown;
use heeler_query::costs::CostsBy;
use heeler_query::health::Examined;
use heeler_query::{QueryError, Records};
use jiff::{SignedDuration, Timestamp};

use super::{Shown, Visit};
use crate::app::App;
use crate::caller::Caller;

/// Over how long costs are summed up.
const COSTS_OF: SignedDuration = SignedDuration::from_hours(24 * 30);

pub(super) async fn page(State(app): State<App>, caller: Caller) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    let now = visit.frame.now;
    let is_admin = visit.frame.may_admin();
    let health = visit.app.examined().await.map_err(|problem| visit.no_page(problem))?;
    let question = move |records: &Records| view(records, &health, is_admin, now);
    visit.show(question, settings::page).await
}

fn view(
    records: &Records,
    health: &Examined,
    is_admin: bool,
    now: Timestamp,
) -> Result<SettingsView, QueryError> {
    let access = match is_admin {
        true => Some((records.tokens(now)?, records.people()?)),
        false => None,
    };
    Ok(SettingsView {
        config: ConfigShown::of(&records.known()).map_err(|error| error.to_string()),
        health: health.clone(),
        costs: records.costs(CostsBy::Agent, now.checked_sub(COSTS_OF).ok())?,
        access,
        state_dir: records.dir().root().to_string(),
    })
}
