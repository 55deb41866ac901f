//! When a run is ended, as arithmetic on moments that are handed in.
//!
//! [`Watch`] knows the time limits of a run and how far its end has come: interrupted, terminated,
//! killed, each a grace after the one before. It acts on nothing. Start at [`Watch::due`].

use std::time::{Duration, Instant};

use heeler_model::run::Limits;

/// How long each step of a cancel waits for the next, harder one, when the spec does not say.
pub(crate) const GRACE_DEFAULT: Duration = Duration::from_secs(5);

/// The longest grace, whatever the spec says.
pub(crate) const GRACE_MAX: Duration = Duration::from_secs(60 * 60);

/// How many graces an agent that has nothing more to do may take to exit; then its tree is ended. It
/// has said its result by then, so nothing is lost.
pub(crate) const EXIT_GRACES: u32 = 2;

/// A loop that comes later than this was stopped, and the agent perhaps with it (a machine that slept
/// or swapped): its silence of that time is no stall.
pub(crate) const AWAY_MAX: Duration = Duration::from_secs(1);

/// What has to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
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
pub(crate) struct Watch {
    limits: Limits,
    started: Instant,
    /// When the agent last said something, or could say something again.
    heard: Instant,
    /// The agent cannot speak: it waits for a person, a tool, us or the disk.
    held: bool,
    end: Option<End>,
}

/// An end that is under way.
#[derive(Debug, Clone, Copy)]
struct End {
    next: Due,
    at: Instant,
}

impl Watch {
    /// Starts to watch.
    pub(crate) fn new(limits: &Limits, now: Instant) -> Watch {
        Watch { limits: limits.clone(), started: now, heard: now, held: false, end: None }
    }

    /// The agent said something.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.heard = now;
    }

    /// Nobody could look for what the agent says since that moment.
    pub(crate) fn away(&mut self, since: Instant, now: Instant) {
        if now.saturating_duration_since(since) > AWAY_MAX {
            self.heard = now;
        }
    }

    /// Says whether the agent waits for somebody else; that is no stall.
    pub(crate) fn hold(&mut self, held: bool, now: Instant) {
        if self.held && !held {
            self.heard = now;
        }
        self.held = held;
    }

    /// The agent was asked to stop: harder means follow unless an end is under way.
    pub(crate) fn interrupted(&mut self, now: Instant) {
        self.end = Some(End { next: Due::Terminate, at: now + self.grace() });
    }

    /// The agent was sent a signal to end: killing follows.
    pub(crate) fn terminated(&mut self, now: Instant) {
        self.end = Some(End { next: Due::Kill, at: now + self.grace() });
    }

    /// The agent has nothing more to do and should exit by itself.
    pub(crate) fn done(&mut self, now: Instant) {
        if self.end.is_none() {
            self.end = Some(End { next: Due::Kill, at: now + self.grace() * EXIT_GRACES });
        }
    }

    /// The agent is started once more; the time limit of the run goes on.
    pub(crate) fn restart(&mut self, now: Instant) {
        (self.heard, self.held, self.end) = (now, false, None);
    }

    /// Returns what has to be done by now.
    pub(crate) fn due(&self, now: Instant) -> Option<Due> {
        let (due, at) = self.next()?;
        (at <= now).then_some(due)
    }

    /// Returns what has to be done next, and when.
    pub(crate) fn next(&self) -> Option<(Due, Instant)> {
        if let Some(End { next, at }) = self.end {
            return Some((next, at));
        }
        let timeout = self.timeout_at();
        let stall = self.limits.stall_timeout_ms.filter(|_| !self.held);
        let stall = stall.and_then(|ms| later(self.heard, ms));
        let timeout = timeout.map(|at| (Due::Timeout, at));
        let stall = stall.map(|at| (Due::Stall, at));
        timeout.into_iter().chain(stall).min_by_key(|(_, at)| *at)
    }

    /// Returns when the run has taken too long, whatever is under way.
    pub(crate) fn timeout_at(&self) -> Option<Instant> {
        self.limits.timeout_ms.and_then(|ms| later(self.started, ms))
    }

    fn grace(&self) -> Duration {
        self.limits.grace_ms.map_or(GRACE_DEFAULT, Duration::from_millis).min(GRACE_MAX)
    }
}

