//! What happens to a run, and what is done because of it.
//!
//! A step takes one happening, decides, writes the decision into the journal as entries, and lets
//! begin what can: all of it is to be committed together. Start at [`Course::step`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::course::{Course, Next, NodeEnd, NodeState, RESTARTS_MAX, first_part, is_ours};
use super::definition::{Gate, GateDefault, GateKind, Language, Phase, PhaseWork, Repeat};
use super::entry::{Decision, Entry, How, Part};
use super::output::{Ruling, cut_output, judge, verdict};
use super::status::CourseStatus;
use super::template::{Expression, RenderError, Scope, Template};
use crate::{AgentName, JobId, iso_millis};

/// The most entries of one step; what is left is begun by the next.
pub const PARTS_PER_STEP: usize = 256;

/// The most items of a list.
pub const ITEMS_MAX: usize = 10_000;

/// The most bytes of a list of items.
pub const ITEMS_BYTES_MAX: usize = 1 << 20;

/// How many earlier phases' outputs a command finds in its environment, the nearest first.
const OUTPUTS_IN_ENVIRONMENT: usize = 32;

/// The most of them in bytes: a process has room for little more.
const ENVIRONMENT_BYTES_MAX: usize = 512 << 10;

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

/// What a job of a run is to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    /// Who does it, or in whose folder a command runs; the workflow's agent if left out.
    pub agent: Option<AgentName>,
    /// What is done.
    pub work: PieceWork,
    /// How long it may take.
    pub timeout: Option<Duration>,
    /// Where, inside of the agent's folder.
    pub folder: Option<String>,
    /// What is left of the run's budget, in millionths of a dollar.
    pub micros_left: Option<i64>,
}

