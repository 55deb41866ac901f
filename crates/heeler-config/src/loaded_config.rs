//! The loaded config: fleets, agents, workflows and cron files.
//!
//! Start at [`LoadedConfig`].

use std::sync::Arc;

use camino::Utf8PathBuf;
use serde_json::{Value as Json, json};

use crate::agent::AgentConfig;
use crate::fault::{ConfigFault, ConfigFaults};
use crate::fleet::FleetConfig;
use crate::schedule::{
    MissedRunPolicy, OverlapPolicy, ScheduleConfig, ScheduleTrigger, ScheduledWorkflow,
};
use crate::text::did_you_mean;
use crate::webhook::WebhookRules;
use crate::workflow::{FaultyWorkflowFile, LoadedWorkflow, Workflow, WorkflowCron, WorkflowFolder};
use crate::{AgentName, LocalName};

/// A completely loaded, valid config.
#[derive(Debug, Clone)]
pub struct LoadedConfig {
    /// The root fleet, then the nested fleets, depth first.
    pub fleets: Vec<FleetConfig>,
    /// Agents of all fleets; those of a fleet precede those of its nested fleets.
    pub agents: Vec<AgentConfig>,
    /// Workflows; empty until [`LoadedConfig::add_workflows`] is called.
    pub workflows: Vec<Arc<LoadedWorkflow>>,
    /// Cron files, which start workflows at given times.
    pub crons: Vec<WorkflowCron>,
    /// Files of the workflow directory that are ignored because they have a fault.
    pub faulty_files: Vec<FaultyWorkflowFile>,
    /// Workflows that schedules name.
    pub(crate) workflow_references: Vec<WorkflowReference>,
    /// All files that were read.
    pub files: Vec<Utf8PathBuf>,
    pub warnings: ConfigFaults,
}

/// Workflow that a schedule names.
#[derive(Debug, Clone)]
pub(crate) struct WorkflowReference {
    pub(crate) agent: AgentName,
    pub(crate) schedule: String,
    /// Fault if there is no such workflow.
    pub(crate) fault: ConfigFault,
}

/// Suffix of a cron's name if its agent already has a schedule of that name.
pub const CRON_SUFFIX: &str = "-workflow";

impl LoadedConfig {
    /// Adds the content of the fleet's workflow directory.
    ///
    /// A cron becomes a schedule of the agent that executes its workflow. If that agent already has
    /// a schedule of the same name, the cron is named `NAME-workflow`.
    pub fn add_workflows(&mut self, found: WorkflowFolder) {
        self.workflows = found.workflows;
        let webhook_workflows = self.webhook_workflows();
        for cron in &found.crons {
            let named = |it: &&Arc<LoadedWorkflow>| it.workflow.name == cron.workflow;
            let workflow = self.workflows.iter().find(named).map(|it| &it.workflow);
            // The schedule needs one agent, for its queue and its budget.
            let agent = workflow.and_then(|workflow| {
                let own = workflow.phases.iter().find_map(|phase| phase.agent.as_ref());
                workflow.agent.as_ref().or(own)
            });
            let agent = self.agents.iter_mut().find(|it| Some(&it.name) == agent);
            // Without an agent the workflow has no work, and nothing to start.
            let Some(agent) = agent else { continue };
            let mut schedule = cron_schedule(cron, agent);
            schedule.enabled &=
                !(cron.unless_webhooks && webhook_workflows.contains(&cron.workflow));
            // The agent's own schedule keeps its name, because records refer to it.
            if agent.schedules.iter().any(|it| it.name == schedule.name) {
                schedule.name.push_str(CRON_SUFFIX);
            }
            agent.schedules.push(schedule);
        }
        self.crons = found.crons;
        self.faulty_files = found.faulty_files;
        let wrong = self.workflow_references.iter().filter_map(|it| self.check_reference(it));
        let wrong: Vec<FaultyWorkflowFile> = wrong.collect();
        self.faulty_files.extend(wrong);
        self.files.extend(found.files);
        let warnings = std::mem::take(&mut self.warnings);
        self.warnings = ConfigFaults::merge([warnings, found.warnings]);
    }

    /// Returns the workflows that events of GitHub start.
    fn webhook_workflows(&self) -> Vec<LocalName> {
        let webhooks = self.fleets.first().and_then(|fleet| fleet.webhooks.as_ref());
        if webhooks.is_some_and(|webhooks| !webhooks.enabled) {
            return Vec::new();
        }
        let schedules = self.agents.iter().flat_map(|agent| &agent.schedules);
        let started = schedules.filter(|schedule| {
            matches!(&schedule.trigger, ScheduleTrigger::Webhook(rules) if !rules.events.is_empty())
        });
        started.filter_map(|it| it.workflow.as_ref().map(|start| start.workflow.clone())).collect()
    }

