//! Frames of Slack's Socket Mode as events.
//!
//! Start at [`SlackFrame::parse`].

use serde_json::{Value as Json, json};

use crate::bot_command::BotCommand;
use crate::chat_event::{ChatContent, ChatEvent, ChatPlace, ChatPlatform, ChatSender};
use crate::chat_file::{ChatFile, FILES_MAX};
use crate::person_name::person_name;
use crate::slack::SlackUser;
use crate::slack_text::{plain_text, render_slack};

/// Kinds of messages that people write. Others tell that someone joined, or that a message changed.
const WRITTEN_SUBTYPES: [&str; 2] = ["thread_broadcast", "file_share"];

/// A frame of a socket.
#[derive(Debug, Clone, PartialEq)]
pub enum SlackFrame {
    /// The socket is ready.
    Hello,
    /// Slack will close the socket.
    Disconnect { reason: String },
    /// An envelope that must be acknowledged.
    Envelope {
        id: String,
        /// The event in it; `None` if it is of another kind.
        event: Option<Box<ChatEvent>>,
        /// True for a mention without files. The message itself may have some.
        may_lack_files: bool,
    },
    /// A frame of another kind.
    Other,
}

impl SlackFrame {
    /// Parses a frame. `account` is the account under which events are recorded.
    pub fn parse(text: &str, own: &SlackUser, account: &str) -> SlackFrame {
        let frame: Json = serde_json::from_str(text).unwrap_or_default();
        match frame["type"].as_str() {
            Some("hello") => SlackFrame::Hello,
            Some("disconnect") => {
                let reason = frame["reason"].as_str().unwrap_or("unknown").to_owned();
                SlackFrame::Disconnect { reason }
            }
            Some(kind) => match frame["envelope_id"].as_str() {
                Some(id) => {
                    let (event, may_lack_files) =
                        payload_event(kind, &frame["payload"], own, account);
                    let event = event.map(Box::new);
                    SlackFrame::Envelope { id: id.to_owned(), event, may_lack_files }
                }
                None => SlackFrame::Other,
            },
            None => SlackFrame::Other,
        }
    }

    /// Returns the frame that acknowledges an envelope.
    pub fn acknowledgement(envelope: &str) -> String {
        json!({"envelope_id": envelope}).to_string()
    }

    /// Returns the frame that acknowledges a command, with an answer that only the person sees.
    pub fn command_answer(envelope: &str, text: &str) -> String {
        let payload = json!({"response_type": "ephemeral", "text": render_slack(text)});
        json!({"envelope_id": envelope, "payload": payload}).to_string()
    }
}

/// Returns the event in a payload, and true for a mention without files. `kind` is that of an envelope.
pub fn payload_event(
    kind: &str,
    payload: &Json,
    own: &SlackUser,
    account: &str,
) -> (Option<ChatEvent>, bool) {
    let event = match kind {
        "events_api" => message_event(&payload["event"], own, account),
        "interactive" => click_event(payload, account),
        "slash_commands" => command_event(payload, account),
        _ => None,
    };
    let mention = &payload["event"];
    (event, mention["type"] == "app_mention" && !mention["files"].is_array())
}

/// Returns the event of a message, as a socket or a list of messages contains it.
pub fn message_event(message: &Json, own: &SlackUser, account: &str) -> Option<ChatEvent> {
    if !matches!(message["type"].as_str(), Some("message" | "app_mention")) {
        return None;
    }
    let is_written =
        message["subtype"].as_str().is_none_or(|subtype| WRITTEN_SUBTYPES.contains(&subtype));
    let (channel, ts) = (message["channel"].as_str()?, message["ts"].as_str()?);
    let sender = message["user"].as_str()?;
    if !is_written || sender == own.id {
        return None;
    }
    let is_direct = message["channel_type"] == "im" || channel.starts_with('D');
    let thread = message["thread_ts"].as_str();
    let replies_to = thread.filter(|root| *root != ts).map(str::to_owned);
    // A message in a channel is the root of a thread, to which the answer belongs.
    let thread = thread.or((!is_direct).then_some(ts));
    let text = message["text"].as_str().unwrap_or_default();
    let (text, addresses_bot) = take_mention(text, &own.id);
    let files = message["files"].as_array().into_iter().flatten().take(FILES_MAX);
    let files: Vec<ChatFile> = files.map(shared_file).collect();
    let content = match text.is_empty() && files.is_empty() {
        true => ChatContent::Wordless { addresses_bot },
        false => ChatContent::Message { id: ts.to_owned(), text, addresses_bot, replies_to, files },
    };
    Some(ChatEvent {
        platform: ChatPlatform::Slack,
        account: account.to_owned(),
        // A mention is delivered twice, as a mention and as a message.
        event_id: format!("{channel}:{ts}"),
        place: ChatPlace {
            chat: channel.to_owned(),
            thread: thread.map(str::to_owned),
            is_direct,
            person: is_direct.then(|| sender.to_owned()),
            server: None,
        },
        sender: ChatSender {
            id: sender.to_owned(),
            name: sender.to_owned(),
            is_bot: message["bot_id"].is_string(),
            is_outsider: false,
        },
        content,
        earlier: Vec::new(),
    })
}

