//! Where a run stands: its phases, and what is known of their parts.
//!
//! The model folds the journal; only what people are shown is added here. Outputs are not read.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use heeler_model::workflow::graph::Mark;
use heeler_model::workflow::{Course, CourseStatus, Entry, How, NodeEnd, Part, Workflow};
use heeler_model::{Approval, ApprovalKind, ApprovalStatus, JobStatus, WorkflowRunId};
use heeler_store::{ApprovalFilter, DbError, PartRow, Reader, WorkflowRunRow};
use jiff::Timestamp;
use serde_json::Value as Json;

/// How much of an item is its name.
const ITEM_NAME_CHARS_MAX: usize = 24;

/// A run as it stands.
#[derive(Debug)]
pub struct Stand {
    /// Its record.
    pub row: WorkflowRunRow,
    /// In the order of the file; of a run whose file is not known, in that of their beginning.
    pub phases: Vec<PhaseStand>,
    /// All that people were asked, oldest first.
    pub approvals: Vec<Approval>,
}

/// A phase as it stands.
#[derive(Debug, Clone)]
pub struct PhaseStand {
    /// Its name.
    pub name: String,
    /// What people are shown instead.
    pub label: Option<String>,
    /// How it stands.
    pub mark: Mark,
    /// What was done for it, since it was last begun.
    pub parts: Vec<PartRow>,
    /// The items, where it is done for each.
    pub items: Option<Vec<Json>>,
    /// When it was last begun.
    pub began: Option<Timestamp>,
    /// When it ended.
    pub ended: Option<Timestamp>,
}

/// The parts of a run, as far as they were read. Only those that may have changed are read again.
#[derive(Debug, Default)]
pub struct Journal(BTreeMap<u64, PartRow>);

impl Journal {
    /// Reads what has changed.
    pub fn update(&mut self, reader: &Reader, run: &WorkflowRunId) -> Result<(), DbError> {
        let open = self.0.values().find(|part| part.how.is_none()).map(|part| part.seq);
        let after = self.0.last_key_value().map_or(0, |(seq, _)| seq + 1);
        let parts = reader.workflow_parts(run, open.unwrap_or(after))?;
        self.0.extend(parts.into_iter().map(|part| (part.seq, part)));
        Ok(())
    }
}

impl Stand {
    /// Reads a run, whole.
    pub fn read(
        reader: &Reader,
        row: WorkflowRunRow,
        workflow: Option<Workflow>,
    ) -> Result<Stand, DbError> {
        let mut journal = Journal::default();
        journal.update(reader, &row.head.id)?;
        Stand::of(reader, row, workflow.map(Arc::new).as_ref(), &journal)
    }

    /// Returns where a run stands by a journal that was read.
    pub fn of(
        reader: &Reader,
        row: WorkflowRunRow,
        workflow: Option<&Arc<Workflow>>,
        journal: &Journal,
    ) -> Result<Stand, DbError> {
        let filter = ApprovalFilter { run: Some(row.head.id.to_string()), status: None };
        let mut approvals = reader.approvals(&filter, None, usize::MAX)?;
        approvals.reverse();
        let phases = match workflow {
            Some(workflow) => known(&row, workflow, journal, &approvals),
            None => unknown(journal),
        };
        Ok(Stand { row, phases, approvals })
    }

    /// Lists what waits for an answer.
    pub fn pending(&self) -> impl Iterator<Item = &Approval> {
        self.approvals.iter().filter(|it| it.status == ApprovalStatus::Pending)
    }
}

/// Says whether an agent asks, while its run goes on: one that waits at a gate is paused.
pub fn is_of_agent(approval: &Approval) -> bool {
    matches!(approval.kind, ApprovalKind::Permission | ApprovalKind::Question)
}

