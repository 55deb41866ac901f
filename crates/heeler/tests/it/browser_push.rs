//! Notices in a real browser: its settings page, its service worker and its notifications.

use std::time::{Duration, Instant};

use heeler_engine::{BrowserOperation, DaemonCommand};
use heeler_server::DaemonClient;
use heeler_store::{DaemonFile, StateDir, StoreReader, WEB_PUSH_PUBLIC_KEY};
use heeler_testkit::{FakePushService, PushSubscription, WAIT_MAX};
use serde_json::{Value as Json, json};
use tungstenite::Message;

use crate::browser::{Browser, Look, Opened, Site};
use crate::fleet::Fleet;

/// Stands in for the push service of the browser, which no test can reach.
const SUBSCRIBE: &str = r#"
const made = {
  endpoint: (SUBSCRIPTION).endpoint,
  toJSON: () => (SUBSCRIPTION),
  unsubscribe: async () => { window.pushed = null; return true; },
};
PushManager.prototype.getSubscription = async () => window.pushed ?? null;
PushManager.prototype.subscribe = async ({ userVisibleOnly, applicationServerKey }) => {
  if (!userVisibleOnly || applicationServerKey.length !== 65) throw new Error('wrong options');
  window.pushed = made;
  return made;
};
return true;
"#;

/// Lists what the browser shows.
const SHOWN: &str = "return navigator.serviceWorker.getRegistration('/')
  .then((worker) => worker.getNotifications())
  .then((all) => all.map((one) => [one.tag, one.title, one.body]));";

/// Script for the worker: sends it the event of a click on the notification.
const CLICK: &str = "self.registration.getNotifications().then(([one]) => {
  self.dispatchEvent(new NotificationEvent('notificationclick', { notification: one }));
  return Boolean(one);
})";

/// Shows a message in the worker, and returns the titles of all that are shown then.
const LATE: &str = "show(MESSAGE).then(() => self.registration.getNotifications())
  .then((all) => all.map((one) => one.title))";

/// Looks between two deliveries of a message.
const LOOKS: usize = 100;

fn site(push: &FakePushService) -> Site {
    let fleet = Fleet::empty();
    fleet.write(
        "heeler.yaml",
        &format!(
            "fleet: {{name: push}}
web: {{port: auto}}
notify:
  web_push: {{services: ['{}']}}
  channels: {{phones: {{web_push: true, events: [question]}}}}
agents:
  - {{name: asker, runtime: scripted, approvals: interactive, default_prompt: Ask.,
     script: [{{run: 'echo done > did', ask_permission: true}}, {{say: end}}]}}
",
            push.url()
        ),
    );
    Site::start(fleet)
}

/// Makes the key of the fleet, and a browser of the fake service for it.
fn subscription(site: &Site, push: &FakePushService) -> PushSubscription {
    let state_dir = site.fleet.state_dir();
    let dir = StateDir::open(&state_dir).unwrap();
    let socket = DaemonFile::read(&dir).unwrap().unwrap().socket;
    let mut client = DaemonClient::connect(&socket, &state_dir).unwrap();
    let order = BrowserOperation::EnsureKey;
    client.send_command(&DaemonCommand::Browser { order, by: "me".to_owned() }, None).unwrap();
    let key = StoreReader::open(&dir).unwrap().meta(WEB_PUSH_PUBLIC_KEY).unwrap().unwrap();
    push.subscribe(&key)
}

/// Gives the worker a message, as the push service of the browser would.
async fn deliver(browser: &Browser, message: &Json) {
    let origin = browser.script("return location.origin").await;
    browser.devtools("ServiceWorker.enable", json!({})).await;
    // The worker is the first one of a new profile.
    let push = json!({ "origin": origin, "registrationId": "0", "data": message.to_string() });
    browser.devtools("ServiceWorker.deliverPushMessage", push).await;
}

/// Runs a script in the service worker. `None` if it sleeps.
fn run_in_worker(port: u16, script: &str) -> Option<Json> {
    let list = ureq::get(format!("http://127.0.0.1:{port}/json/list")).call().unwrap();
    let list: Json = serde_json::from_str(&list.into_body().read_to_string().unwrap()).unwrap();
    let worker = list.as_array()?.iter().find(|it| it["type"] == "service_worker")?;
    let (mut socket, _) = tungstenite::connect(worker["webSocketDebuggerUrl"].as_str()?).ok()?;
    let params = json!({ "expression": script, "awaitPromise": true, "returnByValue": true });
    let call = json!({ "id": 1, "method": "Runtime.evaluate", "params": params });
    socket.send(Message::text(call.to_string())).ok()?;
    loop {
        let Message::Text(text) = socket.read().ok()? else { continue };
        let reply: Json = serde_json::from_str(&text).ok()?;
        if reply["id"] == 1 {
            return Some(reply["result"]["result"]["value"].clone());
        }
    }
}

