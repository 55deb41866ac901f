//! Effects of turns: lines of the person become commands or messages, messages become turns, and the
//! end of a turn is recorded. [`super::turn_phase`] decides when.

use heeler_model::JobId;
use uuid::Uuid;

use super::Conversation;
use super::phase::ConversationPhaseEvent;
use super::shell_commands::parse_shell_line;
use super::turn_phase::{
    MessageRoute, PendingTurn, RunningTurn, TurnEffect, TurnEvent, TurnInitiator, TurnPhase,
};
use crate::command::{self, ChatCommand};
use crate::row::{FAILED_PREFIX, INTERRUPTED};
use crate::{
    ChatJobInfo, ChatJobState, ChatOutput, ChatSpeaker, ConversationEntry, ConversationTurn,
    EntryRole, EntrySource, MessageDeliveryError, SessionFileError, TurnRequest, TurnSessionChoice,
};

/// Most entries of another program's transcript that are read for the agent's first turn.
const HISTORY_ENTRIES_MAX: usize = 400;

/// Most bytes of such a transcript that the first turn contains. The end counts most.
const HISTORY_BYTES_MAX: usize = 32 << 10;

/// Most bytes of one of its messages.
const HISTORY_ENTRY_BYTES_MAX: usize = 4 << 10;

impl Conversation {
    /// Changes the phase of the turn, and executes the effects of the change.
    pub(super) fn apply_turn_event(&mut self, event: TurnEvent) {
        let (phase, effects) = std::mem::take(&mut self.turn).step(event);
        self.turn = phase;
        effects.into_iter().for_each(|effect| self.execute_turn_effect(effect));
    }

    fn execute_turn_effect(&mut self, effect: TurnEffect) {
        match effect {
            TurnEffect::SubmitIfWritten => self.submit_pending_turn(),
            TurnEffect::ReportRefusal(pending, why) => self.report_refusal(&pending, &why),
            TurnEffect::ReturnMessage(pending) => self.display.suggest_input(pending.text),
            TurnEffect::ReportUnsent(pending) => {
                // A loop sends its prompt again when it is restarted.
                if pending.initiator == TurnInitiator::User {
                    self.display.show_exit_message(format!("not sent: {}", pending.text));
                }
            }
            TurnEffect::ReturnQueue => {
                let queued = self.outbox.take_queued();
                self.return_to_input(&queued);
            }
            TurnEffect::StartWaitingTurn => self.start_waiting_turn(),
            TurnEffect::CancelJob { job, now } => {
                if let Err(why) = self.fleet.cancel_job(&job, now) {
                    self.display.show_error(why);
                }
            }
            TurnEffect::RecordEnd(turn, info) => self.record_turn_end(&turn, &info),
            TurnEffect::FinishCopy(copy) => self.finish_fork(*copy),
            TurnEffect::DiscardCopy(copy) => self.discard_fork(*copy),
            TurnEffect::UndoTurn(undo, restored) => self.take_back(*undo, &restored),
            TurnEffect::ShowError(why) => self.display.show_error(why),
        }
    }

    /// Handles a line of the person: a command or a message.
    pub(super) fn handle_line(&mut self, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        // Plain lines may come from a script, which must not run commands here.
        if self.options.attended
            && let Some((output_use, command)) = parse_shell_line(line)
        {
            return self.run_shell_command(output_use, command);
        }
        // A command of ours wins over one of the agent with the same name.
        let command = command::parse_command(line)
            .filter(|command| command.is_ok() || !self.is_agent_command(line));
        let writes = command.as_ref().is_none_or(|it| it.as_ref().is_ok_and(ChatCommand::writes));
        // A message to a worker is not written here, because the worker's rows will contain it.
        let is_to_worker = command.is_none() && self.display.view != ChatSpeaker::Coordinator;
        if writes && self.turn.holds_lines() && !is_to_worker {
            return self.outbox.hold(line);
        }
        if writes && !self.prepare_or_hold(line) {
            return;
        }
        match command {
            Some(Ok(command)) => self.run_command(command),
            Some(Err(error)) => self.display.show_error(error.to_string()),
            None => {
                let text =
                    line.strip_prefix("//").map_or(line.to_owned(), |rest| format!("/{rest}"));
                match self.display.view.clone() {
                    ChatSpeaker::Coordinator => self.send_to_agent(text),
                    ChatSpeaker::Worker(name) => self.send_to_worker(&name, &text),
                }
            }
        }
    }

