//! Status of a workflow run.

use heeler_config::words;

words! {
    /// Status of a workflow run.
    pub enum WorkflowRunStatus ("workflow run status") {
        /// Parts are running or waiting to start.
        Running = "running",
        /// Waiting for answers at gates.
        Paused = "paused",
        /// All phases have ended without failure.
        Succeeded = "succeeded",
        /// At least one phase failed.
        Failed = "failed",
        /// Cancelled by a person.
        Cancelled = "cancelled",
        /// Waiting to start, because too many runs are active.
        Queued = "queued",
    }
}

impl WorkflowRunStatus {
    /// Returns true if the run has ended.
    pub fn is_final(self) -> bool {
        matches!(
            self,
            WorkflowRunStatus::Succeeded | WorkflowRunStatus::Failed | WorkflowRunStatus::Cancelled
        )
    }
}
