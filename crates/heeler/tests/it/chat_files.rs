//! Files that people send to a bot reach the agent, within limits.

use heeler_engine::DaemonCommand;
use heeler_model::{JobRequest, MessageFile, MessageFiles};
use heeler_testkit::{FakeTelegram, FakeWebhook};
use serde_json::json;

use crate::daemon_kills::Herd;
use crate::telegram::{ANN, TOKEN};
use crate::trigger::wait_for;
use crate::{discord, slack, telegram};

/// Settings of an agent that takes small texts and pictures.
const TAKES: &str = "attachments: {enabled: true, max_file_size_mb: 1, max_files_per_message: 2, allowed_types: [text/*, image/*]}";

/// Shows the prompt, and the content of the received files.
const READER: &str =
    "{say: 'Prompt: {prompt}'}, {run: 'cat .*-attachments/job-*/*'}, {say: 'Read: {output}'}";

/// Returns the received files below the working directory, with their content.
fn received(herd: &Herd, folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for job in std::fs::read_dir(herd.fleet.file(folder)).into_iter().flatten().flatten() {
        for file in std::fs::read_dir(job.path()).into_iter().flatten().flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            found.push((name, std::fs::read_to_string(file.path()).unwrap()));
        }
    }
    found.sort();
    found
}

/// Returns all that the daemon and the agents wrote about their work.
fn written(herd: &Herd) -> String {
    let mut text = String::new();
    let mut folders = vec![herd.fleet.state_dir()];
    while let Some(folder) = folders.pop() {
        // The folder of a run may be removed meanwhile.
        for entry in folder.read_dir_utf8().into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path().to_owned()),
                Ok(kind) if kind.is_file() => {
                    let bytes = std::fs::read(entry.path()).unwrap_or_default();
                    text.push_str(&String::from_utf8_lossy(&bytes));
                }
                _ => {}
            }
        }
    }
    text
}

#[test]
fn a_file_on_telegram_reaches_the_agent_across_a_kill_and_the_token_reaches_nothing() {
    let telegram = FakeTelegram::start(TOKEN);
    let herd = telegram::herd_with(&telegram, READER, TAKES);
    // It makes the state directory.
    herd.begin(&[]).0.kill();
    let name = "../../etc/passwd\n.txt";
    telegram.send_document(ANN, "read this", (name, "text/plain"), b"hello file");
    // The file is stored when the daemon dies, and the run is not recorded.
    let mut life = herd.start(&["--fault", "files-received:1"]);
    wait_for("the death of the daemon", || life.has_ended().then_some(()));
    assert_eq!(received(&herd, ".telegram-attachments"), [("1.txt".into(), "hello file".into())]);
    let (_life, _client) = herd.begin(&[]);
    let posts = telegram::wait_for_posts(&telegram, 1);
    let text = &posts[0].text;
    assert!(text.contains("Read: hello file"), "{text}");
    assert_eq!(received(&herd, ".telegram-attachments"), [("1.txt".into(), "hello file".into())]);
    telegram::wait_until_posted(&herd);
    let jobs = telegram::jobs(&herd);
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    let job = herd.reader().job(&jobs[0].id).unwrap().unwrap();
    let prompt = job.prompt.unwrap();
    assert!(prompt.starts_with("read this\n\nFiles of this message."), "{prompt}");
    assert!(
        prompt.contains(&format!("\n- .telegram-attachments/{}/1.txt: \"", jobs[0].id)),
        "{prompt}"
    );
    assert!(!prompt.contains("passwd\n"), "{prompt}");
    assert_eq!(telegram.posts().len(), 1, "the message was answered twice");
    assert_eq!(telegram.file_fetches(), 1, "the file was fetched again");
    assert!(!written(&herd).contains("AAsecret-token_of-the-bot"), "the token is in a file");
}

