//! Live output in chats: run cards, reactions and typing while a job runs, and messages to running jobs.

use heeler_model::JobStatus;
use heeler_testkit::{FakeSlack, FakeTelegram, SlackFailure, SlackPost};

use crate::daemon_kills::Herd;
use crate::trigger::wait_for;
use crate::{discord, slack, telegram};

/// A job that uses a tool, says something, and then waits at a gate.
const WAITS: &str = "{run: 'echo found it'}, {say: 'Half done.'}, {run: 'read line < gate'}, {say: 'All done: {prompt}'}";

#[track_caller]
fn wait_for_end(herd: &Herd) {
    wait_for("the end of the job", || {
        let jobs = herd.jobs();
        (!jobs.is_empty() && jobs.iter().all(|job| job.status.is_final())).then_some(())
    });
}

#[test]
fn a_card_on_discord_shows_the_work_and_ends_with_the_cost() {
    let fake = discord::fake();
    let mut herd = discord::herd_with(&fake, WAITS, "output: {assistant_messages: all}");
    let (_life, _client) = herd.begin(&[]);
    fake.wait_until_connected();
    let message = fake.say(discord::CHANNEL, discord::ANN, "<@900000> go");
    let card = fake.wait_for("a card with the work so far", |posts| {
        let is_full = |text: &str| text.contains("found it") && text.contains("Half done.");
        posts.iter().find(|post| is_full(&post.text)).cloned()
    });
    assert!(card.text.starts_with("**Working** (`job-"), "{card:?}");
    assert!(card.text.contains("Tools: `Bash`"), "{card:?}");
    assert_eq!(card.reply_to.as_ref(), Some(&message));
    assert_eq!(fake.reactions(), [(message, "%F0%9F%91%80".to_owned())]);
    wait_for("a typing indicator", || {
        let calls = fake.calls(&format!("POST /channels/{}/typing", discord::CHANNEL));
        (!calls.is_empty()).then_some(())
    });
    herd.open_gate();
    wait_for_end(&herd);
    let finished = fake.wait_for("the finished card", |posts| {
        let card = posts.iter().find(|post| post.id == card.id).cloned();
        card.filter(|post| post.text.starts_with("**Done**"))
    });
    assert!(finished.text.contains("`Bash` ×2"), "{finished:?}");
    let answer = fake.wait_for("the answer", |posts| {
        posts.iter().find(|post| post.text.starts_with("All done")).cloned()
    });
    assert_eq!(answer.text, "All done: [user7001] go");
    assert_eq!(fake.posts().len(), 2, "{:?}", fake.posts());
}

#[test]
fn a_card_that_a_killed_daemon_left_is_finished_by_the_next_one() {
    let fake = slack::fake();
    let mut herd = slack::herd_with(&fake, WAITS, "output: {tool_results: false}");
    let (mut life, _client) = herd.begin(&[]);
    fake.wait_for_sockets(1);
    fake.say(slack::ANN_DIRECT, slack::ANN, "go");
    let card = fake.wait_for("a card", |posts| {
        posts.iter().find(|post| post.text.contains("Half done.")).cloned()
    });
    assert!(!card.text.contains("found it"), "{card:?}");
    wait_for("the record of the card", || {
        let pending = herd.reader().pending_effects(9).unwrap();
        pending.iter().any(|effect| effect.payload == card.ts).then_some(())
    });
    life.kill();
    // The job ends without a daemon.
    herd.open_gate();
    let (_life, _client) = herd.begin(&[]);
    wait_for_end(&herd);
    fake.wait_for("the finished card", |posts| {
        let card = posts.iter().find(|post| post.ts == card.ts)?;
        (card.is_edited && card.text.contains("Done")).then_some(())
    });
    fake.wait_for("the answer", |posts| {
        posts.iter().any(|post| post.text == "All done: go").then_some(())
    });
    assert_eq!(fake.posts().len(), 2, "{:?}", fake.posts());
    assert!(fake.calls("chat.startStream").is_empty(), "a direct conversation is no thread");
}

/// A job like `WAITS`. It also waits for a file, and then continues its work.
const GROWS: &str = "{run: 'echo found it'}, {say: 'Half done. <!channel>'}, {run: 'until [ -e more ]; do sleep 0.02; done; echo went on'}, {run: 'read line < gate'}, {say: 'All done: {prompt}'}";

/// Settings with a card and all of its content.
const CARD: &str = "output: {tool_results: true}";

/// Waits for a card with a text that still grows.
#[track_caller]
fn wait_for_stream(fake: &FakeSlack, text: &str) -> SlackPost {
    fake.wait_for("a card that grows", |posts| {
        posts.iter().find(|post| post.is_open && post.text.contains(text)).cloned()
    })
}

