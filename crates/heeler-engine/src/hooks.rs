//! Hooks, done: the commands and messages that follow a job's end.
//!
//! Which hooks fire is decided by [`heeler_model::handle_hook`], and they are recorded as effects in the
//! transaction that ends the job ([`hook_effects`]). A [`HookWorker`] does them afterwards, each at
//! least once, under an id that stays the same; it writes nothing to the database but tells what
//! came of them ([`HookOutcome`]). A hook's definition is never recorded, since it may hold secrets:
//! it is looked up in the config of the moment, by its name or else by its place, and one that is
//! gone is passed over.

mod command_hook;
mod effects;
mod http_hook;
mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use camino::Utf8PathBuf;
use heeler_model::config::{AgentConfig, Hook, HookAction, LoadedConfig};
use heeler_model::hook::HookContext;
use thiserror::Error;

use crate::fleet::EngineContext;

pub use effects::{
    FailedHook, HOOK_EFFECT_KIND, JobEnd, METADATA_BYTES_MAX, failed_hooks, hook_effects,
    read_metadata,
};
pub use worker::{ATTEMPTS_MAX, FinishedHook, HookOutcome, HookWorker};

/// What hooks are done with; replaced when the config is read again.
#[derive(Debug, Clone)]
pub struct HookWorkerConfig {
    /// The config, whose agents have the hooks.
    pub loaded: Arc<LoadedConfig>,
    /// The environment, with what `.env` adds.
    pub env: BTreeMap<String, String>,
    /// The folder of control sockets.
    pub sockets: Utf8PathBuf,
    /// Where chats are.
    pub services: ChatServiceUrls,
}

/// Where chats are reached; tests have others.
#[derive(Debug, Clone)]
pub struct ChatServiceUrls {
    /// Slack's web API.
    pub slack: String,
    /// Discord's API, with its version.
    pub discord: String,
}

impl Default for ChatServiceUrls {
    fn default() -> ChatServiceUrls {
        ChatServiceUrls::from_env(&BTreeMap::new())
    }
}

impl ChatServiceUrls {
    /// Returns the real ones, or those that `HEELER_SLACK_API` and `HEELER_DISCORD_API` name.
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

/// What is around a hook that is being done.
#[derive(Clone, Copy)]
pub(crate) struct HookExecutionContext<'a> {
    pub(crate) fleet: &'a EngineContext,
    pub(crate) config: &'a HookWorkerConfig,
    /// Whose hook it is.
    pub(crate) agent: &'a AgentConfig,
    /// Set when the worker is to end.
    pub(crate) stop: &'a AtomicBool,
}

/// Why a hook was not done. No secret is in these texts: they are logged and recorded.
#[derive(Debug, Error)]
pub(crate) enum HookExecutionError {
    /// The same would come of it again.
    #[error("{0}")]
    Permanent(String),
    /// It may succeed later.
    #[error("{message}")]
    Transient {
        /// What went wrong.
        message: String,
        /// Not before this, when it was said so.
        after: Option<Duration>,
    },
    /// The worker ends. A command that was started goes on, and the next worker hears of it.
    #[error("the daemon ends")]
    Stopped,
}

impl HookExecutionError {
    fn transient(message: impl Into<String>) -> HookExecutionError {
        HookExecutionError::Transient { message: message.into(), after: None }
    }
}

/// Does one hook, once. Blocks for as long as that takes: at most the hook's time limit, and what
/// ending a process tree takes.
pub(crate) fn execute_hook(
    hook: &Hook,
    context: &HookContext,
    around: &HookExecutionContext<'_>,
) -> Result<(), HookExecutionError> {
    match &hook.action {
        HookAction::Shell { command, timeout } => {
            command_hook::run_command_hook(command, *timeout, context, around)
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
