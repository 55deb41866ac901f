//! Credentials of chat platforms: one for each bot, whatever number of agents use it.
//!
//! Start at [`chat_credentials`].

use std::collections::BTreeMap;
use std::fmt;

use heeler_config::{
    AgentConfig, DiscordConfig, GithubAccess, LoadedConfig, SlackConfig, SlackTransport,
    TelegramConfig,
};
use heeler_connect::{
    ChatApiError, ChatBot, ChatPlatform, ChatPolicy, DiscordBot, SlackBot, SlackTokens,
    TelegramBot, discord_account, is_slack_bot_token, slack_account, telegram_account,
};

use crate::setup::DaemonSetup;

/// Access to a chat platform as one bot.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ChatCredential {
    pub(crate) platform: ChatPlatform,
    /// Public ID of the bot.
    pub(crate) account: String,
    pub(crate) api_url: String,
    /// Variable with the token.
    pub(crate) variable: String,
    pub(crate) token: String,
    /// Second token, with its variable, for platforms that need one to receive events.
    pub(crate) app_token: Option<(String, String)>,
    /// Secret with which Slack signs its calls, if it makes calls.
    pub(crate) signing_secret: Option<String>,
}

impl fmt::Debug for ChatCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChatCredential({} {})", self.platform, self.account)
    }
}

/// Lists the credentials that the agents use, and the reasons why some are missing.
pub(crate) fn chat_credentials(
    loaded: &LoadedConfig,
    env: &BTreeMap<String, String>,
) -> (Vec<ChatCredential>, Vec<String>) {
    let (mut found, mut problems): (Vec<ChatCredential>, Vec<String>) = (Vec::new(), Vec::new());
    let mut add_problem = |problem: String| {
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    };
    for agent in &loaded.agents {
        for platform in ChatPlatform::ALL {
            match agent_credential(loaded, agent, env, *platform) {
                None => {}
                Some(Err(problem)) => add_problem(problem),
                Some(Ok(credential)) => {
                    // A bot has one connection, also if several agents use it.
                    match found.iter().find(|known| known.is_same_bot(&credential)) {
                        None => found.push(credential),
                        Some(known) if known.token != credential.token => add_problem(format!(
                            "{} and {} hold two tokens of one {} bot: use the same one",
                            known.variable,
                            credential.variable,
                            platform.title()
                        )),
                        Some(_) => {}
                    }
                }
            }
        }
    }
    (found, problems)
}

/// Returns the credential of an agent, or the reason why there is none; `None` if the agent does not
/// use the platform.
fn agent_credential(
    loaded: &LoadedConfig,
    agent: &AgentConfig,
    env: &BTreeMap<String, String>,
    platform: ChatPlatform,
) -> Option<Result<ChatCredential, String>> {
    let chat = agent.chat.as_ref()?;
    match platform {
        ChatPlatform::Telegram => chat.telegram.as_ref().map(|it| telegram_credential(it, env)),
        ChatPlatform::Slack => chat.slack.as_ref().map(|it| slack_credential(it, env)),
        ChatPlatform::Discord => chat.discord.as_ref().map(|it| discord_credential(it, env)),
        ChatPlatform::Github => chat.github.as_ref().map(|_| github_credential(loaded, env)),
    }
}

/// Returns the account of the fleet on GitHub. Its calls are made by the client of `github`.
fn github_credential(
    loaded: &LoadedConfig,
    env: &BTreeMap<String, String>,
) -> Result<ChatCredential, String> {
    let github = loaded.fleets.first().and_then(|fleet| fleet.github.as_ref());
    let access = github.and_then(|github| Some((github, github.access.as_ref()?)));
    let Some((github, access)) = access else {
        return Err(
            "`chat.github` needs `github` in the fleet file, with `token_env` or `app`".to_owned()
        );
    };
    let (variable, token) = match access {
        GithubAccess::Token { env: variable } => {
            (variable.as_str(), token_of(env, variable.as_str(), "github.token_env")?)
        }
        // Its tokens are made by the client.
        GithubAccess::App { .. } => ("github.app", ""),
    };
    Ok(ChatCredential {
        platform: ChatPlatform::Github,
        account: github.bot.clone(),
        api_url: github.api_url.expose().to_owned(),
        variable: variable.to_owned(),
        token: token.to_owned(),
        app_token: None,
        signing_secret: None,
    })
}

fn telegram_credential(
    telegram: &TelegramConfig,
    env: &BTreeMap<String, String>,
) -> Result<ChatCredential, String> {
    let variable = telegram.bot_token_env.as_str();
    let token = token_of(env, variable, "chat.telegram.bot_token_env")?;
    let account = telegram_account(token).ok_or_else(|| {
        format!("{variable} has not the form of a bot token, such as 123456:ABC-DEF1234ghIkl")
    })?;
    Ok(ChatCredential {
        platform: ChatPlatform::Telegram,
        account: account.to_owned(),
        api_url: telegram.api_url.as_str().to_owned(),
        variable: variable.to_owned(),
        token: token.to_owned(),
        app_token: None,
        signing_secret: None,
    })
}

