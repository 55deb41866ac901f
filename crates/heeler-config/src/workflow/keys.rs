//! Keys of workflow files, both Last Light's and Heeler's.
//!
//! Types with the suffix `Keys` describe the written form; [`super::parse`] and [`super::phases`]
//! convert them to definitions.

use std::num::NonZeroU32;

use indexmap::IndexMap;
use serde_json::{Value as Json, json};

use super::definition::{
    GateKind, GitAccessProfile, ScriptLanguage, TriggerRule, WorkflowInputType,
};
use super::template::{WorkflowExpression, WorkflowTemplate};
use super::template_keys::CommandTemplate;
use crate::LocalName;
use crate::policy::AgentRef;
use crate::reader::ConfigReader;
use crate::shape::{ValueShape, section};
use crate::value::{
    BoundedInt, ConfigValue, NonBlankText, SpannedValue, report_expected, word_value,
};
use crate::words::words;
use crate::yaml::{YamlKind, YamlNode};
use crate::{ConfigDuration, ConfigTimeZone, CronExpr, RETRIES_MAX, UsdAmount};

/// Most iterations of a loop.
pub const ITERATIONS_MAX: i32 = 1000;
/// Most parts of one run at once.
const PARALLEL_MAX: i32 = 256;
/// Longest time limit of a part, in seconds: a week.
const TIMEOUT_SECONDS_MAX: i32 = 7 * 24 * 60 * 60;

words! {
    /// Type of a phase.
    pub enum PhaseType ("phase type") {
        /// Nothing: a point that other phases depend on.
        Context = "context",
        /// Prompt to an agent.
        Agent = "agent",
        /// Shell command.
        Bash = "bash",
        /// Program in a scripting language.
        Script = "script",
        /// Rejected: it is part of Last Light itself.
        PostReview = "post-review",
    }
}

words! {
    /// Isolation that a phase requires, in Last Light's words.
    pub enum RequiredIsolation ("isolation") {
        /// A container.
        Docker = "docker",
        /// Last Light's virtual machine; for Heeler, a sandbox.
        Gondolin = "gondolin",
        /// No isolation.
        None = "none",
    }
}

words! {
    /// Image of a phase's container, in Last Light's words.
    pub enum PhaseImage ("image") {
        /// The agent's own image.
        Default = "default",
        /// Last Light's image with a browser.
        Qa = "qa",
    }
}

words! {
    /// Directory of a run, in Last Light's words.
    pub enum RunDirectoryPolicy ("workspace") {
        /// A new clone for each run.
        PerRun = "per-run",
        /// One directory for each issue or pull request, used again.
        PerTargetReuse = "per-target-reuse",
        /// A new clone for each run, in the directory of the issue or pull request.
        PerTargetRecreate = "per-target-recreate",
    }
}

words! {
    /// Effect of a marker in an output.
    pub enum MarkerAction ("action") {
        /// The phase fails.
        Fail = "fail",
        /// No effect.
        Continue = "continue",
        /// No effect, as in Last Light.
        Pause = "pause",
    }
}

words! {
    /// Outcome of a phase with an iteration that ran out of turns.
    pub enum SoftFailureOutcome ("outcome") {
        /// The phase fails.
        Fail = "fail",
        /// The phase succeeds.
        Complete = "complete",
    }
}

word_value!(
    PhaseType,
    RequiredIsolation,
    PhaseImage,
    RunDirectoryPolicy,
    GitAccessProfile,
    MarkerAction,
    SoftFailureOutcome,
    GateKind,
    WorkflowInputType,
    ScriptLanguage,
    TriggerRule
);

