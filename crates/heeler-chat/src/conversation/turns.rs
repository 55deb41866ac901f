//! Turns: messages of the person or a loop to the agent, and their results.

use heeler_model::JobId;
use heeler_model::job_row::{JobRow, JobRowKind};
use uuid::Uuid;

use super::Conversation;
use crate::command::{self, ChatCommand};
use crate::row::{self, FAILED_PREFIX, INTERRUPTED, PromptHandling};
use crate::{
    ChatJobInfo, ChatJobState, ChatOutput, ChatSpeaker, ConversationEntry, ConversationTurn,
    EntryRole, EntrySource, MessageDeliveryError, SessionFileError, TurnRequest, TurnSessionChoice,
};

/// Initiator of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnInitiator {
    User,
    /// Loop with this index.
    Loop(usize),
}

/// Turn in progress.
pub(super) struct RunningTurn {
    pub(super) job: JobId,
    pub(super) initiator: TurnInitiator,
    state: ChatJobState,
    activity: String,
    pub(super) interrupts: u32,
    /// The transcript already ends with the turn's failure notice.
    pub(super) is_end_recorded: bool,
    /// Prompts of this turn that the transcript has.
    pub(super) recorded_prompts: Vec<String>,
    /// The agent may have received prompts that the transcript lacks.
    pub(super) may_have_unrecorded_prompts: bool,
}

impl RunningTurn {
    /// Returns true if a row has a prompt of the person that the transcript lacks: the process
    /// ended before it was written, or the delivery was not confirmed.
    fn is_unrecorded_prompt(&self, row: &JobRow) -> bool {
        let first = |text: &str| text.trim().lines().next().unwrap_or_default().to_owned();
        let is_said = matches!(row.kind(), JobRowKind::System { subtype: "user_input" });
        let is_said = is_said && !row.is_synthetic();
        let heard = first(row.text("content").unwrap_or_default());
        self.may_have_unrecorded_prompts
            && is_said
            && !self.recorded_prompts.iter().any(|known| first(known) == heard)
    }

    pub(super) fn activity(&self) -> &str {
        &self.activity
    }
}

/// Message that is submitted once its entry is written.
pub(super) struct PendingTurn {
    /// [`TurnRequest::id`].
    id: Uuid,
    text: String,
    by: TurnInitiator,
}

/// Message that waits for the end of the current turn.
pub(super) struct QueuedMessage {
    text: String,
    by: TurnInitiator,
}

impl Conversation {
    /// Handles a line of the person: a command or a message.
    pub(super) fn handle_line(&mut self, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        let command = command::parse_command(line);
        let writes = command.as_ref().is_none_or(|it| it.as_ref().is_ok_and(ChatCommand::writes));
        let is_to_worker = command.is_none() && self.view != ChatSpeaker::Coordinator;
        if writes && self.pending_fork.is_some() && !is_to_worker {
            return self.held_lines.push(line.to_owned());
        }
        if writes && !self.prepare_or_hold(line) {
            return;
        }
        match command {
            Some(Ok(command)) => self.run_command(command),
            Some(Err(error)) => self.show_error(error.to_string()),
            None => {
                let text =
                    line.strip_prefix("//").map_or(line.to_owned(), |rest| format!("/{rest}"));
                match self.view.clone() {
                    ChatSpeaker::Coordinator => self.send_to_agent(text),
                    ChatSpeaker::Worker(name) => self.send_to_worker(&name, &text),
                }
            }
        }
    }

    /// Returns true if a line that writes can be handled now. A session of another program is
    /// copied first; during a long copy the line is held.
    fn prepare_or_hold(&mut self, line: &str) -> bool {
        match self.session_file.prepare_writing() {
            Ok(None) if self.held_lines.is_empty() => return true,
            Ok(None) => {}
            Ok(Some(bytes)) if self.held_lines.is_empty() => {
                let size = bytes as f64 / 1e6;
                self.show_notice(format!(
                    "this session belongs to another program: its {size:.0} MB are copied, then your message is sent"
                ));
            }
            Ok(Some(_)) => {}
            Err(error) => {
                self.show_error(format!("the session cannot be copied: {error}"));
                self.outputs.push(ChatOutput::SuggestedInput(line.to_owned()));
                return false;
            }
        }
        self.held_lines.push(line.to_owned());
        false
    }

