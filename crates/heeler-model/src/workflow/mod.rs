//! Workflows: phases that agents and commands do, in order, in loops, with people's consent.
//!
//! A [`Workflow`] is what a file says. A [`Course`] is one run of it: a fold over the entries of its
//! journal, which the database keeps. Every decision is an entry before anything is done because of
//! it, so whoever reads the journal knows all that the one who wrote it knew. Start at
//! [`Course::step`].

mod begin;
mod course;
mod definition;
mod entry;
mod folder;
pub mod graph;
pub mod inputs;
pub(crate) mod keys;
mod old;
mod output;
mod parse;
mod pattern;
mod phases;
mod piece;
mod references;
mod scan;
mod shell;
mod status;
mod step;
mod template;
mod translate;

pub use course::{Course, NodeEnd, RESTARTS_MAX};
pub use definition::{
    Figure, Foreach, Gate, GateDefault, GateKind, Input, InputType, Language, Marker, Messages,
    OutputRules, Phase, PhaseWork, Repeat, Retry, ReviewLoop, SoftFailure, TriggerRule, UntilLoop,
    Workflow,
};
pub use entry::{Decision, Entry, How, Part};
pub use folder::{Cron, FaultyFile, WORKFLOW_FILES_MAX, Workflows, load_all};
pub use keys::{Action, ITERATIONS_MAX, PhaseType, Then};
pub use output::{OUTPUT_BYTES_MAX, cut_output};
pub use parse::{LoadedWorkflow, PHASES_MAX, WorkflowSettings, freeze, load, thaw};
pub use pattern::{PATTERN_CHARS_MAX, Pattern};
pub use piece::{Piece, PieceWork};
pub use status::CourseStatus;
pub use step::{
    Answer, Around, Effect, Ended, Happening, ITEMS_BYTES_MAX, ITEMS_MAX, NOBODY_IN_TIME,
    PARTS_PER_STEP, Question, Step,
};
pub use template::{Expression, RENDERED_BYTES_MAX, RenderError, Scope, Template, TemplateError};

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
