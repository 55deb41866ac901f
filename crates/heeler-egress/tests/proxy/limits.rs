//! Behaviour at each limit.

use std::time::Duration;

use heeler_egress::EgressEvent;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::fixture::{ProxySetup, RecordingServer, client_hello, read_all, soon};

/// A limit that is reached soon.
const SHORT: Duration = Duration::from_millis(100);

#[tokio::test]
async fn a_head_that_is_too_long_is_refused() {
    let server = RecordingServer::start("").await;
    let mut setup = ProxySetup::new(Some(server.address));
    setup.limits.head_bytes_max = 8 << 10;
    let proxy = setup.start();
    let long = "x".repeat(9 << 10);
    for request in [
        format!("GET http://a.example/ HTTP/1.1\r\nhost: a.example\r\nx: {long}\r\n\r\n"),
        format!("GET http://a.example/{long} HTTP/1.1\r\nhost: a.example\r\n\r\n"),
        format!("CONNECT {long}.example:443 HTTP/1.1\r\n\r\n"),
    ] {
        let reply = proxy.exchange(request.as_bytes()).await;
        assert!(reply.starts_with("HTTP/1.1 4"), "{reply}");
    }
    let many = "x: y\r\n".repeat(200);
    let reply =
        proxy.exchange(format!("GET http://a.example/ HTTP/1.1\r\n{many}\r\n").as_bytes()).await;
    assert!(reply.starts_with("HTTP/1.1 431 "), "{reply}");
    assert_eq!(proxy.network.dialed(), Vec::<String>::new());
}

#[tokio::test]
async fn a_connection_that_does_not_finish_its_request_is_closed() {
    let mut setup = ProxySetup::new(None);
    setup.limits.head_time_max = SHORT;
    let proxy = setup.start();
    for bytes in
        [&b""[..], b"G", b"GET http://a.example/ HTTP/1.1\r\nhost:", &[5], &[5, 1, 0, 5, 1]]
    {
        let mut stream = proxy.connect().await;
        stream.write_all(bytes).await.unwrap();
        // The end is what is awaited here; the test would hang without it.
        let reply = read_all(&mut stream).await;
        assert!(!reply.contains(" 200 "), "{bytes:?}: {reply}");
    }
}

#[tokio::test]
async fn a_tunnel_without_a_first_message_is_closed() {
    let mut server = RecordingServer::start("").await;
    let mut setup = ProxySetup::new(Some(server.address));
    setup.limits.hello_time_max = SHORT;
    let proxy = setup.start();
    for bytes in [&b""[..], &client_hello(Some("a.example"), false)[..20]] {
        let (mut tunnel, _) = proxy.tunnel("a.example:443").await;
        tunnel.write_all(bytes).await.unwrap();
        assert_eq!(read_all(&mut tunnel).await, "");
        assert_eq!(server.received().await, b"");
    }
}

#[tokio::test]
async fn a_host_that_does_not_answer_is_given_up() {
    let mut setup = ProxySetup::new(None);
    setup.limits.connect_time_max = SHORT;
    let proxy = setup.start();
    let (_, status) = proxy.tunnel("a.example:443").await;
    assert_eq!(status, "504");
}

#[tokio::test]
async fn further_connections_wait_for_one_to_end() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut setup = ProxySetup::new(Some(listener.local_addr().unwrap()));
    setup.limits.connections_max = 2;
    let proxy = setup.start();
    let (first, _) = proxy.tunnel("a.example:443").await;
    let (_second, _) = proxy.tunnel("a.example:443").await;
    let mut waiting = std::pin::pin!(proxy.tunnel("a.example:443"));
    // The third one is not served while the first two are open.
    assert!(tokio::time::timeout(SHORT, &mut waiting).await.is_err());
    assert_eq!(proxy.network.dialed().len(), 2);
    drop(first);
    assert_eq!(soon(waiting).await.1, "200");
}

#[tokio::test]
async fn an_idle_tunnel_is_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut setup = ProxySetup::new(Some(listener.local_addr().unwrap()));
    setup.limits.idle_time_max = SHORT;
    let proxy = setup.start();
    let (mut tunnel, _) = proxy.tunnel("a.example:443").await;
    tunnel.write_all(&client_hello(Some("a.example"), false)).await.unwrap();
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    assert_eq!(read_all(&mut tunnel).await, "");
    drop(soon(server.read_to_end(&mut Vec::new())).await);
}

#[tokio::test]
async fn a_decision_is_reported_once_and_no_flood_is() {
    let mut setup = ProxySetup::new(None);
    setup.limits.decisions_max = 3;
    let mut proxy = setup.start();
    for number in [0, 0, 1, 1, 0, 2, 3, 4, 5] {
        let (_, status) = proxy.tunnel(&format!("h{number}.example:443")).await;
        assert_eq!(status, "403");
    }
    for number in 0..3 {
        assert!(proxy.decision().await.starts_with(&format!("h{number}.example:443 ")));
    }
    assert!(matches!(soon(proxy.events.recv()).await, Some(EgressEvent::DecisionsOmitted)));
    assert!(proxy.events.try_recv().is_err());
}
