//! Tests of access over TCP: every route with every kind of caller, and the login methods.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, Response, StatusCode};
use camino::Utf8Path;
use heeler_engine::{AccessOperation, DaemonCommand, DaemonHandle, LoginMethod, ReplyCallback};
use heeler_model::{AccessScope, AccessToken, BrowserLogin, TokenId, UserAccount, secret_hash};
use heeler_store::{DatabaseError, StateDir, Store, StoreWriteError};
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value as Json;
use tokio::sync::oneshot;

use super::{app, done};
use crate::caller::TcpPeer;
use crate::{
    AccessControl, ConnectionCounter, DaemonListeners, ServerState, SharedServerState, WebEndpoint,
    api, bind, hash_password, serve, serve::web_router,
};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;
const HOUR: SignedDuration = SignedDuration::from_hours(1);
const COOKIE: &str = "the cookie of a browser";
const HOST: &str = "127.0.0.1:7878";

/// Reaches the same daemon in another way.
fn with_access(app: &SharedServerState, access: AccessControl) -> SharedServerState {
    Arc::new(ServerState { access: Arc::new(access), ..app.as_ref().clone() })
}

/// Daemon with tokens of every kind, and the commands that reached its dispatcher.
struct WebAccessFixture {
    temp: tempfile::TempDir,
    app: SharedServerState,
    router: Router,
    store: Arc<Store>,
    heard: Arc<Mutex<Vec<DaemonCommand>>>,
}

fn token(name: &str, scope: AccessScope, secret: &str) -> (AccessToken, String) {
    let hash = secret_hash(secret);
    let token = AccessToken {
        id: TokenId::from_hash(&hash),
        name: name.parse().unwrap(),
        scope,
        created_at: NOW,
        created_by: "me".to_owned(),
        expires_at: None,
        used_at: None,
        revoked_at: None,
    };
    (token, hash)
}

impl WebAccessFixture {
    fn new() -> WebAccessFixture {
        let temp = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(temp.path()).unwrap();
        let dir = StateDir::create(&folder.join(".heeler")).unwrap();
        let store = Arc::new(Store::open(&dir, "test", NOW).unwrap().store);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (hearing, writing) = (Arc::clone(&heard), Arc::clone(&store));
        let handle =
            DaemonHandle::scripted(move |command, reply| obey(&writing, &hearing, command, reply));
        let reach = WebEndpoint { host: "127.0.0.1".to_owned(), port: 7878, origins: Vec::new() };
        let plain = app(folder, handle, "version: 1\nagents: []\n", BTreeMap::new());
        let app = with_access(&plain, AccessControl::new(&reach));
        let router = web_router(&app).with_state(app.clone());
        WebAccessFixture { temp, app, router, store, heard }.furnished()
    }

    fn furnished(self) -> WebAccessFixture {
        let made: Result<(), StoreWriteError<DatabaseError>> = self.store.write(|tx| {
            for scope in AccessScope::ALL {
                let (token, hash) = token(scope.as_str(), *scope, scope.as_str());
                tx.insert_token(&token, &hash)?;
            }
            let (revoked, hash) = token("revoked", AccessScope::Admin, "revoked");
            tx.insert_token(&revoked, &hash)?;
            tx.revoke_token(&revoked.id, NOW)?;
            let (mut expired, hash) = token("expired", AccessScope::Admin, "expired");
            expired.expires_at = Some(NOW);
            tx.insert_token(&expired, &hash)?;
            for (cookie, expires_at) in [(COOKIE, NOW + HOUR), ("old", NOW)] {
                let (who, scope) = ("ann".to_owned(), AccessScope::Admin);
                let login =
                    BrowserLogin { caller: who, scope, user: None, created_at: NOW, expires_at };
                // A real dispatcher would delete expired logins.
                let login = BrowserLogin { created_at: NOW - HOUR, ..login };
                tx.insert_login(&login, &secret_hash(cookie))?;
            }
            Ok(())
        });
        made.unwrap();
        self
    }

    /// Sends a request from a remote address, so that no process lookup takes place.
    async fn ask(&self, request: Request<Body>) -> Response<Body> {
        let router = TowerToHyperService::new(self.router.clone());
        let mut request = request;
        let address = SocketAddr::from(([192, 0, 2, 1], 1));
        let local = SocketAddr::from(([192, 0, 2, 2], 7878));
        request.extensions_mut().insert(TcpPeer { address, local });
        router.call(request).await.unwrap()
    }

