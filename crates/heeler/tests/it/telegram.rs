//! Conversations on Telegram: messages become jobs, and answers are posted.

use heeler_model::{JobHead, JobStatus, TriggerType};
use heeler_store::InboxRecord;
use heeler_testkit::{FakeTelegram, TelegramFailure, TelegramPost};
use serde_json::{Value as Json, json};

use crate::daemon_kills::Herd;
use crate::trigger::wait_for;

/// The token of the bot, which nothing but the daemon may know.
pub(crate) const TOKEN: &str = "123456789:AAsecret-token_of-the-bot";

/// A person who may talk and answer.
pub(crate) const ANN: i64 = 42;

/// A person who may talk in the group only.
pub(crate) const BOB: i64 = 43;

/// A person whom the config does not name.
pub(crate) const EVE: i64 = 666;

/// A group.
pub(crate) const GROUP: i64 = -1001;

/// A fleet with one agent on Telegram, which executes these steps for each message.
pub(crate) fn herd(telegram: &FakeTelegram, steps: &str) -> Herd {
    herd_with(telegram, steps, "")
}

/// A fleet as `herd`, with further settings of its bot.
pub(crate) fn herd_with(telegram: &FakeTelegram, steps: &str, settings: &str) -> Herd {
    // A job that takes long would have a run card, which most tests do not expect.
    let quiet = match settings.contains("output:") {
        true => "",
        false => "output: {progress_indicator: false, typing_indicator: false, max_posts: 1000}",
    };
    let calm = match settings.contains("messages_per_minute") {
        true => "",
        false => "messages_per_minute: 100000",
    };
    let mut herd = Herd::of(&format!(
        "agents:
  - name: coder
    runtime: scripted
    script: [{steps}]
    chat:
      telegram:
        bot_token_env: BOT_TOKEN
        api_url: '{}'
        dm: {{allowlist: [{ANN}]}}
        chats: [{{id: {GROUP}, mode: mention}}]
        approvers: [{ANN}]
        {quiet}
        {calm}
        {settings}
",
        telegram.url()
    ));
    herd.env.push(("BOT_TOKEN", TOKEN.into()));
    herd
}

pub(crate) fn texts(posts: &[TelegramPost]) -> Vec<&str> {
    posts.iter().map(|post| post.text.as_str()).collect()
}

/// Waits until there are so many posts, and returns them.
#[track_caller]
pub(crate) fn wait_for_posts(telegram: &FakeTelegram, count: usize) -> Vec<TelegramPost> {
    telegram.wait_for("posts", |posts| (posts.len() >= count).then(|| posts.to_vec()))
}

pub(crate) fn event(herd: &Herd, update: i64) -> Option<InboxRecord> {
    herd.reader().inbox_event("telegram", "123456789", &update.to_string()).unwrap()
}

#[track_caller]
fn wait_for_event(herd: &Herd, update: i64) -> InboxRecord {
    wait_for("the record of an event", || event(herd, update))
}

/// Waits until nothing is left to be posted.
#[track_caller]
pub(crate) fn wait_until_posted(herd: &Herd) {
    wait_for("the results of all posts", || {
        let pending = herd.reader().pending_effects(99).unwrap();
        (!pending.iter().any(|it| it.kind.starts_with("chat_"))).then_some(())
    });
}

pub(crate) fn jobs(herd: &Herd) -> Vec<JobHead> {
    let mut jobs = herd.jobs();
    jobs.sort_by(|one, other| one.id.cmp(&other.id));
    jobs
}

