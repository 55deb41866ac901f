//! The config language of Heeler: from YAML text and environment variables to checked types.
//!
//! Fleet files, agent files, `.env` files, workflow files and scripts of the scripted agent are
//! parsed here. The crate does no I/O and reads no clock and no environment. It knows no records:
//! jobs, runs and sessions are in `heeler-model`, which depends on this crate. Start at [`load`]. It
//! takes a function that reads files and a map of variables. It returns a [`LoadedConfig`], with
//! fleets and agents that hold only valid values, or [`ConfigFaults`], with every fault and its
//! position. [`workflow::load_workflow_folder`] does the same for workflows. `yaml` parses text into
//! a tree with positions, `interpolate` substitutes variables, and `loader` merges trees and reads
//! them into sections. `shape` declares a section: its struct, reader, JSON Schema and documentation
//! in one place.

mod agent;
mod agent_api;
mod agent_conformance;
mod agent_credentials;
mod agent_detection;
mod agent_isolation;
mod agent_program;
mod agents_page;
mod amount;
mod capabilities;
mod changes;
mod chat;
mod chat_config;
mod chat_token;
mod claude_files;
mod cron;
mod discord;
mod discovery;
mod docker;
mod docker_check;
mod dotenv;
mod duration;
mod effort;
mod egress;
mod fault;
mod file_archive;
mod fleet;
mod fleet_secrets;
mod git_access;
mod github;
mod github_chat;
mod github_event;
mod globs;
mod hide_secrets;
mod hook_command;
mod hooks;
mod host_choice;
pub mod id_syntax;
mod interpolate;
mod known_agents;
mod loaded_config;
mod loader;
mod login;
mod lookup;
mod loopback_forwards;
mod mcp;
mod names;
mod notify;
mod notify_person;
mod notify_web_push;
mod policy;
mod reader;
mod reference;
mod render_json;
mod repo;
mod rights;
mod runtime;
mod s3_location;
mod sandbox;
mod schedule;
mod schema;
pub mod script;
mod script_source;
mod session;
mod shape;
mod slack;
mod spawn_check;
mod static_data;
mod store_url;
mod telegram;
pub mod templates;
mod text;
mod token_price;
mod unused_key_notes;
mod unused_keys;
mod value;
mod web;
pub mod webhook;
mod webhook_schedule;
mod words;
mod work_access;
mod work_source;
pub mod workflow;
mod yaml;
mod yaml_edit;
mod yaml_emit;

