//! Many messages in chats, with rotating sockets, lost acknowledgements, repeated deliveries, failing
//! calls and kills: each message has exactly one job.
//!
//! The first job of the conversation waits at a gate, so the others stay in the queue: the proofs are
//! about messages, and running a job for each would limit their number. Answers are proved in
//! `telegram_kills`, `slack_kills`, `discord` and `github_kills`.

use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant};

use heeler_model::{JobId, JobStatus};
use heeler_testkit::{
    DiscordFailure, FakeDiscord, FakeGithub, FakeSlack, FakeTelegram, ProofSettings, SlackFailure,
    TelegramFailure,
};
use serde_json::json;

use crate::daemon_kills::{Herd, Life};
use crate::trigger::wait_for;
use crate::{discord, github_chat, slack, telegram};

/// Messages for each round of the proof: 1,000 in CI, and 100,000 under `cargo xtask prove`.
const MESSAGES_PER_ROUND: u64 = 10;

/// Rounds in CI.
const ROUNDS_IN_CI: u64 = 100;

/// Most messages.
const MESSAGES_MAX: u64 = 100_000;

/// Messages that one daemon may receive before it is killed.
const MESSAGES_PER_LIFE: u64 = 200;

/// Messages that wait in the queue before they are cancelled.
const QUEUED_MAX: usize = 500;

/// Time for which a daemon may work on the last messages before it is killed.
const LIFE_END: Duration = Duration::from_secs(3);

/// Points at which daemons die.
const POINTS: [&str; 4] = ["chat-received", "before-commit", "after-commit", "chat-recorded"];

/// Lists of GitHub that fail now and then.
const LISTS: [&str; 3] = [
    "GET /repos/acme/app/issues/comments",
    "GET /repos/acme/app/issues?",
    "GET /repos/acme/app/pulls/comments",
];

const GATE: &str = "{run: 'read line < gate'}";

/// A platform in a storm.
enum StormChat {
    Slack(FakeSlack),
    Discord(FakeDiscord),
    Telegram(FakeTelegram),
    Github(FakeGithub),
}

impl StormChat {
    fn herd(&self) -> Herd {
        match self {
            StormChat::Slack(fake) => slack::herd(fake, GATE),
            StormChat::Discord(fake) => discord::herd(fake, GATE),
            StormChat::Telegram(fake) => telegram::herd(fake, GATE),
            StormChat::Github(fake) => github_chat::herd(fake, GATE, "messages_per_minute: 100000"),
        }
    }

    fn account(&self) -> (&'static str, &'static str) {
        match self {
            StormChat::Slack(_) => ("slack", "A0TEST"),
            StormChat::Discord(_) => ("discord", discord::BOT),
            StormChat::Telegram(_) => ("telegram", "123456789"),
            StormChat::Github(_) => ("github", "heeler-user"),
        }
    }

    fn wait_until_connected(&self) {
        match self {
            StormChat::Slack(fake) => fake.wait_for_sockets(1),
            StormChat::Discord(fake) => fake.wait_until_connected(),
            // Telegram and GitHub keep what no daemon has received.
            StormChat::Telegram(_) | StormChat::Github(_) => {}
        }
    }

    /// Writes a message; returns the ID of its event.
    fn say(&self, text: &str) -> String {
        match self {
            StormChat::Slack(fake) => {
                let ts = fake.say(slack::ANN_DIRECT, slack::ANN, text);
                format!("{}:{ts}", slack::ANN_DIRECT)
            }
            StormChat::Discord(fake) => {
                let id = fake.say(discord::ANN_DIRECT, discord::ANN, text);
                format!("{}:{id:0>20}", discord::ANN_DIRECT)
            }
            StormChat::Telegram(fake) => fake.say(telegram::ANN, text).to_string(),
            StormChat::Github(fake) => github_chat::say(fake, text),
        }
    }

