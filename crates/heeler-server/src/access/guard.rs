//! Checks of every request over TCP, and security headers of every reply.
//!
//! Start at [`guard_and_count`].

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION,
    REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use heeler_engine::{AccessOperation, Caller, DaemonCommand};
use heeler_model::secret_hash;

use super::allowed_hosts::{authority, origin_header};
use super::identity_cache::{AuthIdentity, CredentialKind, IdentityCache};
use super::{cookie, peer_caller};
use crate::caller::{RequestCaller, TcpPeer};
use crate::dashboard::SERVICE_WORKER_PATH;
use crate::metrics;
use crate::problem::ProblemDetails;
use crate::server_state::SharedServerState;

/// Header that carries the CSRF token.
const CSRF_HEADER: &str = "x-heeler-csrf";

/// Interval at which an open stream's credential is checked again, in the absence of changes.
const REVALIDATE_INTERVAL: Duration = Duration::from_secs(60);

/// Content security policy: pages may only load their own resources.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data:; manifest-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; \
    frame-ancestors 'none'";

/// Headers of every reply.
const SECURITY_HEADERS: [(HeaderName, &str); 7] = [
    (CONTENT_SECURITY_POLICY, CONTENT_POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    // With `no-referrer`, browsers would also omit the Origin of the dashboard's own forms.
    (REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (
        HeaderName::from_static("permissions-policy"),
        "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    ),
];

/// Access rule of a route, determined by its path.
#[derive(Debug, Clone, Copy, PartialEq)]
enum RouteAccess {
    /// Authenticated by a signature, or by a token.
    Webhook,
    /// Open to all: the login page and its assets.
    Public,
    /// A token or a login is required.
    Authenticated,
}

impl RouteAccess {
    fn from_path(path: &str) -> RouteAccess {
        match path {
            // A browser looks for a new service worker even if its login has ended.
            "/login" | SERVICE_WORKER_PATH => RouteAccess::Public,
            // The slash at the end keeps paths that only begin alike from being public.
            _ if path.starts_with("/assets/") => RouteAccess::Public,
            _ if path.starts_with("/hooks/") => RouteAccess::Webhook,
            _ => RouteAccess::Authenticated,
        }
    }
}

/// Runs [`guard`] and records the request in the metrics.
pub(super) async fn guard_and_count(
    State(app): State<SharedServerState>,
    request: Request,
    next: Next,
) -> Response {
    // The guard consumes the request, so its labels are taken before.
    let measured = metrics::MeasuredRequest::from_request(&request);
    let response = guard(&app, request, next).await;
    app.metrics.record_request(&measured, response.status());
    response
}

/// Passes an allowed request on, and adds the security headers to the reply.
async fn guard(app: &SharedServerState, mut request: Request, next: Next) -> Response {
    let mut response = match check_request(app, &mut request).await {
        Ok(pass) => {
            let response = next.run(request).await;
            // Other replies end soon, but a stream would outlive its revoked credential.
            match pass.filter(|_| is_stream(&response)) {
                Some(pass) => end_when_revoked(Arc::clone(app), pass, response),
                None => response,
            }
        }
        Err(refused) => refused,
    };
    // Added last, so that refusals have the headers too.
    let headers = response.headers_mut();
    headers.reserve(SECURITY_HEADERS.len() + 1);
    for (name, value) in SECURITY_HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Replies without a cache header must not be stored.
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Kind and hash of the secret that authenticated a request.
#[derive(Debug, Clone)]
pub(super) struct RequestCredential {
    kind: CredentialKind,
    hash: String,
}

fn is_stream(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// Ends a stream when its credential is revoked or expires.
fn end_when_revoked(
    app: SharedServerState,
    pass: RequestCredential,
    response: Response,
) -> Response {
    // A change before this point is noticed after the interval at the latest.
    let mut changes = app.access.identities.subscribe();
    let turned_out = async move {
        loop {
            // Waits for a change of access, or for the time to check the expiry.
            let _change = tokio::time::timeout(REVALIDATE_INTERVAL, changes.changed()).await;
            // An error ends the stream too: a caller that cannot be identified gets nothing more.
            if !matches!(identify(&app, &pass).await, Ok(Some(_))) {
                return;
            }
        }
    };
    let (head, body) = response.into_parts();
    let body = body.into_data_stream().take_until(Box::pin(turned_out));
    Response::from_parts(head, Body::from_stream(body))
}

/// Checks a request, attaches its [`RequestCaller`], and returns the credential.
async fn check_request(
    app: &SharedServerState,
    request: &mut Request,
) -> Result<Option<RequestCredential>, Response> {
    let access = RouteAccess::from_path(request.uri().path());
    let Some(peer) = request.extensions().get::<TcpPeer>().copied() else {
        return Err(
            ProblemDetails::internal_error("the connection has no peer address").into_response()
        );
    };
    // Cookies do not count for webhooks, so a page of another site gains nothing by calling one.
    if access == RouteAccess::Webhook {
        // A wrong token is no error here, because the signature may still be right.
        if let Ok(Some((identity, _))) = authenticate_token(app, request.headers()).await {
            let caller = build_caller(app, &identity, None, request.method(), peer).await;
            request.extensions_mut().insert(caller);
        }
        return Ok(None);
    }
    // Public routes are checked too: the login form must not work through DNS rebinding.
    check_host(app, request, peer).map_err(ProblemDetails::into_response)?;
    check_origin(app, request).map_err(ProblemDetails::into_response)?;
    if access == RouteAccess::Public {
        return Ok(None);
    }
    let (identity, pass, csrf) = match authenticate(app, request.uri(), request.headers()).await {
        Ok(Some(found)) => found,
        Ok(None) => return Err(unauthenticated_response(request)),
        Err(problem) => return Err(problem.into_response()),
    };
    // The logout form cannot set a header; it carries the token in its body, where its handler
    // checks it.
    if let Some(expected) = &csrf
        && !request.method().is_safe()
        && request.uri().path() != "/logout"
    {
        check_csrf(request.headers(), expected).map_err(ProblemDetails::into_response)?;
    }
    let caller = build_caller(app, &identity, csrf, request.method(), peer).await;
    request.extensions_mut().insert(caller);
    Ok(Some(pass))
}

/// Rejects a request with a host that is not allowed: it may be DNS rebinding.
fn check_host(
    app: &SharedServerState,
    request: &Request,
    peer: TcpPeer,
) -> Result<(), ProblemDetails> {
    // Without a host, or with two, the name is empty, which is never allowed.
    let name = authority(request.uri(), request.headers()).unwrap_or_default();
    if app.access.allowed_hosts.is_allowed_host(name, peer.local.ip()) {
        return Ok(());
    }
    let detail = format!("host `{name}` is not allowed");
    let problem = ProblemDetails::new(StatusCode::MISDIRECTED_REQUEST, "wrong-host", detail);
    Err(problem
        .with_hint("`web.origins` in the config lists the URLs under which a proxy serves it"))
}

/// Rejects a request that a page of another site sent.
fn check_origin(app: &SharedServerState, request: &Request) -> Result<(), ProblemDetails> {
    let headers = request.headers();
    let name = authority(request.uri(), headers).unwrap_or_default();
    // Browsers omit the Origin of plain GET requests, but `Sec-Fetch-Site` still names the sender.
    let is_ours = match origin_header(headers) {
        Some(origin) => app.access.allowed_hosts.is_own_page(origin, name),
        None => !is_cross_site(request.method(), headers),
    };
    if is_ours {
        return Ok(());
    }
    let problem = ProblemDetails::new(
        StatusCode::FORBIDDEN,
        "wrong-origin",
        "a page of another site sent it",
    );
    Err(problem
        .with_hint("`web.origins` in the config lists the URLs under which a proxy serves it"))
}

/// Returns true if a browser reports another site as the sender, except when the user followed a
/// link to a page.
fn is_cross_site(method: &Method, headers: &HeaderMap) -> bool {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_visit = method.is_safe() && header("sec-fetch-mode") == Some("navigate");
    // Another port or a sibling domain is `same-site`, and may belong to somebody else.
    matches!(header("sec-fetch-site"), Some("cross-site" | "same-site")) && !is_visit
}

/// Identifies the sender by token or cookie. With a cookie, the result includes the expected CSRF
/// token.
async fn authenticate(
    app: &SharedServerState,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Option<(AuthIdentity, RequestCredential, Option<String>)>, ProblemDetails> {
    // There is no fallback to the cookie: a rejected token must not act as the user who is logged
    // in.
    if headers.contains_key(AUTHORIZATION) {
        return Ok(authenticate_token(app, headers)
            .await?
            .map(|(identity, pass)| (identity, pass, None)));
    }
    let Some(cookie) = app.access.cookie_name_for(uri, headers).value_in(headers) else {
        return Ok(None);
    };
    let pass = RequestCredential { kind: CredentialKind::Cookie, hash: secret_hash(cookie) };
    let identity = identify(app, &pass).await?;
    Ok(identity.map(|identity| (identity, pass, Some(cookie::csrf_token(cookie)))))
}

pub(super) async fn authenticate_token(
    app: &SharedServerState,
    headers: &HeaderMap,
) -> Result<Option<(AuthIdentity, RequestCredential)>, ProblemDetails> {
    let mut given = headers.get_all(AUTHORIZATION).into_iter();
    // A proxy may read the other of two headers, so neither of them counts.
    let (Some(given), None) = (given.next(), given.next()) else { return Ok(None) };
    let Some((scheme, token)) = given.to_str().ok().and_then(|it| it.split_once(' ')) else {
        return Ok(None);
    };
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Ok(None);
    }
    let pass = RequestCredential { kind: CredentialKind::Token, hash: secret_hash(token.trim()) };
    Ok(identify(app, &pass).await?.map(|identity| (identity, pass)))
}

/// Returns true if a browser is logged in.
pub(super) async fn is_logged_in(
    app: &SharedServerState,
    head: &Parts,
) -> Result<bool, ProblemDetails> {
    let name = app.access.cookie_name_for(&head.uri, &head.headers);
    let Some(cookie) = name.value_in(&head.headers) else { return Ok(false) };
    let pass = RequestCredential { kind: CredentialKind::Cookie, hash: secret_hash(cookie) };
    Ok(identify(app, &pass).await?.is_some())
}

/// Returns the owner of a secret, if the secret is valid.
async fn identify(
    app: &SharedServerState,
    pass: &RequestCredential,
) -> Result<Option<AuthIdentity>, ProblemDetails> {
    let (known, now) = (&app.access.identities, (app.clock)());
    let RequestCredential { kind, hash } = pass.clone();
    let identity = match known.get(kind, &hash) {
        Ok(identity) => Some(identity),
        // The generation is older than the read, so a revocation during the read prevents the
        // caching.
        Err(age) => {
            let credential_hash = hash.clone();
            let found = app
                .read(move |records| IdentityCache::look_up(records, kind, &credential_hash))
                .await;
            let found = found.map_err(hide_internal_details)?;
            // Unknown secrets are not cached: guesses must not push out the entries of real
            // callers.
            if let Some(identity) = &found {
                known.insert(kind, &hash, identity, age);
            }
            found
        }
    };
    // The expiry is checked at each use, because a cached identity may have expired since.
    Ok(identity.filter(|identity| identity.is_valid(now)))
}

/// Replaces the details of an internal error, which are in the log and must not reach
/// unauthenticated callers.
pub(super) fn hide_internal_details(problem: ProblemDetails) -> ProblemDetails {
    if problem.status < 500 {
        return problem;
    }
    let detail = "the caller cannot be identified now";
    ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, "trouble", detail)
}

fn check_csrf(headers: &HeaderMap, expected: &str) -> Result<(), ProblemDetails> {
    let given = headers.get(CSRF_HEADER).and_then(|value| value.to_str().ok());
    if given.is_some_and(|given| cookie::constant_time_eq(given, expected)) {
        return Ok(());
    }
    let detail = format!("a change from a browser needs the header {CSRF_HEADER}");
    Err(ProblemDetails::new(StatusCode::FORBIDDEN, "csrf", detail).with_hint("reload the page"))
}

/// Builds the caller. Only for a request that can change state, checks if a process of a run sent
/// it.
async fn build_caller(
    app: &SharedServerState,
    identity: &AuthIdentity,
    csrf: Option<String>,
    method: &Method,
    peer: TcpPeer,
) -> RequestCaller {
    // Reading `/proc` is expensive, and a request that only reads does not need the result.
    let origin = if method.is_safe() { Caller::Unknown } else { identify_peer(peer).await };
    record_token_use(app, identity).await;
    RequestCaller {
        name: identity.caller_name(),
        scope: identity.scope(),
        engine_caller: origin,
        csrf_token: csrf,
    }
}

/// Determines if a person or a process of a run is at the other end of a connection.
pub(crate) async fn identify_peer(peer: TcpPeer) -> Caller {
    let looked = tokio::task::spawn_blocking(move || peer_caller::find_caller(peer)).await;
    // If the lookup panics, the caller counts as unknown and may change nothing.
    looked.unwrap_or(Caller::Unknown)
}

/// Records from time to time that a token is in use. The request does not wait for the record.
pub(super) async fn record_token_use(app: &SharedServerState, identity: &AuthIdentity) {
    let AuthIdentity::Token(token) = identity else { return };
    if !app.access.identities.should_record_use(token, (app.clock)()) {
        return;
    }
    let order = AccessOperation::TokensUsed { tokens: vec![token.id.clone()] };
    // The daemon itself makes this record; as a change by an unknown caller it would be refused.
    let (handle, by) = (app.dispatcher.with_caller(Caller::Person), identity.caller_name());
    let command = DaemonCommand::Access { order, by };
    // Sending blocks while the dispatcher is busy.
    let sent = tokio::task::spawn_blocking(move || handle.send(command, Box::new(|_| {}))).await;
    // A lost record only makes the time of last use less precise, so the request continues.
    if !matches!(sent, Ok(Ok(()))) {
        tracing::debug!("cannot record the use of a token");
    }
}

/// Redirects browsers to the login page; sends programs a problem with a hint.
fn unauthenticated_response(request: &Request) -> Response {
    let path = request.uri().path();
    let accepts = request.headers().get_all(ACCEPT).into_iter();
    let wants_page = accepts.filter_map(|it| it.to_str().ok()).any(|it| it.contains("text/html"));
    // Only a visit is redirected: the body of a change would be lost.
    if request.method().is_safe() && wants_page && !path.starts_with("/api/") {
        let next = request.uri().path_and_query().map_or("/", |it| it.as_str());
        let next = percent_encode(next);
        return redirect(&format!("/login?next={next}"));
    }
    let problem = ProblemDetails::new(
        StatusCode::UNAUTHORIZED,
        "unauthenticated",
        "a token or login is required",
    );
    let problem =
        problem.with_hint("send `authorization: Bearer …` with a token of heeler token create");
    let mut response = problem.into_response();
    let challenge = HeaderValue::from_static("Bearer realm=\"heeler\"");
    response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    response
}

/// Returns a redirect to another page of the dashboard.
pub(super) fn redirect(to: &str) -> Response {
    let to = HeaderValue::from_str(to).unwrap_or(HeaderValue::from_static("/"));
    // After a 303 a browser sends a GET, also in reply to a form.
    (StatusCode::SEE_OTHER, [(LOCATION, to)], Body::empty()).into_response()
}

/// Percent-encodes text for use as a query value.
fn percent_encode(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    text.bytes()
        .map(|byte| match is_plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}
