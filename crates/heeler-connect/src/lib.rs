//! Chat platforms: blocking clients of their APIs, their events in one form, and the text that is
//! posted.
//!
//! This crate decides which agent a message is for ([`route_message`]), from the config and the event
//! alone. It knows no fleet, no clock and no file. Tokens appear in no error and no log. Start at
//! [`ChatEvent`] and [`TelegramBot`].

mod api_call;
mod bot_command;
mod button_seal;
mod chat_error;
mod chat_event;
mod chat_policy;
mod routing;
mod split_text;
mod telegram;
mod telegram_html;
mod telegram_update;

pub use bot_command::BotCommand;
pub use button_seal::{ButtonClaim, ButtonSeal, ButtonVerdict};
pub use chat_error::ChatApiError;
pub use chat_event::{ChatContent, ChatEvent, ChatPlace, ChatPlatform, ChatSender};
pub use chat_policy::{ChatPolicy, ListedChat};
pub use routing::{ChatRoute, route_message};
pub use split_text::split_text;
pub use telegram::{
    ChatButton, OutgoingPost, TELEGRAM_TEXT_MAX, TelegramBot, TelegramUser, telegram_account,
    telegram_parts,
};
pub use telegram_html::{RenderedText, render_telegram};
pub use telegram_update::parse_update;
