//! Decision after a run has ended: the job ends too, or gets another run.
//!
//! A pure function of the run's result and the job's history. A run with a permanent failure is
//! never repeated; an interrupted run is repeated only as the agent's policy allows. Every kind of
//! rerun is counted and limited. Start at [`decide_rerun`].

#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;

use crate::run::{ErrorClass, RunEnd, RunError, RunResult};

/// Most resumes of a job after an interruption.
pub const RESTARTS_MAX: i64 = 3;
/// Most consecutive runs that fail to start.
pub const STARTS_MAX: u32 = 8;
/// Delay before the next run if a run failed to start, for example for lack of resources. Doubles
/// each time.
pub const START_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Delay before a run that had no space for its files starts again.
pub const NO_SPACE_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Upper bound of [`START_RETRY_DELAY`].
pub const START_RETRY_DELAY_MAX: Duration = Duration::from_secs(30);
/// Delay before the next attempt if another run holds the session. Doubles each time. The job
/// starts earlier if the other run belongs to this fleet and ends.
pub const SESSION_WAIT: Duration = Duration::from_secs(2);

/// Wait before looking again whether the host of an agent is there.
pub(crate) const HOST_WAIT: Duration = Duration::from_secs(5);
/// Upper bound of [`SESSION_WAIT`].
pub const SESSION_WAIT_MAX: Duration = Duration::from_secs(60);
/// Most consecutive waits for a session: about a day.
pub const SESSION_WAITS_MAX: u32 = 1_440;
/// Most resumes of a job after a usage limit.
pub const QUOTA_WAITS_MAX: u32 = 20;
/// Smallest delay of a job that hits a usage limit again, because the local clock may be ahead of
/// the clock that resets the limit. Doubles each time.
pub const QUOTA_RETRY_DELAY: Duration = Duration::from_secs(2);
/// Upper bound of [`QUOTA_RETRY_DELAY`].
pub const QUOTA_RETRY_DELAY_MAX: Duration = Duration::from_secs(120);
/// Longest wait for a reset, from the end of the run. A later reset is not waited for.
pub const QUOTA_WAIT_MAX: Duration = Duration::from_secs(8 * 24 * 3600);

/// Rules of an agent for reruns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RerunPolicy {
    /// Most retries after a transient failure.
    pub retries_max: u32,
    /// Delay before the first retry. Doubles each time.
    pub backoff: Duration,
    /// Upper bound of `backoff`.
    pub backoff_max: Duration,
    /// Longest time after an interruption within which a job is resumed. `None` means never.
    pub resume_within: Option<Duration>,
}

impl RerunPolicy {
    /// No job runs again, except to start a run that did not start.
    pub const NEVER: RerunPolicy = RerunPolicy {
        retries_max: 0,
        backoff: Duration::ZERO,
        backoff_max: Duration::ZERO,
        resume_within: None,
    };
}

/// Earlier runs of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunHistory {
    /// Number of resumes after an interruption.
    pub restarts: i64,
    /// Number of failed runs that were retried.
    pub retries: u32,
    /// Number of consecutive runs that failed to start.
    pub failed_starts: u32,
    /// Number of consecutive runs that found their session busy.
    pub session_waits: u32,
    /// Number of waits for a usage limit.
    pub quota_waits: u32,
}

impl RunHistory {
    /// Adds a run of the job, in order. `restarts` is not counted here: the job record has it.
    pub fn add_run(&mut self, result: &RunResult) {
        match result.end {
            RunEnd::NeverStarted if is_disk_full(result) => {}
            RunEnd::NeverStarted => self.failed_starts += 1,
            RunEnd::SessionBusy => self.session_waits += 1,
            RunEnd::Interrupted | RunEnd::Finished => {
                // Only consecutive failures count: the machine has recovered since.
                (self.failed_starts, self.session_waits) = (0, 0);
            }
        }
        // Only a finished run failed by its own work.
        let Some(error) = result.error.as_ref().filter(|_| result.end == RunEnd::Finished) else {
            return;
        };
        match limit_reset_time(error, result.finished_at) {
            Some(_) => self.quota_waits += 1,
            // A run that ended with an error but was not waited for was retried.
            None => self.retries += 1,
        }
    }
}

/// Decision about a job after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RerunDecision {
    /// The job ends with the result of the run.
    Finish,
    /// The job gets another run, not before `at`.
    Rerun { at: Timestamp, kind: RerunKind },
}

/// Kind of rerun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RerunKind {
    /// Starts as if the job had not run: nothing was done.
    StartAgain,
    /// Resumes the session and informs the agent of the interruption.
    Resume,
    /// Resumes the session after the usage limit resets. All jobs with the same credential wait.
    ResumeAfterReset,
    /// Starts again on another host, in a new session: the host of the run is away, and the files of its session are
    /// there.
    StartElsewhere,
    /// Starts over after a transient failure.
    Retry {
        /// Number of the attempt, from one.
        attempt: u32,
        /// Total number of attempts.
        max_attempts: u32,
    },
}

