//! Checked content of a workflow file: phases, dependencies, loops, gates.
//!
//! Start at [`Workflow`].

use std::num::NonZeroU32;
use std::str::FromStr;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::pattern::WorkflowPattern;
use super::template::{WorkflowExpression, WorkflowTemplate};
use crate::words::words;
use crate::{AgentName, LocalName};
use crate::{ConfigDuration, RetryPolicy, UsdAmount};

/// Most items of a list.
pub const ITEMS_MAX: usize = 10_000;

/// Workflow definition.
#[derive(Debug, Clone)]
pub struct Workflow {
    pub name: LocalName,
    pub description: Option<String>,
    /// Agent of phases that name none.
    pub agent: Option<AgentName>,
    /// Parameters of a run, by name.
    pub inputs: IndexMap<String, WorkflowInput>,
    /// Most parts of a run that execute at once.
    pub max_parallel: NonZeroU32,
    /// Budget of one run.
    pub budget: Option<UsdAmount>,
    /// Phases. A phase refers to others by their index here. Dependencies have no cycle.
    pub phases: Vec<Phase>,
    /// Message when the run has succeeded.
    pub final_message: Option<WorkflowTemplate>,
    pub github: WorkflowGithubRules,
    /// Set if the phases work in a clone that belongs to the run.
    pub run_clone: Option<RunClonePolicy>,
    /// Word by which a text of a person starts it.
    pub intent: Option<WorkflowIntent>,
}

/// Longest intent, in characters.
pub const INTENT_CHARS_MAX: usize = 64;

/// Word by which a text of a person starts a workflow (`classification.intent`). As in Last Light,
/// case and hyphens do not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowIntent(String);

impl FromStr for WorkflowIntent {
    type Err = ();

    fn from_str(word: &str) -> Result<WorkflowIntent, ()> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let letters: String = word
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .map(|letter| letter.to_ascii_uppercase())
            .collect();
        let is_word = word.chars().all(is_part) && word.len() <= INTENT_CHARS_MAX;
        (is_word && !letters.is_empty()).then_some(WorkflowIntent(letters)).ok_or(())
    }
}

words! {
    /// Lifetime of the clone in which the phases of a run work.
    pub enum RunClonePolicy ("clone of a run") {
        /// Removed some time after the run has succeeded.
        PerRun = "per-run",
        /// Removed when the next run about the same issue or pull request begins.
        PerTarget = "per-target",
    }
}

/// Rules of a workflow that is about issues and pull requests of GitHub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkflowGithubRules {
    /// Only one run of all workflows with this rule is active for one pull request.
    pub is_pr_scoped: bool,
    /// Highest permissions of the tokens of its agents.
    pub access: Option<GitAccessProfile>,
    /// Messages are one comment, which is edited.
    pub has_checklist: bool,
}

words! {
    /// Permissions that a workflow needs of GitHub.
    pub enum GitAccessProfile ("git access") {
        /// Read everything.
        Read = "read",
        /// Write issues and pull requests.
        IssuesWrite = "issues-write",
        /// Write issues and pull requests, and review the latter.
        ReviewWrite = "review-write",
        /// Write the content of repositories.
        RepoWrite = "repo-write",
    }
}

/// Parameter of a workflow.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowInput {
    pub kind: WorkflowInputType,
    pub description: Option<String>,
    /// Value if none is given. Without a default, the input is required.
    pub default: Option<Json>,
    /// Allowed values. Empty allows any value.
    pub options: Vec<Json>,
}

words! {
    /// Type of an input.
    pub enum WorkflowInputType ("input type") {
        /// Text of any length.
        String = "string",
        /// Integer or decimal number.
        Number = "number",
        /// True or false.
        Boolean = "boolean",
        /// List of values.
        List = "list",
    }
}

/// Phase of a workflow.
#[derive(Debug, Clone)]
pub struct Phase {
    /// Unique within the workflow.
    pub name: LocalName,
    /// Display name.
    pub label: Option<String>,
    /// Agent, if it differs from the workflow's.
    pub agent: Option<AgentName>,
    pub work: PhaseWork,
    /// Indexes of the phases that must end first.
    pub depends_on: Vec<usize>,
    /// Required outcome of those phases.
    pub trigger_rule: TriggerRule,
    /// The phase is skipped if any of these is true.
    pub skip_if: Vec<WorkflowExpression>,
    pub repeat: PhaseRepeat,
    /// Gate after the work is done.
    pub gate: Option<Gate>,
    pub on_output: OutputRules,
    /// Additional name of its output; in a loop, the name of its result.
    pub output_var: Option<String>,
    /// Time limit of each part.
    pub timeout_seconds: Option<ContextNumber>,
    /// Retries of a failed part.
    pub retry: RetryPolicy,
    /// Directory to work in, within the agent's working directory.
    pub working_directory: Option<WorkflowTemplate>,
    pub messages: PhaseMessages,
    /// Name of the run's current phase after this one has succeeded.
    pub set_phase: Option<String>,
    pub skills: PhaseSkills,
}