/// A limit beyond the end of time is none.
fn later(from: Instant, ms: u64) -> Option<Instant> {
    from.checked_add(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(timeout_ms: Option<u64>, stall_timeout_ms: Option<u64>) -> (Watch, Instant) {
        let now = Instant::now();
        let limits =
            Limits { timeout_ms, stall_timeout_ms, grace_ms: Some(10), ..Limits::default() };
        (Watch::new(&limits, now), now)
    }

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn without_limits_nothing_is_ever_due() {
        let (watch, now) = watch(None, None);
        assert_eq!(watch.due(now + ms(u64::from(u32::MAX))), None);
    }

    #[test]
    fn a_limit_beyond_the_end_of_time_never_comes() {
        let limits = Limits {
            timeout_ms: Some(u64::MAX),
            stall_timeout_ms: Some(u64::MAX),
            grace_ms: Some(u64::MAX),
            ..Limits::default()
        };
        let now = Instant::now();
        let mut watch = Watch::new(&limits, now);
        assert_eq!(watch.due(now + ms(u64::from(u32::MAX))), None);
        watch.done(now);
        watch.interrupted(now);
        assert_eq!(watch.due(now + GRACE_MAX), Some(Due::Terminate));
    }

    #[test]
    fn silence_is_a_stall_unless_the_agent_waits_for_somebody_else() {
        let (mut watch, now) = watch(None, Some(100));
        assert_eq!(watch.due(now + ms(99)), None);
        assert_eq!(watch.due(now + ms(100)), Some(Due::Stall));
        watch.heard(now + ms(50));
        assert_eq!(watch.due(now + ms(149)), None);
        watch.hold(true, now + ms(60));
        assert_eq!(watch.due(now + ms(500)), None);
        watch.hold(false, now + ms(500));
        assert_eq!(watch.due(now + ms(599)), None);
        assert_eq!(watch.due(now + ms(600)), Some(Due::Stall));
    }

    #[test]
    fn silence_while_nobody_could_look_is_no_stall() {
        let (mut watch, now) = watch(None, Some(100));
        watch.away(now, now + AWAY_MAX);
        assert_eq!(watch.due(now + AWAY_MAX), Some(Due::Stall));
        let back = now + AWAY_MAX + ms(1);
        watch.away(now, back);
        assert_eq!(watch.due(back + ms(99)), None);
        assert_eq!(watch.due(back + ms(100)), Some(Due::Stall));
    }

    #[test]
    fn the_time_limit_holds_whatever_the_agent_waits_for_and_however_often_it_is_started() {
        let (mut watch, now) = watch(Some(100), Some(10));
        watch.hold(true, now);
        assert_eq!(watch.due(now + ms(100)), Some(Due::Timeout));
        watch.restart(now + ms(95));
        assert_eq!(watch.due(now + ms(99)), None);
        assert_eq!(watch.due(now + ms(100)), Some(Due::Timeout));
    }

    #[test]
    fn each_step_of_an_end_waits_a_grace() {
        let (mut watch, now) = watch(Some(5), Some(5));
        watch.interrupted(now);
        assert_eq!(watch.due(now + ms(9)), None);
        assert_eq!(watch.due(now + ms(10)), Some(Due::Terminate));
        watch.terminated(now + ms(10));
        assert_eq!(watch.due(now + ms(19)), None);
        assert_eq!(watch.due(now + ms(20)), Some(Due::Kill));
    }

    #[test]
    fn an_agent_that_is_done_has_time_to_exit_and_no_other_limit() {
        let (mut watch, now) = watch(Some(5), Some(5));
        watch.done(now);
        assert_eq!(watch.due(now + ms(19)), None);
        assert_eq!(watch.due(now + ms(20)), Some(Due::Kill));
    }
}
