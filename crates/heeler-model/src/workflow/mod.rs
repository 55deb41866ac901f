//! Workflows: phases that agents and commands do, in order, in loops, with people's consent.
//!
//! A [`Workflow`] is what a file says. A [`WorkflowRun`] is one run of it: a fold over the entries of its
//! journal, which the database keeps. Every decision is an entry before anything is done because of
//! it, so whoever reads the journal knows all that the one who wrote it knew. Start at
//! [`WorkflowRun::workflow_step`].

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
mod simulation;
#[cfg(test)]
mod tests;
