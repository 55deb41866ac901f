//! Sessions.

use axum::Json;
use axum::extract::State;
use heeler_engine::{CommandReply, DaemonCommand, RESUME_PROMPT, SessionOperation};
use heeler_model::config::RuntimeType;
use heeler_model::session_choice::SessionChoice;
use heeler_model::{JobRequest, SessionId, SessionStatus, TriggerType};
use heeler_query::diff::SessionDiff;
use heeler_query::messages::{MessageListQuery, MessagePage};
use heeler_query::replies::{
    AdoptedSessionReply, ChangedSessionsReply, CreatedSessionReply, DaemonReply, JobReply,
};
use heeler_query::sessions::{
    SessionDetails, SessionListQuery, SessionPage, find_deleted_sessions, find_session,
};
use heeler_query::{QueryError, enum_schemas};
use jiff::Timestamp;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::path_params::IdPathParams;
use super::{
    ApiRoutes, EncodedJsonResult, JsonResult, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, check_limit,
    unexpected_reply,
};
use crate::expensive_reads::ExpensiveReadKind;
use crate::extractors::{JsonBody, KeyedCaller, PathParams, QueryParams};
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
            .routes(routes!(delete))
            .routes(routes!(restore))
            .routes(routes!(cleanup))
            .routes(routes!(adopt)),
        ..ApiRoutes::default()
    }
}

/// Which sessions to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SessionListParams {
    /// Only those of this agent.
    agent: Option<String>,
    /// Only those in this state.
    #[param(value_type = Option<enum_schemas::SessionStatus>)]
    status: Option<SessionStatus>,
    /// Only those of this chat channel and its threads.
    channel: Option<String>,
    /// Only those that were used since then.
    since: Option<Timestamp>,
    /// Those that were last used before this one: `next` of the page before.
    before: Option<String>,
    /// How many; 20 if left out.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
    /// Put forks, and sessions that go on from a full one, below what they came from; each tells its
    /// `depth`, and what they came from is added where it is on another page.
    #[serde(default)]
    tree: bool,
}

/// List sessions, last used first.
#[utoipa::path(
    get, path = "/sessions", tag = "sessions", params(SessionListParams),
    responses((status = OK, body = SessionPage)),
)]
async fn list(
    State(app): State<SharedServerState>,
    QueryParams(asked): QueryParams<SessionListParams>,
) -> EncodedJsonResult<SessionPage> {
    let limit = check_limit(asked.limit, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)?;
    let SessionListParams { agent, status, channel, since, before, tree, .. } = asked;
    let wanted = SessionListQuery { agent, status, channel, since, before, limit, tree };
    let now = (app.clock)();
    app.read_json(move |records| records.sessions(&wanted, now)).await
}

/// Show one session: whose it is, where it came from, its jobs.
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

/// Which messages to read.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct MessageListParams {
    /// Those before this one: `next` of the page behind.
    before: Option<u64>,
    /// How many, of the last ones; 20 if left out.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
}

/// Read what was said in a session: messages with their tools, and where it can be cut.
#[utoipa::path(
    get, path = "/sessions/{id}/messages", tag = "sessions", params(IdPathParams, MessageListParams),
    responses((status = OK, body = MessagePage)),
)]
async fn messages(
    State(app): State<SharedServerState>,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    QueryParams(asked): QueryParams<MessageListParams>,
) -> EncodedJsonResult<MessagePage> {
    let limit = check_limit(asked.limit, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)?;
    let wanted = MessageListQuery { before: asked.before, limit };
    app.read_json(move |records| records.messages(&id, wanted)).await
}

/// Since when to compare.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SessionDiffParams {
    /// From the state at this message; before the first turn if left out.
    #[param(minimum = 1)]
    at_message: Option<u64>,
}

