//! Workers: agents that the agent has set to work, each with a transcript of its own.

use heeler_model::JobId;
use uuid::Uuid;

use super::Talk;
use crate::{JobFacts, JobState, SessionChoice, Shown, Speaker, Turn, Unheard, WorkerFacts};

/// A worker of the conversation.
pub(super) struct Worker {
    facts: WorkerFacts,
    pub(super) unseen: usize,
}

impl Worker {
    pub(super) fn name(&self) -> &str {
        &self.facts.name
    }

    fn last(&self) -> Option<&JobFacts> {
        self.facts.jobs.last()
    }

    pub(super) fn state(&self) -> JobState {
        self.last().map_or(JobState::Waiting, |job| job.state)
    }

    pub(super) fn is_at_work(&self) -> bool {
        matches!(self.state(), JobState::Waiting | JobState::Running)
    }

    /// Returns its last job, while that is not over.
    pub(super) fn live_job(&self) -> Option<&JobId> {
        self.last().filter(|_| self.is_at_work()).map(|facts| &facts.job)
    }

    /// Says what it is and does, on a line.
    pub(super) fn line(&self) -> String {
        let state = match self.state() {
            JobState::Waiting => "waits",
            JobState::Running => "at work",
            JobState::Done => "done",
            JobState::Failed => "failed",
        };
        let cost: f64 = self.facts.jobs.iter().filter_map(|job| job.cost_usd).sum();
        let task = self.facts.task.lines().next().unwrap_or_default();
        format!("{}  {state}  ${cost:.4}  {task}", self.facts.name)
    }
}

impl Talk {
    /// Takes which workers there are; what is new in their transcripts is followed.
    pub(super) fn workers_are(&mut self, workers: Vec<WorkerFacts>) {
        for facts in workers {
            if facts.jobs.iter().any(|job| self.left_behind.contains(&job.job)) {
                continue;
            }
            for job in &facts.jobs {
                if let Some(cost) = job.cost_usd {
                    self.costs.insert(job.job.clone(), cost);
                }
                self.follow_worker(&facts.name, &job.job);
            }
            match self.workers.iter_mut().find(|known| known.facts.name == facts.name) {
                Some(known) => known.facts = facts,
                None => {
                    self.enlist(&facts);
                    self.workers.push(Worker { facts, unseen: 0 });
                }
            }
        }
    }

    /// Puts a worker on the session's roster.
    fn enlist(&mut self, facts: &WorkerFacts) {
        if self.book.about().workers.iter().any(|known| known.name == facts.name) {
            return;
        }
        let mut worker = crate::Worker::new(&facts.name);
        worker.task = Some(facts.task.clone());
        worker.jobs = facts.jobs.iter().map(|job| job.job.clone()).collect();
        self.save(|about| about.workers.push(worker));
    }

    fn follow_worker(&mut self, name: &str, job: &JobId) {
        if self.speakers.contains_key(job) {
            return;
        }
        let of = Speaker::Worker(name.to_owned());
        let from = match self.book.last_source(&of, job) {
            Ok(last) => last.map_or(0, |row| row + 1),
            Err(error) => return self.failed(format!("{error}")),
        };
        self.speakers.insert(job.clone(), of);
        self.next_rows.insert(job.clone(), from);
        self.fleet.follow(job, from);
    }

    /// Takes where a job of a worker is.
    pub(super) fn worker_job(&mut self, facts: &JobFacts) {
        let Some(of @ Speaker::Worker(name)) = self.speakers.get(&facts.job) else { return };
        let (of, name) = (of.clone(), name.clone());
        let Some(worker) = self.workers.iter_mut().find(|worker| worker.name() == name) else {
            return;
        };
        match worker.facts.jobs.iter_mut().find(|job| job.job == facts.job) {
            Some(known) => known.clone_from(facts),
            None => worker.facts.jobs.push(facts.clone()),
        }
        if matches!(facts.state, JobState::Done | JobState::Failed) {
            self.asks.retain(|question| question.job != facts.job);
            self.out.push(Shown::DeltaEnded { of });
        }
        if self.leaving.is_some() {
            self.leave_on();
        }
    }

    /// Talks to a worker directly: its rows have what was said.
    pub(super) fn say_to_worker(&mut self, name: &str, text: &str) {
        let Some(worker) = self.workers.iter().find(|worker| worker.name() == name) else {
            return self.failed(format!("there is no worker `{name}`"));
        };
        if let Some(job) = worker.live_job().cloned() {
            match self.fleet.say(&job, text) {
                Ok(()) => {}
                Err(Unheard::Refused(why)) => {
                    self.failed(format!("{name}: {why}"));
                    self.out.push(Shown::Suggested(text.to_owned()));
                }
                Err(Unheard::Unsure(why)) => self.failed(format!(
                    "{name}: whether this was heard is not known, it is shown if it was: {text} ({why})"
                )),
            }
            return;
        }
        let Some(last) = worker.last().cloned() else { return };
        let Some(session) = last.session else {
            return self.failed(format!("{name} has no conversation to go on with"));
        };
        let turn = Turn {
            id: Uuid::new_v4(),
            agent: last.agent,
            prompt: text.to_owned(),
            session: SessionChoice::Given(session),
            model: None,
            attended: self.manner.attended,
        };
        match self.fleet.ask(&turn) {
            Ok(job) => self.follow_worker(name, &job),
            Err(why) => {
                self.failed(format!("{name}: {why}"));
                self.out.push(Shown::Suggested(text.to_owned()));
            }
        }
    }

    pub(super) fn stop_worker(&mut self, name: &str) {
        let live = self.workers.iter().find(|worker| worker.name() == name);
        let Some(job) = live.and_then(Worker::live_job).cloned() else { return };
        if let Err(why) = self.fleet.cancel(&job, false) {
            self.failed(format!("{name}: {why}"));
        }
    }
}
