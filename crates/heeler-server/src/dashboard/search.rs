//! Dashboard page that searches transcripts.

use axum::extract::State;
use heeler_pages::search::{self, SearchView};
use heeler_query::FleetReader;
use heeler_query::search::FleetSearchQuery;
use serde::Deserialize;

use super::page_context::{HtmlPage, PageContext, PageResult};
use crate::caller::RequestCaller;
use crate::expensive_reads::ExpensiveReadKind;
use crate::extractors::QueryParams;
use crate::server_state::SharedServerState;

const RESULTS_MAX: usize = 50;

/// Query parameters of the search.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SearchPageParams {
    q: String,
    agent: String,
}

pub(super) async fn page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
    QueryParams(params): QueryParams<SearchPageParams>,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    let SearchPageParams { q, agent } = params;
    let agents = context.agent_names().await?;
    let mut view = SearchView { text: q, agent, agents, problem: None };
    if view.text.is_empty() {
        return Ok(HtmlPage(search::page(&context.frame, &view, None)));
    }
    let query = FleetSearchQuery {
        text: view.text.clone(),
        regex: false,
        ignore_case: false,
        agent: (!view.agent.is_empty()).then(|| view.agent.clone()),
        native: None,
        limit: RESULTS_MAX,
    };
    let (frame, searched) = (context.frame.clone(), view.clone());
    let load = move |records: &FleetReader| {
        Ok(HtmlPage(search::page(&frame, &searched, Some(&records.search(&query)?))))
    };
    let page = context.app.read_expensive(ExpensiveReadKind::Search, load).await;
    // An error in the search is shown next to the search form.
    page.or_else(|problem| {
        view.problem = Some(problem.detail);
        Ok(HtmlPage(search::page(&context.frame, &view, None)))
    })
}
