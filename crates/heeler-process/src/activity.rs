//! Progress of a process, according to the kernel. Start at [`process_activity`].

/// Returns a number that grows while a process executes or waits for a processor; `None` if the
/// process does not exist or cannot be inspected. It does not grow while the process is stopped,
/// or waits for an event.
pub fn process_activity(pid: u32) -> Option<u64> {
    // This file counts nanoseconds, and also the time for which a busy machine let the process wait.
    let scheduled = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok();
    match scheduled.as_deref().and_then(|text| sum_fields(text, 0)) {
        Some(nanoseconds) if nanoseconds > 0 => Some(nanoseconds),
        // A kernel without these statistics shows zeros.
        _ => {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The second field is the name in parentheses, which may hold anything. User and system
            // time are fields 14 and 15, so they follow 11 others.
            sum_fields(stat.rsplit_once(')')?.1, 11)
        }
    }
}

/// Returns the sum of two fields.
fn sum_fields(text: &str, skipped: usize) -> Option<u64> {
    let mut fields = text.split_ascii_whitespace().skip(skipped);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()?.saturating_add(next()?))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, WaitOptions, kill_process};

    use super::*;

    struct KilledChild(Child);

    impl Drop for KilledChild {
        fn drop(&mut self) {
            drop(self.0.kill().and_then(|()| self.0.wait()));
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the test observes a process")]
    fn shell(script: &str) -> KilledChild {
        KilledChild(Command::new("sh").args(["-c", script]).spawn().unwrap())
    }

    #[test]
    fn a_busy_process_is_active_and_a_stopped_one_is_not() {
        let busy = shell("while :; do :; done");
        let activity = || process_activity(busy.0.id()).unwrap();
        let (start, first) = (Instant::now(), activity());
        while activity() == first {
            assert!(start.elapsed() < Duration::from_secs(60), "it is not active");
            std::thread::yield_now();
        }
        let pid = Pid::from_child(&busy.0);
        kill_process(pid, Signal::STOP).unwrap();
        rustix::process::waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
        let stopped = activity();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(activity(), stopped);
        assert_eq!(process_activity(u32::MAX), None);
    }

    #[test]
    fn fields_are_added() {
        assert_eq!(sum_fields("12 30 4", 0), Some(42));
        assert_eq!(sum_fields(" S 1 2 3", 1), Some(3));
        assert_eq!((sum_fields("1", 0), sum_fields("x 1", 0)), (None, None));
    }
}
