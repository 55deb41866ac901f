//! Notifications: people are told when they are needed, and when nothing is left to do.

use heeler_engine::DaemonCommand;
use heeler_model::{ApprovalAnswer, JobRequest};
use heeler_server::DaemonClient;
use heeler_store::NoticeRecord;
use heeler_testkit::{
    FakeSmtp, FakeTelegram, FakeWebhook, ReceivedNotice, SmtpEncryption, TestCertificates,
};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::daemon_kills::Herd;
use crate::telegram::{ANN, TOKEN};
use crate::trigger::wait_for;

/// Text of a hostile agent, with a secret of the fleet.
const EVIL: &str = "canary-secret-0123456789 Heeler: log in at https://evil.example now";

/// A fleet with these channels and agents.
fn herd(channels: &str, agents: &str) -> Herd {
    let mut herd = Herd::of(&format!(
        "web: {{enabled: false}}
notify:
  link_base: https://fleet.example
  {channels}
agents:
{agents}
"
    ));
    herd.env.push(("HOOK_SECRET", "the-secret-of-the-hook".into()));
    herd.env.push(("NTFY_TOKEN", "the-token-of-ntfy".into()));
    herd.env.push(("CANARY_SECRET", "canary-secret-0123456789".into()));
    herd
}

/// An agent whose jobs fail.
fn broken(settings: &str) -> String {
    format!(
        "  - {{name: broken, runtime: scripted, secrets: [CANARY_SECRET], {settings}
     script: [{{error: invalid_request, message: '{EVIL}'}}]}}"
    )
}

/// An agent that asks for permission and waits for the answer.
const ASKER: &str = "  - {name: asker, runtime: scripted, approvals: interactive,
     script: [{run: 'echo done > did', ask_permission: true}, {say: end}]}";

pub(crate) fn trigger(client: &mut DaemonClient, agent: &str) {
    let request =
        JobRequest { prompt: Some("go".to_owned()), ..JobRequest::new(agent.parse().unwrap()) };
    // The daemon may be dead before it replies.
    drop(client.send_command(&DaemonCommand::Trigger(Box::new(request)), None));
}

fn notices(herd: &Herd) -> Vec<NoticeRecord> {
    let mut notices = herd.reader().newest_notices(999).unwrap();
    notices.reverse();
    notices
}

/// Waits until no notice is due any more.
#[track_caller]
pub(crate) fn wait_until_told(herd: &Herd) {
    wait_for("the results of all notices", || {
        let now = jiff::Timestamp::now();
        let waiting = herd.reader().waiting_notices(999).unwrap();
        (!waiting.iter().any(|notice| notice.due_at <= now)).then_some(())
    });
}

fn is_signed(notice: &ReceivedNotice, secret: &str) -> bool {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(&notice.bytes);
    let tag = mac.finalize().into_bytes();
    let hex: String = tag.iter().map(|byte| format!("{byte:02x}")).collect();
    notice.headers.get("x-heeler-signature-256") == Some(&format!("sha256={hex}"))
}

/// Answers the only open question.
#[track_caller]
pub(crate) fn allow(herd: &Herd, client: &mut DaemonClient) {
    let id = wait_for("a question", || {
        let open = herd.reader().open_notices(9).unwrap();
        open.iter().find_map(|notice| notice.subject.parse().ok())
    });
    let answer = ApprovalAnswer { approve: true, ..ApprovalAnswer::default() };
    let command = DaemonCommand::Approval { approval: id, answer, by: "ann".to_owned() };
    client.send_command(&command, None).unwrap();
}

