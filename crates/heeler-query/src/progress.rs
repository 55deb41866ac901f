//! Where a run stands: its phases, and what is known of their parts.
//!
//! The model folds the journal; only what people are shown is added here. Outputs are not read.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use heeler_model::workflow::graph::PhaseDisplayStatus;
use heeler_model::workflow::{
    JournalEntry, PartOutcome, PhaseOutcome, PhasePart, Workflow, WorkflowRun, WorkflowRunStatus,
};
use heeler_model::{Approval, ApprovalKind, ApprovalStatus, JobStatus, WorkflowRunId};
use heeler_store::{ApprovalFilter, DatabaseError, StoreReader, WorkflowPartRow, WorkflowRunRow};
use jiff::Timestamp;
use serde_json::Value as Json;

/// How much of an item is its name.
const ITEM_NAME_CHARS_MAX: usize = 24;

/// A run as it stands.
#[derive(Debug)]
pub struct WorkflowRunProgress {
    /// Its record.
    pub row: WorkflowRunRow,
    /// In the order of the file; of a run whose file is not known, in that of their beginning.
    pub phases: Vec<WorkflowPhaseProgress>,
    /// All that people were asked, oldest first.
    pub approvals: Vec<Approval>,
}

/// A phase as it stands.
#[derive(Debug, Clone)]
pub struct WorkflowPhaseProgress {
    /// Its name.
    pub name: String,
    /// What people are shown instead.
    pub label: Option<String>,
    /// How it stands.
    pub status: PhaseDisplayStatus,
    /// What was done for it, since it was last begun.
    pub parts: Vec<WorkflowPartRow>,
    /// The items, where it is done for each.
    pub items: Option<Vec<Json>>,
    /// When it was last begun.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
}

/// The parts of a run, as far as they were read. Only those that may have changed are read again.
#[derive(Debug, Default)]
pub struct WorkflowRunJournal(BTreeMap<u64, WorkflowPartRow>);

impl WorkflowRunJournal {
    /// Reads what has changed.
    pub fn update(
        &mut self,
        reader: &StoreReader,
        run: &WorkflowRunId,
    ) -> Result<(), DatabaseError> {
        let open = self.0.values().find(|part| part.outcome.is_none()).map(|part| part.seq);
        let after = self.0.last_key_value().map_or(0, |(seq, _)| seq + 1);
        let parts = reader.workflow_parts(run, open.unwrap_or(after))?;
        self.0.extend(parts.into_iter().map(|part| (part.seq, part)));
        Ok(())
    }
}

impl WorkflowRunProgress {
    /// Reads a run, whole.
    pub fn read(
        reader: &StoreReader,
        row: WorkflowRunRow,
        workflow: Option<Workflow>,
    ) -> Result<WorkflowRunProgress, DatabaseError> {
        let mut journal = WorkflowRunJournal::default();
        journal.update(reader, &row.head.id)?;
        WorkflowRunProgress::of(reader, row, workflow.map(Arc::new).as_ref(), &journal)
    }

    /// Returns where a run stands by a journal that was read.
    pub fn of(
        reader: &StoreReader,
        row: WorkflowRunRow,
        workflow: Option<&Arc<Workflow>>,
        journal: &WorkflowRunJournal,
    ) -> Result<WorkflowRunProgress, DatabaseError> {
        let filter = ApprovalFilter { run: Some(row.head.id.to_string()), status: None };
        let mut approvals = reader.approvals(&filter, None, usize::MAX)?;
        approvals.reverse();
        let phases = match workflow {
            Some(workflow) => workflow_phases(&row, workflow, journal, &approvals),
            None => journal_phases(journal),
        };
        Ok(WorkflowRunProgress { row, phases, approvals })
    }

    /// Lists what waits for an answer.
    pub fn pending(&self) -> impl Iterator<Item = &Approval> {
        self.approvals.iter().filter(|it| it.status == ApprovalStatus::Pending)
    }
}

/// Says whether an agent asks, while its run goes on: one that waits at a gate is paused.
pub fn is_agent_question(approval: &Approval) -> bool {
    matches!(approval.kind, ApprovalKind::Permission | ApprovalKind::Question)
}

