//! Updates of Telegram as events.
//!
//! Start at [`parse_update`].

use serde_json::Value as Json;

use crate::chat_event::{ChatContent, ChatEvent, ChatPlace, ChatPlatform, ChatSender};
use crate::chat_file::ChatFile;
use crate::person_name::person_name;
use crate::telegram::TelegramUser;

/// Returns the event of an update; `None` if the update is of another kind.
pub fn parse_update(update: &Json, bot: &TelegramUser) -> Option<ChatEvent> {
    let event_id = update["update_id"].as_i64()?.to_string();
    let (message, from, content) = match update.get("callback_query") {
        Some(click) => {
            let message = &click["message"];
            let content = ChatContent::Click {
                message: message["message_id"].as_i64()?.to_string(),
                value: click["data"].as_str()?.to_owned(),
                callback: click["id"].as_str()?.to_owned(),
            };
            (message, &click["from"], content)
        }
        None => {
            let message = update.get("message")?;
            (message, &message["from"], message_content(message, bot)?)
        }
    };
    let chat = &message["chat"];
    let thread = message["message_thread_id"].as_i64();
    // Replies have a thread too; only topics are threads of their own.
    let thread = thread.filter(|_| message["is_topic_message"] == true);
    Some(ChatEvent {
        platform: ChatPlatform::Telegram,
        account: bot.id.clone(),
        event_id,
        place: ChatPlace {
            chat: chat["id"].as_i64()?.to_string(),
            thread: thread.map(|thread| thread.to_string()),
            is_direct: chat.pointer("/type").is_some_and(|kind| kind == "private"),
            person: None,
            server: None,
        },
        sender: ChatSender {
            id: from["id"].as_i64()?.to_string(),
            name: full_name(from),
            // Posts of channels and of hidden administrators come from bots of Telegram.
            is_bot: from["is_bot"] != false || message.get("sender_chat").is_some(),
            is_outsider: false,
        },
        content,
        earlier: Vec::new(),
    })
}

fn message_content(message: &Json, bot: &TelegramUser) -> Option<ChatContent> {
    let id = message["message_id"].as_i64()?.to_string();
    let is_reply = message["reply_to_message"]["from"]["id"].as_i64().map(|id| id.to_string())
        == Some(bot.id.clone());
    let text = message["text"].as_str().or(message["caption"].as_str()).unwrap_or_default();
    let files = message_files(message);
    let (text, is_mentioned) = take_mention(text, &bot.username);
    let addresses_bot = is_reply || is_mentioned;
    Some(match text.is_empty() && files.is_empty() {
        true => ChatContent::Wordless { addresses_bot },
        false => {
            let replies_to = message["reply_to_message"]["message_id"].as_i64();
            let replies_to = replies_to.map(|id| id.to_string());
            ChatContent::Message { id, text, addresses_bot, replies_to, files }
        }
    })
}

/// Kinds of media that are files, each with the type of those that have none.
const FILE_KINDS: [(&str, &str); 6] = [
    ("document", "application/octet-stream"),
    ("voice", "audio/ogg"),
    ("audio", "audio/mpeg"),
    ("video", "video/mp4"),
    ("video_note", "video/mp4"),
    ("animation", "video/mp4"),
];

/// Returns the file of a message. Each message has one at most: an album is several messages.
fn message_files(message: &Json) -> Vec<ChatFile> {
    // Pictures come in several sizes, the largest last.
    let sizes = message["photo"].as_array().and_then(|sizes| sizes.last());
    let picture = sizes.map(|picture| (picture, "image/jpeg"));
    // An animation is a document too.
    let media = FILE_KINDS.iter().find_map(|(key, kind)| Some((message.get(key)?, *kind)));
    let is_voice = message.get("voice").is_some();
    let found = picture.or(media).and_then(|(file, kind)| {
        let kind = file["mime_type"].as_str().unwrap_or(kind);
        let name = file["file_name"].as_str();
        let (bytes, id) = (file["file_size"].as_u64(), file["file_id"].as_str()?);
        Some(ChatFile::new(name, Some(kind), bytes, id).with_voice(is_voice))
    });
    found.into_iter().collect()
}

