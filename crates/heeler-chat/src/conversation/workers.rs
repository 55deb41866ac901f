//! Following of workers, and messages to them. A worker is an agent that the agent started, with a
//! transcript of its own.

use std::collections::HashSet;

use heeler_model::JobId;
use heeler_model::permission_grant::PermissionGrant;
use uuid::Uuid;

use super::Conversation;
use super::phase::ConversationPhaseEvent;
use super::worker_list::ConversationWorker;
use crate::{
    ChatJobInfo, ChatJobState, ChatOutput, ChatSpeaker, ChatWorkerInfo, ConversationEntry,
    EntryRole, MessageDeliveryError, TurnRequest, TurnSessionChoice,
};

/// First entry of a worker's transcript.
const SPAWNED: &str = "Worker spawned";

impl Conversation {
    /// Updates the list of workers, and follows their new jobs.
    pub(super) fn update_workers(&mut self, workers: Vec<ChatWorkerInfo>) {
        for facts in workers {
            // These workers belong to the session that was left.
            if facts.jobs.iter().any(|job| self.jobs.is_detached(&job.job)) {
                continue;
            }
            for job in &facts.jobs {
                job.cost_usd.into_iter().for_each(|cost| self.jobs.set_cost(job.job.clone(), cost));
            }
            let name = facts.name.clone();
            match self.workers.get_mut(&name) {
                Some(known) => known.facts = facts,
                None => {
                    // A worker is listed before its first entry, so that a crash does not leave an
                    // unlisted file.
                    self.register_worker(&facts);
                    let recorded = self.find_recorded_jobs(&facts);
                    self.workers.push(ConversationWorker::new(facts, recorded));
                }
            }
            self.follow_worker(&name);
        }
        // The agent may have started one just before it was interrupted.
        if self.phase.stops_workers() {
            self.stop_workers();
        }
    }

    /// Lists the workers of another program: their transcripts are there, but no job of this fleet.
    pub(super) fn list_recorded_workers(&mut self) {
        let recorded = self.state().workers.iter().filter(|worker| worker.jobs.is_empty());
        let recorded: Vec<ChatWorkerInfo> = recorded
            .map(|worker| ChatWorkerInfo {
                name: worker.name.clone(),
                task: worker.task.clone().unwrap_or_default(),
                jobs: Vec::new(),
            })
            .collect();
        for facts in recorded {
            self.workers.push(ConversationWorker::new(facts, HashSet::new()));
        }
    }

    /// Returns the jobs of a worker whose rows are all in its transcript: those before the last job
    /// that has a row in it, since jobs are followed one after the other.
    fn find_recorded_jobs(&self, facts: &ChatWorkerInfo) -> HashSet<JobId> {
        let of = ChatSpeaker::Worker(facts.name.clone());
        // A job whose lookup fails is followed, and the error is shown then.
        let is_in = |job: &ChatJobInfo| {
            matches!(self.record.session_file.last_recorded_row(&of, &job.job), Ok(Some(_)))
        };
        let last = facts.jobs.iter().rposition(is_in).unwrap_or(0);
        facts.jobs[..last].iter().map(|job| job.job.clone()).collect()
    }

    /// Adds a worker to the session's roster.
    fn register_worker(&mut self, facts: &ChatWorkerInfo) {
        if self.state().workers.iter().any(|known| known.name == facts.name) {
            return;
        }
        let mut worker = crate::RosterWorker::new(&facts.name);
        worker.task = Some(facts.task.clone());
        worker.jobs = facts.jobs.iter().map(|job| job.job.clone()).collect();
        self.save_state(|state| state.workers.push(worker));
        // The first line of a worker's transcript, as agents-fleet writes it. It tells nothing new, so
        // it is neither shown nor written later if the disk fails now.
        let entry = ConversationEntry::new(EntryRole::System, SPAWNED, self.now);
        let of = ChatSpeaker::Worker(facts.name.clone());
        if !self.record.has_unwritten_entries() {
            drop(self.record.session_file.append(&of, &entry));
        }
    }

