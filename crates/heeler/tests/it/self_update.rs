//! `heeler self-update --check`, with a server of releases.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use crate::fleet::{Fleet, Ran};

/// Runs the check against a server that gives this reply to one request.
fn check(status: &str, body: &str, args: &[&str]) -> Ran {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/releases/latest", listener.local_addr().unwrap());
    let reply = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        let mut piece = [0; 1024];
        while !request.windows(4).any(|end| end == b"\r\n\r\n") {
            let count = stream.read(&mut piece).unwrap();
            assert_ne!(count, 0, "the request ends early");
            request.extend_from_slice(&piece[..count]);
        }
        stream.write_all(reply.as_bytes()).unwrap();
        String::from_utf8(request).unwrap()
    });
    let fleet = Fleet::empty();
    let mut command = fleet.command(&[&["self-update", "--check"], args].concat());
    let ran = Ran::from(command.env("HEELER_RELEASES_URL", url).output().unwrap());
    let request = server.join().unwrap();
    assert!(request.starts_with("GET /releases/latest HTTP/1.1\r\n"), "{request}");
    ran
}

#[test]
fn a_newer_release_is_named_with_the_command_that_installs_it() {
    let ran = check("200 OK", r#"{"tag_name": "v999.1.0"}"#, &[]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let expected = format!("heeler 999.1.0 is available; this is {}", env!("CARGO_PKG_VERSION"));
    assert!(ran.stdout.contains(&expected), "{}", ran.stdout);
    // The program of the tests was not installed.
    assert!(ran.stdout.contains("releases/tag/v999.1.0"), "{}", ran.stdout);
    let ran = check("200 OK", r#"{"tag_name": "v999.1.0"}"#, &["--json"]);
    let found: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&found["newer"], &found["latest"]), (&true.into(), &"999.1.0".into()), "{found}");
    assert_eq!(found["installed"], "unknown");
}

#[test]
fn the_newest_release_says_so() {
    let own = format!(r#"{{"tag_name": "v{}"}}"#, env!("CARGO_PKG_VERSION"));
    let ran = check("200 OK", &own, &[]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("is the newest release"), "{}", ran.stdout);
}

#[test]
fn releases_that_cannot_be_read_are_a_failure_with_the_reason() {
    for (status, body, why) in [
        ("500 Broken", "", "it answered 500"),
        ("200 OK", "<html>", "the reply is no JSON"),
        ("200 OK", r#"{"tag_name": "v1; rm -rf ~\u001b[2J"}"#, "names no version"),
    ] {
        let ran = check(status, body, &[]);
        assert_eq!(ran.code, Some(1), "{}", ran.stdout);
        assert!(ran.stderr.contains(why) && !ran.stderr.contains("rm -rf"), "{}", ran.stderr);
    }
    // Offline: nobody listens at the address.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let fleet = Fleet::empty();
    let mut command = fleet.command(&["self-update", "--check"]);
    command.env("HEELER_RELEASES_URL", format!("http://{free}/"));
    let ran = Ran::from(command.output().unwrap());
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert!(ran.stderr.contains("cannot read the newest release from http://"), "{}", ran.stderr);
}

#[test]
fn without_check_nothing_is_done() {
    let ran = Fleet::empty().run(&["self-update"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stdout);
    assert!(ran.stderr.contains("does not replace itself") && ran.stderr.contains("--check"));
}
