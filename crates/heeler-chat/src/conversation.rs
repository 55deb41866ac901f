//! State machine of a conversation: takes user actions and fleet events, and produces output to
//! show.
//!
//! It never waits and reads no clock. Every entry is written to the session file before it is
//! shown; an entry that cannot be written is kept until it can be, and so are all that follow.
//!
//! Two state machines decide: [`phase`] what the person can do (talk, or the steps of the exit), and
//! [`turn_phase`] what the agent does. Both are pure; this module executes their effects.
//!
//! A turn is one job of the agent. The daemon owns the job, so its rows survive a crash of this
//! process, and the next process completes the transcript from them. Start at [`Conversation`].

mod background_task;
mod commands;
mod copy;
mod display;
mod exit;
mod followed_jobs;
mod fork;
mod fork_copy;
mod loops;
mod options;
mod outbox;
mod permissions;
mod phase;
mod questions;
mod record;
mod resume;
mod rows;
mod shell;
mod shell_commands;
mod turn_phase;
mod turn_to_undo;
mod turns;
mod undo;
mod worker_list;
mod workers;

use heeler_model::permission_grant::PermissionGrant;
use jiff::Timestamp;

pub use self::display::PAGE_ENTRIES;
pub use self::options::{AgentSlashCommand, ConversationOptions, WorkerExitPolicy};
pub use self::phase::{EXIT_WAIT, INSIGHTS_TIMEOUT};
pub use self::resume::TURN_LOOKUP_WINDOW;

use self::display::{ConversationDisplay, truncate_line};
use self::followed_jobs::FollowedJobs;
use self::outbox::MessageOutbox;
use self::phase::{ConversationPhase, ConversationPhaseEvent};
use self::record::ConversationRecord;
use self::shell_commands::ShellCommands;
use self::turn_phase::{TurnEvent, TurnPhase};
use self::worker_list::{ConversationWorker, WorkerList};
use crate::background::BackgroundTask;
use crate::{
    ChatFleetClient, ChatFleetEvent, ChatOutput, ChatSpeaker, ConversationEntry, ConversationState,
    ConversationStatus, EntryRole, SessionDirectory, SessionFile, SessionFileError, UserAction,
};

/// A person's conversation with an agent.
pub struct Conversation {
    directory: SessionDirectory,
    record: ConversationRecord,
    fleet: Box<dyn ChatFleetClient>,
    options: ConversationOptions,
    now: Timestamp,
    display: ConversationDisplay,
    phase: ConversationPhase,
    turn: TurnPhase,
    outbox: MessageOutbox,
    /// Search or export in progress; it only reads, so it may run in every phase.
    background_task: Option<BackgroundTask>,
    workers: WorkerList,
    jobs: FollowedJobs,
    /// Commands of the person on this machine.
    shell: ShellCommands,
    /// Permissions that the person has given since this process has the conversation open.
    permissions: PermissionGrant,
}

impl Conversation {
    /// Opens or resumes a conversation: shows the end of its transcript, and requests missing rows
    /// from the fleet.
    pub fn begin(
        directory: SessionDirectory,
        session_file: SessionFile,
        fleet: Box<dyn ChatFleetClient>,
        options: ConversationOptions,
        now: Timestamp,
    ) -> Result<Conversation, SessionFileError> {
        let context_tokens = options.context_tokens;
        let mut conversation = Conversation {
            directory,
            record: ConversationRecord::new(session_file),
            fleet,
            options,
            now,
            display: ConversationDisplay::new(context_tokens),
            phase: ConversationPhase::default(),
            turn: TurnPhase::default(),
            outbox: MessageOutbox::default(),
            background_task: None,
            workers: WorkerList::default(),
            jobs: FollowedJobs::default(),
            shell: ShellCommands::default(),
            permissions: PermissionGrant::default(),
        };
        conversation.resume()?;
        conversation.refresh_status();
        Ok(conversation)
    }

    /// Shows a warning about the session, such as parts that could not be read.
    pub fn warn(&mut self, warning: String) {
        self.display.show_error(warning);
    }

