//! Fleet file: its agents, nested fleets and fleet-wide settings.
//!
//! [`FleetKeys`] declares the accepted keys; [`FleetConfig`] is the checked form.

use std::num::{NonZeroU16, NonZeroU32};

use camino::{Utf8Path, Utf8PathBuf};
use indexmap::IndexMap;
use serde_json::Value as Json;

use crate::LocalName;
use crate::agent::{AgentKeys, Budget, KEYS_WITHOUT_DEFAULT, WorkingDirectory};
use crate::cron::ConfigTimeZone;
use crate::docker::DockerConfig;
use crate::file_archive::{FileArchiveConfig, FileArchiveSetting};
use crate::github::{GithubConfig, GithubKeys};
use crate::notify::{NotifyConfig, NotifyKeys};
use crate::policy::{AgentRef, LogRotation, LogsKeys, QueueKeys, QueueLimits, RetentionPolicy};
use crate::reader::{ConfigDialect, ConfigReader};
use crate::render_json::restore_templates;
use crate::shape::{ValueShape, read_default, section};
use crate::store_url::StoreUrl;
use crate::value::{
    ConfigValue, SecretText, SpannedValue, VarName, WebUrl, report_expected, word_value,
};
use crate::web::{WebOrigin, WebPort};
use crate::words::words;
use crate::workflow::WorkflowSettings;
use crate::yaml::{YamlKind, YamlNode};

words! {
    /// Time at which transcript rows are flushed to disk.
    pub enum LogDurability ("durability") {
        /// Within one second.
        Interval = "interval",
        /// Before a row is acknowledged.
        Event = "event",
    }
}

words! {
    /// Grouping of messages in the dashboard.
    pub enum MessageGrouping ("message grouping") {
        /// Each message separately.
        Separate = "separate",
        /// Consecutive messages together.
        Grouped = "grouped",
    }
}

word_value!(LogDurability, MessageGrouping);

section! {
    /// A fleet of agents.
    pub(crate) struct FleetKeys ("fleet file") {
        /// Version of the config format; 1.
        version: SpannedValue<NonZeroU32> = "1",
        /// Name and description of the fleet.
        fleet: FleetInfo = "{}",
        /// Settings of every agent that does not set them itself.
        defaults: Option<AgentDefaults>,
        /// Agents: paths of agent files, maps with `path` and `overrides`, or inline agents.
        agents: Vec<AgentEntry>,
        /// Nested fleets.
        fleets: Vec<SpannedValue<FleetEntry>>,
        /// Maximum number of jobs that run concurrently in the whole fleet.
        max_concurrent: Option<NonZeroU32>,
        /// The most money that the whole fleet may spend.
        budget: Option<Budget>,
        /// Limits on the number and age of queued jobs.
        queue: QueueKeys = "{}",
        /// Age or number at which files of ended jobs are moved to the trash. By default they are
        /// kept forever.
        retention: Option<RetentionPolicy>,
        /// The daemon's own logs: `logs/heeler.log` and one log per agent.
        logs: LogsKeys = "{}",
        /// Reload the config when one of its files changes. Otherwise run `heeler reload`.
        watch_config: bool = "false",
        /// Time zone of cron schedules that set none, and of the days in budgets.
        timezone: Option<ConfigTimeZone>,
        /// Time at which transcript rows are flushed to disk: `interval` (within one second) or
        /// `event` (before a row is acknowledged; slower).
        durability: LogDurability = "interval",
        /// PostgreSQL database of the fleet's records, without a password; see `docs/hosts.md`. By
        /// default they are in the file `heeler.db` of the state directory. Only the root fleet's
        /// setting applies; `heeler migrate store` moves existing records.
        store: Option<StoreUrl>,
        /// Archive of the files of ended jobs, for hosts that join later or were away: `off`,
        /// `database`, or settings. Needs `store`. Only the root fleet's setting applies, on the
        /// host that leads; see `docs/hosts.md`.
        archive: Option<SpannedValue<FileArchiveSetting>>,
        /// Location of the workflow files and settings of all workflows. Only the root fleet's
        /// setting applies.
        workflows: Option<WorkflowsKeys>,
        /// Dashboard and API. Only the root fleet's setting applies; changes take effect at the
        /// next start of the daemon.
        web: Option<WebConfig>,
        /// Incoming webhooks.
        webhooks: Option<WebhookConfig>,
        /// GitHub as the fleet uses it. Only the root fleet's setting applies.
        github: Option<GithubKeys>,
        /// Channels that tell people when they are needed. Only the root fleet's setting applies. Described in
        /// `docs/notifications.md`.
        notify: Option<NotifyKeys>,
        /// Serve Prometheus metrics at `/metrics` to callers with the scope `read`. Only the root
        /// fleet's setting applies.
        metrics: bool = "false",
        /// Export of run traces. Only the root fleet's setting applies.
        telemetry: Option<TelemetryConfig>,
        /// Containers of all agents; the same as `docker` in `defaults`, which takes precedence.
        docker: Option<DockerConfig>,
        /// Directory for repositories.
        working_directory alias "workspace": Option<WorkingDirectory>,
        /// No effect: chat is configured on each agent.
        chat: Option<Json>,
    }
}

