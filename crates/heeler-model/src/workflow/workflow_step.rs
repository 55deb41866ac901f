//! What happens to a run, and what is done because of it.
//!
//! A step takes one happening, decides, writes the decision into the journal as entries, and lets
//! begin what can: all of it is to be committed together. Start at [`WorkflowRun::workflow_step`].

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::definition::{GateDefault, GateKind, PhaseRepeat};
use super::journal::{JournalEntry, PartDecision, PartOutcome, PhasePart};
use super::output::{MarkerOutcome, judge_output, parse_verdict, truncate_output};
use super::part_job::PartJobSpec;
use super::status::WorkflowRunStatus;
use super::template::WorkflowTemplate;
use super::workflow_run::{PhaseOutcome, PhaseState, RESTARTS_MAX, WorkflowRun};
use crate::{JobId, iso_millis};

/// The most entries of one step; what is left is begun by the next.
pub const PARTS_PER_STEP: usize = 256;

/// The most items of a list.
pub const ITEMS_MAX: usize = 10_000;

/// The most bytes of a list of items.
pub const ITEMS_BYTES_MAX: usize = 1 << 20;

/// The most of a question or an answer that scratch keeps, in bytes.
const SCRATCH_TEXT_BYTES_MAX: usize = 4 << 10;

/// Something that happens to a run.
#[derive(Debug, Clone)]
pub enum WorkflowStepEvent {
    /// It begins, or what the last step left is to go on.
    Continue,
    /// A part that a job did is over.
    PartEnded(EndedPart),
    /// Somebody has answered a gate, or nobody has in time.
    GateAnswered {
        /// The place of the gate's phase.
        phase: usize,
        /// Which gate of it.
        part: PhasePart,
        /// The answer.
        answer: GateAnswer,
    },
    /// A person ends it.
    Cancel {
        /// Who.
        by: String,
        /// At once, not gracefully.
        now: bool,
    },
    /// A person lets it go on: what has failed, and all that waits for it, is done anew.
    Retry {
        /// This phase too, however it ended.
        from: Option<usize>,
        /// Nothing begins before its turn comes.
        queued: bool,
    },
}

/// How a part ended that a job did.
#[derive(Debug, Clone)]
pub struct EndedPart {
    /// The place of its phase.
    pub phase: usize,
    /// Which part of it.
    pub part: PhasePart,
    /// Its entry's number.
    pub seq: u64,
    /// The job.
    pub job: JobId,
    /// How it ended.
    pub outcome: PartOutcome,
    /// What it said.
    pub output: Option<String>,
    /// What went wrong.
    pub error: Option<String>,
    /// What it cost, in millionths of a dollar.
    pub micros: i64,
    /// Whether it ended because the fleet was stopped: then it is done again.
    pub is_stopped: bool,
}

/// An answer to a gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateAnswer {
    /// Yes, or any words; else no.
    pub is_approved: bool,
    /// The words.
    pub text: Option<String>,
    /// Who.
    pub by: String,
    /// When.
    pub at: Timestamp,
    /// The number of the gate's entry.
    pub seq: u64,
}

/// Who answers a gate that has waited for as long as it may.
pub const TIMEOUT_ANSWERER: &str = "nobody, in time";

impl GateAnswer {
    /// Returns whose answer it is, as it is said after what was answered.
    pub fn describe_author(by: &str) -> String {
        match by {
            TIMEOUT_ANSWERER => ": nobody answered in time".to_owned(),
            by => format!(" by {by}"),
        }
    }
}

/// What is to be committed, and done because of it.
#[derive(Debug, Clone)]
pub enum WorkflowEffect {
    /// A part begins that a job does.
    StartPart {
        /// Its entry.
        entry: JournalEntry,
        /// What is to be done.
        job: Box<PartJobSpec>,
        /// How long it waits before.
        after: Duration,
    },
    /// A part is over that no job does.
    RecordPart {
        /// Its entry.
        entry: JournalEntry,
    },
    /// A part is over that a job did or somebody was asked: what was decided about it.
    ClosePart {
        /// Its entry.
        entry: JournalEntry,
    },
    /// Somebody is asked.
    AskQuestion {
        /// Its entry.
        entry: JournalEntry,
        /// What.
        question: Box<GateQuestion>,
    },
    /// People are told something.
    SendMessage {
        /// The place of the phase that it is about.
        phase: Option<usize>,
        /// What.
        text: String,
    },
    /// Jobs of it that go on or wait are ended, and its questions withdrawn.
    StopJobs {
        /// At once, not gracefully.
        now: bool,
    },
}

