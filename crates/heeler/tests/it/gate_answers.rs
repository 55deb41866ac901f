//! Gates of workflows in chats: asked by a channel of `notify`, answered once and only by approvers.

use heeler_engine::{CommandReply, DaemonCommand, WorkflowOperation, WorkflowRunRequest};
use heeler_model::workflow::WorkflowRunStatus;
use heeler_model::{Approval, ApprovalStatus, WorkflowRunId};
use heeler_server::DaemonClient;
use heeler_store::ApprovalFilter;
use heeler_testkit::{DiscordPost, FakeDiscord, FakeSlack, FakeTelegram, SlackPost, TelegramPost};
use serde_json::json;

use crate::daemon_kills::Herd;
use crate::telegram::wait_until_posted;
use crate::trigger::wait_for;
use crate::{discord, slack, telegram};

/// A channel that `notify` names and no agent lists.
pub(crate) const SLACK_GATES: &str = "C0GATES";
pub(crate) const DISCORD_GATES: &str = "600";

/// A fleet with a chat platform (settings of the agent) and a channel for gates, and workflows that ask
/// for approval (`late` after it was let through) or for a text.
fn herd(chat: &str, channel: &str) -> Herd {
    let herd = Herd::of(&format!(
        "web: {{enabled: false}}
notify:
  channels:
    gates: {{{channel}, events: [question]}}
agents:
  - name: coder
    runtime: scripted
    script: [{{say: 'said {{prompt}}'}}]
    chat:
      {chat}
"
    ));
    let ship = json!({"name": "ship", "phases": [
        {"name": "build", "type": "bash", "command": "true",
         "approval_gate": {"name": "release", "message": "Release it now?"}},
        {"name": "push", "type": "bash", "command": "touch shipped"},
    ]});
    let ask = json!({"name": "ask", "agent": "coder", "phases": [{
        "name": "colour",
        "prompt": "{% for it in scratch.talk.qa %}READY {{ it.answer }}{% endfor %} go",
        "generic_loop": {
            "max_iterations": 3, "until": "output.contains('READY')", "interactive": true,
            "gate_kind": "reply", "gate_message": "Which colour?", "scratch_key": "talk",
        },
    }]});
    let late = json!({"name": "late", "phases": [
        {"name": "build", "type": "bash", "command": "read line < gate",
         "approval_gate": {"name": "release", "message": "Release it now?"}},
        {"name": "push", "type": "bash", "command": "echo shipped >> shipped"},
    ]});
    herd.fleet.write("workflows/late.yaml", &late.to_string());
    herd.fleet.write("workflows/ship.yaml", &ship.to_string());
    herd.fleet.write("workflows/ask.yaml", &ask.to_string());
    herd
}

pub(crate) fn on_slack(fake: &FakeSlack) -> Herd {
    let (url, ann) = (fake.url(), slack::ANN);
    let mut herd = herd(
        &format!("slack: {{api_url: '{url}', channels: [{{id: {}}}]}}", slack::CHANNEL),
        &format!("slack: {{channel: {SLACK_GATES}, api_url: '{url}', approvers: [{ann}]}}"),
    );
    herd.env.push(("SLACK_BOT_TOKEN", slack::BOT_TOKEN.into()));
    herd.env.push(("SLACK_APP_TOKEN", slack::APP_TOKEN.into()));
    herd
}

pub(crate) fn on_discord(fake: &FakeDiscord) -> Herd {
    let (url, ann) = (fake.url(), discord::ANN);
    let mut herd = herd(
        &format!("discord: {{api_url: '{url}', channels: [{{id: '{}'}}]}}", discord::CHANNEL),
        &format!("discord: {{channel: '{DISCORD_GATES}', api_url: '{url}', approvers: ['{ann}']}}"),
    );
    herd.env.push(("DISCORD_BOT_TOKEN", discord::TOKEN.into()));
    herd
}

