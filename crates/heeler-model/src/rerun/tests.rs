//! All rules of reruns, and proof that every job ends.

use heeler_testkit::ProofSettings;
use jiff::SignedDuration;

use super::*;
use crate::run::{SessionEnd, UsageLimitState};
use crate::{JobId, RunId};

const POLICY: RerunPolicy = RerunPolicy {
    retries_max: 4,
    backoff: Duration::from_secs(10),
    backoff_max: Duration::from_secs(60),
    resume_within: Some(Duration::from_secs(3600)),
};

/// First retry by that policy.
const RETRIED: RerunKind = RerunKind::Retry { attempt: 2, max_attempts: 5 };

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn result(end: RunEnd, error: Option<RunError>) -> RunResult {
    let (run, job) = (RunId::mint(now(), [0; 10]), JobId::mint(now(), 0));
    let session = SessionEnd {
        id: "0199a1b2-0000-7000-8000-000000000000".parse().unwrap(),
        log: "sessions/s.jsonl".into(),
        messages: 2,
        tokens: 10,
        resumable: true,
        own: None,
    };
    let session = Some(session);
    RunResult { end, error, session, ..RunResult::never_started(run, job, "", now()) }
}

fn failure(class: ErrorClass) -> RunResult {
    result(RunEnd::Finished, Some(RunError::new(class, "no")))
}

fn limit(resets_in: SignedDuration) -> RunResult {
    let error = RunError::new(ErrorClass::RateLimited, "no");
    let resets_at = Some(now() + resets_in);
    result(RunEnd::Finished, Some(RunError { resets_at, ..error }))
}

/// Returns the delay in seconds and the kind of rerun; `None` if the job ends.
fn told(result: &RunResult, history: RunHistory) -> Option<(i64, RerunKind)> {
    told_by(result, history, POLICY)
}

fn told_by(
    result: &RunResult,
    history: RunHistory,
    policy: RerunPolicy,
) -> Option<(i64, RerunKind)> {
    match decide_rerun(result, history, &policy, now()) {
        RerunDecision::Finish => None,
        RerunDecision::Rerun { at, kind: how } => Some((at.duration_since(now()).as_secs(), how)),
    }
}

#[test]
fn a_run_that_was_given_up_starts_elsewhere_only_with_consent_and_not_for_ever() {
    let decide = |history, policy: &RerunPolicy| decide_given_up(history, policy, now());
    let again = RerunDecision::Rerun { at: now(), kind: RerunKind::StartElsewhere };
    assert_eq!(decide(RunHistory::default(), &POLICY), again);
    assert!(RerunKind::StartElsewhere.is_restart(), "it is counted and limited");
    let never = RerunPolicy { resume_within: None, ..POLICY };
    assert_eq!(decide(RunHistory::default(), &never), RerunDecision::Finish);
    let last = RunHistory { restarts: RESTARTS_MAX, ..RunHistory::default() };
    assert_eq!(decide(last, &POLICY), RerunDecision::Finish);
}

#[test]
fn what_is_done_or_failed_for_good_is_over() {
    assert_eq!(told(&result(RunEnd::Finished, None), RunHistory::default()), None);
    for class in ErrorClass::ALL.iter().filter(|class| !class.is_recoverable()) {
        assert_eq!(told(&failure(*class), RunHistory::default()), None, "{class}");
    }
}

#[test]
fn a_run_that_never_started_is_started_again_later_and_later_and_then_given_up() {
    let never = result(RunEnd::NeverStarted, Some(RunError::new(ErrorClass::NotStarted, "no")));
    let mut history = RunHistory::default();
    for wait in [1, 2, 4, 8, 16, 30, 30] {
        assert_eq!(told(&never, history), Some((wait, RerunKind::StartAgain)));
        history.add_run(&never);
    }
    assert_eq!(told(&never, history), None);
    // A run that started resets the count; one that found its session busy does not.
    history.add_run(&result(RunEnd::SessionBusy, None));
    assert_eq!(told(&never, history), None);
    history.add_run(&result(RunEnd::Interrupted, None));
    assert_eq!(told(&never, history), Some((1, RerunKind::StartAgain)));
}

#[test]
fn a_busy_session_is_waited_for_longer_and_longer_and_given_up_after_a_day() {
    let busy = result(RunEnd::SessionBusy, Some(RunError::new(ErrorClass::SessionBusy, "no")));
    let (mut history, mut waits) = (RunHistory::default(), Vec::new());
    while let Some((wait, how)) = told(&busy, history) {
        assert_eq!(how, RerunKind::StartAgain);
        waits.push(wait);
        history.add_run(&busy);
    }
    assert_eq!(waits[..7], [2, 4, 8, 16, 32, 60, 60]);
    assert_eq!(waits.len(), SESSION_WAITS_MAX as usize);
    assert_eq!(waits.iter().sum::<i64>() / 3600, 23);
    assert_eq!(history.retries, 0);
    history.add_run(&failure(ErrorClass::Network));
    assert_eq!(told(&busy, history), Some((2, RerunKind::StartAgain)));
}

