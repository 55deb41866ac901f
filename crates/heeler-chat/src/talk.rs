//! A conversation: what a person wishes and what a fleet does go in, what is to be shown comes out.
//!
//! It waits for nothing and reads no clock. Every entry is in its file before it is shown; one that the
//! disk does not take is kept until it does, and so is all that comes after it.
//!
//! One turn is one job of the agent. The daemon has the job, so whatever becomes of this process, its
//! rows are there, and the next one completes the transcript from them. Start at [`Talk`].

mod commands;
mod errand;
mod fork;
mod leave;
mod looping;
mod resume;
mod turns;
mod workers;

use std::collections::{HashMap, HashSet, VecDeque};

use camino::Utf8PathBuf;
use heeler_model::JobId;
use heeler_model::run::Answer;
use jiff::Timestamp;

pub use self::leave::{INSIGHTS_WAIT, LEAVE_WAIT};
pub use self::resume::TURNS_KNOWN;

use self::errand::Errand;
use self::fork::Forking;
use self::leave::Leaving;
use self::resume::Unsent;
use self::turns::{Asking, Running, Waiting};
use self::workers::Worker;
use crate::{
    Book, BookError, Entry, Fleet, Happened, Mark, Question, Role, Shelf, Shown, Speaker, Status,
    Wish, WorkerChip,
};

/// How many entries are shown at first, and how many more when older ones are wanted.
pub const PAGE_ENTRIES: usize = 50;

/// What becomes of workers that are at work when a person leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtExit {
    /// The person is asked.
    Ask,
    /// They are stopped.
    Stop,
    /// They go on; the daemon has them.
    Leave,
}

/// How a conversation is held.
#[derive(Debug, Clone)]
pub struct Manner {
    /// Whether a person sits there who can answer.
    pub attended: bool,
    /// What becomes of workers at the end.
    pub at_exit: AtExit,
    /// Whether the agent is asked at the end what it has learned.
    pub insights: bool,
    /// What earlier sessions have taught; told with the first turn.
    pub learned: Option<String>,
    /// Restart the loops of before at once.
    pub restart_loops: bool,
    /// Where `/export` writes.
    pub folder: Utf8PathBuf,
    /// The keys that there are and what each does, for `/help`; none where there is no screen.
    pub keys: &'static [(&'static str, &'static str)],
}

/// A conversation.
pub struct Talk {
    shelf: Shelf,
    book: Book,
    fleet: Box<dyn Fleet>,
    manner: Manner,
    now: Timestamp,
    out: Vec<Shown>,
    /// What the disk has not taken yet.
    unwritten: VecDeque<(Speaker, Entry)>,
    /// What a row told is not in the session's file yet: its entry comes after it, so that a crash between
    /// does not lose it.
    is_unsaved: bool,
    turn: Option<Running>,
    /// What is asked as soon as it is written.
    asking: Option<Asking>,
    /// What a session that was cut off may not have sent.
    unsent: Option<Unsent>,
    queue: VecDeque<Waiting>,
    /// What was said while the session is copied, to be ours or to go on in.
    held: Vec<String>,
    forking: Option<Forking>,
    errand: Option<Errand>,
    /// What the agent said last in this turn.
    last_words: String,
    /// The task that a loop has asked for last.
    asked_task: Option<String>,
    workers: Vec<Worker>,
    /// Whose jobs are followed.
    speakers: HashMap<JobId, Speaker>,
    /// Jobs of the session that this one was forked from: what is still told of them is not for us.
    left_behind: HashSet<JobId>,
    /// The next row of each.
    next_rows: HashMap<JobId, u64>,
    costs: HashMap<JobId, f64>,
    asks: Vec<Question>,
    view: Speaker,
    /// How far back each transcript was shown.
    marks: HashMap<Speaker, Mark>,
    status: Status,
    /// How many messages there were since it was begun here.
    messages: u64,
    leaving: Option<Leaving>,
    is_over: bool,
}

impl Talk {
    /// Goes on with a conversation, or begins a new one: whatever its book has is shown, and what is
    /// missing in it is asked of the fleet.
    pub fn begin(
        shelf: Shelf,
        book: Book,
        fleet: Box<dyn Fleet>,
        manner: Manner,
        now: Timestamp,
    ) -> Result<Talk, BookError> {
        let mut talk = Talk {
            shelf,
            book,
            fleet,
            manner,
            now,
            out: Vec::new(),
            unwritten: VecDeque::new(),
            is_unsaved: false,
            turn: None,
            asking: None,
            unsent: None,
            queue: VecDeque::new(),
            held: Vec::new(),
            forking: None,
            errand: None,
            last_words: String::new(),
            asked_task: None,
            workers: Vec::new(),
            speakers: HashMap::new(),
            left_behind: HashSet::new(),
            next_rows: HashMap::new(),
            costs: HashMap::new(),
            asks: Vec::new(),
            view: Speaker::Coordinator,
            marks: HashMap::new(),
            status: Status::default(),
            messages: 0,
            leaving: None,
            is_over: false,
        };
        talk.resume()?;
        talk.refresh();
        Ok(talk)
    }

