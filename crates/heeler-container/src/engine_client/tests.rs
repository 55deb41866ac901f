//! A fake engine: what a real one says when something goes wrong cannot be provoked at will.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::thread;

use camino::Utf8PathBuf;

use super::*;

/// Engine that gives each request the next of these replies: status line and body.
struct FakeEngine {
    folder: tempfile::TempDir,
    requests: thread::JoinHandle<Vec<String>>,
}

impl FakeEngine {
    fn start(replies: &[(&str, &str)]) -> FakeEngine {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("s")).unwrap();
        let replies: Vec<String> = replies
            .iter()
            .map(|(status, body)| {
                format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            })
            .collect();
        let requests = thread::spawn(move || {
            let serve = |reply: String| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
                    head.push(byte[0]);
                }
                stream.write_all(reply.as_bytes()).unwrap();
                String::from_utf8(head).unwrap().lines().next().unwrap().to_owned()
            };
            replies.into_iter().map(serve).collect()
        });
        FakeEngine { folder, requests }
    }

    fn socket(&self) -> Utf8PathBuf {
        Utf8PathBuf::from_path_buf(self.folder.path().join("s")).unwrap()
    }
}

const PING: (&str, &str) = ("200 OK\r\nApi-Version: 1.52", "OK");

/// Connects and makes one call, which gets this reply; returns its result and the request line.
fn call<T, F: Future<Output = Result<T, EngineError>>>(
    reply: (&str, &str),
    call: impl FnOnce(ContainerEngine) -> F,
) -> (Result<T, String>, String) {
    let fake = FakeEngine::start(&[PING, reply]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = runtime.block_on(async {
        let engine = ContainerEngine::connect(&fake.socket()).await.unwrap();
        call(engine).await
    });
    let requests = fake.requests.join().unwrap();
    (result.map_err(|error| error.to_string()), requests[1].clone())
}

#[test]
fn the_api_version_is_negotiated() {
    assert_eq!(choose_api_minor("1.41").unwrap(), 41);
    assert_eq!(choose_api_minor("1.99").unwrap(), API_MINOR_MAX);
    for old in ["1.39", "2.0", "", "1.x"] {
        assert!(choose_api_minor(old).unwrap_err().to_string().contains("1.40"), "{old}");
    }
}

#[test]
fn podman_is_recognized_and_an_old_engine_is_refused() {
    let connect = |head: &str| {
        let fake = FakeEngine::start(&[(head, "OK")]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(ContainerEngine::connect(&fake.socket()))
    };
    let podman = connect("200 OK\r\nApi-Version: 1.41\r\nLibpod-API-Version: 4.3.1").unwrap();
    assert_eq!((podman.kind, podman.prefix.as_str()), (EngineKind::Podman, "/v1.41"));
    assert_eq!(connect("200 OK\r\nApi-Version: 1.43").unwrap().kind, EngineKind::Docker);
    for old in ["200 OK\r\nApi-Version: 1.24", "200 OK"] {
        assert!(connect(old).unwrap_err().to_string().contains("is needed"), "{old}");
    }
}

#[test]
fn a_pull_that_fails_after_it_began_is_an_error() {
    let stream = "{\"status\":\"Pulling\"}\n{\"error\":\"no such host\"}\n";
    let (result, request) =
        call(("200 OK", stream), |engine| async move { engine.pull("registry.test/a b").await });
    assert_eq!(
        result.unwrap_err(),
        "the container engine cannot pull the image registry.test/a b: no such host"
    );
    assert_eq!(request, "POST /v1.51/images/create?fromImage=registry.test/a%20b:latest HTTP/1.1");
    let (result, _) = call(("200 OK", "{\"status\":\"Done\"}\n"), |engine| async move {
        engine.pull("a@sha256:00").await
    });
    result.unwrap();
}

#[test]
fn what_does_not_exist_is_no_failure_and_a_refusal_names_the_reason() {
    let missing = ("404 Not Found", r#"{"message":"no such thing"}"#);
    assert_eq!(call(missing, |it| async move { it.image("a").await }).0, Ok(None));
    assert_eq!(call(missing, |it| async move { it.state("a").await }).0, Ok(None));
    assert_eq!(call(missing, |it| async move { it.remove("a").await }).0, Ok(()));
    let broken = ("500 Internal Server Error", "{\"message\":\"no\\nspace\"}");
    let (result, request) = call(broken, |it| async move { it.start("../x?y").await });
    assert_eq!(result.unwrap_err(), "the container engine cannot start the container: no space");
    assert_eq!(request, "POST /v1.51/containers/../x%3Fy/start HTTP/1.1");
    let (result, _) = call(("200 OK", "<html>"), |it| async move { it.state("a").await });
    assert!(result.unwrap_err().contains("did not inspect the container"));
}

#[test]
fn a_container_that_is_being_removed_is_awaited() {
    let busy = ("409 Conflict", r#"{"message":"removal is in progress"}"#);
    for end in [("200 OK", r#"{"StatusCode":0}"#), ("404 Not Found", r#"{"message":"gone"}"#)] {
        let fake = FakeEngine::start(&[PING, busy, end]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime
            .block_on(async {
                ContainerEngine::connect(&fake.socket()).await.unwrap().remove("a").await
            })
            .unwrap();
        let requests = fake.requests.join().unwrap();
        assert_eq!(requests[2], "POST /v1.51/containers/a/wait?condition=removed HTTP/1.1");
    }
}

#[test]
fn containers_are_listed_by_label() {
    let body = r#"[{"Id":"1","Names":["/heeler-x"],"State":"running","Labels":{"heeler.run":"r"}},
                   {"Id":"2","Names":[],"State":"created","Labels":null}]"#;
    let (result, request) =
        call(("200 OK", body), |it| async move { it.list(&["heeler.state=/s".to_owned()]).await });
    let listed = result.unwrap();
    assert_eq!((listed[0].name.as_str(), listed[0].is_running), ("heeler-x", true));
    assert_eq!(listed[0].labels["heeler.run"], "r");
    assert!(!listed[1].is_running && listed[1].labels.is_empty());
    assert!(request.contains("label") && !request.contains('"'), "{request}");
}

#[test]
fn an_engine_that_does_not_run_is_named() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let socket = Utf8PathBuf::from("/nowhere/engine.sock");
    let error = runtime.block_on(ContainerEngine::connect(&socket)).unwrap_err();
    assert!(error.to_string().contains("at /nowhere/engine.sock; start it"), "{error}");
}
