//! ETags: a reply that the client already has is not sent again.

use std::convert::Infallible;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{FromRequestParts, Request};
use axum::http::header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest as _, Sha256};

use crate::redacted_reply::RedactedReply;

/// Bytes of the digest in an ETag.
const TAG_BYTES: usize = 16;

/// Room for the headers of a reply: those of the guard, the type, the tag and the cache rule.
const REPLY_HEADERS: usize = 10;

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Adds an ETag to a JSON reply, or replies 304 if the client has it already.
pub(super) async fn add_etag(request: Request, next: Next) -> Response {
    if request.method() != Method::GET {
        return next.run(request).await;
    }
    let known = IfNoneMatchTags::from_headers(request.headers());
    let response = next.run(request).await;
    // Streams have no end, so they cannot be buffered.
    match is_taggable(&response) {
        true => TaggedResponse::buffer(response).await.into_response_for(&known),
        false => response,
    }
}

/// ETags of the replies that a client has (`If-None-Match`).
#[derive(Debug, Default)]
pub(crate) struct IfNoneMatchTags(Vec<HeaderValue>);

impl IfNoneMatchTags {
    pub(crate) fn from_headers(headers: &HeaderMap) -> IfNoneMatchTags {
        IfNoneMatchTags(headers.get_all(IF_NONE_MATCH).iter().cloned().collect())
    }
}

impl<S: Sync> FromRequestParts<S> for IfNoneMatchTags {
    type Rejection = Infallible;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<IfNoneMatchTags, Infallible> {
        Ok(IfNoneMatchTags::from_headers(&head.headers))
    }
}

/// Complete reply, with its ETag if it has one. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct TaggedResponse {
    status: StatusCode,
    headers: HeaderMap,
    bytes: Bytes,
    tag: Option<HeaderValue>,
    /// True if the bytes are redacted.
    is_redacted: bool,
}

impl TaggedResponse {
    /// Reads a reply to its end.
    pub(crate) async fn buffer(response: Response) -> TaggedResponse {
        let has_tag = is_taggable(&response);
        let (parts, body) = response.into_parts();
        let (status, bytes) = match to_bytes(body, usize::MAX).await {
            Ok(bytes) => (parts.status, bytes),
            Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, Bytes::new()),
        };
        let tag = has_tag.then(|| compute_etag(&bytes));
        TaggedResponse { status, headers: parts.headers, bytes, tag, is_redacted: false }
    }

    /// Creates the reply of JSON that was redacted where it was read.
    pub(crate) fn redacted_json(bytes: Bytes) -> TaggedResponse {
        let mut headers = HeaderMap::with_capacity(REPLY_HEADERS);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let tag = Some(compute_etag(&bytes));
        TaggedResponse { status: StatusCode::OK, headers, bytes, tag, is_redacted: true }
    }

    /// Returns the reply for a client, or 304 if the client has it.
    pub(crate) fn into_response_for(self, known: &IfNoneMatchTags) -> Response {
        let TaggedResponse { status, headers, bytes, tag, is_redacted } = self;
        let mut response = Response::new(Body::empty());
        (*response.status_mut(), *response.headers_mut()) = (status, headers);
        if is_redacted {
            response.extensions_mut().insert(RedactedReply);
        }
        let Some(tag) = tag else {
            *response.body_mut() = Body::from(bytes);
            return response;
        };
        let is_known = known.0.iter().any(|known| matches_etag(known, &tag));
        response.headers_mut().insert(ETAG, tag);
        if is_known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            // A 304 has no body that the type could describe.
            response.headers_mut().remove(CONTENT_TYPE);
        } else {
            *response.body_mut() = Body::from(bytes);
        }
        response
    }
}

fn is_taggable(response: &Response) -> bool {
    response.status() == StatusCode::OK && is_json(response.headers())
}

fn is_json(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json")
}

fn compute_etag(bytes: &[u8]) -> HeaderValue {
    let digest = Sha256::digest(bytes);
    let mut tag = String::with_capacity(2 * TAG_BYTES + 2);
    tag.push('"');
    for byte in &digest[..TAG_BYTES] {
        tag.extend([byte >> 4, byte & 15].map(|digit| char::from(HEX[usize::from(digit)])));
    }
    tag.push('"');
    HeaderValue::try_from(tag).expect("a tag is hexadecimal between quotes")
}

/// Returns true if a header contains an ETag, weak or strong.
fn matches_etag(header: &HeaderValue, tag: &HeaderValue) -> bool {
    let Ok(text) = header.to_str() else { return false };
    // A proxy that compresses replies makes their tags weak.
    let is_it = |one: &str| tag == one.trim().trim_start_matches("W/");
    text.trim() == "*" || text.split(',').any(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_found_among_others_and_weak_or_not() {
        let value = compute_etag(b"{}");
        let tag = value.to_str().unwrap();
        for (header, expected) in [
            (tag.to_owned(), true),
            (format!("W/{tag}"), true),
            (format!("\"other\", {tag}"), true),
            ("*".to_owned(), true),
            ("\"other\"".to_owned(), false),
            (tag.trim_matches('"').to_owned(), false),
        ] {
            let header = HeaderValue::from_str(&header).unwrap();
            assert_eq!(matches_etag(&header, &value), expected, "{header:?}");
        }
    }
}
