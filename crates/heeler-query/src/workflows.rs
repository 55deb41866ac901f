//! Workflows: what each asks for and does, and its last runs.

use heeler_model::config::{ConfigFault, ConfigFaults, FaultSeverity, LoadedConfig, did_you_mean};
use heeler_model::workflow::{
    ContextNumber, Gate, GateKind, LoadedWorkflow, Phase, PhaseRepeat, PhaseWork, TriggerRule,
    Workflow, WorkflowCron, WorkflowInput, WorkflowInputType,
};
use heeler_store::{
    CronOverride, StoreReader, WorkflowOverride, WorkflowRunFilter, WorkflowRunHead,
};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::workflow_runs::WorkflowRunSummary;
use crate::{FleetReader, QueryError, enum_schemas};

/// How many runs of a workflow are told with it.
pub const RECENT_RUNS_MAX: usize = 5;

/// All workflows of the fleet.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowPage {
    /// The workflows.
    pub workflows: Vec<WorkflowSummary>,
    /// How many there are.
    pub total: usize,
    /// The files that have faults.
    pub faulty: Vec<FaultyWorkflow>,
}

/// A file of the workflow folder that has faults.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FaultyWorkflow {
    /// What people know it by: its name, or that of its file.
    pub name: String,
    /// What it is: `workflow` or `cron`.
    pub kind: String,
    /// The file.
    pub file: String,
    /// What is wrong with it.
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
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// Its file.
    pub file: String,
    /// The names of its phases.
    pub phases: Vec<String>,
    /// Whether runs of it may start.
    pub enabled: bool,
    /// Who switched it.
    #[serde(rename = "override")]
    pub changed: Option<WorkflowOverrideSummary>,
    /// What starts it by the clock.
    pub crons: Vec<CronSummary>,
    /// Its newest run.
    pub last_run: Option<WorkflowRunSummary>,
    /// How many warnings there are about its file.
    pub warnings: usize,
}

/// Who switched a workflow on or off.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowOverrideSummary {
    /// Whether runs of it may start.
    pub enabled: bool,
    /// Who switched it.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

/// What starts a workflow by the clock.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CronSummary {
    /// Its name.
    pub name: String,
    /// The cron expression.
    pub schedule: String,
    /// Whether it starts the workflow.
    pub enabled: bool,
    /// The zone of its times.
    pub timezone: Option<String>,
    /// What the workflow is given.
    pub inputs: Value,
    /// Its file.
    pub file: String,
}

impl CronSummary {
    /// Returns a cron as its file has it, but for what people changed.
    fn of(cron: &WorkflowCron, changed: Option<&CronOverride>) -> CronSummary {
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

/// All that is known of a workflow.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowDetails {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// Its file.
    pub file: String,
    /// The agent that does its phases.
    pub agent: Option<String>,
    /// Whether runs of it may start.
    pub enabled: bool,
    /// Who switched it.
    #[serde(rename = "override")]
    pub changed: Option<WorkflowOverrideSummary>,
    /// How many of its parts go on at once.
    pub max_parallel: u32,
    /// What a run may cost.
    pub budget_usd: Option<f64>,
    /// What it asks for.
    pub inputs: Vec<WorkflowInputSummary>,
    /// What it does.
    pub phases: Vec<PhaseDescription>,
    /// What starts it by the clock.
    pub crons: Vec<CronSummary>,
    /// Its newest runs.
    pub runs: Vec<WorkflowRunSummary>,
    /// What may be wrong with its file.
    pub warnings: Vec<ConfigFaultSummary>,
}

/// What a workflow asks for.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowInputSummary {
    /// Its name.
    pub name: String,
    /// What it is.
    #[serde(rename = "type")]
    #[schema(value_type = enum_schemas::InputType)]
    pub kind: WorkflowInputType,
    /// What it is for.
    pub description: Option<String>,
    /// Whether it must be given.
    pub required: bool,
    /// What it is if it is not given.
    pub default: Option<Value>,
    /// What it may be, if not anything.
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

/// What a phase does.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhaseDescription {
    /// Its name.
    pub name: String,
    /// What people are shown instead.
    pub label: Option<String>,
    /// What does it: `agent`, `bash`, `script` or `context`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The agent that does it.
    pub agent: Option<String>,
    /// The phases that it waits for.
    pub depends_on: Vec<String>,
    /// When it begins, by what became of those.
    #[schema(value_type = enum_schemas::TriggerRule)]
    pub trigger_rule: TriggerRule,
    /// When it is left out.
    pub skip_if: Vec<String>,
    /// How often it is done, if not once.
    pub repeat: Option<String>,
    /// Where somebody is asked.
    pub gate: Option<GateSummary>,
    /// How often it is tried again.
    pub retries: u32,
    /// What its output is called.
    pub output_var: Option<String>,
}

/// Where somebody is asked.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GateSummary {
    /// The gate's name.
    pub name: String,
    /// What it asks for.
    #[schema(value_type = enum_schemas::GateKind)]
    pub kind: GateKind,
}

