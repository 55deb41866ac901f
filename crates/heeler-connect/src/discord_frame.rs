//! Frames of Discord's gateway as events.
//!
//! Start at [`DiscordFrame::parse`].

use std::collections::{HashMap, HashSet};

use serde_json::{Value as Json, json};

use crate::chat_event::{ChatContent, ChatEvent, ChatPlace, ChatPlatform, ChatSender};
use crate::chat_file::{ChatFile, FILES_MAX};
use crate::discord::{is_thread_type, snowflake};
use crate::person_name::person_name;

/// Events that the bot asks for: servers, messages in them, direct messages, and the content of
/// messages.
pub(crate) const INTENTS: u64 = 1 | 1 << 9 | 1 << 12 | 1 << 15;

/// Types of messages that people write: ordinary ones and replies.
const WRITTEN_TYPES: [u64; 2] = [0, 19];

/// Most channels and roles that are remembered.
const DIRECTORY_MAX: usize = 50_000;

/// A frame of the gateway.
#[derive(Debug, Clone, PartialEq)]
pub enum DiscordFrame {
    /// The first frame.
    Hello {
        heartbeat_ms: u64,
    },
    /// The gateway wants a heartbeat at once.
    HeartbeatRequest,
    HeartbeatAck,
    /// The gateway wants a new connection.
    Reconnect,
    InvalidSession {
        may_resume: bool,
    },
    /// An event with its number.
    Dispatch {
        seq: u64,
        event: DiscordDispatch,
    },
    /// A frame of another kind.
    Other,
}

/// An event of the gateway.
#[derive(Debug, Clone, PartialEq)]
pub enum DiscordDispatch {
    /// A session has begun.
    Ready {
        session: String,
        resume_url: String,
    },
    /// A session continues; all missed events were delivered.
    Resumed,
    Message(Json),
    /// A click on a button, or a command.
    Interaction(Json),
    /// Channels or roles changed.
    Directory(Json),
    Other,
}

impl DiscordFrame {
    pub fn parse(text: &str) -> DiscordFrame {
        let mut frame: Json = serde_json::from_str(text).unwrap_or_default();
        match frame["op"].as_u64() {
            Some(10) => match frame["d"]["heartbeat_interval"].as_u64() {
                // A lower interval would be a flood.
                Some(heartbeat_ms) => DiscordFrame::Hello { heartbeat_ms: heartbeat_ms.max(100) },
                None => DiscordFrame::Other,
            },
            Some(1) => DiscordFrame::HeartbeatRequest,
            Some(11) => DiscordFrame::HeartbeatAck,
            Some(7) => DiscordFrame::Reconnect,
            Some(9) => DiscordFrame::InvalidSession { may_resume: frame["d"] == true },
            Some(0) => match frame["s"].as_u64() {
                Some(seq) => {
                    let data = frame["d"].take();
                    let event = dispatch(frame["t"].as_str().unwrap_or_default(), data);
                    DiscordFrame::Dispatch { seq, event }
                }
                None => DiscordFrame::Other,
            },
            _ => DiscordFrame::Other,
        }
    }

    /// Returns the frame of a heartbeat.
    pub fn heartbeat(seq: Option<u64>) -> String {
        json!({"op": 1, "d": seq}).to_string()
    }
}

fn dispatch(kind: &str, data: Json) -> DiscordDispatch {
    match kind {
        "READY" => match (data["session_id"].as_str(), data["resume_gateway_url"].as_str()) {
            (Some(session), Some(url)) => {
                DiscordDispatch::Ready { session: session.to_owned(), resume_url: url.to_owned() }
            }
            _ => DiscordDispatch::Other,
        },
        "RESUMED" => DiscordDispatch::Resumed,
        "MESSAGE_CREATE" => DiscordDispatch::Message(data),
        "INTERACTION_CREATE" => DiscordDispatch::Interaction(data),
        "GUILD_CREATE" | "THREAD_CREATE" | "THREAD_LIST_SYNC" | "CHANNEL_CREATE"
        | "GUILD_ROLE_CREATE" | "GUILD_ROLE_UPDATE" => DiscordDispatch::Directory(data),
        _ => DiscordDispatch::Other,
    }
}