impl RerunKind {
    /// Returns true if it counts as a resume after an interruption.
    pub fn is_restart(self) -> bool {
        matches!(self, RerunKind::Resume | RerunKind::StartElsewhere)
    }
}

/// Decides about a job whose run was given up, because its host was silent for longer than the run's lease.
pub fn decide_given_up(history: RunHistory, policy: &RerunPolicy, now: Timestamp) -> RerunDecision {
    // As for every interruption: only with the policy's consent.
    match policy.resume_within.is_some() && history.restarts < RESTARTS_MAX {
        true => RerunDecision::Rerun { at: now, kind: RerunKind::StartElsewhere },
        false => RerunDecision::Finish,
    }
}

/// Decides whether a job ends or gets another run.
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
        // The run that ends now is not in the history yet.
        RunEnd::NeverStarted if !is_disk_full(result) && history.failed_starts + 1 < STARTS_MAX => {
            anew(
                exponential_delay(START_RETRY_DELAY, history.failed_starts)
                    .min(START_RETRY_DELAY_MAX),
            )
        }
        // A full disk is no fault of the job, which waits for space as long as it takes.
        RunEnd::NeverStarted if is_disk_full(result) => anew(NO_SPACE_RETRY_DELAY),
        RunEnd::SessionBusy | RunEnd::NeverStarted => RerunDecision::Finish,
        RunEnd::Interrupted => decide_interrupted(result, history, policy, now),
        RunEnd::Finished => match &result.error {
            Some(error) => decide_failed(error, result.finished_at, history, policy, now),
            None => RerunDecision::Finish,
        },
    }
}

/// Returns true if a run did not start because there was no space for its files.
pub fn is_disk_full(result: &RunResult) -> bool {
    let is_disk = |error: &RunError| error.class == ErrorClass::Disk;
    result.end == RunEnd::NeverStarted && result.error.as_ref().is_some_and(is_disk)
}

fn decide_interrupted(
    result: &RunResult,
    history: RunHistory,
    policy: &RerunPolicy,
    now: Timestamp,
) -> RerunDecision {
    // Without the policy's consent an agent is not started again by itself.
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
    // Before the retries: a usage limit is no failure of the work and uses none of them up.
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
    // A service that asks for more than a week means that the job cannot be done now.
    if !error.recoverable || history.retries >= policy.retries_max || asked > QUOTA_WAIT_MAX {
        return RerunDecision::Finish;
    }
    let wait =
        // The service's own wish is never undercut.
        exponential_delay(policy.backoff, history.retries).min(policy.backoff_max).max(asked);
    // The first run was attempt one, and the history does not contain it as a retry.
    let number = history.retries.saturating_add(2);
    let how =
        RerunKind::Retry { attempt: number, max_attempts: policy.retries_max.saturating_add(1) };
    RerunDecision::Rerun { at: add_delay(now, wait), kind: how }
}

/// Returns the reset time of the usage limit that a run hit. `None` for any other error, if no
/// reset time is known, or if it is more than [`QUOTA_WAIT_MAX`] after `ended_at`.
pub fn limit_reset_time(error: &RunError, ended_at: Timestamp) -> Option<Timestamp> {
    if error.class != ErrorClass::RateLimited {
        return None;
    }
    error.resets_at.filter(|reset| *reset <= add_delay(ended_at, QUOTA_WAIT_MAX))
}

/// Returns the time until which the API accepts no request of the agent's account, if the run
/// reported that a usage limit is used up. `None` if the reset is unknown, has passed, or is more than
/// [`QUOTA_WAIT_MAX`] after the run.
pub fn limit_used_up_until(result: &RunResult, now: Timestamp) -> Option<Timestamp> {
    let limit = result.usage_limit.as_ref().filter(|limit| limit.is_used_up)?;
    let latest = add_delay(result.finished_at, QUOTA_WAIT_MAX);
    limit.resets_at.filter(|reset| *reset > now && *reset <= latest)
}

fn quota_retry_delay(history: RunHistory) -> Duration {
    // The first wait ends with the reset itself; only a repeated limit adds a delay.
    let times = history.quota_waits.checked_sub(1);
    times.map_or(Duration::ZERO, |times| {
        exponential_delay(QUOTA_RETRY_DELAY, times).min(QUOTA_RETRY_DELAY_MAX)
    })
}

fn exponential_delay(wait: Duration, times: u32) -> Duration {
    // The shift is limited, because any longer delay is above every upper bound.
    wait.saturating_mul(1 << times.min(16))
}

fn add_delay(at: Timestamp, wait: Duration) -> Timestamp {
    at.checked_add(wait).unwrap_or(Timestamp::MAX)
}