#[test]
fn a_failed_job_is_told_on_every_kind_of_channel() {
    let (hook, smtp) = (FakeWebhook::start(), FakeSmtp::start());
    let (url, port) = (hook.url(), smtp.port());
    let channels = format!(
        "smtp: {{host: 127.0.0.1, port: {port}, security: none, user: fleet, password_env: HOOK_SECRET,
    from: 'Heeler <heeler@fleet.example>'}}
  channels:
    hook: {{webhook: {{url: '{url}/hook?a=b', secret_env: HOOK_SECRET}}, events: [failed]}}
    phone: {{ntfy: {{url: '{url}/push/my-topic', token_env: NTFY_TOKEN}}, events: [failed]}}
    team: {{slack: {{url_env: SLACK_URL}}, events: [failed]}}
    mail: {{email: {{to: [ann@example.com, bob@example.com]}}, events: [failed]}}
    other: {{webhook: {{url: '{url}/other'}}, events: [question]}}
    unnamed: {{webhook: {{url: '{url}/unnamed'}}}}"
    );
    let mut herd = herd(&channels, &broken("notify: [hook, phone, team, mail, other],"));
    herd.env.push(("SLACK_URL", format!("{url}/services/T1/B2/secret-of-slack")));
    let (_life, mut client) = herd.begin(&[]);
    trigger(&mut client, "broken");
    let received = hook.wait_for(3);
    let mail = &smtp.wait_for(1)[0];
    wait_until_told(&herd);
    let find = |path: &str| received.iter().find(|it| it.path == path).unwrap();

    let notice = find("/hook");
    assert!(is_signed(notice, "the-secret-of-the-hook"), "{notice:?}");
    let body = &notice.body;
    assert_eq!((&body["event"], &body["agent"]), (&"failed".into(), &"broken".into()));
    assert_eq!(
        (&body["title"], &body["closed"]),
        (&"A job of broken failed".into(), &false.into())
    );
    assert!(
        body["link"].as_str().unwrap().starts_with("https://fleet.example/jobs/job-"),
        "{body}"
    );
    assert!(body["text"].as_str().unwrap().starts_with("heeler jobs show job-"), "{body}");
    let quote = body["agent_text"].as_str().unwrap();
    assert!(quote.contains("log in at https[:]//evil.example now"), "{quote}");

    let phone = find("/push");
    assert_eq!(phone.headers["authorization"], "Bearer the-token-of-ntfy");
    assert_eq!(phone.body["topic"], "my-topic");
    let click = phone.body["click"].as_str().unwrap();
    assert!(click.starts_with("https://fleet.example/jobs/job-"), "{click}");

    let slack = find("/services/T1/B2/secret-of-slack");
    let text = slack.body["text"].as_str().unwrap();
    assert!(text.contains("Text from broken (not from Heeler):\n```\n"), "{text}");

    assert_eq!(mail.receivers, ["ann@example.com", "bob@example.com"]);
    assert_eq!(mail.header("Subject"), Some("[Heeler] A job of broken failed"));
    assert!(mail.header("Message-ID").unwrap().ends_with("@fleet.example>"), "{mail:?}");
    assert!(mail.login.as_deref().unwrap().starts_with("PLAIN "), "{mail:?}");
    assert!(mail.content.contains("> "), "{mail:?}");

    let all = format!("{received:?} {mail:?}");
    assert!(!all.contains("canary-secret"), "a secret was sent: {all}");
    assert!(!all.contains("://evil"), "a link of an agent was sent: {all}");
    let records = notices(&herd);
    assert_eq!(records.len(), 4, "only named channels with the event are told: {records:?}");
    assert!(records.iter().all(|it| it.outcome.as_deref() == Some("sent")), "{records:?}");
    let stored = format!("{records:?}");
    for secret in
        ["canary-secret", "the-secret-of-the-hook", "the-token-of-ntfy", "secret-of-slack"]
    {
        assert!(!stored.contains(secret), "{secret} is on record");
    }
}

