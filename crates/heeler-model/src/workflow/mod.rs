//! Runs of workflows.
//!
//! A [`Workflow`](heeler_config::workflow::Workflow) is the content of a file. A [`WorkflowRun`] is
//! one execution of it: a fold over the entries of its journal, which the database stores. Every
//! decision is a journal entry before it takes effect, so a reader of the journal knows as much as
//! its writer. Start at [`WorkflowRun::step`].

mod begin_parts;
mod fix_markers;
mod journal;
mod loop_result;
mod messages;
mod next_action;
mod output;
mod part_job;
mod review_findings;
mod status;
mod workflow_run;
mod workflow_step;

pub use journal::{JournalEntry, PartDecision, PartOutcome, PhasePart};
pub use output::{OUTPUT_BYTES_MAX, truncate_output};
pub use part_job::{PartJobSpec, PartJobWork};
pub use review_findings::{
    FINDINGS_FILE, ReviewFinding, ReviewFindings, ReviewSide, ReviewVerdict,
};
pub use status::WorkflowRunStatus;
pub use workflow_run::{PhaseOutcome, RESTARTS_MAX, WorkflowRun};
pub use workflow_step::{
    EndedPart, GateAnswer, GateQuestion, ITEMS_BYTES_MAX, PARTS_PER_STEP, TIMEOUT_ANSWERER,
    WorkflowEffect, WorkflowStepContext, WorkflowStepEvent, WorkflowStepOutcome,
};

#[cfg(test)]
mod message_table_tests;
#[cfg(test)]
mod message_tests;
#[cfg(test)]
pub(crate) mod simulation;
#[cfg(test)]
mod tests;
