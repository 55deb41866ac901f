//! What every request over TCP passes, and what every reply carries.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, LOCATION,
    ORIGIN, REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use heeler_engine::{AccessOrder, Command, Origin};
use heeler_model::secret_hash;

use super::known::{Identity, Kind, Known};
use super::{cookie, peer};
use crate::app::App;
use crate::caller::{Caller, Peer};
use crate::metrics;
use crate::problem::Problem;

/// The header in which a page of ours proves that it asks.
const CSRF_HEADER: &str = "x-heeler-csrf";

/// How often it is looked whether those who read a stream are still let in, where nothing changed.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// What browsers may do with our pages: load what is ours, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; \
    frame-ancestors 'none'";

/// What every reply carries.
const HEADERS: [(HeaderName, &str); 7] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    // With `no-referrer` browsers would not say either that a form is ours.
    (REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (
        HeaderName::from_static("permissions-policy"),
        "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    ),
];

/// What a request is for, by its path.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Door {
    /// Signatures say who calls; a token may too.
    Hook,
    /// Anybody may: the login and what its page needs.
    Open,
    /// Whoever can say who they are.
    Closed,
}

impl Door {
    fn of(path: &str) -> Door {
        match path {
            "/login" => Door::Open,
            _ if path.starts_with("/assets/") => Door::Open,
            _ if path.starts_with("/hooks/") => Door::Hook,
            _ => Door::Closed,
        }
    }
}

/// Does what [`guard`] does, and counts it.
pub(super) async fn counted(State(app): State<App>, request: Request, next: Next) -> Response {
    let asked = metrics::Asked::of(&request);
    let response = guard(&app, request, next).await;
    app.metrics.replied(&asked, response.status());
    response
}

