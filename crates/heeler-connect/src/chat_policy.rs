//! Rules of one agent for one platform, in one form for all platforms.
//!
//! Start at [`ChatPolicy`].

use std::time::Duration;

use heeler_config::{
    AgentConfig, AssistantMessages, AttachmentConfig, ChannelConfig, ChatLogLevel, ChatMode,
    DirectMessages, DiscordConfig, GithubChatConfig, GithubChatRepo, ResultLength, SlackConfig,
    TelegramChat, VoiceConfig, WhileBusy,
};

use crate::chat_event::{ChatPlace, ChatPlatform, ChatSender};

/// Entry of an allow list that stands for everyone.
const EVERYONE: &str = "*";

/// Number of earlier messages in channels of a server that the config does not list.
const CONTEXT_UNLISTED: usize = 10;

/// Rules of one agent for one platform.
#[derive(Debug, Clone)]
pub struct ChatPolicy<'c> {
    pub agent: &'c AgentConfig,
    /// Variable that holds the bot token.
    pub token_variable: &'c str,
    pub chats: Vec<ListedChat<'c>>,
    /// Servers in which the agent answers in every channel.
    pub servers: Vec<ListedChat<'c>>,
    pub direct: Option<&'c DirectMessages>,
    /// Users who may talk to the agent in `chats`; `None` for all who belong to them.
    pub allow: Option<&'c [String]>,
    /// Users who may answer questions.
    pub approvers: &'c [String],
    /// Users who may stop jobs, begin sessions and retry; `None` for all who may talk to the agent.
    pub operators: Option<&'c [String]>,
    pub session_expiry: Duration,
    pub shows_errors: bool,
    pub shows_cost: bool,
    /// Most posts of one answer. A longer answer is posted as a file.
    pub posts_max: usize,
    pub log_level: ChatLogLevel,
    pub while_busy: WhileBusy,
    /// Most messages of one person within a minute.
    pub messages_per_minute: usize,
    /// Rules for files; `None` if the agent takes none.
    pub files: Option<&'c AttachmentConfig>,
    /// Rules for voice messages; `None` if they are files.
    pub voice: Option<&'c VoiceConfig>,
    /// Folder of received files, within the working directory.
    pub files_folder: &'c str,
    pub live: LiveOutput<'c>,
}

/// Output that is shown while a job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveOutput<'c> {
    /// Show a run card.
    pub shows_card: bool,
    /// Let the run card grow, where the platform offers that.
    pub streams: bool,
    /// Show the typing indicator.
    pub shows_typing: bool,
    /// Most characters of the tool result in the card; `None` shows none.
    pub tool_result_chars: Option<usize>,
    /// Show system events in the card.
    pub shows_system: bool,
    /// Show messages of the agent in the card.
    pub shows_messages: bool,
    /// Reaction to a message that is accepted.
    pub acknowledge: Option<&'c str>,
}

/// A chat in which an agent answers.
#[derive(Debug, Clone, Copy)]
pub struct ListedChat<'c> {
    pub id: &'c str,
    pub mode: ChatMode,
    /// Number of earlier messages that a conversation begins with.
    pub context_messages: usize,
}

