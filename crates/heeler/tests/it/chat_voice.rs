//! Voice messages of people: transcribed by the configured service before the job starts.

use heeler_model::JobStatus;
use heeler_testkit::{FakeTelegram, FakeTranscription};
use serde_json::json;

use crate::daemon_kills::Herd;
use crate::telegram::{self, ANN, TOKEN};
use crate::trigger::wait_for;
use crate::{discord, slack};

const KEY: &str = "sk-the-key-of-the-service";

/// Settings of an agent that transcribes.
fn voice(service: &FakeTranscription) -> String {
    format!(
        "voice: {{enabled: true, api_url: '{}', api_key_env: VOICE_KEY, model: whisper-x, \
         language: de, max_file_size_mb: 1}}",
        service.url()
    )
}

fn with_key(mut herd: Herd) -> Herd {
    herd.env.push(("VOICE_KEY", KEY.into()));
    herd
}

/// Waits until the only job has ended; returns its prompt, as the agent got it.
fn ended(herd: &Herd, status: JobStatus) -> String {
    wait_for("the end of the job", || {
        let jobs = telegram::jobs(herd);
        jobs.first().filter(|job| job.status.is_final()).map(|job| assert_eq!(job.status, status))
    });
    let job = herd.reader().job(&telegram::jobs(herd)[0].id).unwrap().unwrap();
    job.error.unwrap_or_default()
}

#[test]
fn a_voice_message_becomes_a_marked_text_across_a_kill() {
    let (telegram, service) = (FakeTelegram::start(TOKEN), FakeTranscription::start(KEY));
    let steps = "{say: 'Prompt: {prompt}'}";
    let herd = with_key(telegram::herd_with(&telegram, steps, &voice(&service)));
    // It makes the state directory.
    herd.begin(&[]).0.kill();
    service.fail_next(503);
    telegram.send_voice(ANN, "fix the build\nplease");
    let mut life = herd.start(&["--fault", "files-received:1"]);
    wait_for("the death of the daemon", || life.has_ended().then_some(()));
    let (_life, _client) = herd.begin(&[]);
    let posts = telegram::wait_for_posts(&telegram, 1);
    let said = &posts[0].text;
    assert!(said.contains("Prompt: I sent a voice message."), "{said}");
    assert!(said.contains("Transcript of the voice message, made by a program."), "{said}");
    // Telegram shows quoted lines without their marks.
    assert!(said.contains("fix the build") && said.contains("please"), "{said}");
    ended(&herd, JobStatus::Completed);
    assert_eq!(telegram::jobs(&herd).len(), 1);
    // The record has what the agent got, so `/retry` has it too.
    let job = herd.reader().job(&telegram::jobs(&herd)[0].id).unwrap().unwrap();
    assert!(job.prompt.unwrap().ends_with("\n\n> fix the build\n> please"));
    let received = service.received();
    assert_eq!(received.len(), 2, "one for each daemon: {received:?}");
    let fields = json!({"language": "de", "model": "whisper-x", "response_format": "json"});
    assert_eq!(json!(received[0].fields), fields);
    assert_eq!((&*received[0].file_name, &*received[0].media_type), ("voice.ogg", "audio/ogg"));
    assert_eq!(received[0].audio, "fix the build\nplease");
    assert!(!herd.fleet.file(".telegram-attachments").exists(), "the audio is not stored");
}

#[test]
fn a_failed_transcription_is_told_to_the_person_and_on_record() {
    let (telegram, service) = (FakeTelegram::start(TOKEN), FakeTranscription::start("another"));
    let steps = "{say: 'Prompt: {prompt}'}";
    let herd = with_key(telegram::herd_with(&telegram, steps, &voice(&service)));
    let (_life, _client) = herd.begin(&[]);
    telegram.send_voice(ANN, "fix the build");
    let posts = telegram::wait_for_posts(&telegram, 1);
    let said = &posts[0].text;
    assert!(said.contains("the voice message could not be transcribed"), "{said}");
    assert!(said.contains("does not accept the token in VOICE_KEY"), "{said}");
    assert!(!said.contains(KEY), "{said}");
    let error = ended(&herd, JobStatus::Failed);
    assert!(error.contains("could not be transcribed") && !error.contains(KEY), "{error}");
    assert_eq!(service.calls(), 1, "a refusal is not repeated");

    // A message that is too long is refused before anything is fetched.
    telegram.send_voice(ANN, &"x".repeat(1024 * 1024 + 1));
    let posts = telegram::wait_for_posts(&telegram, 2);
    assert!(posts[1].text.contains("it has more than 1 MB (voice.max_file_size_mb)"), "{posts:?}");
    assert_eq!((service.calls(), telegram.file_fetches()), (1, 1));
}

#[test]
fn voice_messages_on_slack_and_discord_are_recognized() {
    let service = FakeTranscription::start(KEY);
    let slack = slack::fake();
    let herd = with_key(slack::herd_with(&slack, "{say: 'Prompt: {prompt}'}", &voice(&service)));
    let (_life, _client) = herd.begin(&[]);
    slack.wait_for_sockets(1);
    let mut clip = slack.add_file("audio_message.m4a", "audio/mp4", b"hello slack");
    clip["subtype"] = json!("slack_audio");
    let fields = json!({"subtype": "file_share", "files": [clip]});
    slack.write(slack::ANN_DIRECT, slack::ANN, "", &fields);
    let posts = slack::wait_for_posts(&slack, 1);
    assert!(posts[0].text.contains("hello slack"), "{posts:?}");

    let discord = discord::fake();
    let quiet =
        "output: {progress_indicator: false, typing_indicator: false, acknowledge_emoji: ''}";
    let settings = format!("{quiet}\n        {}", voice(&service));
    let herd = with_key(discord::herd_with(&discord, "{say: 'Prompt: {prompt}'}", &settings));
    let (_life, _client) = herd.begin(&[]);
    discord.wait_until_connected();
    let file = discord.add_file("voice-message.ogg", "audio/ogg", b"hello discord");
    let fields = json!({"flags": 8192, "attachments": [file]});
    discord.write(discord::ANN_DIRECT, discord::ANN, "", &fields);
    discord.wait_for("the answer", |posts| {
        posts.iter().find(|post| post.text.contains("hello discord")).cloned()
    });
    assert_eq!(service.received().len(), 2);
}

#[test]
fn a_mention_that_comes_before_its_files_has_them() {
    let slack = slack::fake();
    let settings = "attachments: {enabled: true, allowed_types: [text/*]}";
    let steps =
        "{say: 'Prompt: {prompt}'}, {run: 'cat .*-attachments/job-*/*'}, {say: 'Read: {output}'}";
    let herd = slack::herd_with(&slack, steps, settings);
    let (_life, _client) = herd.begin(&[]);
    slack.wait_for_sockets(1);
    let files = json!([slack.add_file("a.txt", "text/plain", b"hello file")]);
    slack.mention_with_files(slack::CHANNEL, slack::BOB, "<@UBOT> read this", &files);
    let posts = slack::wait_for_posts(&slack, 1);
    assert!(posts[0].text.contains("Read: hello file"), "{posts:?}");
    slack.wait_until_delivered();
    assert_eq!(slack::jobs(&herd).len(), 1, "the two events are one message");
}
