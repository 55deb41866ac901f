//! What may be written in a workflow file: Last Light's words and ours.
//!
//! Types whose name ends in `Keys` are what may be written; [`super::workflow_of_run`] has what it means.

use std::num::NonZeroU32;

use indexmap::IndexMap;
use serde_json::{Value as Json, json};

use super::definition::{GateKind, ScriptLanguage, TriggerRule, WorkflowInputType};
use super::template::{TemplateParseError, WorkflowExpression, WorkflowTemplate};
use crate::LocalName;
use crate::config::policy::AgentRef;
use crate::config::reader::ConfigReader;
use crate::config::shape::{ValueShape, section};
use crate::config::value::{
    BoundedInt, ConfigValue, NonBlankText, SpannedValue, read_scalar, report_expected, word_value,
};
use crate::config::yaml::{YamlKind, YamlNode};
use crate::config::{ConfigDuration, ConfigTimeZone, CronExpr, RETRIES_MAX, UsdAmount};
use crate::words::words;

/// The most passes of a loop.
pub const ITERATIONS_MAX: i32 = 1000;
/// The most parts of one run at once.
const PARALLEL_MAX: i32 = 256;
/// The longest time that a part may take, in seconds: a week.
const TIMEOUT_SECONDS_MAX: i32 = 7 * 24 * 60 * 60;

/// Keys that are taken and have no effect, as paths; `*` stands for any item of a list.
pub(crate) const IGNORED_WORKFLOW_KEYS: &[&str] = &[
    "kind",
    "trigger",
    "pr_scoped",
    "status_checklist",
    "variables",
    "classification",
    "chat",
    "git_access",
    "workspace",
    "pr_fix_shaped",
    "prepopulate_synth_branch",
    "phases.*.variant",
    "phases.*.unrestricted_egress",
    "phases.*.web_search",
    "phases.*.requires_sandbox",
    "phases.*.sandbox_image",
    "phases.*.on_output.contains_READY",
    "phases.*.loop.on_request_changes.fix_variant",
];

/// Keys of a cron file that are taken and have no effect.
pub(crate) const IGNORED_CRON_KEYS: &[&str] = &["handler", "condition"];

words! {
    /// What a phase is.
    pub enum PhaseType ("phase type") {
        /// Nothing: a point that others wait for.
        Context = "context",
        /// An agent is asked.
        Agent = "agent",
        /// A shell command.
        Bash = "bash",
        /// A program.
        Script = "script",
        /// Refused: it is a part of Last Light itself.
        PostReview = "post-review",
    }
}

words! {
    /// What a marker in an output does.
    pub enum MarkerAction ("action") {
        /// The phase has failed.
        Fail = "fail",
        /// Nothing.
        Continue = "continue",
        /// Nothing; Last Light has no code for it either.
        Pause = "pause",
    }
}

words! {
    /// What becomes of an iteration that came to no end.
    pub enum SoftFailureOutcome ("outcome") {
        /// The phase has failed.
        Fail = "fail",
        /// The phase is done.
        Complete = "complete",
    }
}

word_value!(
    PhaseType,
    MarkerAction,
    SoftFailureOutcome,
    GateKind,
    WorkflowInputType,
    ScriptLanguage,
    TriggerRule
);

section! {
    /// A workflow: phases that agents and commands do, in order, in loops, with people's consent.
    pub(crate) struct WorkflowKeys ("workflow") {
        /// What it is called.
        name: SpannedValue<LocalName>,
        /// What it is for.
        description: Option<String>,
        /// The agent of phases that name none; that of `workflows.agent` in the fleet file, or the only
        /// one of the fleet, if left out.
        agent: Option<SpannedValue<AgentRef>>,
        /// What it is given when it starts, by name. Without it anything may be given.
        inputs: IndexMap<String, InputKeys>,
        /// The most parts of one run that are done at once.
        max_parallel: BoundedInt<1, PARALLEL_MAX> = "4",
        /// The most money that one run may spend, in US dollars.
        budget: Option<UsdAmount>,
        /// What is to be done. Without `depends_on` anywhere, one phase after the other.
        phases: PhaseListKeys,
        /// What is said when the run has succeeded; nothing if it comes to no text.
        final_message: Option<SpannedValue<WorkflowTemplate>>,
        /// `cron` for a file that starts a workflow by the clock; anything else is only a word.
        kind: Option<String>,
        /// What starts it in Last Light.
        trigger: Option<Json>,
        /// Of Last Light's pull requests.
        pr_scoped: Option<Json>,
        /// Of Last Light's comments.
        status_checklist: Option<Json>,
        /// Last Light reads them and uses them nowhere.
        variables: Option<Json>,
        /// Of Last Light's classifier.
        classification: Option<Json>,
        /// Of Last Light's chat.
        chat: Option<Json>,
        /// Of Last Light's tokens.
        git_access: Option<Json>,
        /// Of Last Light's sandboxes.
        workspace: Option<Json>,
        /// Of Last Light's pull requests.
        pr_fix_shaped: Option<Json>,
        /// Of Last Light's sandboxes.
        prepopulate_synth_branch: Option<Json>,
    }
}

