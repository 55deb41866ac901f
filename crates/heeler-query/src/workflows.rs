//! Workflows: their inputs, phases, state and most recent runs.

use heeler_config::workflow::{
    ContextNumber, Gate, GateKind, LoadedWorkflow, Phase, PhaseRepeat, PhaseWork, TriggerRule,
    Workflow, WorkflowCron, WorkflowInput, WorkflowInputType,
};
use heeler_config::{ConfigFault, ConfigFaults, FaultSeverity, LoadedConfig};
use heeler_model::did_you_mean;
use heeler_store::{
    CronOverride, StoreReader, WorkflowOverride, WorkflowRunFilter, WorkflowRunHead,
};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::workflow_runs::WorkflowRunSummary;
use crate::{FleetReader, QueryError, enum_schemas};

/// Maximum number of runs reported per workflow.
pub const RECENT_RUNS_MAX: usize = 5;

/// All workflows of the fleet.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowPage {
    /// Workflows.
    pub workflows: Vec<WorkflowSummary>,
    /// Number of workflows.
    pub total: usize,
    /// Files with faults.
    pub faulty: Vec<FaultyWorkflow>,
}

/// A file of the workflow directory with faults.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FaultyWorkflow {
    /// Name of the workflow or cron, or of the file.
    pub name: String,
    /// Kind of file: `workflow` or `cron`.
    pub kind: String,
    /// Path of the file.
    pub file: String,
    /// Faults.
    pub errors: Vec<ConfigFaultSummary>,
}

impl FaultyWorkflow {
    pub(crate) fn list_all(loaded: &LoadedConfig) -> Vec<FaultyWorkflow> {
        let each = loaded.faulty_files.iter().map(|it| FaultyWorkflow {
            name: it.label().to_owned(),
            kind: if it.is_cron { "cron" } else { "workflow" }.to_owned(),
            file: it.file.to_string(),
            errors: faults_with_severity(&it.faults, FaultSeverity::Error),
        });
        each.collect()
    }
}

/// A workflow in a list.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowSummary {
    /// Name of the workflow.
    pub name: String,
    /// Purpose of the workflow.
    pub description: Option<String>,
    /// Path of the file.
    pub file: String,
    /// Names of the phases.
    pub phases: Vec<String>,
    /// False if no runs may start.
    pub enabled: bool,
    /// Change made by a person.
    #[serde(rename = "override")]
    pub changed: Option<WorkflowOverrideSummary>,
    /// Crons that start the workflow.
    pub crons: Vec<CronSummary>,
    /// Newest run.
    pub last_run: Option<WorkflowRunSummary>,
    /// Number of warnings about its file.
    pub warnings: usize,
}

/// Enabling or disabling of a workflow by a person.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowOverrideSummary {
    /// False if no runs may start.
    pub enabled: bool,
    /// Person who made the change.
    pub by: String,
    /// Time of the change.
    pub at: Timestamp,
}

/// A cron that starts a workflow.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CronSummary {
    /// Name of the cron.
    pub name: String,
    /// Cron expression.
    pub schedule: String,
    /// False if the cron is disabled.
    pub enabled: bool,
    /// Time zone of the expression.
    pub timezone: Option<String>,
    /// Inputs of the workflow.
    pub inputs: Value,
    /// Path of the file.
    pub file: String,
}

impl CronSummary {
    /// Creates the summary of a cron file with the changes made by people.
    fn of(cron: &WorkflowCron, changed: Option<&CronOverride>) -> CronSummary {
        // A change by a person takes precedence over the file, as in the scheduler.
        let set = changed.and_then(|changed| changed.schedule.clone());
        CronSummary {
            name: cron.name.to_string(),
            schedule: set.unwrap_or_else(|| cron.schedule.as_str().to_owned()),
            enabled: changed.map_or(cron.enabled, |changed| changed.enabled),
            timezone: cron.timezone.as_ref().map(|zone| zone.name().to_owned()),
            inputs: Value::Object(cron.context.clone()),
            file: cron.file.to_string(),
        }
    }
}

