//! Search in transcripts.

use axum::extract::State;
use heeler_pages::search::{self, SearchView};
use heeler_query::Records;
use heeler_query::search::SearchWanted;
use serde::Deserialize;

use super::{Page, Shown, Visit};
use crate::app::App;
use crate::caller::Caller;
use crate::costly::Cost;
use crate::request::Asked;

/// How many rows are shown.
const SHOWN: usize = 50;

/// What to search for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Params {
    q: String,
    agent: String,
}

pub(super) async fn page(
    State(app): State<App>,
    caller: Caller,
    Asked(params): Asked<Params>,
) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    let Params { q, agent } = params;
    let agents = visit.agent_names().await?;
    let mut view = SearchView { text: q, agent, agents, problem: None };
    if view.text.is_empty() {
        return Ok(Page(search::page(&visit.frame, &view, None)));
    }
    let wanted = SearchWanted {
        text: view.text.clone(),
        regex: false,
        ignore_case: false,
        agent: (!view.agent.is_empty()).then(|| view.agent.clone()),
        native: None,
        limit: SHOWN,
    };
    let (frame, asked) = (visit.frame.clone(), view.clone());
    let question = move |records: &Records| {
        Ok(Page(search::page(&frame, &asked, Some(&records.search(&wanted)?))))
    };
    let shown = visit.app.read_costly(Cost::Search, question).await;
    // What is wrong with the question is said beside it.
    shown.or_else(|problem| {
        view.problem = Some(problem.detail);
        Ok(Page(search::page(&visit.frame, &view, None)))
    })
}
