//! The jobs that have not ended: their order in the queue, and how many are active.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use jiff::{SignedDuration, Timestamp};

use super::records::QueuedJobRecord;
use crate::calendar::ScheduleKey;
use crate::{JobId, JobRequest, TriggerType};

/// Most milliseconds by which the time of a request is moved ahead to keep the order.
const AHEAD_MS_MAX: i64 = 1_000;

/// A job that has not ended, with its request.
#[derive(Debug, Clone, PartialEq)]
pub struct UnfinishedJob {
    pub entry: QueuedJobRecord,
    pub request: JobRequest,
    pub stage: JobStage,
}

/// Progress of an unfinished job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobStage {
    /// In the queue.
    Waiting,
    /// Its run is being prepared.
    Preparing,
    /// Its run has started.
    Running,
}

/// Sort key of the queue: priority, age, ID.
type QueueRank = (Reverse<i64>, Timestamp, JobId);

/// Unfinished jobs.
#[derive(Debug, Clone, Default)]
pub(super) struct JobQueue {
    jobs: HashMap<JobId, UnfinishedJob>,
    /// The waiting ones of them, next one first.
    waiting: BTreeSet<QueueRank>,
    /// Number of runs per concurrency key, including runs in preparation.
    active: HashMap<String, u32>,
    /// Time of the newest request per concurrency key.
    newest: HashMap<String, Timestamp>,
    /// Number of unfinished jobs per schedule, so that a due time does not search all jobs.
    per_schedule: HashMap<ScheduleKey, ScheduleJobs>,
}

/// Unfinished jobs of a schedule.
#[derive(Debug, Clone, Copy, Default)]
struct ScheduleJobs {
    all: usize,
    /// Those that a due time or a webhook created and that no longer wait.
    started: usize,
}

impl JobQueue {
    /// Inserts or replaces a job.
    pub(super) fn insert(&mut self, job: UnfinishedJob) {
        // A replaced job must not stay in the order or be counted twice.
        self.remove(&job.entry.job.clone());
        self.count(&job, 1);
        let requested_at = job.entry.requested_at;
        let newest = self.newest.entry(concurrency_key(&job.request)).or_insert(requested_at);
        *newest = requested_at.max(*newest);
        match job.stage {
            JobStage::Waiting => drop(self.waiting.insert(rank(&job.entry))),
            // A job in preparation counts for the limits: otherwise two of them pass the same
            // check.
            JobStage::Preparing => self.increment_active(&concurrency_key(&job.request)),
            // A running job is counted by its run.
            JobStage::Running => {}
        }
        self.jobs.insert(job.entry.job.clone(), job);
    }

    /// Returns the time of a new request: now, or a moment after the request before it. Messages that
    /// come in the same millisecond must be worked on in their order, and IDs have none.
    pub(super) fn request_time(&self, request: &JobRequest, now: Timestamp) -> Timestamp {
        let Some(newest) = self.newest.get(&concurrency_key(request)).copied() else { return now };
        let ahead = newest.as_millisecond() - now.as_millisecond();
        // A clock that was set back further does not hold up new requests.
        match (0..AHEAD_MS_MAX).contains(&ahead) {
            true => newest.checked_add(SignedDuration::from_millis(1)).unwrap_or(now),
            false => now,
        }
    }

    pub(super) fn remove(&mut self, job: &JobId) -> Option<UnfinishedJob> {
        let job = self.jobs.remove(job)?;
        self.count(&job, -1);
        match job.stage {
            JobStage::Waiting => drop(self.waiting.remove(&rank(&job.entry))),
            JobStage::Preparing => self.decrement_active(&concurrency_key(&job.request)),
            JobStage::Running => {}
        }
        Some(job)
    }

    fn count(&mut self, job: &UnfinishedJob, by: isize) {
        let Some(key) = schedule_of(&job.request) else { return };
        let counts = self.per_schedule.entry(key.clone()).or_default();
        counts.all = counts.all.saturating_add_signed(by);
        // Jobs that a person requested do not hold back the queued jobs of due times.
        if job.stage != JobStage::Waiting && is_due_job(&job.request) {
            counts.started = counts.started.saturating_add_signed(by);
        }
        // Keys without jobs are removed, because `has_job_of` only looks for the key.
        if counts.all == 0 {
            self.per_schedule.remove(&key);
        }
    }

    pub(super) fn set_stage(&mut self, job: &JobId, stage: JobStage) {
        // Removed and inserted, so that order and counts always follow the stage.
        if let Some(job) = self.remove(job) {
            self.insert(UnfinishedJob { stage, ..job });
        }
    }

    /// Replaces the queue entry of a job that waits.
    pub(super) fn replace_entry(&mut self, entry: QueuedJobRecord) {
        if let Some(job) = self.remove(&entry.job) {
            self.insert(UnfinishedJob { entry, ..job });
        }
    }

