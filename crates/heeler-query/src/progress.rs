//! Progress of a workflow run: its phases and their parts.
//!
//! The model computes the state from the journal; this module only adds information for display.
//! Outputs are not read.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use heeler_config::workflow::Workflow;
use heeler_config::workflow::graph::PhaseDisplayStatus;
use heeler_model::workflow::{
    JournalEntry, PartOutcome, PhaseOutcome, PhasePart, WorkflowRun, WorkflowRunStatus,
};
use heeler_model::{Approval, ApprovalKind, ApprovalStatus, JobStatus, WorkflowRunId, one_line};
use heeler_store::{ApprovalFilter, DatabaseError, StoreReader, WorkflowPartRow, WorkflowRunRow};
use jiff::Timestamp;
use serde_json::Value as Json;

/// Maximum number of characters of an item used as its name.
const ITEM_NAME_CHARS_MAX: usize = 24;

/// Progress of a workflow run.
#[derive(Debug)]
pub struct WorkflowRunProgress {
    pub row: WorkflowRunRow,
    /// Phases in the order of the file, or in order of their start if the file is unknown.
    pub phases: Vec<WorkflowPhaseProgress>,
    /// All questions of the run, oldest first.
    pub approvals: Vec<Approval>,
}

/// Progress of a phase.
#[derive(Debug, Clone)]
pub struct WorkflowPhaseProgress {
    pub name: String,
    /// Display name.
    pub label: Option<String>,
    pub status: PhaseDisplayStatus,
    /// Parts since the phase last started.
    pub parts: Vec<WorkflowPartRow>,
    /// Items, if the phase is executed for each item of a list.
    pub items: Option<Vec<Json>>,
    /// Time of the last start.
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
}

/// Loaded parts of a workflow run. Updates read only parts that may have changed.
#[derive(Debug, Default)]
pub struct WorkflowRunJournal(BTreeMap<u64, WorkflowPartRow>);

impl WorkflowRunJournal {
    /// Reads the parts that may have changed.
    pub fn update(
        &mut self,
        reader: &StoreReader,
        run: &WorkflowRunId,
    ) -> Result<(), DatabaseError> {
        // Parts end in any order, so reading starts at the first one that was open.
        let open = self.0.values().find(|part| part.outcome.is_none()).map(|part| part.seq);
        let after = self.0.last_key_value().map_or(0, |(seq, _)| seq + 1);
        let parts = reader.workflow_parts(run, open.unwrap_or(after))?;
        // A part that was read before is replaced by its new state.
        self.0.extend(parts.into_iter().map(|part| (part.seq, part)));
        Ok(())
    }
}

impl WorkflowRunProgress {
    /// Reads a workflow run completely.
    pub fn read(
        reader: &StoreReader,
        row: WorkflowRunRow,
        workflow: Option<Workflow>,
    ) -> Result<WorkflowRunProgress, DatabaseError> {
        let mut journal = WorkflowRunJournal::default();
        journal.update(reader, &row.head.id)?;
        WorkflowRunProgress::of(reader, row, workflow.map(Arc::new).as_ref(), &journal)
    }

    /// Returns the progress of a workflow run from a loaded journal.
    pub fn of(
        reader: &StoreReader,
        row: WorkflowRunRow,
        workflow: Option<&Arc<Workflow>>,
        journal: &WorkflowRunJournal,
    ) -> Result<WorkflowRunProgress, DatabaseError> {
        let filter = ApprovalFilter { run: Some(row.head.id.to_string()), status: None };
        // A run has few approvals, so all of them are read.
        let mut approvals = reader.approvals(&filter, None, usize::MAX)?;
        approvals.reverse();
        let phases = match workflow {
            Some(workflow) => workflow_phases(&row, workflow, journal, &approvals),
            None => journal_phases(journal),
        };
        Ok(WorkflowRunProgress { row, phases, approvals })
    }

    /// Returns the open questions.
    pub fn pending(&self) -> impl Iterator<Item = &Approval> {
        self.approvals.iter().filter(|it| it.status == ApprovalStatus::Pending)
    }
}