#[test]
fn a_person_adds_a_browser_and_a_notification_opens_its_page() {
    let push = FakePushService::start();
    let site = site(&push);
    let given = subscription(&site, &push);
    let opened = Opened::new(&site, Look::PHONE);
    opened.run(async |browser| {
        browser.visit("/settings").await;
        let origin = browser.script("return location.origin").await;
        let grant = json!({ "origin": origin, "permissions": ["notifications"] });
        browser.devtools("Browser.grantPermissions", grant).await;
        browser.wait_for("[data-push-state]", "receives no notices").await;
        let PushSubscription { endpoint, p256dh, auth } = &given;
        let given = json!({ "endpoint": endpoint, "keys": { "p256dh": p256dh, "auth": auth } });
        browser.script(&SUBSCRIBE.replace("SUBSCRIPTION", &given.to_string())).await;
        browser.click("form[data-push] button").await;
        browser.wait_for("[data-push-state]", "This browser receives notices").await;
        browser.wait_for("#browser-list", "Chrome on Linux").await;
        browser.check("settings-browsers").await;
    });
    let job = site.fleet.run(&["trigger", "asker", "--detach", "-q"]).ok();
    let question = push.wait_for(1)[0].message.clone();
    let tag = question["tag"].clone();
    opened.run(async |browser| {
        let title = json!("asker asks for permission");
        let is_asked = |shown: &[Json]| shown.len() == 1 && shown[0][1] == title;
        deliver_until(browser, &question, is_asked).await;
    });
    let id = question["page"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    site.fleet.run(&["approvals", "approve", &id]).ok();
    let outcome = push.wait_for(2)[1].message.clone();
    opened.run(async |browser| {
        let is_replaced = |shown: &[Json]| {
            shown.len() == 1
                && shown[0][0] == tag
                && shown[0][1].as_str().is_some_and(|it| it.starts_with("asker: allowed by "))
        };
        deliver_until(browser, &outcome, is_replaced).await;
        // A message that comes late does not replace a newer one.
        let late = LATE.replace("MESSAGE", &question.to_string());
        let titles = run_awake(browser, &late, &outcome).await;
        assert_eq!(titles, json!([outcome["title"]]));
        assert_eq!(run_awake(browser, CLICK, &outcome).await, json!(true));
        let page = outcome["page"].as_str().unwrap();
        let script = format!("return location.pathname === {}", json!(page));
        browser.wait(format!("the page {page}"), script).await;
        browser.wait_for("main h1", "").await;
        // The browser is removed in its list.
        browser.visit("/settings").await;
        browser.click("#browser-list button").await;
        browser.click("#confirm button[value=yes]").await;
        browser.wait("no browser".to_owned(), NO_BROWSER.to_owned()).await;
    });
    let list = site.fleet.json(&["notify", "browsers", "--json"]);
    assert_eq!(list["browsers"], json!([]), "{job}");
    opened.close();
}

const NO_BROWSER: &str = "return !document.querySelector('#browser-list li')";

/// Delivers a message until it is shown. The browser knows its worker only after it has stored it, and a
/// message that comes before is lost.
async fn deliver_until(browser: &Browser, message: &Json, is_right: impl Fn(&[Json]) -> bool) {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        deliver(browser, message).await;
        let mut shown = Json::Null;
        for _ in 0..LOOKS {
            shown = browser.script(SHOWN).await;
            if is_right(shown.as_array().unwrap()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(Instant::now() < deadline, "other notifications are shown: {shown}");
    }
}

/// Runs a script in the worker, which wakes for a message.
async fn run_awake(browser: &Browser, script: &str, message: &Json) -> Json {
    let (port, deadline) = (browser.devtools_port(), Instant::now() + WAIT_MAX);
    loop {
        if let Some(value) = run_in_worker(port, script) {
            return value;
        }
        assert!(Instant::now() < deadline, "the worker does not answer");
        deliver(browser, message).await;
    }
}
