//! API routes for sessions.

use crate::replies::{
    AdoptedSessionReply, ChangedSessionsReply, CreatedSessionReply, DaemonReply, JobReply,
    MessageReply,
};
use axum::Json;
use axum::extract::State;
use camino::Utf8PathBuf;
use heeler_config::RuntimeType;
use heeler_engine::{CommandReply, DaemonCommand, RESUME_PROMPT, RenamedItem, SessionOperation};
use heeler_model::session_choice::SessionChoice;
use heeler_model::{JobRequest, SessionId, SessionStatus, TriggerType};
use heeler_query::diff::SessionDiff;
use heeler_query::messages::{MessageListQuery, MessagePage};
use heeler_query::sessions::{
    SessionDetails, SessionListQuery, SessionPage, find_deleted_sessions, find_session,
};
use heeler_query::{QueryError, enum_schemas};
use jiff::Timestamp;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api_routes::ApiRoutes;
use super::daemon_commands::unexpected_reply;
use super::jobs::TitleBody;
use super::page_limit::{PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, check_limit};
use super::path_params::IdPathParams;
use crate::caller::KeyedCaller;
use crate::encoded_json::{EncodedJsonResult, JsonResult};
use crate::expensive_reads::ExpensiveReadKind;
use crate::extractors::{JsonBody, PathParams, QueryParams};
use crate::problem::ProblemDetails;
use crate::server_state::SharedServerState;

pub(super) fn routes() -> ApiRoutes {
    ApiRoutes {
        read: OpenApiRouter::new().routes(routes!(diff)),
        shared: OpenApiRouter::new().routes(routes!(list)).routes(routes!(show)),
        shared_logs: OpenApiRouter::new().routes(routes!(messages)),
        operate: OpenApiRouter::new()
            .routes(routes!(fork))
            .routes(routes!(talk))
            .routes(routes!(rename))
            .routes(routes!(delete))
            .routes(routes!(restore))
            .routes(routes!(cleanup))
            .routes(routes!(adopt)),
        ..ApiRoutes::default()
    }
}

/// Filters of the session list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SessionListParams {
    /// Only sessions of this agent.
    agent: Option<String>,
    /// Only sessions with this status.
    #[param(value_type = Option<enum_schemas::SessionStatus>)]
    status: Option<SessionStatus>,
    /// Only sessions of this chat channel and its threads.
    channel: Option<String>,
    /// Only sessions used since this time.
    since: Option<Timestamp>,
    /// Only sessions last used before this one: `next` of the previous page.
    before: Option<String>,
    /// Sessions per page; default 20.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
    /// Order as a tree: forks, and sessions that continue a full one, follow their source. Each
    /// entry has its `depth`. A source from another page is added.
    #[serde(default)]
    tree: bool,
}

/// List sessions, most recently used first.
#[utoipa::path(
    get, path = "/sessions", tag = "sessions", params(SessionListParams),
    responses((status = OK, body = SessionPage)),
)]
async fn list(
    State(app): State<SharedServerState>,
    QueryParams(params): QueryParams<SessionListParams>,
) -> EncodedJsonResult<SessionPage> {
    let limit = check_limit(params.limit, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)?;
    let SessionListParams { agent, status, channel, since, before, tree, .. } = params;
    let query = SessionListQuery { agent, status, channel, since, before, limit, tree };
    let now = (app.clock)();
    app.read_json(move |records| records.sessions(&query, now)).await
}

/// Show one session: agent, origin and jobs.
#[utoipa::path(
    get, path = "/sessions/{id}", tag = "sessions", params(IdPathParams),
    responses((status = OK, body = SessionDetails)),
)]
async fn show(
    State(app): State<SharedServerState>,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
) -> EncodedJsonResult<SessionDetails> {
    let now = (app.clock)();
    app.read_json(move |records| records.session(&id, now)).await
}

/// Range of messages.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct MessageListParams {
    /// Only messages before this one: `next` of the following page.
    before: Option<u64>,
    /// Number of messages, counted from the end; default 20.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
}

/// List messages of a session, with tool calls and possible fork points.
#[utoipa::path(
    get, path = "/sessions/{id}/messages", tag = "sessions", params(IdPathParams, MessageListParams),
    responses((status = OK, body = MessagePage)),
)]
async fn messages(
    State(app): State<SharedServerState>,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    QueryParams(params): QueryParams<MessageListParams>,
) -> EncodedJsonResult<MessagePage> {
    let limit = check_limit(params.limit, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)?;
    let query = MessageListQuery { before: params.before, limit };
    app.read_json(move |records| records.messages(&id, query)).await
}