#[test]
fn files_beyond_the_limits_are_left_out_with_the_reason() {
    let telegram = FakeTelegram::start(TOKEN);
    let herd = telegram::herd_with(&telegram, "{say: 'Prompt: {prompt}'}", TAKES);
    let (_life, _client) = herd.begin(&[]);
    let large = vec![b'x'; 1024 * 1024 + 1];
    let refused = [
        telegram.send_document(ANN, "", ("a.exe", "application/x-msdownload"), b"MZ"),
        telegram.send_document(ANN, "", ("big.txt", "text/plain"), &large),
    ];
    let posts = telegram::wait_for_posts(&telegram, 2);
    assert_eq!(
        telegram::texts(&posts),
        [
            "I cannot take this file. \"a.exe\": files of the type application/x-msdownload are not \
             taken (allowed_types)",
            "I cannot take this file. \"big.txt\": it has more than 1 MB (max_file_size_mb)",
        ]
    );
    for update in refused {
        let record = telegram::event(&herd, update).unwrap();
        assert_eq!((record.outcome.as_str(), record.job), ("refused", None));
    }
    // The text is worth a job without the file.
    telegram.send_document(ANN, "look", ("a.exe", "application/x-msdownload"), b"MZ");
    let posts = telegram::wait_for_posts(&telegram, 3);
    assert!(posts[2].text.contains("Prompt: look"), "{posts:?}");
    assert!(posts[2].text.contains("left out: \"a.exe\""), "{posts:?}");
    assert_eq!(telegram.file_fetches(), 0);
}

#[test]
fn files_on_slack_are_fetched_with_the_token_from_slack_only() {
    let (slack, other) = (slack::fake(), FakeWebhook::start());
    let herd = slack::herd_with(&slack, "{say: 'Prompt: {prompt}'}", TAKES);
    let (_life, _client) = herd.begin(&[]);
    slack.wait_for_sockets(1);
    let mut foreign = slack.add_file("foreign.txt", "text/plain", b"x");
    foreign["url_private_download"] = json!(format!("{}/steal", other.url()));
    let files = json!([slack.add_file("a.csv", "text/csv", b"1,2"), foreign]);
    let fields = json!({"subtype": "file_share", "files": files});
    slack.write(slack::ANN_DIRECT, slack::ANN, "compare", &fields);
    let posts = slack::wait_for_posts(&slack, 1);
    let text = &posts[0].text;
    assert!(text.contains("could not be received: Slack refused to fetch a file"), "{text}");
    assert!(text.contains("it is not on a host of the platform"), "{text}");
    assert_eq!(received(&herd, ".slack-attachments"), [("1.csv".into(), "1,2".into())]);
    assert!(other.received().is_empty(), "the token was sent to another host");

    // Slack shows its login page to an app without the scope.
    slack.set_scopes("chat:write");
    let files = json!([slack.add_file("b.csv", "text/csv", b"3,4")]);
    slack.write(slack::ANN_DIRECT, slack::ANN, "and this", &json!({"files": files}));
    let posts = slack::wait_for_posts(&slack, 2);
    assert!(posts[1].text.contains("lacks the scope files:read"), "{posts:?}");
    assert_eq!(slack.file_fetches(), 1);
}