/// Returns true for a question of an agent. The workflow run continues meanwhile, while one that
/// waits at a gate is paused.
pub fn is_agent_question(approval: &Approval) -> bool {
    matches!(approval.kind, ApprovalKind::Permission | ApprovalKind::Question)
}

/// Returns the phases of a run with a known workflow.
fn workflow_phases(
    row: &WorkflowRunRow,
    workflow: &Arc<Workflow>,
    journal: &WorkflowRunJournal,
    approvals: &[Approval],
) -> Vec<WorkflowPhaseProgress> {
    let places = workflow.phases.iter().enumerate();
    let places: HashMap<&str, usize> = places.map(|(at, it)| (it.name.as_str(), at)).collect();
    // The context is not needed: only the journal decides the state of phases.
    let mut run_state = WorkflowRun::new(Arc::clone(workflow), Json::Null);
    let mut phases: Vec<WorkflowPhaseProgress> = Vec::with_capacity(workflow.phases.len());
    for phase in &workflow.phases {
        phases.push(WorkflowPhaseProgress::new(phase.name.as_str(), phase.label.clone()));
    }
    let parts = journal.0.values().filter_map(|part| {
        // A part of a phase that the definition lacks comes from a damaged or imported journal.
        let place = *places.get(part.phase.as_str())?;
        Some((part.entry(place), Some(part)))
    });
    let gates = approvals.iter().filter_map(|gate| Some((gate_entry(gate, &places)?, None)));
    let mut entries: Vec<(JournalEntry, Option<&WorkflowPartRow>)> = parts.chain(gates).collect();
    // Gates and parts share one numbering, and the state depends on their order.
    entries.sort_by_key(|(entry, _)| entry.seq);
    for (entry, part) in &entries {
        run_state.apply_entry(entry);
        if let Some(part) = part {
            phases[entry.phase].add_part(part);
        }
    }
    // After the parts, because a gate counts only for the last start of its phase.
    for gate in approvals {
        let place = gate.phase.as_deref().and_then(|phase| places.get(phase));
        if let Some(place) = place {
            phases[*place].add_gate(gate);
        }
    }
    for (at, phase) in phases.iter_mut().enumerate() {
        phase.status = phase_status(row, &run_state, at, phase, approvals);
        if matches!(
            phase.status,
            PhaseDisplayStatus::Waiting
                | PhaseDisplayStatus::Running
                | PhaseDisplayStatus::WaitingForAnswer
        ) {
            // An earlier attempt may have ended, but the phase continues.
            phase.finished_at = None;
        }
    }
    phases
}