    /// Returns true if a line that writes can be handled now. A session of another program is
    /// copied first; during a long copy the line is held.
    fn prepare_or_hold(&mut self, line: &str) -> bool {
        let is_first = !self.outbox.has_held_lines();
        match self.record.session_file.prepare_writing() {
            Ok(None) if is_first => return true,
            Ok(Some(bytes)) if is_first => {
                let size = bytes as f64 / 1e6;
                self.display.show_notice(format!(
                    "this session belongs to another program: its {size:.0} MB are copied, then your message is sent"
                ));
            }
            // Lines keep their order.
            Ok(_) => {}
            Err(error) => {
                self.display.show_error(format!("the session cannot be copied: {error}"));
                self.display.suggest_input(line);
                return false;
            }
        }
        self.outbox.hold(line);
        false
    }

    /// Handles the held lines once the session is writable.
    pub(super) fn send_held_lines(&mut self) {
        if !self.outbox.has_held_lines() || self.turn.holds_lines() {
            return;
        }
        match self.record.session_file.prepare_writing() {
            Ok(Some(_)) => {}
            Ok(None) => {
                let lines = self.outbox.take_held_lines();
                lines.iter().for_each(|line| self.handle_line(line));
            }
            Err(error) => {
                self.display.show_error(format!("the session cannot be copied: {error}"));
                self.return_held_lines();
            }
        }
    }

    pub(super) fn return_held_lines(&mut self) {
        let lines = self.outbox.take_held_lines();
        self.return_to_input(&lines);
    }

    fn return_to_input(&mut self, lines: &[String]) {
        if !lines.is_empty() {
            self.display.suggest_input(lines.join("\n"));
        }
    }

    /// Returns true if a line begins with a command that the agent itself understands.
    fn is_agent_command(&self, line: &str) -> bool {
        let name = command::command_name(line);
        self.options.agent_commands.iter().any(|command| Some(command.name.as_str()) == name)
    }

    fn send_to_agent(&mut self, text: String) {
        // The agent reads a command only if nothing follows it, so output waits for a message.
        let text = match self.is_agent_command(&text) {
            true => text.trim().to_owned(),
            false => self.with_attached_output(text),
        };
        match self.turn.message_route() {
            MessageRoute::Start => self.start_turn(&text, TurnInitiator::User),
            MessageRoute::Deliver(job) => self.deliver_to_agent(&job, text),
            MessageRoute::Queue => self.outbox.queue(text),
        }
    }

    fn deliver_to_agent(&mut self, job: &JobId, text: String) {
        // Delivered before it is written: a refused message is queued, and then starts a turn with
        // an entry of its own.
        let delivered = self.fleet.send_message(job, &text);
        let turn = self.turn.running_job(job).expect("the route names the running turn's job");
        match delivered {
            Ok(()) => {
                turn.recorded_prompts.push(text.clone());
                let entry = ConversationEntry::new(EntryRole::User, text, self.now);
                self.append_entry(ChatSpeaker::Coordinator, entry);
            }
            // A repetition could be delivered twice.
            Err(MessageDeliveryError::Unconfirmed(why)) => {
                turn.may_have_unrecorded_prompts = true;
                self.display.show_error(format!(
                    "it is not known if this arrived; it is shown if it did: {text} ({why})"
                ));
            }
            // The agent may just have ended its turn, so the message waits for the next one.
            Err(MessageDeliveryError::Refused(_)) => self.outbox.queue(text),
        }
    }

