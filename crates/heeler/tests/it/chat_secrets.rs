//! No secret of an agent or of the fleet is in a message, a file or an error of a chat platform.
//!
//! An agent prints a secret in its work, says it, asks a question with it, sends a file with it, answers with it
//! and fails with it, in several encodings. The platforms repeat the token of the bot in their errors.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use heeler_model::ApprovalStatus;
use heeler_store::ApprovalFilter;
use heeler_testkit::{
    DiscordFailure, FakeDiscord, FakeGithub, FakeSlack, FakeTelegram, GithubFailure, SlackFailure,
    TelegramFailure,
};
use serde_json::json;

use crate::daemon_kills::Herd;
use crate::telegram::wait_until_posted;
use crate::trigger::wait_for;
use crate::{discord, github_chat, slack, telegram};

/// A secret that the agent has.
const CANARY: &str = "canary-secret-0123456789";

/// Text that stands for a secret.
const HIDDEN: &str = "[secret]";

/// A platform on which an agent with a secret answers.
enum LeakyChat {
    Telegram(FakeTelegram),
    Slack(FakeSlack),
    Discord(FakeDiscord),
    Github(FakeGithub),
}

/// Returns the secret in the forms in which the agent prints it.
fn forms() -> [String; 3] {
    let hex = CANARY.bytes().map(|byte| format!("{byte:02x}")).collect();
    [CANARY.to_owned(), STANDARD.encode(CANARY), hex]
}

/// Returns what the agent does for each message. It knows the secret from its environment.
fn steps() -> String {
    let print = "echo $CANARY_SECRET $(printf %s $CANARY_SECRET | base64) \
                 $(printf %s $CANARY_SECRET | od -An -v -tx1 | tr -d ' \\n')";
    let print = serde_json::to_string(print).unwrap();
    let leak = forms().join(" ");
    format!(
        "{{when: {{prompt: break}}, \
         do: [{{error: invalid_request, message: 'It broke: {leak}'}}], \
         else: [{{when: {{prompt: finish}}, do: [{{run: {print}}}, {{say: 'The end: {{output}}'}}], \
         else: [{{run: {print}}}, {{say: 'Half done: {{output}}'}}, \
         {{run: 'echo $CANARY_SECRET > leak.txt'}}, \
         {{call: mcp__heeler-files__send_file, input: {{file_path: leak.txt}}}}, \
         {{run: 'echo {leak} > kept', ask_permission: true}}, \
         {{run: {print}}}, {{say: 'All done: {{output}}'}}]}}]}}"
    )
}

impl LeakyChat {
    /// Returns a fleet whose agent has the secret.
    fn herd(&self) -> Herd {
        let of_agent = "    secrets: [CANARY_SECRET]";
        let card = "output: {tool_results: true}";
        let settings = format!("{card}\n{of_agent}");
        let steps = steps();
        let mut herd = match self {
            LeakyChat::Telegram(fake) => telegram::herd_with(
                fake,
                &steps,
                &format!("output: {{result_summary: true}}\n{of_agent}"),
            ),
            LeakyChat::Slack(fake) => slack::herd_with(fake, &steps, &settings),
            LeakyChat::Discord(fake) => {
                let all = "output: {tool_results: true, assistant_messages: all}";
                discord::herd_with(fake, &steps, &format!("{all}\n{of_agent}"))
            }
            LeakyChat::Github(fake) => {
                github_chat::herd(fake, &steps, &format!("poll_seconds: 1\n{of_agent}"))
            }
        };
        herd.env.push(("CANARY_SECRET", CANARY.to_owned()));
        herd
    }

    /// Lets a person who may talk and answer write to the agent.
    fn say(&self, text: &str) {
        match self {
            LeakyChat::Telegram(fake) => {
                let _message = fake.say(telegram::ANN, text);
            }
            LeakyChat::Slack(fake) => {
                let _message = fake.say(slack::CHANNEL, slack::ANN, &format!("<@UBOT> {text}"));
            }
            LeakyChat::Discord(fake) => {
                let _message = fake.say(discord::ANN_DIRECT, discord::ANN, text);
            }
            LeakyChat::Github(fake) => {
                let text = format!("@heeler-user {text}");
                let _comment = fake.write_comment(github_chat::REPO, 7, github_chat::ANN, &text);
            }
        }
    }

    /// Returns everything that people see.
    fn shown(&self) -> String {
        match self {
            LeakyChat::Telegram(fake) => format!("{:#?}", fake.posts()),
            LeakyChat::Slack(fake) => format!("{:#?} {:#?}", fake.posts(), fake.whispers()),
            LeakyChat::Discord(fake) => format!("{:#?}", fake.posts()),
            LeakyChat::Github(fake) => format!("{:#?}", fake.comments(github_chat::REPO, 7)),
        }
    }

