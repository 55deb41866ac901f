//! What a workflow file says, checked: phases, what they wait for, how they repeat, who is asked.

use std::num::NonZeroU32;

use indexmap::IndexMap;
use serde_json::Value as Json;

use super::pattern::WorkflowPattern;
use super::template::{WorkflowExpression, WorkflowTemplate};
pub use crate::config::RetryPolicy;
use crate::config::{ConfigDuration, UsdAmount};
use crate::words::words;
use crate::{AgentName, LocalName};

/// A workflow.
#[derive(Debug, Clone)]
pub struct Workflow {
    /// Its name.
    pub name: LocalName,
    /// What it is for.
    pub description: Option<String>,
    /// The agent of phases that name none.
    pub agent: Option<AgentName>,
    /// What it is given when it starts.
    pub inputs: IndexMap<String, WorkflowInput>,
    /// The most parts of it that are done at once.
    pub max_parallel: NonZeroU32,
    /// The most money that one run of it may spend.
    pub budget: Option<UsdAmount>,
    /// What is to be done; a phase names others by their place here, and only earlier ones in some
    /// order without a circle.
    pub phases: Vec<Phase>,
    /// What is said at the end.
    pub final_message: Option<WorkflowTemplate>,
}

/// What a workflow is given when it starts.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowInput {
    /// What it is.
    pub kind: WorkflowInputType,
    /// What it is for.
    pub description: Option<String>,
    /// What it is if nobody says; it must be given if left out.
    pub default: Option<Json>,
    /// The only values that it may have; any if empty.
    pub options: Vec<Json>,
}

words! {
    /// What an input is.
    pub enum WorkflowInputType ("input type") {
        /// Text.
        String = "string",
        /// A number.
        Number = "number",
        /// Yes or no.
        Boolean = "boolean",
        /// Several values.
        List = "list",
    }
}

/// One phase.
#[derive(Debug, Clone)]
pub struct Phase {
    /// Its name, once in a workflow.
    pub name: LocalName,
    /// What people are shown instead.
    pub label: Option<String>,
    /// Who does it, if not the workflow's agent.
    pub agent: Option<AgentName>,
    /// What is done.
    pub work: PhaseWork,
    /// The phases that it waits for.
    pub depends_on: Vec<usize>,
    /// What of them must be so.
    pub trigger_rule: TriggerRule,
    /// It is left out if any of these holds.
    pub skip_if: Vec<WorkflowExpression>,
    /// How often it is done.
    pub repeat: PhaseRepeat,
    /// Who consents when it is done.
    pub gate: Option<Gate>,
    /// What its output means.
    pub on_output: OutputRules,
    /// Another name of its output.
    pub output_var: Option<String>,
    /// How many seconds each part may take.
    pub timeout_seconds: Option<ContextNumber>,
    /// How often a part that failed is tried again.
    pub retry: RetryPolicy,
    /// Where it works, inside of its agent's folder.
    pub working_directory: Option<WorkflowTemplate>,
    /// What is said on the way.
    pub messages: PhaseMessages,
    /// What the run's current phase is called once this one has succeeded.
    pub set_phase: Option<String>,
}

/// What is done in a phase.
#[derive(Debug, Clone)]
pub enum PhaseWork {
    /// Nothing: it is a point that others wait for.
    Context,
    /// An agent is asked.
    Agent {
        /// What.
        prompt: WorkflowTemplate,
        /// The model that answers.
        model: Option<WorkflowTemplate>,
    },
    /// A shell command. Values are quoted for the shell.
    Bash {
        /// The command.
        command: WorkflowTemplate,
    },
    /// A program.
    Script {
        /// Its text.
        source: String,
        /// What runs it.
        language: ScriptLanguage,
    },
}

words! {
    /// What runs a script.
    pub enum ScriptLanguage ("script runtime") {
        /// JavaScript, by `node`.
        Js = "js",
        /// TypeScript, by `node`.
        Ts = "ts",
        /// Python, by `uv`, or `python3` where there is none.
        Python = "python",
    }
}

words! {
    /// What must be so of the phases that one waits for.
    pub enum TriggerRule ("trigger rule") {
        /// All have succeeded.
        AllSuccess = "all_success",
        /// One has succeeded.
        OneSuccess = "one_success",
        /// None has failed, and one has succeeded.
        NoneFailedMinOneSuccess = "none_failed_min_one_success",
        /// All are over, however.
        AllDone = "all_done",
    }
}

/// How often a phase is done.
#[derive(Debug, Clone)]
pub enum PhaseRepeat {
    /// Once.
    Once,
    /// A review, then fixes and further reviews until one approves.
    Review(Box<ReviewLoop>),
    /// Until a condition holds.
    Until(Box<UntilLoop>),
    /// Once for each of several items.
    Foreach(Box<ForeachLoop>),
}

/// A review, then fixes and further reviews until one approves.
#[derive(Debug, Clone)]
pub struct ReviewLoop {
    /// The most fixes.
    pub max_cycles: u32,
    /// What a fix is asked.
    pub fix_prompt: WorkflowTemplate,
    /// The model of a fix.
    pub fix_model: Option<WorkflowTemplate>,
    /// What a further review is asked.
    pub re_review_prompt: WorkflowTemplate,
    /// Who consents to a fix before it is made.
    pub gate: Option<Gate>,
}

