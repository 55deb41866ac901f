//! Transfers through tunnels and plain requests.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::fixture::{ProxySetup, RecordingServer, client_hello, read_all, rules, soon};

/// Bytes of a transfer that does not fit into any buffer.
const BULK_BYTES: usize = 8 << 20;

fn pattern(seed: usize) -> Vec<u8> {
    (0..BULK_BYTES)
        .map(|index| u8::try_from((index * 31 + index / 251 + seed) % 256).unwrap())
        .collect()
}

#[tokio::test]
async fn bulk_data_arrives_whole_in_both_directions_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = ProxySetup::new(Some(listener.local_addr().unwrap())).start();
    let hello = client_hello(Some("a.example"), false);
    let (tunnel, status) = proxy.tunnel("a.example:443").await;
    assert_eq!(status, "200");
    let (server, _) = soon(listener.accept()).await.unwrap();
    let (mut server_in, mut server_out) = server.into_split();
    let (mut agent_in, mut agent_out) = tunnel.into_split();
    let (up, down) = (pattern(1), pattern(2));
    let send_up = async {
        agent_out.write_all(&hello).await.unwrap();
        agent_out.write_all(&up).await.unwrap();
        agent_out.shutdown().await.unwrap();
    };
    let send_down = async {
        server_out.write_all(&down).await.unwrap();
        server_out.shutdown().await.unwrap();
    };
    let (mut got_up, mut got_down) = (Vec::new(), Vec::new());
    let (_, _, up_end, down_end) = soon(async {
        tokio::join!(
            send_up,
            send_down,
            server_in.read_to_end(&mut got_up),
            agent_in.read_to_end(&mut got_down)
        )
    })
    .await;
    up_end.unwrap();
    down_end.unwrap();
    assert!(got_up[..hello.len()] == hello && got_up[hello.len()..] == up);
    assert!(got_down == down);
}

#[tokio::test]
async fn a_hello_in_pieces_is_understood() {
    let mut server = RecordingServer::start("done").await;
    let proxy = ProxySetup::new(Some(server.address)).start();
    let hello = client_hello(Some("A.Example"), false);
    let (mut tunnel, _) = proxy.tunnel("a.example:443").await;
    for byte in &hello {
        tunnel.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(read_all(&mut tunnel).await, "done");
    drop(tunnel);
    assert_eq!(server.received().await, hello);
}

#[tokio::test]
async fn bytes_that_follow_connect_at_once_are_checked_too() {
    let mut server = RecordingServer::start("").await;
    let proxy = ProxySetup::new(Some(server.address)).start();
    let mut stream = proxy.connect().await;
    let connect = b"CONNECT a.example:443 HTTP/1.1\r\nhost: a.example\r\n\r\n";
    let hello = client_hello(Some("evil.example"), false);
    stream.write_all(&[&connect[..], &hello].concat()).await.unwrap();
    assert!(read_all(&mut stream).await.starts_with("HTTP/1.1 200 "));
    assert_eq!(server.received().await, b"");
}

#[tokio::test]
async fn a_server_that_speaks_first_is_heard() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut setup = ProxySetup::new(Some(listener.local_addr().unwrap()));
    setup.rules = rules(&["a.example:22"], &[443], &[]);
    let proxy = setup.start();
    let (mut tunnel, _) = proxy.tunnel("a.example:22").await;
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    server.write_all(b"SSH-2.0-server").await.unwrap();
    let mut banner = [0; 14];
    soon(tunnel.read_exact(&mut banner)).await.unwrap();
    assert_eq!(&banner, b"SSH-2.0-server");
    tunnel.write_all(b"SSH-2.0-client").await.unwrap();
    soon(server.read_exact(&mut banner)).await.unwrap();
    assert_eq!(&banner, b"SSH-2.0-client");
}

#[tokio::test]
async fn a_plain_request_reaches_the_host_without_headers_of_the_proxy() {
    let mut server = RecordingServer::start("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await;
    let mut proxy = ProxySetup::new(Some(server.address)).start();
    let request = "POST http://A.Example:80/p?q=1 HTTP/1.1\r\nhost: a.example\r\nproxy-authorization: x\r\n\
        proxy-connection: keep-alive\r\nconnection: x-hop\r\nx-hop: 1\r\nx-kept: 2\r\ncontent-length: 4\r\n\r\nbody";
    let reply = proxy.exchange(request.as_bytes()).await;
    assert!(reply.starts_with("HTTP/1.1 200 OK") && reply.ends_with("hi"), "{reply}");
    let received = String::from_utf8(server.received().await).unwrap();
    assert!(received.starts_with("POST /p?q=1 HTTP/1.1\r\n"), "{received}");
    assert!(
        received.contains("host: a.example\r\n") && received.contains("x-kept: 2"),
        "{received}"
    );
    assert!(received.ends_with("\r\n\r\nbody"), "{received}");
    assert!(!received.contains("proxy-") && !received.contains("x-hop"), "{received}");
    assert_eq!(proxy.decision().await, "a.example:80 allowed");
}

#[tokio::test]
async fn a_denial_names_the_cure() {
    let mut proxy = ProxySetup::new(None).start();
    let reply = proxy.exchange(b"CONNECT pypi.org:443 HTTP/1.1\r\nhost: pypi.org\r\n\r\n").await;
    assert!(reply.starts_with("HTTP/1.1 403 "), "{reply}");
    assert!(reply.ends_with(
        "heeler: pypi.org:443: the host is not listed; to allow it, add it to `sandbox.network.allow`\n"
    ));
    assert!(proxy.decision().await.starts_with("pypi.org:443 the host is not listed"));
}