/// What somebody is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct GateQuestion {
    /// The gate's name.
    pub gate: String,
    /// What is asked for.
    pub kind: GateKind,
    /// In words.
    pub text: String,
    /// The file that consent is asked for.
    pub artifact: Option<String>,
    /// How long it is waited for an answer, and what is one then.
    pub timeout: Option<(Duration, GateDefault)>,
}

/// What a step is told beside what happens.
pub struct WorkflowStepContext<'a> {
    /// The run's id, for templates.
    pub run: &'a str,
    /// Whether the config turns a gate off.
    pub is_gate_disabled: &'a dyn Fn(&str) -> bool,
}

/// What a step comes to.
#[derive(Debug, Default)]
pub struct WorkflowStepOutcome {
    /// What is to be committed, and done because of it.
    pub effects: Vec<WorkflowEffect>,
    /// Whether more can begin at once.
    pub has_more: bool,
}

impl WorkflowRun {
    /// Decides about something that happens.
    pub fn step(
        &mut self,
        happening: WorkflowStepEvent,
        around: &WorkflowStepContext<'_>,
    ) -> WorkflowStepOutcome {
        let mut step = WorkflowStepOutcome::default();
        match happening {
            WorkflowStepEvent::Continue => {}
            WorkflowStepEvent::PartEnded(ended) => self.on_part_ended(ended, around, &mut step),
            WorkflowStepEvent::GateAnswered { phase, part, answer } => {
                self.on_gate_answered(phase, part, &answer, around, &mut step);
            }
            WorkflowStepEvent::Cancel { by, now } => self.cancel(&by, now, &mut step),
            WorkflowStepEvent::Retry { from, queued } => {
                self.retry(from, &mut step);
                if queued {
                    self.status = WorkflowRunStatus::Queued;
                }
            }
        }
        if !self.status.is_final() && self.status != WorkflowRunStatus::Queued {
            self.begin_ready_phases(around, &mut step);
            self.status = self.compute_status();
            // What is said at the end tells of a success.
            if self.status == WorkflowRunStatus::Succeeded {
                self.push_final_message(around, &mut step);
            }
        }
        step
    }

    fn on_part_ended(
        &mut self,
        ended: EndedPart,
        around: &WorkflowStepContext<'_>,
        step: &mut WorkflowStepOutcome,
    ) {
        let place = ended.phase;
        let mut entry = JournalEntry {
            phase: place,
            part: ended.part,
            seq: ended.seq,
            job: Some(ended.job),
            outcome: Some(ended.outcome),
            decision: None,
            output: ended.output.map(|text| truncate_output(&text).into()),
            error: ended.error,
            micros: ended.micros,
        };
        match self.status.is_final() {
            _ if ended.is_stopped => entry.decision = Some(PartDecision::Stopped),
            true => {}
            false => self.judge_part(&mut entry, around, step),
        }
        self.close_entry(entry, around, step);
    }

