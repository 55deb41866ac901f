//! Questions of the agent and of its workers. A question belongs to the running turn or to a worker,
//! and ends with its job.

use heeler_model::JobId;
use heeler_model::run::{AgentQuestion, QuestionAnswer};

use super::{Conversation, TurnPhase};
use crate::{ChatOutput, ChatQuestion, ChatSpeaker};

impl Conversation {
    /// Adds a question, once. A question of a job that has ended or was never followed is ignored: no
    /// agent waits for its answer.
    pub(super) fn add_question(&mut self, job: JobId, ask: AgentQuestion) {
        let Some(of) = self.jobs.speaker(&job) else { return };
        let questions = match &of {
            ChatSpeaker::Coordinator => self.turn.running_job(&job).map(|turn| &mut turn.questions),
            ChatSpeaker::Worker(name) => {
                let worker = self.workers.get_mut(name).filter(|worker| !worker.has_recorded(&job));
                worker.map(|worker| &mut worker.questions)
            }
        };
        let Some(questions) = questions else { return };
        if !questions.iter().any(|known| known.ask.id == ask.id) {
            let question = ChatQuestion { of, job, ask };
            questions.push(question.clone());
            self.display.push(ChatOutput::QuestionAsked(question));
        }
    }

    /// Returns the open questions, those of the agent first.
    pub(super) fn open_questions(&self) -> Vec<ChatQuestion> {
        let of_agent = self.turn.running().into_iter().flat_map(|turn| &turn.questions);
        let of_workers = self.workers.iter().flat_map(|worker| &worker.questions);
        of_agent.chain(of_workers).cloned().collect()
    }

    pub(super) fn answer(&mut self, job: &JobId, ask: &str, answer: &QuestionAnswer) {
        let questions = self.open_questions();
        let shown =
            questions.iter().find(|question| question.job == *job && question.ask.id == ask);
        // A worker's permission is not the agent's: each turn of the agent would have it.
        let grant = shown.filter(|question| question.of == ChatSpeaker::Coordinator);
        let grant = grant.and_then(|question| question.ask.grant.clone());
        let grant = grant.filter(|_| *answer == QuestionAnswer::AllowSession);
        let shown = shown.map(|question| question.ask.shown_hash());
        match self.fleet.answer_question(job, ask, answer, shown) {
            // Closed at once; the fleet's own report of the answer then finds nothing to close.
            Ok(()) => {
                if let Some(grant) = &grant {
                    self.remember_grant(grant);
                }
                self.close_question(ask);
            }
            Err(why) => self.display.show_error(why),
        }
    }

    pub(super) fn close_question(&mut self, ask: &str) {
        let is_open = |question: &ChatQuestion| question.ask.id != ask;
        if let TurnPhase::Running(turn) = &mut self.turn {
            turn.questions.retain(is_open);
        }
        self.workers.iter_mut().for_each(|worker| worker.questions.retain(is_open));
        self.display.push(ChatOutput::QuestionClosed { ask: ask.to_owned() });
    }
}
