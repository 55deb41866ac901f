//! Wait for the short processes that an agent still has when its turn has ended.
//!
//! Claude looks at its surroundings while it works (`git`, `uname`, a list of files), and a fast
//! model ends the turn before these have ended. Only an agent without other processes may stay.
//! Start at [`CompanionWait::next_check`].

use std::time::{Duration, Instant};

/// Longest time for which the end of a turn waits for other processes of the agent. If one is left
/// then, the agent ends with its turn.
pub(crate) const COMPANION_WAIT_MAX: Duration = Duration::from_secs(2);

/// Time between two looks at the processes.
const CHECK_INTERVAL: Duration = Duration::from_millis(25);

/// Progress of the wait.
#[derive(Debug, Default)]
pub(crate) struct CompanionWait {
    /// Time of the first look that found another process.
    since: Option<Instant>,
    check_at: Option<Instant>,
}

impl CompanionWait {
    /// Plans the next look at the processes. Returns false if the time is up.
    pub(crate) fn next_check(&mut self, now: Instant, time_max: Duration) -> bool {
        let since = *self.since.get_or_insert(now);
        let may_wait = now.saturating_duration_since(since) < time_max;
        self.check_at = may_wait.then(|| now + CHECK_INTERVAL);
        may_wait
    }

    /// Returns the time of the next look, if one is planned.
    pub(crate) fn check_at(&self) -> Option<Instant> {
        self.check_at
    }

    /// Forgets the planned look: the loop is awake.
    pub(crate) fn record_wake(&mut self) {
        self.check_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_planned_until_the_time_is_up() {
        let (mut wait, start) = (CompanionWait::default(), Instant::now());
        let max = COMPANION_WAIT_MAX;
        assert_eq!(wait.check_at(), None);
        assert!(wait.next_check(start, max));
        assert_eq!(wait.check_at(), Some(start + CHECK_INTERVAL));
        wait.record_wake();
        assert_eq!(wait.check_at(), None);
        assert!(wait.next_check(start + max - CHECK_INTERVAL, max));
        assert!(!wait.next_check(start + max, max));
        assert_eq!(wait.check_at(), None);
    }
}
