//! Decides when a run must end, as pure arithmetic on the instants passed in.
//!
//! [`RunDeadlines`] holds a run's time limits and the progress of its termination: interrupted,
//! terminated, killed, each one grace period after the previous. It performs no action itself.
//! Start at [`RunDeadlines::due_action`].

use std::time::{Duration, Instant};

use heeler_model::run::RunLimits;

/// Default grace period between a step of a cancellation and the next, harder one.
pub(crate) const GRACE_DEFAULT: Duration = Duration::from_secs(5);

/// Upper bound on the grace period, regardless of the spec.
pub(crate) const GRACE_MAX: Duration = Duration::from_secs(60 * 60);

/// Number of grace periods that an agent with nothing left to do may take to exit; then its process
/// tree is ended. It has reported its result by then, so nothing is lost.
pub(crate) const EXIT_GRACES: u32 = 2;

/// Time that an agent may take to open its session. A lost or damaged reply would otherwise be waited
/// for as long as for a silent model. The slowest known agent needs 40 s, on a loaded machine.
pub(crate) const OPENING_TIME_MAX: Duration = Duration::from_secs(180);

/// Loop delay beyond which the machine is assumed to have been suspended or swapping. The agent may
/// have been stopped too, so its silence during that time does not count as a stall.
pub(crate) const LOOP_DELAY_MAX: Duration = Duration::from_secs(1);

/// Action that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunDeadlineAction {
    /// The run exceeded its time limit.
    Timeout,
    /// The agent was silent for too long.
    Stall,
    /// The agent did not open its session in time.
    Opening,
    /// The agent ignored the interrupt.
    Terminate,
    /// The agent ignored SIGTERM, or does not exit although it is done.
    Kill,
}

/// Time limits of a run and the progress of its termination.
#[derive(Debug)]
pub(crate) struct RunDeadlines {
    limits: RunLimits,
    started: Instant,
    /// Time of the agent's last output, or of the last moment it became able to produce output
    /// again.
    last_output_at: Instant,
    /// The agent cannot produce output: it waits for a person, a tool, the runner or the disk.
    is_waiting: bool,
    opening_time_max: Duration,
    /// Time since which the agent opens its session.
    opening_since: Option<Instant>,
    end: Option<RunEscalation>,
}

/// Termination in progress.
#[derive(Debug, Clone, Copy)]
struct RunEscalation {
    next: RunDeadlineAction,
    at: Instant,
}

impl RunDeadlines {
    pub(crate) fn new(limits: &RunLimits, now: Instant) -> RunDeadlines {
        RunDeadlines {
            limits: limits.clone(),
            started: now,
            last_output_at: now,
            is_waiting: false,
            opening_time_max: OPENING_TIME_MAX,
            opening_since: None,
            end: None,
        }
    }

    /// Sets the time that the agent may take to open its session.
    pub(crate) fn with_opening_time_max(self, opening_time_max: Duration) -> RunDeadlines {
        RunDeadlines { opening_time_max, ..self }
    }

    /// Records if the agent is opening its session.
    pub(crate) fn set_opening(&mut self, is_opening: bool, now: Instant) {
        self.opening_since = is_opening.then(|| self.opening_since.unwrap_or(now));
    }

    /// Records that the agent produced output.
    pub(crate) fn record_output(&mut self, now: Instant) {
        self.last_output_at = now;
    }

    /// Records that the agent's output could not be read since `since`.
    pub(crate) fn record_pause(&mut self, since: Instant, now: Instant) {
        // The machine may have been suspended, and the agent with it.
        if now.saturating_duration_since(since) > LOOP_DELAY_MAX {
            self.restart_clocks(now);
        }
    }

    /// Records if the agent waits for another party; such silence is not a stall.
    pub(crate) fn set_waiting(&mut self, held: bool, now: Instant) {
        // While it waited it could not speak, so its silence counts from now on.
        if self.is_waiting && !held {
            self.restart_clocks(now);
        }
        self.is_waiting = held;
    }

    /// Counts the agent's silence and the opening of its session from now on.
    fn restart_clocks(&mut self, now: Instant) {
        self.last_output_at = now;
        self.opening_since = self.opening_since.map(|_| now);
    }