    /// Tells the person something about the session, as what could not be read of it.
    pub fn warn(&mut self, warning: String) {
        self.failed(warning);
    }

    /// Takes what is to be shown, in order.
    pub fn shown(&mut self) -> Vec<Shown> {
        std::mem::take(&mut self.out)
    }

    /// Says whether the disk does not take what happened: nothing more should be handed in until it does,
    /// but for wishes to leave.
    pub fn is_stuck(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// Says whether it has ended: everything is saved.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the session's id.
    pub fn id(&self) -> &str {
        self.book.id()
    }

    /// Takes what a person wishes.
    pub fn wish(&mut self, wish: Wish, now: Timestamp) {
        self.at(now);
        match wish {
            Wish::Leave => self.leave(),
            Wish::HangUp => self.hang_up(),
            Wish::Say(line) if self.leaving.is_some() => self.leaving_said(&line),
            Wish::Say(line) => self.say(&line),
            Wish::Interrupt => self.interrupt(),
            Wish::Answer { job, ask, answer } => self.answer(&job, &ask, &answer),
            Wish::View(speaker) => self.look_at(speaker),
            Wish::ViewNext { back } => self.look_further(back),
            Wish::Older { of } => self.show_older(&of),
            Wish::LetGo { of, entries } => self.let_go(&of, entries),
        }
        self.refresh();
    }

    /// Takes what happened in the fleet.
    pub fn happened(&mut self, happened: Happened, now: Timestamp) {
        self.at(now);
        match happened {
            Happened::Row { job, at, row } => self.row(&job, at, &row),
            Happened::Delta { job, text } => {
                if let Some(of) = self.speakers.get(&job).cloned() {
                    self.out.push(Shown::Delta { of, text });
                }
            }
            Happened::Asked { job, .. } if self.left_behind.contains(&job) => {}
            Happened::Job(facts) if self.left_behind.contains(&facts.job) => {}
            Happened::Asked { job, ask } => {
                let of = self.speakers.get(&job).cloned().unwrap_or(Speaker::Coordinator);
                if !self.asks.iter().any(|known| known.ask.id == ask.id) {
                    let question = Question { of, job, ask };
                    self.asks.push(question.clone());
                    self.out.push(Shown::Asked(question));
                }
            }
            Happened::Settled { ask, .. } => self.settled(&ask),
            Happened::Job(facts) => self.job(&facts),
            Happened::Workers(workers) => self.workers_are(workers),
            Happened::Trouble(trouble) => self.status.trouble = trouble,
        }
        self.refresh();
    }

    /// Lets time pass: loops become due, and what must end ends. To be called about once a second.
    pub fn tick(&mut self, now: Timestamp) {
        self.at(now);
        self.errand_on();
        if self.leaving.is_none() {
            self.fork_on();
        }
        self.say_held();
        match self.leaving {
            Some(_) => self.leave_on(),
            None => self.loop_on(),
        }
        self.refresh();
    }

    /// Sets the clock, and tries again what the disk did not take.
    fn at(&mut self, now: Timestamp) {
        self.now = now;
        if self.is_unsaved && self.book.save_changes().is_err() {
            return;
        }
        self.is_unsaved = false;
        while let Some((of, entry)) = self.unwritten.front() {
            if self.book.append(of, entry).is_err() {
                return;
            }
            let (of, entry) = self.unwritten.pop_front().expect("it was looked at");
            self.out.push(Shown::Entry { of, entry });
        }
        self.ask_kept();
    }

    /// Keeps an entry, then shows it.
    fn keep(&mut self, of: Speaker, entry: Entry) {
        self.messages += u64::from(of == Speaker::Coordinator && entry.is_message());
        if let Speaker::Worker(name) = &of
            && self.view != of
            && let Some(worker) = self.workers.iter_mut().find(|worker| worker.name() == name)
        {
            worker.unseen += 1;
        }
        if self.unwritten.is_empty() && !self.is_unsaved {
            match self.book.append(&of, &entry) {
                Ok(()) => return self.out.push(Shown::Entry { of, entry }),
                Err(error) => {
                    self.out.push(Shown::Failed(format!(
                        "{error}; nothing goes on until it can be written"
                    )));
                }
            }
        }
        self.unwritten.push_back((of, entry));
    }

    /// Keeps a word of the program's own.
    fn note(&mut self, text: impl Into<String>) {
        let entry = Entry::new(Role::System, text, self.now);
        self.keep(Speaker::Coordinator, entry);
    }

    fn told(&mut self, text: impl Into<String>) {
        self.out.push(Shown::Told(text.into()));
    }

    fn failed(&mut self, text: impl Into<String>) {
        self.out.push(Shown::Failed(text.into()));
    }

    /// Changes what is known of the session. What cannot be saved now is saved with the next change.
    fn save(&mut self, change: impl FnOnce(&mut crate::About)) {
        if let Err(error) = self.book.save(change) {
            self.failed(format!("{error}"));
        }
    }

    fn answer(&mut self, job: &JobId, ask: &str, answer: &Answer) {
        match self.fleet.answer(job, ask, answer) {
            Ok(()) => self.settled(ask),
            Err(why) => self.failed(why),
        }
    }

    fn settled(&mut self, ask: &str) {
        self.asks.retain(|question| question.ask.id != ask);
        self.out.push(Shown::Settled { ask: ask.to_owned() });
    }

    fn look_at(&mut self, speaker: Speaker) {
        if let Speaker::Worker(name) = &speaker {
            let Some(worker) = self.workers.iter_mut().find(|worker| worker.name() == name) else {
                return self.failed(format!("there is no worker `{name}`; /workers lists them"));
            };
            worker.unseen = 0;
        }
        self.view = speaker.clone();
        self.out.push(Shown::View(speaker.clone()));
        if !self.marks.contains_key(&speaker) {
            self.show_older(&speaker);
        }
    }

    fn look_further(&mut self, back: bool) {
        let all: Vec<Speaker> = std::iter::once(Speaker::Coordinator)
            .chain(self.workers.iter().map(|worker| Speaker::Worker(worker.name().to_owned())))
            .collect();
        let at = all.iter().position(|speaker| *speaker == self.view).unwrap_or(0);
        let step = if back { all.len() - 1 } else { 1 };
        self.look_at(all[(at + step) % all.len()].clone());
    }

    fn show_older(&mut self, of: &Speaker) {
        match self.book.older(of, self.marks.get(of).copied(), PAGE_ENTRIES) {
            Ok(page) => {
                self.marks.insert(of.clone(), page.mark);
                let (entries, has_more) = (page.entries, page.has_more);
                self.out.push(Shown::Older { of: of.clone(), entries, has_more });
            }
            Err(error) => self.failed(format!("{error}")),
        }
    }

    /// Older entries are shown from further on again.
    fn let_go(&mut self, of: &Speaker, entries: usize) {
        let Some(mark) = self.marks.get(of) else { return };
        match self.book.later(of, *mark, entries) {
            Ok(mark) => drop(self.marks.insert(of.clone(), mark)),
            Err(error) => self.failed(format!("{error}")),
        }
    }

    /// Tells the status line if it says something else now.
    fn refresh(&mut self) {
        let about = self.book.about();
        let chip = |worker: &Worker| WorkerChip {
            name: worker.name().to_owned(),
            state: worker.state(),
            unseen: worker.unseen,
        };
        let status = Status {
            id: self.book.id().to_owned(),
            agent: about.agent().to_owned(),
            model: about.model.clone().or_else(|| self.status.model.clone()),
            context_tokens: self.status.context_tokens,
            // A sum of nothing is -0.
            cost_usd: self.costs.values().sum::<f64>() + 0.0,
            busy: match &self.turn {
                Some(turn) if self.asks.iter().any(|question| question.job == turn.job) => {
                    Some("waiting for an answer".to_owned())
                }
                Some(turn) => Some(turn.doing().to_owned()),
                None if self.asking.is_some() => Some("waiting for the disk".to_owned()),
                None if self.forking.is_some() || !self.held.is_empty() => {
                    Some("copying the session".to_owned())
                }
                None => self.errand.as_ref().map(|_| "going through the transcript".to_owned()),
            },
            queued: self.queue.len(),
            workers: self.workers.iter().map(chip).collect(),
            loops: about.loops.iter().filter(|one| one.next_at.is_some()).count(),
            tasks: about.tasks.iter().filter(|task| !task.done).count(),
            trouble: self.status.trouble.clone(),
        };
        if status != self.status {
            self.status = status.clone();
            self.out.push(Shown::Status(Box::new(status)));
        }
    }
}

#[cfg(test)]
mod tests;
