//! Credentials of chat platforms: one for each bot, whatever number of agents use it.
//!
//! Start at [`chat_credentials`].

use std::collections::BTreeMap;
use std::fmt;

use heeler_config::LoadedConfig;
use heeler_connect::{ChatPlatform, ChatPolicy, telegram_account};

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
    for agent in &loaded.agents {
        let Some(telegram) = agent.chat.as_ref().and_then(|chat| chat.telegram.as_ref()) else {
            continue;
        };
        let variable = telegram.bot_token_env.as_str();
        match telegram_token(env, variable) {
            Ok((account, token)) => {
                let credential = ChatCredential {
                    platform: ChatPlatform::Telegram,
                    account: account.to_owned(),
                    api_url: telegram.api_url.as_str().to_owned(),
                    variable: variable.to_owned(),
                    token: token.to_owned(),
                };
                // A bot has one connection, also if several agents use it.
                if !found.iter().any(|known| known.is_same_bot(&credential)) {
                    found.push(credential);
                }
            }
            Err(problem) if !problems.contains(&problem) => problems.push(problem),
            Err(_) => {}
        }
    }
    (found, problems)
}

impl ChatCredential {
    fn is_same_bot(&self, other: &ChatCredential) -> bool {
        self.platform == other.platform && self.account == other.account
    }
}

fn telegram_token<'e>(
    env: &'e BTreeMap<String, String>,
    variable: &str,
) -> Result<(&'e str, &'e str), String> {
    let token = env.get(variable).map(|token| token.trim()).filter(|token| !token.is_empty());
    let token = token.ok_or_else(|| {
        format!(
            "there is no {variable}: set it in the daemon's environment or in the `.env` beside the \
             config, or name another variable in `chat.telegram.bot_token_env`"
        )
    })?;
    let account = telegram_account(token).ok_or_else(|| {
        format!("{variable} has not the form of a bot token, such as 123456:ABC-DEF1234ghIkl")
    })?;
    Ok((account, token))
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

/// Returns the rules of all agents that use a bot.
pub(crate) fn account_policies<'c>(
    loaded: &'c LoadedConfig,
    env: &BTreeMap<String, String>,
    platform: ChatPlatform,
    account: &str,
) -> Vec<ChatPolicy<'c>> {
    let policies = loaded.agents.iter().filter_map(|agent| ChatPolicy::of_agent(agent, platform));
    policies
        .filter(|policy| match platform {
            ChatPlatform::Telegram => telegram_token(env, policy.token_variable)
                .is_ok_and(|(of_agent, _)| of_agent == account),
        })
        .collect()
}
