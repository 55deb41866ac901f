//! What happens after a job: commands and messages.
//!
//! [`HookKeys`] is what is written, one flat map for all kinds; [`Hook`] holds what its kind needs
//! and nothing else.

use indexmap::IndexMap;
use serde_json::{Value as Json, json};

use super::period::Period;
use super::reader::{Dialect, Pos, Reader};
use super::shape::{Shape, section};
use super::value::{At, Filled, SecretText, Value, VarName, WebUrl, word_value};
use super::yaml::{Kind, Node};
use crate::words::words;

words! {
    /// What a hook does.
    pub enum HookType ("hook type") {
        /// Runs a command.
        Shell = "shell",
        /// Calls a URL.
        Webhook = "webhook",
        /// Writes to a Discord channel.
        Discord = "discord",
        /// Writes to a Slack channel.
        Slack = "slack",
    }
}

words! {
    /// How a job ended, for hooks.
    pub enum HookEvent ("hook event") {
        /// Well.
        Completed = "completed",
        /// Badly.
        Failed = "failed",
        /// Out of time.
        Timeout = "timeout",
        /// By a person.
        Cancelled = "cancelled",
    }
}

words! {
    /// How a URL is called.
    pub enum HookMethod ("HTTP method") {
        /// POST.
        Post = "POST",
        /// PUT.
        Put = "PUT",
    }
}

word_value!(HookType, HookEvent, HookMethod);

/// A time limit that may also be written as a whole number of milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeout(pub Period);

impl Value for Timeout {
    fn shape() -> Shape {
        Shape::OneOf(vec![Period::shape(), Shape::Int { min: 1, max: i64::from(u32::MAX) }])
    }
    fn read(node: &Node, reader: &mut Reader) -> Option<Timeout> {
        let millis = match &node.kind {
            Kind::Scalar(scalar) if scalar.plain => scalar.text.parse().ok(),
            _ => None,
        };
        match millis.map(Period::from_millis) {
            Some(Ok(period)) => Some(Timeout(period)),
            _ => Period::read(node, reader).map(Timeout),
        }
    }
    fn show(&self) -> Json {
        json!(self.0.to_string())
    }
}

section! {
    /// What happens after a job.
    pub(crate) struct HooksKeys ("hooks") {
        /// Run after every job that ended, well or badly.
        after_run: Vec<At<HookKeys>>,
        /// Run after a job that failed or ran out of time, after those of `after_run`.
        on_error: Vec<At<HookKeys>>,
    }
}

section! {
    /// One hook.
    pub(crate) struct HookKeys ("hook") {
        /// What it does: run a `shell` command, call a `webhook`, write to `discord` or `slack`.
        kind as "type": HookType,
        /// Its name, by which it is found again when the config changes before it is done.
        name: Option<String>,
        /// Whether the job's hooks after it run when it fails.
        continue_on_error: bool = "true",
        /// Run only when the job ended in one of these ways.
        on_events: Option<Vec<HookEvent>>,
        /// Run only if this path into the hook's context is true, such as `metadata.notify`.
        when: Option<String>,
        /// The command (shell). It gets the context as JSON on its standard input.
        command: Option<At<Filled>>,
        /// The address to call with the context as JSON (webhook).
        url: Option<At<WebUrl>>,
        /// `POST` or `PUT` (webhook); `POST` if left out.
        method: Option<At<HookMethod>>,
        /// Headers of the call (webhook).
        headers: Option<At<IndexMap<String, SecretText>>>,
        /// The time limit, as a duration or in milliseconds; 30s (shell), 10s (webhook).
        timeout: Option<At<Timeout>>,
        /// The channel to write to (discord, slack).
        channel_id: Option<At<Filled>>,
        /// The environment variable that holds the bot's token (discord, slack);
        /// `DISCORD_BOT_TOKEN` or `SLACK_BOT_TOKEN` if left out.
        bot_token_env: Option<At<VarName>>,
    }
}

/// What happens after a job, checked.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Hooks {
    /// After every job that ended.
    pub after_run: Vec<Hook>,
    /// After a job that failed or ran out of time.
    pub on_error: Vec<Hook>,
}

/// One hook, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Hook {
    /// Its name, by which it is found again in a changed config.
    pub name: Option<String>,
    /// Whether the hooks after it run when it fails.
    pub continue_on_error: bool,
    /// The ways of ending it runs for; `None` is all.
    pub on_events: Option<Vec<HookEvent>>,
    /// The condition.
    pub when: Option<String>,
    /// What it does.
    pub action: HookAction,
}