    /// Handles the held lines once the session is writable.
    pub(super) fn send_held_lines(&mut self) {
        if self.held_lines.is_empty() || self.exit.is_some() || self.pending_fork.is_some() {
            return;
        }
        match self.session_file.prepare_writing() {
            Ok(Some(_)) => {}
            Ok(None) => {
                std::mem::take(&mut self.held_lines).iter().for_each(|line| self.handle_line(line));
            }
            Err(error) => {
                self.show_error(format!("the session cannot be copied: {error}"));
                self.return_held_lines();
            }
        }
    }

    /// Takes the messages of the person that were not sent; they are shown on exit.
    pub(super) fn take_unsent(&mut self) -> Vec<String> {
        let asking = self.pending_turn.take().map(|asking| (asking.text, asking.by));
        let queue = self.queue.drain(..).map(|waiting| (waiting.text, waiting.by));
        let words = asking.into_iter().chain(queue);
        let words = words.filter(|(_, by)| *by == TurnInitiator::User).map(|(text, _)| text);
        words.chain(self.held_lines.drain(..)).collect()
    }

    pub(super) fn return_held_lines(&mut self) {
        if !self.held_lines.is_empty() {
            let lines = std::mem::take(&mut self.held_lines).join("\n");
            self.outputs.push(ChatOutput::SuggestedInput(lines));
        }
    }

    fn send_to_agent(&mut self, text: String) {
        if self.turn.is_none() && self.pending_turn.is_none() {
            return self.start_turn(&text, TurnInitiator::User);
        }
        if let Some(turn) = &mut self.turn
            && turn.state == ChatJobState::Running
            && turn.interrupts == 0
        {
            match self.fleet.send_message(&turn.job, &text) {
                Ok(()) => {
                    turn.recorded_prompts.push(text.clone());
                    let entry = ConversationEntry::new(EntryRole::User, text, self.now);
                    return self.append_entry(ChatSpeaker::Coordinator, entry);
                }
                // A repetition could be delivered twice.
                Err(MessageDeliveryError::Unconfirmed(why)) => {
                    turn.may_have_unrecorded_prompts = true;
                    return self.show_error(format!(
                        "it is not known if this arrived; it is shown if it did: {text} ({why})"
                    ));
                }
                Err(MessageDeliveryError::Refused(_)) => {}
            }
        }
        self.queue.push_back(QueuedMessage { text, by: TurnInitiator::User });
    }

    /// Starts a turn. The message is written first, with the turn's ID. A resent message of an
    /// interrupted session keeps its ID, so that it is not executed twice.
    pub(super) fn start_turn(&mut self, text: &str, by: TurnInitiator) {
        let unsent = self.unsent_message.take().filter(|unsent| unsent.text == text.trim());
        let id = unsent.as_ref().map_or_else(Uuid::new_v4, |unsent| unsent.turn);
        if unsent.is_none() {
            let entry = ConversationEntry {
                turn: Some(id),
                ..ConversationEntry::new(EntryRole::User, text, self.now)
            };
            self.append_entry(ChatSpeaker::Coordinator, entry);
        }
        self.pending_turn = Some(PendingTurn { id, text: text.to_owned(), by });
        self.submit_pending_turn();
    }

    /// Submits the pending turn if its entry is written: the agent must not receive a message that
    /// a crash would lose.
    pub(super) fn submit_pending_turn(&mut self) {
        if !self.has_unwritten_entries()
            && self.exit.is_none()
            && let Some(asking) = self.pending_turn.take()
        {
            self.submit_turn(&asking);
        }
    }

