//! Simulation of random workflows with an engine that is killed at any commit.
//!
//! Each workflow runs twice: once undisturbed, once with kills before and after commits,
//! interrupted parts, and reordered events. Both runs must end alike, no finished part may be
//! repeated, and the state read from the journal must equal the writer's state.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::num::NonZeroU32;
use std::sync::Arc;

use fastrand::Rng;
use heeler_config::workflow::{
    ContextNumber, ForeachLoop, Gate, GateKind, MarkerRule, Phase, PhaseRepeat, PhaseWork,
    ReviewLoop, SoftFailurePolicy, TriggerRule, UntilLoop, Workflow, WorkflowExpression,
    WorkflowTemplate,
};
use heeler_testkit::ProofSettings;
use jiff::Timestamp;
use serde_json::{Map, Value as Json, json};

use super::tests::{gate, phase, workflow};
use super::*;

/// Database content of a run.
#[derive(Clone)]
struct SimulatedRunRecord {
    journal: BTreeMap<u64, JournalEntry>,
    status: WorkflowRunStatus,
    scratch: Map<String, Json>,
    restarts: u32,
    error: Option<String>,
    current: String,
    has_more: bool,
}

struct WorkflowSimulation {
    workflow: Arc<Workflow>,
    context: Json,
    record: SimulatedRunRecord,
    /// Determines the result of each part, independent of the time at which it runs.
    seed: u64,
    interrupts_left: u32,
}

/// About 8,000 phases: of the rarest kind, a review with a gate, there are more than 300.
const ROUNDS_IN_CI: u64 = 2_000;

const AROUND: WorkflowStepContext<'static> =
    WorkflowStepContext { run: "wf-1", is_gate_disabled: &|gate| matches!(gate, "off") };

pub(crate) fn random_workflow(random: &mut Rng) -> Workflow {
    let count = random.usize(1..8);
    let phases = (0..count).map(|place| random_phase(place, random)).collect();
    let max_parallel = NonZeroU32::new(random.u32(1..4)).unwrap();
    Workflow { max_parallel, ..workflow(phases) }
}

fn random_phase(place: usize, random: &mut Rng) -> Phase {
    let depends_on: Vec<usize> = (0..place).filter(|_| random.u8(0..3) == 0).collect();
    let mut made = phase(&format!("p{place}"), &depends_on);
    let rules = TriggerRule::ALL;
    made.trigger_rule = rules[random.usize(..rules.len())];
    made.retry.max = random.u32(0..3);
    if random.u8(0..4) == 0 {
        made.gate = Some(random_gate(random));
    }
    if random.u8(0..5) == 0 && place > 0 {
        let on = random.usize(..place);
        made.skip_if = vec![WorkflowExpression::parse(&format!("'3' in outputs.p{on}")).unwrap()];
    }
    if random.u8(0..4) == 0 {
        made.on_output.blocked = Some(MarkerRule::default());
    }
    let template = |text: &str| WorkflowTemplate::parse(text).unwrap();
    let maybe_gate = |random: &mut Rng| (random.u8(0..3) == 0).then(|| random_gate(random));
    made.repeat = match random.u8(0..8) {
        0 => PhaseRepeat::Review(Box::new(ReviewLoop {
            max_cycles: random.u32(0..3),
            fix_prompt: template("fix {{ review }}"),
            fix_model: None,
            fix_effort: None,
            re_review_prompt: template("again"),
            gate: maybe_gate(random),
        })),
        1 | 2 => PhaseRepeat::Until(Box::new(UntilLoop {
            max_iterations: ContextNumber::Fixed(random.u32(1..4)),
            until: random.bool().then(|| WorkflowExpression::parse("'5' in output").unwrap()),
            until_bash: random.bool().then(|| template("true")),
            gate: maybe_gate(random),
            scratch_key: random.bool().then(|| "shared".to_owned()),
            fresh_context: random.bool(),
            on_soft_failure: SoftFailurePolicy {
                retries: random.u32(0..2),
                completes: random.bool(),
            },
        })),
        3 => PhaseRepeat::Foreach(Box::new(ForeachLoop {
            items: WorkflowExpression::parse("inputs.items").unwrap(),
            name: "item".to_owned(),
            max_parallel: NonZeroU32::new(random.u32(0..3)),
        })),
        _ => PhaseRepeat::Once,
    };
    if random.u8(0..3) == 0 && !matches!(made.repeat, PhaseRepeat::Review(_)) {
        made.work = PhaseWork::Context;
    }
    made
}

fn random_gate(random: &mut Rng) -> Gate {
    let kind = if random.bool() { GateKind::Approve } else { GateKind::Reply };
    gate(if random.u8(0..4) == 0 { "off" } else { "on" }, kind)
}