/// Show what changed in a session's files since a message.
#[utoipa::path(
    get, path = "/sessions/{id}/diff", tag = "sessions", params(IdPathParams, SessionDiffParams),
    responses((status = OK, body = SessionDiff)),
)]
async fn diff(
    State(app): State<SharedServerState>,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    QueryParams(asked): QueryParams<SessionDiffParams>,
) -> JsonResult<SessionDiff> {
    let now = (app.clock)();
    Ok(Json(
        app.read_expensive(ExpensiveReadKind::Diff, move |records| {
            records.diff(&id, asked.at_message, now)
        })
        .await?,
    ))
}

/// How to fork a session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ForkSessionBody {
    /// The last message that the new session knows; the last that it can be cut behind if left out.
    #[schema(minimum = 1)]
    pub(super) at_message: Option<u64>,
    /// Whose the new session is; its source's agent if left out.
    pub(super) agent: Option<String>,
    /// Give it a worktree in the state that the files were in at that message.
    #[serde(default)]
    pub(super) workspace: bool,
}

/// Make a new session with the history of one, up to a message.
#[utoipa::path(
    post, path = "/sessions/{id}/fork", tag = "sessions", params(IdPathParams), request_body = ForkSessionBody,
    responses((status = OK, body = CreatedSessionReply)),
)]
async fn fork(
    State(app): State<SharedServerState>,
    asker: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    JsonBody(order): JsonBody<ForkSessionBody>,
) -> JsonResult<CreatedSessionReply> {
    let session = app.read(move |records| Ok(find_session(&*records.reader()?, &id)?.id)).await?;
    request_fork(&app, &asker, session, order).await
}

/// Asks for a fork.
pub(super) async fn request_fork(
    app: &SharedServerState,
    asker: &KeyedCaller,
    session: SessionId,
    order: ForkSessionBody,
) -> JsonResult<CreatedSessionReply> {
    let ForkSessionBody { at_message, agent, workspace } = order;
    let order = SessionOperation::Fork { session, at_message, agent, workspace };
    match send_session_command(app, asker, order).await?.into() {
        DaemonReply::Session(made) => Ok(Json(made)),
        other => Err(unexpected_reply(&other)),
    }
}

/// What is said to an agent in a session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SendMessageBody {
    /// What the agent is told; that it was interrupted if left out.
    prompt: Option<String>,
    /// Go on although somebody else went on with the session: what they said becomes part of it.
    #[serde(default)]
    take_in: bool,
    /// Somebody answers what the agent asks, as approvals; else it is denied, unless the agent's
    /// config has people asked.
    #[serde(default)]
    attended: bool,
}

/// Go on in a session: a new job of its agent, which knows what was said in it. The reply does not
/// wait for its end.
#[utoipa::path(
    post, path = "/sessions/{id}/messages", tag = "sessions", params(IdPathParams), request_body = SendMessageBody,
    responses((status = OK, body = JobReply)),
)]
async fn talk(
    State(app): State<SharedServerState>,
    asker: KeyedCaller,
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
        return Err(refused("its agent is a command, which has no session to go on in"));
    }
    let own = session.agent_session_id.clone();
    let own = own.ok_or_else(|| refused("it was never used, so there is nothing to continue"))?;
    let agent =
        session.agent.parse().map_err(|error| ProblemDetails::bad_request(format!("{error}")))?;
    let wanted = JobRequest {
        prompt: Some(order.prompt.unwrap_or_else(|| RESUME_PROMPT.to_owned())),
        session: SessionChoice::Given { id: own },
        take_in: order.take_in,
        attended: order.attended,
        trigger: TriggerType::Manual,
        ..JobRequest::new(agent)
    };
    app.request_job(&asker, DaemonCommand::Trigger(Box::new(wanted))).await
}

/// How to delete a session.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DeleteSessionParams {
    /// Remove its files for good; else it goes to the trash.
    #[serde(default)]
    purge: bool,
}

