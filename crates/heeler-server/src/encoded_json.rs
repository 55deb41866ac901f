//! JSON that is written on the thread that read what it tells, so that a long answer keeps nobody
//! else waiting.

use std::marker::PhantomData;

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// How long an answer may be before its text is moved: a page of most lists.
const INITIAL_CAPACITY_BYTES: usize = 8 << 10;

/// The text of a `T`.
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
