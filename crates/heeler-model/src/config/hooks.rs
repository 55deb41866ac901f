//! What happens after a job: commands and messages.
//!
//! [`HookKeys`] is what is written, one flat map for all kinds; [`Hook`] holds what its kind needs
//! and nothing else.

use indexmap::IndexMap;
use serde_json::{Value as Json, json};

use super::duration::ConfigDuration;
use super::reader::{ConfigDialect, ConfigReader, SourceSpan};
use super::shape::{ValueShape, section};
use super::value::{
    ConfigValue, NonBlankText, SecretText, SpannedValue, VarName, WebUrl, word_value,
};
use super::yaml::{YamlKind, YamlNode};
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
pub struct TimeoutDuration(pub ConfigDuration);

impl ConfigValue for TimeoutDuration {
    fn shape() -> ValueShape {
        ValueShape::OneOf(vec![
            ConfigDuration::shape(),
            ValueShape::Int { min: 1, max: i64::from(u32::MAX) },
        ])
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<TimeoutDuration> {
        let millis = match &node.kind {
            YamlKind::Scalar(scalar) if scalar.plain => scalar.text.parse().ok(),
            _ => None,
        };
        match millis.map(ConfigDuration::from_millis) {
            Some(Ok(period)) => Some(TimeoutDuration(period)),
            _ => ConfigDuration::read(node, reader).map(TimeoutDuration),
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
        after_run: Vec<SpannedValue<HookKeys>>,
        /// Run after a job that failed or ran out of time, after those of `after_run`.
        on_error: Vec<SpannedValue<HookKeys>>,
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
        command: Option<SpannedValue<NonBlankText>>,
        /// The address to call with the context as JSON (webhook).
        url: Option<SpannedValue<WebUrl>>,
        /// `POST` or `PUT` (webhook); `POST` if left out.
        method: Option<SpannedValue<HookMethod>>,
        /// Headers of the call (webhook).
        headers: Option<SpannedValue<IndexMap<String, SecretText>>>,
        /// The time limit, as a duration or in milliseconds; 30s (shell), 10s (webhook).
        timeout: Option<SpannedValue<TimeoutDuration>>,
        /// The channel to write to (discord, slack).
        channel_id: Option<SpannedValue<NonBlankText>>,
        /// The environment variable that holds the bot's token (discord, slack);
        /// `DISCORD_BOT_TOKEN` or `SLACK_BOT_TOKEN` if left out.
        bot_token_env: Option<SpannedValue<VarName>>,
    }
}

/// What happens after a job, checked.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AgentHooks {
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
        timeout: ConfigDuration,
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
        timeout: ConfigDuration,
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

impl AgentHooks {
    pub(crate) fn check(keys: &HooksKeys, reader: &mut ConfigReader) -> AgentHooks {
        let mut list = |hooks: &[SpannedValue<HookKeys>]| {
            hooks.iter().filter_map(|hook| Hook::check(hook, reader)).collect()
        };
        AgentHooks { after_run: list(&keys.after_run), on_error: list(&keys.on_error) }
    }
}

impl Hook {
    fn check(
        SpannedValue { value: keys, at, .. }: &SpannedValue<HookKeys>,
        reader: &mut ConfigReader,
    ) -> Option<Hook> {
        let mut needs = HookKeyChecker { kind: keys.kind, at: *at, reader };
        needs.check_allowed_for("command", &keys.command, &[HookType::Shell]);
        needs.check_allowed_for("url", &keys.url, &[HookType::Webhook]);
        needs.check_allowed_for("method", &keys.method, &[HookType::Webhook]);
        needs.check_allowed_for("headers", &keys.headers, &[HookType::Webhook]);
        needs.check_allowed_for("timeout", &keys.timeout, &[HookType::Shell, HookType::Webhook]);
        needs.check_allowed_for(
            "channel_id",
            &keys.channel_id,
            &[HookType::Discord, HookType::Slack],
        );
        needs.check_allowed_for(
            "bot_token_env",
            &keys.bot_token_env,
            &[HookType::Discord, HookType::Slack],
        );
        let action = match keys.kind {
            HookType::Shell => HookAction::Shell {
                command: needs.require_key("command", &keys.command)?.0,
                timeout: timeout_or_default(keys, "30s"),
            },
            HookType::Webhook => HookAction::Webhook {
                url: needs.require_key("url", &keys.url)?,
                method: keys.method.as_ref().map_or(HookMethod::Post, |method| method.value),
                headers: keys.headers.as_ref().map(|at| at.value.clone()).unwrap_or_default(),
                timeout: timeout_or_default(keys, "10s"),
            },
            HookType::Discord => HookAction::Discord {
                channel_id: needs.require_key("channel_id", &keys.channel_id)?.0,
                bot_token_env: token_env_or_default(keys, "DISCORD_BOT_TOKEN"),
            },
            HookType::Slack => HookAction::Slack {
                channel_id: needs.require_key("channel_id", &keys.channel_id)?.0,
                bot_token_env: token_env_or_default(keys, "SLACK_BOT_TOKEN"),
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

fn timeout_or_default(keys: &HookKeys, default: &str) -> ConfigDuration {
    let default = || default.parse().expect("the default limits are within those of a period");
    keys.timeout.as_ref().map_or_else(default, |timeout| timeout.value.0)
}

fn token_env_or_default(keys: &HookKeys, default: &str) -> VarName {
    let default = || default.parse().expect("the default names are names of variables");
    keys.bot_token_env.as_ref().map_or_else(default, |name| name.value.clone())
}

/// Checks which keys go with a hook's type.
struct HookKeyChecker<'r> {
    kind: HookType,
    at: SourceSpan,
    reader: &'r mut ConfigReader,
}

impl HookKeyChecker<'_> {
    #[expect(clippy::ref_option, reason = "fields are passed as they are declared")]
    fn require_key<T: Clone>(&mut self, key: &str, field: &Option<SpannedValue<T>>) -> Option<T> {
        if field.is_none() {
            let message = format!("a hook of type `{}` needs the key `{key}`", self.kind);
            self.reader.error(self.at, message).expected(format!("`{key}` belongs here"));
        }
        field.as_ref().map(|field| field.value.clone())
    }

    #[expect(clippy::ref_option, reason = "fields are passed as they are declared")]
    fn check_allowed_for<T>(
        &mut self,
        key: &str,
        field: &Option<SpannedValue<T>>,
        kinds: &[HookType],
    ) {
        let Some(field) = field else { return };
        if kinds.contains(&self.kind) {
            return;
        }
        let message = format!("`{key}` means nothing in a hook of type `{}`", self.kind);
        let fault = match self.reader.dialect {
            ConfigDialect::Heeler => self.reader.error(field.at, message),
            ConfigDialect::Herdctl => self.reader.warn(field.at, message),
        };
        fault.expected("remove it");
    }
}
