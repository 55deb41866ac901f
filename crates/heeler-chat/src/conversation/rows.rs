//! Rows and state changes of followed jobs.

use heeler_model::JobId;
use heeler_model::job_row::{JobRow, JobRowKind};

use super::Conversation;
use super::phase::ConversationPhaseEvent;
use super::turn_phase::TurnEvent;
use crate::row::{self, PromptHandling};
use crate::{ChatJobInfo, ChatOutput, ChatSpeaker, EntryRole};

impl Conversation {
    /// Handles a row of a job.
    pub(super) fn handle_row(&mut self, job: &JobId, at: u64, row: &JobRow) {
        // The answer becomes insights and not a part of the transcript.
        if self.phase.is_insights_job(job) {
            if row.kind() == JobRowKind::Assistant
                && let Some(text) = row.text("content")
            {
                self.apply_phase_event(ConversationPhaseEvent::InsightsReply(text.to_owned()));
            }
            return;
        }
        let Some(of) = self.jobs.speaker(job) else { return };
        if !self.jobs.receive_row(job, at) {
            // The row was recorded before its deltas were repeated.
            if row.kind() == JobRowKind::Assistant {
                self.display.push(ChatOutput::DeltaEnded { of });
            }
            return;
        }
        let mut prompts = PromptHandling::Include;
        if of == ChatSpeaker::Coordinator {
            prompts = self.prompt_handling(job, row);
            // This comes before the entry, which marks the row as handled.
            self.apply_task_row(job, at, row);
        }
        self.update_activity(job, row);
        let Some(entry) = row::entry_from_row(job, at, row, prompts) else { return };
        if let Some(turn) = self.turn.running_job(job) {
            if entry.role == EntryRole::Assistant {
                turn.last_reply = entry.text();
            }
            turn.is_end_recorded = row::is_failure_notice(&entry);
        }
        self.append_entry(of, entry);
    }

    /// Returns the treatment of a prompt in a row of the agent: only one that the transcript lacks is
    /// recorded.
    fn prompt_handling(&mut self, job: &JobId, row: &JobRow) -> PromptHandling {
        let turn = self.turn.running_job(job);
        match turn.is_some_and(|turn| turn.is_unrecorded_prompt(row)) {
            true => PromptHandling::Include,
            false => PromptHandling::Skip,
        }
    }

    fn update_activity(&mut self, job: &JobId, row: &JobRow) {
        if let Some(turn) = self.turn.running_job(job) {
            turn.set_activity(match row.kind() {
                JobRowKind::ToolCall { tool, .. } => tool,
                _ => "thinking",
            });
        }
    }

    /// Handles a state change of a job.
    pub(super) fn handle_job_info(&mut self, info: ChatJobInfo) {
        // Its cost belongs to the session that was left.
        if self.jobs.is_detached(&info.job) {
            return;
        }
        if let Some(cost) = info.cost_usd {
            self.jobs.set_cost(info.job.clone(), cost);
        }
        if self.phase.is_insights_job(&info.job) {
            return self.handle_insights_job(info);
        }
        if self.turn.running_job(&info.job).is_none() {
            return self.handle_worker_job(&info);
        }
        self.save_session_of_turn(&info);
        let status = &mut self.display.status;
        // After a turn, the 0 of a new conversation is no longer true.
        let before = status.context_tokens.filter(|tokens| *tokens > 0);
        status.context_tokens = info.context_tokens.or(before);
        status.context_window = info.context_window.or(status.context_window);
        status.model = info.model.clone().or(status.model.take());
        self.apply_turn_event(TurnEvent::JobChanged(info));
    }

    /// Saves the native session that a turn uses.
    fn save_session_of_turn(&mut self, info: &ChatJobInfo) {
        // An earlier turn may belong to another agent, which has a session of its own.
        let state = self.record.state();
        if let Some(session) = &info.session
            && info.agent == state.agent()
            && state.session.as_ref() != Some(session)
        {
            let session = session.clone();
            self.save_state(|state| {
                state.session = Some(session);
                // The reported session is the fork itself, so the next turn continues it directly.
                state.cut = None;
                state.is_fork = false;
            });
        }
    }
}
