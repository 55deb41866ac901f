//! Agents: all of them, and one.

use axum::extract::State;
use heeler_pages::Frame;
use heeler_pages::agents::{self, AgentView};
use heeler_query::jobs::{JobPage, JobsWanted};
use heeler_query::sessions::{SessionPage, SessionsWanted};
use heeler_query::{QueryError, Records};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{Shown, Visit};
use crate::app::App;
use crate::caller::Caller;
use crate::request::Named;

/// How many jobs, and how many sessions, the page of an agent shows.
const SHOWN: usize = 10;

pub(super) async fn page(State(app): State<App>, caller: Caller) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    let now = visit.frame.now;
    let question = move |records: &Records| Ok((records.agents(now)?, records.past_agents()?));
    visit.show(question, |frame, (found, past)| agents::page(frame, found, past)).await
}

pub(super) async fn one(
    State(app): State<App>,
    caller: Caller,
    Named(name): Named<String>,
) -> Shown {
    let visit = Visit::begin(app, &caller).await;
    let (now, zone) = (visit.frame.now, visit.frame.zone.clone());
    let past = visit.read(|records| records.past_agents()).await?;
    if past.contains(&name) {
        let of = name.clone();
        let render = move |frame: &Frame, (jobs, sessions): &(JobPage, SessionPage)| {
            agents::past_page(frame, &name, jobs, sessions)
        };
        return visit.show(move |records| done(records, &of, now), render).await;
    }
    visit.show(move |records| view(records, &name, now, &zone), agents::agent_page).await
}

fn done(
    records: &Records,
    agent: &str,
    now: Timestamp,
) -> Result<(JobPage, SessionPage), QueryError> {
    let of = Some(agent.to_owned());
    let jobs = JobsWanted { agent: of.clone(), limit: SHOWN, ..JobsWanted::default() };
    let sessions = SessionsWanted { agent: of, limit: SHOWN, ..SessionsWanted::default() };
    Ok((records.jobs(&jobs)?, records.sessions(&sessions, now)?))
}

fn view(
    records: &Records,
    name: &str,
    now: Timestamp,
    zone: &TimeZone,
) -> Result<AgentView, QueryError> {
    let agent = records.agent(name, now)?;
    let (jobs, sessions) = done(records, &agent.name, now)?;
    Ok(AgentView {
        schedules: records.schedules(Some(&agent.name))?.schedules,
        jobs,
        sessions,
        days: records.money_of(&agent.name, now, zone)?,
        agent,
    })
}