/// All details of a workflow.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowDetails {
    /// Name of the workflow.
    pub name: String,
    /// Purpose of the workflow.
    pub description: Option<String>,
    /// Path of the file.
    pub file: String,
    /// Agent that executes its phases.
    pub agent: Option<String>,
    /// False if no runs may start.
    pub enabled: bool,
    /// Change made by a person.
    #[serde(rename = "override")]
    pub changed: Option<WorkflowOverrideSummary>,
    /// Maximum number of parts that run concurrently.
    pub max_parallel: u32,
    /// Maximum cost of a run, in US dollars.
    pub budget_usd: Option<f64>,
    /// Inputs.
    pub inputs: Vec<WorkflowInputSummary>,
    /// Phases.
    pub phases: Vec<PhaseDescription>,
    /// Crons that start the workflow.
    pub crons: Vec<CronSummary>,
    /// Newest runs.
    pub runs: Vec<WorkflowRunSummary>,
    /// Warnings about its file.
    pub warnings: Vec<ConfigFaultSummary>,
}

/// An input of a workflow.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowInputSummary {
    /// Name of the input.
    pub name: String,
    /// Type of the input.
    #[serde(rename = "type")]
    #[schema(value_type = enum_schemas::InputType)]
    pub kind: WorkflowInputType,
    /// Purpose of the input.
    pub description: Option<String>,
    /// True if the input is required.
    pub required: bool,
    /// Default value.
    pub default: Option<Value>,
    /// Accepted values; empty if any value is accepted.
    pub options: Vec<Value>,
}

impl WorkflowInputSummary {
    fn of(name: &str, input: &WorkflowInput) -> WorkflowInputSummary {
        WorkflowInputSummary {
            name: name.to_owned(),
            kind: input.kind,
            description: input.description.clone(),
            required: input.default.is_none(),
            default: input.default.clone(),
            options: input.options.clone(),
        }
    }
}

/// Definition of a phase.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhaseDescription {
    /// Name of the phase.
    pub name: String,
    /// Display name.
    pub label: Option<String>,
    /// Kind of phase: `agent`, `bash`, `script` or `context`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Agent that executes it.
    pub agent: Option<String>,
    /// Phases it depends on.
    pub depends_on: Vec<String>,
    /// Condition on the outcome of those phases under which it starts.
    #[schema(value_type = enum_schemas::TriggerRule)]
    pub trigger_rule: TriggerRule,
    /// Conditions under which it is skipped.
    pub skip_if: Vec<String>,
    /// Description of its repetition, if it is executed more than once.
    pub repeat: Option<String>,
    /// Gate at which it waits for an approval.
    pub gate: Option<GateSummary>,
    /// Maximum number of retries.
    pub retries: u32,
    /// Variable that holds its output.
    pub output_var: Option<String>,
}

/// A gate.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GateSummary {
    /// Name of the gate.
    pub name: String,
    /// Kind of approval that it requires.
    #[schema(value_type = enum_schemas::GateKind)]
    pub kind: GateKind,
}

impl PhaseDescription {
    pub(crate) fn of(workflow: &Workflow, phase: &Phase) -> PhaseDescription {
        // A phase without an agent of its own uses the workflow's.
        let agent = phase.agent.as_ref().or(workflow.agent.as_ref());
        let before = phase.depends_on.iter().map(|at| workflow.phases[*at].name.to_string());
        // The first gate is shown: it is the one at which the phase waits first.
        let gate = phase_gates(phase).next();
        PhaseDescription {
            name: phase.name.to_string(),
            label: phase.label.clone(),
            kind: phase_kind(phase).to_owned(),
            agent: agent.map(ToString::to_string),
            depends_on: before.collect(),
            trigger_rule: phase.trigger_rule,
            skip_if: phase.skip_if.iter().map(ToString::to_string).collect(),
            repeat: describe_repeat(&phase.repeat),
            gate: gate.map(|gate| GateSummary { name: gate.name.to_string(), kind: gate.kind }),
            retries: phase.retry.max,
            output_var: phase.output_var.clone(),
        }
    }
}

/// A fault of a config file.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigFaultSummary {
    /// Path of the file.
    pub file: String,
    /// Line number, counted from one.
    pub line: usize,
    /// Column, counted from one.
    pub column: usize,
    /// Description of the fault.
    pub message: String,
    /// Expected value.
    pub expected: Option<String>,
    /// Suggested correction.
    pub help: Option<String>,
}

/// Describes the phases of a workflow.
pub fn describe_phases(workflow: &Workflow) -> Vec<PhaseDescription> {
    workflow.phases.iter().map(|phase| PhaseDescription::of(workflow, phase)).collect()
}