/// Lets a request pass if it may, and gives the reply its headers.
async fn guard(app: &App, mut request: Request, next: Next) -> Response {
    let mut response = match check(app, &mut request).await {
        Ok(pass) => {
            let response = next.run(request).await;
            match pass.filter(|_| is_stream(&response)) {
                Some(pass) => while_let_in(Arc::clone(app), pass, response),
                None => response,
            }
        }
        Err(refused) => refused,
    };
    let headers = response.headers_mut();
    headers.reserve(HEADERS.len() + 1);
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // What says nothing else is nobody's to keep.
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// A secret that let somebody in.
#[derive(Debug, Clone)]
struct Pass {
    kind: Kind,
    hash: String,
}

fn is_stream(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// Ends a stream when whoever reads it is let in no more.
fn while_let_in(app: App, pass: Pass, response: Response) -> Response {
    let mut changes = app.access.known.changes();
    let turned_out = async move {
        loop {
            // Whichever comes first: a change, or the time to look at the clock.
            let _change = tokio::time::timeout(LOOK_EVERY, changes.changed()).await;
            if !matches!(identify(&app, &pass).await, Ok(Some(_))) {
                return;
            }
        }
    };
    let (head, body) = response.into_parts();
    let body = body.into_data_stream().take_until(Box::pin(turned_out));
    Response::from_parts(head, Body::from_stream(body))
}

/// Checks a request, puts who sent it into it, and returns what let them in.
async fn check(app: &App, request: &mut Request) -> Result<Option<Pass>, Response> {
    let door = Door::of(request.uri().path());
    let Some(peer) = request.extensions().get::<Peer>().copied() else {
        return Err(Problem::trouble("nobody is at the other end").into_response());
    };
    if door == Door::Hook {
        if let Ok(Some((identity, _))) = by_token(app, request.headers()).await {
            let caller = caller(app, &identity, None, request.method(), peer).await;
            request.extensions_mut().insert(caller);
        }
        return Ok(None);
    }
    check_name(app, request, peer).map_err(Problem::into_response)?;
    check_page(app, request).map_err(Problem::into_response)?;
    if door == Door::Open {
        return Ok(None);
    }
    let (identity, pass, csrf) = match authenticate(app, request.uri(), request.headers()).await {
        Ok(Some(found)) => found,
        Ok(None) => return Err(unauthenticated(request)),
        Err(problem) => return Err(problem.into_response()),
    };
    if let Some(expected) = &csrf
        && !request.method().is_safe()
        && request.uri().path() != "/logout"
    {
        check_csrf(request.headers(), expected).map_err(Problem::into_response)?;
    }
    let caller = caller(app, &identity, csrf, request.method(), peer).await;
    request.extensions_mut().insert(caller);
    Ok(Some(pass))
}

/// Returns what a request calls us.
pub(super) fn authority<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> Option<&'r str> {
    if let Some(authority) = uri.authority() {
        return Some(authority.as_str());
    }
    let mut hosts = headers.get_all(HOST).into_iter();
    let host = hosts.next()?.to_str().ok()?;
    hosts.next().is_none().then_some(host)
}

/// Returns the page that asks, as a browser names it.
pub(super) fn origin(headers: &HeaderMap) -> Option<&str> {
    let mut origins = headers.get_all(ORIGIN).into_iter();
    let origin = origins.next()?.to_str().unwrap_or_default();
    // No browser names two; what does is no page.
    Some(origins.next().map_or(origin, |_| ""))
}

/// Refuses what does not mean us: a strange name may lead to this machine.
fn check_name(app: &App, request: &Request, peer: Peer) -> Result<(), Problem> {
    let name = authority(request.uri(), request.headers()).unwrap_or_default();
    if app.access.names.mean_us(name, peer.local.ip()) {
        return Ok(());
    }
    let detail = format!("this daemon is not called `{name}`");
    let problem = Problem::new(StatusCode::MISDIRECTED_REQUEST, "wrong-host", detail);
    Err(problem
        .hint("`web.origins` in the config names the addresses under which a proxy serves it"))
}

/// Refuses what a page of somebody else's sends.
fn check_page(app: &App, request: &Request) -> Result<(), Problem> {
    let headers = request.headers();
    let name = authority(request.uri(), headers).unwrap_or_default();
    let is_ours = match origin(headers) {
        Some(origin) => app.access.names.is_own_page(origin, name),
        None => !is_from_elsewhere(request.method(), headers),
    };
    if is_ours {
        return Ok(());
    }
    let problem =
        Problem::new(StatusCode::FORBIDDEN, "wrong-origin", "a page of somebody else asks");
    Err(problem
        .hint("`web.origins` in the config names the addresses under which a proxy serves it"))
}

/// Says whether a browser says that another site asks, other than by a link to one of our pages.
fn is_from_elsewhere(method: &Method, headers: &HeaderMap) -> bool {
    let said = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_visit = method.is_safe() && said("sec-fetch-mode") == Some("navigate");
    matches!(said("sec-fetch-site"), Some("cross-site" | "same-site")) && !is_visit
}

/// Returns whose a token or a cookie is; with a cookie, what a page must prove.
async fn authenticate(
    app: &App,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Option<(Identity, Pass, Option<String>)>, Problem> {
    if headers.contains_key(AUTHORIZATION) {
        return Ok(by_token(app, headers).await?.map(|(identity, pass)| (identity, pass, None)));
    }
    let Some(cookie) = app.access.cookie(uri, headers).find(headers) else { return Ok(None) };
    let pass = Pass { kind: Kind::Cookie, hash: secret_hash(cookie) };
    let identity = identify(app, &pass).await?;
    Ok(identity.map(|identity| (identity, pass, Some(cookie::csrf(cookie)))))
}

async fn by_token(app: &App, headers: &HeaderMap) -> Result<Option<(Identity, Pass)>, Problem> {
    let mut given = headers.get_all(AUTHORIZATION).into_iter();
    let (Some(given), None) = (given.next(), given.next()) else { return Ok(None) };
    let Some((scheme, token)) = given.to_str().ok().and_then(|it| it.split_once(' ')) else {
        return Ok(None);
    };
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Ok(None);
    }
    let pass = Pass { kind: Kind::Token, hash: secret_hash(token.trim()) };
    Ok(identify(app, &pass).await?.map(|identity| (identity, pass)))
}

/// Says whether a browser is logged in.
pub(super) async fn is_logged_in(app: &App, head: &Parts) -> Result<bool, Problem> {
    let name = app.access.cookie(&head.uri, &head.headers);
    let Some(cookie) = name.find(&head.headers) else { return Ok(false) };
    let pass = Pass { kind: Kind::Cookie, hash: secret_hash(cookie) };
    Ok(identify(app, &pass).await?.is_some())
}

/// Returns whose a secret is, if it counts.
async fn identify(app: &App, pass: &Pass) -> Result<Option<Identity>, Problem> {
    let (known, now) = (&app.access.known, (app.now)());
    let Pass { kind, hash } = pass.clone();
    let identity = match known.remembered(kind, &hash) {
        Ok(identity) => Some(identity),
        Err(age) => {
            let asked = hash.clone();
            let found = app.read(move |records| Known::look(records, kind, &asked)).await;
            let found = found.map_err(discreet)?;
            if let Some(identity) = &found {
                known.remember(kind, &hash, identity, age);
            }
            found
        }
    };
    Ok(identity.filter(|identity| identity.counts(now)))
}

/// Says no more than that it cannot be said now who asks: what is wrong with us is in the log, and no
/// stranger's business.
pub(super) fn discreet(problem: Problem) -> Problem {
    if problem.status < 500 {
        return problem;
    }
    let detail = "who asks cannot be looked up now";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "trouble", detail)
}

