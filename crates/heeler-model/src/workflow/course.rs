//! One run of a workflow: what the entries of its journal come to.
//!
//! Reading the journal in the order of its beginnings gives the same as writing it did, whatever the
//! order in which parts ended: each phase is a fold of its own entries, and what it waits for is only
//! whether others are over. Nothing here looks at templates, config or time. Start at [`Course::fold`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::{Map, Value as Json};

use super::definition::{Phase, PhaseWork, Repeat, TriggerRule, Workflow};
use super::entry::{Decision, Entry, How, Part};
use super::status::CourseStatus;

/// How often in a row a part that was cut off by a crash is done again.
pub const RESTARTS_MAX: u32 = 3;

/// How a phase ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeEnd {
    /// Well.
    Succeeded,
    /// Badly.
    Failed,
    /// It was left out.
    Skipped,
}

/// One run of a workflow.
#[derive(Debug, Clone)]
pub struct Course {
    /// What it goes by.
    pub workflow: Arc<Workflow>,
    /// Where it is.
    pub status: CourseStatus,
    /// What it was started with. It never changes.
    pub context: Json,
    /// What its phases have left for each other.
    pub scratch: Map<String, Json>,
    /// What people are shown as the phase that it is at.
    pub current: String,
    /// Why it failed.
    pub error: Option<String>,
    /// How often parts of it were cut off since a person last started it, all together.
    pub restarts: u32,
    /// What it cost, in millionths of a dollar.
    pub spent: i64,
    /// How many entries its journal has.
    pub seq: u64,
    pub(super) outputs: IndexMap<String, Arc<str>>,
    /// What parts that go on may still cost, by their numbers.
    pub(super) grants: BTreeMap<u64, i64>,
    pub(super) nodes: Vec<Node>,
    pub(super) dependants: Vec<Vec<usize>>,
    /// Phases whose turn may have come.
    pub(super) due: BTreeSet<usize>,
    /// Parts that jobs are at.
    pub(super) open: usize,
    /// Gates that wait for somebody.
    pub(super) asked: usize,
    /// Phases that are not over.
    left: usize,
    failed: usize,
}

/// What is known of a phase.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    /// How many of those it waits for are not over.
    pub(super) unmet: usize,
    pub(super) state: NodeState,
}

/// Where a phase is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum NodeState {
    Waiting,
    Begun(Progress),
    Over(NodeEnd),
}

/// How far a phase has come.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Progress {
    /// The part that goes on.
    pub(super) open: Option<Part>,
    /// The part that ended last.
    pub(super) last: Option<Last>,
    /// How often that part has failed.
    pub(super) tries: u32,
    /// How often in a row it was cut off.
    pub(super) interrupts: u32,
    /// What earlier passes of a loop said: their end.
    pub(super) said: String,
    pub(super) items: Option<Items>,
}

/// The part of a phase that ended last.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Last {
    pub(super) part: Part,
    pub(super) how: How,
    pub(super) decision: Option<Decision>,
}

/// How far a phase has come that is done for each of several items.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Items {
    pub(super) list: Arc<Vec<Json>>,
    states: Vec<ItemState>,
    /// Those that are to be done: new ones, and again.
    pub(super) due: BTreeSet<u32>,
    pub(super) open: usize,
    left: usize,
    failed: usize,
}

#[derive(Debug, Clone, PartialEq, Default)]
struct ItemState {
    tries: u32,
    interrupts: u32,
    output: Option<Arc<str>>,
}

/// What comes next in a phase that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// It waits for a part that goes on.
    Nothing,
    /// This part.
    Do(Part),
    /// It is over.
    Finish(NodeEnd),
}

/// How much of what earlier passes said the next one is told, in bytes.
pub(super) const SAID_BYTES_MAX: usize = 10 << 10;

impl Course {
    /// Begins a run.
    pub fn new(workflow: Arc<Workflow>, context: Json) -> Course {
        let count = workflow.phases.len();
        let mut dependants = vec![Vec::new(); count];
        for (place, phase) in workflow.phases.iter().enumerate() {
            phase.depends_on.iter().for_each(|on| dependants[*on].push(place));
        }
        let node =
            |phase: &Phase| Node { unmet: phase.depends_on.len(), state: NodeState::Waiting };
        let nodes: Vec<Node> = workflow.phases.iter().map(node).collect();
        let due = (0..count).filter(|place| nodes[*place].unmet == 0).collect();
        Course {
            status: CourseStatus::Running,
            context,
            scratch: Map::new(),
            current: String::new(),
            error: None,
            restarts: 0,
            spent: 0,
            seq: 0,
            outputs: IndexMap::new(),
            grants: BTreeMap::new(),
            nodes,
            dependants,
            due,
            open: 0,
            asked: 0,
            left: count,
            failed: 0,
            workflow,
        }
    }

