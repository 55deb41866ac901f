//! Tests of webhook calls, with a scripted dispatcher.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::Request;
use heeler_engine::{CommandReply, DaemonCommand, DaemonHandle, WEBHOOK_BYTES_MAX, WebhookCall};
use heeler_model::JobStatus;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use sha2::Sha256;
use tower::ServiceExt as _;

use super::{
    CALL_BYTES_MAX, DELIVERY_BYTES_MAX, SignatureChecks, WARNING_INTERVAL, WARNINGS_MAX,
    WebhookHttpRequest, WebhookLimits,
};
use crate::tests::{SocketServerFixture, app};

const CONFIG: &str = "
version: 1
agents:
  - name: coder
    runtime: scripted
    script: [{say: hi}]
    schedules:
      push: {type: webhook, secret_env: PUSH_SECRET}
      open: {type: webhook}
      unset: {type: webhook, secret_env: NOT_SET}
      issues: {type: webhook, secret_env: HUB_SECRET, events: [issues.opened]}
      triage: {type: webhook, secret_env: HUB_SECRET, events: [issues], fields: {title: issue.title}}
      other: {type: webhook, secret_env: PUSH_SECRET, events: [issues]}
      nightly: {cron: 0 3 1 1 *}
";

const JSON: (&str, &str) = ("content-type", "application/json; charset=utf-8");

type ReceivedCalls = Arc<Mutex<Vec<WebhookCall>>>;

