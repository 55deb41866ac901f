//! Agents: all of them, and one.

use axum::extract::State;
use heeler_pages::agents::{self, AgentView};
use heeler_query::jobs::JobsWanted;
use heeler_query::sessions::SessionsWanted;
use heeler_query::{QueryError, Records};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{Page, Shown, Visit};
use crate::app::App;
use crate::caller::Caller;
use crate::request::Named;

/// How many jobs, and how many sessions, the page of an agent shows.
const SHOWN: usize = 10;

pub(super) async fn page(State(app): State<App>, caller: Caller) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    let now = visit.frame.now;
    let found = visit.read(move |records| records.agents(now)).await?;
    Ok(Page(agents::page(&visit.frame, &found)))
}

pub(super) async fn one(
    State(app): State<App>,
    caller: Caller,
    Named(name): Named<String>,
) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    let (now, zone) = (visit.frame.now, visit.frame.zone.clone());
    let view = visit.read(move |records| view(records, &name, now, &zone)).await?;
    Ok(Page(agents::agent_page(&visit.frame, &view)))
}

fn view(
    records: &Records,
    name: &str,
    now: Timestamp,
    zone: &TimeZone,
) -> Result<AgentView, QueryError> {
    let agent = records.agent(name, now)?;
    let of = Some(agent.name.clone());
    let jobs = JobsWanted { agent: of.clone(), limit: SHOWN, ..JobsWanted::default() };
    let sessions = SessionsWanted { agent: of, limit: SHOWN, ..SessionsWanted::default() };
    Ok(AgentView {
        schedules: records.schedules(Some(&agent.name))?.schedules,
        jobs: records.jobs(&jobs)?,
        sessions: records.sessions(&sessions, now)?,
        days: records.money_of(&agent.name, now, zone)?,
        agent,
    })
}
