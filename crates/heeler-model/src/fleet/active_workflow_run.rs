//! A workflow run that has not ended, as the fleet's state holds it.

use std::collections::HashMap;

use jiff::Timestamp;

use crate::JobId;
use crate::workflow::{PhasePart, WorkflowRun};

/// A workflow run that has not ended.
#[derive(Debug, Clone)]
pub struct ActiveWorkflowRun {
    pub state: WorkflowRun,
    /// Subject of the run. Only one run of a workflow is active for it.
    pub trigger_id: String,
    pub started_at: Timestamp,
    /// True if more parts can begin immediately.
    pub(super) has_ready_parts: bool,
    /// Parts in progress that have a job.
    pub(super) open_parts: HashMap<JobId, OpenPart>,
}

/// A part in progress, with the figures of the earlier runs of its job.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenPart {
    /// Index of the phase.
    pub phase: usize,
    pub part: PhasePart,
    /// Number of the journal entry.
    pub seq: u64,
    /// Cost of the job's earlier runs, in millionths of a dollar.
    pub spent: i64,
    /// Output of the last run that had one.
    pub output: Option<String>,
    /// Error of the last run.
    pub error: Option<String>,
}

impl OpenPart {
    /// Creates a part with a job that has not run.
    pub fn new(phase: usize, part: PhasePart, seq: u64) -> OpenPart {
        OpenPart { phase, part, seq, spent: 0, output: None, error: None }
    }
}

impl ActiveWorkflowRun {
    /// Creates a run without open parts.
    pub fn new(state: WorkflowRun, trigger_id: String, started_at: Timestamp) -> ActiveWorkflowRun {
        let open_parts = HashMap::new();
        ActiveWorkflowRun { state, trigger_id, started_at, has_ready_parts: false, open_parts }
    }

    /// Adds a part in progress to a run that is loaded.
    pub fn load_part(&mut self, job: JobId, part: OpenPart) {
        self.open_parts.insert(job, part);
    }
}
