//! Sessions.

use axum::Json;
use axum::extract::State;
use heeler_engine::{Answer, Command, GO_ON, SessionOrder};
use heeler_model::config::RuntimeType;
use heeler_model::session_choice::Wish;
use heeler_model::{SessionId, SessionStatus, TriggerType, Wanted};
use heeler_query::diff::SessionDiff;
use heeler_query::messages::{MessagePage, MessagesWanted};
use heeler_query::sessions::{SessionDetails, SessionPage, SessionsWanted, deleted, find};
use heeler_query::told::{JobTold, SessionMade, SessionTaken, SessionsChanged, Told};
use heeler_query::{QueryError, words};
use jiff::Timestamp;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::paths::ById;
use super::{PAGE, PAGE_MAX, Reply, Routes, Shown, limit, unexpected};
use crate::app::App;
use crate::costly::Cost;
use crate::problem::Problem;
use crate::request::{Asked, Asker, Given, Named};

pub(super) fn routes() -> Routes {
    Routes {
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
        ..Routes::default()
    }
}

/// Which sessions to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Only those of this agent.
    agent: Option<String>,
    /// Only those in this state.
    #[param(value_type = Option<words::SessionStatus>)]
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
    get, path = "/sessions", tag = "sessions", params(ListParams),
    responses((status = OK, body = SessionPage)),
)]
async fn list(State(app): State<App>, Asked(asked): Asked<ListParams>) -> Shown<SessionPage> {
    let limit = limit(asked.limit, PAGE, PAGE_MAX)?;
    let ListParams { agent, status, channel, since, before, tree, .. } = asked;
    let wanted = SessionsWanted { agent, status, channel, since, before, limit, tree };
    let now = (app.now)();
    app.tell(move |records| records.sessions(&wanted, now)).await
}

/// Show one session: whose it is, where it came from, its jobs.
#[utoipa::path(
    get, path = "/sessions/{id}", tag = "sessions", params(ById),
    responses((status = OK, body = SessionDetails)),
)]
async fn show(State(app): State<App>, Named(ById { id }): Named<ById>) -> Shown<SessionDetails> {
    let now = (app.now)();
    app.tell(move |records| records.session(&id, now)).await
}

/// Which messages to read.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct MessagesParams {
    /// Those before this one: `next` of the page behind.
    before: Option<u64>,
    /// How many, of the last ones; 20 if left out.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
}

/// Read what was said in a session: messages with their tools, and where it can be cut.
#[utoipa::path(
    get, path = "/sessions/{id}/messages", tag = "sessions", params(ById, MessagesParams),
    responses((status = OK, body = MessagePage)),
)]
async fn messages(
    State(app): State<App>,
    Named(ById { id }): Named<ById>,
    Asked(asked): Asked<MessagesParams>,
) -> Shown<MessagePage> {
    let limit = limit(asked.limit, PAGE, PAGE_MAX)?;
    let wanted = MessagesWanted { before: asked.before, limit };
    app.tell(move |records| records.messages(&id, wanted)).await
}

/// Since when to compare.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DiffParams {
    /// From the state at this message; before the first turn if left out.
    #[param(minimum = 1)]
    at_message: Option<u64>,
}

/// Show what changed in a session's files since a message.
#[utoipa::path(
    get, path = "/sessions/{id}/diff", tag = "sessions", params(ById, DiffParams),
    responses((status = OK, body = SessionDiff)),
)]
async fn diff(
    State(app): State<App>,
    Named(ById { id }): Named<ById>,
    Asked(asked): Asked<DiffParams>,
) -> Reply<SessionDiff> {
    let now = (app.now)();
    Ok(Json(
        app.read_costly(Cost::Diff, move |records| records.diff(&id, asked.at_message, now))
            .await?,
    ))
}

/// How to fork a session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ForkOrder {
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
    post, path = "/sessions/{id}/fork", tag = "sessions", params(ById), request_body = ForkOrder,
    responses((status = OK, body = SessionMade)),
)]
async fn fork(
    State(app): State<App>,
    asker: Asker,
    Named(ById { id }): Named<ById>,
    Given(order): Given<ForkOrder>,
) -> Reply<SessionMade> {
    let session = app.read(move |records| Ok(find(&*records.reader()?, &id)?.id)).await?;
    fork_order(&app, &asker, session, order).await
}

/// Asks for a fork.
pub(super) async fn fork_order(
    app: &App,
    asker: &Asker,
    session: SessionId,
    order: ForkOrder,
) -> Reply<SessionMade> {
    let ForkOrder { at_message, agent, workspace } = order;
    let order = SessionOrder::Fork { session, at_message, agent, workspace };
    match ask(app, asker, order).await?.into() {
        Told::Session(made) => Ok(Json(made)),
        other => Err(unexpected(&other)),
    }
}