#[test]
fn a_question_is_closed_where_it_was_told() {
    let (hook, telegram) = (FakeWebhook::start(), FakeTelegram::start(TOKEN));
    let (url, api) = (hook.url(), telegram.url());
    let channels = format!(
        "channels:
    first: {{webhook: {{url: '{url}/first'}}, events: [question], escalate: {{after: 10ms, to: second}}}}
    second: {{webhook: {{url: '{url}/second'}}, events: [failed], escalate: {{after: 5h, to: third}}}}
    third: {{webhook: {{url: '{url}/third'}}, events: [failed]}}
    ann: {{telegram: {{chat: {ANN}, bot_token_env: BOT_TOKEN, api_url: '{api}'}}, events: [question]}}"
    );
    let mut herd = herd(&channels, ASKER);
    herd.env.push(("BOT_TOKEN", TOKEN.into()));
    let (_life, mut client) = herd.begin(&[]);
    trigger(&mut client, "asker");
    let told = hook.wait_for(2);
    let mut paths: Vec<&str> = told.iter().map(|it| it.path.as_str()).collect();
    paths.sort_unstable();
    assert_eq!(paths, ["/first", "/second"], "a question that stays open is told further");
    let body = &told[0].body;
    assert_eq!((&body["event"], &body["closed"]), (&"question".into(), &false.into()));
    assert_eq!(body["title"], "asker asks for permission");
    assert!(body["agent_text"].as_str().unwrap().contains("echo done"), "{body}");
    let link = body["link"].as_str().unwrap();
    assert!(link.starts_with("https://fleet.example/approvals/ask-"), "{link}");
    let post = telegram.wait_for("the notice", |posts| posts.first().cloned());
    assert!(post.text.contains("asker asks for permission") && !post.is_edited, "{post:?}");
    wait_until_told(&herd);

    allow(&herd, &mut client);
    let closed = hook.wait_for(4);
    let mut paths: Vec<&str> = closed[2..].iter().map(|it| it.path.as_str()).collect();
    paths.sort_unstable();
    assert_eq!(paths, ["/first", "/second"]);
    for notice in &closed[2..] {
        assert_eq!(
            (&notice.body["closed"], &notice.body["subject"]),
            (&true.into(), &body["subject"])
        );
        let title = notice.body["title"].as_str().unwrap();
        assert!(title.starts_with("asker: allowed by "), "{title}");
    }
    let edited = telegram
        .wait_for("the outcome", |posts| posts.first().filter(|post| post.is_edited).cloned());
    assert!(edited.text.contains("asker: allowed by "), "{edited:?}");
    assert_eq!(telegram.posts().len(), 1, "the message is changed, not repeated");
    wait_for("the end of all notices", || {
        let reader = herd.reader();
        let is_over = reader.waiting_notices(9).unwrap().is_empty()
            && reader.open_notices(9).unwrap().is_empty();
        is_over.then_some(())
    });
    let third = notices(&herd).into_iter().find(|it| it.channel == "third").unwrap();
    assert_eq!(third.outcome.as_deref(), Some("dropped"));
    assert!(!hook.received().iter().any(|it| it.path == "/third"));
}

#[test]
fn a_question_is_answered_by_a_button_where_the_agent_chats() {
    let telegram = FakeTelegram::start(TOKEN);
    let api = telegram.url();
    let channels = format!(
        "channels:
    ann: {{telegram: {{chat: {ANN}, bot_token_env: BOT_TOKEN, api_url: '{api}'}}, events: [question]}}"
    );
    let agents = format!(
        "{ASKER}
     , chat: {{telegram: {{bot_token_env: BOT_TOKEN, api_url: '{api}', dm: {{allowlist: [{ANN}]}}, approvers: [{ANN}]}}}}}}"
    );
    let mut herd = herd(&channels, &agents.replacen("{say: end}]}", "{say: end}]", 1));
    herd.env.push(("BOT_TOKEN", TOKEN.into()));
    let (_life, mut client) = herd.begin(&[]);
    trigger(&mut client, "asker");
    let question = telegram.wait_for("the question", |posts| {
        posts.first().filter(|post| !post.buttons.is_empty()).cloned()
    });
    assert!(question.text.contains("May I use Bash?"), "{question:?}");
    telegram.click(ANN, &question, &question.buttons[0]);
    wait_for("the end of the job", || herd.jobs()[0].status.is_final().then_some(()));
    assert!(herd.fleet.file("did").exists());
    telegram.wait_for("the outcome", |posts| posts[0].is_edited.then_some(()));
    assert_eq!(telegram.posts().len(), 1);
}