/// Returns the phases of a run that goes by a workflow.
fn known(
    row: &WorkflowRunRow,
    workflow: &Arc<Workflow>,
    journal: &Journal,
    approvals: &[Approval],
) -> Vec<PhaseStand> {
    let places = workflow.phases.iter().enumerate();
    let places: HashMap<&str, usize> = places.map(|(at, it)| (it.name.as_str(), at)).collect();
    let mut course = Course::new(Arc::clone(workflow), Json::Null);
    let mut phases: Vec<PhaseStand> = Vec::with_capacity(workflow.phases.len());
    for phase in &workflow.phases {
        phases.push(PhaseStand::new(phase.name.as_str(), phase.label.clone()));
    }
    let parts = journal.0.values().filter_map(|part| {
        let place = *places.get(part.phase.as_str())?;
        Some((part.entry(place), Some(part)))
    });
    let gates = approvals.iter().filter_map(|gate| Some((gate_entry(gate, &places)?, None)));
    let mut entries: Vec<(Entry, Option<&PartRow>)> = parts.chain(gates).collect();
    entries.sort_by_key(|(entry, _)| entry.seq);
    for (entry, part) in &entries {
        course.fold(entry);
        if let Some(part) = part {
            phases[entry.phase].take(part);
        }
    }
    for gate in approvals {
        let place = gate.phase.as_deref().and_then(|phase| places.get(phase));
        if let Some(place) = place {
            phases[*place].take_gate(gate);
        }
    }
    for (at, phase) in phases.iter_mut().enumerate() {
        phase.mark = mark(row, &course, at, phase, approvals);
        if matches!(phase.mark, Mark::Waiting | Mark::Running | Mark::Asking) {
            phase.ended = None;
        }
    }
    phases
}

fn mark(
    row: &WorkflowRunRow,
    course: &Course,
    at: usize,
    phase: &PhaseStand,
    approvals: &[Approval],
) -> Mark {
    let was_cancelled = row.head.status == CourseStatus::Cancelled;
    match course.end_of(at) {
        Some(NodeEnd::Succeeded) => return Mark::Succeeded,
        Some(NodeEnd::Skipped) => return Mark::Skipped,
        Some(NodeEnd::Failed) if was_cancelled && phase.was_cancelled() => return Mark::Cancelled,
        Some(NodeEnd::Failed) => return Mark::Failed,
        None => {}
    }
    let asks = |it: &Approval| {
        it.status == ApprovalStatus::Pending && it.phase.as_deref() == Some(phase.name.as_str())
    };
    let goes_on = phase.parts.iter().any(|part| part.how.is_none());
    match course.has_begun(at) {
        false => Mark::Waiting,
        true if row.head.status.is_final() => Mark::Cancelled,
        true if !goes_on && approvals.iter().any(asks) => Mark::Asking,
        true if phase.is_queued() => Mark::Waiting,
        true => Mark::Running,
    }
}

fn gate_entry(gate: &Approval, places: &HashMap<&str, usize>) -> Option<Entry> {
    Some(Entry {
        phase: *places.get(gate.phase.as_deref()?)?,
        part: gate.part?,
        seq: gate.seq?,
        job: None,
        how: match gate.status {
            ApprovalStatus::Pending => None,
            ApprovalStatus::Approved => Some(How::Succeeded),
            ApprovalStatus::Rejected | ApprovalStatus::Expired => Some(How::Failed),
            ApprovalStatus::Withdrawn => Some(How::Cancelled),
        },
        decision: None,
        output: None,
        error: None,
        micros: 0,
    })
}

/// Returns what a journal says of phases whose workflow is not known.
fn unknown(journal: &Journal) -> Vec<PhaseStand> {
    let mut phases: Vec<PhaseStand> = Vec::new();
    for part in journal.0.values() {
        let at = phases.iter().position(|phase| phase.name == part.phase).unwrap_or_else(|| {
            phases.push(PhaseStand::new(&part.phase, None));
            phases.len() - 1
        });
        phases[at].take(part);
        phases[at].mark = match (part.part, part.how) {
            (Part::Skip, _) => Mark::Skipped,
            (_, None) => Mark::Running,
            (_, Some(How::Succeeded)) => Mark::Succeeded,
            (_, Some(How::Cancelled)) => Mark::Cancelled,
            (_, Some(_)) => Mark::Failed,
        };
    }
    phases
}

/// Returns the word for how a phase stands.
pub fn word(mark: Mark) -> &'static str {
    match mark {
        Mark::Waiting => "waiting",
        Mark::Running => "running",
        Mark::Asking => "asking",
        Mark::Succeeded => "succeeded",
        Mark::Failed => "failed",
        Mark::Skipped => "skipped",
        Mark::Cancelled => "cancelled",
    }
}

