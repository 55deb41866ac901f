//! Hooks, done: the commands and messages that follow a job's end.
//!
//! Which hooks fire is decided by [`heeler_model::hook`], and they are recorded as effects in the
//! transaction that ends the job ([`effects_of`]). A [`HookWorker`] does them afterwards, each at
//! least once, under an id that stays the same; it writes nothing to the database but tells what
//! came of them ([`HookOutcome`]). A hook's definition is never recorded, since it may hold secrets:
//! it is looked up in the config of the moment, by its name or else by its place, and one that is
//! gone is passed over.

mod effects;
mod shell;
mod web;
mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use camino::Utf8PathBuf;
use heeler_model::config::{Agent, Hook, HookAction, Loaded};
use heeler_model::hook::HookContext;
use thiserror::Error;

use crate::fleet::Fleet;

pub use effects::{
    FailedHook, JobEnd, KIND, METADATA_BYTES_MAX, effects_of, failed_hooks, metadata,
};
pub use worker::{ATTEMPTS_MAX, FinishedHook, HookOutcome, HookWorker};

/// What hooks are done with; replaced when the config is read again.
#[derive(Debug, Clone)]
pub struct HookConfig {
    /// The config, whose agents have the hooks.
    pub loaded: Arc<Loaded>,
    /// The environment, with what `.env` adds.
    pub env: BTreeMap<String, String>,
    /// The folder of control sockets.
    pub sockets: Utf8PathBuf,
    /// Where chats are.
    pub services: Services,
}

/// Where chats are reached; tests have others.
#[derive(Debug, Clone)]
pub struct Services {
    /// Slack's web API.
    pub slack: String,
    /// Discord's API, with its version.
    pub discord: String,
}

impl Default for Services {
    fn default() -> Services {
        Services::of(&BTreeMap::new())
    }
}

impl Services {
    /// Returns the real ones, or those that `HEELER_SLACK_API` and `HEELER_DISCORD_API` name.
    pub fn of(env: &BTreeMap<String, String>) -> Services {
        let named = |name: &str, usual: &str| {
            env.get(name).map_or(usual, |named| named.trim_end_matches('/')).to_owned()
        };
        Services {
            slack: named("HEELER_SLACK_API", "https://slack.com/api"),
            discord: named("HEELER_DISCORD_API", "https://discord.com/api/v10"),
        }
    }
}

/// What is around a hook that is being done.
#[derive(Clone, Copy)]
pub(crate) struct HookAround<'a> {
    pub(crate) fleet: &'a Fleet,
    pub(crate) config: &'a HookConfig,
    /// Whose hook it is.
    pub(crate) agent: &'a Agent,
    /// Set when the worker is to end.
    pub(crate) stop: &'a AtomicBool,
}

/// Why a hook was not done. No secret is in these texts: they are logged and recorded.
#[derive(Debug, Error)]
pub(crate) enum HookError {
    /// The same would come of it again.
    #[error("{0}")]
    Lasting(String),
    /// It may succeed later.
    #[error("{message}")]
    Passing {
        /// What went wrong.
        message: String,
        /// Not before this, when it was said so.
        after: Option<Duration>,
    },
    /// The worker ends. A command that was started goes on, and the next worker hears of it.
    #[error("the daemon ends")]
    Stopped,
}

impl HookError {
    fn passing(message: impl Into<String>) -> HookError {
        HookError::Passing { message: message.into(), after: None }
    }
}

/// Does one hook, once. Blocks for as long as that takes: at most the hook's time limit, and what
/// ending a process tree takes.
pub(crate) fn perform(
    hook: &Hook,
    context: &HookContext,
    around: &HookAround<'_>,
) -> Result<(), HookError> {
    match &hook.action {
        HookAction::Shell { command, timeout } => shell::run(command, *timeout, context, around),
        HookAction::Webhook { url, method, headers, timeout } => {
            web::webhook(url, *method, headers, *timeout, (context, around))
        }
        HookAction::Slack { channel_id, bot_token_env } => {
            web::slack(channel_id, bot_token_env, context, around)
        }
        HookAction::Discord { channel_id, bot_token_env } => {
            web::discord(channel_id, bot_token_env, context, around)
        }
    }
}

#[cfg(test)]
mod tests;