impl PhaseDescription {
    pub(crate) fn of(workflow: &Workflow, phase: &Phase) -> PhaseDescription {
        let agent = phase.agent.as_ref().or(workflow.agent.as_ref());
        let before = phase.depends_on.iter().map(|at| workflow.phases[*at].name.to_string());
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

/// Something that is wrong with a file of the config.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigFaultSummary {
    /// The file.
    pub file: String,
    /// The line, from one.
    pub line: usize,
    /// The column, from one.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// What was expected.
    pub expected: Option<String>,
    /// What to do about it.
    pub help: Option<String>,
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

/// Returns those faults that are so bad.
pub fn faults_with_severity(
    faults: &ConfigFaults,
    severity: FaultSeverity,
) -> Vec<ConfigFaultSummary> {
    let list = faults.list.iter().filter(|fault| fault.severity == severity);
    list.map(ConfigFaultSummary::from).collect()
}

/// Returns the word for what does a phase.
pub fn phase_kind(phase: &Phase) -> &'static str {
    match phase.work {
        PhaseWork::Context => "context",
        PhaseWork::Agent { .. } => "agent",
        PhaseWork::Bash { .. } => "bash",
        PhaseWork::Script { .. } => "script",
    }
}

/// Returns where somebody is asked in a phase.
pub fn phase_gates(phase: &Phase) -> impl Iterator<Item = &Gate> {
    let inner = match &phase.repeat {
        PhaseRepeat::Review(review) => review.gate.as_ref(),
        PhaseRepeat::Until(until) => until.gate.as_ref(),
        PhaseRepeat::Once | PhaseRepeat::Foreach(_) => None,
    };
    inner.into_iter().chain(phase.gate.as_ref())
}

fn describe_figure(figure: &ContextNumber) -> String {
    match figure {
        ContextNumber::Fixed(number) => number.to_string(),
        ContextNumber::Context { path, default } => format!("`{path}` or {default}"),
    }
}

/// Says how often a phase is done; nothing if once.
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

/// What the state knows of a workflow.
#[derive(Debug, Default)]
pub struct StoredWorkflowState {
    /// What a person set it to.
    pub workflow_override: Option<WorkflowOverride>,
    /// What people changed about crons.
    pub cron_overrides: Vec<CronOverride>,
    /// Its newest runs.
    pub runs: Vec<WorkflowRunHead>,
}

impl StoredWorkflowState {
    /// Reads it, with so many runs.
    pub fn read(
        reader: &StoreReader,
        name: &str,
        runs: usize,
    ) -> Result<StoredWorkflowState, QueryError> {
        let filter =
            WorkflowRunFilter { workflow: Some(name.to_owned()), ..WorkflowRunFilter::default() };
        Ok(StoredWorkflowState {
            workflow_override: reader.workflow_override(name)?,
            cron_overrides: reader.cron_overrides()?,
            runs: reader.workflow_runs(&filter, None, runs)?,
        })
    }

    /// Says whether runs of it may start.
    fn is_enabled(&self) -> bool {
        self.workflow_override.as_ref().is_none_or(|changed| changed.enabled)
    }

    /// Returns who switched it.
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
    let own = loaded.crons.iter().filter(|cron| cron.workflow == workflow.name);
    let change = |cron: &WorkflowCron| changed.iter().find(|row| row.name == cron.name.as_str());
    own.map(|cron| CronSummary::of(cron, change(cron))).collect()
}

impl WorkflowSummary {
    /// Returns what a list shows of a workflow.
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
    /// Returns all that is known of a workflow.
    pub fn of(
        all: &LoadedConfig,
        loaded: &LoadedWorkflow,
        known: &StoredWorkflowState,
    ) -> WorkflowDetails {
        let workflow = &loaded.workflow;
        let inputs =
            workflow.inputs.iter().map(|(name, input)| WorkflowInputSummary::of(name, input));
        let phases = workflow.phases.iter().map(|phase| PhaseDescription::of(workflow, phase));
        WorkflowDetails {
            name: workflow.name.to_string(),
            description: workflow.description.clone(),
            file: loaded.root.to_string(),
            agent: workflow.agent.as_ref().map(ToString::to_string),
            enabled: known.is_enabled(),
            changed: known.override_summary(),
            max_parallel: workflow.max_parallel.get(),
            budget_usd: workflow.budget.map(|budget| budget.micros() as f64 / 1e6),
            inputs: inputs.collect(),
            phases: phases.collect(),
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
            let known = StoredWorkflowState::read(&reader, workflow.workflow.name.as_str(), 1)?;
            workflows.push(WorkflowSummary::of(&loaded, workflow, &known));
        }
        let faulty = FaultyWorkflow::list_all(&loaded);
        Ok(WorkflowPage { total: workflows.len(), workflows, faulty })
    }

    /// Returns a workflow, by its name.
    pub fn workflow(&self, name: &str) -> Result<WorkflowDetails, QueryError> {
        let loaded = self.context().config()?;
        let found = loaded.workflow(name).ok_or_else(|| unknown_workflow(&loaded, name))?;
        let known = StoredWorkflowState::read(&*self.reader()?, name, RECENT_RUNS_MAX)?;
        Ok(WorkflowDetails::of(&loaded, found, &known))
    }
}

fn unknown_workflow(all: &LoadedConfig, name: &str) -> QueryError {
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