impl WorkflowSimulation {
    fn new(workflow: &Arc<Workflow>, seed: u64, interrupts_left: u32) -> WorkflowSimulation {
        let record = SimulatedRunRecord {
            journal: BTreeMap::new(),
            status: WorkflowRunStatus::Running,
            scratch: Map::new(),
            restarts: 0,
            error: None,
            current: String::new(),
            has_more: true,
        };
        let context = json!({"items": ["x", "y", "z"]});
        WorkflowSimulation {
            workflow: Arc::clone(workflow),
            context,
            record,
            seed,
            interrupts_left,
        }
    }

    /// Restores the run from its journal.
    fn restore(&self) -> WorkflowRun {
        let mut course = WorkflowRun::new(Arc::clone(&self.workflow), self.context.clone());
        self.record.journal.values().for_each(|entry| course.apply_entry(entry));
        course.status = self.record.status;
        course.scratch = self.record.scratch.clone();
        course.restarts = self.record.restarts;
        course.error = self.record.error.clone();
        course.current_phase = self.record.current.clone();
        course
    }

    fn commit(&mut self, course: &WorkflowRun, step: WorkflowStepOutcome) {
        for effect in step.effects {
            match effect {
                WorkflowEffect::StartPart { entry, .. }
                | WorkflowEffect::PostReview { entry, .. }
                | WorkflowEffect::AskQuestion { entry, .. } => {
                    let before = self.record.journal.insert(entry.seq, entry);
                    assert!(before.is_none(), "an entry was overwritten");
                }
                WorkflowEffect::RecordPart { entry } => {
                    let before = self.record.journal.insert(entry.seq, entry);
                    assert!(before.is_none(), "an entry was overwritten");
                }
                WorkflowEffect::ClosePart { entry } => {
                    let before = self.record.journal.insert(entry.seq, entry);
                    assert!(before.is_some_and(|it| it.outcome.is_none()), "it was over already");
                }
                WorkflowEffect::SendMessage { .. } | WorkflowEffect::StopJobs { .. } => {}
            }
        }
        self.record.status = course.status;
        self.record.scratch = course.scratch.clone();
        self.record.restarts = course.restarts;
        self.record.error = course.error.clone();
        self.record.current = course.current_phase.clone();
        self.record.has_more = step.has_more;
    }

    fn open(&self) -> Vec<JournalEntry> {
        self.record.journal.values().filter(|entry| entry.outcome.is_none()).cloned().collect()
    }

    /// Draws the result of a part. The same attempt always has the same result.
    fn fate(&self, entry: &JournalEntry) -> u64 {
        let same = self.record.journal.values().filter(|it| {
            (it.phase, it.part) == (entry.phase, entry.part)
                && it.seq < entry.seq
                && it.outcome != Some(PartOutcome::Interrupted)
        });
        let mut hasher = DefaultHasher::new();
        (self.seed, entry.phase, entry.part.to_string(), same.count()).hash(&mut hasher);
        hasher.finish()
    }

    fn event(&mut self, entry: &JournalEntry, random: &mut Rng) -> WorkflowStepEvent {
        let fate = self.fate(entry);
        if let PhasePart::Gate(_) = entry.part {
            let answer = GateAnswer {
                is_approved: !fate.is_multiple_of(8),
                text: Some(format!("answer {}", fate % 10)),
                by: "ada".to_owned(),
                at: Timestamp::UNIX_EPOCH,
                seq: entry.seq,
            };
            return WorkflowStepEvent::GateAnswered {
                phase: entry.phase,
                part: entry.part,
                answer,
            };
        }
        let mut how = match fate % 10 {
            0 => PartOutcome::Failed,
            1 => PartOutcome::Soft,
            _ => PartOutcome::Succeeded,
        };
        if self.interrupts_left > 0 && random.u8(0..6) == 0 {
            self.interrupts_left -= 1;
            how = PartOutcome::Interrupted;
        }
        let output = match fate / 10 % 12 {
            0 => "BLOCKED".to_owned(),
            1..4 => "VERDICT: APPROVED".to_owned(),
            other => format!("said {other}"),
        };
        WorkflowStepEvent::PartEnded(EndedPart {
            phase: entry.phase,
            part: entry.part,
            seq: entry.seq,
            job: "job-1".parse().unwrap(),
            outcome: how,
            output: Some(output),
            error: None,
            micros: 1,
            is_stopped: false,
        })
    }

    /// Performs and commits one request of a person.
    fn ask(&mut self, happening: WorkflowStepEvent) {
        let mut course = self.restore();
        let step = course.step(happening, &AROUND);
        self.commit(&course, step);
        self.check(&course);
    }

