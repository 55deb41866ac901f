//! Workers: agents started by the agent, each with a transcript.

use std::collections::HashSet;

use heeler_model::{AgentSessionId, JobId};
use uuid::Uuid;

use super::Conversation;
use crate::{
    ChatJobInfo, ChatJobState, ChatOutput, ChatSpeaker, ChatWorkerInfo, MessageDeliveryError,
    TurnRequest, TurnSessionChoice,
};

/// Worker of the conversation.
pub(super) struct ConversationWorker {
    facts: ChatWorkerInfo,
    pub(super) unseen: usize,
    /// Jobs whose rows are all in the transcript.
    recorded_jobs: HashSet<JobId>,
    /// Jobs that were cancelled because the person leaves.
    stopped_jobs: HashSet<JobId>,
}

impl ConversationWorker {
    pub(super) fn name(&self) -> &str {
        &self.facts.name
    }

    /// Returns the jobs that have not ended; a worker may have several.
    fn live_jobs(&self) -> impl Iterator<Item = &ChatJobInfo> {
        let is_live =
            |job: &&ChatJobInfo| matches!(job.state, ChatJobState::Waiting | ChatJobState::Running);
        self.facts.jobs.iter().filter(is_live)
    }

    /// Returns the running job, else the next waiting one, else the last one.
    fn current_job(&self) -> Option<&ChatJobInfo> {
        let running = self.facts.jobs.iter().find(|job| job.state == ChatJobState::Running);
        running.or_else(|| self.live_jobs().next()).or(self.facts.jobs.last())
    }

    pub(super) fn state(&self) -> ChatJobState {
        self.current_job().map_or(ChatJobState::Waiting, |job| job.state)
    }

    pub(super) fn has_live_jobs(&self) -> bool {
        self.live_jobs().next().is_some()
    }

    /// Returns the native session; a waiting job has none yet.
    fn session(&self) -> Option<&AgentSessionId> {
        self.facts.jobs.iter().rev().find_map(|job| job.session.as_ref())
    }

    /// Returns a line for the worker list; `width` is that of the name column.
    pub(super) fn summary_line(&self, width: usize) -> String {
        let state = match self.state() {
            ChatJobState::Waiting => "waiting",
            ChatJobState::Running => "running",
            ChatJobState::Done => "done",
            ChatJobState::Failed => "failed",
        };
        // The sum of no floats is -0.
        let cost = self.facts.jobs.iter().filter_map(|job| job.cost_usd).sum::<f64>() + 0.0;
        let task = self.facts.task.lines().next().unwrap_or_default();
        format!("{:<width$}  {state:<7}  ${cost:.4}  {task}", self.facts.name)
    }
}

impl Conversation {
    /// Updates the list of workers, and follows their new jobs.
    pub(super) fn update_workers(&mut self, workers: Vec<ChatWorkerInfo>) {
        for facts in workers {
            if facts.jobs.iter().any(|job| self.detached_jobs.contains(&job.job)) {
                continue;
            }
            let costs = facts.jobs.iter().filter_map(|job| Some((job.job.clone(), job.cost_usd?)));
            self.costs.extend(costs);
            let name = facts.name.clone();
            match self.workers.iter_mut().find(|known| known.facts.name == name) {
                Some(known) => known.facts = facts,
                None => {
                    self.register_worker(&facts);
                    let told = self.find_recorded_jobs(&facts);
                    self.workers.push(ConversationWorker {
                        facts,
                        unseen: 0,
                        recorded_jobs: told,
                        stopped_jobs: HashSet::new(),
                    });
                }
            }
            self.follow_worker(&name);
        }
        // The agent may have started one just before it was interrupted.
        if self.stops_workers() {
            self.stop_workers();
        }
    }

    /// Returns the jobs of a worker whose rows are all in its transcript: those before the last job
    /// that has a row in it, since jobs are followed one after the other.
    fn find_recorded_jobs(&self, facts: &ChatWorkerInfo) -> HashSet<JobId> {
        let of = ChatSpeaker::Worker(facts.name.clone());
        // A job whose lookup fails is followed, and the error is shown then.
        let is_in = |job: &ChatJobInfo| {
            matches!(self.session_file.last_recorded_row(&of, &job.job), Ok(Some(_)))
        };
        let last = facts.jobs.iter().rposition(is_in).unwrap_or(0);
        facts.jobs[..last].iter().map(|job| job.job.clone()).collect()
    }