    /// Starts the turn of the next queued message, unless the person is leaving.
    pub(super) fn start_waiting_turn(&mut self) {
        if !self.phase.is_open() {
            return;
        }
        // A turn that waited while the person was asked comes before queued messages.
        self.submit_pending_turn();
        if self.turn.is_idle()
            && let Some(text) = self.outbox.next_queued()
        {
            self.start_turn(&text, TurnInitiator::User);
        }
    }

    /// Starts a turn. The message is written first, with the turn's ID. A resent message of an
    /// interrupted session keeps its ID, so that it is not executed twice.
    pub(super) fn start_turn(&mut self, text: &str, initiator: TurnInitiator) {
        let id = self.outbox.take_unsent(text).unwrap_or_else(|| {
            let id = Uuid::new_v4();
            let entry = ConversationEntry {
                turn: Some(id),
                ..ConversationEntry::new(EntryRole::User, text, self.now)
            };
            self.append_entry(ChatSpeaker::Coordinator, entry);
            id
        });
        self.apply_turn_event(TurnEvent::Begin(PendingTurn {
            id,
            text: text.to_owned(),
            initiator,
        }));
    }

    /// Submits the pending turn if its entry is written: the agent must not receive a message that
    /// a crash would lose.
    pub(super) fn submit_pending_turn(&mut self) {
        if let TurnPhase::Submitting(pending) = &self.turn
            && !self.has_unwritten_entries()
            && self.phase.is_open()
        {
            let (id, initiator) = (pending.id, pending.initiator.clone());
            let request = self.turn_request(id, &pending.text);
            match self.fleet.start_turn(&request) {
                Ok(job) => self.record_started_turn(id, job, &initiator),
                Err(why) => self.apply_turn_event(TurnEvent::Refused(why)),
            }
        }
    }

    pub(super) fn turn_request(&self, id: Uuid, text: &str) -> TurnRequest {
        let state = self.state();
        // Later turns continue the native session, which has the insights already.
        let insights = self.options.earlier_insights.as_ref().filter(|_| state.turns.is_empty());
        let mut prompt = text.to_owned();
        // The first line of a prompt identifies it, so everything else follows.
        if let Some(history) = self.foreign_history(id) {
            prompt.push_str(&format!("\n\n(Earlier in this conversation:\n{history})"));
        }
        if let Some(insights) = insights {
            prompt.push_str(&format!("\n\n(What earlier sessions have taught:\n{insights})"));
        }
        let session = match &state.session {
            None => TurnSessionChoice::New,
            Some(session) if state.is_fork || state.cut.is_some() => {
                TurnSessionChoice::Fork(session.clone(), state.cut)
            }
            Some(session) => TurnSessionChoice::Existing(session.clone()),
        };
        let (agent, model) = (state.agent().to_owned(), state.model.clone());
        let (attended, permissions) = (self.options.attended, self.permissions.clone());
        TurnRequest { id, agent, prompt, session, model, attended, permissions }
    }