    /// Lets the daemon begin to listen, in half of the lives: only then a webhook reaches it.
    fn wait_until_listening(&self, herd: &Herd, life: &mut Life, random: &mut fastrand::Rng) {
        if matches!(self, StormChat::Github(_)) && random.bool() {
            drop(herd.connect(life));
        }
    }

    /// Removes messages that are on record, of which the platform would show ever more.
    fn remove_recorded(&self) {
        if let StormChat::Github(fake) = self {
            fake.delete_comments(github_chat::REPO, github_chat::ISSUE);
        }
    }

    /// Disturbs the connection, perhaps, after a message.
    fn disturb(&self, herd: &Herd, event: &str, random: &mut fastrand::Rng) {
        let status = [429, 500, 502][random.usize(..3)];
        let retry_after = (status == 429).then_some(1);
        // Failed calls are few: each makes the link pause for longer than the one before.
        match (self, random.u16(..400)) {
            (StormChat::Slack(fake), 0..10) => fake.lose_acks(random.usize(1..5)),
            (StormChat::Slack(fake), 10..16) => fake.announce_disconnect("warning"),
            (StormChat::Slack(fake), 16..22) => fake.close_leaving(),
            (StormChat::Slack(fake), 22..26) => fake.abort_sockets(),
            (StormChat::Slack(fake), 40..100) => {
                fake.redeliver(event.split_once(':').expect("channel and time").1);
            }
            (StormChat::Slack(fake), 100) => fake.fail_next(SlackFailure {
                method: ["apps.connections.open", "conversations.history"][random.usize(..2)],
                status,
                error: if status == 429 { "ratelimited" } else { "internal_error" },
                retry_after,
                is_executed: false,
            }),
            (StormChat::Discord(fake), 0..6) => fake.request_reconnect(),
            (StormChat::Discord(fake), 6..10) => fake.forget_sessions(),
            (StormChat::Discord(fake), 10..16) => fake.abort_sockets(),
            (StormChat::Discord(fake), 100) => fake.fail_next(DiscordFailure {
                call: "GET /gateway/bot",
                status,
                headers: retry_after
                    .map(|seconds| ("retry-after", seconds.to_string()))
                    .into_iter()
                    .collect(),
                body: json!({"message": "try again", "retry_after": 1.0}),
                is_executed: false,
            }),
            (StormChat::Telegram(fake), 0..2) => fake.fail_next(TelegramFailure {
                method: "getUpdates",
                status,
                description: "try again",
                retry_after,
                is_executed: false,
            }),
            (StormChat::Telegram(fake), 40..100) => {
                let id = event.parse().expect("a number");
                if let Some(update) = fake.update(id) {
                    fake.redeliver(update);
                }
            }
            (StormChat::Github(fake), number) => {
                disturb_github((fake, herd), event, number, random);
            }
            _ => {}
        }
    }
}

/// Delivers the webhook of a comment, perhaps, or makes a call fail. The webhooks of most comments are lost;
/// some are delivered twice, and some out of order.
fn disturb_github(
    (fake, herd): (&FakeGithub, &Herd),
    event: &str,
    number: u16,
    random: &mut fastrand::Rng,
) {
    match number {
        0..40 => github_chat::call_webhook(herd, event, 0),
        40..60 => {
            github_chat::call_webhook(herd, event, 0);
            github_chat::call_webhook(herd, event, 0);
        }
        60..80 => github_chat::call_webhook(herd, event, random.u64(1..20)),
        100..102 => github_chat::fail_call(fake, &LISTS, random),
        _ => {}
    }
}

/// Removes the events that are recorded.
fn drop_recorded(herd: &Herd, chat: &StormChat, events: &mut BTreeSet<String>) {
    let (reader, (platform, account)) = (herd.reader(), chat.account());
    events.retain(|id| reader.inbox_event(platform, account, id).unwrap().is_none());
}