    /// Records that the agent was asked to stop. Harder steps follow unless a termination is
    /// already in progress.
    pub(crate) fn record_interrupt(&mut self, now: Instant) {
        self.end =
            Some(RunEscalation { next: RunDeadlineAction::Terminate, at: now + self.grace() });
    }

    /// Records that the agent was sent SIGTERM; SIGKILL follows.
    pub(crate) fn record_terminate(&mut self, now: Instant) {
        self.end = Some(RunEscalation { next: RunDeadlineAction::Kill, at: now + self.grace() });
    }

    /// Records that the agent has nothing left to do and should exit on its own.
    pub(crate) fn record_done(&mut self, now: Instant) {
        // A termination in progress has an earlier deadline and must not be postponed.
        if self.end.is_none() {
            self.end = Some(RunEscalation {
                next: RunDeadlineAction::Kill,
                at: now + self.grace() * EXIT_GRACES,
            });
        }
    }

    /// Records another start of the agent. The run's time limit keeps counting.
    pub(crate) fn restart(&mut self, now: Instant) {
        // An earlier attempt may have been ended, which does not concern the next one.
        (self.last_output_at, self.is_waiting, self.end) = (now, false, None);
        self.opening_since = None;
    }

    /// Returns the action that is due at `now`.
    pub(crate) fn due_action(&self, now: Instant) -> Option<RunDeadlineAction> {
        let (due, at) = self.next_action()?;
        (at <= now).then_some(due)
    }

    /// Returns the next action and its due time.
    pub(crate) fn next_action(&self) -> Option<(RunDeadlineAction, Instant)> {
        // Once the end has begun, the other limits have no effect any more.
        if let Some(RunEscalation { next, at }) = self.end {
            return Some((next, at));
        }
        let timeout = self.timeout_at();
        let stall = self.limits.stall_timeout_ms.filter(|_| !self.is_waiting);
        let stall = stall.and_then(|ms| add_millis(self.last_output_at, ms));
        let timeout = timeout.map(|at| (RunDeadlineAction::Timeout, at));
        let stall = stall.map(|at| (RunDeadlineAction::Stall, at));
        let opening = self.opening_since.filter(|_| !self.is_waiting);
        let opening = opening.and_then(|since| since.checked_add(self.opening_time_max));
        let opening = opening.map(|at| (RunDeadlineAction::Opening, at));
        timeout.into_iter().chain(stall).chain(opening).min_by_key(|(_, at)| *at)
    }

    /// Returns the time that the agent may take to open its session.
    pub(crate) fn opening_time_max(&self) -> Duration {
        self.opening_time_max
    }

    /// Returns the instant of the run's timeout, regardless of a termination in progress.
    pub(crate) fn timeout_at(&self) -> Option<Instant> {
        self.limits.timeout_ms.and_then(|ms| add_millis(self.started, ms))
    }

    fn grace(&self) -> Duration {
        // A huge value would overflow an instant, and no agent needs longer to end.
        self.limits.grace_ms.map_or(GRACE_DEFAULT, Duration::from_millis).min(GRACE_MAX)
    }
}

