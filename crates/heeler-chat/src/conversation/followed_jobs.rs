//! Jobs whose rows the conversation records, and their costs. Start at [`FollowedJobs`].

use std::collections::{HashMap, HashSet};

use heeler_model::JobId;

use crate::ChatSpeaker;

/// Job whose rows are recorded.
struct FollowedJob {
    /// Owner of the transcript.
    speaker: ChatSpeaker,
    next_row: u64,
}

/// Jobs of the agent and of its workers.
#[derive(Default)]
pub(super) struct FollowedJobs {
    jobs: HashMap<JobId, FollowedJob>,
    costs: HashMap<JobId, f64>,
    /// Jobs of the session that this one was forked from; their events are ignored.
    detached: HashSet<JobId>,
}

impl FollowedJobs {
    /// Adds a job; its rows before `next_row` are recorded already.
    pub(super) fn insert(&mut self, job: JobId, speaker: ChatSpeaker, next_row: u64) {
        self.jobs.insert(job, FollowedJob { speaker, next_row });
    }

    pub(super) fn contains(&self, job: &JobId) -> bool {
        self.jobs.contains_key(job)
    }

    pub(super) fn speaker(&self, job: &JobId) -> Option<ChatSpeaker> {
        self.jobs.get(job).map(|followed| followed.speaker.clone())
    }

    pub(super) fn next_row(&self, job: &JobId) -> u64 {
        self.jobs.get(job).map_or(0, |followed| followed.next_row)
    }

    /// Notes that a row was received; returns false if it was received before.
    pub(super) fn receive_row(&mut self, job: &JobId, at: u64) -> bool {
        let Some(followed) = self.jobs.get_mut(job) else { return false };
        let is_new = at >= followed.next_row;
        if is_new {
            followed.next_row = at + 1;
        }
        is_new
    }

    pub(super) fn set_cost(&mut self, job: JobId, cost_usd: f64) {
        self.costs.insert(job, cost_usd);
    }

    pub(super) fn has_costs(&self) -> bool {
        !self.costs.is_empty()
    }

    pub(super) fn total_cost(&self) -> f64 {
        // The sum of no floats is -0.
        self.costs.values().sum::<f64>() + 0.0
    }

    pub(super) fn cost_of(&self, speaker: &ChatSpeaker) -> f64 {
        let is_its =
            |job: &JobId| self.jobs.get(job).is_some_and(|followed| followed.speaker == *speaker);
        self.costs.iter().filter(|(job, _)| is_its(job)).map(|(_, cost)| cost).sum()
    }

    pub(super) fn is_detached(&self, job: &JobId) -> bool {
        self.detached.contains(job)
    }

    /// Ignores all jobs from now on.
    pub(super) fn detach_all(&mut self) {
        // The IDs are kept, because events of these jobs may still be on their way.
        self.detached.extend(self.jobs.drain().map(|(job, _)| job));
        self.costs.clear();
    }
}