    fn submit_turn(&mut self, asking: &PendingTurn) {
        let &PendingTurn { id, ref text, by } = asking;
        self.last_reply.clear();
        let about = self.session_file.state();
        let is_first = about.turns.is_empty();
        let learned = self.options.earlier_insights.as_ref().filter(|_| is_first);
        let prompt = match learned {
            Some(learned) => format!("{text}\n\n(What earlier sessions have taught:\n{learned})"),
            None => text.clone(),
        };
        let session = match &about.session {
            None => TurnSessionChoice::New,
            Some(session) if about.is_fork || about.cut.is_some() => {
                TurnSessionChoice::Fork(session.clone(), about.cut)
            }
            Some(session) => TurnSessionChoice::Existing(session.clone()),
        };
        let (agent, model) = (about.agent().to_owned(), about.model.clone());
        let attended = self.options.attended;
        let turn = TurnRequest { id, agent, prompt, session, model, attended };
        match self.fleet.start_turn(&turn) {
            Ok(job) => {
                let by_loop = match by {
                    TurnInitiator::User => None,
                    TurnInitiator::Loop(at) => Some(at),
                };
                let task = self.asked_task.clone().filter(|_| by_loop.is_some());
                self.save_state(|about| {
                    about.turns.push(ConversationTurn {
                        turn: id,
                        job: Some(job.clone()),
                        by_loop,
                        task,
                    });
                });
                self.fleet.watch_workers(&self.session_file.state().jobs());
                if let Err(error) = self.follow_turn(job, by) {
                    self.show_error(format!("{error}"));
                }
                self.turn.iter_mut().for_each(|turn| turn.recorded_prompts.push(text.clone()));
            }
            Err(why) => {
                // The entry has the turn's ID, so that a resume does not look for the message
                // again.
                let entry =
                    ConversationEntry::new(EntryRole::System, format!("not sent: {why}"), self.now);
                self.append_entry(
                    ChatSpeaker::Coordinator,
                    ConversationEntry { turn: Some(id), ..entry },
                );
                match by {
                    TurnInitiator::User => {
                        self.outputs.push(ChatOutput::SuggestedInput(text.clone()));
                    }
                    TurnInitiator::Loop(at) => self.loop_failed(at),
                }
            }
        }
    }

    /// Follows a job of the agent from the first row that the transcript lacks.
    pub(super) fn follow_turn(
        &mut self,
        job: JobId,
        by: TurnInitiator,
    ) -> Result<(), SessionFileError> {
        let from = self
            .session_file
            .last_recorded_row(&ChatSpeaker::Coordinator, &job)?
            .map_or(0, |row| row + 1);
        self.speakers.insert(job.clone(), ChatSpeaker::Coordinator);
        self.next_rows.insert(job.clone(), from);
        let doing = "starting".to_owned();
        self.turn = Some(RunningTurn {
            job: job.clone(),
            initiator: by,
            state: ChatJobState::Waiting,
            activity: doing,
            interrupts: 0,
            is_end_recorded: false,
            recorded_prompts: Vec::new(),
            may_have_unrecorded_prompts: false,
        });
        self.fleet.follow_job(&job, from);
        Ok(())
    }