/// Waits until a card is an ordinary post that was changed to a text.
#[track_caller]
fn wait_for_changed_card(fake: &FakeSlack, ts: &str, text: &str) -> SlackPost {
    fake.wait_for("a card that was changed", |posts| {
        let card = posts.iter().find(|post| post.ts == ts).cloned();
        card.filter(|post| !post.is_open && post.is_edited && post.text.contains(text))
    })
}

/// Waits for the answer, and checks that there is one card and one answer.
#[track_caller]
fn check_one_card_and_one_answer(fake: &FakeSlack, ts: &str) {
    wait_for_changed_card(fake, ts, "Done");
    let is_answer = |post: &&SlackPost| post.text.starts_with("All done");
    let answer = fake.wait_for("the answer", |posts| posts.iter().find(is_answer).cloned());
    assert_eq!(answer.text, "All done: [Name of UBOB] go");
    assert_eq!(fake.posts().len(), 2, "{:?}", fake.posts());
}

#[test]
fn a_card_in_a_thread_on_slack_grows_and_ends_with_the_cost() {
    let fake = slack::fake();
    let mut herd = slack::herd_with(&fake, GROWS, CARD);
    let (_life, _client) = herd.begin(&[]);
    fake.wait_for_sockets(1);
    let root = fake.say(slack::CHANNEL, slack::BOB, "<@UBOT> go");
    let card = wait_for_stream(&fake, "Half done.");
    assert_eq!(card.thread.as_ref(), Some(&root));
    assert!(card.text.starts_with("**Working** (`job-"), "{card:?}");
    assert!(card.text.contains("`Bash`") && card.text.contains("found it"), "{card:?}");
    assert!(!card.raw.contains("<!channel"), "an agent mentions nobody: {card:?}");
    std::fs::write(herd.fleet.file("more"), "").unwrap();
    let grown = wait_for_stream(&fake, "went on");
    assert_eq!(grown.ts, card.ts);
    assert!(grown.text.starts_with(&card.text), "nothing is said twice: {grown:?}");
    assert_eq!(grown.text.matches("found it").count(), 1, "{grown:?}");
    assert!(fake.calls("chat.update").is_empty() && !fake.calls("chat.appendStream").is_empty());
    herd.open_gate();
    check_one_card_and_one_answer(&fake, &card.ts);
    assert_eq!(fake.calls("chat.startStream").len(), 1);
}

#[test]
fn a_card_is_changed_where_slack_offers_no_streams() {
    let fake = slack::fake();
    fake.refuse_streams();
    let mut herd = slack::herd_with(&fake, WAITS, CARD);
    let (_life, _client) = herd.begin(&[]);
    fake.wait_for_sockets(1);
    for _ in 0..2 {
        let root = fake.say(slack::CHANNEL, slack::BOB, "<@UBOT> go");
        let of_thread = |post: &&SlackPost| post.thread.as_ref() == Some(&root);
        fake.wait_for("a card", |posts| {
            posts.iter().find(of_thread).filter(|post| post.text.contains("Half done.")).map(drop)
        });
        herd.let_through(1);
        fake.wait_for("the card and the answer", |posts| {
            let texts: Vec<&str> =
                posts.iter().filter(of_thread).map(|post| post.text.as_str()).collect();
            let has = |start: &str| texts.iter().any(|text| text.starts_with(start));
            (texts.len() == 2 && has("*Done*") && has("All done")).then_some(())
        });
    }
    // The refusal holds for the app, so it is not asked again.
    assert_eq!(fake.calls("chat.startStream").len(), 1);
    let log = std::fs::read_to_string(herd.dir().logs().join("heeler.log")).unwrap();
    assert!(log.contains("no stream") && log.contains("unknown_method"), "{log}");
}

#[test]
fn a_stream_that_slack_ends_or_that_may_have_grown_is_replaced_by_a_change() {
    for is_unclear in [false, true] {
        let fake = slack::fake();
        let mut herd = slack::herd_with(&fake, GROWS, CARD);
        let (_life, _client) = herd.begin(&[]);
        fake.wait_for_sockets(1);
        fake.say(slack::CHANNEL, slack::BOB, "<@UBOT> go");
        let card = wait_for_stream(&fake, "Half done.");
        match is_unclear {
            true => fake.fail_next(SlackFailure {
                method: "chat.appendStream",
                status: 500,
                error: "internal_error",
                retry_after: None,
                is_executed: true,
            }),
            false => fake.end_streams(),
        }
        std::fs::write(herd.fleet.file("more"), "").unwrap();
        let changed = wait_for_changed_card(&fake, &card.ts, "went on");
        assert_eq!(changed.text.matches("went on").count(), 1, "{changed:?}");
        herd.open_gate();
        check_one_card_and_one_answer(&fake, &card.ts);
    }
}

