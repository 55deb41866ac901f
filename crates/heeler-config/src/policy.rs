//! Policies for queueing, retries, child jobs, retention and logs.
//!
//! Types with names ending in `Keys` declare the accepted keys; the other types are the checked
//! form.

use std::collections::HashSet;
use std::num::NonZeroU32;

use serde_json::{Value as Json, json};

use crate::amount::ByteSize;
use crate::duration::ConfigDuration;
use crate::reader::ConfigReader;
use crate::shape::{ValueShape, section};
use crate::text::did_you_mean;
use crate::value::{BoundedInt, ConfigValue, SpannedValue, parse_text};
use crate::yaml::YamlNode;
use crate::{AgentName, IdParseError};

/// Maximum number of retries of a job.
pub const RETRIES_MAX: i32 = 10;
/// Highest priority; the lowest is its negative.
pub const PRIORITY_MAX: i32 = 100;
/// Maximum nesting depth of jobs started by jobs.
pub const SPAWN_DEPTH_MAX: i32 = 16;
/// Maximum number of jobs that one job may start.
const SPAWN_JOBS_MAX: i32 = 1000;
/// Maximum number of queued jobs.
const QUEUE_MAX: i32 = 100_000;
/// Maximum number of rotated files per log.
const ROTATED_LOGS_MAX: i32 = 100;
/// Longest delay between retries if `max_backoff` is not set.
const BACKOFF_MAX_DEFAULT: &str = "15m";

/// Queue priority.
pub(crate) type PriorityKey = BoundedInt<{ -PRIORITY_MAX }, PRIORITY_MAX>;

section! {
    /// Retries of failed jobs. Only temporary failures are retried: an overloaded or unreachable
    /// service, or a dropped connection. A wrong key, a rejected request, a configured limit that
    /// was reached or a cancelled job is not retried.
    pub(crate) struct RetryKeys ("retry") {
        /// Maximum number of retries.
        max: BoundedInt<0, RETRIES_MAX> = "0",
        /// Delay after the first failure; it doubles after each further failure.
        backoff: ConfigDuration = "30s",
        /// Longest delay. Defaults to `15m`, or to `backoff` if that is longer.
        max_backoff: Option<SpannedValue<ConfigDuration>>,
    }
}

/// Checked retry settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Maximum number of retries; 0 means never.
    pub max: u32,
    /// Delay after the first failure; it doubles after each further failure.
    pub backoff: ConfigDuration,
    /// Longest delay.
    pub max_backoff: ConfigDuration,
}

impl RetryPolicy {
    pub(crate) fn check(keys: &RetryKeys, reader: &mut ConfigReader) -> RetryPolicy {
        let first = keys.backoff;
        if let Some(SpannedValue { value: longest, at, .. }) = &keys.max_backoff
            && *longest < first
        {
            let message = format!("`max_backoff` {longest} is shorter than `backoff` {first}");
            reader.error(*at, message).expected("expected the longest wait");
        }
        let usual = || BACKOFF_MAX_DEFAULT.parse().expect("15 minutes are a period");
        let longest = keys.max_backoff.as_ref().map_or_else(usual, |longest| longest.value);
        // A long first delay without a limit of its own raises the default limit.
        RetryPolicy { max: keys.max.as_u32(), backoff: first, max_backoff: longest.max(first) }
    }
}

/// Reference to an agent, by its name in the same fleet or its qualified name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AgentRef(pub(crate) AgentName);

section! {
    /// Limits on jobs that jobs of this agent may start. The cost of a started job also counts
    /// against the budget of the job that started it.
    pub(crate) struct SpawnKeys ("spawn") {
        /// Maximum nesting depth of jobs started by jobs; 0 forbids starting jobs.
        max_depth: BoundedInt<0, SPAWN_DEPTH_MAX> = "3",
        /// Maximum number of jobs that one job may start, including those started indirectly.
        max_jobs: BoundedInt<0, SPAWN_JOBS_MAX> = "10",
        /// Agents that may be started, by name in this fleet or by qualified name. Defaults to
        /// none. An agent with more rights is refused: other tools, a permission mode that allows
        /// more, secrets or variables, MCP servers, hooks, another working directory, larger limits,
        /// less isolation, or no permission checks at all.
        agents: Vec<SpannedValue<AgentRef>>,
        /// Agents of `agents` that may be started although they have more rights.
        elevate: Vec<SpannedValue<AgentRef>>,
    }
}

