//! A conversation: what a person wishes and what a fleet does go in, what is to be shown comes out.
//!
//! It waits for nothing and reads no clock. Every entry is in its file before it is shown; one that the
//! disk does not take is kept until it does, and so is all that comes after it.
//!
//! One turn is one job of the agent. The daemon has the job, so whatever becomes of this process, its
//! rows are there, and the next one completes the transcript from them. Start at [`Conversation`].

mod background_task;
mod commands;
mod exit;
mod fork;
mod loops;
mod resume;
mod turns;
mod workers;

use std::collections::{HashMap, HashSet, VecDeque};

use camino::Utf8PathBuf;
use heeler_model::JobId;
use heeler_model::run::QuestionAnswer;
use jiff::Timestamp;

pub use self::exit::{EXIT_WAIT, INSIGHTS_TIMEOUT};
pub use self::resume::TURN_LOOKUP_WINDOW;

use self::background_task::BackgroundTask;
use self::exit::ConversationExit;
use self::fork::ConversationFork;
use self::resume::UnsentMessage;
use self::turns::{PendingTurn, QueuedMessage, RunningTurn};
use self::workers::ConversationWorker;
use crate::{
    ChatFleetClient, ChatFleetEvent, ChatOutput, ChatQuestion, ChatSpeaker, ChatWorkerStatus,
    ConversationEntry, ConversationStatus, EntryCursor, EntryRole, SessionDirectory, SessionFile,
    SessionFileError, UserAction,
};

/// How many entries are shown at first, and how many more when older ones are wanted.
pub const PAGE_ENTRIES: usize = 50;

/// What becomes of workers that are at work when a person leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerExitPolicy {
    /// The person is asked.
    Ask,
    /// They are stopped.
    Stop,
    /// They go on; the daemon has them.
    KeepRunning,
}

/// How a conversation is held.
#[derive(Debug, Clone)]
pub struct ConversationOptions {
    /// Whether a person sits there who can answer.
    pub attended: bool,
    /// What becomes of workers at the end.
    pub worker_exit_policy: WorkerExitPolicy,
    /// Whether the agent is asked at the end what it has learned.
    pub insights: bool,
    /// What earlier sessions have taught; told with the first turn.
    pub earlier_insights: Option<String>,
    /// Restart the loops of before at once.
    pub restart_loops: bool,
    /// Where `/export` writes.
    pub folder: Utf8PathBuf,
    /// The keys that there are and what each does, for `/help`; none where there is no screen.
    pub keys: &'static [(&'static str, &'static str)],
}

/// A conversation.
pub struct Conversation {
    directory: SessionDirectory,
    session_file: SessionFile,
    fleet: Box<dyn ChatFleetClient>,
    options: ConversationOptions,
    now: Timestamp,
    outputs: Vec<ChatOutput>,
    /// What the disk has not taken yet.
    unwritten: VecDeque<(ChatSpeaker, ConversationEntry)>,
    /// What a row told is not in the session's file yet: its entry comes after it, so that a crash between
    /// does not lose it.
    is_unsaved: bool,
    turn: Option<RunningTurn>,
    /// What is asked as soon as it is written.
    pending_turn: Option<PendingTurn>,
    /// What a session that was cut off may not have sent.
    unsent_message: Option<UnsentMessage>,
    queue: VecDeque<QueuedMessage>,
    /// What was said while the session is copied, to be ours or to go on in.
    held_lines: Vec<String>,
    pending_fork: Option<ConversationFork>,
    background_task: Option<BackgroundTask>,
    /// What the agent said last in this turn.
    last_reply: String,
    /// The task that a loop has asked for last.
    asked_task: Option<String>,
    workers: Vec<ConversationWorker>,
    /// Whose jobs are followed.
    speakers: HashMap<JobId, ChatSpeaker>,
    /// Jobs of the session that this one was forked from: what is still told of them is not for us.
    detached_jobs: HashSet<JobId>,
    /// The next row of each.
    next_rows: HashMap<JobId, u64>,
    costs: HashMap<JobId, f64>,
    questions: Vec<ChatQuestion>,
    view: ChatSpeaker,
    /// How far back each transcript was shown.
    cursors: HashMap<ChatSpeaker, EntryCursor>,
    status: ConversationStatus,
    /// How many messages there were since it was begun here.
    messages: u64,
    exit: Option<ConversationExit>,
    is_over: bool,
}

