//! JSON that is written on the thread that read what it tells, so that a long answer keeps nobody
//! else waiting.

use std::marker::PhantomData;

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// How long an answer may be before its text is moved: a page of most lists.
const BYTES_FORESEEN: usize = 8 << 10;

/// The text of a `T`.
#[derive(Debug)]
pub(crate) struct Written<T> {
    text: Bytes,
    of: PhantomData<fn() -> T>,
}

impl<T: Serialize> Written<T> {
    pub(crate) fn of(told: &T) -> serde_json::Result<Written<T>> {
        let mut text = Vec::with_capacity(BYTES_FORESEEN);
        serde_json::to_writer(&mut text, told)?;
        Ok(Written { text: text.into(), of: PhantomData })
    }
}

impl<T> IntoResponse for Written<T> {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.text));
        let kind = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}
