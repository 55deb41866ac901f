//! A fake [`FleetClient`] for tests.

use std::sync::{Arc, Mutex, MutexGuard};

use heeler_model::{JobId, JobRequest};

use super::{
    AsyncFleetClient, FleetClient, StartedJob, TaskSnapshot, WorkerMessageDelivery, WorkerSnapshot,
    WorkerState,
};

/// Scripted state of a fleet.
#[derive(Debug, Default)]
pub(crate) struct FakeFleetState {
    pub(crate) workers: Vec<WorkerSnapshot>,
    /// Number of lookups after which the workers are done.
    pub(crate) done_after: usize,
    pub(crate) delivery: Option<WorkerMessageDelivery>,
    pub(crate) refusal: Option<String>,
    pub(crate) tasks: Option<Vec<TaskSnapshot>>,
    /// Calls, in order.
    pub(crate) calls: Vec<String>,
    pub(crate) list_calls: usize,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct FakeFleetClient(Arc<Mutex<FakeFleetState>>);

impl FakeFleetClient {
    pub(crate) fn new(scene: FakeFleetState) -> (FakeFleetClient, AsyncFleetClient) {
        let played = FakeFleetClient(Arc::new(Mutex::new(scene)));
        (played.clone(), AsyncFleetClient::new(Some(Arc::new(played))))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, FakeFleetState> {
        self.0.lock().unwrap()
    }

    fn record_call(&self, asked: String) -> Result<MutexGuard<'_, FakeFleetState>, String> {
        let mut scene = self.state();
        scene.calls.push(asked);
        match scene.refusal.clone() {
            Some(why) => Err(why),
            None => Ok(scene),
        }
    }
}

pub(crate) fn job() -> JobId {
    "job-2026-01-02-abc123".parse().unwrap()
}

pub(crate) fn worker(name: &str, state: WorkerState) -> WorkerSnapshot {
    let open = if state.is_over() { Vec::new() } else { vec![job()] };
    WorkerSnapshot {
        name: name.to_owned(),
        agent: "coder".to_owned(),
        task: "write it\nwell".to_owned(),
        job: job(),
        state,
        open_jobs: open,
        session: Some("s1".parse().unwrap()),
        cost_usd: Some(0.25),
    }
}

impl FleetClient for FakeFleetClient {
    fn start_job(&self, key: &str, wanted: &JobRequest) -> Result<StartedJob, String> {
        let asked = serde_json::to_string(&wanted.session).unwrap();
        let prompt = wanted.prompt.as_deref().unwrap_or_default();
        let (agent, worker, model) = (&wanted.agent, &wanted.worker, &wanted.model);
        self.record_call(format!("start {key} {agent} {worker:?} {model:?} {asked}: {prompt}"))
            .map(drop)?;
        let worker = worker.clone().unwrap_or_else(|| "coder-1".to_owned());
        Ok(StartedJob { job: job(), worker, queue_reason: None })
    }

    fn list_workers(&self) -> Result<Vec<WorkerSnapshot>, String> {
        let mut scene = self.state();
        scene.list_calls += 1;
        if scene.done_after > 0 && scene.list_calls > scene.done_after {
            scene.workers.iter_mut().for_each(|worker| worker.state = WorkerState::Done);
        }
        Ok(scene.workers.clone())
    }

    fn last_message(&self, _job: &JobId) -> Result<Option<String>, String> {
        Ok(Some("It is written.\n".to_owned()))
    }

    fn send_message(&self, job: &JobId, text: &str) -> Result<WorkerMessageDelivery, String> {
        let scene = self.record_call(format!("say {job}: {text}"))?;
        Ok(scene.delivery.clone().unwrap_or(WorkerMessageDelivery::Delivered))
    }

    fn stop_job(&self, job: &JobId) -> Result<(), String> {
        self.record_call(format!("stop {job}")).map(drop)
    }

    fn list_tasks(&self) -> Result<Option<Vec<TaskSnapshot>>, String> {
        Ok(self.state().tasks.clone())
    }
}
