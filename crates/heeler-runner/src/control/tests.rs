//! The control socket, from the client's side.

use std::os::unix::fs::PermissionsExt as _;

use heeler_model::run::ControlRequest;
use jiff::Timestamp;
use serde_json::{Value as Json, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use super::*;

struct ControlServerFixture {
    _temp: tempfile::TempDir,
    folder: Utf8PathBuf,
    run: RunId,
}

fn server_fixture() -> ControlServerFixture {
    let temp = tempfile::tempdir().unwrap();
    let folder = Utf8PathBuf::try_from(temp.path().join("sockets")).unwrap();
    ControlServerFixture { _temp: temp, folder, run: RunId::mint(Timestamp::UNIX_EPOCH, [7; 10]) }
}

async fn bind(place: &ControlServerFixture) -> RunControlServer {
    RunControlServer::bind(&place.folder, place.run, ControlPeerVerifier::default()).await.unwrap()
}

struct ControlTestClient(BufReader<UnixStream>);

impl ControlTestClient {
    async fn connect(control: &RunControlServer) -> ControlTestClient {
        ControlTestClient(BufReader::new(UnixStream::connect(control.path()).await.unwrap()))
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).await.unwrap();
    }

    async fn ask(&mut self, id: u64, op: ControlOperation) {
        let request = ControlRequest { protocol: PROTOCOL, id, op };
        let mut line = serde_json::to_vec(&request).unwrap();
        line.push(b'\n');
        self.send(&line).await;
    }

    /// Returns the next line, `Null` at the end.
    async fn read(&mut self) -> Json {
        let mut line = String::new();
        match self.0.read_line(&mut line).await.unwrap() {
            0 => Json::Null,
            _ => serde_json::from_str(&line).unwrap(),
        }
    }
}

fn row(at: u64, len: usize) -> Vec<u8> {
    format!(r#"{{"at":{at},"text":"{}"}}"#, "x".repeat(len)).into_bytes()
}

#[tokio::test]
async fn only_the_user_can_reach_the_socket_and_it_goes_with_the_run() {
    let place = server_fixture();
    let control = bind(&place).await;
    let mode = |path: &Utf8Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&place.folder), 0o700);
    assert_eq!(mode(control.path()), 0o600);
    assert!(control.path().file_name().unwrap().len() < 20);
    drop(control);
    assert_eq!(std::fs::read_dir(&place.folder).unwrap().count(), 0);
}

#[tokio::test]
async fn a_dead_socket_is_replaced_and_a_living_one_is_not() {
    let place = server_fixture();
    std::fs::create_dir(&place.folder).unwrap();
    let path = place.folder.join(socket_name(place.run));
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let control = bind(&place).await;
    let error = RunControlServer::bind(&place.folder, place.run, ControlPeerVerifier::default())
        .await
        .unwrap_err();
    assert!(matches!(error, ControlServerBindError::Taken { .. }), "{error}");
    drop(control);
    std::fs::write(&path, "a file").unwrap();
    RunControlServer::bind(&place.folder, place.run, ControlPeerVerifier::default())
        .await
        .unwrap_err();
    assert_eq!(std::fs::read(&path).unwrap(), b"a file");
}

#[tokio::test]
async fn every_client_gets_the_reply_to_its_own_request() {
    let place = server_fixture();
    let mut control = bind(&place).await;
    let mut first = ControlTestClient::connect(&control).await;
    let mut second = ControlTestClient::connect(&control).await;
    first.ask(1, ControlOperation::Status).await;
    second.ask(2, ControlOperation::message("hi".to_owned())).await;
    for _ in 0..2 {
        let asked = control.next_request().await;
        match &asked.op {
            ControlOperation::Status => asked.reply(ControlReplyBody::Done),
            _ => asked.refuse("no"),
        }
    }
    assert_eq!(first.read().await, json!({"protocol": 1, "id": 1, "reply": "done"}));
    let refused = json!({"protocol": 1, "id": 2, "reply": "refused", "reason": "no"});
    assert_eq!(second.read().await, refused);
}

