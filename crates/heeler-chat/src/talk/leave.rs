//! The one way out: workers are stopped or left to the daemon, what was learned is written down, the
//! session is saved. A second wish to leave ends it at once; nothing is lost by that.

use heeler_model::JobId;
use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::workers::Worker;
use super::{AtExit, Talk};
use crate::{JobFacts, JobState, SessionChoice, Shown, Turn};

/// How long the agent may take to say what it has learned.
pub const INSIGHTS_WAIT: SignedDuration = SignedDuration::from_secs(20);
/// How long everything else may take.
pub const LEAVE_WAIT: SignedDuration = SignedDuration::from_secs(5);

const INSIGHTS_PROMPT: &str = "The session ends. What did the person teach you in it that a later session \
    should know from the start: corrections, preferences, decisions, facts about this project? Answer with \
    a list, one short line each, beginning with `- `; with nothing else, and with `none` if there is nothing.";

/// Where the way out has led so far.
pub(super) struct Leaving {
    step: Step,
    until: Timestamp,
}

enum Step {
    /// The person is asked what becomes of the workers.
    Asking,
    /// The turn is waited for, and the workers unless the daemon goes on with them.
    Ending { stops_workers: bool },
    /// The agent says what it has learned.
    Learning(JobId),
}

impl Talk {
    /// Begins to leave, or leaves at once if that has begun.
    pub(super) fn leave(&mut self) {
        if let Some(leaving) = &self.leaving {
            if let Step::Learning(job) = &leaving.step {
                // Nobody reads any more what it says.
                let job = job.clone();
                drop(self.fleet.cancel(&job, true));
            }
            return self.left();
        }
        let at_work = self.workers.iter().filter(|worker| worker.is_at_work()).count();
        match self.manner.at_exit {
            // On a disk that takes nothing no answer is heard.
            AtExit::Ask if at_work > 0 && self.manner.attended && !self.is_stuck() => {
                self.leaving = Some(Leaving { step: Step::Asking, until: Timestamp::MAX });
                let workers = if at_work == 1 {
                    "1 worker is".to_owned()
                } else {
                    format!("{at_work} workers are")
                };
                self.told(format!(
                    "{workers} at work. stop: end them; leave: the daemon goes on with them; stay: do not leave."
                ));
            }
            AtExit::Stop => self.end_turn(true),
            AtExit::Ask | AtExit::Leave => self.end_turn(false),
        }
    }

    /// Leaves without a question. Who leaves already goes on with that, unless it waits for an answer.
    pub(super) fn hang_up(&mut self) {
        let step = self.leaving.as_ref().map(|leaving| &leaving.step);
        if matches!(step, None | Some(Step::Asking)) {
            self.end_turn(self.manner.at_exit == AtExit::Stop);
        }
    }

    /// Takes what the person says to the question about workers.
    pub(super) fn leaving_said(&mut self, line: &str) {
        if !matches!(self.leaving, Some(Leaving { step: Step::Asking, .. })) {
            return self.failed("the session ends; Ctrl+C ends it at once");
        }
        match line.trim().to_lowercase().as_str() {
            "stop" | "s" => self.end_turn(true),
            "leave" | "l" => self.end_turn(false),
            "stay" => {
                self.leaving = None;
                self.told("going on");
            }
            "/exit" | "/quit" | "/q" => self.left(),
            _ => self.told("stop, leave or stay?"),
        }
    }

    fn end_turn(&mut self, stops_workers: bool) {
        self.tell_of_workers(stops_workers);
        let step = Step::Ending { stops_workers };
        self.leaving = Some(Leaving { step, until: self.by(LEAVE_WAIT) });
        // Who leaves interrupts.
        self.turn.iter_mut().for_each(|turn| turn.interrupts += 1);
        if let Some(job) = self.turn.as_ref().map(|turn| turn.job.clone())
            && let Err(why) = self.fleet.cancel(&job, false)
        {
            self.failed(why);
        }
        if stops_workers {
            self.stop_workers();
        }
        self.leave_on();
    }

    /// Says what becomes of those who are at work.
    fn tell_of_workers(&mut self, are_stopped: bool) {
        let at_work = self.workers.iter().filter(|worker| worker.is_at_work());
        let names: Vec<&str> = at_work.map(Worker::name).collect();
        if !names.is_empty() {
            let what = if are_stopped { "Stopping workers" } else { "Workers that go on" };
            self.farewell(format!("{what}: {}", names.join(", ")));
        }
    }

