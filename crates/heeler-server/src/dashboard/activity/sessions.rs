//! Dashboard pages of sessions, their messages and their file changes.

use axum::extract::State;
use heeler_pages::diff::{self, DiffView};
use heeler_pages::sessions::{self, SessionView, SessionsView};
use heeler_query::messages::{MessageListQuery, MessagePage};
use heeler_query::sessions::SessionListQuery;
use heeler_query::{FleetReader, QueryError};
use jiff::Timestamp;
use serde::Deserialize;

use crate::caller::RequestCaller;
use crate::dashboard::page_context::{HtmlPage, PageContext, PageResult};
use crate::dashboard::page_params::TranscriptPageParams;
use crate::dashboard::page_params::{empty_if_not_found, non_empty, parse_param};
use crate::expensive_reads::ExpensiveReadKind;
use crate::extractors::{PathParams, QueryParams};
use crate::problem::ProblemDetails;
use crate::server_state::SharedServerState;

const PAGE_SIZE: usize = 50;

/// Messages shown at first, and loaded at a time.
const MESSAGES_PER_PAGE: usize = 30;

/// Filters of the session list.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SessionsPageParams {
    agent: String,
    status: String,
    view: String,
    before: String,
}

pub(super) async fn page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
    QueryParams(params): QueryParams<SessionsPageParams>,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    let SessionsPageParams { agent, status, view, before } = params;
    let status = parse_param(&status).map_err(|problem| context.page_error(problem))?;
    let is_tree = view != "list";
    let query = SessionListQuery {
        agent: non_empty(&agent),
        status,
        before: non_empty(&before),
        limit: PAGE_SIZE,
        tree: is_tree,
        ..SessionListQuery::default()
    };
    let now = context.frame.now;
    let agents = context.agent_names().await?;
    let view = SessionsView { agent, status, is_tree, before, agents };
    let load = move |records: &FleetReader| empty_if_not_found(records.sessions(&query, now));
    context.render(load, move |frame, found| sessions::page(frame, &view, found)).await
}

pub(super) async fn session_page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
    PathParams(id): PathParams<String>,
    QueryParams(params): QueryParams<TranscriptPageParams>,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    let now = context.frame.now;
    context
        .render(move |records| load_view(records, &id, params.before, now), sessions::session_page)
        .await
}

fn load_view(
    records: &FleetReader,
    id: &str,
    before: Option<u64>,
    now: Timestamp,
) -> Result<SessionView, QueryError> {
    // Read first: rows written after this are received through the stream.
    let holder = records.session_holder(id)?;
    let session = records.session(id, now)?;
    let messages = load_messages(records, &session.item.id, before)?;
    Ok(SessionView { session, messages, holder })
}

/// Reads messages; `None` if the session has none yet.
fn load_messages(
    records: &FleetReader,
    id: &str,
    before: Option<u64>,
) -> Result<Option<MessagePage>, QueryError> {
    match records.messages(id, MessageListQuery { before, limit: MESSAGES_PER_PAGE }) {
        Ok(page) => Ok(Some(page)),
        Err(QueryError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) async fn messages_fragment(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
    PathParams(id): PathParams<String>,
    QueryParams(params): QueryParams<TranscriptPageParams>,
) -> Result<HtmlPage, ProblemDetails> {
    let context = PageContext::load(app, &caller).await;
    let PageContext { app, frame } = context;
    let load = move |records: &FleetReader| {
        let page = load_messages(records, &id, params.before)?.unwrap_or_else(|| MessagePage {
            session: String::new(),
            messages: Vec::new(),
            total: 0,
            next: None,
        });
        Ok(HtmlPage(sessions::messages_fragment(&frame, &page)))
    };
    app.read(load).await
}

/// Messages between which files are compared; an empty field is not set.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct DiffPageParams {
    from: String,
    to: String,
}

pub(super) async fn diff_page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
    PathParams(id): PathParams<String>,
    QueryParams(params): QueryParams<DiffPageParams>,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    let view = || Ok(DiffView { from: parse_param(&params.from)?, to: parse_param(&params.to)? });
    let view = view().map_err(|problem| context.page_error(problem))?;
    let now = context.frame.now;
    let frame = context.frame.clone();
    let load = move |records: &FleetReader| {
        let found = records.diff_to(&id, view.from, view.to, now)?;
        Ok(HtmlPage(diff::page(&frame, view, &found)))
    };
    let page = context.app.read_expensive(ExpensiveReadKind::Diff, load).await;
    page.map_err(|problem| context.page_error(problem))
}