    /// Returns the end of a conversation that another program recorded, for the agent's first turn:
    /// its new native session does not have it.
    fn foreign_history(&self, turn: Uuid) -> Option<String> {
        let state = self.state();
        if !state.turns.is_empty() || state.session.is_some() {
            return None;
        }
        let of = ChatSpeaker::Coordinator;
        // Without its history the turn would still be useful, so a failure to read is no refusal.
        let page = self.record.session_file.entries_before(&of, None, HISTORY_ENTRIES_MAX).ok()?;
        let is_before = |entry: &&ConversationEntry| entry.turn != Some(turn);
        let mut lines: Vec<String> = Vec::new();
        let mut room = HISTORY_BYTES_MAX;
        let earlier: Vec<&ConversationEntry> = page.entries.iter().take_while(is_before).collect();
        for entry in earlier.into_iter().rev().filter(|entry| entry.is_message()) {
            let text = entry.text();
            let text = &text[..text.floor_char_boundary(HISTORY_ENTRY_BYTES_MAX)];
            let speaker = if entry.role == EntryRole::User { "user" } else { "assistant" };
            let line = format!("{speaker}: {text}");
            let Some(left) = room.checked_sub(line.len()) else { break };
            room = left;
            lines.push(line);
        }
        lines.reverse();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    fn record_started_turn(&mut self, turn: Uuid, job: JobId, initiator: &TurnInitiator) {
        let by_loop = initiator.loop_index();
        let task = match initiator {
            TurnInitiator::User => None,
            TurnInitiator::Loop { task, .. } => task.clone(),
        };
        let started = ConversationTurn { turn, job: Some(job.clone()), by_loop, task };
        // A crash before this loses nothing, because a resume finds the job by the turn's ID.
        self.save_state(|state| state.turns.push(started));
        self.fleet.watch_workers(&self.record.state().jobs());
        match self.follow_agent_job(&job) {
            Ok(()) => self.apply_turn_event(TurnEvent::Accepted(job)),
            Err(error) => {
                self.display.show_error(format!("{error}"));
                self.apply_turn_event(TurnEvent::NotFollowed);
            }
        }
    }

    /// Follows a job of the agent from the first row that the transcript lacks.
    pub(super) fn follow_agent_job(&mut self, job: &JobId) -> Result<(), SessionFileError> {
        let of = ChatSpeaker::Coordinator;
        let last = self.record.session_file.last_recorded_row(&of, job)?;
        let from = last.map_or(0, |row| row + 1);
        self.jobs.insert(job.clone(), of, from);
        self.fleet.follow_job(job, from);
        Ok(())
    }

    fn report_refusal(&mut self, pending: &PendingTurn, why: &str) {
        // The entry has the turn's ID, so that a resume does not look for the message again.
        let entry = ConversationEntry {
            turn: Some(pending.id),
            ..ConversationEntry::new(EntryRole::System, format!("not sent: {why}"), self.now)
        };
        self.append_entry(ChatSpeaker::Coordinator, entry);
        match pending.initiator {
            TurnInitiator::User => {
                let mut unsent = vec![pending.text.clone()];
                unsent.extend(self.outbox.take_queued());
                self.return_to_input(&unsent);
            }
            TurnInitiator::Loop { index, .. } => self.loop_failed(index),
        }
    }

    fn record_turn_end(&mut self, turn: &RunningTurn, info: &ChatJobInfo) {
        self.display.push(ChatOutput::DeltaEnded { of: ChatSpeaker::Coordinator });
        if info.state == ChatJobState::Failed && !turn.is_end_recorded {
            let text = match turn.is_cancelled() {
                true => INTERRUPTED.to_owned(),
                false => {
                    let why = info.reason.as_deref().unwrap_or("it did not end well");
                    format!("{FAILED_PREFIX}{why}")
                }
            };
            // Takes the place of the row that would have reported it, so that it is shown once.
            let row = self.jobs.next_row(&turn.job);
            let source = Some(EntrySource { job: turn.job.clone(), row });
            let entry = ConversationEntry {
                source,
                ..ConversationEntry::new(EntryRole::System, text, self.now)
            };
            self.append_entry(ChatSpeaker::Coordinator, entry);
        }
        if let TurnInitiator::Loop { index, task } = &turn.initiator {
            match info.state == ChatJobState::Done {
                true => self.loop_turn_ended(*index, task.as_deref(), &turn.last_reply),
                false => self.loop_failed(*index),
            }
        }
        // The exit may be waiting for the end of this turn.
        self.apply_phase_event(ConversationPhaseEvent::ProgressMade);
    }

    /// Interrupts the agent or worker in view; a second time cancels immediately.
    pub(super) fn interrupt(&mut self) {
        if let ChatSpeaker::Worker(name) = self.display.view.clone() {
            return self.stop_worker(&name);
        }
        // The person started it last, and sees it at once.
        if self.shell.is_running() {
            return self.fleet.stop_shell();
        }
        // One key cancels whatever is in progress; phases ignore events that do not concern them.
        self.apply_turn_event(TurnEvent::CopyCancelled);
        self.cancel_background_task();
        self.return_held_lines();
        self.apply_turn_event(TurnEvent::Interrupted);
    }
}