impl Conversation {
    /// Goes on with a conversation, or begins a new one: whatever its book has is shown, and what is
    /// missing in it is asked of the fleet.
    pub fn begin(
        shelf: SessionDirectory,
        book: SessionFile,
        fleet: Box<dyn ChatFleetClient>,
        manner: ConversationOptions,
        now: Timestamp,
    ) -> Result<Conversation, SessionFileError> {
        let mut talk = Conversation {
            directory: shelf,
            session_file: book,
            fleet,
            options: manner,
            now,
            outputs: Vec::new(),
            unwritten: VecDeque::new(),
            is_unsaved: false,
            turn: None,
            pending_turn: None,
            unsent_message: None,
            queue: VecDeque::new(),
            held_lines: Vec::new(),
            pending_fork: None,
            background_task: None,
            last_reply: String::new(),
            asked_task: None,
            workers: Vec::new(),
            speakers: HashMap::new(),
            detached_jobs: HashSet::new(),
            next_rows: HashMap::new(),
            costs: HashMap::new(),
            questions: Vec::new(),
            view: ChatSpeaker::Coordinator,
            cursors: HashMap::new(),
            status: ConversationStatus::default(),
            messages: 0,
            exit: None,
            is_over: false,
        };
        talk.resume()?;
        talk.refresh_status();
        Ok(talk)
    }

    /// Tells the person something about the session, as what could not be read of it.
    pub fn warn(&mut self, warning: String) {
        self.show_error(warning);
    }

    /// Takes what is to be shown, in order.
    pub fn take_output(&mut self) -> Vec<ChatOutput> {
        std::mem::take(&mut self.outputs)
    }

