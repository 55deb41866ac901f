//! A bot of any platform: the calls that posts need.
//!
//! Start at [`ChatBot`].

use crate::chat_error::ChatApiError;
use crate::chat_event::{ChatPlace, ChatPlatform};
use crate::discord::{DiscordBot, discord_parts};
use crate::github_text::github_parts;
use crate::outgoing_post::{OutgoingPost, PostMark, PostedFile};
use crate::slack::{SlackBot, slack_parts};
use crate::table_text::align_tables;
use crate::telegram::{TelegramBot, telegram_parts};

/// A bot with its tokens. The calls to GitHub have a client of their own.
#[derive(Debug, Clone)]
pub enum ChatBot {
    Telegram(TelegramBot),
    Slack(SlackBot),
    Discord(DiscordBot),
}

/// Splits a text into parts that a platform accepts.
pub fn post_parts(platform: ChatPlatform, text: &str) -> Vec<String> {
    match platform {
        ChatPlatform::Telegram => telegram_parts(&align_tables(text)),
        ChatPlatform::Slack => slack_parts(&align_tables(text)),
        ChatPlatform::Discord => discord_parts(&align_tables(text)),
        ChatPlatform::Github => github_parts(text),
    }
}

impl ChatBot {
    pub fn platform(&self) -> ChatPlatform {
        match self {
            ChatBot::Telegram(_) => ChatPlatform::Telegram,
            ChatBot::Slack(_) => ChatPlatform::Slack,
            ChatBot::Discord(_) => ChatPlatform::Discord,
        }
    }

    /// Posts a message; returns its ID. A post that was made before is found again where the platform
    /// can do that.
    pub fn send(
        &self,
        place: &ChatPlace,
        post: &OutgoingPost,
        mark: PostMark<'_>,
    ) -> Result<String, ChatApiError> {
        match self {
            ChatBot::Telegram(bot) => bot.send(place, post),
            ChatBot::Slack(bot) => bot.send_once(place, post, mark),
            ChatBot::Discord(bot) => bot.send_once(place, post, mark),
        }
    }

    /// Posts a file below its heading; returns the ID of the post. A repeated post is recognized as
    /// that of a text is.
    pub fn send_file(
        &self,
        place: &ChatPlace,
        file: &PostedFile,
        mark: PostMark<'_>,
    ) -> Result<String, ChatApiError> {
        match self {
            ChatBot::Telegram(bot) => bot.send_file(place, file),
            ChatBot::Slack(bot) => bot.send_file_once(place, file, mark),
            ChatBot::Discord(bot) => bot.send_file_once(place, file, mark),
        }
    }

    /// Replaces the text of a message, and removes its buttons.
    pub fn edit(&self, place: &ChatPlace, message: &str, text: &str) -> Result<(), ChatApiError> {
        match self {
            ChatBot::Telegram(bot) => bot.edit(place, message, text),
            ChatBot::Slack(bot) => bot.edit(place, message, text),
            ChatBot::Discord(bot) => bot.edit(place, message, text),
        }
    }

    /// Shows for some seconds that the bot is writing, where the platform offers that.
    pub fn show_typing(&self, place: &ChatPlace) -> Result<(), ChatApiError> {
        match self {
            ChatBot::Telegram(bot) => bot.show_typing(place),
            ChatBot::Discord(bot) => bot.show_typing(place),
            ChatBot::Slack(bot) => bot.show_status(place),
        }
    }

    /// Adds a reaction to a message, on platforms whose settings name one.
    pub fn react(&self, place: &ChatPlace, message: &str, emoji: &str) -> Result<(), ChatApiError> {
        match self {
            ChatBot::Discord(bot) => bot.react(place, message, emoji),
            ChatBot::Slack(bot) => bot.react(place, message, emoji),
            ChatBot::Telegram(_) => Ok(()),
        }
    }

    /// Lists what keeps the bot from receiving messages of these channels, and files if it takes some, each
    /// with its cure.
    pub fn setup_problems(&self, channels: &[&str], takes_files: bool) -> Vec<String> {
        let mut problems = Vec::new();
        let of_app = match self {
            // Its privacy mode decides about groups, and no call tells their members.
            ChatBot::Telegram(_) => return problems,
            ChatBot::Slack(bot) => bot.missing_scopes(takes_files).map(|missing| {
                let missing = missing.filter(|missing| !missing.is_empty())?;
                Some(format!(
                    "the Slack app lacks the scopes {}: add them and reinstall the app",
                    missing.join(", ")
                ))
            }),
            ChatBot::Discord(bot) => bot.reads_content().map(|reads_content| {
                (!reads_content).then(|| {
                    "the Discord bot may not read messages: turn on \"Message Content Intent\" in the \
                     Developer Portal"
                        .to_owned()
                })
            }),
        };
        match of_app {
            Ok(problem) => problems.extend(problem),
            Err(error) => problems.push(error.to_string()),
        }
        for channel in channels {
            let checked = match self {
                ChatBot::Telegram(_) => Ok(()),
                ChatBot::Slack(bot) => bot.check_channel(channel),
                ChatBot::Discord(bot) => bot.check_channel(channel),
            };
            problems.extend(checked.err().map(|error| format!("channel {channel}: {error}")));
        }
        problems
    }

    /// Returns the name of the bot, for people. The call proves that its tokens are accepted.
    pub fn own_name(&self) -> Result<String, ChatApiError> {
        match self {
            ChatBot::Telegram(bot) => bot.own_user().map(|user| user.username),
            ChatBot::Discord(bot) => bot.own_user().map(|user| user.name),
            ChatBot::Slack(bot) => {
                // The second token is only used for sockets.
                bot.open_socket()?;
                bot.own_user().map(|user| format!("{} in {}", user.name, user.team))
            }
        }
    }
}
