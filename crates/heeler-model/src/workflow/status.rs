//! Where a run of a workflow is in its life.

use crate::words::words;

words! {
    /// Where a run of a workflow is in its life.
    pub enum CourseStatus ("status of a workflow run") {
        /// It waits for its turn.
        Queued = "queued",
        /// Its phases are at work.
        Running = "running",
        /// It waits for a person, and for nothing else.
        Paused = "paused",
        /// It ended well.
        Succeeded = "succeeded",
        /// It ended badly.
        Failed = "failed",
        /// A person ended it.
        Cancelled = "cancelled",
    }
}

impl CourseStatus {
    /// Says whether the run has ended.
    pub fn is_final(self) -> bool {
        matches!(self, CourseStatus::Succeeded | CourseStatus::Failed | CourseStatus::Cancelled)
    }
}