section! {
    /// A workflow: phases executed by agents and commands, in order, in loops, with approvals.
    pub(crate) struct WorkflowKeys ("workflow") {
        /// Name of the workflow.
        name: SpannedValue<LocalName>,
        /// Purpose of the workflow.
        description: Option<String>,
        /// Agent of phases that name none. Defaults to `workflows.agent` in the fleet file, or to
        /// the only agent of the fleet.
        agent: Option<SpannedValue<AgentRef>>,
        /// Inputs of a run, by name. Without declared inputs, any input is accepted.
        inputs: IndexMap<String, InputKeys>,
        /// Most parts of one run that execute at once.
        max_parallel: BoundedInt<1, PARALLEL_MAX> = "4",
        /// Most money that one run may spend, in US dollars.
        budget: Option<UsdAmount>,
        /// Phases. If no phase has `depends_on`, they run one after the other.
        phases: PhaseListKeys,
        /// Message when the run has succeeded. None is sent if the text is empty.
        final_message: Option<SpannedValue<WorkflowTemplate>>,
        /// `cron` for a file that starts a workflow on a schedule. Any other word is a label for people.
        kind: Option<String>,
        /// Label for people, as in Last Light. A command, a schedule or a cron file starts the workflow.
        trigger: Option<Json>,
        /// Only one run of all workflows with this key is active for one pull request.
        pr_scoped: bool = "false",
        /// The workflow fixes the branch of a pull request. Needs `pr_scoped: true`.
        pr_fix_shaped: Option<SpannedValue<bool>>,
        /// Highest permissions of the token for GitHub that the agents of the workflow get
        /// (`github.agent_tokens`): `read`, `issues-write` and `review-write` (writes issues and pull
        /// requests), or `repo-write` (no limit). Agents whose token has less are refused.
        git_access: Option<SpannedValue<GitAccessProfile>>,
        /// Post one comment with the state of all phases, which is edited, instead of one comment for
        /// each message.
        status_checklist: bool = "false",
        /// Directory of the phases. By default and with `per-target-reuse`, it is the working directory of
        /// their agent. With `per-run` and `per-target-recreate`, each run has a new clone of the agent's
        /// `repo`; agents without one are refused. `per-target-recreate` removes the clone of the
        /// earlier run about the same issue or pull request.
        workspace: Option<SpannedValue<RunDirectoryPolicy>>,
        /// Holds always: phases begin with the files of the repository, in the working directory of their
        /// agent or in the clone of the run.
        prepopulate_synth_branch: bool = "false",
        /// Text of people that starts the workflow. `intent` is the word that follows the mention of the
        /// bot, for schedules with `intents: true`; case and hyphens do not count. The other keys are for
        /// people. A warning says so if no schedule starts the workflow.
        classification: Option<SpannedValue<Json>>,
        /// Words for people about texts that start the workflow, as in Last Light. The same warning
        /// applies.
        chat: Option<SpannedValue<Json>>,
        /// Names for people. No template can use them, as in Last Light.
        variables: Option<Json>,
    }
}

section! {
    /// An input of a workflow.
    pub(crate) struct InputKeys ("input") {
        /// Type of the value.
        kind as "type": WorkflowInputType = "string",
        /// Purpose of the input.
        description: Option<String>,
        /// Value if none is given. Without a default, the input is required.
        default: Option<SpannedValue<Json>>,
        /// Allowed values.
        options: Option<SpannedValue<Vec<Json>>>,
    }
}