    /// Handles a row of a job.
    pub(super) fn handle_row(&mut self, job: &JobId, at: u64, row: &JobRow) {
        if self.is_insights_job(job) {
            if row.kind() == JobRowKind::Assistant
                && let Some(text) = row.text("content")
            {
                text.clone_into(&mut self.last_reply);
            }
            return;
        }
        let Some(of) = self.speakers.get(job).cloned() else { return };
        let next = self.next_rows.entry(job.clone()).or_default();
        if at < *next {
            if row.kind() == JobRowKind::Assistant {
                self.outputs.push(ChatOutput::DeltaEnded { of });
            }
            return;
        }
        *next = at + 1;
        let is_news = |turn: &RunningTurn| turn.job == *job && turn.is_unrecorded_prompt(row);
        let prompts = match of {
            ChatSpeaker::Coordinator if !self.turn.as_ref().is_some_and(is_news) => {
                PromptHandling::Skip
            }
            _ => PromptHandling::Include,
        };
        if of == ChatSpeaker::Coordinator {
            self.apply_task_row(job, at, row);
            let activity = match row.kind() {
                JobRowKind::ToolCall { tool, .. } => tool,
                _ => "thinking",
            };
            if let Some(turn) = self.turn.as_mut().filter(|turn| turn.job == *job) {
                activity.clone_into(&mut turn.activity);
            }
        }
        let Some(entry) = row::entry_from_row(job, at, row, prompts) else { return };
        if of == ChatSpeaker::Coordinator && entry.role == EntryRole::Assistant {
            self.last_reply = entry.text();
        }
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.job == *job) {
            turn.is_end_recorded = row::is_failure_notice(&entry);
        }
        self.append_entry(of, entry);
    }

    /// Handles a state change of a job.
    pub(super) fn handle_job_info(&mut self, facts: &ChatJobInfo) {
        if let Some(cost) = facts.cost_usd {
            self.costs.insert(facts.job.clone(), cost);
        }
        if self.is_insights_job(&facts.job) {
            return self.handle_insights_job(facts);
        }
        match self.turn.as_mut().filter(|turn| turn.job == facts.job) {
            Some(turn) => turn.state = facts.state,
            None => return self.handle_worker_job(facts),
        }
        // An earlier turn may belong to another agent, which has a session of its own.
        let about = self.session_file.state();
        if let Some(session) = &facts.session
            && facts.agent == about.agent()
            && about.session.as_ref() != Some(session)
        {
            let session = session.clone();
            self.save_state(|about| {
                about.session = Some(session);
                about.cut = None;
                about.is_fork = false;
            });
        }
        self.status.context_tokens = facts.context_tokens.or(self.status.context_tokens);
        self.status.model = facts.model.clone().or(self.status.model.take());
        match facts.state {
            ChatJobState::Waiting => {
                let doing = facts.reason.clone().unwrap_or_else(|| "waiting".to_owned());
                self.turn.iter_mut().for_each(|turn| turn.activity.clone_from(&doing));
            }
            ChatJobState::Running => {}
            ChatJobState::Done | ChatJobState::Failed => self.handle_turn_end(facts),
        }
    }

    fn handle_turn_end(&mut self, facts: &ChatJobInfo) {
        let Some(turn) = self.turn.take() else { return };
        self.outputs.push(ChatOutput::DeltaEnded { of: ChatSpeaker::Coordinator });
        self.questions.retain(|question| question.job != turn.job);
        if facts.state == ChatJobState::Failed && !turn.is_end_recorded {
            let why = facts.reason.as_deref().unwrap_or("it did not end well");
            let text = match turn.interrupts {
                0 => format!("{FAILED_PREFIX}{why}"),
                _ => INTERRUPTED.to_owned(),
            };
            // Takes the place of the row that would have reported it, so that it is shown once.
            let row = self.next_rows.get(&turn.job).copied().unwrap_or_default();
            let source = Some(EntrySource { job: turn.job.clone(), row });
            let entry = ConversationEntry {
                source,
                ..ConversationEntry::new(EntryRole::System, text, self.now)
            };
            self.append_entry(ChatSpeaker::Coordinator, entry);
        }
        if let TurnInitiator::Loop(at) = turn.initiator {
            self.loop_turn_ended(at, facts.state == ChatJobState::Done);
        }
        if self.exit.is_some() {
            return self.advance_exit();
        }
        if let Some(next) = self.queue.pop_front() {
            self.start_turn(&next.text, next.by);
        }
    }

    /// Interrupts the agent or worker in view; a second time cancels immediately.
    pub(super) fn interrupt(&mut self) {
        if let ChatSpeaker::Worker(name) = self.view.clone() {
            return self.stop_worker(&name);
        }
        self.cancel_fork();
        self.cancel_background_task();
        self.return_held_lines();
        let Some(turn) = self.turn.as_mut() else { return };
        let (job, now) = (turn.job.clone(), turn.interrupts > 0);
        turn.interrupts += 1;
        // Queued messages were meant for the interrupted turn: they return to the input for
        // editing.
        let waiting: Vec<String> = self.queue.drain(..).map(|one| one.text).collect();
        if !waiting.is_empty() {
            self.outputs.push(ChatOutput::SuggestedInput(waiting.join("\n")));
        }
        if let Err(why) = self.fleet.cancel_job(&job, now) {
            self.show_error(why);
        }
    }
}
