//! JSON that is encoded on the thread that read the data, so that a long reply does not delay other
//! requests.

use std::marker::PhantomData;

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// Initial buffer size: enough for a page of most lists.
const INITIAL_CAPACITY_BYTES: usize = 8 << 10;

/// JSON text of a `T`.
#[derive(Debug)]
pub(crate) struct EncodedJson<T> {
    text: Bytes,
    of: PhantomData<fn() -> T>,
}

impl<T: Serialize> EncodedJson<T> {
    pub(crate) fn encode(told: &T) -> serde_json::Result<EncodedJson<T>> {
        let mut text = Vec::with_capacity(INITIAL_CAPACITY_BYTES);
        serde_json::to_writer(&mut text, told)?;
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
