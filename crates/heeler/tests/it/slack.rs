//! Conversations on Slack: messages become jobs, and answers are posted in their threads.

use std::time::Duration;

use heeler_model::{JobHead, JobStatus, TriggerType};
use heeler_store::InboxRecord;
use heeler_testkit::{FakeSlack, SlackFailure, SlackPost};
use serde_json::{Value as Json, json};

use crate::daemon_kills::Herd;
use crate::trigger::wait_for;

/// The tokens of the app, which nothing but the daemon may know.
pub(crate) const BOT_TOKEN: &str = "xoxb-111-222-secretofthebot";
pub(crate) const APP_TOKEN: &str = "xapp-1-A0TEST-333-secretoftheapp";

/// A person who may talk and answer, and the direct conversation with the app.
pub(crate) const ANN: &str = "UANN";
pub(crate) const ANN_DIRECT: &str = "DANN";

/// A person who may talk in the channel only.
pub(crate) const BOB: &str = "UBOB";

/// A person whom the config does not name.
pub(crate) const EVE: &str = "UEVE";

/// A channel.
pub(crate) const CHANNEL: &str = "C0001";

pub(crate) fn fake() -> FakeSlack {
    FakeSlack::start(BOT_TOKEN, APP_TOKEN)
}

/// A fleet with one agent on Slack, which executes these steps for each message.
pub(crate) fn herd(slack: &FakeSlack, steps: &str) -> Herd {
    herd_with(slack, steps, "")
}

/// A fleet as `herd`, with further settings of its app.
pub(crate) fn herd_with(slack: &FakeSlack, steps: &str, settings: &str) -> Herd {
    // A job that takes long would have a run card, which most tests do not expect.
    let quiet = match settings.contains("output:") {
        true => "",
        false => "output: {progress_indicator: false, max_posts: 1000}",
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
      slack:
        api_url: '{}'
        dm: {{allowlist: [{ANN}]}}
        channels: [{{id: {CHANNEL}, mode: mention, context_messages: 0}}]
        approvers: [{ANN}]
        {quiet}
        {calm}
        {settings}
",
        slack.url()
    ));
    herd.env.push(("SLACK_BOT_TOKEN", BOT_TOKEN.into()));
    herd.env.push(("SLACK_APP_TOKEN", APP_TOKEN.into()));
    herd
}

/// Waits until there are so many posts, and returns them.
#[track_caller]
pub(crate) fn wait_for_posts(slack: &FakeSlack, count: usize) -> Vec<SlackPost> {
    slack.wait_for("posts", |posts| (posts.len() >= count).then(|| posts.to_vec()))
}

pub(crate) fn event(herd: &Herd, channel: &str, ts: &str) -> Option<InboxRecord> {
    record(herd, &format!("{channel}:{ts}"))
}

/// Returns the record of an event, such as `click:TRIGGER`.
pub(crate) fn record(herd: &Herd, id: &str) -> Option<InboxRecord> {
    herd.reader().inbox_event("slack", "A0TEST", id).unwrap()
}

