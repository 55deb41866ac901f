//! A door that is played.

use std::sync::{Arc, Mutex, MutexGuard};

use heeler_model::{JobId, Wanted};

use super::{FleetDoor, Heard, StartedJob, TaskNow, Way, WorkerNow, WorkerState};

/// A fleet as a test wants it.
#[derive(Debug, Default)]
pub(crate) struct Scene {
    pub(crate) workers: Vec<WorkerNow>,
    /// Those of them that are done after they were looked at so often.
    pub(crate) done_after: usize,
    pub(crate) hears: Option<Heard>,
    pub(crate) refusal: Option<String>,
    pub(crate) tasks: Option<Vec<TaskNow>>,
    /// What was asked, in order.
    pub(crate) asked: Vec<String>,
    pub(crate) looks: usize,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Played(Arc<Mutex<Scene>>);

impl Played {
    pub(crate) fn new(scene: Scene) -> (Played, Way) {
        let played = Played(Arc::new(Mutex::new(scene)));
        (played.clone(), Way::new(Some(Arc::new(played))))
    }

    pub(crate) fn scene(&self) -> MutexGuard<'_, Scene> {
        self.0.lock().unwrap()
    }

    fn note(&self, asked: String) -> Result<MutexGuard<'_, Scene>, String> {
        let mut scene = self.scene();
        scene.asked.push(asked);
        match scene.refusal.clone() {
            Some(why) => Err(why),
            None => Ok(scene),
        }
    }
}

pub(crate) fn job() -> JobId {
    "job-2026-01-02-abc123".parse().unwrap()
}

pub(crate) fn worker(name: &str, state: WorkerState) -> WorkerNow {
    let open = if state.is_over() { Vec::new() } else { vec![job()] };
    WorkerNow {
        name: name.to_owned(),
        agent: "coder".to_owned(),
        task: "write it\nwell".to_owned(),
        job: job(),
        state,
        open,
        session: Some("s1".parse().unwrap()),
        cost_usd: Some(0.25),
    }
}

impl FleetDoor for Played {
    fn start(&self, key: &str, wanted: &Wanted) -> Result<StartedJob, String> {
        let asked = serde_json::to_string(&wanted.session).unwrap();
        let prompt = wanted.prompt.as_deref().unwrap_or_default();
        let (agent, worker, model) = (&wanted.agent, &wanted.worker, &wanted.model);
        self.note(format!("start {key} {agent} {worker:?} {model:?} {asked}: {prompt}"))
            .map(drop)?;
        let worker = worker.clone().unwrap_or_else(|| "coder-1".to_owned());
        Ok(StartedJob { job: job(), worker, waits: None })
    }

    fn workers(&self) -> Result<Vec<WorkerNow>, String> {
        let mut scene = self.scene();
        scene.looks += 1;
        if scene.done_after > 0 && scene.looks > scene.done_after {
            scene.workers.iter_mut().for_each(|worker| worker.state = WorkerState::Done);
        }
        Ok(scene.workers.clone())
    }

    fn last_words(&self, _job: &JobId) -> Result<Option<String>, String> {
        Ok(Some("It is written.\n".to_owned()))
    }

    fn say(&self, job: &JobId, text: &str) -> Result<Heard, String> {
        let scene = self.note(format!("say {job}: {text}"))?;
        Ok(scene.hears.clone().unwrap_or(Heard::Yes))
    }

    fn stop(&self, job: &JobId) -> Result<(), String> {
        self.note(format!("stop {job}")).map(drop)
    }

    fn tasks(&self) -> Result<Option<Vec<TaskNow>>, String> {
        Ok(self.scene().tasks.clone())
    }
}