section! {
    /// A phase of a workflow.
    pub(crate) struct PhaseKeys ("phase") {
        /// Name of the phase, unique within the workflow.
        name: SpannedValue<LocalName>,
        /// Display name.
        label: Option<String>,
        /// Type: `agent` prompts an agent, `bash` and `script` run a command or program, `context`
        /// does nothing and is a point that others depend on. `post-review` posts
        /// the review of a pull request that an agent has written to `.lastlight/pr-review/findings.json`; it needs
        /// access to GitHub.
        kind as "type": SpannedValue<PhaseType> = "agent",
        /// Agent that executes the phase, or that provides the directory and environment of its
        /// command.
        agent: Option<SpannedValue<AgentRef>>,
        /// Prompt to the agent: a template, or the path of a template file (one word that ends in
        /// `.md` or `.txt`), relative to this file or to `prompts` next to it.
        prompt: Option<SpannedValue<NonBlankText>>,
        /// Name of a skill. The text of `skills/NAME/SKILL.md`, next to this file or next to its
        /// directory, is put before the prompt, or replaces a missing prompt. A missing prompt ends
        /// with `Context:` and all inputs of the run. Other files of the skill's directory are
        /// copied for each run, read-only, and the prompt names their directory.
        skill: Option<SpannedValue<LocalName>>,
        /// Names of several skills.
        skills: Option<SpannedValue<Vec<LocalName>>>,
        /// Model. Defaults to the agent's, also if the text is empty.
        model: Option<SpannedValue<WorkflowTemplate>>,
        /// Shell command of a `bash` phase. Values are quoted for the shell; `| raw` inserts one
        /// unquoted.
        command: Option<SpannedValue<CommandTemplate>>,
        /// Program of a `script` phase. It is not a template: outputs are in its environment.
        script: Option<SpannedValue<NonBlankText>>,
        /// Interpreter of the program.
        runtime: Option<SpannedValue<ScriptLanguage>>,
        /// Directory to work in, within the agent's working directory.
        working_directory: Option<SpannedValue<WorkflowTemplate>>,
        /// Time limit of each part, in seconds.
        timeout_seconds: Option<ContextNumberKeys<TIMEOUT_SECONDS_MAX>>,
        /// Retries of a failed part.
        retry: Option<PhaseRetryKeys>,
        /// Phases that must end before this one starts.
        depends_on: Option<OneOrMore<SpannedValue<LocalName>>>,
        /// Required outcome of those phases. Otherwise this phase is skipped.
        trigger_rule: TriggerRule = "all_success",
        /// Expressions. The phase is skipped if any of them is true.
        skip_if: Option<OneOrMore<SpannedValue<WorkflowExpression>>>,
        /// A review, then fixes and further reviews until one approves.
        review as "loop": Option<SpannedValue<ReviewLoopKeys>>,
        /// Repeats the phase until a condition holds.
        generic_loop: Option<SpannedValue<GenericLoopKeys>>,
        /// Repeats the phase for each item of a list: an expression, a list, or a map.
        foreach: Option<SpannedValue<ForeachKeys>>,
        /// Gate after the phase: the name of a gate, or a map. The run pauses unless
        /// `workflows.gates` in the fleet file disables the gate.
        approval_gate: Option<SpannedValue<GateKeys>>,
        /// File for which consent is requested.
        approval_artifact: Option<String>,
        /// Text of the question.
        approval_gate_message: Option<SpannedValue<WorkflowTemplate>>,
        /// Interpretation of the output.
        on_output: OutputKeys = "{}",
        /// Consequences of success.
        on_success: Option<OnSuccessKeys>,
        /// Additional name of the output; in a loop, the name of its result.
        output_var: Option<SpannedValue<LocalName>>,
        /// Messages that the phase sends.
        messages: MessagesKeys = "{}",
        /// Reasoning effort of the model: `low`, `medium`, `high`, `xhigh` or `max`; `off` and
        /// `minimal` are `low`. Defaults to the agent's, also if the text is empty.
        variant: Option<SpannedValue<WorkflowTemplate>>,
        /// The phase needs access to every host. Refused if its agent reaches only listed hosts.
        unrestricted_egress: Option<SpannedValue<bool>>,
        /// The phase searches the web. Refused if the tool lists of its agent exclude `WebSearch`.
        web_search: Option<SpannedValue<bool>>,
        /// The phase is skipped unless its agent runs in a container (`docker`), in a sandbox
        /// (`gondolin`), or in neither (`none`).
        requires_sandbox: Option<SpannedValue<RequiredIsolation>>,
        /// `default` is the agent's image. A phase with `qa` is skipped unless it names an `agent` of its own that
        /// runs in a container: choose one with an image that has a browser.
        sandbox_image: Option<SpannedValue<PhaseImage>>,
    }
}

section! {
    /// Retries of a failed part. Each iteration of a loop is counted separately.
    pub(crate) struct PhaseRetryKeys ("phase retry") {
        /// Most retries.
        max: BoundedInt<0, RETRIES_MAX> = "0",
        /// Delay after the first failure. Doubles with each retry.
        backoff: ConfigDuration = "30s",
        /// Longest delay. Defaults to `15m`, or to `backoff` if that is longer.
        max_backoff: Option<SpannedValue<ConfigDuration>>,
    }
}

section! {
    /// A review, then fixes and further reviews until one approves. A review states its verdict on
    /// a separate line: `VERDICT: APPROVED` or `VERDICT: REQUEST_CHANGES`.
    pub(crate) struct ReviewLoopKeys ("loop") {
        /// Most fixes. It is not a failure if the last review still requests changes.
        max_cycles: BoundedInt<1, ITERATIONS_MAX>,
        /// Prompts after a review that requests changes.
        on_request_changes: FixKeys,
        /// Gate before each fix: the name of a gate, or a map.
        approval_gate: Option<SpannedValue<GateKeys>>,
        /// File for which consent is requested.
        approval_artifact: Option<String>,
        /// Messages that the loop sends.
        messages: LoopMessagesKeys = "{}",
    }
}

