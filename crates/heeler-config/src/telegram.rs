//! Telegram bot of an agent.
//!
//! [`TelegramConfig`] declares the accepted keys.

use std::num::NonZeroU32;

use crate::chat::{AttachmentConfig, ChatMode, DirectMessages, VoiceConfig, WhileBusy};
use crate::chat_token::{ChatApiUrl, TokenVariable};
use crate::shape::section;

section! {
    /// A Telegram bot.
    pub struct TelegramConfig ("chat.telegram") {
        /// Environment variable that holds the bot token.
        bot_token_env: TokenVariable = "TELEGRAM_BOT_TOKEN",
        /// Address of the Bot API. Set it if you run a Bot API server of your own.
        api_url: ChatApiUrl = "https://api.telegram.org",
        /// Hours after which a conversation starts a new session.
        session_expiry_hours: NonZeroU32 = "24",
        /// Groups in which the agent answers. Other groups are ignored.
        chats: Vec<TelegramChat>,
        /// Direct messages. Without this key they are refused.
        dm: Option<DirectMessages>,
        /// IDs of the users who may talk to the agent in `chats`. Defaults to all members.
        allow: Option<Vec<String>>,
        /// IDs of the users who may answer the agent's questions. With none, the agent's questions are denied.
        approvers: Vec<String>,
        /// IDs of the users who may stop jobs, begin sessions and retry (`/stop`, `/new`, `/retry`). Defaults to all who may talk to the agent.
        operators: Option<Vec<String>>,
        /// Effect of a message while the agent is working in the conversation: it waits (`queue`), it cancels the work (`interrupt`), or the running job receives it (`say`).
        while_busy: WhileBusy = "queue",
        /// Most messages that the agent takes from one person within a minute. Further ones are refused.
        messages_per_minute: NonZeroU32 = "60",
        /// Files sent to the bot. Without this key they are refused.
        attachments: Option<AttachmentConfig>,
        /// Voice messages. Without this key they are files.
        voice: Option<VoiceConfig>,
        /// Output shown in a conversation.
        output: TelegramOutput = "{}",
    }
}

section! {
    /// A Telegram group.
    pub struct TelegramChat ("telegram.chat") {
        /// ID of the group, such as `-1001234567890`.
        id: String,
        /// Name of the group, for readers of the config.
        name: Option<String>,
        /// Messages that are answered: those that `mention` the bot or reply to it, or all (`auto`, `all`).
        mode: ChatMode = "mention",
    }
}

section! {
    /// Output shown in a Telegram conversation.
    pub struct TelegramOutput ("telegram.output") {
        /// Show errors.
        errors: bool = "true",
        /// Show cost and duration below each answer.
        result_summary: bool = "false",
        /// Most posts of one answer. Of a longer answer, the beginning is posted, and the whole as a file.
        max_posts: NonZeroU32 = "5",
        /// Show a run card while the agent works.
        progress_indicator: bool = "true",
        /// Show the typing indicator while the agent works.
        typing_indicator: bool = "true",
    }
}
