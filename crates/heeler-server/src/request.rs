//! Reading requests: bodies with a limit, parameters, who asks; what is wrong with them is a problem.

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use heeler_model::PROMPT_BYTES_MAX;
use serde::de::DeserializeOwned;

use crate::caller::Caller;
use crate::problem::Problem;

/// The largest body of a request: JSON writes some characters of a prompt with six bytes.
pub(crate) const BODY_BYTES_MAX: usize = PROMPT_BYTES_MAX as usize * 6 + (2 << 20);

/// Reads a body, which may come slowly but not without end.
pub(crate) async fn read_bytes(body: Body, bytes_max: usize) -> Result<Bytes, Problem> {
    axum::body::to_bytes(body, bytes_max).await.map_err(|error| match is_too_long(&error) {
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
        let caller = parts.extensions.get::<Caller>().cloned();
        caller.ok_or_else(|| Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", "who asks?"))
    }
}