impl<'c> ChatPolicy<'c> {
    /// Returns the rules of an agent; `None` if it does not use the platform.
    pub fn of_agent(agent: &'c AgentConfig, platform: ChatPlatform) -> Option<ChatPolicy<'c>> {
        let chat = agent.chat.as_ref()?;
        match platform {
            ChatPlatform::Telegram => {
                let telegram = chat.telegram.as_ref()?;
                let chats = telegram.chats.iter();
                Some(ChatPolicy {
                    agent,
                    token_variable: telegram.bot_token_env.as_str(),
                    chats: chats.map(telegram_chat).collect(),
                    servers: Vec::new(),
                    direct: telegram.dm.as_ref().filter(|dm| dm.enabled),
                    allow: telegram.allow.as_deref(),
                    approvers: &telegram.approvers,
                    operators: telegram.operators.as_deref(),
                    session_expiry: hours(telegram.session_expiry_hours.get()),
                    shows_errors: telegram.output.errors,
                    shows_cost: telegram.output.result_summary,
                    posts_max: count(telegram.output.max_posts.get()),
                    log_level: ChatLogLevel::Standard,
                    while_busy: telegram.while_busy,
                    messages_per_minute: count(telegram.messages_per_minute.get()),
                    files: taken_files(telegram.attachments.as_ref()),
                    voice: telegram.voice.as_ref().filter(|voice| voice.enabled),
                    files_folder: files_folder(
                        telegram.attachments.as_ref(),
                        ".telegram-attachments",
                    ),
                    live: LiveOutput {
                        shows_card: telegram.output.progress_indicator,
                        streams: false,
                        shows_typing: telegram.output.typing_indicator,
                        tool_result_chars: None,
                        shows_system: true,
                        shows_messages: true,
                        acknowledge: None,
                    },
                })
            }
            ChatPlatform::Slack => Some(ChatPolicy::of_slack(agent, chat.slack.as_ref()?)),
            ChatPlatform::Discord => Some(ChatPolicy::of_discord(agent, chat.discord.as_ref()?)),
            ChatPlatform::Github => Some(ChatPolicy::of_github(agent, chat.github.as_ref()?)),
        }
    }

    fn of_slack(agent: &'c AgentConfig, slack: &'c SlackConfig) -> ChatPolicy<'c> {
        let chats = slack.channels.iter();
        ChatPolicy {
            agent,
            token_variable: slack.bot_token_env.as_str(),
            chats: chats.map(listed_channel).collect(),
            servers: Vec::new(),
            direct: slack.dm.as_ref().filter(|dm| dm.enabled),
            allow: slack.allow.as_deref(),
            approvers: &slack.approvers,
            operators: slack.operators.as_deref(),
            session_expiry: hours(slack.session_expiry_hours.get()),
            shows_errors: slack.output.errors,
            shows_cost: slack.output.result_summary,
            posts_max: count(slack.output.max_posts.get()),
            log_level: slack.log_level,
            while_busy: slack.while_busy,
            messages_per_minute: count(slack.messages_per_minute.get()),
            files: taken_files(slack.attachments.as_ref()),
            voice: slack.voice.as_ref().filter(|voice| voice.enabled),
            files_folder: files_folder(slack.attachments.as_ref(), ".slack-attachments"),
            live: LiveOutput {
                shows_card: slack.output.progress_indicator,
                streams: slack.output.streaming,
                shows_typing: slack.output.typing_indicator,
                tool_result_chars: result_chars(
                    slack.output.tool_results,
                    slack.output.tool_result_max_length,
                ),
                shows_system: slack.output.system_status,
                shows_messages: true,
                acknowledge: slack.output.acknowledge_emoji.get(),
            },
        }
    }