section! {
    /// Name and description of the fleet.
    pub struct FleetInfo ("fleet") {
        /// Name of the fleet. For a nested fleet it prefixes the names of its agents, and must
        /// follow the rules of agent names.
        name: Option<String>,
        /// Purpose of the fleet, for readers.
        description: Option<String>,
    }
}

section! {
    /// Location of the workflow files and settings of all workflows.
    pub(crate) struct WorkflowsKeys ("workflows") {
        /// Directory of the workflow files, relative to this file. Defaults to `workflows`, or to
        /// `heeler-workflows` beside a `herdctl.yaml`.
        folder: Option<Utf8PathBuf>,
        /// Agent of workflows and phases that name none. Defaults to the fleet's only agent.
        agent: Option<SpannedValue<AgentRef>>,
        /// Gates by name: `false` turns a gate off, so that it asks for no approval.
        gates: IndexMap<String, bool>,
        /// Maximum number of workflow runs that run concurrently; further runs wait.
        max_concurrent: Option<NonZeroU32>,
    }
}

section! {
    /// Dashboard and API.
    pub struct WebConfig ("web") {
        /// Serve the dashboard and the API.
        enabled: bool = "true",
        /// Port; `auto` uses the first free port starting at 7878. Set a number if programs or bookmarks use the
        /// address: with several fleets on a machine, the first free port depends on which one starts first.
        port: WebPort = "auto",
        /// Address to listen on. An address reachable from other machines (`0.0.0.0`) is refused until a person has
        /// created a user (`heeler password set`) or a token (`heeler token create`).
        host: String = "127.0.0.1",
        /// Public URLs under which a proxy serves the dashboard, such as
        /// `https://heeler.example.com`.
        origins: Vec<WebOrigin>,
        /// Keep a token with all rights in the file `api-token` of the state directory. Every program that runs
        /// as your user can read it, agents included; `heeler token create` makes tokens with fewer rights.
        token_file: bool = "false",
        /// Hours after which a chat starts a new conversation.
        session_expiry_hours: NonZeroU32 = "24",
        /// Open a browser at start.
        open_browser: bool = "false",
        /// Show tool results in chats.
        tool_results: bool = "true",
        /// Show each message separately (`separate`) or consecutive messages together (`grouped`).
        message_grouping: MessageGrouping = "separate",
    }
}

impl Default for WebConfig {
    fn default() -> WebConfig {
        read_default("{}").expect("every key has a default")
    }
}

section! {
    /// Incoming webhooks.
    pub struct WebhookConfig ("webhooks") {
        /// Accept incoming webhooks.
        enabled: bool = "true",
        /// Webhook port of herdctl. Heeler receives webhooks on the port of `web`.
        port: NonZeroU16 = "8081",
        /// Environment variable that holds the secret with which callers sign requests, for
        /// schedules that set no `secret_env`.
        secret_env: Option<VarName>,
    }
}

section! {
    /// Export of run traces to OpenTelemetry.
    pub struct TelemetryConfig ("telemetry") {
        /// URL of the collector for OTLP over HTTP, such as `http://localhost:4318`. `/v1/traces`
        /// is added unless the URL has a path.
        endpoint: WebUrl,
        /// Headers of each request. Use variables for secrets: `authorization: Bearer ${TOKEN}`.
        headers: IndexMap<String, SecretText>,
        /// Service name of the fleet in the traces.
        service_name: String = "heeler",
    }
}

