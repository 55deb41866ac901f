//! What the fleet knows of an agent and its schedules: the content of `state.yaml`.

use indexmap::IndexMap;
use jiff::Timestamp;

use crate::JobId;
use crate::words::words;

words! {
    /// What an agent is doing.
    pub enum AgentStatus ("agent status") {
        /// Nothing.
        Idle = "idle",
        /// At least one job.
        Running = "running",
        /// Its last job failed.
        Error = "error",
    }
}

words! {
    /// What a schedule is doing.
    pub enum ScheduleStatus ("schedule status") {
        /// Waiting for its time.
        Idle = "idle",
        /// Its job runs.
        Running = "running",
        /// Switched off by a person.
        Disabled = "disabled",
    }
}

/// An agent's state.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentState {
    /// What it is doing.
    pub status: AgentStatus,
    /// The job it is at.
    pub current_job: Option<JobId>,
    /// The last job that ended.
    pub last_job: Option<JobId>,
    /// The schedule that comes next.
    pub next_schedule: Option<String>,
    /// When that is.
    pub next_trigger_at: Option<Timestamp>,
    /// Its container.
    pub container_id: Option<String>,
    /// Why it is in `error`.
    pub error_message: Option<String>,
    /// Its schedules by name.
    pub schedules: IndexMap<String, ScheduleState>,
}

impl Default for AgentState {
    fn default() -> AgentState {
        AgentState {
            status: AgentStatus::Idle,
            current_job: None,
            last_job: None,
            next_schedule: None,
            next_trigger_at: None,
            container_id: None,
            error_message: None,
            schedules: IndexMap::new(),
        }
    }
}

/// A schedule's state.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleState {
    /// What it is doing.
    pub status: ScheduleStatus,
    /// When its last run ended.
    pub last_run_at: Option<Timestamp>,
    /// When it is next due; unknown while a run goes on.
    pub next_run_at: Option<Timestamp>,
    /// Why its last run failed.
    pub last_error: Option<String>,
}

impl Default for ScheduleState {
    fn default() -> ScheduleState {
        ScheduleState {
            status: ScheduleStatus::Idle,
            last_run_at: None,
            next_run_at: None,
            last_error: None,
        }
    }
}
