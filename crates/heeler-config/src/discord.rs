//! Discord bot of an agent.
//!
//! [`DiscordConfig`] declares the accepted keys: those of herdctl (guilds, `auto`) and the short form
//! (flat channels, `all`), and those that decide who may talk and who may answer.

use std::num::NonZeroU32;

use crate::chat::{
    AssistantMessages, AttachmentConfig, ChannelConfig, ChatLogLevel, CommandRegistration,
    DirectMessages, GuildConfig, PresenceConfig, ReactionEmoji, ResultLength, SkillConfig,
    VoiceConfig, WhileBusy,
};
use crate::chat_token::{ChatApiUrl, TokenVariable};
use crate::shape::section;

section! {
    /// A Discord bot.
    pub struct DiscordConfig ("chat.discord") {
        /// Environment variable that holds the bot token.
        bot_token_env: TokenVariable = "DISCORD_BOT_TOKEN",
        /// Address of the REST API.
        api_url: ChatApiUrl = "https://discord.com/api/v10",
        /// Hours after which a conversation starts a new session.
        session_expiry_hours: NonZeroU32 = "24",
        /// Messages in the daemon's log: `minimal` logs problems only, `standard` also each message that an agent gets or refuses, `verbose` also those that are ignored.
        log_level: ChatLogLevel = "standard",
        /// Servers, each with its channels.
        guilds: Vec<GuildConfig>,
        /// Channels listed without their server.
        channels: Vec<ChannelConfig>,
        /// Direct messages. Without this key they are refused.
        dm: Option<DirectMessages>,
        /// IDs of the users who may talk to the agent in its channels. Defaults to all members.
        allow: Option<Vec<String>>,
        /// IDs of the users who may answer the agent's questions. With none, the agent's questions are denied.
        approvers: Vec<String>,
        /// IDs of the users who may stop jobs, begin sessions and retry (`/stop`, `/new`, `/retry`). Defaults to all who may talk to the agent.
        operators: Option<Vec<String>>,
        /// Activity shown in the bot's status.
        presence: Option<PresenceConfig>,
        /// Effect of a message while the agent is working in the conversation: it waits (`queue`), it cancels the work (`interrupt`), or the running job receives it (`say`).
        while_busy: WhileBusy = "queue",
        /// Most messages that the agent takes from one person within a minute. Further ones are refused.
        messages_per_minute: NonZeroU32 = "60",
        /// Output shown in a conversation.
        output: DiscordOutput = "{}",
        /// Voice messages. Without this key they are files.
        voice: Option<VoiceConfig>,
        /// Files sent to the bot. Without this key they are refused.
        attachments: Option<AttachmentConfig>,
        /// Scope in which slash commands are registered.
        command_registration: Option<CommandRegistration>,
        /// Skills offered as slash commands.
        skills: Vec<SkillConfig>,
    }
}

section! {
    /// Output shown in a Discord conversation.
    pub struct DiscordOutput ("discord.output") {
        /// Show the last tool result in the run card.
        tool_results: bool = "true",
        /// Maximum number of characters of a tool result, at most 1000.
        tool_result_max_length: ResultLength = "900",
        /// Show the last system event, such as compaction, in the run card.
        system_status: bool = "true",
        /// Show errors.
        errors: bool = "true",
        /// Show cost, tokens and turns at the end.
        result_summary: bool = "false",
        /// Show the typing indicator while the agent works.
        typing_indicator: bool = "true",
        /// Reaction added to a message when it is accepted: an emoji, or one of the names `eyes`, `hourglass`, `robot`, `thumbsup` and `white_check_mark`; empty for none.
        acknowledge_emoji: ReactionEmoji = "eyes",
        /// Agent messages that are shown: the final `answers`, or `all`: the run card shows the others while the agent works.
        assistant_messages: AssistantMessages = "answers",
        /// Most posts of one answer. Of a longer answer, the beginning is posted, and the whole as a file.
        max_posts: NonZeroU32 = "5",
        /// Show a run card while the agent works.
        progress_indicator: bool = "true",
    }
}