#[track_caller]
pub(crate) fn wait_for_event(herd: &Herd, channel: &str, ts: &str) -> InboxRecord {
    wait_for("the record of an event", || event(herd, channel, ts))
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
fn a_mention_begins_a_thread_and_replies_continue_it() {
    let slack = fake();
    let herd = herd(&slack, "{say: 'Turn {turn}: {prompt}, before {remembered}.'}");
    let (_life, _client) = herd.begin(&[]);
    slack.wait_for_sockets(1);
    let unheard = slack.say(CHANNEL, BOB, "just talking");
    assert_eq!(wait_for_event(&herd, CHANNEL, &unheard).outcome, "ignored");
    let first = slack.say(CHANNEL, BOB, "<@UBOT> fix &lt;the&gt; build");
    let posts = wait_for_posts(&slack, 1);
    assert_eq!(posts[0].text, "Turn 1: [Name of UBOB] fix <the> build, before nothing.");
    assert_eq!((posts[0].channel.as_str(), posts[0].thread.as_ref()), (CHANNEL, Some(&first)));
    let record = wait_for_event(&herd, CHANNEL, &first);
    let channel = format!("slack/{CHANNEL}/{first}");
    assert_eq!((record.outcome.as_str(), record.channel.as_str()), ("job", channel.as_str()));
    let job = herd.reader().job(record.job.as_ref().unwrap()).unwrap().unwrap();
    assert_eq!((job.head.trigger_type, job.trigger_id.as_str()), (TriggerType::Chat, &*channel));

    // In the thread, no mention is needed, and the session continues.
    slack.reply(CHANNEL, &first, ANN, "again");
    let posts = wait_for_posts(&slack, 2);
    assert_eq!(
        posts[1].text,
        "Turn 2: [Name of UANN] again, before [Name of UBOB] fix <the> build."
    );
    // Another thread has a session of its own.
    slack.say(CHANNEL, ANN, "<@UBOT> else");
    let posts = wait_for_posts(&slack, 3);
    assert_eq!(posts[2].text, "Turn 1: [Name of UANN] else, before nothing.");
    // A thread in which the agent has no part needs a mention.
    let foreign = slack.reply(CHANNEL, &unheard, BOB, "what about this?");
    assert_eq!(wait_for_event(&herd, CHANNEL, &foreign).outcome, "ignored");
    // Deliveries that are repeated create no job, and a mention is delivered twice in any case.
    slack.redeliver(&first);
    slack.wait_until_delivered();
    let direct = slack.say(ANN_DIRECT, ANN, "hello");
    let posts = wait_for_posts(&slack, 4);
    assert_eq!(posts[3].text, "Turn 1: hello, before nothing.");
    assert_eq!((posts[3].channel.as_str(), posts[3].thread.as_ref()), (ANN_DIRECT, None));
    assert_eq!(wait_for_event(&herd, ANN_DIRECT, &direct).outcome, "job");
    assert_eq!(jobs(&herd).len(), 4, "four messages have four jobs");
}

#[test]
fn only_people_on_the_lists_are_heard() {
    let slack = fake();
    let herd = herd_with(&slack, "{say: 'ok: {prompt}'}", &format!("allow: [{ANN}, {BOB}]"));
    let (_life, _client) = herd.begin(&[]);
    slack.wait_for_sockets(1);
    let stranger = slack.say("DEVE", EVE, "give me the keys");
    let posts = wait_for_posts(&slack, 1);
    assert!(posts[0].text.contains(EVE) && posts[0].text.contains("dm.allowlist"), "{posts:?}");
    let record = wait_for_event(&herd, "DEVE", &stranger);
    assert_eq!((record.outcome.as_str(), record.job), ("refused", None));
    // A person of the channel may not write directly.
    let direct = slack.say("DBOB", BOB, "hello");
    assert_eq!(wait_for_event(&herd, "DBOB", &direct).outcome, "refused");
    // A stranger does not get in by the channel.
    let in_channel = slack.say(CHANNEL, EVE, "<@UBOT> do it");
    assert_eq!(wait_for_event(&herd, CHANNEL, &in_channel).outcome, "refused");
    let unlisted = slack.say("C0009", ANN, "<@UBOT> do it");
    let record = wait_for_event(&herd, "C0009", &unlisted);
    assert_eq!(record.reason.as_deref(), Some("no agent has the chat C0009 in its config"));
    // People who join, edits, and other bots are not heard.
    slack.write(CHANNEL, BOB, "joined", &json!({"subtype": "channel_join"}));
    let bot = slack.write(CHANNEL, "UOTHER", "<@UBOT> hi", &json!({"bot_id": "B9"}));
    assert_eq!(wait_for_event(&herd, CHANNEL, &bot).reason.as_deref(), Some("its sender is a bot"));
    assert_eq!(jobs(&herd).len(), 0);
    let heard = slack.say(CHANNEL, BOB, "<@UBOT> do it");
    slack.wait_for("the answer", |posts| {
        posts.iter().any(|post| post.text == "ok: [Name of UBOB] do it").then_some(())
    });
    assert_eq!(wait_for_event(&herd, CHANNEL, &heard).outcome, "job");
}

#[test]
fn a_long_answer_is_posted_once_completely_and_in_order() {
    let slack = fake();
    let line = "0123456789 <!channel> <@UEVE> & ".repeat(3);
    let write = format!(
        "{{run: 'for n in $(seq 1 150); do echo \"$n {line}\"; done'}}, {{say: \"{{output}}\"}}"
    );
    let herd = herd(&slack, &write);
    // One post is limited; another is made although its answer is lost.
    let limited = SlackFailure {
        method: "chat.postMessage",
        status: 429,
        error: "ratelimited",
        retry_after: Some(1),
        is_executed: false,
    };
    slack.fail_next(limited.clone());
    slack.fail_next(SlackFailure { status: 502, is_executed: true, ..limited });
    let (_life, _client) = herd.begin(&[]);
    slack.wait_for_sockets(1);
    slack.say(ANN_DIRECT, ANN, "count");
    let posts = slack.wait_for("all parts", |posts| {
        posts.last().is_some_and(|post| post.text.contains("150 0123")).then(|| posts.to_vec())
    });
    assert!(posts.len() > 3, "{}", posts.len());
    let all: Vec<&str> = posts.iter().flat_map(|post| post.text.lines()).collect();
    let numbers: Vec<&str> =
        all.iter().filter_map(|line| line.split(' ').next()).filter(|it| !it.is_empty()).collect();
    let expected: Vec<String> = (1..=150).map(|n| n.to_string()).collect();
    assert_eq!(numbers, expected, "no part is missing, and none is there twice");
    assert!(posts.iter().all(|post| !post.raw.contains("<!channel>") && !post.raw.contains("<@")));
    let calls = slack.calls("chat.postMessage");
    assert!(calls[1].duration_since(calls[0]).as_millis() >= 1_000, "the limit is honoured");
}

#[test]
fn a_socket_is_replaced_before_slack_closes_it() {
    let slack = fake();
    let herd = herd(&slack, "{say: 'heard {prompt}'}");
    let (_life, _client) = herd.begin(&[]);
    slack.wait_for_sockets(1);
    slack.announce_disconnect("refresh_requested");
    slack.wait_for_sockets(1);
    assert_eq!(slack.socket_count(), 2, "the old socket is still served");
    for n in 0..4 {
        slack.say(ANN_DIRECT, ANN, &n.to_string());
    }
    wait_for_posts(&slack, 4);
    slack.close_leaving();
    wait_for("one socket", || (slack.socket_count() == 1).then_some(()));
    slack.say(ANN_DIRECT, ANN, "after");
    wait_for_posts(&slack, 5);
    // A lost acknowledgement, and messages while no socket exists.
    slack.set_ack_time(Duration::from_millis(500));
    slack.lose_acks(1);
    slack.say(ANN_DIRECT, ANN, "twice");
    wait_for_posts(&slack, 6);
    slack.wait_until_delivered();
    for _ in 0..4 {
        slack.fail_next(SlackFailure {
            method: "apps.connections.open",
            status: 500,
            error: "internal_error",
            retry_after: None,
            is_executed: false,
        });
    }
    slack.abort_sockets();
    let failed = wait_for("a failed link", || link(&herd).filter(|it| it["state"] == "failed"));
    assert!(failed["problem"].is_string(), "{failed}");
    let missed = slack.say(ANN_DIRECT, ANN, "in the gap");
    let root = slack.say(CHANNEL, BOB, "<@UBOT> a thread in the gap");
    slack.wait_until_delivered();
    let posts = wait_for_posts(&slack, 8);
    assert!(posts.iter().any(|post| post.text == "heard in the gap"), "{posts:?}");
    assert_eq!(wait_for_event(&herd, ANN_DIRECT, &missed).outcome, "job");
    assert_eq!(wait_for_event(&herd, CHANNEL, &root).outcome, "job");
    wait_for("a connected link", || link(&herd).filter(|it| it["state"] == "connected"));
    assert_eq!(jobs(&herd).len(), 8, "each message has one job");
}

#[test]
fn doctor_asks_for_the_scope_of_files_if_an_agent_takes_some() {
    let slack = fake();
    slack.set_scopes(
        "app_mentions:read,chat:write,im:history,channels:history,groups:history,users:read",
    );
    let shown = |settings: &str| {
        let output =
            herd_with(&slack, "{say: hi}", settings).command("doctor").arg("chat").output();
        String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
    };
    assert!(!shown("").contains("lacks the scopes"));
    let shown = shown("attachments: {enabled: true}");
    assert!(shown.contains("lacks the scopes files:read: add them"), "{shown}");
}

#[test]
fn tokens_and_settings_that_cannot_work_are_reported_with_the_cure() {
    let slack = fake();
    let mut herd = herd(&slack, "{say: hi}");
    let doctor = |herd: &Herd| {
        let output = herd.command("doctor").arg("chat").output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (is_well, shown) = doctor(&herd);
    assert!(is_well && shown.contains("Slack: @heeler in Acme for coder"), "{shown}");
    herd.env.retain(|(name, _)| *name != "SLACK_APP_TOKEN");
    let (is_well, shown) = doctor(&herd);
    assert!(!is_well && shown.contains("there is no SLACK_APP_TOKEN"), "{shown}");
    herd.env.push(("SLACK_APP_TOKEN", BOT_TOKEN.into()));
    let (is_well, shown) = doctor(&herd);
    assert!(!is_well && shown.contains("xapp-1-A012ABC-3-abc"), "{shown}");
    herd.env.pop();
    herd.env.push(("SLACK_APP_TOKEN", "xapp-1-A0TEST-333-another".into()));
    let (_life, _client) = herd.begin(&[]);
    let failed = wait_for("a failed link", || link(&herd).filter(|it| it["state"] == "failed"));
    let problem = failed["problem"].as_str().unwrap().to_owned();
    assert!(problem.contains("does not accept the token in SLACK_APP_TOKEN"), "{problem}");
    assert!(!problem.contains("another"), "{problem}");
}

#[test]
fn two_agents_share_one_app() {
    let slack = fake();
    let agent = |name: &str| {
        format!(
            "  - {{name: {name}, runtime: scripted, script: [{{say: 'I am {name}: {{prompt}}'}}], \
             chat: {{slack: {{api_url: '{}', channels: [{{id: {CHANNEL}, context_messages: 0}}], output: {{progress_indicator: false}}}}}}}}\n",
            slack.url()
        )
    };
    let mut herd = Herd::of(&format!("agents:\n{}{}", agent("coder"), agent("writer")));
    herd.env.push(("SLACK_BOT_TOKEN", BOT_TOKEN.into()));
    herd.env.push(("SLACK_APP_TOKEN", APP_TOKEN.into()));
    let (_life, _client) = herd.begin(&[]);
    slack.wait_for_sockets(1);
    slack.say(CHANNEL, ANN, "<@UBOT> hello");
    assert!(wait_for_posts(&slack, 1)[0].text.contains("coder, writer"));
    let root = slack.say(CHANNEL, ANN, "<@UBOT> writer: hello");
    assert_eq!(wait_for_posts(&slack, 2)[1].text, "I am writer: [Name of UANN] hello");
    slack.reply(CHANNEL, &root, ANN, "and now?");
    assert_eq!(wait_for_posts(&slack, 3)[2].text, "I am writer: [Name of UANN] and now?");
    assert_eq!(jobs(&herd).len(), 2);
    assert_eq!(slack.socket_count(), 1, "one app has one socket, whatever number of agents");
}

#[test]
fn further_words_are_commands() {
    let slack = fake();
    let mut herd = herd(&slack, "{run: 'read line < gate'}, {say: 'done {prompt}'}");
    let (_life, _client) = herd.begin(&[]);
    slack.wait_for_sockets(1);
    let ask = |text: &str, count: usize| {
        slack.say(ANN_DIRECT, ANN, text);
        wait_for_posts(&slack, count)[count - 1].text.clone()
    };
    assert!(ask("!help", 1).contains("/approve ID"));
    assert_eq!(ask("!retry", 2), "There is nothing to retry.");
    assert_eq!(ask("!session", 3), "This conversation has no session yet.");
    assert!(ask("!agents", 4).contains("Agents that answer here: coder."));
    herd.open_gate();
    assert_eq!(ask("one", 5), "done one");
    assert_eq!(ask("!retry", 6), "done one", "the last message is done again");
    let shown = ask("!jobs", 7);
    assert_eq!(shown.lines().filter(|line| line.contains("completed")).count(), 2, "{shown}");
    assert!(ask("!usage", 8).starts_with("2 jobs of this conversation cost $"));
    assert!(ask("!session", 9).contains("heeler session show sess-"));
    assert_eq!(ask("!approve ask-1", 10), "No such question was asked in this conversation.");
    assert_eq!(jobs(&herd).len(), 2, "commands have no jobs");
}

#[test]
fn a_question_is_answered_by_a_command_of_an_approver() {
    let slack = fake();
    let herd = herd(&slack, "{run: 'echo done > did', ask_permission: true}, {say: went on}");
    let (_life, _client) = herd.begin(&[]);
    slack.wait_for_sockets(1);
    let root = slack.say(CHANNEL, BOB, "<@UBOT> go");
    let question = slack.wait_for("a question", |posts| {
        posts.iter().find(|post| !post.buttons.is_empty()).cloned()
    });
    let id = question.buttons[0].split(':').nth(1).unwrap().to_owned();
    let by_talker = slack.reply(CHANNEL, &root, BOB, &format!("!approve {id}"));
    assert_eq!(wait_for_event(&herd, CHANNEL, &by_talker).outcome, "refused");
    // Elsewhere, the question was not shown.
    let elsewhere = slack.say(ANN_DIRECT, ANN, &format!("!approve {id}"));
    assert_eq!(wait_for_event(&herd, ANN_DIRECT, &elsewhere).outcome, "refused");
    assert!(!herd.fleet.file("did").exists());
    let by_approver = slack.reply(CHANNEL, &root, ANN, &format!("!approve {id}"));
    assert_eq!(wait_for_event(&herd, CHANNEL, &by_approver).outcome, "answer");
    slack.wait_for("the answer", |posts| {
        posts.iter().any(|post| post.text == "went on").then_some(())
    });
    assert!(herd.fleet.file("did").exists());
}

#[test]
fn a_message_may_interrupt_the_work_of_its_conversation() {
    let slack = fake();
    let steps = "{when: {prompt: long}, do: [{run: 'read line < gate'}]}, {say: 'done {prompt}'}";
    let herd = herd_with(&slack, steps, "while_busy: interrupt");
    let (_life, _client) = herd.begin(&[]);
    slack.wait_for_sockets(1);
    slack.say(ANN_DIRECT, ANN, "long");
    wait_for("the job", || {
        jobs(&herd).iter().any(|job| job.status == JobStatus::Running).then_some(())
    });
    slack.say(ANN_DIRECT, ANN, "short");
    slack.wait_for("the answer", |posts| {
        posts.iter().any(|post| post.text == "done short").then_some(())
    });
    let count = |status| jobs(&herd).iter().filter(|job| job.status == status).count();
    assert_eq!((count(JobStatus::Cancelled), count(JobStatus::Completed)), (1, 1));
}

#[test]
fn a_silent_socket_is_given_up_and_replaced() {
    let slack = fake();
    let herd = herd(&slack, "{say: 'heard {prompt}'}");
    let (_life, _client) = herd.begin(&[]);
    slack.wait_for_sockets(1);
    slack.say(ANN_DIRECT, ANN, "before");
    wait_for_posts(&slack, 1);
    slack.set_frozen(true);
    let failed = wait_for("a failed link", || link(&herd).filter(|it| it["state"] == "failed"));
    assert!(failed["problem"].as_str().unwrap().contains("no sign of life"), "{failed}");
    slack.set_frozen(false);
    slack.say(ANN_DIRECT, ANN, "after");
    assert_eq!(wait_for_posts(&slack, 2)[1].text, "heard after");
    wait_for("a connected link", || link(&herd).filter(|it| it["state"] == "connected"));
}

#[test]
fn a_slash_command_is_answered_for_its_user_and_covers_the_threads_of_a_channel() {
    let slack = fake();
    let herd = herd_with(&slack, "{hang: true}", &format!("operators: [{ANN}]"));
    let (_life, _client) = herd.begin(&[]);
    slack.wait_for_sockets(1);
    slack.command(CHANNEL, BOB, "/heeler", "status");
    let answers = slack.wait_for_command_answers(1);
    assert_eq!(answers[0], "coder has nothing to do in this conversation.");
    let threads = [slack.say(CHANNEL, BOB, "<@UBOT> one"), slack.say(CHANNEL, BOB, "<@UBOT> two")];
    threads.iter().for_each(|ts| assert_eq!(wait_for_event(&herd, CHANNEL, ts).outcome, "job"));
    slack.command(CHANNEL, BOB, "/heeler", "stop");
    let answers = slack.wait_for_command_answers(2);
    assert_eq!(answers[1], "You may not do that here. Your ID is UBOB.");
    let used = slack.command(CHANNEL, ANN, "/stop", "");
    assert_eq!(slack.wait_for_command_answers(3)[2], "Stopping 2 jobs.");
    assert_eq!(record(&herd, &format!("command:{used}")).unwrap().outcome, "command");
    let posts = wait_for_posts(&slack, 2);
    assert!(posts.iter().all(|post| post.text == "Stopped."), "{posts:?}");
    slack.command(CHANNEL, ANN, "/heeler", "new");
    assert!(slack.wait_for_command_answers(4)[3].contains("in the thread"));
    slack.command(CHANNEL, BOB, "/heeler", "tell me a joke");
    assert!(slack.wait_for_command_answers(5)[4].contains("`/status`"), "it is no command");
    slack.command("DEVE", EVE, "/heeler", "status");
    assert!(slack.wait_for_command_answers(6)[5].contains("dm.allowlist"));
    slack.command("C0999", BOB, "/heeler", "status");
    assert_eq!(slack.wait_for_command_answers(7)[6], "I do not answer in this channel.");
    assert_eq!(jobs(&herd).len(), 2);
    assert!(slack.posts().len() == 2, "{:?}", slack.posts());
}

#[test]
fn what_was_said_is_listed_searched_and_exported() {
    let slack = fake();
    let herd = herd(&slack, "{say: 'heard {prompt}'}");
    let (_life, _client) = herd.begin(&[]);
    slack.wait_for_sockets(1);
    let root = slack.say(CHANNEL, BOB, "<@UBOT> fix the Build");
    wait_for_posts(&slack, 1);
    slack.say(ANN_DIRECT, ANN, "hello");
    wait_for_posts(&slack, 2);
    let run = |args: &[&str]| {
        let output = herd.command("messages").args(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (_, listed) = run(&[]);
    assert!(listed.contains("slack/DANN") && listed.contains(&format!("slack/{CHANNEL}/{root}")));
    let (code, said) = run(&["slack/C0001"]);
    assert_eq!(code, Some(0));
    assert!(said.contains("fix the Build") && said.contains("coder:"), "{said}");
    assert!(!said.contains("hello"), "{said}");
    let (_, found) = run(&["--search", "the build", "--json"]);
    let lines: Vec<Json> = found.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    let roles: Vec<_> = lines.iter().map(|it| it["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant"], "{found}");
    assert_eq!(lines[0]["agent"], "coder");
    let (code, last) = run(&["slack/DANN", "-n", "1", "--json"]);
    assert_eq!((code, last.lines().count()), (Some(0), 1));
    assert!(last.contains("heard hello"), "{last}");
    assert_eq!(run(&["--search", "nothing of this"]).0, Some(1));
}

#[test]
fn an_accepted_message_has_a_reaction_if_the_app_may_react() {
    for may_react in [true, false] {
        let slack = fake();
        if may_react {
            slack.set_scopes("chat:write,reactions:write");
        }
        let herd =
            herd_with(&slack, "{run: 'read line < gate'}", "output: {acknowledge_emoji: eyes}");
        let (_life, _client) = herd.begin(&[]);
        slack.wait_for_sockets(1);
        let root = slack.say(CHANNEL, BOB, "<@UBOT> go");
        // The card follows in any case.
        slack.wait_for("the card", |posts| {
            posts.iter().any(|post| post.text.contains("Working")).then_some(())
        });
        let expected = if may_react { vec![(root, "eyes".to_owned())] } else { Vec::new() };
        assert_eq!(slack.reactions(), expected);
        assert_eq!(slack.calls("reactions.add").len(), 1);
    }
}

#[test]
fn a_thread_shows_that_the_agent_works_if_the_app_may_show_it() {
    let slack = fake();
    slack.set_scopes("chat:write,assistant:write");
    let settings = "output: {progress_indicator: false, typing_indicator: true}";
    let herd = herd_with(&slack, "{hang: true}", settings);
    let (_life, _client) = herd.begin(&[]);
    slack.wait_for_sockets(1);
    let root = slack.say(CHANNEL, BOB, "<@UBOT> go");
    wait_for("the status", || {
        slack.statuses().contains(&(CHANNEL.to_owned(), root.clone())).then_some(())
    });
    slack.reply(CHANNEL, &root, BOB, "!stop");
    slack.wait_for("the end", |posts| posts.iter().find(|it| it.text == "Stopped.").map(drop));
}
