//! Hooks: commands, requests and messages that follow the end of a job.
//!
//! [`HookKeys`] is the written form, one flat map for all types. [`Hook`] is the checked form and
//! holds only the settings of its type.

use camino::Utf8PathBuf;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use crate::AgentName;
use crate::duration::ConfigDuration;
use crate::policy::AgentRef;
use crate::reader::{ConfigDialect, ConfigReader, SourceSpan};
use crate::shape::{ValueShape, section};
use crate::value::{
    ConfigValue, NonBlankText, SecretText, SpannedValue, VarName, WebUrl, word_value,
};
use crate::words::words;
use crate::yaml::{YamlKind, YamlNode};

words! {
    /// Action of a hook.
    pub enum HookType ("hook type") {
        /// Run a command.
        Shell = "shell",
        /// Send an HTTP request.
        Webhook = "webhook",
        /// Send a message to a Discord channel.
        Discord = "discord",
        /// Send a message to a Slack channel.
        Slack = "slack",
    }
}

words! {
    /// Outcome of a job, for hooks.
    pub enum HookEvent ("hook event") {
        /// The job succeeded.
        Completed = "completed",
        /// The job failed.
        Failed = "failed",
        /// The job exceeded its time limit.
        Timeout = "timeout",
        /// The job was cancelled by a person.
        Cancelled = "cancelled",
    }
}

words! {
    /// HTTP method of a request.
    pub enum HookMethod ("HTTP method") {
        /// POST.
        Post = "POST",
        /// PUT.
        Put = "PUT",
    }
}

word_value!(HookType, HookEvent, HookMethod);

/// Time limit that may also be written as an integer number of milliseconds.
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
            // The number may be too large; the duration's own fault says why.
            _ => ConfigDuration::read(node, reader).map(TimeoutDuration),
        }
    }
    fn show(&self) -> Json {
        json!(self.0.to_string())
    }
}

section! {
    /// Hooks that follow the end of a job.
    pub(crate) struct HooksKeys ("hooks") {
        /// Hooks that run after every job, regardless of its outcome.
        after_run: Vec<SpannedValue<HookKeys>>,
        /// Hooks that run after a job that failed or timed out, after those of `after_run`.
        on_error: Vec<SpannedValue<HookKeys>>,
    }
}

section! {
    /// One hook.
    pub(crate) struct HookKeys ("hook") {
        /// Action: run a `shell` command, send a request (`webhook`), or send a message (`discord`,
        /// `slack`).
        kind as "type": HookType,
        /// Name of the hook. It identifies the hook if the config changes before the hook has
        /// finished.
        name: Option<String>,
        /// Run the job's remaining hooks even if this one fails.
        continue_on_error: bool = "true",
        /// Run only for these outcomes of the job.
        on_events: Option<Vec<HookEvent>>,
        /// Run only if the value at this path in the context (the JSON that the hook receives) is true, such as `metadata.notify`.
        when: Option<String>,
        /// Command (shell). It receives the context as JSON on standard input. It runs in the agent's
        /// working directory; a program with a relative path is found beside this file.
        command: Option<SpannedValue<NonBlankText>>,
        /// URL to which the context is sent as JSON (webhook).
        url: Option<SpannedValue<WebUrl>>,
        /// `POST` or `PUT` (webhook). Defaults to `POST`.
        method: Option<SpannedValue<HookMethod>>,
        /// Headers of the request (webhook).
        headers: Option<SpannedValue<IndexMap<String, SecretText>>>,
        /// Time limit, as a duration or in milliseconds. Defaults to 30s (shell) or 10s (webhook).
        timeout: Option<SpannedValue<TimeoutDuration>>,
        /// Channel ID (discord, slack).
        channel_id: Option<SpannedValue<NonBlankText>>,
        /// Environment variable that holds the bot token (discord, slack). Defaults to
        /// `DISCORD_BOT_TOKEN` or `SLACK_BOT_TOKEN`.
        bot_token_env: Option<SpannedValue<VarName>>,
        /// Commands of Heeler that the hook may use (shell). Defaults to none.
        allow: Option<SpannedValue<HookAllowKeys>>,
        /// Let the command execute programs that gain privileges, such as `sudo` (shell). Heeler then
        /// recognizes its processes less reliably; see `docs/hooks.md`.
        allow_new_privileges: Option<SpannedValue<bool>>,
    }
}

section! {
    /// Commands of Heeler that a hook may use.
    pub(crate) struct HookAllowKeys ("allow") {
        /// Agents for which it may start jobs, by name in this fleet or by qualified name.
        trigger: Vec<SpannedValue<AgentRef>>,
        /// It may cancel jobs.
        cancel: bool = "false",
        /// It may send messages to the agents of running jobs.
        message: bool = "false",
    }
}

/// Commands of Heeler that a hook may use. The default allows none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HookPermissions {
    /// Agents for which it may start jobs.
    pub trigger: Vec<AgentName>,
    pub cancel: bool,
    /// It may send messages to the agents of running jobs.
    pub message: bool,
}

/// Checked hooks of an agent.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AgentHooks {
    /// Hooks that run after every job.
    pub after_run: Vec<Hook>,
    /// Hooks that run after a job that failed or timed out.
    pub on_error: Vec<Hook>,
}

words! {
    /// Lists of hooks in an agent's config.
    pub enum HookList ("list of hooks") {
        /// Runs after every job.
        AfterRun = "after_run",
        /// Runs after a job that failed or timed out.
        OnError = "on_error",
    }
}

/// Position of a hook in an agent's config.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookPosition {
    pub list: HookList,
    /// Index in the list, from zero.
    pub index: usize,
}