/// Returns the phases of a run that goes by a workflow.
fn workflow_phases(
    row: &WorkflowRunRow,
    workflow: &Arc<Workflow>,
    journal: &WorkflowRunJournal,
    approvals: &[Approval],
) -> Vec<WorkflowPhaseProgress> {
    let places = workflow.phases.iter().enumerate();
    let places: HashMap<&str, usize> = places.map(|(at, it)| (it.name.as_str(), at)).collect();
    let mut course = WorkflowRun::new(Arc::clone(workflow), Json::Null);
    let mut phases: Vec<WorkflowPhaseProgress> = Vec::with_capacity(workflow.phases.len());
    for phase in &workflow.phases {
        phases.push(WorkflowPhaseProgress::new(phase.name.as_str(), phase.label.clone()));
    }
    let parts = journal.0.values().filter_map(|part| {
        let place = *places.get(part.phase.as_str())?;
        Some((part.entry(place), Some(part)))
    });
    let gates = approvals.iter().filter_map(|gate| Some((gate_entry(gate, &places)?, None)));
    let mut entries: Vec<(JournalEntry, Option<&WorkflowPartRow>)> = parts.chain(gates).collect();
    entries.sort_by_key(|(entry, _)| entry.seq);
    for (entry, part) in &entries {
        course.apply_entry(entry);
        if let Some(part) = part {
            phases[entry.phase].add_part(part);
        }
    }
    for gate in approvals {
        let place = gate.phase.as_deref().and_then(|phase| places.get(phase));
        if let Some(place) = place {
            phases[*place].add_gate(gate);
        }
    }
    for (at, phase) in phases.iter_mut().enumerate() {
        phase.status = phase_status(row, &course, at, phase, approvals);
        if matches!(
            phase.status,
            PhaseDisplayStatus::Waiting
                | PhaseDisplayStatus::Running
                | PhaseDisplayStatus::WaitingForAnswer
        ) {
            phase.finished_at = None;
        }
    }
    phases
}

fn phase_status(
    row: &WorkflowRunRow,
    course: &WorkflowRun,
    at: usize,
    phase: &WorkflowPhaseProgress,
    approvals: &[Approval],
) -> PhaseDisplayStatus {
    let was_cancelled = row.head.status == WorkflowRunStatus::Cancelled;
    match course.phase_outcome(at) {
        Some(PhaseOutcome::Succeeded) => return PhaseDisplayStatus::Succeeded,
        Some(PhaseOutcome::Skipped) => return PhaseDisplayStatus::Skipped,
        Some(PhaseOutcome::Failed) if was_cancelled && phase.was_cancelled() => {
            return PhaseDisplayStatus::Cancelled;
        }
        Some(PhaseOutcome::Failed) => return PhaseDisplayStatus::Failed,
        None => {}
    }
    let asks = |it: &Approval| {
        it.status == ApprovalStatus::Pending && it.phase.as_deref() == Some(phase.name.as_str())
    };
    let goes_on = phase.parts.iter().any(|part| part.outcome.is_none());
    match course.is_phase_active(at) {
        false => PhaseDisplayStatus::Waiting,
        true if row.head.status.is_final() => PhaseDisplayStatus::Cancelled,
        true if !goes_on && approvals.iter().any(asks) => PhaseDisplayStatus::WaitingForAnswer,
        true if phase.is_queued() => PhaseDisplayStatus::Waiting,
        true => PhaseDisplayStatus::Running,
    }
}

fn gate_entry(gate: &Approval, places: &HashMap<&str, usize>) -> Option<JournalEntry> {
    Some(JournalEntry {
        phase: *places.get(gate.phase.as_deref()?)?,
        part: gate.part?,
        seq: gate.seq?,
        job: None,
        outcome: match gate.status {
            ApprovalStatus::Pending => None,
            ApprovalStatus::Approved => Some(PartOutcome::Succeeded),
            ApprovalStatus::Rejected | ApprovalStatus::Expired => Some(PartOutcome::Failed),
            ApprovalStatus::Withdrawn => Some(PartOutcome::Cancelled),
        },
        decision: None,
        output: None,
        error: None,
        micros: 0,
    })
}

/// Returns what a journal says of phases whose workflow is not known.
fn journal_phases(journal: &WorkflowRunJournal) -> Vec<WorkflowPhaseProgress> {
    let mut phases: Vec<WorkflowPhaseProgress> = Vec::new();
    for part in journal.0.values() {
        let at = phases.iter().position(|phase| phase.name == part.phase).unwrap_or_else(|| {
            phases.push(WorkflowPhaseProgress::new(&part.phase, None));
            phases.len() - 1
        });
        phases[at].add_part(part);
        phases[at].status = match (part.part, part.outcome) {
            (PhasePart::Skip, _) => PhaseDisplayStatus::Skipped,
            (_, None) => PhaseDisplayStatus::Running,
            (_, Some(PartOutcome::Succeeded)) => PhaseDisplayStatus::Succeeded,
            (_, Some(PartOutcome::Cancelled)) => PhaseDisplayStatus::Cancelled,
            (_, Some(_)) => PhaseDisplayStatus::Failed,
        };
    }
    phases
}

/// Returns the word for how a phase stands.
pub fn phase_status_name(mark: PhaseDisplayStatus) -> &'static str {
    match mark {
        PhaseDisplayStatus::Waiting => "waiting",
        PhaseDisplayStatus::Running => "running",
        PhaseDisplayStatus::WaitingForAnswer => "asking",
        PhaseDisplayStatus::Succeeded => "succeeded",
        PhaseDisplayStatus::Failed => "failed",
        PhaseDisplayStatus::Skipped => "skipped",
        PhaseDisplayStatus::Cancelled => "cancelled",
    }
}

impl WorkflowPhaseProgress {
    fn new(name: &str, label: Option<String>) -> WorkflowPhaseProgress {
        WorkflowPhaseProgress {
            name: name.to_owned(),
            label,
            status: PhaseDisplayStatus::Waiting,
            parts: Vec::new(),
            items: None,
            started_at: None,
            finished_at: None,
        }
    }

