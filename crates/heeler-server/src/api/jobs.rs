//! API routes for jobs.

use crate::replies::{CreatedSessionReply, JobReply, MessageReply};
use axum::extract::State;
use axum::response::Response;
use heeler_config::PRIORITY_MAX;
use heeler_engine::{DaemonCommand, RenamedItem};
use heeler_model::session_choice::SessionChoice;
use heeler_model::{JobId, JobRequest, JobStatus, TriggerType};
use heeler_query::enum_schemas;
use heeler_query::jobs::{JobDetails, JobListQuery, JobPage};
use heeler_query::rows::{RowListQuery, RowPage};
use jiff::Timestamp;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api_routes::ApiRoutes;
use super::etag::IfNoneMatchTags;
use super::page_limit::{PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, check_limit};
use super::path_params::IdPathParams;
use super::sessions::{ForkSessionBody, request_fork};
use crate::caller::KeyedCaller;
use crate::encoded_json::{EncodedJsonResult, JsonResult};
use crate::extractors::{JsonBody, PathParams, QueryParams};
use crate::job_list_reads::read_job_list;
use crate::problem::ProblemDetails;
use crate::server_state::SharedServerState;

/// Transcript lines per page by default.
const ROWS_DEFAULT: usize = 100;

/// Most transcript lines per page.
const ROWS_MAX: usize = 1_000;

pub(super) fn routes() -> ApiRoutes {
    ApiRoutes {
        batched: OpenApiRouter::new().routes(routes!(list)),
        shared: OpenApiRouter::new().routes(routes!(show)),
        shared_logs: OpenApiRouter::new().routes(routes!(rows)),
        operate: OpenApiRouter::new()
            .routes(routes!(trigger))
            .routes(routes!(cancel))
            .routes(routes!(say))
            .routes(routes!(rename))
            .routes(routes!(resume))
            .routes(routes!(retry))
            .routes(routes!(fork)),
        ..ApiRoutes::default()
    }
}

/// Filters of the job list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct JobListParams {
    /// Only jobs of this agent.
    agent: Option<String>,
    /// Only jobs with this status.
    #[param(value_type = Option<enum_schemas::JobStatus>)]
    status: Option<JobStatus>,
    /// Only jobs created since this time.
    since: Option<Timestamp>,
    /// Only jobs with their last run on this host.
    host: Option<String>,
    /// Only jobs older than this one: `next` of the previous page.
    before: Option<String>,
    /// Jobs per page; default 20.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
}

/// List jobs, newest first.
#[utoipa::path(
    get, path = "/jobs", tag = "jobs", params(JobListParams), responses((status = OK, body = JobPage)),
)]
async fn list(
    State(app): State<SharedServerState>,
    known: IfNoneMatchTags,
    QueryParams(params): QueryParams<JobListParams>,
) -> Result<Response, ProblemDetails> {
    let limit = check_limit(params.limit, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)?;
    let JobListParams { agent, status, since, host, before, .. } = params;
    let query = JobListQuery { agent, status, since, host, before, limit };
    Ok(read_job_list(&app, query).await?.into_response_for(&known))
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

/// Range of rows.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct JobRowsParams {
    /// Only rows before this line: `previous` of the following page.
    before: Option<u64>,
    /// Only rows after this line: `next` of the previous page. By default, the last rows are
    /// returned.
    after: Option<u64>,
    /// Lines per page; default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// List rows of a job's transcript, unmodified, with their line numbers.
#[utoipa::path(
    get, path = "/jobs/{id}/rows", tag = "jobs", params(IdPathParams, JobRowsParams),
    responses((status = OK, body = RowPage)),
)]
async fn rows(
    State(app): State<SharedServerState>,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    QueryParams(params): QueryParams<JobRowsParams>,
) -> EncodedJsonResult<RowPage> {
    let limit = check_limit(params.limit, ROWS_DEFAULT, ROWS_MAX)? as u64;
    let query = RowListQuery { before: params.before, after: params.after, limit };
    app.read_json(move |records| records.rows(&id, query)).await
}