pub use agent::{AgentConfig, AgentIdentity, Budget, CheckoutConfig, InstanceLimits};
pub use agent_api::ApiCureWords;
pub use agent_conformance::{AgentScenario, CertifiedAgent, ScenarioOutcome};
pub use agent_credentials::{
    ApiChoice, ModelApiProtocol, PROXIED_APIS, ProxiedApi, ProxiedApiError, find_proxied_api,
    proxied_agent_name,
};
pub use agent_detection::{
    CLAUDE_PROGRAM, CLAUDE_TESTED_VERSION, DetectableAgent, VersionRange, detectable_agents,
    find_version,
};
pub use agent_program::{AgentProgram, CODEX_PROGRAM, CODEX_TESTED_VERSION};
pub use agents_page::{COMPARED_RUNTIMES, agents_markdown, describe_usage};
pub use amount::{ByteSize, SIZE_MAX, USD_MAX, UsdAmount};
pub use capabilities::{CapabilityOffer, RuntimeCapability};
pub use changes::{ConfigChange, diff_configs};
pub use chat::{
    ActivityType, AssistantMessages, AttachmentConfig, AttachmentLimit, ChannelConfig,
    ChatLogLevel, ChatMode, CommandRegistration, CommandScope, ContextLength, DirectMessages,
    DownloadFolder, GuildConfig, PresenceConfig, ReactionEmoji, ResultLength, SkillConfig,
    VoiceConfig, VoiceProvider, WhileBusy,
};
pub use chat_config::ChatConfig;
pub use chat_token::{ChatApiUrl, TokenVariable};
pub use claude_files::{CLAUDE_FOLDER_ENTRIES, CLAUDE_STATE_FILE};
pub use cron::{ConfigTimeZone, CronExpr};
pub use discord::{DiscordConfig, DiscordOutput};
pub use discovery::{CronFanOut, DiscoveryKind, DiscoveryRule, FAN_OUT_INPUTS};
pub use docker::{
    ContainerUser, DockerConfig, ImagePull, MountMode, NetworkMode, PortBinding, TmpfsMount,
    VolumeMount, VolumeParts, VolumeSource,
};
pub use docker_check::is_absent_setting;
pub use dotenv::{DotenvFault, parse_dotenv};
pub use duration::{CONFIG_DURATION_MAX, ConfigDuration};
pub use effort::ReasoningEffort;
pub use egress::{
    AddressClass, CredentialMode, EgressConfig, EgressPreset, EgressRules, HostName, HostNameError,
    HostPattern, HostVerdict, LocalAddress, RequestHost, classify_address,
};
pub use fault::{ConfigFault, ConfigFaults, FAULTS_SHOWN_MAX, FaultSeverity, RenderStyle};
pub use file_archive::{FileArchiveConfig, FileArchivePlace};
pub use fleet::{
    FleetConfig, FleetInfo, LogDurability, MessageGrouping, TelemetryConfig, WebConfig,
    WebhookConfig,
};
pub use fleet_secrets::{FleetSecrets, is_secret_name};
pub use git_access::{GitAccessConfig, GitRemote, GitUsername};
pub use github::{
    AppKeySource, GithubAccess, GithubConfig, GithubPermission, GithubPermissionLevel,
};
pub use github_chat::{
    GithubChatConfig, GithubChatName, GithubChatOutput, GithubChatRepo, PollSeconds,
};
pub use github_event::{
    AuthorAssociation, EVENT_INPUTS, EventSubject, GithubEvent, TRUSTED_ASSOCIATIONS,
    take_github_mention,
};
pub use globs::{GLOBS_MAX, GlobList};
pub use hook_command::{HookProgram, command_words, hook_programs, quote_shell_word};
pub use hooks::{
    AgentHooks, Hook, HookAction, HookEvent, HookList, HookMethod, HookPermissions, HookPosition,
    HookType, TimeoutDuration,
};
pub use host_choice::{HostChoice, HostLabel, NO_LABELS, PartitionPolicy, PlacementOrder};
pub use id_syntax::IdParseError;
pub use known_agents::{
    ClientTools, KNOWN_AGENTS, KnownAgent, KnownModes, ProviderChoice, UsageScope, find_known_agent,
};
pub use loaded_config::{CRON_SUFFIX, LoadedConfig};
pub use loader::{FLEET_DEPTH_MAX, LOAD_BYTES_MAX, MEMBERS_MAX, load};
pub use login::{LoginSigns, LoginState};
pub use lookup::AgentLookupError;
pub use loopback_forwards::{LOOPBACK_FORWARDS_MAX, LoopbackForwards, SANDBOX_PORTS};
pub use mcp::{McpServer, McpTransport, McpType, PluginConfig, PluginType};
pub use names::{AgentName, ApprovalMode, LocalName, SessionMode};
pub use notify::{
    ClockTime, NOTIFY_CHANNELS_MAX, NotifyChannel, NotifyChat, NotifyConfig, NotifyDiscord,
    NotifyEmail, NotifyEscalation, NotifyEvent, NotifyNtfy, NotifySlack, NotifyTarget,
    NotifyTelegram, NotifyWebhook, QuietHours, SmtpConfig, SmtpSecurity,
};
pub use notify_person::{NotifyPerson, PersonAccounts};
pub use notify_web_push::NotifyWebPush;
pub use policy::{
    LogRotation, PRIORITY_MAX, QueueLimits, RETRIES_MAX, RetentionPolicy, RetryPolicy,
    SPAWN_DEPTH_MAX, SpawnLimits,
};
pub use reader::{ConfigDialect, FileReader};
pub use reference::{reference_markdown, workflow_reference_markdown};
pub use repo::{RepoConfig, RepoCredentials};
pub use rights::{RightDifference, compare_rights, describe_differences};
pub use runtime::{PermissionMode, ProgramPath, RuntimeConfig, RuntimeType, SettingSource};
pub use s3_location::{S3Endpoint, S3Location, S3Region};
pub use sandbox::{SandboxConfig, SandboxLevel, SandboxSettings, UnixSocketAccess};
pub use schedule::{
    INTERVAL_MIN, MISSED_RUNS_MAX, MissedRunPolicy, OverlapPolicy, ScheduleConfig, ScheduleTrigger,
    ScheduleType, ScheduledWorkflow,
};
pub use schema::{agent_schema, cron_schema, fleet_schema, workflow_schema};
pub use script_source::parse_script_file;
pub use session::SessionRules;
pub use slack::{SlackConfig, SlackOutput, SlackReaction, SlackTransport};
pub use store_url::{
    POSTGRES_PORT, StoreHost, StoreUrl, StoreUrlWithPassword, parse_with_password,
};
pub use telegram::{TelegramChat, TelegramConfig, TelegramOutput};
pub use text::{did_you_mean, is_hidden_char, is_terminal_control, reveal_hidden, reveal_line};
pub use token_price::{ESTIMATED_PRICES, TokenPrice};
pub use value::{EnvVars, SecretText, VarName, WebUrl};
pub use web::{WebOrigin, WebPort};
pub use words::UnknownWordError;
pub use work_source::{RepoName, WorkAuth, WorkLabels, WorkSource, WorkSourceType};
pub use yaml::{DEPTH_MAX, FILE_BYTES_MAX, NODES_MAX, TEXT_BYTES_MAX};
pub use yaml_edit::{
    EDITED_BYTES_MAX, YamlEditError, YamlPathStep, read_yaml_values, set_yaml_value,
};
