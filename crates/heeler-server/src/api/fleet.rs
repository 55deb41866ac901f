//! API routes for the fleet as a whole: status, costs, search, config, health.

use axum::Json;
use axum::extract::State;
use heeler_engine::{CommandReply, DaemonCommand};
use heeler_query::config::EffectiveConfig;
use heeler_query::costs::{CostGrouping, CostReport};
use heeler_query::fleet::{FleetStatus, FleetStatusQuery};
use heeler_query::health::HealthReport;
use heeler_query::search::{FleetSearchQuery, SearchPage};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api_routes::ApiRoutes;
use super::page_limit::check_limit;
use crate::caller::RequestCaller;
use crate::encoded_json::{EncodedJsonResult, JsonResult};
use crate::expensive_reads::ExpensiveReadKind;
use crate::extractors::QueryParams;
use crate::problem::ProblemDetails;
use crate::server_state::SharedServerState;

/// Search results by default.
const HITS_DEFAULT: usize = 50;

/// Most search results.
const HITS_MAX: usize = 500;

pub(super) fn routes() -> ApiRoutes {
    ApiRoutes {
        read: OpenApiRouter::new()
            .routes(routes!(status))
            .routes(routes!(costs))
            .routes(routes!(search))
            .routes(routes!(config))
            .routes(routes!(health))
            .routes(routes!(version))
            .routes(routes!(doctor)),
        ..ApiRoutes::default()
    }
}

/// Filters of the fleet status.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct FleetStatusParams {
    /// Only this agent.
    agent: Option<String>,
}

/// Show the fleet's status.
#[utoipa::path(
    get, path = "/fleet", tag = "fleet", params(FleetStatusParams),
    responses((status = OK, body = FleetStatus)),
)]
async fn status(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
    QueryParams(params): QueryParams<FleetStatusParams>,
) -> EncodedJsonResult<FleetStatus> {
    // Without a reply of the dispatcher the recorded part is still shown, together with the reason.
    let daemon = match app.send_command(&caller, DaemonCommand::Status).await {
        Ok(CommandReply::Status(status)) => Ok(*status),
        Ok(_) => Err("unexpected reply".to_owned()),
        Err(refused) => Err(refused.message),
    };
    let query = FleetStatusQuery { agent: params.agent, daemon: Some(daemon) };
    let now = (app.clock)();
    app.read_json(move |records| records.fleet(&query, now)).await
}

/// Options of the cost report.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct CostSummaryParams {
    /// Grouping; default `agent`.
    by: Option<CostGrouping>,
    /// Only costs since this time; whole days count.
    since: Option<Timestamp>,
}

/// Summarize the fleet's costs.
#[utoipa::path(
    get, path = "/costs", tag = "fleet", params(CostSummaryParams), responses((status = OK, body = CostReport)),
)]
async fn costs(
    State(app): State<SharedServerState>,
    QueryParams(params): QueryParams<CostSummaryParams>,
) -> EncodedJsonResult<CostReport> {
    let by = params.by.unwrap_or(CostGrouping::Agent);
    app.read_json(move |records| records.costs(by, params.since)).await
}

/// Search options.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TranscriptSearchParams {
    /// Text to search for.
    #[param(min_length = 1, max_length = 1000)]
    text: String,
    /// Treat the text as a regular expression.
    #[serde(default)]
    regex: bool,
    /// Ignore case. By default, case is ignored only if the text has no upper-case letters.
    #[serde(default)]
    ignore_case: bool,
    /// Only jobs of this agent.
    agent: Option<String>,
    /// Most results; default 50.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
}

/// Longest search text, in characters.
const TEXT_CHARS_MAX: usize = 1_000;

/// Search all transcripts: those of jobs first, newest files first.
#[utoipa::path(
    get, path = "/search", tag = "fleet", params(TranscriptSearchParams),
    responses((status = OK, body = SearchPage)),
)]
async fn search(
    State(app): State<SharedServerState>,
    QueryParams(params): QueryParams<TranscriptSearchParams>,
) -> JsonResult<SearchPage> {
    let limit = check_limit(params.limit, HITS_DEFAULT, HITS_MAX)?;
    let TranscriptSearchParams { text, regex, ignore_case, agent, .. } = params;
    if text.chars().count() > TEXT_CHARS_MAX {
        return Err(ProblemDetails::bad_request(format!(
            "text has at most {TEXT_CHARS_MAX} characters"
        )));
    }
    let query = FleetSearchQuery { text, regex, ignore_case, agent, native: None, limit };
    Ok(Json(
        app.read_expensive(ExpensiveReadKind::Search, move |records| records.search(&query))
            .await?,
    ))
}

/// Show the effective config; secrets appear by name only.
#[utoipa::path(get, path = "/config", tag = "fleet", responses((status = OK, body = EffectiveConfig)))]
async fn config(State(app): State<SharedServerState>) -> EncodedJsonResult<EffectiveConfig> {
    app.read_json(|records| EffectiveConfig::of(&records.context())).await
}

/// Health of the daemon.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct HealthResponse {
    /// True if `faults` is empty.
    ok: bool,
    /// Functions of the daemon that fail at present, as text.
    faults: Vec<String>,
    /// True while the daemon waits for jobs before it stops.
    stopping: bool,
}

/// Check that the daemon responds and its state is readable.
#[utoipa::path(get, path = "/health", tag = "fleet", responses((status = OK, body = HealthResponse)))]
async fn health(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
) -> JsonResult<HealthResponse> {
    // The dispatcher may still reply although the state is not readable.
    app.read(|records| records.check_readable()).await?;
    match app.send_command(&caller, DaemonCommand::Status).await? {
        CommandReply::Status(status) => {
            let (faults, stopping) = (status.faults, status.stopping);
            Ok(Json(HealthResponse { ok: faults.is_empty(), faults, stopping }))
        }
        other => Err(ProblemDetails::internal_error(format!(
            "unexpected reply of the daemon: {other:?}"
        ))),
    }
}

/// Versions of the daemon and the API.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct VersionResponse {
    /// Version of the daemon.
    version: String,
    /// Version of the API.
    api: u32,
}

/// Show the daemon's version.
#[utoipa::path(get, path = "/version", tag = "fleet", responses((status = OK, body = VersionResponse)))]
async fn version(State(app): State<SharedServerState>) -> JsonResult<VersionResponse> {
    Ok(Json(VersionResponse { version: app.version.clone(), api: 1 }))
}

/// Examine the state directory. Nothing is changed.
#[utoipa::path(get, path = "/doctor", tag = "fleet", responses((status = OK, body = HealthReport)))]
async fn doctor(State(app): State<SharedServerState>) -> JsonResult<HealthReport> {
    Ok(Json(app.examine_state_dir().await?.as_ref().clone()))
}
