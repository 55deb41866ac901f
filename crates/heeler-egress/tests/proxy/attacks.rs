//! Attempts to reach a host that is not allowed.

use heeler_config::EgressRules;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::fixture::{
    PUBLIC, ProxySetup, RecordingServer, client_hello, read_all, read_reply, rules, soon,
};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";

#[tokio::test]
async fn a_name_that_leads_to_a_private_or_metadata_address_is_refused() {
    let server = RecordingServer::start(OK).await;
    let mut proxy = ProxySetup::new(Some(server.address)).start();
    for (ip, reason) in [
        ("169.254.169.254", "link-local"),
        ("::ffff:169.254.169.254", "link-local"),
        ("127.0.0.1", "this machine"),
        ("::ffff:127.0.0.1", "this machine"),
        ("::1", "this machine"),
        ("10.0.0.1", "private network"),
        ("100.64.0.1", "private network"),
        ("fd00:ec2::254", "metadata"),
        ("0.0.0.0", "unspecified"),
        ("64:ff9b::7f00:1", "this machine"),
    ] {
        proxy.network.answer("x.b.example", &[&[ip]]);
        let reply =
            proxy.exchange(b"GET http://x.b.example/ HTTP/1.1\r\nhost: x.b.example\r\n\r\n").await;
        assert!(reply.starts_with("HTTP/1.1 403 "), "{ip}: {reply}");
        assert!(reply.contains(reason), "{ip}: {reply}");
    }
    assert_eq!(proxy.network.dialed(), Vec::<String>::new());
    assert!(proxy.decision().await.contains("link-local"));
}

#[tokio::test]
async fn a_process_that_is_not_of_the_run_gets_no_reply() {
    let server = RecordingServer::start(OK).await;
    let setup = ProxySetup::new(Some(server.address));
    let proxy = ProxySetup { is_agent: std::sync::Arc::new(|_| false), ..setup }.start();
    proxy.network.answer("a.example", &[&[PUBLIC]]);
    let reply = proxy.exchange(b"GET http://a.example/ HTTP/1.1\r\nhost: a.example\r\n\r\n").await;
    assert_eq!(reply, "");
    assert_eq!(proxy.network.dialed(), Vec::<String>::new());
}

#[tokio::test]
async fn an_answer_of_dns_that_changes_has_no_effect_on_a_checked_name() {
    let server = RecordingServer::start(OK).await;
    let proxy = ProxySetup::new(Some(server.address)).start();
    proxy.network.answer("a.example", &[&[PUBLIC], &["127.0.0.1"], &["127.0.0.1", PUBLIC]]);
    let get = b"GET http://a.example/ HTTP/1.1\r\nhost: a.example\r\n\r\n";
    assert!(proxy.exchange(get).await.starts_with("HTTP/1.1 200 "));
    // One question to DNS for one connection, and no other address than the one that was checked.
    assert_eq!(proxy.network.resolved.lock().unwrap().len(), 1);
    assert_eq!(proxy.network.dialed(), [format!("{PUBLIC}:80")]);
    assert!(proxy.exchange(get).await.starts_with("HTTP/1.1 403 "));
    // Of several addresses, only the public one is used.
    assert!(proxy.exchange(get).await.starts_with("HTTP/1.1 200 "));
    assert_eq!(proxy.network.dialed(), [format!("{PUBLIC}:80"), format!("{PUBLIC}:80")]);
}

#[tokio::test]
async fn a_tunnel_with_another_server_name_is_closed_before_a_byte_is_sent() {
    let mut server = RecordingServer::start("").await;
    let mut proxy = ProxySetup::new(Some(server.address)).start();
    for (bytes, reason) in [
        (client_hello(Some("evil.example"), false), "another host: `evil.example`"),
        (client_hello(None, false), "names no server"),
        (client_hello(Some("a.example"), true), "hides the server's name"),
        (b"GET / HTTP/1.1\r\nhost: evil.example\r\n\r\n".to_vec(), "must carry TLS"),
        (b"\x16\x03\x01\x00\x04\x02\0\0\0".to_vec(), "malformed"),
    ] {
        let (mut tunnel, status) = proxy.tunnel("a.example:443").await;
        assert_eq!(status, "200");
        tunnel.write_all(&bytes).await.unwrap();
        assert_eq!(read_all(&mut tunnel).await, "", "{reason}");
        assert_eq!(server.received().await, b"", "{reason}");
        loop {
            let decision = proxy.decision().await;
            if decision != "a.example:443 allowed" {
                assert!(decision.contains(reason), "{decision}");
                break;
            }
        }
    }
}

