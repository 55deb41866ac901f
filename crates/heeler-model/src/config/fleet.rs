//! The fleet file: which agents there are and what holds for all of them.

use std::num::{NonZeroU16, NonZeroU32};

use camino::{Utf8Path, Utf8PathBuf};
use indexmap::IndexMap;
use serde_json::Value as Json;

use super::agent::{AgentKeys, Budget, KEYS_WITHOUT_DEFAULT, WorkingDirectory};
use super::cron::ConfigTimeZone;
use super::docker::DockerConfig;
use super::policy::{AgentRef, LogRotation, LogsKeys, QueueKeys, QueueLimits, RetentionPolicy};
use super::reader::{ConfigDialect, ConfigReader};
use super::render_json::restore_templates;
use super::shape::{ValueShape, read_default, section};
use super::value::{
    ConfigValue, SecretText, SpannedValue, VarName, WebUrl, report_expected, word_value,
};
use super::web::{WebOrigin, WebPort};
use super::yaml::{YamlKind, YamlNode};
use crate::LocalName;
use crate::words::words;
use crate::workflow::WorkflowSettings;

words! {
    /// When a log is surely on disk.
    pub enum LogDurability ("durability") {
        /// Within a second.
        Interval = "interval",
        /// Before a row is acknowledged.
        Event = "event",
    }
}

words! {
    /// How messages are shown in the dashboard.
    pub enum MessageGrouping ("message grouping") {
        /// Each by itself.
        Separate = "separate",
        /// Together.
        Grouped = "grouped",
    }
}

word_value!(LogDurability, MessageGrouping);

section! {
    /// A fleet of agents.
    pub(crate) struct FleetKeys ("fleet file") {
        /// The version of the format; 1.
        version: SpannedValue<NonZeroU32> = "1",
        /// Name and description of the fleet.
        fleet: FleetInfo = "{}",
        /// What holds for every agent that does not say otherwise.
        defaults: Option<AgentDefaults>,
        /// The agents: paths of their files, maps with `path` and `overrides`, or the agents
        /// themselves.
        agents: Vec<AgentEntry>,
        /// Fleets within this fleet.
        fleets: Vec<SpannedValue<FleetEntry>>,
        /// The most jobs that run at once in the whole fleet.
        max_concurrent: Option<NonZeroU32>,
        /// The most money the whole fleet may spend.
        budget: Option<Budget>,
        /// How many jobs may wait, and how long.
        queue: QueueKeys = "{}",
        /// When files of ended jobs are put away; never if left out.
        retention: Option<RetentionPolicy>,
        /// The daemon's own logs: `logs/heeler.log` and one for each agent.
        logs: LogsKeys = "{}",
        /// Load the config again when one of its files changes. Without it `heeler reload` does.
        watch_config: bool = "false",
        /// The time zone of cron schedules that do not name one, and of days in budgets.
        timezone: Option<ConfigTimeZone>,
        /// When logs are surely on disk: `interval` (within a second) or `event` (before a row is
        /// acknowledged; slower).
        durability: LogDurability = "interval",
        /// Where workflows are, and what holds for all of them; that of the root counts.
        workflows: Option<WorkflowsKeys>,
        /// The dashboard and the API; what the root says counts, from the next start on.
        web: Option<WebConfig>,
        /// Calls from outside.
        webhooks: Option<WebhookConfig>,
        /// Figures for Prometheus at `/metrics`, for callers with the scope `read`; that of the root
        /// counts.
        metrics: bool = "false",
        /// Where traces of runs are sent; that of the root counts.
        telemetry: Option<TelemetryConfig>,
        /// Containers for all agents; the same as `docker` in `defaults`, which wins.
        docker: Option<DockerConfig>,
        /// Where repositories are kept.
        working_directory alias "workspace": Option<WorkingDirectory>,
        /// Nothing: chat is set on each agent.
        chat: Option<Json>,
    }
}

