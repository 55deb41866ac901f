//! `heeler connect`: set-up of platforms step by step.

use std::process::{Output, Stdio};

use heeler_testkit::{FakeGithub, FakeTelegram};

use crate::daemon_kills::Herd;
use crate::telegram::{ANN, TOKEN};
use crate::{discord, slack};

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn telegram_herd(api: &str, settings: &str) -> Herd {
    Herd::of(&format!(
        "agents:
  - name: coder
    runtime: scripted
    script: [{{say: hi}}]
    chat: {{telegram: {{bot_token_env: BOT_TOKEN, api_url: '{api}', {settings}}}}}
"
    ))
}

#[test]
fn telegram_is_set_up_step_by_step() {
    let telegram = FakeTelegram::start(TOKEN);
    let mut herd = telegram_herd(telegram.url(), "");
    let output = herd.command("connect").arg("telegram").output().unwrap();
    let (out, said) = texts(&output);
    assert_eq!(output.status.code(), Some(2), "{out}{said}");
    assert!(out.contains("@BotFather") && out.contains("BOT_TOKEN="), "{out}");

    herd.env.push(("BOT_TOKEN", TOKEN.into()));
    let update = telegram.say(ANN, "hello");
    let output = herd.command("connect").arg("telegram").stdin(Stdio::null()).output().unwrap();
    let (out, said) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{out}{said}");
    assert!(out.contains("the bot is @heeler_bot"), "{out}");
    assert!(out.contains("allowlist: ['42']") && out.contains("bot_token_env: BOT_TOKEN"), "{out}");
    assert!(!format!("{out}{said}").contains("secret-token"), "{out}{said}");
    let posts = telegram.posts();
    assert_eq!((posts.len(), posts[0].chat.as_str()), (1, "42"));
    assert!(posts[0].text.contains("Heeler is connected"), "{posts:?}");

    // The message is still there for the daemon.
    let herd = telegram_herd(telegram.url(), &format!("dm: {{allowlist: [{ANN}]}}"));
    let mut herd = herd;
    herd.env.push(("BOT_TOKEN", TOKEN.into()));
    let output = herd.command("connect").args(["telegram", "--chat", "42"]).output().unwrap();
    let (out, said) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{out}{said}");
    assert!(out.contains("All is set up"), "{out}");
    let (_life, _client) = herd.begin(&[]);
    crate::trigger::wait_for("the message", || crate::telegram::event(&herd, update));
}

#[test]
fn a_token_that_telegram_refuses_is_reported() {
    let telegram = FakeTelegram::start(TOKEN);
    let mut herd = telegram_herd(telegram.url(), "");
    herd.env.push(("BOT_TOKEN", "123456789:AAanother-token_of-the-bot".into()));
    let output = herd.command("connect").arg("telegram").output().unwrap();
    let (out, said) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{out}{said}");
    assert!(said.contains("does not accept the token in BOT_TOKEN"), "{said}");
}

#[test]
fn the_steps_for_github_are_printed_and_then_checked() {
    let herd = Herd::of("agents: [{name: a, runtime: scripted, script: [{say: hi}]}]");
    let output = herd.command("connect").arg("github").output().unwrap();
    let (out, said) = texts(&output);
    assert_eq!(output.status.code(), Some(2), "{out}{said}");
    assert!(out.contains("token_env: FLEET_GITHUB_TOKEN"), "{out}");
    let github = FakeGithub::start("a-token-of-the-fleet");
    let mut herd = Herd::of(&format!(
        "github: {{bot: heeler-user, token_env: FLEET_GITHUB_TOKEN, api_url: '{}', repos: [acme/app]}}\n\
         agents: [{{name: a, runtime: scripted, script: [{{say: hi}}]}}]",
        github.url()
    ));
    herd.env.push(("FLEET_GITHUB_TOKEN", "a-token-of-the-fleet".into()));
    let output = herd.command("connect").arg("github").output().unwrap();
    let (out, said) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{out}{said}");
    assert!(out.contains("acts as") && out.contains("All is set up"), "{out}");
}