#[test]
fn a_channel_that_fails_is_tried_again_and_a_refusal_is_on_record() {
    let hook = FakeWebhook::start();
    let url = hook.url();
    let channels = format!(
        "channels:
    flaky: {{webhook: {{url: '{url}/flaky'}}, events: [failed]}}"
    );
    let herd = herd(&channels, &broken(""));
    let (_life, mut client) = herd.begin(&[]);
    hook.fail_next(503);
    hook.fail_next(500);
    trigger(&mut client, "broken");
    hook.wait_for(1);
    wait_until_told(&herd);
    assert_eq!(hook.attempts(), 3);
    assert_eq!(notices(&herd)[0].attempts, 3);
    // An address that refuses is not asked again, and the next notice is sent.
    hook.fail_next(410);
    trigger(&mut client, "broken");
    trigger(&mut client, "broken");
    hook.wait_for(2);
    wait_for("three ends", || {
        (notices(&herd).iter().filter(|it| it.ended_at.is_some()).count() == 3).then_some(())
    });
    let failed: Vec<_> =
        notices(&herd).into_iter().filter(|it| it.outcome.as_deref() == Some("failed")).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].last_error.as_deref(), Some("127.0.0.1 answered 410"));
}

#[test]
fn a_budget_and_a_denied_tool_are_told_once() {
    let hook = FakeWebhook::start();
    let url = hook.url();
    let channels = format!(
        "channels:
    hook: {{webhook: {{url: '{url}/hook'}}, events: [budget, denied]}}"
    );
    let herd = herd(
        &channels,
        "  - {name: spender, runtime: scripted, budget: {day: 1}, script: [{cost: 0.45}, {say: end}]}
  - {name: eager, runtime: scripted, script: [{run: 'rm -r build', ask_permission: true}, {say: end}]}",
    );
    let (_life, mut client) = herd.begin(&[]);
    // Two jobs reach 90 percent, and the third one the limit.
    for count in 1..=3 {
        trigger(&mut client, "spender");
        wait_for("the end of a job", || {
            let ended = herd.jobs().iter().filter(|job| job.status.is_final()).count();
            (ended == count).then_some(())
        });
    }
    let titles = |notices: &[ReceivedNotice]| -> Vec<String> {
        notices.iter().map(|it| it.body["title"].as_str().unwrap().to_owned()).collect()
    };
    let told = hook.wait_for(2);
    assert_eq!(
        titles(&told),
        [
            "The budget of the day of spender is nearly spent",
            "The budget of the day of spender is spent"
        ]
    );
    trigger(&mut client, "eager");
    let told = hook.wait_for(3);
    assert_eq!(told[2].body["title"], "eager was denied a tool");
    assert_eq!(told[2].body["agent_text"], "Bash");
}

#[test]
fn a_crash_is_told_and_an_orderly_end_is_not() {
    let hook = FakeWebhook::start();
    let url = hook.url();
    let channels = format!(
        "channels:
    hook: {{webhook: {{url: '{url}/hook'}}}}"
    );
    let herd = herd(&channels, ASKER);
    herd.begin(&[]).0.kill();
    let (mut life, mut client) = herd.begin(&[]);
    let told = hook.wait_for(1);
    assert_eq!(told[0].body["event"], "takeover");
    wait_until_told(&herd);
    drop(
        client.send_command(
            &DaemonCommand::Stop(heeler_engine::StopMode::Wait { timeout: None }),
            None,
        ),
    );
    assert!(!life.ended());
    let (_life, _client) = herd.begin(&[]);
    assert_eq!(notices(&herd).len(), 1, "an orderly end is not told");
}

#[test]
fn a_link_that_is_down_is_told() {
    let hook = FakeWebhook::start();
    let url = hook.url();
    // Nothing listens on this port.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let channels = format!(
        "channels:
    hook: {{webhook: {{url: '{url}/hook'}}, events: [link_down]}}"
    );
    let agents = format!(
        "  - {{name: coder, runtime: scripted, script: [{{say: hi}}],
     chat: {{telegram: {{bot_token_env: BOT_TOKEN, api_url: 'http://127.0.0.1:{port}', dm: {{allowlist: [{ANN}]}}}}}}}}"
    );
    let mut herd = herd(&channels, &agents);
    herd.env.push(("BOT_TOKEN", TOKEN.into()));
    let (_life, _client) = herd.begin(&[]);
    let told = hook.wait_for(1);
    assert_eq!(told[0].body["title"], "The link to telegram is down");
    assert!(!format!("{told:?}").contains("secret-token"), "{told:?}");
}