section! {
    /// A nested fleet.
    pub(crate) struct FleetEntry ("fleet reference") {
        /// Path of the fleet file, relative to this file.
        path: SpannedValue<Utf8PathBuf>,
        /// Name of the nested fleet. Defaults to the name in its file, then to the name of its
        /// directory.
        name: Option<SpannedValue<LocalName>>,
        /// Changes to the settings in the fleet file.
        overrides: Option<FleetOverrides>,
    }
}

section! {
    /// Reference to an agent file.
    pub(crate) struct AgentFileEntry ("agent reference") {
        /// Path of the agent file, relative to this file.
        path: SpannedValue<Utf8PathBuf>,
        /// Changes to the settings in the agent file.
        overrides: Option<AgentOverrides>,
    }
}

/// Declares a type that holds an unchecked YAML tree. The tree is checked after it has been merged.
macro_rules! kept_tree {
    ($(#[$meta:meta])* $name:ident, $shape:expr) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub(crate) struct $name(pub(crate) YamlNode);

        impl ConfigValue for $name {
            fn shape() -> ValueShape {
                $shape
            }
            fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<$name> {
                match &node.kind {
                    YamlKind::Map(_) => Some($name(node.clone())),
                    _ => report_expected(reader, node, "a map"),
                }
            }
            fn show(&self) -> Json {
                Json::Null
            }
        }
    };
}

kept_tree! {
    /// Changes to the settings in an agent file.
    AgentOverrides, ValueShape::Section(AgentKeys::section().without_keys("agent overrides", &[]))
}

kept_tree! {
    /// Changes to the settings in a fleet file. They cannot change its agents or nested fleets.
    FleetOverrides, ValueShape::Any
}

/// Settings of every agent that does not set them itself.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AgentDefaults(pub(crate) YamlNode);

impl ConfigValue for AgentDefaults {
    fn shape() -> ValueShape {
        ValueShape::Section(AgentKeys::defaults_section())
    }

    /// Checks the defaults on their own as well, because there may be no agent into which they are
    /// merged.
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<AgentDefaults> {
        let (mut tree, mut refused) = (node.clone(), Vec::new());
        if let YamlKind::Map(entries) = &mut tree.kind {
            refused = entries
                // The tree is checked without them, to report only this fault.
                .extract_if(.., |(key, _)| KEYS_WITHOUT_DEFAULT.contains(&&*key.text))
                .collect();
        }
        for (key, _) in refused {
            let message = format!("`{}` cannot have a default", key.text);
            let fault = match reader.dialect {
                // Two agents with the same name, for example, would always be a fault.
                ConfigDialect::Heeler => reader.error(key.at, message),
                // herdctl's files are accepted as they are.
                ConfigDialect::Herdctl => reader.warn(key.at, message),
            };
            fault.expected("set it on each agent");
        }
        // The result is dropped: only the faults matter here.
        AgentKeys::read(&tree, reader)?;
        Some(AgentDefaults(tree))
    }

    fn show(&self) -> Json {
        Json::Null
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum AgentEntry {
    File(AgentFileEntry),
    Inline(YamlNode),
}

impl ConfigValue for AgentEntry {
    fn shape() -> ValueShape {
        let inline = ValueShape::Section(AgentKeys::file_section());
        ValueShape::OneOf(vec![ValueShape::Text, AgentFileEntry::shape(), inline])
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<AgentEntry> {
        match &node.kind {
            YamlKind::Scalar(_) => {
                let path = SpannedValue::<Utf8PathBuf>::read(node, reader)?;
                Some(AgentEntry::File(AgentFileEntry { path, overrides: None }))
            }
            YamlKind::Map(_) if node.get("path").is_some() => {
                AgentFileEntry::read(node, reader).map(AgentEntry::File)
            }
            // Checked after its defaults were merged into it.
            YamlKind::Map(_) => Some(AgentEntry::Inline(node.clone())),
            _ => report_expected(reader, node, "the path of an agent's file, or an agent"),
        }
    }
    fn show(&self) -> Json {
        Json::Null
    }
}

/// Checked configuration of one fleet. Limits of a nested fleet apply to its own agents.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetConfig {
    /// Names of the enclosing fleets and of this fleet, joined by dots; empty for the root.
    pub path: String,
    pub file: Utf8PathBuf,
    pub name: Option<String>,
    pub description: Option<String>,
    pub max_concurrent: Option<NonZeroU32>,
    pub budget: Option<Budget>,
    /// Limits on queued jobs. Only the root's value applies.
    pub queue: QueueLimits,
    /// Removal of files of ended jobs. Only the root's value applies.
    pub retention: Option<RetentionPolicy>,
    /// Rotation of the daemon's own logs. Only the root's value applies.
    pub logs: LogRotation,
    /// Only the root's value applies.
    pub watch_config: bool,
    /// Time zone of the days in budgets; `None` is the machine's.
    pub timezone: Option<ConfigTimeZone>,
    /// Only the root's value applies.
    pub durability: LogDurability,
    /// Location of the records; `None` is the state directory. Only the root's value applies.
    pub store: Option<StoreUrl>,
    /// Archive of the files of ended jobs. Only the root's value applies.
    pub archive: FileArchiveConfig,
    /// Only the root's value applies.
    pub workflows: WorkflowSettings,
    /// Only the root's value applies.
    pub web: WebConfig,
    /// Only the root's value applies.
    pub webhooks: Option<WebhookConfig>,
    /// Only the root's value applies.
    pub github: Option<GithubConfig>,
    /// Only the root's value applies.
    pub notify: Option<NotifyConfig>,
    /// Serve metrics. Only the root's value applies.
    pub metrics: bool,
    /// Only the root's value applies.
    pub telemetry: Option<TelemetryConfig>,
    pub(crate) config_json: Json,
}

impl FleetConfig {
    pub(crate) fn new(
        path: String,
        file: Utf8PathBuf,
        keys: FleetKeys,
        tree: &YamlNode,
    ) -> FleetConfig {
        let mut shown = keys.show();
        // Values of variables may be secret, so the text as written is shown.
        restore_templates(&mut shown, tree);
        if let Some(map) = shown.as_object_mut() {
            // They are listed on their own.
            map.retain(|key, _| !matches!(key.as_str(), "agents" | "fleets" | "defaults"));
        }
        let github = keys.github.map(GithubKeys::into_config);
        let can_use_github = github.as_ref().is_some_and(GithubConfig::can_act);
        FleetConfig {
            workflows: WorkflowSettings {
                can_use_github,
                ..workflow_settings(&file, keys.workflows)
            },
            path,
            file,
            config_json: shown,
            name: keys.fleet.name,
            description: keys.fleet.description,
            max_concurrent: keys.max_concurrent,
            budget: keys.budget,
            queue: QueueLimits::new(&keys.queue),
            retention: keys.retention,
            logs: LogRotation::new(&keys.logs),
            watch_config: keys.watch_config,
            timezone: keys.timezone,
            durability: keys.durability,
            store: keys.store,
            archive: keys.archive.map(|it| it.value.0).unwrap_or_default(),
            web: keys.web.unwrap_or_default(),
            webhooks: keys.webhooks,
            github,
            notify: keys.notify.map(NotifyKeys::into_config),
            metrics: keys.metrics,
            telemetry: keys.telemetry,
        }
    }
}

/// Returns the workflow settings. The default agent is resolved later, when all agents are loaded.
fn workflow_settings(file: &Utf8Path, keys: Option<WorkflowsKeys>) -> WorkflowSettings {
    // A herdctl project may use a directory named `workflows` for something else.
    let name = match ConfigDialect::from_file_name(file) {
        ConfigDialect::Heeler => "workflows",
        ConfigDialect::Herdctl => "heeler-workflows",
    };
    let beside = file.parent().unwrap_or(Utf8Path::new("")).join(name);
    match keys {
        None => WorkflowSettings { folder: beside, ..WorkflowSettings::default() },
        Some(keys) => WorkflowSettings {
            folder: keys.folder.unwrap_or(beside),
            // Resolved when all agents are known.
            agent: None,
            gates: keys.gates,
            max_concurrent: keys.max_concurrent,
            ..WorkflowSettings::default()
        },
    }
}