/// What a job of a run does.
#[derive(Debug, Clone, PartialEq)]
pub enum PieceWork {
    /// Asks an agent.
    Ask {
        /// What.
        prompt: String,
        /// The model that answers, if not the agent's own.
        model: Option<String>,
    },
    /// Runs a shell command.
    Bash {
        /// The command.
        command: String,
        /// Variables that it sees.
        env: Vec<(String, String)>,
    },
    /// Runs a program.
    Script {
        /// Its text.
        source: String,
        /// What runs it.
        language: Language,
        /// Variables that it sees.
        env: Vec<(String, String)>,
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
        let was = self.status;
        match happening {
            Happening::GoOn => {}
            Happening::Ended(ended) => self.ended(ended, around, &mut step),
            Happening::Answered { phase, part, answer } => {
                self.answered(phase, part, &answer, around, &mut step);
            }
            Happening::Cancel { by, now } => self.cancel(&by, now, &mut step),
            Happening::Retry { from } => self.retry(from, &mut step),
        }
        if !self.status.is_final() {
            self.begin_due(around, &mut step);
            self.status = self.state();
            if self.status.is_final() && !was.is_final() {
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
        if !self.status.is_final() {
            self.judge(&mut entry, around, step);
        }
        self.close(entry, around, step);
    }

    /// Decides what an output means.
    fn judge(&mut self, entry: &mut Entry, around: &Around<'_>, step: &mut Step) {
        let place = entry.phase;
        if entry.how == Some(How::Interrupted) {
            match self.restarts < RESTARTS_MAX {
                true => self.restarts += 1,
                false => entry.decision = Some(Decision::GaveUp),
            }
            return;
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
            error: (!answer.consents).then(|| format!("rejected by {}{reason}", answer.by)),
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
            }
        }
        self.asked = 0;
        self.restarts = 0;
        self.error = None;
        self.status = CourseStatus::Running;
    }

    /// Begins what can begin, as far as one step goes.
    fn begin_due(&mut self, around: &Around<'_>, step: &mut Step) {
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
        has_item_room && self.open < self.workflow.max_parallel.get() as usize
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
                    let entry = self.entry(place, part);
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
        let text = match &gate.message {
            Some(message) => message.render(&self.scope(&self.names(place, number, around))),
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
                self.say(place, phase.messages.on_pause_for_approval.as_ref(), around, step);
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

    /// Returns what a job is to do for a part.
    fn piece(&self, place: usize, part: Part, around: &Around<'_>) -> Result<Piece, String> {
        let phase = &self.workflow.phases[place];
        let micros_left = match self.workflow.budget {
            Some(budget) => {
                let budget = i64::try_from(budget.micros()).unwrap_or(i64::MAX);
                let left = budget.saturating_sub(self.spent);
                if left <= 0 {
                    return Err(format!(
                        "the run has spent its budget of {} $",
                        budget / 1_000_000
                    ));
                }
                Some(left)
            }
            None => None,
        };
        let number = match part {
            Part::Fix(n)
            | Part::Recheck(n)
            | Part::Iteration(n)
            | Part::Check(n)
            | Part::Item(n) => n,
            _ => 0,
        };
        let mut names = self.names(place, number, around);
        if let (Part::Item(number), Repeat::Each(each)) = (part, &phase.repeat) {
            names.push((each.name.as_str(), self.item(place, number)));
        }
        let scope = self.scope(&names);
        let fill = |template: &Template| template.render(&scope).map_err(|it| it.to_string());
        let maybe = |template: &Option<Template>| template.as_ref().map(fill).transpose();
        let env = || self.environment(place, around);
        let work = match (part, &phase.repeat, &phase.work) {
            (Part::Check(_), Repeat::Until(until), _) => {
                let check = until.until_bash.as_ref().ok_or("it has no `until_bash`")?;
                PieceWork::Bash { command: fill(check)?, env: env() }
            }
            (Part::Fix(_), Repeat::Review(review), _) => PieceWork::Ask {
                prompt: fill(&review.fix_prompt)?,
                model: maybe(&review.fix_model)?,
            },
            (Part::Recheck(_), Repeat::Review(review), PhaseWork::Agent { model, .. }) => {
                PieceWork::Ask { prompt: fill(&review.re_review_prompt)?, model: maybe(model)? }
            }
            (_, _, PhaseWork::Agent { prompt, model }) => {
                PieceWork::Ask { prompt: fill(prompt)?, model: maybe(model)? }
            }
            (_, _, PhaseWork::Bash { command }) => {
                PieceWork::Bash { command: fill(command)?, env: env() }
            }
            (_, _, PhaseWork::Script { source, language }) => {
                PieceWork::Script { source: source.clone(), language: *language, env: env() }
            }
            (_, _, PhaseWork::Context) => return Err("there is nothing to do".to_owned()),
        };
        let timeout = phase.timeout_seconds.as_ref();
        Ok(Piece {
            agent: phase.agent.clone().or_else(|| self.workflow.agent.clone()),
            work,
            timeout: timeout.map(|it| Duration::from_secs(u64::from(it.of(&self.context)))),
            folder: maybe(&phase.working_directory)?,
            micros_left,
        })
    }

    /// Returns what commands find in their environment: what the phases before said.
    fn environment(&self, place: usize, around: &Around<'_>) -> Vec<(String, String)> {
        let mut env = vec![
            ("HEELER_WORKFLOW".to_owned(), self.workflow.name.to_string()),
            ("HEELER_WORKFLOW_RUN".to_owned(), around.run.to_owned()),
        ];
        let mut room = ENVIRONMENT_BYTES_MAX;
        let mut turn: VecDeque<usize> = [place].into();
        let mut seen = vec![place];
        while let Some(at) = turn.pop_front() {
            for on in &self.workflow.phases[at].depends_on {
                if seen.len() > OUTPUTS_IN_ENVIRONMENT || seen.contains(on) {
                    continue;
                }
                seen.push(*on);
                turn.push_back(*on);
                let name = self.workflow.phases[*on].name.as_str();
                let Some(text) = self.outputs.get(name).filter(|it| it.len() <= room) else {
                    continue;
                };
                room -= text.len();
                // A variable ends at a NUL.
                let text = text.replace('\0', "");
                let name = name.to_ascii_uppercase().replace('-', "_");
                env.push((format!("HEELER_OUT_{name}"), text.clone()));
                env.push((format!("LL_OUT_{name}"), text));
            }
        }
        env
    }

    /// Returns the names that templates of a phase see beside those of the run.
    fn names(&self, place: usize, number: u32, around: &Around<'_>) -> Vec<(&str, Json)> {
        let phase = &self.workflow.phases[place];
        let run = json!({ "id": around.run, "workflow": self.workflow.name });
        let mut names = vec![("run", run), ("phase", json!(phase.name))];
        let (said, is_fresh) = match (&self.nodes[place].state, &phase.repeat) {
            (NodeState::Begun(progress), Repeat::Until(until)) => {
                (progress.said.as_str(), until.fresh_context)
            }
            _ => ("", true),
        };
        match phase.repeat {
            Repeat::Until(_) => {
                let said = if is_fresh { "" } else { said };
                names.push(("iteration", json!(number.max(1))));
                names.push(("previousOutput", json!(said)));
            }
            Repeat::Review(_) => {
                let review = self.outputs.get(phase.name.as_str()).map_or("", |text| &**text);
                names.push(("cycle", json!(number)));
                names.push(("review", json!(review)));
            }
            Repeat::Once | Repeat::Each(_) => {}
        }
        names
    }

    fn item(&self, place: usize, number: u32) -> Json {
        let NodeState::Begun(progress) = &self.nodes[place].state else { return Json::Null };
        let list = progress.items.as_ref().map(|items| &items.list);
        let item = list.and_then(|list| list.get(number as usize - 1));
        item.cloned().unwrap_or(Json::Null)
    }

    fn scope<'s>(&'s self, more: &'s [(&'s str, Json)]) -> Scope<'s> {
        Scope { context: &self.context, scratch: &self.scratch, outputs: &self.outputs, more }
    }

    fn holds(
        &self,
        expression: &Expression,
        place: usize,
        more: &[(&str, Json)],
        around: &Around<'_>,
    ) -> Result<bool, RenderError> {
        let mut names = self.names(place, 0, around);
        names.extend(more.iter().cloned());
        expression.holds(&self.scope(&names))
    }

    fn entry(&self, place: usize, part: Part) -> Entry {
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
    fn note(
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
    fn fail(
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
    fn after(&mut self, place: usize, around: &Around<'_>, step: &mut Step) {
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

    fn say(&self, place: usize, message: Option<&Template>, around: &Around<'_>, step: &mut Step) {
        let Some(message) = message else { return };
        let names = self.names(place, 0, around);
        // That something cannot be said stops nothing.
        let text = message.render(&self.scope(&names)).unwrap_or_else(|error| error.to_string());
        if !text.trim().is_empty() {
            step.effects.push(Effect::Say { phase: Some(place), text });
        }
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
