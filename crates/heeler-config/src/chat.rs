//! Settings that chat platforms share, and those of Discord's servers and files.
//!
//! Start at [`ChannelConfig`] and [`DirectMessages`].

use std::num::NonZeroU32;
use std::str::FromStr;

use serde_json::{Value as Json, json};

use crate::chat_token::{ChatApiUrl, TokenVariable};
use crate::reader::ConfigReader;
use crate::shape::{ValueShape, section};
use crate::value::{ConfigValue, read_int, read_word, text_value, word_value};
use crate::words::words;
use crate::yaml::YamlNode;

/// Messages of a channel that the agent answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatMode {
    /// Messages that mention the agent.
    Mention,
    /// All messages. Written `auto` or `all`.
    Auto,
}

impl ConfigValue for ChatMode {
    fn shape() -> ValueShape {
        ValueShape::Words(vec!["mention", "auto", "all"])
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<ChatMode> {
        match read_word(node, reader, &["mention", "auto", "all"])? {
            0 => Some(ChatMode::Mention),
            // `auto` and `all` are two words for the same mode.
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
    /// Amount of logging of a chat connector.
    pub enum ChatLogLevel ("log level") {
        /// Errors only.
        Minimal = "minimal",
        /// Main events.
        Standard = "standard",
        /// All details.
        Verbose = "verbose",
    }
}

words! {
    /// Agent messages that are sent to the chat.
    pub enum AssistantMessages ("choice of messages") {
        /// Final answers only.
        Answers = "answers",
        /// All messages.
        All = "all",
    }
}

words! {
    /// Activity shown in a bot's status.
    pub enum ActivityType ("activity") {
        /// "Playing".
        Playing = "playing",
        /// "Watching".
        Watching = "watching",
        /// "Listening".
        Listening = "listening",
        /// "Competing".
        Competing = "competing",
    }
}

words! {
    /// Scope in which slash commands are registered.
    pub enum CommandScope ("scope") {
        /// All servers.
        Global = "global",
        /// One server.
        Guild = "guild",
    }
}

words! {
    /// Effect of a message in a conversation in which the agent is working.
    pub enum WhileBusy ("choice") {
        /// The message waits.
        Queue = "queue",
        /// The jobs of the conversation are cancelled.
        Interrupt = "interrupt",
        /// The running job receives the message.
        Say = "say",
    }
}

word_value!(WhileBusy, ChatLogLevel, AssistantMessages, ActivityType, CommandScope, VoiceProvider,);

section! {
    /// Settings of one channel.
    pub struct ChannelConfig ("channel") {
        /// Channel ID.
        id: String,
        /// Name of the channel, for readers of the config.
        name: Option<String>,
        /// Messages that are answered: those that `mention` the agent, or all (`auto`, `all`).
        mode: ChatMode = "mention",
        /// Number of earlier messages of people that a new conversation begins with, at most 100; 0 for none.
        context_messages: ContextLength = "10",
    }
}

section! {
    /// Direct messages.
    pub struct DirectMessages ("dm") {
        /// Answer direct messages.
        enabled: bool = "true",
        /// Direct messages that are answered: those that `mention` the agent, or all (`auto`,
        /// `all`).
        mode: ChatMode = "auto",
        /// IDs of the users who may write; `*` stands for everyone. Without this key, direct messages are
        /// refused.
        allowlist: Option<Vec<String>>,
        /// Users who may not write; takes precedence over `allowlist`.
        blocklist: Vec<String>,
    }
}

impl DirectMessages {
    /// Returns the lists of users.
    pub(crate) fn user_lists(&mut self) -> impl Iterator<Item = &mut Vec<String>> {
        self.allowlist.iter_mut().chain([&mut self.blocklist])
    }
}

section! {
    /// A Discord server.
    pub struct GuildConfig ("guild") {
        /// Server ID.
        id: String,
        /// Channels of the server.
        channels: Vec<ChannelConfig>,
        /// Mode of channels that are not listed. If not set, they are ignored.
        default_channel_mode: Option<ChatMode>,
        /// Direct messages from members of the server.
        dm: Option<DirectMessages>,
    }
}

section! {
    /// Activity shown in the bot's status.
    pub struct PresenceConfig ("presence") {
        /// Verb of the activity.
        activity_type: Option<ActivityType>,
        /// Text after the verb.
        activity_message: Option<String>,
    }
}

/// Emoji of a reaction, in the form that Discord demands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReactionEmoji(Option<String>);

/// Names that stand for emoji.
const EMOJI_NAMES: [(&str, &str); 5] = [
    ("eyes", "👀"),
    ("hourglass", "⌛"),
    ("robot", "🤖"),
    ("thumbsup", "👍"),
    ("white_check_mark", "✅"),
];

impl ReactionEmoji {
    /// Returns the emoji; `None` if there is no reaction.
    pub fn get(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl FromStr for ReactionEmoji {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<ReactionEmoji, &'static str> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(ReactionEmoji(None));
        }
        if let Some((_, emoji)) = EMOJI_NAMES.iter().find(|(name, _)| *name == text) {
            return Ok(ReactionEmoji(Some((*emoji).to_owned())));
        }
        // Names of Discord's own emoji would need a table of some thousand entries.
        let is_emoji = text.chars().count() <= 10 && text.chars().all(|c| !c.is_ascii());
        match is_emoji {
            true => Ok(ReactionEmoji(Some(text.to_owned()))),
            false => Err("it is neither an emoji nor one of the known names"),
        }
    }
}

text_value! {
    ReactionEmoji: "an emoji", "`👀`", None, |emoji| json!(emoji.get().unwrap_or_default());
}

/// Length of a tool result in characters: 1 to 1000, the limit of an embed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResultLength(NonZeroU32);

impl ResultLength {
    const MAX: u32 = 1000;

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
            false => crate::value::report_expected(reader, node, "a whole number from 1 to 1000"),
        }
    }
    fn show(&self) -> Json {
        json!(self.get())
    }
}

/// Number of earlier messages that a conversation begins with: 0 to 100, the most that Discord lists
/// at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextLength(u32);

impl ContextLength {
    const MAX: u32 = 100;