#[test]
fn what_was_cut_off_is_resumed_only_if_its_agent_wants_it_so() {
    let cut = result(RunEnd::Interrupted, Some(RunError::new(ErrorClass::Interrupted, "no")));
    assert_eq!(told(&cut, RunHistory::default()), Some((0, RerunKind::Resume)));
    let never = RerunPolicy { resume_within: None, ..POLICY };
    assert_eq!(told_by(&cut, RunHistory::default(), never), None);
    let anew = RunResult { session: None, ..cut.clone() };
    assert_eq!(told(&anew, RunHistory::default()), None, "there is nothing to resume");
    let mut silent = cut.clone();
    silent.session.as_mut().unwrap().resumable = false;
    assert_eq!(told(&silent, RunHistory::default()), None, "the agent has said nothing in it");
}

#[test]
fn what_was_cut_off_is_resumed_within_its_time_and_three_times() {
    let cut = |ago: i64| RunResult {
        finished_at: now() - SignedDuration::from_secs(ago),
        ..result(RunEnd::Interrupted, None)
    };
    assert_eq!(told(&cut(3600), RunHistory::default()), Some((0, RerunKind::Resume)));
    assert_eq!(told(&cut(3601), RunHistory::default()), None);
    let restarts = |restarts| RunHistory { restarts, ..RunHistory::default() };
    assert_eq!(told(&cut(0), restarts(2)), Some((0, RerunKind::Resume)));
    assert_eq!(told(&cut(0), restarts(3)), None);
}

#[test]
fn a_usage_limit_is_waited_for_until_its_reset() {
    let hours = SignedDuration::from_hours;
    assert_eq!(
        told(&limit(hours(5)), RunHistory::default()),
        Some((5 * 3600, RerunKind::ResumeAfterReset))
    );
    assert_eq!(
        told(&limit(hours(-5)), RunHistory::default()),
        Some((0, RerunKind::ResumeAfterReset))
    );
    let week = limit(hours(8 * 24));
    assert_eq!(told(&week, RunHistory::default()), Some((8 * 86_400, RerunKind::ResumeAfterReset)));
    // A reset further away than any limit is not believed, but retried like a transient failure.
    let far = limit(hours(8 * 24) + SignedDuration::from_secs(1));
    assert_eq!(told(&far, RunHistory::default()), Some((10, RETRIED)));
    // A limit that is hit again, although reset by the local clock, is not retried immediately.
    let again =
        |waits| told(&limit(hours(-5)), RunHistory { quota_waits: waits, ..RunHistory::default() });
    let waits = [1, 2, 3, 7, 19].map(|waits| again(waits).map(|(seconds, _)| seconds));
    assert_eq!(waits, [2, 4, 8, 120, 120].map(Some));
    // The number of waits is limited, and they do not count as retries.
    let mut history = RunHistory::default();
    (0..20).for_each(|_| history.add_run(&week));
    assert_eq!((history.quota_waits, history.retries), (20, 0));
    assert_eq!(told(&week, history), None);
    // Without a reset it is a transient failure; the reset of any other error does not count.
    let plain = failure(ErrorClass::RateLimited);
    assert_eq!(told(&plain, RunHistory::default()), Some((10, RETRIED)));
    let mut other = limit(hours(5));
    other.error.as_mut().unwrap().class = ErrorClass::Overloaded;
    assert_eq!(told(&other, RunHistory::default()), Some((10, RETRIED)));
}

#[test]
fn failures_that_may_pass_are_retried_with_longer_and_longer_waits() {
    let failed = failure(ErrorClass::Overloaded);
    let (mut history, mut waits) = (RunHistory::default(), Vec::new());
    while let Some((wait, how)) = told(&failed, history) {
        assert_eq!(how, RerunKind::Retry { attempt: history.retries + 2, max_attempts: 5 });
        waits.push(wait);
        history.add_run(&failed);
    }
    assert_eq!(waits, [10, 20, 40, 60]);
    assert_eq!(
        told_by(&failed, RunHistory::default(), RerunPolicy { retries_max: 0, ..POLICY }),
        None
    );
    let long = RerunPolicy { retries_max: u32::MAX, backoff: Duration::MAX, ..POLICY };
    let many = RunHistory { retries: 1_000_000, ..RunHistory::default() };
    assert_eq!(
        told_by(&failed, many, long),
        Some((60, RerunKind::Retry { attempt: 1_000_002, max_attempts: u32::MAX }))
    );
}