fn slack_credential(
    slack: &SlackConfig,
    env: &BTreeMap<String, String>,
) -> Result<ChatCredential, String> {
    let variable = slack.bot_token_env.as_str();
    let token = token_of(env, variable, "chat.slack.bot_token_env")?;
    if !is_slack_bot_token(token) {
        return Err(format!("{variable} has not the form of a bot token, such as xoxb-1-2-abc"));
    }
    let credential = |account: &str, app_token, signing_secret| ChatCredential {
        platform: ChatPlatform::Slack,
        account: account.to_owned(),
        api_url: slack.api_url.as_str().to_owned(),
        variable: variable.to_owned(),
        token: token.to_owned(),
        app_token,
        signing_secret,
    };
    if slack.events == SlackTransport::Http {
        let secret =
            token_of(env, slack.signing_secret_env.as_str(), "chat.slack.signing_secret_env")?;
        let account = slack.app_id.as_deref().filter(|id| !id.is_empty());
        let account = account.ok_or(
            "`chat.slack` with `events: http` needs `app_id`: the App ID under \"Basic Information\"",
        )?;
        return Ok(credential(account, None, Some(secret.to_owned())));
    }
    let app_variable = slack.app_token_env.as_str();
    let app_token = token_of(env, app_variable, "chat.slack.app_token_env")?;
    // The app token names the app; a bot token may be replaced.
    let account = slack_account(app_token).ok_or_else(|| {
        format!("{app_variable} has not the form of an app token, such as xapp-1-A012ABC-3-abc")
    })?;
    let app_token = (app_token.to_owned(), app_variable.to_owned());
    Ok(credential(account, Some(app_token), None))
}

fn discord_credential(
    discord: &DiscordConfig,
    env: &BTreeMap<String, String>,
) -> Result<ChatCredential, String> {
    let variable = discord.bot_token_env.as_str();
    let token = token_of(env, variable, "chat.discord.bot_token_env")?;
    let account = discord_account(token).ok_or_else(|| {
        format!("{variable} has not the form of a bot token, such as MTIz.abc.def")
    })?;
    Ok(ChatCredential {
        platform: ChatPlatform::Discord,
        account,
        api_url: discord.api_url.as_str().to_owned(),
        variable: variable.to_owned(),
        token: token.to_owned(),
        app_token: None,
        signing_secret: None,
    })
}

fn token_of<'e>(
    env: &'e BTreeMap<String, String>,
    variable: &str,
    key: &str,
) -> Result<&'e str, String> {
    let token = env.get(variable).map(|token| token.trim()).filter(|token| !token.is_empty());
    token.ok_or_else(|| {
        format!(
            "there is no {variable}: set it in the daemon's environment or in the `.env` beside the \
             config, or name another variable in `{key}`"
        )
    })
}

impl ChatCredential {
    fn is_same_bot(&self, other: &ChatCredential) -> bool {
        self.platform == other.platform && self.account == other.account
    }

    /// Returns the bot.
    pub(crate) fn bot(&self) -> Result<ChatBot, ChatApiError> {
        let ChatCredential { api_url, token, variable, .. } = self;
        Ok(match self.platform {
            ChatPlatform::Telegram => {
                ChatBot::Telegram(TelegramBot::new(api_url, token, variable)?)
            }
            ChatPlatform::Slack => ChatBot::Slack(self.slack_bot()),
            ChatPlatform::Discord => ChatBot::Discord(DiscordBot::new(api_url, token, variable)?),
            ChatPlatform::Github => {
                return Err(ChatApiError::Refused {
                    platform: "GitHub",
                    attempt: "act as a bot",
                    said: "its calls are made by the client of `github`".to_owned(),
                });
            }
        })
    }

    pub(super) fn slack_bot(&self) -> SlackBot {
        let (app_token, app_variable) = self.app_token.clone().unwrap_or_default();
        let tokens = SlackTokens {
            bot_token: self.token.clone(),
            bot_variable: self.variable.clone(),
            app_token,
            app_variable,
        };
        SlackBot::new(&self.api_url, tokens)
    }
}

impl DaemonSetup {
    /// Lists the Slack apps that call the daemon: account and signing secret.
    pub fn calling_slack_apps(&self) -> Vec<(String, String)> {
        if !self.accepts_webhooks() {
            return Vec::new();
        }
        let (found, _) = chat_credentials(&self.loaded, &self.env);
        let apps = found.into_iter().filter(|it| it.platform == ChatPlatform::Slack);
        apps.filter_map(|app| Some((app.account, app.signing_secret?))).collect()
    }
}

/// Returns the credential of a bot.
pub(crate) fn find_credential(
    loaded: &LoadedConfig,
    env: &BTreeMap<String, String>,
    platform: ChatPlatform,
    account: &str,
) -> Option<ChatCredential> {
    let (found, _) = chat_credentials(loaded, env);
    found.into_iter().find(|it| it.platform == platform && it.account == account)
}

/// Returns the bot with the token in a variable, if an agent uses it.
pub(crate) fn find_bot_of_variable(
    loaded: &LoadedConfig,
    env: &BTreeMap<String, String>,
    platform: ChatPlatform,
    variable: &str,
) -> Option<ChatCredential> {
    let token = env.get(variable)?.trim();
    let (found, _) = chat_credentials(loaded, env);
    found.into_iter().find(|it| it.platform == platform && it.token == token)
}

/// Returns the rules of all agents that use a bot.
pub(crate) fn account_policies<'c>(
    loaded: &'c LoadedConfig,
    env: &BTreeMap<String, String>,
    platform: ChatPlatform,
    account: &str,
) -> Vec<ChatPolicy<'c>> {
    let uses_bot = |agent: &&AgentConfig| {
        let credential = agent_credential(loaded, agent, env, platform);
        credential.is_some_and(|it| it.is_ok_and(|it| it.account == account))
    };
    let agents = loaded.agents.iter().filter(uses_bot);
    agents.filter_map(|agent| ChatPolicy::of_agent(agent, platform)).collect()
}
