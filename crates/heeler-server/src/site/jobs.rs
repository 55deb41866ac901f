//! Jobs, by agent and state.

use axum::extract::State;
use heeler_model::config::Period;
use heeler_pages::jobs::{self, JobsView};
use heeler_query::Records;
use heeler_query::jobs::JobsWanted;
use jiff::SignedDuration;
use serde::Deserialize;

use super::{Shown, Visit, given, or_empty, word};
use crate::app::App;
use crate::caller::Caller;
use crate::problem::Problem;
use crate::request::Asked;

/// How many jobs a page shows.
const PAGE: usize = 50;

/// Which jobs to show; what makes no sense is said on the page.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Params {
    agent: String,
    status: String,
    since: String,
    before: String,
}

pub(super) async fn page(
    State(app): State<App>,
    caller: Caller,
    Asked(params): Asked<Params>,
) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    let agents = visit.agent_names().await?;
    let (view, wanted) =
        wanted(&visit, params, agents).map_err(|problem| visit.no_page(problem))?;
    let question = move |records: &Records| or_empty(records.jobs(&wanted));
    visit.show(question, move |frame, found| jobs::page(frame, &view, found)).await
}

fn wanted(
    visit: &Visit,
    params: Params,
    agents: Vec<String>,
) -> Result<(JobsView, JobsWanted), Problem> {
    let Params { agent, status, since, before } = params;
    let status = word(&status)?;
    let age = word::<Period>(&since)?.and_then(|age| SignedDuration::try_from(age.get()).ok());
    let wanted = JobsWanted {
        agent: given(&agent),
        status,
        since: age.and_then(|age| visit.frame.now.checked_sub(age).ok()),
        before: given(&before),
        limit: PAGE,
    };
    Ok((JobsView { agent, status, since, before, agents }, wanted))
}
