//! `heeler connect`: set-up of platforms step by step.

use std::process::{Output, Stdio};

use heeler_testkit::{FakeGithub, FakeTelegram};

use crate::daemon_kills::Herd;
use crate::telegram::{ANN, TOKEN};

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
