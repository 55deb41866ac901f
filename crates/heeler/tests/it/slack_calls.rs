//! Slack by HTTP: Slack calls the daemon, and a call is answered after its event is recorded.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use heeler_store::{DaemonFile, StateDir};
use heeler_testkit::{FakeSlack, SlackHttpCall};
use serde_json::{Value as Json, json};

use crate::daemon_kills::Herd;
use crate::slack::{
    ANN, BOB, CHANNEL, EVE, event, fake, herd_with, jobs, record, wait_for_event, wait_for_posts,
};
use crate::telegram::wait_until_posted;
use crate::trigger::wait_for;

const SECRET: &str = "8f742231b10e8888abcd99yyyzzz85a5";

/// Fault points between the receipt of an event and its answer.
const POINTS: [&str; 5] =
    ["chat-received", "before-commit", "after-commit", "chat-recorded", "chat-posted"];

/// A fleet with an agent whose app takes events by HTTP.
fn begin(slack: &FakeSlack, steps: &str) -> Herd {
    let mut herd = herd_with(slack, steps, "events: http\n        app_id: A0TEST");
    herd.env.retain(|(name, _)| *name != "SLACK_APP_TOKEN");
    herd.env.push(("SLACK_SIGNING_SECRET", SECRET.into()));
    // It makes the state directory.
    herd.begin(&[]).0.kill();
    let dir = herd.dir();
    slack.set_ack_time(Duration::from_millis(500));
    slack.deliver_by_http(SECRET, move |call| send(&dir, call));
    herd
}

/// Makes a call; returns status and body of the response, if the daemon lives that long.
fn send(dir: &StateDir, call: &SlackHttpCall) -> Option<(u16, String)> {
    let socket = DaemonFile::read(dir).ok()??.socket;
    let mut stream = UnixStream::connect(socket).ok()?;
    let headers: String =
        call.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = call.body.len();
    write!(
        stream,
        "POST /hooks/slack HTTP/1.0\r\nhost: x\r\n{headers}content-length: {length}\r\n\r\n{}",
        call.body
    )
    .ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    let (head, body) = reply.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

#[test]
fn events_clicks_and_commands_arrive_by_calls() {
    let slack = fake();
    let herd = begin(&slack, "{run: 'echo done > did', ask_permission: true}, {say: went on}");
    let (_life, _client) = herd.begin(&[]);
    // Slack checks the address when it is set.
    let challenge = json!({"type": "url_verification", "challenge": "abc"});
    let (status, body) = send(&herd.dir(), &slack.signed_event(&challenge, 0)).unwrap();
    assert_eq!((status, body.as_str()), (200, r#"{"challenge":"abc"}"#));

    let first = slack.say(CHANNEL, ANN, "<@UBOT> go");
    let posts = wait_for_posts(&slack, 1);
    assert!(posts[0].text.contains("May I use"), "{posts:?}");
    slack.click(EVE, &posts[0], &posts[0].buttons[0]);
    wait_for("the refusal", || {
        slack.whispers().iter().any(|(who, text)| who == EVE && text.contains(EVE)).then_some(())
    });
    slack.click(ANN, &posts[0], &posts[0].buttons[0]);
    slack.wait_for("the answer", |posts| posts.iter().find(|it| it.text == "went on").map(drop));
    slack.command(CHANNEL, ANN, "/heeler", "status");
    let answers = slack.wait_for_command_answers(1);
    assert_eq!(answers[0], "coder has nothing to do in this conversation.");
    // What no person wrote is accepted and ignored: the app's own posts came here too.
    slack.wait_until_delivered();
    assert_eq!(jobs(&herd).len(), 1);
    assert_eq!(wait_for_event(&herd, CHANNEL, &first).outcome, "job");
}

#[test]
fn a_call_counts_only_with_a_fresh_signature_of_the_app() {
    let slack = fake();
    let herd = begin(&slack, "{say: hi}");
    let (_life, _client) = herd.begin(&[]);
    let message = |ts: &str| {
        json!({"type": "event_callback", "api_app_id": "A0TEST", "event": {
            "type": "message", "channel": "DANN", "user": ANN, "ts": ts, "text": "hello",
            "channel_type": "im"}})
    };
    let status = |call: &SlackHttpCall| send(&herd.dir(), call).unwrap().0;
    let good = slack.signed_event(&message("1731.000001"), 0);
    let without = |name: &str| {
        let mut call = good.clone();
        call.headers.retain(|(header, _)| *header != name);
        call
    };
    let altered = SlackHttpCall { body: good.body.replace("hello", "hallo"), ..good.clone() };
    for call in [
        without("x-slack-signature"),
        without("x-slack-request-timestamp"),
        altered,
        // The time is signed too, and 5 minutes are the limit.
        slack.signed_event(&message("1731.000002"), 305),
        slack.signed_event(&message("1731.000002"), -330),
        // Another app of the same workspace.
        slack.signed_event(&with(message("1731.000003"), "api_app_id", "A0OTHER"), 0),
    ] {
        assert_eq!(status(&call), 401, "{call:?}");
    }
    assert!(jobs(&herd).is_empty(), "{:?}", jobs(&herd));
    // A call that is replayed within its time changes nothing.
    for _ in 0..3 {
        assert_eq!(status(&good), 200);
    }
    wait_for_posts(&slack, 1);
    wait_until_posted(&herd);
    assert_eq!((jobs(&herd).len(), slack.posts().len()), (1, 1));
    assert_eq!(record(&herd, "DANN:1731.000001").unwrap().outcome, "job");
}

fn with(mut value: Json, key: &str, text: &str) -> Json {
    value[key] = json!(text);
    value
}

#[test]
fn a_called_daemon_takes_each_message_once_wherever_it_dies() {
    for point in POINTS {
        let slack = fake();
        let herd = begin(&slack, "{say: 'heard {prompt}'}");
        // A fleet that has received a message knows a gap from a beginning.
        let (mut life, _client) = herd.begin(&[]);
        let mut written = vec![slack.say(CHANNEL, BOB, "<@UBOT> first")];
        wait_for_event(&herd, CHANNEL, &written[0]);
        life.kill();
        for nth in 1..=2 {
            let mut life = herd.start(&["--fault", &format!("{point}:{nth}")]);
            written.push(slack.say(CHANNEL, BOB, &format!("<@UBOT> {point} {nth}")));
            wait_for("a death or an answer", || {
                let is_answered = written.iter().all(|ts| event(&herd, CHANNEL, ts).is_some())
                    && herd.reader().pending_effects(9).unwrap().is_empty()
                    && jobs(&herd).iter().all(|job| job.status.is_final());
                (life.has_ended() || is_answered).then_some(())
            });
            life.kill();
        }
        // A message of a time without a daemon is read from the channel if Slack gave its calls up.
        let (_life, _client) = herd.begin(&[]);
        written.iter().for_each(|ts| assert_eq!(wait_for_event(&herd, CHANNEL, ts).outcome, "job"));
        slack.wait_until_delivered();
        wait_for("the ends of all jobs", || {
            jobs(&herd).iter().all(|job| job.status.is_final()).then_some(())
        });
        wait_until_posted(&herd);
        assert_eq!(jobs(&herd).len(), 3, "{point}");
        for nth in 1..=2 {
            let ending = format!("{point} {nth}");
            let posts = slack.posts();
            let answers = posts.iter().filter(|post| post.text.ends_with(&ending));
            assert_eq!(answers.count(), 1, "{ending}: {posts:?}");
        }
    }
}