/// Job to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CreateJobBody {
    /// Agent that executes the job.
    #[schema(min_length = 1, max_length = 256)]
    agent: String,
    /// Prompt; defaults to the schedule's or the agent's prompt.
    prompt: Option<String>,
    /// Schedule of the agent that provides prompt, session and limits.
    schedule: Option<String>,
    /// Session to continue, by its ID or its native session ID (unique prefix).
    session: Option<String>,
    /// Fork `session` and continue in the fork; `session` stays unchanged.
    #[serde(default)]
    fork: bool,
    /// Start a new session.
    #[serde(default)]
    fresh: bool,
    /// Continue the session of this chat channel: `platform/channel` or `platform/channel/thread`.
    channel: Option<String>,
    /// Resume even if the session was continued outside Heeler, and import those messages.
    #[serde(default)]
    take_in: bool,
    /// Queue priority; higher starts first.
    #[serde(default)]
    #[schema(minimum = -100, maximum = 100)]
    priority: i64,
    /// Also write the output to a text file.
    #[serde(default)]
    output_file: bool,
    /// A person answers the agent's questions, through approvals. Otherwise questions are denied,
    /// unless the agent's config asks people.
    #[serde(default)]
    attended: bool,
}

impl CreateJobBody {
    /// Rejects options that exclude each other, and a priority out of range.
    fn check(&self) -> Result<(), ProblemDetails> {
        let given: Vec<&str> = [
            ("session", self.session.is_some()),
            ("fresh", self.fresh),
            ("channel", self.channel.is_some() && self.session.is_some()),
        ]
        .into_iter()
        .filter_map(|(name, is_told)| is_told.then_some(name))
        .collect();
        if given.len() > 1 {
            return Err(ProblemDetails::bad_request(format!(
                "{} exclude each other",
                given.join(" and ")
            )));
        }
        if self.fork && self.session.is_none() {
            return Err(ProblemDetails::bad_request("fork needs session: the session to fork"));
        }
        let most = i64::from(PRIORITY_MAX);
        match (-most..=most).contains(&self.priority) {
            true => Ok(()),
            false => {
                Err(ProblemDetails::bad_request(format!("priority must be -{most} to {most}")))
            }
        }
    }
}

/// Start a job. The reply does not wait for its end.
#[utoipa::path(
    post, path = "/jobs", tag = "jobs", request_body = CreateJobBody,
    responses((status = OK, body = JobReply)),
)]
async fn trigger(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
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
    let request = JobRequest {
        prompt: order.prompt,
        schedule: order.schedule,
        session,
        channel: order.channel,
        take_in: order.take_in,
        output_file: order.output_file,
        attended: order.attended,
        // Unlike Heeler's own programs, callers of the API cannot choose the trigger.
        trigger: TriggerType::Api,
        priority: order.priority,
        ..JobRequest::new(agent)
    };
    tracing::info!(by = caller.caller.name, agent = %request.agent, "job requested over HTTP");
    app.request_job(&caller, DaemonCommand::Trigger(Box::new(request))).await
}

/// Options for cancelling a job.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CancelJobBody {
    /// Stop immediately; by default the agent may finish its current step.
    #[serde(default)]
    now: bool,
}

/// Cancel a running job, or remove a waiting one from the queue.
#[utoipa::path(
    post, path = "/jobs/{id}/cancel", tag = "jobs", params(IdPathParams), request_body = CancelJobBody,
    responses((status = OK, body = JobReply)),
)]
async fn cancel(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    JsonBody(order): JsonBody<CancelJobBody>,
) -> JsonResult<JobReply> {
    let job = find_job(&app, id).await?;
    let by = caller.caller.name.clone();
    app.request_job(&caller, DaemonCommand::Cancel { job, now: order.now, by }).await
}

