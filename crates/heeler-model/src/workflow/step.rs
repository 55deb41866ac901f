//! What happens to a run, and what is done because of it.
//!
//! A step takes one happening, decides, writes the decision into the journal as entries, and lets
//! begin what can: all of it is to be committed together. Start at [`Course::step`].

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::course::{Course, NodeEnd, NodeState, RESTARTS_MAX};
use super::definition::{GateDefault, GateKind, Repeat};
use super::entry::{Decision, Entry, How, Part};
use super::output::{Ruling, cut_output, judge, verdict};
use super::piece::Piece;
use super::status::CourseStatus;
use super::template::Template;
use crate::{JobId, iso_millis};

/// The most entries of one step; what is left is begun by the next.
pub const PARTS_PER_STEP: usize = 256;

/// The most items of a list.
pub const ITEMS_MAX: usize = 10_000;

/// The most bytes of a list of items.
pub const ITEMS_BYTES_MAX: usize = 1 << 20;

/// The most of a question or an answer that scratch keeps, in bytes.
const SAID_IN_SCRATCH_BYTES_MAX: usize = 4 << 10;

/// Something that happens to a run.
#[derive(Debug, Clone)]
pub enum Happening {
    /// It begins, or what the last step left is to go on.
    GoOn,
    /// A part that a job did is over.
    Ended(Ended),
    /// Somebody has answered a gate, or nobody has in time.
    Answered {
        /// The place of the gate's phase.
        phase: usize,
        /// Which gate of it.
        part: Part,
        /// The answer.
        answer: Answer,
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
pub struct Ended {
    /// The place of its phase.
    pub phase: usize,
    /// Which part of it.
    pub part: Part,
    /// Its entry's number.
    pub seq: u64,
    /// The job.
    pub job: JobId,
    /// How it ended.
    pub how: How,
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
pub struct Answer {
    /// Yes, or any words; else no.
    pub consents: bool,
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
pub const NOBODY_IN_TIME: &str = "nobody, in time";

impl Answer {
    /// Returns whose answer it is, as it is said after what was answered.
    pub fn whose(by: &str) -> String {
        match by {
            NOBODY_IN_TIME => ": nobody answered in time".to_owned(),
            by => format!(" by {by}"),
        }
    }
}

/// What is to be committed, and done because of it.
#[derive(Debug, Clone)]
pub enum Effect {
    /// A part begins that a job does.
    Start {
        /// Its entry.
        entry: Entry,
        /// What is to be done.
        piece: Box<Piece>,
        /// How long it waits before.
        after: Duration,
    },
    /// A part is over that no job does.
    Note {
        /// Its entry.
        entry: Entry,
    },
    /// A part is over that a job did or somebody was asked: what was decided about it.
    Close {
        /// Its entry.
        entry: Entry,
    },
    /// Somebody is asked.
    Ask {
        /// Its entry.
        entry: Entry,
        /// What.
        question: Box<Question>,
    },
    /// People are told something.
    Say {
        /// The place of the phase that it is about.
        phase: Option<usize>,
        /// What.
        text: String,
    },
    /// Jobs of it that go on or wait are ended, and its questions withdrawn.
    Stop {
        /// At once, not gracefully.
        now: bool,
    },
}

/// What somebody is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
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
pub struct Around<'a> {
    /// The run's id, for templates.
    pub run: &'a str,
    /// Whether the config turns a gate off.
    pub is_off: &'a dyn Fn(&str) -> bool,
}

/// What a step comes to.
#[derive(Debug, Default)]
pub struct Step {
    /// What is to be committed, and done because of it.
    pub effects: Vec<Effect>,
    /// Whether more can begin at once.
    pub has_more: bool,
}

impl Course {
    /// Decides about something that happens.
    pub fn step(&mut self, happening: Happening, around: &Around<'_>) -> Step {
        let mut step = Step::default();
        match happening {
            Happening::GoOn => {}
            Happening::Ended(ended) => self.ended(ended, around, &mut step),
            Happening::Answered { phase, part, answer } => {
                self.answered(phase, part, &answer, around, &mut step);
            }
            Happening::Cancel { by, now } => self.cancel(&by, now, &mut step),
            Happening::Retry { from, queued } => {
                self.retry(from, &mut step);
                if queued {
                    self.status = CourseStatus::Queued;
                }
            }
        }
        if !self.status.is_final() && self.status != CourseStatus::Queued {
            self.begin_due(around, &mut step);
            self.status = self.state();
            // What is said at the end tells of a success.
            if self.status == CourseStatus::Succeeded {
                self.say_end(around, &mut step);
            }
        }
        step
    }

    fn ended(&mut self, ended: Ended, around: &Around<'_>, step: &mut Step) {
        let place = ended.phase;
        let mut entry = Entry {
            phase: place,
            part: ended.part,
            seq: ended.seq,
            job: Some(ended.job),
            how: Some(ended.how),
            decision: None,
            output: ended.output.map(|text| cut_output(&text).into()),
            error: ended.error,
            micros: ended.micros,
        };
        match self.status.is_final() {
            _ if ended.is_stopped => entry.decision = Some(Decision::Stopped),
            true => {}
            false => self.judge(&mut entry, around, step),
        }
        self.close(entry, around, step);
    }

    /// Decides what an output means.
    fn judge(&mut self, entry: &mut Entry, around: &Around<'_>, step: &mut Step) {
        let place = entry.phase;
        if entry.how == Some(How::Interrupted) {
            return self.count_restart(entry);
        }
        if let Part::Check(_) = entry.part {
            entry.decision = match entry.how {
                Some(How::Succeeded) => Some(Decision::ConditionMet),
                // It said no by its exit code.
                Some(How::Failed) if entry.error.is_none() => Some(Decision::ConditionNotMet),
                _ => None,
            };
            return;
        }
        if entry.how != Some(How::Succeeded) || matches!(entry.part, Part::Fix(_)) {
            return;
        }
        let workflow = Arc::clone(&self.workflow);
        let phase = &workflow.phases[place];
        let output = entry.output.clone().unwrap_or_default();
        match judge(&phase.on_output, &output, &self.context) {
            Ruling::Failed(decision) => {
                let marker = phase.on_output.requires_marker.as_deref().unwrap_or_default();
                entry.decision = Some(decision);
                entry.error = Some(match decision {
                    Decision::Unmarked => format!("its output does not have `{marker}`"),
                    _ => "it says that it is BLOCKED".to_owned(),
                });
                let blocked = phase.on_output.blocked.as_ref().and_then(|it| it.message.as_ref());
                self.say(place, blocked.or(phase.messages.on_blocked.as_ref()), around, step);
                return;
            }
            Ruling::Bypassed => {
                let bypassed = phase.on_output.blocked.as_ref();
                let message = bypassed.and_then(|it| it.bypass_message.as_ref());
                let message = message.or(phase.messages.on_blocked_bypassed.as_ref());
                self.say(place, message, around, step);
            }
            Ruling::Clear => {}
        }
        match (&phase.repeat, entry.part) {
            (Repeat::Review(_), Part::Work | Part::Recheck(_)) => {
                // A review without a verdict wants a look: changes, never silent consent.
                let verdict = verdict(&output).unwrap_or(Decision::RequestChanges);
                entry.decision = Some(verdict);
                let message = match verdict {
                    Decision::Approved => &phase.messages.on_approved,
                    _ => &phase.messages.on_request_changes,
                };
                self.say(place, message.as_ref(), around, step);
            }
            (Repeat::Until(until), Part::Iteration(number)) => {
                let more = [("output", json!(&*output)), ("iteration", json!(number))];
                let decided = until.until.as_ref().map(|it| self.holds(it, place, &more, around));
                entry.decision = Some(match decided {
                    Some(Ok(true)) => Decision::ConditionMet,
                    Some(Err(error)) => {
                        entry.error = Some(error.to_string());
                        Decision::Unusable
                    }
                    _ if until.until_bash.is_some() => Decision::ConditionOpen,
                    _ => Decision::ConditionNotMet,
                });
                self.note_pass(until.scratch_key.as_deref(), number, entry);
            }
            _ => {}
        }
    }

    /// Counts that a part was cut off, and gives it up where that was too often.
    fn count_restart(&mut self, entry: &mut Entry) {
        let before = match &self.nodes[entry.phase].state {
            NodeState::Begun(progress) => progress.interrupts_of(entry.part),
            _ => 0,
        };
        self.restarts = self.restarts.saturating_add(1);
        if before >= RESTARTS_MAX {
            entry.decision = Some(Decision::GaveUp);
        }
    }

    /// Leaves in scratch how far a loop has come; what it said is with its entry.
    fn note_pass(&mut self, key: Option<&str>, number: u32, entry: &Entry) {
        let Some(key) = key else { return };
        let is_ready = entry.decision == Some(Decision::ConditionMet);
        let state = self.scratch.entry(key).or_insert_with(|| json!({}));
        if !state.is_object() {
            *state = json!({});
        }
        state["iteration"] = json!(number);
        state["ready"] = json!(is_ready);
        state["lastOutputExecutionId"] = json!(entry.job);
    }

    fn answered(
        &mut self,
        place: usize,
        part: Part,
        answer: &Answer,
        around: &Around<'_>,
        step: &mut Step,
    ) {
        if self.status.is_final() {
            return;
        }
        let how = if answer.consents { How::Succeeded } else { How::Failed };
        let reason = answer.text.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
        let entry = Entry {
            phase: place,
            part,
            seq: answer.seq,
            job: None,
            how: Some(how),
            decision: None,
            output: answer.text.as_deref().map(|text| cut_output(text).into()),
            error: (!answer.consents)
                .then(|| format!("rejected{}{reason}", Answer::whose(&answer.by))),
            micros: 0,
        };
        let workflow = Arc::clone(&self.workflow);
        if let (Repeat::Until(until), Part::Gate(1..)) = (&workflow.phases[place].repeat, part)
            && until.gate.as_ref().is_some_and(|gate| gate.kind == GateKind::Reply)
        {
            self.note_answer(until.scratch_key.as_deref(), place, answer);
        }
        self.close(entry, around, step);
    }

    /// Leaves question and answer in scratch for the passes that follow.
    fn note_answer(&mut self, key: Option<&str>, place: usize, answer: &Answer) {
        let phase = &self.workflow.phases[place];
        let question = self.outputs.get(phase.name.as_str()).map_or("", |text| &**text);
        let start = question.len().saturating_sub(SAID_IN_SCRATCH_BYTES_MAX);
        let question = &question[question.ceil_char_boundary(start)..];
        let text = answer.text.as_deref().unwrap_or_default();
        let text = &text[..text.floor_char_boundary(SAID_IN_SCRATCH_BYTES_MAX)];
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
    fn forget_answers(&mut self, place: usize) {
        let phase = &self.workflow.phases[place];
        if let Repeat::Until(until) = &phase.repeat {
            let key = until.scratch_key.as_deref().unwrap_or(phase.name.as_str());
            self.scratch.remove(key);
        }
    }

    fn cancel(&mut self, by: &str, now: bool, step: &mut Step) {
        if self.status.is_final() {
            return;
        }
        self.status = CourseStatus::Cancelled;
        self.error = Some(format!("cancelled by {by}"));
        step.effects.push(Effect::Stop { now });
    }

    /// Lets everything be done anew that has failed or was cut off, and what waits for that.
    fn retry(&mut self, from: Option<usize>, step: &mut Step) {
        let is_bad = |node: &NodeState| match node {
            NodeState::Over(end) => *end == NodeEnd::Failed,
            NodeState::Begun(_) => true,
            NodeState::Waiting => false,
        };
        let bad = (0..self.nodes.len()).filter(|place| is_bad(&self.nodes[*place].state));
        let all = self.with_dependants(bad.chain(from).collect::<Vec<usize>>());
        for place in all {
            if !matches!(self.nodes[place].state, NodeState::Waiting) {
                self.note(place, Part::Reset, How::Succeeded, None, step);
                self.forget_answers(place);
            }
        }
        self.asked = 0;
        self.restarts = 0;
        self.error = None;
        self.status = CourseStatus::Running;
    }

    pub(super) fn entry(&self, place: usize, part: Part) -> Entry {
        Entry {
            phase: place,
            part,
            seq: self.seq,
            job: None,
            how: None,
            decision: None,
            output: None,
            error: None,
            micros: 0,
        }
    }

    /// Puts a part on record that is over already.
    pub(super) fn note(
        &mut self,
        place: usize,
        part: Part,
        how: How,
        output: Option<String>,
        step: &mut Step,
    ) {
        let output = output.map(Into::into);
        let entry = Entry { how: Some(how), output, ..self.entry(place, part) };
        self.fold(&entry);
        step.effects.push(Effect::Note { entry });
    }

    /// Puts a part on record that cannot even begin.
    pub(super) fn fail(
        &mut self,
        place: usize,
        part: Part,
        why: String,
        around: &Around<'_>,
        step: &mut Step,
    ) {
        let entry = Entry {
            how: Some(How::Failed),
            decision: Some(Decision::Impossible),
            error: Some(why.clone()),
            ..self.entry(place, part)
        };
        self.blame(place, &why);
        self.fold(&entry);
        step.effects.push(Effect::Note { entry });
        self.after(place, around, step);
    }

    /// Puts on record how a part ended that was open.
    fn close(&mut self, entry: Entry, around: &Around<'_>, step: &mut Step) {
        let place = entry.phase;
        self.fold(&entry);
        if self.end_of(place) == Some(NodeEnd::Failed) {
            let why = entry.error.clone().unwrap_or_else(|| "it failed".to_owned());
            self.blame(place, &why);
        }
        if entry.how != Some(How::Succeeded) && matches!(entry.part, Part::Fix(_)) {
            let workflow = Arc::clone(&self.workflow);
            let message = &workflow.phases[place].messages.on_fix_failed;
            self.say(place, message.as_ref(), around, step);
        }
        step.effects.push(Effect::Close { entry });
        if !self.status.is_final() {
            self.after(place, around, step);
        }
    }

    /// Keeps why the run failed: the first reason.
    fn blame(&mut self, place: usize, why: &str) {
        let name = &self.workflow.phases[place].name;
        self.error.get_or_insert_with(|| format!("{name}: {why}"));
    }

    /// Tells people of a phase that has just ended.
    pub(super) fn after(&mut self, place: usize, around: &Around<'_>, step: &mut Step) {
        let workflow = Arc::clone(&self.workflow);
        let phase = &workflow.phases[place];
        match self.end_of(place) {
            Some(NodeEnd::Succeeded) => {
                if let Some(name) = &phase.set_phase {
                    self.current = name.clone();
                }
                self.say(place, phase.messages.on_success.as_ref(), around, step);
            }
            Some(NodeEnd::Failed) => {
                self.say(place, phase.messages.on_failure.as_ref(), around, step);
            }
            Some(NodeEnd::Skipped) | None => {}
        }
    }

    pub(super) fn say(
        &self,
        place: usize,
        message: Option<&Template>,
        around: &Around<'_>,
        step: &mut Step,
    ) {
        let names = self.names(place, 0, around);
        step.effects.extend(self.said(place, message, &names));
    }

    /// Returns what people are told, if it comes to any text.
    pub(super) fn said(
        &self,
        place: usize,
        message: Option<&Template>,
        names: &[(&str, Json)],
    ) -> Option<Effect> {
        // That something cannot be said stops nothing.
        let text = message?.render(&self.scope(names)).unwrap_or_else(|error| error.to_string());
        (!text.trim().is_empty()).then_some(Effect::Say { phase: Some(place), text })
    }

    fn say_end(&self, around: &Around<'_>, step: &mut Step) {
        let Some(message) = &self.workflow.final_message else { return };
        let run =
            json!({ "id": around.run, "workflow": self.workflow.name, "status": self.status });
        let names = [("run", run)];
        let text = message.render(&self.scope(&names)).unwrap_or_else(|error| error.to_string());
        if !text.trim().is_empty() {
            step.effects.push(Effect::Say { phase: None, text });
        }
    }
}
