//! Conversations on Discord: messages become jobs, and answers are posted.

use heeler_model::{ApprovalStatus, JobHead, JobStatus, TriggerType};
use heeler_store::{ApprovalFilter, InboxRecord};
use heeler_testkit::{DiscordFailure, DiscordPost, FakeDiscord};
use serde_json::{Value as Json, json};

use crate::daemon_kills::Herd;
use crate::telegram::wait_until_posted;
use crate::trigger::wait_for;

/// The token of the bot, which nothing but the daemon may know. It begins with the ID of the bot.
pub(crate) const TOKEN: &str = "OTAwMDAw.secret.of-the-bot";
pub(crate) const BOT: &str = "900000";

/// A person who may talk and answer, and the direct conversation with the bot.
pub(crate) const ANN: &str = "7001";
pub(crate) const ANN_DIRECT: &str = "71";

/// A person who may talk in the channel only.
pub(crate) const BOB: &str = "7002";

/// A person whom the config does not name.
const EVE: &str = "7666";

/// A channel.
pub(crate) const CHANNEL: &str = "500";

pub(crate) fn fake() -> FakeDiscord {
    FakeDiscord::start(TOKEN, BOT)
}

/// A fleet with one agent on Discord, which executes these steps for each message.
pub(crate) fn herd(discord: &FakeDiscord, steps: &str) -> Herd {
    // A job that takes long would have a run card, which most tests do not expect.
    herd_with(
        discord,
        steps,
        "output: {progress_indicator: false, typing_indicator: false, acknowledge_emoji: '', \
         max_posts: 1000}",
    )
}

/// A fleet as `herd`, with further settings of its bot.
pub(crate) fn herd_with(discord: &FakeDiscord, steps: &str, settings: &str) -> Herd {
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
      discord:
        api_url: '{}'
        dm: {{allowlist: ['{ANN}']}}
        guilds: [{{id: '1', channels: [{{id: '{CHANNEL}', mode: mention, context_messages: 0}}]}}]
        approvers: ['{ANN}']
        presence: {{activity_type: watching, activity_message: the build}}
        {calm}
        {settings}
",
        discord.url()
    ));
    herd.env.push(("DISCORD_BOT_TOKEN", TOKEN.into()));
    herd
}

#[track_caller]
fn wait_for_posts(discord: &FakeDiscord, count: usize) -> Vec<DiscordPost> {
    discord.wait_for("posts", |posts| (posts.len() >= count).then(|| posts.to_vec()))
}

pub(crate) fn event(herd: &Herd, channel: &str, id: &str) -> Option<InboxRecord> {
    record(herd, &format!("{channel}:{id:0>20}"))
}

fn record(herd: &Herd, id: &str) -> Option<InboxRecord> {
    herd.reader().inbox_event("discord", BOT, id).unwrap()
}

#[track_caller]
fn wait_for_event(herd: &Herd, channel: &str, id: &str) -> InboxRecord {
    wait_for("the record of an event", || event(herd, channel, id))
}

pub(crate) fn jobs(herd: &Herd) -> Vec<JobHead> {
    let mut jobs = herd.jobs();
    jobs.sort_by(|one, other| one.id.cmp(&other.id));
    jobs
}

fn link(herd: &Herd) -> Option<Json> {
    let output = herd.command("status").arg("--json").output().unwrap();
    let status: Json = serde_json::from_slice(&output.stdout).ok()?;
    status["chats"].get(0).cloned()
}

