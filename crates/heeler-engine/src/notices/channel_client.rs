//! Clients of the channels, with their secrets from the environment.
//!
//! Start at [`ChannelClient::new`].

use std::collections::BTreeMap;
use std::io::Read as _;

use camino::Utf8Path;
use heeler_config::{NotifyChannel, NotifyConfig, NotifySlack, NotifyTarget, SmtpConfig};
use heeler_connect::{
    ChatBot, ChatPlace, ChatPlatform, DiscordBot, SlackBot, SlackTokens, TelegramBot,
    is_slack_bot_token,
};
use heeler_notify::{MailAuthorities, NoticeClient, NoticeSendError, PersonNotice, SmtpServer};
use heeler_store::StateDatabase;
use url::Url;

use super::browser_client::browser_problem;
use super::desktop;

/// Largest file with certificates of authorities. All public ones have about 230 KB.
const CA_FILE_BYTES_MAX: usize = 1024 * 1024;

/// Client of one channel.
pub(super) enum ChannelClient<'e> {
    Remote(Box<NoticeClient>),
    Desktop { env: &'e BTreeMap<String, String> },
}

impl<'e> ChannelClient<'e> {
    /// Creates the client; fails with a reason and cure if a secret is missing.
    pub(super) fn new(
        config: &NotifyConfig,
        channel: &NotifyChannel,
        env: &'e BTreeMap<String, String>,
    ) -> Result<ChannelClient<'e>, String> {
        let client = match &channel.target {
            NotifyTarget::Desktop => {
                desktop::find_program(env)?;
                return Ok(ChannelClient::Desktop { env });
            }
            // Each browser has a client of its own.
            NotifyTarget::WebPush => return Err("it is a channel for browsers".to_owned()),
            NotifyTarget::Webhook(webhook) => NoticeClient::Webhook {
                url: parse_url(webhook.url.expose())?,
                secret: optional_secret(env, webhook.secret_env.as_ref().map(|it| it.as_str()))?,
            },
            NotifyTarget::Ntfy(ntfy) => NoticeClient::Ntfy {
                url: parse_url(ntfy.url.expose())?,
                token: optional_secret(env, ntfy.token_env.as_ref().map(|it| it.as_str()))?,
            },
            NotifyTarget::Telegram(telegram) => {
                let variable = telegram.bot_token_env.as_str();
                let token = secret(env, variable)?;
                let bot = TelegramBot::new(telegram.api_url.as_str(), token, variable);
                let bot = ChatBot::Telegram(bot.map_err(|error| error.to_string())?);
                let place = ChatPlace::of_chat(ChatPlatform::Telegram, &telegram.chat);
                NoticeClient::Chat { bot, place }
            }
            NotifyTarget::Discord(discord) => {
                let variable = discord.bot_token_env.as_str();
                let token = secret(env, variable)?;
                let bot = DiscordBot::new(discord.api_url.as_str(), token, variable);
                let bot = ChatBot::Discord(bot.map_err(|error| error.to_string())?);
                let place = ChatPlace::of_chat(ChatPlatform::Discord, &discord.channel);
                NoticeClient::Chat { bot, place }
            }
            NotifyTarget::Slack(NotifySlack {
                channel: Some(channel),
                bot_token_env,
                api_url,
                ..
            }) => {
                let variable = bot_token_env.as_str();
                let bot = slack_bot(api_url.as_str(), secret(env, variable)?, variable)?;
                let place = ChatPlace::of_chat(ChatPlatform::Slack, channel);
                NoticeClient::Chat { bot, place }
            }
            NotifyTarget::Slack(slack) => {
                let variable = slack.url_env.as_str();
                NoticeClient::Slack { url: slack_url(secret(env, variable)?, variable)? }
            }
            NotifyTarget::Email(email) => {
                let smtp = config.smtp.as_ref().ok_or("there is no `notify.smtp`")?;
                NoticeClient::Email { server: smtp_server(smtp, env)?, to: email.to.clone() }
            }
        };
        Ok(ChannelClient::Remote(Box::new(client)))
    }

    /// Sends a notice; see [`NoticeClient::send`].
    pub(super) fn send(
        &self,
        id: &str,
        notice: &PersonNotice,
        earlier: Option<&str>,
    ) -> Result<Option<String>, NoticeSendError> {
        match self {
            ChannelClient::Remote(client) => client.send(id, notice, earlier),
            ChannelClient::Desktop { env } => desktop::show(env, notice).map(|()| None),
        }
    }
}

/// Returns the reason why a channel cannot be used, with the cure.
pub(super) fn channel_problem(
    config: &NotifyConfig,
    channel: &NotifyChannel,
    env: &BTreeMap<String, String>,
    db: Option<&StateDatabase>,
) -> Option<String> {
    match channel.target {
        NotifyTarget::WebPush => browser_problem(config, &channel.name, db),
        _ => ChannelClient::new(config, channel, env).err(),
    }
}