/// Put a session into the trash, or remove one that is there for good.
#[utoipa::path(
    delete, path = "/sessions/{id}", tag = "sessions", params(IdPathParams, DeleteSessionParams),
    responses((status = OK, body = ChangedSessionsReply)),
)]
async fn delete(
    State(app): State<SharedServerState>,
    asker: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
    QueryParams(asked): QueryParams<DeleteSessionParams>,
) -> JsonResult<ChangedSessionsReply> {
    let session = app
        .read(move |records| {
            let reader = records.reader()?;
            match (find_session(&reader, &id), find_deleted_sessions(&reader, &id)?.as_slice()) {
                (Ok(session), _) => Ok(session.id),
                (Err(_), [one]) if asked.purge => Ok(one.id.clone()),
                (Err(error), _) => Err(error),
            }
        })
        .await?;
    request_session_change(&app, &asker, SessionOperation::Delete { session, purge: asked.purge })
        .await
}

/// Bring a deleted session back.
#[utoipa::path(
    post, path = "/sessions/{id}/restore", tag = "sessions", params(IdPathParams),
    responses((status = OK, body = ChangedSessionsReply)),
)]
async fn restore(
    State(app): State<SharedServerState>,
    asker: KeyedCaller,
    PathParams(IdPathParams { id }): PathParams<IdPathParams>,
) -> JsonResult<ChangedSessionsReply> {
    let found = app
        .read(move |records| match find_deleted_sessions(&*records.reader()?, &id)?.as_slice() {
            [one] => Ok(Some(one.id.clone())),
            _ => Ok(None),
        })
        .await?;
    let Some(session) = found else {
        return Err(ProblemDetails::not_found("no session with such an id is in the trash"));
    };
    request_session_change(&app, &asker, SessionOperation::Restore { session }).await
}

/// Which sessions go.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CleanupSessionsBody {
    /// Those that were last used before this moment, and have expired or are completed.
    before: Timestamp,
}

/// Put sessions into the trash that have expired or are completed.
#[utoipa::path(
    post, path = "/sessions/cleanup", tag = "sessions", request_body = CleanupSessionsBody,
    responses((status = OK, body = ChangedSessionsReply)),
)]
async fn cleanup(
    State(app): State<SharedServerState>,
    asker: KeyedCaller,
    JsonBody(order): JsonBody<CleanupSessionsBody>,
) -> JsonResult<ChangedSessionsReply> {
    request_session_change(&app, &asker, SessionOperation::Cleanup { before: order.before }).await
}

/// A session to take over.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AdoptSessionBody {
    /// Claude's id of it, or a beginning that only one has.
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9][A-Za-z0-9_-]*$")]
    id: String,
    /// Whose it is to be.
    agent: String,
}

/// Take over a session that was made with claude in a terminal.
#[utoipa::path(
    post, path = "/sessions/adopt", tag = "sessions", request_body = AdoptSessionBody,
    responses((status = OK, body = AdoptedSessionReply)),
)]
async fn adopt(
    State(app): State<SharedServerState>,
    asker: KeyedCaller,
    JsonBody(order): JsonBody<AdoptSessionBody>,
) -> JsonResult<AdoptedSessionReply> {
    let AdoptSessionBody { id, agent } = order;
    match send_session_command(&app, &asker, SessionOperation::Adopt { id, agent }).await?.into() {
        DaemonReply::Taken(taken) => Ok(Json(taken)),
        other => Err(unexpected_reply(&other)),
    }
}

async fn send_session_command(
    app: &SharedServerState,
    asker: &KeyedCaller,
    order: SessionOperation,
) -> Result<CommandReply, ProblemDetails> {
    let by = asker.caller.name.clone();
    Ok(app.send_keyed_command(asker, DaemonCommand::Session { order, by }).await?)
}

async fn request_session_change(
    app: &SharedServerState,
    asker: &KeyedCaller,
    order: SessionOperation,
) -> JsonResult<ChangedSessionsReply> {
    match send_session_command(app, asker, order).await?.into() {
        DaemonReply::Sessions(sessions) => Ok(Json(sessions)),
        other => Err(unexpected_reply(&other)),
    }
}
