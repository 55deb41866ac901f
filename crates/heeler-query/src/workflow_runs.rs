//! Workflow runs: lists and details.

use heeler_config::RepoName;
use heeler_config::workflow::Workflow;
use heeler_model::JobStatus;
use heeler_model::workflow::{PartDecision, WorkflowRunStatus};
use heeler_store::{
    StoreReader, WorkflowEventRecord, WorkflowPartRow, WorkflowRunCursor, WorkflowRunFilter,
    WorkflowRunHead, WorkflowRunRow,
};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::agents::micros_to_usd;
use crate::approvals::ApprovalDetails;
use crate::progress::{
    WorkflowPhaseProgress, WorkflowRunProgress, load_phase_outputs, phase_status_name,
};
use crate::workflows::PhaseDescription;
use crate::{FleetReader, QueryError, enum_schemas};

/// Maximum number of events reported per workflow run.
pub const EVENTS_MAX: usize = 10_000;

/// Filter and page of a workflow run list.
#[derive(Debug, Clone, Default)]
pub struct WorkflowRunListQuery {
    /// Only runs of this workflow.
    pub workflow: Option<String>,
    /// Only runs with this status.
    pub status: Option<WorkflowRunStatus>,
    /// Only runs started since this time.
    pub since: Option<Timestamp>,
    /// Only runs about this repository: `owner/name`.
    pub repo: Option<String>,
    /// Only runs with this trigger ID, such as `owner/name#7`.
    pub trigger_id: Option<String>,
    /// Only runs older than this ID.
    pub before: Option<String>,
    /// Maximum number of entries.
    pub limit: usize,
}

/// A page of workflow runs, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowRunPage {
    /// Workflow runs.
    pub runs: Vec<WorkflowRunSummary>,
    /// Number of workflow runs on all pages.
    pub total: i64,
    /// Maximum number of entries per page.
    pub limit: usize,
    /// Value of `before` for the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A workflow run.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowRunSummary {
    /// Workflow run ID.
    pub id: String,
    /// Name of the workflow.
    pub workflow: String,
    /// Status.
    #[schema(value_type = enum_schemas::RunStatus)]
    pub status: WorkflowRunStatus,
    /// Current phase.
    pub current_phase: String,
    /// Source of the trigger.
    pub trigger_id: String,
    /// Type of trigger.
    pub trigger_type: Option<String>,
    /// Start time.
    pub started_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
    /// End time.
    pub finished_at: Option<Timestamp>,
    /// Duration in seconds.
    pub duration_seconds: Option<f64>,
    /// Cost in US dollars.
    pub cost_usd: f64,
    /// Number of times it was resumed.
    pub restart_count: i64,
    /// Error.
    pub error: Option<String>,
    /// Program that created the record, if not Heeler.
    pub origin: Option<String>,
    /// Mode of execution, if the run does not use real agents.
    pub mode: Option<String>,
    /// Repository that the run is about: `owner/name`.
    pub repo: Option<String>,
    /// Issue or pull request that the run is about.
    pub issue_number: Option<i64>,
}

impl From<&WorkflowRunHead> for WorkflowRunSummary {
    fn from(head: &WorkflowRunHead) -> WorkflowRunSummary {
        let took = head.finished_at.map(|at| at.duration_since(head.started_at).as_secs_f64());
        WorkflowRunSummary {
            id: head.id.to_string(),
            workflow: head.workflow.clone(),
            status: head.status,
            current_phase: head.current_phase.clone(),
            trigger_id: head.trigger_id.clone(),
            trigger_type: head.trigger_type.clone(),
            started_at: head.started_at,
            updated_at: head.updated_at,
            finished_at: head.finished_at,
            duration_seconds: took,
            cost_usd: micros_to_usd(head.spent),
            restart_count: head.restart_count,
            error: head.error.clone(),
            origin: head.origin.clone(),
            mode: head.mode.clone(),
            repo: full_repo_name(head),
            issue_number: head.issue_number,
        }
    }
}

/// Returns the repository of a run with its owner. Old records of Last Light have no owner, or have
/// it in the name.
pub fn full_repo_name(head: &WorkflowRunHead) -> Option<String> {
    match (&head.owner, &head.repo) {
        (Some(owner), Some(repo)) if !repo.contains('/') => Some(format!("{owner}/{repo}")),
        (_, repo) => repo.clone(),
    }
}