section! {
    /// What a workflow is given when it starts.
    pub(crate) struct InputKeys ("input") {
        /// What it is.
        kind as "type": WorkflowInputType = "string",
        /// What it is for.
        description: Option<String>,
        /// What it is if nobody says; without it, it must be given.
        default: Option<SpannedValue<Json>>,
        /// The only values that it may have.
        options: Option<SpannedValue<Vec<Json>>>,
    }
}

section! {
    /// One phase.
    pub(crate) struct PhaseKeys ("phase") {
        /// What it is called, once in a workflow.
        name: SpannedValue<LocalName>,
        /// What people are shown instead.
        label: Option<String>,
        /// What it is: `agent` asks an agent, `bash` and `script` run a command or program, `context` is
        /// only a point that others wait for. `post-review` is refused: it is a part of Last Light itself.
        kind as "type": SpannedValue<PhaseType> = "agent",
        /// The agent that does it, or in whose folder and environment its command runs.
        agent: Option<SpannedValue<AgentRef>>,
        /// What the agent is asked: a template, or the path of a file with one (one word that ends in
        /// `.md` or `.txt`), relative to this file or to `prompts` beside it.
        prompt: Option<SpannedValue<NonBlankText>>,
        /// The text of `skills/NAME/SKILL.md` beside this file or beside its folder; it is put before the
        /// prompt, and may stand for it.
        skill: Option<SpannedValue<LocalName>>,
        /// Several such texts.
        skills: Option<SpannedValue<Vec<LocalName>>>,
        /// The model that answers; that of the agent if it comes to no text.
        model: Option<SpannedValue<WorkflowTemplate>>,
        /// The shell command of a `bash` phase. Values are quoted for the shell; `| raw` puts one in as it is.
        command: Option<SpannedValue<CommandTemplate>>,
        /// The program of a `script` phase. It is no template: it finds outputs in its environment.
        script: Option<SpannedValue<NonBlankText>>,
        /// What runs the program.
        runtime: Option<SpannedValue<ScriptLanguage>>,
        /// Where it works, inside of its agent's folder.
        working_directory: Option<SpannedValue<WorkflowTemplate>>,
        /// How many seconds each part may take.
        timeout_seconds: Option<ContextNumberKeys<TIMEOUT_SECONDS_MAX>>,
        /// How often a part that failed is tried again.
        retry: Option<PhaseRetryKeys>,
        /// The phases that it waits for.
        depends_on: Option<OneOrMore<SpannedValue<LocalName>>>,
        /// What must be so of those phases for it to be done; else it is skipped.
        trigger_rule: TriggerRule = "all_success",
        /// It is skipped if any of these expressions holds.
        skip_if: Option<OneOrMore<SpannedValue<WorkflowExpression>>>,
        /// A review, then fixes and further reviews until one approves.
        review as "loop": Option<SpannedValue<ReviewLoopKeys>>,
        /// It is done again until a condition holds.
        generic_loop: Option<SpannedValue<GenericLoopKeys>>,
        /// It is done once for each item of a list: an expression, a list, or a map.
        foreach: Option<SpannedValue<ForeachKeys>>,
        /// Who consents when it is done: the name of a gate, or a map. It pauses unless `workflows.gates` in
        /// the fleet file turns the gate off.
        approval_gate: Option<SpannedValue<GateKeys>>,
        /// The file that consent is asked for.
        approval_artifact: Option<String>,
        /// What is asked.
        approval_gate_message: Option<SpannedValue<WorkflowTemplate>>,
        /// What its output means.
        on_output: OutputKeys = "{}",
        /// What follows from success.
        on_success: Option<OnSuccessKeys>,
        /// Another name of its output.
        output_var: Option<SpannedValue<LocalName>>,
        /// What is said on the way.
        messages: MessagesKeys = "{}",
        /// Of Last Light's models.
        variant: Option<Json>,
        /// Of Last Light's sandboxes.
        unrestricted_egress: Option<Json>,
        /// Of Last Light's sandboxes.
        web_search: Option<Json>,
        /// Of Last Light's sandboxes; the phase is done wherever its agent is.
        requires_sandbox: Option<Json>,
        /// Of Last Light's sandboxes.
        sandbox_image: Option<Json>,
    }
}