section! {
    /// Name and description of the fleet.
    pub struct FleetInfo ("fleet") {
        /// The fleet's name. When the fleet is part of another, it comes before the names of its
        /// agents, and then follows the same rules.
        name: Option<String>,
        /// What the fleet is for.
        description: Option<String>,
    }
}

section! {
    /// Where workflows are, and what holds for all of them.
    pub(crate) struct WorkflowsKeys ("workflows") {
        /// The folder of workflow files, relative to this file; `workflows` if left out, beside a
        /// `herdctl.yaml` `heeler-workflows`.
        folder: Option<Utf8PathBuf>,
        /// The agent of workflows and phases that name none; the only one of the fleet if left out.
        agent: Option<SpannedValue<AgentRef>>,
        /// Gates by their names: `false` turns one off, so that it asks nobody.
        gates: IndexMap<String, bool>,
        /// The most runs of workflows at once; further ones wait.
        max_concurrent: Option<NonZeroU32>,
    }
}

section! {
    /// The dashboard and the API.
    pub struct WebConfig ("web") {
        /// Whether they are served.
        enabled: bool = "true",
        /// The port; `auto` takes the first free one from 7878 on.
        port: WebPort = "7878",
        /// The address they are served on. Beyond this machine (`0.0.0.0`) it needs a password or a
        /// token that a person made.
        host: String = "127.0.0.1",
        /// The addresses under which a proxy serves them, such as `https://heeler.example.com`.
        origins: Vec<WebOrigin>,
        /// Hours after which a chat starts anew.
        session_expiry_hours: NonZeroU32 = "24",
        /// Open a browser at start.
        open_browser: bool = "false",
        /// Show results of tools in chats.
        tool_results: bool = "true",
        /// Whether messages are shown each by itself (`separate`) or together (`grouped`).
        message_grouping: MessageGrouping = "separate",
    }
}

impl Default for WebConfig {
    fn default() -> WebConfig {
        read_default("{}").expect("every key has a default")
    }
}

section! {
    /// Calls from outside.
    pub struct WebhookConfig ("webhooks") {
        /// Whether they are taken.
        enabled: bool = "true",
        /// herdctl's port of calls; they come to that of `web`.
        port: NonZeroU16 = "8081",
        /// The environment variable with the secret that callers sign with, where a schedule has no
        /// `secret_env` of its own.
        secret_env: Option<VarName>,
    }
}

section! {
    /// Traces of runs, for OpenTelemetry.
    pub struct TelemetryConfig ("telemetry") {
        /// The collector's address for OTLP over HTTP, such as `http://localhost:4318`; `/v1/traces` is
        /// added unless it has a path.
        endpoint: WebUrl,
        /// Headers of each call; secrets by variable: `authorization: Bearer ${TOKEN}`.
        headers: IndexMap<String, SecretText>,
        /// What the fleet is called there.
        service_name: String = "heeler",
    }
}

section! {
    /// A fleet within this fleet.
    pub(crate) struct FleetEntry ("fleet reference") {
        /// The fleet's file, relative to this file.
        path: SpannedValue<Utf8PathBuf>,
        /// Its name here; its own name, then that of its folder, if left out.
        name: Option<SpannedValue<LocalName>>,
        /// Changes to the fleet's file.
        overrides: Option<FleetOverrides>,
    }
}

section! {
    /// An agent by its file.
    pub(crate) struct AgentFileEntry ("agent reference") {
        /// The agent's file, relative to this file.
        path: SpannedValue<Utf8PathBuf>,
        /// Changes to the agent's file.
        overrides: Option<AgentOverrides>,
    }
}

/// A tree kept as it is until it is merged; it is checked with what it is merged into.
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
    /// Changes to an agent's file.
    AgentOverrides, ValueShape::Section(AgentKeys::section().without_keys("agent overrides", &[]))
}

kept_tree! {
    /// Changes to a fleet's file. Its agents and fleets cannot be changed from here.
    FleetOverrides, ValueShape::Any
}

/// What holds for every agent that does not say otherwise.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AgentDefaults(pub(crate) YamlNode);

impl ConfigValue for AgentDefaults {
    fn shape() -> ValueShape {
        ValueShape::Section(AgentKeys::defaults_section())
    }