/// All details of a workflow run.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowRunDetails {
    /// Fields of the list entry.
    #[serde(flatten)]
    pub item: WorkflowRunSummary,
    /// Person or program that started it.
    pub triggered_by: Option<String>,
    /// Inputs.
    pub inputs: Value,
    /// Values stored by its phases.
    pub scratch: Value,
    /// Phases, in the order of the file.
    pub phases: Vec<PhaseSummary>,
    /// Questions to people, oldest first.
    pub approvals: Vec<ApprovalDetails>,
    /// Events.
    pub events: Vec<WorkflowEventSummary>,
}

/// A phase of a workflow run.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhaseSummary {
    /// Name of the phase.
    pub name: String,
    /// Display name.
    pub label: Option<String>,
    /// Status: `waiting`, `running`, `asking`, `succeeded`, `failed`, `skipped`, `cancelled`.
    pub status: String,
    /// Time of the last start.
    pub started_at: Option<Timestamp>,
    /// End time.
    pub finished_at: Option<Timestamp>,
    /// Cost in US dollars.
    pub cost_usd: f64,
    /// Number of items, if the phase is executed for each item of a list.
    pub items: Option<usize>,
    /// Last error.
    pub error: Option<String>,
    /// Last output.
    pub output: Option<String>,
    /// Parts.
    pub parts: Vec<PartSummary>,
}

impl PhaseSummary {
    fn of(phase: &WorkflowPhaseProgress, output: Option<&String>) -> PhaseSummary {
        PhaseSummary {
            name: phase.name.clone(),
            label: phase.label.clone(),
            status: phase_status_name(phase.status).to_owned(),
            started_at: phase.started_at,
            finished_at: phase.finished_at,
            cost_usd: micros_to_usd(phase.cost_micros()),
            items: phase.items.as_ref().map(Vec::len),
            error: phase.error().map(str::to_owned),
            output: output.cloned(),
            parts: phase.parts.iter().map(PartSummary::from).collect(),
        }
    }
}

/// A part of a phase.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PartSummary {
    /// Name of the part.
    pub part: String,
    /// Position in the journal.
    pub seq: u64,
    /// ID of the job that executed it.
    pub job: Option<String>,
    /// Name of the agent that executed it.
    pub agent: Option<String>,
    /// Status.
    #[schema(value_type = enum_schemas::JobStatus)]
    pub status: JobStatus,
    /// Decision made from its output.
    #[schema(value_type = Option<enum_schemas::Decision>)]
    pub decision: Option<PartDecision>,
    /// Creation time.
    pub asked_at: Timestamp,
    /// Start time.
    pub started_at: Option<Timestamp>,
    /// End time.
    pub finished_at: Option<Timestamp>,
    /// Duration in seconds.
    pub duration_seconds: Option<f64>,
    /// Cost in US dollars.
    pub cost_usd: f64,
    /// ID of the native session.
    pub session_id: Option<String>,
    /// Error.
    pub error: Option<String>,
}

impl From<&WorkflowPartRow> for PartSummary {
    fn from(part: &WorkflowPartRow) -> PartSummary {
        PartSummary {
            part: part.part.to_string(),
            seq: part.seq,
            job: part.job.as_ref().map(ToString::to_string),
            // Commands have no agent.
            agent: Some(part.agent.clone()).filter(|agent| !agent.is_empty()),
            status: part.status,
            decision: part.decision,
            asked_at: part.requested_at,
            started_at: part.started_at,
            finished_at: part.finished_at,
            duration_seconds: part.duration_ms.map(|ms| ms as f64 / 1_000.0),
            cost_usd: micros_to_usd(part.micros),
            session_id: part.session.as_ref().map(ToString::to_string),
            error: part.error.clone(),
        }
    }
}

/// An event of a workflow run.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowEventSummary {
    /// Number of the event.
    pub number: i64,
    /// Time of the event.
    pub at: Timestamp,
    /// Kind of event.
    pub kind: String,
    /// Phase concerned.
    pub phase: Option<String>,
    /// Description of the event.
    pub text: String,
}

impl From<WorkflowEventRecord> for WorkflowEventSummary {
    fn from(event: WorkflowEventRecord) -> WorkflowEventSummary {
        let WorkflowEventRecord { number, at, kind, phase, text } = event;
        WorkflowEventSummary { number, at, kind, phase, text }
    }
}

