//! kill -9 of a daemon over who may come in, and over requests that have names: what somebody was told
//! holds, and what nobody was told of is whole or not there.

use std::io::Write as _;
use std::process::{Child, Stdio};

use heeler_engine::{DaemonCommand, StopMode};
use heeler_model::JobStatus;
use serde_json::{Value as Json, json};

use crate::api;
use crate::daemon_kills::Herd;
use crate::fleet::Ran;
use crate::trigger::wait_for;
use crate::web::{Served, link_path, list, send, try_send};

/// A daemon that is ended with the test.
struct Doomed(Child);

impl Drop for Doomed {
    fn drop(&mut self) {
        // It may have ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Doomed {
    /// Kills it, as nobody could expect.
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits until it has died of its fault.
    #[track_caller]
    fn dies(mut self) {
        let ended = wait_for("its death", || self.0.try_wait().unwrap());
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(9), "{ended}");
    }
}

impl Served {
    /// Serves a fleet on a port of its own. A login belongs to a port, so the next daemon must not find
    /// its port taken by another test.
    fn with_own_port() -> Served {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Served::new(&format!("{{port: {free}}}"))
    }

    /// Starts a daemon in the foreground; returns it and where it listens.
    #[track_caller]
    fn begin(&self, args: &[&str]) -> (Doomed, String) {
        let mut command = self.command(&[&["start"], args].concat());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = Doomed(command.spawn().unwrap());
        let url = wait_for("a daemon", || {
            assert_eq!(child.0.try_wait().unwrap(), None, "it ended");
            let status: Json = serde_json::from_str(&self.run(&["status", "--json"]).ok()).unwrap();
            let daemon = &status["daemon"];
            // The daemon is reachable on its socket before it listens on a port.
            let url = daemon["url"].as_str().filter(|_| daemon["pid"] == child.0.id());
            url.map(str::to_owned)
        });
        (child, url.strip_prefix("http://").unwrap().to_owned())
    }

    fn dying(&self) -> (Doomed, String) {
        self.begin(&["--fault", "access-done"])
    }