    /// Says whether the disk does not take what happened: nothing more should be handed in until it does,
    /// but for wishes to leave.
    pub fn has_unwritten_entries(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// Says whether it has ended: everything is saved.
    pub fn has_ended(&self) -> bool {
        self.is_over
    }

    /// Returns the session's id.
    pub fn id(&self) -> &str {
        self.session_file.id()
    }

    /// Takes what a person wishes.
    pub fn handle_action(&mut self, wish: UserAction, now: Timestamp) {
        self.advance_clock(now);
        match wish {
            UserAction::Exit => self.begin_exit(),
            UserAction::HangUp => self.exit_unattended(),
            UserAction::SendLine(line) if self.exit.is_some() => self.handle_exit_answer(&line),
            UserAction::SendLine(line) => self.handle_line(&line),
            UserAction::Interrupt => self.interrupt(),
            UserAction::Answer { job, ask, answer } => self.answer(&job, &ask, &answer),
            UserAction::View(speaker) => self.switch_view(speaker),
            UserAction::ViewNext { back } => self.cycle_view(back),
            UserAction::LoadOlder { of } => self.show_older(&of),
            UserAction::DropEntries { of, entries } => self.drop_entries(&of, entries),
        }
        self.refresh_status();
    }

    /// Takes what happened in the fleet.
    pub fn handle_fleet_event(&mut self, happened: ChatFleetEvent, now: Timestamp) {
        self.advance_clock(now);
        match happened {
            ChatFleetEvent::Row { job, at, row } => self.handle_row(&job, at, &row),
            ChatFleetEvent::Delta { job, text } => {
                if let Some(of) = self.speakers.get(&job).cloned() {
                    self.outputs.push(ChatOutput::Delta { of, text });
                }
            }
            ChatFleetEvent::QuestionAsked { job, .. } if self.detached_jobs.contains(&job) => {}
            ChatFleetEvent::Job(facts) if self.detached_jobs.contains(&facts.job) => {}
            ChatFleetEvent::QuestionAsked { job, ask } => {
                let of = self.speakers.get(&job).cloned().unwrap_or(ChatSpeaker::Coordinator);
                if !self.questions.iter().any(|known| known.ask.id == ask.id) {
                    let question = ChatQuestion { of, job, ask };
                    self.questions.push(question.clone());
                    self.outputs.push(ChatOutput::QuestionAsked(question));
                }
            }
            ChatFleetEvent::QuestionClosed { ask, .. } => self.close_question(&ask),
            ChatFleetEvent::Job(facts) => self.handle_job_info(&facts),
            ChatFleetEvent::Workers(workers) => self.update_workers(workers),
            ChatFleetEvent::ConnectionChanged(trouble) => self.status.trouble = trouble,
        }
        self.refresh_status();
    }

    /// Lets time pass: loops become due, and what must end ends. To be called about once a second.
    pub fn tick(&mut self, now: Timestamp) {
        self.advance_clock(now);
        self.poll_background_task();
        if self.exit.is_none() {
            self.poll_fork();
        }
        self.send_held_lines();
        match self.exit {
            Some(_) => self.advance_exit(),
            None => self.start_due_loop(),
        }
        self.refresh_status();
    }

    /// Sets the clock, and tries again what the disk did not take.
    fn advance_clock(&mut self, now: Timestamp) {
        self.now = now;
        if self.is_unsaved && self.session_file.save_changes().is_err() {
            return;
        }
        self.is_unsaved = false;
        while let Some((of, entry)) = self.unwritten.front() {
            if self.session_file.append(of, entry).is_err() {
                return;
            }
            let (of, entry) = self.unwritten.pop_front().expect("it was looked at");
            self.outputs.push(ChatOutput::Entry { of, entry });
        }
        self.submit_pending_turn();
    }

    /// Keeps an entry, then shows it.
    fn append_entry(&mut self, of: ChatSpeaker, entry: ConversationEntry) {
        self.messages += u64::from(of == ChatSpeaker::Coordinator && entry.is_message());
        if let ChatSpeaker::Worker(name) = &of
            && self.view != of
            && let Some(worker) = self.workers.iter_mut().find(|worker| worker.name() == name)
        {
            worker.unseen += 1;
        }
        if self.unwritten.is_empty() && !self.is_unsaved {
            match self.session_file.append(&of, &entry) {
                Ok(()) => return self.outputs.push(ChatOutput::Entry { of, entry }),
                Err(error) => {
                    self.outputs.push(ChatOutput::Error(format!(
                        "{error}; nothing goes on until it can be written"
                    )));
                }
            }
        }
        self.unwritten.push_back((of, entry));
    }

    /// Keeps a word of the program's own.
    fn append_notice(&mut self, text: impl Into<String>) {
        let entry = ConversationEntry::new(EntryRole::System, text, self.now);
        self.append_entry(ChatSpeaker::Coordinator, entry);
    }

    fn show_notice(&mut self, text: impl Into<String>) {
        self.outputs.push(ChatOutput::Notice(text.into()));
    }

    fn show_error(&mut self, text: impl Into<String>) {
        self.outputs.push(ChatOutput::Error(text.into()));
    }

    /// Changes what is known of the session. What cannot be saved now is saved with the next change.
    fn save_state(&mut self, change: impl FnOnce(&mut crate::ConversationState)) {
        if let Err(error) = self.session_file.save(change) {
            self.show_error(format!("{error}"));
        }
    }

    fn answer(&mut self, job: &JobId, ask: &str, answer: &QuestionAnswer) {
        match self.fleet.answer_question(job, ask, answer) {
            Ok(()) => self.close_question(ask),
            Err(why) => self.show_error(why),
        }
    }

    fn close_question(&mut self, ask: &str) {
        self.questions.retain(|question| question.ask.id != ask);
        self.outputs.push(ChatOutput::QuestionClosed { ask: ask.to_owned() });
    }

    fn switch_view(&mut self, speaker: ChatSpeaker) {
        if let ChatSpeaker::Worker(name) = &speaker {
            let Some(worker) = self.workers.iter_mut().find(|worker| worker.name() == name) else {
                return self
                    .show_error(format!("there is no worker `{name}`; /workers lists them"));
            };
            worker.unseen = 0;
        }
        self.view = speaker.clone();
        self.outputs.push(ChatOutput::ViewChanged(speaker.clone()));
        if !self.cursors.contains_key(&speaker) {
            self.show_older(&speaker);
        }
    }

    fn cycle_view(&mut self, back: bool) {
        let all: Vec<ChatSpeaker> = std::iter::once(ChatSpeaker::Coordinator)
            .chain(self.workers.iter().map(|worker| ChatSpeaker::Worker(worker.name().to_owned())))
            .collect();
        let at = all.iter().position(|speaker| *speaker == self.view).unwrap_or(0);
        let step = if back { all.len() - 1 } else { 1 };
        self.switch_view(all[(at + step) % all.len()].clone());
    }

    fn show_older(&mut self, of: &ChatSpeaker) {
        match self.session_file.entries_before(of, self.cursors.get(of).copied(), PAGE_ENTRIES) {
            Ok(page) => {
                self.cursors.insert(of.clone(), page.cursor);
                let (entries, has_more) = (page.entries, page.has_more);
                self.outputs.push(ChatOutput::OlderEntries { of: of.clone(), entries, has_more });
            }
            Err(error) => self.show_error(format!("{error}")),
        }
    }

    /// Older entries are shown from further on again.
    fn drop_entries(&mut self, of: &ChatSpeaker, entries: usize) {
        let Some(mark) = self.cursors.get(of) else { return };
        match self.session_file.cursor_after(of, *mark, entries) {
            Ok(mark) => drop(self.cursors.insert(of.clone(), mark)),
            Err(error) => self.show_error(format!("{error}")),
        }
    }

    /// Tells the status line if it says something else now.
    fn refresh_status(&mut self) {
        let about = self.session_file.state();
        let chip = |worker: &ConversationWorker| ChatWorkerStatus {
            name: worker.name().to_owned(),
            state: worker.state(),
            unseen: worker.unseen,
        };
        let status = ConversationStatus {
            id: self.session_file.id().to_owned(),
            agent: about.agent().to_owned(),
            model: about.model.clone().or_else(|| self.status.model.clone()),
            context_tokens: self.status.context_tokens,
            // A sum of nothing is -0.
            cost_usd: self.costs.values().sum::<f64>() + 0.0,
            busy: match &self.turn {
                Some(turn) if self.questions.iter().any(|question| question.job == turn.job) => {
                    Some("waiting for an answer".to_owned())
                }
                Some(turn) => Some(turn.activity().to_owned()),
                None if self.pending_turn.is_some() => Some("waiting for the disk".to_owned()),
                None if self.pending_fork.is_some() || !self.held_lines.is_empty() => {
                    Some("copying the session".to_owned())
                }
                None => {
                    self.background_task.as_ref().map(|_| "going through the transcript".to_owned())
                }
            },
            queued: self.queue.len(),
            workers: self.workers.iter().map(chip).collect(),
            loops: about.loops.iter().filter(|one| one.next_at.is_some()).count(),
            tasks: about.tasks.iter().filter(|task| !task.done).count(),
            trouble: self.status.trouble.clone(),
        };
        if status != self.status {
            self.status = status.clone();
            self.outputs.push(ChatOutput::Status(Box::new(status)));
        }
    }
}

#[cfg(test)]
mod tests;
