//! Notices in browsers, by Web Push.

use heeler_engine::{
    BROWSERS_PER_PERSON_MAX, BrowserOperation, CommandReply, DaemonCommand, DaemonCommandError,
    DaemonCommandErrorKind, NewBrowser,
};
use heeler_server::DaemonClient;
use heeler_store::{PushBrowser, WEB_PUSH_KEY, WEB_PUSH_PUBLIC_KEY};
use heeler_testkit::{FakePushService, PushSubscription};
use serde_json::Value as Json;

use crate::daemon_kills::Herd;
use crate::notify::{allow, trigger, wait_until_told};
use crate::trigger::wait_for;

/// A fleet with a channel for browsers, an agent that asks and one that fails.
fn herd(push: &FakePushService, agents: &str) -> Herd {
    let mut herd = Herd::of(&format!(
        "notify:
  link_base: https://fleet.example
  web_push: {{services: ['{}']}}
  channels: {{browsers: {{web_push: true, events: [question, failed]}}}}
agents:
  - {{name: asker, runtime: scripted, approvals: interactive,
     script: [{{run: 'echo done > did', ask_permission: true}}, {{say: end}}]}}
  - {{name: broken, runtime: scripted, secrets: [CANARY_SECRET],
     script: [{{error: invalid_request, message: 'canary-secret-0123456789 at https://evil.example'}}]}}
{agents}",
        push.url()
    ));
    herd.env.push(("CANARY_SECRET", "canary-secret-0123456789".into()));
    herd
}

fn send(
    client: &mut DaemonClient,
    order: BrowserOperation,
    by: &str,
) -> Result<String, DaemonCommandError> {
    let reply = client.send_command(&DaemonCommand::Browser { order, by: by.to_owned() }, None);
    reply
        .map_err(|error| match error {
            heeler_server::DaemonClientError::Refused(refused) => refused,
            other => panic!("{other:?}"),
        })
        .map(|reply| match reply {
            CommandReply::Done { message } => message,
            other => panic!("{other:?}"),
        })
}

fn add(
    client: &mut DaemonClient,
    subscription: &PushSubscription,
) -> Result<String, DaemonCommandError> {
    let browser = NewBrowser {
        channel: None,
        label: "Firefox on Android".to_owned(),
        endpoint: subscription.endpoint.clone(),
        public_key: subscription.p256dh.clone(),
        auth_secret: subscription.auth.clone(),
    };
    send(client, BrowserOperation::Add(Box::new(browser)), "ann")
}

/// Creates the key of the fleet and returns its public part.
#[track_caller]
fn public_key(herd: &Herd, client: &mut DaemonClient) -> String {
    send(client, BrowserOperation::EnsureKey, "ann").unwrap();
    herd.reader().meta(WEB_PUSH_PUBLIC_KEY).unwrap().unwrap()
}

/// Makes a browser receive the notices of a fleet.
#[track_caller]
fn subscribe(herd: &Herd, client: &mut DaemonClient, push: &FakePushService) -> PushSubscription {
    let subscription = push.subscribe(&public_key(herd, client));
    add(client, &subscription).unwrap();
    subscription
}

