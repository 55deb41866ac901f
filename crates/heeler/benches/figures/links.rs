//! Chat links: how soon a message is safe, and what a thousand conversations and an idle link cost.
//!
//! The alternative is a bot of Slack's own framework, on the same fake of Slack. It keeps nothing, and
//! acknowledges a message before it looks at it. Heeler acknowledges it when the message and its job are
//! committed, so the time to the acknowledgement is the time to the commit.

use std::process::Command;
use std::time::Duration;

use heeler_testkit::FakeSlack;

use crate::scene::{Daemon, Scene, Side};
use crate::{Amount, Bench, Figure, Goal};

const CONVERSATIONS: usize = 1_000;
/// Between two messages. Agents of both sides keep up with it.
const PAUSE: Duration = Duration::from_millis(60);
const IDLE_WATCHED: Duration = Duration::from_secs(60);

const BOT_TOKEN: &str = "xoxb-1-2-bench";
const APP_TOKEN: &str = "xapp-1-A0BENCH-3-bench";
const CHANNEL: &str = "C0001";

const BOLT: &str = "Bolt, which keeps nothing";

/// Measurements of one side.
struct LinkCosts {
    ack_times: Vec<Duration>,
    memory: u64,
    idle_share: f64,
}

pub(crate) fn figures(bench: &Bench) -> Vec<Figure> {
    let (ours, theirs) = (measure(bench, Side::Ours), measure(bench, Side::Node));
    let time = |costs: &LinkCosts, share: usize| -> Amount {
        costs.ack_times[costs.ack_times.len() * share / 100].into()
    };
    let beside = |amount: Amount| Some((BOLT.to_owned(), amount));
    vec![
        Figure {
            what: "message on Slack to commit and acknowledgement, p50".to_owned(),
            ours: time(&ours, 50),
            goal: Goal::None,
            alternative: beside(time(&theirs, 50)),
        },
        Figure {
            what: "message on Slack to commit and acknowledgement, p99".to_owned(),
            ours: time(&ours, 99),
            goal: Goal::AtMost(Duration::from_millis(10).into()),
            alternative: beside(time(&theirs, 99)),
        },
        Figure {
            what: "1,000 conversations on one link: RssAnon".to_owned(),
            ours: Amount::Bytes(ours.memory),
            goal: Goal::AtMost(Amount::Bytes(60_000_000)),
            alternative: beside(Amount::Bytes(theirs.memory)),
        },
        Figure {
            what: "idle link: core".to_owned(),
            ours: Amount::Share(ours.idle_share),
            goal: Goal::AtMost(Amount::Share(0.001)),
            alternative: beside(Amount::Share(theirs.idle_share)),
        },
    ]
}

fn measure(bench: &Bench, side: Side) -> LinkCosts {
    let slack = FakeSlack::start(BOT_TOKEN, APP_TOKEN);
    let scene = Scene::new(bench, "links", 1, |_| String::new());
    let bot = start(bench, &scene, &slack, side);
    slack.wait_for_sockets(1);
    let mut memory = 0;
    for number in 1..=CONVERSATIONS {
        slack.say(CHANNEL, "UANN", &format!("message {number}"));
        std::thread::sleep(PAUSE);
        memory = memory.max(bot.memory());
    }
    slack.wait_for("all answers", |posts| (posts.len() >= CONVERSATIONS).then_some(()));
    slack.wait_until_delivered();
    memory = memory.max(bot.memory());
    let mut ack_times = slack.take_ack_times();
    ack_times.sort_unstable();
    let before = bot.cpu();
    std::thread::sleep(IDLE_WATCHED);
    let idle_share = (bot.cpu() - before).div_duration_f64(IDLE_WATCHED);
    bot.stop();
    LinkCosts { ack_times, memory, idle_share }
}

fn start(bench: &Bench, scene: &Scene<'_>, slack: &FakeSlack, side: Side) -> Daemon {
    if side == Side::Node {
        let mut node = Command::new("node");
        node.arg(bench.node.join("slack-bot.mjs")).args([&slack.url(), BOT_TOKEN, APP_TOKEN]);
        return scene.start_program(node, scene.root.join("none"));
    }
    let config = format!(
        "version: 1
queue: {{max: 100000}}
agents:
  - name: coder
    runtime: scripted
    script: [{{say: done}}]
    working_directory: work
    chat:
      slack:
        api_url: '{}'
        channels: [{{id: {CHANNEL}, mode: auto, context_messages: 0}}]
        messages_per_minute: 100000
",
        slack.url()
    );
    std::fs::write(scene.root.join("heeler.yaml"), config).expect("disk has space");
    let tokens = format!("SLACK_BOT_TOKEN={BOT_TOKEN}\nSLACK_APP_TOKEN={APP_TOKEN}\n");
    std::fs::write(scene.root.join(".env"), tokens).expect("disk has space");
    scene.start(Side::Ours)
}
