//! State machine of a conversation: takes user actions and fleet events, and produces output to
//! show.
//!
//! It never waits and reads no clock. Every entry is written to the session file before it is
//! shown; an entry that cannot be written is kept until it can be, and so are all that follow.
//!
//! A turn is one job of the agent. The daemon owns the job, so its rows survive a crash of this
//! process, and the next process completes the transcript from them. Start at [`Conversation`].

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

/// Entries shown at first, and loaded at a time.
pub const PAGE_ENTRIES: usize = 50;

/// Treatment of running workers when the person leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerExitPolicy {
    /// Ask the person.
    Ask,
    /// Stop them.
    Stop,
    /// Keep them running under the daemon.
    KeepRunning,
}

/// Options of a conversation.
#[derive(Debug, Clone)]
pub struct ConversationOptions {
    /// A person is present and can answer questions.
    pub attended: bool,
    /// Treatment of running workers at the end.
    pub worker_exit_policy: WorkerExitPolicy,
    /// Ask the agent for insights at the end.
    pub insights: bool,
    /// Insights of earlier sessions, sent with the first turn.
    pub earlier_insights: Option<String>,
    /// Restart the loops of a resumed session at once.
    pub restart_loops: bool,
    /// Directory in which `/export` writes.
    pub folder: Utf8PathBuf,
    /// Keys with descriptions, for `/help`; empty without a screen.
    pub keys: &'static [(&'static str, &'static str)],
}

/// A person's conversation with an agent.
pub struct Conversation {
    directory: SessionDirectory,
    session_file: SessionFile,
    fleet: Box<dyn ChatFleetClient>,
    options: ConversationOptions,
    now: Timestamp,
    outputs: Vec<ChatOutput>,
    /// Entries that are not written yet, because the disk failed.
    unwritten: VecDeque<(ChatSpeaker, ConversationEntry)>,
    /// The session file lacks state that was read from a row. The row's entry is written after it,
    /// so that a crash in between does not lose the state.
    is_unsaved: bool,
    turn: Option<RunningTurn>,
    /// Turn that is submitted as soon as its entry is written.
    pending_turn: Option<PendingTurn>,
    /// Message of an interrupted session that may not have been sent.
    unsent_message: Option<UnsentMessage>,
    queue: VecDeque<QueuedMessage>,
    /// Lines entered while the session is being copied.
    held_lines: Vec<String>,
    pending_fork: Option<ConversationFork>,
    background_task: Option<BackgroundTask>,
    /// Last text of the agent in this turn.
    last_reply: String,
    /// Task that a loop requested last.
    asked_task: Option<String>,
    workers: Vec<ConversationWorker>,
    /// Speaker of each followed job.
    speakers: HashMap<JobId, ChatSpeaker>,
    /// Jobs of the session that this one was forked from; their events are ignored.
    detached_jobs: HashSet<JobId>,
    /// Next expected row of each job.
    next_rows: HashMap<JobId, u64>,
    costs: HashMap<JobId, f64>,
    questions: Vec<ChatQuestion>,
    view: ChatSpeaker,
    /// Position of the oldest shown entry of each transcript.
    cursors: HashMap<ChatSpeaker, EntryCursor>,
    status: ConversationStatus,
    /// Messages since this process opened the session.
    messages: u64,
    exit: Option<ConversationExit>,
    is_over: bool,
}

impl Conversation {
    /// Opens or resumes a conversation: shows the end of its transcript, and requests missing rows
    /// from the fleet.
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

    /// Shows a warning about the session, such as parts that could not be read.
    pub fn warn(&mut self, warning: String) {
        self.show_error(warning);
    }

    /// Takes the output to show, in order.
    pub fn take_output(&mut self) -> Vec<ChatOutput> {
        std::mem::take(&mut self.outputs)
    }

    /// Returns true if entries could not be written. The caller should then pass nothing in except
    /// actions that leave.
    pub fn has_unwritten_entries(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// Returns true if the conversation has ended and everything is saved.
    pub fn has_ended(&self) -> bool {
        self.is_over
    }

    pub fn id(&self) -> &str {
        self.session_file.id()
    }

    /// Handles an action of the person.
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

    /// Handles an event of the fleet.
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

    /// Advances the time: starts due loops and ends expired waits. Call it about once a second.
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

    /// Sets the clock, and retries failed writes.
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

    /// Writes an entry, then shows it.
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
                        "{error}; the conversation is paused until it can be written"
                    )));
                }
            }
        }
        self.unwritten.push_back((of, entry));
    }

    /// Writes an entry of the role `system`.
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

    /// Changes the state of the session. A change that cannot be saved now is saved with the next
    /// one.
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

    /// Moves the position of the oldest shown entry forward again.
    fn drop_entries(&mut self, of: &ChatSpeaker, entries: usize) {
        let Some(mark) = self.cursors.get(of) else { return };
        match self.session_file.cursor_after(of, *mark, entries) {
            Ok(mark) => drop(self.cursors.insert(of.clone(), mark)),
            Err(error) => self.show_error(format!("{error}")),
        }
    }

    /// Emits the status line if it has changed.
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
            // The sum of no floats is -0.
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
                None => self.background_task.as_ref().map(|_| "reading the transcript".to_owned()),
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
