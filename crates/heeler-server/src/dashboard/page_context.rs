//! Context of a dashboard request, and its result: a page or an error page.
//!
//! Start at [`PageContext`].

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use heeler_model::AccessScope;
use heeler_pages::{NavigationCounts, PageFrame, ViewerScope, error_page};
use heeler_query::overview::FleetActivity;
use heeler_query::{FleetReader, QueryError};
use maud::Markup;

use crate::caller::RequestCaller;
use crate::problem::ProblemDetails;
use crate::server_state::SharedServerState;

/// Cache header for replies that must not be stored.
pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

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
        let mut response =
            page_response(code, error_page::page(&self.frame, status, &detail, hint.as_deref()));
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
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
        let activity = app.read(move |records| records.activity(now)).await.unwrap_or_default();
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
            counts: navigation_counts(activity),
            now,
            zone: setup.zone.clone(),
            version: app.version.clone(),
        };
        PageContext { app, frame }
    }

    /// Reads the data of the page; a failure becomes an error page.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        load: impl FnOnce(&FleetReader) -> Result<T, QueryError> + Send + 'static,
    ) -> Result<T, PageError> {
        self.app.read(load).await.map_err(|problem| self.page_error(problem))
    }

    /// Reads the data of the page and renders it on a blocking thread: a list or an agent's text
    /// may be long, and other requests must not wait.
    pub(crate) async fn render<T>(
        &self,
        load: impl FnOnce(&FleetReader) -> Result<T, QueryError> + Send + 'static,
        render: impl FnOnce(&PageFrame, &T) -> Markup + Send + 'static,
    ) -> PageResult {
        let frame = self.frame.clone();
        self.read(move |records| Ok(HtmlPage(render(&frame, &load(records)?)))).await
    }

    /// Returns the names of all agents: in the order of the config, then former agents.
    pub(crate) async fn agent_names(&self) -> Result<Vec<String>, PageError> {
        let setup = self.app.fleet_monitor.setup();
        let past = self.read(|records| records.past_agents()).await?;
        let now = setup.loaded.agents.iter().map(|agent| agent.name.to_string());
        Ok(now.chain(past).collect())
    }

    pub(crate) fn page_error(&self, problem: ProblemDetails) -> PageError {
        // Boxed, because a large error would make every result large.
        PageError { frame: Box::new(self.frame.clone()), problem }
    }
}

fn navigation_counts(activity: FleetActivity) -> NavigationCounts {
    let FleetActivity { running, waiting, failed24h, approvals } = activity;
    NavigationCounts { running, waiting, failed: failed24h, approvals }
}
