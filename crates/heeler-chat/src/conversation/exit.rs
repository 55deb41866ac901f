//! Effects of the exit: stops workers or leaves them to the daemon, collects insights, saves the
//! session. [`super::phase`] decides their order. A second request to leave ends it at once; nothing
//! is lost.

use heeler_model::permission_grant::PermissionGrant;
use uuid::Uuid;

use super::Conversation;
use super::phase::{
    ConversationPhaseEffect, ConversationPhaseEvent, ConversationPhaseFacts, WorkerExitChoice,
};
use super::turn_phase::TurnEvent;
use crate::{ChatJobInfo, ChatJobState, ChatOutput, TurnRequest, TurnSessionChoice};

const INSIGHTS_PROMPT: &str = "The session ends. What did the person teach you in it that a later session \
    should know from the start: corrections, preferences, decisions, facts about this project? Answer with \
    a list, one short line each, beginning with `- `; with nothing else, and with `none` if there is nothing.";

impl Conversation {
    /// Changes the phase, and executes the effects of the change.
    pub(super) fn apply_phase_event(&mut self, event: ConversationPhaseEvent) {
        let facts = self.phase_facts();
        // `step` consumes the phase. The new one is set before the effects, because they send
        // events.
        let (phase, effects) = std::mem::take(&mut self.phase).step(event, &facts);
        self.phase = phase;
        effects.into_iter().for_each(|effect| self.execute_phase_effect(effect));
    }

    fn phase_facts(&self) -> ConversationPhaseFacts {
        ConversationPhaseFacts {
            now: self.now,
            policy: self.options.worker_exit_policy,
            // While the disk fails, an answer could not be handled.
            can_ask: self.options.attended && !self.has_unwritten_entries(),
            is_turn_running: self.turn.delays_exit(),
            live_workers: self.workers.live_count(),
        }
    }

    fn execute_phase_effect(&mut self, effect: ConversationPhaseEffect) {
        match effect {
            ConversationPhaseEffect::HandleLine(line) => self.handle_line(&line),
            ConversationPhaseEffect::AskAboutWorkers(count) => self.ask_about_workers(count),
            ConversationPhaseEffect::ShowNotice(text) => self.display.show_notice(text),
            ConversationPhaseEffect::ShowError(text) => self.display.show_error(text),
            ConversationPhaseEffect::ShowExitMessage(text) => self.display.show_exit_message(text),
            ConversationPhaseEffect::StartWaitingTurn => self.start_waiting_turn(),
            ConversationPhaseEffect::ReportWorkers(choice) => self.report_workers(choice),
            ConversationPhaseEffect::ReportBackground => self.report_background(),
            ConversationPhaseEffect::CancelTurn => self.apply_turn_event(TurnEvent::ExitBegan),
            ConversationPhaseEffect::StopWorkers => self.stop_workers(),
            ConversationPhaseEffect::CheckProgress => {
                self.apply_phase_event(ConversationPhaseEvent::ProgressMade);
            }
            ConversationPhaseEffect::RequestInsights => self.request_insights(),
            // The result of the cancellation does not matter: the answer is not read.
            ConversationPhaseEffect::CancelInsights(job) => drop(self.fleet.cancel_job(&job, true)),
            ConversationPhaseEffect::SaveInsights(reply) => self.save_insights(&reply),
            ConversationPhaseEffect::SaveSession => self.save_session(),
        }
    }

    fn ask_about_workers(&mut self, count: usize) {
        let workers =
            if count == 1 { "1 worker is".to_owned() } else { format!("{count} workers are") };
        self.display.show_notice(format!(
            "{workers} running. stop: stop them; leave: keep them running; stay: do not leave."
        ));
    }

    /// Shows the workers that are stopped or keep running.
    fn report_workers(&mut self, choice: WorkerExitChoice) {
        let names = self.workers.live_names();
        if !names.is_empty() {
            let label = match choice {
                WorkerExitChoice::Stop => "Stopping workers",
                WorkerExitChoice::KeepRunning => "Workers that keep running",
            };
            self.display.show_exit_message(format!("{label}: {}", names.join(", ")));
        }
    }