/// Waits until all messages are recorded, checks their jobs, and cancels these.
#[track_caller]
fn check(herd: &Herd, chat: &StormChat, messages: &mut Vec<String>, known: &mut HashSet<JobId>) {
    let (_life, _client) = herd.begin(&[]);
    let mut missing: BTreeSet<String> = messages.iter().cloned().collect();
    // A busy machine records a few in a second, so only a standstill is a failure.
    while !missing.is_empty() {
        let before = missing.len();
        wait_for("the records of further messages", || {
            drop_recorded(herd, chat, &mut missing);
            (missing.len() < before).then_some(())
        });
    }
    let (reader, (platform, account)) = (herd.reader(), chat.account());
    for id in messages.drain(..) {
        let record = reader.inbox_event(platform, account, &id).unwrap().unwrap();
        assert_eq!(record.outcome, "job", "{record:?}");
        let job = record.job.clone().unwrap();
        assert!(known.insert(job), "a job has one message: {record:?}");
    }
    chat.remove_recorded();
    let jobs = herd.jobs();
    assert_eq!(jobs.len(), known.len(), "each message has exactly one job");
    assert!(jobs.iter().all(|job| known.contains(&job.id)), "each job has a message");
    // The queue is emptied as a person does it.
    chat.say("!stop");
    wait_for("the ends of all jobs", || {
        let jobs = herd.jobs();
        jobs.iter().all(|job| job.status == JobStatus::Cancelled).then_some(())
    });
}

fn storm(chat: &StormChat) {
    let settings = ProofSettings::new(ROUNDS_IN_CI);
    println!("seed {}", settings.seed);
    let count = settings.rounds.saturating_mul(MESSAGES_PER_ROUND).min(MESSAGES_MAX);
    let herd = chat.herd();
    let (mut messages, mut known) = (Vec::new(), HashSet::new());
    // A fleet that has received a message knows a gap from a beginning.
    let (mut life, _client) = herd.begin(&[]);
    chat.wait_until_connected();
    messages.push(chat.say("first"));
    let mut missing: BTreeSet<String> = messages.iter().cloned().collect();
    wait_for("the first record", || {
        drop_recorded(&herd, chat, &mut missing);
        missing.is_empty().then_some(())
    });
    life.kill();
    let (mut sent, mut life_number) = (0, 0);
    while sent < count {
        life_number += 1;
        let mut random = settings.random(life_number);
        let point = POINTS[random.usize(..POINTS.len())];
        let mut life = herd.start(&["--fault", &format!("{point}:{}", random.u32(1..300))]);
        let of_life = random.u64(1..MESSAGES_PER_LIFE).min(count - sent);
        chat.wait_until_listening(&herd, &mut life, &mut random);
        let mut missing = BTreeSet::new();
        for number in 0..of_life {
            let event = chat.say(&format!("{life_number}.{number}"));
            chat.disturb(&herd, &event, &mut random);
            missing.insert(event.clone());
            messages.push(event);
        }
        sent += of_life;
        // What it does not record in this time is left to the next daemon.
        let until = Instant::now() + LIFE_END;
        while !life.has_ended() && !missing.is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
            drop_recorded(&herd, chat, &mut missing);
        }
        life.kill();
        if messages.len() > QUEUED_MAX {
            check(&herd, chat, &mut messages, &mut known);
        }
    }
    check(&herd, chat, &mut messages, &mut known);
}

#[test]
fn proof_every_message_in_a_storm_on_slack_has_one_job() {
    let fake = slack::fake();
    fake.set_ack_time(Duration::from_millis(400));
    storm(&StormChat::Slack(fake));
}

#[test]
fn proof_every_message_in_a_storm_on_discord_has_one_job() {
    storm(&StormChat::Discord(discord::fake()));
}

#[test]
fn proof_every_message_in_a_storm_on_telegram_has_one_job() {
    storm(&StormChat::Telegram(FakeTelegram::start(telegram::TOKEN)));
}

#[test]
fn proof_every_message_in_a_storm_on_github_has_one_job() {
    storm(&StormChat::Github(github_chat::fake()));
}