/// Returns a file of a message. Without an address, it is refused when it is fetched.
fn shared_file(file: &Json) -> ChatFile {
    let source = file["url_private_download"].as_str().or(file["url_private"].as_str());
    ChatFile::new(
        file["name"].as_str(),
        file["mimetype"].as_str(),
        file["size"].as_u64(),
        source.unwrap_or_default(),
    )
    .with_voice(file["subtype"] == "slack_audio")
}

fn click_event(payload: &Json, account: &str) -> Option<ChatEvent> {
    if payload["type"] != "block_actions" {
        return None;
    }
    let (channel, message) = (payload["channel"]["id"].as_str()?, &payload["message"]);
    let (ts, trigger) = (message["ts"].as_str()?, payload["trigger_id"].as_str()?);
    let user = payload["user"]["id"].as_str()?;
    let thread = message["thread_ts"].as_str().or(payload["container"]["thread_ts"].as_str());
    let is_direct = channel.starts_with('D');
    let name = payload["user"]["name"].as_str().or(payload["user"]["username"].as_str());
    Some(ChatEvent {
        platform: ChatPlatform::Slack,
        account: account.to_owned(),
        event_id: format!("click:{trigger}"),
        place: ChatPlace {
            chat: channel.to_owned(),
            thread: thread.map(str::to_owned),
            is_direct,
            person: is_direct.then(|| user.to_owned()),
            server: None,
        },
        sender: ChatSender {
            id: user.to_owned(),
            name: person_name(name.unwrap_or_default(), user),
            is_bot: false,
            is_outsider: false,
        },
        content: ChatContent::Click {
            message: ts.to_owned(),
            value: payload["actions"][0]["value"].as_str()?.to_owned(),
            callback: trigger.to_owned(),
        },
        earlier: Vec::new(),
    })
}

/// Returns the event of a command. The first word after it names one of the fleet's commands, unless the
/// command itself does.
pub(crate) fn command_event(payload: &Json, account: &str) -> Option<ChatEvent> {
    let (channel, user) = (payload["channel_id"].as_str()?, payload["user_id"].as_str()?);
    let (name, trigger) = (payload["command"].as_str()?, payload["trigger_id"].as_str()?);
    let words = plain_text(payload["text"].as_str().unwrap_or_default());
    let named = format!("{name} {words}");
    let text = match (BotCommand::parse(&named), words.trim()) {
        (Some(_), _) => named.trim().to_owned(),
        (None, "") => "/help".to_owned(),
        (None, words) => words.to_owned(),
    };
    let is_direct = channel.starts_with('D');
    Some(ChatEvent {
        platform: ChatPlatform::Slack,
        account: account.to_owned(),
        event_id: format!("command:{trigger}"),
        place: ChatPlace {
            chat: channel.to_owned(),
            // Slack does not tell the thread.
            thread: None,
            is_direct,
            person: is_direct.then(|| user.to_owned()),
            server: None,
        },
        sender: ChatSender {
            id: user.to_owned(),
            name: person_name(payload["user_name"].as_str().unwrap_or_default(), user),
            is_bot: false,
            is_outsider: false,
        },
        content: ChatContent::Command { text, callback: trigger.to_owned() },
        earlier: Vec::new(),
    })
}