#[test]
fn slack_is_set_up_step_by_step() {
    let fake = slack::fake();
    let herd_of = |settings: &str| {
        Herd::of(&format!(
            "agents:
  - name: coder
    runtime: scripted
    script: [{{say: hi}}]
    chat: {{slack: {{api_url: '{}', {settings}}}}}
",
            fake.url()
        ))
    };
    let mut herd = herd_of("");
    let connect = |herd: &Herd, arguments: &[&str], code: i32| {
        let output = herd.command("connect").arg("slack").args(arguments).output().unwrap();
        let (out, said) = texts(&output);
        assert_eq!(output.status.code(), Some(code), "{out}{said}");
        assert!(!format!("{out}{said}").contains("secretofthe"), "{out}{said}");
        format!("{out}{said}")
    };
    let said = connect(&herd, &[], 2);
    assert!(
        said.contains("socket_mode_enabled: true") && said.contains("SLACK_BOT_TOKEN="),
        "{said}"
    );
    herd.env.push(("SLACK_BOT_TOKEN", slack::BOT_TOKEN.into()));
    herd.env.push(("SLACK_APP_TOKEN", slack::APP_TOKEN.into()));
    let said = connect(&herd, &[], 2);
    assert!(said.contains("the app is @heeler in Acme") && said.contains("--channel ID"), "{said}");
    fake.set_scopes("chat:write,users:read");
    let said = connect(&herd, &["--channel", "C0001"], 1);
    assert!(said.contains("lacks the scopes app_mentions:read, im:history"), "{said}");
    fake.set_scopes(
        "app_mentions:read,chat:write,im:history,channels:history,groups:history,users:read",
    );
    fake.leave_channel("C0002");
    let said = connect(&herd, &["--channel", "C0002"], 1);
    assert!(said.contains("channel C0002") && said.contains("/invite"), "{said}");
    assert!(fake.posts().is_empty(), "nothing is sent before the checks succeed");
    let said = connect(&herd, &["--channel", "C0001"], 0);
    assert!(said.contains("channels: [{id: C0001, mode: mention}]"), "{said}");
    assert!(fake.posts()[0].text.contains("Heeler is connected"), "{:?}", fake.posts());

    let mut herd = herd_of("channels: [{id: C0001}]");
    herd.env.push(("SLACK_BOT_TOKEN", slack::BOT_TOKEN.into()));
    herd.env.push(("SLACK_APP_TOKEN", slack::APP_TOKEN.into()));
    let said = connect(&herd, &[], 0);
    assert!(said.contains("All is set up"), "{said}");
    assert_eq!(fake.posts().len(), 2);
}

#[test]
fn the_steps_for_a_slack_app_that_calls_the_daemon_name_its_address_and_no_app_token() {
    let herd = Herd::of(
        "agents: [{name: coder, runtime: scripted, script: [{say: hi}], \
         chat: {slack: {events: http, app_id: A0TEST, signing_secret_env: SIGNING}}}]",
    );
    let output = herd.command("connect").arg("slack").output().unwrap();
    let (out, said) = texts(&output);
    assert_eq!(output.status.code(), Some(2), "{out}{said}");
    assert!(out.contains("socket_mode_enabled: false") && !out.contains("xapp-"), "{out}");
    assert_eq!(out.matches("https://HOST/hooks/slack").count(), 3, "{out}");
    assert!(out.contains("Signing Secret") && out.contains("SIGNING=…"), "{out}");
}

#[test]
fn discord_is_set_up_step_by_step() {
    let fake = discord::fake();
    let mut herd = Herd::of(&format!(
        "agents:
  - name: coder
    runtime: scripted
    script: [{{say: hi}}]
    chat: {{discord: {{api_url: '{}'}}}}
",
        fake.url()
    ));
    let connect = |herd: &Herd, arguments: &[&str], code: i32| {
        let output = herd.command("connect").arg("discord").args(arguments).output().unwrap();
        let (out, said) = texts(&output);
        assert_eq!(output.status.code(), Some(code), "{out}{said}");
        assert!(!format!("{out}{said}").contains("of-the-bot"), "{out}{said}");
        format!("{out}{said}")
    };
    assert!(connect(&herd, &[], 2).contains("Message Content Intent"));
    herd.env.push(("DISCORD_BOT_TOKEN", discord::TOKEN.into()));
    fake.set_reads_content(false);
    let said = connect(&herd, &["--channel", "500"], 1);
    assert!(said.contains("Message Content Intent"), "{said}");
    fake.set_reads_content(true);
    let said = connect(&herd, &[], 2);
    assert!(
        said.contains("client_id=900000&scope=bot+applications.commands&permissions="),
        "{said}"
    );
    let said = connect(&herd, &["--channel", "500"], 0);
    assert!(said.contains("channels: [{id: '500', mode: mention}]"), "{said}");
    assert!(fake.posts()[0].text.contains("Heeler is connected"), "{:?}", fake.posts());
}