impl From<&ConfigFault> for ConfigFaultSummary {
    fn from(fault: &ConfigFault) -> ConfigFaultSummary {
        ConfigFaultSummary {
            file: fault.path().to_string(),
            line: fault.line(),
            column: fault.column(),
            message: fault.message.clone(),
            expected: fault.expected.clone(),
            help: fault.help.clone(),
        }
    }
}

/// Returns the faults of this severity.
pub fn faults_with_severity(
    faults: &ConfigFaults,
    severity: FaultSeverity,
) -> Vec<ConfigFaultSummary> {
    let list = faults.list.iter().filter(|fault| fault.severity == severity);
    list.map(ConfigFaultSummary::from).collect()
}

/// Returns the name of the kind of a phase.
pub fn phase_kind(phase: &Phase) -> &'static str {
    match phase.work {
        PhaseWork::Context => "context",
        PhaseWork::Agent { .. } => "agent",
        PhaseWork::Bash { .. } => "bash",
        PhaseWork::Script { .. } => "script",
        PhaseWork::PostReview => "post-review",
    }
}

/// Returns the gates of a phase.
pub fn phase_gates(phase: &Phase) -> impl Iterator<Item = &Gate> {
    let inner = match &phase.repeat {
        PhaseRepeat::Review(review) => review.gate.as_ref(),
        PhaseRepeat::Until(until) => until.gate.as_ref(),
        PhaseRepeat::Once | PhaseRepeat::Foreach(_) => None,
    };
    // The gate of a repetition comes before the gate of the whole phase.
    inner.into_iter().chain(phase.gate.as_ref())
}

fn describe_figure(figure: &ContextNumber) -> String {
    match figure {
        ContextNumber::Fixed(number) => number.to_string(),
        ContextNumber::Context { path, default } => format!("`{path}` or {default}"),
    }
}

/// Describes the repetition of a phase; `None` if it is executed once.
pub fn describe_repeat(repeat: &PhaseRepeat) -> Option<String> {
    match repeat {
        PhaseRepeat::Once => None,
        PhaseRepeat::Review(review) => {
            let fixes = if review.max_cycles == 1 { "fix" } else { "fixes" };
            Some(format!("review, with at most {} {fixes}", review.max_cycles))
        }
        PhaseRepeat::Until(until) => {
            let what = match (&until.until, &until.until_bash) {
                (Some(until), _) => format!("until {until}"),
                (None, Some(command)) => format!("until `{}` succeeds", command.as_str().trim()),
                (None, None) => "again and again".to_owned(),
            };
            Some(format!("{what}, at most {} times", describe_figure(&until.max_iterations)))
        }
        PhaseRepeat::Foreach(each) => Some(format!("for each {} of {}", each.name, each.items)),
    }
}

/// Stored state of a workflow.
#[derive(Debug, Default)]
pub struct StoredWorkflowState {
    /// Enabling or disabling by a person.
    pub workflow_override: Option<WorkflowOverride>,
    /// Changes made by people to crons.
    pub cron_overrides: Vec<CronOverride>,
    /// Newest runs.
    pub runs: Vec<WorkflowRunHead>,
}

impl StoredWorkflowState {
    /// Reads the stored state, with a maximum number of runs.
    pub fn read(
        reader: &StoreReader,
        name: &str,
        runs: usize,
    ) -> Result<StoredWorkflowState, QueryError> {
        let filter =
            WorkflowRunFilter { workflow: Some(name.to_owned()), ..WorkflowRunFilter::default() };
        Ok(StoredWorkflowState {
            workflow_override: reader.workflow_override(name)?,
            // All of them, because few crons are ever changed.
            cron_overrides: reader.cron_overrides()?,
            runs: reader.workflow_runs(&filter, None, runs)?,
        })
    }

    /// Returns true if runs may start.
    fn is_enabled(&self) -> bool {
        self.workflow_override.as_ref().is_none_or(|changed| changed.enabled)
    }

    /// Returns the change made by a person.
    pub fn override_summary(&self) -> Option<WorkflowOverrideSummary> {
        let WorkflowOverride { enabled, by, at, .. } = self.workflow_override.clone()?;
        Some(WorkflowOverrideSummary { enabled, by, at })
    }

    fn run_summaries(&self) -> Vec<WorkflowRunSummary> {
        self.runs.iter().map(WorkflowRunSummary::from).collect()
    }
}