#[test]
fn a_message_on_discord_becomes_a_job_and_its_answer_is_posted() {
    let discord = fake();
    let herd = herd(&discord, "{say: 'Turn {turn}: {prompt}, before {remembered}.'}");
    let (_life, _client) = herd.begin(&[]);
    discord.wait_until_connected();
    let unheard = discord.say(CHANNEL, BOB, "just talking");
    assert_eq!(wait_for_event(&herd, CHANNEL, &unheard).outcome, "ignored");
    let first = discord.say(CHANNEL, BOB, "<@900000> fix it");
    let posts = wait_for_posts(&discord, 1);
    assert_eq!(posts[0].text, "Turn 1: [user7002] fix it, before nothing.");
    assert_eq!((posts[0].channel.as_str(), posts[0].reply_to.as_ref()), (CHANNEL, Some(&first)));
    let record = wait_for_event(&herd, CHANNEL, &first);
    assert_eq!((record.outcome.as_str(), record.channel.as_str()), ("job", "discord/500"));
    let job = herd.reader().job(record.job.as_ref().unwrap()).unwrap().unwrap();
    assert_eq!(job.head.trigger_type, TriggerType::Chat);
    // A thread of a listed channel is heard too, with a session of its own. In it, the agent that
    // takes part needs no mention.
    discord.add_thread("501", CHANNEL);
    discord.say("501", BOB, "<@900000> in a thread");
    discord.say("501", BOB, "go on");
    let posts = wait_for_posts(&discord, 3);
    assert_eq!(posts[1].text, "Turn 1: [user7002] in a thread, before nothing.");
    assert_eq!(posts[2].text, "Turn 2: [user7002] go on, before [user7002] in a thread.");
    assert!(posts[1..].iter().all(|post| post.channel == "501"), "{posts:?}");
    // Direct messages only from the list.
    discord.say(ANN_DIRECT, ANN, "hello");
    assert_eq!(wait_for_posts(&discord, 4)[3].text, "Turn 1: hello, before nothing.");
    let stranger = discord.say("72", EVE, "hello");
    assert_eq!(wait_for_event(&herd, "72", &stranger).outcome, "refused");
    let posts = wait_for_posts(&discord, 5);
    assert!(posts[4].text.contains(EVE) && posts[4].text.contains("dm.allowlist"), "{posts:?}");
    let bot = json!({"author": {"id": "8", "username": "other", "bot": true}});
    let bot = discord.write(CHANNEL, "8", "<@900000> hi", &bot);
    assert_eq!(wait_for_event(&herd, CHANNEL, &bot).outcome, "ignored");
    assert_eq!(jobs(&herd).len(), 4);
}

#[test]
fn a_lost_connection_is_resumed_and_a_lost_session_is_caught_up() {
    let discord = fake();
    let herd = herd(&discord, "{say: 'heard {prompt}'}");
    let (_life, _client) = herd.begin(&[]);
    discord.wait_until_connected();
    discord.say(ANN_DIRECT, ANN, "one");
    wait_for_posts(&discord, 1);
    assert_eq!(discord.session_counts(), (1, 0));
    discord.abort_sockets();
    discord.say(ANN_DIRECT, ANN, "two");
    wait_for_posts(&discord, 2);
    assert_eq!(discord.session_counts(), (1, 1), "the session was resumed");
    discord.wait_until_connected();
    discord.request_reconnect();
    wait_for("the next connection", || (discord.session_counts() == (1, 2)).then_some(()));
    // The gateway never delivers this message.
    discord.forget_sessions();
    let lost = discord.say(ANN_DIRECT, ANN, "three");
    let posts = wait_for_posts(&discord, 3);
    assert_eq!(posts[2].text, "heard three");
    assert_eq!(wait_for_event(&herd, ANN_DIRECT, &lost).outcome, "job");
    assert_eq!(discord.session_counts().0, 2);
    // A connection that is silent is given up after a heartbeat, and the state says so.
    discord.wait_until_connected();
    discord.set_frozen(true);
    let failed = wait_for("a failed link", || link(&herd).filter(|it| it["state"] == "failed"));
    assert!(failed["problem"].is_string(), "{failed}");
    discord.set_frozen(false);
    discord.say(ANN_DIRECT, ANN, "four");
    wait_for_posts(&discord, 4);
    wait_for("a connected link", || link(&herd).filter(|it| it["state"] == "connected"));
    assert_eq!(jobs(&herd).len(), 4, "each message has one job");
}

#[test]
fn limits_of_discord_are_kept_and_repeated_posts_are_recognized() {
    let discord = fake();
    let line = "0123456789 @everyone <@7666> ".repeat(3);
    let write = format!(
        "{{run: 'for n in $(seq 1 60); do echo \"$n {line}\"; done'}}, {{say: \"{{output}}\"}}"
    );
    let herd = herd(&discord, &write);
    let failure = DiscordFailure {
        call: "POST /channels/71/messages",
        status: 429,
        headers: vec![("retry-after", "1".to_owned())],
        body: json!({"message": "You are being rate limited.", "retry_after": 1.2, "global": false}),
        is_executed: false,
    };
    discord.fail_next(failure.clone());
    // A refusal of a proxy has only the header.
    discord.fail_next(DiscordFailure { body: Json::Null, ..failure.clone() });
    let lost = json!({"message": "bad gateway"});
    discord.fail_next(DiscordFailure { status: 502, body: lost, is_executed: true, ..failure });
    let (_life, _client) = herd.begin(&[]);
    discord.wait_until_connected();
    discord.say(ANN_DIRECT, ANN, "count");
    let posts = discord.wait_for("all parts", |posts| {
        posts.last().is_some_and(|post| post.text.contains("60 0123")).then(|| posts.to_vec())
    });
    assert!(posts.len() >= 3, "{}", posts.len());
    let all: Vec<&str> = posts.iter().flat_map(|post| post.text.lines()).collect();
    let numbers: Vec<&str> = all.iter().filter_map(|line| line.split(' ').next()).collect();
    let expected: Vec<String> = (1..=60).map(|n| n.to_string()).collect();
    assert_eq!(numbers, expected, "no part is missing, and none is there twice");
    let calls = discord.calls("POST /channels/71/messages");
    assert!(calls[1].duration_since(calls[0]).as_millis() >= 1_200, "the limit is honoured");
    assert!(calls[2].duration_since(calls[1]).as_millis() >= 1_000, "also without a body");
}

