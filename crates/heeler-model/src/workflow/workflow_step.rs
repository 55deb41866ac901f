//! Events of a workflow run and their effects.
//!
//! A step takes one event, decides, records the decision as journal entries, and begins all parts
//! that can begin. The caller must commit all of it together. Start at [`WorkflowRun::step`].

use std::sync::Arc;
use std::time::Duration;

use heeler_config::workflow::{GateDefault, GateKind, OutputRules, PhaseRepeat};
use jiff::Timestamp;
use serde_json::json;

use super::fix_markers::save_fix_markers;
use super::journal::{JournalEntry, PartDecision, PartOutcome, PhasePart};
use super::messages::PhaseMessage;
use super::output::{MarkerOutcome, judge_output, lacks_marker, parse_verdict, truncate_output};
use super::part_job::PartJobSpec;
use super::review_findings::ReviewFindings;
use super::status::WorkflowRunStatus;
use super::workflow_run::{PhaseOutcome, PhaseState, RESTARTS_MAX, WorkflowRun};
use crate::{JobId, iso_millis};

/// Most parts that one step begins. The next step begins the rest.
pub const PARTS_PER_STEP: usize = 256;

/// Largest list of items, in bytes.
pub const ITEMS_BYTES_MAX: usize = 1 << 20;

/// Largest question or answer in `scratch`, in bytes.
const SCRATCH_TEXT_BYTES_MAX: usize = 4 << 10;

/// Event of a workflow run.
#[derive(Debug, Clone)]
pub enum WorkflowStepEvent {
    /// The run begins, or continues with work that the last step left.
    Continue,
    /// The job of a part has ended.
    PartEnded(EndedPart),
    /// A gate was answered, or timed out.
    GateAnswered {
        /// Index of the gate's phase.
        phase: usize,
        /// Gate of that phase.
        part: PhasePart,
        answer: GateAnswer,
    },
    /// A person cancels the run.
    Cancel {
        /// Caller that cancels.
        by: String,
        /// Immediately instead of gracefully.
        now: bool,
    },
    /// A person retries the run: failed phases, and all that depend on them, start over.
    Retry {
        /// Phase that also starts over, whichever outcome it had.
        from: Option<usize>,
        /// Nothing begins until the run leaves the queue.
        queued: bool,
    },
}

/// End of a part that a job executed.
#[derive(Debug, Clone)]
pub struct EndedPart {
    /// Index of the phase.
    pub phase: usize,
    pub part: PhasePart,
    /// Number of the journal entry.
    pub seq: u64,
    pub job: JobId,
    pub outcome: PartOutcome,
    pub output: Option<String>,
    pub error: Option<String>,
    /// Cost in millionths of a US dollar.
    pub micros: i64,
    /// True if the part ended because the fleet was stopped. It is then repeated.
    pub is_stopped: bool,
}

/// Answer to a gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateAnswer {
    /// True for consent or a text answer.
    pub is_approved: bool,
    pub text: Option<String>,
    /// Caller that answered.
    pub by: String,
    pub at: Timestamp,
    /// Number of the gate's journal entry.
    pub seq: u64,
}

/// Author of the answer to a gate that timed out.
pub const TIMEOUT_ANSWERER: &str = "nobody, in time";

impl GateAnswer {
    /// Returns the author of an answer, as the end of a sentence about it.
    pub fn describe_author(by: &str) -> String {
        match by {
            TIMEOUT_ANSWERER => ": nobody answered in time".to_owned(),
            by => format!(" by {by}"),
        }
    }
}

/// Effect that must be committed and then executed.
#[derive(Debug, Clone)]
pub enum WorkflowEffect {
    /// A part begins, and a job executes it.
    StartPart {
        entry: JournalEntry,
        job: Box<PartJobSpec>,
        /// Delay before the start.
        after: Duration,
    },
    /// A part that needs no job has ended.
    RecordPart { entry: JournalEntry },
    /// A part with a job or a gate has ended, with a decision.
    ClosePart { entry: JournalEntry },
    /// A gate opens.
    AskQuestion { entry: JournalEntry, question: Box<GateQuestion> },
    /// A review is posted; its part is in progress until then.
    PostReview { entry: JournalEntry, findings: Box<ReviewFindings> },
    /// A message is sent to people.
    SendMessage {
        /// Index of the phase that it concerns.
        phase: Option<usize>,
        text: String,
    },
    /// All jobs of the run are ended, and its questions withdrawn.
    StopJobs {
        /// Immediately instead of gracefully.
        now: bool,
    },
}

