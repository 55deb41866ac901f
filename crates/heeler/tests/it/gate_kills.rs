//! kill -9 of the daemon between the gate of a workflow in a chat, its answer and its outcome.

use std::time::{Duration, Instant};

use heeler_model::workflow::WorkflowRunStatus;
use heeler_model::{ApprovalStatus, WorkflowRunId};
use heeler_testkit::{FakeDiscord, FakeSlack, FakeTelegram};
use serde_json::json;

use crate::daemon_kills::{Herd, Life};
use crate::gate_answers::{
    DISCORD_GATES, SLACK_GATES, approval, on_discord, on_slack, on_telegram, run,
};
use crate::telegram::wait_until_posted;
use crate::trigger::wait_for;
use crate::{discord, slack, telegram};

/// Points at which a daemon dies that asks at a gate and receives answers, with the passes at which it
/// dies. Commits are passed at the start too, so more of their passes are tried.
const POINTS: [(&str, &[u32]); 5] = [
    ("before-commit", &[4, 6, 8]),
    ("after-commit", &[4, 6, 8]),
    ("chat-posted", &[1, 1]),
    ("chat-received", &[1, 2]),
    ("chat-recorded", &[1, 2]),
];

/// Time after which a person clicks again.
const CLICK_PAUSE: Duration = Duration::from_secs(2);

/// A post of the question.
struct GatePost {
    is_closed: bool,
}

/// Way in which a gate of a workflow is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AnswerWay {
    Button,
    Reply,
}

/// A chat with a gate in it.
enum GateChat {
    Slack(FakeSlack),
    Discord(FakeDiscord),
    Telegram(FakeTelegram),
}

impl GateChat {
    fn herd(&self) -> Herd {
        match self {
            GateChat::Slack(fake) => on_slack(fake),
            GateChat::Discord(fake) => on_discord(fake),
            GateChat::Telegram(fake) => on_telegram(fake),
        }
    }

    fn posts(&self) -> Vec<GatePost> {
        let post = |text: &str, is_edited: bool, buttons: &[String]| {
            let is_closed = is_edited && buttons.is_empty();
            text.contains("Gate ").then_some(GatePost { is_closed })
        };
        match self {
            GateChat::Slack(fake) => {
                let posts = fake.posts();
                posts.iter().filter_map(|it| post(&it.text, it.is_edited, &it.buttons)).collect()
            }
            GateChat::Discord(fake) => {
                let posts = fake.posts();
                posts.iter().filter_map(|it| post(&it.text, it.is_edited, &it.buttons)).collect()
            }
            GateChat::Telegram(fake) => {
                let posts = fake.posts();
                posts.iter().filter_map(|it| post(&it.text, it.is_edited, &it.buttons)).collect()
            }
        }
    }

    /// Clicks a button of the last open post as an approver, and as a person who may not answer. Returns
    /// true if there was one.
    fn click(&self, approves: bool) -> bool {
        let button = usize::from(!approves);
        match self {
            GateChat::Slack(fake) => {
                let posts = fake.posts();
                let open = posts.iter().rfind(|it| it.buttons.len() == 2);
                open.map(|post| {
                    fake.click(slack::BOB, post, &post.buttons[1 - button]);
                    fake.click(slack::ANN, post, &post.buttons[button]);
                })
                .is_some()
            }
            GateChat::Discord(fake) => {
                let posts = fake.posts();
                let open = posts.iter().rfind(|it| it.buttons.len() == 2);
                open.map(|post| {
                    fake.click(discord::BOB, post, &post.buttons[1 - button]);
                    fake.click(discord::ANN, post, &post.buttons[button]);
                })
                .is_some()
            }
            GateChat::Telegram(fake) => {
                let posts = fake.posts();
                let open = posts.iter().rfind(|it| it.buttons.len() == 2);
                open.map(|post| {
                    fake.click(telegram::BOB, post, &post.buttons[1 - button]);
                    fake.click(telegram::ANN, post, &post.buttons[button]);
                })
                .is_some()
            }
        }
    }

    /// Replies to the last open post as a person who may not answer, and as an approver. Returns true if
    /// there was one.
    fn reply(&self) -> bool {
        let is_open = |text: &str, is_edited: bool| text.contains("Which colour?") && !is_edited;
        match self {
            GateChat::Slack(fake) => {
                let posts = fake.posts();
                let open = posts.iter().rfind(|it| is_open(&it.text, it.is_edited));
                open.map(|post| {
                    fake.reply(SLACK_GATES, &post.ts, slack::BOB, "red");
                    fake.reply(SLACK_GATES, &post.ts, slack::ANN, "blue");
                })
                .is_some()
            }
            GateChat::Discord(fake) => {
                let posts = fake.posts();
                let open = posts.iter().rfind(|it| is_open(&it.text, it.is_edited));
                open.map(|post| {
                    let reply = json!({"type": 19, "message_reference": {"message_id": post.id},
                        "referenced_message": {"id": post.id, "author": {"id": discord::BOT}}});
                    fake.write(DISCORD_GATES, discord::BOB, "red", &reply);
                    fake.write(DISCORD_GATES, discord::ANN, "blue", &reply);
                })
                .is_some()
            }
            GateChat::Telegram(fake) => {
                let posts = fake.posts();
                let open = posts.iter().rfind(|it| is_open(&it.text, it.is_edited));
                open.map(|post| {
                    let group = json!({"id": telegram::GROUP, "type": "supergroup"});
                    let reply = json!({"reply_to_message": {"message_id": post.id,
                        "from": {"id": 123_456_789, "is_bot": true}}});
                    fake.write(telegram::BOB, group.clone(), "red", &reply);
                    fake.write(telegram::ANN, group, "blue", &reply);
                })
                .is_some()
            }
        }
    }
}

