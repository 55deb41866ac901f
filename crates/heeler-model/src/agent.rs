//! State of an agent and its schedules: the content of the `state.yaml` view.
//!
//! Start at [`AgentState`].

use heeler_config::words;
use indexmap::IndexMap;
use jiff::Timestamp;

use crate::JobId;

words! {
    /// Activity of an agent.
    pub enum AgentStatus ("agent status") {
        /// No job is running.
        Idle = "idle",
        /// At least one job is running.
        Running = "running",
        /// The last job failed.
        Error = "error",
    }
}

words! {
    /// Activity of a schedule.
    pub enum ScheduleStatus ("schedule status") {
        /// Waiting for its next due time.
        Idle = "idle",
        /// Its job is running.
        Running = "running",
        /// Disabled by a person.
        Disabled = "disabled",
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct AgentState {
    pub status: AgentStatus,
    pub current_job: Option<JobId>,
    /// Most recent job that has ended.
    pub last_job: Option<JobId>,
    /// Schedule with the earliest due time.
    pub next_schedule: Option<String>,
    /// Due time of `next_schedule`.
    pub next_trigger_at: Option<Timestamp>,
    pub container_id: Option<String>,
    /// Reason for the status `error`.
    pub error_message: Option<String>,
    /// Schedules by name.
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

#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleState {
    pub status: ScheduleStatus,
    /// End of the last run.
    pub last_run_at: Option<Timestamp>,
    /// Next due time. `None` while a run is in progress.
    pub next_run_at: Option<Timestamp>,
    /// Reason why the last run failed.
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
