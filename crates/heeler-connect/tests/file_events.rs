//! Files in the events of each platform.
#![expect(clippy::unwrap_used, reason = "tests")]

use heeler_connect::{
    ChatContent, ChatEvent, ChatFile, DiscordDirectory, SlackUser, TelegramUser, message_event,
    parse_update,
};
use serde_json::{Value as Json, json};

fn content(event: Option<ChatEvent>) -> (String, Vec<ChatFile>) {
    match event.unwrap().content {
        ChatContent::Message { text, files, .. } => (text, files),
        other => panic!("{other:?}"),
    }
}

fn file(name: &str, media_type: &str, bytes: Option<u64>, source: &str) -> ChatFile {
    let (name, media_type, source) = (name.into(), media_type.into(), source.into());
    ChatFile { name, media_type, bytes, source, is_voice: false }
}

fn telegram(fields: &Json) -> Option<ChatEvent> {
    let mut message = json!({
        "message_id": 7, "chat": {"id": 42, "type": "private"},
        "from": {"id": 42, "is_bot": false, "first_name": "Ann"},
    });
    for (key, value) in fields.as_object().unwrap() {
        message[key] = value.clone();
    }
    let bot = TelegramUser { id: "99".to_owned(), username: "heeler_bot".to_owned() };
    parse_update(&json!({"update_id": 5, "message": message}), &bot)
}

#[test]
fn a_message_on_telegram_has_the_largest_picture_or_one_file() {
    let sizes =
        json!([{"file_id": "small", "file_size": 9}, {"file_id": "large", "file_size": 99}]);
    let (text, files) = content(telegram(&json!({"photo": sizes, "caption": "@heeler_bot what?"})));
    assert_eq!(text, "what?");
    assert_eq!(files, [file("unnamed", "image/jpeg", Some(99), "large")]);
    let voice = json!({"voice": {"file_id": "v1", "duration": 3}});
    let spoken = ChatFile { is_voice: true, ..file("unnamed", "audio/ogg", None, "v1") };
    assert_eq!(content(telegram(&voice)).1, [spoken]);
    let document = json!({"document": {"file_id": "d1", "file_name": "a.PDF", "mime_type": "application/PDF"}});
    assert_eq!(content(telegram(&document)).1, [file("a.PDF", "application/pdf", None, "d1")]);
    // A place is no file, and neither is a document without an ID.
    for fields in [json!({"location": {}}), json!({"document": {"file_name": "x"}})] {
        let event = telegram(&fields).unwrap();
        assert_eq!(event.content, ChatContent::Wordless { addresses_bot: false }, "{fields}");
    }
}

#[test]
fn messages_on_slack_and_discord_have_their_files() {
    let own = SlackUser { id: "UBOT".into(), name: "heeler".into(), team: "Acme".into() };
    let shared = json!([
        {"name": "a.png", "mimetype": "image/png", "size": 5, "url_private": "https://files.slack.com/a",
         "url_private_download": "https://files.slack.com/download/a"},
        {"id": "F2", "file_access": "check_file_info"},
        5,
    ]);
    let message = json!({"type": "message", "subtype": "file_share", "channel": "D1", "user": "U1",
                         "ts": "1.1", "text": "", "files": shared});
    let (text, files) = content(message_event(&message, &own, "A1"));
    let unknown = file("unnamed", "application/octet-stream", None, "");
    let picture = file("a.png", "image/png", Some(5), "https://files.slack.com/download/a");
    assert_eq!((text.as_str(), files), ("", vec![picture, unknown.clone(), unknown]));

    let attached = json!([
        {"filename": "b.txt", "content_type": "text/plain; charset=utf-8", "size": 7, "url": "https://cdn.discordapp.com/b"},
        {"filename": "no address"},
    ]);
    let message = json!({"id": "1", "type": 0, "channel_id": "71", "content": "look", "attachments": attached,
                         "author": {"id": "7", "username": "ann"}});
    let (text, files) = content(DiscordDirectory::new("900").message_event(&message));
    let expected = file("b.txt", "text/plain", Some(7), "https://cdn.discordapp.com/b");
    assert_eq!((text.as_str(), files), ("look", vec![expected]));
}

#[test]
fn a_message_has_no_more_files_than_are_looked_at() {
    let own = SlackUser { id: "UBOT".into(), name: "heeler".into(), team: "Acme".into() };
    let message = json!({"type": "message", "channel": "D1", "user": "U1", "ts": "1.1", "text": "x",
                         "files": vec![json!({"name": "a"}); 1_000]});
    assert_eq!(content(message_event(&message, &own, "A1")).1.len(), 50);
}
