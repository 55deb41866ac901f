//! Workers: agents that the agent of a conversation has set to work.
//!
//! A worker is a name under which jobs are done in one session. It belongs to the conversation whose
//! jobs started it.

use heeler_model::{Job, JobId, JobStatus, SessionMode, TriggerType};
use heeler_store::Reader;

use crate::QueryError;

/// A worker of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    /// Its name, by which nobody else of the conversation goes.
    pub name: String,
    /// Its jobs, oldest first; at least one. People may have talked to it too.
    pub jobs: Vec<Job>,
}

impl Worker {
    /// Returns what it is at, or was at last.
    pub fn last(&self) -> &Job {
        self.jobs.last().expect("a worker has been given a job")
    }

    /// Returns the job that is at work or waits to be, if one is.
    pub fn current(&self) -> Option<&Job> {
        let running = |job: &&Job| job.head.status == JobStatus::Running;
        let open = |job: &&Job| !job.head.status.is_final();
        self.jobs.iter().find(running).or_else(|| self.jobs.iter().find(open))
    }

    /// Returns what it was asked first.
    pub fn task(&self) -> &str {
        self.jobs.first().and_then(|job| job.prompt.as_deref()).unwrap_or_default()
    }

    /// Returns what it has cost.
    pub fn cost_usd(&self) -> Option<f64> {
        self.jobs.iter().filter_map(|job| job.head.cost_usd).reduce(|one, other| one + other)
    }
}

/// Lists the workers that these jobs have started, in the order in which they were.
pub fn workers(reader: &Reader, jobs: &[JobId]) -> Result<Vec<Worker>, QueryError> {
    let mut spawned: Vec<Job> = Vec::new();
    for job in jobs {
        for id in reader.jobs_spawned_by(job)? {
            spawned.extend(reader.job(&id)?);
        }
    }
    spawned.sort_by(|a, b| in_order(a).cmp(&in_order(b)));
    let mut workers: Vec<Worker> = Vec::new();
    for job in spawned {
        let Some(name) = job.worker().map(str::to_owned) else { continue };
        match workers.iter_mut().find(|worker| worker.name == name) {
            Some(worker) => worker.jobs.push(job),
            None => workers.push(Worker { name, jobs: vec![job] }),
        }
    }
    for worker in &mut workers {
        add_peoples(reader, worker)?;
    }
    Ok(workers)
}

/// Adds what people asked a worker themselves. In a session that its agent keeps, they asked the agent.
fn add_peoples(reader: &Reader, worker: &mut Worker) -> Result<(), QueryError> {
    let session = worker.jobs.iter().find_map(|job| job.head.session_id.clone());
    let Some(session) = session else { return Ok(()) };
    let known = reader.session_by_agent_id(&session)?;
    if known.is_none_or(|known| known.mode != SessionMode::FreshPerJob) {
        return Ok(());
    }
    let first = worker.jobs.first().map(|job| job.head.started_at);
    let is_peoples = |job: &Job| {
        job.head.trigger_type == TriggerType::Manual && Some(job.head.started_at) >= first
    };
    for id in reader.job_ids_of_session(&session)? {
        if worker.jobs.iter().all(|job| job.head.id != id) {
            worker.jobs.extend(reader.job(&id)?.filter(is_peoples));
        }
    }
    worker.jobs.sort_by(|a, b| in_order(a).cmp(&in_order(b)));
    Ok(())
}

fn in_order(job: &Job) -> (jiff::Timestamp, &JobId) {
    (job.head.started_at, &job.head.id)
}

#[cfg(test)]
mod tests;
