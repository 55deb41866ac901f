//! The fleet as a whole: what goes on, what it cost, what its transcripts hold, its config and health.

use axum::Json;
use axum::extract::State;
use heeler_engine::{Answer, Command};
use heeler_query::config::ConfigShown;
use heeler_query::costs::{Costs, CostsBy};
use heeler_query::fleet::{FleetStatus, FleetWanted};
use heeler_query::health::Examined;
use heeler_query::search::{SearchPage, SearchWanted};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Reply, Routes, Shown, limit};
use crate::app::App;
use crate::caller::Caller;
use crate::costly::Cost;
use crate::problem::Problem;
use crate::request::Asked;

/// How many hits a search has if nobody says otherwise.
const HITS: usize = 50;

/// How many it has at most.
const HITS_MAX: usize = 500;

pub(super) fn routes() -> Routes {
    Routes {
        read: OpenApiRouter::new()
            .routes(routes!(status))
            .routes(routes!(costs))
            .routes(routes!(search))
            .routes(routes!(config))
            .routes(routes!(health))
            .routes(routes!(version))
            .routes(routes!(doctor)),
        ..Routes::default()
    }
}

/// What to tell of the fleet.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StatusParams {
    /// Only this agent.
    agent: Option<String>,
}

/// Tell what goes on in the fleet.
#[utoipa::path(
    get, path = "/fleet", tag = "fleet", params(StatusParams),
    responses((status = OK, body = FleetStatus)),
)]
async fn status(
    State(app): State<App>,
    caller: Caller,
    Asked(asked): Asked<StatusParams>,
) -> Shown<FleetStatus> {
    let daemon = match app.ask(&caller, Command::Status).await {
        Ok(Answer::Status(status)) => Ok(*status),
        Ok(_) => Err("it answered something else".to_owned()),
        Err(refused) => Err(refused.message),
    };
    let wanted = FleetWanted { agent: asked.agent, daemon: Some(daemon) };
    let now = (app.now)();
    app.tell(move |records| records.fleet(&wanted, now)).await
}

/// What to sum up.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct CostsParams {
    /// What to sum up by; by agent if left out.
    by: Option<CostsBy>,
    /// Only what was spent since then; whole days count.
    since: Option<Timestamp>,
}

/// Sum up what the fleet has spent.
#[utoipa::path(
    get, path = "/costs", tag = "fleet", params(CostsParams), responses((status = OK, body = Costs)),
)]
async fn costs(State(app): State<App>, Asked(asked): Asked<CostsParams>) -> Shown<Costs> {
    let by = asked.by.unwrap_or(CostsBy::Agent);
    app.tell(move |records| records.costs(by, asked.since)).await
}

/// What to search for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SearchParams {
    /// The text.
    #[param(min_length = 1, max_length = 1000)]
    text: String,
    /// The text is a regular expression.
    #[serde(default)]
    regex: bool,
    /// Upper and lower case are the same; if left out, only where the text has no upper case.
    #[serde(default)]
    ignore_case: bool,
    /// Only this agent's jobs.
    agent: Option<String>,
    /// How many; 50 if left out.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
}

/// The longest text that is searched for.
const TEXT_CHARS_MAX: usize = 1_000;

/// Search all transcripts, those of jobs first, newest files first.
#[utoipa::path(
    get, path = "/search", tag = "fleet", params(SearchParams),
    responses((status = OK, body = SearchPage)),
)]
async fn search(State(app): State<App>, Asked(asked): Asked<SearchParams>) -> Reply<SearchPage> {
    let limit = limit(asked.limit, HITS, HITS_MAX)?;
    let SearchParams { text, regex, ignore_case, agent, .. } = asked;
    if text.chars().count() > TEXT_CHARS_MAX {
        return Err(Problem::usage(format!("text has at most {TEXT_CHARS_MAX} characters")));
    }
    let wanted = SearchWanted { text, regex, ignore_case, agent, native: None, limit };
    Ok(Json(app.read_costly(Cost::Search, move |records| records.search(&wanted)).await?))
}

/// Show the config as it counts; secrets appear by name only.
#[utoipa::path(get, path = "/config", tag = "fleet", responses((status = OK, body = ConfigShown)))]
async fn config(State(app): State<App>) -> Shown<ConfigShown> {
    app.tell(|records| ConfigShown::of(&records.known())).await
}

/// How a daemon is.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Health {
    /// Whether nothing is wrong.
    ok: bool,
    /// What the daemon cannot do at present, in words.
    faults: Vec<String>,
    /// Whether it ends, and waits for jobs before that.
    stopping: bool,
}

/// Tell whether the daemon and its state are well.
#[utoipa::path(get, path = "/health", tag = "fleet", responses((status = OK, body = Health)))]
async fn health(State(app): State<App>, caller: Caller) -> Reply<Health> {
    app.read(|records| records.is_readable()).await?;
    match app.ask(&caller, Command::Status).await? {
        Answer::Status(status) => {
            let (faults, stopping) = (status.faults, status.stopping);
            Ok(Json(Health { ok: faults.is_empty(), faults, stopping }))
        }
        other => Err(Problem::trouble(format!("the daemon answered something else: {other:?}"))),
    }
}

/// What answers.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Version {
    /// The daemon's version.
    version: String,
    /// The version of this API.
    api: u32,
}

/// Tell which version answers.
#[utoipa::path(get, path = "/version", tag = "fleet", responses((status = OK, body = Version)))]
async fn version(State(app): State<App>) -> Reply<Version> {
    Ok(Json(Version { version: app.version.clone(), api: 1 }))
}

/// Examine the state directory; nothing is changed.
#[utoipa::path(get, path = "/doctor", tag = "fleet", responses((status = OK, body = Examined)))]
async fn doctor(State(app): State<App>) -> Reply<Examined> {
    Ok(Json(app.examined().await?.as_ref().clone()))
}