/// Flag of a voice message.
const VOICE_FLAG: u64 = 1 << 13;

fn attached_file(file: &Json, is_voice: bool) -> Option<ChatFile> {
    let (name, kind) = (file["filename"].as_str(), file["content_type"].as_str());
    let (bytes, url) = (file["size"].as_u64(), file["url"].as_str()?);
    Some(ChatFile::new(name, kind, bytes, url).with_voice(is_voice))
}

/// Channels and roles that the gateway has told about.
#[derive(Debug, Clone, Default)]
pub struct DiscordDirectory {
    /// ID of the bot's user.
    own: String,
    /// Channels that threads belong to; `None` for channels that are no threads.
    channels: HashMap<String, Option<String>>,
    /// Roles of the bot itself, which people mention instead of the bot.
    roles: HashSet<String>,
}

impl DiscordDirectory {
    pub fn new(own: &str) -> DiscordDirectory {
        DiscordDirectory { own: own.to_owned(), ..DiscordDirectory::default() }
    }

    /// Takes a server, channel, thread or role.
    pub fn add(&mut self, data: &Json) {
        if self.channels.len() + self.roles.len() >= DIRECTORY_MAX {
            self.channels.clear();
        }
        let lists = [&data["channels"], &data["threads"]];
        let all = lists.into_iter().filter_map(Json::as_array).flatten();
        all.chain([data]).for_each(|channel| self.add_channel(channel));
        let roles = data["roles"].as_array().into_iter().flatten().chain([&data["role"]]);
        for role in roles.filter(|role| role["tags"]["bot_id"] == self.own.as_str()) {
            self.roles.extend(role["id"].as_str().map(str::to_owned));
        }
    }

    fn add_channel(&mut self, channel: &Json) {
        let (Some(id), true) = (channel["id"].as_str(), channel["type"].is_u64()) else { return };
        let parent = channel["parent_id"].as_str().filter(|_| is_thread_type(&channel["type"]));
        self.set_channel(id, parent.map(str::to_owned));
    }

    /// Remembers the channel that a thread belongs to.
    pub fn set_channel(&mut self, id: &str, thread_of: Option<String>) {
        self.channels.insert(id.to_owned(), thread_of);
    }

    /// Returns true if the channel is known.
    pub fn knows_channel(&self, id: &str) -> bool {
        self.channels.contains_key(id)
    }

    /// Returns the account of the bot.
    pub(crate) fn account(&self) -> &str {
        &self.own
    }

    pub(crate) fn place(&self, data: &Json, sender: &str) -> Option<ChatPlace> {
        let channel = data["channel_id"].as_str()?.to_owned();
        let is_direct = data["guild_id"].is_null();
        let person = is_direct.then(|| sender.to_owned());
        let server = data["guild_id"].as_str().map(str::to_owned);
        Some(match self.channels.get(&channel).cloned().flatten() {
            Some(parent) if !is_direct => {
                ChatPlace { chat: parent, thread: Some(channel), is_direct, person, server }
            }
            _ => ChatPlace { chat: channel, thread: None, is_direct, person, server },
        })
    }

