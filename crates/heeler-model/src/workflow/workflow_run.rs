//! One run of a workflow: what the entries of its journal come to.
//!
//! Reading the journal in the order of its beginnings gives the same as writing it did, whatever the
//! order in which parts ended: each phase is a fold of its own entries, and what it waits for is only
//! whether others are over. Nothing here looks at templates, config or time. Start at [`WorkflowRun::apply_entry`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::{Map, Value as Json};

use super::definition::{Phase, PhaseRepeat, PhaseWork, TriggerRule, Workflow};
use super::journal::{JournalEntry, PartDecision, PartOutcome, PhasePart};
use super::status::WorkflowRunStatus;

/// How often in a row a part that was cut off by a crash is done again.
pub const RESTARTS_MAX: u32 = 3;

/// How a phase ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhaseOutcome {
    /// Well.
    Succeeded,
    /// Badly.
    Failed,
    /// It was left out.
    Skipped,
}

/// One run of a workflow.
#[derive(Debug, Clone)]
pub struct WorkflowRun {
    /// What it goes by.
    pub workflow: Arc<Workflow>,
    /// Where it is.
    pub status: WorkflowRunStatus,
    /// What it was started with. It never changes.
    pub context: Json,
    /// What its phases have left for each other.
    pub scratch: Map<String, Json>,
    /// What people are shown as the phase that it is at.
    pub current_phase: String,
    /// Why it failed.
    pub error: Option<String>,
    /// How often parts of it were cut off since a person last started it, all together.
    pub restarts: u32,
    /// What it cost, in millionths of a dollar.
    pub spent_micros: i64,
    /// How many entries its journal has.
    pub seq: u64,
    pub(super) outputs: IndexMap<String, Arc<str>>,
    /// What parts that go on may still cost, by their numbers.
    pub(super) grants: BTreeMap<u64, i64>,
    pub(super) nodes: Vec<PhaseNode>,
    pub(super) dependants: Vec<Vec<usize>>,
    /// Phases whose turn may have come.
    pub(super) ready_phases: BTreeSet<usize>,
    /// Parts that jobs are at.
    pub(super) open_parts: usize,
    /// Gates that wait for somebody.
    pub(super) open_gates: usize,
    /// Phases that are not over.
    remaining_phases: usize,
    failed_phases: usize,
}

/// What is known of a phase.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PhaseNode {
    /// How many of those it waits for are not over.
    pub(super) unmet_dependencies: usize,
    pub(super) state: PhaseState,
}

/// Where a phase is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum PhaseState {
    Waiting,
    Active(PhaseProgress),
    Finished(PhaseOutcome),
}

/// How far a phase has come.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct PhaseProgress {
    /// The part that goes on.
    pub(super) open_part: Option<PhasePart>,
    /// The part that ended last.
    pub(super) last_part: Option<LastPart>,
    /// How often that part has failed.
    pub(super) failures: u32,
    /// How often in a row it was cut off.
    pub(super) interrupts: u32,
    /// What earlier passes of a loop said: their end.
    pub(super) loop_output: String,
    pub(super) items: Option<ItemsProgress>,
}

/// The part of a phase that ended last.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LastPart {
    pub(super) part: PhasePart,
    pub(super) outcome: PartOutcome,
    pub(super) decision: Option<PartDecision>,
}

/// How far a phase has come that is done for each of several items.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ItemsProgress {
    pub(super) list: Arc<Vec<Json>>,
    states: Vec<ItemProgress>,
    /// Those that are to be done: new ones, and again.
    pub(super) ready_items: BTreeSet<u32>,
    pub(super) open_items: usize,
    remaining_items: usize,
    failed_items: usize,
}

#[derive(Debug, Clone, PartialEq, Default)]
struct ItemProgress {
    failures: u32,
    interrupts: u32,
    output: Option<Arc<str>>,
}

/// What comes next in a phase that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PhaseAction {
    /// It waits for a part that goes on.
    Wait,
    /// This part.
    Begin(PhasePart),
    /// It is over.
    Finish(PhaseOutcome),
}

/// How much of what earlier passes said the next one is told, in bytes.
pub(super) const LOOP_OUTPUT_BYTES_MAX: usize = 10 << 10;