#[test]
fn a_card_that_grew_is_changed_and_finished_by_the_daemon_after_a_killed_one() {
    // The daemon dies before the card is on record, or later.
    for point in [Some("card-posted:1"), None] {
        let fake = slack::fake();
        let mut herd = slack::herd_with(&fake, GROWS, CARD);
        let args = point.map_or(vec![], |point| vec!["--fault", point]);
        let (mut life, _client) = herd.begin(&args);
        fake.wait_for_sockets(1);
        fake.say(slack::CHANNEL, slack::BOB, "<@UBOT> go");
        let card = wait_for_stream(&fake, "Half done.");
        match point {
            Some(_) => wait_for("the death", || life.has_ended().then_some(())),
            None => wait_for("the record of the card", || {
                let pending = herd.reader().pending_effects(9).unwrap();
                pending.iter().any(|effect| effect.payload == card.ts).then_some(())
            }),
        }
        life.kill();
        std::fs::write(herd.fleet.file("more"), "").unwrap();
        let (_life, _client) = herd.begin(&[]);
        let changed = wait_for_changed_card(&fake, &card.ts, "went on");
        assert!(changed.text.starts_with("*Working*"), "{changed:?}");
        herd.open_gate();
        check_one_card_and_one_answer(&fake, &card.ts);
        assert_eq!(fake.calls("chat.startStream").len(), 1, "{point:?}");
    }
}

#[test]
fn a_card_whose_beginning_was_unclear_is_not_posted_twice() {
    let fake = slack::fake();
    let mut herd = slack::herd_with(&fake, WAITS, CARD);
    fake.fail_next(SlackFailure {
        method: "chat.startStream",
        status: 500,
        error: "internal_error",
        retry_after: None,
        is_executed: true,
    });
    let (_life, _client) = herd.begin(&[]);
    fake.wait_for_sockets(1);
    fake.say(slack::CHANNEL, slack::BOB, "<@UBOT> go");
    let card = wait_for_stream(&fake, "Half done.");
    wait_for_changed_card(&fake, &card.ts, "Working");
    herd.open_gate();
    check_one_card_and_one_answer(&fake, &card.ts);
}

#[test]
fn a_limit_of_the_platform_delays_the_card_and_not_the_answer() {
    let fake = FakeTelegram::start(telegram::TOKEN);
    let mut herd = telegram::herd_with(&fake, WAITS, "output: {progress_indicator: true}");
    fake.fail_next(heeler_testkit::TelegramFailure {
        method: "sendMessage",
        status: 429,
        description: "Too Many Requests: retry after 2",
        retry_after: Some(2),
        is_executed: false,
    });
    let (_life, _client) = herd.begin(&[]);
    fake.say(telegram::ANN, "go");
    fake.wait_for("the card", |posts| {
        posts.iter().any(|post| post.text.contains("Working")).then_some(())
    });
    let calls = fake.calls("sendMessage");
    assert!(calls[1].duration_since(calls[0]).as_millis() >= 2_000, "the limit is honoured");
    assert!(!fake.calls("sendChatAction").is_empty());
    herd.open_gate();
    fake.wait_for("the answer", |posts| {
        posts.iter().any(|post| post.text == "All done: go").then_some(())
    });
}

#[test]
fn a_message_to_a_busy_agent_is_said_to_its_running_job() {
    let fake = FakeTelegram::start(telegram::TOKEN);
    let steps = "{run: 'echo begun >> begun; read line < gate'}, {say: 'Turn {turn}: {prompt}'}";
    let mut herd = telegram::herd_with(&fake, steps, "while_busy: say");
    let (mut life, _client) = herd.begin(&[]);
    fake.say(telegram::ANN, "first");
    wait_for("its work", || herd.fleet.file("begun").exists().then_some(()));
    let said = fake.say(telegram::ANN, "second");
    let record = wait_for("the record", || telegram::event(&herd, said));
    assert_eq!(record.outcome, "said", "{record:?}");
    let job = record.job.unwrap();
    wait_for("its delivery", || herd.reader().pending_effects(9).unwrap().is_empty().then_some(()));
    // The run keeps what it has taken when the daemon dies.
    life.kill();
    herd.open_gate();
    let (_life, _client) = herd.begin(&[]);
    fake.wait_for("the answer", |posts| {
        // The script takes the message as its prompt from then on.
        posts.iter().any(|post| post.text.ends_with(": second")).then_some(())
    });
    let jobs = telegram::jobs(&herd);
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    assert_eq!((&jobs[0].id, jobs[0].status), (&job, JobStatus::Completed));
    // Without a running job, a message is a job.
    let other = fake.say(telegram::ANN, "third");
    let record = wait_for("the record", || telegram::event(&herd, other));
    assert_eq!(record.outcome, "job", "{record:?}");
}