/// Start of the comparison.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SessionDiffParams {
    /// Compare with the files at this message; by default, with those before the first turn.
    #[param(minimum = 1)]
    at_message: Option<u64>,
}

/// Show the changes to a session's files since a message.
#[utoipa::path(
    get, path = "/sessions/{id}/diff", tag = "sessions", params(IdPathParams, SessionDiffParams),
    responses((status = OK, body = SessionDiff)),
)]
async fn diff(
    State(app): State<SharedServerState>,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    QueryParams(params): QueryParams<SessionDiffParams>,
) -> JsonResult<SessionDiff> {
    let now = (app.clock)();
    Ok(Json(
        app.read_expensive(ExpensiveReadKind::Diff, move |records| {
            records.diff(&id, params.at_message, now)
        })
        .await?,
    ))
}

/// Options for forking a session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ForkSessionBody {
    /// Last message of the new session; defaults to the last possible fork point.
    #[schema(minimum = 1)]
    pub(super) at_message: Option<u64>,
    /// Agent of the new session; defaults to the agent of the source.
    pub(super) agent: Option<String>,
    /// Create a worktree with the files as they were at that message.
    #[serde(default)]
    pub(super) workspace: bool,
}

/// Fork a session at a message.
#[utoipa::path(
    post, path = "/sessions/{id}/fork", tag = "sessions", params(IdPathParams), request_body = ForkSessionBody,
    responses((status = OK, body = CreatedSessionReply)),
)]
async fn fork(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    JsonBody(order): JsonBody<ForkSessionBody>,
) -> JsonResult<CreatedSessionReply> {
    let session = app.read(move |records| Ok(find_session(&*records.reader()?, &id)?.id)).await?;
    request_fork(&app, &caller, session, order).await
}

/// Sends the command for a fork.
pub(super) async fn request_fork(
    app: &SharedServerState,
    caller: &KeyedCaller,
    session: SessionId,
    order: ForkSessionBody,
) -> JsonResult<CreatedSessionReply> {
    let ForkSessionBody { at_message, agent, workspace } = order;
    let order = SessionOperation::Fork { session, at_message, agent, workspace };
    match send_session_command(app, caller, order).await?.into() {
        DaemonReply::Session(session) => Ok(Json(session)),
        other => Err(unexpected_reply(&other)),
    }
}

/// Message to an agent in a session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SendMessageBody {
    /// Prompt; by default the agent is told that it was interrupted.
    prompt: Option<String>,
    /// Resume even if the session was continued outside Heeler, and import those messages.
    #[serde(default)]
    take_in: bool,
    /// A person answers the agent's questions, through approvals. Otherwise questions are denied,
    /// unless the agent's config asks people.
    #[serde(default)]
    attended: bool,
}

/// Continue a session with a new job of its agent.
///
/// The agent knows the session's earlier messages. The reply does not wait for the job's end.
#[utoipa::path(
    post, path = "/sessions/{id}/messages", tag = "sessions", params(IdPathParams), request_body = SendMessageBody,
    responses((status = OK, body = JobReply)),
)]
async fn talk(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    JsonBody(order): JsonBody<SendMessageBody>,
) -> JsonResult<JobReply> {
    let session = app.read(move |records| find_session(&*records.reader()?, &id)).await?;
    let refused = |why: &str| {
        ProblemDetails::from(QueryError::Refused {
            message: format!("{}: {why}", session.id),
            hint: None,
        })
    };
    if session.runtime == RuntimeType::Command.as_str() {
        return Err(refused("its agent is a command, which has no session to continue"));
    }
    let native_session = session.agent_session_id.clone();
    let native_session = native_session
        .ok_or_else(|| refused("it was never used, so there is nothing to continue"))?;
    let agent =
        session.agent.parse().map_err(|error| ProblemDetails::bad_request(format!("{error}")))?;
    let request = JobRequest {
        prompt: Some(order.prompt.unwrap_or_else(|| RESUME_PROMPT.to_owned())),
        session: SessionChoice::Given { id: native_session },
        take_in: order.take_in,
        attended: order.attended,
        trigger: TriggerType::Api,
        ..JobRequest::new(agent)
    };
    app.request_job(&caller, DaemonCommand::Trigger(Box::new(request))).await
}

/// Options for deleting a session.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DeleteSessionParams {
    /// Remove the files permanently; by default the session is moved to the trash.
    #[serde(default)]
    purge: bool,
}