    /// Defaults are checked by themselves too: there may be no agent to merge them into.
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<AgentDefaults> {
        let (mut tree, mut refused) = (node.clone(), Vec::new());
        if let YamlKind::Map(entries) = &mut tree.kind {
            refused = entries
                .extract_if(.., |(key, _)| KEYS_WITHOUT_DEFAULT.contains(&&*key.text))
                .collect();
        }
        for (key, _) in refused {
            let message = format!("`{}` cannot have a default", key.text);
            let fault = match reader.dialect {
                ConfigDialect::Heeler => reader.error(key.at, message),
                ConfigDialect::Herdctl => reader.warn(key.at, message),
            };
            fault.expected("set it on each agent");
        }
        AgentKeys::read(&tree, reader)?;
        Some(AgentDefaults(tree))
    }

    fn show(&self) -> Json {
        Json::Null
    }
}

/// One entry of `agents`.
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
            YamlKind::Map(_) => Some(AgentEntry::Inline(node.clone())),
            _ => report_expected(reader, node, "the path of an agent's file, or an agent"),
        }
    }
    fn show(&self) -> Json {
        Json::Null
    }
}

/// A fleet, checked. Limits of a fleet within a fleet hold for its own agents.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetConfig {
    /// The names of the fleets it is in and its own, joined by dots; empty for the root.
    pub path: String,
    /// Its file.
    pub file: Utf8PathBuf,
    /// Its name.
    pub name: Option<String>,
    /// What it is for.
    pub description: Option<String>,
    /// The most jobs at once.
    pub max_concurrent: Option<NonZeroU32>,
    /// The most money.
    pub budget: Option<Budget>,
    /// How many jobs may wait, and how long; that of the root counts.
    pub queue: QueueLimits,
    /// When files of ended jobs are put away; that of the root counts.
    pub retention: Option<RetentionPolicy>,
    /// The daemon's own logs; that of the root counts.
    pub logs: LogRotation,
    /// Whether the config is loaded again when it changes; that of the root counts.
    pub watch_config: bool,
    /// The zone of days in budgets; `None` is the machine's.
    pub timezone: Option<ConfigTimeZone>,
    /// When logs are surely on disk; that of the root counts.
    pub durability: LogDurability,
    /// Where workflows are, and what holds for all of them; that of the root counts.
    pub workflows: WorkflowSettings,
    /// The dashboard and the API; that of the root counts.
    pub web: WebConfig,
    /// Calls from outside; that of the root counts.
    pub webhooks: Option<WebhookConfig>,
    /// Whether figures are served; that of the root counts.
    pub metrics: bool,
    /// Where traces of runs are sent; that of the root counts.
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
        restore_templates(&mut shown, tree);
        if let Some(map) = shown.as_object_mut() {
            map.retain(|key, _| !matches!(key.as_str(), "agents" | "fleets" | "defaults"));
        }
        FleetConfig {
            workflows: workflow_settings(&file, keys.workflows),
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
            web: keys.web.unwrap_or_default(),
            webhooks: keys.webhooks,
            metrics: keys.metrics,
            telemetry: keys.telemetry,
        }
    }
}

/// Returns what holds for workflows. Which agent is meant is known when all are loaded.
fn workflow_settings(file: &Utf8Path, keys: Option<WorkflowsKeys>) -> WorkflowSettings {
    // What lies in `workflows` beside a herdctl project may be anything.
    let name = match ConfigDialect::from_file_name(file) {
        ConfigDialect::Heeler => "workflows",
        ConfigDialect::Herdctl => "heeler-workflows",
    };
    let beside = file.parent().unwrap_or(Utf8Path::new("")).join(name);
    match keys {
        None => WorkflowSettings { folder: beside, ..WorkflowSettings::default() },
        Some(keys) => WorkflowSettings {
            folder: keys.folder.unwrap_or(beside),
            agent: None,
            gates: keys.gates,
            max_concurrent: keys.max_concurrent,
        },
    }
}