impl WorkflowRun {
    /// Begins a run.
    pub fn new(workflow: Arc<Workflow>, context: Json) -> WorkflowRun {
        let count = workflow.phases.len();
        let mut dependants = vec![Vec::new(); count];
        for (place, phase) in workflow.phases.iter().enumerate() {
            phase.depends_on.iter().for_each(|on| dependants[*on].push(place));
        }
        let node = |phase: &Phase| PhaseNode {
            unmet_dependencies: phase.depends_on.len(),
            state: PhaseState::Waiting,
        };
        let nodes: Vec<PhaseNode> = workflow.phases.iter().map(node).collect();
        let due = (0..count).filter(|place| nodes[*place].unmet_dependencies == 0).collect();
        WorkflowRun {
            status: WorkflowRunStatus::Running,
            context,
            scratch: Map::new(),
            current_phase: String::new(),
            error: None,
            restarts: 0,
            spent_micros: 0,
            seq: 0,
            outputs: IndexMap::new(),
            grants: BTreeMap::new(),
            nodes,
            dependants,
            ready_phases: due,
            open_parts: 0,
            open_gates: 0,
            remaining_phases: count,
            failed_phases: 0,
            workflow,
        }
    }

    /// Takes in an entry of the journal: its beginning, its end, or both at once.
    pub fn apply_entry(&mut self, entry: &JournalEntry) {
        self.seq = self.seq.max(entry.seq + 1);
        let place = entry.phase;
        if place >= self.nodes.len() {
            return;
        }
        match (entry.part, entry.outcome) {
            (PhasePart::Reset, _) => return self.reset_phase(place),
            (PhasePart::Skip, _) => return self.finish_phase(place, PhaseOutcome::Skipped),
            (part, None) => {
                if entry.micros > 0 {
                    self.grants.insert(entry.seq, entry.micros);
                }
                self.open_part(place, part);
            }
            (_, Some(how)) => {
                let how = match entry.decision {
                    Some(PartDecision::Stopped) => PartOutcome::Interrupted,
                    // Whichever way its command ended, it said what was asked.
                    Some(PartDecision::ConditionMet | PartDecision::ConditionNotMet) => {
                        PartOutcome::Succeeded
                    }
                    _ => how,
                };
                self.close_part(entry, how);
            }
        }
        match self.next_action(place) {
            PhaseAction::Finish(end) => self.finish_phase(place, end),
            PhaseAction::Begin(_) => drop(self.ready_phases.insert(place)),
            PhaseAction::Wait => drop(self.ready_phases.remove(&place)),
        }
    }

    fn open_part(&mut self, place: usize, part: PhasePart) {
        match part {
            PhasePart::Gate(_) => self.open_gates += 1,
            _ => self.open_parts += 1,
        }
        let progress = self.progress_mut(place);
        match (part, &mut progress.items) {
            (PhasePart::Item(number), Some(items)) => {
                items.open_items += 1;
                items.ready_items.remove(&number);
            }
            _ => progress.open_part = Some(part),
        }
    }

    fn close_part(&mut self, entry: &JournalEntry, how: PartOutcome) {
        let place = entry.phase;
        self.grants.remove(&entry.seq);
        self.spent_micros = self.spent_micros.saturating_add(entry.micros);
        let was_open = match (entry.part, &mut self.progress_mut(place).items) {
            // One that was never open was over when it began.
            (PhasePart::Item(number), Some(items)) => !items.ready_items.remove(&number),
            _ => self.progress_mut(place).open_part.take().is_some(),
        };
        match entry.part {
            _ if !was_open => {}
            PhasePart::Gate(_) => self.open_gates -= 1,
            _ => self.open_parts -= 1,
        }
        let retries = self.workflow.phases[place].retry.max;
        match entry.part {
            PhasePart::Items => self.list_items(entry),
            PhasePart::Item(number) => {
                if let Some(items) = &mut self.progress_mut(place).items {
                    items.open_items -= usize::from(was_open);
                    items.close(number, entry, how, retries);
                }
            }
            _ => self.progress_mut(place).close(entry, how),
        }
        self.store_output(entry, how);
    }

