//! Agents.

use axum::extract::State;
use heeler_engine::{AgentChange, Command};
use heeler_query::agents::{AgentItem, AgentPage};
use heeler_query::told::Done;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::paths::ByAgent;
use super::{Reply, Routes, Shown};
use crate::app::App;
use crate::request::{Asker, Named};

pub(super) fn routes() -> Routes {
    Routes {
        shared: OpenApiRouter::new().routes(routes!(list)).routes(routes!(show)),
        operate: OpenApiRouter::new()
            .routes(routes!(enable))
            .routes(routes!(disable))
            .routes(routes!(reset)),
        ..Routes::default()
    }
}

/// List the agents of the config.
#[utoipa::path(get, path = "/agents", tag = "agents", responses((status = OK, body = AgentPage)))]
async fn list(State(app): State<App>) -> Shown<AgentPage> {
    let now = (app.now)();
    app.tell(move |records| records.agents(now)).await
}

/// Show one agent.
#[utoipa::path(
    get, path = "/agents/{agent}", tag = "agents", params(ByAgent),
    responses((status = OK, body = AgentItem)),
)]
async fn show(State(app): State<App>, Named(it): Named<ByAgent>) -> Shown<AgentItem> {
    let now = (app.now)();
    app.tell(move |records| records.agent(&it.agent, now)).await
}

/// Let an agent's jobs start again.
#[utoipa::path(
    post, path = "/agents/{agent}/enable", tag = "agents", params(ByAgent),
    responses((status = OK, body = Done)),
)]
async fn enable(State(app): State<App>, asker: Asker, Named(it): Named<ByAgent>) -> Reply<Done> {
    change(&app, &asker, it, AgentChange::Enable).await
}

/// Keep an agent's jobs from starting; those that run go on.
#[utoipa::path(
    post, path = "/agents/{agent}/disable", tag = "agents", params(ByAgent),
    responses((status = OK, body = Done)),
)]
async fn disable(State(app): State<App>, asker: Asker, Named(it): Named<ByAgent>) -> Reply<Done> {
    change(&app, &asker, it, AgentChange::Disable).await
}

/// Forget that an agent's last job failed.
#[utoipa::path(
    post, path = "/agents/{agent}/reset", tag = "agents", params(ByAgent),
    responses((status = OK, body = Done)),
)]
async fn reset(State(app): State<App>, asker: Asker, Named(it): Named<ByAgent>) -> Reply<Done> {
    change(&app, &asker, it, AgentChange::Reset).await
}

async fn change(app: &App, asker: &Asker, it: ByAgent, change: AgentChange) -> Reply<Done> {
    let by = asker.caller.by.clone();
    app.done(asker, Command::Agent { agent: it.agent, change, by }).await
}