    /// Follows a worker's jobs one after the other, so that its transcript has them in order.
    fn follow_worker(&mut self, name: &str) {
        let Some(worker) = self.workers.get(name) else { return };
        let next = worker.facts.jobs.iter().find(|job| !worker.recorded_jobs.contains(&job.job));
        let Some(job) = next.map(|job| job.job.clone()) else { return };
        if self.jobs.contains(&job) {
            return;
        }
        let of = ChatSpeaker::Worker(name.to_owned());
        let from = match self.record.session_file.last_recorded_row(&of, &job) {
            Ok(last) => last.map_or(0, |row| row + 1),
            Err(error) => return self.display.show_error(format!("{error}")),
        };
        self.jobs.insert(job.clone(), of, from);
        self.fleet.follow_job(&job, from);
    }

    /// Handles a state change of a worker's job.
    pub(super) fn handle_worker_job(&mut self, facts: &ChatJobInfo) {
        let Some(of) = self.jobs.speaker(&facts.job) else { return };
        let ChatSpeaker::Worker(name) = &of else { return };
        let name = name.clone();
        let Some(worker) = self.workers.get_mut(&name) else { return };
        match worker.facts.jobs.iter_mut().find(|job| job.job == facts.job) {
            Some(known) => known.clone_from(facts),
            None => worker.facts.jobs.push(facts.clone()),
        }
        if matches!(facts.state, ChatJobState::Done | ChatJobState::Failed) {
            worker.recorded_jobs.insert(facts.job.clone());
            worker.questions.retain(|question| question.job != facts.job);
            self.display.push(ChatOutput::DeltaEnded { of });
            // The next job has waited for the end of this one.
            self.follow_worker(&name);
        }
        self.apply_phase_event(ConversationPhaseEvent::ProgressMade);
    }

    /// Sends a message to a worker. The worker's rows will contain it.
    pub(super) fn send_to_worker(&mut self, name: &str, text: &str) {
        match self.deliver_to_worker(name, text) {
            Ok(()) => {}
            Err(MessageDeliveryError::Refused(why)) => {
                self.display.show_error(format!("{name}: {why}"));
                self.display.suggest_input(text);
            }
            Err(MessageDeliveryError::Unconfirmed(why)) => self.display.show_error(format!(
                "{name}: it is not known if this arrived; it is shown if it did: {text} ({why})"
            )),
        }
    }

    /// Delivers to a running worker, or continues the session of an idle one with a new job.
    fn deliver_to_worker(&mut self, name: &str, text: &str) -> Result<(), MessageDeliveryError> {
        let refused = |why: &str| MessageDeliveryError::Refused(why.to_owned());
        let worker =
            self.workers.get_mut(name).ok_or_else(|| refused("this worker no longer exists"))?;
        let current = worker.current_job().cloned();
        let current = current
            .ok_or_else(|| refused("another program ran it: only its transcript can be read"))?;
        if current.state == ChatJobState::Running {
            return self.fleet.send_message(&current.job, text);
        }
        let session = worker.session().cloned();
        let session = session.ok_or_else(|| refused("it has not started a session yet"))?;
        let turn = TurnRequest {
            id: Uuid::new_v4(),
            agent: current.agent.clone(),
            prompt: text.to_owned(),
            session: TurnSessionChoice::Existing(session.clone()),
            model: None,
            attended: self.options.attended,
            // What the person allowed the agent is not meant for its workers.
            permissions: PermissionGrant::default(),
        };
        let job = self.fleet.start_turn(&turn).map_err(MessageDeliveryError::Refused)?;
        let (state, session) = (ChatJobState::Waiting, Some(session));
        let facts = ChatJobInfo { job, state, session, reason: None, cost_usd: None, ..current };
        worker.facts.jobs.push(facts);
        self.follow_worker(name);
        Ok(())
    }

    pub(super) fn stop_worker(&mut self, name: &str) {
        for job in self.workers.get(name).iter().flat_map(|worker| worker.live_jobs()) {
            if let Err(why) = self.fleet.cancel_job(&job.job, false) {
                self.display.push(ChatOutput::Error(format!("{name}: {why}")));
            }
        }
    }

    /// Cancels all live jobs of workers, each once.
    pub(super) fn stop_workers(&mut self) {
        for worker in self.workers.iter_mut() {
            let live: Vec<JobId> = worker.live_jobs().map(|job| job.job.clone()).collect();
            for job in live.into_iter().filter(|job| worker.stopped_jobs.insert(job.clone())) {
                if let Err(why) = self.fleet.cancel_job(&job, false) {
                    self.display.push(ChatOutput::Error(format!("{}: {why}", worker.facts.name)));
                }
            }
        }
    }
}
