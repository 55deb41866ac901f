//! Replies that did not change are not sent again.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use sha2::{Digest as _, Sha256};

/// How many bytes of a digest tell replies apart.
const TAG_BYTES: usize = 16;

/// Gives a reply of JSON its tag, or says that whoever asks has it already.
pub(super) async fn tagged(request: Request, next: Next) -> Response {
    if request.method() != Method::GET {
        return next.run(request).await;
    }
    let known = request.headers().get_all(IF_NONE_MATCH).iter().cloned().collect::<Vec<_>>();
    let response = next.run(request).await;
    // Streams have no end that could be waited for.
    if response.status() != StatusCode::OK || !is_json(response.headers()) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let Ok(bytes) = to_bytes(body, usize::MAX).await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let tag = tag(&bytes);
    let is_known = known.iter().any(|known| matches(known, &tag));
    let tag = HeaderValue::from_str(&tag).expect("a tag is hexadecimal between quotes");
    parts.headers.insert(ETAG, tag);
    if is_known {
        parts.status = StatusCode::NOT_MODIFIED;
        parts.headers.remove(CONTENT_TYPE);
        return Response::from_parts(parts, Body::empty());
    }
    Response::from_parts(parts, Body::from(bytes))
}

fn is_json(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json")
}

fn tag(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let hex: String = digest[..TAG_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("\"{hex}\"")
}

/// Says whether a header names a tag; a weak one is as good for this.
fn matches(header: &HeaderValue, tag: &str) -> bool {
    let Ok(text) = header.to_str() else { return false };
    text.trim() == "*" || text.split(',').any(|one| one.trim().trim_start_matches("W/") == tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_found_among_others_and_weak_or_not() {
        let tag = tag(b"{}");
        for (header, expected) in [
            (tag.clone(), true),
            (format!("W/{tag}"), true),
            (format!("\"other\", {tag}"), true),
            ("*".to_owned(), true),
            ("\"other\"".to_owned(), false),
            (tag.trim_matches('"').to_owned(), false),
        ] {
            let header = HeaderValue::from_str(&header).unwrap();
            assert_eq!(matches(&header, &tag), expected, "{header:?}");
        }
    }
}
