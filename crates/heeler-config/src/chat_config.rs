//! Chat platforms of an agent.
//!
//! [`ChatConfig`] declares the platforms; each has a module of its own.

use crate::discord::DiscordConfig;
use crate::github_chat::GithubChatConfig;
use crate::shape::section;
use crate::slack::SlackConfig;
use crate::telegram::TelegramConfig;
use crate::value::VarName;

section! {
    /// Chats in which the agent answers.
    pub struct ChatConfig ("chat") {
        /// The agent's Discord bot.
        discord: Option<DiscordConfig>,
        /// Issues and pull requests of GitHub, as the account of the fleet.
        github: Option<GithubChatConfig>,
        /// Slack, through an app in socket mode.
        slack: Option<SlackConfig>,
        /// The agent's Telegram bot.
        telegram: Option<TelegramConfig>,
    }
}

impl ChatConfig {
    /// Returns the variables that hold tokens.
    pub(crate) fn token_variables(&self) -> Vec<&VarName> {
        let discord = self.discord.iter().map(|discord| discord.bot_token_env.name());
        let slack = self.slack.iter();
        let slack =
            slack.flat_map(|slack| [slack.bot_token_env.name(), slack.app_token_env.name()]);
        let telegram = self.telegram.iter().map(|telegram| telegram.bot_token_env.name());
        let voices = [
            self.discord.as_ref().and_then(|discord| discord.voice.as_ref()),
            self.slack.as_ref().and_then(|slack| slack.voice.as_ref()),
            self.telegram.as_ref().and_then(|telegram| telegram.voice.as_ref()),
        ];
        let voices = voices.into_iter().flatten().filter(|voice| voice.enabled);
        let voices = voices.map(|voice| voice.api_key_env.name());
        discord.chain(slack).chain(telegram).chain(voices).collect()
    }
}
