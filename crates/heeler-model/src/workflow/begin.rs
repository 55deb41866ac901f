//! What begins when it can: the next part of each phase whose turn has come, and who is asked.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value as Json;

use super::course::{Course, Next, NodeState, first_part, is_ours};
use super::definition::{Gate, GateKind, Phase, Repeat};
use super::entry::{Entry, How, Part};
use super::output::cut_output;
use super::step::{Around, Effect, ITEMS_BYTES_MAX, ITEMS_MAX, PARTS_PER_STEP, Question, Step};
use super::template::RenderError;
use crate::ApprovalId;

impl Course {
    /// Begins what can begin, as far as one step goes.
    pub(super) fn begin_due(&mut self, around: &Around<'_>, step: &mut Step) {
        let before = step.effects.len();
        let mut at = 0;
        while let Some(place) = self.due.range(at..).next().copied() {
            if step.effects.len() - before >= PARTS_PER_STEP {
                step.has_more = true;
                return;
            }
            if !self.begin(place, around, step) {
                at = place + 1;
                continue;
            }
            // It, and whatever waited for it, may have more to do.
            let touched = self.dependants[place].iter().copied().chain([place]);
            let first = touched.filter(|place| self.due.contains(place)).min();
            at = first.map_or(place + 1, |first| first.min(place + 1));
        }
    }

    /// Begins the next part of a phase; says whether there was room for it.
    fn begin(&mut self, place: usize, around: &Around<'_>, step: &mut Step) -> bool {
        let workflow = Arc::clone(&self.workflow);
        let phase = &workflow.phases[place];
        if self.nodes[place].state == NodeState::Waiting {
            if !self.has_room(place) {
                return false;
            }
            if let Some(why) = self.skipped(place, around) {
                self.say(place, phase.messages.on_skipped_done.as_ref(), around, step);
                match why {
                    Ok(why) => self.note(place, Part::Skip, How::Succeeded, Some(why), step),
                    Err(error) => self.fail(place, Part::Work, error.to_string(), around, step),
                }
                return true;
            }
            self.current = phase.name.to_string();
            self.say(place, phase.messages.on_start.as_ref(), around, step);
            self.begin_part(place, first_part(phase), around, step);
            return true;
        }
        match self.next(place) {
            Next::Do(part) if is_ours(phase, part) || matches!(part, Part::Gate(_)) => {
                self.begin_part(place, part, around, step);
                true
            }
            Next::Do(part) if self.has_room(place) => {
                self.begin_part(place, part, around, step);
                true
            }
            _ => false,
        }
    }

    fn has_room(&self, place: usize) -> bool {
        let phase = &self.workflow.phases[place];
        if is_ours(phase, Part::Work) {
            return true;
        }
        let has_item_room = match (&phase.repeat, &self.nodes[place].state) {
            (Repeat::Each(each), NodeState::Begun(progress)) => {
                let open = progress.items.as_ref().map_or(0, |items| items.open);
                each.max_parallel.is_none_or(|most| open < most.get() as usize)
            }
            _ => true,
        };
        // What others may still cost is not to be given away: some of it may be left over.
        let has_money = self.grants.is_empty() || self.unspent().is_none_or(|left| left > 0);
        has_money && has_item_room && self.open < self.workflow.max_parallel.get() as usize
    }

    /// Says why a phase is left out, if it is.
    fn skipped(&self, place: usize, around: &Around<'_>) -> Option<Result<String, RenderError>> {
        if !self.is_wanted(place) {
            let rule = self.workflow.phases[place].trigger_rule;
            return Some(Ok(format!("what it waits for did not end as `{rule}` wants")));
        }
        for expression in &self.workflow.phases[place].skip_if {
            match self.holds(expression, place, &[], around) {
                Ok(true) => return Some(Ok(format!("`skip_if` holds: {expression}"))),
                Ok(false) => {}
                Err(error) => return Some(Err(error)),
            }
        }
        None
    }

    fn begin_part(&mut self, place: usize, part: Part, around: &Around<'_>, step: &mut Step) {
        let workflow = Arc::clone(&self.workflow);
        let phase = &workflow.phases[place];
        match part {
            Part::Gate(number) => self.ask(place, number, around, step),
            Part::Items => self.list(place, around, step),
            _ if is_ours(phase, part) => {
                self.note(place, part, How::Succeeded, None, step);
                self.after(place, around, step);
            }
            _ => match self.piece(place, part, around) {
                Ok(piece) => {
                    let tries = match &self.nodes[place].state {
                        NodeState::Begun(progress) => progress.tries_of(part),
                        _ => 0,
                    };
                    if let Part::Fix(_) = part {
                        let messages = &phase.messages;
                        self.say(place, messages.on_cycle_start.as_ref(), around, step);
                        self.say(place, messages.on_fix_start.as_ref(), around, step);
                    }
                    let micros = piece.micros_left.unwrap_or(0);
                    let entry = Entry { micros, ..self.entry(place, part) };
                    self.fold(&entry);
                    let after = backoff(phase, tries);
                    step.effects.push(Effect::Start { entry, piece: Box::new(piece), after });
                }
                Err(why) => self.fail(place, part, why, around, step),
            },
        }
    }

