//! Jobs.

use axum::Json;
use axum::extract::State;
use heeler_engine::{Answer, Command};
use heeler_model::{JobStatus, TriggerType, Wanted};
use heeler_query::jobs::{JobPage, JobsWanted};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Reply, Routes};
use crate::app::App;
use crate::caller::Caller;
use crate::problem::Problem;
use crate::request::{Asked, Given};

/// How many jobs a page has if nobody says otherwise.
const PAGE: usize = 20;

/// How many a page has at most.
const PAGE_MAX: usize = 100;

pub(super) fn routes() -> Routes {
    Routes {
        read: OpenApiRouter::new().routes(routes!(list)),
        operate: OpenApiRouter::new().routes(routes!(trigger)),
        admin: OpenApiRouter::new(),
    }
}

/// Which jobs to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Only those of this agent.
    agent: Option<String>,
    /// Only those in this state.
    #[param(value_type = Option<String>)]
    status: Option<JobStatus>,
    /// Only those that were asked for since then.
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<Timestamp>,
    /// Those older than this job: `next` of the page before.
    before: Option<String>,
    /// How many, at most 100; 20 if left out.
    limit: Option<usize>,
}

/// List jobs, newest first.
#[utoipa::path(
    get, path = "/jobs", tag = "jobs", params(ListParams),
    responses((status = OK, body = JobPage), (status = "default", body = Problem)),
)]
async fn list(State(app): State<App>, Asked(asked): Asked<ListParams>) -> Reply<JobPage> {
    let limit = asked.limit.unwrap_or(PAGE);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Problem::usage(format!("limit is 1 to {PAGE_MAX}, not {limit}")));
    }
    let ListParams { agent, status, since, before, .. } = asked;
    let wanted = JobsWanted { agent, status, since, before, limit };
    Ok(Json(app.read(move |records| records.jobs(&wanted)).await?))
}

/// A job that is wanted.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JobOrder {
    /// Who is to do it.
    agent: String,
    /// What to do; the schedule's or the agent's own prompt if left out.
    prompt: Option<String>,
    /// The schedule whose settings count.
    schedule: Option<String>,
}

/// A job that was asked for.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Ordered {
    /// Its id.
    id: String,
    /// Where it is.
    #[schema(value_type = String)]
    status: JobStatus,
    /// Why it waits, if it does.
    waits: Option<String>,
}

/// Start a job; the reply does not wait for its end.
#[utoipa::path(
    post, path = "/jobs", tag = "jobs", request_body = JobOrder,
    responses((status = OK, body = Ordered), (status = "default", body = Problem)),
)]
async fn trigger(
    State(app): State<App>,
    caller: Caller,
    Given(order): Given<JobOrder>,
) -> Reply<Ordered> {
    let agent = order.agent.parse().map_err(|error| Problem::usage(format!("{error}")))?;
    let JobOrder { prompt, schedule, .. } = order;
    let wanted = Wanted { prompt, schedule, trigger: TriggerType::Manual, ..Wanted::of(agent) };
    tracing::info!(by = caller.by, agent = %wanted.agent, "a job is asked for over HTTP");
    match app.ask(&caller, Command::Trigger(Box::new(wanted))).await? {
        Answer::Job { job, status, waits } => {
            Ok(Json(Ordered { id: job.to_string(), status, waits }))
        }
        other => Err(Problem::trouble(format!("the daemon answered something else: {other:?}"))),
    }
}
