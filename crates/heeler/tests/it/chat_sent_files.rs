//! Files that agents send are posted to the conversation, within limits.

use heeler_testkit::FakeTelegram;

use crate::telegram::wait_until_posted;
use crate::trigger::wait_for;
use crate::{discord, slack, telegram};

/// An agent that sends a report, a large file, a file that it replaces by a link afterwards, files that it may
/// not send, another report of the same name, and a file in which it puts a secret afterwards.
const SENDER: &str = "{write: my report.md, text: all is well}, \
    {run: 'head -c 11000000 /dev/zero > large.bin; echo x > swapped.txt; echo x > leaky.txt; ln -s /etc/passwd link.txt'}, \
    {call: mcp__heeler-files__send_file, input: {file_path: my report.md}}, \
    {call: mcp__heeler-files__send_file, input: {file_path: large.bin}}, \
    {call: mcp__heeler-files__send_file, input: {file_path: swapped.txt}}, \
    {call: mcp__heeler-files__send_file, input: {file_path: link.txt}}, \
    {call: mcp__heeler-files__send_file, input: {file_path: /etc/passwd}}, \
    {call: mcp__heeler-files__send_file, input: {file_path: .env}}, \
    {run: 'for copy in .heeler/jobs/*/files/*swapped.txt; do ln -sf /etc/passwd \"$copy\"; done'}, \
    {call: mcp__heeler-files__send_file, input: {file_path: leaky.txt}}, \
    {run: 'printf \"all is lost\" > \"my report.md\"'}, \
    {call: mcp__heeler-files__send_file, input: {file_path: my report.md}}, \
    {run: 'printf heeler_%064d 0 > leak; touch -d tomorrow leak; mv -f leak .heeler/jobs/*/files/*leaky.txt'}, \
    {say: here they are}";

/// Checks the texts and files of the posts.
#[track_caller]
fn check(posts: &[(String, Option<String>)]) {
    assert_eq!(posts.len(), 5, "{posts:?}");
    assert_eq!(posts[0], ("here they are".to_owned(), None));
    assert!(posts[1].0.contains("my report.md") && posts[1].0.contains("job-"), "{posts:?}");
    assert!(posts[1].0.contains("(1 of 4)"), "{posts:?}");
    assert_eq!(posts[1].1.as_deref(), Some("all is well"));
    assert!(posts[2].0.contains("large.bin is not posted: it has more than 10 MB"), "{posts:?}");
    assert_eq!(posts[2].1, None);
    // On Slack, the post of the first report must not pass for this one. The last file has the latest time.
    assert!(posts[3].0.contains("my report.md") && posts[3].0.contains("(3 of 4)"), "{posts:?}");
    assert_eq!(posts[3].1.as_deref(), Some("all is lost"));
    assert!(posts[4].0.contains("leaky.txt is not posted: it holds a secret"), "{posts:?}");
    assert_eq!(posts[4].1, None);
    let all = format!("{posts:?}").replace("it holds a secret", "");
    assert!(!all.contains("root:") && !all.contains("secret") && !all.contains("heeler_"), "{all}");
}

#[test]
fn files_that_an_agent_sends_are_posted_on_telegram() {
    let fake = FakeTelegram::start(telegram::TOKEN);
    let herd = telegram::herd_with(&fake, SENDER, "");
    herd.fleet.write(".env", &format!("BOT_TOKEN={}\n", telegram::TOKEN));
    let (_life, _client) = herd.begin(&[]);
    fake.say(telegram::ANN, "go");
    telegram::wait_for_posts(&fake, 5);
    wait_until_posted(&herd);
    let posts: Vec<_> = fake.posts().into_iter().map(|it| (it.text, it.file)).collect();
    check(&posts);
}

#[test]
fn files_that_an_agent_sends_are_posted_once_on_discord() {
    let fake = discord::fake();
    let herd = discord::herd(&fake, SENDER);
    let (mut life, _client) = herd.begin(&[]);
    fake.wait_until_connected();
    life.kill();
    // The daemon dies after it posted the first file.
    let mut life = herd.start(&["--fault", "chat-posted:2"]);
    fake.wait_until_connected();
    fake.say(discord::ANN_DIRECT, discord::ANN, "go");
    wait_for("its death", || life.has_ended().then_some(()));
    let (_life, _client) = herd.begin(&[]);
    fake.wait_for("posts", |posts| (posts.len() >= 5).then_some(()));
    wait_until_posted(&herd);
    let posts = fake.posts().into_iter().map(|it| (it.text.replace('`', ""), it.file));
    check(&posts.collect::<Vec<_>>());
}

#[test]
fn files_that_an_agent_sends_are_posted_once_on_slack() {
    let fake = slack::fake();
    fake.set_scopes("chat:write,files:write");
    let herd = slack::herd(&fake, SENDER);
    let (mut life, _client) = herd.begin(&[]);
    fake.wait_for_sockets(1);
    life.kill();
    fake.wait_for_sockets(0);
    let mut life = herd.start(&["--fault", "chat-posted:2"]);
    fake.wait_for_sockets(1);
    let root = fake.say(slack::CHANNEL, slack::ANN, "<@UBOT> go");
    wait_for("its death", || life.has_ended().then_some(()));
    let (_life, _client) = herd.begin(&[]);
    slack::wait_for_posts(&fake, 5);
    wait_until_posted(&herd);
    let posts = fake.posts();
    assert!(posts.iter().all(|post| post.thread.as_ref() == Some(&root)), "{posts:?}");
    let posts = posts.into_iter().map(|it| (it.text.replace('`', ""), it.file));
    check(&posts.collect::<Vec<_>>());
}