    /// Takes in an entry of the journal: its beginning, its end, or both at once.
    pub fn fold(&mut self, entry: &Entry) {
        self.seq = self.seq.max(entry.seq + 1);
        let place = entry.phase;
        if place >= self.nodes.len() {
            return;
        }
        match (entry.part, entry.how) {
            (Part::Reset, _) => return self.reset(place),
            (Part::Skip, _) => return self.finish(place, NodeEnd::Skipped),
            (part, None) => {
                if entry.micros > 0 {
                    self.grants.insert(entry.seq, entry.micros);
                }
                self.open_part(place, part);
            }
            (_, Some(how)) => {
                let how = match entry.decision {
                    Some(Decision::Stopped) => How::Interrupted,
                    // Whichever way its command ended, it said what was asked.
                    Some(Decision::ConditionMet | Decision::ConditionNotMet) => How::Succeeded,
                    _ => how,
                };
                self.close_part(entry, how);
            }
        }
        match self.next(place) {
            Next::Finish(end) => self.finish(place, end),
            Next::Do(_) => drop(self.due.insert(place)),
            Next::Nothing => drop(self.due.remove(&place)),
        }
    }

    fn open_part(&mut self, place: usize, part: Part) {
        match part {
            Part::Gate(_) => self.asked += 1,
            _ => self.open += 1,
        }
        let progress = self.progress(place);
        match (part, &mut progress.items) {
            (Part::Item(number), Some(items)) => {
                items.open += 1;
                items.due.remove(&number);
            }
            _ => progress.open = Some(part),
        }
    }

    fn close_part(&mut self, entry: &Entry, how: How) {
        let place = entry.phase;
        self.grants.remove(&entry.seq);
        self.spent = self.spent.saturating_add(entry.micros);
        let was_open = match (entry.part, &mut self.progress(place).items) {
            // One that was never open was over when it began.
            (Part::Item(number), Some(items)) => !items.due.remove(&number),
            _ => self.progress(place).open.take().is_some(),
        };
        match entry.part {
            _ if !was_open => {}
            Part::Gate(_) => self.asked -= 1,
            _ => self.open -= 1,
        }
        let retries = self.workflow.phases[place].retry.max;
        match entry.part {
            Part::Items => self.list_items(entry),
            Part::Item(number) => {
                if let Some(items) = &mut self.progress(place).items {
                    items.open -= usize::from(was_open);
                    items.close(number, entry, how, retries);
                }
            }
            _ => self.progress(place).close(entry, how),
        }
        self.keep_output(entry, how);
    }

    fn list_items(&mut self, entry: &Entry) {
        let list: Option<Vec<Json>> =
            entry.output.as_ref().and_then(|text| serde_json::from_str(text).ok());
        let list = list.unwrap_or_default();
        let count = list.len();
        let items = Items {
            list: Arc::new(list),
            states: vec![ItemState::default(); count],
            due: (1..=u32::try_from(count).unwrap_or(u32::MAX)).collect(),
            open: 0,
            left: count,
            failed: 0,
        };
        let progress = self.progress(entry.phase);
        progress.items = Some(items);
        progress.close(entry, entry.how.unwrap_or(How::Failed));
    }

    /// Lets later phases see what a part said, if it is what its phase came to so far.
    fn keep_output(&mut self, entry: &Entry, how: How) {
        let counts = match entry.part {
            Part::Work | Part::Iteration(_) | Part::Recheck(_) => how != How::Interrupted,
            Part::Item(_) => return self.keep_items(entry.phase),
            _ => false,
        };
        if let Some(output) = entry.output.clone().filter(|_| counts) {
            self.put_output(entry.phase, output);
        }
    }

    /// Once all items are over, their outputs together are the phase's, as a JSON list.
    fn keep_items(&mut self, place: usize) {
        let Some(items) = self.progress(place).items.as_ref().filter(|it| it.left == 0) else {
            return;
        };
        let outputs: Vec<&str> =
            items.states.iter().map(|it| it.output.as_deref().unwrap_or_default()).collect();
        let text = serde_json::to_string(&outputs).expect("a list of texts is JSON");
        self.put_output(place, text.into());
    }

