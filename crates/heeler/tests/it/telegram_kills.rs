//! kill -9 of the daemon between a message on Telegram and its answer.

use std::collections::BTreeMap;

use heeler_testkit::{FakeTelegram, ProofSettings, TelegramFailure};

use crate::daemon_kills::Herd;
use crate::telegram::{ANN, TOKEN, event, herd, jobs, texts, wait_until_posted};
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
const ROUNDS_IN_CI: u64 = 6;

/// Most kills: a round takes seconds.
const ROUNDS_MAX: u64 = 1_000;

/// Waits until every message has its end, and checks that each has exactly one job.
#[track_caller]
fn check(herd: &Herd, telegram: &FakeTelegram, updates: &BTreeMap<i64, String>) {
    telegram.wait_until_confirmed();
    wait_for("the ends of all jobs", || {
        let jobs = jobs(herd);
        (jobs.len() >= updates.len() && jobs.iter().all(|job| job.status.is_final())).then_some(())
    });
    wait_until_posted(herd);
    assert_eq!(jobs(herd).len(), updates.len(), "each message has exactly one job");
    let posts = telegram.posts();
    let texts = texts(&posts);
    for (update, text) in updates {
        let record = event(herd, *update).unwrap();
        assert_eq!(record.outcome, "job");
        let answer = format!("heard {text}");
        assert!(texts.contains(&answer.as_str()), "{answer} is missing in {texts:?}");
    }
}

#[test]
fn a_message_has_one_job_wherever_the_daemon_dies() {
    for point in POINTS {
        let telegram = FakeTelegram::start(TOKEN);
        let herd = herd(&telegram, "{say: 'heard {prompt}'}");
        let mut updates = BTreeMap::new();
        // It makes the state directory.
        herd.begin(&[]).0.kill();
        // The first pass through a point may be the start of the daemon, so later ones are tried too.
        for nth in 1..=3 {
            let text = format!("{point} {nth}");
            let mut life = herd.start(&["--fault", &format!("{point}:{nth}")]);
            updates.insert(telegram.say(ANN, &text), text);
            // A point may be passed fewer times than that.
            let done = wait_for("a death or an answer", || {
                let answered = updates.keys().all(|id| event(&herd, *id).is_some())
                    && herd.reader().pending_effects(9).unwrap().is_empty()
                    && jobs(&herd).iter().all(|job| job.status.is_final());
                (life.has_ended() || answered).then_some(answered)
            });
            if done {
                life.kill();
            }
        }
        let (_life, _client) = herd.begin(&[]);
        check(&herd, &telegram, &updates);
        // A daemon that dies at any point may have just made the post of an earlier message, whose
        // result is then not recorded. That post is there twice, and no other.
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for post in telegram.posts() {
            *counts.entry(post.text).or_default() += 1;
        }
        let repeated = counts.values().filter(|count| **count == 2).count();
        // There were three deaths at most.
        assert!(counts.values().all(|count| *count <= 2) && repeated <= 3, "{point}: {counts:?}");
    }
}

#[test]
fn proof_messages_survive_kills_and_failures_of_telegram() {
    let settings = ProofSettings::new(ROUNDS_IN_CI);
    println!("seed {}", settings.seed);
    let rounds = settings.rounds.min(ROUNDS_MAX);
    let telegram = FakeTelegram::start(TOKEN);
    let herd = herd(&telegram, "{say: 'heard {prompt}'}");
    let mut updates = BTreeMap::new();
    herd.begin(&[]).0.kill();
    for round in 0..rounds {
        let mut random = settings.random(round);
        let point = POINTS[random.usize(..POINTS.len())];
        let mut life = herd.start(&["--fault", &format!("{point}:{}", random.u32(1..6))]);
        for n in 0..random.u64(1..8) {
            let text = format!("{round}.{n}");
            updates.insert(telegram.say(ANN, &text), text);
            let method = ["getUpdates", "sendMessage"][random.usize(..2)];
            let status = [429, 500, 502][random.usize(..3)];
            if random.u8(..4) == 0 {
                telegram.fail_next(TelegramFailure {
                    method,
                    status,
                    description: "try again",
                    retry_after: (status == 429).then_some(1),
                    is_executed: false,
                });
            }
        }
        let last = *updates.keys().last().unwrap();
        wait_for("a death, or all messages of the round", || {
            (life.has_ended() || event(&herd, last).is_some()).then_some(())
        });
        life.kill();
    }
    let (_life, _client) = herd.begin(&[]);
    check(&herd, &telegram, &updates);
}
