//! Status of a fleet as reported by its daemon.
//!
//! Start at [`DaemonStatus`].

use camino::Utf8PathBuf;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use heeler_config::words;

use crate::config_change::HeldConfigChange;
use crate::{AgentName, JobId, RunId};

/// Lifetime of a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DaemonMode {
    /// Until it is stopped.
    Permanent,
    /// Until no job runs or waits.
    UntilIdle,
}

/// Status of a fleet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// Process ID of the daemon.
    pub pid: u32,
    /// Version of the daemon.
    pub version: String,
    /// Start time of the daemon.
    pub since: Timestamp,
    /// Lifetime of the daemon.
    pub mode: DaemonMode,
    /// True if the daemon is stopping and waits for its jobs.
    #[serde(default)]
    pub stopping: bool,
    /// Config file in use.
    pub config: Utf8PathBuf,
    pub schedules: Vec<DaemonScheduleStatus>,
    /// Queued jobs, next one first.
    pub queue: Vec<WaitingJob>,
    pub running: Vec<RunningJob>,
    /// Credentials that are parked because of a usage limit.
    pub parked: Vec<ParkedCredential>,
    /// Budgets with their spending.
    pub budgets: Vec<BudgetStatus>,
    /// Current problems of the daemon, as text.
    pub faults: Vec<String>,
    /// Change of the config that is not loaded before a person has confirmed it.
    #[serde(default)]
    pub held_change: Option<HeldConfigChange>,
    /// Connections to chat platforms.
    #[serde(default)]
    pub chats: Vec<ChatLinkStatus>,
}

words! {
    /// State of a connection to a chat platform.
    pub enum ChatLinkState ("state of a link") {
        /// Not connected yet.
        Connecting = "connecting",
        /// Receives messages.
        Connected = "connected",
        /// Cannot receive messages, and tries again.
        Failed = "failed",
    }
}

/// Connection to a chat platform as one bot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChatLinkStatus {
    pub platform: String,
    /// Public ID of the bot.
    pub account: String,
    pub state: ChatLinkState,
    /// Time since which it has this state.
    pub since: Timestamp,
    /// Time of the last event.
    pub last_event_at: Option<Timestamp>,
    /// Time from the receipt of the last recorded event to its commit, in milliseconds.
    #[serde(default)]
    pub record_ms: Option<u64>,
    /// Number of calls that the platform refused because of its limits, since the daemon started.
    #[serde(default)]
    pub rate_limits: u64,
    /// Reason of a failure.
    pub problem: Option<String>,
}

/// Status of one schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DaemonScheduleStatus {
    pub agent: String,
    pub schedule: String,
    /// True if the schedule fires automatically.
    pub enabled: bool,
    /// Next due time.
    pub next: Option<Timestamp>,
    /// Present if a person changed the schedule, which then differs from the config.
    pub changed: Option<ScheduleOverride>,
}

/// Author and time of a change to a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScheduleOverride {
    pub by: String,
    pub at: Timestamp,
}

/// A queued job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WaitingJob {
    pub job: JobId,
    pub agent: String,
    /// Priority; higher starts first.
    pub priority: i64,
    /// Time of the request.
    pub since: Timestamp,
    /// Earliest start time.
    pub not_before: Option<Timestamp>,
    /// Reason for which the job waits.
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunningJob {
    pub job: JobId,
    pub run: RunId,
    pub agent: String,
    /// Schedule that created the job.
    pub schedule: Option<String>,
    /// Start time of the run.
    pub since: Timestamp,
}

/// A credential that reached a usage limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParkedCredential {
    /// Agents that use the credential.
    pub agents: Vec<AgentName>,
    /// Time at which the limit resets.
    pub until: Timestamp,
    /// Time at which the limit was reached.
    pub since: Timestamp,
    /// Description of the limit.
    pub reason: String,
}

/// A budget with its spending, in millionths of a dollar.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BudgetStatus {
    /// Name of the agent, or `fleet`.
    pub whose: String,
    pub day_limit: Option<i64>,
    pub day_spent: i64,
    pub total_limit: Option<i64>,
    pub total_spent: i64,
    /// Reserved by runs and not spent yet.
    pub reserved: i64,
}
