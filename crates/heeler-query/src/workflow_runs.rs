//! Runs of workflows: pages of them, and all that is known of one.

use heeler_model::JobStatus;
use heeler_model::workflow::{PartDecision, Workflow, WorkflowRunStatus};
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

/// How many events of a run are told.
pub const EVENTS_MAX: usize = 10_000;

/// Which runs to list.
#[derive(Debug, Clone, Default)]
pub struct WorkflowRunListQuery {
    /// Only those of this workflow.
    pub workflow: Option<String>,
    /// Only those in this state.
    pub status: Option<WorkflowRunStatus>,
    /// Only those that began since then.
    pub since: Option<Timestamp>,
    /// Those older than this one.
    pub before: Option<String>,
    /// How many.
    pub limit: usize,
}

/// A page of runs, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowRunPage {
    /// The runs.
    pub runs: Vec<WorkflowRunSummary>,
    /// How many there are on all pages.
    pub total: i64,
    /// How many a page has at most.
    pub limit: usize,
    /// What `before` is for the next page; none on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A run of a workflow.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowRunSummary {
    /// Its id.
    pub id: String,
    /// The workflow.
    pub workflow: String,
    /// Where it is.
    #[schema(value_type = enum_schemas::RunStatus)]
    pub status: WorkflowRunStatus,
    /// The phase that it is at.
    pub current_phase: String,
    /// What it is about.
    pub trigger_id: String,
    /// What started it.
    pub trigger_type: Option<String>,
    /// When it began.
    pub started_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// How long it took.
    pub duration_seconds: Option<f64>,
    /// What it cost.
    pub cost_usd: f64,
    /// How often it was let go on.
    pub restart_count: i64,
    /// Why it failed.
    pub error: Option<String>,
    /// Whose record it is, if not ours.
    pub origin: Option<String>,
    /// How it is played, if it asks no agent.
    pub mode: Option<String>,
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
        }
    }
}

/// All that is known of a run.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowRunDetails {
    /// What a list shows of it.
    #[serde(flatten)]
    pub item: WorkflowRunSummary,
    /// Who asked for it.
    pub triggered_by: Option<String>,
    /// What it was given.
    pub inputs: Value,
    /// What its phases have set.
    pub scratch: Value,
    /// Its phases, in the order of the file.
    pub phases: Vec<PhaseSummary>,
    /// What people were asked, oldest first.
    pub approvals: Vec<ApprovalDetails>,
    /// What happened.
    pub events: Vec<WorkflowEventSummary>,
}

/// A phase of a run.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhaseSummary {
    /// Its name.
    pub name: String,
    /// What people are shown instead.
    pub label: Option<String>,
    /// How it stands: `waiting`, `running`, `asking`, `succeeded`, `failed`, `skipped`, `cancelled`.
    pub status: String,
    /// When it was last begun.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// What it cost.
    pub cost_usd: f64,
    /// How many items it is done for, where it is done for each.
    pub items: Option<usize>,
    /// What went wrong in it last.
    pub error: Option<String>,
    /// What it said last.
    pub output: Option<String>,
    /// What was done for it.
    pub parts: Vec<PartSummary>,
}

impl PhaseSummary {
    fn of(phase: &WorkflowPhaseProgress, said: Option<&String>) -> PhaseSummary {
        PhaseSummary {
            name: phase.name.clone(),
            label: phase.label.clone(),
            status: phase_status_name(phase.status).to_owned(),
            started_at: phase.started_at,
            finished_at: phase.finished_at,
            cost_usd: micros_to_usd(phase.cost_micros()),
            items: phase.items.as_ref().map(Vec::len),
            error: phase.error().map(str::to_owned),
            output: said.cloned(),
            parts: phase.parts.iter().map(PartSummary::from).collect(),
        }
    }
}

/// A part of a phase.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PartSummary {
    /// Which.
    pub part: String,
    /// Its place in the run's journal.
    pub seq: u64,
    /// The job that did it.
    pub job: Option<String>,
    /// The agent that did it.
    pub agent: Option<String>,
    /// Where it is.
    #[schema(value_type = enum_schemas::JobStatus)]
    pub status: JobStatus,
    /// What was decided by what it said.
    #[schema(value_type = Option<enum_schemas::Decision>)]
    pub decision: Option<PartDecision>,
    /// When it was asked for.
    pub asked_at: Timestamp,
    /// When it began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// How long it took.
    pub duration_seconds: Option<f64>,
    /// What it cost.
    pub cost_usd: f64,
    /// The agent's own id of its session.
    pub session_id: Option<String>,
    /// What went wrong.
    pub error: Option<String>,
}