/// Lists the channels that cannot be used, each with its reason and cure.
pub(crate) fn channel_problems(
    config: Option<&NotifyConfig>,
    env: &BTreeMap<String, String>,
    db: Option<&StateDatabase>,
) -> Vec<String> {
    let channels = config
        .into_iter()
        .flat_map(|config| config.channels.iter().map(move |channel| (config, channel)));
    channels
        .filter_map(|(config, channel)| {
            let problem = channel_problem(config, channel, env, db)?;
            Some(format!("the channel {} of `notify` cannot be used: {problem}", channel.name))
        })
        .collect()
}

fn parse_url(text: &str) -> Result<Url, String> {
    // The config has checked it.
    text.parse().map_err(|_| "its address is invalid".to_owned())
}

/// Returns an app that only posts, so it needs no second token.
fn slack_bot(api_url: &str, token: &str, variable: &str) -> Result<ChatBot, String> {
    if !is_slack_bot_token(token) {
        return Err(format!("{variable} has not the form of a bot token, such as xoxb-1-2-abc"));
    }
    let tokens = SlackTokens {
        bot_token: token.to_owned(),
        bot_variable: variable.to_owned(),
        app_token: String::new(),
        app_variable: String::new(),
    };
    Ok(ChatBot::Slack(SlackBot::new(api_url, tokens)))
}

/// Returns the address of an incoming webhook. It is a secret, so it is sent over TLS only.
fn slack_url(text: &str, variable: &str) -> Result<Url, String> {
    let url = text.parse::<Url>().ok().filter(|url| {
        let host = url.host_str().unwrap_or_default();
        let is_local = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
        url.scheme() == "https" || url.scheme() == "http" && is_local
    });
    url.ok_or_else(|| {
        format!("{variable} is not an address such as https://hooks.slack.com/services/…")
    })
}

fn smtp_server(config: &SmtpConfig, env: &BTreeMap<String, String>) -> Result<SmtpServer, String> {
    let password = optional_secret(env, config.password_env.as_deref())?;
    let authorities = config.ca_file.as_deref().map(mail_authorities).transpose()?;
    Ok(SmtpServer { config: config.clone(), password, authorities })
}

fn mail_authorities(path: &Utf8Path) -> Result<MailAuthorities, String> {
    let problem = |reason: String| {
        format!("cannot use {path}, the `ca_file` of `notify.smtp`: {reason}: set it to a PEM file")
    };
    let pem = read_authorities(path).map_err(|error| problem(error.to_string()))?;
    if pem.len() > CA_FILE_BYTES_MAX {
        return Err(problem(format!("it has more than {CA_FILE_BYTES_MAX} bytes")));
    }
    MailAuthorities::parse(&pem).map_err(problem)
}

/// Reads a file, up to one byte more than the limit.
fn read_authorities(path: &Utf8Path) -> std::io::Result<Vec<u8>> {
    // To open anything else, such as a pipe, could wait forever.
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("it is not a file"));
    }
    let mut pem = Vec::new();
    let limit = u64::try_from(CA_FILE_BYTES_MAX + 1).unwrap_or(u64::MAX);
    std::fs::File::open(path)?.take(limit).read_to_end(&mut pem)?;
    Ok(pem)
}

fn optional_secret(
    env: &BTreeMap<String, String>,
    variable: Option<&str>,
) -> Result<Option<String>, String> {
    variable.map(|variable| secret(env, variable).map(str::to_owned)).transpose()
}

fn secret<'e>(env: &'e BTreeMap<String, String>, variable: &str) -> Result<&'e str, String> {
    let found = env.get(variable).map(|value| value.trim()).filter(|value| !value.is_empty());
    found.ok_or_else(|| {
        format!(
            "there is no {variable}: set it in the daemon's environment or in the `.env` beside the \
             config"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_authorities_that_is_too_long_or_no_file_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(folder.path()).unwrap();
        let refused = |path: &Utf8Path| mail_authorities(path).map(drop).unwrap_err();
        let long = folder.join("long.pem");
        std::fs::write(&long, vec![b'\n'; CA_FILE_BYTES_MAX + 1]).unwrap();
        assert!(refused(&long).contains("it has more than 1048576 bytes"), "{}", refused(&long));
        // The largest file is read, and then refused for its content.
        std::fs::write(&long, vec![b'\n'; CA_FILE_BYTES_MAX]).unwrap();
        assert!(!refused(&long).contains("more than"), "{}", refused(&long));
        assert!(refused(folder).contains("it is not a file"), "{}", refused(folder));
    }
}
