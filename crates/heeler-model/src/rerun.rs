//! What becomes of a job whose run has ended: it is over, or goes on with another run.
//!
//! A pure decision over the run's result and the job's history. A run that failed for good is never
//! repeated; one that was cut off only as the agent's rules say. Every way to go on is counted and
//! comes to an end. Start at [`decide_rerun`].

#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;

use crate::run::{ErrorClass, RunEnd, RunError, RunResult};

/// How often a job is resumed after it was cut off.
pub const RESTARTS_MAX: i64 = 3;
/// How often in a row a run is started that never comes to its start.
pub const STARTS_MAX: u32 = 8;
/// How long a job waits before a run is started again that never came to its start, which the lack
/// of something on the machine may cause; each further time twice as long.
pub const START_RETRY_DELAY: Duration = Duration::from_secs(1);
/// The longest such wait.
pub const START_RETRY_DELAY_MAX: Duration = Duration::from_secs(30);
/// How long a job waits for a session that another run is at, unless that run is ours and ends; each
/// further time twice as long.
pub const SESSION_WAIT: Duration = Duration::from_secs(2);
/// The longest such wait.
pub const SESSION_WAIT_MAX: Duration = Duration::from_secs(60);
/// How often in a row a job waits so: for about a day.
pub const SESSION_WAITS_MAX: u32 = 1_440;
/// How often a job goes on after a usage limit.
pub const QUOTA_WAITS_MAX: u32 = 20;
/// How long a job waits at least that ran into a limit again, since our clock may be ahead of the one
/// by which the limit is reset; each further time twice as long.
pub const QUOTA_RETRY_DELAY: Duration = Duration::from_secs(2);
/// The longest such wait.
pub const QUOTA_RETRY_DELAY_MAX: Duration = Duration::from_secs(120);
/// A reset that was further away than this when the run ended is not waited for.
pub const QUOTA_WAIT_MAX: Duration = Duration::from_secs(8 * 24 * 3600);

/// What the agent's rules say about going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RerunPolicy {
    /// How often a failure is retried that may pass.
    pub retries_max: u32,
    /// How long before the first retry; each further one waits twice as long.
    pub backoff: Duration,
    /// The longest such wait.
    pub backoff_max: Duration,
    /// How long after it was cut off a job is still resumed; never if left out.
    pub resume_within: Option<Duration>,
}

/// What happened to the job before the run that has ended now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunHistory {
    /// How often it was resumed after it was cut off.
    pub restarts: i64,
    /// Runs of it that failed and were retried.
    pub retries: u32,
    /// Runs in a row that never came to their start.
    pub failed_starts: u32,
    /// Runs in a row that found another at their session.
    pub session_waits: u32,
    /// How often it waited for a usage limit.
    pub quota_waits: u32,
}

impl RunHistory {
    /// Adds a run of the job, in order. How often it was resumed is the job's own figure.
    pub fn add_run(&mut self, result: &RunResult) {
        match result.end {
            RunEnd::NeverStarted => self.failed_starts += 1,
            RunEnd::SessionBusy => self.session_waits += 1,
            RunEnd::Interrupted | RunEnd::Finished => {
                (self.failed_starts, self.session_waits) = (0, 0);
            }
        }
        let Some(error) = result.error.as_ref().filter(|_| result.end == RunEnd::Finished) else {
            return;
        };
        match limit_reset_time(error, result.finished_at) {
            Some(_) => self.quota_waits += 1,
            None => self.retries += 1,
        }
    }
}

/// What becomes of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RerunDecision {
    /// Its result is the job's.
    Finish,
    /// It goes on with another run, not before `at`.
    Rerun {
        /// When.
        at: Timestamp,
        /// How.
        kind: RerunKind,
    },
}

/// How a job goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RerunKind {
    /// As if it had not run: nothing was done.
    StartAgain,
    /// In its session, told that it was cut off.
    Resume,
    /// In its session, after the usage limit is reset; all on the same credential wait until then.
    ResumeAfterReset,
    /// Once more from the start, since it failed in a way that may pass.
    Retry {
        /// Which try that is, counted from one.
        attempt: u32,
        /// How many there are at most.
        max_attempts: u32,
    },
}