section! {
    /// Prompts after a review that requests changes.
    pub(crate) struct FixKeys ("fix") {
        /// Prompt of a fix: a template, or the path of a template file.
        fix_prompt: SpannedValue<NonBlankText>,
        /// Prompt of a further review: a template, or the path of a template file.
        re_review_prompt: SpannedValue<NonBlankText>,
        /// Model of a fix. Defaults to the phase's.
        fix_model: Option<SpannedValue<WorkflowTemplate>>,
        /// Reasoning effort of a fix. Defaults to the phase's.
        fix_variant: Option<SpannedValue<WorkflowTemplate>>,
    }
}

section! {
    /// A phase that repeats until a condition holds.
    pub(crate) struct GenericLoopKeys ("generic_loop") {
        /// Most iterations. Reaching this limit is not a failure.
        max_iterations: ContextNumberKeys<ITERATIONS_MAX>,
        /// Expression over `output`, the output of the iteration, that ends the loop.
        until: Option<SpannedValue<WorkflowExpression>>,
        /// Command that ends the loop by exit code 0. It runs if `until` does not hold.
        until_bash: Option<SpannedValue<CommandTemplate>>,
        /// Opens a gate before each further iteration.
        interactive: bool = "false",
        /// Kind of answer that the gate requires.
        gate_kind: GateKind = "approve",
        /// Text of the question. A gate for a reply shows the output of the iteration before it.
        gate_message: Option<SpannedValue<WorkflowTemplate>>,
        /// Time limit for an answer.
        gate_timeout: Option<ConfigDuration>,
        /// Answer after the time limit: `approve` or `reject`, or the text of a reply.
        gate_default: Option<SpannedValue<String>>,
        /// Key in `scratch` of the loop's state and of the answers.
        scratch_key: Option<SpannedValue<LocalName>>,
        /// Hides the output of earlier iterations from an iteration.
        fresh_context: bool = "false",
        /// Handling of an iteration that runs out of turns. An iteration that ends normally without
        /// output is not affected.
        on_soft_failure: SoftFailureKeys = "{}",
    }
}

section! {
    /// Handling of an iteration that runs out of turns.
    pub(crate) struct SoftFailureKeys ("on_soft_failure") {
        /// Most retries.
        retries: BoundedInt<0, RETRIES_MAX> = "0",
        /// Outcome of the phase after the last retry.
        then: SoftFailureOutcome = "fail",
    }
}

section! {
    /// A phase that repeats for each item of a list.
    pub(crate) struct ForeachMapKeys ("foreach") {
        /// Items: an expression that yields a list, or text with one item per line.
        items: ForeachItemsKeys,
        /// Name of the item in templates.
        name as "as": SpannedValue<LocalName> = "item",
        /// Most items at once, within the workflow's limit.
        max_parallel: Option<NonZeroU32>,
    }
}

section! {
    /// A gate: a point at which the run waits for an approval.
    pub(crate) struct GateMapKeys ("gate") {
        /// Name of the gate. `workflows.gates` in the fleet file disables gates by name.
        name: LocalName,
        /// Text of the question.
        message: Option<SpannedValue<WorkflowTemplate>>,
        /// Time limit for an answer. Without it, the run waits forever.
        timeout: Option<ConfigDuration>,
        /// Answer after the time limit: `approve` or `reject`.
        default: Option<SpannedValue<String>>,
    }
}

section! {
    /// Interpretation of a part's output.
    pub(crate) struct OutputKeys ("on_output") {
        /// Rule for an output that contains the word BLOCKED.
        blocked as "contains_BLOCKED": Option<MarkerRuleKeys>,
        /// Rule for people to read: an output that contains READY succeeds anyway, as in Last Light.
        ready as "contains_READY": Option<Json>,
        /// Text that a successful output must contain; in `generic_loop`, that of the last iteration.
        requires_marker: Option<NonBlankText>,
    }
}

section! {
    /// Rule for an output that contains a marker.
    pub(crate) struct MarkerRuleKeys ("output rule") {
        /// Effect of the marker. Only `fail` has any.
        action: SpannedValue<MarkerAction> = "fail",
        /// Message when the rule applies.
        message: Option<SpannedValue<WorkflowTemplate>>,
        /// The rule does not apply if the context's `labels` or `issueLabels` has this label.
        unless_label: Option<String>,
        /// The rule does not apply if the context's `title` or `issueTitle` matches this regular
        /// expression, ignoring case.
        unless_title_matches: Option<SpannedValue<String>>,
        /// Message when the rule does not apply for one of these reasons.
        bypass_message: Option<SpannedValue<WorkflowTemplate>>,
    }
}