    fn of_github(agent: &'c AgentConfig, github: &'c GithubChatConfig) -> ChatPolicy<'c> {
        ChatPolicy {
            agent,
            // The credentials are those of the fleet.
            token_variable: "",
            chats: github.repos.iter().map(listed_repo).collect(),
            servers: Vec::new(),
            direct: None,
            allow: github.allow.as_deref(),
            approvers: &github.approvers,
            operators: github.operators.as_deref(),
            session_expiry: hours(github.session_expiry_hours.get()),
            shows_errors: github.output.errors,
            shows_cost: github.output.result_summary,
            // Comments take no files.
            posts_max: usize::MAX,
            log_level: github.log_level,
            while_busy: github.while_busy,
            messages_per_minute: count(github.messages_per_minute.get()),
            files: None,
            voice: None,
            files_folder: "",
            live: LiveOutput {
                // Each change of a comment would count towards GitHub's limits.
                shows_card: false,
                streams: false,
                shows_typing: false,
                tool_result_chars: None,
                shows_system: false,
                shows_messages: false,
                acknowledge: github.output.acknowledge.then_some("eyes"),
            },
        }
    }

    fn of_discord(agent: &'c AgentConfig, discord: &'c DiscordConfig) -> ChatPolicy<'c> {
        let channels = discord.guilds.iter().flat_map(|guild| &guild.channels);
        let channels = channels.chain(&discord.channels);
        let servers = discord.guilds.iter().filter_map(|guild| {
            let mode = guild.default_channel_mode?;
            Some(ListedChat { id: &guild.id, mode, context_messages: CONTEXT_UNLISTED })
        });
        // A direct message belongs to no server, so the first rule counts.
        let direct = discord.guilds.iter().filter_map(|guild| guild.dm.as_ref());
        let direct = discord.dm.iter().chain(direct).next();
        ChatPolicy {
            agent,
            token_variable: discord.bot_token_env.as_str(),
            chats: channels.map(listed_channel).collect(),
            servers: servers.collect(),
            direct: direct.filter(|dm| dm.enabled),
            allow: discord.allow.as_deref(),
            approvers: &discord.approvers,
            operators: discord.operators.as_deref(),
            session_expiry: hours(discord.session_expiry_hours.get()),
            shows_errors: discord.output.errors,
            shows_cost: discord.output.result_summary,
            posts_max: count(discord.output.max_posts.get()),
            log_level: discord.log_level,
            while_busy: discord.while_busy,
            messages_per_minute: count(discord.messages_per_minute.get()),
            files: taken_files(discord.attachments.as_ref()),
            voice: discord.voice.as_ref().filter(|voice| voice.enabled),
            files_folder: files_folder(discord.attachments.as_ref(), ".discord-attachments"),
            live: LiveOutput {
                shows_card: discord.output.progress_indicator,
                streams: false,
                shows_typing: discord.output.typing_indicator,
                tool_result_chars: result_chars(
                    discord.output.tool_results,
                    discord.output.tool_result_max_length,
                ),
                shows_system: discord.output.system_status,
                shows_messages: discord.output.assistant_messages == AssistantMessages::All,
                acknowledge: discord.output.acknowledge_emoji.get(),
            },
        }
    }

    /// Returns the mode of a place that the agent answers in.
    pub(crate) fn chat_mode(&self, place: &ChatPlace) -> Option<ChatMode> {
        self.listed_chat(place).map(|listed| listed.mode)
    }

    /// Returns the number of earlier messages that a conversation at a place begins with.
    pub fn context_messages(&self, place: &ChatPlace) -> usize {
        match place.is_direct {
            true => 0,
            false => self.listed_chat(place).map_or(0, |listed| listed.context_messages),
        }
    }

    fn listed_chat(&self, place: &ChatPlace) -> Option<&ListedChat<'c>> {
        let listed = self.chats.iter().find(|listed| listed.id == place.chat);
        let of_server = |server: &String| self.servers.iter().find(|it| it.id == server);
        listed.or_else(|| place.server.as_ref().and_then(of_server))
    }

    /// Returns true if the agent takes files or voice messages.
    pub fn takes_files(&self) -> bool {
        self.files.is_some() || self.voice.is_some()
    }

    /// Returns true if the agent answers at a place.
    pub fn answers_in(&self, place: &ChatPlace) -> bool {
        match place.is_direct {
            true => self.direct.is_some(),
            false => self.chat_mode(place).is_some(),
        }
    }

    /// Returns true if a person may talk to the agent in its chats.
    pub fn allows_talking(&self, sender: &ChatSender) -> bool {
        match self.allow {
            Some(allowed) => is_listed(allowed, &sender.id),
            None => !sender.is_outsider,
        }
    }

    /// Returns true if a person may send direct messages. Without a list, the answer is no.
    pub(crate) fn allows_direct(&self, sender: &ChatSender) -> bool {
        self.allows_direct_to(&sender.id)
    }

    /// Returns true if a person may answer questions. `*` does not count here: the ones who may let
    /// an agent act are named.
    pub fn is_approver(&self, sender: &ChatSender) -> bool {
        self.approvers.contains(&sender.id)
    }

    /// Returns true if a person who may talk to the agent may also stop its jobs, begin sessions and retry.
    pub fn may_operate(&self, sender: &ChatSender) -> bool {
        self.operators.is_none_or(|operators| is_listed(operators, &sender.id))
    }

    /// Returns true if the first word of a command is a skill that the agent offers.
    pub fn offers_skill(&self, words: &str) -> bool {
        let discord = self.agent.chat.as_ref().and_then(|chat| chat.discord.as_ref());
        let skills = discord.map_or(&[][..], |discord| &discord.skills);
        let name = words.split_whitespace().next();
        skills.iter().any(|skill| Some(skill.name.as_str()) == name)
    }

    /// Returns true if the fleet may post to a place: it is listed, or it is a direct conversation with
    /// a person who may write.
    pub fn may_post_to(&self, place: &ChatPlace) -> bool {
        match place.is_direct {
            true => self.allows_direct_to(place.person.as_deref().unwrap_or(&place.chat)),
            // The record of a conversation does not name the server.
            false => self.chat_mode(place).is_some() || !self.servers.is_empty(),
        }
    }

    fn allows_direct_to(&self, person: &str) -> bool {
        self.direct.is_some_and(|dm| {
            let allowed = dm.allowlist.as_deref().unwrap_or_default();
            is_listed(allowed, person) && !is_listed(&dm.blocklist, person)
        })
    }
}

fn is_listed(list: &[String], id: &str) -> bool {
    list.iter().any(|entry| entry == id || entry == EVERYONE)
}

fn taken_files(attachments: Option<&AttachmentConfig>) -> Option<&AttachmentConfig> {
    attachments.filter(|it| it.enabled)
}

fn files_folder<'c>(attachments: Option<&'c AttachmentConfig>, usual: &'static str) -> &'c str {
    let written = attachments.and_then(|it| it.download_dir.as_ref());
    written.map_or(usual, |folder| folder.as_str())
}

fn result_chars(is_shown: bool, length: ResultLength) -> Option<usize> {
    is_shown.then(|| usize::try_from(length.get()).unwrap_or(usize::MAX))
}

fn listed_channel(channel: &ChannelConfig) -> ListedChat<'_> {
    let context_messages = count(channel.context_messages.get());
    ListedChat { id: &channel.id, mode: channel.mode, context_messages }
}

fn listed_repo(repo: &GithubChatRepo) -> ListedChat<'_> {
    let context_messages = count(repo.context_messages.get());
    ListedChat { id: repo.repo.chat(), mode: repo.mode, context_messages }
}

/// Bots cannot read earlier messages on Telegram.
fn telegram_chat(chat: &TelegramChat) -> ListedChat<'_> {
    ListedChat { id: &chat.id, mode: chat.mode, context_messages: 0 }
}

fn count(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn hours(hours: u32) -> Duration {
    Duration::from_secs(u64::from(hours) * 3600)
}
