//! What the tools of the fleet need of it.
//!
//! A run must not open the database and knows no daemon; whoever starts it hands in a [`FleetClient`] that
//! does. What is asked there may take a while, so it is asked on threads of its own ([`AsyncFleetClient`]).

#[cfg(test)]
pub(super) mod fake;

use std::fmt;
use std::sync::Arc;

use heeler_model::{AgentSessionId, JobId, JobRequest};
use tokio::sync::oneshot;

/// A run's way to its fleet. Errors are words for the agent.
pub trait FleetClient: fmt::Debug + Send + Sync {
    /// Starts a job as one of this run's job. The same under the same `key` starts nothing more and
    /// gets the first answer.
    fn start_job(&self, key: &str, wanted: &JobRequest) -> Result<StartedJob, String>;
    /// Lists the workers of the conversation that this run is part of, in the order in which they
    /// were started.
    fn list_workers(&self) -> Result<Vec<WorkerSnapshot>, String>;
    /// Returns what the agent of a job said last; none if it has said nothing.
    fn last_message(&self, job: &JobId) -> Result<Option<String>, String>;
    /// Says something more to the agent that is at a job.
    fn send_message(&self, job: &JobId, text: &str) -> Result<WorkerMessageDelivery, String>;
    /// Has a job ended; it need not have ended when this returns.
    fn stop_job(&self, job: &JobId) -> Result<(), String>;
    /// Lists the tasks of the conversation; none if this run is part of no conversation that has any.
    fn list_tasks(&self) -> Result<Option<Vec<TaskSnapshot>>, String>;
}

/// A job that was started.
#[derive(Debug, Clone, PartialEq)]
pub struct StartedJob {
    /// The job.
    pub job: JobId,
    /// The worker that does it.
    pub worker: String,
    /// Why it has to wait, if it has.
    pub queue_reason: Option<String>,
}

/// Whether an agent heard what was said to it.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkerMessageDelivery {
    /// It did.
    Delivered,
    /// It is not at work, or takes nothing at present; the reason is in words.
    Unavailable(String),
}

/// A worker as it is now.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerSnapshot {
    /// Its name in the conversation.
    pub name: String,
    /// The agent that it is.
    pub agent: String,
    /// What it was asked first.
    pub task: String,
    /// The job that it is at, or was at last.
    pub job: JobId,
    /// What has become of that.
    pub state: WorkerState,
    /// All of its jobs that are not over, but for those that people asked for.
    pub open_jobs: Vec<JobId>,
    /// The session that it can go on in.
    pub session: Option<AgentSessionId>,
    /// What it has cost so far, in US dollars.
    pub cost_usd: Option<f64>,
}

impl WorkerSnapshot {
    /// Says whether what it is at was asked by a person, of which the agent may change nothing.
    pub(super) fn is_started_by_person(&self) -> bool {
        !self.state.is_over() && !self.open_jobs.contains(&self.job)
    }
}

/// What a worker does.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkerState {
    /// Its job has to wait, for this reason.
    Waiting(String),
    /// It is at work.
    Working,
    /// It has done its job.
    Done,
    /// Its job failed or was stopped, for this reason.
    Failed(String),
}

impl WorkerState {
    /// Says whether nothing more comes of it by itself.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, WorkerState::Done | WorkerState::Failed(_))
    }
}

/// A task of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskSnapshot {
    /// What is to be done.
    pub text: String,
    /// Whether it is done.
    pub done: bool,
}

/// The door, for tools that must not block.
#[derive(Debug, Clone)]
pub(super) struct AsyncFleetClient(Option<Arc<dyn FleetClient>>);

impl AsyncFleetClient {
    pub(super) fn new(door: Option<Arc<dyn FleetClient>>) -> AsyncFleetClient {
        AsyncFleetClient(door)
    }

    /// Asks at the door. Whoever gives up waiting leaves a thread behind that ends with its answer.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn FleetClient) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let Some(door) = self.0.clone() else {
            return Err("this run was not started by a fleet, so there is none to ask".to_owned());
        };
        let (tell, told) = oneshot::channel();
        let work = move || drop(tell.send(ask(door.as_ref())));
        std::thread::Builder::new()
            .name("heeler-door".to_owned())
            .spawn(work)
            .map_err(|error| format!("the fleet cannot be asked now: {error}"))?;
        told.await.map_err(|_| "heeler itself failed, which is no fault of yours".to_owned())?
    }
}
