//! Git remotes with a credential that the agent does not have.

use std::net::SocketAddr;

use heeler_egress::{GitRemoteAccess, GitRoute};

use crate::fixture::{ProxyFixture, ProxySetup, RecordingServer};

/// `x-access-token:tok-real` in base64.
const LOGIN: &str = "authorization: Basic eC1hY2Nlc3MtdG9rZW46dG9rLXJlYWw=";

const REFS: &str = "info/refs?service=git-upload-pack";

fn start(server: SocketAddr) -> ProxyFixture {
    let mut setup = ProxySetup::new(Some(server));
    let remote = GitRemoteAccess {
        url: "http://git.example.test/acme/app".parse().unwrap(),
        username: "x-access-token".to_owned(),
        token: "tok-real".to_owned(),
    };
    setup.git = Some(GitRoute::new(&[remote], None).unwrap());
    setup.start()
}

fn get(path: &str) -> Vec<u8> {
    let head = "host: 127.0.0.1:3128\r\nauthorization: Basic bWU6ZmFrZQ==\r\ncookie: a=b\r\n";
    format!("GET /.heeler-git/{path} HTTP/1.1\r\n{head}\r\n").into_bytes()
}

#[tokio::test]
async fn the_credential_is_added_for_the_repository_and_the_agents_own_is_dropped() {
    let mut server =
        RecordingServer::start("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nrefs").await;
    let proxy = start(server.address);
    let reply = proxy.exchange(&get(&format!("git.example.test/acme/app.git/{REFS}"))).await;
    assert!(reply.starts_with("HTTP/1.1 200") && reply.ends_with("refs"), "{reply}");
    assert!(!reply.contains("tok-real"));
    let head = String::from_utf8(server.received().await).unwrap();
    assert!(head.starts_with(&format!("GET /acme/app.git/{REFS} HTTP/1.1\r\n")), "{head}");
    assert!(head.contains(LOGIN) && head.contains("host: git.example.test\r\n"), "{head}");
    assert_eq!(head.matches("authorization").count(), 1, "{head}");
    assert!(!head.contains("cookie"), "{head}");
}

#[tokio::test]
async fn another_host_another_path_and_another_call_reach_no_server() {
    let server = RecordingServer::start("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let proxy = start(server.address);
    for path in [
        format!("evil.example/acme/app/{REFS}"),
        format!("git.example.test:81/acme/app/{REFS}"),
        format!("git.example.test/acme/app-private/{REFS}"),
        format!("git.example.test/acme/app/../private/{REFS}"),
        format!("git.example.test/acme/app/%2e%2e/private/{REFS}"),
        format!("git.example.test/acme/app/{REFS}&service=x"),
        "git.example.test/acme/app".to_owned(),
        "git.example.test/acme/app/settings/keys".to_owned(),
    ] {
        let reply = proxy.exchange(&get(&path)).await;
        assert!(reply.starts_with("HTTP/1.1 403"), "{path}: {reply}");
        assert!(reply.contains("sandbox.git"), "{path}: {reply}");
    }
    // The way to the remote itself is not in the list of hosts, and without the credential.
    let direct =
        b"GET http://git.example.test/acme/app/settings HTTP/1.1\r\nhost: git.example.test\r\n\r\n";
    let reply = proxy.exchange(direct).await;
    assert!(reply.starts_with("HTTP/1.1 403"), "{reply}");
    assert_eq!(proxy.network.dialed(), [""; 0]);
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_a_refused_credential_is_no_question() {
    for (reply, expected) in [
        (
            "HTTP/1.1 301 Moved\r\nlocation: https://evil.example/x\r\ncontent-length: 0\r\n\r\n",
            "redirect",
        ),
        (
            "HTTP/1.1 401 No\r\nwww-authenticate: Basic realm=x\r\ncontent-length: 0\r\n\r\n",
            "does not accept",
        ),
    ] {
        let mut server = RecordingServer::start(reply).await;
        let proxy = start(server.address);
        let reply = proxy.exchange(&get(&format!("git.example.test/acme/app/{REFS}"))).await;
        assert!(reply.starts_with("HTTP/1.1 403") && reply.contains(expected), "{reply}");
        assert!(!reply.contains("evil.example") && !reply.contains("www-authenticate"), "{reply}");
        server.received().await;
        assert_eq!(proxy.network.dialed().len(), 1, "no other address is connected");
    }
}