#[test]
fn a_message_becomes_a_job_and_its_answer_is_posted() {
    let telegram = FakeTelegram::start(TOKEN);
    let herd = herd(&telegram, "{say: 'Turn {turn}: {prompt}, before {remembered}.'}");
    let (_life, _client) = herd.begin(&[]);
    let first = telegram.say(ANN, "fix the build");
    let posts = wait_for_posts(&telegram, 1);
    assert_eq!(posts[0].chat, ANN.to_string());
    let menu = telegram.commands();
    assert!(
        menu.contains(&"status".to_owned()) && !menu.contains(&"approve".to_owned()),
        "{menu:?}"
    );
    assert_eq!(posts[0].text, "Turn 1: fix the build, before nothing.");
    let record = wait_for_event(&herd, first);
    assert_eq!((record.outcome.as_str(), record.channel.as_str()), ("job", "telegram/42"));
    let job = herd.reader().job(record.job.as_ref().unwrap()).unwrap().unwrap();
    assert_eq!(job.head.trigger_type, TriggerType::Chat);
    assert_eq!(job.trigger_id, "telegram/42");

    // The conversation continues its session.
    telegram.say(ANN, "again");
    let posts = wait_for_posts(&telegram, 2);
    assert_eq!(posts[1].text, "Turn 2: again, before fix the build.");

    // The same delivery once more creates no job.
    let third = telegram.say(ANN, "once");
    wait_for_posts(&telegram, 3);
    telegram.wait_until_confirmed();
    let update = json!({"update_id": third, "message": {
        "message_id": 99, "chat": {"id": ANN, "type": "private"}, "text": "once",
        "from": {"id": ANN, "is_bot": false, "first_name": "Ann"},
    }});
    telegram.redeliver(update);
    telegram.wait_until_confirmed();
    let last = telegram.say(ANN, "last");
    wait_for_event(&herd, last);
    wait_for_posts(&telegram, 4);
    assert_eq!(jobs(&herd).len(), 4, "four messages have four jobs");
}

#[test]
fn only_people_on_the_lists_are_heard() {
    let telegram = FakeTelegram::start(TOKEN);
    let herd = herd_with(&telegram, "{say: 'ok: {prompt}'}", &format!("allow: [{ANN}, {BOB}]"));
    let (_life, _client) = herd.begin(&[]);
    let stranger = telegram.say(EVE, "give me the keys");
    let posts = wait_for_posts(&telegram, 1);
    assert!(posts[0].text.contains("666") && posts[0].text.contains("dm.allowlist"), "{posts:?}");
    let record = wait_for_event(&herd, stranger);
    assert_eq!((record.outcome.as_str(), record.job), ("refused", None));
    assert!(record.reason.unwrap().contains("666 is not in `chat.telegram.dm.allowlist`"));
    // A person of the group may not write directly.
    let direct = telegram.say(BOB, "hello");
    assert_eq!(wait_for_event(&herd, direct).outcome, "refused");
    wait_for_posts(&telegram, 2);
    // A stranger gets one answer a day, however often it writes.
    let again = telegram.say(EVE, "please");
    assert_eq!(wait_for_event(&herd, again).outcome, "refused");
    // Nor does a stranger get in by the group.
    let in_group = telegram.say_in_group(GROUP, EVE, "@heeler_bot do it");
    assert_eq!(wait_for_event(&herd, in_group).outcome, "refused");
    let unheard = telegram.say_in_group(GROUP, BOB, "just talking");
    let unlisted = telegram.say_in_group(-77, ANN, "@heeler_bot do it");
    for (update, reason) in [
        (unheard, "it does not mention the bot"),
        (unlisted, "no agent has the chat -77 in its config"),
    ] {
        let record = wait_for_event(&herd, update);
        assert_eq!((record.outcome.as_str(), record.reason.as_deref()), ("ignored", Some(reason)));
    }
    assert_eq!(jobs(&herd).len(), 0);
    // Speakers of a group are named, and the answer is a reply.
    let heard = telegram.say_in_group(GROUP, BOB, "@heeler_bot do it");
    let post = telegram.wait_for("the answer", |posts| {
        posts.iter().find(|post| post.text.starts_with("ok")).cloned()
    });
    assert_eq!((post.text.as_str(), post.chat.as_str()), ("ok: [User43] do it", "-1001"));
    assert!(post.reply_to.is_some());
    assert_eq!(wait_for_event(&herd, heard).outcome, "job");
    wait_until_posted(&herd);
    let to_eve = telegram.posts().into_iter().filter(|post| post.chat == "666").count();
    assert_eq!(to_eve, 1);
}