/// A phase that is done until a condition holds.
#[derive(Debug, Clone)]
pub struct UntilLoop {
    /// The most iterations; that the condition does not hold then is no failure.
    pub max_iterations: ContextNumber,
    /// Whether the output of an iteration is the last.
    pub until: Option<WorkflowExpression>,
    /// A command that says by its exit code whether an iteration was the last.
    pub until_bash: Option<WorkflowTemplate>,
    /// Who is asked before the next iteration.
    pub gate: Option<Gate>,
    /// Where in scratch its state and the answers are.
    pub scratch_key: Option<String>,
    /// Whether an iteration is not told what those before it said.
    pub fresh_context: bool,
    /// What an iteration means that came to no good end, and to no bad one.
    pub on_soft_failure: SoftFailurePolicy,
}

/// What an iteration means that ran out of turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SoftFailurePolicy {
    /// How often it is tried again.
    pub retries: u32,
    /// Whether the phase then succeeds; it fails otherwise.
    pub completes: bool,
}

/// A phase that is done once for each item of a list.
#[derive(Debug, Clone)]
pub struct ForeachLoop {
    /// The items: an expression that gives a list, or text with one in each line.
    pub items: WorkflowExpression,
    /// What an item is called in templates.
    pub name: String,
    /// The most items at once, within what the workflow allows.
    pub max_parallel: Option<NonZeroU32>,
}

/// Somebody is asked.
#[derive(Debug, Clone)]
pub struct Gate {
    /// What it is called; config turns gates off by their names.
    pub name: String,
    /// What is asked for.
    pub kind: GateKind,
    /// What is asked.
    pub message: Option<WorkflowTemplate>,
    /// The file that consent is asked for.
    pub artifact: Option<String>,
    /// How long it is waited for an answer, and what is one then.
    pub timeout: Option<(ConfigDuration, GateDefault)>,
}

words! {
    /// What a gate asks for.
    pub enum GateKind ("gate kind") {
        /// Yes or no.
        Approve = "approve",
        /// Any words.
        Reply = "reply",
    }
}

/// What counts as the answer if nobody gives one in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GateDefault {
    /// Yes.
    Approve,
    /// No.
    Reject,
    /// These words.
    Reply(String),
}

/// What the output of a part means.
#[derive(Debug, Clone, Default)]
pub struct OutputRules {
    /// A part that says BLOCKED has failed.
    pub blocked: Option<MarkerRule>,
    /// Text that a good output has.
    pub requires_marker: Option<String>,
}

/// What it means that an output has a marker.
#[derive(Debug, Clone, Default)]
pub struct MarkerRule {
    /// What is said then.
    pub message: Option<WorkflowTemplate>,
    /// It does not count with this label in the context's `labels`.
    pub unless_label: Option<String>,
    /// It does not count if this is found in the context's `title`.
    pub unless_title_matches: Option<WorkflowPattern>,
    /// What is said if it does not count.
    pub bypass_message: Option<WorkflowTemplate>,
}

/// A number that is given, or found in the run's context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContextNumber {
    /// It is this.
    Fixed(u32),
    /// It is what the context has at a path, such as `fix.limit`.
    Context {
        /// The path.
        path: String,
        /// What it is where the context has none.
        default: u32,
    },
}

/// What is said on the way.
#[derive(Debug, Clone, Default)]
pub struct PhaseMessages {
    /// When the phase starts.
    pub on_start: Option<WorkflowTemplate>,
    /// When it has succeeded.
    pub on_success: Option<WorkflowTemplate>,
    /// When it has failed.
    pub on_failure: Option<WorkflowTemplate>,
    /// When it is left out.
    pub on_skipped_done: Option<WorkflowTemplate>,
    /// When its output was BLOCKED.
    pub on_blocked: Option<WorkflowTemplate>,
    /// When it was, and that does not count.
    pub on_blocked_bypassed: Option<WorkflowTemplate>,
    /// When a cycle of a review loop begins.
    pub on_cycle_start: Option<WorkflowTemplate>,
    /// When a review approves.
    pub on_approved: Option<WorkflowTemplate>,
    /// When a review wants changes.
    pub on_request_changes: Option<WorkflowTemplate>,
    /// When a review still wants changes after the last fix.
    pub on_max_cycles: Option<WorkflowTemplate>,
    /// When a fix begins.
    pub on_fix_start: Option<WorkflowTemplate>,
    /// When a fix has failed.
    pub on_fix_failed: Option<WorkflowTemplate>,
    /// When somebody is asked.
    pub on_pause_for_approval: Option<WorkflowTemplate>,
}

impl ContextNumber {
    /// Returns the number for a context.
    pub fn resolve(&self, context: &Json) -> u32 {
        match self {
            ContextNumber::Fixed(number) => *number,
            ContextNumber::Context { path, default } => {
                let found = path.split('.').try_fold(context, |at, key| at.get(key));
                let number = found.and_then(Json::as_u64).and_then(|it| u32::try_from(it).ok());
                number.filter(|number| *number > 0).unwrap_or(*default)
            }
        }
    }
}

impl Workflow {
    /// Returns the place of a phase.
    pub fn phase_index(&self, name: &str) -> Option<usize> {
        self.phases.iter().position(|phase| phase.name.as_str() == name)
    }
}
