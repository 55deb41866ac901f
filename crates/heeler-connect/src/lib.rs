//! Chat platforms: blocking clients of their APIs, their events in one form, and the text that is
//! posted.
//!
//! This crate decides which agent a message is for ([`route_message`]), from the config and the event
//! alone. It knows no fleet, no clock and no file. Tokens appear in no error and no log. Start at
//! [`ChatEvent`] and [`TelegramBot`].

mod api_call;
mod bot_command;
mod button_seal;
mod channel_page;
mod chat_bot;
mod chat_error;
mod chat_event;
mod chat_file;
mod chat_policy;
mod chat_socket;
mod discord;
mod discord_command;
mod discord_frame;
mod earlier_message;
mod file_download;
#[cfg(any(test, feature = "fuzz-entry"))]
pub mod frame_fuzz;
mod github_text;
mod outgoing_post;
mod person_name;
mod routing;
mod slack;
mod slack_frame;
mod slack_stream;
mod slack_text;
mod split_text;
mod table_text;
mod telegram;
mod telegram_html;
mod telegram_update;
mod transcription;

pub use bot_command::{BOT_COMMANDS, BotCommand};
pub use button_seal::{ButtonClaim, ButtonSeal, ButtonVerdict};
pub use channel_page::ChannelPage;
pub use chat_bot::{ChatBot, post_parts};
pub use chat_error::ChatApiError;
pub use chat_event::{ChatContent, ChatEvent, ChatPlace, ChatPlatform, ChatSender};
pub use chat_file::{ChatFile, FileVerdict, describe_files, judge_files};
pub use chat_policy::{ChatPolicy, ListedChat, LiveOutput};
pub use chat_socket::{ChatSocket, SocketInput};
pub use discord::{DiscordBot, DiscordChannel, DiscordGateway, DiscordUser, discord_account};
pub use discord_command::DiscordCommands;
pub use discord_frame::{DiscordDirectory, DiscordDispatch, DiscordFrame};
pub use earlier_message::{EarlierMessage, quote_earlier};
pub use file_download::FileRequest;
pub use github_text::render_github;
pub use outgoing_post::{ChatButton, OutgoingPost, PostMark, PostedFile, posted_file_name};
pub use person_name::person_name;
pub use routing::{ChatRoute, route_message};
pub use slack::{
    MessageList, SlackBot, SlackTokens, SlackUser, is_slack_bot_token, slack_account, sort_messages,
};
pub use slack_frame::{SlackFrame, message_event, payload_event};
pub use slack_stream::{STREAM_TEXT_MAX, StreamRecipient, StreamStart};
pub use slack_text::render_slack;
pub use split_text::split_text;
pub use table_text::has_wide_table;
pub use telegram::{TELEGRAM_TEXT_MAX, TelegramBot, TelegramUser, telegram_account};
pub use telegram_html::{RenderedText, render_telegram};
pub use telegram_update::parse_update;
pub use transcription::{TranscriptionRequest, transcribe};