section! {
    /// How often a part that failed is tried again. Loops count each pass by itself.
    pub(crate) struct PhaseRetryKeys ("phase retry") {
        /// How many times.
        max: BoundedInt<0, RETRIES_MAX> = "0",
        /// How long after the first failure; each further wait is twice as long.
        backoff: ConfigDuration = "30s",
        /// The longest wait; `15m`, or `backoff` where that is longer, if left out.
        max_backoff: Option<SpannedValue<ConfigDuration>>,
    }
}

section! {
    /// A review, then fixes and further reviews until one approves. A review says its verdict on a line of
    /// its own: `VERDICT: APPROVED` or `VERDICT: REQUEST_CHANGES`.
    pub(crate) struct ReviewLoopKeys ("loop") {
        /// The most fixes; that the last review still wants changes is no failure.
        max_cycles: BoundedInt<1, ITERATIONS_MAX>,
        /// What is asked when a review wants changes.
        on_request_changes: FixKeys,
        /// Who consents to a fix before it is made: the name of a gate, or a map.
        approval_gate: Option<SpannedValue<GateKeys>>,
        /// The file that consent is asked for.
        approval_artifact: Option<String>,
        /// What is said on the way.
        messages: LoopMessagesKeys = "{}",
    }
}

section! {
    /// What is asked when a review wants changes.
    pub(crate) struct FixKeys ("fix") {
        /// What the fix is asked: a template, or the path of a file with one.
        fix_prompt: SpannedValue<NonBlankText>,
        /// What a further review is asked: a template, or the path of a file with one.
        re_review_prompt: SpannedValue<NonBlankText>,
        /// The model of a fix; that of the phase if left out.
        fix_model: Option<SpannedValue<WorkflowTemplate>>,
        /// Of Last Light's models.
        fix_variant: Option<Json>,
    }
}

section! {
    /// A phase that is done again until a condition holds.
    pub(crate) struct GenericLoopKeys ("generic_loop") {
        /// The most passes; that the condition does not hold then is no failure.
        max_iterations: ContextNumberKeys<ITERATIONS_MAX>,
        /// An expression over `output`, what the pass said.
        until: Option<SpannedValue<WorkflowExpression>>,
        /// A command whose exit code 0 ends the loop; it is asked where `until` does not hold.
        until_bash: Option<SpannedValue<CommandTemplate>>,
        /// Whether somebody is asked before each further pass.
        interactive: bool = "false",
        /// What somebody is asked for.
        gate_kind: GateKind = "approve",
        /// What is asked; what the pass said if left out.
        gate_message: Option<SpannedValue<WorkflowTemplate>>,
        /// How long it is waited for an answer.
        gate_timeout: Option<ConfigDuration>,
        /// What counts as the answer then: `approve` or `reject`, or the words of a reply.
        gate_default: Option<SpannedValue<String>>,
        /// Where in `scratch` its state and the answers are.
        scratch_key: Option<SpannedValue<LocalName>>,
        /// Whether a pass is not told what those before it said.
        fresh_context: bool = "false",
        /// What becomes of a pass that ran out of turns. One that ends well and says nothing is a pass as
        /// any other.
        on_soft_failure: SoftFailureKeys = "{}",
    }
}

