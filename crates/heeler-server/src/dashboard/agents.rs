//! Dashboard pages of agents: the list, and one agent.

use axum::extract::State;
use heeler_pages::PageFrame;
use heeler_pages::agents::{self, AgentView};
use heeler_query::jobs::{JobListQuery, JobPage};
use heeler_query::sessions::{SessionListQuery, SessionPage};
use heeler_query::{FleetReader, QueryError};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::page_context::{PageContext, PageResult};
use crate::caller::RequestCaller;
use crate::extractors::PathParams;
use crate::server_state::SharedServerState;

/// Jobs, and sessions, on the page of an agent.
const ITEMS_SHOWN: usize = 10;

pub(super) async fn page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    let now = context.frame.now;
    let load = move |records: &FleetReader| Ok((records.agents(now)?, records.past_agents()?));
    context.render(load, |frame, (found, past)| agents::page(frame, found, past)).await
}

pub(super) async fn agent_page(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
    PathParams(name): PathParams<String>,
) -> PageResult {
    let context = PageContext::load(app, &caller).await;
    let (now, zone) = (context.frame.now, context.frame.zone.clone());
    // A former agent is not in the config any more, but its history is kept.
    let past = context.read(|records| records.past_agents()).await?;
    if past.contains(&name) {
        let of = name.clone();
        let render = move |frame: &PageFrame, (jobs, sessions): &(JobPage, SessionPage)| {
            agents::past_page(frame, &name, jobs, sessions)
        };
        return context.render(move |records| agent_history(records, &of, now), render).await;
    }
    context.render(move |records| load_view(records, &name, now, &zone), agents::agent_page).await
}

fn agent_history(
    records: &FleetReader,
    agent: &str,
    now: Timestamp,
) -> Result<(JobPage, SessionPage), QueryError> {
    let of = Some(agent.to_owned());
    let jobs = JobListQuery { agent: of.clone(), limit: ITEMS_SHOWN, ..JobListQuery::default() };
    let sessions =
        SessionListQuery { agent: of, limit: ITEMS_SHOWN, ..SessionListQuery::default() };
    Ok((records.jobs(&jobs)?, records.sessions(&sessions, now)?))
}

fn load_view(
    records: &FleetReader,
    name: &str,
    now: Timestamp,
    zone: &TimeZone,
) -> Result<AgentView, QueryError> {
    let agent = records.agent(name, now)?;
    let (jobs, sessions) = agent_history(records, &agent.name, now)?;
    Ok(AgentView {
        schedules: records.schedules(Some(&agent.name))?.schedules,
        jobs,
        sessions,
        days: records.daily_costs(&agent.name, now, zone)?,
        agent,
    })
}