/// What is said to an agent in a session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TalkOrder {
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
    post, path = "/sessions/{id}/messages", tag = "sessions", params(ById), request_body = TalkOrder,
    responses((status = OK, body = JobTold)),
)]
async fn talk(
    State(app): State<App>,
    asker: Asker,
    Named(ById { id }): Named<ById>,
    Given(order): Given<TalkOrder>,
) -> Reply<JobTold> {
    let session = app.read(move |records| find(&*records.reader()?, &id)).await?;
    let refused = |why: &str| {
        Problem::from(QueryError::Refused { message: format!("{}: {why}", session.id), hint: None })
    };
    if session.runtime == RuntimeType::Command.as_str() {
        return Err(refused("its agent is a command, which has no session to go on in"));
    }
    let own = session.agent_session_id.clone();
    let own = own.ok_or_else(|| refused("it was never used, so there is nothing to continue"))?;
    let agent = session.agent.parse().map_err(|error| Problem::usage(format!("{error}")))?;
    let wanted = Wanted {
        prompt: Some(order.prompt.unwrap_or_else(|| GO_ON.to_owned())),
        session: Wish::Given { id: own },
        take_in: order.take_in,
        attended: order.attended,
        trigger: TriggerType::Manual,
        ..Wanted::of(agent)
    };
    app.job(&asker, Command::Trigger(Box::new(wanted))).await
}

/// How to delete a session.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DeleteParams {
    /// Remove its files for good; else it goes to the trash.
    #[serde(default)]
    purge: bool,
}

/// Put a session into the trash, or remove one that is there for good.
#[utoipa::path(
    delete, path = "/sessions/{id}", tag = "sessions", params(ById, DeleteParams),
    responses((status = OK, body = SessionsChanged)),
)]
async fn delete(
    State(app): State<App>,
    asker: Asker,
    Named(ById { id }): Named<ById>,
    Asked(asked): Asked<DeleteParams>,
) -> Reply<SessionsChanged> {
    let session = app
        .read(move |records| {
            let reader = records.reader()?;
            match (find(&reader, &id), deleted(&reader, &id)?.as_slice()) {
                (Ok(session), _) => Ok(session.id),
                (Err(_), [one]) if asked.purge => Ok(one.id.clone()),
                (Err(error), _) => Err(error),
            }
        })
        .await?;
    changed(&app, &asker, SessionOrder::Delete { session, purge: asked.purge }).await
}

/// Bring a deleted session back.
#[utoipa::path(
    post, path = "/sessions/{id}/restore", tag = "sessions", params(ById),
    responses((status = OK, body = SessionsChanged)),
)]
async fn restore(
    State(app): State<App>,
    asker: Asker,
    Named(ById { id }): Named<ById>,
) -> Reply<SessionsChanged> {
    let found = app
        .read(move |records| match deleted(&*records.reader()?, &id)?.as_slice() {
            [one] => Ok(Some(one.id.clone())),
            _ => Ok(None),
        })
        .await?;
    let Some(session) = found else {
        return Err(Problem::not_found("no session with such an id is in the trash"));
    };
    changed(&app, &asker, SessionOrder::Restore { session }).await
}

/// Which sessions go.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CleanupOrder {
    /// Those that were last used before this moment, and have expired or are completed.
    before: Timestamp,
}

/// Put sessions into the trash that have expired or are completed.
#[utoipa::path(
    post, path = "/sessions/cleanup", tag = "sessions", request_body = CleanupOrder,
    responses((status = OK, body = SessionsChanged)),
)]
async fn cleanup(
    State(app): State<App>,
    asker: Asker,
    Given(order): Given<CleanupOrder>,
) -> Reply<SessionsChanged> {
    changed(&app, &asker, SessionOrder::Cleanup { before: order.before }).await
}

/// A session to take over.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AdoptOrder {
    /// Claude's id of it, or a beginning that only one has.
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9][A-Za-z0-9_-]*$")]
    id: String,
    /// Whose it is to be.
    agent: String,
}

/// Take over a session that was made with claude in a terminal.
#[utoipa::path(
    post, path = "/sessions/adopt", tag = "sessions", request_body = AdoptOrder,
    responses((status = OK, body = SessionTaken)),
)]
async fn adopt(
    State(app): State<App>,
    asker: Asker,
    Given(order): Given<AdoptOrder>,
) -> Reply<SessionTaken> {
    let AdoptOrder { id, agent } = order;
    match ask(&app, &asker, SessionOrder::Adopt { id, agent }).await?.into() {
        Told::Taken(taken) => Ok(Json(taken)),
        other => Err(unexpected(&other)),
    }
}

async fn ask(app: &App, asker: &Asker, order: SessionOrder) -> Result<Answer, Problem> {
    let by = asker.caller.by.clone();
    Ok(app.order(asker, Command::Session { order, by }).await?)
}

async fn changed(app: &App, asker: &Asker, order: SessionOrder) -> Reply<SessionsChanged> {
    match ask(app, asker, order).await?.into() {
        Told::Sessions(sessions) => Ok(Json(sessions)),
        other => Err(unexpected(&other)),
    }
}