    /// Returns the event of a message, as the gateway or a list of messages contains it.
    pub fn message_event(&self, message: &Json) -> Option<ChatEvent> {
        let (id, author) = (message["id"].as_str()?, &message["author"]);
        let sender = author["id"].as_str()?;
        let is_written = message["type"].as_u64().is_some_and(|it| WRITTEN_TYPES.contains(&it));
        if sender == self.own || !is_written {
            return None;
        }
        let is_bot = author["bot"] == true || message["webhook_id"].is_string();
        let content = message["content"].as_str().unwrap_or_default();
        let (text, is_mentioned) = self.take_mention(message, content);
        let replied = &message["referenced_message"]["author"]["id"];
        let addresses_bot = is_mentioned || *replied == self.own.as_str();
        let replies_to = message["message_reference"]["message_id"].as_str().map(str::to_owned);
        let files = message["attachments"].as_array().into_iter().flatten().take(FILES_MAX);
        let is_voice = message["flags"].as_u64().is_some_and(|flags| flags & VOICE_FLAG != 0);
        let files = files.filter_map(|file| attached_file(file, is_voice));
        let files: Vec<ChatFile> = files.collect();
        let place = self.place(message, sender)?;
        let name = author["global_name"].as_str().or(author["username"].as_str());
        Some(ChatEvent {
            platform: ChatPlatform::Discord,
            account: self.own.clone(),
            event_id: discord_event_id(message["channel_id"].as_str()?, id),
            place,
            sender: ChatSender {
                id: sender.to_owned(),
                name: person_name(name.unwrap_or_default(), sender),
                is_bot,
                is_outsider: false,
            },
            content: match text.is_empty() && files.is_empty() {
                true => ChatContent::Wordless { addresses_bot },
                false => {
                    let id = id.to_owned();
                    ChatContent::Message { id, text, addresses_bot, replies_to, files }
                }
            },
            earlier: Vec::new(),
        })
    }

    /// Returns the event of a click on a button, or of a command.
    pub fn interaction_event(&self, interaction: &Json) -> Option<ChatEvent> {
        self.click_event(interaction).or_else(|| self.command_event(interaction))
    }

    fn click_event(&self, click: &Json) -> Option<ChatEvent> {
        // Type 3 is a click on a component.
        if click["type"] != 3 {
            return None;
        }
        // A click in a server has a member, a direct one a user.
        let user =
            if click["user"].is_object() { &click["user"] } else { &click["member"]["user"] };
        let (id, sender) = (click["id"].as_str()?, user["id"].as_str()?);
        let token = click["token"].as_str()?;
        // Both become parts of an address.
        if !is_address_part(id) || !is_address_part(token) {
            return None;
        }
        let name = user["global_name"].as_str().or(user["username"].as_str());
        Some(ChatEvent {
            platform: ChatPlatform::Discord,
            account: self.own.clone(),
            event_id: format!("click:{id}"),
            place: self.place(click, sender)?,
            sender: ChatSender {
                id: sender.to_owned(),
                name: person_name(name.unwrap_or_default(), sender),
                is_bot: user["bot"] == true,
                is_outsider: false,
            },
            content: ChatContent::Click {
                message: click["message"]["id"].as_str()?.to_owned(),
                value: click["data"]["custom_id"].as_str()?.to_owned(),
                callback: format!("{id}/{token}"),
            },
            earlier: Vec::new(),
        })
    }

    /// Removes the mention of the bot from a text, and shows other mentions as names. Returns true if
    /// the bot was mentioned.
    fn take_mention(&self, message: &Json, content: &str) -> (String, bool) {
        let users = message["mentions"].as_array().into_iter().flatten();
        let roles = message["mention_roles"].as_array().into_iter().flatten();
        let mut text = content.trim().to_owned();
        let mut own_marks = vec![format!("<@{}>", self.own), format!("<@!{}>", self.own)];
        let mut is_mentioned = own_marks.iter().any(|mark| text.contains(mark));
        for role in roles.filter_map(Json::as_str).filter(|role| self.roles.contains(*role)) {
            own_marks.push(format!("<@&{role}>"));
            is_mentioned = true;
        }
        for mark in &own_marks {
            // A mention in the middle is a part of the sentence.
            let rest = text.strip_prefix(mark).or_else(|| text.strip_suffix(mark));
            if let Some(rest) = rest {
                text = rest.trim().trim_start_matches([',', ':']).trim().to_owned();
            }
        }
        for user in users {
            let (Some(id), Some(name)) = (user["id"].as_str(), user["username"].as_str()) else {
                continue;
            };
            let name = format!("@{}", person_name(name, id));
            text = text.replace(&format!("<@{id}>"), &name).replace(&format!("<@!{id}>"), &name);
        }
        (text, is_mentioned)
    }
}