    /// Returns the fault of a schedule that names no workflow, or one that does not accept its
    /// inputs.
    fn check_reference(&self, reference: &WorkflowReference) -> Option<FaultyWorkflowFile> {
        let agent = self.agents.iter().find(|agent| agent.name == reference.agent)?;
        let schedule = agent.schedules.iter().find(|it| it.name == reference.schedule)?;
        let named = &schedule.workflow.as_ref()?.workflow;
        let ScheduleTrigger::Webhook(rules) = &schedule.trigger else { return None };
        let mut fault = reference.fault.clone();
        match self.workflows.iter().find(|it| it.workflow.name == *named) {
            None if self.faulty_workflow(named.as_str()).is_some() => {
                fault.message = format!("the workflow `{named}` has errors");
            }
            None => {
                let names = self.workflows.iter().map(|it| it.workflow.name.as_str());
                if let Some(near) = did_you_mean(named.as_str(), names) {
                    fault.help(format!("did you mean `{near}`?"));
                }
            }
            Some(found) => fault.message = input_mismatch(&found.workflow, rules)?,
        }
        Some(FaultyWorkflowFile {
            file: fault.path().to_owned(),
            name: Some(reference.schedule.clone()),
            is_cron: true,
            faults: ConfigFaults { list: vec![fault], dropped: 0 },
        })
    }

    /// Adds the values of the `.env` file to the secrets of all agents, except those that cannot be
    /// told from ordinary text.
    pub fn add_dotenv_secrets(&mut self, pairs: &[(String, String)]) {
        let Some(known) = self.agents.first().map(|agent| &agent.fleet_secrets) else { return };
        let secrets = known.with_dotenv(pairs);
        self.agents.iter_mut().for_each(|agent| agent.fleet_secrets = secrets.clone());
    }

    /// Returns the config unless a file of the workflow directory has a fault.
    pub fn require_no_faults(self) -> Result<LoadedConfig, ConfigFaults> {
        match self.faulty_files.is_empty() {
            true => Ok(self),
            false => Err(FaultyWorkflowFile::merge_faults(self.faulty_files, self.warnings)),
        }
    }

    /// Returns `{fleet, agents: […]}`. `fleet` holds the keys of the fleet file; each agent holds
    /// its merged keys, its `qualified_name` and the `file` that defines it.
    pub fn show(&self) -> Json {
        let fleet = self.fleets.first().map_or(Json::Null, |fleet| fleet.config_json.clone());
        let agents: Json = self.agents.iter().map(|agent| agent.config_json.json()).collect();
        json!({ "fleet": fleet, "agents": agents })
    }
}

/// Returns the reason for which a workflow does not accept the inputs of a webhook.
fn input_mismatch(workflow: &Workflow, rules: &WebhookRules) -> Option<String> {
    let (name, given) = (&workflow.name, rules.input_names());
    // A workflow without declared inputs accepts any.
    if workflow.inputs.is_empty() {
        return None;
    }
    let unknown = rules.fields.keys().find(|field| !workflow.inputs.contains_key(*field));
    if let Some(field) = unknown {
        return Some(format!("the workflow `{name}` has no input `{field}`, which `fields` names"));
    }
    let mut required = workflow.inputs.iter().filter(|(_, input)| input.default.is_none());
    let missing = required.find(|(input, _)| !given.contains(&input.as_str()));
    missing.map(|(input, _)| {
        format!("the workflow `{name}` needs the input `{input}`; name its value in `fields`")
    })
}

/// Creates the schedule of a cron file. It belongs to the agent that executes the workflow.
fn cron_schedule(cron: &WorkflowCron, agent: &AgentConfig) -> ScheduleConfig {
    ScheduleConfig {
        name: cron.name.to_string(),
        trigger: ScheduleTrigger::Cron { expr: cron.schedule.clone(), zone: cron.timezone.clone() },
        prompt: None,
        enabled: cron.enabled,
        session: agent.session.clone(),
        timeout: None,
        jitter: None,
        missed: MissedRunPolicy::RunOnce,
        // A workflow that still runs for the same subject is not started again.
        overlap: OverlapPolicy::Skip,
        output_to_file: false,
        work_source: None,
        priority: agent.priority,
        workflow: Some(ScheduledWorkflow {
            workflow: cron.workflow.clone(),
            inputs: cron.context.clone(),
            fan_out: cron.fan_out.clone(),
        }),
    }
}
