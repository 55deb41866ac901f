//! A git server over HTTP that demands a token: git's own `http-backend` behind a small front.
//!
//! Start at [`GitServer`].

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use camino::{Utf8Path, Utf8PathBuf};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct GitServer {
    url: String,
    folder: tempfile::TempDir,
    shared: Arc<SharedGitServer>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct SharedGitServer {
    folder: Utf8PathBuf,
    /// Accepted value of the header `authorization`.
    login: String,
    /// Paths of the calls with the token.
    accepted: Mutex<Vec<String>>,
    /// Paths of the calls without it.
    refused: Mutex<Vec<String>>,
}

impl GitServer {
    /// Starts a server on a free local port, which accepts the token for all repositories.
    pub fn start(token: &str) -> GitServer {
        let folder = tempfile::tempdir().unwrap();
        let shared = Arc::new(SharedGitServer {
            folder: Utf8Path::from_path(folder.path()).unwrap().to_owned(),
            login: format!("Basic {}", STANDARD.encode(format!("x-access-token:{token}"))),
            accepted: Mutex::default(),
            refused: Mutex::default(),
        });
        let (stop, stopped) = oneshot::channel();
        let (told, url) = std::sync::mpsc::channel();
        let served = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                told.send(format!("http://{}", listener.local_addr().unwrap())).unwrap();
                let router = Router::new().fallback(handle).with_state(served);
                tokio::select! {
                    served = axum::serve(listener, router) => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        let url = url.recv().unwrap();
        GitServer { url, folder, shared, stop: Some(stop), thread: Some(thread) }
    }

    /// Returns the address, without a path.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Creates a repository with one commit that has a file `readme` with this text.
    pub fn create_repository(&self, path: &str, text: &str) {
        let work = tempfile::tempdir().unwrap();
        let bare = self.folder.path().join(format!("{path}.git"));
        std::fs::create_dir_all(&bare).unwrap();
        git(&bare, &["init", "-q", "--bare", "-b", "main"]);
        git(&bare, &["config", "http.receivepack", "true"]);
        std::fs::write(work.path().join("readme"), text).unwrap();
        git(work.path(), &["init", "-q", "-b", "main"]);
        git(work.path(), &["add", "readme"]);
        let identity = ["-c", "user.name=Ann", "-c", "user.email=ann@example.com"];
        git(work.path(), &[&identity[..], &["commit", "-q", "-m", "Begin."]].concat());
        git(work.path(), &["push", "-q", bare.to_str().unwrap(), "main"]);
    }

    /// Returns the branches of a repository.
    pub fn branches(&self, path: &str) -> Vec<String> {
        let bare = self.folder.path().join(format!("{path}.git"));
        let listed = git(&bare, &["for-each-ref", "--format=%(refname:short)", "refs/heads"]);
        listed.lines().map(str::to_owned).collect()
    }

    /// Returns the paths of the calls with the token.
    pub fn accepted(&self) -> Vec<String> {
        self.shared.accepted.lock().unwrap().clone()
    }

    /// Returns the paths of the calls without the token.
    pub fn refused(&self) -> Vec<String> {
        self.shared.refused.lock().unwrap().clone()
    }
}

impl Drop for GitServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the git server panicked");
        }
    }
}

async fn handle(State(shared): State<Arc<SharedGitServer>>, request: Request<Body>) -> Response {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let header = |name: &str| head.headers.get(name).and_then(|it| it.to_str().ok()).unwrap_or("");
    if header("authorization") != shared.login {
        shared.refused.lock().unwrap().push(path);
        let demand = [("www-authenticate", "Basic realm=\"git\"")];
        return (StatusCode::UNAUTHORIZED, demand, "a token is needed\n").into_response();
    }
    shared.accepted.lock().unwrap().push(path.clone());
    if let Some(rest) = path.strip_prefix("/moved/") {
        let query = head.uri.query().unwrap_or_default();
        return (StatusCode::FOUND, [("location", format!("/acme/{rest}?{query}"))])
            .into_response();
    }
    let mut backend = command("git");
    backend.arg("http-backend").stdin(Stdio::piped()).stdout(Stdio::piped());
    backend.env("GIT_PROJECT_ROOT", &shared.folder).env("GIT_HTTP_EXPORT_ALL", "1");
    backend.env("REMOTE_USER", "x-access-token").env("REQUEST_METHOD", head.method.as_str());
    // As servers such as GitHub do, the name without the suffix is accepted too.
    backend.env("PATH_INFO", with_suffix(&path));
    backend.env("QUERY_STRING", head.uri.query().unwrap_or_default());
    backend.env("CONTENT_TYPE", header("content-type"));
    backend.env("HTTP_CONTENT_ENCODING", header("content-encoding"));
    backend.env("GIT_PROTOCOL", header("git-protocol"));
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
    backend.env("CONTENT_LENGTH", body.len().to_string());
    let output = tokio::task::spawn_blocking(move || {
        let mut child = backend.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // The backend may end before it has read everything.
        let writer = std::thread::spawn(move || drop(stdin.write_all(&body)));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        output.stdout
    });
    parse_reply(&output.await.unwrap())
}

/// Converts the output of a CGI program to a reply.
fn parse_reply(output: &[u8]) -> Response {
    let end = output.windows(4).position(|it| it == b"\r\n\r\n").unwrap_or(output.len());
    let (head, body) = (&output[..end], output.get(end + 4..).unwrap_or_default());
    let mut response = Response::new(Body::from(body.to_vec()));
    for line in String::from_utf8_lossy(head).lines() {
        let Some((name, value)) = line.split_once(": ") else { continue };
        match name {
            "Status" => {
                let code = value.split(' ').next().and_then(|code| code.parse().ok());
                *response.status_mut() = StatusCode::from_u16(code.unwrap_or(500)).unwrap();
            }
            _ => {
                let name = axum::http::HeaderName::try_from(name).unwrap();
                response.headers_mut().insert(name, value.parse().unwrap());
            }
        }
    }
    response
}

fn with_suffix(path: &str) -> String {
    for call in ["/info/refs", "/git-upload-pack", "/git-receive-pack"] {
        if let Some(repository) = path.strip_suffix(call) {
            return format!("{}.git{call}", repository.trim_end_matches(".git"));
        }
    }
    path.to_owned()
}

/// Runs git and returns what it prints.
fn git(folder: &std::path::Path, args: &[&str]) -> String {
    let output = command("git").args(args).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns a command that reads no settings of the machine.
#[expect(clippy::disallowed_methods, reason = "tests start a real git")]
fn command(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    command
}
