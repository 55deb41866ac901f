//! What goes on in a fleet, as its daemon tells it.

use camino::Utf8PathBuf;
use heeler_model::{AgentName, JobId, RunId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// How long a daemon stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DaemonMode {
    /// Until it is stopped.
    Permanent,
    /// Until nothing runs or waits.
    UntilIdle,
}

/// What goes on in a fleet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// The daemon's process.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// When it started.
    pub since: Timestamp,
    /// How long it stays.
    pub mode: DaemonMode,
    /// Whether it ends, and waits for jobs before that.
    #[serde(default)]
    pub stopping: bool,
    /// The config file that it works by.
    pub config: Utf8PathBuf,
    /// Every schedule.
    pub schedules: Vec<DaemonScheduleStatus>,
    /// The jobs that wait, in their order.
    pub queue: Vec<WaitingJob>,
    /// The jobs that run.
    pub running: Vec<RunningJob>,
    /// The credentials that no job may use for now.
    pub parked: Vec<ParkedCredential>,
    /// What may be spent and what was.
    pub budgets: Vec<BudgetStatus>,
    /// What the daemon cannot do at present, in words.
    pub faults: Vec<String>,
}

/// A schedule of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DaemonScheduleStatus {
    /// The agent.
    pub agent: String,
    /// The schedule's name.
    pub schedule: String,
    /// Whether it runs by itself.
    pub enabled: bool,
    /// When it is next due.
    pub next: Option<Timestamp>,
    /// Who made it differ from the config.
    pub changed: Option<ScheduleOverride>,
}

/// Who made a schedule differ from the config.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScheduleOverride {
    /// Who.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

/// A job that waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WaitingJob {
    /// The job.
    pub job: JobId,
    /// Its agent.
    pub agent: String,
    /// What is higher starts first.
    pub priority: i64,
    /// When it was asked for.
    pub since: Timestamp,
    /// When it may start at the earliest.
    pub not_before: Option<Timestamp>,
    /// Why it waits.
    pub reason: String,
}

/// A job that runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunningJob {
    /// The job.
    pub job: JobId,
    /// Its run.
    pub run: RunId,
    /// Its agent.
    pub agent: String,
    /// The schedule that it is a run of.
    pub schedule: Option<String>,
    /// When the run started.
    pub since: Timestamp,
}

/// A credential that ran into a limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParkedCredential {
    /// The agents that use it.
    pub agents: Vec<AgentName>,
    /// When it may be used again.
    pub until: Timestamp,
    /// When it ran into the limit.
    pub since: Timestamp,
    /// What the limit is.
    pub reason: String,
}

/// A budget, in millionths of a dollar.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BudgetStatus {
    /// The agent, or `fleet`.
    pub whose: String,
    /// What may be spent in a day.
    pub day_limit: Option<i64>,
    /// What was spent today.
    pub day_spent: i64,
    /// What may be spent in all.
    pub total_limit: Option<i64>,
    /// What was spent in all.
    pub total_spent: i64,
    /// What runs have set aside and not spent yet.
    pub reserved: i64,
}