    fn list_items(&mut self, entry: &JournalEntry) {
        let list: Option<Vec<Json>> =
            entry.output.as_ref().and_then(|text| serde_json::from_str(text).ok());
        let list = list.unwrap_or_default();
        let count = list.len();
        let items = ItemsProgress {
            list: Arc::new(list),
            states: vec![ItemProgress::default(); count],
            ready_items: (1..=u32::try_from(count).unwrap_or(u32::MAX)).collect(),
            open_items: 0,
            remaining_items: count,
            failed_items: 0,
        };
        let progress = self.progress_mut(entry.phase);
        progress.items = Some(items);
        progress.close(entry, entry.outcome.unwrap_or(PartOutcome::Failed));
    }

    /// Lets later phases see what a part said, if it is what its phase came to so far.
    fn store_output(&mut self, entry: &JournalEntry, how: PartOutcome) {
        let counts = match entry.part {
            PhasePart::Work | PhasePart::Iteration(_) | PhasePart::Recheck(_) => {
                how != PartOutcome::Interrupted
            }
            PhasePart::Item(_) => return self.store_item_outputs(entry.phase),
            _ => false,
        };
        if let Some(output) = entry.output.clone().filter(|_| counts) {
            self.set_output(entry.phase, output);
        }
    }

    /// Once all items are over, their outputs together are the phase's, as a JSON list.
    fn store_item_outputs(&mut self, place: usize) {
        let Some(items) =
            self.progress_mut(place).items.as_ref().filter(|it| it.remaining_items == 0)
        else {
            return;
        };
        let outputs: Vec<&str> =
            items.states.iter().map(|it| it.output.as_deref().unwrap_or_default()).collect();
        let text = serde_json::to_string(&outputs).expect("a list of texts is JSON");
        self.set_output(place, text.into());
    }

    fn set_output(&mut self, place: usize, output: Arc<str>) {
        let phase = &self.workflow.phases[place];
        if let Some(alias) = &phase.output_var {
            self.outputs.insert(alias.clone(), Arc::clone(&output));
        }
        self.outputs.insert(phase.name.to_string(), output);
    }

    /// Returns how far a phase has come; it begins if it had not.
    fn progress_mut(&mut self, place: usize) -> &mut PhaseProgress {
        let node = &mut self.nodes[place];
        if !matches!(node.state, PhaseState::Active(_)) {
            // A phase that was over goes on only in a journal that somebody changed by hand.
            if let PhaseState::Finished(end) = node.state {
                self.remaining_phases += 1;
                self.failed_phases -= usize::from(end == PhaseOutcome::Failed);
            }
            node.state = PhaseState::Active(PhaseProgress::default());
        }
        match &mut node.state {
            PhaseState::Active(progress) => progress,
            _ => unreachable!("it was made so above"),
        }
    }

    fn finish_phase(&mut self, place: usize, end: PhaseOutcome) {
        self.ready_phases.remove(&place);
        if matches!(self.nodes[place].state, PhaseState::Finished(_)) {
            return;
        }
        self.nodes[place].state = PhaseState::Finished(end);
        self.remaining_phases -= 1;
        self.failed_phases += usize::from(end == PhaseOutcome::Failed);
        for dependant in self.dependants[place].clone() {
            let node = &mut self.nodes[dependant];
            node.unmet_dependencies = node.unmet_dependencies.saturating_sub(1);
            if node.unmet_dependencies == 0 && node.state == PhaseState::Waiting {
                self.ready_phases.insert(dependant);
            }
        }
    }

    /// Lets a phase be as if it had never begun.
    fn reset_phase(&mut self, place: usize) {
        if let PhaseState::Finished(end) = self.nodes[place].state {
            self.remaining_phases += 1;
            self.failed_phases -= usize::from(end == PhaseOutcome::Failed);
            for dependant in &self.dependants[place] {
                self.nodes[*dependant].unmet_dependencies += 1;
                self.ready_phases.remove(dependant);
            }
        }
        let phase = &self.workflow.phases[place];
        self.outputs.shift_remove(phase.name.as_str());
        if let Some(alias) = &phase.output_var {
            self.outputs.shift_remove(alias);
        }
        self.nodes[place].state = PhaseState::Waiting;
        self.ready_phases.remove(&place);
        if self.nodes[place].unmet_dependencies == 0 {
            self.ready_phases.insert(place);
        }
    }