    fn put_output(&mut self, place: usize, output: Arc<str>) {
        let phase = &self.workflow.phases[place];
        if let Some(alias) = &phase.output_var {
            self.outputs.insert(alias.clone(), Arc::clone(&output));
        }
        self.outputs.insert(phase.name.to_string(), output);
    }

    /// Returns how far a phase has come; it begins if it had not.
    fn progress(&mut self, place: usize) -> &mut Progress {
        let node = &mut self.nodes[place];
        if !matches!(node.state, NodeState::Begun(_)) {
            // A phase that was over goes on only in a journal that somebody changed by hand.
            if let NodeState::Over(end) = node.state {
                self.left += 1;
                self.failed -= usize::from(end == NodeEnd::Failed);
            }
            node.state = NodeState::Begun(Progress::default());
        }
        match &mut node.state {
            NodeState::Begun(progress) => progress,
            _ => unreachable!("it was made so above"),
        }
    }

    fn finish(&mut self, place: usize, end: NodeEnd) {
        self.due.remove(&place);
        if matches!(self.nodes[place].state, NodeState::Over(_)) {
            return;
        }
        self.nodes[place].state = NodeState::Over(end);
        self.left -= 1;
        self.failed += usize::from(end == NodeEnd::Failed);
        for dependant in self.dependants[place].clone() {
            let node = &mut self.nodes[dependant];
            node.unmet = node.unmet.saturating_sub(1);
            if node.unmet == 0 && node.state == NodeState::Waiting {
                self.due.insert(dependant);
            }
        }
    }

    /// Lets a phase be as if it had never begun.
    fn reset(&mut self, place: usize) {
        if let NodeState::Over(end) = self.nodes[place].state {
            self.left += 1;
            self.failed -= usize::from(end == NodeEnd::Failed);
            for dependant in &self.dependants[place] {
                self.nodes[*dependant].unmet += 1;
                self.due.remove(dependant);
            }
        }
        let phase = &self.workflow.phases[place];
        self.outputs.shift_remove(phase.name.as_str());
        if let Some(alias) = &phase.output_var {
            self.outputs.shift_remove(alias);
        }
        self.nodes[place].state = NodeState::Waiting;
        self.due.remove(&place);
        if self.nodes[place].unmet == 0 {
            self.due.insert(place);
        }
    }

    /// Says what comes next in a phase.
    pub(super) fn next(&self, place: usize) -> Next {
        let NodeState::Begun(progress) = &self.nodes[place].state else { return Next::Nothing };
        let phase = &self.workflow.phases[place];
        if progress.open.is_some() {
            return Next::Nothing;
        }
        let Some(last) = progress.last else { return Next::Do(first_part(phase)) };
        if let Some(next) = again(phase, progress, last) {
            return next;
        }
        match &phase.repeat {
            Repeat::Once => after_work(phase, last),
            Repeat::Review(review) => {
                let has_gate = review.gate.is_some();
                after_review(phase, last, review.max_cycles, has_gate)
            }
            Repeat::Until(until) => {
                let most = until.max_iterations.of(&self.context);
                let soft_completes = until.on_soft_failure.completes;
                let has = Has { check: until.until_bash.is_some(), gate: until.gate.is_some() };
                after_pass(phase, last, most, soft_completes, has)
            }
            Repeat::Each(_) => after_items(phase, progress, last),
        }
    }

    /// Says whether the phases that one waits for are as it wants; all of them are over.
    pub(super) fn is_wanted(&self, place: usize) -> bool {
        let phase = &self.workflow.phases[place];
        let ends = || {
            phase.depends_on.iter().filter_map(|on| match self.nodes[*on].state {
                NodeState::Over(end) => Some(end),
                _ => None,
            })
        };
        let has = |wanted: NodeEnd| ends().any(|end| end == wanted);
        match phase.trigger_rule {
            _ if phase.depends_on.is_empty() => true,
            TriggerRule::AllSuccess => ends().all(|end| end == NodeEnd::Succeeded),
            TriggerRule::OneSuccess => has(NodeEnd::Succeeded),
            TriggerRule::NoneFailedMinOneSuccess => {
                has(NodeEnd::Succeeded) && !has(NodeEnd::Failed)
            }
            TriggerRule::AllDone => true,
        }
    }