#[tokio::test]
async fn addresses_and_ports_that_are_not_listed_are_refused() {
    let server = RecordingServer::start(OK).await;
    let proxy = ProxySetup::new(Some(server.address)).start();
    for target in [
        "evil.example:443",
        "a.example:25",
        "a.example:22",
        "a.example:8080",
        "8.8.8.8:443",
        "127.0.0.1:80",
        "[::1]:443",
        "[::ffff:127.0.0.1]:80",
        "2130706433:80",
        "0x7f.1:80",
        "a.example.evil.net:443",
        "b.example:443",
        "a.example@evil.net:443",
    ] {
        let (_, status) = proxy.tunnel(target).await;
        assert!(["403", "400"].contains(&&*status), "{target}: {status}");
    }
    for url in [
        "http://evil.example/",
        "http://127.1/",
        "http://a.example:25/",
        "https://a.example/",
        "ftp://a.example/",
        "http://u@a.example/",
        "http://a.example:0/",
    ] {
        let reply = proxy.exchange(format!("GET {url} HTTP/1.1\r\n\r\n").as_bytes()).await;
        assert!(reply.starts_with("HTTP/1.1 40"), "{url}: {reply}");
    }
    assert_eq!(proxy.network.dialed(), Vec::<String>::new());
}

#[tokio::test]
async fn an_empty_list_allows_nothing() {
    let server = RecordingServer::start(OK).await;
    let mut setup = ProxySetup::new(Some(server.address));
    setup.rules = EgressRules::default();
    let proxy = setup.start();
    let (_, status) = proxy.tunnel("api.anthropic.com:443").await;
    assert_eq!(status, "403");
    assert_eq!(proxy.network.dialed(), Vec::<String>::new());
}

#[tokio::test]
async fn a_request_whose_host_header_differs_is_refused() {
    let server = RecordingServer::start(OK).await;
    let mut proxy = ProxySetup::new(Some(server.address)).start();
    for headers in [
        "host: evil.example",
        "host: a.example:8080",
        "host: a.example\r\nhost: evil.example",
        "host: a.example, evil.example",
        "host: u@a.example",
        "host: ",
    ] {
        let request = format!("GET http://a.example/ HTTP/1.1\r\n{headers}\r\n\r\n");
        let reply = proxy.exchange(request.as_bytes()).await;
        assert!(reply.starts_with("HTTP/1.1 40"), "{headers}: {reply}");
    }
    assert_eq!(proxy.network.dialed(), Vec::<String>::new());
    assert!(proxy.decision().await.contains("the header `Host` differs"));
}

#[tokio::test]
async fn no_second_request_hides_in_a_body() {
    let mut server = RecordingServer::start(OK).await;
    let proxy = ProxySetup::new(Some(server.address)).start();
    let hidden = "GET http://evil.example/hidden HTTP/1.1\r\nhost: evil.example\r\n\r\n";
    let plain = "GET /hidden HTTP/1.1\r\nhost: evil.example\r\n\r\n";
    let mut served = 0;
    for (headers, body) in [
        (
            "content-length: 5\r\ntransfer-encoding: chunked".to_owned(),
            format!("0\r\n\r\n{hidden}"),
        ),
        ("content-length: 5\r\ntransfer-encoding: chunked".to_owned(), format!("0\r\n\r\n{plain}")),
        ("transfer-encoding: chunked\r\ncontent-length: 5".to_owned(), format!("0\r\n\r\n{plain}")),
        ("transfer-encoding: identity\r\ncontent-length: 0".to_owned(), plain.to_owned()),
        ("transfer-encoding: xchunked".to_owned(), format!("0\r\n\r\n{plain}")),
        ("transfer-encoding : chunked".to_owned(), format!("0\r\n\r\n{plain}")),
        ("content-length: 0\r\ncontent-length: 5".to_owned(), plain.to_owned()),
        ("content-length: +0".to_owned(), plain.to_owned()),
        ("content-length: 0".to_owned(), plain.to_owned()),
        ("connection: content-length\r\ncontent-length: 0".to_owned(), plain.to_owned()),
        (
            "connection: transfer-encoding\r\ntransfer-encoding: chunked".to_owned(),
            format!("0\r\n\r\n{plain}"),
        ),
    ] {
        let request = format!(
            "POST http://a.example/x HTTP/1.1\r\nhost: a.example\r\n{headers}\r\n\r\n{body}"
        );
        let before = proxy.network.dialed().len();
        let reply = proxy.exchange(request.as_bytes()).await;
        if proxy.network.dialed().len() == before {
            assert!(reply.starts_with("HTTP/1.1 400 "), "{headers}: {reply}");
            continue;
        }
        let received = String::from_utf8(server.received().await).unwrap();
        assert!(received.starts_with("POST /x HTTP/1.1\r\n"), "{headers}: {received}");
        assert!(!received.contains("hidden"), "{headers}: {received}");
        served += 1;
    }
    assert!(served >= 2, "some of these are valid requests");
}

