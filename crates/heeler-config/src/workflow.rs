//! Workflow files: phases executed by agents and commands, in order, in loops, with approvals.
//!
//! A [`Workflow`] is the content of a file, a [`LoadedWorkflow`] the workflow with its prompts. Start
//! at [`load_workflow_folder`], which reads the workflow directory of a fleet, or at
//! [`load_workflow`]. The execution of a workflow is in `heeler_config::workflow`.

mod cron_checks;
mod definition;
mod folder;
pub mod graph;
pub mod inputs;
pub(crate) mod keys;
mod last_light;
mod parse;
mod pattern;
mod phase_needs;
mod phases;
mod references;
mod scan;
mod settings;
mod shell_quoting;
mod template;
mod template_error;
mod template_keys;
mod template_scope;
mod template_value;
mod translate;

pub use definition::{
    ContextNumber, ForeachLoop, Gate, GateDefault, GateKind, GitAccessProfile, INTENT_CHARS_MAX,
    ITEMS_MAX, MarkerRule, OutputRules, Phase, PhaseMessages, PhaseRepeat, PhaseSkills, PhaseWork,
    ReviewLoop, RunClonePolicy, ScriptLanguage, SkillFile, SoftFailurePolicy, TriggerRule,
    UntilLoop, Workflow, WorkflowGithubRules, WorkflowInput, WorkflowInputType, WorkflowIntent,
};
pub use folder::{
    FaultyWorkflowFile, WORKFLOW_FILES_MAX, WorkflowCron, WorkflowFolder, load_workflow_folder,
};
pub use keys::{
    ITERATIONS_MAX, MarkerAction, PhaseImage, PhaseType, RequiredIsolation, RunDirectoryPolicy,
    SoftFailureOutcome,
};
pub use parse::{
    FolderLister, LoadedWorkflow, PHASES_MAX, SKILL_FILES_MAX, freeze_workflow,
    load_frozen_workflow, load_workflow,
};
pub use pattern::{PATTERN_CHARS_MAX, WorkflowPattern};
pub use settings::WorkflowSettings;
pub use template::{RENDERED_BYTES_MAX, WorkflowExpression, WorkflowTemplate};
pub use template_error::{TemplateParseError, TemplateRenderError};
pub use template_scope::TemplateScope;