    /// Returns how a phase ended.
    pub fn end_of(&self, place: usize) -> Option<NodeEnd> {
        match self.nodes.get(place)?.state {
            NodeState::Over(end) => Some(end),
            _ => None,
        }
    }

    /// Says whether a phase is at work or asks somebody.
    pub fn has_begun(&self, place: usize) -> bool {
        matches!(self.nodes.get(place).map(|node| &node.state), Some(NodeState::Begun(_)))
    }

    /// Returns what a phase said.
    pub fn output_of(&self, name: &str) -> Option<&str> {
        self.outputs.get(name).map(|text| &**text)
    }

    /// Says whether jobs of it are still at work.
    pub fn is_at_work(&self) -> bool {
        self.open > 0
    }

    /// Returns where the run is by what its phases have come to.
    pub(super) fn state(&self) -> CourseStatus {
        match (self.left, self.failed) {
            (0, 0) => CourseStatus::Succeeded,
            (0, _) => CourseStatus::Failed,
            _ if self.open == 0 && self.asked > 0 && self.due.is_empty() => CourseStatus::Paused,
            _ => CourseStatus::Running,
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

impl Progress {
    fn close(&mut self, entry: &Entry, how: How) {
        let is_same = self.last.is_some_and(|last| last.part == entry.part);
        let before = if is_same { self.interrupts } else { 0 };
        self.interrupts = interrupts_after(before, entry, how);
        let failures = if is_same { self.tries } else { 0 };
        self.tries = failures + u32::from(matches!(how, How::Failed | How::Soft));
        self.last = Some(Last { part: entry.part, how, decision: entry.decision });
        if let (Part::Iteration(_), Some(output)) = (entry.part, &entry.output) {
            self.said.push_str(output);
            self.said.push_str("\n\n");
            let from = self.said.len().saturating_sub(SAID_BYTES_MAX);
            let from = self.said.ceil_char_boundary(from);
            self.said.drain(..from);
        }
    }
}

impl Progress {
    /// Returns how often in a row a part was cut off.
    pub(super) fn interrupts_of(&self, part: Part) -> u32 {
        match (part, &self.items, self.last) {
            (Part::Item(number), Some(items), _) => {
                items.states.get(number as usize - 1).map_or(0, |state| state.interrupts)
            }
            (_, _, Some(last)) if last.part == part => self.interrupts,
            _ => 0,
        }
    }

    /// Returns how often a part has failed that is to be done now.
    pub(super) fn tries_of(&self, part: Part) -> u32 {
        match (part, &self.items, self.last) {
            (Part::Item(number), Some(items), _) => {
                items.states.get(number as usize - 1).map_or(0, |state| state.tries)
            }
            (_, _, Some(last)) if last.part == part => self.tries,
            _ => 0,
        }
    }
}

/// Counts how often in a row a part was cut off. That the fleet was stopped is no crash.
fn interrupts_after(before: u32, entry: &Entry, how: How) -> u32 {
    match how {
        How::Interrupted if entry.decision == Some(Decision::Stopped) => before,
        How::Interrupted => before + 1,
        _ => 0,
    }
}

impl Items {
    fn close(&mut self, number: u32, entry: &Entry, how: How, retries: u32) {
        let Some(state) = self.states.get_mut(number as usize - 1) else { return };
        state.interrupts = interrupts_after(state.interrupts, entry, how);
        let gave_up = entry.decision.is_some_and(Decision::is_failure);
        let fails = how != How::Succeeded || gave_up;
        state.tries += u32::from(how == How::Failed || how == How::Soft);
        let again = match how {
            _ if gave_up => false,
            How::Interrupted => true,
            How::Failed | How::Soft => state.tries <= retries,
            How::Succeeded | How::Cancelled => false,
        };
        if again {
            self.due.insert(number);
            return;
        }
        state.output = entry.output.clone();
        self.left -= 1;
        self.failed += usize::from(fails);
    }
}

pub(super) fn first_part(phase: &Phase) -> Part {
    match phase.repeat {
        Repeat::Once | Repeat::Review(_) => Part::Work,
        Repeat::Until(_) => Part::Iteration(1),
        Repeat::Each(_) => Part::Items,
    }
}

/// Says what comes next after a part that did not end well, whatever kind of part.
fn again(phase: &Phase, progress: &Progress, last: Last) -> Option<Next> {
    if last.decision.is_some_and(Decision::is_failure) {
        return Some(Next::Finish(NodeEnd::Failed));
    }
    match (last.part, last.how) {
        (Part::Item(_), _) => None,
        (_, How::Interrupted) => Some(Next::Do(last.part)),
        (_, How::Cancelled) => Some(Next::Finish(NodeEnd::Failed)),
        (Part::Gate(_), How::Failed) => Some(Next::Finish(NodeEnd::Failed)),
        (_, How::Failed) if progress.tries <= phase.retry.max => Some(Next::Do(last.part)),
        (_, How::Failed) => Some(Next::Finish(NodeEnd::Failed)),
        (_, How::Soft) => match &phase.repeat {
            Repeat::Until(until) if progress.tries <= until.on_soft_failure.retries => {
                Some(Next::Do(last.part))
            }
            Repeat::Until(until) if until.on_soft_failure.completes => None,
            Repeat::Once | Repeat::Review(_) if progress.tries <= phase.retry.max => {
                Some(Next::Do(last.part))
            }
            _ => Some(Next::Finish(NodeEnd::Failed)),
        },
        (_, How::Succeeded) => None,
    }
}

fn finish_or_ask(phase: &Phase) -> Next {
    match phase.gate {
        Some(_) => Next::Do(Part::Gate(0)),
        None => Next::Finish(NodeEnd::Succeeded),
    }
}

fn after_work(phase: &Phase, last: Last) -> Next {
    match last.part {
        Part::Gate(_) => Next::Finish(NodeEnd::Succeeded),
        _ => finish_or_ask(phase),
    }
}

fn after_review(phase: &Phase, last: Last, cycles: u32, has_gate: bool) -> Next {
    let wants_changes = last.decision == Some(Decision::RequestChanges);
    match last.part {
        Part::Gate(0) => Next::Finish(NodeEnd::Succeeded),
        Part::Gate(cycle) => Next::Do(Part::Fix(cycle)),
        Part::Fix(cycle) => Next::Do(Part::Recheck(cycle)),
        Part::Work | Part::Recheck(_) if wants_changes => {
            let cycle = match last.part {
                Part::Recheck(cycle) => cycle + 1,
                _ => 1,
            };
            match has_gate {
                // The work counts as done after the last fix.
                _ if cycle > cycles => finish_or_ask(phase),
                true => Next::Do(Part::Gate(cycle)),
                false => Next::Do(Part::Fix(cycle)),
            }
        }
        _ => finish_or_ask(phase),
    }
}

/// What a loop has beside its passes.
#[derive(Clone, Copy)]
struct Has {
    check: bool,
    gate: bool,
}

fn after_pass(phase: &Phase, last: Last, most: u32, soft_completes: bool, has: Has) -> Next {
    let next_pass = |number: u32| match has.gate {
        _ if number >= most => finish_or_ask(phase),
        true => Next::Do(Part::Gate(number)),
        false => Next::Do(Part::Iteration(number + 1)),
    };
    match (last.part, last.decision) {
        (Part::Gate(0), _) => Next::Finish(NodeEnd::Succeeded),
        (Part::Gate(number), _) => Next::Do(Part::Iteration(number + 1)),
        (_, Some(Decision::ConditionMet)) => finish_or_ask(phase),
        (Part::Iteration(_), _) if last.how == How::Soft && soft_completes => finish_or_ask(phase),
        (Part::Iteration(number), Some(Decision::ConditionOpen)) if has.check => {
            Next::Do(Part::Check(number))
        }
        (Part::Iteration(number) | Part::Check(number), _) => next_pass(number),
        _ => finish_or_ask(phase),
    }
}

fn after_items(phase: &Phase, progress: &Progress, last: Last) -> Next {
    let Some(items) = &progress.items else { return Next::Finish(NodeEnd::Failed) };
    match (last.part, items.left, items.failed) {
        (Part::Gate(_), ..) => Next::Finish(NodeEnd::Succeeded),
        (_, 0, 0) => finish_or_ask(phase),
        (_, 0, _) => Next::Finish(NodeEnd::Failed),
        _ => match items.due.first() {
            Some(number) => Next::Do(Part::Item(*number)),
            None => Next::Nothing,
        },
    }
}

/// Says whether a part is done by nobody but us.
pub(super) fn is_ours(phase: &Phase, part: Part) -> bool {
    let has_no_work = matches!(phase.work, PhaseWork::Context);
    match part {
        Part::Check(_) => false,
        Part::Items | Part::Skip | Part::Reset => true,
        _ => has_no_work && !matches!(part, Part::Gate(_)),
    }
}
