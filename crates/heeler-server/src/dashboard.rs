//! The dashboard: reads the data of a page and renders it.
//!
//! Every page is a GET that changes nothing; changes go through the API. A page that cannot be
//! shown becomes an error page with the same text as the API's problem.

mod activity;
mod agents;
mod api_docs;
mod jobs;
mod overview;
mod schedules;
mod search;
mod settings;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use heeler_model::AccessScope;
use heeler_pages::{NavigationCounts, PageFrame, ViewerScope, assets, error_page};
use heeler_query::overview::FleetActivity;
use heeler_query::{FleetReader, QueryError};
use maud::Markup;

use crate::caller::RequestCaller;
use crate::extractors::PathParams;
use crate::problem::ProblemDetails;
use crate::server_state::SharedServerState;

/// Cache header for files whose URL changes with their content.
const CACHE_FOREVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");

/// Cache header for replies that must not be stored.
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

pub(crate) fn router() -> Router<SharedServerState> {
    Router::new()
        .route("/", get(overview::page))
        .route("/api/v1/docs", get(api_docs::page))
        .route("/agents", get(agents::page))
        .route("/agents/{name}", get(agents::agent_page))
        .route("/jobs", get(jobs::page))
        .route("/schedules", get(schedules::page))
        .route("/search", get(search::page))
        .route("/settings", get(settings::page))
        .route("/assets/{version}/{name}", get(serve_asset))
        .merge(activity::router())
}

/// Result of a page handler.
pub(crate) type PageResult = Result<HtmlPage, PageError>;

/// Rendered page.
#[derive(Debug)]
pub(crate) struct HtmlPage(pub(crate) Markup);

impl IntoResponse for HtmlPage {
    fn into_response(self) -> Response {
        page_response(StatusCode::OK, self.0)
    }
}

/// Page that reports a problem.
#[derive(Debug)]
pub(crate) struct PageError {
    frame: Box<PageFrame>,
    problem: ProblemDetails,
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let ProblemDetails { status, detail, hint, retry_after, .. } = self.problem;
        let code = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut shown =
            page_response(code, error_page::page(&self.frame, status, &detail, hint.as_deref()));
        if let Some(seconds) = retry_after {
            shown.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        shown
    }
}

fn page_response(code: StatusCode, markup: Markup) -> Response {
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    (code, [(CONTENT_TYPE, kind), (CACHE_CONTROL, NO_STORE)], markup.into_string()).into_response()
}

/// Context of a page request: server state and page frame.
pub(crate) struct PageContext {
    pub(crate) app: SharedServerState,
    /// Data that every page shows around its content.
    pub(crate) frame: PageFrame,
}

impl PageContext {
    /// Builds the context: caller, counts, clock and time zone.
    pub(crate) async fn load(app: SharedServerState, caller: &RequestCaller) -> PageContext {
        let setup = app.fleet_monitor.setup();
        let now = (app.clock)();
        // A page without counts is better than none.
        let pulse = app.read(move |records| records.activity(now)).await.unwrap_or_default();
        let root = setup.loaded.fleets.first();
        let frame = PageFrame {
            fleet: root.and_then(|fleet| fleet.name.clone()).unwrap_or_else(|| "Heeler".to_owned()),
            user_name: caller.name.clone(),
            viewer_scope: match caller.scope {
                AccessScope::Read => ViewerScope::Read,
                AccessScope::Operate => ViewerScope::Operate,
                AccessScope::Admin => ViewerScope::Admin,
            },
            csrf_token: caller.csrf_token.clone(),
            counts: navigation_counts(pulse),
            now,
            zone: setup.zone.clone(),
            version: app.version.clone(),
        };
        PageContext { app, frame }
    }

    /// Reads the data of the page; a failure becomes an error page.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        question: impl FnOnce(&FleetReader) -> Result<T, QueryError> + Send + 'static,
    ) -> Result<T, PageError> {
        self.app.read(question).await.map_err(|problem| self.page_error(problem))
    }

    /// Reads the data of the page and renders it on a blocking thread: a list or an agent's text
    /// may be long, and other requests must not wait.
    pub(crate) async fn render<T>(
        &self,
        question: impl FnOnce(&FleetReader) -> Result<T, QueryError> + Send + 'static,
        render: impl FnOnce(&PageFrame, &T) -> Markup + Send + 'static,
    ) -> PageResult {
        let frame = self.frame.clone();
        self.read(move |records| Ok(HtmlPage(render(&frame, &question(records)?)))).await
    }

    /// Returns the names of all agents: in the order of the config, then former agents.
    pub(crate) async fn agent_names(&self) -> Result<Vec<String>, PageError> {
        let setup = self.app.fleet_monitor.setup();
        let past = self.read(|records| records.past_agents()).await?;
        let now = setup.loaded.agents.iter().map(|agent| agent.name.to_string());
        Ok(now.chain(past).collect())
    }

    pub(crate) fn page_error(&self, problem: ProblemDetails) -> PageError {
        PageError { frame: Box::new(self.frame.clone()), problem }
    }
}

fn navigation_counts(pulse: FleetActivity) -> NavigationCounts {
    let FleetActivity { running, waiting, failed24h, approvals } = pulse;
    NavigationCounts { running, waiting, failed: failed24h, approvals }
}

/// Replaces "not found" by an empty list, for a filter that names an unknown agent.
fn empty_if_not_found<T: Default>(found: Result<T, QueryError>) -> Result<T, QueryError> {
    match found {
        Err(QueryError::NotFound { .. }) => Ok(T::default()),
        found => found,
    }
}

/// Returns the text unless it is empty.
fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Parses a query parameter; empty text is `None`.
fn parse_param<T: std::str::FromStr<Err: std::fmt::Display>>(
    text: &str,
) -> Result<Option<T>, ProblemDetails> {
    let parsed = non_empty(text).map(|text| text.parse());
    parsed.transpose().map_err(|error: T::Err| ProblemDetails::bad_request(error.to_string()))
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
            let visit = PageContext::load(app, caller).await;
            visit.page_error(ProblemDetails::not_found("there is no such page")).into_response()
        }
        None => ProblemDetails::not_found("there is no such route").into_response(),
    }
}

async fn serve_asset(PathParams((version, name)): PathParams<(String, String)>) -> Response {
    let Some(asset) = assets::find(&name) else {
        return ProblemDetails::not_found("there is no such file").into_response();
    };
    // A page of another version may still be open in a browser: it gets the current file, uncached.
    let kept = if version == assets::version() { CACHE_FOREVER } else { NO_STORE };
    let kind = HeaderValue::from_static(asset.media_type);
    ([(CONTENT_TYPE, kind), (CACHE_CONTROL, kept)], asset.bytes).into_response()
}