/// Adds milliseconds; a limit that overflows `Instant` counts as no limit.
fn add_millis(from: Instant, ms: u64) -> Option<Instant> {
    from.checked_add(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(timeout_ms: Option<u64>, stall_timeout_ms: Option<u64>) -> (RunDeadlines, Instant) {
        let now = Instant::now();
        let limits =
            RunLimits { timeout_ms, stall_timeout_ms, grace_ms: Some(10), ..RunLimits::default() };
        (RunDeadlines::new(&limits, now), now)
    }

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn without_limits_nothing_is_ever_due() {
        let (watch, now) = watch(None, None);
        assert_eq!(watch.due_action(now + ms(u64::from(u32::MAX))), None);
    }

    #[test]
    fn a_limit_beyond_the_end_of_time_never_comes() {
        let limits = RunLimits {
            timeout_ms: Some(u64::MAX),
            stall_timeout_ms: Some(u64::MAX),
            grace_ms: Some(u64::MAX),
            ..RunLimits::default()
        };
        let now = Instant::now();
        let mut watch = RunDeadlines::new(&limits, now);
        assert_eq!(watch.due_action(now + ms(u64::from(u32::MAX))), None);
        watch.record_done(now);
        watch.record_interrupt(now);
        assert_eq!(watch.due_action(now + GRACE_MAX), Some(RunDeadlineAction::Terminate));
    }

    #[test]
    fn silence_is_a_stall_unless_the_agent_waits_for_somebody_else() {
        let (mut watch, now) = watch(None, Some(100));
        assert_eq!(watch.due_action(now + ms(99)), None);
        assert_eq!(watch.due_action(now + ms(100)), Some(RunDeadlineAction::Stall));
        watch.record_output(now + ms(50));
        assert_eq!(watch.due_action(now + ms(149)), None);
        watch.set_waiting(true, now + ms(60));
        assert_eq!(watch.due_action(now + ms(500)), None);
        watch.set_waiting(false, now + ms(500));
        assert_eq!(watch.due_action(now + ms(599)), None);
        assert_eq!(watch.due_action(now + ms(600)), Some(RunDeadlineAction::Stall));
    }

    #[test]
    fn a_session_must_be_open_in_time_whatever_the_agent_says_meanwhile() {
        let (watch, now) = watch(None, None);
        let mut watch = watch.with_opening_time_max(ms(100));
        watch.set_opening(true, now);
        watch.record_output(now + ms(50));
        watch.set_opening(true, now + ms(50));
        assert_eq!(watch.due_action(now + ms(99)), None);
        assert_eq!(watch.due_action(now + ms(100)), Some(RunDeadlineAction::Opening));
        // The runner could not read the reply.
        watch.set_waiting(true, now + ms(60));
        assert_eq!(watch.due_action(now + ms(100)), None);
        watch.set_waiting(false, now + ms(200));
        assert_eq!(watch.due_action(now + ms(299)), None);
        assert_eq!(watch.due_action(now + ms(300)), Some(RunDeadlineAction::Opening));
        watch.set_opening(false, now + ms(250));
        assert_eq!(watch.due_action(now + ms(300)), None);
    }

    #[test]
    fn silence_while_nobody_could_look_is_no_stall() {
        let (mut watch, now) = watch(None, Some(100));
        watch.record_pause(now, now + LOOP_DELAY_MAX);
        assert_eq!(watch.due_action(now + LOOP_DELAY_MAX), Some(RunDeadlineAction::Stall));
        let back = now + LOOP_DELAY_MAX + ms(1);
        watch.record_pause(now, back);
        assert_eq!(watch.due_action(back + ms(99)), None);
        assert_eq!(watch.due_action(back + ms(100)), Some(RunDeadlineAction::Stall));
    }

    #[test]
    fn the_time_limit_holds_whatever_the_agent_waits_for_and_however_often_it_is_started() {
        let (mut watch, now) = watch(Some(100), Some(10));
        watch.set_waiting(true, now);
        assert_eq!(watch.due_action(now + ms(100)), Some(RunDeadlineAction::Timeout));
        watch.restart(now + ms(95));
        assert_eq!(watch.due_action(now + ms(99)), None);
        assert_eq!(watch.due_action(now + ms(100)), Some(RunDeadlineAction::Timeout));
    }

    #[test]
    fn each_step_of_an_end_waits_a_grace() {
        let (mut watch, now) = watch(Some(5), Some(5));
        watch.record_interrupt(now);
        assert_eq!(watch.due_action(now + ms(9)), None);
        assert_eq!(watch.due_action(now + ms(10)), Some(RunDeadlineAction::Terminate));
        watch.record_terminate(now + ms(10));
        assert_eq!(watch.due_action(now + ms(19)), None);
        assert_eq!(watch.due_action(now + ms(20)), Some(RunDeadlineAction::Kill));
    }

    #[test]
    fn an_agent_that_is_done_has_time_to_exit_and_no_other_limit() {
        let (mut watch, now) = watch(Some(5), Some(5));
        watch.record_done(now);
        assert_eq!(watch.due_action(now + ms(19)), None);
        assert_eq!(watch.due_action(now + ms(20)), Some(RunDeadlineAction::Kill));
    }
}
