//! The routes `/login` and `/logout`.

use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Extension, FromRequest as _, Request, State};
use axum::http::header::{RETRY_AFTER, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{Html, IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Form, Router};
use heeler_engine::{
    AccessOperation, AccessSecret, Caller, DaemonCommand, DaemonCommandErrorKind, LoginMethod,
};
use heeler_model::{AccessName, secret_hash};
use heeler_pages::login::{LoginView, logged_in_page, page};
use maud::Markup;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::allowed_hosts::{authority, origin_header};
use super::guard::{hide_internal_details, identify_peer, is_logged_in, redirect};
use super::login_limiter::LoginAttempt;
use super::{cookie, password};
use crate::caller::{RequestCaller, TcpPeer};
use crate::extractors::{QueryParams, read_bytes};
use crate::problem::ProblemDetails;
use crate::server_state::SharedServerState;

/// Size limit of a form: a name, a password and a path.
const FORM_BYTES_MAX: usize = 16 << 10;

/// Title of the login pages.
const PRODUCT: &str = "Heeler";

/// Error for a wrong name and a wrong password alike.
const WRONG_CREDENTIALS: &str = "The name or the password is wrong.";

pub(super) fn router() -> Router<SharedServerState> {
    Router::new().route("/login", get(show_login).post(log_in)).route("/logout", post(log_out))
}

/// Query parameters of the login page.
#[derive(Debug, Deserialize)]
struct LoginParams {
    next: Option<String>,
    link: Option<String>,
}

/// Shows the login page, or logs in a browser with a one-time link.
async fn show_login(
    State(app): State<SharedServerState>,
    Extension(peer): Extension<TcpPeer>,
    QueryParams(params): QueryParams<LoginParams>,
    request: Request,
) -> Result<Response, ProblemDetails> {
    let (head, _) = request.into_parts();
    let next = safe_redirect_path(params.next.as_deref());
    // A HEAD request must not use up the link.
    let Some(secret) = params.link.filter(|_| head.method == Method::GET) else {
        return Ok(match is_logged_in(&app, &head).await? {
            true => redirect(&next),
            false => login_page(StatusCode::OK, LoginView { next, ..LoginView::default() }),
        });
    };
    // An agent's process must not use up a link. The process lookup is expensive, so it is skipped
    // for unknown links.
    let by = match app.access.has_link(&secret) {
        true => identify_peer(peer).await,
        false => Caller::Person,
    };
    if by != Caller::Person {
        return Ok(refused_page(StatusCode::FORBIDDEN, &next, "", "Only people can log in."));
    }
    let Some(link) = app.access.take_link(&secret, (app.clock)()) else {
        // A browser that prefetches pages has already used the link for this user.
        if is_logged_in(&app, &head).await? {
            return Ok(html(logged_in_page(PRODUCT, &next)));
        }
        let why = "This link was already used or has expired: heeler open creates another.";
        return Ok(refused_page(StatusCode::FORBIDDEN, &next, "", why));
    };
    let method = LoginMethod::Link { name: link.user_name, scope: link.scope };
    // A page and not a redirect, because browsers would not send the new cookie with a redirect.
    let mut response = html(logged_in_page(PRODUCT, &next));
    match create_login(&app, &head, by, method).await? {
        Ok(cookie) => response.headers_mut().insert(SET_COOKIE, cookie),
        Err(why) => return Ok(refused_page(StatusCode::FORBIDDEN, &next, "", &why)),
    };
    Ok(response)
}

/// Body of the login form.
#[derive(Deserialize)]
struct LoginForm {
    user: String,
    password: String,
    #[serde(default)]
    next: Option<String>,
}

/// Logs in a user with a password.
async fn log_in(
    State(app): State<SharedServerState>,
    Extension(peer): Extension<TcpPeer>,
    request: Request,
) -> Result<Response, ProblemDetails> {
    let (head, body) = request.into_parts();
    let LoginForm { user: name, password, next } = read_form(&head, body).await?;
    let next = safe_redirect_path(next.as_deref());
    let (attempt, address) = (login_attempt(&app, &head, peer, &name), peer.address.ip());
    // The attempt counts before the check, so that parallel guesses cannot pass the limit together.
    let admitted = app.access.limiter().begin_attempt(&attempt, Instant::now());
    if let Err(wait) = admitted {
        return Ok(too_many_attempts(wait, &next, &name));
    }
    let Some((known, hash)) = check_password(&app, &name, password).await? else {
        tracing::warn!(%address, "a login attempt failed");
        return Ok(refused_page(StatusCode::UNAUTHORIZED, &next, &name, WRONG_CREDENTIALS));
    };
    app.access.limiter().record_success(&attempt);
    // The process lookup is expensive, so only a correct password causes it.
    let by = identify_peer(peer).await;
    // The hash goes along, so that a password that was changed meanwhile logs nobody in.
    match create_login(&app, &head, by, LoginMethod::Password { name: known, hash }).await? {
        Ok(cookie) => {
            let mut response = redirect(&next);
            response.headers_mut().insert(SET_COOKIE, cookie);
            Ok(response)
        }
        Err(why) => Ok(refused_page(StatusCode::FORBIDDEN, &next, &name, &why)),
    }
}

/// Returns the keys by which login attempts are counted.
fn login_attempt(app: &SharedServerState, head: &Parts, peer: TcpPeer, name: &str) -> LoginAttempt {
    let called = authority(&head.uri, &head.headers).unwrap_or_default();
    let is_of_proxy = app.access.allowed_hosts.is_proxied(origin_header(&head.headers), called);
    let address = (!is_of_proxy).then(|| peer.address.ip());
    LoginAttempt { address, name: name.parse().ok() }
}

/// Returns the user and the hash that the password matches. An unknown user takes the same time as
/// a wrong password.
async fn check_password(
    app: &SharedServerState,
    name: &str,
    password: String,
) -> Result<Option<(AccessName, String)>, ProblemDetails> {
    let permit = app.access.password_permits.acquire().await;
    let _permit = permit.expect("the semaphore is never closed");
    // A name that cannot exist still costs a hash, so that the reply takes as long as for others.
    let name: Option<AccessName> = name.parse().ok();
    let looked_up = name.clone();
    let known = app
        .read(move |records| match &looked_up {
            Some(name) => records.password_hash(name),
            None => Ok(None),
        })
        .await
        .map_err(hide_internal_details)?;
    let hash = known.clone();
    let is_match = tokio::task::spawn_blocking(move || {
        password::verify_password_hash(&password, known.as_deref())
    });
    // A check that panicked must not log anybody in.
    let is_match = is_match.await.unwrap_or(false);
    Ok(name.zip(hash).filter(|_| is_match))
}

/// Records a login and returns the header that sets its cookie, or the reason for a refusal.
async fn create_login(
    app: &SharedServerState,
    head: &Parts,
    origin_of_peer: Caller,
    method: LoginMethod,
) -> Result<Result<HeaderValue, String>, ProblemDetails> {
    let secret =
        AccessSecret::new().map_err(|error| ProblemDetails::internal_error(error.to_string()))?;
    let by = match &method {
        LoginMethod::Password { name, .. } => name.to_string(),
        LoginMethod::Link { name, .. } => name.clone(),
    };
    let scope = heeler_model::AccessScope::Read;
    let caller =
        RequestCaller { name: by.clone(), scope, engine_caller: origin_of_peer, csrf_token: None };
    // Only the hash is recorded, so that a copy of the database logs nobody in.
    let order = AccessOperation::Login { hash: secret.hash(), who: method };
    match app.send_command(&caller, DaemonCommand::Access { order, by }).await {
        Ok(_) => {
            let authority = authority(&head.uri, &head.headers).unwrap_or_default();
            let is_secure =
                app.access.allowed_hosts.is_secure(origin_header(&head.headers), authority);
            let name = app.access.cookie_name_for(&head.uri, &head.headers);
            Ok(Ok(name.set_header(secret.reveal(), is_secure)))
        }
        Err(refused) if refused.kind == DaemonCommandErrorKind::NotAllowed => {
            Ok(Err(refused.message))
        }
        Err(refused) => Err(refused.into()),
    }
}

/// Body of the logout form.
#[derive(Deserialize)]
struct LogoutForm {
    csrf: String,
}

/// Ends a browser's login.
async fn log_out(
    State(app): State<SharedServerState>,
    caller: RequestCaller,
    request: Request,
) -> Result<Response, ProblemDetails> {
    let (head, body) = request.into_parts();
    let name = app.access.cookie_name_for(&head.uri, &head.headers);
    let cookie = name.value_in(&head.headers).map(str::to_owned);
    let (Some(expected), Some(cookie)) = (&caller.csrf_token, cookie) else {
        return Err(ProblemDetails::bad_request("a token has no login to end; revoke the token"));
    };
    let LogoutForm { csrf } = read_form(&head, body).await?;
    if !cookie::constant_time_eq(&csrf, expected) {
        return Err(ProblemDetails::new(StatusCode::FORBIDDEN, "csrf", "reload the page"));
    }
    let order = AccessOperation::Logout { hash: secret_hash(&cookie) };
    app.send_command(&caller, DaemonCommand::Access { order, by: caller.name.clone() }).await?;
    // The login has ended in the record before, so a copy of the cookie is useless too.
    let mut response = redirect("/login");
    for cookie in name.clear_headers() {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    Ok(response)
}

async fn read_form<T: DeserializeOwned>(head: &Parts, body: Body) -> Result<T, ProblemDetails> {
    let bytes = read_bytes(body, FORM_BYTES_MAX).await?;
    let request = Request::from_parts(head.clone(), Body::from(bytes));
    let form = Form::<T>::from_request(request, &()).await;
    // The error could contain the password, so it is not shown.
    form.map(|Form(form)| form).map_err(|_| ProblemDetails::bad_request("the form is invalid"))
}

/// Shows the login page again, with the reason.
fn refused_page(code: StatusCode, next: &str, name: &str, why: &str) -> Response {
    let (next, user, problem) = (next.to_owned(), name.to_owned(), Some(why.to_owned()));
    login_page(code, LoginView { next, user, problem, ..LoginView::default() })
}

fn login_page(code: StatusCode, view: LoginView) -> Response {
    // The name of the fleet is not shown before the login.
    let view = LoginView { fleet: PRODUCT.to_owned(), ..view };
    (code, html(page(&view))).into_response()
}

fn html(page: Markup) -> Response {
    Html(page.into_string()).into_response()
}

fn too_many_attempts(wait: Duration, next: &str, name: &str) -> Response {
    // Rounded up, so that a client that waits exactly this long is admitted.
    let seconds = wait.as_secs() + 1;
    let why = format!("Too many attempts: try again in {seconds} s.");
    let mut response = refused_page(StatusCode::TOO_MANY_REQUESTS, next, name, &why);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    response
}

/// Returns a path on the dashboard. A `next` that would lead elsewhere becomes `/`.
fn safe_redirect_path(next: Option<&str>) -> String {
    let is_own = |next: &&str| {
        // Browsers take `//host` and `/\host` for another site.
        let mut bytes = next.bytes();
        bytes.next() == Some(b'/')
            && !matches!(bytes.next(), Some(b'/' | b'\\'))
            && next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\' && byte != b';')
            && !next.starts_with("/login")
            && !next.starts_with("/logout")
    };
    next.filter(is_own).unwrap_or("/").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_logs_in_stays_on_our_pages() {
        for (next, path) in [
            ("/jobs?status=failed", "/jobs?status=failed"),
            ("/", "/"),
            ("//evil.example", "/"),
            ("/\\evil.example", "/"),
            ("https://evil.example", "/"),
            ("javascript:alert(1)", "/"),
            ("/a\r\nset-cookie: x=y", "/"),
            ("/a;url=https://evil.example", "/"),
            ("/login?next=/", "/"),
            ("", "/"),
        ] {
            assert_eq!(safe_redirect_path(Some(next)), path, "{next}");
        }
        assert_eq!(safe_redirect_path(None), "/");
    }
}