fn check_csrf(headers: &HeaderMap, expected: &str) -> Result<(), Problem> {
    let given = headers.get(CSRF_HEADER).and_then(|value| value.to_str().ok());
    if given.is_some_and(|given| cookie::is_same(given, expected)) {
        return Ok(());
    }
    let detail = format!("a browser changes something only with the header {CSRF_HEADER}");
    Err(Problem::new(StatusCode::FORBIDDEN, "csrf", detail).hint("load the page again"))
}

/// Returns who asks. Where something is to be changed it is found out whether a run's process does.
async fn caller(
    app: &App,
    identity: &Identity,
    csrf: Option<String>,
    method: &Method,
    peer: Peer,
) -> Caller {
    let origin = if method.is_safe() { Origin::Unknown } else { origin_of(peer).await };
    note_use(app, identity).await;
    Caller { by: identity.by(), scope: identity.scope(), origin, csrf }
}

/// Says whether a person or a process of a run is at the other end.
pub(crate) async fn origin_of(peer: Peer) -> Origin {
    let looked = tokio::task::spawn_blocking(move || peer::origin(peer)).await;
    looked.unwrap_or(Origin::Unknown)
}

/// Has it put on record now and then that a token is in use; nobody waits for that.
async fn note_use(app: &App, identity: &Identity) {
    let Identity::Token(token) = identity else { return };
    if !app.access.known.is_use_due(token, (app.now)()) {
        return;
    }
    let order = AccessOrder::TokensUsed { tokens: vec![token.id.clone()] };
    let (handle, by) = (app.handle.of(Origin::Person), identity.by());
    let command = Command::Access { order, by };
    let told = tokio::task::spawn_blocking(move || handle.send(command, Box::new(|_| {}))).await;
    if !matches!(told, Ok(Ok(()))) {
        tracing::debug!("the use of a token is not on record");
    }
}

/// Sends people to the login, and tells programs what is missing.
fn unauthenticated(request: &Request) -> Response {
    let path = request.uri().path();
    let accepts = request.headers().get_all(ACCEPT).into_iter();
    let wants_page = accepts.filter_map(|it| it.to_str().ok()).any(|it| it.contains("text/html"));
    if request.method().is_safe() && wants_page && !path.starts_with("/api/") {
        let next = request.uri().path_and_query().map_or("/", |it| it.as_str());
        let next = percent_encode(next);
        return redirect(&format!("/login?next={next}"));
    }
    let problem =
        Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", "who asks is not known");
    let problem = problem.hint(
        "`authorization: Bearer …` with a token: that of the file api-token in the state \
         directory, or one of heeler token create",
    );
    let mut response = problem.into_response();
    let challenge = HeaderValue::from_static("Bearer realm=\"heeler\"");
    response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    response
}

/// Leads a browser elsewhere on our pages.
pub(super) fn redirect(to: &str) -> Response {
    let to = HeaderValue::from_str(to).unwrap_or(HeaderValue::from_static("/"));
    (StatusCode::SEE_OTHER, [(LOCATION, to)], Body::empty()).into_response()
}

/// Writes text so that it can stand behind `=` in an address.
fn percent_encode(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    text.bytes()
        .map(|byte| match is_plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}