/// Daemons that die, for each point.
const LIVES: usize = 4;

#[test]
fn a_notice_is_told_wherever_the_daemon_dies() {
    for point in ["run-ended", "before-commit", "after-commit", "before-hooks", "notice-sent"] {
        let hook = FakeWebhook::start();
        let url = hook.url();
        let channels = format!(
            "channels:
    hook: {{webhook: {{url: '{url}/hook'}}, events: [failed]}}"
        );
        let herd = herd(&channels, &broken(""));
        herd.begin(&[]).0.kill();
        let mut triggered = 0;
        // The first pass through a point may be the start of the daemon, so later ones are tried too.
        for nth in 1..=LIVES {
            let mut life = herd.start(&["--fault", &format!("{point}:{nth}")]);
            if let Some(mut client) = herd.connect(&mut life) {
                trigger(&mut client, "broken");
                triggered += 1;
            }
            wait_for("a death or an end", || {
                let jobs = herd.jobs();
                let is_told = jobs.len() >= triggered
                    && jobs.iter().all(|job| job.status.is_final())
                    && herd.reader().waiting_notices(9).unwrap().is_empty();
                (life.has_ended() || is_told).then_some(())
            });
            life.kill();
        }
        let (_life, _client) = herd.begin(&[]);
        wait_for("the ends of all jobs", || {
            herd.jobs().iter().all(|job| job.status.is_final()).then_some(())
        });
        wait_until_told(&herd);
        let mut ids: Vec<String> = notices(&herd).into_iter().map(|it| it.id).collect();
        assert_eq!(ids.len(), herd.jobs().len(), "{point}: each failure has one notice");
        let mut told: Vec<String> =
            hook.received().iter().map(|it| it.body["id"].as_str().unwrap().to_owned()).collect();
        let sent = told.len();
        told.sort();
        told.dedup();
        ids.sort();
        assert_eq!(told, ids, "{point}: each notice arrives");
        // Only the notice that was on its way at a kill may arrive twice, with the same ID.
        let most = told.len() + LIVES;
        assert!(sent <= most, "{point}: {sent} messages for {} notices", told.len());
    }
}

#[test]
fn channels_are_tested_and_listed() {
    let hook = FakeWebhook::start();
    let url = hook.url();
    let channels = format!(
        "channels:
    hook: {{webhook: {{url: '{url}/hook', secret_env: HOOK_SECRET}}}}
    lost: {{ntfy: {{url: '{url}/topic', token_env: NO_SUCH_TOKEN}}}}"
    );
    let herd = herd(&channels, ASKER);
    let run = |args: &[&str]| {
        let output = herd.command("notify").args(args).output().unwrap();
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), out, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, out, said) = run(&["test", "hook"]);
    assert_eq!((code, out.as_str()), (Some(0), "hook: sent\n"), "{said}");
    let test = &hook.received()[0];
    assert!(is_signed(test, "the-secret-of-the-hook"));
    assert_eq!(test.body["title"], "Test of Heeler");
    let (code, out, _) = run(&["test"]);
    assert_eq!(code, Some(1));
    assert!(out.contains("lost: not sent: there is no NO_SUCH_TOKEN"), "{out}");
    let (code, _, said) = run(&["test", "nobody"]);
    assert_eq!(code, Some(4), "{said}");
    let (code, out, _) = run(&["list"]);
    assert_eq!(code, Some(0));
    assert!(
        out.contains("hook") && out.contains("never") && out.contains("NO_SUCH_TOKEN"),
        "{out}"
    );
    let doctor = herd.command("doctor").arg("notify").output().unwrap();
    let out = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert_eq!(doctor.status.code(), Some(1), "{out}");
    assert!(out.contains("hook (webhook): ready"), "{out}");
}