    fn set_password(&self, password: &str) -> Ran {
        let mut command = self.command(&["password", "set"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(password.as_bytes()).unwrap();
        Ran::from(child.wait_with_output().unwrap())
    }

    fn active_tokens(&self) -> Vec<String> {
        let all: Json = serde_json::from_str(&self.run(&["token", "list", "--json"]).ok()).unwrap();
        let active = all["tokens"].as_array().unwrap().iter();
        let active = active.filter(|it| it["status"] == "active" && it["name"] != "api-token");
        active.map(|it| it["name"].as_str().unwrap().to_owned()).collect()
    }
}

/// Logs in; the code, and the cookie as a browser sends it.
fn log_in(address: &str, password: &str) -> (u16, Option<String>) {
    let form = "content-type: application/x-www-form-urlencoded";
    let body = format!("user=ann&password={password}");
    let (code, head, _) = send(address, "POST /login", &[form], &body);
    (code, cookie(&head))
}

fn cookie(head: &str) -> Option<String> {
    let line = head.lines().find_map(|line| line.strip_prefix("set-cookie: "))?;
    Some(format!("cookie: {}", line.split(';').next().unwrap()))
}

#[test]
fn a_token_that_was_shown_counts_and_one_that_was_revoked_does_not_whenever_the_daemon_dies() {
    let served = Served::new("{port: auto}");
    let make = || served.run(&["token", "create", "ci", "--scope", "read"]);
    let (doomed, _) = served.dying();
    let said = make().fails(1);
    assert!(!said.contains("heeler_"), "nobody was shown what nobody answered for: {said}");
    doomed.dies();
    let (doomed, address) = served.begin(&[]);
    assert_eq!(served.active_tokens(), ["ci"], "it is on record, and nobody has it");
    served.run(&["token", "revoke", "ci"]).ok();
    let token = make().ok().trim().to_owned();
    assert_eq!(list(&address, &token), 200);
    doomed.kill();
    let (doomed, address) = served.dying();
    assert_eq!(list(&address, &token), 200, "it was shown");
    // Nobody was told that it is revoked, but it is.
    served.run(&["token", "revoke", "ci"]).fails(1);
    doomed.dies();
    let (doomed, address) = served.begin(&[]);
    assert_eq!((list(&address, &token), served.active_tokens().len()), (401, 0));
    let token = make().ok().trim().to_owned();
    served.run(&["token", "revoke", "ci"]).ok();
    doomed.kill();
    let (_doomed, address) = served.begin(&[]);
    assert_eq!(list(&address, &token), 401, "it was told that it is revoked");
}

#[test]
fn a_password_that_was_set_is_set_and_a_login_lasts_or_ends_whenever_the_daemon_dies() {
    let served = Served::with_own_port();
    let (doomed, _) = served.dying();
    served.set_password("correct horse").fails(1);
    doomed.dies();
    let (doomed, address) = served.begin(&[]);
    let (code, cookie) = log_in(&address, "correct+horse");
    assert_eq!(code, 303);
    let cookie = cookie.unwrap();
    let jobs = |address: &str| send(address, "GET /api/v1/jobs", &[&cookie], "").0;
    doomed.kill();
    let (doomed, address) = served.dying();
    assert_eq!(jobs(&address), 200, "whoever was let in stays so");
    // Another password and the end of all logins by the old one are one thing.
    served.set_password("battery staple").fails(1);
    doomed.dies();
    let (doomed, address) = served.begin(&[]);
    assert_eq!(jobs(&address), 401);
    assert_eq!(log_in(&address, "correct+horse").0, 401);
    assert_eq!(log_in(&address, "battery+staple").0, 303);
    doomed.kill();
}

#[test]
fn a_link_lets_nobody_in_twice_whenever_the_daemon_dies() {
    let served = Served::with_own_port();
    let link = |address: &str| {
        let link = served.run(&["open", "--print"]).ok();
        link_path(&link, address)
    };
    let (doomed, address) = served.dying();
    let (used, unused) = (link(&address), link(&address));
    let reply = try_send(&address, &format!("GET {used}"), &[], "");
    assert_eq!(reply, None, "it died over the login");
    doomed.dies();
    let (doomed, address) = served.begin(&[]);
    for old in [used, unused] {
        let (code, head, _) = send(&address, &format!("GET {old}"), &[], "");
        assert_eq!((code, cookie(&head)), (403, None));
    }
    let (code, head, _) = send(&address, &format!("GET {}", link(&address)), &[], "");
    assert_eq!(code, 200);
    let cookie = cookie(&head).unwrap();
    doomed.kill();
    let (_doomed, address) = served.begin(&[]);
    assert_eq!(send(&address, "GET /api/v1/jobs", &[&cookie], "").0, 200);
}

#[test]
fn a_request_with_a_name_that_is_repeated_whenever_the_daemon_dies_is_done_once() {
    let herd = Herd::of("agents: [{name: worker, runtime: scripted, script: [{say: Done.}]}]");
    let (body, key) = (r#"{"agent": "worker"}"#, [("idempotency-key", "a-1")]);
    let mut replies = Vec::new();
    for point in ["before-commit", "after-commit", "before-launch", "run-ended"] {
        for nth in 1..=3 {
            let mut life = herd.start(&["--fault", &format!("{point}:{nth}")]);
            if herd.connect(&mut life).is_some() {
                replies.extend(api::try_send(&herd.dir(), "POST", "/api/v1/jobs", &key, body));
            }
            life.kill();
        }
    }
    let (mut life, mut client) = herd.begin(&[]);
    let last = api::send(&herd.dir(), "POST", "/api/v1/jobs", &key, body);
    assert_eq!(last.code, 200, "{last:?}");
    let answered = replies.iter().filter(|reply| reply.code == 200);
    answered.for_each(|reply| assert_eq!(reply.json["id"], last.json["id"], "{reply:?}"));
    let refused = replies.iter().filter(|reply| reply.code != 200);
    refused.for_each(|reply| assert_eq!(reply.json["status"], json!(503), "{reply:?}"));
    let jobs = herd.jobs();
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    assert_eq!(last.json["id"], jobs[0].id.as_str());
    wait_for("the job", || (herd.jobs()[0].status == JobStatus::Completed).then_some(()));
    client.send_command(&DaemonCommand::Stop(StopMode::Wait { timeout: None }), None).unwrap();
    life.ended();
}