    /// Decides what an output means.
    fn judge_part(
        &mut self,
        entry: &mut JournalEntry,
        around: &WorkflowStepContext<'_>,
        step: &mut WorkflowStepOutcome,
    ) {
        let place = entry.phase;
        if entry.outcome == Some(PartOutcome::Interrupted) {
            return self.count_restart(entry);
        }
        if let PhasePart::Check(_) = entry.part {
            entry.decision = match entry.outcome {
                Some(PartOutcome::Succeeded) => Some(PartDecision::ConditionMet),
                // It said no by its exit code.
                Some(PartOutcome::Failed) if entry.error.is_none() => {
                    Some(PartDecision::ConditionNotMet)
                }
                _ => None,
            };
            return;
        }
        if entry.outcome != Some(PartOutcome::Succeeded) || matches!(entry.part, PhasePart::Fix(_))
        {
            return;
        }
        let workflow = Arc::clone(&self.workflow);
        let phase = &workflow.phases[place];
        let output = entry.output.clone().unwrap_or_default();
        match judge_output(&phase.on_output, &output, &self.context) {
            MarkerOutcome::Failed(decision) => {
                let marker = phase.on_output.requires_marker.as_deref().unwrap_or_default();
                entry.decision = Some(decision);
                entry.error = Some(match decision {
                    PartDecision::Unmarked => format!("its output does not have `{marker}`"),
                    _ => "it says that it is BLOCKED".to_owned(),
                });
                let blocked = phase.on_output.blocked.as_ref().and_then(|it| it.message.as_ref());
                self.push_message(
                    place,
                    blocked.or(phase.messages.on_blocked.as_ref()),
                    around,
                    step,
                );
                return;
            }
            MarkerOutcome::Bypassed => {
                let bypassed = phase.on_output.blocked.as_ref();
                let message = bypassed.and_then(|it| it.bypass_message.as_ref());
                let message = message.or(phase.messages.on_blocked_bypassed.as_ref());
                self.push_message(place, message, around, step);
            }
            MarkerOutcome::NoMarker => {}
        }
        match (&phase.repeat, entry.part) {
            (PhaseRepeat::Review(_), PhasePart::Work | PhasePart::Recheck(_)) => {
                // A review without a verdict wants a look: changes, never silent consent.
                let verdict = parse_verdict(&output).unwrap_or(PartDecision::RequestChanges);
                entry.decision = Some(verdict);
                let message = match verdict {
                    PartDecision::Approved => &phase.messages.on_approved,
                    _ => &phase.messages.on_request_changes,
                };
                self.push_message(place, message.as_ref(), around, step);
            }
            (PhaseRepeat::Until(until), PhasePart::Iteration(number)) => {
                let more = [("output", json!(&*output)), ("iteration", json!(number))];
                let decided = until
                    .until
                    .as_ref()
                    .map(|it| self.evaluate_condition(it, place, &more, around));
                entry.decision = Some(match decided {
                    Some(Ok(true)) => PartDecision::ConditionMet,
                    Some(Err(error)) => {
                        entry.error = Some(error.to_string());
                        PartDecision::Unusable
                    }
                    _ if until.until_bash.is_some() => PartDecision::ConditionOpen,
                    _ => PartDecision::ConditionNotMet,
                });
                self.save_iteration(until.scratch_key.as_deref(), number, entry);
            }
            _ => {}
        }
    }

    /// Counts that a part was cut off, and gives it up where that was too often.
    fn count_restart(&mut self, entry: &mut JournalEntry) {
        let before = match &self.nodes[entry.phase].state {
            PhaseState::Active(progress) => progress.interrupts_of(entry.part),
            _ => 0,
        };
        self.restarts = self.restarts.saturating_add(1);
        if before >= RESTARTS_MAX {
            entry.decision = Some(PartDecision::GaveUp);
        }
    }

    /// Leaves in scratch how far a loop has come; what it said is with its entry.
    fn save_iteration(&mut self, key: Option<&str>, number: u32, entry: &JournalEntry) {
        let Some(key) = key else { return };
        let is_ready = entry.decision == Some(PartDecision::ConditionMet);
        let state = self.scratch.entry(key).or_insert_with(|| json!({}));
        if !state.is_object() {
            *state = json!({});
        }
        state["iteration"] = json!(number);
        state["ready"] = json!(is_ready);
        state["lastOutputExecutionId"] = json!(entry.job);
    }