/// Skills of a phase. Their texts are part of its prompts.
#[derive(Debug, Clone, Default)]
pub struct PhaseSkills {
    /// Files beside the texts, which the agent may read or execute.
    pub files: Vec<SkillFile>,
    /// True if the phase has no prompt of its own. The prompt then ends with the run's inputs.
    pub are_prompt: bool,
}

/// File of a skill, besides its `SKILL.md`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillFile {
    /// Name of the skill.
    pub skill: String,
    /// Path within the skill's directory, such as `references/format.md`.
    pub path: String,
    pub text: String,
}

/// Work of a phase.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "there is one value for each phase of a file")]
pub enum PhaseWork {
    /// Nothing: a point that other phases depend on.
    Context,
    /// Prompt to an agent.
    Agent {
        prompt: WorkflowTemplate,
        model: Option<WorkflowTemplate>,
        /// Reasoning effort.
        effort: Option<WorkflowTemplate>,
    },
    /// Shell command. Values are quoted for the shell.
    Bash { command: WorkflowTemplate },
    /// Program in a scripting language.
    Script { source: String, language: ScriptLanguage },
    /// Review of a pull request that an agent has written, posted by the daemon.
    PostReview,
}

words! {
    /// Interpreter of a script.
    pub enum ScriptLanguage ("script runtime") {
        /// JavaScript, run by `node`.
        Js = "js",
        /// TypeScript, run by `node`.
        Ts = "ts",
        /// Python, run by `uv`, or by `python3` if `uv` is missing.
        Python = "python",
    }
}

words! {
    /// Required outcome of a phase's dependencies.
    pub enum TriggerRule ("trigger rule") {
        /// All have succeeded.
        AllSuccess = "all_success",
        /// At least one has succeeded.
        OneSuccess = "one_success",
        /// None has failed, and at least one has succeeded.
        NoneFailedMinOneSuccess = "none_failed_min_one_success",
        /// All have ended, with any outcome.
        AllDone = "all_done",
    }
}

/// Repetition of a phase.
#[derive(Debug, Clone)]
pub enum PhaseRepeat {
    Once,
    /// A review, then fixes and further reviews until one approves.
    Review(Box<ReviewLoop>),
    /// Repeated until a condition holds.
    Until(Box<UntilLoop>),
    /// Once for each item of a list.
    Foreach(Box<ForeachLoop>),
}

/// A review, then fixes and further reviews until one approves.
#[derive(Debug, Clone)]
pub struct ReviewLoop {
    /// Most fixes.
    pub max_cycles: u32,
    pub fix_prompt: WorkflowTemplate,
    pub fix_model: Option<WorkflowTemplate>,
    /// Reasoning effort of a fix.
    pub fix_effort: Option<WorkflowTemplate>,
    pub re_review_prompt: WorkflowTemplate,
    /// Gate before each fix.
    pub gate: Option<Gate>,
}

/// Loop that ends when a condition holds.
#[derive(Debug, Clone)]
pub struct UntilLoop {
    /// Most iterations. Reaching this limit is not a failure.
    pub max_iterations: ContextNumber,
    /// Condition over the output of an iteration that ends the loop.
    pub until: Option<WorkflowExpression>,
    /// Command that ends the loop by exit code 0.
    pub until_bash: Option<WorkflowTemplate>,
    /// Gate before each further iteration.
    pub gate: Option<Gate>,
    /// Key in `scratch` of the loop's state and of the answers.
    pub scratch_key: Option<String>,
    /// True if an iteration does not see the output of earlier ones.
    pub fresh_context: bool,
    pub on_soft_failure: SoftFailurePolicy,
}

/// Handling of an iteration that ran out of turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SoftFailurePolicy {
    pub retries: u32,
    /// True if the phase then succeeds, false if it fails.
    pub completes: bool,
}

/// Loop over the items of a list.
#[derive(Debug, Clone)]
pub struct ForeachLoop {
    /// Expression that yields a list, or text with one item per line.
    pub items: WorkflowExpression,
    /// Name of the item in templates.
    pub name: String,
    /// Most items at once, within the workflow's limit.
    pub max_parallel: Option<NonZeroU32>,
}

