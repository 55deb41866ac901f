//! Jobs.

use axum::extract::State;
use heeler_engine::DaemonCommand;
use heeler_model::config::PRIORITY_MAX;
use heeler_model::session_choice::SessionChoice;
use heeler_model::{JobId, JobRequest, JobStatus, TriggerType};
use heeler_query::enum_schemas;
use heeler_query::jobs::{JobDetails, JobListQuery, JobPage};
use heeler_query::replies::{CreatedSessionReply, JobReply};
use heeler_query::rows::{RowListQuery, RowPage};
use jiff::Timestamp;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::path_params::IdPathParams;
use super::sessions::{ForkSessionBody, request_fork};
use super::{
    ApiRoutes, EncodedJsonResult, JsonResult, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, check_limit,
};
use crate::extractors::{JsonBody, KeyedCaller, PathParams, QueryParams};
use crate::problem::ProblemDetails;
use crate::server_state::SharedServerState;

/// How many lines of a transcript a page has if nobody says otherwise.
const ROWS_DEFAULT: usize = 100;

/// How many it has at most.
const ROWS_MAX: usize = 1_000;

pub(super) fn routes() -> ApiRoutes {
    ApiRoutes {
        shared: OpenApiRouter::new().routes(routes!(list)).routes(routes!(show)),
        shared_logs: OpenApiRouter::new().routes(routes!(rows)),
        operate: OpenApiRouter::new()
            .routes(routes!(trigger))
            .routes(routes!(cancel))
            .routes(routes!(resume))
            .routes(routes!(retry))
            .routes(routes!(fork)),
        ..ApiRoutes::default()
    }
}

/// Which jobs to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct JobListParams {
    /// Only those of this agent.
    agent: Option<String>,
    /// Only those in this state.
    #[param(value_type = Option<enum_schemas::JobStatus>)]
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
    get, path = "/jobs", tag = "jobs", params(JobListParams), responses((status = OK, body = JobPage)),
)]
async fn list(
    State(app): State<SharedServerState>,
    QueryParams(asked): QueryParams<JobListParams>,
) -> EncodedJsonResult<JobPage> {
    let limit = check_limit(asked.limit, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)?;
    let JobListParams { agent, status, since, before, .. } = asked;
    let wanted = JobListQuery { agent, status, since, before, limit };
    app.read_json(move |records| records.jobs(&wanted)).await
}

/// Show one job.
#[utoipa::path(
    get, path = "/jobs/{id}", tag = "jobs", params(IdPathParams), responses((status = OK, body = JobDetails)),
)]
async fn show(
    State(app): State<SharedServerState>,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
) -> EncodedJsonResult<JobDetails> {
    app.read_json(move |records| records.job(&id)).await
}

/// Which rows to read.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct JobRowsParams {
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
    get, path = "/jobs/{id}/rows", tag = "jobs", params(IdPathParams, JobRowsParams),
    responses((status = OK, body = RowPage)),
)]
async fn rows(
    State(app): State<SharedServerState>,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    QueryParams(asked): QueryParams<JobRowsParams>,
) -> EncodedJsonResult<RowPage> {
    let limit = check_limit(asked.limit, ROWS_DEFAULT, ROWS_MAX)? as u64;
    let wanted = RowListQuery { before: asked.before, after: asked.after, limit };
    app.read_json(move |records| records.rows(&id, wanted)).await
}

/// A job that is wanted.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CreateJobBody {
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

impl CreateJobBody {
    /// Refuses what cannot be meant together.
    fn check(&self) -> Result<(), ProblemDetails> {
        let told: Vec<&str> = [
            ("session", self.session.is_some()),
            ("fresh", self.fresh),
            ("channel", self.channel.is_some() && self.session.is_some()),
        ]
        .into_iter()
        .filter_map(|(name, is_told)| is_told.then_some(name))
        .collect();
        if told.len() > 1 {
            return Err(ProblemDetails::bad_request(format!(
                "{} exclude each other",
                told.join(" and ")
            )));
        }
        if self.fork && self.session.is_none() {
            return Err(ProblemDetails::bad_request("fork needs session: which one is forked?"));
        }
        let most = i64::from(PRIORITY_MAX);
        match (-most..=most).contains(&self.priority) {
            true => Ok(()),
            false => Err(ProblemDetails::bad_request(format!("priority is -{most} to {most}"))),
        }
    }
}