impl AgentHooks {
    pub fn list(&self, list: HookList) -> &[Hook] {
        match list {
            HookList::AfterRun => &self.after_run,
            HookList::OnError => &self.on_error,
        }
    }

    /// Finds a selected hook in a config that may have changed since: by name, or by position if it
    /// has no name.
    pub fn find(&self, place: HookPosition, name: Option<&str>) -> Option<&Hook> {
        let list = self.list(place.list);
        let is_it = |hook: &&Hook| hook.name.as_deref() == name;
        // The name at that place must still be the same: the list may have been reordered.
        let here = list.get(place.index).filter(is_it);
        // A hook without a name can only be found by its place.
        here.or_else(|| name.and_then(|_| list.iter().find(is_it)))
    }
}

/// One checked hook.
#[derive(Debug, Clone, PartialEq)]
pub struct Hook {
    /// Identifies the hook in a changed config.
    pub name: Option<String>,
    /// Run the remaining hooks even if this one fails.
    pub continue_on_error: bool,
    /// Outcomes for which the hook runs; `None` means all.
    pub on_events: Option<Vec<HookEvent>>,
    /// Path into the hook's context that must be true.
    pub when: Option<String>,
    pub action: HookAction,
    pub permissions: HookPermissions,
    /// Its processes may gain privileges. They then lack the mark of agents and hooks.
    pub allow_new_privileges: bool,
}

/// Action of a hook with its settings.
#[derive(Debug, Clone, PartialEq)]
pub enum HookAction {
    Shell {
        command: String,
        timeout: ConfigDuration,
        /// Directory of the file that defines the hook. Programs with a relative path are there.
        folder: Utf8PathBuf,
    },
    /// Sends an HTTP request.
    Webhook {
        url: WebUrl,
        method: HookMethod,
        /// Additional headers.
        headers: IndexMap<String, SecretText>,
        timeout: ConfigDuration,
    },
    Discord {
        channel_id: String,
        /// Environment variable that holds the bot token.
        bot_token_env: VarName,
    },
    Slack {
        channel_id: String,
        /// Environment variable that holds the bot token.
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
        // All keys are checked before the first `?`, so that all faults are reported.
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
        needs.check_allowed_for("allow", &keys.allow, &[HookType::Shell]);
        needs.check_allowed_for(
            "allow_new_privileges",
            &keys.allow_new_privileges,
            &[HookType::Shell],
        );
        let allow_new_privileges =
            check_new_privileges(keys.allow_new_privileges.as_ref(), needs.reader);
        let action = match keys.kind {
            HookType::Shell => HookAction::Shell {
                command: needs.require_key("command", &keys.command)?.0,
                timeout: timeout_or_default(keys, "30s"),
                folder: needs.reader.resolve(*at, "."),
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
            permissions: HookPermissions::new(keys.allow.as_ref().map(|allow| &allow.value)),
            allow_new_privileges,
        })
    }
}

impl HookPermissions {
    /// Returns the permissions without agents, which are resolved when all agents are loaded: see
    /// [`AgentHooks::resolve_permissions`].
    fn new(keys: Option<&HookAllowKeys>) -> HookPermissions {
        let (cancel, message) = keys.map_or((false, false), |keys| (keys.cancel, keys.message));
        HookPermissions { trigger: Vec::new(), cancel, message }
    }
}

impl AgentHooks {
    /// Resolves the agents for which hooks may start jobs. The hooks were checked without a fault, so
    /// both lists have the same order.
    pub(crate) fn resolve_permissions(
        &mut self,
        keys: &HooksKeys,
        mut resolve: impl FnMut(&[SpannedValue<AgentRef>]) -> Vec<AgentName>,
    ) {
        let lists = [(&mut self.after_run, &keys.after_run), (&mut self.on_error, &keys.on_error)];
        for (hooks, written) in lists {
            for (hook, written) in hooks.iter_mut().zip(written) {
                if let Some(allow) = &written.value.allow {
                    hook.permissions.trigger = resolve(&allow.value.trigger);
                }
            }
        }
    }
}

/// Returns true if new privileges are allowed, and warns of what that costs.
pub(crate) fn check_new_privileges(
    key: Option<&SpannedValue<bool>>,
    reader: &mut ConfigReader,
) -> bool {
    let Some(SpannedValue { value: true, at, .. }) = key else { return false };
    let message =
        "with `allow_new_privileges`, a process that outlives its run may count as a person"
            .to_owned();
    reader
        .warn(*at, message)
        .expected("needed only for programs such as `sudo`")
        .help("run what needs privileges outside of the agent");
    true
}

fn timeout_or_default(keys: &HookKeys, default: &str) -> ConfigDuration {
    let default = || default.parse().expect("the default limits are within those of a period");
    keys.timeout.as_ref().map_or_else(default, |timeout| timeout.value.0)
}

fn token_env_or_default(keys: &HookKeys, default: &str) -> VarName {
    let default = || default.parse().expect("the default names are names of variables");
    keys.bot_token_env.as_ref().map_or_else(default, |name| name.value.clone())
}

/// Checks that a hook has exactly the keys of its type.
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
        let message = format!("`{key}` does not apply to a hook of type `{}`", self.kind);
        let fault = match self.reader.dialect {
            // A key without effect means that the hook does something else than intended.
            ConfigDialect::Heeler => self.reader.error(field.at, message),
            // A herdctl project is read without changes.
            ConfigDialect::Herdctl => self.reader.warn(field.at, message),
        };
        fault.expected("remove it");
    }
}