#[tokio::test]
async fn garbage_is_refused_and_the_client_may_go_on() {
    let place = server_fixture();
    let mut control = bind(&place).await;
    let mut client = ControlTestClient::connect(&control).await;
    for (line, reason) in [
        (&b"nonsense\n"[..], "the line is not a request: expected ident at line 1 column 2"),
        (b"\xff\0\n", "the line is not a request: expected value at line 1 column 1"),
        (b"[]\n", "the request is of protocol 0"),
        (
            br#"{"protocol":99,"id":7,"op":"status"}"#,
            "this run reads protocol 1 to 1, the request is of protocol 99",
        ),
        (
            br#"{"protocol":1,"id":7,"op":"dance"}"#,
            "the request cannot be understood: unknown variant `dance`",
        ),
        (br#"{"id":7,"op":"status"}"#, "the request is of protocol 0"),
    ] {
        client.send(line).await;
        if !line.ends_with(b"\n") {
            client.send(b"\n").await;
        }
        let reply = client.read().await;
        assert_eq!(reply["reply"], "refused");
        assert!(reply["reason"].as_str().unwrap().contains(reason), "{reply}");
    }
    client.ask(8, ControlOperation::Status).await;
    control.next_request().await.reply(ControlReplyBody::Done);
    assert_eq!(client.read().await["id"], 8);
}

#[tokio::test]
async fn a_request_without_end_is_refused_and_its_client_disconnected() {
    let place = server_fixture();
    let control = bind(&place).await;
    let mut client = ControlTestClient::connect(&control).await;
    client.send(&vec![b'x'; REQUEST_BYTES_MAX + 1]).await;
    assert_eq!(client.read().await["reply"], "refused");
    assert_eq!(client.read().await, Json::Null);
}

#[tokio::test]
async fn a_client_that_says_no_more_still_gets_its_reply() {
    let place = server_fixture();
    let mut control = bind(&place).await;
    let mut client = ControlTestClient::connect(&control).await;
    client.ask(1, ControlOperation::Status).await;
    client.0.get_mut().shutdown().await.unwrap();
    let asked = control.next_request().await;
    tokio::task::yield_now().await;
    asked.reply(ControlReplyBody::Done);
    assert_eq!(client.read().await["reply"], "done");
    assert_eq!(client.read().await, Json::Null);
}

async fn subscriber(control: &mut RunControlServer) -> ControlTestClient {
    let mut client = ControlTestClient::connect(control).await;
    client.ask(1, ControlOperation::Subscribe).await;
    let asked = control.next_request().await;
    control.subscribe(&asked, None);
    assert_eq!(client.read().await["reply"], "done");
    client
}

#[tokio::test]
async fn a_subscriber_is_told_rows_with_their_numbers_and_the_end() {
    let place = server_fixture();
    let mut control = bind(&place).await;
    let mut client = subscriber(&mut control).await;
    control.publish_row(7, br#"{"b":1,"a":2}"#);
    control.publish(&ControlEvent::Delta { text: "hel".to_owned(), from: None });
    let told = json!({"protocol": 1, "event": "row", "at": 7, "row": {"b": 1, "a": 2}});
    assert_eq!(client.read().await, told);
    assert_eq!(client.read().await, json!({"protocol": 1, "event": "delta", "text": "hel"}));
    let path = control.path().to_owned();
    let last = ControlEvent::Settled { ask: "last".to_owned() };
    let farewell = control.finish(&last);
    let (last, ()) = tokio::join!(client.read(), farewell);
    assert_eq!(last["ask"], "last");
    assert_eq!(client.read().await, Json::Null);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_slow_subscriber_is_told_that_it_missed_something_and_then_goes_on() {
    let place = server_fixture();
    let mut control = bind(&place).await;
    let mut slow = subscriber(&mut control).await;
    let mut told = 0;
    // More than the socket and the queue hold; nothing here waits for the subscriber.
    for _ in 0..1000 {
        control.publish_row(told, &row(told, 10_000));
        told += 1;
        tokio::task::yield_now().await;
    }
    let mut next = 0;
    let lagged = loop {
        let event = slow.read().await;
        if event["event"] == "lagged" {
            break next;
        }
        assert_eq!(event["at"], next);
        next += 1;
    };
    assert!(lagged < told, "{lagged}");
    control.publish_row(told, &row(told, 1));
    assert_eq!(slow.read().await["at"], told);
}

#[tokio::test]
async fn a_subscriber_that_never_reads_does_not_keep_the_run_up() {
    let place = server_fixture();
    let mut control = bind(&place).await;
    let mut client = ControlTestClient::connect(&control).await;
    client.ask(1, ControlOperation::Subscribe).await;
    let asked = control.next_request().await;
    control.subscribe(&asked, None);
    for at in 0..1000 {
        control.publish_row(at, &row(at, 10_000));
        tokio::task::yield_now().await;
    }
    control.finish(&ControlEvent::Settled { ask: "last".to_owned() }).await;
}

#[tokio::test]
async fn a_request_that_comes_when_the_run_has_ended_is_refused() {
    let place = server_fixture();
    let control = bind(&place).await;
    let mut client = ControlTestClient::connect(&control).await;
    client.ask(1, ControlOperation::Status).await;
    while control.requests.is_empty() {
        tokio::task::yield_now().await;
    }
    control.finish(&ControlEvent::Settled { ask: "last".to_owned() }).await;
    let reply = client.read().await;
    assert_eq!((&reply["id"], &reply["reply"]), (&json!(1), &json!("refused")));
    assert_eq!(client.read().await, Json::Null);
}

#[tokio::test]
async fn one_client_too_many_is_turned_away_and_makes_room_for_another_when_one_goes() {
    let place = server_fixture();
    let mut control = bind(&place).await;
    let mut clients = Vec::new();
    for id in 0..CLIENTS_MAX as u64 {
        let mut client = ControlTestClient::connect(&control).await;
        client.ask(id, ControlOperation::Status).await;
        control.next_request().await.reply(ControlReplyBody::Done);
        client.read().await;
        clients.push(client);
    }
    let mut extra = ControlTestClient::connect(&control).await;
    assert_eq!(extra.read().await["reply"], "refused");
    assert_eq!(extra.read().await, Json::Null);
    clients.pop();
    loop {
        let mut client = ControlTestClient::connect(&control).await;
        client.ask(1, ControlOperation::Status).await;
        tokio::select! {
            asked = control.next_request() => { asked.reply(ControlReplyBody::Done); break }
            refused = client.read() => assert_eq!(refused["reply"], "refused"),
        }
    }
}