    fn on_gate_answered(
        &mut self,
        place: usize,
        part: PhasePart,
        answer: &GateAnswer,
        around: &WorkflowStepContext<'_>,
        step: &mut WorkflowStepOutcome,
    ) {
        if self.status.is_final() {
            return;
        }
        let how = if answer.is_approved { PartOutcome::Succeeded } else { PartOutcome::Failed };
        let reason = answer.text.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
        let entry = JournalEntry {
            phase: place,
            part,
            seq: answer.seq,
            job: None,
            outcome: Some(how),
            decision: None,
            output: answer.text.as_deref().map(|text| truncate_output(text).into()),
            error: (!answer.is_approved)
                .then(|| format!("rejected{}{reason}", GateAnswer::describe_author(&answer.by))),
            micros: 0,
        };
        let workflow = Arc::clone(&self.workflow);
        if let (PhaseRepeat::Until(until), PhasePart::Gate(1..)) =
            (&workflow.phases[place].repeat, part)
            && until.gate.as_ref().is_some_and(|gate| gate.kind == GateKind::Reply)
        {
            self.save_answer(until.scratch_key.as_deref(), place, answer);
        }
        self.close_entry(entry, around, step);
    }

    /// Leaves question and answer in scratch for the passes that follow.
    fn save_answer(&mut self, key: Option<&str>, place: usize, answer: &GateAnswer) {
        let phase = &self.workflow.phases[place];
        let question = self.outputs.get(phase.name.as_str()).map_or("", |text| &**text);
        let start = question.len().saturating_sub(SCRATCH_TEXT_BYTES_MAX);
        let question = &question[question.ceil_char_boundary(start)..];
        let text = answer.text.as_deref().unwrap_or_default();
        let text = &text[..text.floor_char_boundary(SCRATCH_TEXT_BYTES_MAX)];
        let said = json!({
            "question": question, "answer": text, "sender": answer.by, "at": iso_millis(answer.at),
        });
        let key = key.unwrap_or(phase.name.as_str()).to_owned();
        let state = self.scratch.entry(key).or_insert_with(|| json!({}));
        if !state.is_object() {
            *state = json!({});
        }
        if !state["qa"].is_array() {
            state["qa"] = json!([]);
        }
        if let Some(all) = state["qa"].as_array_mut() {
            all.push(said);
        }
    }

    /// Removes from scratch what a loop left there that is done anew.
    fn clear_loop_scratch(&mut self, place: usize) {
        let phase = &self.workflow.phases[place];
        if let PhaseRepeat::Until(until) = &phase.repeat {
            let key = until.scratch_key.as_deref().unwrap_or(phase.name.as_str());
            self.scratch.remove(key);
        }
    }

    fn cancel(&mut self, by: &str, now: bool, step: &mut WorkflowStepOutcome) {
        if self.status.is_final() {
            return;
        }
        self.status = WorkflowRunStatus::Cancelled;
        self.error = Some(format!("cancelled by {by}"));
        step.effects.push(WorkflowEffect::StopJobs { now });
    }

    /// Lets everything be done anew that has failed or was cut off, and what waits for that.
    fn retry(&mut self, from: Option<usize>, step: &mut WorkflowStepOutcome) {
        let is_bad = |node: &PhaseState| match node {
            PhaseState::Finished(end) => *end == PhaseOutcome::Failed,
            PhaseState::Active(_) => true,
            PhaseState::Waiting => false,
        };
        let bad = (0..self.nodes.len()).filter(|place| is_bad(&self.nodes[*place].state));
        let all = self.with_dependants(bad.chain(from).collect::<Vec<usize>>());
        for place in all {
            if !matches!(self.nodes[place].state, PhaseState::Waiting) {
                self.record_finished_part(
                    place,
                    PhasePart::Reset,
                    PartOutcome::Succeeded,
                    None,
                    step,
                );
                self.clear_loop_scratch(place);
            }
        }
        self.open_gates = 0;
        self.restarts = 0;
        self.error = None;
        self.status = WorkflowRunStatus::Running;
    }

    pub(super) fn new_entry(&self, place: usize, part: PhasePart) -> JournalEntry {
        JournalEntry {
            phase: place,
            part,
            seq: self.seq,
            job: None,
            outcome: None,
            decision: None,
            output: None,
            error: None,
            micros: 0,
        }
    }

    /// Puts a part on record that is over already.
    pub(super) fn record_finished_part(
        &mut self,
        place: usize,
        part: PhasePart,
        how: PartOutcome,
        output: Option<String>,
        step: &mut WorkflowStepOutcome,
    ) {
        let output = output.map(Into::into);
        let entry = JournalEntry { outcome: Some(how), output, ..self.new_entry(place, part) };
        self.apply_entry(&entry);
        step.effects.push(WorkflowEffect::RecordPart { entry });
    }