section! {
    /// What becomes of a pass that ran out of turns.
    pub(crate) struct SoftFailureKeys ("on_soft_failure") {
        /// How often it is tried again.
        retries: BoundedInt<0, RETRIES_MAX> = "0",
        /// What becomes of the phase then.
        then: SoftFailureOutcome = "fail",
    }
}

section! {
    /// A phase that is done once for each item of a list.
    pub(crate) struct ForeachMapKeys ("foreach") {
        /// The items: an expression that gives a list, or text with one in each line.
        items: ForeachItemsKeys,
        /// What an item is called in templates.
        name as "as": SpannedValue<LocalName> = "item",
        /// The most items at once, within what the workflow allows.
        max_parallel: Option<NonZeroU32>,
    }
}

section! {
    /// Somebody is asked.
    pub(crate) struct GateMapKeys ("gate") {
        /// What it is called; `workflows.gates` in the fleet file turns gates off by their names.
        name: LocalName,
        /// What is asked.
        message: Option<SpannedValue<WorkflowTemplate>>,
        /// How long it is waited for an answer; for ever if left out.
        timeout: Option<ConfigDuration>,
        /// What counts as the answer then: `approve` or `reject`.
        default: Option<SpannedValue<String>>,
    }
}

section! {
    /// What the output of a part means.
    pub(crate) struct OutputKeys ("on_output") {
        /// What it means that an output has the word BLOCKED.
        blocked as "contains_BLOCKED": Option<MarkerRuleKeys>,
        /// Nothing, in Last Light too.
        ready as "contains_READY": Option<Json>,
        /// Text that a good output has.
        requires_marker: Option<NonBlankText>,
    }
}

section! {
    /// What it means that an output has a marker.
    pub(crate) struct MarkerRuleKeys ("output rule") {
        /// What it does. Only `fail` does anything.
        action: SpannedValue<MarkerAction> = "fail",
        /// What is said then.
        message: Option<SpannedValue<WorkflowTemplate>>,
        /// It does not count with this label in the context's `labels`.
        unless_label: Option<String>,
        /// It does not count if this regular expression is found in the context's `title`, in capitals or
        /// not.
        unless_title_matches: Option<SpannedValue<String>>,
        /// What is said if it does not count.
        bypass_message: Option<SpannedValue<WorkflowTemplate>>,
    }
}

section! {
    /// What follows from success.
    pub(crate) struct OnSuccessKeys ("on_success") {
        /// What the run's current phase is called from then on.
        set_phase: Option<String>,
    }
}

section! {
    /// What is said on the way: templates.
    pub(crate) struct MessagesKeys ("messages") {
        /// When the phase starts.
        on_start: Option<SpannedValue<WorkflowTemplate>>,
        /// When it has succeeded.
        on_success: Option<SpannedValue<WorkflowTemplate>>,
        /// When it has failed.
        on_failure: Option<SpannedValue<WorkflowTemplate>>,
        /// When it is skipped.
        on_skipped_done: Option<SpannedValue<WorkflowTemplate>>,
        /// When its output was BLOCKED.
        on_blocked: Option<SpannedValue<WorkflowTemplate>>,
        /// When it was, and that does not count.
        on_blocked_bypassed: Option<SpannedValue<WorkflowTemplate>>,
    }
}

section! {
    /// What is said in a review loop: templates.
    pub(crate) struct LoopMessagesKeys ("loop messages") {
        /// When a cycle begins.
        on_cycle_start: Option<SpannedValue<WorkflowTemplate>>,
        /// When a review approves.
        on_approved: Option<SpannedValue<WorkflowTemplate>>,
        /// When a review wants changes.
        on_request_changes: Option<SpannedValue<WorkflowTemplate>>,
        /// When a review still wants changes after the last fix.
        on_max_cycles: Option<SpannedValue<WorkflowTemplate>>,
        /// When a fix begins.
        on_fix_start: Option<SpannedValue<WorkflowTemplate>>,
        /// When a fix has failed.
        on_fix_failed: Option<SpannedValue<WorkflowTemplate>>,
        /// When somebody is asked.
        on_pause_for_approval: Option<SpannedValue<WorkflowTemplate>>,
    }
}

