//! State of a workflow run, computed from its journal.
//!
//! Replaying the entries in order of their start gives the state that the writer had, regardless of
//! the order in which parts ended: each phase is a fold of its own entries, and depends on others
//! only by their end. Nothing here uses templates, config or time. Start at
//! [`WorkflowRun::apply_entry`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use heeler_config::workflow::{Phase, PhaseRepeat, PhaseWork, TriggerRule, Workflow};
use indexmap::IndexMap;
use serde_json::{Map, Value as Json};

use super::journal::{JournalEntry, PartDecision, PartOutcome, PhasePart};
use super::loop_result::{LoopEnd, LoopResult};
use super::next_action::{
    LoopFeatures, after_items, after_iteration, after_review, after_work, retry_action,
};
use super::status::WorkflowRunStatus;

/// Most consecutive repetitions of a part that crashes interrupted.
pub const RESTARTS_MAX: u32 = 3;

/// Outcome of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhaseOutcome {
    Succeeded,
    Failed,
    Skipped,
}

/// State of one execution of a workflow.
#[derive(Debug, Clone)]
pub struct WorkflowRun {
    pub workflow: Arc<Workflow>,
    pub status: WorkflowRunStatus,
    /// Inputs of the run. Never changes.
    pub context: Json,
    /// Data that phases share.
    pub scratch: Map<String, Json>,
    /// Name of the current phase, for display.
    pub current_phase: String,
    /// First error of the run.
    pub error: Option<String>,
    /// Interruptions of all parts since a person last started the run.
    pub restarts: u32,
    /// Cost in millionths of a US dollar.
    pub spent_micros: i64,
    /// Number of entries in the journal.
    pub seq: u64,
    pub(super) outputs: IndexMap<String, Arc<str>>,
    /// Results of loops, by their `output_var`.
    pub(super) loop_results: IndexMap<String, Json>,
    /// Budgets of the parts in progress, by entry number.
    pub(super) grants: BTreeMap<u64, i64>,
    pub(super) nodes: Vec<PhaseNode>,
    pub(super) dependants: Vec<Vec<usize>>,
    /// Phases that may have a part to begin.
    pub(super) ready_phases: BTreeSet<usize>,
    /// Number of parts with a running or queued job.
    pub(super) open_parts: usize,
    /// Number of gates that wait for an answer.
    pub(super) open_gates: usize,
    /// Number of phases that have not ended.
    remaining_phases: usize,
    failed_phases: usize,
}

/// State of a phase within a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PhaseNode {
    /// Number of dependencies that have not ended.
    pub(super) unmet_dependencies: usize,
    pub(super) state: PhaseState,
    /// Result of the phase's loop, if it has one.
    pub(super) loop_result: Option<LoopResult>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum PhaseState {
    Waiting,
    Active(PhaseProgress),
    Finished(PhaseOutcome),
}

/// Progress of an active phase.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct PhaseProgress {
    /// Part in progress.
    pub(super) open_part: Option<PhasePart>,
    /// Part that ended last.
    pub(super) last_part: Option<LastPart>,
    /// Number of failures of that part.
    pub(super) failures: u32,
    /// Consecutive interruptions of that part.
    pub(super) interrupts: u32,
    /// Output of earlier iterations; only its end is kept.
    pub(super) loop_output: String,
    pub(super) items: Option<ItemsProgress>,
}

/// Part that ended last.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LastPart {
    pub(super) part: PhasePart,
    pub(super) outcome: PartOutcome,
    pub(super) decision: Option<PartDecision>,
}

/// Progress of a phase with a `foreach`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ItemsProgress {
    pub(super) list: Arc<Vec<Json>>,
    states: Vec<ItemProgress>,
    /// Items to begin: new ones and repetitions.
    pub(super) ready_items: BTreeSet<u32>,
    pub(super) open_items: usize,
    pub(super) remaining_items: usize,
    pub(super) failed_items: usize,
}

#[derive(Debug, Clone, PartialEq, Default)]
struct ItemProgress {
    failures: u32,
    interrupts: u32,
    output: Option<Arc<str>>,
}

/// Next action of an active phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PhaseAction {
    /// Wait for the part in progress.
    Wait,
    Begin(PhasePart),
    Finish(PhaseOutcome),
}

/// Most output of earlier iterations that the next one sees, in bytes.
pub(super) const LOOP_OUTPUT_BYTES_MAX: usize = 10 << 10;