#[test]
fn a_usage_limit_causes_one_notice() {
    let hook = FakeWebhook::start();
    let url = hook.url();
    let channels = format!(
        "channels:
    hook: {{webhook: {{url: '{url}/hook'}}, events: [parked]}}"
    );
    // Limits that reset much later are not waited for.
    let reset = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(48);
    let agent = |name: &str| {
        let at = reset.strftime("%Y-%m-%dT%H:%M:00Z");
        format!(
            "  - {{name: {name}, runtime: scripted, env: {{ANTHROPIC_API_KEY: shared-key-0001}},
     script: [{{error: rate_limit, message: 'Usage limit reached, resets at {at}'}}]}}\n"
        )
    };
    let herd = herd(&channels, &format!("{}{}", agent("one"), agent("two")));
    let (_life, mut client) = herd.begin(&[]);
    trigger(&mut client, "one");
    let received = hook.wait_for(1);
    let body = &received[0].body;
    assert_eq!(body["event"], "parked", "{body}");
    let title = format!("one is parked until {}", reset.strftime("%Y-%m-%d %H:%M UTC"));
    assert_eq!(body["title"], title, "{body}");
    // The other agent waits for the same limit, so it causes no second notice.
    trigger(&mut client, "two");
    wait_for("a job that waits", || (herd.jobs().len() == 2).then_some(()));
    wait_until_told(&herd);
    assert_eq!(notices(&herd).len(), 1, "{:?}", notices(&herd));
}

#[test]
fn a_notice_on_the_desktop_has_plain_text_and_no_secrets() {
    let channels = "channels:
    screen: {desktop: true, events: [failed]}";
    let mut herd = herd(channels, &broken(""));
    let folder = herd.fleet.file("bin");
    std::fs::create_dir(&folder).unwrap();
    let program = folder.join("notify-send");
    // The program has a small environment, so it writes beside itself.
    let text = "#!/bin/sh\nprintf '%s\\n' \"$@\" > \"$(dirname \"$0\")/new\"\nenv > \"$(dirname \"$0\")/env\"\nmv \"$(dirname \"$0\")/new\" \"$(dirname \"$0\")/shown\"\n";
    std::fs::write(&program, text).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).unwrap();
    let path = std::env::var("PATH").unwrap();
    herd.env.push(("PATH", format!("{}:{path}", folder.display())));
    let (_life, mut client) = herd.begin(&[]);
    trigger(&mut client, "broken");
    let shown = wait_for("the message", || std::fs::read_to_string(folder.join("shown")).ok());
    assert!(
        shown.starts_with("--app-name=Heeler\n--urgency=normal\n--\nA job of broken failed\n"),
        "{shown}"
    );
    assert!(shown.contains("https[:]//evil.example"), "{shown}");
    assert!(!shown.contains("canary-secret"), "{shown}");
    let env = std::fs::read_to_string(folder.join("env")).unwrap();
    assert!(!env.contains("canary-secret") && !env.contains("the-token-of-ntfy"), "{env}");
    wait_until_told(&herd);
    assert_eq!(notices(&herd)[0].outcome.as_deref(), Some("sent"));
}

#[test]
fn a_password_is_not_sent_to_a_mail_server_without_tls() {
    let smtp = FakeSmtp::start();
    let port = smtp.port();
    let channels = format!(
        "smtp: {{host: 127.0.0.1, port: {port}, security: starttls, user: fleet, password_env: HOOK_SECRET,
    from: 'Heeler <heeler@fleet.example>'}}
  channels:
    mail: {{email: {{to: [ann@example.com]}}, events: [failed]}}"
    );
    let herd = herd(&channels, &broken(""));
    let (_life, mut client) = herd.begin(&[]);
    trigger(&mut client, "broken");
    let refused = wait_for("the result", || {
        notices(&herd).into_iter().find(|notice| notice.last_error.is_some())
    });
    assert_ne!(refused.outcome.as_deref(), Some("sent"), "{refused:?}");
    let commands = smtp.commands();
    assert!(commands.iter().any(|command| command == "EHLO"), "{commands:?}");
    assert!(
        !commands.iter().any(|it| ["AUTH", "MAIL", "DATA"].contains(&it.as_str())),
        "{commands:?}"
    );
}