fn cron_summaries(
    loaded: &LoadedConfig,
    workflow: &Workflow,
    changed: &[CronOverride],
) -> Vec<CronSummary> {
    let crons = loaded.crons.iter().filter(|cron| cron.workflow == workflow.name);
    let change = |cron: &WorkflowCron| changed.iter().find(|row| row.name == cron.name.as_str());
    crons.map(|cron| CronSummary::of(cron, change(cron))).collect()
}

impl WorkflowSummary {
    /// Creates the list entry of a workflow.
    pub fn of(
        all: &LoadedConfig,
        loaded: &LoadedWorkflow,
        known: &StoredWorkflowState,
    ) -> WorkflowSummary {
        let workflow = &loaded.workflow;
        WorkflowSummary {
            name: workflow.name.to_string(),
            description: workflow.description.clone(),
            file: loaded.root.to_string(),
            phases: workflow.phases.iter().map(|phase| phase.name.to_string()).collect(),
            enabled: known.is_enabled(),
            changed: known.override_summary(),
            crons: cron_summaries(all, workflow, &known.cron_overrides),
            last_run: known.run_summaries().into_iter().next(),
            warnings: loaded.warnings.list.len(),
        }
    }
}

impl WorkflowDetails {
    /// Creates the details of a workflow.
    pub fn of(
        all: &LoadedConfig,
        loaded: &LoadedWorkflow,
        known: &StoredWorkflowState,
    ) -> WorkflowDetails {
        let workflow = &loaded.workflow;
        let inputs =
            workflow.inputs.iter().map(|(name, input)| WorkflowInputSummary::of(name, input));
        WorkflowDetails {
            name: workflow.name.to_string(),
            description: workflow.description.clone(),
            file: loaded.root.to_string(),
            agent: workflow.agent.as_ref().map(ToString::to_string),
            enabled: known.is_enabled(),
            changed: known.override_summary(),
            max_parallel: workflow.max_parallel.get(),
            // Money is counted in millionths, so that sums are exact.
            budget_usd: workflow.budget.map(|budget| budget.micros() as f64 / 1e6),
            inputs: inputs.collect(),
            phases: describe_phases(workflow),
            crons: cron_summaries(all, workflow, &known.cron_overrides),
            runs: known.run_summaries(),
            warnings: faults_with_severity(&loaded.warnings, FaultSeverity::Warning),
        }
    }
}

impl FleetReader {
    /// Lists the workflows of the fleet.
    pub fn workflows(&self) -> Result<WorkflowPage, QueryError> {
        let loaded = self.context().config()?;
        let reader = self.reader()?;
        let mut workflows = Vec::with_capacity(loaded.workflows.len());
        for workflow in &loaded.workflows {
            // A list shows only the newest run.
            let known = StoredWorkflowState::read(&reader, workflow.workflow.name.as_str(), 1)?;
            workflows.push(WorkflowSummary::of(&loaded, workflow, &known));
        }
        let faulty = FaultyWorkflow::list_all(&loaded);
        Ok(WorkflowPage { total: workflows.len(), workflows, faulty })
    }

    /// Returns a workflow by name.
    pub fn workflow(&self, name: &str) -> Result<WorkflowDetails, QueryError> {
        let loaded = self.context().config()?;
        let found = loaded.workflow(name).ok_or_else(|| unknown_workflow(&loaded, name))?;
        let known = StoredWorkflowState::read(&*self.reader()?, name, RECENT_RUNS_MAX)?;
        Ok(WorkflowDetails::of(&loaded, found, &known))
    }
}

fn unknown_workflow(all: &LoadedConfig, name: &str) -> QueryError {
    // A file with faults is not an unknown workflow, and the person needs its faults.
    if let Some(faulty) = all.faulty_workflow(name) {
        return QueryError::Refused {
            message: format!("the workflow `{name}` has faults"),
            hint: Some(format!("heeler workflow validate {}", faulty.label())),
        };
    }
    let names = all.workflows.iter().map(|it| it.workflow.name.as_str());
    let message = format!("there is no workflow `{name}`");
    let near = did_you_mean(name, names.clone());
    let names: Vec<&str> = names.collect();
    let hint = match (near, names.is_empty()) {
        (Some(near), _) => Some(format!("did you mean `{near}`?")),
        (None, false) => Some(format!("there is {}", names.join(", "))),
        (None, true) => None,
    };
    QueryError::NotFound { message, hint }
}