    pub fn get(self) -> u32 {
        self.0
    }
}

impl ConfigValue for ContextLength {
    fn shape() -> ValueShape {
        ValueShape::Int { min: 0, max: i64::from(ContextLength::MAX) }
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<ContextLength> {
        let length = read_int(node, reader, 0, i64::from(ContextLength::MAX))?;
        u32::try_from(length).ok().map(ContextLength)
    }
    fn show(&self) -> Json {
        json!(self.0)
    }
}

words! {
    /// Form of a transcription service.
    pub enum VoiceProvider ("provider") {
        /// The API of OpenAI, which other services and programs offer too.
        OpenAi = "openai",
    }
}

section! {
    /// Voice messages.
    pub struct VoiceConfig ("voice") {
        /// Transcribe and answer voice messages.
        enabled: bool = "false",
        /// Form of the transcription service. Services with the form of OpenAI's are set by `api_url`.
        provider: VoiceProvider = "openai",
        /// Address of the transcription service, without `/audio/transcriptions`.
        api_url: ChatApiUrl = "https://api.openai.com/v1",
        /// Environment variable that holds the API key.
        api_key_env: TokenVariable = "OPENAI_API_KEY",
        /// Transcription model.
        model: String = "whisper-1",
        /// Language of the messages, if known.
        language: Option<String>,
        /// Largest accepted voice message, in megabytes.
        max_file_size_mb: AttachmentLimit<25> = "10",
    }
}

section! {
    /// Files sent to the bot.
    pub struct AttachmentConfig ("attachments") {
        /// Accept files.
        enabled: bool = "false",
        /// Largest accepted file, in megabytes.
        max_file_size_mb: AttachmentLimit<100> = "10",
        /// Maximum number of files per message.
        max_files_per_message: AttachmentLimit<20> = "5",
        /// Accepted media types: a type, all of a kind (`image/*`), or all (`*/*`).
        allowed_types: Vec<String> = "[image/*, application/pdf, text/*]",
        /// Directory for received files, within the working directory. Defaults to `.discord-attachments`, `.slack-attachments` or `.telegram-attachments`.
        download_dir: Option<DownloadFolder>,
        /// Remove the files after processing.
        cleanup_after_processing: bool = "true",
    }
}

/// A limit of received files: 1 to `MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttachmentLimit<const MAX: u32>(u32);

impl<const MAX: u32> AttachmentLimit<MAX> {
    pub fn get(self) -> u32 {
        self.0
    }
}

impl<const MAX: u32> ConfigValue for AttachmentLimit<MAX> {
    fn shape() -> ValueShape {
        ValueShape::Int { min: 1, max: i64::from(MAX) }
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<AttachmentLimit<MAX>> {
        let limit = read_int(node, reader, 1, i64::from(MAX))?;
        u32::try_from(limit).ok().map(AttachmentLimit)
    }
    fn show(&self) -> Json {
        json!(self.0)
    }
}

impl VoiceConfig {
    /// Returns the largest accepted voice message, in bytes.
    pub fn bytes_max(&self) -> u64 {
        u64::from(self.max_file_size_mb.get()) * 1024 * 1024
    }
}

impl AttachmentConfig {
    /// Returns the largest accepted file, in bytes.
    pub fn file_bytes_max(&self) -> u64 {
        u64::from(self.max_file_size_mb.get()) * 1024 * 1024
    }
}

/// A directory within the working directory, for files of strangers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownloadFolder(String);

impl DownloadFolder {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for DownloadFolder {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<DownloadFolder, &'static str> {
        let is_plain = |part: &str| {
            let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
            !part.is_empty() && part.len() <= 64 && part.bytes().all(is_allowed)
        };
        let parts: Vec<&str> =
            text.trim_start_matches("./").trim_end_matches('/').split('/').collect();
        if parts.len() > 8 || !parts.iter().all(|part| is_plain(part)) {
            return Err("it may have letters, digits, `-`, `_`, `.` and at most 8 parts");
        }
        if parts.iter().any(|part| part.bytes().all(|b| b == b'.')) {
            return Err("it must be within the working directory");
        }
        // Programs take settings and instructions from files there.
        if parts.iter().any(|part| [".git", ".claude", ".heeler", ".herdctl"].contains(part)) {
            return Err("files of strangers are not stored in a directory of settings");
        }
        Ok(DownloadFolder(parts.join("/")))
    }
}

text_value! {
    DownloadFolder: "a directory within the working directory", "`.chat-files`", None, |folder| json!(folder.0);
}

section! {
    /// Registration of slash commands.
    pub struct CommandRegistration ("command_registration") {
        /// Scope of the commands: all servers (`global`) or one server (`guild`).
        scope: CommandScope = "global",
        /// Server ID, for `scope: guild`.
        guild_id: Option<String>,
    }
}

section! {
    /// A skill offered as a slash command.
    pub struct SkillConfig ("skill") {
        /// Name of the skill.
        name: String,
        /// Description of the skill.
        description: Option<String>,
    }
}
