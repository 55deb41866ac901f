//! Runs of workflows: pages of them, and all that is known of one.

use heeler_model::JobStatus;
use heeler_model::workflow::{CourseStatus, Decision, Workflow};
use heeler_store::{
    PartRow, Reader, WorkflowEvent, WorkflowRunCursor, WorkflowRunFilter, WorkflowRunHead,
    WorkflowRunRow,
};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::agents::usd;
use crate::approvals::ApprovalDetails;
use crate::stand::{PhaseStand, Stand, outputs, word};
use crate::workflows::PhaseDescription;
use crate::{QueryError, Records, words};

/// How many events of a run are told.
pub const EVENTS_MAX: usize = 10_000;

/// Which runs to list.
#[derive(Debug, Clone, Default)]
pub struct RunsWanted {
    /// Only those of this workflow.
    pub workflow: Option<String>,
    /// Only those in this state.
    pub status: Option<CourseStatus>,
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
pub struct RunPage {
    /// The runs.
    pub runs: Vec<WorkflowRunItem>,
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
pub struct WorkflowRunItem {
    /// Its id.
    pub id: String,
    /// The workflow.
    pub workflow: String,
    /// Where it is.
    #[schema(value_type = words::RunStatus)]
    pub status: CourseStatus,
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

impl From<&WorkflowRunHead> for WorkflowRunItem {
    fn from(head: &WorkflowRunHead) -> WorkflowRunItem {
        let took = head.finished_at.map(|at| at.duration_since(head.started_at).as_secs_f64());
        WorkflowRunItem {
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
            cost_usd: usd(head.spent),
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
pub struct RunDetails {
    /// What a list shows of it.
    #[serde(flatten)]
    pub item: WorkflowRunItem,
    /// Who asked for it.
    pub triggered_by: Option<String>,
    /// What it was given.
    pub inputs: Value,
    /// What its phases have set.
    pub scratch: Value,
    /// Its phases, in the order of the file.
    pub phases: Vec<PhaseItem>,
    /// What people were asked, oldest first.
    pub approvals: Vec<ApprovalDetails>,
    /// What happened.
    pub events: Vec<EventItem>,
}

/// A phase of a run.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhaseItem {
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
    pub parts: Vec<PartItem>,
}

impl PhaseItem {
    fn of(phase: &PhaseStand, said: Option<&String>) -> PhaseItem {
        PhaseItem {
            name: phase.name.clone(),
            label: phase.label.clone(),
            status: word(phase.mark).to_owned(),
            started_at: phase.began,
            finished_at: phase.ended,
            cost_usd: usd(phase.micros()),
            items: phase.items.as_ref().map(Vec::len),
            error: phase.error().map(str::to_owned),
            output: said.cloned(),
            parts: phase.parts.iter().map(PartItem::from).collect(),
        }
    }
}

/// A part of a phase.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PartItem {
    /// Which.
    pub part: String,
    /// Its place in the run's journal.
    pub seq: u64,
    /// The job that did it.
    pub job: Option<String>,
    /// The agent that did it.
    pub agent: Option<String>,
    /// Where it is.
    #[schema(value_type = words::JobStatus)]
    pub status: JobStatus,
    /// What was decided by what it said.
    #[schema(value_type = Option<words::Decision>)]
    pub decision: Option<Decision>,
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

impl From<&PartRow> for PartItem {
    fn from(part: &PartRow) -> PartItem {
        PartItem {
            part: part.part.to_string(),
            seq: part.seq,
            job: part.job.as_ref().map(ToString::to_string),
            agent: Some(part.agent.clone()).filter(|agent| !agent.is_empty()),
            status: part.status,
            decision: part.decision,
            asked_at: part.asked_at,
            started_at: part.started_at,
            finished_at: part.finished_at,
            duration_seconds: part.duration_ms.map(|ms| ms as f64 / 1_000.0),
            cost_usd: usd(part.micros),
            session_id: part.session.as_ref().map(ToString::to_string),
            error: part.error.clone(),
        }
    }
}

/// Something that happened in a run.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventItem {
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

impl From<WorkflowEvent> for EventItem {
    fn from(event: WorkflowEvent) -> EventItem {
        let WorkflowEvent { number, at, kind, phase, text } = event;
        EventItem { number, at, kind, phase, text }
    }
}

impl Records {
    /// Lists runs, newest first.
    pub fn runs(&self, wanted: &RunsWanted) -> Result<RunPage, QueryError> {
        let reader = self.reader()?;
        let RunsWanted { workflow, status, since, before, limit } = wanted.clone();
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
        let runs = heads.iter().map(WorkflowRunItem::from).collect();
        Ok(RunPage { runs, total, limit, next })
    }

    /// Returns all that is known of a run; a beginning of its id will do while it is unique.
    pub fn run(&self, id: &str) -> Result<RunDetails, QueryError> {
        let reader = self.reader()?;
        let row = reader.find_workflow_run(id)?;
        self.run_details(&reader, row)
    }

    /// Returns all that is known of a run that was read.
    pub fn run_details(
        &self,
        reader: &Reader,
        row: WorkflowRunRow,
    ) -> Result<RunDetails, QueryError> {
        let workflow = self.definition(reader, &row)?;
        let said = outputs(reader, &row, workflow.clone())?;
        let Stand { row, phases, approvals } = Stand::read(reader, row, workflow)?;
        let mut asked = Vec::new();
        for approval in &approvals {
            // A list has no answers.
            let whole = reader.approval(&approval.id)?;
            asked.push(ApprovalDetails::of(whole.as_ref().unwrap_or(approval)));
        }
        let events = reader.workflow_events(&row.head.id, 0, EVENTS_MAX)?;
        let phases = phases.iter().map(|phase| PhaseItem::of(phase, said.get(&phase.name)));
        Ok(RunDetails {
            item: WorkflowRunItem::from(&row.head),
            triggered_by: row.triggered_by,
            inputs: row.context,
            scratch: Value::Object(row.scratch),
            phases: phases.collect(),
            approvals: asked,
            events: events.into_iter().map(EventItem::from).collect(),
        })
    }

    /// Returns what the phases of a run are by the file that it goes by; nothing if that is not known.
    pub fn run_plan(&self, id: &str) -> Result<Vec<PhaseDescription>, QueryError> {
        let reader = self.reader()?;
        let row = reader.find_workflow_run(id)?;
        let Some(workflow) = self.definition(&reader, &row)? else { return Ok(Vec::new()) };
        let phases = workflow.phases.iter();
        Ok(phases.map(|phase| PhaseDescription::of(&workflow, phase)).collect())
    }

    /// Returns what a run goes by; what cannot be read any more is not known.
    pub fn definition(
        &self,
        reader: &Reader,
        row: &WorkflowRunRow,
    ) -> Result<Option<Workflow>, QueryError> {
        let Some(hash) = &row.definition else { return Ok(None) };
        let Some(text) = reader.definition(hash)? else { return Ok(None) };
        let loaded = self.known().loaded;
        let agents = loaded.as_ref().map_or(&[][..], |loaded| &loaded.agents);
        Ok(heeler_model::workflow::thaw(&text, agents).ok())
    }
}