/// Removes the mention of the bot from a text; returns true if there was one.
fn take_mention(text: &str, username: &str) -> (String, bool) {
    let mention = format!("@{username}").to_ascii_lowercase();
    let lower = text.to_ascii_lowercase();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let found = lower.match_indices(&mention).map(|(at, _)| at).find(|at| {
        let after = lower[at + mention.len()..].chars().next();
        let before = lower[..*at].chars().next_back();
        !after.is_some_and(is_name) && !before.is_some_and(is_name)
    });
    let Some(at) = found else {
        // A command names the bot without a space.
        let is_command = text.starts_with('/') && lower.contains(&mention);
        return (text.trim().to_owned(), is_command);
    };
    // A mention in the middle is a part of the sentence.
    let (before, after) = (text[..at].trim(), text[at + mention.len()..].trim());
    let text = match (before, after) {
        ("", after) => after.to_owned(),
        (before, "") => before.to_owned(),
        _ => text.trim().to_owned(),
    };
    (text.trim_start_matches([',', ':']).trim().to_owned(), true)
}

fn full_name(from: &Json) -> String {
    let part = |key: &str| from[key].as_str().unwrap_or_default();
    let full = format!("{} {}", part("first_name"), part("last_name"));
    person_name(&full, &from["id"].to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bot() -> TelegramUser {
        TelegramUser { id: "99".to_owned(), username: "heeler_bot".to_owned() }
    }

    fn message(fields: Json) -> Json {
        let mut message = json!({
            "message_id": 7,
            "chat": {"id": -5, "type": "supergroup"},
            "from": {"id": 42, "is_bot": false, "first_name": "Ann", "last_name": "[x]\n"},
            "text": "hello",
        });
        for (key, value) in fields.as_object().unwrap() {
            message[key] = value.clone();
        }
        json!({"update_id": 1, "message": message})
    }

    fn text_of(update: &Json) -> (String, bool) {
        match parse_update(update, &bot()).unwrap().content {
            ChatContent::Message { text, addresses_bot, .. } => (text, addresses_bot),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_message_has_a_place_and_a_sender() {
        let event = parse_update(&message(json!({})), &bot()).unwrap();
        assert_eq!(event.place.channel(event.platform), "telegram/-5");
        assert_eq!((event.sender.id.as_str(), event.sender.name.as_str()), ("42", "Ann x"));
        assert!(!event.sender.is_bot && !event.place.is_direct);
        let nameless = json!({"from": {"id": 42, "is_bot": false}});
        assert_eq!(parse_update(&message(nameless), &bot()).unwrap().sender.name, "42");
        let topic = json!({"is_topic_message": true, "message_thread_id": 3});
        let event = parse_update(&message(topic), &bot()).unwrap();
        assert_eq!(event.place.channel(event.platform), "telegram/-5/3");
        let anonymous = json!({"sender_chat": {"id": -5}});
        assert!(parse_update(&message(anonymous), &bot()).unwrap().sender.is_bot);
    }

    #[test]
    fn a_mention_addresses_the_bot_and_is_removed_at_the_ends() {
        for (text, rest, addresses) in [
            ("hello", "hello", false),
            ("@heeler_bot fix it", "fix it", true),
            ("@Heeler_Bot: fix it", "fix it", true),
            ("fix it @heeler_bot", "fix it", true),
            ("may @heeler_bot fix it?", "may @heeler_bot fix it?", true),
            ("@heeler_bot2 fix it", "@heeler_bot2 fix it", false),
            ("mail me@heeler_bot", "mail me@heeler_bot", false),
            ("/stop@heeler_bot", "/stop@heeler_bot", true),
        ] {
            let (found, is_addressed) = text_of(&message(json!({"text": text})));
            assert_eq!((found.as_str(), is_addressed), (rest, addresses), "{text}");
        }
        let reply = json!({"reply_to_message": {"from": {"id": 99}}});
        assert!(text_of(&message(reply)).1);
    }

    #[test]
    fn other_updates_are_no_events_and_no_shape_is_fatal() {
        for update in [
            json!({}),
            json!({"update_id": 1}),
            json!({"update_id": 1, "edited_message": {"message_id": 1}}),
            json!({"update_id": 1, "message": 5}),
            json!({"update_id": 1, "callback_query": {"id": "x", "from": {"id": 1}}}),
            json!([1, 2]),
        ] {
            assert_eq!(parse_update(&update, &bot()), None, "{update}");
        }
        let picture = message(json!({"text": null, "photo": []}));
        let event = parse_update(&picture, &bot()).unwrap();
        assert_eq!(event.content, ChatContent::Wordless { addresses_bot: false });
    }
}
