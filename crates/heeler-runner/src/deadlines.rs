//! When a run is ended, as arithmetic on moments that are handed in.
//!
//! [`RunDeadlines`] knows the time limits of a run and how far its end has come: interrupted, terminated,
//! killed, each a grace after the one before. It acts on nothing. Start at [`RunDeadlines::due_action`].

use std::time::{Duration, Instant};

use heeler_model::run::RunLimits;

/// How long each step of a cancel waits for the next, harder one, when the spec does not say.
pub(crate) const GRACE_DEFAULT: Duration = Duration::from_secs(5);

/// The longest grace, whatever the spec says.
pub(crate) const GRACE_MAX: Duration = Duration::from_secs(60 * 60);

/// How many graces an agent that has nothing more to do may take to exit; then its tree is ended. It
/// has said its result by then, so nothing is lost.
pub(crate) const EXIT_GRACES: u32 = 2;

/// A loop that comes later than this was stopped, and the agent perhaps with it (a machine that slept
/// or swapped): its silence of that time is no stall.
pub(crate) const LOOP_DELAY_MAX: Duration = Duration::from_secs(1);

/// What has to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunDeadlineAction {
    /// The run took too long.
    Timeout,
    /// The agent said nothing for too long.
    Stall,
    /// The agent did not heed the interrupt.
    Terminate,
    /// The agent did not heed the signal, or does not exit although it is done.
    Kill,
}

/// The time limits of a run and how far its end has come.
#[derive(Debug)]
pub(crate) struct RunDeadlines {
    limits: RunLimits,
    started: Instant,
    /// When the agent last said something, or could say something again.
    last_output_at: Instant,
    /// The agent cannot speak: it waits for a person, a tool, us or the disk.
    is_waiting: bool,
    end: Option<RunEscalation>,
}

/// An end that is under way.
#[derive(Debug, Clone, Copy)]
struct RunEscalation {
    next: RunDeadlineAction,
    at: Instant,
}

impl RunDeadlines {
    /// Starts to watch.
    pub(crate) fn new(limits: &RunLimits, now: Instant) -> RunDeadlines {
        RunDeadlines {
            limits: limits.clone(),
            started: now,
            last_output_at: now,
            is_waiting: false,
            end: None,
        }
    }

    /// The agent said something.
    pub(crate) fn record_output(&mut self, now: Instant) {
        self.last_output_at = now;
    }

    /// Nobody could look for what the agent says since that moment.
    pub(crate) fn record_pause(&mut self, since: Instant, now: Instant) {
        if now.saturating_duration_since(since) > LOOP_DELAY_MAX {
            self.last_output_at = now;
        }
    }

    /// Says whether the agent waits for somebody else; that is no stall.
    pub(crate) fn set_waiting(&mut self, held: bool, now: Instant) {
        if self.is_waiting && !held {
            self.last_output_at = now;
        }
        self.is_waiting = held;
    }

    /// The agent was asked to stop: harder means follow unless an end is under way.
    pub(crate) fn record_interrupt(&mut self, now: Instant) {
        self.end =
            Some(RunEscalation { next: RunDeadlineAction::Terminate, at: now + self.grace() });
    }

    /// The agent was sent a signal to end: killing follows.
    pub(crate) fn record_terminate(&mut self, now: Instant) {
        self.end = Some(RunEscalation { next: RunDeadlineAction::Kill, at: now + self.grace() });
    }

    /// The agent has nothing more to do and should exit by itself.
    pub(crate) fn record_done(&mut self, now: Instant) {
        if self.end.is_none() {
            self.end = Some(RunEscalation {
                next: RunDeadlineAction::Kill,
                at: now + self.grace() * EXIT_GRACES,
            });
        }
    }

    /// The agent is started once more; the time limit of the run goes on.
    pub(crate) fn restart(&mut self, now: Instant) {
        (self.last_output_at, self.is_waiting, self.end) = (now, false, None);
    }

    /// Returns what has to be done by now.
    pub(crate) fn due_action(&self, now: Instant) -> Option<RunDeadlineAction> {
        let (due, at) = self.next_action()?;
        (at <= now).then_some(due)
    }

    /// Returns what has to be done next, and when.
    pub(crate) fn next_action(&self) -> Option<(RunDeadlineAction, Instant)> {
        if let Some(RunEscalation { next, at }) = self.end {
            return Some((next, at));
        }
        let timeout = self.timeout_at();
        let stall = self.limits.stall_timeout_ms.filter(|_| !self.is_waiting);
        let stall = stall.and_then(|ms| add_millis(self.last_output_at, ms));
        let timeout = timeout.map(|at| (RunDeadlineAction::Timeout, at));
        let stall = stall.map(|at| (RunDeadlineAction::Stall, at));
        timeout.into_iter().chain(stall).min_by_key(|(_, at)| *at)
    }

    /// Returns when the run has taken too long, whatever is under way.
    pub(crate) fn timeout_at(&self) -> Option<Instant> {
        self.limits.timeout_ms.and_then(|ms| add_millis(self.started, ms))
    }

    fn grace(&self) -> Duration {
        self.limits.grace_ms.map_or(GRACE_DEFAULT, Duration::from_millis).min(GRACE_MAX)
    }
}

/// A limit beyond the end of time is none.
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
