//! Hooks: the commands, requests and messages that follow a job's end.
//!
//! [`heeler_model::hook`] decides which hooks fire; they are recorded as effects in the transaction
//! that ends the job ([`hook_effects`]). A [`HookWorker`] then executes each at least once, under a
//! stable ID. It never writes the database, but reports outcomes ([`HookOutcome`]). A hook's
//! definition is not recorded, because it may hold secrets: it is looked up in the current config,
//! by name or else by position, and skipped if it no longer exists.

mod command_hook;
mod effects;
mod hook_error;
mod http_hook;
mod program_paths;
mod result_keys;
mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use camino::Utf8PathBuf;
use heeler_config::{AgentConfig, Hook, HookAction, LoadedConfig};
use heeler_model::hook::HookContext;

use crate::fleet::EngineContext;

pub use effects::{JobEnd, METADATA_BYTES_MAX, hook_effects, read_metadata};
pub(crate) use hook_error::HookExecutionError;
pub use result_keys::{HOOK_KEYS_MAX, HookResultKey};
pub use worker::{ATTEMPTS_MAX, FinishedHook, HookOutcome, HookWorker};

/// Config of the hook worker; replaced when the config is reloaded.
#[derive(Debug, Clone)]
pub struct HookWorkerConfig {
    /// Config with the agents that define the hooks.
    pub loaded: Arc<LoadedConfig>,
    /// Environment variables, including those of `.env`.
    pub env: BTreeMap<String, String>,
    /// Directory for control sockets.
    pub sockets: Utf8PathBuf,
    /// Addresses of chat services.
    pub services: ChatServiceUrls,
}

/// Addresses of chat services. Tests use others.
#[derive(Debug, Clone)]
pub struct ChatServiceUrls {
    /// Base URL of Slack's web API.
    pub slack: String,
    /// Base URL of Discord's API, with its version.
    pub discord: String,
}

impl Default for ChatServiceUrls {
    fn default() -> ChatServiceUrls {
        ChatServiceUrls::from_env(&BTreeMap::new())
    }
}

impl ChatServiceUrls {
    /// Returns the public addresses, or those in `HEELER_SLACK_API` and `HEELER_DISCORD_API`.
    pub fn from_env(env: &BTreeMap<String, String>) -> ChatServiceUrls {
        let named = |name: &str, usual: &str| {
            env.get(name).map_or(usual, |named| named.trim_end_matches('/')).to_owned()
        };
        ChatServiceUrls {
            slack: named("HEELER_SLACK_API", "https://slack.com/api"),
            discord: named("HEELER_DISCORD_API", "https://discord.com/api/v10"),
        }
    }
}

/// Inputs for executing a hook.
#[derive(Clone, Copy)]
pub(crate) struct HookExecutionContext<'a> {
    pub(crate) fleet: &'a EngineContext,
    pub(crate) config: &'a HookWorkerConfig,
    /// Agent that the hook belongs to.
    pub(crate) agent: &'a AgentConfig,
    /// Proves the result of a command.
    pub(crate) key: &'a HookResultKey,
    /// Set when the worker must end.
    pub(crate) stop: &'a AtomicBool,
}

/// Executes one hook once. Blocks for at most the hook's time limit plus the time to end a process
/// tree.
pub(crate) fn execute_hook(
    hook: &Hook,
    context: &HookContext,
    around: &HookExecutionContext<'_>,
) -> Result<(), HookExecutionError> {
    match &hook.action {
        HookAction::Shell { command, timeout, folder } => {
            let hook = command_hook::CommandHook {
                command,
                folder,
                timeout: *timeout,
                permissions: &hook.permissions,
                allow_new_privileges: hook.allow_new_privileges,
            };
            command_hook::run_command_hook(&hook, context, around)
        }
        HookAction::Webhook { url, method, headers, timeout } => {
            http_hook::call_webhook(url, *method, headers, *timeout, (context, around))
        }
        HookAction::Slack { channel_id, bot_token_env } => {
            http_hook::post_to_slack(channel_id, bot_token_env, context, around)
        }
        HookAction::Discord { channel_id, bot_token_env } => {
            http_hook::post_to_discord(channel_id, bot_token_env, context, around)
        }
    }
}

#[cfg(test)]
mod tests;