/// Returns true if a text does not change an address of which it becomes a part.
pub(crate) fn is_address_part(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

/// Returns the ID of the event of a message. The IDs of a channel sort in the order of its messages.
fn discord_event_id(channel: &str, message: &str) -> String {
    format!("{channel}:{:020}", snowflake(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> DiscordDirectory {
        let mut directory = DiscordDirectory::new("900");
        directory.add(&json!({
            "id": "1", "channels": [{"id": "10", "type": 0}],
            "threads": [{"id": "11", "type": 11, "parent_id": "10"}],
            "roles": [{"id": "70", "tags": {"bot_id": "900"}}, {"id": "71"}],
        }));
        directory
    }

    fn message(fields: Json) -> Json {
        let mut message = json!({
            "id": "500", "type": 0, "channel_id": "10", "guild_id": "1", "content": "hello",
            "author": {"id": "7", "username": "ann", "global_name": "Ann [x]"},
        });
        for (key, value) in fields.as_object().unwrap() {
            message[key] = value.clone();
        }
        message
    }

    fn text_of(fields: Json) -> (String, bool) {
        match directory().message_event(&message(fields)).unwrap().content {
            ChatContent::Message { text, addresses_bot, .. } => (text, addresses_bot),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_message_has_a_place_and_a_sender() {
        let event = directory().message_event(&message(json!({}))).unwrap();
        assert_eq!(event.place.channel(event.platform), "discord/10");
        assert_eq!(event.event_id, "10:00000000000000000500");
        assert_eq!((event.sender.id.as_str(), event.sender.name.as_str()), ("7", "Ann x"));
        let thread = directory().message_event(&message(json!({"channel_id": "11"}))).unwrap();
        assert_eq!(thread.place.channel(thread.platform), "discord/10/11");
        let direct = json!({"channel_id": "12", "guild_id": null});
        let direct = directory().message_event(&message(direct)).unwrap();
        assert!(direct.place.is_direct);
        assert_eq!(direct.place.person.as_deref(), Some("7"));
    }

    #[test]
    fn the_bot_is_addressed_by_name_role_or_reply() {
        let said = |text: &str| text_of(json!({"content": text}));
        assert_eq!(said("hello"), ("hello".to_owned(), false));
        assert_eq!(said("<@900>: fix it"), ("fix it".to_owned(), true));
        assert_eq!(said("fix it <@!900>"), ("fix it".to_owned(), true));
        let role = json!({"content": "<@&70> go", "mention_roles": ["70"]});
        assert_eq!(text_of(role), ("go".to_owned(), true));
        let foreign = json!({"content": "<@&71> go", "mention_roles": ["71"]});
        assert_eq!(text_of(foreign), ("<@&71> go".to_owned(), false));
        let reply = json!({"referenced_message": {"author": {"id": "900"}}, "type": 19});
        assert_eq!(text_of(reply), ("hello".to_owned(), true));
        let other = json!({"content": "ask <@8>", "mentions": [{"id": "8", "username": "bob"}]});
        assert_eq!(text_of(other), ("ask @bob".to_owned(), false));
    }

    #[test]
    fn what_no_person_wrote_is_no_event_and_no_shape_is_fatal() {
        for fields in [
            json!({"author": {"id": "900"}}),
            json!({"type": 7}),
            json!({"author": 5}),
            json!({"id": 5}),
            json!({"channel_id": null}),
        ] {
            assert_eq!(directory().message_event(&message(fields.clone())), None, "{fields}");
        }
        let bot = json!({"author": {"id": "8", "bot": true}});
        assert!(directory().message_event(&message(bot)).unwrap().sender.is_bot);
        for text in ["", "{", "5", "{}", r#"{"op":0}"#, r#"{"op":10,"d":{}}"#] {
            assert_eq!(DiscordFrame::parse(text), DiscordFrame::Other, "{text}");
        }
        let odd = json!({"type": 3, "id": "1", "token": "a/../b", "user": {"id": "7"},
                         "channel_id": "1", "message": {"id": "2"}, "data": {"custom_id": "x"}});
        assert_eq!(directory().click_event(&odd), None, "a token that would change the address");
    }
}