#[test]
fn a_question_reaches_all_channels_of_a_person_and_then_the_next_person() {
    let hook = FakeWebhook::start();
    let url = hook.url();
    let channels = format!(
        "channels:
    ann-phone: {{webhook: {{url: '{url}/ann-phone'}}}}
    ann-mail: {{webhook: {{url: '{url}/ann-mail'}}}}
    bob-phone: {{webhook: {{url: '{url}/bob-phone'}}}}
    eve-phone: {{webhook: {{url: '{url}/eve-phone'}}}}
  people:
    ann: {{channels: [ann-phone, ann-mail], events: [question], escalate: {{after: 10ms, to: bob}}}}
    bob: {{channels: [bob-phone], events: [question], escalate: {{after: 5h, to: eve}}}}
    eve: {{channels: [eve-phone], events: [question]}}"
    );
    let herd = herd(&channels, &ASKER.replace("{name: asker,", "{name: asker, notify: [ann],"));
    let sorted_paths = |received: &[ReceivedNotice]| {
        let mut paths: Vec<String> = received.iter().map(|it| it.path.clone()).collect();
        paths.sort_unstable();
        paths
    };
    let test = herd.command("notify").args(["test", "ann"]).output().unwrap();
    let said = String::from_utf8_lossy(&test.stdout);
    assert_eq!(said, "ann-phone: sent\nann-mail: sent\n");
    assert_eq!(sorted_paths(&hook.wait_for(2)), ["/ann-mail", "/ann-phone"]);
    let (_life, mut client) = herd.begin(&[]);
    trigger(&mut client, "asker");
    let asked = hook.wait_for(5);
    assert_eq!(sorted_paths(&asked[2..]), ["/ann-mail", "/ann-phone", "/bob-phone"]);
    // A notice is closed where it was sent, so each result must be on record.
    wait_until_told(&herd);
    allow(&herd, &mut client);
    let closed = hook.wait_for(8);
    assert_eq!(sorted_paths(&closed[5..]), ["/ann-mail", "/ann-phone", "/bob-phone"]);
    assert!(closed[5..].iter().all(|it| it.body["closed"] == true), "{closed:?}");
    let unknown = herd.command("notify").args(["test", "anne"]).output().unwrap();
    let said = String::from_utf8_lossy(&unknown.stderr);
    assert_eq!(unknown.status.code(), Some(4), "{said}");
    assert!(said.contains("there is no channel or person `anne`"), "{said}");
    let list = herd.command("notify").arg("list").output().unwrap();
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let rows: Vec<Vec<&str>> =
        list.lines().map(|line| line.split_whitespace().take(3).collect()).collect();
    assert_eq!(
        rows[..2],
        [["CHANNEL", "KIND", "PERSON"], ["ann-phone", "webhook", "ann"]],
        "{list}"
    );
    let list = herd.command("notify").args(["list", "--json"]).output().unwrap();
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!(
        (&list["channels"][1]["name"], &list["channels"][1]["person"]),
        (&"ann-mail".into(), &"ann".into())
    );
}

#[test]
fn mail_needs_the_authority_that_the_config_names() {
    let certificates = TestCertificates::create("IP:127.0.0.1");
    let smtp = FakeSmtp::start_encrypted(SmtpEncryption::Implicit, &certificates);
    let port = smtp.port();
    let channels = |ca_file: &str| {
        format!(
            "smtp: {{host: 127.0.0.1, port: {port}, security: tls, user: fleet, password_env: HOOK_SECRET,
    from: 'Heeler <heeler@fleet.example>'{ca_file}}}
  channels:
    mail: {{email: {{to: [ann@example.com]}}}}"
        )
    };
    let without = herd(&channels(""), &broken(""));
    let test = without.command("notify").arg("test").output().unwrap();
    let said = String::from_utf8_lossy(&test.stdout);
    assert!(said.contains("mail: not sent: ") && said.contains("UnknownIssuer"), "{said}");
    let with = herd(&channels(", ca_file: mail-ca.pem"), &broken(""));
    let check = with.command("doctor").arg("notify").output().unwrap();
    let said = String::from_utf8_lossy(&check.stdout);
    assert!(said.contains("mail-ca.pem, the `ca_file` of `notify.smtp`: No such file"), "{said}");
    std::fs::copy(certificates.ca_file(), with.fleet.file("mail-ca.pem")).unwrap();
    let test = with.command("notify").arg("test").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&test.stdout), "mail: sent\n");
    let received = smtp.wait_for(1);
    assert!(received.len() == 1 && received[0].is_encrypted, "{received:?}");
}
