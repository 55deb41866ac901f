//! Hosts that a person allows during the run.

use heeler_egress::{EgressEvent, EgressQuestion, GrantScope};

use crate::fixture::{ProxyFixture, ProxySetup, RecordingServer, soon};

async fn question(proxy: &mut ProxyFixture) -> EgressQuestion {
    loop {
        match soon(proxy.events.recv()).await {
            Some(EgressEvent::Question(question)) => return question,
            Some(EgressEvent::Decision(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn status(mut stream: tokio::net::UnixStream) -> String {
    use tokio::io::AsyncWriteExt as _;
    stream.write_all(b"CONNECT pypi.org:443 HTTP/1.1\r\n\r\n").await.unwrap();
    let head = crate::fixture::read_head(&mut stream).await;
    head.split(' ').nth(1).unwrap_or_default().to_owned()
}

async fn start() -> ProxyFixture {
    let server = RecordingServer::start("").await;
    let mut setup = ProxySetup::new(Some(server.address));
    setup.asks = true;
    setup.start()
}

#[tokio::test]
async fn a_host_that_a_person_allows_is_reached() {
    let mut proxy = start().await;
    // Two connections at once make one question.
    let first = tokio::spawn(status(proxy.connect().await));
    let second = tokio::spawn(status(proxy.connect().await));
    let asked = question(&mut proxy).await;
    assert_eq!((asked.host.to_string(), asked.port), ("pypi.org".to_owned(), 443));
    asked.reply.send(Some(GrantScope::Run)).unwrap();
    assert_eq!(soon(first).await.unwrap(), "200");
    assert_eq!(soon(second).await.unwrap(), "200");
    assert_eq!(soon(status(proxy.connect().await)).await, "200");
    // Another port is another question.
    let other = proxy.connect().await;
    tokio::spawn(async move {
        let mut other = other;
        use tokio::io::AsyncWriteExt as _;
        other.write_all(b"CONNECT pypi.org:22 HTTP/1.1\r\n\r\n").await.unwrap();
        drop(crate::fixture::read_head(&mut other).await);
    });
    assert_eq!(question(&mut proxy).await.port, 22);
}

#[tokio::test]
async fn once_is_for_the_connection_that_waits_or_tries_again() {
    let mut proxy = start().await;
    let waiting = tokio::spawn(status(proxy.connect().await));
    let asked = question(&mut proxy).await;
    asked.reply.send(Some(GrantScope::Once)).unwrap();
    assert_eq!(soon(waiting).await.unwrap(), "200");
    let waiting = tokio::spawn(status(proxy.connect().await));
    let asked = question(&mut proxy).await;
    // The client gives up before the person answers.
    waiting.abort();
    drop(waiting.await);
    // The proxy has noticed it when only its list still waits for the answer.
    while asked.reply.receiver_count() > 1 {
        tokio::task::yield_now().await;
    }
    asked.reply.send_replace(Some(GrantScope::Once));
    assert_eq!(soon(status(proxy.connect().await)).await, "200");
}

#[tokio::test]
async fn a_denied_host_is_not_asked_about_again() {
    let mut proxy = start().await;
    let waiting = tokio::spawn(status(proxy.connect().await));
    question(&mut proxy).await.reply.send(Some(GrantScope::Denied)).unwrap();
    assert_eq!(soon(waiting).await.unwrap(), "403");
    assert_eq!(proxy.decision().await, "pypi.org:443 it was asked about and not allowed");
    assert_eq!(soon(status(proxy.connect().await)).await, "403");
    assert!(proxy.events.try_recv().is_err());
}

#[tokio::test]
async fn a_question_that_nobody_can_answer_is_a_denial() {
    let mut proxy = start().await;
    let waiting = tokio::spawn(status(proxy.connect().await));
    drop(question(&mut proxy).await);
    assert_eq!(soon(waiting).await.unwrap(), "403");
    assert!(proxy.decision().await.contains("not listed"));
    assert_eq!(soon(status(proxy.connect().await)).await, "403");
}

#[tokio::test]
async fn an_allowed_host_is_still_not_a_way_to_private_addresses() {
    let mut proxy = start().await;
    proxy.network.answer("pypi.org", &[&["169.254.169.254"]]);
    let waiting = tokio::spawn(status(proxy.connect().await));
    question(&mut proxy).await.reply.send(Some(GrantScope::Run)).unwrap();
    assert_eq!(soon(waiting).await.unwrap(), "403");
    assert_eq!(proxy.network.dialed(), Vec::<String>::new());
}

#[tokio::test]
async fn an_agent_cannot_flood_a_person_with_questions() {
    let server = RecordingServer::start("").await;
    let mut setup = ProxySetup::new(Some(server.address));
    setup.asks = true;
    setup.limits.questions_max = 2;
    let mut proxy = setup.start();
    for number in 0..4 {
        let target = format!("h{number}.example:443");
        let (socket, asked) = (proxy.connect().await, number < 2);
        let waiting = tokio::spawn(async move {
            use tokio::io::AsyncWriteExt as _;
            let mut socket = socket;
            let request = format!("CONNECT {target} HTTP/1.1\r\n\r\n");
            socket.write_all(request.as_bytes()).await.unwrap();
            crate::fixture::read_head(&mut socket).await
        });
        if asked {
            drop(question(&mut proxy).await);
        }
        assert!(soon(waiting).await.unwrap().starts_with("HTTP/1.1 403 "));
    }
}