    /// Returns what people are shown as its name.
    pub fn title(&self) -> &str {
        self.label.as_deref().unwrap_or(&self.name)
    }

    /// Returns what a part is called inside of it; nothing where it is the phase itself.
    pub fn part_name(&self, part: PhasePart) -> Option<String> {
        match part {
            PhasePart::Work
            | PhasePart::Items
            | PhasePart::Skip
            | PhasePart::Reset
            | PhasePart::Gate(_) => None,
            PhasePart::Fix(number) => Some(format!("fix {number}")),
            PhasePart::Recheck(number) => Some(format!("review after fix {number}")),
            PhasePart::Iteration(number) => Some(format!("pass {number}")),
            PhasePart::Check(number) => Some(format!("check of pass {number}")),
            PhasePart::Item(number) => Some(self.item_name(number)),
        }
    }

    fn item_name(&self, number: u32) -> String {
        let items = self.items.as_deref().unwrap_or_default();
        let item = (number as usize).checked_sub(1).and_then(|at| items.get(at));
        let text = item.and_then(Json::as_str).unwrap_or_default();
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let name = text.split_whitespace().collect::<Vec<_>>().join(" ");
        match name.char_indices().nth(ITEM_NAME_CHARS_MAX) {
            _ if name.is_empty() => format!("item {number}"),
            Some((at, _)) => format!("{}…", &name[..at]),
            None => name,
        }
    }

    /// Returns how long it has taken so far, in milliseconds.
    pub fn elapsed_ms(&self, now: Timestamp) -> Option<i64> {
        let took = self.finished_at.unwrap_or(now).duration_since(self.started_at?).as_millis();
        i64::try_from(took).ok().map(|took| took.max(0))
    }

    /// Returns what it cost, in millionths of a dollar.
    pub fn cost_micros(&self) -> i64 {
        self.parts.iter().map(|part| part.micros).sum()
    }

    /// Returns what went wrong in it last.
    pub fn error(&self) -> Option<&str> {
        self.parts.iter().rev().find_map(|part| part.error.as_deref())
    }

    /// Says whether nothing of it has begun: its jobs wait in the queue.
    fn is_queued(&self) -> bool {
        let mut jobs = self.parts.iter().filter(|part| part.job.is_some()).peekable();
        let is_queued = |part: &WorkflowPartRow| {
            part.outcome.is_none() && part.status == JobStatus::Pending && part.started_at.is_none()
        };
        jobs.peek().is_some() && jobs.all(is_queued)
    }

    /// Says what it waits for in the queue, if it does.
    pub fn queue_reason(&self, reader: &StoreReader) -> Result<Option<String>, DatabaseError> {
        let job = self.parts.iter().find_map(|part| part.job.as_ref());
        let Some(job) = job.filter(|_| self.is_queued()) else { return Ok(None) };
        let reason = reader.queued_job(job)?.map(|queued| queued.reason);
        Ok(reason.filter(|reason| !reason.is_empty()).map(|reason| format!("waits: {reason}")))
    }

    fn was_cancelled(&self) -> bool {
        self.parts.last().is_none_or(|part| part.outcome == Some(PartOutcome::Cancelled))
    }

    fn add_part(&mut self, part: &WorkflowPartRow) {
        if part.part == PhasePart::Reset {
            *self = WorkflowPhaseProgress::new(&self.name, self.label.take());
            return;
        }
        if part.part == PhasePart::Items {
            self.items = part.items.as_deref().and_then(|text| serde_json::from_str(text).ok());
        }
        self.started_at.get_or_insert(part.started_at.unwrap_or(part.requested_at));
        self.finished_at = self.finished_at.max(part.finished_at);
        self.parts.push(part.clone());
    }

    fn add_gate(&mut self, gate: &Approval) {
        // One from before it was last begun.
        if self.started_at.is_none_or(|began| gate.created_at < began) {
            return;
        }
        self.finished_at = self.finished_at.max(gate.responded_at);
    }
}

/// Returns what the phases of a run said last, by their names.
pub fn load_phase_outputs(
    reader: &StoreReader,
    row: &WorkflowRunRow,
    workflow: Option<Workflow>,
) -> Result<HashMap<String, String>, DatabaseError> {
    let Some(workflow) = workflow else { return Ok(HashMap::new()) };
    let mut course = WorkflowRun::new(Arc::new(workflow), Json::Null);
    for row in reader.journal(&row.head.id)? {
        let Some(phase) = course.workflow.phase_index(&row.phase) else { continue };
        course.apply_entry(&JournalEntry {
            phase,
            part: row.part,
            seq: row.seq,
            job: row.job,
            outcome: row.outcome,
            decision: row.decision,
            output: row.output.map(Into::into),
            error: row.error,
            micros: row.micros,
        });
    }
    let names = course.workflow.phases.iter().map(|phase| phase.name.as_str());
    let said =
        names.filter_map(|name| Some((name.to_owned(), course.phase_output(name)?.to_owned())));
    Ok(said.collect())
}