impl PhaseStand {
    fn new(name: &str, label: Option<String>) -> PhaseStand {
        PhaseStand {
            name: name.to_owned(),
            label,
            mark: Mark::Waiting,
            parts: Vec::new(),
            items: None,
            began: None,
            ended: None,
        }
    }

    /// Returns what people are shown as its name.
    pub fn title(&self) -> &str {
        self.label.as_deref().unwrap_or(&self.name)
    }

    /// Returns what a part is called inside of it; nothing where it is the phase itself.
    pub fn name_of(&self, part: Part) -> Option<String> {
        match part {
            Part::Work | Part::Items | Part::Skip | Part::Reset | Part::Gate(_) => None,
            Part::Fix(number) => Some(format!("fix {number}")),
            Part::Recheck(number) => Some(format!("review after fix {number}")),
            Part::Iteration(number) => Some(format!("pass {number}")),
            Part::Check(number) => Some(format!("check of pass {number}")),
            Part::Item(number) => Some(self.item_name(number)),
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
    pub fn took_ms(&self, now: Timestamp) -> Option<i64> {
        let took = self.ended.unwrap_or(now).duration_since(self.began?).as_millis();
        i64::try_from(took).ok().map(|took| took.max(0))
    }

    /// Returns what it cost, in millionths of a dollar.
    pub fn micros(&self) -> i64 {
        self.parts.iter().map(|part| part.micros).sum()
    }

    /// Returns what went wrong in it last.
    pub fn error(&self) -> Option<&str> {
        self.parts.iter().rev().find_map(|part| part.error.as_deref())
    }

    /// Says whether nothing of it has begun: its jobs wait in the queue.
    fn is_queued(&self) -> bool {
        let mut jobs = self.parts.iter().filter(|part| part.job.is_some()).peekable();
        let is_queued = |part: &PartRow| {
            part.how.is_none() && part.status == JobStatus::Pending && part.started_at.is_none()
        };
        jobs.peek().is_some() && jobs.all(is_queued)
    }

    /// Says what it waits for in the queue, if it does.
    pub fn waits_for(&self, reader: &Reader) -> Result<Option<String>, DbError> {
        let job = self.parts.iter().find_map(|part| part.job.as_ref());
        let Some(job) = job.filter(|_| self.is_queued()) else { return Ok(None) };
        let reason = reader.queued(job)?.map(|queued| queued.reason);
        Ok(reason.filter(|reason| !reason.is_empty()).map(|reason| format!("waits: {reason}")))
    }

    fn was_cancelled(&self) -> bool {
        self.parts.last().is_none_or(|part| part.how == Some(How::Cancelled))
    }

    fn take(&mut self, part: &PartRow) {
        if part.part == Part::Reset {
            *self = PhaseStand::new(&self.name, self.label.take());
            return;
        }
        if part.part == Part::Items {
            self.items = part.items.as_deref().and_then(|text| serde_json::from_str(text).ok());
        }
        self.began.get_or_insert(part.started_at.unwrap_or(part.asked_at));
        self.ended = self.ended.max(part.finished_at);
        self.parts.push(part.clone());
    }

    fn take_gate(&mut self, gate: &Approval) {
        // One from before it was last begun.
        if self.began.is_none_or(|began| gate.created_at < began) {
            return;
        }
        self.ended = self.ended.max(gate.responded_at);
    }
}

/// Returns what the phases of a run said last, by their names.
pub fn outputs(
    reader: &Reader,
    row: &WorkflowRunRow,
    workflow: Option<Workflow>,
) -> Result<HashMap<String, String>, DbError> {
    let Some(workflow) = workflow else { return Ok(HashMap::new()) };
    let mut course = Course::new(Arc::new(workflow), Json::Null);
    for row in reader.journal(&row.head.id)? {
        let Some(phase) = course.workflow.place_of(&row.phase) else { continue };
        course.fold(&Entry {
            phase,
            part: row.part,
            seq: row.seq,
            job: row.job,
            how: row.how,
            decision: row.decision,
            output: row.output.map(Into::into),
            error: row.error,
            micros: row.micros,
        });
    }
    let names = course.workflow.phases.iter().map(|phase| phase.name.as_str());
    let said = names.filter_map(|name| Some((name.to_owned(), course.output_of(name)?.to_owned())));
    Ok(said.collect())
}