    /// Takes the output to show, in order.
    pub fn take_output(&mut self) -> Vec<ChatOutput> {
        self.display.take_output()
    }

    /// Returns true if entries could not be written. The caller should then pass nothing in except
    /// actions that leave.
    pub fn has_unwritten_entries(&self) -> bool {
        self.record.has_unwritten_entries()
    }

    /// Returns true if the conversation has ended and everything is saved.
    pub fn has_ended(&self) -> bool {
        self.phase.has_ended()
    }

    pub fn id(&self) -> &str {
        self.record.id()
    }

    /// Handles an action of the person. A conversation that has ended ignores it.
    pub fn handle_action(&mut self, action: UserAction, now: Timestamp) {
        if self.has_ended() {
            return;
        }
        self.advance_clock(now);
        match action {
            UserAction::Exit => self.apply_phase_event(ConversationPhaseEvent::ExitRequested),
            UserAction::HangUp => self.apply_phase_event(ConversationPhaseEvent::TerminalClosed),
            UserAction::SendLine(line) => {
                self.apply_phase_event(ConversationPhaseEvent::LineEntered(line));
            }
            UserAction::Interrupt => self.interrupt(),
            UserAction::Answer { job, ask, answer } => self.answer(&job, &ask, &answer),
            UserAction::CycleMode => self.cycle_mode(),
            UserAction::EditQueued => {
                if let Some(text) = self.outbox.take_last_queued() {
                    self.display.suggest_input(text);
                }
            }
            UserAction::View(speaker) => self.switch_view(speaker),
            UserAction::ViewNext { back } => self.cycle_view(back),
            UserAction::LoadOlder { of } => self.display.show_older(&of, &self.record.session_file),
            UserAction::DropEntries { of, entries } => {
                self.display.drop_entries(&of, entries, &self.record.session_file);
            }
        }
        self.refresh_status();
    }

    /// Handles an event of the fleet. A conversation that has ended ignores it.
    pub fn handle_fleet_event(&mut self, event: ChatFleetEvent, now: Timestamp) {
        if self.has_ended() {
            return;
        }
        self.advance_clock(now);
        match event {
            ChatFleetEvent::Row { job, at, row } => self.handle_row(&job, at, &row),
            ChatFleetEvent::Delta { job, text } => {
                // A job that is not followed, such as the one for insights, has no transcript to be
                // shown in.
                if let Some(of) = self.jobs.speaker(&job) {
                    self.display.push(ChatOutput::Delta { of, text });
                }
            }
            ChatFleetEvent::QuestionAsked { job, ask } => self.add_question(job, ask),
            ChatFleetEvent::QuestionClosed { ask, .. } => self.close_question(&ask),
            ChatFleetEvent::Job(info) => self.handle_job_info(info),
            ChatFleetEvent::Workers(workers) => self.update_workers(workers),
            ChatFleetEvent::ShellEnded(ended) => self.handle_shell_output(&ended),
            ChatFleetEvent::DiffLoaded(diff) => self.show_diff(diff),
            ChatFleetEvent::FilesRestored(result) => {
                self.apply_turn_event(TurnEvent::FilesRestored(result));
                // The person may be leaving, and only the files were waited for.
                self.apply_phase_event(ConversationPhaseEvent::ProgressMade);
            }
            ChatFleetEvent::ConnectionChanged(trouble) => self.display.status.trouble = trouble,
        }
        self.refresh_status();
    }

    /// Advances the time: starts due loops and ends expired waits. Call it about once a second.
    pub fn tick(&mut self, now: Timestamp) {
        if self.has_ended() {
            return;
        }
        self.advance_clock(now);
        self.poll_background_task();
        // No turn may start during the exit.
        if self.phase.is_open() {
            self.apply_turn_event(TurnEvent::CopyPolled);
            self.send_held_lines();
            self.start_due_loop();
        }
        self.apply_phase_event(ConversationPhaseEvent::ProgressMade);
        self.refresh_status();
    }

