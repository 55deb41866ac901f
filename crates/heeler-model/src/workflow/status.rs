//! Where a run of a workflow is in its life.

use crate::words::words;

words! {
    /// Where a run of a workflow is in its life.
    pub enum WorkflowRunStatus ("workflow run status") {
        /// Parts of it are done, or wait for their turn.
        Running = "running",
        /// It waits for people.
        Paused = "paused",
        /// All that was to be done is done.
        Succeeded = "succeeded",
        /// Something has failed.
        Failed = "failed",
        /// A person ended it.
        Cancelled = "cancelled",
        /// It waits for its turn.
        Queued = "queued",
    }
}

impl WorkflowRunStatus {
    /// Says whether the run has ended.
    pub fn is_final(self) -> bool {
        matches!(
            self,
            WorkflowRunStatus::Succeeded | WorkflowRunStatus::Failed | WorkflowRunStatus::Cancelled
        )
    }
}
