//! Resuming a session, including a turn that was in progress when the session was left or
//! interrupted.

use heeler_model::JobId;
use jiff::SignedDuration;

use super::Conversation;
use super::display::PAGE_ENTRIES;
use super::outbox::UnsentMessage;
use super::turn_phase::{RunningTurn, TurnEvent, TurnInitiator};
use super::undo::is_undo;
use crate::{ChatSpeaker, ConversationEntry, ConversationTurn, EntryRole, SessionFileError, row};

/// Time for which the fleet can reliably find the job of a turn.
pub const TURN_LOOKUP_WINDOW: SignedDuration = SignedDuration::from_hours(24);

impl Conversation {
    /// Shows the end of the transcript, and follows the turn that was in progress.
    pub(super) fn resume(&mut self) -> Result<(), SessionFileError> {
        let page = self.record.session_file.entries_before(
            &ChatSpeaker::Coordinator,
            None,
            PAGE_ENTRIES,
        )?;
        let entries = page.entries.clone();
        self.display.show_page(ChatSpeaker::Coordinator, page);
        self.list_recorded_workers();
        // A message in the transcript without a recorded job.
        let unsure = entries.iter().rev().find(|entry| entry.turn.is_some());
        // A refusal has the same turn but the role `system`, so it ends this search.
        if let Some(entry) = unsure.filter(|entry| entry.role == EntryRole::User) {
            self.recover_turn(entry);
        }
        let jobs = self.state().jobs();
        let is_on_record = self.load_costs(&jobs);
        // Start of the last turn; unsent messages are not turns.
        let turns = &self.state().turns;
        let is_turn =
            |entry: &ConversationEntry| turns.iter().any(|known| entry.turn == Some(known.turn));
        let begin = entries.iter().rposition(is_turn);
        let tail = &entries[begin.unwrap_or_default()..];
        // Only the last turn can be incomplete: each starts when the previous one is written
        // completely. A turn that was taken back was complete too, and its session is not
        // continued.
        if let Some(job) = jobs.last().filter(|_| !is_on_record) {
            // The state directory is another or an older one: no more events of this job will
            // arrive.
            self.display.show_notice(format!(
                "{job}, the last turn, is no longer recorded: nothing more of it can be shown."
            ));
        } else if let Some(job) = jobs.last().filter(|_| !tail.iter().any(is_undo)) {
            self.resume_turn(job, tail, begin.is_some())?;
        }
        if !jobs.is_empty() {
            self.fleet.watch_workers(&jobs);
        }
        self.resume_loops();
        Ok(())
    }

    /// Loads the costs of the agent's jobs; returns false if the fleet does not know the last one.
    fn load_costs(&mut self, jobs: &[JobId]) -> bool {
        let mut is_on_record = true;
        for job in jobs {
            // Only the last job is followed later; the others are needed for their costs.
            self.jobs.insert(job.clone(), ChatSpeaker::Coordinator, 0);
            let info = self.fleet.job_info(job);
            // An unreachable fleet is no proof that the job is gone.
            is_on_record = !matches!(info, Ok(None));
            if let Some(cost) = info.ok().flatten().and_then(|info| info.cost_usd) {
                self.jobs.set_cost(job.clone(), cost);
            }
        }
        is_on_record
    }

    /// Follows the last turn again. `tail` has the shown entries since its start; `has_start` says
    /// if the start is one of them.
    fn resume_turn(
        &mut self,
        job: &JobId,
        tail: &[ConversationEntry],
        has_start: bool,
    ) -> Result<(), SessionFileError> {
        let is_its_turn = |known: &&ConversationTurn| known.job.as_ref() == Some(job);
        let known = self.state().turns.iter().rfind(is_its_turn);
        let by_loop = known.and_then(|known| Some((known.by_loop?, known.task.clone())));
        let initiator = by_loop
            .map_or(TurnInitiator::User, |(index, task)| TurnInitiator::Loop { index, task });
        self.follow_agent_job(job)?;
        let mut turn = Box::new(RunningTurn::new(job.clone(), initiator));
        let is_from_job =
            |entry: &&ConversationEntry| entry.source.as_ref().is_some_and(|it| it.job == *job);
        // Its last text before the interruption may be the marker of a finished loop or task.
        let replies = tail.iter().filter(is_from_job);
        let last_reply = replies.clone().rfind(|entry| entry.role == EntryRole::Assistant);
        turn.last_reply = last_reply.map(ConversationEntry::text).unwrap_or_default();
        // Entries that the transcript has are not added again.
        turn.is_end_recorded = replies.clone().next_back().is_some_and(row::is_failure_notice);
        let prompts = tail.iter().filter(|entry| entry.role == EntryRole::User);
        turn.recorded_prompts = prompts.map(ConversationEntry::text).collect();
        // If the beginning is not loaded, a prompt that seems to be missing may be in the
        // transcript.
        turn.may_have_unrecorded_prompts = has_start;
        self.apply_turn_event(TurnEvent::Resumed(turn));
        Ok(())
    }

    /// Finds out if a message was sent before the interruption.
    fn recover_turn(&mut self, entry: &ConversationEntry) {
        let Some(turn) = entry.turn else { return };
        if self.state().turns.iter().any(|known| known.turn == turn) {
            return;
        }
        let age = entry.at.map(|at| self.now.duration_since(at));
        match self.fleet.find_turn_job(turn) {
            Ok(Some(job)) => {
                let recorded = ConversationTurn { turn, job: Some(job), by_loop: None, task: None };
                self.save_state(|state| state.turns.push(recorded));
            }
            // After this time the absence of a job proves nothing, so a repetition is not offered.
            Ok(None) if age.is_some_and(|age| age > TURN_LOOKUP_WINDOW) => {
                self.display.show_notice("it is no longer known if your last message was sent; `heeler jobs` lists the jobs.");
            }
            Ok(None) => {
                self.display.show_notice(
                    "your last message was not sent: the program ended before. Enter sends it now.",
                );
                let text = entry.text();
                // The fleet may still be creating the job; with the same ID it executes the message
                // once.
                self.outbox.set_unsent(UnsentMessage { turn, text: text.trim().to_owned() });
                self.display.suggest_input(text);
            }
            Err(why) => {
                self.display
                    .show_error(format!("it is not known if your last message was sent: {why}"));
            }
        }
    }
}