    pub(super) fn stops_workers(&self) -> bool {
        let step = self.leaving.as_ref().map(|leaving| &leaving.step);
        matches!(step, Some(Step::Ending { stops_workers: true }))
    }

    fn by(&self, wait: SignedDuration) -> Timestamp {
        self.now.checked_add(wait).unwrap_or(Timestamp::MAX)
    }

    /// Goes on leaving as far as it can.
    pub(super) fn leave_on(&mut self) {
        let Some(leaving) = &self.leaving else { return };
        let is_late = self.now >= leaving.until;
        match &leaving.step {
            Step::Asking => {}
            Step::Ending { stops_workers } => {
                let ends = |worker: &Worker| *stops_workers && worker.is_at_work();
                let waits = self.turn.is_some() || self.workers.iter().any(ends);
                if !waits || is_late {
                    self.learn();
                }
            }
            Step::Learning(job) => {
                if is_late {
                    let job = job.clone();
                    drop(self.fleet.cancel(&job, true));
                    self.farewell("Insights: not written, the agent took too long".to_owned());
                    self.left();
                }
            }
        }
    }

    /// Asks the agent what it has learned, in a copy of its conversation.
    fn learn(&mut self) {
        let (about, messages) = (self.book.about(), self.messages);
        let is_asked = self.manner.insights && messages > 0 && !self.is_stuck();
        let session = about.session.clone().filter(|_| is_asked);
        let Some(session) = session else { return self.left() };
        let turn = Turn {
            id: Uuid::new_v4(),
            agent: about.agent().to_owned(),
            prompt: INSIGHTS_PROMPT.to_owned(),
            session: SessionChoice::ForkOf(session, about.cut),
            model: about.model.clone(),
            attended: false,
        };
        self.farewell(format!("Extracting learnings from {messages} message(s)…"));
        self.last_words.clear();
        match self.fleet.ask(&turn) {
            Ok(job) => {
                self.fleet.follow(&job, 0);
                let until = self.by(INSIGHTS_WAIT);
                self.leaving = Some(Leaving { step: Step::Learning(job), until });
            }
            Err(why) => {
                self.farewell(format!("Insights: not written, {why}"));
                self.left();
            }
        }
    }

    pub(super) fn is_insight(&self, job: &JobId) -> bool {
        matches!(&self.leaving, Some(Leaving { step: Step::Learning(known), .. }) if known == job)
    }

    /// Takes where the agent's last word is.
    pub(super) fn insight_job(&mut self, facts: &JobFacts) {
        match facts.state {
            JobState::Waiting | JobState::Running => {}
            JobState::Failed => {
                let why = facts.reason.as_deref().unwrap_or("the agent failed");
                self.farewell(format!("Insights: not written, {why}"));
                self.left();
            }
            JobState::Done => {
                let insights: Vec<&str> = self
                    .last_words
                    .lines()
                    .filter_map(|line| line.trim().strip_prefix("- "))
                    .collect();
                let (count, text) = (insights.len(), insights.join("\n- "));
                self.farewell(format!("Found {count} steering insight(s)"));
                let learned =
                    if count > 0 { self.book.learn(&format!("- {text}\n")) } else { Ok(()) };
                match learned {
                    Ok(()) => {
                        self.farewell("Insight synthesis complete".to_owned());
                    }
                    Err(error) => {
                        self.farewell(format!("Insights: not written, {error}"));
                    }
                }
                self.left();
            }
        }
    }

    fn farewell(&mut self, text: impl Into<String>) {
        self.out.push(Shown::Leaving(text.into()));
    }

    /// Ends: everything is saved.
    fn left(&mut self) {
        self.give_up_fork();
        for text in self.unsaid() {
            self.farewell(format!("not sent: {text}"));
        }
        if self.is_stuck() {
            self.farewell(
                "The disk did not take the last of it. A resumed session asks the agent's job.",
            );
        }
        let id = self.book.id().to_owned();
        match self.book.save_changes() {
            Ok(()) => {
                self.farewell(format!("Session saved: {id}"));
                self.farewell(format!("Resume: heeler --resume {id}"));
            }
            Err(error) => {
                let whole = if self.is_stuck() { "" } else { "the transcript is whole, " };
                self.farewell(format!("{error}; {whole}heeler --resume {id}"));
            }
        }
        self.out.push(Shown::Left);
        self.is_over = true;
    }
}