    /// Puts a part on record that cannot even begin.
    pub(super) fn record_failed_part(
        &mut self,
        place: usize,
        part: PhasePart,
        why: String,
        around: &WorkflowStepContext<'_>,
        step: &mut WorkflowStepOutcome,
    ) {
        let entry = JournalEntry {
            outcome: Some(PartOutcome::Failed),
            decision: Some(PartDecision::Impossible),
            error: Some(why.clone()),
            ..self.new_entry(place, part)
        };
        self.set_first_error(place, &why);
        self.apply_entry(&entry);
        step.effects.push(WorkflowEffect::RecordPart { entry });
        self.announce_phase_end(place, around, step);
    }

    /// Puts on record how a part ended that was open.
    fn close_entry(
        &mut self,
        entry: JournalEntry,
        around: &WorkflowStepContext<'_>,
        step: &mut WorkflowStepOutcome,
    ) {
        let place = entry.phase;
        self.apply_entry(&entry);
        if self.phase_outcome(place) == Some(PhaseOutcome::Failed) {
            let why = entry.error.clone().unwrap_or_else(|| "it failed".to_owned());
            self.set_first_error(place, &why);
        }
        if entry.outcome != Some(PartOutcome::Succeeded) && matches!(entry.part, PhasePart::Fix(_))
        {
            let workflow = Arc::clone(&self.workflow);
            let message = &workflow.phases[place].messages.on_fix_failed;
            self.push_message(place, message.as_ref(), around, step);
        }
        step.effects.push(WorkflowEffect::ClosePart { entry });
        if !self.status.is_final() {
            self.announce_phase_end(place, around, step);
        }
    }

    /// Keeps why the run failed: the first reason.
    fn set_first_error(&mut self, place: usize, why: &str) {
        let name = &self.workflow.phases[place].name;
        self.error.get_or_insert_with(|| format!("{name}: {why}"));
    }

    /// Tells people of a phase that has just ended.
    pub(super) fn announce_phase_end(
        &mut self,
        place: usize,
        around: &WorkflowStepContext<'_>,
        step: &mut WorkflowStepOutcome,
    ) {
        let workflow = Arc::clone(&self.workflow);
        let phase = &workflow.phases[place];
        match self.phase_outcome(place) {
            Some(PhaseOutcome::Succeeded) => {
                if let Some(name) = &phase.set_phase {
                    self.current_phase = name.clone();
                }
                self.push_message(place, phase.messages.on_success.as_ref(), around, step);
            }
            Some(PhaseOutcome::Failed) => {
                self.push_message(place, phase.messages.on_failure.as_ref(), around, step);
            }
            Some(PhaseOutcome::Skipped) | None => {}
        }
    }

    pub(super) fn push_message(
        &self,
        place: usize,
        message: Option<&WorkflowTemplate>,
        around: &WorkflowStepContext<'_>,
        step: &mut WorkflowStepOutcome,
    ) {
        let names = self.template_names(place, 0, around);
        step.effects.extend(self.render_message(place, message, &names));
    }

    /// Returns what people are told, if it comes to any text.
    pub(super) fn render_message(
        &self,
        place: usize,
        message: Option<&WorkflowTemplate>,
        names: &[(&str, Json)],
    ) -> Option<WorkflowEffect> {
        // That something cannot be said stops nothing.
        let text =
            message?.render(&self.template_scope(names)).unwrap_or_else(|error| error.to_string());
        (!text.trim().is_empty())
            .then_some(WorkflowEffect::SendMessage { phase: Some(place), text })
    }

    fn push_final_message(&self, around: &WorkflowStepContext<'_>, step: &mut WorkflowStepOutcome) {
        let Some(message) = &self.workflow.final_message else { return };
        let run =
            json!({ "id": around.run, "workflow": self.workflow.name, "status": self.status });
        let names = [("run", run)];
        let text =
            message.render(&self.template_scope(&names)).unwrap_or_else(|error| error.to_string());
        if !text.trim().is_empty() {
            step.effects.push(WorkflowEffect::SendMessage { phase: None, text });
        }
    }
}