#[test]
fn words_are_commands() {
    let telegram = FakeTelegram::start(TOKEN);
    let mut herd = herd(&telegram, "{run: 'read line < gate'}, {say: 'done {remembered}'}");
    let (_life, _client) = herd.begin(&[]);
    telegram.say(ANN, "/start");
    assert!(wait_for_posts(&telegram, 1)[0].text.contains("/stop"));
    telegram.say(ANN, "/status");
    assert!(wait_for_posts(&telegram, 2)[1].text.contains("nothing to do"));
    telegram.say(ANN, "zero");
    herd.let_through(1);
    assert_eq!(wait_for_posts(&telegram, 3)[2].text, "done nothing");
    telegram.say(ANN, "one");
    wait_for("the job", || {
        jobs(&herd).iter().any(|job| job.status == JobStatus::Running).then_some(())
    });
    telegram.say(ANN, "two");
    wait_for("both jobs", || (jobs(&herd).len() == 3).then_some(()));
    telegram.say(ANN, "status");
    let status = telegram.wait_for("the status", |posts| Some(posts.get(3)?.text.clone()));
    assert!(status.contains("is working") && status.contains("Messages that wait: 1"), "{status}");
    telegram.say(ANN, "stop");
    telegram.wait_for("both ends", |posts| {
        (posts.iter().filter(|post| post.text == "Stopped.").count() == 2).then_some(())
    });
    assert!(texts(&telegram.posts()).contains(&"Stopping 2 jobs."));
    herd.open_gate();
    let said = telegram.posts().len();
    telegram.say(ANN, "three");
    let third = telegram.wait_for("the answer", |posts| Some(posts.get(said)?.text.clone()));
    assert!(third.contains("zero"), "the session continues: {third}");
    telegram.say(ANN, "/new");
    wait_for_posts(&telegram, said + 2);
    telegram.say(ANN, "four");
    let posts = wait_for_posts(&telegram, said + 3);
    assert_eq!(posts[said + 2].text, "done nothing", "a new session remembers nothing");
    telegram.say(ANN, "five");
    let posts = wait_for_posts(&telegram, said + 4);
    assert_eq!(posts[said + 3].text, "done four", "and continues");
}

#[test]
fn a_long_answer_is_posted_completely_and_in_order() {
    let telegram = FakeTelegram::start(TOKEN);
    let line = "0123456789 @everyone <b>&amp; ".repeat(3);
    let write = format!(
        "{{run: 'for n in $(seq 1 150); do echo \"$n {line}\"; done'}}, {{say: \"{{output}}\"}}"
    );
    let herd = herd(&telegram, &write);
    // The second part is refused twice for now, once executed although its answer was lost.
    let limited = TelegramFailure {
        method: "sendMessage",
        status: 429,
        description: "Too Many Requests: retry after 1",
        retry_after: Some(1),
        is_executed: false,
    };
    telegram.fail_next(limited.clone());
    telegram.fail_next(TelegramFailure { status: 502, retry_after: None, ..limited });
    let (_life, _client) = herd.begin(&[]);
    telegram.say(ANN, "count");
    let posts = telegram.wait_for("all parts", |posts| {
        posts.last().is_some_and(|post| post.text.contains("150 0123")).then(|| posts.to_vec())
    });
    assert!(posts.len() > 3, "{}", posts.len());
    let all = texts(&posts).join("\n").replace('\u{2060}', "");
    let numbers: Vec<&str> =
        all.lines().filter_map(|line| line.split(' ').next()).filter(|it| !it.is_empty()).collect();
    let expected: Vec<String> = (1..=150).map(|n| n.to_string()).collect();
    assert_eq!(numbers, expected);
    let calls = telegram.calls("sendMessage");
    assert!(calls[1].duration_since(calls[0]).as_millis() >= 1_000, "the limit is honoured");
}

#[test]
fn failures_are_posted_once_and_secrets_never() {
    let telegram = FakeTelegram::start(TOKEN);
    let steps = "{when: {prompt: leak}, do: [{say: 'the token is ${TOKEN_IN_SCRIPT}'}], else: [{run: 'env > env-of-agent'}, {error: invalid_request, message: broken}]}";
    let herd = herd_with(
        &telegram,
        &steps.replace("${TOKEN_IN_SCRIPT}", TOKEN),
        "output: {result_summary: true, progress_indicator: false, typing_indicator: false}",
    );
    let (_life, mut client) = herd.begin(&[]);
    telegram.say(ANN, "leak");
    let posts = wait_for_posts(&telegram, 1);
    assert!(posts[0].text.starts_with("the token is [secret]"), "{posts:?}");
    for n in 1..=3 {
        telegram.say(ANN, &format!("fail {n}"));
    }
    wait_for("four ends", || {
        (jobs(&herd).iter().filter(|job| job.status.is_final()).count() == 4).then_some(())
    });
    wait_until_posted(&herd);
    let posts = telegram.posts();
    assert_eq!(posts.len(), 2, "the same failure is posted once: {posts:#?}");
    assert!(posts[1].text.contains("The job failed:"), "{posts:?}");
    // The agent's own environment has no token.
    let env = herd.fleet.read("env-of-agent");
    assert!(!env.contains("AAsecret") && !env.contains("BOT_TOKEN"), "{env}");
    drop(client.send_command(&heeler_engine::DaemonCommand::Status, None));
    assert_no_token(herd.fleet.state_dir().as_std_path());
}

