//! How jobs wait, are tried again and start others, and how long what they leave is kept.
//!
//! Types whose name ends in `Keys` are what may be written; the others are what it means.

use std::collections::HashSet;
use std::num::NonZeroU32;

use serde_json::{Value as Json, json};

use super::amount::ByteSize;
use super::duration::ConfigDuration;
use super::reader::{ConfigReader, did_you_mean};
use super::shape::{ValueShape, section};
use super::value::{BoundedInt, ConfigValue, SpannedValue, parse_text};
use super::yaml::YamlNode;
use crate::{AgentName, IdParseError};

/// The most times that a job is tried again.
pub const RETRIES_MAX: i32 = 10;
/// The highest priority; the lowest is as far below zero.
pub const PRIORITY_MAX: i32 = 100;
/// The most levels of jobs that start jobs.
pub const SPAWN_DEPTH_MAX: i32 = 16;
/// The most jobs that one job may start.
const SPAWN_JOBS_MAX: i32 = 1000;
/// The most jobs that may wait.
const QUEUE_MAX: i32 = 100_000;
/// The most rotated files of one log.
const ROTATED_LOGS_MAX: i32 = 100;
/// The longest wait between tries, unless `max_backoff` says otherwise.
const BACKOFF_MAX_DEFAULT: &str = "15m";

/// A place among jobs that wait.
pub(crate) type PriorityKey = BoundedInt<{ -PRIORITY_MAX }, PRIORITY_MAX>;

section! {
    /// What becomes of a job that failed. Only a failure that may pass by itself is tried again: a
    /// service that is overloaded or out of reach, a dropped connection. A wrong key, a refused
    /// request, a limit of yours that was reached or a job that was cancelled is not.
    pub(crate) struct RetryKeys ("retry") {
        /// How many times.
        max: BoundedInt<0, RETRIES_MAX> = "0",
        /// How long after the first failure; each further wait is twice as long.
        backoff: ConfigDuration = "30s",
        /// The longest wait; `15m`, or `backoff` where that is longer, if left out.
        max_backoff: Option<SpannedValue<ConfigDuration>>,
    }
}

/// How often and when a job that failed is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// How many times; 0 is never.
    pub max: u32,
    /// The wait after the first failure; each further one is twice as long.
    pub backoff: ConfigDuration,
    /// The longest wait.
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
        RetryPolicy { max: keys.max.as_u32(), backoff: first, max_backoff: longest.max(first) }
    }
}

/// The name of an agent, in its own fleet or from the root.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AgentRef(pub(crate) AgentName);

section! {
    /// What jobs of the agent may start themselves. A job that they start counts against the budget
    /// of the one that started it.
    pub(crate) struct SpawnKeys ("spawn") {
        /// How many levels of jobs that start jobs there may be; 0 lets them start none.
        max_depth: BoundedInt<0, SPAWN_DEPTH_MAX> = "3",
        /// How many jobs one job may start, those that they start in turn included.
        max_jobs: BoundedInt<0, SPAWN_JOBS_MAX> = "10",
        /// The agents that may be started, by their names in this fleet or in full; all of them if
        /// left out.
        agents: Option<Vec<SpannedValue<AgentRef>>>,
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

/// What jobs of an agent may start themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpawnLimits {
    /// How many levels of jobs that start jobs there may be; 0 is none.
    pub max_depth: u32,
    /// How many jobs one job may start, those that they start in turn included.
    pub max_jobs: u32,
    /// The agents that may be started; `None` is all of them.
    pub agents: Option<Vec<AgentName>>,
}

impl SpawnLimits {
    /// Makes the limits. Which agents are meant is known when all are loaded: see [`resolve_agents`].
    pub(crate) fn new(keys: &SpawnKeys) -> SpawnLimits {
        let (max_depth, max_jobs) = (keys.max_depth.as_u32(), keys.max_jobs.as_u32());
        SpawnLimits { max_depth, max_jobs, agents: keys.agents.as_ref().map(|_| Vec::new()) }
    }
}

/// Finds the agents that one agent may start: in its own fleet first, else by their full names.
pub(crate) fn resolve_agents(
    written: &[SpannedValue<AgentRef>],
    fleet: &str,
    known: &HashSet<String>,
    reader: &mut ConfigReader,
) -> Vec<AgentName> {
    let mut found = Vec::new();
    for SpannedValue { value: AgentRef(name), at, .. } in written {
        let beside = format!("{fleet}.{name}");
        match known.get(&beside).or_else(|| known.get(name.as_str())).map(|name| name.parse()) {
            Some(Ok(name)) => found.push(name),
            _ => {
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
    /// How many jobs may wait for their turn, and how long. What is over the limit is refused, and what
    /// waited too long is given up; both are recorded with the reason.
    pub(crate) struct QueueKeys ("queue") {
        /// The most jobs that wait.
        max: BoundedInt<0, QUEUE_MAX> = "1000",
        /// The longest that a job waits.
        max_wait: ConfigDuration = "24h",
    }
}

/// How many jobs may wait for their turn, and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// The most jobs that wait; 0 lets none.
    pub max: u32,
    /// The longest that a job waits.
    pub max_wait: ConfigDuration,
}

impl QueueLimits {
    pub(crate) fn new(keys: &QueueKeys) -> QueueLimits {
        QueueLimits { max: keys.max.as_u32(), max_wait: keys.max_wait }
    }
}

section! {
    /// When files of ended jobs are moved to `trash/` in the state directory. Jobs stay listed, sessions
    /// stay as they are.
    pub struct RetentionPolicy ("retention") {
        /// Files of jobs that ended longer ago than this.
        jobs: Option<ConfigDuration>,
        /// Files of all but this many of the jobs that ended last.
        count: Option<NonZeroU32>,
    }
}

section! {
    /// The daemon's own logs, in `logs/` of the state directory.
    pub(crate) struct LogsKeys ("logs") {
        /// The size at which a log is set aside and a new one begun.
        max_size: ByteSize = "10MB",
        /// How many logs that were set aside are kept.
        keep: BoundedInt<0, ROTATED_LOGS_MAX> = "5",
    }
}

/// When logs are set aside, and how many of those are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRotation {
    /// The size at which a log is set aside.
    pub max_size: ByteSize,
    /// How many are kept.
    pub keep: u32,
}

impl LogRotation {
    pub(crate) fn new(keys: &LogsKeys) -> LogRotation {
        LogRotation { max_size: keys.max_size, keep: keys.keep.as_u32() }
    }
}
