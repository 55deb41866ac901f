//! Calls of the agent's API: the proxy adds the credentials and counts the tokens of the replies.
//!
//! Only the calls that the agent program needs, and whose use is in their replies, are forwarded, and
//! only to the configured host. Start at [`ApiRoute`].

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use heeler_config::ModelApiProtocol;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, COOKIE, HeaderMap, HeaderValue,
};
use hyper::http::uri::PathAndQuery;
use hyper::{Request, Response, StatusCode};
use serde_json::Value as Json;
use url::Url;

use crate::api_protocol::{
    API_KEY, ApiCallCost, KEY_HEADERS, call_target, error_body, find_call, key_header,
};
use crate::body::{ProxyBody, text_body};
use crate::decision::DenialReason;
use crate::gate::EgressGate;
use crate::meter::ActivityMeter;
use crate::passing::{pass_reply, rewrite, unavailable};
use crate::upstream::{ApiRouteError, UpstreamConnection, UpstreamServer};
use crate::usage::{CountedFormat, ReplyCounter, UsageLedger};

/// Credentials of the API, which the agent does not have.
#[derive(Clone)]
pub enum ApiCredentials {
    /// From the environment: a key, a token, or both.
    Fixed { api_key: Option<String>, bearer: Option<String> },
    /// File of a login, read at each call: another program renews it.
    LoginFile(PathBuf),
}

impl fmt::Debug for ApiCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiCredentials(…)")
    }
}

/// Way to the API of the agent.
pub struct ApiRoute {
    server: UpstreamServer,
    protocol: ModelApiProtocol,
    /// Path before that of each call.
    prefix: String,
    credentials: ApiCredentials,
    ledger: UsageLedger,
}

impl ApiRoute {
    /// Prepares the way to the API of Claude at `base`. `extra_roots` are certificates in PEM, besides
    /// those of public authorities.
    pub fn new(
        base: &str,
        credentials: ApiCredentials,
        extra_roots: Option<&[u8]>,
        ledger: UsageLedger,
    ) -> Result<ApiRoute, ApiRouteError> {
        let address = || ApiRouteError::Address(base.to_owned());
        let url: Url = base.parse().map_err(|_| address())?;
        let server = UpstreamServer::new(&url, extra_roots)?;
        let prefix = url.path().trim_end_matches('/').to_owned();
        let protocol = ModelApiProtocol::Anthropic;
        Ok(ApiRoute { server, protocol, prefix, credentials, ledger })
    }

    /// Returns the way to an API with another protocol.
    pub fn with_protocol(self, protocol: ModelApiProtocol) -> ApiRoute {
        ApiRoute { protocol, ..self }
    }

    /// Forwards a call.
    pub(crate) async fn call(
        &self,
        mut request: Request<Incoming>,
        kept: &mut Option<UpstreamConnection>,
        gate: &EgressGate,
        meter: &ActivityMeter,
    ) -> Response<ProxyBody> {
        let Some(cost) = find_call(self.protocol, request.method(), request.uri().path()) else {
            let reason = DenialReason::ApiPath.to_string();
            return self.error(StatusCode::FORBIDDEN, "permission_error", &reason);
        };
        if cost == ApiCallCost::Counted && self.ledger.is_spent() {
            let reason = DenialReason::Budget.to_string();
            return self.error(StatusCode::FORBIDDEN, "billing_error", &reason);
        }
        let Some(credential) = self.credential(request.headers()) else {
            let reason = "the API credentials of this run are missing or cannot be read";
            return self.error(StatusCode::UNAUTHORIZED, "authentication_error", reason);
        };
        prepare_headers(request.headers_mut(), credential);
        let target = format!("{}{}", self.prefix, call_target(self.protocol, request.uri()));
        let Ok(target) = target.parse::<PathAndQuery>() else {
            return unavailable(StatusCode::BAD_REQUEST, "API", "the path is malformed");
        };
        let Some(request) = rewrite(request, Some(target), &self.server.authority, meter) else {
            return unavailable(StatusCode::BAD_REQUEST, "API", "the request is malformed");
        };
        let (request, sent) = count_request(request);
        let mut connection = match self.connection(kept, gate).await {
            Ok(connection) => connection,
            Err(reply) => return *reply,
        };
        match connection.sender.send_request(request).await {
            Ok(reply) => {
                *kept = Some(connection);
                let is_counted = cost == ApiCallCost::Counted;
                let counter = is_counted.then(|| self.counter(&reply, sent)).flatten();
                pass_reply(reply, meter, |body| body.counter = counter)
            }
            Err(error) => {
                tracing::debug!(%error, "a call of the API could not be forwarded");
                unavailable(StatusCode::BAD_GATEWAY, "API", "the API gave no valid reply")
            }
        }
    }