/// Question of a gate.
#[derive(Debug, Clone, PartialEq)]
pub struct GateQuestion {
    /// Name of the gate.
    pub gate: String,
    pub kind: GateKind,
    pub text: String,
    /// File for which consent is requested.
    pub artifact: Option<String>,
    /// Time limit for an answer, and the answer that applies after it.
    pub timeout: Option<(Duration, GateDefault)>,
}

/// Environment of a step.
pub struct WorkflowStepContext<'a> {
    /// ID of the run, for templates.
    pub run: &'a str,
    /// Returns true if the config disables a gate.
    pub is_gate_disabled: &'a dyn Fn(&str) -> bool,
}

/// Result of a step.
#[derive(Debug, Default)]
pub struct WorkflowStepOutcome {
    pub effects: Vec<WorkflowEffect>,
    /// True if more parts can begin immediately.
    pub has_more: bool,
}

impl WorkflowRun {
    /// Processes an event.
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
                    // The resets are recorded now, so that the queue holds a run that is ready to
                    // begin.
                    self.status = WorkflowRunStatus::Queued;
                }
            }
        }
        // A queued run begins nothing until the fleet has capacity for it.
        if !self.status.is_final() && self.status != WorkflowRunStatus::Queued {
            self.begin_ready_phases(around, &mut step);
            // Computed after the beginnings, because a context phase may end the run in this step.
            self.status = self.compute_status();
            // The final message is only sent on success.
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
            // The run is over: the output is kept, but decides nothing.
            true => {}
            false => self.judge_part(&mut entry, around, step),
        }
        self.close_entry(entry, around, step);
    }

    /// Judges the output of a part.
    fn judge_part(
        &mut self,
        entry: &mut JournalEntry,
        around: &WorkflowStepContext<'_>,
        step: &mut WorkflowStepOutcome,
    ) {
        let place = entry.phase;
        // The part is repeated, so its partial output must not decide anything.
        if entry.outcome == Some(PartOutcome::Interrupted) {
            return self.count_restart(entry);
        }
        if let PhasePart::Check(number) = entry.part {
            entry.decision = decide_check(entry);
            return self.require_marker(number, entry);
        }
        // A fix has no verdict of its own: the recheck after it judges. A post has no output.
        if entry.outcome != Some(PartOutcome::Succeeded)
            || matches!(entry.part, PhasePart::Fix(_) | PhasePart::Post)
        {
            return;
        }
        // A handle of its own, because messages below borrow the whole run.
        let workflow = Arc::clone(&self.workflow);
        let phase = &workflow.phases[place];
        let output = entry.output.clone().unwrap_or_default();
        save_fix_markers(&mut self.scratch, &output);
        // An iteration that is not the last one need not say that the work is done.
        let is_judged_later = matches!(phase.repeat, PhaseRepeat::Until(_));
        if !is_judged_later && lacks_marker(&phase.on_output, &output) {
            return fail_unmarked(&phase.on_output, entry);
        }
        match judge_output(&phase.on_output, &output, &self.context) {
            MarkerOutcome::Blocked => {
                entry.decision = Some(PartDecision::Blocked);
                entry.error = Some("its output contains BLOCKED".to_owned());
                return;
            }
            MarkerOutcome::Bypassed => {
                let bypassed = phase.on_output.blocked.as_ref();
                let template = bypassed.and_then(|it| it.bypass_message.as_ref());
                let template = template.or(phase.messages.on_blocked_bypassed.as_ref());
                let number = self.rounds(place);
                let message = PhaseMessage { phase: place, template, number, error: None };
                self.push_message(&message, around, step);
            }
            MarkerOutcome::NoMarker => {}
        }
        match (&phase.repeat, entry.part) {
            (PhaseRepeat::Review(_), PhasePart::Work | PhasePart::Recheck(_)) => {
                // A review without a verdict must not count as consent.
                let verdict = parse_verdict(&output).unwrap_or(PartDecision::RequestChanges);
                entry.decision = Some(verdict);
            }
            (PhaseRepeat::Until(until), PhasePart::Iteration(number)) => {
                let more = [("output", json!(&*output)), ("iteration", json!(number))];
                let decided = until
                    .until
                    .as_ref()
                    .map(|it| self.evaluate_condition(it, place, &more, around));
                entry.decision = Some(match decided {
                    Some(Ok(true)) => PartDecision::ConditionMet,
                    // A condition that cannot be evaluated would otherwise loop until the limit.
                    Some(Err(error)) => {
                        entry.error = Some(error.to_string());
                        PartDecision::Unusable
                    }
                    // The expression did not hold; the command gets the last word.
                    _ if until.until_bash.is_some() => PartDecision::ConditionOpen,
                    _ => PartDecision::ConditionNotMet,
                });
                self.save_iteration(until.scratch_key.as_deref(), number, entry);
                self.require_marker(number, entry);
            }
            _ => {}
        }
    }

    /// Fails the last part of a loop if the output of the last iteration lacks the phase's marker.
    fn require_marker(&self, number: u32, entry: &mut JournalEntry) {
        let phase = &self.workflow.phases[entry.phase];
        let PhaseRepeat::Until(until) = &phase.repeat else { return };
        let is_last = match entry.decision {
            Some(PartDecision::ConditionMet) => true,
            Some(PartDecision::ConditionNotMet) => {
                number >= until.max_iterations.resolve(&self.context)
            }
            _ => false,
        };
        let said = match entry.part {
            PhasePart::Check(_) => self.outputs.get(phase.name.as_str()),
            _ => entry.output.as_ref(),
        };
        if is_last && lacks_marker(&phase.on_output, said.map_or("", |text| text)) {
            fail_unmarked(&phase.on_output, entry);
        }
    }

    /// Counts an interruption of a part, and gives the part up if there were too many.
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

    /// Stores the progress of a loop in `scratch`. The output itself is in the journal.
    fn save_iteration(&mut self, key: Option<&str>, number: u32, entry: &JournalEntry) {
        let Some(key) = key else { return };
        let is_ready = entry.decision == Some(PartDecision::ConditionMet);
        let state = self.scratch.entry(key).or_insert_with(|| json!({}));
        // Another phase may have stored a plain value under the same key.
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
        // A late answer, for example after a cancellation, must not continue the run.
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
            // The error is what the run's record shows, so it names the person and the reason.
            error: (!answer.is_approved)
                .then(|| format!("rejected{}{reason}", GateAnswer::describe_author(&answer.by))),
            micros: 0,
        };
        let workflow = Arc::clone(&self.workflow);
        // Only gates within a loop: an answer at the end of the phase has no next iteration.
        if let (PhaseRepeat::Until(until), PhasePart::Gate(1..)) =
            (&workflow.phases[place].repeat, part)
            && until.gate.as_ref().is_some_and(|gate| gate.kind == GateKind::Reply)
        {
            self.save_answer(until.scratch_key.as_deref(), place, answer);
        }
        self.close_entry(entry, around, step);
    }

    /// Stores question and answer in `scratch` for the following iterations.
    fn save_answer(&mut self, key: Option<&str>, place: usize, answer: &GateAnswer) {
        let phase = &self.workflow.phases[place];
        let question = self.outputs.get(phase.name.as_str()).map_or("", |text| &**text);
        // The end of a long text has the question.
        let start = question.len().saturating_sub(SCRATCH_TEXT_BYTES_MAX);
        let question = &question[question.ceil_char_boundary(start)..];
        let text = answer.text.as_deref().unwrap_or_default();
        let text = &text[..text.floor_char_boundary(SCRATCH_TEXT_BYTES_MAX)];
        let said = json!({
            "question": question, "answer": text, "sender": answer.by, "at": iso_millis(answer.at),
        });
        let key = key.unwrap_or(phase.name.as_str()).to_owned();
        let state = self.scratch.entry(key).or_insert_with(|| json!({}));
        // Another phase may have stored something else under this key.
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

    /// Removes the data of a loop that starts over from `scratch`.
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
        // Set first: the ends of the jobs then see a run that is over, and begin nothing.
        self.status = WorkflowRunStatus::Cancelled;
        self.error = Some(format!("cancelled by {by}"));
        step.effects.push(WorkflowEffect::StopJobs { now });
    }

    /// Resets all phases that failed or were interrupted, and all that depend on them.
    fn retry(&mut self, from: Option<usize>, step: &mut WorkflowStepOutcome) {
        let is_bad = |node: &PhaseState| match node {
            PhaseState::Finished(end) => *end == PhaseOutcome::Failed,
            // A phase is still active if the run was cancelled in the middle of it.
            PhaseState::Active(_) => true,
            PhaseState::Waiting => false,
        };
        let bad = (0..self.nodes.len())
            .filter(|place| is_bad(&self.nodes[*place].state) || self.has_failed_fix(*place));
        let all = self.with_dependants(bad.chain(from).collect::<Vec<usize>>());
        for place in all {
            // A phase that waits has nothing to reset, and an entry for it would only fill the
            // journal.
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
        // The questions were withdrawn with the end of the run, without entries that close them.
        self.open_gates = 0;
        self.restarts = 0;
        // The first error is kept, so an old one would hide that of the new attempt.
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

    /// Records a part that has already ended.
    pub(super) fn record_finished_part(
        &mut self,
        place: usize,
        part: PhasePart,
        how: PartOutcome,
        output: Option<String>,
        step: &mut WorkflowStepOutcome,
    ) -> JournalEntry {
        let output = output.map(Into::into);
        let entry = JournalEntry { outcome: Some(how), output, ..self.new_entry(place, part) };
        // Applied first, so that the entry and the state that follows from it agree.
        self.apply_entry(&entry);
        step.effects.push(WorkflowEffect::RecordPart { entry: entry.clone() });
        entry
    }

    /// Records a part that cannot begin.
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
        step.effects.push(WorkflowEffect::RecordPart { entry: entry.clone() });
        self.announce_part_end(&entry, around, step);
        self.announce_phase_end(&entry, around, step);
    }

    /// Records the end of an open part.
    fn close_entry(
        &mut self,
        entry: JournalEntry,
        around: &WorkflowStepContext<'_>,
        step: &mut WorkflowStepOutcome,
    ) {
        let place = entry.phase;
        self.apply_entry(&entry);
        // A part may fail without its phase, so only the end of the phase is an error of the run.
        let default = match self.phase_outcome(place) {
            Some(PhaseOutcome::Failed) => Some("it failed"),
            _ => self.has_failed_fix(place).then_some("a fix failed"),
        };
        if let Some(default) = default {
            let why = entry.error.as_deref().unwrap_or(default).to_owned();
            self.set_first_error(place, &why);
        }
        step.effects.push(WorkflowEffect::ClosePart { entry: entry.clone() });
        // A run that is over sends no more messages about its phases.
        if !self.status.is_final() {
            self.announce_part_end(&entry, around, step);
            self.announce_phase_end(&entry, around, step);
        }
    }

    /// Stores the reason why the run failed. The first reason is kept.
    fn set_first_error(&mut self, place: usize, why: &str) {
        let name = &self.workflow.phases[place].name;
        self.error.get_or_insert_with(|| format!("{name}: {why}"));
    }
}

/// Fails a part whose output lacks the required marker.
fn fail_unmarked(rules: &OutputRules, entry: &mut JournalEntry) {
    let marker = rules.requires_marker.as_deref().unwrap_or_default();
    entry.decision = Some(PartDecision::Unmarked);
    entry.error = Some(format!("its output lacks `{marker}`"));
}

/// Returns the decision of a check command; none if the command itself failed.
fn decide_check(entry: &JournalEntry) -> Option<PartDecision> {
    match entry.outcome {
        Some(PartOutcome::Succeeded) => Some(PartDecision::ConditionMet),
        // The exit code means that the condition does not hold.
        Some(PartOutcome::Failed) if entry.error.is_none() => Some(PartDecision::ConditionNotMet),
        // Neither answer is certain, so the retries of the phase decide.
        _ => None,
    }
}
