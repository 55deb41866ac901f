//! Sessions, one of them, its messages, and what changed in its files.

use axum::extract::State;
use heeler_pages::diff::{self, DiffView};
use heeler_pages::sessions::{self, SessionView, SessionsView};
use heeler_query::messages::{MessagePage, MessagesWanted};
use heeler_query::sessions::SessionsWanted;
use heeler_query::{QueryError, Records};
use jiff::Timestamp;
use serde::Deserialize;

use super::Place;
use crate::app::App;
use crate::caller::Caller;
use crate::costly::Cost;
use crate::problem::Problem;
use crate::request::{Asked, Named};
use crate::site::{Page, Shown, Visit, given, or_empty, word};

/// How many sessions a page shows.
const PAGE: usize = 50;

/// How many messages a page begins with, and how many older ones come at once.
const MESSAGES: usize = 30;

/// Which sessions to show.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Params {
    agent: String,
    status: String,
    view: String,
    before: String,
}

pub(super) async fn page(
    State(app): State<App>,
    caller: Caller,
    Asked(params): Asked<Params>,
) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    let Params { agent, status, view, before } = params;
    let status = word(&status).map_err(|problem| visit.no_page(problem))?;
    let is_tree = view != "list";
    let wanted = SessionsWanted {
        agent: given(&agent),
        status,
        before: given(&before),
        limit: PAGE,
        tree: is_tree,
        ..SessionsWanted::default()
    };
    let now = visit.frame.now;
    let agents = visit.agent_names().await?;
    let view = SessionsView { agent, status, is_tree, before, agents };
    let question = move |records: &Records| or_empty(records.sessions(&wanted, now));
    visit.show(question, move |frame, found| sessions::page(frame, &view, found)).await
}

pub(super) async fn one(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<String>,
    Asked(asked): Asked<Place>,
) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    let now = visit.frame.now;
    visit.show(move |records| view(records, &id, asked.before, now), sessions::one).await
}

fn view(
    records: &Records,
    id: &str,
    before: Option<u64>,
    now: Timestamp,
) -> Result<SessionView, QueryError> {
    // First: what a job says after that is followed.
    let holder = records.holder(id)?;
    let session = records.session(id, now)?;
    let messages = said(records, &session.item.id, before)?;
    Ok(SessionView { session, messages, holder })
}

/// Reads messages; none if nothing was said yet.
fn said(
    records: &Records,
    id: &str,
    before: Option<u64>,
) -> Result<Option<MessagePage>, QueryError> {
    match records.messages(id, MessagesWanted { before, limit: MESSAGES }) {
        Ok(page) => Ok(Some(page)),
        Err(QueryError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) async fn messages(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<String>,
    Asked(asked): Asked<Place>,
) -> Result<Page, Problem> {
    let visit = Visit::begin(app, &caller).await;
    let Visit { app, frame } = visit;
    let question = move |records: &Records| {
        let page = said(records, &id, asked.before)?.unwrap_or_else(|| MessagePage {
            session: String::new(),
            messages: Vec::new(),
            total: 0,
            next: None,
        });
        Ok(Page(sessions::page_of(&frame, &page)))
    };
    app.read(question).await
}

/// Which states are compared; an empty field is not set.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct DiffParams {
    from: String,
    to: String,
}

pub(super) async fn diff(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<String>,
    Asked(asked): Asked<DiffParams>,
) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    let view = || Ok(DiffView { from: word(&asked.from)?, to: word(&asked.to)? });
    let view = view().map_err(|problem| visit.no_page(problem))?;
    let now = visit.frame.now;
    let frame = visit.frame.clone();
    let question = move |records: &Records| {
        let found = records.diff_to(&id, view.from, view.to, now)?;
        Ok(Page(diff::page(&frame, view, &found)))
    };
    let shown = visit.app.read_costly(Cost::Diff, question).await;
    shown.map_err(|problem| visit.no_page(problem))
}