/// Message to the agent of a running job.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JobMessageBody {
    /// Text of the message.
    #[schema(min_length = 1)]
    text: String,
}

/// Send a message to the agent of a running job.
///
/// The agent receives it within its current turn. A job that does not run, or an agent that takes
/// no messages, is refused.
#[utoipa::path(
    post, path = "/jobs/{id}/messages", tag = "jobs", params(IdPathParams), request_body = JobMessageBody,
    responses((status = OK, body = MessageReply)),
)]
async fn say(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    JsonBody(order): JsonBody<JobMessageBody>,
) -> JsonResult<MessageReply> {
    if order.text.trim().is_empty() {
        return Err(ProblemDetails::bad_request("the message is empty"));
    }
    let job = find_job(&app, id).await?;
    let by = caller.caller.name.clone();
    app.request_change(&caller, DaemonCommand::Say { job, text: order.text, by }).await
}

/// Title of a job or session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct TitleBody {
    /// One line of text; at most 120 characters are kept.
    #[schema(min_length = 1)]
    pub(super) title: String,
}

/// Set the title of a job.
#[utoipa::path(
    post, path = "/jobs/{id}/title", tag = "jobs", params(IdPathParams), request_body = TitleBody,
    responses((status = OK, body = MessageReply)),
)]
async fn rename(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    JsonBody(TitleBody { title }): JsonBody<TitleBody>,
) -> JsonResult<MessageReply> {
    let item = RenamedItem::Job(find_job(&app, id).await?);
    let by = caller.caller.name.clone();
    app.request_change(&caller, DaemonCommand::Rename { item, title, by }).await
}

/// Options for resuming a job.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ResumeJobBody {
    /// Prompt; by default the agent is told that it was interrupted.
    prompt: Option<String>,
}

/// Resume a job that failed, was cancelled or was interrupted, in its session.
#[utoipa::path(
    post, path = "/jobs/{id}/resume", tag = "jobs", params(IdPathParams), request_body = ResumeJobBody,
    responses((status = OK, body = JobReply)),
)]
async fn resume(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    JsonBody(order): JsonBody<ResumeJobBody>,
) -> JsonResult<JobReply> {
    let job = find_job(&app, id).await?;
    let by = caller.caller.name.clone();
    app.request_job(&caller, DaemonCommand::Resume { job, prompt: order.prompt, by }).await
}

/// Create a new job with the same request.
#[utoipa::path(
    post, path = "/jobs/{id}/retry", tag = "jobs", params(IdPathParams),
    responses((status = OK, body = JobReply)),
)]
async fn retry(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
) -> JsonResult<JobReply> {
    let job = find_job(&app, id).await?;
    let by = caller.caller.name.clone();
    app.request_job(&caller, DaemonCommand::Retry { job, by }).await
}

/// Options for forking a job's session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ForkJobBody {
    /// Agent of the new session; defaults to the agent of the source.
    agent: Option<String>,
    /// Create a worktree with the files as they were at the end of the job.
    #[serde(default)]
    workspace: bool,
}

/// Fork a job's session at the end of the job.
#[utoipa::path(
    post, path = "/jobs/{id}/fork", tag = "jobs", params(IdPathParams), request_body = ForkJobBody,
    responses((status = OK, body = CreatedSessionReply)),
)]
async fn fork(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    JsonBody(order): JsonBody<ForkJobBody>,
) -> JsonResult<CreatedSessionReply> {
    let (session, at) = app.read(move |records| records.fork_point_of_job(&id)).await?;
    let ForkJobBody { agent, workspace } = order;
    let order = ForkSessionBody { at_message: Some(at), agent, workspace };
    request_fork(&app, &caller, session.id, order).await
}

/// Finds a job by a unique prefix of its ID.
async fn find_job(app: &SharedServerState, id: String) -> Result<JobId, ProblemDetails> {
    app.read(move |records| Ok(records.reader()?.find_job(&id)?.head.id)).await
}