#[tokio::test]
async fn each_request_of_a_kept_connection_is_judged() {
    let server = RecordingServer::start(OK).await;
    let proxy = ProxySetup::new(Some(server.address)).start();
    let mut stream = proxy.connect().await;
    for (host, status) in [("a.example", "200"), ("evil.example", "403"), ("x.b.example", "200")] {
        let request = format!("GET http://{host}/ HTTP/1.1\r\nhost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let reply = read_reply(&mut stream).await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {reply}");
    }
    assert_eq!(proxy.network.dialed().len(), 2);
}

/// Sends a SOCKS5 request and returns the code of the reply.
async fn socks(stream: &mut tokio::net::UnixStream, command: u8, address: &[u8]) -> u8 {
    stream.write_all(&[5, 2, 2, 0]).await.unwrap();
    let mut method = [0; 2];
    soon(stream.read_exact(&mut method)).await.unwrap();
    assert_eq!(method, [5, 0]);
    stream.write_all(&[&[5, command, 0][..], address].concat()).await.unwrap();
    let mut reply = [0; 10];
    soon(stream.read_exact(&mut reply)).await.unwrap();
    reply[1]
}

fn named(name: &str, port: u16) -> Vec<u8> {
    [&[3, u8::try_from(name.len()).unwrap()][..], name.as_bytes(), &port.to_be_bytes()].concat()
}

#[tokio::test]
async fn socks_reaches_listed_names_only() {
    let mut server = RecordingServer::start("from the server").await;
    let proxy = ProxySetup::new(Some(server.address)).start();
    let mapped = [&[4][..], &[0; 10], &[0xff, 0xff, 127, 0, 0, 1], &[0, 80]].concat();
    for address in [
        vec![1, 8, 8, 8, 8, 1, 187],
        vec![1, 127, 0, 0, 1, 0, 80],
        mapped,
        named("127.0.0.1", 80),
        named("evil.example", 443),
        named("a.example", 25),
        named("a.example\0.evil.example", 443),
    ] {
        assert_eq!(socks(&mut proxy.connect().await, 1, &address).await, 2, "{address:?}");
    }
    // Listening sockets and UDP.
    for command in [2, 3] {
        assert_eq!(socks(&mut proxy.connect().await, command, &named("a.example", 443)).await, 7);
    }
    assert_eq!(proxy.network.dialed(), Vec::<String>::new());
    let mut stream = proxy.connect().await;
    assert_eq!(socks(&mut stream, 1, &named("A.example.", 443)).await, 0);
    let hello = client_hello(Some("a.example"), false);
    stream.write_all(&hello).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(read_all(&mut stream).await, "from the server");
    assert_eq!(server.received().await, hello);
    let mut other = proxy.connect().await;
    assert_eq!(socks(&mut other, 1, &named("a.example", 443)).await, 0);
    other.write_all(&client_hello(Some("evil.example"), false)).await.unwrap();
    assert_eq!(server.received().await, b"");
}

#[tokio::test]
async fn a_client_that_wants_to_log_in_by_socks_is_sent_away() {
    let proxy = ProxySetup::new(None).start();
    let mut stream = proxy.connect().await;
    stream.write_all(&[5, 1, 2]).await.unwrap();
    let mut reply = Vec::new();
    soon(stream.read_to_end(&mut reply)).await.unwrap();
    assert_eq!(reply, [5, 0xff]);
}

#[tokio::test]
async fn a_local_address_is_reached_only_if_it_is_listed() {
    let server = RecordingServer::start(OK).await;
    let mut setup = ProxySetup::new(Some(server.address));
    setup.rules = rules(&[], &[80], &["127.0.0.1:5000", "db.lan:5000"]);
    let proxy = setup.start();
    proxy.network.answer("db.lan", &[&["10.0.0.9"], &["169.254.169.254"]]);
    let get = |host: &str| format!("GET http://{host}/ HTTP/1.1\r\nhost: {host}\r\n\r\n");
    assert!(proxy.exchange(get("127.0.0.1:5000").as_bytes()).await.starts_with("HTTP/1.1 200 "));
    assert!(proxy.exchange(get("db.lan:5000").as_bytes()).await.starts_with("HTTP/1.1 200 "));
    assert!(proxy.exchange(get("db.lan:5000").as_bytes()).await.starts_with("HTTP/1.1 403 "));
    assert!(proxy.exchange(get("127.0.0.1:5001").as_bytes()).await.starts_with("HTTP/1.1 403 "));
    assert_eq!(proxy.network.dialed(), ["127.0.0.1:5000", "10.0.0.9:5000"]);
}