section! {
    /// Consequences of success.
    pub(crate) struct OnSuccessKeys ("on_success") {
        /// Name of the run's current phase from then on.
        set_phase: Option<String>,
    }
}

section! {
    /// Messages that a phase sends, as templates.
    pub(crate) struct MessagesKeys ("messages") {
        /// When the phase starts.
        on_start: Option<SpannedValue<WorkflowTemplate>>,
        /// When the phase has succeeded. A loop must have reached its goal.
        on_success: Option<SpannedValue<WorkflowTemplate>>,
        /// When the phase has failed, or no iteration is left.
        on_failure: Option<SpannedValue<WorkflowTemplate>>,
        /// When the phase is skipped because of `skip_if`.
        on_skipped_done: Option<SpannedValue<WorkflowTemplate>>,
        /// When its output contains BLOCKED.
        on_blocked: Option<SpannedValue<WorkflowTemplate>>,
        /// When its output contains BLOCKED but the rule does not apply.
        on_blocked_bypassed: Option<SpannedValue<WorkflowTemplate>>,
    }
}

section! {
    /// Messages of a review loop, as templates.
    pub(crate) struct LoopMessagesKeys ("loop messages") {
        /// When a review begins.
        on_cycle_start: Option<SpannedValue<WorkflowTemplate>>,
        /// When a review approves.
        on_approved: Option<SpannedValue<WorkflowTemplate>>,
        /// When a review requests changes and a fix follows.
        on_request_changes: Option<SpannedValue<WorkflowTemplate>>,
        /// When a review still requests changes after the last fix.
        on_max_cycles: Option<SpannedValue<WorkflowTemplate>>,
        /// When a fix begins.
        on_fix_start: Option<SpannedValue<WorkflowTemplate>>,
        /// When a fix has failed, which ends the loop.
        on_fix_failed: Option<SpannedValue<WorkflowTemplate>>,
        /// When the loop's gate opens. It is also the text of the question.
        on_pause_for_approval: Option<SpannedValue<WorkflowTemplate>>,
    }
}

section! {
    /// A number from the run's context.
    pub(crate) struct ContextPathKeys ("number from the context") {
        /// Path in the context, such as `fix.limit`.
        from: NonBlankText,
        /// Value if the context has none.
        default: NonZeroU32,
    }
}

section! {
    /// A file with `kind: cron`: a schedule that starts a workflow.
    pub(crate) struct CronKeys ("cron") {
        /// The word `cron`.
        kind: String,
        /// Name of the cron.
        name: SpannedValue<LocalName>,
        /// Purpose of the cron.
        description: Option<String>,
        /// Cron expression.
        schedule: CronExpr,
        /// Time zone of the expression. Defaults to the fleet's.
        timezone: Option<ConfigTimeZone>,
        /// Workflow to start.
        workflow: Option<SpannedValue<LocalName>>,
        /// Inputs of the run. `discover` searches the repositories of `github` and starts a run for each match:
        /// `green-dependency-prs`, `red-dependency-prs`, `prs-awaiting-review` or `stale-issues`. `stale_days` and
        /// `associations` belong to the search.
        context: SpannedValue<IndexMap<String, Json>> = "{}",
        /// Start one run for each repository of `github`. Defaults to `true` if the fleet has access to GitHub and
        /// names repositories.
        each_repo: Option<SpannedValue<bool>>,
        /// Starts the workflow on schedule.
        enabled: bool = "true",
        /// Last Light's own code instead of a workflow. A file with it is rejected.
        handler: Option<SpannedValue<String>>,
        /// `{unless: webhooksEnabled}` starts nothing while a webhook starts the same workflow.
        condition: Option<SpannedValue<Json>>,
    }
}

/// Phases of a workflow. Phases with errors are omitted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PhaseListKeys(pub(crate) Vec<SpannedValue<PhaseKeys>>);