/// Removes the mention of the app from a text, and undoes the markup of Slack. Returns true if there
/// was a mention.
fn take_mention(text: &str, own: &str) -> (String, bool) {
    let mention = format!("<@{own}>");
    let is_mentioned = text.contains(&mention);
    let trimmed = text.trim();
    // A mention in the middle is a part of the sentence.
    let rest = trimmed.strip_prefix(&mention).or_else(|| trimmed.strip_suffix(&mention));
    let rest = rest.unwrap_or(trimmed).trim().trim_start_matches([',', ':']).trim();
    (plain_text(rest), is_mentioned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> SlackUser {
        SlackUser { id: "UBOT".into(), name: "heeler".into(), team: "Acme".into() }
    }

    fn event(message: Json) -> Option<ChatEvent> {
        message_event(&message, &own(), "a")
    }

    #[test]
    fn a_mention_and_its_message_are_one_event() {
        let message = |kind: &str| {
            json!({"type": kind, "channel": "C1", "user": "U1", "ts": "1731.000100",
                   "text": "<@UBOT> fix &lt;it&gt;", "channel_type": "channel"})
        };
        let (one, other) =
            (event(message("message")).unwrap(), event(message("app_mention")).unwrap());
        assert_eq!(one, other);
        assert_eq!(one.event_id, "C1:1731.000100");
        assert_eq!(one.place.channel(one.platform), "slack/C1/1731.000100");
        let ChatContent::Message { text, addresses_bot, .. } = one.content else {
            panic!("no text")
        };
        assert_eq!((text.as_str(), addresses_bot), ("fix <it>", true));
    }

    #[test]
    fn a_direct_message_has_no_thread_and_a_reply_keeps_its_own() {
        let direct = json!({"type": "message", "channel": "D1", "user": "U1", "ts": "1.1",
                            "text": "hi", "channel_type": "im"});
        assert_eq!(event(direct).unwrap().place.channel(ChatPlatform::Slack), "slack/D1");
        let reply = json!({"type": "message", "channel": "C1", "user": "U1", "ts": "2.1",
                           "thread_ts": "1.1", "text": "hi"});
        assert_eq!(event(reply).unwrap().place.channel(ChatPlatform::Slack), "slack/C1/1.1");
    }

    #[test]
    fn what_no_person_wrote_is_no_event() {
        for message in [
            json!({"type": "message", "subtype": "channel_join", "channel": "C1", "user": "U1", "ts": "1.1"}),
            json!({"type": "message", "subtype": "message_changed", "channel": "C1", "ts": "1.1"}),
            json!({"type": "message", "channel": "C1", "user": "UBOT", "ts": "1.1", "text": "mine"}),
            json!({"type": "reaction_added", "user": "U1"}),
            json!(5),
        ] {
            assert_eq!(event(message.clone()), None, "{message}");
        }
        let bot = json!({"type": "message", "channel": "C1", "user": "U2", "bot_id": "B2", "ts": "1.1", "text": "x"});
        assert!(event(bot).unwrap().sender.is_bot);
    }

    #[test]
    fn a_command_is_its_first_word_or_its_name() {
        let text = |command: &str, words: &str| {
            let payload = json!({"command": command, "text": words, "trigger_id": "1.2",
                                 "channel_id": "C1", "user_id": "U1", "user_name": "ann"});
            match command_event(&payload, "A1").unwrap().content {
                ChatContent::Command { text, .. } => text,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(text("/heeler", "status"), "status");
        assert_eq!(text("/heeler", ""), "/help");
        assert_eq!(text("/heeler", " approve ask-1 "), "approve ask-1");
        assert_eq!(text("/heeler", "coder: stop"), "coder: stop");
        assert_eq!(text("/stop", ""), "/stop");
        assert_eq!(text("/approve", "ask-1"), "/approve ask-1");
    }

    #[test]
    fn no_frame_is_fatal() {
        for text in ["", "{", "5", "{}", r#"{"type":"events_api"}"#] {
            assert_eq!(SlackFrame::parse(text, &own(), "a"), SlackFrame::Other, "{text}");
        }
        let odd = r#"{"type":"from_the_future","envelope_id":"e1"}"#;
        let expected = SlackFrame::Envelope { id: "e1".into(), event: None, may_lack_files: false };
        assert_eq!(SlackFrame::parse(odd, &own(), "a"), expected);
    }
}