    /// Returns the commands that reached the dispatcher, without records of token use.
    fn heard(&self) -> Vec<DaemonCommand> {
        let is_use = |command: &DaemonCommand| {
            matches!(
                command,
                DaemonCommand::Access { order: AccessOperation::TokensUsed { .. }, .. }
            )
        };
        let mut heard = self.heard.lock().unwrap();
        heard.drain(..).filter(|command| !is_use(command)).collect()
    }
}

/// Handles logins like a dispatcher, and confirms all other commands.
fn obey(
    store: &Store,
    heard: &Mutex<Vec<DaemonCommand>>,
    command: DaemonCommand,
    reply: ReplyCallback,
) {
    heard.lock().unwrap().push(command.clone());
    if let DaemonCommand::Access { order, .. } = command {
        let done: Result<(), StoreWriteError<DatabaseError>> = store.write(move |tx| match order {
            AccessOperation::Login { hash, who } => {
                let (who, scope) = match who {
                    LoginMethod::Password { name, .. } => (name.to_string(), AccessScope::Read),
                    LoginMethod::Link { name, scope } => (name, scope),
                };
                let expires_at = NOW + HOUR;
                let login =
                    BrowserLogin { caller: who, scope, user: None, created_at: NOW, expires_at };
                tx.insert_login(&login, &hash)
            }
            AccessOperation::Logout { hash } => tx.remove_login(&hash).map(|_| ()),
            AccessOperation::RevokeToken { token } => {
                let token = tx.token(&token)?;
                token.map_or(Ok(()), |token| tx.revoke_token(&token.id, NOW).map(|_| ()))
            }
            _ => Ok(()),
        });
        done.unwrap();
    }
    reply(Ok(done()));
}

/// Route and its required scope.
#[derive(Debug)]
struct RouteCase {
    method: Method,
    path: String,
    needs: AccessScope,
}

/// Returns every route of the OpenAPI description, and the pages.
fn routes() -> Vec<RouteCase> {
    let api::ApiRoutes { read, batched, shared, shared_logs, operate, admin } = api::routes();
    let mut all = Vec::new();
    for (router, needs) in [
        (read, AccessScope::Read),
        (batched, AccessScope::Read),
        (shared, AccessScope::Read),
        (shared_logs, AccessScope::Read),
        (operate, AccessScope::Operate),
        (admin, AccessScope::Admin),
    ] {
        let document = serde_json::to_value(router.get_openapi()).unwrap();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                let Ok(method) = method.to_uppercase().parse() else { continue };
                let parts = path.split('/').map(|it| if it.starts_with('{') { "x" } else { it });
                let path = format!("/api/v1{}", parts.collect::<Vec<_>>().join("/"));
                all.push(RouteCase { method, path, needs });
            }
        }
    }
    let pages = [
        "/",
        "/agents",
        "/agents/x",
        "/approvals",
        "/approvals/x",
        "/jobs",
        "/jobs/x",
        "/jobs/x/compare",
        "/jobs/x/rows.html",
        "/metrics",
        "/notices",
        "/runs",
        "/runs/x",
        "/schedules",
        "/search",
        "/sessions",
        "/sessions/x",
        "/sessions/x/diff",
        "/sessions/x/messages.html",
        "/settings",
        "/workflows",
        "/workflows/x",
        "/nowhere",
        "/x/../login",
        "/api/v1",
        "/api/v1/nowhere",
        "/api/v1/openapi.json",
    ];
    all.extend(pages.map(|path| RouteCase {
        method: Method::GET,
        path: path.to_owned(),
        needs: AccessScope::Read,
    }));
    // A caller without permission must not learn whether a resource exists.
    let heads = all.iter().filter(|route| route.method == Method::GET);
    let heads = heads.map(|RouteCase { path, needs, .. }| RouteCase {
        method: Method::HEAD,
        path: path.clone(),
        needs: *needs,
    });
    let heads: Vec<RouteCase> = heads.collect();
    all.extend(heads);
    all
}

/// Expected result of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ExpectedAccess {
    /// The request reaches its route, with any reply.
    Passes,
    /// The request is rejected.
    Refused(StatusCode),
}

/// Caller in a test: name, headers and expected result.
type AccessCase = (&'static str, Vec<(&'static str, String)>, fn(&RouteCase) -> ExpectedAccess);

