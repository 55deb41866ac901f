//! The dashboard: reads the data of a page and renders it.
//!
//! Every page is a GET that changes nothing; changes go through the API. A page that cannot be
//! shown becomes an error page with the same text as the API's problem.

mod activity;
mod agents;
mod api_docs;
mod config_editor;
mod costs;
mod hosts;
mod jobs;
mod notices;
mod overview;
mod page_context;
mod page_params;
mod schedules;
mod search;
mod settings;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use heeler_pages::assets;

use self::page_context::{NO_STORE, PageContext};
use crate::caller::RequestCaller;
use crate::extractors::PathParams;
use crate::problem::ProblemDetails;
use crate::server_state::SharedServerState;

/// Cache header for files whose URL changes with their content.
const CACHE_FOREVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");

/// Path of the service worker. It is outside of the assets, because a worker serves only the pages below
/// its own path.
pub(crate) const SERVICE_WORKER_PATH: &str = "/worker.js";

pub(crate) fn router() -> Router<SharedServerState> {
    Router::new()
        .route("/", get(overview::page))
        .route("/api/v1/docs", get(api_docs::page))
        .route("/agents", get(agents::page))
        .route("/agents/{name}", get(agents::agent_page))
        .route("/config", get(config_editor::page))
        .route("/costs", get(costs::page))
        .route("/hosts", get(hosts::page))
        .route("/jobs", get(jobs::page))
        .route("/notices", get(notices::page))
        .route("/schedules", get(schedules::page))
        .route("/search", get(search::page))
        .route("/settings", get(settings::page))
        .route("/assets/{version}/{name}", get(serve_asset))
        .route(SERVICE_WORKER_PATH, get(serve_worker))
        .merge(activity::router())
}

/// Replies "not found": to browsers with a page.
pub(crate) async fn not_found(State(app): State<SharedServerState>, request: Request) -> Response {
    let wants_page = request
        .headers()
        .get(ACCEPT)
        .is_some_and(|accept| accept.to_str().is_ok_and(|accept| accept.contains("text/html")));
    let caller = request.extensions().get::<RequestCaller>().filter(|_| wants_page);
    match caller {
        Some(caller) => {
            let context = PageContext::load(app, caller).await;
            context.page_error(ProblemDetails::not_found("there is no such page")).into_response()
        }
        None => ProblemDetails::not_found("there is no such route").into_response(),
    }
}

async fn serve_asset(PathParams((version, name)): PathParams<(String, String)>) -> Response {
    let Some(asset) = assets::find(&name) else {
        return ProblemDetails::not_found("there is no such file").into_response();
    };
    // A page of another version may still be open in a browser: it gets the current file, uncached.
    let cache = if version == assets::version() { CACHE_FOREVER } else { NO_STORE };
    let kind = HeaderValue::from_static(asset.media_type);
    ([(CONTENT_TYPE, kind), (CACHE_CONTROL, cache)], asset.bytes).into_response()
}

/// Serves the service worker. Browsers look for a new version when they wake it.
async fn serve_worker() -> Response {
    serve_asset(PathParams((String::new(), "worker.js".to_owned()))).await
}
