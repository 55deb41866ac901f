//! Workers: agents that the agent has set to work, each with a transcript of its own.

use std::collections::HashSet;

use heeler_model::{AgentSessionId, JobId};
use uuid::Uuid;

use super::Talk;
use crate::{JobFacts, JobState, SessionChoice, Shown, Speaker, Turn, Unheard, WorkerFacts};

/// A worker of the conversation.
pub(super) struct Worker {
    facts: WorkerFacts,
    pub(super) unseen: usize,
    /// Its jobs of which the transcript has all rows.
    told: HashSet<JobId>,
    /// Its jobs that were told to stop because the person leaves.
    stopped: HashSet<JobId>,
}

impl Worker {
    pub(super) fn name(&self) -> &str {
        &self.facts.name
    }

    /// Returns its jobs that are not over: one that is done may have been given several.
    fn live_jobs(&self) -> impl Iterator<Item = &JobFacts> {
        let is_live = |job: &&JobFacts| matches!(job.state, JobState::Waiting | JobState::Running);
        self.facts.jobs.iter().filter(is_live)
    }

    /// Returns what it is at, waits for or was at last.
    fn current(&self) -> Option<&JobFacts> {
        let running = self.facts.jobs.iter().find(|job| job.state == JobState::Running);
        running.or_else(|| self.live_jobs().next()).or(self.facts.jobs.last())
    }

    pub(super) fn state(&self) -> JobState {
        self.current().map_or(JobState::Waiting, |job| job.state)
    }

    pub(super) fn is_at_work(&self) -> bool {
        self.live_jobs().next().is_some()
    }

    /// Returns the agent's own id of its conversation; a job that waits has none yet.
    fn session(&self) -> Option<&AgentSessionId> {
        self.facts.jobs.iter().rev().find_map(|job| job.session.as_ref())
    }

    /// Says what it is and does, on a line of a list whose names have this width.
    pub(super) fn line(&self, width: usize) -> String {
        let state = match self.state() {
            JobState::Waiting => "waits",
            JobState::Running => "at work",
            JobState::Done => "done",
            JobState::Failed => "failed",
        };
        // A sum of nothing is -0.
        let cost = self.facts.jobs.iter().filter_map(|job| job.cost_usd).sum::<f64>() + 0.0;
        let task = self.facts.task.lines().next().unwrap_or_default();
        format!("{:<width$}  {state:<7}  ${cost:.4}  {task}", self.facts.name)
    }
}

impl Talk {
    /// Takes which workers there are; what is new in their transcripts is followed.
    pub(super) fn workers_are(&mut self, workers: Vec<WorkerFacts>) {
        for facts in workers {
            if facts.jobs.iter().any(|job| self.left_behind.contains(&job.job)) {
                continue;
            }
            let costs = facts.jobs.iter().filter_map(|job| Some((job.job.clone(), job.cost_usd?)));
            self.costs.extend(costs);
            let name = facts.name.clone();
            match self.workers.iter_mut().find(|known| known.facts.name == name) {
                Some(known) => known.facts = facts,
                None => {
                    self.enlist(&facts);
                    let told = self.told_before(&facts);
                    self.workers.push(Worker { facts, unseen: 0, told, stopped: HashSet::new() });
                }
            }
            self.follow_worker(&name);
        }
        // The agent may have set one to work just before it was interrupted.
        if self.stops_workers() {
            self.stop_workers();
        }
    }

