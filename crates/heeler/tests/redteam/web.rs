//! Attacks from the network: webhooks, logins, cookies and connection limits.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value as Json;
use sha2::Sha256;

use crate::trigger::wait_for;
use crate::web::{Served, bearer, link_path, send, try_send};

const SECRET: &str = "signs-the-calls-1";

/// Number of connections of one attacker: more than there are bodies at once.
const CONNECTIONS: usize = 80;

/// A fleet with a webhook.
fn served() -> Served {
    let served = Served::new("{port: auto}");
    let config = served.0.read("heeler.yaml");
    let schedules = "    schedules:\n      push: {type: webhook, secret_env: HOOK_SECRET, \
                     overlap: queue}\n";
    served.0.write("heeler.yaml", &format!("{config}{schedules}"));
    served.0.write(".env", &format!("HOOK_SECRET={SECRET}\n"));
    served
}

fn sign(body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(body.as_bytes());
    let digest: String =
        mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("x-hub-signature-256: sha256={digest}")
}

/// Calls the webhook as its sender does.
#[track_caller]
fn call(address: &str, body: &str, delivery: &str) -> (u16, Json) {
    let headers = [&sign(body), &format!("heeler-delivery: {delivery}")];
    let headers = headers.map(String::as_str);
    let (code, _, reply) = send(address, "POST /hooks/quick/push", &headers, body);
    (code, serde_json::from_str(&reply).unwrap_or_default())
}

/// Begins a call whose body never comes, with a signature that looks right.
fn drip(address: &str, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let signature = "0".repeat(64);
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: {address}\r\nx-hub-signature-256: sha256={signature}\r\n\
         content-length: 1000\r\n\r\nx"
    )
    .unwrap();
    stream
}

#[test]
fn a_call_of_a_webhook_that_does_not_exist_is_refused_before_its_body() {
    let served = served();
    let address = served.start();
    let unsigned = "POST /hooks/quick/push HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\
                    x-hub-signature-256: sha256=00\r\n\r\n";
    let mut malformed = TcpStream::connect(&address).unwrap();
    malformed.write_all(unsigned.as_bytes()).unwrap();
    for mut stream in [drip(&address, "/hooks/a/b"), malformed] {
        let mut reply = [0; 12];
        // Only the head was sent, so a server that waits for the body does not reply.
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"HTTP/1.1 401");
    }
}

#[test]
fn bodies_that_drip_keep_no_real_call_out() {
    let served = served();
    let address = served.start();
    let mut attackers: Vec<TcpStream> =
        (0..CONNECTIONS).map(|_| drip(&address, "/hooks/quick/push")).collect();
    for number in 0..3 {
        let (code, reply) = call(&address, &format!("{{\"real\": {number}}}"), &number.to_string());
        assert_eq!(code, 202, "{reply}");
        // The attacker comes again as fast as it is cut off.
        attackers.extend((0..10).map(|_| drip(&address, "/hooks/quick/push")));
    }
    let mut first = attackers.swap_remove(0);
    let mut told = [0; 12];
    first.read_exact(&mut told).unwrap();
    assert!([&b"HTTP/1.1 429"[..], b"HTTP/1.1 408"].contains(&&told[..]), "{told:?}");
}

#[test]
fn a_captured_call_cannot_be_sent_again_under_another_delivery() {
    let served = served();
    let address = served.start();
    let body = "{\"deploy\": \"it\"}";
    let (code, first) = call(&address, body, "one");
    assert_eq!(code, 202, "{first}");
    let replays = |address: &str| {
        let (code, again) = call(address, body, "one");
        assert_eq!((code, &again["job"]), (200, &first["job"]), "the sender repeats it: {again}");
        let (code, refused) = call(address, body, "two");
        assert_eq!(code, 409, "{refused}");
        assert!(refused["detail"].as_str().unwrap().contains("same signature"), "{refused}");
        let bare = [sign(body), "webhook-id: other".to_owned()];
        for headers in [&[bare[0].as_str()][..], &[&bare[0], &bare[1]]] {
            assert_eq!(send(address, "POST /hooks/quick/push", headers, body).0, 409);
        }
    };
    replays(&address);
    served.run(&["stop"]).ok();
    let address = served.start();
    replays(&address);
    assert_eq!(call(&address, "{\"deploy\": \"that\"}", "two").0, 202);
    let jobs = served.0.json(&["jobs", "--json"]);
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 2, "{jobs:#}");
}

