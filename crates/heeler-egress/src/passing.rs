//! Requests and replies on their way through the proxy, and the replies of the proxy itself.

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::{Request, Response, StatusCode, Uri, Version};

use crate::body::{PassingBody, ProxyBody, remove_hop_headers, text_body};
use crate::decision::DenialReason;
use crate::gate::ConnectFailure;
use crate::meter::ActivityMeter;

/// Returns the request in the form for the host itself.
pub(crate) fn rewrite(
    request: Request<Incoming>,
    path: Option<PathAndQuery>,
    host: &str,
    meter: &ActivityMeter,
) -> Option<Request<ProxyBody>> {
    let (mut parts, body) = request.into_parts();
    remove_hop_headers(&mut parts.headers);
    parts.headers.insert(HOST, host.parse().ok()?);
    parts.uri = Uri::from(path.unwrap_or(PathAndQuery::from_static("/")));
    parts.version = Version::HTTP_11;
    let body = PassingBody::new(body, meter.clone());
    Some(Request::from_parts(parts, body.boxed_unsync()))
}

/// Returns the reply of a host for the agent.
pub(crate) fn pass_reply(
    reply: Response<Incoming>,
    meter: &ActivityMeter,
    complete: impl FnOnce(&mut PassingBody),
) -> Response<ProxyBody> {
    let (mut parts, body) = reply.into_parts();
    remove_hop_headers(&mut parts.headers);
    let mut body = PassingBody::new(body, meter.clone());
    complete(&mut body);
    Response::from_parts(parts, body.boxed_unsync())
}

/// Returns the reply to a request that could not be connected.
pub(crate) fn failed(failure: &ConnectFailure, name: &str) -> Response<ProxyBody> {
    match failure {
        ConnectFailure::Denied(reason) => denied(reason, name),
        ConnectFailure::Unresolved => {
            unavailable(StatusCode::BAD_GATEWAY, name, "the name has no address")
        }
        ConnectFailure::Unreachable(error) => {
            unavailable(StatusCode::BAD_GATEWAY, name, &error.to_string())
        }
        ConnectFailure::TimedOut => {
            unavailable(StatusCode::GATEWAY_TIMEOUT, name, "the host did not answer in time")
        }
    }
}

pub(crate) fn denied(reason: &DenialReason, name: &str) -> Response<ProxyBody> {
    unavailable(StatusCode::FORBIDDEN, name, &reason.to_string())
}

pub(crate) fn unavailable(status: StatusCode, name: &str, reason: &str) -> Response<ProxyBody> {
    let mut reply = Response::new(text_body(format!("heeler: {name}: {reason}\n")));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    reply
}