    /// Ends the rest of a cancelled run, retries it from some phase, and runs it to its end.
    fn cancel_and_retry(&mut self, random: &mut Rng) {
        self.ask(WorkflowStepEvent::Cancel { by: "ada".to_owned(), now: false });
        for mut entry in self.open() {
            if let PhasePart::Gate(_) = entry.part {
                entry.outcome = Some(PartOutcome::Cancelled);
                self.record.journal.insert(entry.seq, entry);
                continue;
            }
            let mut happening = self.event(&entry, random);
            if let WorkflowStepEvent::PartEnded(ended) = &mut happening {
                ended.outcome = PartOutcome::Cancelled;
            }
            self.ask(happening);
        }
        let places = self.workflow.phases.len();
        self.ask(WorkflowStepEvent::Retry {
            from: random.bool().then(|| random.usize(..places)),
            queued: false,
        });
        self.play(random, true, usize::MAX);
        assert!(self.record.status.is_final(), "it does not end");
    }

    /// Runs to the end, or for a number of steps.
    fn play(&mut self, random: &mut Rng, dies: bool, most: usize) {
        let mut course = self.restore();
        for _ in 0..most.min(10_000) {
            let open = self.open();
            let happening = match open.len() {
                _ if self.record.has_more => WorkflowStepEvent::Continue,
                0 => break,
                count => {
                    let entry = &open[random.usize(..count)];
                    self.event(entry, random)
                }
            };
            let step = course.step(happening, &AROUND);
            if dies && random.u8(0..4) == 0 {
                // Nothing of it was committed.
                course = self.restore();
                continue;
            }
            self.commit(&course, step);
            self.check(&course);
            if dies && random.u8(0..4) == 0 {
                course = self.restore();
            }
        }
    }

    /// Checks that the journal holds everything its writer knows.
    fn check(&self, course: &WorkflowRun) {
        let mut read = self.restore();
        assert!(read.knows_what(course), "{read:#?}\nis read, and this was written:\n{course:#?}");
        if !self.record.has_more && !course.status.is_final() {
            let step = read.step(WorkflowStepEvent::Continue, &AROUND);
            assert!(step.effects.is_empty(), "something was forgotten: {:#?}", step.effects);
        }
        let jobs = self.open().iter().filter(|it| !matches!(it.part, PhasePart::Gate(_))).count();
        assert!(jobs <= self.workflow.max_parallel.get() as usize, "too many at once");
        let mut done: Vec<(usize, PhasePart)> = Vec::new();
        for entry in self.record.journal.values() {
            let key = (entry.phase, entry.part);
            if entry.part == PhasePart::Reset {
                done.retain(|(phase, _)| *phase != entry.phase);
                continue;
            }
            assert!(!done.contains(&key), "{key:?} is done again");
            if entry.outcome == Some(PartOutcome::Succeeded)
                && entry.decision != Some(PartDecision::Blocked)
            {
                done.push(key);
            }
        }
    }

    /// Returns the result of the run, without anything that a crash may change.
    fn outcome(&self) -> (WorkflowRunStatus, Vec<Option<PhaseOutcome>>, Vec<String>) {
        let course = self.restore();
        let ends =
            (0..self.workflow.phases.len()).map(|place| course.phase_outcome(place)).collect();
        let names = self.workflow.phases.iter().map(|phase| phase.name.as_str());
        let outputs = names.map(|name| format!("{:?}", course.phase_output(name))).collect();
        (course.status, ends, outputs)
    }
}

impl WorkflowRun {
    /// Returns true if all relevant state is equal.
    pub(crate) fn knows_what(&self, other: &WorkflowRun) -> bool {
        let counts =
            |it: &WorkflowRun| (it.status, it.open_parts, it.open_gates, it.seq, it.spent_micros);
        counts(self) == counts(other)
            && self.nodes == other.nodes
            && self.ready_phases == other.ready_phases
            && self.scratch == other.scratch
            && self.outputs == other.outputs
    }
}

#[test]
fn proof_a_workflow_that_dies_at_any_commit_ends_as_one_that_does_not() {
    let proof = ProofSettings::new(ROUNDS_IN_CI);
    for round in 0..proof.rounds {
        let random = &mut proof.random(round);
        let flow = Arc::new(random_workflow(random));
        let seed = random.u64(..);
        let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut calm = WorkflowSimulation::new(&flow, seed, 0);
            calm.play(random, false, usize::MAX);
            let mut rough = WorkflowSimulation::new(&flow, seed, RESTARTS_MAX);
            rough.play(random, true, usize::MAX);
            assert!(calm.record.status.is_final(), "it does not end");
            assert_eq!(calm.outcome(), rough.outcome());
            let mut cut = WorkflowSimulation::new(&flow, seed, RESTARTS_MAX);
            let most = random.usize(..20);
            cut.play(random, true, most);
            cut.play(random, true, most);
            cut.cancel_and_retry(random);
        }));
        if let Err(panic) = played {
            let why = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            panic!("round {round}, HEELER_PROOF_SEED={}: {why}\n{flow:#?}", proof.seed);
        }
    }
}
