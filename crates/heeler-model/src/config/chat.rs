//! Chat: Discord and Slack, in herdctl's form (guilds, `auto`) and the short one (flat channels,
//! `all`). Accepted and checked; no connector reads it yet.

use std::num::NonZeroU32;

use serde_json::{Value as Json, json};

use super::reader::ConfigReader;
use super::shape::{ValueShape, section};
use super::value::{ConfigValue, VarName, read_word, word_value};
use super::yaml::YamlNode;
use crate::words::words;

/// Which messages of a channel the agent answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatMode {
    /// Those that mention it.
    Mention,
    /// All of them. Written `auto` or `all`.
    Auto,
}

impl ConfigValue for ChatMode {
    fn shape() -> ValueShape {
        ValueShape::Words(vec!["mention", "auto", "all"])
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<ChatMode> {
        match read_word(node, reader, &["mention", "auto", "all"])? {
            0 => Some(ChatMode::Mention),
            _ => Some(ChatMode::Auto),
        }
    }
    fn show(&self) -> Json {
        match self {
            ChatMode::Mention => json!("mention"),
            ChatMode::Auto => json!("auto"),
        }
    }
}

words! {
    /// How much a connector says about its work in the log.
    pub enum ChatLogLevel ("log level") {
        /// Errors.
        Minimal = "minimal",
        /// What happened.
        Standard = "standard",
        /// Everything.
        Verbose = "verbose",
    }
}

words! {
    /// Which messages of the agent are sent.
    pub enum AssistantMessages ("choice of messages") {
        /// The answers.
        Answers = "answers",
        /// Everything it says.
        All = "all",
    }
}

words! {
    /// What a bot is shown to be doing.
    pub enum ActivityType ("activity") {
        /// Playing.
        Playing = "playing",
        /// Watching.
        Watching = "watching",
        /// Listening.
        Listening = "listening",
        /// Competing.
        Competing = "competing",
    }
}

words! {
    /// Where slash commands are registered.
    pub enum CommandScope ("scope") {
        /// Everywhere.
        Global = "global",
        /// In one server.
        Guild = "guild",
    }
}

word_value!(ChatLogLevel, AssistantMessages, ActivityType, CommandScope);

section! {
    /// The chats in which the agent answers.
    pub struct ChatConfig ("chat") {
        /// A Discord bot of its own.
        discord: Option<DiscordConfig>,
        /// Slack, through an app in socket mode.
        slack: Option<SlackConfig>,
    }
}

section! {
    /// One channel.
    pub struct ChannelConfig ("channel") {
        /// The id of the channel.
        id: String,
        /// Its name, for the reader.
        name: Option<String>,
        /// Which messages are answered: those that `mention` the agent, or all (`auto`, `all`).
        mode: ChatMode = "mention",
        /// How many earlier messages a new conversation is given.
        context_messages: NonZeroU32 = "10",
    }
}

section! {
    /// Direct messages.
    pub struct DirectMessages ("dm") {
        /// Whether direct messages are answered.
        enabled: bool = "true",
        /// Which of them.
        mode: ChatMode = "auto",
        /// Users who may write; everyone if left out.
        allowlist: Option<Vec<String>>,
        /// Users who may not write; wins over `allowlist`.
        blocklist: Vec<String>,
    }
}

section! {
    /// A Discord bot.
    pub struct DiscordConfig ("chat.discord") {
        /// The environment variable that holds the bot's token.
        bot_token_env: VarName = "DISCORD_BOT_TOKEN",
        /// Hours after which a channel's conversation starts anew.
        session_expiry_hours: NonZeroU32 = "24",
        /// How much is logged.
        log_level: ChatLogLevel = "standard",
        /// The servers, each with its channels.
        guilds: Vec<GuildConfig>,
        /// Channels without naming their server.
        channels: Vec<ChannelConfig>,
        /// Direct messages.
        dm: Option<DirectMessages>,
        /// What the bot is shown to be doing.
        presence: Option<PresenceConfig>,
        /// What is shown in a conversation.
        output: DiscordOutput = "{}",
        /// Voice messages.
        voice: Option<VoiceConfig>,
        /// Files sent to the bot.
        attachments: Option<AttachmentConfig>,
        /// Where slash commands are registered.
        command_registration: Option<CommandRegistration>,
        /// Skills offered as commands.
        skills: Vec<SkillConfig>,
    }
}

section! {
    /// A Discord server.
    pub struct GuildConfig ("guild") {
        /// The id of the server.
        id: String,
        /// Its channels.
        channels: Vec<ChannelConfig>,
        /// The mode of channels that are not listed; they are left alone if it is not set.
        default_channel_mode: Option<ChatMode>,
        /// Direct messages of its members.
        dm: Option<DirectMessages>,
    }
}

section! {
    /// What the bot is shown to be doing.
    pub struct PresenceConfig ("presence") {
        /// The verb.
        activity_type: Option<ActivityType>,
        /// The rest of the sentence.
        activity_message: Option<String>,
    }
}

section! {
    /// What is shown in a Discord conversation.
    pub struct DiscordOutput ("discord.output") {
        /// Results of tools.
        tool_results: bool = "true",
        /// The most characters of a tool's result, at most 1000.
        tool_result_max_length: ResultLength = "900",
        /// What the system does, such as compacting.
        system_status: bool = "true",
        /// Errors.
        errors: bool = "true",
        /// Cost, tokens and turns at the end.
        result_summary: bool = "false",
        /// The typing mark while the agent works.
        typing_indicator: bool = "true",
        /// The reaction put on a message that was taken up; empty for none.
        acknowledge_emoji: String = "eyes",
        /// Which messages of the agent are sent.
        assistant_messages: AssistantMessages = "answers",
        /// A card that shows progress.
        progress_indicator: bool = "true",
    }
}

/// Characters of a tool's result: 1 to 1000, what fits an embed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResultLength(NonZeroU32);

impl ResultLength {
    const MAX: u32 = 1000;

