//! Routes for Heeler's own command line, on the unix socket only: any [`DaemonCommand`], without
//! translation.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{from_fn, map_response};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use heeler_engine::{
    Caller, CommandReply, DaemonCommand, DaemonCommandError, DaemonCommandErrorKind, IdempotencyKey,
};
use serde::{Deserialize, Serialize};

use crate::caller::{AccessScope, KeyedCaller, RequestCaller};
use crate::daemon_info::DaemonInfo;
use crate::extractors::{BODY_BYTES_MAX, attach_request_key, read_bytes};
use crate::problem::ProblemDetails;
use crate::server_state::SharedServerState;
use crate::{PROTOCOL, PROTOCOL_HEADER};

/// Error reply, as [`crate::DaemonClient`] reads it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CommandErrorBody {
    pub(crate) error: DaemonCommandError,
}

/// Beginning of the paths of this interface.
pub(crate) const PREFIX: &str = "/internal/";

/// Path that returns [`DaemonInfo`].
pub(crate) const HELLO_PATH: &str = "/internal/hello";

/// Path that accepts commands.
pub(crate) const COMMAND_PATH: &str = "/internal/command";

/// Path that creates a login link.
pub(crate) const LINK_PATH: &str = "/internal/link";

/// Link with which one browser can log in, once, within a few minutes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoginLink {
    pub url: String,
}

pub(crate) fn router() -> Router<SharedServerState> {
    Router::new()
        .route(HELLO_PATH, get(hello))
        .route(COMMAND_PATH, post(command).route_layer(from_fn(attach_request_key)))
        .route(LINK_PATH, post(create_link))
        .layer(map_response(with_protocol))
}

async fn with_protocol(mut response: Response) -> Response {
    response.headers_mut().insert(PROTOCOL_HEADER, HeaderValue::from(PROTOCOL));
    response
}

async fn hello(State(app): State<SharedServerState>) -> Json<DaemonInfo> {
    Json(app.daemon_info.clone())
}

async fn command(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
    key: Option<Extension<IdempotencyKey>>,
    body: Body,
) -> Response {
    let key = key.map(|Extension(key)| key);
    // Every command can be sent here, so a token with a smaller scope belongs to the API. The rights
    // of runs and hooks are checked by the dispatcher.
    if caller.engine_caller == Caller::Person && caller.scope < AccessScope::Admin {
        return error_response(DaemonCommandError::new(
            DaemonCommandErrorKind::NotAllowed,
            "this token does not have the scope `admin`; use the API under /api/v1",
        ));
    }
    let answer = match read_command(body).await {
        // No object is looked up before, so the dispatcher itself can answer a repeated key.
        Ok(mut command) => {
            // The record names the caller that the kernel or a credential showed.
            command.set_requester(&caller.name);
            app.send_keyed_command(&KeyedCaller { caller, key }, command).await
        }
        Err(refused) => Err(refused),
    };
    match answer {
        Ok(answer) => Json::<CommandReply>(answer).into_response(),
        Err(error) => error_response(error),
    }
}

/// Creates a login link for a person on this machine; refuses agents.
async fn create_link(State(app): State<SharedServerState>, caller: RequestCaller) -> Response {
    // With a link an agent could log in as its user.
    let link = match caller.engine_caller {
        Caller::Person => app.access.make_link(&caller.name, caller.scope, (app.clock)()),
        Caller::Run(_) | Caller::Hook(_) | Caller::Unknown => {
            let refused = DaemonCommandError::new(
                DaemonCommandErrorKind::NotAllowed,
                "only people may open the dashboard",
            );
            return error_response(refused);
        }
    };
    match link {
        Ok(url) => Json(LoginLink { url }).into_response(),
        Err(error) => error_response(DaemonCommandError::new(
            DaemonCommandErrorKind::Trouble,
            error.to_string(),
        )),
    }
}

fn error_response(error: DaemonCommandError) -> Response {
    let code = StatusCode::from_u16(ProblemDetails::from(error.clone()).status);
    let code = code.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (code, Json(CommandErrorBody { error })).into_response()
}

async fn read_command(body: Body) -> Result<DaemonCommand, DaemonCommandError> {
    let usage = |message: String| DaemonCommandError::new(DaemonCommandErrorKind::Usage, message);
    let bytes = read_bytes(body, BODY_BYTES_MAX).await.map_err(|problem| usage(problem.detail))?;
    serde_json::from_slice(&bytes).map_err(|error| usage(format!("invalid request: {error}")))
}