impl From<&WorkflowPartRow> for PartSummary {
    fn from(part: &WorkflowPartRow) -> PartSummary {
        PartSummary {
            part: part.part.to_string(),
            seq: part.seq,
            job: part.job.as_ref().map(ToString::to_string),
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

/// Something that happened in a run.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowEventSummary {
    /// Its number.
    pub number: i64,
    /// When it happened.
    pub at: Timestamp,
    /// What kind of event it is.
    pub kind: String,
    /// The phase that it concerns.
    pub phase: Option<String>,
    /// In words.
    pub text: String,
}

impl From<WorkflowEventRecord> for WorkflowEventSummary {
    fn from(event: WorkflowEventRecord) -> WorkflowEventSummary {
        let WorkflowEventRecord { number, at, kind, phase, text } = event;
        WorkflowEventSummary { number, at, kind, phase, text }
    }
}

impl FleetReader {
    /// Lists runs, newest first.
    pub fn workflow_runs(
        &self,
        wanted: &WorkflowRunListQuery,
    ) -> Result<WorkflowRunPage, QueryError> {
        let reader = self.reader()?;
        let WorkflowRunListQuery { workflow, status, since, before, limit } = wanted.clone();
        let filter = WorkflowRunFilter { workflow, status, since };
        let before = match before {
            None => None,
            Some(id) => Some(WorkflowRunCursor::after(&reader.find_workflow_run(&id)?.head)),
        };
        // One more tells whether there is a next page.
        let mut heads = reader.workflow_runs(&filter, before.as_ref(), limit.saturating_add(1))?;
        let total = reader.count_workflow_runs(&filter)?;
        let has_more = heads.len() > limit;
        heads.truncate(limit);
        let next = heads.last().filter(|_| has_more).map(|last| last.id.to_string());
        let runs = heads.iter().map(WorkflowRunSummary::from).collect();
        Ok(WorkflowRunPage { runs, total, limit, next })
    }

    /// Returns all that is known of a run; a beginning of its id will do while it is unique.
    pub fn workflow_run(&self, id: &str) -> Result<WorkflowRunDetails, QueryError> {
        let reader = self.reader()?;
        let row = reader.find_workflow_run(id)?;
        self.workflow_run_details(&reader, row)
    }

    /// Returns all that is known of a run that was read.
    pub fn workflow_run_details(
        &self,
        reader: &StoreReader,
        row: WorkflowRunRow,
    ) -> Result<WorkflowRunDetails, QueryError> {
        let workflow = self.workflow_of_run(reader, &row)?;
        let said = load_phase_outputs(reader, &row, workflow.clone())?;
        let WorkflowRunProgress { row, phases, approvals } =
            WorkflowRunProgress::read(reader, row, workflow)?;
        let mut asked = Vec::new();
        for approval in &approvals {
            // A list has no answers.
            let whole = reader.approval(&approval.id)?;
            asked.push(ApprovalDetails::of(whole.as_ref().unwrap_or(approval)));
        }
        let events = reader.workflow_events(&row.head.id, 0, EVENTS_MAX)?;
        let phases = phases.iter().map(|phase| PhaseSummary::of(phase, said.get(&phase.name)));
        Ok(WorkflowRunDetails {
            item: WorkflowRunSummary::from(&row.head),
            triggered_by: row.triggered_by,
            inputs: row.context,
            scratch: Value::Object(row.scratch),
            phases: phases.collect(),
            approvals: asked,
            events: events.into_iter().map(WorkflowEventSummary::from).collect(),
        })
    }

    /// Returns what the phases of a run are by the file that it goes by; nothing if that is not known.
    pub fn workflow_run_phases(&self, id: &str) -> Result<Vec<PhaseDescription>, QueryError> {
        let reader = self.reader()?;
        let row = reader.find_workflow_run(id)?;
        let Some(workflow) = self.workflow_of_run(&reader, &row)? else { return Ok(Vec::new()) };
        let phases = workflow.phases.iter();
        Ok(phases.map(|phase| PhaseDescription::of(&workflow, phase)).collect())
    }

    /// Returns what a run goes by; what cannot be read any more is not known.
    pub fn workflow_of_run(
        &self,
        reader: &StoreReader,
        row: &WorkflowRunRow,
    ) -> Result<Option<Workflow>, QueryError> {
        let Some(hash) = &row.definition else { return Ok(None) };
        let Some(text) = reader.definition(hash)? else { return Ok(None) };
        let loaded = self.context().loaded;
        let agents = loaded.as_ref().map_or(&[][..], |loaded| &loaded.agents);
        Ok(heeler_model::workflow::load_frozen_workflow(&text, agents).ok())
    }
}