fn knocks(house: &WebAccessFixture) -> Vec<AccessCase> {
    let name = house.app.access.cookie_name(HOST);
    const UNKNOWN: ExpectedAccess = ExpectedAccess::Refused(StatusCode::UNAUTHORIZED);
    const FORBIDDEN: ExpectedAccess = ExpectedAccess::Refused(StatusCode::FORBIDDEN);
    let bearer = |token: &str| ("authorization", format!("Bearer {token}"));
    let own = |name: &'static str, value: &str| (name, value.to_owned());
    let cookie = || own("cookie", &format!("a=b; {name}={COOKIE}"));
    let csrf = || ("x-heeler-csrf", secret_hash(&format!("heeler csrf {COOKIE}")));
    fn by_scope(scope: AccessScope, route: &RouteCase) -> ExpectedAccess {
        if scope >= route.needs { ExpectedAccess::Passes } else { FORBIDDEN }
    }
    vec![
        ("nobody", vec![], |_| UNKNOWN),
        ("a wrong token", vec![bearer("wrong")], |_| UNKNOWN),
        ("no token at all", vec![bearer("")], |_| UNKNOWN),
        ("a revoked token", vec![bearer("revoked")], |_| UNKNOWN),
        ("an expired token", vec![bearer("expired")], |_| UNKNOWN),
        ("another scheme", vec![own("authorization", "Basic YWRtaW46YWRtaW4=")], |_| UNKNOWN),
        ("two tokens", vec![bearer("admin"), bearer("admin")], |_| UNKNOWN),
        ("a wrong token beside a cookie", vec![bearer("wrong"), cookie(), csrf()], |_| UNKNOWN),
        ("a token as a cookie", vec![own("cookie", &format!("{name}=admin"))], |_| UNKNOWN),
        ("a cookie as a token", vec![bearer(COOKIE)], |_| UNKNOWN),
        ("the scope read", vec![bearer("read")], |route| by_scope(AccessScope::Read, route)),
        ("the scope operate", vec![bearer("operate")], |route| {
            by_scope(AccessScope::Operate, route)
        }),
        ("the scope admin", vec![bearer("admin")], |route| by_scope(AccessScope::Admin, route)),
        ("a browser", vec![cookie(), csrf()], |route| by_scope(AccessScope::Admin, route)),
        ("a browser without proof", vec![cookie()], |route| match route.method.is_safe() {
            true => ExpectedAccess::Passes,
            false => FORBIDDEN,
        }),
        (
            "a browser with a wrong proof",
            vec![cookie(), ("x-heeler-csrf", secret_hash(COOKIE))],
            |route| match route.method.is_safe() {
                true => ExpectedAccess::Passes,
                false => FORBIDDEN,
            },
        ),
        ("an old cookie", vec![own("cookie", &format!("{name}=old")), csrf()], |_| UNKNOWN),
        ("another daemon's cookie", vec![own("cookie", &format!("heeler-1={COOKIE}"))], |_| {
            UNKNOWN
        }),
        ("our own page", vec![cookie(), csrf(), own("origin", "http://127.0.0.1:7878")], |_| {
            ExpectedAccess::Passes
        }),
        ("a strange page", vec![bearer("admin"), own("origin", "https://evil.example")], |_| {
            FORBIDDEN
        }),
        (
            "a page of another port",
            vec![cookie(), csrf(), own("origin", "http://127.0.0.1:3000")],
            |_| FORBIDDEN,
        ),
        ("a page without a name", vec![bearer("admin"), own("origin", "null")], |_| FORBIDDEN),
        ("a strange site", vec![bearer("admin"), own("sec-fetch-site", "cross-site")], |_| {
            FORBIDDEN
        }),
        ("another port's site", vec![cookie(), csrf(), own("sec-fetch-site", "same-site")], |_| {
            FORBIDDEN
        }),
    ]
}

/// Callers with a wrong or duplicate host or origin.
fn astray() -> Vec<AccessCase> {
    const ASTRAY: ExpectedAccess = ExpectedAccess::Refused(StatusCode::MISDIRECTED_REQUEST);
    let bearer = |token: &str| ("authorization", format!("Bearer {token}"));
    let own = |name: &'static str, value: &str| (name, value.to_owned());
    vec![
        ("a strange name", vec![bearer("admin"), own("host", "evil.example")], |_| ASTRAY),
        ("a name that is rebound", vec![bearer("admin"), own("host", "evil.example:7878")], |_| {
            ASTRAY
        }),
        (
            "two pages",
            vec![
                bearer("admin"),
                own("origin", "http://127.0.0.1:7878"),
                own("origin", "https://evil.example"),
            ],
            |_| ExpectedAccess::Refused(StatusCode::FORBIDDEN),
        ),
        ("two names", vec![bearer("admin"), own("host", HOST), own("host", HOST)], |_| ASTRAY),
    ]
}

