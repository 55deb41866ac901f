//! Workers of a conversation and their jobs. Start at [`WorkerList`].

use std::collections::HashSet;

use heeler_model::{AgentSessionId, JobId, format_usd};

use crate::{ChatJobInfo, ChatJobState, ChatQuestion, ChatWorkerInfo, ChatWorkerStatus};

/// Worker of the conversation.
pub(super) struct ConversationWorker {
    pub(super) facts: ChatWorkerInfo,
    pub(super) unseen: usize,
    /// Jobs whose rows are all in the transcript.
    pub(super) recorded_jobs: HashSet<JobId>,
    /// Jobs that were cancelled because the person leaves.
    pub(super) stopped_jobs: HashSet<JobId>,
    /// Open questions of its jobs.
    pub(super) questions: Vec<ChatQuestion>,
}

impl ConversationWorker {
    pub(super) fn new(facts: ChatWorkerInfo, recorded_jobs: HashSet<JobId>) -> ConversationWorker {
        ConversationWorker {
            facts,
            unseen: 0,
            recorded_jobs,
            stopped_jobs: HashSet::new(),
            questions: Vec::new(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.facts.name
    }

    /// Returns the jobs that have not ended; a worker may have several.
    pub(super) fn live_jobs(&self) -> impl Iterator<Item = &ChatJobInfo> {
        let is_live =
            |job: &&ChatJobInfo| matches!(job.state, ChatJobState::Waiting | ChatJobState::Running);
        self.facts.jobs.iter().filter(is_live)
    }

    /// Returns the running job, else the next waiting one, else the last one.
    pub(super) fn current_job(&self) -> Option<&ChatJobInfo> {
        let running = self.facts.jobs.iter().find(|job| job.state == ChatJobState::Running);
        running.or_else(|| self.live_jobs().next()).or(self.facts.jobs.last())
    }

    pub(super) fn state(&self) -> ChatJobState {
        // A worker of another program has no job: only its transcript is left.
        self.current_job().map_or(ChatJobState::Done, |job| job.state)
    }

    fn has_live_jobs(&self) -> bool {
        self.live_jobs().next().is_some()
    }

    /// Returns true if a job has ended and all its rows are in the transcript.
    pub(super) fn has_recorded(&self, job: &JobId) -> bool {
        self.recorded_jobs.contains(job)
    }

    /// Returns its part of the status line.
    pub(super) fn status(&self) -> ChatWorkerStatus {
        let name = self.name().to_owned();
        ChatWorkerStatus { name, state: self.state(), unseen: self.unseen }
    }

    /// Returns the native session; a waiting job has none yet.
    pub(super) fn session(&self) -> Option<&AgentSessionId> {
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
        let cost = format_usd(self.facts.jobs.iter().filter_map(|job| job.cost_usd).sum::<f64>());
        let task = self.facts.task.lines().next().unwrap_or_default();
        let line = format!("{:<width$}  {state:<7}  {cost}  {task}", self.facts.name);
        line.trim_end().to_owned()
    }
}

/// Workers of the conversation, in the order in which they were started.
#[derive(Default)]
pub(super) struct WorkerList(Vec<ConversationWorker>);

impl WorkerList {
    pub(super) fn iter(&self) -> impl Iterator<Item = &ConversationWorker> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut ConversationWorker> {
        self.0.iter_mut()
    }

    pub(super) fn push(&mut self, worker: ConversationWorker) {
        self.0.push(worker);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, name: &str) -> Option<&ConversationWorker> {
        self.iter().find(|worker| worker.name() == name)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut ConversationWorker> {
        self.iter_mut().find(|worker| worker.name() == name)
    }

    fn live(&self) -> impl Iterator<Item = &ConversationWorker> {
        self.iter().filter(|worker| worker.has_live_jobs())
    }

    /// Returns the number of workers with a job that has not ended.
    pub(super) fn live_count(&self) -> usize {
        self.live().count()
    }

    pub(super) fn live_names(&self) -> Vec<String> {
        self.live().map(|worker| worker.name().to_owned()).collect()
    }
}