fn phase_status(
    row: &WorkflowRunRow,
    run_state: &WorkflowRun,
    at: usize,
    phase: &WorkflowPhaseProgress,
    approvals: &[Approval],
) -> PhaseDisplayStatus {
    // A cancelled run has failed phases, which a person would not call failures.
    let was_cancelled = row.head.status == WorkflowRunStatus::Cancelled;
    match run_state.phase_outcome(at) {
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
    // While a part runs, an open question of the phase does not stop it.
    let is_working = phase.parts.iter().any(|part| part.outcome.is_none());
    match run_state.is_phase_active(at) {
        false => PhaseDisplayStatus::Waiting,
        // The run ended while the phase was active.
        true if row.head.status.is_final() => PhaseDisplayStatus::Cancelled,
        true if !is_working && approvals.iter().any(asks) => PhaseDisplayStatus::WaitingForAnswer,
        // The jobs exist, but none of them has started.
        true if phase.is_queued() => PhaseDisplayStatus::Waiting,
        true => PhaseDisplayStatus::Running,
    }
}

fn gate_entry(gate: &Approval, places: &HashMap<&str, usize>) -> Option<JournalEntry> {
    Some(JournalEntry {
        phase: *places.get(gate.phase.as_deref()?)?,
        part: gate.part?,
        // Approvals of agents have no position and are no part of the journal.
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

/// Returns the phases found in the journal of a run with an unknown workflow.
fn journal_phases(journal: &WorkflowRunJournal) -> Vec<WorkflowPhaseProgress> {
    let mut phases: Vec<WorkflowPhaseProgress> = Vec::new();
    for part in journal.0.values() {
        let at = phases.iter().position(|phase| phase.name == part.phase).unwrap_or_else(|| {
            phases.push(WorkflowPhaseProgress::new(&part.phase, None));
            phases.len() - 1
        });
        phases[at].add_part(part);
        // Without the definition the last part decides.
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

pub fn phase_status_name(status: PhaseDisplayStatus) -> &'static str {
    match status {
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

    /// Returns the display name.
    pub fn title(&self) -> &str {
        self.label.as_deref().unwrap_or(&self.name)
    }

    /// Returns the name of a part within the phase; `None` if the part is the phase itself.
    pub fn part_name(&self, part: PhasePart) -> Option<String> {
        match part {
            PhasePart::Work
            | PhasePart::Items
            | PhasePart::Skip
            | PhasePart::Reset
            | PhasePart::Gate(_) => None,
            PhasePart::Post => Some("post".to_owned()),
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
        let name = one_line(text);
        match name.char_indices().nth(ITEM_NAME_CHARS_MAX) {
            // Items may be objects or empty; then their number is the name.
            _ if name.is_empty() => format!("item {number}"),
            Some((at, _)) => format!("{}…", &name[..at]),
            None => name,
        }
    }

    /// Returns the duration up to `now`, in milliseconds.
    pub fn elapsed_ms(&self, now: Timestamp) -> Option<i64> {
        let elapsed = self.finished_at.unwrap_or(now).duration_since(self.started_at?).as_millis();
        // A clock that was set back must not give a negative duration.
        i64::try_from(elapsed).ok().map(|elapsed| elapsed.max(0))
    }

    /// Returns the cost in millionths of a dollar.
    pub fn cost_micros(&self) -> i64 {
        self.parts.iter().map(|part| part.micros).sum()
    }

    /// Returns the last error.
    pub fn error(&self) -> Option<&str> {
        self.parts.iter().rev().find_map(|part| part.error.as_deref())
    }

    /// Returns true if no part has started, because the jobs are queued.
    fn is_queued(&self) -> bool {
        let mut jobs = self.parts.iter().filter(|part| part.job.is_some()).peekable();
        let is_queued = |part: &WorkflowPartRow| {
            part.outcome.is_none() && part.status == JobStatus::Pending && part.started_at.is_none()
        };
        // A phase without any job is not queued, for example one that only waits at a gate.
        jobs.peek().is_some() && jobs.all(is_queued)
    }

    /// Returns the reason why the phase waits in the queue, if it does.
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
        // A reset starts the phase again, so earlier parts no longer count.
        if part.part == PhasePart::Reset {
            *self = WorkflowPhaseProgress::new(&self.name, self.label.take());
            return;
        }
        if part.part == PhasePart::Items {
            self.items = part.items.as_deref().and_then(|text| serde_json::from_str(text).ok());
        }
        // The time of the request is used until the process starts.
        self.started_at.get_or_insert(part.started_at.unwrap_or(part.requested_at));
        self.finished_at = self.finished_at.max(part.finished_at);
        self.parts.push(part.clone());
    }

    fn add_gate(&mut self, gate: &Approval) {
        // The gate belongs to an earlier start of the phase.
        if self.started_at.is_none_or(|began| gate.created_at < began) {
            return;
        }
        self.finished_at = self.finished_at.max(gate.responded_at);
    }
}

/// Returns the last outputs of the phases of a run, by phase name.
pub fn load_phase_outputs(
    reader: &StoreReader,
    row: &WorkflowRunRow,
    workflow: Option<Workflow>,
) -> Result<HashMap<String, String>, DatabaseError> {
    let Some(workflow) = workflow else { return Ok(HashMap::new()) };
    let mut run_state = WorkflowRun::new(Arc::new(workflow), Json::Null);
    // The complete journal is read here, because outputs are not part of the display rows.
    for row in reader.journal(&row.head.id)? {
        let Some(phase) = run_state.workflow.phase_index(&row.phase) else { continue };
        run_state.apply_entry(&JournalEntry {
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
    let names = run_state.workflow.phases.iter().map(|phase| phase.name.as_str());
    let outputs =
        names.filter_map(|name| Some((name.to_owned(), run_state.phase_output(name)?.to_owned())));
    Ok(outputs.collect())
}