    /// Shows the job of the turn that goes on without this program.
    fn report_background(&mut self) {
        let Some(job) = self.turn.running().map(|turn| turn.job.clone()) else { return };
        self.display.show_exit_message(format!("The agent goes on in the background: {job}"));
        self.display.show_exit_message(format!("Watch: heeler logs -f {job}"));
        self.display
            .show_exit_message("Its questions wait on the dashboard and in: heeler approvals");
    }

    /// Asks the agent for insights, in a fork of its session.
    fn request_insights(&mut self) {
        let (state, messages) = (self.record.state(), self.record.messages());
        // Without a message there is nothing to learn, and a failing disk could not keep it.
        let is_asked = self.options.insights && messages > 0 && !self.has_unwritten_entries();
        let Some(session) = state.session.clone().filter(|_| is_asked) else {
            return self.apply_phase_event(ConversationPhaseEvent::InsightsSkipped(None));
        };
        let turn = TurnRequest {
            id: Uuid::new_v4(),
            agent: state.agent().to_owned(),
            prompt: INSIGHTS_PROMPT.to_owned(),
            // A fork, so that this question does not become a part of the session.
            session: TurnSessionChoice::Fork(session, state.cut),
            model: state.model.clone(),
            // Nobody answers questions during the exit.
            attended: false,
            permissions: PermissionGrant::default(),
        };
        self.display.show_exit_message(format!("Extracting learnings from {messages} message(s)…"));
        match self.fleet.start_turn(&turn) {
            Ok(job) => {
                self.fleet.follow_job(&job, 0);
                self.apply_phase_event(ConversationPhaseEvent::InsightsRequested(job));
            }
            Err(why) => self.apply_phase_event(ConversationPhaseEvent::InsightsSkipped(Some(why))),
        }
    }

    /// Handles a state change of the insights job.
    pub(super) fn handle_insights_job(&mut self, info: ChatJobInfo) {
        let result = match info.state {
            ChatJobState::Waiting | ChatJobState::Running => return,
            ChatJobState::Failed => {
                Err(info.reason.unwrap_or_else(|| "the agent failed".to_owned()))
            }
            ChatJobState::Done => Ok(()),
        };
        self.apply_phase_event(ConversationPhaseEvent::InsightsEnded(result));
    }

    fn save_insights(&mut self, reply: &str) {
        // Any other line, such as `none`, is no insight.
        let insights: Vec<&str> =
            reply.lines().filter_map(|line| line.trim().strip_prefix("- ")).collect();
        let (count, text) = (insights.len(), insights.join("\n- "));
        self.display.show_exit_message(format!("Found {count} steering insight(s)"));
        let saved = match count {
            0 => Ok(()),
            _ => self.record.session_file.save_insights(&format!("- {text}\n")),
        };
        match saved {
            Ok(()) => self.display.show_exit_message("Insight synthesis complete"),
            Err(error) => {
                self.display.show_exit_message(format!("Insights: not written, {error}"));
            }
        }
    }

    /// Saves the session and shows how to resume it.
    fn save_session(&mut self) {
        // A message that waits for the disk is reported as unsent, and an unfinished copy is
        // removed.
        self.apply_turn_event(TurnEvent::ConversationEnded);
        let queued = self.outbox.take_queued().into_iter();
        for text in queued.chain(self.outbox.take_held_lines()) {
            self.display.show_exit_message(format!("not sent: {text}"));
        }
        if self.has_unwritten_entries() {
            self.display.show_exit_message(
                "The last entries could not be written. A resumed session recovers them from the agent's job.",
            );
        }
        let id = self.record.id().to_owned();
        match self.record.session_file.save_changes() {
            Ok(()) => {
                let said = match self.record.session_file.is_stored() {
                    true => format!("Session saved: {id}"),
                    // It still belongs to another program alone.
                    false => format!("Nothing was changed in session {id}"),
                };
                self.display.show_exit_message(said);
                self.display.show_exit_message(format!("Resume: heeler --resume {id}"));
            }
            Err(error) => {
                let whole =
                    if self.has_unwritten_entries() { "" } else { "the transcript is complete, " };
                self.display.show_exit_message(format!("{error}; {whole}heeler --resume {id}"));
            }
        }
        self.display.push(ChatOutput::Exited);
    }
}