    /// Says what comes next in a phase.
    pub(super) fn next_action(&self, place: usize) -> PhaseAction {
        let PhaseState::Active(progress) = &self.nodes[place].state else {
            return PhaseAction::Wait;
        };
        let phase = &self.workflow.phases[place];
        if progress.open_part.is_some() {
            return PhaseAction::Wait;
        }
        let Some(last) = progress.last_part else { return PhaseAction::Begin(first_part(phase)) };
        if let Some(next) = retry_action(phase, progress, last) {
            return next;
        }
        match &phase.repeat {
            PhaseRepeat::Once => after_work(phase, last),
            PhaseRepeat::Review(review) => {
                let has_gate = review.gate.is_some();
                after_review(phase, last, review.max_cycles, has_gate)
            }
            PhaseRepeat::Until(until) => {
                let most = until.max_iterations.resolve(&self.context);
                let soft_completes = until.on_soft_failure.completes;
                let has = LoopFeatures {
                    has_check: until.until_bash.is_some(),
                    has_gate: until.gate.is_some(),
                };
                after_iteration(phase, last, most, soft_completes, has)
            }
            PhaseRepeat::Foreach(_) => after_items(phase, progress, last),
        }
    }

    /// Says whether the phases that one waits for are as it wants; all of them are over.
    pub(super) fn meets_trigger_rule(&self, place: usize) -> bool {
        let phase = &self.workflow.phases[place];
        let ends = || {
            phase.depends_on.iter().filter_map(|on| match self.nodes[*on].state {
                PhaseState::Finished(end) => Some(end),
                _ => None,
            })
        };
        let has = |wanted: PhaseOutcome| ends().any(|end| end == wanted);
        match phase.trigger_rule {
            _ if phase.depends_on.is_empty() => true,
            TriggerRule::AllSuccess => ends().all(|end| end == PhaseOutcome::Succeeded),
            TriggerRule::OneSuccess => has(PhaseOutcome::Succeeded),
            TriggerRule::NoneFailedMinOneSuccess => {
                has(PhaseOutcome::Succeeded) && !has(PhaseOutcome::Failed)
            }
            TriggerRule::AllDone => true,
        }
    }

    /// Returns how a phase ended.
    pub fn phase_outcome(&self, place: usize) -> Option<PhaseOutcome> {
        match self.nodes.get(place)?.state {
            PhaseState::Finished(end) => Some(end),
            _ => None,
        }
    }

    /// Says whether a phase is at work or asks somebody.
    pub fn is_phase_active(&self, place: usize) -> bool {
        matches!(self.nodes.get(place).map(|node| &node.state), Some(PhaseState::Active(_)))
    }

    /// Returns what a phase said.
    pub fn phase_output(&self, name: &str) -> Option<&str> {
        self.outputs.get(name).map(|text| &**text)
    }

    /// Says whether jobs of it are still at work.
    pub fn has_open_parts(&self) -> bool {
        self.open_parts > 0
    }

    /// Returns where the run is by what its phases have come to.
    pub(super) fn compute_status(&self) -> WorkflowRunStatus {
        match (self.remaining_phases, self.failed_phases) {
            (0, 0) => WorkflowRunStatus::Succeeded,
            (0, _) => WorkflowRunStatus::Failed,
            _ if self.open_parts == 0 && self.open_gates > 0 && self.ready_phases.is_empty() => {
                WorkflowRunStatus::Paused
            }
            _ => WorkflowRunStatus::Running,
        }
    }

    /// Returns a phase and everything that waits for it, in the order of the file.
    pub(super) fn with_dependants(
        &self,
        places: impl IntoIterator<Item = usize>,
    ) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let mut open: Vec<usize> = places.into_iter().collect();
        while let Some(place) = open.pop() {
            if found.insert(place) {
                open.extend(&self.dependants[place]);
            }
        }
        found
    }
}

impl PhaseProgress {
    fn close(&mut self, entry: &JournalEntry, how: PartOutcome) {
        let is_same = self.last_part.is_some_and(|last| last.part == entry.part);
        let before = if is_same { self.interrupts } else { 0 };
        self.interrupts = interrupts_after(before, entry, how);
        let failures = if is_same { self.failures } else { 0 };
        self.failures =
            failures + u32::from(matches!(how, PartOutcome::Failed | PartOutcome::Soft));
        self.last_part =
            Some(LastPart { part: entry.part, outcome: how, decision: entry.decision });
        if let (PhasePart::Iteration(_), Some(output)) = (entry.part, &entry.output) {
            self.loop_output.push_str(output);
            self.loop_output.push_str("\n\n");
            let from = self.loop_output.len().saturating_sub(LOOP_OUTPUT_BYTES_MAX);
            let from = self.loop_output.ceil_char_boundary(from);
            self.loop_output.drain(..from);
        }
    }
}

