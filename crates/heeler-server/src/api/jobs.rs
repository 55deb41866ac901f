//! Jobs.

use axum::extract::State;
use heeler_engine::Command;
use heeler_model::config::PRIORITY_MAX;
use heeler_model::session_choice::Wish;
use heeler_model::{JobId, JobStatus, TriggerType, Wanted};
use heeler_query::jobs::{JobDetails, JobPage, JobsWanted};
use heeler_query::rows::{RowPage, RowsWanted};
use heeler_query::told::{JobTold, SessionMade};
use heeler_query::words;
use jiff::Timestamp;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::paths::ById;
use super::sessions::{ForkOrder, fork_order};
use super::{PAGE, PAGE_MAX, Reply, Routes, Shown, limit};
use crate::app::App;
use crate::problem::Problem;
use crate::request::{Asked, Asker, Given, Named};

/// How many lines of a transcript a page has if nobody says otherwise.
const ROWS: usize = 100;

/// How many it has at most.
const ROWS_MAX: usize = 1_000;

pub(super) fn routes() -> Routes {
    Routes {
        shared: OpenApiRouter::new().routes(routes!(list)).routes(routes!(show)),
        shared_logs: OpenApiRouter::new().routes(routes!(rows)),
        operate: OpenApiRouter::new()
            .routes(routes!(trigger))
            .routes(routes!(cancel))
            .routes(routes!(resume))
            .routes(routes!(retry))
            .routes(routes!(fork)),
        ..Routes::default()
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
    #[param(value_type = Option<words::JobStatus>)]
    status: Option<JobStatus>,
    /// Only those that were asked for since then.
    since: Option<Timestamp>,
    /// Those older than this job: `next` of the page before.
    before: Option<String>,
    /// How many; 20 if left out.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
}

/// List jobs, newest first.
#[utoipa::path(
    get, path = "/jobs", tag = "jobs", params(ListParams), responses((status = OK, body = JobPage)),
)]
async fn list(State(app): State<App>, Asked(asked): Asked<ListParams>) -> Shown<JobPage> {
    let limit = limit(asked.limit, PAGE, PAGE_MAX)?;
    let ListParams { agent, status, since, before, .. } = asked;
    let wanted = JobsWanted { agent, status, since, before, limit };
    app.tell(move |records| records.jobs(&wanted)).await
}

/// Show one job.
#[utoipa::path(
    get, path = "/jobs/{id}", tag = "jobs", params(ById), responses((status = OK, body = JobDetails)),
)]
async fn show(State(app): State<App>, Named(ById { id }): Named<ById>) -> Shown<JobDetails> {
    app.tell(move |records| records.job(&id)).await
}

/// Which rows to read.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RowsParams {
    /// Those of lines before this one: `previous` of the page behind.
    before: Option<u64>,
    /// Those of lines behind this one: `next` of the page before. Without it, the last ones come.
    after: Option<u64>,
    /// Of how many lines; 100 if left out.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// Read rows of a job's transcript, as they were written, with the numbers of their lines.
#[utoipa::path(
    get, path = "/jobs/{id}/rows", tag = "jobs", params(ById, RowsParams),
    responses((status = OK, body = RowPage)),
)]
async fn rows(
    State(app): State<App>,
    Named(ById { id }): Named<ById>,
    Asked(asked): Asked<RowsParams>,
) -> Shown<RowPage> {
    let limit = limit(asked.limit, ROWS, ROWS_MAX)? as u64;
    let wanted = RowsWanted { before: asked.before, after: asked.after, limit };
    app.tell(move |records| records.rows(&id, wanted)).await
}

/// A job that is wanted.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JobOrder {
    /// Who is to do it.
    #[schema(min_length = 1, max_length = 256)]
    agent: String,
    /// What to do; the schedule's or the agent's own prompt if left out.
    prompt: Option<String>,
    /// The schedule whose prompt, session and limits count.
    schedule: Option<String>,
    /// The session to go on in, by its id or the agent's own; a beginning will do while it is unique.
    session: Option<String>,
    /// Leave `session` as it is and go on in a new one with its history.
    #[serde(default)]
    fork: bool,
    /// Begin a new session.
    #[serde(default)]
    fresh: bool,
    /// Go on in the session of this chat channel: `platform/channel` or `platform/channel/thread`.
    channel: Option<String>,
    /// Go on although somebody else went on with the session: what they said becomes part of it.
    #[serde(default)]
    take_in: bool,
    /// If it has to wait: what is higher starts first.
    #[serde(default)]
    #[schema(minimum = -100, maximum = 100)]
    priority: i64,
    /// Also write the output as text.
    #[serde(default)]
    output_file: bool,
    /// Somebody answers what the agent asks, as approvals; else it is denied, unless the agent's
    /// config has people asked.
    #[serde(default)]
    attended: bool,
}