    /// Finds out for which items a phase is done.
    fn list(&mut self, place: usize, around: &Around<'_>, step: &mut Step) {
        let workflow = Arc::clone(&self.workflow);
        let Repeat::Each(each) = &workflow.phases[place].repeat else { return };
        let scope = [];
        let items = each.items.value(&self.scope(&scope));
        let items = items.map_err(|error| error.to_string()).and_then(as_list);
        match items {
            Ok(text) => {
                self.note(place, Part::Items, How::Succeeded, Some(text), step);
                self.after(place, around, step);
            }
            Err(why) => self.fail(place, Part::Items, why, around, step),
        }
    }

    fn ask(&mut self, place: usize, number: u32, around: &Around<'_>, step: &mut Step) {
        let workflow = Arc::clone(&self.workflow);
        let phase = &workflow.phases[place];
        let Some(gate) = gate_of(phase, number) else { return };
        let part = Part::Gate(number);
        if (around.is_off)(&gate.name) {
            self.note(place, part, How::Succeeded, None, step);
            return self.after(place, around, step);
        }
        let mut names = self.names(place, number, around);
        let id = ApprovalId::of_gate(around.run, self.seq);
        names.push(("approvalUrl", Json::from(format!("heeler approvals show {id}"))));
        names.push(("approvalId", Json::from(id.as_str())));
        let pause = phase.messages.on_pause_for_approval.as_ref();
        let pause = self.said(place, pause, &names);
        let text = match &gate.message {
            Some(message) => message.render(&self.scope(&names)),
            None => Ok(match gate.kind {
                GateKind::Approve => format!("May {} go on after `{}`?", workflow.name, phase.name),
                GateKind::Reply => {
                    let said = self.outputs.get(phase.name.as_str());
                    said.map_or_else(String::new, |text| text.to_string())
                }
            }),
        };
        match text {
            Ok(text) => {
                step.effects.extend(pause);
                let entry = self.entry(place, part);
                self.fold(&entry);
                let question = Question {
                    gate: gate.name.clone(),
                    kind: gate.kind,
                    text: cut_output(&text),
                    artifact: gate.artifact.clone(),
                    timeout: gate.timeout.as_ref().map(|(wait, it)| (wait.get(), it.clone())),
                };
                step.effects.push(Effect::Ask { entry, question: Box::new(question) });
            }
            Err(error) => self.fail(place, part, error.to_string(), around, step),
        }
    }
}

/// Returns the gate of a number.
fn gate_of(phase: &Phase, number: u32) -> Option<&Gate> {
    match (&phase.repeat, number) {
        (_, 0) => phase.gate.as_ref(),
        (Repeat::Review(review), _) => review.gate.as_ref(),
        (Repeat::Until(until), _) => until.gate.as_ref(),
        _ => None,
    }
}

/// Returns the items of a value as JSON: a list, or text with one in each line.
fn as_list(value: Json) -> Result<String, String> {
    let items = match value {
        Json::Array(items) => items,
        Json::String(text) => match serde_json::from_str(&text) {
            Ok(Json::Array(items)) => items,
            _ => {
                let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
                lines.map(Json::from).collect()
            }
        },
        Json::Null => Vec::new(),
        other => return Err(format!("`foreach` wants a list, not {other}")),
    };
    if items.len() > ITEMS_MAX {
        return Err(format!("`foreach` has {} items; {ITEMS_MAX} are the most", items.len()));
    }
    let text = serde_json::to_string(&items).expect("a list of values is JSON");
    match text.len() {
        0..=ITEMS_BYTES_MAX => Ok(text),
        size => Err(format!("`foreach` has {size} bytes of items; {ITEMS_BYTES_MAX} are the most")),
    }
}

/// Returns how long a part waits that has failed so often.
fn backoff(phase: &Phase, tries: u32) -> Duration {
    match tries {
        0 => Duration::ZERO,
        _ => {
            let wait = phase.retry.backoff.get();
            let wait = wait.saturating_mul(1_u32.checked_shl(tries - 1).unwrap_or(u32::MAX));
            wait.min(phase.retry.max_backoff.get())
        }
    }
}
