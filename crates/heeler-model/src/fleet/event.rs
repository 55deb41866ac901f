//! Events of a fleet, with the facts that only the database has.
//!
//! Start at [`FleetEvent`].

use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use super::active_workflow_run::{ActiveWorkflowRun, OpenPart};
use super::rules::FleetRules;
use crate::calendar::ScheduleKey;
use crate::rerun::RunHistory;
use crate::run::RunResult;
use crate::timetable::DueTimeDecision;
use crate::workflow::{EndedPart, GateAnswer, PhasePart};
use crate::{JobId, JobRequest, RunId, WorkflowRunId};

/// Input of [`super::FleetState::step`].
#[derive(Debug)]
pub enum FleetEvent<'e> {
    /// The config was loaded or reloaded.
    RulesReplaced(Arc<FleetRules>),
    /// Another day began, or the clock was set back to one. `spent` is the amount that each agent
    /// has already spent on it.
    DayChanged { day: Date, spent: Vec<(String, i64)> },
    /// A run of a job is prepared and may start.
    JobPrepared(Box<JobStart>),
    /// The preparation of a queued job was given up; the job waits again.
    PreparationStopped { job: &'e JobId },
    /// A job that the caller created or reopened enters the queue, without a check of its limits.
    JobSubmitted { job: JobId, new: Box<NewJob>, not_before: Option<Timestamp> },
    /// A queued job cannot run.
    JobImpossible { job: &'e JobId, why: String },
    /// A person or program cancels a job.
    CancelRequested {
        job: &'e JobId,
        /// True if its record says that it waits, although the state may not know it.
        is_pending: bool,
        request: CancelRequest,
    },
    /// A run has ended.
    RunEnded(RunEndFacts<'e>),
    /// A run that has no record any more, or that was committed before.
    RunDropped { run: RunId },
    /// A decision of [`super::FleetState::due_schedules`] without the due times that are on record
    /// already. `new_jobs` has one ID for each start.
    ScheduleDue { key: &'e ScheduleKey, decision: &'e DueTimeDecision, new_jobs: Vec<JobId> },
    /// A person replaced the amount that counts for a run. `micros` is the difference.
    CostCorrected { agent: &'e str, day: Date, micros: i64 },
    /// A person enabled or disabled an agent.
    AgentSwitched { agent: &'e str, is_enabled: bool },
    /// A person enabled, disabled or reset a schedule.
    ScheduleSwitched { key: &'e ScheduleKey, is_enabled: Option<bool> },
    /// Time has passed: queue entries expire, limits reset, reasons change.
    TimePassed,
    /// Nothing blocks new starts: choose the jobs to prepare.
    StartsAllowed {
        /// Most jobs to choose.
        preparations_max: usize,
    },
    /// Something happened to a workflow run.
    Workflow { run: &'e WorkflowRunId, event: WorkflowEvent },
    /// Nothing blocks new workflow runs: queued ones begin while there is capacity.
    WorkflowStartsAllowed,
}

/// Event of a workflow run. The ends of its jobs are not among them: they are part of the events
/// that end a job.
#[derive(Debug)]
pub enum WorkflowEvent {
    /// It begins, or is queued if too many runs are active.
    Start(Box<ActiveWorkflowRun>),
    /// A person retries it after its end.
    Retry {
        active: Box<ActiveWorkflowRun>,
        /// Phase that also starts over, whichever outcome it had.
        from: Option<usize>,
    },
    /// It continues with work that the last step left.
    Continue,
    /// A gate was answered, or timed out.
    GateAnswered {
        /// Index of the gate's phase.
        phase: usize,
        /// Gate of that phase.
        part: PhasePart,
        answer: GateAnswer,
    },
    /// The caller has created the job of a part that began.
    PartSubmitted(Box<SubmittedPart>),
    /// A part that began has ended without a job: the caller cannot create one, or did its work itself.
    JoblessPartEnded(EndedPart),
    /// A person cancels it.
    Cancel {
        request: CancelRequest,
        /// True if its record says that it is cancelled; its jobs may still be ending.
        is_cancelled: bool,
    },
    /// It cannot continue.
    Fail { why: String },
}

/// A part that has begun, with the job that the caller created for it.
#[derive(Debug)]
pub struct SubmittedPart {
    pub job: JobId,
    pub part: OpenPart,
    pub new: NewJob,
    /// Earliest time to start.
    pub not_before: Option<Timestamp>,
}

/// Request to cancel a job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CancelRequest {
    /// Cancel immediately instead of gracefully.
    pub now: bool,
    /// Requester.
    pub by: String,
}

/// A prepared run, with the facts about it that the state does not have.
#[derive(Debug, Clone)]
pub struct JobStart {
    pub job: JobId,
    /// ID of the run, if it starts.
    pub run: RunId,
    /// The request, if the job does not exist yet.
    pub new: Option<NewJob>,
    pub session: SessionReadiness,
    /// True if the run would use the agent's persistent session.
    pub uses_persistent_session: bool,
    /// Most that all runs of the job may cost together, in millionths of a dollar.
    pub budget: Option<i64>,
    /// Cost of the job's earlier runs.
    pub spent: i64,
}

/// Request of a new job.
#[derive(Debug, Clone)]
pub struct NewJob {
    pub request: JobRequest,
    /// The request without secrets, as it is stored.
    pub request_json: String,
}

/// State of the session that a run would use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionReadiness {
    Free,
    /// Another run uses it. Waiting helps.
    Busy(String),
    /// The host of its agent is away, or starts no runs. Waiting helps.
    HostAway(String),
    /// It does not exist or may not be used. Waiting does not help.
    Unusable(String),
}

/// Source of the end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEndSource {
    /// Its runner, or a process that settled it. Also a person who gave its host up.
    Result,
    /// The silence of its host for longer than its lease.
    HostSilence,
}

/// A run that has ended, with the facts about its job that the state does not have.
#[derive(Debug, Clone, Copy)]
pub struct RunEndFacts<'r> {
    pub run: RunId,
    pub job: &'r JobId,
    pub agent: &'r str,
    pub schedule: Option<&'r str>,
    pub is_workflow_part: bool,
    pub result: &'r RunResult,
    /// Earlier runs of the job.
    pub history: RunHistory,
    /// True if a person cancelled the run: it is not repeated.
    pub is_cancelled: bool,
    pub source: RunEndSource,
}