    /// Returns the counter of a reply to a request of which this many bytes were sent.
    fn counter(&self, reply: &Response<Incoming>, sent: Arc<AtomicU64>) -> Option<ReplyCounter> {
        let kind = reply.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let format = match kind {
            _ if reply.status() != StatusCode::OK => return None,
            Some(kind) if kind.starts_with("text/event-stream") => CountedFormat::EventStream,
            _ => CountedFormat::Json,
        };
        if reply.headers().contains_key(CONTENT_ENCODING) {
            // No encoding was asked for, so this is no API that can be counted.
            tracing::warn!(
                "the API compressed a reply that was asked for plainly; it is not counted"
            );
        }
        Some(ReplyCounter::new(self.protocol, format, sent, self.ledger.clone()))
    }

    /// Returns an error in the form of the API, which the agent program understands.
    fn error(&self, status: StatusCode, kind: &str, message: &str) -> Response<ProxyBody> {
        let body = error_body(self.protocol, status, kind, &format!("heeler: {message}"));
        let mut reply = Response::new(text_body(body.to_string()));
        *reply.status_mut() = status;
        let json = HeaderValue::from_static("application/json");
        reply.headers_mut().insert(CONTENT_TYPE, json);
        reply
    }

    /// Returns the kept connection if it still works, or a new one.
    async fn connection(
        &self,
        kept: &mut Option<UpstreamConnection>,
        gate: &EgressGate,
    ) -> Result<UpstreamConnection, Box<Response<ProxyBody>>> {
        if let Some(mut connection) = kept.take()
            && connection.sender.ready().await.is_ok()
        {
            return Ok(connection);
        }
        self.server.connect(gate, "API").await
    }

    /// Returns the header with the credential, of the kind that the agent uses if there are two.
    fn credential(&self, headers: &HeaderMap) -> Option<(&'static str, HeaderValue)> {
        let bearer = |token: &str| {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
            value.set_sensitive(true);
            Some((AUTHORIZATION.as_str(), value))
        };
        match &self.credentials {
            ApiCredentials::LoginFile(path) => {
                let login: Json = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
                bearer(login["claudeAiOauth"]["accessToken"].as_str()?)
            }
            ApiCredentials::Fixed { api_key: Some(key), bearer: other }
                if other.is_none() || headers.contains_key(API_KEY) =>
            {
                key_header(self.protocol, key)
            }
            ApiCredentials::Fixed { bearer: token, .. } => bearer(token.as_deref()?),
        }
    }
}

/// Counts the bytes of a request's body as they are sent.
fn count_request(request: Request<ProxyBody>) -> (Request<ProxyBody>, Arc<AtomicU64>) {
    let sent = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&sent);
    let request = request.map(|body| {
        let body = body.map_frame(move |frame| {
            let bytes = frame.data_ref().map_or(0, |data| data.len());
            count.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
            frame
        });
        body.boxed_unsync()
    });
    (request, sent)
}

/// Replaces the agent's credentials. The reply must be readable, so no compression is asked for.
fn prepare_headers(headers: &mut HeaderMap, (name, value): (&'static str, HeaderValue)) {
    for removed in [AUTHORIZATION, COOKIE, ACCEPT_ENCODING] {
        headers.remove(removed);
    }
    for removed in KEY_HEADERS {
        headers.remove(removed);
    }
    headers.insert(name, value);
}