#[test]
fn the_api_may_ask_for_a_longer_wait_but_not_for_any() {
    let asked = |ms: u64| {
        let error = RunError::new(ErrorClass::Overloaded, "no");
        result(RunEnd::Finished, Some(RunError { retry_after_ms: Some(ms), ..error }))
    };
    assert_eq!(told(&asked(5_000), RunHistory::default()), Some((10, RETRIED)));
    assert_eq!(told(&asked(600_000), RunHistory::default()), Some((600, RETRIED)));
    assert_eq!(told(&asked(u64::MAX), RunHistory::default()), None);
}

/// Result of any kind.
fn any(random: &mut fastrand::Rng) -> RunResult {
    let mut any = result(*random.choice(RunEnd::ALL).unwrap(), None);
    if random.u8(..8) > 0 {
        let class = *random.choice(ErrorClass::ALL).unwrap();
        let class = if random.bool() { class } else { ErrorClass::RateLimited };
        let mut error = RunError::new(class, "no");
        error.recoverable = random.u8(..8) > 0;
        error.retry_after_ms = random.bool().then(|| random.u64(..) >> random.u8(..64));
        let away = SignedDuration::from_secs(random.i64(-1_000_000..1_000_000));
        error.resets_at = random.bool().then(|| now() + away);
        any.error = Some(error);
    }
    any
}

#[test]
fn proof_every_job_comes_to_an_end_whatever_its_runs_do() {
    let proof = ProofSettings::new(300);
    let counted = RESTARTS_MAX as u32 + QUOTA_WAITS_MAX + POLICY.retries_max;
    let most = (counted + 1) * (STARTS_MAX + SESSION_WAITS_MAX + 1);
    for round in 0..proof.rounds {
        let mut random = proof.random(round);
        // One kind repeatedly, or many kinds.
        let kinds: Vec<RunResult> = (0..random.u8(1..5)).map(|_| any(&mut random)).collect();
        // A job waits without limit while there is no space for its files.
        if kinds.iter().all(is_disk_full) {
            continue;
        }
        let (mut history, mut runs) = (RunHistory::default(), 1);
        let mut ended_at = now();
        loop {
            let finished_at = ended_at;
            let result = RunResult { finished_at, ..random.choice(&kinds).unwrap().clone() };
            let now = finished_at + SignedDuration::from_secs(random.i64(0..100_000));
            let RerunDecision::Rerun { at, kind: how } =
                decide_rerun(&result, history, &POLICY, now)
            else {
                break;
            };
            assert!(at >= now && runs < most, "seed {} round {round}: {result:?}", proof.seed);
            let wait_max = SignedDuration::try_from(QUOTA_WAIT_MAX).unwrap();
            assert!(at.duration_since(now) <= wait_max, "seed {} round {round}", proof.seed);
            history.add_run(&result);
            history.restarts += i64::from(how == RerunKind::Resume);
            (runs, ended_at) = (runs + u32::from(!is_disk_full(&result)), at);
        }
    }
}

#[test]
fn a_run_without_space_for_its_files_is_started_again_until_there_is_some() {
    let full = result(RunEnd::NeverStarted, Some(RunError::new(ErrorClass::Disk, "no space")));
    let mut history = RunHistory::default();
    for _ in 0..100 {
        assert_eq!(told(&full, history), Some((5, RerunKind::StartAgain)));
        history.add_run(&full);
    }
    assert_eq!(history, RunHistory::default(), "it counts as no failed start");
}

#[test]
fn an_account_is_parked_after_any_run_that_used_up_its_limit() {
    let used_up = |is_used_up: bool, seconds: Option<i64>| {
        let resets_at = seconds.map(|seconds| now() + SignedDuration::from_secs(seconds));
        let usage_limit = Some(UsageLimitState { is_used_up, resets_at });
        let result = RunResult { usage_limit, ..result(RunEnd::Finished, None) };
        limit_used_up_until(&result, now()).map(|at| at.duration_since(now()).as_secs())
    };
    assert_eq!(used_up(true, Some(60)), Some(60));
    assert_eq!(used_up(false, Some(60)), None);
    assert_eq!(used_up(true, None), None);
    assert_eq!(used_up(true, Some(-1)), None);
    let longest = i64::try_from(QUOTA_WAIT_MAX.as_secs()).unwrap();
    assert_eq!(used_up(true, Some(longest)), Some(longest));
    assert_eq!(used_up(true, Some(longest + 1)), None, "no agent may stop the others for ever");
    assert_eq!(limit_used_up_until(&result(RunEnd::Finished, None), now()), None);
}
