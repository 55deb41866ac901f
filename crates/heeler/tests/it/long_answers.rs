//! Long answers in chats: their beginning, and a file.

use heeler_testkit::FakeTelegram;

use crate::telegram::wait_until_posted;
use crate::{discord, slack, telegram};

const OUTPUT: &str = "output: {progress_indicator: false, max_posts: 2}";

/// Lines of a long answer. No line of it ends a part of a form.
const LINE: &str = "0123456789 @everyone --heeler-part-00000000 ";

/// Returns the steps of an agent that answers with so many lines, and its answer.
fn long_answer(lines: usize) -> (String, String) {
    let text = vec![LINE.trim_end(); lines].join("\n\n");
    (format!("{{say: {}}}", serde_json::to_string(&text).unwrap()), text)
}

#[test]
fn a_long_answer_on_telegram_is_posted_as_its_beginning_and_a_file() {
    let fake = FakeTelegram::start(telegram::TOKEN);
    let (steps, answer) = long_answer(600);
    let herd = telegram::herd_with(&fake, &steps, OUTPUT);
    let (_life, _client) = herd.begin(&[]);
    fake.say(telegram::ANN, "go");
    let posts = telegram::wait_for_posts(&fake, 2);
    wait_until_posted(&herd);
    assert_eq!(fake.posts().len(), 2, "{posts:?}");
    assert!(posts[0].text.starts_with("0123456789") && posts[0].file.is_none(), "{posts:?}");
    assert_eq!(posts[1].text, "The whole answer:");
    assert_eq!(posts[1].file.as_deref(), Some(answer.as_str()));
}

#[test]
fn a_long_answer_on_discord_is_posted_as_its_beginning_and_a_file() {
    let fake = discord::fake();
    let (steps, answer) = long_answer(300);
    let herd = discord::herd_with(&fake, &steps, OUTPUT);
    let (_life, _client) = herd.begin(&[]);
    fake.wait_until_connected();
    fake.say(discord::ANN_DIRECT, discord::ANN, "go");
    let posts = fake.wait_for("posts", |posts| (posts.len() >= 2).then(|| posts.to_vec()));
    wait_until_posted(&herd);
    assert_eq!(fake.posts().len(), 2, "{posts:?}");
    assert!(posts[0].text.starts_with("0123456789") && posts[0].file.is_none(), "{posts:?}");
    assert_eq!(posts[1].file.as_deref(), Some(answer.as_str()));
}

#[test]
fn a_long_answer_on_slack_is_a_file_if_the_app_may_post_files_and_text_otherwise() {
    let fake = slack::fake();
    let (steps, answer) = long_answer(600);
    let herd = slack::herd_with(&fake, &steps, OUTPUT);
    let (mut life, _client) = herd.begin(&[]);
    fake.wait_for_sockets(1);
    // The app lacks `files:write`: the answer is complete all the same.
    fake.say(slack::ANN_DIRECT, slack::ANN, "go");
    slack::wait_for_posts(&fake, 2);
    wait_until_posted(&herd);
    let posts = fake.posts();
    assert!(posts.iter().all(|post| post.file.is_none()), "{posts:?}");
    let lines: usize = posts[1..].iter().map(|post| post.text.matches("0123456789").count()).sum();
    assert_eq!(lines, 600, "the whole answer follows its beginning");

    fake.set_scopes("chat:write,files:write");
    let first = posts.len();
    // A daemon that dies after it posted the file does not post it again.
    life.kill();
    fake.wait_for_sockets(0);
    let mut life = herd.start(&["--fault", "chat-posted:2"]);
    fake.wait_for_sockets(1);
    fake.say(slack::ANN_DIRECT, slack::ANN, "again");
    crate::trigger::wait_for("its death", || life.has_ended().then_some(()));
    let (_life, _client) = herd.begin(&[]);
    wait_until_posted(&herd);
    let posts = fake.posts();
    let files: Vec<&str> = posts[first..].iter().filter_map(|post| post.file.as_deref()).collect();
    assert_eq!(files, [answer.as_str()], "{posts:?}");
    assert_eq!(posts.len(), first + 2, "{posts:?}");
}

#[test]
fn a_table_has_aligned_columns_and_a_wide_one_is_a_file_too() {
    let fake = discord::fake();
    let table = |cell: &str| format!("| a | b |\n|---|---|\n| {cell} | x |");
    let wide = table(&"w".repeat(120));
    let answer = format!("Small:\n\n{}\n\nWide:\n\n{wide}", table("cell"));
    let steps = format!("{{say: {}}}", serde_json::to_string(&answer).unwrap());
    let herd = discord::herd(&fake, &steps);
    let (_life, _client) = herd.begin(&[]);
    fake.wait_until_connected();
    fake.say(discord::ANN_DIRECT, discord::ANN, "go");
    let posts = fake.wait_for("posts", |posts| (posts.len() >= 2).then(|| posts.to_vec()));
    let expected = "```\na    | b\n-----+--\ncell | x\n```";
    assert!(posts[0].text.contains(expected) && posts[0].text.contains(&wide), "{posts:?}");
    assert_eq!(posts[1].file.as_deref(), Some(answer.as_str()));
}
