//! Schedules.

use axum::Json;
use axum::extract::State;
use heeler_engine::{Answer, Command, ScheduleChange};
use heeler_query::schedules::{ScheduleDetails, SchedulePage};
use heeler_query::told::{Done, JobTold, RunTold, Told};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::paths::BySchedule;
use super::{Reply, Routes, Shown, unexpected};
use crate::app::App;
use crate::request::{Asked, Asker, Given, Named};

pub(super) fn routes() -> Routes {
    Routes {
        shared: OpenApiRouter::new().routes(routes!(list)).routes(routes!(show)),
        operate: OpenApiRouter::new()
            .routes(routes!(set))
            .routes(routes!(enable))
            .routes(routes!(disable))
            .routes(routes!(reset))
            .routes(routes!(trigger)),
        ..Routes::default()
    }
}

/// Which schedules to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Only those of this agent.
    agent: Option<String>,
}

/// List schedules: when they start, when next, what people changed.
#[utoipa::path(
    get, path = "/schedules", tag = "schedules", params(ListParams),
    responses((status = OK, body = SchedulePage)),
)]
async fn list(State(app): State<App>, Asked(asked): Asked<ListParams>) -> Shown<SchedulePage> {
    app.tell(move |records| records.schedules(asked.agent.as_deref())).await
}

/// Show one schedule, with its last starts and what was skipped and why.
#[utoipa::path(
    get, path = "/schedules/{agent}/{schedule}", tag = "schedules", params(BySchedule),
    responses((status = OK, body = ScheduleDetails)),
)]
async fn show(State(app): State<App>, Named(it): Named<BySchedule>) -> Shown<ScheduleDetails> {
    app.tell(move |records| records.schedule(&it.agent, &it.schedule)).await
}

/// When a schedule is to start.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ScheduleOrder {
    /// A length such as `30m`, or a cron expression such as `0 9 * * mon-fri`.
    #[schema(min_length = 1, max_length = 256)]
    when: String,
}

/// Let a schedule start at other times than the config says.
#[utoipa::path(
    put, path = "/schedules/{agent}/{schedule}", tag = "schedules", params(BySchedule),
    request_body = ScheduleOrder, responses((status = OK, body = Done)),
)]
async fn set(
    State(app): State<App>,
    asker: Asker,
    Named(it): Named<BySchedule>,
    Given(order): Given<ScheduleOrder>,
) -> Reply<Done> {
    change(&app, &asker, it, ScheduleChange::Set { text: order.when }).await
}

/// Let a schedule start by itself, whatever the config says.
#[utoipa::path(
    post, path = "/schedules/{agent}/{schedule}/enable", tag = "schedules", params(BySchedule),
    responses((status = OK, body = Done)),
)]
async fn enable(State(app): State<App>, asker: Asker, Named(it): Named<BySchedule>) -> Reply<Done> {
    change(&app, &asker, it, ScheduleChange::Enable).await
}

/// Keep a schedule from starting by itself, whatever the config says.
#[utoipa::path(
    post, path = "/schedules/{agent}/{schedule}/disable", tag = "schedules", params(BySchedule),
    responses((status = OK, body = Done)),
)]
async fn disable(
    State(app): State<App>,
    asker: Asker,
    Named(it): Named<BySchedule>,
) -> Reply<Done> {
    change(&app, &asker, it, ScheduleChange::Disable).await
}

/// Let the config decide about a schedule again.
#[utoipa::path(
    post, path = "/schedules/{agent}/{schedule}/reset", tag = "schedules", params(BySchedule),
    responses((status = OK, body = Done)),
)]
async fn reset(State(app): State<App>, asker: Asker, Named(it): Named<BySchedule>) -> Reply<Done> {
    change(&app, &asker, it, ScheduleChange::Reset).await
}

/// What a schedule started.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum Started {
    /// A job.
    Job(JobTold),
    /// A run of a workflow.
    Run(RunTold),
}

/// Run a schedule now; its times stay as they are.
#[utoipa::path(
    post, path = "/schedules/{agent}/{schedule}/trigger", tag = "schedules", params(BySchedule),
    responses((status = OK, body = Started)),
)]
async fn trigger(
    State(app): State<App>,
    asker: Asker,
    Named(it): Named<BySchedule>,
) -> Reply<Started> {
    match order(&app, &asker, it, ScheduleChange::Trigger).await?.into() {
        Told::Job(job) => Ok(Json(Started::Job(job))),
        Told::Run(run) => Ok(Json(Started::Run(run))),
        other => Err(unexpected(&other)),
    }
}

async fn order(
    app: &App,
    asker: &Asker,
    it: BySchedule,
    change: ScheduleChange,
) -> Result<Answer, crate::problem::Problem> {
    let BySchedule { agent, schedule } = it;
    let by = asker.caller.by.clone();
    Ok(app.order(asker, Command::Schedule { agent, schedule, change, by }).await?)
}

async fn change(app: &App, asker: &Asker, it: BySchedule, change: ScheduleChange) -> Reply<Done> {
    match order(app, asker, it, change).await?.into() {
        Told::Done(done) => Ok(Json(done)),
        other => Err(unexpected(&other)),
    }
}