/// Point at which a run waits for an approval.
#[derive(Debug, Clone)]
pub struct Gate {
    /// Name. Config disables gates by name.
    pub name: String,
    pub kind: GateKind,
    pub message: Option<WorkflowTemplate>,
    /// File for which consent is requested.
    pub artifact: Option<String>,
    /// Time limit for an answer, and the answer that applies after it.
    pub timeout: Option<(ConfigDuration, GateDefault)>,
}

words! {
    /// Kind of answer that a gate requires.
    pub enum GateKind ("gate kind") {
        /// Yes or no.
        Approve = "approve",
        /// Text of any kind.
        Reply = "reply",
    }
}

/// Answer that applies when a gate times out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GateDefault {
    Approve,
    Reject,
    Reply(String),
}

/// Interpretation of a part's output.
#[derive(Debug, Clone, Default)]
pub struct OutputRules {
    /// If set, an output that contains BLOCKED is a failure.
    pub blocked: Option<MarkerRule>,
    /// Text that a successful output must contain.
    pub requires_marker: Option<String>,
}

/// Rule for an output that contains a marker.
#[derive(Debug, Clone, Default)]
pub struct MarkerRule {
    /// Message when the rule applies.
    pub message: Option<WorkflowTemplate>,
    /// The rule does not apply if the context's `labels` has this label.
    pub unless_label: Option<String>,
    /// The rule does not apply if the context's `title` matches.
    pub unless_title_matches: Option<WorkflowPattern>,
    /// Message when the rule does not apply for one of these reasons.
    pub bypass_message: Option<WorkflowTemplate>,
}

/// Number that is given, or taken from the run's context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContextNumber {
    Fixed(u32),
    /// Number at a path of the context, such as `fix.limit`.
    Context {
        path: String,
        /// Value if the context has none.
        default: u32,
    },
}

/// Messages that a phase sends.
#[derive(Debug, Clone, Default)]
pub struct PhaseMessages {
    /// When the phase starts.
    pub on_start: Option<WorkflowTemplate>,
    /// When the phase has succeeded.
    pub on_success: Option<WorkflowTemplate>,
    /// When the phase has failed.
    pub on_failure: Option<WorkflowTemplate>,
    /// When the phase is skipped because of `skip_if`.
    pub on_skipped_done: Option<WorkflowTemplate>,
    /// When its output contains BLOCKED.
    pub on_blocked: Option<WorkflowTemplate>,
    /// When its output contains BLOCKED but the rule does not apply.
    pub on_blocked_bypassed: Option<WorkflowTemplate>,
    /// When a review of a review loop begins.
    pub on_cycle_start: Option<WorkflowTemplate>,
    /// When a review approves.
    pub on_approved: Option<WorkflowTemplate>,
    /// When a review requests changes and a fix follows.
    pub on_request_changes: Option<WorkflowTemplate>,
    /// When a review still requests changes after the last fix.
    pub on_max_cycles: Option<WorkflowTemplate>,
    /// When a fix begins.
    pub on_fix_start: Option<WorkflowTemplate>,
    /// When a fix has failed.
    pub on_fix_failed: Option<WorkflowTemplate>,
    /// When a gate opens.
    pub on_pause_for_approval: Option<WorkflowTemplate>,
}

impl ContextNumber {
    pub fn resolve(&self, context: &Json) -> u32 {
        match self {
            ContextNumber::Fixed(number) => *number,
            ContextNumber::Context { path, default } => {
                let found = path.split('.').try_fold(context, |at, key| at.get(key));
                let number = found.and_then(Json::as_u64).and_then(|it| u32::try_from(it).ok());
                // Zero would mean no iteration, or no time at all.
                number.filter(|number| *number > 0).unwrap_or(*default)
            }
        }
    }
}

impl Phase {
    /// Returns the gate with a number: 0 at the end of the phase, otherwise in that cycle or
    /// iteration.
    pub fn gate_at(&self, number: u32) -> Option<&Gate> {
        match (&self.repeat, number) {
            (_, 0) => self.gate.as_ref(),
            (PhaseRepeat::Review(review), _) => review.gate.as_ref(),
            (PhaseRepeat::Until(until), _) => until.gate.as_ref(),
            _ => None,
        }
    }
}

impl Workflow {
    /// Returns the index of a phase.
    pub fn phase_index(&self, name: &str) -> Option<usize> {
        self.phases.iter().position(|phase| phase.name.as_str() == name)
    }
}
