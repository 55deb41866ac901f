//! Workers: agents started by the agent of a conversation.
//!
//! A worker is a name under which jobs run in one session. It belongs to the conversation with the
//! jobs that started it. Start at [`list_workers`].

use heeler_model::{AgentSessionId, Job, JobId, JobStatus, SessionMode, TriggerType};
use heeler_store::StoreReader;
use heeler_store::session_lineage::lineage_sessions;

use crate::QueryError;

/// A worker of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerDetails {
    /// Name, unique within the conversation.
    pub name: String,
    /// Jobs, oldest first; at least one. Includes prompts that people sent to the worker.
    pub jobs: Vec<Job>,
}

impl WorkerDetails {
    /// Returns the current job, or the last one.
    pub fn last_job(&self) -> &Job {
        self.jobs.last().expect("a worker has been given a job")
    }

    /// Returns the running or queued job, if any.
    pub fn current_job(&self) -> Option<&Job> {
        let running = |job: &&Job| job.head.status == JobStatus::Running;
        let open = |job: &&Job| !job.head.status.is_final();
        // Several jobs may be open; the running one is the one that people see.
        self.jobs.iter().find(running).or_else(|| self.jobs.iter().find(open))
    }

    /// Returns the prompt of the first job.
    pub fn first_prompt(&self) -> &str {
        self.jobs.first().and_then(|job| job.prompt.as_deref()).unwrap_or_default()
    }

    pub fn cost_usd(&self) -> Option<f64> {
        self.jobs.iter().filter_map(|job| job.head.cost_usd).reduce(|one, other| one + other)
    }
}

/// Lists the workers started by these jobs, in order of their start.
pub fn list_workers(
    reader: &StoreReader,
    jobs: &[JobId],
) -> Result<Vec<WorkerDetails>, QueryError> {
    let mut spawned: Vec<(Job, Vec<AgentSessionId>)> = Vec::new();
    for parent in jobs {
        let ids = reader.jobs_spawned_by(parent)?;
        // Read only if needed, because most jobs start no workers.
        let sessions = if ids.is_empty() { Vec::new() } else { lineage_sessions(reader, parent)? };
        for id in ids {
            spawned.extend(reader.job(&id)?.map(|job| (job, sessions.clone())));
        }
    }
    // By start, so that the first job of a name creates the worker.
    spawned.sort_by(|(a, _), (b, _)| order_key(a).cmp(&order_key(b)));
    let mut found: Vec<WorkerWithParents> = Vec::new();
    for (job, sessions) in spawned {
        let Some(name) = job.worker() else { continue };
        match found
            .iter_mut()
            // The same name in another conversation is another worker.
            .find(|found| found.is_named(name) && found.is_known_to(&job, &sessions))
        {
            Some(found) => {
                found.parent_sessions.extend(sessions.into_iter().next());
                found.worker.jobs.push(job);
            }
            None => {
                let name = unused_name(name, &found);
                let from = sessions.into_iter().take(1).collect();
                found.push(WorkerWithParents {
                    worker: WorkerDetails { name, jobs: vec![job] },
                    parent_sessions: from,
                });
            }
        }
    }
    let mut workers: Vec<WorkerDetails> = found.into_iter().map(|found| found.worker).collect();
    // After all workers are known, because these jobs have no name of a worker.
    for worker in &mut workers {
        add_user_jobs(reader, worker)?;
    }
    Ok(workers)
}

/// A worker and the sessions that started its jobs.
struct WorkerWithParents {
    worker: WorkerDetails,
    parent_sessions: Vec<AgentSessionId>,
}

impl WorkerWithParents {
    /// Returns true if the worker has this name, in this list or where it was started.
    fn is_named(&self, name: &str) -> bool {
        self.worker.name == name || self.worker.jobs.iter().any(|job| job.worker() == Some(name))
    }

    /// Returns true if the sessions that started a job also started this worker. A conversation
    /// that starts over, because its first turn was undone, does not know its earlier workers and
    /// assigns the same names again.
    fn is_known_to(&self, job: &Job, sessions: &[AgentSessionId]) -> bool {
        self.worker.jobs.iter().any(|known| known.trigger_id == job.trigger_id)
            || self.parent_sessions.iter().any(|session| sessions.contains(session))
    }
}

/// Returns the name itself, or with a number appended if another worker has it.
fn unused_name(name: &str, found: &[WorkerWithParents]) -> String {
    let is_free = |name: &String| found.iter().all(|found| found.worker.name != *name);
    let mut names =
        std::iter::once(name.to_owned()).chain((2..).map(|n: u64| format!("{name}.{n}")));
    names.find(is_free).expect("there are more numbers than workers")
}

/// Adds the jobs that people requested from the worker directly. In a session that the agent itself
/// keeps, such jobs belong to the agent and are not added.
fn add_user_jobs(reader: &StoreReader, worker: &mut WorkerDetails) -> Result<(), QueryError> {
    let session = worker.jobs.iter().find_map(|job| job.head.session_id.clone());
    let Some(session) = session else { return Ok(()) };
    let known = reader.session_by_agent_id(&session)?;
    if known.is_none_or(|known| known.mode != SessionMode::FreshPerJob) {
        return Ok(());
    }
    let first = worker.jobs.first().map(|job| job.head.started_at);
    let is_peoples = |job: &Job| {
        // Jobs before the worker existed belong to an earlier use of the session.
        matches!(job.head.trigger_type, TriggerType::Manual | TriggerType::Api)
            && Some(job.head.started_at) >= first
    };
    for id in reader.job_ids_of_session(&session)? {
        if worker.jobs.iter().all(|job| job.head.id != id) {
            worker.jobs.extend(reader.job(&id)?.filter(is_peoples));
        }
    }
    worker.jobs.sort_by(|a, b| order_key(a).cmp(&order_key(b)));
    Ok(())
}

fn order_key(job: &Job) -> (jiff::Timestamp, &JobId) {
    (job.head.started_at, &job.head.id)
}

#[cfg(test)]
mod tests;
