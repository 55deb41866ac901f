//! The interface through which a run's tools reach the fleet.
//!
//! A run must not open the database and does not know the daemon; the program that starts it passes
//! in a [`FleetClient`] that does. Calls may take a while, so they are made on separate threads
//! ([`AsyncFleetClient`]).

#[cfg(test)]
pub(super) mod fake;

use std::fmt;
use std::sync::Arc;

use heeler_model::{AgentSessionId, JobId, JobRequest};
use tokio::sync::{Semaphore, oneshot};

/// Calls of the fleet at a time, and so threads. Further calls wait.
const FLEET_CALLS_MAX: usize = 16;

/// Connection of a run to its fleet. Errors are messages for the agent.
pub trait FleetClient: fmt::Debug + Send + Sync {
    /// Starts a job as a child of this run's job. A repeated call with the same `key` starts
    /// nothing and returns the first reply.
    fn start_job(&self, key: &str, wanted: &JobRequest) -> Result<StartedJob, String>;
    /// Lists the workers of the conversation that this run is part of, in the order in which they
    /// were started.
    fn list_workers(&self) -> Result<Vec<WorkerSnapshot>, String>;
    /// Returns the last message of a job's agent; `None` if there is none.
    fn last_message(&self, job: &JobId) -> Result<Option<String>, String>;
    /// Sends a message to the agent that works on a job.
    fn send_message(&self, job: &JobId, text: &str) -> Result<WorkerMessageDelivery, String>;
    /// Requests the end of a job; it need not have ended when this returns.
    fn stop_job(&self, job: &JobId) -> Result<(), String>;
    /// Lists the tasks of the conversation; `None` if this run is not part of a conversation with
    /// tasks.
    fn list_tasks(&self) -> Result<Option<Vec<TaskSnapshot>>, String>;
}

#[derive(Debug, Clone, PartialEq)]
pub struct StartedJob {
    pub job: JobId,
    /// Name of the worker that does the job.
    pub worker: String,
    /// Reason that the job is queued, if it is.
    pub queue_reason: Option<String>,
}

/// Outcome of a message to an agent.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkerMessageDelivery {
    Delivered,
    /// The agent is not working, or accepts no message at present; with the reason as text.
    Unavailable(String),
}

/// Current state of a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerSnapshot {
    /// Name in the conversation.
    pub name: String,
    /// Name of its agent.
    pub agent: String,
    /// Its first prompt.
    pub task: String,
    /// Current or last job.
    pub job: JobId,
    /// State of that job.
    pub state: WorkerState,
    /// All of its unfinished jobs, except those that people requested.
    pub open_jobs: Vec<JobId>,
    /// Session in which it can continue.
    pub session: Option<AgentSessionId>,
    /// Cost until now, in US dollars.
    pub cost_usd: Option<f64>,
}

impl WorkerSnapshot {
    /// Returns true if a person requested the current job; the agent must not change such a job.
    pub(super) fn is_started_by_person(&self) -> bool {
        !self.state.is_over() && !self.open_jobs.contains(&self.job)
    }
}

/// State of a worker.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkerState {
    /// The job is queued, for this reason.
    Waiting(String),
    Working,
    Done,
    /// The job failed or was stopped, for this reason.
    Failed(String),
}

impl WorkerState {
    /// Returns true if the job has ended.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, WorkerState::Done | WorkerState::Failed(_))
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct TaskSnapshot {
    pub text: String,
    pub done: bool,
}

/// Asynchronous wrapper around [`FleetClient`], for tools that must not block.
#[derive(Debug, Clone)]
pub(super) struct AsyncFleetClient {
    client: Option<Arc<dyn FleetClient>>,
    free_calls: Arc<Semaphore>,
}

impl AsyncFleetClient {
    pub(super) fn new(client: Option<Arc<dyn FleetClient>>) -> AsyncFleetClient {
        AsyncFleetClient { client, free_calls: Arc::new(Semaphore::new(FLEET_CALLS_MAX)) }
    }

    /// Calls the fleet on a thread, after earlier calls if there are too many. If the caller stops
    /// waiting, the thread ends with its reply. It is not a thread of the runtime, because the end
    /// of the run must not wait for it.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn FleetClient) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let Some(client) = self.client.clone() else {
            return Err(
                "this run was not started by a fleet, so fleet tools are unavailable".to_owned()
            );
        };
        let failed = || "heeler itself failed, which is no fault of yours".to_owned();
        let turn = Arc::clone(&self.free_calls).acquire_owned().await.map_err(|_| failed())?;
        let (sender, receiver) = oneshot::channel();
        let work = move || {
            let reply = ask(client.as_ref());
            // The permit is free before the reply arrives, so the caller's next call need not wait
            // for it.
            drop(turn);
            // The caller may have stopped waiting.
            drop(sender.send(reply));
        };
        std::thread::Builder::new()
            .name("heeler-door".to_owned())
            .spawn(work)
            .map_err(|error| format!("the fleet cannot be asked now: {error}"))?;
        receiver.await.map_err(|_| failed())?
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[tokio::test]
    async fn a_call_beyond_the_limit_waits_for_another_to_end() {
        let (_, client) = fake::FakeFleetClient::new(fake::FakeFleetState::default());
        let (go, wait) = sync_channel::<()>(0);
        let wait = Arc::new(Mutex::new(wait));
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..FLEET_CALLS_MAX {
            let (client, wait) = (client.clone(), Arc::clone(&wait));
            calls.spawn(async move {
                client.call(move |_| wait.lock().unwrap().recv().map_err(|it| it.to_string())).await
            });
        }
        while client.free_calls.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let mut last = Box::pin(client.call(|_| Ok(())));
        let early = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(early, &mut last).await.is_err(), "it waits");
        go.send(()).unwrap();
        assert_eq!(last.await, Ok(()));
        drop(go);
        assert_eq!(calls.join_all().await.iter().filter(|it| it.is_ok()).count(), 1);
    }
}