#[test]
fn idle_connections_are_closed_in_favour_of_new_ones() {
    let served = served();
    let mut start = Command::new("bash");
    // The daemon allows half as many connections as it may open files, half of them from here.
    start.args(["-c", "ulimit -n 400; exec \"$0\" start", env!("CARGO_BIN_EXE_heeler")]);
    let environment = served.command(&["start"]);
    for (name, value) in environment.get_envs() {
        match value {
            Some(value) => start.env(name, value),
            None => start.env_remove(name),
        };
    }
    start.current_dir(served.0.path()).stdin(Stdio::null()).stdout(Stdio::null());
    let mut daemon = start.stderr(Stdio::null()).spawn().unwrap();
    let address = wait_for("the daemon", || {
        let status: Json = serde_json::from_str(&served.run(&["status", "--json"]).stdout).ok()?;
        let url = status["daemon"]["url"].as_str()?;
        Some(url.strip_prefix("http://")?.to_owned())
    });
    let mut idle: Vec<TcpStream> =
        (0..300).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let (code, ..) = send(&address, "GET /login", &[], "");
    assert_eq!(code, 200);
    // The newest idle connections are still open, so the reply did not wait for their time limit.
    let newest = idle.last_mut().unwrap();
    newest.set_nonblocking(true).unwrap();
    let error = newest.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    let oldest = &mut idle[0];
    let closed = oldest.read(&mut [0]);
    assert!(closed.as_ref().map_or(true, |read| *read == 0), "{closed:?}");
    served.run(&["stop", "--force", "-q"]).ok();
    daemon.wait().unwrap();
}

#[test]
fn wrong_passwords_do_not_lock_the_owner_out() {
    let served = served();
    let address = served.start();
    let mut set = served.command(&["password", "set"]);
    let mut set = set.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    set.stdin.take().unwrap().write_all(b"correct horse battery").unwrap();
    assert!(set.wait().unwrap().success());
    let form = "content-type: application/x-www-form-urlencoded";
    let guess = || send(&address, "POST /login", &[form], "user=ann&password=wrong+password");
    let (_, head, _) = wait_for("the limit", || Some(guess()).filter(|(code, ..)| *code == 429));
    let wait = head.lines().find_map(|line| line.strip_prefix("retry-after: ")).unwrap();
    assert!(wait.parse::<u32>().unwrap() <= 30, "{head}");
    for _ in 0..20 {
        guess();
        let link = served.run(&["open", "--print"]).ok();
        let (code, head, _) =
            send(&address, &format!("GET {}", link_path(&link, &address)), &[], "");
        assert_eq!(code, 200, "{head}");
        assert!(head.contains("set-cookie: heeler-"), "{head}");
    }
}

#[test]
fn the_cookie_belongs_to_a_host_that_no_other_program_has() {
    let served = served();
    let address = served.start();
    let link = served.run(&["open", "--print"]).ok();
    let path = link_path(&link, &address);
    let host = link.trim().strip_prefix("http://").unwrap().split('/').next().unwrap();
    let request = |line: &str, host: &str, header: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(stream, "{line} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{header}\r\n\r\n")
            .unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    };
    // Other names of this machine are as foreign as those of other sites.
    let port = address.rsplit_once(':').unwrap().1;
    for other in [format!("evil.localhost:{port}"), format!("heeler-00000000.localhost:{port}")] {
        let reply = request(&format!("GET {path}"), &other, "x: y");
        assert!(reply.starts_with("HTTP/1.1 421 "), "{reply}");
    }
    let reply = request(&format!("GET {path}"), host, "x: y");
    let cookie = reply.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    assert!(cookie.contains("HttpOnly; SameSite=Strict"), "{cookie}");
    assert!(!cookie.to_lowercase().contains("domain"), "only this host gets it: {cookie}");
    let cookie = format!("cookie: {}", cookie.split(';').next().unwrap());
    assert!(request("GET /api/v1/jobs", host, &cookie).starts_with("HTTP/1.1 200 "));
    // A page of another port or of another name below localhost is another site.
    for origin in ["http://localhost:1", "http://evil.localhost:1", "http://127.0.0.1:1"] {
        let both = format!("{cookie}\r\norigin: {origin}");
        let reply = request("GET /api/v1/jobs", host, &both);
        assert!(reply.starts_with("HTTP/1.1 403 "), "{origin}: {reply}");
    }
    let same_site = format!("{cookie}\r\nsec-fetch-site: same-site\r\nsec-fetch-mode: cors");
    assert!(request("GET /api/v1/jobs", host, &same_site).starts_with("HTTP/1.1 403 "));
}

#[test]
fn a_token_that_may_only_read_gets_no_place_of_those_who_sign() {
    let served = served();
    let address = served.start();
    let reader = served.run(&["token", "create", "viewer", "--scope", "read"]).ok();
    let headers = [bearer(reader.trim())];
    let headers = headers.each_ref().map(String::as_str);
    let reply = try_send(&address, "POST /hooks/quick/push", &headers, "{}").unwrap();
    assert_eq!(reply.0, 401, "{}", reply.2);
}