#[test]
fn a_permission_on_discord_counts_once_and_only_from_an_approver() {
    let discord = fake();
    let herd = herd(&discord, "{run: 'echo done > did', ask_permission: true}, {say: went on}");
    let (_life, _client) = herd.begin(&[]);
    discord.wait_until_connected();
    discord.say(CHANNEL, BOB, "<@900000> go");
    let question = discord.wait_for("a question", |posts| {
        posts.iter().find(|post| !post.buttons.is_empty()).cloned()
    });
    assert!(question.text.contains("echo done > did"), "{question:?}");
    let [allow, deny] = &question.buttons[..] else { panic!("{question:?}") };
    let outcome = |click: &str| {
        wait_for("the record of a click", || record(&herd, &format!("click:{click}")))
    };
    let by_talker = outcome(&discord.click(BOB, &question, allow));
    assert_eq!(by_talker.reason.as_deref(), Some("7002 is not an approver"));
    let forged = format!("{}x", &allow[..allow.len() - 1]);
    assert_eq!(outcome(&discord.click(ANN, &question, &forged)).outcome, "refused");
    assert!(!herd.fleet.file("did").exists());
    assert_eq!(outcome(&discord.click(ANN, &question, allow)).outcome, "answer");
    assert_eq!(outcome(&discord.click(ANN, &question, deny)).outcome, "refused");
    wait_for("the end of the job", || {
        (jobs(&herd)[0].status == JobStatus::Completed).then_some(())
    });
    assert!(herd.fleet.file("did").exists());
    let all = herd.reader().approvals(&ApprovalFilter::default(), None, 99).unwrap();
    assert_eq!(all[0].status, ApprovalStatus::Approved);
    assert_eq!(all[0].responded_by.as_deref(), Some("user7001 (discord 7001)"));
    wait_until_posted(&herd);
    let posts = discord.posts();
    let closed = posts.iter().find(|post| post.id == question.id).unwrap();
    assert!(closed.is_edited && closed.buttons.is_empty(), "{closed:?}");
    assert!(closed.text.contains("Allowed by user7001"), "{closed:?}");
    wait_for("the answer to the click", || {
        let answers = discord.click_answers();
        answers.iter().any(|text| text.contains("Your ID is 7002")).then_some(())
    });
}

#[test]
fn a_bot_that_cannot_work_is_reported_with_the_cure() {
    let discord = fake();
    let mut herd = herd(&discord, "{say: hi}");
    discord.refuse_sessions(Some(4014));
    let (mut life, _client) = herd.begin(&[]);
    let failed = wait_for("a failed link", || link(&herd).filter(|it| it["state"] == "failed"));
    assert!(failed["problem"].as_str().unwrap().contains("Message Content Intent"), "{failed}");
    life.kill();
    let output = herd.command("doctor").arg("chat").output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && shown.contains("Discord: @heeler for coder"), "{shown}");
    herd.env.clear();
    herd.env.push(("DISCORD_BOT_TOKEN", "no token".into()));
    let output = herd.command("doctor").arg("chat").output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("DISCORD_BOT_TOKEN has not the form of a bot token"), "{shown}");
}

/// Points at which a daemon dies while it has messages to record and answers to post.
const POINTS: [&str; 6] =
    ["chat-received", "before-commit", "after-commit", "chat-recorded", "run-ended", "chat-posted"];