/// Set the title of a session, which is that of its first job.
#[utoipa::path(
    post, path = "/sessions/{id}/title", tag = "sessions", params(IdPathParams), request_body = TitleBody,
    responses((status = OK, body = MessageReply)),
)]
async fn rename(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    JsonBody(TitleBody { title }): JsonBody<TitleBody>,
) -> JsonResult<MessageReply> {
    let session = app.read(move |records| Ok(records.reader()?.find_session(&id)?.id)).await?;
    let (item, by) = (RenamedItem::Session(session), caller.caller.name.clone());
    app.request_change(&caller, DaemonCommand::Rename { item, title, by }).await
}

/// Move a session to the trash, or remove one from the trash permanently.
#[utoipa::path(
    delete, path = "/sessions/{id}", tag = "sessions", params(IdPathParams, DeleteSessionParams),
    responses((status = OK, body = ChangedSessionsReply)),
)]
async fn delete(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    QueryParams(params): QueryParams<DeleteSessionParams>,
) -> JsonResult<ChangedSessionsReply> {
    let session = app
        .read(move |records| {
            let reader = records.reader()?;
            // Only a purge also finds a session that is in the trash.
            match (find_session(&reader, &id), find_deleted_sessions(&reader, &id)?.as_slice()) {
                (Ok(session), _) => Ok(session.id),
                (Err(_), [one]) if params.purge => Ok(one.id.clone()),
                (Err(error), _) => Err(error),
            }
        })
        .await?;
    request_session_change(&app, &caller, SessionOperation::Delete { session, purge: params.purge })
        .await
}

/// Restore a session from the trash.
#[utoipa::path(
    post, path = "/sessions/{id}/restore", tag = "sessions", params(IdPathParams),
    responses((status = OK, body = ChangedSessionsReply)),
)]
async fn restore(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
) -> JsonResult<ChangedSessionsReply> {
    let found = app
        .read(move |records| match find_deleted_sessions(&*records.reader()?, &id)?.as_slice() {
            [one] => Ok(Some(one.id.clone())),
            _ => Ok(None),
        })
        .await?;
    let Some(session) = found else {
        return Err(ProblemDetails::not_found("no session with this ID is in the trash"));
    };
    request_session_change(&app, &caller, SessionOperation::Restore { session }).await
}

/// Selection of sessions to clean up.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CleanupSessionsBody {
    /// Only sessions last used before this time that have expired or are completed.
    before: Timestamp,
}

/// Move expired and completed sessions to the trash.
#[utoipa::path(
    post, path = "/sessions/cleanup", tag = "sessions", request_body = CleanupSessionsBody,
    responses((status = OK, body = ChangedSessionsReply)),
)]
async fn cleanup(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    JsonBody(order): JsonBody<CleanupSessionsBody>,
) -> JsonResult<ChangedSessionsReply> {
    request_session_change(&app, &caller, SessionOperation::Cleanup { before: order.before }).await
}

/// Native session to adopt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AdoptSessionBody {
    /// Claude's ID of the session or a unique prefix; `codex:ID` for a session of Codex.
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9][A-Za-z0-9_:-]*$")]
    id: String,
    /// Agent to assign the session to.
    agent: String,
    /// Directory outside of the fleet's working directories in which the session may continue. The
    /// refusal of a request without it names the directory.
    #[schema(value_type = Option<String>)]
    directory: Option<Utf8PathBuf>,
}

/// Adopt a session that was created with an agent program in a terminal.
#[utoipa::path(
    post, path = "/sessions/adopt", tag = "sessions", request_body = AdoptSessionBody,
    responses((status = OK, body = AdoptedSessionReply)),
)]
async fn adopt(
    State(app): State<SharedServerState>,
    caller: KeyedCaller,
    JsonBody(order): JsonBody<AdoptSessionBody>,
) -> JsonResult<AdoptedSessionReply> {
    let AdoptSessionBody { id, agent, directory } = order;
    let order = SessionOperation::Adopt { id, agent, directory };
    match send_session_command(&app, &caller, order).await?.into() {
        DaemonReply::Taken(session) => Ok(Json(session)),
        other => Err(unexpected_reply(&other)),
    }
}

async fn send_session_command(
    app: &SharedServerState,
    caller: &KeyedCaller,
    order: SessionOperation,
) -> Result<CommandReply, ProblemDetails> {
    let by = caller.caller.name.clone();
    Ok(app.send_keyed_command(caller, DaemonCommand::Session { order, by }).await?)
}

async fn request_session_change(
    app: &SharedServerState,
    caller: &KeyedCaller,
    order: SessionOperation,
) -> JsonResult<ChangedSessionsReply> {
    match send_session_command(app, caller, order).await?.into() {
        DaemonReply::Sessions(sessions) => Ok(Json(sessions)),
        other => Err(unexpected_reply(&other)),
    }
}