/// Decides what becomes of a job.
pub fn decide_rerun(
    result: &RunResult,
    history: RunHistory,
    policy: &RerunPolicy,
    now: Timestamp,
) -> RerunDecision {
    let anew =
        |wait| RerunDecision::Rerun { at: add_delay(now, wait), kind: RerunKind::StartAgain };
    match result.end {
        RunEnd::SessionBusy if history.session_waits < SESSION_WAITS_MAX => {
            anew(exponential_delay(SESSION_WAIT, history.session_waits).min(SESSION_WAIT_MAX))
        }
        RunEnd::NeverStarted if history.failed_starts + 1 < STARTS_MAX => anew(
            exponential_delay(START_RETRY_DELAY, history.failed_starts).min(START_RETRY_DELAY_MAX),
        ),
        RunEnd::SessionBusy | RunEnd::NeverStarted => RerunDecision::Finish,
        RunEnd::Interrupted => decide_interrupted(result, history, policy, now),
        RunEnd::Finished => match &result.error {
            Some(error) => decide_failed(error, result.finished_at, history, policy, now),
            None => RerunDecision::Finish,
        },
    }
}

fn decide_interrupted(
    result: &RunResult,
    history: RunHistory,
    policy: &RerunPolicy,
    now: Timestamp,
) -> RerunDecision {
    let Some(within) = policy.resume_within else { return RerunDecision::Finish };
    let is_recent = now <= add_delay(result.finished_at, within);
    let can_resume = result.session.as_ref().is_some_and(|session| session.resumable);
    match is_recent && can_resume && history.restarts < RESTARTS_MAX {
        true => RerunDecision::Rerun { at: now, kind: RerunKind::Resume },
        false => RerunDecision::Finish,
    }
}

fn decide_failed(
    error: &RunError,
    at: Timestamp,
    history: RunHistory,
    policy: &RerunPolicy,
    now: Timestamp,
) -> RerunDecision {
    if let Some(reset) = limit_reset_time(error, at) {
        return match history.quota_waits < QUOTA_WAITS_MAX {
            true => RerunDecision::Rerun {
                at: reset.max(add_delay(now, quota_retry_delay(history))),
                kind: RerunKind::ResumeAfterReset,
            },
            false => RerunDecision::Finish,
        };
    }
    let asked = Duration::from_millis(error.retry_after_ms.unwrap_or(0));
    if !error.recoverable || history.retries >= policy.retries_max || asked > QUOTA_WAIT_MAX {
        return RerunDecision::Finish;
    }
    let wait =
        exponential_delay(policy.backoff, history.retries).min(policy.backoff_max).max(asked);
    let number = history.retries.saturating_add(2);
    let how =
        RerunKind::Retry { attempt: number, max_attempts: policy.retries_max.saturating_add(1) };
    RerunDecision::Rerun { at: add_delay(now, wait), kind: how }
}

/// Returns when the limit is reset that a run ran into, which ended at a moment, if it was one that
/// says so.
pub fn limit_reset_time(error: &RunError, ended_at: Timestamp) -> Option<Timestamp> {
    if error.class != ErrorClass::RateLimited {
        return None;
    }
    error.resets_at.filter(|reset| *reset <= add_delay(ended_at, QUOTA_WAIT_MAX))
}

fn quota_retry_delay(history: RunHistory) -> Duration {
    let times = history.quota_waits.checked_sub(1);
    times.map_or(Duration::ZERO, |times| {
        exponential_delay(QUOTA_RETRY_DELAY, times).min(QUOTA_RETRY_DELAY_MAX)
    })
}

fn exponential_delay(wait: Duration, times: u32) -> Duration {
    wait.saturating_mul(1 << times.min(16))
}

fn add_delay(at: Timestamp, wait: Duration) -> Timestamp {
    at.checked_add(wait).unwrap_or(Timestamp::MAX)
}
