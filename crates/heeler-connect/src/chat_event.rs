//! Events of chat platforms in one form.
//!
//! Start at [`ChatEvent`].

use serde::{Deserialize, Serialize};

use crate::chat_file::ChatFile;
use crate::earlier_message::EarlierMessage;

heeler_config::words! {
    /// A chat platform.
    pub enum ChatPlatform ("chat platform") {
        /// Telegram, by its Bot API.
        Telegram = "telegram",
        /// Slack, by its Web API and Socket Mode.
        Slack = "slack",
        /// Discord, by its REST API and gateway.
        Discord = "discord",
        /// GitHub, by its REST API.
        Github = "github",
    }
}

impl ChatPlatform {
    /// Returns the name for people.
    pub fn title(self) -> &'static str {
        match self {
            ChatPlatform::Telegram => "Telegram",
            ChatPlatform::Slack => "Slack",
            ChatPlatform::Discord => "Discord",
            ChatPlatform::Github => "GitHub",
        }
    }

    /// Returns true if a thread is a conversation that a message begins. Otherwise threads are rooms of
    /// their own, such as topics.
    pub fn has_reply_threads(self) -> bool {
        match self {
            ChatPlatform::Telegram => false,
            ChatPlatform::Slack | ChatPlatform::Discord | ChatPlatform::Github => true,
        }
    }

    /// Returns true if a person who takes part in a thread addresses others too, so that a message in it
    /// must mention the bot.
    pub fn has_public_threads(self) -> bool {
        self == ChatPlatform::Github
    }
}

/// An event that a platform delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatEvent {
    pub platform: ChatPlatform,
    /// Account of the bot that received it.
    pub account: String,
    /// Identifies the event among all of the account. A repeated delivery has the same ID.
    pub event_id: String,
    pub place: ChatPlace,
    pub sender: ChatSender,
    pub content: ChatContent,
    /// Messages of people before this one, oldest first, for a conversation that begins with it.
    pub earlier: Vec<EarlierMessage>,
}

/// Place of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatPlace {
    /// ID of the chat or channel.
    pub chat: String,
    /// ID of the thread within it.
    pub thread: Option<String>,
    /// True if only the sender and the bot read it.
    pub is_direct: bool,
    /// Person of a direct conversation, if the ID of the chat is not the ID of the person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub person: Option<String>,
    /// Server that the chat belongs to, on platforms with servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
}

impl ChatPlace {
    /// Returns a chat of Telegram without a thread. Groups have negative IDs.
    pub fn of_telegram(chat: &str) -> ChatPlace {
        let is_direct = !chat.starts_with('-');
        ChatPlace { chat: chat.to_owned(), thread: None, is_direct, person: None, server: None }
    }

    /// Returns a chat that the config names by its ID, without a thread. On Slack and Discord it is a
    /// channel.
    pub fn of_chat(platform: ChatPlatform, chat: &str) -> ChatPlace {
        match platform {
            ChatPlatform::Telegram => ChatPlace::of_telegram(chat),
            ChatPlatform::Slack | ChatPlatform::Discord | ChatPlatform::Github => ChatPlace {
                chat: chat.to_owned(),
                thread: None,
                is_direct: false,
                person: None,
                server: None,
            },
        }
    }

    /// Returns true if conversations at the place are in its threads only.
    pub fn is_around_threads(&self, platform: ChatPlatform) -> bool {
        platform == ChatPlatform::Slack && !self.is_direct && self.thread.is_none()
    }

    /// Returns the chat without the thread.
    pub fn without_thread(&self) -> ChatPlace {
        ChatPlace { thread: None, ..self.clone() }
    }

    /// Returns the name of the conversation: `platform/chat[/thread]`.
    pub fn channel(&self, platform: ChatPlatform) -> String {
        match &self.thread {
            Some(thread) => format!("{platform}/{}/{thread}", self.chat),
            None => format!("{platform}/{}", self.chat),
        }
    }
}

/// Sender of an event, as the platform authenticated it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatSender {
    /// ID that does not change. Only IDs grant rights.
    pub id: String,
    /// Name that the person chose. It proves nothing.
    pub name: String,
    pub is_bot: bool,
    /// True if everyone can write at the place, and the sender does not belong to it.
    pub is_outsider: bool,
}

impl ChatContent {
    /// Returns the ID by which a click or command is answered.
    pub fn callback(&self) -> Option<&str> {
        match self {
            ChatContent::Click { callback, .. } | ChatContent::Command { callback, .. } => {
                Some(callback)
            }
            ChatContent::Message { .. } | ChatContent::Wordless { .. } => None,
        }
    }
}

/// Content of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChatContent {
    Message {
        /// ID of the message within its chat.
        id: String,
        /// Text without the mention of the bot. Empty if the message has only files.
        text: String,
        /// True if the message mentions the bot or replies to it.
        addresses_bot: bool,
        /// ID of the message that it replies to.
        replies_to: Option<String>,
        /// Files in the message. Without a text, there is at least one.
        files: Vec<ChatFile>,
    },
    /// A message without text and without files, such as a place or a sticker.
    Wordless { addresses_bot: bool },
    /// A command that the person chose from the platform's commands.
    Command {
        /// The command with its mark, as in a message: `/stop`.
        text: String,
        /// ID by which the command is answered.
        callback: String,
    },
    /// A click on a button.
    Click {
        /// ID of the message with the button.
        message: String,
        /// Value of the button.
        value: String,
        /// ID by which the click is answered.
        callback: String,
    },
}
