//! Chat platforms of an agent.
//!
//! [`ChatConfig`] declares the platforms; each has a module of its own.

use crate::chat::DirectMessages;
use crate::discord::DiscordConfig;
use crate::github_chat::GithubChatConfig;
use crate::shape::section;
use crate::slack::{SlackConfig, SlackTransport};
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
    /// Returns the lists of users, with the platform of each.
    pub(crate) fn user_lists(&mut self) -> Vec<(&'static str, &mut Vec<String>)> {
        let mut lists = Vec::new();
        if let Some(discord) = &mut self.discord {
            let dms = discord.guilds.iter_mut().filter_map(|guild| guild.dm.as_mut());
            lists.extend(dms.chain(&mut discord.dm).flat_map(DirectMessages::user_lists));
            lists.extend(discord.allow.iter_mut().chain(&mut discord.operators));
            lists.push(&mut discord.approvers);
        }
        let mut lists: Vec<_> = lists.into_iter().map(|list| ("discord", list)).collect();
        if let Some(github) = &mut self.github {
            let optional = github.allow.iter_mut().chain(&mut github.operators);
            let all = optional.chain([&mut github.approvers]);
            lists.extend(all.map(|list| ("github", list)));
        }
        if let Some(slack) = &mut self.slack {
            let optional = slack.allow.iter_mut().chain(&mut slack.operators);
            let direct = slack.dm.iter_mut().flat_map(DirectMessages::user_lists);
            let all = optional.chain(direct).chain([&mut slack.approvers]);
            lists.extend(all.map(|list| ("slack", list)));
        }
        if let Some(telegram) = &mut self.telegram {
            let optional = telegram.allow.iter_mut().chain(&mut telegram.operators);
            let direct = telegram.dm.iter_mut().flat_map(DirectMessages::user_lists);
            let all = optional.chain(direct).chain([&mut telegram.approvers]);
            lists.extend(all.map(|list| ("telegram", list)));
        }
        lists
    }

    /// Returns the variables that hold tokens.
    pub(crate) fn token_variables(&self) -> Vec<&VarName> {
        let discord = self.discord.iter().map(|discord| discord.bot_token_env.name());
        let slack = self.slack.iter();
        let slack = slack.flat_map(|slack| {
            let of_events = match slack.events {
                SlackTransport::Socket => slack.app_token_env.name(),
                SlackTransport::Http => slack.signing_secret_env.name(),
            };
            [slack.bot_token_env.name(), of_events]
        });
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
