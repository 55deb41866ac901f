//! kill -9 of the daemon between a comment on GitHub and its answer, which has several parts.

use std::collections::BTreeMap;

use heeler_testkit::{FakeGithub, ProofSettings};

use crate::daemon_kills::Herd;
use crate::github_chat::{
    ANN, POINTS, REPO, call_webhook, fail_call, fake, herd, jobs, own_texts, record,
};
use crate::telegram::wait_until_posted;
use crate::trigger::wait_for;

/// Kills in CI.
const ROUNDS_IN_CI: u64 = 6;

/// Most kills: a round takes seconds.
const ROUNDS_MAX: u64 = 1_000;

/// Rounds after which the answers are checked and removed, so that no list of them grows long.
const ROUNDS_PER_CHECK: u64 = 10;

/// Issues on which people talk.
const ISSUES: [u64; 2] = [7, 8];

/// Lines of an answer, which make two comments.
const LINES: usize = 180;

/// Calls that fail now and then.
const CALLS: [&str; 4] = [
    "POST /repos/acme/app/issues/7/comments",
    "POST /repos/acme/app/issues/8/comments",
    "GET /repos/acme/app/issues/7/comments",
    "GET /repos/acme/app/issues/comments",
];

/// Messages that are not checked yet, by issue and ID of the event.
type Messages = BTreeMap<(u64, String), String>;

/// An answer as it is shown in an issue.
#[derive(Debug, Default)]
struct ShownAnswer {
    /// Last line before the numbered lines: the prompt, or its end.
    prompt: String,
    /// Numbers of the lines, in their order.
    lines: Vec<String>,
}

/// Returns the steps of an agent whose answer shows if a part of it is missing, repeated or displaced.
fn steps() -> String {
    let lines = (0..LINES).map(|number| format!("line {number:04} {}", "x".repeat(90)));
    let answer =
        format!("begin {{turn}}\n\n{{prompt}}\n\n{}", lines.collect::<Vec<_>>().join("\n\n"));
    format!("{{say: {}}}", serde_json::to_string(&answer).unwrap())
}

/// Returns the answers on an issue, in their order.
fn shown_answers(github: &FakeGithub, issue: u64) -> Vec<ShownAnswer> {
    let comments = own_texts(&github.comments(REPO, issue)).join("\n");
    let mut answers: Vec<ShownAnswer> = Vec::new();
    for line in comments.lines().filter(|line| !line.trim().is_empty()) {
        if line.starts_with("begin ") {
            answers.push(ShownAnswer::default());
            continue;
        }
        let answer = answers.last_mut().expect("an answer has a beginning");
        match line.strip_prefix("line ").and_then(|rest| rest.split(' ').next()) {
            Some(number) => answer.lines.push(number.to_owned()),
            None => line.clone_into(&mut answer.prompt),
        }
    }
    answers
}

/// Writes a comment, and perhaps delivers its webhook, or makes a call fail.
fn write(
    github: &FakeGithub,
    herd: &Herd,
    messages: &mut Messages,
    text: &str,
    random: &mut fastrand::Rng,
) {
    let issue = ISSUES[random.usize(..ISSUES.len())];
    let comment = github.write_comment(REPO, issue, ANN, &format!("@heeler-user {text}"));
    let event = format!("comment:{comment}");
    match random.u8(..6) {
        0 => call_webhook(herd, &event, 0),
        1 => {
            call_webhook(herd, &event, 1);
            call_webhook(herd, &event, 0);
        }
        2 => fail_call(github, &CALLS, random),
        _ => {}
    }
    messages.insert((issue, event), text.to_owned());
}

/// Waits until every message has its end, checks that each has one job and one answer, and removes all
/// comments. Returns the number of messages.
#[track_caller]
fn check(herd: &Herd, github: &FakeGithub, messages: &mut Messages, checked: usize) -> usize {
    let (_life, _client) = herd.begin(&[]);
    let total = checked + messages.len();
    for (_, event) in messages.keys() {
        let found = wait_for("the record of a comment", || record(herd, event));
        assert_eq!(found.outcome, "job", "{found:?}");
    }
    wait_for("the ends of all jobs", || {
        let jobs = jobs(herd);
        (jobs.len() >= total && jobs.iter().all(|job| job.status.is_final())).then_some(())
    });
    wait_until_posted(herd);
    assert_eq!(jobs(herd).len(), total, "each comment has exactly one job");
    let numbers: Vec<String> = (0..LINES).map(|number| format!("{number:04}")).collect();
    for issue in ISSUES {
        let answers = shown_answers(github, issue);
        let texts = messages.iter().filter(|((of, _), _)| *of == issue).map(|(_, text)| text);
        let texts: Vec<&String> = texts.collect();
        assert_eq!(answers.len(), texts.len(), "each comment has one answer: {answers:?}");
        for text in texts {
            let own = answers.iter().filter(|it| it.prompt.ends_with(&format!("] {text}")));
            assert_eq!(own.count(), 1, "{text} has one answer: {answers:?}");
        }
        for answer in &answers {
            assert_eq!(answer.lines, numbers, "complete and in order: {}", answer.prompt);
        }
        github.delete_comments(REPO, issue);
    }
    messages.clear();
    total
}

#[test]
fn proof_comments_on_github_survive_kills_lost_replies_and_lost_webhooks() {
    let settings = ProofSettings::new(ROUNDS_IN_CI);
    println!("seed {}", settings.seed);
    let github = fake();
    github.open_issue(REPO, ISSUES[1], ANN, ("Another", ""));
    let herd = herd(&github, &steps(), "messages_per_minute: 100000");
    herd.begin(&[]).0.kill();
    let (mut messages, mut checked) = (Messages::new(), 0);
    let rounds = settings.rounds.min(ROUNDS_MAX);
    for round in 0..rounds {
        let mut random = settings.random(round);
        let point = POINTS[random.usize(..POINTS.len())];
        let mut life = herd.start(&["--fault", &format!("{point}:{}", random.u32(1..12))]);
        if random.bool() {
            drop(herd.connect(&mut life));
        }
        for number in 0..random.u64(1..5) {
            write(&github, &herd, &mut messages, &format!("{round}.{number}"), &mut random);
        }
        wait_for("a death, or all comments of the round", || {
            let is_recorded = messages.keys().all(|(_, event)| record(&herd, event).is_some());
            (life.has_ended() || is_recorded).then_some(())
        });
        life.kill();
        if (round + 1) % ROUNDS_PER_CHECK == 0 {
            checked = check(&herd, &github, &mut messages, checked);
        }
    }
    check(&herd, &github, &mut messages, checked);
}