    /// Returns the jobs of a worker whose rows are all in its transcript: those before the last that it
    /// has a row of, since one is followed when the one before is told to its end.
    fn told_before(&self, facts: &WorkerFacts) -> HashSet<JobId> {
        let of = Speaker::Worker(facts.name.clone());
        // One that cannot be looked up is followed, and what is wrong is told then.
        let is_in = |job: &JobFacts| matches!(self.book.last_source(&of, &job.job), Ok(Some(_)));
        let last = facts.jobs.iter().rposition(is_in).unwrap_or(0);
        facts.jobs[..last].iter().map(|job| job.job.clone()).collect()
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

    /// Follows a worker's jobs one after the other, so that its transcript has them in their order.
    fn follow_worker(&mut self, name: &str) {
        let Some(worker) = self.workers.iter().find(|worker| worker.name() == name) else { return };
        let next = worker.facts.jobs.iter().find(|job| !worker.told.contains(&job.job));
        let Some(job) = next.map(|job| job.job.clone()) else { return };
        if self.speakers.contains_key(&job) {
            return;
        }
        let of = Speaker::Worker(name.to_owned());
        let from = match self.book.last_source(&of, &job) {
            Ok(last) => last.map_or(0, |row| row + 1),
            Err(error) => return self.failed(format!("{error}")),
        };
        self.speakers.insert(job.clone(), of);
        self.next_rows.insert(job.clone(), from);
        self.fleet.follow(&job, from);
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
            worker.told.insert(facts.job.clone());
            self.asks.retain(|question| question.job != facts.job);
            self.out.push(Shown::DeltaEnded { of });
            self.follow_worker(&name);
        }
        if self.leaving.is_some() {
            self.leave_on();
        }
    }

    /// Talks to a worker directly: its rows have what was said.
    pub(super) fn say_to_worker(&mut self, name: &str, text: &str) {
        match self.tell_worker(name, text) {
            Ok(()) => {}
            Err(Unheard::Refused(why)) => {
                self.failed(format!("{name}: {why}"));
                self.out.push(Shown::Suggested(text.to_owned()));
            }
            Err(Unheard::Unsure(why)) => self.failed(format!(
                "{name}: whether this was heard is not known, it is shown if it was: {text} ({why})"
            )),
        }
    }

    /// One that is at work hears it; one that is not goes on in its session.
    fn tell_worker(&mut self, name: &str, text: &str) -> Result<(), Unheard> {
        let refused = |why: &str| Unheard::Refused(why.to_owned());
        let known = self.workers.iter_mut().find(|worker| worker.name() == name);
        let worker = known.ok_or_else(|| refused("there is no such worker any more"))?;
        let current = worker.current().cloned();
        let current = current.ok_or_else(|| refused("it was given nothing to do"))?;
        if current.state == JobState::Running {
            return self.fleet.say(&current.job, text);
        }
        let session = worker.session().cloned();
        let session = session.ok_or_else(|| refused("it has not begun a conversation yet"))?;
        let turn = Turn {
            id: Uuid::new_v4(),
            agent: current.agent.clone(),
            prompt: text.to_owned(),
            session: SessionChoice::Given(session.clone()),
            model: None,
            attended: self.manner.attended,
        };
        let job = self.fleet.ask(&turn).map_err(Unheard::Refused)?;
        let (state, session) = (JobState::Waiting, Some(session));
        let facts = JobFacts { job, state, session, reason: None, cost_usd: None, ..current };
        worker.facts.jobs.push(facts);
        self.follow_worker(name);
        Ok(())
    }

    pub(super) fn stop_worker(&mut self, name: &str) {
        let worker = self.workers.iter().find(|worker| worker.name() == name);
        for job in worker.iter().flat_map(|worker| worker.live_jobs()) {
            if let Err(why) = self.fleet.cancel(&job.job, false) {
                self.out.push(Shown::Failed(format!("{name}: {why}")));
            }
        }
    }

    /// Stops all that are at work, each job once.
    pub(super) fn stop_workers(&mut self) {
        for worker in &mut self.workers {
            let live: Vec<JobId> = worker.live_jobs().map(|job| job.job.clone()).collect();
            for job in live.into_iter().filter(|job| worker.stopped.insert(job.clone())) {
                if let Err(why) = self.fleet.cancel(&job, false) {
                    self.out.push(Shown::Failed(format!("{}: {why}", worker.facts.name)));
                }
            }
        }
    }
}