    /// Returns the number of characters.
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

impl ConfigValue for ResultLength {
    fn shape() -> ValueShape {
        ValueShape::Int { min: 1, max: i64::from(ResultLength::MAX) }
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<ResultLength> {
        let length = NonZeroU32::read(node, reader)?;
        match length.get() <= ResultLength::MAX {
            true => Some(ResultLength(length)),
            false => super::value::report_expected(reader, node, "a whole number from 1 to 1000"),
        }
    }
    fn show(&self) -> Json {
        json!(self.get())
    }
}

section! {
    /// Voice messages.
    pub struct VoiceConfig ("voice") {
        /// Whether voice messages are written down and answered.
        enabled: bool = "false",
        /// Who writes them down.
        provider: String = "openai",
        /// The environment variable that holds the key.
        api_key_env: VarName = "OPENAI_API_KEY",
        /// The model.
        model: String = "whisper-1",
        /// The language, if it is known.
        language: Option<String>,
    }
}

section! {
    /// Files sent to the bot.
    pub struct AttachmentConfig ("attachments") {
        /// Whether files are taken.
        enabled: bool = "false",
        /// The largest file, in megabytes.
        max_file_size_mb: NonZeroU32 = "10",
        /// The most files of one message.
        max_files_per_message: NonZeroU32 = "5",
        /// The types that are taken.
        allowed_types: Vec<String> = "[image/*, application/pdf, text/*]",
        /// Where files are put, in the working directory.
        download_dir: String = ".discord-attachments",
        /// Whether files are removed afterwards.
        cleanup_after_processing: bool = "true",
    }
}

section! {
    /// Where slash commands are registered.
    pub struct CommandRegistration ("command_registration") {
        /// Everywhere, or in one server.
        scope: CommandScope = "global",
        /// The server, for `scope: guild`.
        guild_id: Option<String>,
    }
}

section! {
    /// A skill offered as a command.
    pub struct SkillConfig ("skill") {
        /// Its name.
        name: String,
        /// What it does.
        description: Option<String>,
    }
}

section! {
    /// Slack.
    pub struct SlackConfig ("chat.slack") {
        /// The environment variable that holds the bot's token.
        bot_token_env: VarName = "SLACK_BOT_TOKEN",
        /// The environment variable that holds the app's token.
        app_token_env: VarName = "SLACK_APP_TOKEN",
        /// Hours after which a channel's conversation starts anew.
        session_expiry_hours: NonZeroU32 = "24",
        /// How much is logged.
        log_level: ChatLogLevel = "standard",
        /// The channels.
        channels: Vec<ChannelConfig>,
        /// Direct messages.
        dm: Option<DirectMessages>,
        /// What is shown in a conversation.
        output: SlackOutput = "{}",
    }
}

section! {
    /// What is shown in a Slack conversation.
    pub struct SlackOutput ("slack.output") {
        /// Results of tools.
        tool_results: bool = "true",
        /// The most characters of a tool's result, at most 1000.
        tool_result_max_length: ResultLength = "900",
        /// What the system does, such as compacting.
        system_status: bool = "true",
        /// Errors.
        errors: bool = "true",
    }
}