fn env() -> BTreeMap<String, String> {
    let vars = [("PUSH_SECRET", "push-secret-1"), ("HUB_SECRET", "hub-secret-12")];
    vars.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// Dispatcher that creates a job for each call, and returns the existing job for a known delivery.
fn dispatcher()
-> (impl FnMut(DaemonCommand, heeler_engine::ReplyCallback) + Send + 'static, ReceivedCalls) {
    let heard: ReceivedCalls = Arc::default();
    let hearing = Arc::clone(&heard);
    let each = move |command, reply: heeler_engine::ReplyCallback| {
        let DaemonCommand::Webhook(call) = command else { panic!("{command:?}") };
        let job = "job-2024-01-19-abc123".parse().unwrap();
        let is_known = call.delivery.as_deref() == Some("known");
        hearing.lock().unwrap().push(*call);
        reply(Ok(match is_known {
            true => CommandReply::Known { job, status: JobStatus::Completed },
            false => CommandReply::Job { job, status: JobStatus::Pending, waits: None },
        }));
    };
    (each, heard)
}

/// Sends calls without a login.
struct WebhookFixture {
    _temp: tempfile::TempDir,
    router: axum::Router,
    heard: ReceivedCalls,
}

impl WebhookFixture {
    fn new(config: &str) -> WebhookFixture {
        let temp = tempfile::tempdir().unwrap();
        let folder = camino::Utf8Path::from_path(temp.path()).unwrap();
        let (each, heard) = dispatcher();
        let app = app(folder, DaemonHandle::scripted(each), config, env());
        WebhookFixture { _temp: temp, router: super::router().with_state(app), heard }
    }

    async fn call(&self, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, Value) {
        let mut request = Request::post(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let reply = self.router.clone().oneshot(request).await.unwrap();
        let code = reply.status().as_u16();
        let body = reply.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    fn heard(&self) -> Vec<WebhookCall> {
        std::mem::take(&mut *self.heard.lock().unwrap())
    }
}

fn sign(secret: &str, body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(body.as_bytes());
    let digest = mac.finalize().into_bytes();
    format!("sha256={}", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

#[tokio::test]
async fn whoever_has_not_signed_hears_the_same_whatever_is_wrong() {
    let outside = WebhookFixture::new(CONFIG);
    let signed = sign("push-secret-1", "x");
    let mut told = Vec::new();
    for (path, signature) in [
        ("/hooks/coder/push", ""),
        ("/hooks/coder/push", "sha256=00"),
        ("/hooks/coder/push", &sign("hub-secret-12", "x")),
        ("/hooks/coder/push", &sign("push-secret-1", "y")),
        ("/hooks/coder/open", &signed),
        ("/hooks/coder/unset", &sign("", "x")),
        ("/hooks/coder/nightly", &signed),
        ("/hooks/coder/none", &signed),
        ("/hooks/nobody/push", &signed),
        ("/hooks/github", "sha256=00"),
    ] {
        let (code, reply) = outside.call(path, &[("x-hub-signature-256", signature)], "x").await;
        assert_eq!(code, 401, "{path}: {reply}");
        told.push(reply);
    }
    assert!(told.windows(2).all(|pair| pair[0] == pair[1]), "{told:?}");
    assert!(outside.heard().is_empty());
}

#[tokio::test]
async fn a_signed_call_starts_a_job_once() {
    let outside = WebhookFixture::new(CONFIG);
    let signature = sign("push-secret-1", "{\"a\":1}");
    let signed = ("x-hub-signature-256", signature.as_str());
    let (code, reply) = outside.call("/hooks/coder/push", &[signed, JSON], "{\"a\":1}").await;
    assert_eq!(code, 202);
    assert_eq!(reply, json!({"job": "job-2024-01-19-abc123", "status": "pending", "waits": null}));
    let again = [signed, JSON, ("heeler-delivery", "known")];
    let (code, reply) = outside.call("/hooks/coder/push", &again, "{\"a\":1}").await;
    assert_eq!((code, &reply["duplicate"]), (200, &json!(true)));
    let heard = outside.heard();
    assert_eq!(heard.len(), 2);
    assert_eq!(heard[0].payload, "{\"a\":1}");
    let off = WebhookFixture::new(&format!("webhooks: {{enabled: false}}{CONFIG}"));
    assert_eq!(off.call("/hooks/coder/push", &[signed, JSON], "{\"a\":1}").await.0, 401);
}

#[tokio::test]
async fn the_secret_of_the_fleet_counts_where_a_schedule_has_none() {
    let outside = WebhookFixture::new(&format!("webhooks: {{secret_env: HUB_SECRET}}{CONFIG}"));
    let signed = sign("hub-secret-12", "x");
    let signed = [("x-hub-signature-256", signed.as_str())];
    assert_eq!(outside.call("/hooks/coder/open", &signed, "x").await.0, 202);
    assert_eq!(outside.call("/hooks/coder/push", &signed, "x").await.0, 401);
}

#[tokio::test]
async fn an_event_of_githubs_starts_what_wants_it_and_a_ping_is_answered() {
    let outside = WebhookFixture::new(CONFIG);
    let call = async |event: &str, body: &str| {
        let signature = sign("hub-secret-12", body);
        let headers = [
            ("x-hub-signature-256", signature.as_str()),
            ("x-github-event", event),
            ("x-github-delivery", "g-1"),
            JSON,
        ];
        outside.call("/hooks/github", &headers, body).await
    };
    assert_eq!(call("ping", "{\"zen\":\"x\"}").await, (200, json!({"pong": true})));
    let issue = json!({"title": "{{ it }} breaks", "author_association": "MEMBER"});
    let body = json!({"action": "opened", "issue": issue}).to_string();
    let (code, reply) = call("issues", &body).await;
    assert_eq!(code, 202);
    let names: Vec<&Value> =
        reply["schedules"].as_array().unwrap().iter().map(|it| &it["schedule"]).collect();
    assert_eq!(names, ["coder/issues", "coder/triage"], "those that the secret is for");
    let heard = outside.heard();
    assert_eq!(heard.len(), 2);
    assert!(heard.iter().all(|call| call.delivery.as_deref() == Some("g-1")));
    let told: Value = serde_json::from_str(&heard[1].payload).unwrap();
    assert_eq!(told, json!({"event": "issues", "title": "{{ it }} breaks"}));
    let body = json!({"action": "closed", "issue": issue}).to_string();
    let (code, reply) = call("issues", &body).await;
    assert_eq!(code, 202, "{reply}");
    assert!(reply["schedules"][0]["ignored"].is_string(), "{reply}");
    assert_eq!(outside.heard().len(), 1);
    let (code, reply) = call("star", "{}").await;
    assert_eq!(code, 200, "{reply}");
    assert!(outside.heard().is_empty());
}

#[tokio::test]
async fn an_event_may_come_as_a_form_and_at_the_route_of_one_schedule() {
    let outside = WebhookFixture::new(CONFIG);
    let body = "payload=%7B%22action%22%3A%22opened%22%2C%22issue%22%3A%7B%22title%22%3A%22a+b%22\
                %2C%22author_association%22%3A%22OWNER%22%7D%7D";
    let signature = sign("hub-secret-12", body);
    let headers = [
        ("x-hub-signature-256", signature.as_str()),
        ("x-github-event", "issues"),
        ("content-type", "application/x-www-form-urlencoded"),
    ];
    assert_eq!(outside.call("/hooks/coder/triage", &headers, body).await.0, 202);
    let told: Value = serde_json::from_str(&outside.heard()[0].payload).unwrap();
    assert_eq!(told["title"], "a b");
}

#[tokio::test]
async fn of_a_long_call_an_agent_is_told_no_more_than_it_may() {
    let outside = WebhookFixture::new(CONFIG);
    let long = "y".repeat(WEBHOOK_BYTES_MAX);
    let issue = json!({"title": "t", "author_association": "OWNER", "x": long});
    let long = json!({"issue": issue}).to_string();
    let (push, hub) = (sign("push-secret-1", &long), sign("hub-secret-12", &long));
    let (push, hub) =
        (("x-hub-signature-256", push.as_str()), ("x-hub-signature-256", hub.as_str()));
    assert_eq!(outside.call("/hooks/coder/push", &[push, JSON], &long).await.0, 413);
    let event = ("x-github-event", "issues");
    assert_eq!(outside.call("/hooks/coder/triage", &[hub, event, JSON], &long).await.0, 202);
    let longer = "x".repeat(CALL_BYTES_MAX + 1);
    assert_eq!(outside.call("/hooks/coder/push", &[push], &longer).await.0, 413);
    assert_eq!(outside.heard().len(), 1);
}

#[tokio::test]
async fn a_stranger_and_the_own_account_start_nothing_whatever_the_header_says() {
    let outside = WebhookFixture::new(&format!("github: {{bot: heeler-bot}}{CONFIG}"));
    let call = async |event: &str, body: Value| {
        let body = body.to_string();
        let signature = sign("hub-secret-12", &body);
        let signed = ("x-hub-signature-256", signature.as_str());
        let headers = [signed, ("x-github-event", event), JSON];
        let (_, reply) = outside.call("/hooks/coder/triage", &headers, &body).await;
        (reply, outside.heard().len())
    };
    let issue = |association: &str, login: &str| {
        let user = json!({"login": login, "type": "User"});
        let issue = json!({"title": "t", "user": user, "author_association": association});
        json!({"action": "opened", "issue": issue, "sender": user})
    };
    let (reply, jobs) = call("issues", issue("NONE", "eve")).await;
    assert!(reply["ignored"].as_str().unwrap().contains("`associations`"), "{reply}");
    assert_eq!(jobs, 0);
    let (reply, jobs) = call("push", issue("NONE", "eve")).await;
    assert_eq!(jobs, 0, "{reply}");
    let (reply, jobs) = call("issues", issue("OWNER", "heeler-bot")).await;
    assert!(reply["ignored"].as_str().unwrap().contains("own account"), "{reply}");
    assert_eq!(jobs, 0);
    let (reply, jobs) = call("issues", issue("OWNER", "ann")).await;
    assert_eq!(jobs, 1, "{reply}");
}

/// Sends calls over the unix socket, with a known caller.
fn call(rig: &SocketServerFixture, headers: &str, body: &[u8]) -> (String, String) {
    let head = format!(
        "POST /hooks/coder/open HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    rig.raw(&[head.as_bytes(), body].concat())
}

#[test]
fn a_webhook_takes_what_its_caller_sends_and_how_it_names_it() {
    let (each, heard) = dispatcher();
    let rig = SocketServerFixture::with(CONFIG, env(), each);
    let json = "content-type: application/json; charset=utf-8\r\n";
    for (headers, body, delivery) in [
        ("", "just text", None),
        ("", "", None),
        (json, "{\"a\": 1}", None),
        (json, "", None),
        ("content-type: text/plain\r\nX-GitHub-Delivery: g-1\r\n", "{", Some("g-1")),
        ("webhook-id: w-1\r\nheeler-delivery: h-1\r\n", "x", Some("w-1")),
        ("x-gitlab-event-uuid: l-1\r\n", "x", Some("l-1")),
    ] {
        let (head, _) = call(&rig, headers, body.as_bytes());
        assert!(head.starts_with("HTTP/1.1 202 "), "{headers}: {head}");
        let heard = heard.lock().unwrap().pop().unwrap();
        assert_eq!((heard.payload.as_str(), heard.delivery.as_deref()), (body, delivery));
        assert_eq!((heard.agent.as_str(), heard.schedule.as_str()), ("coder", "open"));
    }
}

#[test]
fn a_call_that_is_too_long_or_no_text_is_refused() {
    let (each, heard) = dispatcher();
    let rig = SocketServerFixture::with(CONFIG, env(), each);
    let most = vec![b'x'; WEBHOOK_BYTES_MAX];
    assert!(call(&rig, "", &most).0.starts_with("HTTP/1.1 202 "));
    assert_eq!(heard.lock().unwrap().pop().unwrap().payload.len(), WEBHOOK_BYTES_MAX);
    let long_name = "d".repeat(DELIVERY_BYTES_MAX + 1);
    for (headers, body, code, message) in [
        ("".to_owned(), vec![b'x'; WEBHOOK_BYTES_MAX + 1], "413", "longer than 1048576 bytes"),
        ("".to_owned(), vec![0xff, 0xfe], "400", "not UTF-8"),
        ("content-type: Application/JSON\r\n".to_owned(), b"{".to_vec(), "400", "not JSON"),
        ("content-type: application/x+json\r\n".to_owned(), b"{".to_vec(), "400", "not JSON"),
        (
            format!("webhook-id: {long_name}\r\n"),
            b"x".to_vec(),
            "400",
            "webhook-id must have 1 to 256 visible characters",
        ),
        (
            "webhook-id: \r\n".to_owned(),
            b"x".to_vec(),
            "400",
            "webhook-id must have 1 to 256 visible characters",
        ),
    ] {
        let (head, found) = call(&rig, &headers, &body);
        assert!(head.starts_with(&format!("HTTP/1.1 {code} ")), "{headers}: {head}");
        assert!(found.contains(message), "{headers}: {found}");
    }
    assert!(heard.lock().unwrap().is_empty());
}

#[test]
fn a_call_is_checked_once_for_each_secret_and_complained_of_once_an_hour() {
    let config = "version: 1\nwebhooks: {secret_env: ALL_KEY}\nagents:\n  - name: a\n    schedules:\n      one: {type: webhook, events: [push]}\n      two: {type: webhook, events: [push]}\n      own: {type: webhook, events: [push], secret_env: OWN_KEY}\n      unset: {type: webhook, events: [push], secret_env: NO_KEY}\n";
    let temp = tempfile::tempdir().unwrap();
    let folder = camino::Utf8Path::from_path(temp.path()).unwrap();
    let env = [("ALL_KEY", "all"), ("OWN_KEY", "own")];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let app = app(folder, heeler_engine::DaemonHandle::scripted(|_, _| {}), config, env);
    let (setup, turns) = (app.fleet_monitor.setup(), WebhookLimits::new());
    let body = Bytes::from_static(b"{}");
    let signature = sign("all", "{}");
    let received = WebhookHttpRequest {
        headers: [("x-hub-signature-256".parse().unwrap(), signature.parse().unwrap())]
            .into_iter()
            .collect(),
        body,
        known_caller: None,
        now: jiff::Timestamp::UNIX_EPOCH,
        warnings: Arc::clone(&turns.warnings),
        _permit: turns.call_permits.try_acquire_owned().unwrap(),
    };
    let mut signed = SignatureChecks::new();
    let mut heard = setup.github_webhooks();
    heard.retain(|webhook| received.authorize(&setup, webhook, &mut signed).is_some());
    let names: Vec<&str> = heard.iter().map(|it| it.schedule.name.as_str()).collect();
    assert_eq!(names, ["one", "two"]);
    let mut checked: Vec<(&str, bool)> =
        signed.iter().map(|(secret, mac)| (*secret, mac.is_some())).collect();
    checked.sort();
    assert_eq!(checked, [("all", true), ("own", false)], "once for each secret");

    let (complaints, now) = (&received.warnings, Instant::now());
    assert!(!complaints.is_due("a/unset", now), "it was just said");
    assert!(complaints.is_due("a/other", now));
    assert!(complaints.is_due("a/unset", now + 2 * WARNING_INTERVAL));
    for number in 0..2 * WARNINGS_MAX {
        assert!(complaints.is_due(&number.to_string(), now));
    }
    assert!(complaints.0.lock().unwrap().len() <= WARNINGS_MAX);
}
