//! Fault injection for tests: a process that kills itself at a named fault point, and a thread whose
//! writes fail after a given number.
//!
//! It is compiled only with the feature `fault-points`, which no shipped program has. Crates name
//! their own fault points. Start at [`arm`] and [`fail_after`].

use std::cell::Cell;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Signal, getpid, kill_process};

static ARMED: OnceLock<(&str, AtomicU32)> = OnceLock::new();

thread_local! {
    /// Number of writes that still succeed.
    // Per thread, so that tests which run side by side do not fail each other's writes.
    static WRITES_LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Makes this process die when it reaches the point for the `nth` time, starting at 1. Only the
/// first call has an effect.
pub fn arm(point: &'static str, nth: u32) {
    ARMED.get_or_init(|| (point, AtomicU32::new(nth)));
}

/// Returns true if this process dies when it reaches the point the next time.
pub fn is_next(point: &str) -> bool {
    ARMED.get().is_some_and(|(armed, left)| *armed == point && left.load(Ordering::SeqCst) == 1)
}

/// Marks that a point is reached. Dies as if by `kill -9` if that is the armed visit.
pub fn reach(point: &str) {
    if let Some((armed, left)) = ARMED.get()
        && *armed == point
        && left.fetch_sub(1, Ordering::SeqCst) == 1
    {
        // This does not return.
        let _sent = kill_process(getpid(), Signal::KILL);
    }
}

/// Lets this many writes of this thread succeed, and every later one fail.
pub fn fail_after(writes: u64) {
    WRITES_LEFT.set(Some(writes));
}

/// Lets all writes of this thread succeed again.
pub fn never_fail() {
    WRITES_LEFT.set(None);
}

/// Counts a write, and fails in its place if it is one too many.
pub fn count_write() -> io::Result<()> {
    match WRITES_LEFT.get() {
        None => Ok(()),
        Some(0) => Err(io::Error::other("stopped here by the test")),
        Some(left) => {
            WRITES_LEFT.set(Some(left - 1));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_fail_after_the_given_number_until_they_may_succeed_again() {
        assert!(count_write().is_ok());
        fail_after(2);
        let done: Vec<bool> = (0..4).map(|_| count_write().is_ok()).collect();
        assert_eq!(done, [true, true, false, false]);
        never_fail();
        assert!(count_write().is_ok());
    }

    #[test]
    fn a_process_lives_until_the_visit_that_it_is_armed_for() {
        assert!(!is_next("here"));
        arm("here", 3);
        reach("elsewhere");
        reach("here");
        assert!(!is_next("here"));
        reach("here");
        assert!(is_next("here") && !is_next("elsewhere"));
    }
}