/// Start a job; the reply does not wait for its end.
#[utoipa::path(
    post, path = "/jobs", tag = "jobs", request_body = CreateJobBody,
    responses((status = OK, body = JobReply)),
)]
async fn trigger(
    State(app): State<SharedServerState>,
    asker: KeyedCaller,
    JsonBody(order): JsonBody<CreateJobBody>,
) -> JsonResult<JobReply> {
    order.check()?;
    let agent =
        order.agent.parse().map_err(|error| ProblemDetails::bad_request(format!("{error}")))?;
    let session = match order.session.clone() {
        Some(text) => app.read(move |records| records.session_choice(&text, order.fork)).await?,
        None if order.fresh => SessionChoice::Fresh,
        None => SessionChoice::Usual,
    };
    let wanted = JobRequest {
        prompt: order.prompt,
        schedule: order.schedule,
        session,
        channel: order.channel,
        take_in: order.take_in,
        output_file: order.output_file,
        attended: order.attended,
        trigger: TriggerType::Manual,
        priority: order.priority,
        ..JobRequest::new(agent)
    };
    tracing::info!(by = asker.caller.name, agent = %wanted.agent, "a job is asked for over HTTP");
    app.request_job(&asker, DaemonCommand::Trigger(Box::new(wanted))).await
}

/// How to end a job.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CancelJobBody {
    /// At once; else it may finish what it is at.
    #[serde(default)]
    now: bool,
}

/// End a job that runs, or take one that waits out of the queue.
#[utoipa::path(
    post, path = "/jobs/{id}/cancel", tag = "jobs", params(IdPathParams), request_body = CancelJobBody,
    responses((status = OK, body = JobReply)),
)]
async fn cancel(
    State(app): State<SharedServerState>,
    asker: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    JsonBody(order): JsonBody<CancelJobBody>,
) -> JsonResult<JobReply> {
    let job = find_job(&app, id).await?;
    let by = asker.caller.name.clone();
    app.request_job(&asker, DaemonCommand::Cancel { job, now: order.now, by }).await
}

/// How to go on with a job.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ResumeJobBody {
    /// What the agent is told; that it was interrupted if left out.
    prompt: Option<String>,
}

/// Let a job that failed, was cancelled or was cut off go on in its session.
#[utoipa::path(
    post, path = "/jobs/{id}/resume", tag = "jobs", params(IdPathParams), request_body = ResumeJobBody,
    responses((status = OK, body = JobReply)),
)]
async fn resume(
    State(app): State<SharedServerState>,
    asker: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    JsonBody(order): JsonBody<ResumeJobBody>,
) -> JsonResult<JobReply> {
    let job = find_job(&app, id).await?;
    let by = asker.caller.name.clone();
    app.request_job(&asker, DaemonCommand::Resume { job, prompt: order.prompt, by }).await
}

/// Ask for the same again, as a new job.
#[utoipa::path(
    post, path = "/jobs/{id}/retry", tag = "jobs", params(IdPathParams),
    responses((status = OK, body = JobReply)),
)]
async fn retry(
    State(app): State<SharedServerState>,
    asker: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
) -> JsonResult<JobReply> {
    let job = find_job(&app, id).await?;
    let by = asker.caller.name.clone();
    app.request_job(&asker, DaemonCommand::Retry { job, by }).await
}

/// How to fork a job's session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ForkJobBody {
    /// Whose the new session is; its source's agent if left out.
    agent: Option<String>,
    /// Give it a worktree in the state that the files were in then.
    #[serde(default)]
    workspace: bool,
}

/// Make a new session with the history of a job's, up to the job's end.
#[utoipa::path(
    post, path = "/jobs/{id}/fork", tag = "jobs", params(IdPathParams), request_body = ForkJobBody,
    responses((status = OK, body = CreatedSessionReply)),
)]
async fn fork(
    State(app): State<SharedServerState>,
    asker: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    JsonBody(order): JsonBody<ForkJobBody>,
) -> JsonResult<CreatedSessionReply> {
    let (session, at) = app.read(move |records| records.fork_point_of_job(&id)).await?;
    let ForkJobBody { agent, workspace } = order;
    let order = ForkSessionBody { at_message: Some(at), agent, workspace };
    request_fork(&app, &asker, session.id, order).await
}

/// Finds a job by a beginning of its id.
async fn find_job(app: &SharedServerState, id: String) -> Result<JobId, ProblemDetails> {
    app.read(move |records| Ok(records.reader()?.find_job(&id)?.head.id)).await
}
