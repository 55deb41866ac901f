//! Calls of the agent's API: the proxy adds the credentials and counts the tokens of the replies.
//!
//! Only the calls that the agent program needs, and whose use is in their replies, are forwarded, and
//! only to the configured host. Start at [`ApiRoute`].

use std::fmt;
use std::path::PathBuf;

use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, COOKIE, HeaderMap, HeaderValue,
};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value as Json, json};
use url::Url;

use crate::body::{ProxyBody, text_body};
use crate::decision::DenialReason;
use crate::gate::EgressGate;
use crate::meter::ActivityMeter;
use crate::passing::{pass_reply, rewrite, unavailable};
use crate::upstream::{ApiRouteError, UpstreamConnection, UpstreamServer};
use crate::usage::{CountedFormat, ReplyCounter, UsageLedger};

/// Header of an API key.
const API_KEY: &str = "x-api-key";

/// Path whose replies cost money and tell their use.
const MESSAGES: &str = "/v1/messages";

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
    /// Path before that of each call.
    prefix: String,
    credentials: ApiCredentials,
    ledger: UsageLedger,
}

impl ApiRoute {
    /// Prepares the way to the API at `base`. `extra_roots` are certificates in PEM, besides those of
    /// public authorities.
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
        Ok(ApiRoute { server, prefix, credentials, ledger })
    }

    /// Forwards a call.
    pub(crate) async fn call(
        &self,
        mut request: Request<Incoming>,
        kept: &mut Option<UpstreamConnection>,
        gate: &EgressGate,
        meter: &ActivityMeter,
    ) -> Response<ProxyBody> {
        let path = request.uri().path().to_owned();
        if !is_needed(request.method(), &path) {
            return api_error(
                StatusCode::FORBIDDEN,
                "permission_error",
                &DenialReason::ApiPath.to_string(),
            );
        }
        if path == MESSAGES && self.ledger.is_spent() {
            return api_error(
                StatusCode::FORBIDDEN,
                "billing_error",
                &DenialReason::Budget.to_string(),
            );
        }
        let Some(credential) = self.credential(request.headers()) else {
            return api_error(
                StatusCode::UNAUTHORIZED,
                "authentication_error",
                "the API credentials of this run are missing or cannot be read",
            );
        };
        prepare_headers(request.headers_mut(), credential);
        let call = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
        let target = format!("{}{call}", self.prefix);
        let Ok(target) = target.parse::<PathAndQuery>() else {
            return unavailable(StatusCode::BAD_REQUEST, "API", "the path is malformed");
        };
        let Some(request) = rewrite(request, Some(target), &self.server.authority, meter) else {
            return unavailable(StatusCode::BAD_REQUEST, "API", "the request is malformed");
        };
        let mut connection = match self.connection(kept, gate).await {
            Ok(connection) => connection,
            Err(reply) => return *reply,
        };
        match connection.sender.send_request(request).await {
            Ok(reply) => {
                *kept = Some(connection);
                let counter = (path == MESSAGES).then(|| self.counter(&reply)).flatten();
                pass_reply(reply, meter, |body| body.counter = counter)
            }
            Err(error) => {
                tracing::debug!(%error, "a call of the API could not be forwarded");
                unavailable(StatusCode::BAD_GATEWAY, "API", "the API gave no valid reply")
            }
        }
    }

    fn counter(&self, reply: &Response<Incoming>) -> Option<ReplyCounter> {
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
        Some(ReplyCounter::new(format, self.ledger.clone()))
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
        let bearer = |token: &str| Some((AUTHORIZATION.as_str(), format!("Bearer {token}")));
        let (name, value) = match &self.credentials {
            ApiCredentials::LoginFile(path) => {
                let login: Json = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
                bearer(login["claudeAiOauth"]["accessToken"].as_str()?)?
            }
            ApiCredentials::Fixed { api_key: Some(key), bearer: other }
                if other.is_none() || headers.contains_key(API_KEY) =>
            {
                (API_KEY, key.clone())
            }
            ApiCredentials::Fixed { bearer: token, .. } => bearer(token.as_deref()?)?,
        };
        let mut value = HeaderValue::from_str(&value).ok()?;
        value.set_sensitive(true);
        Some((name, value))
    }
}

/// Replaces the agent's credentials. The reply must be readable, so no compression is asked for.
fn prepare_headers(headers: &mut HeaderMap, (name, value): (&'static str, HeaderValue)) {
    for removed in [API_KEY, AUTHORIZATION.as_str(), COOKIE.as_str(), ACCEPT_ENCODING.as_str()] {
        headers.remove(removed);
    }
    headers.insert(name, value);
}

/// Returns true for the calls that Claude needs. Others, such as batches, cost money that their replies
/// do not tell.
fn is_needed(method: &Method, path: &str) -> bool {
    match *method {
        Method::POST => matches!(path, MESSAGES | "/v1/messages/count_tokens"),
        Method::GET | Method::HEAD => {
            let is_model =
                |name: &str| !name.is_empty() && !name.contains(['/', '%']) && name != "..";
            matches!(path, "/" | "/api/hello" | "/v1/models")
                || path.strip_prefix("/v1/models/").is_some_and(is_model)
        }
        _ => false,
    }
}

/// Returns an error in the form of the API, which the agent program understands.
fn api_error(status: StatusCode, kind: &str, message: &str) -> Response<ProxyBody> {
    let body =
        json!({"type": "error", "error": {"type": kind, "message": format!("heeler: {message}")}});
    let mut reply = Response::new(text_body(body.to_string()));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}