    /// Sets the clock, and retries failed writes.
    fn advance_clock(&mut self, now: Timestamp) {
        self.now = now;
        self.record.retry(&mut self.display);
        // The pending turn needs its entry on disk, so entries are retried first.
        self.submit_pending_turn();
    }

    /// Writes an entry, then shows it.
    fn append_entry(&mut self, of: ChatSpeaker, entry: ConversationEntry) {
        if let ChatSpeaker::Worker(name) = &of
            && self.display.view != of
            && let Some(worker) = self.workers.get_mut(name)
        {
            worker.unseen += 1;
        }
        self.record.append(of, entry, &mut self.display);
    }

    /// Writes an entry of the role `system`.
    fn append_notice(&mut self, text: impl Into<String>) {
        let entry = ConversationEntry::new(EntryRole::System, text, self.now);
        self.append_entry(ChatSpeaker::Coordinator, entry);
    }

    fn state(&self) -> &ConversationState {
        self.record.state()
    }

    /// Changes the state of the session. A change that cannot be saved now is saved with the next
    /// one.
    fn save_state(&mut self, change: impl FnOnce(&mut ConversationState)) {
        self.record.save_state(&mut self.display, change);
    }

    fn switch_view(&mut self, speaker: ChatSpeaker) {
        if let ChatSpeaker::Worker(name) = &speaker {
            let Some(worker) = self.workers.get_mut(name) else {
                return self
                    .display
                    .show_error(format!("there is no worker `{name}`; /workers lists them"));
            };
            worker.unseen = 0;
        }
        self.display.switch_view(speaker, &self.record.session_file);
    }

    fn cycle_view(&mut self, back: bool) {
        let all: Vec<ChatSpeaker> = std::iter::once(ChatSpeaker::Coordinator)
            .chain(self.workers.iter().map(|worker| ChatSpeaker::Worker(worker.name().to_owned())))
            .collect();
        let at = all.iter().position(|speaker| *speaker == self.display.view).unwrap_or(0);
        let step = if back { all.len() - 1 } else { 1 };
        self.switch_view(all[(at + step) % all.len()].clone());
    }

    /// Emits the status line if it has changed.
    fn refresh_status(&mut self) {
        let (state, shown) = (self.record.state(), &self.display.status);
        let status = ConversationStatus {
            id: self.record.id().to_owned(),
            agent: state.agent().to_owned(),
            // Between two turns the model that answered last stays visible.
            model: (state.model.clone())
                .or_else(|| shown.model.clone())
                .or_else(|| self.options.model.clone()),
            mode: self.permission_mode().map(str::to_owned),
            folder: self.options.agent_folder.clone(),
            branch: self.options.branch.clone(),
            context_tokens: shown.context_tokens,
            context_window: shown.context_window,
            cost_usd: self.jobs.total_cost(),
            busy: self.activity().map(str::to_owned),
            queued: self.outbox.queued(),
            queued_texts: self.outbox.queued_texts().map(first_line).collect(),
            attached: self.shell.attached(),
            workers: self.workers.iter().map(ConversationWorker::status).collect(),
            loops: state.loops.iter().filter(|one| one.next_at.is_some()).count(),
            tasks: state.tasks.iter().filter(|task| !task.done).count(),
            trouble: shown.trouble.clone(),
        };
        self.display.show_status(status);
    }

    /// Returns the activity for the status line; `None` if nothing is in progress.
    fn activity(&self) -> Option<&str> {
        match self.turn.activity() {
            Some(activity) => Some(activity),
            // Lines are held while the session of another program is copied.
            None if self.outbox.has_held_lines() => Some("copying the session"),
            None if self.shell.is_running() => Some("running your command"),
            None => self.background_task.as_ref().map(|_| "reading the transcript"),
        }
    }
}

/// Returns the first line of a message, for a list.
fn first_line(text: &str) -> String {
    truncate_line(text.trim().lines().next().unwrap_or_default())
}

#[cfg(test)]
mod tests;
