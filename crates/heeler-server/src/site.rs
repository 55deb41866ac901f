//! The dashboard: reads what a page shows, and renders it.
//!
//! Every page is a GET that changes nothing; what people do goes to the API. What cannot be shown is
//! a page too, with the same words that the API would use.

mod agents;
mod api_docs;
mod jobs;
mod overview;
mod schedules;
mod search;
mod settings;
mod work;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use heeler_model::Scope;
use heeler_pages::{Allowed, Counts, Frame, assets, problem};
use heeler_query::overview::Pulse;
use heeler_query::{QueryError, Records};
use maud::Markup;

use crate::app::App;
use crate::caller::Caller;
use crate::problem::Problem;
use crate::request::Named;

/// For files whose address changes when they do.
const FOR_EVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");

/// For what is asked for again each time.
const NEVER: HeaderValue = HeaderValue::from_static("no-store");

/// Returns the dashboard's routes.
pub(crate) fn router() -> Router<App> {
    Router::new()
        .route("/", get(overview::page))
        .route("/api/v1/docs", get(api_docs::page))
        .route("/agents", get(agents::page))
        .route("/agents/{name}", get(agents::one))
        .route("/jobs", get(jobs::page))
        .route("/schedules", get(schedules::page))
        .route("/search", get(search::page))
        .route("/settings", get(settings::page))
        .route("/assets/{version}/{name}", get(asset))
        .merge(work::router())
}

/// What a page's handler returns.
pub(crate) type Shown = Result<Page, NoPage>;

/// A page that is shown.
#[derive(Debug)]
pub(crate) struct Page(pub(crate) Markup);

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        page(StatusCode::OK, self.0)
    }
}

/// Why a page is not shown.
#[derive(Debug)]
pub(crate) struct NoPage {
    frame: Box<Frame>,
    problem: Problem,
}

impl IntoResponse for NoPage {
    fn into_response(self) -> Response {
        let Problem { status, detail, hint, retry_after, .. } = self.problem;
        let code = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut shown = page(code, problem::page(&self.frame, status, &detail, hint.as_deref()));
        if let Some(seconds) = retry_after {
            shown.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        shown
    }
}

fn page(code: StatusCode, markup: Markup) -> Response {
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    (code, [(CONTENT_TYPE, kind), (CACHE_CONTROL, NEVER)], markup.into_string()).into_response()
}

/// A request for a page: who asks, and what is around every page.
pub(crate) struct Visit {
    /// What answers.
    pub(crate) app: App,
    /// What every page has around it.
    pub(crate) frame: Frame,
}

impl Visit {
    /// Begins to answer.
    pub(crate) async fn begin(app: App, caller: &Caller) -> Visit {
        let setup = app.outlook.setup();
        let now = (app.now)();
        // A page without its counts is better than none.
        let pulse = app.read(move |records| records.pulse(now)).await.unwrap_or_default();
        let root = setup.loaded.fleets.first();
        let frame = Frame {
            fleet: root.and_then(|fleet| fleet.name.clone()).unwrap_or_else(|| "Heeler".to_owned()),
            who: caller.by.clone(),
            allowed: match caller.scope {
                Scope::Read => Allowed::Read,
                Scope::Operate => Allowed::Operate,
                Scope::Admin => Allowed::Admin,
            },
            csrf: caller.csrf.clone(),
            counts: counts(pulse),
            now,
            zone: setup.zone.clone(),
            version: app.version.clone(),
        };
        Visit { app, frame }
    }

    /// Reads what the page shows; what cannot be read is a page too.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Records) -> Result<T, QueryError> + Send + 'static,
    ) -> Result<T, NoPage> {
        self.app.read(question).await.map_err(|problem| self.no_page(problem))
    }

    /// Reads what the page shows and renders it, where neither keeps anybody else waiting: a list may
    /// be long, and so may what an agent wrote.
    pub(crate) async fn show<T>(
        &self,
        question: impl FnOnce(&Records) -> Result<T, QueryError> + Send + 'static,
        render: impl FnOnce(&Frame, &T) -> Markup + Send + 'static,
    ) -> Shown {
        let frame = self.frame.clone();
        self.read(move |records| Ok(Page(render(&frame, &question(records)?)))).await
    }

    /// Returns the names of all agents: in the config's order, then those that it had once.
    pub(crate) async fn agent_names(&self) -> Result<Vec<String>, NoPage> {
        let setup = self.app.outlook.setup();
        let past = self.read(|records| records.past_agents()).await?;
        let now = setup.loaded.agents.iter().map(|agent| agent.name.to_string());
        Ok(now.chain(past).collect())
    }

    /// Says why there is no page.
    pub(crate) fn no_page(&self, problem: Problem) -> NoPage {
        NoPage { frame: Box::new(self.frame.clone()), problem }
    }
}

fn counts(pulse: Pulse) -> Counts {
    let Pulse { running, waiting, failed24h, approvals } = pulse;
    Counts { running, waiting, failed: failed24h, approvals }
}

/// Of an agent that nobody knows there is nothing, which a list says.
fn or_empty<T: Default>(found: Result<T, QueryError>) -> Result<T, QueryError> {
    match found {
        Err(QueryError::NotFound { .. }) => Ok(T::default()),
        found => found,
    }
}

/// Returns what was given, if anything was.
fn given(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Reads a word of a list of them; nothing is none of them.
fn word<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<Option<T>, Problem> {
    let parsed = given(text).map(|text| text.parse());
    parsed.transpose().map_err(|error: T::Err| Problem::usage(error.to_string()))
}

/// Says that there is no such route: to people with a page.
pub(crate) async fn no_route(State(app): State<App>, request: Request) -> Response {
    let wants_page = request
        .headers()
        .get(ACCEPT)
        .is_some_and(|accept| accept.to_str().is_ok_and(|accept| accept.contains("text/html")));
    let caller = request.extensions().get::<Caller>().filter(|_| wants_page);
    match caller {
        Some(caller) => {
            let visit = Visit::begin(app, caller).await;
            visit.no_page(Problem::not_found("there is no such page")).into_response()
        }
        None => Problem::not_found("there is no such route").into_response(),
    }
}

async fn asset(Named((version, name)): Named<(String, String)>) -> Response {
    let Some(asset) = assets::find(&name) else {
        return Problem::not_found("there is no such file").into_response();
    };
    // A page of another version of the program may still ask: it gets what there is, for once.
    let kept = if version == assets::version() { FOR_EVER } else { NEVER };
    let kind = HeaderValue::from_static(asset.media_type);
    ([(CONTENT_TYPE, kind), (CACHE_CONTROL, kept)], asset.bytes).into_response()
}
