//! What our own command line asks, on the unix socket only: any command, as the engine has it.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{from_fn, map_response};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use heeler_engine::{Answer, Command, Origin, Refused, RefusedKind, RequestKey};
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::caller::Caller;
use crate::problem::Problem;
use crate::request::{Asker, BODY_BYTES_MAX, keyed, read_bytes};
use crate::{PROTOCOL, PROTOCOL_HEADER};

/// Who answers on a socket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// The daemon's process.
    pub pid: u32,
    /// Its version.
    pub version: String,
}

/// A refusal, as the client reads it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ErrorBody {
    pub(crate) error: Refused,
}

/// Where who answers can be read.
pub(crate) const HELLO: &str = "/internal/hello";

/// Where commands are sent.
pub(crate) const COMMAND: &str = "/internal/command";

/// Where a link to log in is made.
pub(crate) const LINK: &str = "/internal/link";

/// A link by which one browser may log in, once and soon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// The link.
    pub url: String,
}

/// Returns the routes of our own command line.
pub(crate) fn router() -> Router<App> {
    Router::new()
        .route(HELLO, get(hello))
        .route(COMMAND, post(command).route_layer(from_fn(keyed)))
        .route(LINK, post(link))
        .layer(map_response(with_protocol))
}

async fn with_protocol(mut response: Response) -> Response {
    response.headers_mut().insert(PROTOCOL_HEADER, HeaderValue::from(PROTOCOL));
    response
}

async fn hello(State(app): State<App>) -> Json<Hello> {
    Json(Hello { pid: std::process::id(), version: app.version.clone() })
}

async fn command(
    State(app): State<App>,
    caller: Caller,
    key: Option<Extension<RequestKey>>,
    body: Body,
) -> Response {
    let key = key.map(|Extension(key)| key);
    let answer = match read(body).await {
        Ok(command) => app.order(&Asker { caller, key }, command).await,
        Err(refused) => Err(refused),
    };
    match answer {
        Ok(answer) => Json::<Answer>(answer).into_response(),
        Err(error) => refuse(error),
    }
}

/// Promises a login to whoever is at this machine, unless an agent asks.
async fn link(State(app): State<App>, caller: Caller) -> Response {
    let made = match caller.origin {
        Origin::Person => app.access.make_link(&caller.by, caller.scope, (app.now)()),
        Origin::Run(_) | Origin::Unknown => {
            let refused = Refused::new(RefusedKind::NotAllowed, "only people open the dashboard");
            return refuse(refused);
        }
    };
    match made {
        Ok(url) => Json(Link { url }).into_response(),
        Err(error) => refuse(Refused::new(RefusedKind::Trouble, error.to_string())),
    }
}

fn refuse(error: Refused) -> Response {
    let code = StatusCode::from_u16(Problem::from(error.clone()).status);
    let code = code.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (code, Json(ErrorBody { error })).into_response()
}

async fn read(body: Body) -> Result<Command, Refused> {
    let usage = |message: String| Refused::new(RefusedKind::Usage, message);
    let bytes = read_bytes(body, BODY_BYTES_MAX).await.map_err(|problem| usage(problem.detail))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| usage(format!("the request is not understood: {error}")))
}
