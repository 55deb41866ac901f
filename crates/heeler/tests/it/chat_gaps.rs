//! Messages that were written while no daemon ran, and daemons that die while they read them.

use std::time::Duration;

use heeler_testkit::{FakeDiscord, FakeSlack};

use crate::daemon_kills::Herd;
use crate::discord;
use crate::slack::{self, CHANNEL, wait_for_event};
use crate::trigger::wait_for;

/// Points at which a daemon dies that has found a gap.
const POINTS: [&str; 2] = ["gap-recorded", "gap-read"];

/// Age of the last message before the gap, and of the message in it, in seconds. Both are longer than
/// the time before the newest known message that is always read again.
const BEFORE: i64 = -7_200;
const WITHIN: i64 = -3_600;

/// Messages of a channel in the gap that need two pages.
const TWO_PAGES: usize = 130;

/// A fleet that has received a message two hours ago, and one an hour ago that no daemon has received.
/// Returns the ID of the latter.
fn gap_on_slack(slack: &FakeSlack) -> (Herd, String) {
    // Messages that are not received in this time are only in the history.
    slack.set_ack_time(Duration::from_millis(400));
    slack.set_time_shift(BEFORE);
    let herd = slack::herd(slack, "{say: 'heard {prompt}'}");
    let (mut life, _client) = herd.begin(&[]);
    slack.wait_for_sockets(1);
    let first = slack.say(slack::ANN_DIRECT, slack::ANN, "before");
    wait_for_event(&herd, slack::ANN_DIRECT, &first);
    life.kill();
    slack.set_time_shift(WITHIN);
    let missed = slack.say(slack::ANN_DIRECT, slack::ANN, "within");
    slack.wait_until_delivered();
    slack.set_time_shift(0);
    (herd, missed)
}

/// As `gap_on_slack`, on Discord.
fn gap_on_discord(discord: &FakeDiscord) -> (Herd, String) {
    discord.set_time_shift(BEFORE);
    let herd = discord::herd(discord, "{say: 'heard {prompt}'}");
    let (mut life, _client) = herd.begin(&[]);
    discord.wait_until_connected();
    let first = discord.say(discord::ANN_DIRECT, discord::ANN, "before");
    wait_for("the first record", || discord::event(&herd, discord::ANN_DIRECT, &first));
    life.kill();
    discord.forget_sessions();
    discord.set_time_shift(WITHIN);
    let missed = discord.say(discord::ANN_DIRECT, discord::ANN, "within");
    discord.set_time_shift(0);
    (herd, missed)
}

/// Waits until the gap was read, and checks that each message has one job.
#[track_caller]
fn check_jobs(herd: &Herd, (platform, account): (&str, &str), count: usize) {
    wait_for("the end of the gap", || {
        let marks = herd.reader().chat_gap_marks(platform, account).unwrap();
        marks.is_empty().then_some(())
    });
    assert_eq!(herd.jobs().len(), count, "each message has one job");
}

#[test]
fn a_killed_daemon_does_not_hide_the_gap_on_slack_that_it_was_reading() {
    let slack = slack::fake();
    let (herd, missed) = gap_on_slack(&slack);
    slack.set_failing(Some("conversations.history"));
    let (mut life, _client) = herd.begin(&[]);
    slack.wait_for_sockets(1);
    let live = slack.say(slack::ANN_DIRECT, slack::ANN, "after");
    assert_eq!(wait_for_event(&herd, slack::ANN_DIRECT, &live).outcome, "job");
    life.kill();
    assert_eq!(slack::event(&herd, slack::ANN_DIRECT, &missed), None);
    slack.set_failing(None);
    let (_life, _client) = herd.begin(&[]);
    assert_eq!(wait_for_event(&herd, slack::ANN_DIRECT, &missed).outcome, "job");
    check_jobs(&herd, ("slack", "A0TEST"), 3);
}

#[test]
fn a_killed_daemon_does_not_hide_the_gap_on_discord_that_it_was_reading() {
    let discord = discord::fake();
    let (herd, missed) = gap_on_discord(&discord);
    discord.set_failing(Some("GET /channels/71/messages"));
    let (mut life, _client) = herd.begin(&[]);
    discord.wait_until_connected();
    let live = discord.say(discord::ANN_DIRECT, discord::ANN, "after");
    wait_for("a record", || discord::event(&herd, discord::ANN_DIRECT, &live));
    life.kill();
    assert_eq!(discord::event(&herd, discord::ANN_DIRECT, &missed), None);
    discord.set_failing(None);
    let (_life, _client) = herd.begin(&[]);
    let missed =
        wait_for("a record", || discord::event(&herd, discord::ANN_DIRECT, &missed)).outcome;
    assert_eq!(missed, "job");
    check_jobs(&herd, ("discord", discord::BOT), 3);
}

#[test]
fn a_gap_is_read_once_wherever_the_daemon_dies() {
    for point in POINTS {
        let (slack, discord) = (slack::fake(), discord::fake());
        let (on_slack, missed_on_slack) = gap_on_slack(&slack);
        let (on_discord, missed_on_discord) = gap_on_discord(&discord);
        let mut lives = [&on_slack, &on_discord].map(|herd| herd.start(&["--fault", point]));
        for life in &mut lives {
            assert!(life.ended(), "it was killed at {point}");
        }
        let is_read = point == "gap-read";
        let on_record = slack::event(&on_slack, slack::ANN_DIRECT, &missed_on_slack);
        assert_eq!(on_record.is_some(), is_read, "{point}");
        let (_life, _client) = on_slack.begin(&[]);
        wait_for_event(&on_slack, slack::ANN_DIRECT, &missed_on_slack);
        check_jobs(&on_slack, ("slack", "A0TEST"), 2);
        let (_life, _client) = on_discord.begin(&[]);
        wait_for("a record", || {
            discord::event(&on_discord, discord::ANN_DIRECT, &missed_on_discord)
        });
        check_jobs(&on_discord, ("discord", discord::BOT), 2);
    }
}

#[test]
fn what_slack_has_shown_is_kept_and_the_rest_is_read_after_the_next_gap() {
    let slack = slack::fake();
    let (herd, _missed) = gap_on_slack(&slack);
    let mut written = vec![slack.say(CHANNEL, slack::BOB, "<@UBOT> the oldest")];
    written.extend((1..TWO_PAGES).map(|_| slack.say(CHANNEL, slack::BOB, "between people")));
    written.push(slack.say(CHANNEL, slack::BOB, "<@UBOT> the newest"));
    slack.wait_until_delivered();
    slack.refuse_later_pages(true);
    let (_life, _client) = herd.begin(&[]);
    let newest = wait_for_event(&herd, CHANNEL, written.last().unwrap());
    assert_eq!(newest.outcome, "job");
    assert_eq!(slack::event(&herd, CHANNEL, &written[0]), None);
    wait_for("the mark of the rest", || {
        let marks = herd.reader().chat_gap_marks("slack", "A0TEST").unwrap();
        let is_left = |chat: &str| marks.iter().any(|mark| mark.chat == chat);
        (is_left(CHANNEL) && !is_left(slack::ANN_DIRECT)).then_some(())
    });
    slack.refuse_later_pages(false);
    slack.abort_sockets();
    assert_eq!(wait_for_event(&herd, CHANNEL, &written[0]).outcome, "job");
    for ts in &written {
        wait_for_event(&herd, CHANNEL, ts);
    }
    check_jobs(&herd, ("slack", "A0TEST"), 4);
}