/// What a hook does.
#[derive(Debug, Clone, PartialEq)]
pub enum HookAction {
    /// Runs a command.
    Shell {
        /// The command.
        command: String,
        /// Its time limit.
        timeout: Period,
    },
    /// Calls a URL.
    Webhook {
        /// The address.
        url: WebUrl,
        /// The method.
        method: HookMethod,
        /// Further headers.
        headers: IndexMap<String, SecretText>,
        /// The time limit.
        timeout: Period,
    },
    /// Writes to a Discord channel.
    Discord {
        /// The channel.
        channel_id: String,
        /// The variable with the token.
        bot_token_env: VarName,
    },
    /// Writes to a Slack channel.
    Slack {
        /// The channel.
        channel_id: String,
        /// The variable with the token.
        bot_token_env: VarName,
    },
}

impl Hooks {
    pub(crate) fn check(keys: &HooksKeys, reader: &mut Reader) -> Hooks {
        let mut list = |hooks: &[At<HookKeys>]| {
            hooks.iter().filter_map(|hook| Hook::check(hook, reader)).collect()
        };
        Hooks { after_run: list(&keys.after_run), on_error: list(&keys.on_error) }
    }
}

impl Hook {
    fn check(At { value: keys, at, .. }: &At<HookKeys>, reader: &mut Reader) -> Option<Hook> {
        let mut needs = Needs { kind: keys.kind, at: *at, reader };
        needs.only_for("command", &keys.command, &[HookType::Shell]);
        needs.only_for("url", &keys.url, &[HookType::Webhook]);
        needs.only_for("method", &keys.method, &[HookType::Webhook]);
        needs.only_for("headers", &keys.headers, &[HookType::Webhook]);
        needs.only_for("timeout", &keys.timeout, &[HookType::Shell, HookType::Webhook]);
        needs.only_for("channel_id", &keys.channel_id, &[HookType::Discord, HookType::Slack]);
        needs.only_for("bot_token_env", &keys.bot_token_env, &[HookType::Discord, HookType::Slack]);
        let action = match keys.kind {
            HookType::Shell => HookAction::Shell {
                command: needs.value("command", &keys.command)?.0,
                timeout: limit(keys, "30s"),
            },
            HookType::Webhook => HookAction::Webhook {
                url: needs.value("url", &keys.url)?,
                method: keys.method.as_ref().map_or(HookMethod::Post, |method| method.value),
                headers: keys.headers.as_ref().map(|at| at.value.clone()).unwrap_or_default(),
                timeout: limit(keys, "10s"),
            },
            HookType::Discord => HookAction::Discord {
                channel_id: needs.value("channel_id", &keys.channel_id)?.0,
                bot_token_env: token(keys, "DISCORD_BOT_TOKEN"),
            },
            HookType::Slack => HookAction::Slack {
                channel_id: needs.value("channel_id", &keys.channel_id)?.0,
                bot_token_env: token(keys, "SLACK_BOT_TOKEN"),
            },
        };
        Some(Hook {
            name: keys.name.clone(),
            continue_on_error: keys.continue_on_error,
            on_events: keys.on_events.clone(),
            when: keys.when.clone(),
            action,
        })
    }
}

fn limit(keys: &HookKeys, default: &str) -> Period {
    let default = || default.parse().expect("the default limits are within those of a period");
    keys.timeout.as_ref().map_or_else(default, |timeout| timeout.value.0)
}

fn token(keys: &HookKeys, default: &str) -> VarName {
    let default = || default.parse().expect("the default names are names of variables");
    keys.bot_token_env.as_ref().map_or_else(default, |name| name.value.clone())
}

/// Checks which keys go with a hook's type.
struct Needs<'r> {
    kind: HookType,
    at: Pos,
    reader: &'r mut Reader,
}

impl Needs<'_> {
    #[expect(clippy::ref_option, reason = "fields are passed as they are declared")]
    fn value<T: Clone>(&mut self, key: &str, field: &Option<At<T>>) -> Option<T> {
        if field.is_none() {
            let message = format!("a hook of type `{}` needs the key `{key}`", self.kind);
            self.reader.error(self.at, message).expected(format!("`{key}` belongs here"));
        }
        field.as_ref().map(|field| field.value.clone())
    }

    #[expect(clippy::ref_option, reason = "fields are passed as they are declared")]
    fn only_for<T>(&mut self, key: &str, field: &Option<At<T>>, kinds: &[HookType]) {
        let Some(field) = field else { return };
        if kinds.contains(&self.kind) {
            return;
        }
        let message = format!("`{key}` means nothing in a hook of type `{}`", self.kind);
        let fault = match self.reader.dialect {
            Dialect::Heeler => self.reader.error(field.at, message),
            Dialect::Herdctl => self.reader.warn(field.at, message),
        };
        fault.expected("remove it");
    }
}