fn run(herd: &Herd, args: &[&str]) -> (Option<i32>, String) {
    let output = herd.command("notify").args(args).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn a_browser_receives_a_question_and_its_outcome_until_it_is_gone() {
    let push = FakePushService::start();
    let herd = herd(&push, "");
    let (_life, mut client) = herd.begin(&[]);
    let (_, said) = run(&herd, &["list"]);
    assert!(said.contains("no browser was added"), "{said}");
    let first = subscribe(&herd, &mut client, &push);
    let second = subscribe(&herd, &mut client, &push);
    // A busy service is asked again; the other browser does not wait for that.
    push.fail_next(503);
    trigger(&mut client, "asker");
    let received = push.wait_for(2);
    let mut endpoints: Vec<&str> = received.iter().map(|it| it.endpoint.as_str()).collect();
    endpoints.sort_unstable();
    let mut expected = [first.endpoint.as_str(), second.endpoint.as_str()];
    expected.sort_unstable();
    assert_eq!(endpoints, expected);
    let question = &received[0];
    assert_eq!((question.ttl, question.urgency.as_str()), (86_400, "high"));
    assert_eq!(question.contact.as_deref(), Some("https://fleet.example"));
    assert_eq!(question.message["title"], "asker asks for permission");
    let page = question.message["page"].as_str().unwrap();
    assert!(page.starts_with("/approvals/ask-"), "{page}");
    let body = question.message["body"].as_str().unwrap();
    assert!(body.contains("Text from asker (not from Heeler):\n> Bash:"), "{body}");
    wait_until_told(&herd);

    allow(&herd, &mut client);
    let received = push.wait_for(4);
    for outcome in &received[2..] {
        let (message, asked) = (&outcome.message, &question.message);
        assert_eq!((&message["tag"], &message["page"]), (&asked["tag"], &asked["page"]));
        assert_eq!((&message["closed"], outcome.urgency.as_str()), (&true.into(), "low"));
        let title = message["title"].as_str().unwrap();
        assert!(title.starts_with("asker: allowed by "), "{title}");
        assert_eq!(outcome.topic, question.topic);
    }

    // A browser that is gone is forgotten, and the other one still receives everything.
    wait_until_told(&herd);
    push.expire(&first.endpoint);
    trigger(&mut client, "broken");
    let received = push.wait_for(5);
    assert_eq!(received[4].endpoint, second.endpoint);
    let left = wait_for("one browser", || {
        let mut left = herd.reader().push_browsers().unwrap();
        (left.len() == 1).then(|| left.remove(0))
    });
    assert_eq!(left.id, PushBrowser::id_of(&second.endpoint));
    let all = format!("{:?}", push.received());
    assert!(!all.contains("canary-secret") && !all.contains("://evil"), "{all}");
}

#[test]
fn browsers_are_listed_tested_and_removed_and_show_no_secret() {
    let push = FakePushService::start();
    let herd = herd(&push, "");
    let (_life, mut client) = herd.begin(&[]);
    let subscription = subscribe(&herd, &mut client, &push);
    let id = PushBrowser::id_of(&subscription.endpoint);
    let (code, said) = run(&herd, &["test", "browsers"]);
    assert_eq!((code, said.as_str()), (Some(0), "browsers: sent\n"));
    assert_eq!(push.received()[0].message["title"], "Test of Heeler");
    let (_, listed) = run(&herd, &["browsers", "--json"]);
    let json: Json = serde_json::from_str(&listed).unwrap();
    let browser = &json["browsers"][0];
    assert_eq!(
        (&browser["id"], &browser["label"]),
        (&id.as_str().into(), &"Firefox on Android".into())
    );
    assert_eq!(json["publicKey"], public_key(&herd, &mut client), "the key is made once");
    let (_, table) = run(&herd, &["browsers"]);
    assert!(table.contains(&id), "{table}");
    let log = herd.fleet.read(".heeler/logs/heeler.log");
    let private = herd.reader().meta(WEB_PUSH_KEY).unwrap().unwrap();
    for shown in [&listed, &table, &log] {
        for secret in [&subscription.endpoint, &subscription.auth, &private] {
            assert!(!shown.contains(secret.as_str()), "{secret} is in {shown}");
        }
    }
    let (code, said) = run(&herd, &["remove", &id[.."browser-".len() + 6]]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(herd.reader().push_browsers().unwrap(), []);
    let (code, said) = run(&herd, &["remove", &id]);
    assert_eq!(code, Some(4), "{said}");
    // A logout of all browsers ends their notices too.
    add(&mut client, &subscription).unwrap();
    let logout = herd.command("token").args(["revoke", "--logins"]).output().unwrap();
    assert!(logout.status.success(), "{logout:?}");
    assert_eq!(herd.reader().push_browsers().unwrap(), []);
}

#[test]
fn browsers_that_cannot_be_trusted_are_refused() {
    let push = FakePushService::start();
    let remove =
        format!("{} notify remove browser-0 > said 2>&1; true", env!("CARGO_BIN_EXE_heeler"));
    let herd = herd(&push, &format!("  - {{name: agent, runtime: command, command: '{remove}'}}"));
    let (_life, mut client) = herd.begin(&[]);
    let good = push.subscribe(&public_key(&herd, &mut client));
    let elsewhere =
        |endpoint: &str| PushSubscription { endpoint: endpoint.to_owned(), ..good.clone() };
    for endpoint in [
        "http://127.0.0.1:1/x",
        "https://evil.example/x",
        "http://fcm.googleapis.com/x",
        "file:///x",
    ] {
        let refused = add(&mut client, &elsewhere(endpoint)).unwrap_err();
        assert_eq!(refused.kind, DaemonCommandErrorKind::Usage, "{endpoint}: {refused:?}");
    }
    let refused = add(&mut client, &PushSubscription { p256dh: "AAAA".to_owned(), ..good.clone() });
    assert!(refused.unwrap_err().message.contains("keys of the browser"));
    assert_eq!(push.attempts(), 0, "nothing is sent to a browser that is refused");
    for number in 0..BROWSERS_PER_PERSON_MAX {
        add(&mut client, &elsewhere(&format!("{}/push/{number}", push.url()))).unwrap();
    }
    let refused = add(&mut client, &good).unwrap_err();
    assert_eq!(refused.kind, DaemonCommandErrorKind::Busy);
    assert!(refused.message.contains("at most 20 browsers"), "{refused:?}");
    // One that is known already may be added again.
    add(&mut client, &elsewhere(&format!("{}/push/0", push.url()))).unwrap();
    assert_eq!(herd.reader().push_browsers().unwrap().len(), BROWSERS_PER_PERSON_MAX);

    trigger(&mut client, "agent");
    wait_for("the end of the job", || herd.jobs()[0].status.is_final().then_some(()));
    let said = herd.fleet.read("said");
    assert!(said.contains("this is a process of the run itself"), "{said}");
    assert_eq!(herd.reader().push_browsers().unwrap().len(), BROWSERS_PER_PERSON_MAX);
}

/// Daemons that die after they sent a message.
const LIVES: usize = 3;

#[test]
fn a_message_that_a_killed_daemon_sent_is_sent_again_once_with_the_same_tag() {
    let push = FakePushService::start();
    let herd = herd(&push, "");
    let (mut life, mut client) = herd.begin(&[]);
    subscribe(&herd, &mut client, &push);
    life.kill();
    for round in 1..=LIVES {
        let mut life = herd.start(&["--fault", "notice-sent:1"]);
        let mut client = herd.connect(&mut life).expect("no notice waits");
        trigger(&mut client, "broken");
        // It dies between the message and the record of it.
        wait_for("a death", || life.has_ended().then_some(()));
        let (mut life, _client) = herd.begin(&[]);
        let received = push.wait_for(2 * round);
        wait_until_told(&herd);
        let sent = &received[2 * round - 2..];
        assert_eq!(sent[0].message["tag"], sent[1].message["tag"], "round {round}");
        assert_eq!(sent[0].topic, sent[1].topic, "round {round}");
        assert_eq!(
            push.received().len(),
            2 * round,
            "round {round}: once more, and not more often"
        );
        life.kill();
    }
    let records = herd.reader().newest_notices(99).unwrap();
    assert_eq!(records.len(), LIVES, "{records:?}");
    assert!(records.iter().all(|it| it.outcome.as_deref() == Some("sent")), "{records:?}");
}