impl PhaseProgress {
    /// Returns how often in a row a part was cut off.
    pub(super) fn interrupts_of(&self, part: PhasePart) -> u32 {
        match (part, &self.items, self.last_part) {
            (PhasePart::Item(number), Some(items), _) => {
                items.states.get(number as usize - 1).map_or(0, |state| state.interrupts)
            }
            (_, _, Some(last)) if last.part == part => self.interrupts,
            _ => 0,
        }
    }

    /// Returns how often a part has failed that is to be done now.
    pub(super) fn failures_of(&self, part: PhasePart) -> u32 {
        match (part, &self.items, self.last_part) {
            (PhasePart::Item(number), Some(items), _) => {
                items.states.get(number as usize - 1).map_or(0, |state| state.failures)
            }
            (_, _, Some(last)) if last.part == part => self.failures,
            _ => 0,
        }
    }
}

/// Counts how often in a row a part was cut off. That the fleet was stopped is no crash.
fn interrupts_after(before: u32, entry: &JournalEntry, how: PartOutcome) -> u32 {
    match how {
        PartOutcome::Interrupted if entry.decision == Some(PartDecision::Stopped) => before,
        PartOutcome::Interrupted => before + 1,
        _ => 0,
    }
}

impl ItemsProgress {
    fn close(&mut self, number: u32, entry: &JournalEntry, how: PartOutcome, retries: u32) {
        let Some(state) = self.states.get_mut(number as usize - 1) else { return };
        state.interrupts = interrupts_after(state.interrupts, entry, how);
        let gave_up = entry.decision.is_some_and(PartDecision::is_failure);
        let fails = how != PartOutcome::Succeeded || gave_up;
        state.failures += u32::from(how == PartOutcome::Failed || how == PartOutcome::Soft);
        let again = match how {
            _ if gave_up => false,
            PartOutcome::Interrupted => true,
            PartOutcome::Failed | PartOutcome::Soft => state.failures <= retries,
            PartOutcome::Succeeded | PartOutcome::Cancelled => false,
        };
        if again {
            self.ready_items.insert(number);
            return;
        }
        state.output = entry.output.clone();
        self.remaining_items -= 1;
        self.failed_items += usize::from(fails);
    }
}

pub(super) fn first_part(phase: &Phase) -> PhasePart {
    match phase.repeat {
        PhaseRepeat::Once | PhaseRepeat::Review(_) => PhasePart::Work,
        PhaseRepeat::Until(_) => PhasePart::Iteration(1),
        PhaseRepeat::Foreach(_) => PhasePart::Items,
    }
}

/// Says what comes next after a part that did not end well, whatever kind of part.
fn retry_action(phase: &Phase, progress: &PhaseProgress, last: LastPart) -> Option<PhaseAction> {
    if last.decision.is_some_and(PartDecision::is_failure) {
        return Some(PhaseAction::Finish(PhaseOutcome::Failed));
    }
    match (last.part, last.outcome) {
        (PhasePart::Item(_), _) => None,
        (_, PartOutcome::Interrupted) => Some(PhaseAction::Begin(last.part)),
        (_, PartOutcome::Cancelled) => Some(PhaseAction::Finish(PhaseOutcome::Failed)),
        (PhasePart::Gate(_), PartOutcome::Failed) => {
            Some(PhaseAction::Finish(PhaseOutcome::Failed))
        }
        (_, PartOutcome::Failed) if progress.failures <= phase.retry.max => {
            Some(PhaseAction::Begin(last.part))
        }
        (_, PartOutcome::Failed) => Some(PhaseAction::Finish(PhaseOutcome::Failed)),
        (_, PartOutcome::Soft) => match &phase.repeat {
            PhaseRepeat::Until(until) if progress.failures <= until.on_soft_failure.retries => {
                Some(PhaseAction::Begin(last.part))
            }
            PhaseRepeat::Until(until) if until.on_soft_failure.completes => None,
            PhaseRepeat::Once | PhaseRepeat::Review(_) if progress.failures <= phase.retry.max => {
                Some(PhaseAction::Begin(last.part))
            }
            _ => Some(PhaseAction::Finish(PhaseOutcome::Failed)),
        },
        (_, PartOutcome::Succeeded) => None,
    }
}