impl WorkflowRun {
    /// Creates the state of a new run.
    pub fn new(workflow: Arc<Workflow>, context: Json) -> WorkflowRun {
        let count = workflow.phases.len();
        let mut dependants = vec![Vec::new(); count];
        for (place, phase) in workflow.phases.iter().enumerate() {
            phase.depends_on.iter().for_each(|on| dependants[*on].push(place));
        }
        let node = |phase: &Phase| PhaseNode {
            unmet_dependencies: phase.depends_on.len(),
            state: PhaseState::Waiting,
            loop_result: None,
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
            loop_results: IndexMap::new(),
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

    /// Applies a journal entry: the start of a part, its end, or both at once.
    pub fn apply_entry(&mut self, entry: &JournalEntry) {
        // The maximum, because entries are read by their beginning but end in any order.
        self.seq = self.seq.max(entry.seq + 1);
        let place = entry.phase;
        // A row from disk may name any phase; it must not panic.
        if place >= self.nodes.len() {
            return;
        }
        match (entry.part, entry.outcome) {
            (PhasePart::Reset, _) => return self.reset_phase(place),
            (PhasePart::Skip, _) => return self.finish_phase(place, PhaseOutcome::Skipped),
            (part, None) => {
                // Zero means that the part has no budget of its own.
                if entry.micros > 0 {
                    self.grants.insert(entry.seq, entry.micros);
                }
                self.open_part(place, part);
            }
            (_, Some(how)) => {
                let how = match entry.decision {
                    // The fleet was stopped, which is no fault of the part: it begins again without
                    // a penalty.
                    Some(PartDecision::Stopped) => PartOutcome::Interrupted,
                    // The command's exit code is its answer, so either one is a success.
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
            // A phase with items has many open parts at once, so they are only counted.
            (PhasePart::Item(number), Some(items)) => {
                items.open_items += 1;
                items.ready_items.remove(&number);
            }
            _ => progress.open_part = Some(part),
        }
    }

    fn close_part(&mut self, entry: &JournalEntry, how: PartOutcome) {
        let place = entry.phase;
        // The cost replaces the grant, exactly as a reservation is replaced.
        self.grants.remove(&entry.seq);
        self.spent_micros = self.spent_micros.saturating_add(entry.micros);
        let was_open = match (entry.part, &mut self.progress_mut(place).items) {
            // A part that was never open ended in the entry that began it.
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
        self.store_loop_result(entry, how);
    }

    fn store_loop_result(&mut self, entry: &JournalEntry, how: PartOutcome) {
        let phase = &self.workflow.phases[entry.phase];
        let Some(result) = LoopResult::after(&phase.repeat, entry, how) else { return };
        self.nodes[entry.phase].loop_result = Some(result);
        if let Some(name) = &phase.output_var {
            self.loop_results.insert(name.clone(), result.to_json(&phase.repeat));
        }
    }

    fn list_items(&mut self, entry: &JournalEntry) {
        let list: Option<Vec<Json>> =
            // The journal is data from disk: a list that cannot be read is an empty one.
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

    /// Stores the output of a part for later phases, if it is the latest result of its phase.
    fn store_output(&mut self, entry: &JournalEntry, how: PartOutcome) {
        let counts = match entry.part {
            PhasePart::Work | PhasePart::Iteration(_) | PhasePart::Recheck(_) => {
                // An interrupted part is repeated; its output so far would be taken for its result.
                how != PartOutcome::Interrupted
            }
            PhasePart::Item(_) => return self.store_item_outputs(entry.phase),
            _ => false,
        };
        if let Some(output) = entry.output.clone().filter(|_| counts) {
            self.set_output(entry.phase, output);
        }
    }

    /// When all items have ended, stores their outputs as the phase's, in a JSON list.
    fn store_item_outputs(&mut self, place: usize) {
        // A partial list would shift the items that later phases pair it with.
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

    /// Returns the progress of a phase, which becomes active if it was not.
    fn progress_mut(&mut self, place: usize) -> &mut PhaseProgress {
        let node = &mut self.nodes[place];
        if !matches!(node.state, PhaseState::Active(_)) {
            // A finished phase becomes active only in a journal that was edited by hand.
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
        // Before the check: a phase that has ended must never be chosen again.
        self.ready_phases.remove(&place);
        if matches!(self.nodes[place].state, PhaseState::Finished(_)) {
            return;
        }
        self.nodes[place].state = PhaseState::Finished(end);
        self.remaining_phases -= 1;
        self.failed_phases += usize::from(end == PhaseOutcome::Failed);
        // A copy, because the nodes are changed in the loop.
        for dependant in self.dependants[place].clone() {
            let node = &mut self.nodes[dependant];
            node.unmet_dependencies = node.unmet_dependencies.saturating_sub(1);
            if node.unmet_dependencies == 0 && node.state == PhaseState::Waiting {
                self.ready_phases.insert(dependant);
            }
        }
    }

    /// Resets a phase as if it had never begun.
    fn reset_phase(&mut self, place: usize) {
        if let PhaseState::Finished(end) = self.nodes[place].state {
            self.remaining_phases += 1;
            self.failed_phases -= usize::from(end == PhaseOutcome::Failed);
            for dependant in &self.dependants[place] {
                self.nodes[*dependant].unmet_dependencies += 1;
                // A dependant must not begin with the outputs of an attempt that no longer counts.
                self.ready_phases.remove(dependant);
            }
        }
        // Templates of other phases must not see the outputs of the old attempt.
        let phase = &self.workflow.phases[place];
        self.outputs.shift_remove(phase.name.as_str());
        if let Some(alias) = &phase.output_var {
            self.outputs.shift_remove(alias);
            self.loop_results.shift_remove(alias);
        }
        self.nodes[place].loop_result = None;
        self.nodes[place].state = PhaseState::Waiting;
        self.ready_phases.remove(&place);
        if self.nodes[place].unmet_dependencies == 0 {
            self.ready_phases.insert(place);
        }
    }

    /// Returns the next action of a phase.
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

    /// Returns true if the dependencies satisfy the trigger rule. All of them must have ended.
    pub(super) fn meets_trigger_rule(&self, place: usize) -> bool {
        let phase = &self.workflow.phases[place];
        // The rule is asked only when all have ended, so every dependency has an end here.
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

    /// Returns the outcome of a phase, or `None` if it has not ended.
    pub fn phase_outcome(&self, place: usize) -> Option<PhaseOutcome> {
        match self.nodes.get(place)?.state {
            PhaseState::Finished(end) => Some(end),
            _ => None,
        }
    }

    /// Returns true if a phase has begun and not ended.
    pub fn is_phase_active(&self, place: usize) -> bool {
        matches!(self.nodes.get(place).map(|node| &node.state), Some(PhaseState::Active(_)))
    }

    /// Returns true if a failed fix has ended the phase. Later phases proceed as after the last cycle,
    /// but the run has failed.
    pub(super) fn has_failed_fix(&self, place: usize) -> bool {
        let result = self.nodes[place].loop_result;
        self.phase_outcome(place) == Some(PhaseOutcome::Succeeded)
            && result.is_some_and(|result| result.end == LoopEnd::FixFailed)
    }

    /// Returns the output of a phase.
    pub fn phase_output(&self, name: &str) -> Option<&str> {
        self.outputs.get(name).map(|text| &**text)
    }

    /// Returns true if jobs of the run are unfinished.
    pub fn has_open_parts(&self) -> bool {
        self.open_parts > 0
    }

    /// Computes the status of the run from its phases.
    pub(super) fn compute_status(&self) -> WorkflowRunStatus {
        match (self.remaining_phases, self.failed_phases) {
            (0, 0) if (0..self.nodes.len()).any(|place| self.has_failed_fix(place)) => {
                WorkflowRunStatus::Failed
            }
            (0, 0) => WorkflowRunStatus::Succeeded,
            (0, _) => WorkflowRunStatus::Failed,
            // A run with ready phases only lacks capacity, and is not waiting for a person.
            _ if self.open_parts == 0 && self.open_gates > 0 && self.ready_phases.is_empty() => {
                WorkflowRunStatus::Paused
            }
            _ => WorkflowRunStatus::Running,
        }
    }

    /// Returns the given phases and all that depend on them, in file order.
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
        // The counts are about one part; another part begins with none.
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
            // Only the end is kept, as the most recent iterations are the relevant ones.
            let from = self.loop_output.len().saturating_sub(LOOP_OUTPUT_BYTES_MAX);
            let from = self.loop_output.ceil_char_boundary(from);
            self.loop_output.drain(..from);
        }
    }
}

impl PhaseProgress {
    /// Returns the number of consecutive interruptions of a part.
    pub(super) fn interrupts_of(&self, part: PhasePart) -> u32 {
        match (part, &self.items, self.last_part) {
            (PhasePart::Item(number), Some(items), _) => {
                items.states.get(number as usize - 1).map_or(0, |state| state.interrupts)
            }
            (_, _, Some(last)) if last.part == part => self.interrupts,
            _ => 0,
        }
    }

    /// Returns the number of failures of a part.
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

/// Counts consecutive interruptions. A stop of the fleet is not counted.
fn interrupts_after(before: u32, entry: &JournalEntry, how: PartOutcome) -> u32 {
    match how {
        PartOutcome::Interrupted if entry.decision == Some(PartDecision::Stopped) => before,
        PartOutcome::Interrupted => before + 1,
        _ => 0,
    }
}

impl ItemsProgress {
    fn close(&mut self, number: u32, entry: &JournalEntry, how: PartOutcome, retries: u32) {
        // An edited journal may have more items than its list.
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

/// Returns true if a part is completed without a job.
pub(super) fn needs_no_job(phase: &Phase, part: PhasePart) -> bool {
    let has_no_work = matches!(phase.work, PhaseWork::Context);
    match part {
        PhasePart::Check(_) => false,
        PhasePart::Items | PhasePart::Skip | PhasePart::Reset => true,
        _ => has_no_work && !matches!(part, PhasePart::Gate(_)),
    }
}
