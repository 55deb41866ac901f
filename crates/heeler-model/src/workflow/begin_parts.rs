//! Start of parts: the next part of each ready phase, and the questions of gates.
//!
//! Start at [`WorkflowRun::begin_ready_phases`].

use std::sync::Arc;
use std::time::Duration;

use heeler_config::workflow::{GateKind, ITEMS_MAX, Phase, PhaseRepeat, TemplateRenderError};
use serde_json::Value as Json;

use super::journal::{JournalEntry, PartOutcome, PhasePart};
use super::messages::PhaseMessage;
use super::output::truncate_output;
use super::review_findings::ReviewFindings;
use super::workflow_run::{PhaseAction, PhaseState, WorkflowRun, first_part, needs_no_job};
use super::workflow_step::{
    GateQuestion, ITEMS_BYTES_MAX, PARTS_PER_STEP, WorkflowEffect, WorkflowStepContext,
    WorkflowStepOutcome,
};
use crate::ApprovalId;

impl WorkflowRun {
    /// Begins all parts that can begin, up to the limit of one step.
    pub(super) fn begin_ready_phases(
        &mut self,
        around: &WorkflowStepContext<'_>,
        step: &mut WorkflowStepOutcome,
    ) {
        // The limit is for what begins here; effects of the event itself do not count.
        let before = step.effects.len();
        let mut at = 0;
        while let Some(place) = self.ready_phases.range(at..).next().copied() {
            // Other work of the dispatcher gets its turn between two steps of a large run.
            if step.effects.len() - before >= PARTS_PER_STEP {
                step.has_more = true;
                return;
            }
            if !self.begin_next_part(place, around, step) {
                // A phase that cannot begin stays ready; the loop must pass it to reach the others.
                at = place + 1;
                continue;
            }
            // This phase and its dependants may have become ready.
            let touched = self.dependants[place].iter().copied().chain([place]);
            let first = touched.filter(|place| self.ready_phases.contains(place)).min();
            // Never beyond the next phase: the ones in between have not been looked at.
            at = first.map_or(place + 1, |first| first.min(place + 1));
        }
    }

    /// Begins the next part of a phase. Returns false if nothing could begin.
    fn begin_next_part(
        &mut self,
        place: usize,
        around: &WorkflowStepContext<'_>,
        step: &mut WorkflowStepOutcome,
    ) -> bool {
        // A handle of its own, because the calls below change the run.
        let workflow = Arc::clone(&self.workflow);
        let phase = &workflow.phases[place];
        if self.nodes[place].state == PhaseState::Waiting {
            if !self.has_capacity(place) {
                return false;
            }
            if let Some(why) = self.skip_reason(place, around) {
                // A condition that cannot be evaluated fails the phase; guessing would run or skip
                // it wrongly.
                match why {
                    Ok(why) => {
                        // A phase that is skipped because others failed was not left out on purpose.
                        if why.is_intended {
                            let template = phase.messages.on_skipped_done.as_ref();
                            self.push_message(
                                &PhaseMessage { phase: place, template, number: 0, error: None },
                                around,
                                step,
                            );
                        }
                        let (part, how) = (PhasePart::Skip, PartOutcome::Succeeded);
                        self.record_finished_part(place, part, how, Some(why.text), step);
                    }
                    Err(error) => self.record_failed_part(
                        place,
                        PhasePart::Work,
                        error.to_string(),
                        around,
                        step,
                    ),
                }
                return true;
            }
            // Only a phase that begins is shown as current; a skipped one never was.
            self.current_phase = phase.name.to_string();
            let template = phase.messages.on_start.as_ref();
            let message = PhaseMessage { phase: place, template, number: 0, error: None };
            self.push_message(&message, around, step);
            self.begin_part(place, first_part(phase), around, step);
            return true;
        }
        match self.next_action(place) {
            PhaseAction::Begin(part)
                // Neither occupies a process, so the limit on parallel parts does not apply.
                if needs_no_job(phase, part)
                    || matches!(part, PhasePart::Gate(_) | PhasePart::Post) =>
            {
                self.begin_part(place, part, around, step);
                true
            }
            PhaseAction::Begin(part) if self.has_capacity(place) => {
                self.begin_part(place, part, around, step);
                true
            }
            _ => false,
        }
    }

    fn has_capacity(&self, place: usize) -> bool {
        let phase = &self.workflow.phases[place];
        // A context phase costs nothing and must not wait for a free place.
        if needs_no_job(phase, PhasePart::Work) {
            return true;
        }
        let has_item_room = match (&phase.repeat, &self.nodes[place].state) {
            (PhaseRepeat::Foreach(each), PhaseState::Active(progress)) => {
                let open = progress.items.as_ref().map_or(0, |items| items.open_items);
                each.max_parallel.is_none_or(|most| open < most.get() as usize)
            }
            _ => true,
        };
        // Parts in progress hold the rest of the budget. Wait for them: they may not use all of it.
        let has_money =
            // Without grants nothing will come back: the part begins and fails with the budget as
            // reason.
            self.grants.is_empty() || self.remaining_budget().is_none_or(|left| left > 0);
        has_money && has_item_room && self.open_parts < self.workflow.max_parallel.get() as usize
    }