fn request(route: &RouteCase, headers: &[(&'static str, String)]) -> Request<Body> {
    let mut request = Request::builder().method(route.method.clone()).uri(&route.path);
    if headers.iter().all(|(name, _)| *name != "host") {
        request = request.header("host", HOST);
    }
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    request.body(Body::empty()).unwrap()
}

fn check_headers(headers: &HeaderMap, what: &str) {
    for (name, value) in [
        (
            "content-security-policy",
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; manifest-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
        ),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "same-origin"),
        ("x-frame-options", "DENY"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        assert_eq!(headers.get(name).unwrap(), value, "{what}");
    }
    assert!(headers.contains_key("cache-control"), "{what}");
    assert!(!headers.contains_key("access-control-allow-origin"), "{what}");
}

#[tokio::test]
async fn no_route_is_reached_by_whoever_may_not() {
    let house = WebAccessFixture::new();
    let routes = routes();
    let count = |needs| routes.iter().filter(|route| route.needs == needs).count();
    assert!(AccessScope::ALL.iter().all(|scope| count(*scope) > 0), "{routes:?}");
    for route in &routes {
        for (who, headers, fate) in knocks(&house).into_iter().chain(astray()) {
            let what = format!("{who} asks {} {}", route.method, route.path);
            let response = house.ask(request(route, &headers)).await;
            let code = response.status();
            check_headers(response.headers(), &what);
            match fate(route) {
                ExpectedAccess::Refused(expected) => {
                    assert_eq!(code, expected, "{what}");
                    assert_eq!(house.heard(), [], "{what}");
                    assert_eq!(response.headers()["content-type"], "application/problem+json");
                }
                ExpectedAccess::Passes => {
                    assert!(![401, 403, 421].contains(&code.as_u16()), "{what}: {code}");
                    house.heard();
                }
            }
        }
    }
}

#[tokio::test]
async fn people_are_led_to_the_login_and_programs_are_told_what_is_missing() {
    let house = WebAccessFixture::new();
    let get = |path: &str, accept: &str| {
        let request = Request::builder().uri(path).header("host", HOST).header("accept", accept);
        request.body(Body::empty()).unwrap()
    };
    let browser = "text/html,application/xhtml+xml,*/*;q=0.8";
    let led = house.ask(get("/jobs?status=failed&x=%22", browser)).await;
    assert_eq!(led.status(), StatusCode::SEE_OTHER);
    assert_eq!(led.headers()["location"], "/login?next=/jobs%3Fstatus%3Dfailed%26x%3D%2522");
    for (path, accept) in [("/jobs", "*/*"), ("/api/v1/jobs", browser)] {
        let told = house.ask(get(path, accept)).await;
        assert_eq!(told.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(told.headers()["www-authenticate"], "Bearer realm=\"heeler\"");
    }
    let login = house.ask(get("/login?next=/jobs", browser)).await;
    assert_eq!(login.status(), StatusCode::OK);
    check_headers(login.headers(), "the login");
}

#[tokio::test]
async fn a_link_from_elsewhere_shows_a_page_and_nothing_else() {
    let house = WebAccessFixture::new();
    let visit = |path: &str, mode: &str| {
        let request = Request::builder().uri(path).header("host", HOST);
        let request = request.header("sec-fetch-site", "cross-site");
        request.header("sec-fetch-mode", mode).body(Body::empty()).unwrap()
    };
    assert_eq!(house.ask(visit("/login", "navigate")).await.status(), StatusCode::OK);
    assert_eq!(house.ask(visit("/login", "no-cors")).await.status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_token_that_is_revoked_counts_no_more_at_once() {
    let house = WebAccessFixture::new();
    let list = || {
        let route = RouteCase {
            method: Method::GET,
            path: "/api/v1/jobs".into(),
            needs: AccessScope::Read,
        };
        request(&route, &[("authorization", "Bearer operate".to_owned())])
    };
    assert_eq!(house.ask(list()).await.status(), StatusCode::OK);
    let route = RouteCase {
        method: Method::DELETE,
        path: "/api/v1/tokens/operate".into(),
        needs: AccessScope::Admin,
    };
    let revoke = request(&route, &[("authorization", "Bearer admin".to_owned())]);
    assert_eq!(house.ask(revoke).await.status(), StatusCode::OK);
    assert_eq!(house.ask(list()).await.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_stream_ends_when_its_reader_is_let_in_no_more() {
    let house = WebAccessFixture::new();
    let route = RouteCase {
        method: Method::GET,
        path: "/api/v1/fleet/stream".into(),
        needs: AccessScope::Read,
    };
    let stream =
        house.ask(request(&route, &[("authorization", "Bearer operate".to_owned())])).await;
    assert_eq!(stream.status(), StatusCode::OK);
    let reading = axum::body::to_bytes(stream.into_body(), 1 << 20);
    let route = RouteCase {
        method: Method::DELETE,
        path: "/api/v1/tokens/operate".into(),
        needs: AccessScope::Admin,
    };
    let revoking = house.ask(request(&route, &[("authorization", "Bearer admin".to_owned())]));
    // This returns only if the stream ends.
    let (read, revoked) = tokio::join!(reading, revoking);
    assert_eq!(revoked.status(), StatusCode::OK);
    read.unwrap();
}

#[tokio::test]
async fn a_token_that_is_made_is_told_once_and_its_hash_alone_is_recorded() {
    let house = WebAccessFixture::new();
    let mut make = Request::builder().method(Method::POST).uri("/api/v1/tokens");
    make = make.header("host", HOST).header("authorization", "Bearer admin");
    let make = make.body(Body::from(r#"{"name": "ci", "scope": "read"}"#)).unwrap();
    let made = house.ask(make).await;
    assert_eq!(made.status(), StatusCode::OK);
    let body = axum::body::to_bytes(made.into_body(), 1 << 20).await.unwrap();
    let body: Json = serde_json::from_slice(&body).unwrap();
    let secret = body["token"].as_str().unwrap();
    let heard = house.heard();
    let [DaemonCommand::Access { order: AccessOperation::CreateToken { hash, .. }, by }] =
        &heard[..]
    else {
        panic!("{heard:?}");
    };
    assert_eq!((hash, by.as_str()), (&secret_hash(secret), "token admin"));
    assert!(!format!("{heard:?}").contains(secret));
}

#[tokio::test]
async fn a_browser_receives_notices_only_if_it_is_logged_in() {
    let house = WebAccessFixture::new();
    let cookie = format!("{}={COOKIE}", house.app.access.cookie_name(HOST));
    let csrf = secret_hash(&format!("heeler csrf {COOKIE}"));
    let body = r#"{"label": "phone", "endpoint": "https://push.example/1",
        "keys": {"p256dh": "key", "auth": "secret"}}"#;
    let add = |headers: &[(&'static str, String)]| {
        let path = "/api/v1/browsers".to_owned();
        let route = RouteCase { method: Method::POST, path, needs: AccessScope::Operate };
        request(&route, headers).map(|_| Body::from(body))
    };
    let by_token = house.ask(add(&[("authorization", "Bearer admin".to_owned())])).await;
    assert_eq!(by_token.status(), StatusCode::FORBIDDEN);
    assert_eq!(house.heard(), []);
    let by_login = house.ask(add(&[("cookie", cookie), ("x-heeler-csrf", csrf)])).await;
    assert_eq!(by_login.status(), StatusCode::OK);
    let heard = house.heard();
    assert!(matches!(&heard[..], [DaemonCommand::Browser { by, .. }] if by == "ann"), "{heard:?}");
}

#[tokio::test]
async fn the_use_of_a_token_is_on_record() {
    let house = WebAccessFixture::new();
    let route =
        RouteCase { method: Method::GET, path: "/api/v1/jobs".into(), needs: AccessScope::Read };
    for _ in 0..3 {
        house.ask(request(&route, &[("authorization", "Bearer read".to_owned())])).await;
    }
    let id = TokenId::from_hash(&secret_hash("read"));
    let order = AccessOperation::TokensUsed { tokens: vec![id] };
    let told = DaemonCommand::Access { order, by: "token read".to_owned() };
    // The dispatcher receives it asynchronously.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while house.heard.lock().unwrap().is_empty() && std::time::Instant::now() < deadline {
        tokio::task::yield_now().await;
    }
    assert_eq!(*house.heard.lock().unwrap(), [told]);
}

/// Daemon that listens on TCP.
struct TcpServerFixture {
    house: WebAccessFixture,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl TcpServerFixture {
    fn new() -> TcpServerFixture {
        let house = WebAccessFixture::new();
        let password = hash_password("correct horse").unwrap();
        let person = UserAccount {
            name: "ann".parse().unwrap(),
            scope: AccessScope::Operate,
            created_at: NOW,
            changed_at: NOW,
        };
        let made: Result<(), StoreWriteError<DatabaseError>> =
            house.store.write(move |tx| tx.put_user(&person, &password));
        made.unwrap();
        let folder = Utf8Path::from_path(house.temp.path()).unwrap();
        let (socket, _) = bind(folder, folder).unwrap();
        socket.set_nonblocking(true).unwrap();
        let web = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        web.set_nonblocking(true).unwrap();
        let (address, app) = (web.local_addr().unwrap(), house.app.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let socket = tokio::net::UnixListener::from_std(socket).unwrap();
                let web = Some(tokio::net::TcpListener::from_std(web).unwrap());
                let stop = async { drop(stopped.await) };
                let connections = ConnectionCounter::default();
                serve(DaemonListeners { socket, web }, app, &connections, stop).await.unwrap();
            });
        });
        TcpServerFixture { house, address, stop: Some(stop), thread: Some(thread) }
    }

    /// Sends a request and returns head and body of the reply.
    fn send(&self, line: &str, headers: &str, body: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let (host, length) = (self.address, body.len());
        let request = format!(
            "{line} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    fn log_in(&self, name: &str, password: &str) -> (String, String) {
        let form = "content-type: application/x-www-form-urlencoded\r\n";
        self.send("POST /login", form, &format!("user={name}&password={password}&next=%2Fjobs"))
    }
}

impl Drop for TcpServerFixture {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}

/// Returns the cookie that a reply sets, in the form a browser sends.
fn cookie(head: &str) -> String {
    let line = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    assert!(line.contains("; HttpOnly; SameSite=Strict;"), "{line}");
    line.split(';').next().unwrap().to_owned()
}

#[test]
fn whoever_knows_a_password_is_let_in_and_out_again() {
    let street = TcpServerFixture::new();
    let (head, _) = street.log_in("ann", "correct+horse");
    assert!(head.starts_with("HTTP/1.1 303 ") && head.contains("\r\nlocation: /jobs"), "{head}");
    let cookie = cookie(&head);
    let (_, secret) = cookie.split_once('=').unwrap();
    let cookie = format!("cookie: {cookie}\r\n");
    let csrf = secret_hash(&format!("heeler csrf {secret}"));
    assert!(street.send("GET /api/v1/jobs", &cookie, "").0.starts_with("HTTP/1.1 200 "));
    let (page, _) = street.send("GET /login?next=/jobs", &cookie, "");
    assert!(page.starts_with("HTTP/1.1 303 "), "who is in needs no login: {page}");
    let out = |csrf: &str| {
        let form = format!("{cookie}content-type: application/x-www-form-urlencoded\r\n");
        street.send("POST /logout", &form, &format!("csrf={csrf}")).0
    };
    assert!(out("x").starts_with("HTTP/1.1 403 "));
    assert!(street.send("GET /api/v1/jobs", &cookie, "").0.starts_with("HTTP/1.1 200 "));
    let gone = out(&csrf);
    assert!(gone.starts_with("HTTP/1.1 303 ") && gone.contains("Max-Age=0"), "{gone}");
    assert!(street.send("GET /api/v1/jobs", &cookie, "").0.starts_with("HTTP/1.1 401 "));
}

#[test]
fn a_wrong_name_and_a_wrong_password_are_told_alike_and_slow_down() {
    let street = TcpServerFixture::new();
    let told = |name: &str, password: &str| {
        let (head, body) = street.log_in(name, password);
        assert!(!head.contains("set-cookie"), "{head}");
        (
            head.lines().next().unwrap().to_owned(),
            body.replace(&format!("value=\"{name}\""), "NAME"),
        )
    };
    let wrong = told("ann", "wrong");
    assert_eq!(wrong.0, "HTTP/1.1 401 Unauthorized");
    assert_eq!(told("bob", "correct+horse"), wrong);
    assert_eq!(told("not%20a%20name", "x").0, wrong.0);
    assert!(!wrong.1.contains("correct"), "{}", wrong.1);
    for _ in 0..2 {
        told("ann", "wrong");
    }
    let (head, _) = street.log_in("ann", "correct+horse");
    assert!(head.starts_with("HTTP/1.1 429 ") && head.contains("\r\nretry-after: "), "{head}");
    assert_eq!(street.house.heard(), []);
}

#[test]
fn a_link_lets_one_browser_in() {
    let street = TcpServerFixture::new();
    let link = street.house.app.access.make_link("ann", AccessScope::Admin, NOW).unwrap();
    let (_, path) = link.split_once("7878").unwrap();
    let (looked, _) = street.send(&format!("HEAD {path}"), "", "");
    assert!(!looked.contains("set-cookie"), "{looked}");
    let (head, body) = street.send(&format!("GET {path}"), "", "");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(body.contains("0;url=/"), "{body}");
    let cookie = format!("cookie: {}\r\n", cookie(&head));
    assert!(street.send("GET /api/v1/tokens", &cookie, "").0.starts_with("HTTP/1.1 200 "));
    let (again, _) = street.send(&format!("GET {path}"), "", "");
    assert!(again.starts_with("HTTP/1.1 403 ") && !again.contains("set-cookie"), "{again}");
    // The same browser again is logged in.
    assert!(street.send(&format!("GET {path}"), &cookie, "").0.starts_with("HTTP/1.1 200 "));
}

#[test]
fn what_a_person_at_this_machine_asks_by_a_token_is_theirs() {
    let street = TcpServerFixture::new();
    let token = "authorization: Bearer admin\r\n";
    let (head, _) = street.send("POST /api/v1/daemon/reload", token, "");
    assert!(head.starts_with("HTTP/1.1 "), "{head}");
    assert_eq!(street.house.heard(), [DaemonCommand::Reload]);
}

#[tokio::test]
async fn ways_around_a_path_lead_to_nothing() {
    let house = WebAccessFixture::new();
    for path in [
        "/login/",
        "//login",
        "/LOGIN",
        "/%6Cogin",
        "/login/../jobs",
        "/api%2Fv1%2Fjobs",
        "/api/v1/jobs/",
        "/api/v1//jobs",
        "/api/v1/%6Aobs",
        "/./api/v1/jobs",
        "/assets",
        "/jobs;/login",
        "/jobs%3F/login",
        "/jobs%00",
    ] {
        for method in [Method::GET, Method::POST, Method::OPTIONS, Method::TRACE, Method::PATCH] {
            let route = RouteCase { method, path: path.to_owned(), needs: AccessScope::Read };
            let reply = house.ask(request(&route, &[])).await;
            assert_eq!(reply.status(), StatusCode::UNAUTHORIZED, "{route:?}");
        }
    }
    // Open path prefixes contain only open routes.
    for path in [
        "/assets/../api/v1/jobs",
        "/assets/..%2F..%2Fapi/v1",
        "/assets/x/..%2F..%2Fapi%2Fv1%2Fjobs",
        "/assets/x/%2e%2e",
        "/hooks/../api/v1/jobs",
        "/hooks/x/../../jobs",
        "/hooks/",
    ] {
        let route =
            RouteCase { method: Method::GET, path: path.to_owned(), needs: AccessScope::Read };
        let code = house.ask(request(&route, &[])).await.status();
        assert!([404, 405].contains(&code.as_u16()), "{path}: {code}");
    }
    assert_eq!(house.heard(), []);
}

#[tokio::test]
async fn no_page_of_a_stranger_is_told_what_it_might_send() {
    let house = WebAccessFixture::new();
    for path in ["/api/v1/jobs", "/hooks/a/b", "/hooks/github", "/login"] {
        let headers = [
            ("origin", "https://evil.example".to_owned()),
            ("access-control-request-method", "POST".to_owned()),
            ("access-control-request-headers", "authorization".to_owned()),
        ];
        let route =
            RouteCase { method: Method::OPTIONS, path: path.to_owned(), needs: AccessScope::Read };
        let reply = house.ask(request(&route, &headers)).await;
        assert!(!reply.status().is_success(), "{path}: {}", reply.status());
        check_headers(reply.headers(), path);
    }
}

#[test]
fn what_does_not_say_whom_it_means_or_says_it_twice_is_refused() {
    let street = TcpServerFixture::new();
    let (own, key) = (street.address, "authorization: Bearer admin\r\n");
    let code = |request: String| {
        let mut stream = TcpStream::connect(street.address).unwrap();
        // It may be refused before the body is read.
        drop(stream.write_all(request.as_bytes()));
        let mut reply = Vec::new();
        drop(stream.read_to_end(&mut reply));
        let reply = String::from_utf8_lossy(&reply).into_owned();
        reply.split(' ').nth(1).map(|code| code.parse::<u16>().unwrap())
    };
    let get = |line: &str, headers: &str| {
        code(format!("GET {line}\r\n{headers}{key}connection: close\r\n\r\n"))
    };
    let host = format!("host: {own}\r\n");
    assert_eq!(get("/api/v1/jobs HTTP/1.1", &host), Some(200));
    assert_eq!(get("/api/v1/jobs HTTP/1.0", &host), Some(200));
    assert_eq!(get("/api/v1/jobs HTTP/1.0", ""), Some(421));
    assert_eq!(get("/api/v1/jobs HTTP/1.1", ""), Some(421));
    assert_eq!(get("/api/v1/jobs HTTP/1.1", "host:\r\n"), Some(421));
    assert_eq!(get("/api/v1/jobs HTTP/1.1", &host.repeat(2)), Some(421));
    let evil = "host: evil.example\r\n";
    assert_eq!(get("/api/v1/jobs HTTP/1.1", &format!("{host}{evil}")), Some(421));
    // An absolute URI takes precedence over the Host header.
    assert_eq!(get("http://evil.example/api/v1/jobs HTTP/1.1", &host), Some(421));
    assert_eq!(get(&format!("http://{own}/api/v1/jobs HTTP/1.1"), &host), Some(200));
    assert_eq!(get(&format!("http://x@{own}/api/v1/jobs HTTP/1.1"), &host), Some(421));
    assert_eq!(
        code(format!("CONNECT evil.example:443 HTTP/1.1\r\n{evil}{key}connection: close\r\n\r\n")),
        Some(421)
    );
    assert_eq!(code(format!("OPTIONS * HTTP/1.1\r\n{host}connection: close\r\n\r\n")), Some(401));
    // More than any valid request needs.
    let long = format!("{host}x: {}\r\n", "x".repeat(512 << 10));
    let told = get("/api/v1/jobs HTTP/1.1", &long);
    // Unread request bytes may reset the connection before the reply arrives.
    assert!(matches!(told, None | Some(431)), "{told:?}");
    assert_eq!(street.house.heard(), []);
}

#[tokio::test]
async fn what_is_wrong_with_us_is_told_no_stranger() {
    let house = WebAccessFixture::new();
    let folder = Utf8Path::from_path(house.temp.path()).unwrap().to_owned();
    let empty = folder.join("other");
    std::fs::create_dir(&empty).unwrap();
    let plain =
        app(&empty, house.app.dispatcher.clone(), "version: 1\nagents: []\n", BTreeMap::new());
    std::fs::write(empty.join(".heeler/heeler.db"), "this is no database").unwrap();
    let access = Arc::clone(&house.app.access);
    let app = Arc::new(ServerState { access, ..plain.as_ref().clone() });
    let router = web_router(&app).with_state(app.clone());
    let house = WebAccessFixture { app, router, ..house };
    let cookie = format!("{}={COOKIE}", house.app.access.cookie_name(HOST));
    for (path, name, value) in [
        ("/api/v1/jobs", "authorization", "Bearer admin".to_owned()),
        ("/jobs", "cookie", cookie.clone()),
        ("/login", "cookie", cookie),
    ] {
        let route =
            RouteCase { method: Method::GET, path: path.to_owned(), needs: AccessScope::Read };
        let reply = house.ask(request(&route, &[(name, value)])).await;
        assert_eq!(reply.status(), StatusCode::SERVICE_UNAVAILABLE, "{path}");
        let body = axum::body::to_bytes(reply.into_body(), 1 << 20).await.unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert!(body.contains("the caller cannot be identified now"), "{body}");
        assert!(!body.contains("heeler.db") && !body.contains(folder.as_str()), "{body}");
    }
}

/// Login form sent through a proxy with its own host name.
fn proxied(name: &str, password: &str) -> Request<Body> {
    let form = format!("user={name}&password={password}");
    let request = Request::builder().method(Method::POST).uri("/login");
    let request = request.header("host", "heeler.example.com");
    let request = request.header("origin", "https://heeler.example.com");
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    request.body(Body::from(form)).unwrap()
}

#[tokio::test]
async fn behind_a_proxy_a_stranger_who_tries_keeps_nobody_else_out() {
    let house = WebAccessFixture::new();
    let origins = vec!["https://heeler.example.com".to_owned()];
    let reach = WebEndpoint { host: "127.0.0.1".to_owned(), port: 7878, origins };
    let app = with_access(&house.app, AccessControl::new(&reach));
    let router = web_router(&app).with_state(app.clone());
    let house = WebAccessFixture { app, router, ..house };
    let password = hash_password("correct horse").unwrap();
    let person = UserAccount {
        name: "ann".parse().unwrap(),
        scope: AccessScope::Operate,
        created_at: NOW,
        changed_at: NOW,
    };
    let made: Result<(), StoreWriteError<DatabaseError>> =
        house.store.write(move |tx| tx.put_user(&person, &password));
    made.unwrap();
    for _ in 0..5 {
        let reply = house.ask(proxied("bob", "guessed")).await;
        assert_eq!(reply.status(), StatusCode::UNAUTHORIZED);
    }
    assert_eq!(house.ask(proxied("bob", "guessed")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    // All clients have the proxy's address.
    let reply = house.ask(proxied("ann", "correct+horse")).await;
    assert_eq!(reply.status(), StatusCode::SEE_OTHER);
    let cookie = reply.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.starts_with("__Host-heeler-") && cookie.ends_with("; Secure"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    let list = |cookie: &str| {
        let request = Request::builder().uri("/api/v1/jobs").header("host", "heeler.example.com");
        request.header("cookie", cookie).body(Body::empty()).unwrap()
    };
    assert_eq!(house.ask(list(cookie)).await.status(), StatusCode::OK);
    // A cookie that any page of the host could have set does not count.
    let tossed = cookie.trim_start_matches("__Host-");
    assert_eq!(house.ask(list(tossed)).await.status(), StatusCode::UNAUTHORIZED);
}