fn finish_or_gate(phase: &Phase) -> PhaseAction {
    match phase.gate {
        Some(_) => PhaseAction::Begin(PhasePart::Gate(0)),
        None => PhaseAction::Finish(PhaseOutcome::Succeeded),
    }
}

fn after_work(phase: &Phase, last: LastPart) -> PhaseAction {
    match last.part {
        PhasePart::Gate(_) => PhaseAction::Finish(PhaseOutcome::Succeeded),
        _ => finish_or_gate(phase),
    }
}

fn after_review(phase: &Phase, last: LastPart, cycles: u32, has_gate: bool) -> PhaseAction {
    let wants_changes = last.decision == Some(PartDecision::RequestChanges);
    match last.part {
        PhasePart::Gate(0) => PhaseAction::Finish(PhaseOutcome::Succeeded),
        PhasePart::Gate(cycle) => PhaseAction::Begin(PhasePart::Fix(cycle)),
        PhasePart::Fix(cycle) => PhaseAction::Begin(PhasePart::Recheck(cycle)),
        PhasePart::Work | PhasePart::Recheck(_) if wants_changes => {
            let cycle = match last.part {
                PhasePart::Recheck(cycle) => cycle + 1,
                _ => 1,
            };
            match has_gate {
                // The work counts as done after the last fix.
                _ if cycle > cycles => finish_or_gate(phase),
                true => PhaseAction::Begin(PhasePart::Gate(cycle)),
                false => PhaseAction::Begin(PhasePart::Fix(cycle)),
            }
        }
        _ => finish_or_gate(phase),
    }
}

/// What a loop has beside its passes.
#[derive(Clone, Copy)]
struct LoopFeatures {
    has_check: bool,
    has_gate: bool,
}

fn after_iteration(
    phase: &Phase,
    last: LastPart,
    most: u32,
    soft_completes: bool,
    has: LoopFeatures,
) -> PhaseAction {
    let next_pass = |number: u32| match has.has_gate {
        _ if number >= most => finish_or_gate(phase),
        true => PhaseAction::Begin(PhasePart::Gate(number)),
        false => PhaseAction::Begin(PhasePart::Iteration(number + 1)),
    };
    match (last.part, last.decision) {
        (PhasePart::Gate(0), _) => PhaseAction::Finish(PhaseOutcome::Succeeded),
        (PhasePart::Gate(number), _) => PhaseAction::Begin(PhasePart::Iteration(number + 1)),
        (_, Some(PartDecision::ConditionMet)) => finish_or_gate(phase),
        (PhasePart::Iteration(_), _) if last.outcome == PartOutcome::Soft && soft_completes => {
            finish_or_gate(phase)
        }
        (PhasePart::Iteration(number), Some(PartDecision::ConditionOpen)) if has.has_check => {
            PhaseAction::Begin(PhasePart::Check(number))
        }
        (PhasePart::Iteration(number) | PhasePart::Check(number), _) => next_pass(number),
        _ => finish_or_gate(phase),
    }
}

fn after_items(phase: &Phase, progress: &PhaseProgress, last: LastPart) -> PhaseAction {
    let Some(items) = &progress.items else { return PhaseAction::Finish(PhaseOutcome::Failed) };
    match (last.part, items.remaining_items, items.failed_items) {
        (PhasePart::Gate(_), ..) => PhaseAction::Finish(PhaseOutcome::Succeeded),
        (_, 0, 0) => finish_or_gate(phase),
        (_, 0, _) => PhaseAction::Finish(PhaseOutcome::Failed),
        _ => match items.ready_items.first() {
            Some(number) => PhaseAction::Begin(PhasePart::Item(*number)),
            None => PhaseAction::Wait,
        },
    }
}

/// Says whether a part is done by nobody but us.
pub(super) fn needs_no_job(phase: &Phase, part: PhasePart) -> bool {
    let has_no_work = matches!(phase.work, PhaseWork::Context);
    match part {
        PhasePart::Check(_) => false,
        PhasePart::Items | PhasePart::Skip | PhasePart::Reset => true,
        _ => has_no_work && !matches!(part, PhasePart::Gate(_)),
    }
}