    /// Returns the reason why a phase is skipped, if it is.
    fn skip_reason(
        &self,
        place: usize,
        around: &WorkflowStepContext<'_>,
    ) -> Option<Result<PhaseSkipReason, TemplateRenderError>> {
        if !self.meets_trigger_rule(place) {
            let rule = self.workflow.phases[place].trigger_rule;
            let text = format!("its dependencies do not satisfy `trigger_rule: {rule}`");
            return Some(Ok(PhaseSkipReason { text, is_intended: false }));
        }
        for expression in &self.workflow.phases[place].skip_if {
            match self.evaluate_condition(expression, place, &[], around) {
                Ok(true) => {
                    let text = format!("`skip_if` holds: {expression}");
                    return Some(Ok(PhaseSkipReason { text, is_intended: true }));
                }
                Ok(false) => {}
                Err(error) => return Some(Err(error)),
            }
        }
        None
    }

    fn begin_part(
        &mut self,
        place: usize,
        part: PhasePart,
        around: &WorkflowStepContext<'_>,
        step: &mut WorkflowStepOutcome,
    ) {
        let workflow = Arc::clone(&self.workflow);
        let phase = &workflow.phases[place];
        match part {
            PhasePart::Gate(number) => self.open_gate(place, number, around, step),
            PhasePart::Items => self.resolve_items(place, around, step),
            PhasePart::Post => self.begin_post(place, around, step),
            // Such a part begins and ends in one entry, so a crash cannot leave it open.
            _ if needs_no_job(phase, part) => {
                let entry =
                    self.record_finished_part(place, part, PartOutcome::Succeeded, None, step);
                self.announce_phase_end(&entry, around, step);
            }
            _ => match self.part_job(place, part, around) {
                Ok(piece) => {
                    let (tries, interrupts) = match &self.nodes[place].state {
                        PhaseState::Active(progress) => {
                            (progress.failures_of(part), progress.interrupts_of(part))
                        }
                        _ => (0, 0),
                    };
                    // A repetition of the part is not another cycle.
                    if tries == 0 && interrupts == 0 {
                        self.announce_part_start(place, part, around, step);
                    }
                    // The grant is part of the entry, so a reader of the journal knows how much
                    // money is held.
                    let micros = piece.micros_left.unwrap_or(0);
                    let entry = JournalEntry { micros, ..self.new_entry(place, part) };
                    // Applied before the next part is chosen, so that its share of the budget and
                    // place is taken.
                    self.apply_entry(&entry);
                    let after = backoff(phase, tries);
                    step.effects.push(WorkflowEffect::StartPart {
                        entry,
                        job: Box::new(piece),
                        after,
                    });
                }
                Err(why) => self.record_failed_part(place, part, why, around, step),
            },
        }
    }

    /// Begins to post the review that the work of a phase has read.
    fn begin_post(
        &mut self,
        place: usize,
        around: &WorkflowStepContext<'_>,
        step: &mut WorkflowStepOutcome,
    ) {
        let name = self.workflow.phases[place].name.as_str();
        let text = self.outputs.get(name).map_or("", |text| &**text);
        match ReviewFindings::parse(text) {
            Ok(findings) if findings.skip => {
                let (how, text) = (PartOutcome::Succeeded, Some(findings.summary));
                let entry = self.record_finished_part(place, PhasePart::Post, how, text, step);
                self.announce_phase_end(&entry, around, step);
            }
            Ok(findings) => {
                let entry = self.new_entry(place, PhasePart::Post);
                self.apply_entry(&entry);
                let findings = Box::new(findings);
                step.effects.push(WorkflowEffect::PostReview { entry, findings });
            }
            Err(why) => self.record_failed_part(place, PhasePart::Post, why, around, step),
        }
    }

    /// Evaluates the item list of a phase.
    fn resolve_items(
        &mut self,
        place: usize,
        around: &WorkflowStepContext<'_>,
        step: &mut WorkflowStepOutcome,
    ) {
        let workflow = Arc::clone(&self.workflow);
        let PhaseRepeat::Foreach(each) = &workflow.phases[place].repeat else { return };
        let scope = [];
        // The list is evaluated once and recorded: a later evaluation might give other items.
        let items = each.items.value(&self.template_scope(&scope));
        let items = items.map_err(|error| error.to_string()).and_then(parse_items);
        match items {
            Ok(text) => {
                let (part, how) = (PhasePart::Items, PartOutcome::Succeeded);
                let entry = self.record_finished_part(place, part, how, Some(text), step);
                self.announce_phase_end(&entry, around, step);
            }
            Err(why) => self.record_failed_part(place, PhasePart::Items, why, around, step),
        }
    }