impl FleetReader {
    /// Lists workflow runs, newest first.
    pub fn workflow_runs(
        &self,
        wanted: &WorkflowRunListQuery,
    ) -> Result<WorkflowRunPage, QueryError> {
        let reader = self.reader()?;
        let WorkflowRunListQuery { workflow, status, since, before, limit, repo, trigger_id } =
            wanted.clone();
        let repo = repo.map(|repo| parse_repo(&repo)).transpose()?;
        let filter = WorkflowRunFilter { workflow, status, since, repo, trigger_id };
        let before = match before {
            None => None,
            Some(id) => Some(WorkflowRunCursor::after(&reader.find_workflow_run(&id)?.head)),
        };
        // One extra entry shows if there is a next page.
        let mut heads = reader.workflow_runs(&filter, before.as_ref(), limit.saturating_add(1))?;
        let total = reader.count_workflow_runs(&filter)?;
        let has_more = heads.len() > limit;
        heads.truncate(limit);
        let next = heads.last().filter(|_| has_more).map(|last| last.id.to_string());
        let runs = heads.iter().map(WorkflowRunSummary::from).collect();
        Ok(WorkflowRunPage { runs, total, limit, next })
    }

    /// Returns the details of a workflow run by a unique ID prefix.
    pub fn workflow_run(&self, id: &str) -> Result<WorkflowRunDetails, QueryError> {
        let reader = self.reader()?;
        let row = reader.find_workflow_run(id)?;
        self.workflow_run_details(&reader, row)
    }

    /// Returns the details of a loaded workflow run.
    pub fn workflow_run_details(
        &self,
        reader: &StoreReader,
        row: WorkflowRunRow,
    ) -> Result<WorkflowRunDetails, QueryError> {
        // The workflow is that of the start: the file may have changed since.
        let workflow = self.workflow_of_run(reader, &row)?;
        let output = load_phase_outputs(reader, &row, workflow.clone())?;
        let WorkflowRunProgress { row, phases, approvals } =
            WorkflowRunProgress::read(reader, row, workflow)?;
        let mut approval_details = Vec::new();
        for approval in &approvals {
            // Approvals in lists are loaded without their answers.
            let whole = reader.approval(&approval.id)?;
            approval_details.push(ApprovalDetails::of(whole.as_ref().unwrap_or(approval)));
        }
        let events = reader.workflow_events(&row.head.id, 0, EVENTS_MAX)?;
        let phases = phases.iter().map(|phase| PhaseSummary::of(phase, output.get(&phase.name)));
        Ok(WorkflowRunDetails {
            item: WorkflowRunSummary::from(&row.head),
            triggered_by: row.triggered_by,
            inputs: row.context,
            scratch: Value::Object(row.scratch),
            phases: phases.collect(),
            approvals: approval_details,
            events: events.into_iter().map(WorkflowEventSummary::from).collect(),
        })
    }

    /// Returns the phases of the workflow that a run executes; empty if the workflow is unknown.
    pub fn workflow_run_phases(&self, id: &str) -> Result<Vec<PhaseDescription>, QueryError> {
        let reader = self.reader()?;
        let row = reader.find_workflow_run(id)?;
        let Some(workflow) = self.workflow_of_run(&reader, &row)? else { return Ok(Vec::new()) };
        let phases = workflow.phases.iter();
        Ok(phases.map(|phase| PhaseDescription::of(&workflow, phase)).collect())
    }

    /// Returns the workflow that a run executes; `None` if it can no longer be read.
    pub fn workflow_of_run(
        &self,
        reader: &StoreReader,
        row: &WorkflowRunRow,
    ) -> Result<Option<Workflow>, QueryError> {
        let Some(hash) = &row.definition else { return Ok(None) };
        let Some(text) = reader.definition(hash)? else { return Ok(None) };
        let loaded = self.context().loaded;
        // Agents that no longer exist are not needed to display the phases.
        let agents = loaded.as_ref().map_or(&[][..], |loaded| &loaded.agents);
        // A definition of an older release may be unreadable; the journal is shown without it.
        Ok(heeler_config::workflow::load_frozen_workflow(&text, agents).ok())
    }
}

/// Parses a repository as a filter: its owner and its name.
fn parse_repo(text: &str) -> Result<(String, String), QueryError> {
    let repo = text.parse::<RepoName>().map_err(|reason| QueryError::Refused {
        message: format!("`{text}` is no repository"),
        hint: Some(reason.to_owned()),
    })?;
    let (owner, name) = repo.as_str().split_once('/').expect("a repository has an owner");
    Ok((owner.to_owned(), name.to_owned()))
}