/// The approvers are those of the workflows' agent here.
pub(crate) fn on_telegram(fake: &FakeTelegram) -> Herd {
    let (url, ann, group) = (fake.url(), telegram::ANN, telegram::GROUP);
    let mut herd = herd(
        &format!(
            "telegram: {{bot_token_env: BOT_TOKEN, api_url: '{url}', chats: [{{id: {group}}}], \
             approvers: [{ann}]}}"
        ),
        &format!("telegram: {{chat: '{group}', bot_token_env: BOT_TOKEN, api_url: '{url}'}}"),
    );
    herd.env.push(("BOT_TOKEN", telegram::TOKEN.into()));
    herd
}

pub(crate) fn run(client: &mut DaemonClient, workflow: &str) -> WorkflowRunId {
    let order = WorkflowOperation::Run(WorkflowRunRequest::manual_run(workflow));
    let command = DaemonCommand::Workflow { order, by: "the test".to_owned() };
    match client.send_command(&command, None).unwrap() {
        CommandReply::WorkflowRun { run, .. } => run,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn wait_until(herd: &Herd, run: &WorkflowRunId, wanted: WorkflowRunStatus) {
    wait_for(wanted.as_str(), || {
        let status = herd.reader().workflow_run(run).unwrap().unwrap().head.status;
        (status == wanted).then_some(())
    });
}

/// Returns the only approval of a run.
pub(crate) fn approval(herd: &Herd, run: &WorkflowRunId) -> Approval {
    let filter = ApprovalFilter { run: Some(run.to_string()), status: None };
    let all = herd.reader().approvals(&filter, None, 9).unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    herd.reader().approval(&all[0].id).unwrap().unwrap()
}

/// Waits for the record of an event, and checks its outcome.
#[track_caller]
fn wait_for_outcome(
    herd: &Herd,
    (platform, account): (&str, &str),
    id: &str,
    outcome: &str,
) -> String {
    let record = wait_for("the record of an event", || {
        herd.reader().inbox_event(platform, account, id).unwrap()
    });
    assert_eq!(record.outcome, outcome, "{record:?}");
    record.reason.unwrap_or_default()
}

/// Waits until the ID of a posted question is on record, so that replies to it are recognized.
#[track_caller]
fn wait_until_recorded(herd: &Herd) {
    wait_for("the record of the question", || {
        let open = herd.reader().open_chat_questions(9).unwrap();
        open.iter().any(|question| question.message_id.is_some()).then_some(())
    });
}

#[track_caller]
fn question_on_slack(fake: &FakeSlack, text: &str) -> SlackPost {
    fake.wait_for("a question", |posts| {
        posts.iter().find(|post| post.text.contains(text) && !post.is_edited).cloned()
    })
}

#[track_caller]
fn question_on_discord(fake: &FakeDiscord, text: &str) -> DiscordPost {
    fake.wait_for("a question", |posts| {
        posts.iter().find(|post| post.text.contains(text) && !post.is_edited).cloned()
    })
}

#[track_caller]
fn question_on_telegram(fake: &FakeTelegram, text: &str) -> TelegramPost {
    fake.wait_for("a question", |posts| {
        posts.iter().find(|post| post.text.contains(text) && !post.is_edited).cloned()
    })
}

#[test]
fn a_gate_on_slack_counts_once_and_only_from_an_approver() {
    const BOT: (&str, &str) = ("slack", "A0TEST");
    let fake = slack::fake();
    let herd = on_slack(&fake);
    let (_life, mut client) = herd.begin(&[]);
    fake.wait_for_sockets(1);
    let ship = run(&mut client, "ship");
    let question = question_on_slack(&fake, "Release it now?");
    assert!(question.text.contains("Gate release of ship:build"), "{question:?}");
    assert_eq!((question.channel.as_str(), &question.thread), (SLACK_GATES, &None));
    let [approve, reject] = &question.buttons[..] else { panic!("{question:?}") };

    // A member of the channel may not answer, nor does a value that the fleet did not make, nor a
    // value from another channel, nor a text in the thread.
    let click = |user: &str, post: &SlackPost, value: &str| {
        format!("click:{}", fake.click(user, post, value))
    };
    let by_member = click(slack::BOB, &question, approve);
    let reason = wait_for_outcome(&herd, BOT, &by_member, "refused");
    assert!(reason.contains("UBOB is not an approver"), "{reason}");
    let forged = format!("{}x", &approve[..approve.len() - 1]);
    wait_for_outcome(&herd, BOT, &click(slack::ANN, &question, &forged), "refused");
    let elsewhere = SlackPost { channel: slack::CHANNEL.to_owned(), ..question.clone() };
    wait_for_outcome(&herd, BOT, &click(slack::ANN, &elsewhere, approve), "refused");
    wait_until_recorded(&herd);
    let text = fake.reply(SLACK_GATES, &question.ts, slack::ANN, "yes");
    wait_for_outcome(&herd, BOT, &format!("{SLACK_GATES}:{text}"), "ignored");
    assert_eq!(approval(&herd, &ship).status, ApprovalStatus::Pending);

    let first = click(slack::ANN, &question, approve);
    let second = click(slack::ANN, &question, reject);
    wait_for_outcome(&herd, BOT, &first, "answer");
    let reason = wait_for_outcome(&herd, BOT, &second, "refused");
    assert!(reason.contains("answered already"), "{reason}");
    wait_until(&herd, &ship, WorkflowRunStatus::Succeeded);
    assert!(herd.fleet.file("shipped").exists());
    wait_until_posted(&herd);
    let posts = fake.posts();
    let closed = posts.iter().find(|post| post.ts == question.ts).unwrap();
    assert!(closed.is_edited && closed.buttons.is_empty(), "{closed:?}");
    assert!(closed.text.contains("Approved by") && closed.text.contains("UANN"), "{closed:?}");
    assert_eq!(posts.iter().filter(|post| post.text.contains("release")).count(), 1, "{posts:?}");
}

#[test]
fn a_reply_on_slack_answers_a_gate_also_if_no_daemon_ran() {
    const BOT: (&str, &str) = ("slack", "A0TEST");
    let fake = slack::fake();
    let herd = on_slack(&fake);
    let (mut life, mut client) = herd.begin(&[]);
    fake.wait_for_sockets(1);
    let ask = run(&mut client, "ask");
    let question = question_on_slack(&fake, "Which colour?");
    assert!(question.buttons.is_empty(), "{question:?}");
    wait_until_recorded(&herd);
    let by_member = fake.reply(SLACK_GATES, &question.ts, slack::BOB, "red");
    let reason = wait_for_outcome(&herd, BOT, &format!("{SLACK_GATES}:{by_member}"), "refused");
    assert!(reason.contains("UBOB is not an approver"), "{reason}");
    // A message beside the thread is no answer.
    let beside = fake.say(SLACK_GATES, slack::ANN, "green");
    wait_for_outcome(&herd, BOT, &format!("{SLACK_GATES}:{beside}"), "ignored");
    life.kill();
    fake.wait_for_sockets(0);
    fake.reply(SLACK_GATES, &question.ts, slack::ANN, "blue");
    let (_life, _client) = herd.begin(&[]);
    wait_until(&herd, &ask, WorkflowRunStatus::Succeeded);
    let answered = approval(&herd, &ask);
    assert_eq!(answered.response.as_deref(), Some("blue"));
    assert!(answered.responded_by.unwrap().contains("(slack UANN)"));
    let closed = fake.wait_for("the closed question", |posts| {
        posts.iter().find(|post| post.ts == question.ts && post.is_edited).cloned()
    });
    assert!(closed.text.contains("Answered by"), "{closed:?}");
}

#[test]
fn gates_on_discord_are_answered_by_button_and_by_reply() {
    const BOT: (&str, &str) = ("discord", discord::BOT);
    let fake = discord::fake();
    let herd = on_discord(&fake);
    let (mut life, mut client) = herd.begin(&[]);
    fake.wait_until_connected();
    let ship = run(&mut client, "ship");
    let question = question_on_discord(&fake, "Release it now?");
    assert_eq!(question.channel, DISCORD_GATES);
    let [approve, reject] = &question.buttons[..] else { panic!("{question:?}") };
    let by_member = fake.click(discord::BOB, &question, approve);
    wait_for_outcome(&herd, BOT, &format!("click:{by_member}"), "refused");
    let first = fake.click(discord::ANN, &question, reject);
    wait_for_outcome(&herd, BOT, &format!("click:{first}"), "answer");
    wait_until(&herd, &ship, WorkflowRunStatus::Failed);
    assert!(!herd.fleet.file("shipped").exists());
    let closed = fake.wait_for("the closed question", |posts| {
        posts.iter().find(|post| post.id == question.id && post.is_edited).cloned()
    });
    assert!(closed.text.contains("Rejected by") && closed.buttons.is_empty(), "{closed:?}");

    let ask = run(&mut client, "ask");
    let question = question_on_discord(&fake, "Which colour?");
    wait_until_recorded(&herd);
    let reply = json!({"type": 19, "message_reference": {"message_id": question.id},
        "referenced_message": {"id": question.id, "author": {"id": discord::BOT}}});
    let by_member = fake.write(DISCORD_GATES, discord::BOB, "red", &reply);
    wait_for_outcome(&herd, BOT, &format!("{DISCORD_GATES}:{by_member:0>20}"), "refused");
    life.kill();
    fake.forget_sessions();
    fake.write(DISCORD_GATES, discord::ANN, "blue", &reply);
    let (_life, _client) = herd.begin(&[]);
    wait_until(&herd, &ask, WorkflowRunStatus::Succeeded);
    assert_eq!(approval(&herd, &ask).response.as_deref(), Some("blue"));
}

#[test]
fn gates_on_telegram_are_answered_by_button_and_by_reply_and_closed_if_answered_elsewhere() {
    const BOT: (&str, &str) = ("telegram", "123456789");
    let fake = FakeTelegram::start(telegram::TOKEN);
    let herd = on_telegram(&fake);
    let (_life, mut client) = herd.begin(&[]);
    let ship = run(&mut client, "ship");
    let question = question_on_telegram(&fake, "Release it now?");
    let [approve, _] = &question.buttons[..] else { panic!("{question:?}") };
    let by_member = fake.click(telegram::BOB, &question, approve);
    wait_for_outcome(&herd, BOT, &by_member.to_string(), "refused");
    let first = fake.click(telegram::ANN, &question, approve);
    wait_for_outcome(&herd, BOT, &first.to_string(), "answer");
    wait_until(&herd, &ship, WorkflowRunStatus::Succeeded);

    let ask = run(&mut client, "ask");
    let question = question_on_telegram(&fake, "Which colour?");
    wait_until_recorded(&herd);
    let group = json!({"id": telegram::GROUP, "type": "supergroup"});
    let reply = json!({"reply_to_message": {"message_id": question.id,
        "from": {"id": 123_456_789, "is_bot": true}}});
    let by_member = fake.write(telegram::BOB, group.clone(), "red", &reply);
    wait_for_outcome(&herd, BOT, &by_member.to_string(), "refused");
    let by_approver = fake.write(telegram::ANN, group, "blue", &reply);
    wait_for_outcome(&herd, BOT, &by_approver.to_string(), "answer");
    wait_until(&herd, &ask, WorkflowRunStatus::Succeeded);
    assert_eq!(approval(&herd, &ask).response.as_deref(), Some("blue"));

    // A gate that is answered in a terminal is closed in the chat.
    let other = run(&mut client, "ship");
    let question = question_on_telegram(&fake, "Release it now?");
    let id = approval(&herd, &other).id;
    let mut command = herd.command("approvals");
    let output = command.args(["reject", id.as_str()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let closed = fake.wait_for("the closed question", |posts| {
        posts.iter().find(|post| post.id == question.id && post.is_edited).cloned()
    });
    assert!(closed.text.contains("Rejected by") && closed.buttons.is_empty(), "{closed:?}");
    wait_until(&herd, &other, WorkflowRunStatus::Failed);
}
