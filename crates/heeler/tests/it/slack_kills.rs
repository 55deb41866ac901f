//! kill -9 of the daemon between a message on Slack and its answer.

use std::collections::BTreeMap;
use std::time::Duration;

use heeler_testkit::{FakeSlack, ProofSettings, SlackFailure};

use crate::daemon_kills::Herd;
use crate::slack::{ANN, ANN_DIRECT, BOB, CHANNEL, event, fake, herd, jobs};
use crate::telegram::wait_until_posted;
use crate::trigger::wait_for;

/// Points at which a daemon dies while it has messages to record and answers to post.
const POINTS: [&str; 8] = [
    "chat-received",
    "before-commit",
    "after-commit",
    "chat-recorded",
    "before-launch",
    "run-ended",
    "before-hooks",
    "chat-posted",
];

/// Kills in CI.
const ROUNDS_IN_CI: u64 = 4;

/// Most kills: a round takes seconds.
const ROUNDS_MAX: u64 = 1_000;

/// Messages by channel and ID.
type Messages = BTreeMap<(&'static str, String), String>;

/// Writes a message in one of two conversations.
fn write(slack: &FakeSlack, messages: &mut Messages, number: u64, text: String) {
    let (channel, ts) = match number % 2 {
        0 => (ANN_DIRECT, slack.say(ANN_DIRECT, ANN, &text)),
        _ => (CHANNEL, slack.say(CHANNEL, BOB, &format!("<@UBOT> {text}"))),
    };
    messages.insert((channel, ts), text);
}

/// Starts a fleet that has received a message, so that it knows a gap from a beginning.
fn begin(slack: &FakeSlack, messages: &mut Messages) -> Herd {
    // Messages that are not received in this time are only in the history.
    slack.set_ack_time(Duration::from_millis(400));
    let herd = herd(slack, "{say: 'heard {prompt}'}");
    let (mut life, _client) = herd.begin(&[]);
    slack.wait_for_sockets(1);
    write(slack, messages, 0, "first".to_owned());
    wait_for("the first record", || {
        messages.keys().all(|(channel, ts)| event(&herd, channel, ts).is_some()).then_some(())
    });
    life.kill();
    herd
}

/// Waits until every message has its end, and checks that each has exactly one job and one answer.
#[track_caller]
fn check(herd: &Herd, slack: &FakeSlack, messages: &Messages) {
    slack.wait_until_delivered();
    wait_for("the ends of all jobs", || {
        let jobs = jobs(herd);
        (jobs.len() >= messages.len() && jobs.iter().all(|job| job.status.is_final())).then_some(())
    });
    wait_until_posted(herd);
    assert_eq!(jobs(herd).len(), messages.len(), "each message has exactly one job");
    let posts = slack.posts();
    for ((channel, ts), text) in messages {
        assert_eq!(event(herd, channel, ts).unwrap().outcome, "job");
        let answers: Vec<&str> = posts
            .iter()
            .filter(|post| post.channel == *channel && post.text.ends_with(&format!(" {text}")))
            .map(|post| post.text.as_str())
            .collect();
        assert_eq!(answers.len(), 1, "{text} has one answer: {answers:?}");
    }
}

#[test]
fn a_message_on_slack_has_one_job_and_one_answer_wherever_the_daemon_dies() {
    for point in POINTS {
        let slack = fake();
        let mut messages = Messages::new();
        let herd = begin(&slack, &mut messages);
        // The first pass through a point may be the start of the daemon, so later ones are tried too.
        for nth in 1..=2 {
            let mut life = herd.start(&["--fault", &format!("{point}:{nth}")]);
            write(&slack, &mut messages, nth, format!("{point} {nth}"));
            // A point may be passed fewer times than that.
            wait_for("a death or an answer", || {
                let answered = messages.keys().all(|it| event(&herd, it.0, &it.1).is_some())
                    && herd.reader().pending_effects(9).unwrap().is_empty()
                    && jobs(&herd).iter().all(|job| job.status.is_final());
                (life.has_ended() || answered).then_some(())
            });
            life.kill();
        }
        let (_life, _client) = herd.begin(&[]);
        check(&herd, &slack, &messages);
    }
}

#[test]
fn proof_messages_on_slack_survive_kills_lost_acks_and_rotating_sockets() {
    let settings = ProofSettings::new(ROUNDS_IN_CI);
    println!("seed {}", settings.seed);
    let slack = fake();
    let mut messages = Messages::new();
    let herd = begin(&slack, &mut messages);
    let mut number = 0;
    for round in 0..settings.rounds.min(ROUNDS_MAX) {
        let mut random = settings.random(round);
        let point = POINTS[random.usize(..POINTS.len())];
        let mut life = herd.start(&["--fault", &format!("{point}:{}", random.u32(1..12))]);
        for _ in 0..random.u64(1..8) {
            number += 1;
            write(&slack, &mut messages, number, format!("{round}.{number}"));
            match random.u8(..8) {
                0 => slack.lose_acks(1),
                1 => slack.announce_disconnect("warning"),
                2 => slack.close_leaving(),
                3 => slack.abort_sockets(),
                4 => slack.redeliver(&messages.keys().last().unwrap().1),
                5 => {
                    let method =
                        ["apps.connections.open", "chat.postMessage", "conversations.history"]
                            [random.usize(..3)];
                    let status = [429, 500, 502][random.usize(..3)];
                    slack.fail_next(SlackFailure {
                        method,
                        status,
                        error: if status == 429 { "ratelimited" } else { "internal_error" },
                        retry_after: (status == 429).then_some(1),
                        is_executed: random.bool() && status != 429,
                    });
                }
                _ => {}
            }
        }
        wait_for("a death, or all messages of the round", || {
            let is_recorded = messages.keys().all(|it| event(&herd, it.0, &it.1).is_some());
            (life.has_ended() || is_recorded).then_some(())
        });
        life.kill();
    }
    let (_life, _client) = herd.begin(&[]);
    check(&herd, &slack, &messages);
}
