//! The fields of a fleet's state. Other files of this module implement its steps.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;

use super::active_workflow_run::ActiveWorkflowRun;
use super::queue::JobQueue;
use super::records::ParkedCredentialRecord;
use super::rules::FleetRules;
use crate::budget_ledger::BudgetLedger;
use crate::calendar::{ScheduleCalendar, ScheduleKey};
use crate::{JobId, RunId, WorkflowRunId};

/// In-memory state of a fleet.
#[derive(Debug, Clone)]
pub struct FleetState {
    pub(super) rules: Arc<FleetRules>,
    pub(super) jobs: JobQueue,
    pub(super) runs: HashMap<RunId, UnfinishedRun>,
    pub(super) ledger: BudgetLedger,
    /// Parked credentials by name.
    pub(super) parked: HashMap<String, ParkedCredentialRecord>,
    pub(super) disabled_agents: HashSet<String>,
    /// Schedules that a person enabled or disabled.
    pub(super) switched_schedules: HashMap<ScheduleKey, bool>,
    /// Enabled schedules that fire by time.
    pub(super) calendar: ScheduleCalendar,
    /// Jobs that wait until the fleet is started again.
    pub(super) held_jobs: HashSet<JobId>,
    pub(super) is_queue_held: bool,
    /// Workflow runs that have not ended.
    pub(super) workflow_runs: HashMap<WorkflowRunId, ActiveWorkflowRun>,
    /// True while the daemon stops: a part that is cancelled now is repeated later.
    pub(super) is_stopping: bool,
}

/// A run without a committed result.
#[derive(Debug, Clone, PartialEq)]
pub struct UnfinishedRun {
    pub job: JobId,
    pub agent: String,
    /// Key of the concurrency limit that it counts for; see [`super::concurrency_key`].
    pub concurrency_key: String,
    pub schedule: Option<String>,
    /// True if it uses the agent's persistent session.
    pub uses_persistent_session: bool,
    /// Budget of the run, in millionths of a dollar; `None` without a limit.
    pub budget_micros: Option<i64>,
    /// Money reserved for it, with the day that pays.
    pub reservation: Option<(Date, i64)>,
    pub since: Timestamp,
}

/// Adds a duration to a time, up to the largest time.
pub(super) fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}