    /// Lets the platform refuse the next post, with the token of the bot in the reason.
    fn refuse_next_post(&self) {
        match self {
            LeakyChat::Telegram(fake) => fake.fail_next(TelegramFailure {
                method: "sendMessage",
                status: 400,
                description: telegram::TOKEN,
                retry_after: None,
                is_executed: false,
            }),
            LeakyChat::Slack(fake) => fake.fail_next(SlackFailure {
                method: "chat.postMessage",
                status: 200,
                error: slack::BOT_TOKEN,
                retry_after: None,
                is_executed: false,
            }),
            LeakyChat::Discord(fake) => fake.fail_next(DiscordFailure {
                call: "POST /channels/71/messages",
                status: 400,
                headers: Vec::new(),
                body: json!({"message": discord::TOKEN, "code": 50035}),
                is_executed: false,
            }),
            LeakyChat::Github(fake) => fake.fail_next(GithubFailure {
                call: "POST /repos/acme/app/issues/7/comments",
                status: 422,
                headers: Vec::new(),
                body: json!({"message": github_chat::TOKEN}),
                is_executed: false,
            }),
        }
    }

    /// Returns the token of the bot.
    fn token(&self) -> &'static str {
        match self {
            LeakyChat::Telegram(_) => telegram::TOKEN,
            LeakyChat::Slack(_) => slack::BOT_TOKEN,
            LeakyChat::Discord(_) => discord::TOKEN,
            LeakyChat::Github(_) => github_chat::TOKEN,
        }
    }

    /// Waits until people see a text, and checks that they see no secret with it.
    #[track_caller]
    fn wait_for_text(&self, text: &str) {
        let shown = wait_for(text, || Some(self.shown()).filter(|shown| shown.contains(text)));
        self.check(&shown);
    }

    #[track_caller]
    fn check(&self, text: &str) {
        for secret in forms().iter().map(String::as_str).chain([self.token()]) {
            assert!(!text.contains(secret), "{secret} is shown: {text}");
        }
    }
}

/// Lets an agent with a secret show it wherever it can.
#[track_caller]
fn check_platform(chat: &LeakyChat) {
    let herd = chat.herd();
    let (_life, _client) = herd.begin(&[]);
    match chat {
        LeakyChat::Slack(fake) => fake.wait_for_sockets(1),
        LeakyChat::Discord(fake) => fake.wait_until_connected(),
        LeakyChat::Github(fake) => github_chat::wait_for_a_look(fake),
        // Telegram keeps what no daemon has received.
        LeakyChat::Telegram(_) => {}
    }
    chat.say("go");
    chat.wait_for_text("May I use Bash?");
    // The job waits, so it gets a card with its work.
    if !matches!(chat, LeakyChat::Github(_)) {
        chat.wait_for_text("Half done");
    }
    deny(&herd);
    chat.wait_for_text("All done");
    wait_until_posted(&herd);
    chat.say("break");
    chat.wait_for_text("It broke");
    wait_until_posted(&herd);
    let shown = chat.shown();
    chat.check(&shown);
    assert!(shown.contains(HIDDEN), "the agent has shown its secret: {shown}");
    assert!(!shown.contains("leak.txt` of"), "a file with a secret is posted: {shown}");

    chat.refuse_next_post();
    chat.say("finish");
    wait_for("the end of all jobs", || {
        let jobs = herd.jobs();
        (jobs.len() == 3 && jobs.iter().all(|job| job.status.is_final())).then_some(())
    });
    wait_until_posted(&herd);
    assert!(!chat.shown().contains("The end"), "the platform refused the answer");
    for command in ["status", "messages", "jobs"] {
        let output = herd.command(command).output().unwrap();
        chat.check(&String::from_utf8_lossy(&output.stdout));
        chat.check(&String::from_utf8_lossy(&output.stderr));
    }
    assert!(herd.dir().logs().join("heeler.log").exists(), "there are files to search");
    check_files(chat, herd.fleet.state_dir().as_std_path());
}

/// Denies the only question, as a person in a terminal.
#[track_caller]
fn deny(herd: &Herd) {
    let asked = herd.reader().approvals(&ApprovalFilter::default(), None, 9).unwrap();
    let pending = asked.iter().find(|it| it.status == ApprovalStatus::Pending).unwrap();
    let output =
        herd.command("approvals").args(["reject", &pending.id.to_string()]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Checks that no file below a folder has a secret in it. The agent's own files are elsewhere.
fn check_files(chat: &LeakyChat, folder: &Path) {
    // The folder of a run may be removed meanwhile.
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            check_files(chat, &path);
        } else if path.is_file() {
            let bytes = std::fs::read(&path).unwrap_or_default();
            for secret in forms().iter().map(String::as_str).chain([chat.token()]) {
                let mut places = bytes.windows(secret.len());
                let is_found = places.any(|place| place == secret.as_bytes());
                assert!(!is_found, "{secret} is in {}", path.display());
            }
        }
    }
}

#[test]
fn no_secret_of_an_agent_is_shown_on_telegram() {
    check_platform(&LeakyChat::Telegram(FakeTelegram::start(telegram::TOKEN)));
}

#[test]
fn no_secret_of_an_agent_is_shown_on_slack() {
    let fake = slack::fake();
    fake.set_scopes("chat:write,files:write");
    check_platform(&LeakyChat::Slack(fake));
}

#[test]
fn no_secret_of_an_agent_is_shown_on_discord() {
    check_platform(&LeakyChat::Discord(discord::fake()));
}

#[test]
fn no_secret_of_an_agent_is_shown_on_github() {
    check_platform(&LeakyChat::Github(github_chat::fake()));
}
