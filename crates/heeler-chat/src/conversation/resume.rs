//! Resuming a session, including a turn that was in progress when the session was left or
//! interrupted.

use jiff::SignedDuration;
use uuid::Uuid;

use super::commands::is_undo;
use super::turns::TurnInitiator;
use super::{Conversation, PAGE_ENTRIES};
use crate::{
    ChatOutput, ChatSpeaker, ConversationEntry, ConversationTurn, EntryRole, SessionFileError, row,
};

/// Time for which the fleet can reliably find the job of a turn.
pub const TURN_LOOKUP_WINDOW: SignedDuration = SignedDuration::from_hours(24);

/// Message in the transcript without a known job when the session was resumed. The fleet may still
/// be creating the job.
pub(super) struct UnsentMessage {
    pub(super) turn: Uuid,
    pub(super) text: String,
}

impl Conversation {
    /// Shows the end of the transcript, and follows the turn that was in progress.
    pub(super) fn resume(&mut self) -> Result<(), SessionFileError> {
        let page =
            self.session_file.entries_before(&ChatSpeaker::Coordinator, None, PAGE_ENTRIES)?;
        self.cursors.insert(ChatSpeaker::Coordinator, page.cursor);
        let (entries, has_more) = (page.entries, page.has_more);
        let older = entries.clone();
        self.outputs.push(ChatOutput::OlderEntries {
            of: ChatSpeaker::Coordinator,
            entries: older,
            has_more,
        });
        // A message in the transcript without a recorded job.
        let unsure = entries.iter().rev().find(|entry| entry.turn.is_some());
        if let Some(entry) = unsure.filter(|entry| entry.role == EntryRole::User) {
            self.recover_turn(entry);
        }
        // Start of the last turn; unsent messages are not turns.
        let turns = &self.session_file.state().turns;
        let is_turn =
            |entry: &ConversationEntry| turns.iter().any(|asked| entry.turn == Some(asked.turn));
        let begin = entries.iter().rposition(is_turn);
        let tail = &entries[begin.unwrap_or_default()..];
        let is_undone = tail.iter().any(is_undo);
        let jobs = self.session_file.state().jobs();
        let mut is_on_record = true;
        for job in &jobs {
            self.speakers.insert(job.clone(), ChatSpeaker::Coordinator);
            let facts = self.fleet.job_info(job);
            is_on_record = !matches!(facts, Ok(None));
            if let Ok(Some(facts)) = facts {
                self.costs.extend(facts.cost_usd.map(|cost| (job.clone(), cost)));
            }
        }
        // Only the last turn can be incomplete: each starts when the previous one is written
        // completely. A turn that was taken back was complete too, and its session is not
        // continued.
        if let Some(job) = jobs.last().filter(|_| !is_on_record) {
            // The state directory is another or an older one: no more events of this job will
            // arrive.
            self.show_notice(format!(
                "{job}, the last turn, is no longer recorded: nothing more of it can be shown."
            ));
        } else if let Some(job) = jobs.last().filter(|_| !is_undone) {
            let is_its = |asked: &&ConversationTurn| asked.job.as_ref() == Some(job);
            let asked = self.session_file.state().turns.iter().rfind(is_its);
            let by_loop = asked.and_then(|asked| asked.by_loop);
            self.asked_task = asked.and_then(|asked| asked.task.clone());
            self.follow_turn(
                job.clone(),
                by_loop.map_or(TurnInitiator::User, TurnInitiator::Loop),
            )?;
            let is_its =
                |entry: &ConversationEntry| entry.source.as_ref().is_some_and(|it| it.job == *job);
            let said = tail.iter().filter(|entry| is_its(entry));
            // Its last text before the interruption may be the marker of a finished loop or task.
            let last_words = said.clone().rfind(|entry| entry.role == EntryRole::Assistant);
            self.last_reply = last_words.map(ConversationEntry::text).unwrap_or_default();
            let told = tail
                .iter()
                .filter(|entry| entry.role == EntryRole::User)
                .map(ConversationEntry::text);
            if let Some(turn) = &mut self.turn {
                // Entries that the transcript has are not added again.
                turn.is_end_recorded = said.clone().next_back().is_some_and(row::is_failure_notice);
                turn.recorded_prompts.extend(told.clone());
                turn.may_have_unrecorded_prompts = begin.is_some();
            }
        }
        if !jobs.is_empty() {
            self.fleet.watch_workers(&jobs);
        }
        self.resume_loops();
        Ok(())
    }

    /// Finds out if a message was sent before the interruption.
    fn recover_turn(&mut self, entry: &ConversationEntry) {
        let Some(turn) = entry.turn else { return };
        if self.session_file.state().turns.iter().any(|asked| asked.turn == turn) {
            return;
        }
        let age = entry.at.map(|at| self.now.duration_since(at));
        match self.fleet.find_turn_job(turn) {
            Ok(Some(job)) => {
                let asked = ConversationTurn { turn, job: Some(job), by_loop: None, task: None };
                self.save_state(|about| about.turns.push(asked));
            }
            Ok(None) if age.is_some_and(|age| age > TURN_LOOKUP_WINDOW) => {
                self.show_notice("it is no longer known if your last message was sent; `heeler jobs` lists the jobs.");
            }
            Ok(None) => {
                self.show_notice(
                    "your last message was not sent: the program ended before. Enter sends it now.",
                );
                let text = entry.text();
                self.unsent_message = Some(UnsentMessage { turn, text: text.trim().to_owned() });
                self.outputs.push(ChatOutput::SuggestedInput(text));
            }
            Err(why) => {
                self.show_error(format!("it is not known if your last message was sent: {why}"));
            }
        }
    }
}
