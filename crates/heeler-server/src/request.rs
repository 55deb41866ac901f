//! Reading requests: bodies with a limit, parameters, who asks; what is wrong with them is a problem.

use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use heeler_engine::RequestKey;
use heeler_model::PROMPT_BYTES_MAX;
use heeler_query::told::Told;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use crate::app::App;
use crate::caller::{Caller, Scope};
use crate::problem::Problem;

/// The largest body of a request: JSON writes some characters of a prompt with six bytes.
pub(crate) const BODY_BYTES_MAX: usize = PROMPT_BYTES_MAX as usize * 6 + (2 << 20);

/// The header by which a request is given a name.
pub(crate) const IDEMPOTENCY_KEY: &str = "Idempotency-Key";

/// The longest such name.
pub(crate) const KEY_CHARS_MAX: usize = 255;

/// The header of an answer that was given before.
const REPLAYED: &str = "idempotency-replayed";

/// How long a body may take to come.
pub(crate) const BODY_WAIT: Duration = Duration::from_secs(30);

/// Reads a body, which may be neither too long nor too slow.
pub(crate) async fn read_bytes(body: Body, bytes_max: usize) -> Result<Bytes, Problem> {
    let slow = |_| {
        let detail = format!("the request took more than {} s to come", BODY_WAIT.as_secs());
        Problem::new(StatusCode::REQUEST_TIMEOUT, "too-slow", detail)
    };
    let read = tokio::time::timeout(BODY_WAIT, axum::body::to_bytes(body, bytes_max)).await;
    read.map_err(slow)?.map_err(|error| match is_too_long(&error) {
        true => {
            let detail = format!("the request is longer than {bytes_max} bytes");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail)
        }
        false => Problem::usage(format!("the request broke off: {error}")),
    })
}

fn is_too_long(error: &axum::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// A body of JSON; an empty one is `{}`.
#[derive(Debug)]
pub(crate) struct Given<T>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned> FromRequest<S> for Given<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Given<T>, Problem> {
        let bytes = read_bytes(request.into_body(), BODY_BYTES_MAX).await?;
        let bytes = if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes };
        let given = serde_json::from_slice(&bytes);
        given
            .map(Given)
            .map_err(|error| Problem::usage(format!("the request is not understood: {error}")))
    }
}

/// What stands behind the `?` of an address.
#[derive(Debug)]
pub(crate) struct Asked<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Asked<T>, Problem> {
        let asked = Query::<T>::from_request_parts(parts, state).await;
        asked.map(|Query(asked)| Asked(asked)).map_err(|error| Problem::usage(error.body_text()))
    }
}

/// What an address names.
#[derive(Debug)]
pub(crate) struct Named<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Named<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Named<T>, Problem> {
        let named = Path::<T>::from_request_parts(parts, state).await;
        named.map(|Path(named)| Named(named)).map_err(|error| Problem::usage(error.body_text()))
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Caller, Problem> {
        Caller::in_request(&parts.extensions).cloned()
    }
}

impl Caller {
    /// Returns who asks.
    pub(crate) fn in_request(extensions: &Extensions) -> Result<&Caller, Problem> {
        let who = || Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", "who asks?");
        extensions.get().ok_or_else(who)
    }

    /// Refuses those who may not.
    pub(crate) fn needs(&self, scope: Scope) -> Result<(), Problem> {
        if self.scope < scope {
            let detail = format!("{} may not do this: it needs the scope {scope}", self.by);
            return Err(Problem::new(StatusCode::FORBIDDEN, "not-allowed", detail));
        }
        Ok(())
    }
}

/// Whoever asks for a change, and the name that they gave the request. One that was answered before
/// gets that answer, and comes no further.
#[derive(Debug)]
pub(crate) struct Asker {
    pub(crate) caller: Caller,
    pub(crate) key: Option<RequestKey>,
}

impl FromRequestParts<App> for Asker {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Asker, Response> {
        let caller = Caller::from_request_parts(parts, app).await;
        let caller = caller.map_err(Problem::into_response)?;
        let key = parts.extensions.get::<RequestKey>().cloned();
        if let Some(key) = key.clone() {
            let known = app.read(move |records| records.answered(&key)).await;
            if let Some(answer) = known.map_err(Problem::into_response)? {
                let replayed = [(REPLAYED, HeaderValue::from_static("true"))];
                return Err((replayed, Json(Told::from(answer))).into_response());
            }
        }
        Ok(Asker { caller, key })
    }
}

/// Finds out the name of a request, and tells the request from others under the same name.
pub(crate) async fn keyed(
    caller: Caller,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let Some(name) = key_of(request.headers())? else { return Ok(next.run(request).await) };
    let (mut parts, body) = request.into_parts();
    let bytes = read_bytes(body, BODY_BYTES_MAX).await?;
    let mut digest = Sha256::new();
    for part in [parts.method.as_str().as_bytes(), parts.uri.to_string().as_bytes(), &bytes] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    let print = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    parts.extensions.insert(RequestKey { asker: caller.by, name, print });
    Ok(next.run(Request::from_parts(parts, Body::from(bytes))).await)
}

fn key_of(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    match value.to_str() {
        Ok(name) if (1..=KEY_CHARS_MAX).contains(&name.len()) => Ok(Some(name.to_owned())),
        _ => Err(Problem::usage(format!(
            "the header {IDEMPOTENCY_KEY} is no name of 1 to {KEY_CHARS_MAX} characters"
        ))),
    }
}