/// Asserts that no file below a folder contains the token.
fn assert_no_token(folder: &std::path::Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            assert_no_token(&path);
        } else if path.is_file() {
            let bytes = std::fs::read(&path).unwrap_or_default();
            let secret = b"AAsecret-token_of-the-bot";
            assert!(!bytes.windows(secret.len()).any(|it| it == secret), "{}", path.display());
        }
    }
}

fn link(herd: &Herd) -> Option<Json> {
    let output = herd.command("status").arg("--json").output().unwrap();
    let status: Json = serde_json::from_slice(&output.stdout).ok()?;
    status["chats"].get(0).cloned()
}

#[test]
fn the_status_tells_whether_the_bot_is_connected() {
    let telegram = FakeTelegram::start(TOKEN);
    let herd = herd(&telegram, "{say: hi}");
    let refused = TelegramFailure {
        method: "getUpdates",
        status: 409,
        description: "Conflict: terminated by other getUpdates request",
        retry_after: None,
        is_executed: false,
    };
    for _ in 0..3 {
        telegram.fail_next(refused.clone());
    }
    let (_life, _client) = herd.begin(&[]);
    let failed = wait_for("a failed link", || link(&herd).filter(|link| link["state"] == "failed"));
    assert!(failed["problem"].as_str().unwrap().contains("other getUpdates request"), "{failed}");
    assert_eq!(
        (&failed["platform"], &failed["account"]),
        (&json!("telegram"), &json!("123456789"))
    );
    telegram.say(ANN, "are you there?");
    assert_eq!(wait_for_posts(&telegram, 1)[0].text, "hi", "it recovers by itself");
    let connected =
        wait_for("a connected link", || link(&herd).filter(|link| link["state"] == "connected"));
    assert!(connected["lastEventAt"].is_string() && connected["problem"].is_null(), "{connected}");
    let output = herd.command("status").output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("telegram 123456789  connected since"), "{shown}");
    let output = herd.command("doctor").arg("chat").output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && shown.contains("Telegram: @heeler_bot for coder"),
        "{shown}"
    );
}

#[test]
fn a_token_that_cannot_work_is_reported_with_the_cure() {
    let telegram = FakeTelegram::start(TOKEN);
    let mut herd = herd(&telegram, "{say: hi}");
    herd.env.clear();
    let output = herd.command("doctor").arg("chat").output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success() && shown.contains("there is no BOT_TOKEN"), "{shown}");
    herd.env.push(("BOT_TOKEN", "123456789:another-token".into()));
    let (_life, _client) = herd.begin(&[]);
    let failed = wait_for("a failed link", || link(&herd).filter(|it| it["state"] == "failed"));
    let problem = failed["problem"].as_str().unwrap().to_owned();
    assert!(problem.contains("does not accept the token in BOT_TOKEN"), "{problem}");
    assert!(!problem.contains("another-token"), "{problem}");
}

#[test]
fn two_agents_share_one_bot() {
    let telegram = FakeTelegram::start(TOKEN);
    let agent = |name: &str| {
        format!(
            "  - {{name: {name}, runtime: scripted, script: [{{say: 'I am {name}: {{prompt}}'}}], \
             chat: {{telegram: {{bot_token_env: BOT_TOKEN, api_url: '{}', dm: {{allowlist: [{ANN}]}}, output: {{progress_indicator: false}}}}}}}}\n",
            telegram.url()
        )
    };
    let mut herd = Herd::of(&format!("agents:\n{}{}", agent("coder"), agent("writer")));
    herd.env.push(("BOT_TOKEN", TOKEN.into()));
    let (_life, _client) = herd.begin(&[]);
    telegram.say(ANN, "hello");
    assert!(wait_for_posts(&telegram, 1)[0].text.contains("coder, writer"));
    telegram.say(ANN, "writer: hello");
    assert_eq!(wait_for_posts(&telegram, 2)[1].text, "I am writer: hello");
    telegram.say(ANN, "Coder, hello");
    assert_eq!(wait_for_posts(&telegram, 3)[2].text, "I am coder: hello");
    assert_eq!(jobs(&herd).len(), 2);
}