section! {
    /// A number from the run's context.
    pub(crate) struct ContextPathKeys ("number from the context") {
        /// Where it is, such as `fix.limit`.
        from: NonBlankText,
        /// What it is where the context has none.
        default: NonZeroU32,
    }
}

section! {
    /// A file with `kind: cron`: a workflow that is started by the clock.
    pub(crate) struct CronKeys ("cron") {
        /// The word `cron`.
        kind: String,
        /// What it is called.
        name: SpannedValue<LocalName>,
        /// What it is for.
        description: Option<String>,
        /// When, as a cron expression.
        schedule: CronExpr,
        /// The time zone of the expression; the fleet's if left out.
        timezone: Option<ConfigTimeZone>,
        /// The workflow that is started.
        workflow: Option<SpannedValue<LocalName>>,
        /// What it is started with.
        context: SpannedValue<IndexMap<String, Json>> = "{}",
        /// Whether it is started.
        enabled: bool = "true",
        /// Code of Last Light instead of a workflow: nothing is started then.
        handler: Option<SpannedValue<String>>,
        /// When it is not started, in Last Light.
        condition: Option<Json>,
    }
}

impl ConfigValue for WorkflowTemplate {
    fn shape() -> ValueShape {
        ValueShape::Text
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<WorkflowTemplate> {
        let text = &read_scalar(node, reader, "text")?.text;
        WorkflowTemplate::parse(text)
            .map_err(|error| report_template_error(node, reader, &error))
            .ok()
    }
    fn show(&self) -> Json {
        json!(self.as_str())
    }
}

/// The template of a shell command.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CommandTemplate(pub(crate) WorkflowTemplate);

impl ConfigValue for CommandTemplate {
    fn shape() -> ValueShape {
        ValueShape::Text
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<CommandTemplate> {
        let NonBlankText(text) = NonBlankText::read(node, reader)?;
        let template = WorkflowTemplate::parse_shell(&text);
        template
            .map_err(|error| report_template_error(node, reader, &error))
            .ok()
            .map(CommandTemplate)
    }
    fn show(&self) -> Json {
        self.0.show()
    }
}

impl ConfigValue for WorkflowExpression {
    fn shape() -> ValueShape {
        ValueShape::Format {
            what: "an expression",
            example: "`output.contains('READY')`",
            pattern: None,
        }
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<WorkflowExpression> {
        let text = &read_scalar(node, reader, "an expression")?.text;
        let parsed = WorkflowExpression::parse(text);
        let refuse = |error: TemplateParseError| {
            let message = format!("{} is no expression: {error}", node.describe());
            let expected = "expected one such as `output.contains('READY')`";
            reader.error(node.at, message).expected(expected);
        };
        parsed.map_err(refuse).ok()
    }
    fn show(&self) -> Json {
        json!(self.to_string())
    }
}

fn report_template_error(node: &YamlNode, reader: &mut ConfigReader, error: &TemplateParseError) {
    let is_long =
        matches!(&node.kind, YamlKind::Scalar(scalar) if scalar.text.trim_end().contains('\n'));
    let message = match error.line.filter(|_| is_long) {
        Some(line) => format!("not a template: {error} (line {line} of this text)"),
        None => format!("not a template: {error}"),
    };
    let help = "text that is not meant for us goes between `{% raw %}` and `{% endraw %}`";
    reader.error(node.at, message).expected("expected a template").help(help);
}

/// The phases of a workflow, each whole or not there.
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

/// One thing, or a list of them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OneOrMore<T>(pub(crate) Vec<T>);

impl<T: ConfigValue> ConfigValue for OneOrMore<T> {
    fn shape() -> ValueShape {
        ValueShape::OneOf(vec![T::shape(), ValueShape::List(Box::new(T::shape()))])
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<OneOrMore<T>> {
        match &node.kind {
            YamlKind::List(_) => Vec::read(node, reader).map(OneOrMore),
            _ => T::read(node, reader).map(|one| OneOrMore(vec![one])),
        }
    }
    fn show(&self) -> Json {
        self.0.show()
    }
}

/// A number that is given, or found in the run's context.
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
            // The same limit as for a number that is written here.
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

/// The items of a list, as an expression.
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

/// What a phase is done for: its items, or a map that has more to say.
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

/// A gate: its name, or a map that has more to say.
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