impl ConfigValue for PhaseListKeys {
    fn shape() -> ValueShape {
        Vec::<SpannedValue<PhaseKeys>>::shape()
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<PhaseListKeys> {
        match &node.kind {
            YamlKind::List(items) if items.is_empty() => {
                report_expected(reader, node, "at least one phase")
            }
            _ => Vec::read(node, reader).map(PhaseListKeys),
        }
    }
    fn show(&self) -> Json {
        self.0.show()
    }
}

/// A single value, or a list of values.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OneOrMore<T>(pub(crate) Vec<T>);

impl<T: ConfigValue> ConfigValue for OneOrMore<T> {
    fn shape() -> ValueShape {
        ValueShape::OneOf(vec![T::shape(), ValueShape::List(Box::new(T::shape()))])
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<OneOrMore<T>> {
        match &node.kind {
            // A single value is common in hand-written files, so it needs no list.
            YamlKind::List(_) => Vec::read(node, reader).map(OneOrMore),
            _ => T::read(node, reader).map(|one| OneOrMore(vec![one])),
        }
    }
    fn show(&self) -> Json {
        self.0.show()
    }
}

/// Number that is given, or taken from the run's context.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ContextNumberKeys<const MAX: i32> {
    Fixed(u32),
    From(ContextPathKeys),
}

impl<const MAX: i32> ConfigValue for ContextNumberKeys<MAX> {
    fn shape() -> ValueShape {
        ValueShape::OneOf(vec![BoundedInt::<1, MAX>::shape(), ContextPathKeys::shape()])
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<ContextNumberKeys<MAX>> {
        if let YamlKind::Map(_) = &node.kind {
            let keys = ContextPathKeys::read(node, reader)?;
            // The default has the same limit as a fixed number.
            node.get("default").and_then(|number| BoundedInt::<1, MAX>::read(number, reader))?;
            return Some(ContextNumberKeys::From(keys));
        }
        let number = BoundedInt::<1, MAX>::read(node, reader)?.get();
        Some(ContextNumberKeys::Fixed(number.unsigned_abs()))
    }
    fn show(&self) -> Json {
        match self {
            ContextNumberKeys::Fixed(number) => json!(number),
            ContextNumberKeys::From(keys) => keys.show(),
        }
    }
}

/// Items of a list, as an expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ForeachItemsKeys(pub(crate) SpannedValue<WorkflowExpression>);

impl ConfigValue for ForeachItemsKeys {
    fn shape() -> ValueShape {
        ValueShape::OneOf(vec![
            WorkflowExpression::shape(),
            ValueShape::List(Box::new(ValueShape::Any)),
        ])
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<ForeachItemsKeys> {
        if let YamlKind::List(_) = &node.kind {
            // A JSON list is an expression as well, so items have one form from here on.
            let list = Json::read(node, reader)?.to_string();
            let Ok(value) = WorkflowExpression::parse(&list) else {
                return report_expected(reader, node, "a list of plain values");
            };
            return Some(ForeachItemsKeys(SpannedValue { value, at: node.at, template: None }));
        }
        SpannedValue::read(node, reader).map(ForeachItemsKeys)
    }
    fn show(&self) -> Json {
        self.0.show()
    }
}

/// Items of a `foreach`, or a map with further settings.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ForeachKeys(pub(crate) ForeachMapKeys);

impl ConfigValue for ForeachKeys {
    fn shape() -> ValueShape {
        ValueShape::OneOf(vec![ForeachItemsKeys::shape(), ForeachMapKeys::shape()])
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<ForeachKeys> {
        if let YamlKind::Map(_) = &node.kind {
            return ForeachMapKeys::read(node, reader).map(ForeachKeys);
        }
        let items = ForeachItemsKeys::read(node, reader)?;
        let value = "item".parse().expect("a word is a name");
        let name = SpannedValue { value, at: node.at, template: None };
        Some(ForeachKeys(ForeachMapKeys { items, name, max_parallel: None }))
    }
    fn show(&self) -> Json {
        self.0.show()
    }
}

/// Name of a gate, or a map with further settings.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GateKeys(pub(crate) GateMapKeys);

impl ConfigValue for GateKeys {
    fn shape() -> ValueShape {
        ValueShape::OneOf(vec![LocalName::shape(), GateMapKeys::shape()])
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<GateKeys> {
        if let YamlKind::Map(_) = &node.kind {
            return GateMapKeys::read(node, reader).map(GateKeys);
        }
        let name = LocalName::read(node, reader)?;
        Some(GateKeys(GateMapKeys { name, message: None, timeout: None, default: None }))
    }
    fn show(&self) -> Json {
        self.0.show()
    }
}