    pub(super) fn get(&self, job: &JobId) -> Option<&UnfinishedJob> {
        self.jobs.get(job)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &UnfinishedJob> {
        self.jobs.values()
    }

    pub(super) fn waiting(&self) -> impl Iterator<Item = &UnfinishedJob> {
        self.waiting.iter().filter_map(|(_, _, job)| self.jobs.get(job))
    }

    pub(super) fn waiting_len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn has_job_of(&self, key: &ScheduleKey) -> bool {
        self.per_schedule.contains_key(key)
    }

    /// Returns true if an earlier job of the same schedule is being prepared or running.
    pub(super) fn is_behind_earlier(&self, job: &UnfinishedJob) -> bool {
        // A request by a person does not wait for the schedule's earlier job.
        let key = schedule_of(&job.request).filter(|_| is_due_job(&job.request));
        key.and_then(|key| self.per_schedule.get(&key)).is_some_and(|counts| counts.started > 0)
    }

    pub(super) fn active(&self, key: &str) -> u32 {
        self.active.get(key).copied().unwrap_or(0)
    }

    pub(super) fn active_where(&self, is_counted: impl Fn(&str) -> bool) -> u32 {
        self.active.iter().filter(|(key, _)| is_counted(key)).map(|(_, count)| count).sum()
    }

    pub(super) fn increment_active(&mut self, key: &str) {
        *self.active.entry(key.to_owned()).or_default() += 1;
    }

    pub(super) fn decrement_active(&mut self, key: &str) {
        if let Some(count) = self.active.get_mut(key) {
            // Saturating, because a count that is off must not make all later starts impossible.
            *count = count.saturating_sub(1);
            if *count == 0 {
                // The map has only active keys, so that `active_where` does not visit every agent
                // ever seen.
                self.active.remove(key);
            }
        }
    }

    /// Copies unredacted requests of the same jobs.
    pub(super) fn restore_requests(&mut self, before: &JobQueue) {
        for (id, job) in &mut self.jobs {
            // A job whose stored request differs was changed since, and the old secrets do not
            // belong to it.
            let is_same =
                |known: &&UnfinishedJob| known.entry.request_json == job.entry.request_json;
            if let Some(known) = before.jobs.get(id).filter(is_same) {
                job.request = known.request.clone();
            }
        }
    }
}

/// Returns the key of the concurrency limit that a job counts for. A workflow command that only
/// runs in an agent's name does not count for the agent's own limit, only for the fleet's.
pub fn concurrency_key(request: &JobRequest) -> String {
    match request.runs_no_agent() {
        // The suffix keeps the path of the subfleet intact, so fleet limits still count the
        // command.
        true => format!("{} (in its name)", request.agent),
        false => request.agent.to_string(),
    }
}

fn rank(entry: &QueuedJobRecord) -> QueueRank {
    // The ID makes the order total: two jobs may have been requested at the same time.
    (Reverse(entry.priority), entry.requested_at, entry.job.clone())
}

fn schedule_of(request: &JobRequest) -> Option<ScheduleKey> {
    let schedule = request.schedule.clone()?;
    Some(ScheduleKey { agent: request.agent.to_string(), schedule })
}

fn is_due_job(request: &JobRequest) -> bool {
    matches!(request.trigger, TriggerType::Schedule | TriggerType::Webhook)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: &str, agent: &str, requested_at: Timestamp) -> UnfinishedJob {
        let entry = QueuedJobRecord {
            job: id.parse().unwrap(),
            priority: 0,
            requested_at,
            not_before: None,
            expires_at: None,
            request_json: String::new(),
            reason: String::new(),
        };
        let request = JobRequest::new(agent.parse().unwrap());
        UnfinishedJob { entry, request, stage: JobStage::Waiting }
    }

    #[test]
    fn requests_of_one_millisecond_keep_their_order() {
        let now = Timestamp::from_millisecond(1_000_000).unwrap();
        let later = |ms: i64| now + SignedDuration::from_millis(ms);
        let mut queue = JobQueue::default();
        let ids = ["job-2026-11-18-zzzzzz", "job-2026-11-18-mmmmmm", "job-2026-11-18-aaaaaa"];
        for id in ids {
            let requested_at = queue.request_time(&job(id, "coder", now).request, now);
            queue.insert(job(id, "coder", requested_at));
        }
        let order: Vec<&str> = queue.waiting().map(|job| job.entry.job.as_str()).collect();
        assert_eq!(order, ids);
        // Another agent, a later request and a clock that was set back are not moved.
        let time = |agent: &str, at| queue.request_time(&job(ids[0], agent, now).request, at);
        assert_eq!(time("other", now), now);
        assert_eq!(time("coder", later(10)), later(10));
        assert_eq!(time("coder", later(-AHEAD_MS_MAX)), later(-AHEAD_MS_MAX));
    }
}