#[test]
fn a_message_on_discord_has_one_job_and_one_answer_wherever_the_daemon_dies() {
    for point in POINTS {
        let discord = fake();
        let herd = herd(&discord, "{say: 'heard {prompt}'}");
        let (mut life, _client) = herd.begin(&[]);
        discord.wait_until_connected();
        let mut messages = vec![(discord.say(ANN_DIRECT, ANN, "first"), "first".to_owned())];
        wait_for_event(&herd, ANN_DIRECT, &messages[0].0);
        life.kill();
        for nth in 1..=2 {
            let mut life = herd.start(&["--fault", &format!("{point}:{nth}")]);
            let text = format!("{point} {nth}");
            messages.push((discord.say(ANN_DIRECT, ANN, &text), text));
            wait_for("a death or an answer", || {
                let is_done = messages.iter().all(|it| event(&herd, ANN_DIRECT, &it.0).is_some())
                    && herd.reader().pending_effects(9).unwrap().is_empty()
                    && jobs(&herd).iter().all(|job| job.status.is_final());
                (life.has_ended() || is_done).then_some(())
            });
            life.kill();
        }
        let (_life, _client) = herd.begin(&[]);
        wait_for("the ends of all jobs", || {
            let jobs = jobs(&herd);
            let is_done =
                jobs.len() >= messages.len() && jobs.iter().all(|it| it.status.is_final());
            is_done.then_some(())
        });
        wait_until_posted(&herd);
        assert_eq!(jobs(&herd).len(), messages.len(), "{point}: one job for each message");
        let posts = discord.posts();
        for (_, text) in &messages {
            let answer = format!("heard {text}");
            assert_eq!(
                posts.iter().filter(|it| it.text == answer).count(),
                1,
                "{point}: {posts:#?}"
            );
        }
    }
}

#[test]
fn commands_are_registered_once_and_answered_for_their_user_only() {
    let discord = fake();
    let settings =
        "output: {progress_indicator: false, typing_indicator: false, acknowledge_emoji: ''}
        operators: ['7001']
        command_registration: {scope: guild, guild_id: '1'}
        skills: [{name: review, description: Reviews a change}]";
    let herd = herd_with(&discord, "{say: 'Turn {turn}: {prompt}'}", settings);
    let (mut life, _client) = herd.begin(&[]);
    discord.wait_until_connected();
    let registered = wait_for("the commands", || {
        let commands = discord.commands("guilds/1");
        (!commands.is_empty()).then_some(commands)
    });
    let mut names: Vec<&str> = registered.iter().map(|it| it["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    let expected = [
        "agents", "approve", "deny", "help", "jobs", "new", "retry", "session", "skill", "status",
        "stop", "usage",
    ];
    assert_eq!(names, expected);
    let skill = registered.iter().find(|it| it["name"] == "skill").unwrap();
    assert_eq!(skill["options"][0]["choices"][0]["value"], "review", "{skill}");

    discord.command(CHANNEL, BOB, "status", &[]);
    let answers = discord.wait_for_answers(1);
    assert_eq!(answers[0], "coder has nothing to do in this conversation.");
    let used = discord.command(CHANNEL, BOB, "skill", &[("name", "review"), ("input", "src")]);
    assert_eq!(discord.wait_for_answers(2)[1], "I begin with `/review src`.");
    assert_eq!(wait_for_posts(&discord, 1)[0].text, "Turn 1: [user7002] /review src");
    let taken = wait_for("the record", || record(&herd, &format!("command:{used}")));
    assert_eq!(taken.outcome, "job");
    // Only operators may begin a new session, and a list of commands cannot be left by writing.
    discord.command(CHANNEL, BOB, "new", &[]);
    let answers = discord.wait_for_answers(3);
    assert_eq!(answers[2], "You may not do that here. Your ID is 7002.");
    discord.command(CHANNEL, ANN, "new", &[]);
    assert_eq!(discord.wait_for_answers(4)[3], "The next message begins a new session.");
    discord.command("72", EVE, "stop", &[]);
    assert!(discord.wait_for_answers(5)[4].contains("dm.allowlist"));
    discord.command(CHANNEL, BOB, "skill", &[("name", "erase"), ("input", "all")]);
    assert!(discord.wait_for_answers(6)[5].contains("`/status`"), "an unknown skill is no work");
    assert_eq!((discord.posts().len(), jobs(&herd).len()), (1, 1));

    // The next daemon finds them registered.
    life.kill();
    let (_life, _client) = herd.begin(&[]);
    discord.wait_until_connected();
    let reads = "GET /applications/900000/guilds/1/commands";
    wait_for("the second look", || (discord.calls(reads).len() == 2).then_some(()));
    assert_eq!(discord.calls("PUT /applications/").len(), 1);
}