    /// Adds a worker to the session's roster.
    fn register_worker(&mut self, facts: &ChatWorkerInfo) {
        if self.session_file.state().workers.iter().any(|known| known.name == facts.name) {
            return;
        }
        let mut worker = crate::RosterWorker::new(&facts.name);
        worker.task = Some(facts.task.clone());
        worker.jobs = facts.jobs.iter().map(|job| job.job.clone()).collect();
        self.save_state(|about| about.workers.push(worker));
    }

    /// Follows a worker's jobs one after the other, so that its transcript has them in order.
    fn follow_worker(&mut self, name: &str) {
        let Some(worker) = self.workers.iter().find(|worker| worker.name() == name) else { return };
        let next = worker.facts.jobs.iter().find(|job| !worker.recorded_jobs.contains(&job.job));
        let Some(job) = next.map(|job| job.job.clone()) else { return };
        if self.speakers.contains_key(&job) {
            return;
        }
        let of = ChatSpeaker::Worker(name.to_owned());
        let from = match self.session_file.last_recorded_row(&of, &job) {
            Ok(last) => last.map_or(0, |row| row + 1),
            Err(error) => return self.show_error(format!("{error}")),
        };
        self.speakers.insert(job.clone(), of);
        self.next_rows.insert(job.clone(), from);
        self.fleet.follow_job(&job, from);
    }

    /// Handles a state change of a worker's job.
    pub(super) fn handle_worker_job(&mut self, facts: &ChatJobInfo) {
        let Some(of @ ChatSpeaker::Worker(name)) = self.speakers.get(&facts.job) else { return };
        let (of, name) = (of.clone(), name.clone());
        let Some(worker) = self.workers.iter_mut().find(|worker| worker.name() == name) else {
            return;
        };
        match worker.facts.jobs.iter_mut().find(|job| job.job == facts.job) {
            Some(known) => known.clone_from(facts),
            None => worker.facts.jobs.push(facts.clone()),
        }
        if matches!(facts.state, ChatJobState::Done | ChatJobState::Failed) {
            worker.recorded_jobs.insert(facts.job.clone());
            self.questions.retain(|question| question.job != facts.job);
            self.outputs.push(ChatOutput::DeltaEnded { of });
            self.follow_worker(&name);
        }
        if self.exit.is_some() {
            self.advance_exit();
        }
    }

    /// Sends a message to a worker. The worker's rows will contain it.
    pub(super) fn send_to_worker(&mut self, name: &str, text: &str) {
        match self.deliver_to_worker(name, text) {
            Ok(()) => {}
            Err(MessageDeliveryError::Refused(why)) => {
                self.show_error(format!("{name}: {why}"));
                self.outputs.push(ChatOutput::SuggestedInput(text.to_owned()));
            }
            Err(MessageDeliveryError::Unconfirmed(why)) => self.show_error(format!(
                "{name}: it is not known if this arrived; it is shown if it did: {text} ({why})"
            )),
        }
    }

    /// Delivers to a running worker, or continues the session of an idle one with a new job.
    fn deliver_to_worker(&mut self, name: &str, text: &str) -> Result<(), MessageDeliveryError> {
        let refused = |why: &str| MessageDeliveryError::Refused(why.to_owned());
        let known = self.workers.iter_mut().find(|worker| worker.name() == name);
        let worker = known.ok_or_else(|| refused("this worker no longer exists"))?;
        let current = worker.current_job().cloned();
        let current = current.ok_or_else(|| refused("it has no job"))?;
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
        };
        let job = self.fleet.start_turn(&turn).map_err(MessageDeliveryError::Refused)?;
        let (state, session) = (ChatJobState::Waiting, Some(session));
        let facts = ChatJobInfo { job, state, session, reason: None, cost_usd: None, ..current };
        worker.facts.jobs.push(facts);
        self.follow_worker(name);
        Ok(())
    }

    pub(super) fn stop_worker(&mut self, name: &str) {
        let worker = self.workers.iter().find(|worker| worker.name() == name);
        for job in worker.iter().flat_map(|worker| worker.live_jobs()) {
            if let Err(why) = self.fleet.cancel_job(&job.job, false) {
                self.outputs.push(ChatOutput::Error(format!("{name}: {why}")));
            }
        }
    }

    /// Cancels all live jobs of workers, each once.
    pub(super) fn stop_workers(&mut self) {
        for worker in &mut self.workers {
            let live: Vec<JobId> = worker.live_jobs().map(|job| job.job.clone()).collect();
            for job in live.into_iter().filter(|job| worker.stopped_jobs.insert(job.clone())) {
                if let Err(why) = self.fleet.cancel_job(&job, false) {
                    self.outputs.push(ChatOutput::Error(format!("{}: {why}", worker.facts.name)));
                }
            }
        }
    }
}