impl ConfigValue for AgentRef {
    fn shape() -> ValueShape {
        ValueShape::Format { what: "the name of an agent", example: "`tester`", pattern: None }
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<AgentRef> {
        let parse =
            |text: &str| text.parse().map_err(|error: IdParseError| error.reason.to_owned());
        parse_text(node, reader, ("the name of an agent", "`tester`"), parse).map(AgentRef)
    }
    fn show(&self) -> Json {
        json!(self.0)
    }
}

/// Checked limits on jobs that jobs of an agent may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpawnLimits {
    /// Maximum nesting depth; 0 forbids starting jobs.
    pub max_depth: u32,
    /// Maximum number of jobs that one job may start, including those started indirectly.
    pub max_jobs: u32,
    /// Agents that may be started.
    pub agents: Vec<AgentName>,
    /// Those of `agents` that may have more rights than this agent.
    pub elevate: Vec<AgentName>,
}

impl SpawnLimits {
    /// Returns the limits without their agents, which are resolved when all agents are loaded: see
    /// [`resolve_agents`].
    pub(crate) fn new(keys: &SpawnKeys) -> SpawnLimits {
        let (max_depth, max_jobs) = (keys.max_depth.as_u32(), keys.max_jobs.as_u32());
        // Empty lists allow nothing until the names are resolved, which is the safe state.
        SpawnLimits { max_depth, max_jobs, agents: Vec::new(), elevate: Vec::new() }
    }

    /// Returns true if a job may start any job at all.
    pub fn allows_jobs(&self) -> bool {
        self.max_depth > 0 && self.max_jobs > 0 && !self.agents.is_empty()
    }
}

/// Resolves the agents that one agent may start: first in its own fleet, else by qualified name.
pub(crate) fn resolve_agents(
    written: &[SpannedValue<AgentRef>],
    fleet: &str,
    known: &HashSet<String>,
    reader: &mut ConfigReader,
) -> Vec<AgentName> {
    let mut found = Vec::new();
    for SpannedValue { value: AgentRef(name), at, .. } in written {
        // An agent of the same fleet hides one of the same name elsewhere.
        let beside = format!("{fleet}.{name}");
        match known.get(&beside).or_else(|| known.get(name.as_str())).map(|name| name.parse()) {
            Some(Ok(name)) => found.push(name),
            _ => {
                // Names of fleets end with a dot and are not agents.
                let names = known.iter().filter(|name| !name.ends_with('.')).map(String::as_str);
                let near = did_you_mean(name.as_str(), names);
                let message = format!("there is no agent `{name}`");
                let fault = reader.error(*at, message).expected("expected the name of an agent");
                if let Some(near) = near {
                    fault.help(format!("did you mean `{near}`?"));
                }
            }
        }
    }
    found
}

section! {
    /// Limits on queued jobs. A job beyond `max` is rejected, and a job that has waited longer than
    /// `max_wait` is abandoned; both are recorded with the reason.
    pub(crate) struct QueueKeys ("queue") {
        /// Maximum number of queued jobs.
        max: BoundedInt<0, QUEUE_MAX> = "1000",
        /// Longest time a job may wait.
        max_wait: ConfigDuration = "24h",
    }
}

/// Checked limits on queued jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// Maximum number of queued jobs; 0 turns queueing off.
    pub max: u32,
    /// Longest time a job may wait.
    pub max_wait: ConfigDuration,
}

impl QueueLimits {
    pub(crate) fn new(keys: &QueueKeys) -> QueueLimits {
        QueueLimits { max: keys.max.as_u32(), max_wait: keys.max_wait }
    }
}

section! {
    /// Times at which files of ended jobs are moved to `trash/` in the state directory. The jobs
    /// stay listed, and sessions are not affected.
    pub struct RetentionPolicy ("retention") {
        /// Move files of jobs that ended longer ago than this.
        jobs: Option<ConfigDuration>,
        /// Keep the files of this many most recently ended jobs and move those of all others.
        count: Option<NonZeroU32>,
    }
}

section! {
    /// The daemon's own logs, in `logs/` of the state directory.
    pub(crate) struct LogsKeys ("logs") {
        /// Size at which a log is rotated.
        max_size: ByteSize = "10MB",
        /// Number of rotated files to keep.
        keep: BoundedInt<0, ROTATED_LOGS_MAX> = "5",
    }
}

/// Checked log rotation settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRotation {
    /// Size at which a log is rotated.
    pub max_size: ByteSize,
    /// Number of rotated files to keep.
    pub keep: u32,
}

impl LogRotation {
    pub(crate) fn new(keys: &LogsKeys) -> LogRotation {
        LogRotation { max_size: keys.max_size, keep: keys.keep.as_u32() }
    }
}
