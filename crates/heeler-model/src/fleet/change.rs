//! The result of a step: changes to store, and effects to execute after the commit.
//!
//! Start at [`FleetStep`].

use std::sync::Arc;

use heeler_config::workflow::Workflow;
use jiff::Timestamp;
use serde_json::{Map, Value as Json};

use super::event::CancelRequest;
use super::records::{ParkedCredentialRecord, QueuedJobRecord, ReservationRecord};
use super::settlement::BudgetSettlement;
use super::wait_reason::{FleetRefusal, WaitReason};
use crate::calendar::ScheduleKey;
use crate::rerun::RerunDecision;
use crate::timetable::{DueTimeCursor, DueTimeSkip};
use crate::workflow::{WorkflowEffect, WorkflowRun, WorkflowRunStatus};
use crate::{JobId, JobRequest, RunId, WorkflowRunId};

/// Change that the caller stores.
#[derive(Debug, Clone)]
pub enum FleetChange {
    /// Create a pending job.
    CreateJob {
        job: JobId,
        request: Box<JobRequest>,
    },
    /// Insert or replace a queue entry.
    PutQueueEntry(QueuedJobRecord),
    /// Remove the queue entry of a job that has ended.
    RemoveQueueEntry(JobId),
    /// Record the start of a run, with its reservation.
    StartRun {
        job: JobId,
        run: RunId,
        reservation: Option<ReservationRecord>,
    },
    /// Record the end of a run: the cost replaces the reservation, and the job ends or waits.
    EndRun {
        run: RunId,
        decision: RerunDecision,
        settlement: BudgetSettlement,
    },
    /// Fail a job that cannot run.
    FailJob {
        job: JobId,
        why: String,
    },
    /// Cancel a queued job.
    CancelJob {
        job: JobId,
    },
    /// Record the request to cancel a run, so that the next daemon repeats it.
    RecordCancelRequest {
        run: RunId,
        request: CancelRequest,
    },
    ParkCredential(ParkedCredentialRecord),
    UnparkCredential(String),
    /// Record the job of a due time.
    RecordStart {
        key: ScheduleKey,
        due: Timestamp,
        job: JobId,
    },
    /// Start the workflow of a due time, and record that or the reason why it did not start.
    StartWorkflow {
        key: ScheduleKey,
        due: Timestamp,
    },
    /// Record due times without a job.
    RecordSkip {
        key: ScheduleKey,
        skip: DueTimeSkip,
    },
    /// Record that every due time up to the cursor is decided.
    AdvanceSchedule {
        key: ScheduleKey,
        cursor: DueTimeCursor,
    },
    /// Create the record of a workflow run.
    CreateWorkflowRun {
        run: WorkflowRunId,
        status: WorkflowRunStatus,
    },
    /// Record a decision of a workflow run: an entry of its journal, a question or a message. The
    /// caller creates the job of a part that begins, and reports it as
    /// [`super::WorkflowEvent::PartSubmitted`] in the same transaction.
    RecordWorkflow {
        run: WorkflowRunId,
        workflow: Arc<Workflow>,
        effect: Box<WorkflowEffect>,
    },
    /// Record the progress of a workflow run.
    UpdateWorkflowRun {
        run: WorkflowRunId,
        record: Box<WorkflowRunRecord>,
    },
    /// Record that a workflow run cannot continue.
    FailWorkflowRun {
        run: WorkflowRunId,
        why: String,
    },
    /// Withdraw the open questions of a workflow run.
    WithdrawQuestions {
        run: WorkflowRunId,
        by: String,
    },
    /// Record that the job of a part succeeded after its workflow run had ended, so that its output
    /// was never judged.
    RecordUnjudgedPart {
        job: JobId,
    },
}

/// Progress of a workflow run, as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowRunRecord {
    pub status: WorkflowRunStatus,
    /// True if the run ended with this step.
    pub has_ended: bool,
    pub current_phase: String,
    pub error: Option<String>,
    pub restarts: u32,
    pub spent_micros: i64,
    pub seq: u64,
    pub scratch: Map<String, Json>,
}

impl WorkflowRunRecord {
    /// Returns the record of a run that had another status before.
    pub(super) fn of_run(run: &WorkflowRun, before: WorkflowRunStatus) -> WorkflowRunRecord {
        WorkflowRunRecord {
            status: run.status,
            // Set only in the step that ends the run, so its end is recorded and announced once.
            has_ended: run.status.is_final() && !before.is_final(),
            current_phase: run.current_phase.clone(),
            error: run.error.clone(),
            restarts: run.restarts,
            spent_micros: run.spent_micros,
            seq: run.seq,
            scratch: run.scratch.clone(),
        }
    }
}

/// Action after the commit. Each can be repeated.
#[derive(Debug, Clone, PartialEq)]
pub enum FleetEffect {
    /// Prepare a run of a queued job.
    PrepareJob { job: JobId, request: Box<JobRequest> },
    /// Start the runner of a recorded run.
    LaunchRun(RunId),
    /// Ask a run to end.
    CancelRun { run: RunId, request: CancelRequest },
}

/// Decision about the job of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum JobDecision {
    /// A run starts, with this budget in millionths of a dollar.
    Started { budget: Option<i64> },
    /// The job waits in the queue.
    Waiting(WaitReason),
    /// The job was not created.
    Refused(FleetRefusal),
    /// The job ends without a run; a change says why.
    Ended,
    /// The job had ended already.
    Ignored,
}

/// Decision about the workflow run of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkflowDecision {
    /// The event was applied. Holds the status of the run after it.
    Stepped(WorkflowRunStatus),
    /// Refused: the run is not active.
    NotActive,
    /// Refused: jobs of the run are still ending.
    PartsEnding,
}

/// Result of [`super::FleetState::step`].
#[derive(Debug, Clone, Default)]
pub struct FleetStep {
    pub decision: Option<JobDecision>,
    /// Decision about the workflow run of a [`super::FleetEvent::Workflow`].
    pub workflow: Option<WorkflowDecision>,
    /// Changes in the order in which they are stored.
    pub changes: Vec<FleetChange>,
    pub effects: Vec<FleetEffect>,
}
