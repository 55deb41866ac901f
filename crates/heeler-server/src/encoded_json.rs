//! JSON replies. JSON of data that was read is encoded on the reading thread, so that a long reply
//! does not delay other requests.

use std::marker::PhantomData;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::problem::ProblemDetails;

/// Initial buffer size: enough for a page of most lists.
const INITIAL_CAPACITY_BYTES: usize = 8 << 10;

/// Result of a handler.
pub(crate) type JsonResult<T> = Result<Json<T>, ProblemDetails>;

/// Result of a handler that reads the store; the JSON is encoded on the reading thread.
pub(crate) type EncodedJsonResult<T> = Result<EncodedJson<T>, ProblemDetails>;

/// JSON text of a `T`.
#[derive(Debug)]
pub(crate) struct EncodedJson<T> {
    text: Bytes,
    // The function type makes this `Send` regardless of `T`.
    of: PhantomData<fn() -> T>,
}

impl<T: Serialize> EncodedJson<T> {
    pub(crate) fn encode(value: &T) -> serde_json::Result<EncodedJson<T>> {
        let mut text = Vec::with_capacity(INITIAL_CAPACITY_BYTES);
        serde_json::to_writer(&mut text, value)?;
        Ok(EncodedJson { text: text.into(), of: PhantomData })
    }
}

impl<T> IntoResponse for EncodedJson<T> {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.text));
        let kind = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}
