//! Check of the access to chat platforms, for people.
//!
//! Start at [`check_chat_access`].

use std::collections::BTreeMap;

use heeler_config::LoadedConfig;
use heeler_connect::{ChatPlatform, ChatPolicy};
use jiff::Timestamp;

use super::credential::{ChatCredential, chat_credentials};
use crate::github::check_github_access;

/// Most channels of a bot that are checked.
const CHANNELS_MAX: usize = 20;

/// State of the access to chat platforms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatAccessReport {
    /// Bots that work, each with its agents.
    pub bots: Vec<String>,
    /// Problems, each with its cure.
    pub problems: Vec<String>,
    /// Consequences of the config that an owner may not expect.
    pub notes: Vec<String>,
}

/// Checks the access to all chat platforms. Returns `None` if no agent uses one.
pub fn check_chat_access(
    loaded: &LoadedConfig,
    env: &BTreeMap<String, String>,
    now: fn() -> Timestamp,
) -> Option<ChatAccessReport> {
    let (credentials, problems) = chat_credentials(loaded, env);
    if credentials.is_empty() && problems.is_empty() {
        return None;
    }
    let mut report = ChatAccessReport { bots: Vec::new(), problems, notes: Vec::new() };
    for credential in &credentials {
        let policies =
            super::account_policies(loaded, env, credential.platform, &credential.account);
        match credential.platform {
            ChatPlatform::Github => check_github(&policies, (loaded, env, now), &mut report),
            _ => check_bot(credential, &policies, &mut report),
        }
        policies.iter().for_each(|policy| check_policy(credential.platform, policy, &mut report));
    }
    Some(report)
}

/// Checks the account of the fleet on GitHub.
fn check_github(
    policies: &[ChatPolicy<'_>],
    (loaded, env, now): (&LoadedConfig, &BTreeMap<String, String>, fn() -> Timestamp),
    report: &mut ChatAccessReport,
) {
    let agents: Vec<&str> = policies.iter().map(|policy| policy.agent.name.as_str()).collect();
    let Some(access) = check_github_access(loaded, env, now) else { return };
    if !access.summary.is_empty() {
        report.bots.push(format!("GitHub: {} for {}", access.summary, agents.join(", ")));
    }
    report.problems.extend(access.problems);
}

fn check_bot(
    credential: &ChatCredential,
    policies: &[ChatPolicy<'_>],
    report: &mut ChatAccessReport,
) {
    let platform = credential.platform;
    let agents: Vec<&str> = policies.iter().map(|policy| policy.agent.name.as_str()).collect();
    match credential.bot().and_then(|bot| Ok((bot.own_name()?, bot))) {
        Ok((name, bot)) => {
            let mut channels: Vec<&str> =
                policies.iter().flat_map(|policy| &policy.chats).map(|chat| chat.id).collect();
            channels.sort_unstable();
            channels.dedup();
            channels.truncate(CHANNELS_MAX);
            let takes_files = policies.iter().any(ChatPolicy::takes_files);
            report.problems.extend(bot.setup_problems(&channels, takes_files));
            let (title, agents) = (platform.title(), agents.join(", "));
            report.bots.push(format!("{title}: @{name} for {agents}"));
        }
        Err(error) => report.problems.push(error.to_string()),
    }
}

/// Reports rules with which an agent hears or says less than its owner may expect.
fn check_policy(platform: ChatPlatform, policy: &ChatPolicy<'_>, report: &mut ChatAccessReport) {
    let name = &policy.agent.name;
    let has_direct = policy.direct.is_some_and(|dm| dm.allowlist.is_some());
    if policy.chats.is_empty() && policy.servers.is_empty() && !has_direct {
        let list = match platform {
            ChatPlatform::Telegram => "chats",
            ChatPlatform::Slack | ChatPlatform::Discord => "channels",
            ChatPlatform::Github => "repos",
        };
        let direct = match platform {
            ChatPlatform::Github => String::new(),
            _ => format!("`chat.{platform}.dm.allowlist` or "),
        };
        report
            .problems
            .push(format!("{name} answers no messages: set {direct}`chat.{platform}.{list}`"));
    }
    if policy.approvers.is_empty() {
        report.notes.push(format!(
            "{name} has no `chat.{platform}.approvers`: its questions are denied at once"
        ));
    }
}