    fn open_gate(
        &mut self,
        place: usize,
        number: u32,
        around: &WorkflowStepContext<'_>,
        step: &mut WorkflowStepOutcome,
    ) {
        let workflow = Arc::clone(&self.workflow);
        let phase = &workflow.phases[place];
        let Some(gate) = phase.gate_at(number) else { return };
        let part = PhasePart::Gate(number);
        // Recorded as an answer, because reading the journal must not depend on the config.
        if (around.is_gate_disabled)(&gate.name) {
            let entry = self.record_finished_part(place, part, PartOutcome::Succeeded, None, step);
            return self.announce_phase_end(&entry, around, step);
        }
        // The gate at the end of a phase is about all of its rounds.
        let round = if number == 0 { self.rounds(place) } else { number };
        let mut names = self.template_names(place, round, around);
        // Derived from the entry, so that messages can name the question before it is stored.
        let id = ApprovalId::for_gate(around.run, self.seq);
        names.push(("approvalUrl", Json::from(format!("heeler approvals show {id}"))));
        names.push(("approvalId", Json::from(id.as_str())));
        // Rendered before the entry is made, but sent only if the question itself can be rendered.
        let pause = phase.messages.on_pause_for_approval.as_ref().filter(|_| number > 0);
        let pause = self.render_message(place, pause, &names);
        let said = self.outputs.get(phase.name.as_str()).map_or("", |text| text.trim());
        let message = gate.message.as_ref();
        let message = message.map(|message| message.render(&self.template_scope(&names)));
        let text = match (message, gate.kind) {
            (None, GateKind::Approve) => {
                Ok(format!("Continue {} after `{}`?", workflow.name, phase.name))
            }
            (None, GateKind::Reply) => Ok(said.to_owned()),
            // The agent's question is in the output of the iteration.
            (Some(Ok(text)), GateKind::Reply) => Ok(with_question(said, &text)),
            (Some(text), _) => text,
        };
        match text {
            Ok(text) => {
                step.effects.extend(pause);
                let entry = self.new_entry(place, part);
                self.apply_entry(&entry);
                let question = GateQuestion {
                    gate: gate.name.clone(),
                    kind: gate.kind,
                    text: truncate_output(&text),
                    artifact: gate.artifact.clone(),
                    timeout: gate.timeout.as_ref().map(|(wait, it)| (wait.get(), it.clone())),
                };
                step.effects
                    .push(WorkflowEffect::AskQuestion { entry, question: Box::new(question) });
            }
            Err(error) => self.record_failed_part(place, part, error.to_string(), around, step),
        }
    }
}

/// Reason why a phase is skipped.
struct PhaseSkipReason {
    text: String,
    /// True if the workflow file says so, false if other phases failed.
    is_intended: bool,
}

/// Puts the question of an agent before the text of a gate, unless the text has it.
fn with_question(said: &str, text: &str) -> String {
    match (said, text.trim()) {
        (said, text) if said.is_empty() || text.contains(said) => text.to_owned(),
        (said, "") => said.to_owned(),
        (said, text) => format!("{said}\n\n---\n\n{text}"),
    }
}

/// Converts a value to a JSON list of items. Text is a JSON list, or has one item per line.
fn parse_items(value: Json) -> Result<String, String> {
    let items = match value {
        Json::Array(items) => items,
        // An output is always text, even if it is a list.
        Json::String(text) => match serde_json::from_str(&text) {
            Ok(Json::Array(items)) => items,
            _ => {
                let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
                lines.map(Json::from).collect()
            }
        },
        // A missing value is an empty list, like an output without lines.
        Json::Null => Vec::new(),
        other => return Err(format!("`foreach` needs a list, not {other}")),
    };
    if items.len() > ITEMS_MAX {
        return Err(format!("`foreach` has {} items; the limit is {ITEMS_MAX}", items.len()));
    }
    let text = serde_json::to_string(&items).expect("a list of values is JSON");
    match text.len() {
        0..=ITEMS_BYTES_MAX => Ok(text),
        size => Err(format!("`foreach` has {size} bytes of items; the limit is {ITEMS_BYTES_MAX}")),
    }
}

/// Returns the delay before a part that has failed `tries` times.
fn backoff(phase: &Phase, tries: u32) -> Duration {
    match tries {
        0 => Duration::ZERO,
        _ => {
            let wait = phase.retry.backoff.get();
            // The shift overflows after many tries; the limit below then decides.
            let wait = wait.saturating_mul(1_u32.checked_shl(tries - 1).unwrap_or(u32::MAX));
            wait.min(phase.retry.max_backoff.get())
        }
    }
}