#[test]
fn files_on_discord_stay_out_of_links_of_the_agent() {
    let discord = discord::fake();
    let quiet = "output: {progress_indicator: false, typing_indicator: false, acknowledge_emoji: '', max_posts: 1000}";
    let settings = format!("{quiet}\n        {TAKES}");
    let herd = discord::herd_with(&discord, "{say: 'Prompt: {prompt}'}", &settings);
    let outside = herd.fleet.file("outside");
    std::fs::create_dir(&outside).unwrap();
    let (_life, mut client) = herd.begin(&[]);
    // A client cannot make the daemon fetch anything.
    let fetched = MessageFile {
        name: "1.txt".to_owned(),
        media_type: "text/plain".to_owned(),
        source: discord.url(),
        is_voice: false,
    };
    let files = MessageFiles {
        platform: "discord".to_owned(),
        account: discord::BOT.to_owned(),
        folder: "any".to_owned(),
        bytes_max: 1,
        files: vec![fetched],
    };
    let request = JobRequest {
        prompt: Some("go".to_owned()),
        files: Some(Box::new(files)),
        ..JobRequest::new("coder".parse().unwrap())
    };
    let refused = client.send_command(&DaemonCommand::Trigger(Box::new(request)), None);
    let refused = format!("{:?}", refused.unwrap_err());
    assert!(refused.contains("only a chat message has files"), "{refused}");
    discord.wait_until_connected();
    let send = |text: &str| {
        let files = json!([discord.add_file("a.txt", "text/plain; charset=utf-8", b"one")]);
        discord.write(discord::ANN_DIRECT, discord::ANN, text, &json!({"attachments": files}))
    };
    send("");
    let posts = discord.wait_for("a post", |posts| posts.first().map(|_| posts.to_vec()));
    assert!(posts[0].text.contains("1.txt: \"a.txt\", text/plain, 3 bytes"), "{posts:?}");
    let folder = herd.fleet.file(".discord-attachments");
    assert_eq!(received(&herd, ".discord-attachments"), [("1.txt".into(), "one".into())]);
    assert_eq!(std::fs::read_to_string(folder.join(".gitignore")).unwrap(), "*\n");
    // An agent replaces the folder by a link that leads elsewhere.
    std::fs::remove_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink(&outside, &folder).unwrap();
    send("again");
    let posts = discord.wait_for("a post", |posts| (posts.len() > 1).then(|| posts.to_vec()));
    assert!(posts[1].text.contains("could not be received"), "{posts:?}");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn files_beyond_the_number_of_a_message_are_left_out_and_one_of_the_largest_size_is_taken() {
    let slack = slack::fake();
    let herd = slack::herd_with(&slack, "{say: 'Prompt: {prompt}'}", TAKES);
    let (_life, _client) = herd.begin(&[]);
    slack.wait_for_sockets(1);
    let largest = vec![b'x'; 1024 * 1024];
    let files = json!([
        slack.add_file("largest.txt", "text/plain", &largest),
        slack.add_file("two.txt", "text/plain", b"two"),
        slack.add_file("three.txt", "text/plain", b"three"),
    ]);
    let fields = json!({"subtype": "file_share", "files": files});
    slack.write(slack::ANN_DIRECT, slack::ANN, "compare", &fields);
    let text = slack::wait_for_posts(&slack, 1).remove(0).text;
    assert!(text.contains("\"three.txt\"") && text.contains("max_files_per_message"), "{text}");
    assert_eq!(slack.file_fetches(), 2, "a file that is left out is not fetched");
    let received = received(&herd, ".slack-attachments");
    let lengths: Vec<_> = received.iter().map(|(name, text)| (name.as_str(), text.len())).collect();
    assert_eq!(lengths, [("1.txt", largest.len()), ("2.txt", 3)]);
}

#[test]
fn a_path_in_a_message_is_text_and_attaches_no_file() {
    let telegram = FakeTelegram::start(TOKEN);
    let herd = telegram::herd_with(&telegram, "{say: 'Prompt: {prompt}'}", TAKES);
    herd.fleet.write("notes.txt", "the content of the notes");
    let (_life, _client) = herd.begin(&[]);
    telegram.say(ANN, "read @notes.txt and @../../etc/passwd and @/etc/passwd");
    let posts = telegram::wait_for_posts(&telegram, 1);
    // The post has a mark that keeps names from being mentions.
    let text = posts[0].text.replace('\u{2060}', "");
    assert_eq!(text, "Prompt: read @notes.txt and @../../etc/passwd and @/etc/passwd");
    assert!(received(&herd, ".telegram-attachments").is_empty());
    let job = herd.reader().job(&telegram::jobs(&herd)[0].id).unwrap().unwrap();
    let prompt = job.prompt.unwrap();
    assert!(!prompt.contains("the content of the notes") && !prompt.contains("root:"), "{prompt}");
}