impl JobOrder {
    /// Refuses what cannot be meant together.
    fn check(&self) -> Result<(), Problem> {
        let told: Vec<&str> = [
            ("session", self.session.is_some()),
            ("fresh", self.fresh),
            ("channel", self.channel.is_some() && self.session.is_some()),
        ]
        .into_iter()
        .filter_map(|(name, is_told)| is_told.then_some(name))
        .collect();
        if told.len() > 1 {
            return Err(Problem::usage(format!("{} exclude each other", told.join(" and "))));
        }
        if self.fork && self.session.is_none() {
            return Err(Problem::usage("fork needs session: which one is forked?"));
        }
        let most = i64::from(PRIORITY_MAX);
        match (-most..=most).contains(&self.priority) {
            true => Ok(()),
            false => Err(Problem::usage(format!("priority is -{most} to {most}"))),
        }
    }
}

/// Start a job; the reply does not wait for its end.
#[utoipa::path(
    post, path = "/jobs", tag = "jobs", request_body = JobOrder,
    responses((status = OK, body = JobTold)),
)]
async fn trigger(
    State(app): State<App>,
    asker: Asker,
    Given(order): Given<JobOrder>,
) -> Reply<JobTold> {
    order.check()?;
    let agent = order.agent.parse().map_err(|error| Problem::usage(format!("{error}")))?;
    let session = match order.session.clone() {
        Some(text) => app.read(move |records| records.wish(&text, order.fork)).await?,
        None if order.fresh => Wish::Fresh,
        None => Wish::Usual,
    };
    let wanted = Wanted {
        prompt: order.prompt,
        schedule: order.schedule,
        session,
        channel: order.channel,
        take_in: order.take_in,
        output_file: order.output_file,
        attended: order.attended,
        trigger: TriggerType::Manual,
        priority: order.priority,
        ..Wanted::of(agent)
    };
    tracing::info!(by = asker.caller.by, agent = %wanted.agent, "a job is asked for over HTTP");
    app.job(&asker, Command::Trigger(Box::new(wanted))).await
}

/// How to end a job.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CancelOrder {
    /// At once; else it may finish what it is at.
    #[serde(default)]
    now: bool,
}

/// End a job that runs, or take one that waits out of the queue.
#[utoipa::path(
    post, path = "/jobs/{id}/cancel", tag = "jobs", params(ById), request_body = CancelOrder,
    responses((status = OK, body = JobTold)),
)]
async fn cancel(
    State(app): State<App>,
    asker: Asker,
    Named(ById { id }): Named<ById>,
    Given(order): Given<CancelOrder>,
) -> Reply<JobTold> {
    let job = find(&app, id).await?;
    let by = asker.caller.by.clone();
    app.job(&asker, Command::Cancel { job, now: order.now, by }).await
}

/// How to go on with a job.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ResumeOrder {
    /// What the agent is told; that it was interrupted if left out.
    prompt: Option<String>,
}

/// Let a job that failed, was cancelled or was cut off go on in its session.
#[utoipa::path(
    post, path = "/jobs/{id}/resume", tag = "jobs", params(ById), request_body = ResumeOrder,
    responses((status = OK, body = JobTold)),
)]
async fn resume(
    State(app): State<App>,
    asker: Asker,
    Named(ById { id }): Named<ById>,
    Given(order): Given<ResumeOrder>,
) -> Reply<JobTold> {
    let job = find(&app, id).await?;
    let by = asker.caller.by.clone();
    app.job(&asker, Command::Resume { job, prompt: order.prompt, by }).await
}

/// Ask for the same again, as a new job.
#[utoipa::path(
    post, path = "/jobs/{id}/retry", tag = "jobs", params(ById),
    responses((status = OK, body = JobTold)),
)]
async fn retry(
    State(app): State<App>,
    asker: Asker,
    Named(ById { id }): Named<ById>,
) -> Reply<JobTold> {
    let job = find(&app, id).await?;
    let by = asker.caller.by.clone();
    app.job(&asker, Command::Retry { job, by }).await
}

/// How to fork a job's session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JobForkOrder {
    /// Whose the new session is; its source's agent if left out.
    agent: Option<String>,
    /// Give it a worktree in the state that the files were in then.
    #[serde(default)]
    workspace: bool,
}

/// Make a new session with the history of a job's, up to the job's end.
#[utoipa::path(
    post, path = "/jobs/{id}/fork", tag = "jobs", params(ById), request_body = JobForkOrder,
    responses((status = OK, body = SessionMade)),
)]
async fn fork(
    State(app): State<App>,
    asker: Asker,
    Named(ById { id }): Named<ById>,
    Given(order): Given<JobForkOrder>,
) -> Reply<SessionMade> {
    let (session, at) = app.read(move |records| records.end_of_job(&id)).await?;
    let JobForkOrder { agent, workspace } = order;
    let order = ForkOrder { at_message: Some(at), agent, workspace };
    fork_order(&app, &asker, session.id, order).await
}

/// Finds a job by a beginning of its id.
async fn find(app: &App, id: String) -> Result<JobId, Problem> {
    app.read(move |records| Ok(records.reader()?.find_job(&id)?.head.id)).await
}
