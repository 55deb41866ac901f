//! Check of a result before it is committed: no record may claim what cannot have happened.
//!
//! A signature proves who wrote a result, not that it makes sense. Start at [`check_run_result`].

use thiserror::Error;

use super::{RunEnd, RunResult};
use crate::{ExitReason, JobId, RunId};

/// Reason that a result cannot be true.
#[derive(Debug, Error, Clone, PartialEq)]
pub enum ImpossibleResultError {
    #[error("it is the result of run {found}")]
    OtherRun { found: RunId },
    #[error("it is the result of job {found}")]
    OtherJob { found: JobId },
    #[error("it ended before it started")]
    EndBeforeStart,
    #[error("it cost {usd} USD")]
    Cost { usd: f64 },
    #[error("it has a negative count of {what}")]
    Count { what: &'static str },
    /// The run did not get to its end, but claims a success.
    #[error("it ended as `{end}`, with success")]
    Success { end: RunEnd },
    /// Settling reads files that an agent can write, so it never claims a success.
    #[error("its runner died, and it claims a success")]
    SettledSuccess,
}

/// Refuses a result that belongs to another run, or that cannot be true.
pub fn check_run_result(
    result: &RunResult,
    run: RunId,
    job: &JobId,
) -> Result<(), ImpossibleResultError> {
    if result.run != run {
        return Err(ImpossibleResultError::OtherRun { found: result.run });
    }
    if result.job != *job {
        return Err(ImpossibleResultError::OtherJob { found: result.job.clone() });
    }
    if result.finished_at < result.started_at {
        return Err(ImpossibleResultError::EndBeforeStart);
    }
    let least = result.settled.as_ref().and_then(|settled| settled.spent_usd_min);
    for usd in result.cost.usd.into_iter().chain(least) {
        if !usd.is_finite() || usd < 0.0 {
            return Err(ImpossibleResultError::Cost { usd });
        }
    }
    check_counts(result)?;
    let is_success = result.exit_reason == ExitReason::Success;
    if is_success && result.end != RunEnd::Finished {
        return Err(ImpossibleResultError::Success { end: result.end });
    }
    if is_success && result.settled.is_some() {
        return Err(ImpossibleResultError::SettledSuccess);
    }
    Ok(())
}

fn check_counts(result: &RunResult) -> Result<(), ImpossibleResultError> {
    let usage = &result.cost.usage;
    let counts = [
        ("turns", usage.num_turns),
        ("milliseconds", usage.api_duration_ms),
        ("input tokens", usage.input_tokens),
        ("cache tokens", usage.cache_creation_input_tokens),
        ("cached tokens", usage.cache_read_input_tokens),
        ("output tokens", usage.output_tokens),
    ];
    match counts.into_iter().find(|(_, count)| count.is_some_and(|count| count < 0)) {
        Some((what, _)) => Err(ImpossibleResultError::Count { what }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::*;
    use crate::run::{RunCost, RunRecovery};

    fn finished() -> RunResult {
        let (now, job) = (Timestamp::UNIX_EPOCH, JobId::mint(Timestamp::UNIX_EPOCH, 7));
        RunResult {
            end: RunEnd::Finished,
            exit_reason: ExitReason::Success,
            error: None,
            cost: RunCost { usd: Some(0.5), ..RunCost::default() },
            ..RunResult::never_started(RunId::mint(now, [1; 10]), job, "", now)
        }
    }

    fn check(result: &RunResult) -> Result<(), ImpossibleResultError> {
        let expected = finished();
        check_run_result(result, expected.run, &expected.job)
    }

    #[test]
    fn results_that_runners_write_are_possible() {
        let done = finished();
        check(&done).unwrap();
        // The agent reported no cost: the reservation counts.
        check(&RunResult { cost: RunCost::default(), ..done.clone() }).unwrap();
        let settled = Some(RunRecovery { spent_usd_min: Some(0.1), ..RunRecovery::default() });
        let exit_reason = ExitReason::Error;
        check(&RunResult { end: RunEnd::Interrupted, exit_reason, settled, ..done }).unwrap();
    }

    #[test]
    fn impossible_results_are_refused() {
        let done = finished();
        let run = RunId::mint(Timestamp::UNIX_EPOCH, [2; 10]);
        let job = JobId::mint(Timestamp::UNIX_EPOCH, 8);
        let before = done.started_at - SignedDuration::from_millis(1);
        let mut impossible = vec![
            RunResult { run, ..done.clone() },
            RunResult { job, ..done.clone() },
            RunResult { finished_at: before, ..done.clone() },
            RunResult { settled: Some(RunRecovery::default()), ..done.clone() },
        ];
        for usd in [-0.01, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let cost = RunCost { usd: Some(usd), ..RunCost::default() };
            impossible.push(RunResult { cost, ..done.clone() });
            let settled = Some(RunRecovery { spent_usd_min: Some(usd), ..RunRecovery::default() });
            let exit_reason = ExitReason::Error;
            impossible.push(RunResult { settled, exit_reason, ..done.clone() });
        }
        for end in [RunEnd::NeverStarted, RunEnd::Interrupted, RunEnd::SessionBusy] {
            impossible.push(RunResult { end, ..done.clone() });
        }
        let mut counted = done.clone();
        counted.cost.usage.output_tokens = Some(-1);
        impossible.push(counted);
        for result in impossible {
            check(&result).unwrap_err();
        }
    }
}
