//! Workflows: phases executed by agents and commands, in order, in loops, with approvals.
//!
//! A [`Workflow`] is the content of a file. A [`WorkflowRun`] is one execution of it: a fold over
//! the entries of its journal, which the database stores. Every decision is a journal entry before
//! it takes effect, so a reader of the journal knows as much as its writer. Start at
//! [`WorkflowRun::step`].

mod begin_parts;
mod definition;
mod folder;
pub mod graph;
pub mod inputs;
mod journal;
pub(crate) mod keys;
mod last_light;
mod output;
mod parse;
mod part_job;
mod pattern;
mod phases;
mod references;
mod scan;
mod shell_quoting;
mod status;
mod template;
mod translate;
mod workflow_run;
mod workflow_step;

pub use definition::{
    ContextNumber, ForeachLoop, Gate, GateDefault, GateKind, MarkerRule, OutputRules, Phase,
    PhaseMessages, PhaseRepeat, PhaseWork, RetryPolicy, ReviewLoop, ScriptLanguage,
    SoftFailurePolicy, TriggerRule, UntilLoop, Workflow, WorkflowInput, WorkflowInputType,
};
pub use folder::{
    FaultyWorkflowFile, WORKFLOW_FILES_MAX, WorkflowCron, WorkflowFolder, load_workflow_folder,
};
pub use journal::{JournalEntry, PartDecision, PartOutcome, PhasePart};
pub use keys::{ITERATIONS_MAX, MarkerAction, PhaseType, SoftFailureOutcome};
pub use output::{OUTPUT_BYTES_MAX, truncate_output};
pub use parse::{
    LoadedWorkflow, PHASES_MAX, WorkflowSettings, freeze_workflow, load_frozen_workflow,
    load_workflow,
};
pub use part_job::{PartJobSpec, PartJobWork};
pub use pattern::{PATTERN_CHARS_MAX, WorkflowPattern};
pub use status::WorkflowRunStatus;
pub use template::{
    RENDERED_BYTES_MAX, TemplateParseError, TemplateRenderError, TemplateScope, WorkflowExpression,
    WorkflowTemplate,
};
pub use workflow_run::{PhaseOutcome, RESTARTS_MAX, WorkflowRun};
pub use workflow_step::{
    EndedPart, GateAnswer, GateQuestion, ITEMS_BYTES_MAX, ITEMS_MAX, PARTS_PER_STEP,
    TIMEOUT_ANSWERER, WorkflowEffect, WorkflowStepContext, WorkflowStepEvent, WorkflowStepOutcome,
};

#[cfg(test)]
pub(crate) mod simulation;
#[cfg(test)]
mod tests;