fn status(herd: &Herd, run: &WorkflowRunId) -> WorkflowRunStatus {
    herd.reader().workflow_run(run).unwrap().unwrap().head.status
}

/// Answers until the workflow run has ended and its posts are made, or the daemon has died.
fn live(
    herd: &Herd,
    (chat, kind): (&GateChat, AnswerWay),
    run: &WorkflowRunId,
    life: &mut Life,
    approves: bool,
) {
    let answer = || match kind {
        AnswerWay::Button => chat.click(approves),
        AnswerWay::Reply => chat.reply(),
    };
    let mut clicked_at: Option<Instant> = None;
    wait_for("a death, or the end of the workflow run", || {
        // A platform does not keep a click for later, so a person repeats one without an effect.
        let is_open = status(herd, run) == WorkflowRunStatus::Paused;
        if is_open && clicked_at.is_none_or(|at| at.elapsed() > CLICK_PAUSE) && answer() {
            clicked_at = Some(Instant::now());
        }
        let is_posted = || {
            let pending = herd.reader().pending_effects(99).unwrap();
            !pending.iter().any(|it| it.kind.starts_with("chat_"))
        };
        let has_died = life.has_ended();
        (has_died || status(herd, run).is_final() && is_posted()).then_some(())
    });
}

/// Kills daemons at a point, from the question to the outcome.
fn check(chat: &GateChat, kind: AnswerWay, (point, passes): (&str, &[u32])) {
    let mut herd = chat.herd();
    let (mut life, mut client) = herd.begin(&[]);
    let workflow = if kind == AnswerWay::Button { "late" } else { "ask" };
    let ship = run(&mut client, workflow);
    life.kill();
    herd.open_gate();
    let mut deaths = 0;
    for (round, pass) in passes.iter().enumerate() {
        let mut life = herd.start(&["--fault", &format!("{point}:{pass}")]);
        live(&herd, (chat, kind), &ship, &mut life, round % 2 == 0);
        deaths += usize::from(life.has_ended());
        life.kill();
    }
    let (mut life, _client) = herd.begin(&[]);
    live(&herd, (chat, kind), &ship, &mut life, true);
    wait_until_posted(&herd);

    // One answer counts, and what follows from it happens once.
    let answer = approval(&herd, &ship);
    let by = answer.responded_by.clone().unwrap_or_default();
    let (platform, account, ann) = match chat {
        GateChat::Slack(_) => ("slack", "A0TEST", slack::ANN.to_owned()),
        GateChat::Discord(_) => ("discord", discord::BOT, discord::ANN.to_owned()),
        GateChat::Telegram(_) => ("telegram", "123456789", telegram::ANN.to_string()),
    };
    assert!(by.contains(&format!("({platform} {ann})")), "{point}: {answer:?}");
    let shipped = herd.fleet.file("shipped");
    let shipped = std::fs::read_to_string(shipped).unwrap_or_default().lines().count();
    let wanted = match (kind, answer.status) {
        (AnswerWay::Button, ApprovalStatus::Approved) => (WorkflowRunStatus::Succeeded, 1),
        (AnswerWay::Button, _) => (WorkflowRunStatus::Failed, 0),
        (AnswerWay::Reply, _) => (WorkflowRunStatus::Succeeded, 0),
    };
    if kind == AnswerWay::Reply {
        assert_eq!(answer.response.as_deref(), Some("blue"), "{point}: {answer:?}");
    }
    assert_eq!((status(&herd, &ship), shipped), wanted, "{point}: {answer:?}");
    let events = herd.reader().recent_inbox_events(platform, account, 999).unwrap();
    let answers = events.iter().filter(|event| event.outcome == "answer").count();
    assert_eq!(answers, 1, "{point}: one click counts: {events:?}");
    // Telegram cannot recognize a repeated post, which each death may leave.
    let posts = chat.posts();
    let most = match chat {
        GateChat::Slack(_) | GateChat::Discord(_) => 1,
        GateChat::Telegram(_) => 1 + deaths,
    };
    assert!((1..=most).contains(&posts.len()), "{point}: {} posts", posts.len());
    assert!(posts.iter().any(|post| post.is_closed), "{point}: the question is closed");
}

#[test]
fn a_gate_on_slack_counts_once_wherever_the_daemon_dies() {
    for point in POINTS {
        check(&GateChat::Slack(slack::fake()), AnswerWay::Button, point);
    }
}

#[test]
fn a_gate_on_discord_counts_once_wherever_the_daemon_dies() {
    for point in POINTS {
        check(&GateChat::Discord(discord::fake()), AnswerWay::Button, point);
    }
}

#[test]
fn a_gate_on_telegram_counts_once_wherever_the_daemon_dies() {
    for point in POINTS {
        check(&GateChat::Telegram(FakeTelegram::start(telegram::TOKEN)), AnswerWay::Button, point);
    }
}

#[test]
fn a_reply_to_a_gate_on_slack_counts_once_wherever_the_daemon_dies() {
    for point in POINTS {
        check(&GateChat::Slack(slack::fake()), AnswerWay::Reply, point);
    }
}

#[test]
fn a_reply_to_a_gate_on_discord_counts_once_wherever_the_daemon_dies() {
    for point in POINTS {
        check(&GateChat::Discord(discord::fake()), AnswerWay::Reply, point);
    }
}

#[test]
fn a_reply_to_a_gate_on_telegram_counts_once_wherever_the_daemon_dies() {
    for point in POINTS {
        check(&GateChat::Telegram(FakeTelegram::start(telegram::TOKEN)), AnswerWay::Reply, point);
    }
}
